#!/bin/sh
# build/finetune and build/predict from the outside: what they print, what they write, and how they refuse bad input.
# Runs from the repository's root; everything it writes lies under build/tmp/programs.
T=build/tmp/programs
rm -rf "$T"
mkdir -p "$T"
passed=0 failed=0

result() { # result STATUS NAME
    if [ "$1" -eq 0 ]; then
        passed=$((passed + 1)); echo "ok $2"
    else
        failed=$((failed + 1)); echo "FAIL $2"
    fi
}

# check NAME COMMAND...: the command must succeed.
check() {
    name=$1; shift
    "$@"
    result $? "$name"
}

# refused NAME MESSAGE COMMAND...: status 1, the message on stderr, no output folder, no log.
refused() {
    name=$1 message=$2; shift 2
    "$@" > "$T/stdout" 2> "$T/stderr" < /dev/null
    status=$?
    good=0
    [ $status -eq 1 ] || { echo "  status $status, expected 1"; good=1; }
    grep -qF -- "$message" "$T/stderr" || { echo "  no \"$message\" in:"; sed 's/^/  /' "$T/stderr"; good=1; }
    [ ! -e "$T/out" ] || { echo "  $T/out was left behind"; good=1; }
    result $good "$name"
    rm -rf "$T/out"
}

# field FILE NAME: the numbers of that name in a log, one per line.
field() { sed -n "s/.*\"$2\": \([^,}]*\).*/\1/p" "$1"; }

# near TOLERANCE: both columns of each line on stdin agree, and there is a line.
near() { awk -v t="$1" '{ d = $1 - $2; if (d < 0) d = -d; if (NF != 2 || !(d <= t)) bad++ } END { exit !(NR > 0 && !bad) }'; }

contains() { grep -qF -- "$2" "$1"; }
lines() { [ "$(wc -l < "$1")" -eq "$2" ]; }

# ---- data: two words out of eight decide ----

rows() { # rows FIRST LAST
    awk -v a="$1" -v b="$2" 'BEGIN {
        split("good fine kind warm bad poor mean cold", w); split("the a this that one my", f)
        for (i = a; i <= b; i++) {
            k = i % 2
            printf "%s\t%s %s day with ", i, f[i % 6 + 1], w[k * 4 + i % 4 + 1]
            printf "%s %s people\t%s\n", f[(i * 5) % 6 + 1], w[k * 4 + (i * 3) % 4 + 1], k ? "sad" : "glad"
        }
    }'
}
{ printf 'id\tsome, text\tmood\n'; rows 1 96; } > "$T/train.tsv"
{ printf 'id\tsome, text\tmood\n'; rows 201 230; } > "$T/eval.tsv"
tiny="--from-scratch --layers 1 --dim 32 --heads 2 --vocab-size 200 --max-length 16 --threads 2"
train="--train $T/train.tsv"

run() { # run LOG OPTIONS...: trains a tiny model
    log=$1; shift
    build/finetune $tiny $train --text "some, text" --label mood --log "$T/$log" "$@" > "$T/stdout" 2> "$T/stderr" && return
    cat "$T/stderr"
    return 1
}

# ---- help and options ----

build/finetune --help > "$T/help" 2>&1
check "finetune --help succeeds" [ $? -eq 0 ]
for option in --model --from-scratch --layers --dim --heads --hidden-dim --vocab-size --train --eval --text --label --output \
    --epochs --batch-size --lr --warmup-ratio --max-length --seed --threads --optimizer --weight-decay --schedule --grad-accum \
    --max-grad-norm --dropout --no-shuffle --limit --log --max-steps --max-grad-value --layer-decay --label-smoothing --ema \
    --freeze --recompute --eval-steps --metric --patience --load-best; do
    check "finetune --help names $option" contains "$T/help" "  $option "
done
build/predict --help > "$T/help" 2>&1
check "predict --help succeeds" [ $? -eq 0 ]
check "predict --help names --logits" contains "$T/help" --logits

bad() { # bad NAME MESSAGE OPTIONS...: with everything else as it should be
    name=$1 message=$2; shift 2
    refused "finetune: $name" "$message" build/finetune $tiny $train --text "some, text" --label mood --output "$T/out" "$@"
}
bad "unknown option" 'unknown option --epoch' --epoch 3
bad "missing value" '--epochs needs a value' --epochs
bad "option for a value" '--epochs needs a value' --epochs --lr 1
bad "no option" 'unexpected argument "3"' 3
bad "value for a flag" '--no-shuffle takes no value' --no-shuffle=1
bad "--epochs 0" '--epochs must be a whole number from 1 to 1000000, not "0"' --epochs 0
bad "--epochs x" '--epochs must be' --epochs x
bad "--epochs 1.5" '--epochs must be' --epochs 1.5
bad "--epochs -1" '--epochs must be' --epochs -1
bad "--epochs ''" '--epochs must be' --epochs ''
bad "--batch-size 0" '--batch-size must be' --batch-size 0
bad "--seed too large" '--seed must be' --seed 99999999999999999999
bad "--lr nan" '--lr must be a number above 0, not "nan"' --lr nan
bad "--lr inf" '--lr must be' --lr inf
bad "--lr 0" '--lr must be' --lr 0
bad "--lr -1e-3" '--lr must be' --lr -1e-3
bad "--lr 1e-3x" '--lr must be' --lr 1e-3x
bad "--lr 1e99" '--lr must be' --lr 1e99
bad "--dropout 1" '--dropout must be a number from 0 to 0.99' --dropout 1
bad "--warmup-ratio 2" '--warmup-ratio must be a number from 0 to 1' --warmup-ratio 2
bad "--weight-decay -1" '--weight-decay must be a number, at least 0' --weight-decay -1
bad "--optimizer lion" '--optimizer must be adam|adamw|sgd, not "lion"' --optimizer lion
bad "--optimizer ada" '--optimizer must be' --optimizer ada
bad "--schedule step" '--schedule must be linear|cosine|constant' --schedule step
bad "--text three times" '--text must be given at most twice' --text a --text b
bad "--model and --from-scratch" 'one of --model and --from-scratch' --model "$T"
bad "heads that do not divide" 'heads' --heads 3
refused "finetune: --layers without --from-scratch" '--layers is of use with --from-scratch only' \
    build/finetune --model "$T" --layers 2 $train --text 1 --label mood --output "$T/out"
refused "finetune: no --label" '--label is missing' build/finetune $tiny $train --text 1 --output "$T/out"
refused "finetune: no --train" '--train is missing' build/finetune $tiny --text 1 --label 2 --output "$T/out"
refused "finetune: no model" 'one of --model and --from-scratch' build/finetune $train --text 1 --label 2 --output "$T/out"
refused "finetune: three columns" 'more than two columns' build/finetune $tiny $train --text a,b,c --label 2 --output "$T/out"
refused "predict: no --model" '--model is missing' build/predict -
refused "predict: no file" 'FILE|- is missing' build/predict --model "$T"

# ---- a run from scratch ----

check "train from scratch" run log.json --eval "$T/eval.tsv" --output "$T/model" --epochs 6 --lr 3e-3
for file in config.json model.safetensors vocab.txt tokenizer_config.json; do
    check "$file is written" [ -s "$T/model/$file" ]
done
check "and nothing else" [ "$(ls -A "$T/model" | wc -l)" -eq 4 ]
head -n 1 "$T/stdout" > "$T/first"
check "first line says threads, core, seed, size" \
    grep -qE '^2 threads, BLAS core [A-Za-z0-9]+, seed 42, [0-9.]+ million parameters' "$T/first"
check "about a line per tenth" [ "$(grep -c '^epoch [0-9]*, step' "$T/stdout")" -eq 10 ]
check "evaluation after each epoch" [ "$(grep -c '^epoch [0-9]: accuracy' "$T/stdout")" -eq 6 ]
check "no terminal codes in a file" sh -c "! grep -q '$(printf '\033')' $T/stdout"
check "it learns" contains "$T/stdout" \
    'epoch 6: accuracy 1.0000 (the most frequent label alone: 0.5000), F1 1.0000, Matthews 1.0000'
check "a log line per step and evaluation" lines "$T/log.json" 42
check "every log line is an object" [ "$(grep -cE '^\{("[a-z0-9_]+": [-+.e0-9]+(, )?)+\}$' "$T/log.json")" -eq 42 ]
grep grad_norm "$T/log.json" | tail -n 1 > "$T/last"
check "steps and epochs are counted" grep -q '^{"step": 36, "epoch": 6, ' "$T/last"
check "label names are saved" contains "$T/model/config.json" glad
lr_expected() { awk 'BEGIN { for (i = 0; i < 36; i++) printf "%.9g\n", 3e-3 * (i < 3 ? i / 3 : (36 - i) / 33) }'; }
lr_expected > "$T/expected"
field "$T/log.json" lr > "$T/lr"
paste "$T/lr" "$T/expected" > "$T/both"
check "linear schedule with floor(0.1 x 36) warmup steps" near 1e-9 < "$T/both"

check "again with one thread" run log1.json --eval "$T/eval.tsv" --output "$T/model1" --epochs 6 --lr 3e-3 --threads 1
check "threads do not change the weights" cmp "$T/model/model.safetensors" "$T/model1/model.safetensors"
check "another seed" run log2.json --epochs 1 --seed 7
check "a seed changes the losses" [ "$(field "$T/log.json" loss | head -n 1)" != "$(field "$T/log2.json" loss | head -n 1)" ]

# ---- options that change the run ----

same() { # same NAME TOLERANCE FIELD LOG1 LOG2
    field "$T/$4" "$3" > "$T/one"; field "$T/$5" "$3" > "$T/two"
    paste "$T/one" "$T/two" > "$T/both"
    check "$1" near "$2" < "$T/both"
}
differs() { # differs NAME FIELD LOG1 LOG2
    field "$T/$3" "$2" > "$T/one"; field "$T/$4" "$2" > "$T/two"
    paste "$T/one" "$T/two" > "$T/both"
    if near 1e-6 < "$T/both"; then result 1 "$1"; else result 0 "$1"; fi
}
plain="--epochs 2 --dropout 0 --no-shuffle --lr 1e-3"
check "without dropout and shuffling" run plain.json $plain
check "accumulation" run accum.json $plain --batch-size 5 --grad-accum 4
check "the same batches at once" run whole.json $plain --batch-size 20
check "accumulation counts steps" lines "$T/accum.json" 10
same "accumulation gives the pooled losses" 1e-5 loss accum.json whole.json
same "accumulation gives the pooled gradients" 1e-4 grad_norm accum.json whole.json
check "--limit" run limit.json $plain --limit 17
check "--limit leaves two steps per epoch" lines "$T/limit.json" 4
check "--schedule constant" run constant.json $plain --schedule constant --warmup-ratio 0
check "a constant rate" [ "$(field "$T/constant.json" lr | sort -u | wc -l)" -eq 1 ]
check "--schedule cosine" run cosine.json $plain --schedule cosine
differs "cosine is not linear" lr plain.json cosine.json
check "--optimizer adamw" run adamw.json $plain --optimizer adamw --weight-decay 0.5
check "--weight-decay 0" run adamw0.json $plain --optimizer adamw --weight-decay 0
same "adamw without decay is adam" 1e-7 loss plain.json adamw0.json
differs "decay changes the run" loss plain.json adamw.json
check "--optimizer sgd" run sgd.json $plain --optimizer sgd --lr 10
differs "sgd is not adam" loss plain.json sgd.json
check "--max-grad-norm" run clip.json $plain --optimizer sgd --lr 10 --max-grad-norm 1e-5
differs "clipping changes the run" loss sgd.json clip.json
for log in sgd clip; do head -n 2 "$T/$log.json" > "$T/$log.begin"; done
same "the norm is the one before clipping" 1e-4 grad_norm sgd.begin clip.begin
check "and above the limit" [ "$(field "$T/clip.begin" grad_norm | awk '$1 > 1e-4' | wc -l)" -eq 2 ]
check "--dropout" run dropout.json $plain --dropout 0.5
differs "dropout changes the run" loss plain.json dropout.json
check "shuffling" run shuffle.json --epochs 2 --dropout 0 --lr 1e-3
differs "shuffling changes the run" loss plain.json shuffle.json
check "--vocab takes a tokenizer" run vocab.json $plain --vocab "$T/model"
check "--hidden-dim" run hidden.json $plain --hidden-dim 48
check "--max-steps" run max.json $plain --max-steps 3
check "--max-steps ends the run" lines "$T/max.json" 3
check "--max-grad-value" run value.json $plain --optimizer sgd --lr 10 --max-grad-value 1e-5
differs "clipping by value changes the run" loss sgd.json value.json
check "--layer-decay" run layers.json $plain --layer-decay 0.5
differs "layer decay changes the run" loss plain.json layers.json
check "--label-smoothing" run smooth.json $plain --label-smoothing 0.2
differs "smoothing changes the loss" loss plain.json smooth.json
check "a plain model" run once.json $plain --output "$T/once"
check "--recompute" run recompute.json $plain --recompute --output "$T/recompute"
check "recomputation gives the same weights" cmp "$T/once/model.safetensors" "$T/recompute/model.safetensors"
check "--ema" run ema.json $plain --ema 0.9 --output "$T/ema"
same "an average does not change the training" 0 loss plain.json ema.json
check "an average is what is saved" [ "$(cksum < "$T/ema/model.safetensors")" != "$(cksum < "$T/once/model.safetensors")" ]
check "--freeze" run frozen.json $plain --freeze "distilbert.*" --output "$T/frozen"
check "--freeze at another rate" run frozen2.json $plain --freeze "distilbert.*" --lr 0.1 --output "$T/frozen2"
bytes_between() { cmp -l "$1/model.safetensors" "$2/model.safetensors" | wc -l; }
head_bytes=$((4 * (32 * 32 + 32 + 2 * 32 + 2)))
apart=$(bytes_between "$T/frozen" "$T/frozen2")
check "what is not frozen learns" [ "$apart" -gt 1000 ]
check "what is frozen stays" [ "$apart" -le $head_bytes ]
check "without --freeze all learns" [ "$(bytes_between "$T/frozen" "$T/once")" -gt $((2 * head_bytes)) ]
refused "--freeze nothing" "--freeze nosuch*: the model has no such parameter" \
    build/finetune $tiny $train --text "some, text" --label mood --freeze "nosuch*"
check "--eval-steps" run evals.json $plain --eval "$T/eval.tsv" --eval-steps 2 --max-steps 6
check "an evaluation every other step" [ "$(grep -c eval_loss "$T/evals.json")" -eq 3 ]
check "--eval-steps that do not divide the run" run evals5.json $plain --eval "$T/eval.tsv" --eval-steps 2 --max-steps 5
check "the last step is evaluated" [ "$(grep eval_loss "$T/evals5.json" | tail -n 1 | cut -d, -f1)" = '{"step": 5' ]
check "and none twice" [ "$(grep -c eval_loss "$T/evals5.json")" -eq 3 ]
check "--patience" run patience.json --epochs 20 --lr 1e-30 --eval "$T/eval.tsv" --metric accuracy --patience 2
check "two evaluations without improvement end the run" [ "$(grep -c eval_loss "$T/patience.json")" -eq 3 ]
worse="--dropout 0 --no-shuffle --schedule constant --warmup-ratio 0 --lr 3e-2" # the second epoch is worse than the first
check "--load-best" run best.json $worse --epochs 2 --eval "$T/eval.tsv" --metric loss --load-best --output "$T/best"
check "the first epoch alone" run first.json $worse --epochs 1 --output "$T/first-epoch"
check "the last epoch" run last.json $worse --epochs 2 --output "$T/last-epoch"
check "the best model is that of the first epoch" cmp "$T/best/model.safetensors" "$T/first-epoch/model.safetensors"
check "and not that of the last" [ "$(bytes_between "$T/best" "$T/last-epoch")" -gt 0 ]
refused "--load-best without --output" "--load-best need --output" \
    build/finetune $tiny $train --text "some, text" --label mood --eval "$T/eval.tsv" --load-best
refused "--patience without --eval" "--eval" build/finetune $tiny $train --text "some, text" --label mood --patience 2
for wrong in "--ema 1" "--layer-decay 0" "--layer-decay 1.5" "--label-smoothing 2" "--max-grad-value -1" "--max-steps 0" \
    "--metric bleu" "--patience 0" "--eval-steps 0"; do
    refused "$wrong" "${wrong% *}" build/finetune $tiny $train --text "some, text" --label mood --eval "$T/eval.tsv" $wrong
done

# ---- predict ----

build/predict --model "$T/model" --text "some, text" "$T/eval.tsv" > "$T/predicted" 2> "$T/stderr"
check "predict succeeds" [ $? -eq 0 ]
check "a row for each and a header" lines "$T/predicted" 31
check "the header names the labels" [ "$(head -n 1 "$T/predicted")" = "$(printf 'label\tglad\tsad')" ]
cut -f 3 "$T/eval.tsv" | tail -n +2 > "$T/one"
cut -f 1 "$T/predicted" | tail -n +2 > "$T/two"
check "the labels are right" cmp "$T/one" "$T/two"
tail -n +2 "$T/predicted" | awk '{ print $2 + $3, 1 }' > "$T/both"
check "probabilities sum to 1" near 3e-6 < "$T/both"
build/predict --model "$T/model" --text 1 --logits --batch-size 7 --threads 1 "$T/eval.tsv" > "$T/logits" 2> "$T/stderr"
check "predict --logits succeeds" [ $? -eq 0 ]
paste "$T/logits" "$T/predicted" | tail -n +2 | awk '{ print 1 / (1 + exp($3 - $2)), $5 }' > "$T/both"
check "logits and probabilities agree" near 2e-6 < "$T/both"
printf 'good day\n\na\ttab\nbad day' | build/predict --model "$T/model" - > "$T/lines" 2> "$T/stderr"
check "lines from stdin" lines "$T/lines" 5
check "the first line is glad" sh -c "[ \"\$(sed -n 2p $T/lines | cut -f 1)\" = glad ]"
cut -f 2 "$T/eval.tsv" | tail -n +2 | build/predict --model "$T/model" - > "$T/two" 2> /dev/null
check "lines and columns give the same" cmp "$T/predicted" "$T/two"
awk '{ for (i = 0; i < 30; i++) printf "good "; print "day" }' "$T/lines" > "$T/long"
build/predict --model "$T/model" "$T/long" > "$T/two" 2> "$T/stderr"
check "long texts are predicted" lines "$T/two" 6
check "long texts are counted in one notice" contains "$T/stderr" '5 of 5 texts were longer than 16 tokens and were cut'
if [ -w /dev/full ]; then
    build/predict --model "$T/model" --text 1 "$T/eval.tsv" > /dev/full 2> "$T/stderr"
    check "a full disk is an error" [ $? -eq 1 ]
fi

# ---- a trained folder again ----

again="build/finetune --model $T/model --threads 2 --epochs 1 --lr 1e-4"
$again $train --eval "$T/eval.tsv" --text "some, text" --label mood --output "$T/more" > "$T/stdout" 2> "$T/stderr"
check "training goes on" [ $? -eq 0 ]
check "and keeps what it knows" grep -q '^epoch 1: accuracy 1.0000' "$T/stdout"
sed 's/glad$/merry/' "$T/train.tsv" > "$T/merry.tsv"
refused "finetune: labels that the model does not know" 'unknown label "merry"' \
    $again --train "$T/merry.tsv" --text 1 --label mood --output "$T/out"
rm -rf "$T/swapped"; cp -r "$T/model" "$T/swapped"
sed 's/glad/@/; s/sad/glad/; s/@/sad/' "$T/model/config.json" > "$T/swapped/config.json"
build/finetune --model "$T/swapped" --threads 2 --epochs 1 --lr 1e-9 $train --eval "$T/eval.tsv" --text 1 --label mood \
    > "$T/stdout" 2> "$T/stderr"
check "the model's names decide, not the order of the file's" grep -q '^epoch 1: accuracy 0.0000' "$T/stdout"
check "a run without --output says so" contains "$T/stdout" 'the model is not saved: no --output'
build/first_loop "$T/model" "$T/train.tsv" "$T/eval.tsv" mood "some, text" > "$T/stdout" 2> "$T/stderr"
check "first_loop succeeds" [ $? -eq 0 ]
check "first_loop prints the accuracy" contains "$T/stdout" 'accuracy 1.0000'
refused "first_loop: no such folder" "$T/absent" build/first_loop "$T/absent" "$T/train.tsv" "$T/eval.tsv" mood 1
if command -v script > /dev/null; then
    script -qec "$again $train --text 1 --label mood" /dev/null < /dev/null > "$T/terminal" 2>&1
    check "a bar on a terminal" grep -q "$(printf '\r\033')\\[K####################" "$T/terminal"
fi

# ---- a signal ----

stopped() { # stopped OPTIONS...: a long run that gets SIGTERM after some steps; its status in $status
    rm -f "$T/stopped.json"
    build/finetune $tiny $train --text 1 --label mood --epochs 100000 --log "$T/stopped.json" "$@" > "$T/stdout" 2> "$T/stderr" &
    process=$!
    while [ "$(cat "$T/stopped.json" 2> /dev/null | wc -l)" -lt 5 ] && kill -0 $process 2> /dev/null; do sleep 0.01; done
    kill -TERM $process
    wait $process
    status=$?
}
stopped --output "$T/stopped"
check "a signal ends the run with status 1" [ $status -eq 1 ]
check "it says where its state is" grep -qE '^stopped by a signal after step [0-9]+ of 600000; its state is in .*/step-[0-9]+' "$T/stderr"
check "the state is there, and no model" sh -c "[ -s $T/stopped/step-*/state.safetensors ] && [ ! -e $T/stopped/config.json ]"
step=$(ls "$T/stopped" | sed 's/step-//')
check "it goes on from there" \
    build/finetune $tiny $train --text 1 --label mood --epochs $((step / 6 + 1)) --output "$T/stopped" --resume --log "$T/stopped.json" \
    > "$T/stdout" 2> "$T/stderr"
check "and says so" contains "$T/stderr" "going on from $T/stopped/step-$step"
check "to its end" [ -s "$T/stopped/model.safetensors" ]
check "every step is logged once" [ "$(field "$T/stopped.json" step | uniq -d | wc -l)" -eq 0 ]
stopped
check "without --output it says so" contains "$T/stderr" 'nothing is saved: no --output'
check "finetune --resume without a state starts anew" \
    build/finetune $tiny $train --text 1 --label mood --epochs 1 --output "$T/anew" --resume > "$T/stdout" 2> "$T/stderr"
check "with a notice" contains "$T/stderr" "$T/anew has no state to go on from: starting anew"

# ---- bad input ----

on() { # on NAME MESSAGE TRAIN [EVAL]: training from scratch on these files is refused
    name=$1 message=$2 file=$3 eval=${4:-$T/eval.tsv}
    refused "finetune: $name" "$message" build/finetune $tiny --train "$file" --eval "$eval" --text 1 --label mood --output "$T/out"
}
on "no such file" 'absent.tsv cannot be read' "$T/absent.tsv"
: > "$T/empty.tsv"
on "empty file" 'empty.tsv is empty' "$T/empty.tsv"
head -n 1 "$T/train.tsv" > "$T/header.tsv"
on "header only" 'header.tsv has no rows' "$T/header.tsv"
on "header only, to evaluate on" 'header.tsv has no rows' "$T/train.tsv" "$T/header.tsv"
{ cat "$T/train.tsv"; printf '97\tonly two\n'; } > "$T/ragged.tsv"
on "ragged row" 'ragged.tsv, line 98: 2 columns, expected 3' "$T/ragged.tsv"
{ cat "$T/train.tsv"; printf '97\tbad \377 byte\tsad\n'; } > "$T/bytes.tsv"
on "invalid UTF-8" 'bytes.tsv, line 98: invalid UTF-8' "$T/bytes.tsv"
{ cat "$T/eval.tsv"; printf '97\tso so\tmixed\n'; } > "$T/unknown.tsv"
on "unknown label" 'unknown.tsv, line 32: unknown label "mixed"; known are "glad", "sad"' "$T/train.tsv" "$T/unknown.tsv"
grep -v 'glad$' "$T/train.tsv" > "$T/single.tsv"
on "one label only" 'all rows have the label "sad"' "$T/single.tsv"
{ cat "$T/train.tsv"; printf '97\tno label\t\n'; } > "$T/unlabelled.tsv"
on "empty label" 'unlabelled.tsv, line 98: the label is empty' "$T/unlabelled.tsv"
printf 'id,text,mood\n1,"open,glad\n' > "$T/open.csv"
on "quote that is never closed" 'open.csv, line 2: the quote' "$T/open.csv"
refused "finetune: missing column" 'no column "words"; columns from 0: "id", "some, text", "mood"' \
    build/finetune $tiny $train --text words --label mood --output "$T/out"
refused "finetune: missing label column" 'no column "class"' build/finetune $tiny $train --text 1 --label class --output "$T/out"

: > "$T/plain"
refused "finetune: output in no folder" 'cannot be written' build/finetune $tiny $train --text 1 --label mood --output "$T/plain/out"
refused "finetune: output is a file" 'cannot be written' build/finetune $tiny $train --text 1 --label mood --output "$T/plain"
refused "finetune: log in no folder" 'cannot be written' \
    build/finetune $tiny $train --text 1 --label mood --output "$T/out" --log "$T/absent/log"
check "an unwritable output is found before training" sh -c "! grep -q '^epoch' $T/stdout"

model() { # a copy of the trained folder, to be spoilt
    rm -rf "$T/spoilt"; cp -r "$T/model" "$T/spoilt"
}
spoilt() { # spoilt NAME MESSAGE: the folder is refused by both programs
    refused "finetune: $1" "$2" build/finetune --model "$T/spoilt" $train --text 1 --label mood --output "$T/out"
    refused "predict: $1" "$2" build/predict --model "$T/spoilt" --text 1 "$T/eval.tsv"
    check "predict: $1, nothing printed" [ ! -s "$T/stdout" ]
}
rm -rf "$T/spoilt"
spoilt "no such folder" "$T/spoilt"
model; head -c 3000 "$T/model/model.safetensors" > "$T/spoilt/model.safetensors"
spoilt "truncated safetensors" model.safetensors
model; head -c 5 "$T/model/model.safetensors" > "$T/spoilt/model.safetensors"
spoilt "safetensors of 5 bytes" model.safetensors
model; LC_ALL=C sed '1s/"shape":\[2,32\]/"shape":[3,32]/' "$T/model/model.safetensors" > "$T/spoilt/model.safetensors"
spoilt "lying safetensors" classifier.weight
model; sed 's/\("dim":[[:space:]]*\)32/\164/' "$T/model/config.json" > "$T/spoilt/config.json"
spoilt "wrong shape" 'distilbert.'
model; printf 'more\nwords\n' >> "$T/spoilt/vocab.txt"
spoilt "vocabulary and model that disagree" 'they do not belong together'
model; sed 's/single_label_classification/regression/' "$T/model/config.json" > "$T/spoilt/config.json"
refused "finetune: a model of scores" 'not for single labels' \
    build/finetune --model "$T/spoilt" $train --text 1 --label mood --output "$T/out"
build/predict --model "$T/spoilt" --text 1 "$T/eval.tsv" 2> "$T/stderr" | tail -n +2 | cut -f 1 > "$T/one"
tail -n +2 "$T/logits" | cut -f 2 | paste - "$T/one" > "$T/both"
check "predict: scores are the model's raw results" near 1e-5 < "$T/both"
model; sed 's/single_label_classification/multi_label_classification/' "$T/model/config.json" > "$T/spoilt/config.json"
build/predict --model "$T/spoilt" --text 1 "$T/eval.tsv" 2> "$T/stderr" | tail -n +2 > "$T/one"
tail -n +2 "$T/logits" | cut -f 3 | paste - "$T/one" | awk '{ print 1 / (1 + exp(-$1)), $NF }' > "$T/both"
check "predict: several labels have a sigmoid each" near 2e-6 < "$T/both"
awk -F '\t' '{ e = ($2 > 0.5 ? "glad" : "") ($2 > 0.5 && $3 > 0.5 ? "," : "") ($3 > 0.5 ? "sad" : ""); print e == $1, 1 }' "$T/one" > "$T/both"
check "predict: labels above one half" near 0 < "$T/both"
model; : > "$T/spoilt/config.json"
spoilt "empty config.json" config.json
model; rm "$T/spoilt/vocab.txt"
spoilt "no vocabulary" vocab.txt
refused "predict: empty input" 'standard input is empty' build/predict --model "$T/model" -
refused "predict: no such file" 'absent.tsv cannot be read' build/predict --model "$T/model" "$T/absent.tsv"
refused "predict: missing column" 'no column "words"' build/predict --model "$T/model" --text words "$T/eval.tsv"
printf 'fine\n\377\n' > "$T/bytes"
refused "predict: invalid UTF-8" 'bytes, line 2: invalid UTF-8' build/predict --model "$T/model" "$T/bytes"

# Labels that are numbers, for a model that has no names for them.
model; sed 's/"glad"/"LABEL_0"/; s/"sad"/"LABEL_1"/' "$T/model/config.json" > "$T/spoilt/config.json"
{ sed 's/glad$/0/; s/sad$/1/' "$T/train.tsv"; printf '97\tout of range\t2\n'; } > "$T/range.tsv"
refused "finetune: label out of range" 'range.tsv, line 98: label 2 is out of range 0 .. 1' \
    build/finetune --model "$T/spoilt" --train "$T/range.tsv" --text 1 --label mood --output "$T/out"

echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
