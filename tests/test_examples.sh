#!/bin/sh
# The short example programs from the outside, on tiny generated data: what each must show, and how it refuses bad
# input. Runs from the repository's root; everything it writes lies under build/tmp/examples.
T=build/tmp/examples
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

# run NAME COMMAND...: the program must succeed; what it prints lies in $T/stdout.
run() {
    name=$1; shift
    "$@" > "$T/stdout" 2> "$T/stderr" < /dev/null
    status=$?
    [ $status -eq 0 ] || sed 's/^/  /' "$T/stderr"
    result $status "$name"
}

# refused NAME MESSAGE COMMAND...: status 1, the message on stderr, no output folder.
refused() {
    name=$1 message=$2; shift 2
    "$@" > "$T/stdout" 2> "$T/stderr" < /dev/null
    status=$? good=0
    [ $status -eq 1 ] || { echo "  status $status, expected 1"; good=1; }
    grep -qF -- "$message" "$T/stderr" || { echo "  no \"$message\" in:"; sed 's/^/  /' "$T/stderr"; good=1; }
    [ ! -e "$T/out" ] || { echo "  $T/out was left behind"; good=1; }
    result $good "$name"
    rm -rf "$T/out"
}

contains() { grep -qF -- "$2" "$1"; }
# value PATTERN: what follows it in the last line of $T/stdout that has it, a number.
value() { sed -n "s/.*$1 \(-\{0,1\}[0-9][0-9.]*\).*/\1/p" "$T/stdout" | tail -n 1; }
# first PATTERN: the same in the first such line.
first() { sed -n "s/.*$1 \(-\{0,1\}[0-9][0-9.]*\).*/\1/p" "$T/stdout" | head -n 1; }
# holds EXPRESSION: awk finds it true, and no number in it is missing.
holds() { awk "BEGIN { exit !($1) }" 2> /dev/null; }

# ---- data: each text has four remarks, good or bad; the score counts the good ones; animal: whether one is named ----

rows() { # rows FIRST LAST
    awk -v a="$1" -v b="$2" '
        function next_number(n) { state = (state * 1103515245 + 12345) % 2147483648; return int(state / 65536) % n }
        BEGIN {
            split("good fine kind warm bad poor mean cold", w); split("the a this that one my", f)
            split("cat dog bird table chair lamp", t); state = 7
            for (i = 1; i <= b; i++) {
                text = ""; score = 0
                for (j = 0; j < 4; j++) {
                    good = next_number(2); score += good
                    text = text f[next_number(6) + 1] " " w[(good ? 0 : 4) + next_number(4) + 1] " "
                }
                thing = next_number(6)
                if (i < a) continue
                printf "%s\t%s\t%s\t%d\t%s\n", text, t[thing + 1], score, thing < 3, (score > 1 ? "glad" : "sad")
            }
        }'
}
header='text\tthing\tscore\tanimal\tmood\n'
{ printf "$header"; rows 1 200; } > "$T/train.tsv"
{ printf "$header"; rows 201 260; } > "$T/eval.tsv"
data="--train $T/train.tsv --eval $T/eval.tsv"

# ---- gan (tests/test_gan.c looks inside) ----

run "gan" build/gan "$T/samples.svg"
check "gan: seven modes at least" holds "$(sed -n 's/^\([0-9]\) of 8 modes covered.*/\1/p' "$T/stdout") >= 7"
check "gan: every sample is drawn" [ "$(grep -c '^<circle .* r="0.02"/>' "$T/samples.svg")" -eq 1000 ]
check "gan: the drawing ends" [ "$(tail -n 1 "$T/samples.svg")" = "</svg>" ]
mv "$T/stdout" "$T/gan"
run "gan without a drawing" build/gan
check "gan: the same in every run" cmp "$T/gan" "$T/stdout"
refused "gan: two files" 'usage: ' build/gan a b
refused "gan: an option" 'usage: ' build/gan --steps
refused "gan: a file that cannot be written" 'cannot be written' build/gan "$T/none/samples.svg"

# ---- regression ----

run "regression" build/regression $data --text text --score score --epochs 8 --lr 1e-3 --output "$T/regression"
check "regression: scores correlate" holds "$(value Pearson) > 0.9 && $(value Spearman) > 0.85"
check "regression: better than at the begin" holds "$(value error) < 0.25 * $(first error)"
check "regression: a line per epoch" [ "$(grep -c '^epoch' "$T/stdout")" -eq 8 ]
check "regression: config.json says so" contains "$T/regression/config.json" '"regression"'
run "predict takes the folder" build/predict --model "$T/regression" --text text "$T/eval.tsv"
check "a score per row" [ "$(wc -l < "$T/stdout")" -eq 61 ]
run "regression from a folder, two texts" \
    build/regression --model "$T/regression" $data --text text,thing --score score --epochs 1
refused "regression: a word as score" 'train.tsv, line 2' \
    build/regression $data --text text --score mood --output "$T/out"
refused "regression: no --score" '--score is missing' build/regression $data --text text
refused "regression: no --eval" '--eval is missing' build/regression --train "$T/train.tsv" --text text --score score
refused "regression: no such column" 'no column "words"' build/regression $data --text words --score score
refused "regression: no such folder" 'no such folder' build/regression --model "$T/none" $data --text text --score score

# ---- multilabel ----

with_warmth() {
    awk -F '\t' -v OFS='\t' '{ print $0, NR == 1 ? "warmth" : (index($1, "warm") > 0) }' "$1"
}
with_warmth "$T/train.tsv" > "$T/ml.tsv"
with_warmth "$T/eval.tsv" > "$T/ml_eval.tsv"
labelled="--train $T/ml.tsv --eval $T/ml_eval.tsv --text text,thing"
run "multilabel" build/multilabel $labelled --labels animal,warmth --epochs 10 --lr 1e-3 --output "$T/multilabel"
check "multilabel: animals are told" holds "$(value 'animal .*F1') > 0.95"
check "multilabel: warm ones are told" holds "$(value 'warmth .*F1') > 0.85"
check "multilabel: both count in the mean" holds "$(value 'macro) .*F1') > 0.9"
check "multilabel: of all 60 rows" contains "$T/stdout" ' of 60 rows are right in every label'
check "multilabel: names are saved" contains "$T/multilabel/config.json" animal
run "multilabel from its own folder" \
    build/multilabel --model "$T/multilabel" $labelled --labels animal,warmth --epochs 1
refused "multilabel: a column that is not 0 or 1" 'ml.tsv, line ' build/multilabel $labelled --labels animal,score
refused "multilabel: no labels" '--labels names no column' build/multilabel $labelled --labels ,
refused "multilabel: too many labels" 'more than 16 columns' \
    build/multilabel $labelled --labels 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17
refused "multilabel: no --labels" '--labels is missing' build/multilabel $labelled

# ---- from_scratch ----

scratch="--text text --vocab-size 200 --epochs 15 --batch-size 16"
run "from_scratch" build/from_scratch $data $scratch --label mood
check "from_scratch: it learns" holds "$(value ', accuracy') > 0.9"
check "from_scratch: more than the most frequent label" holds "$(value ', accuracy') > $(value 'alone:') + 0.1"
check "from_scratch: the loss falls" holds "$(value 'mean loss') < 0.5 * $(first 'mean loss')"
run "from_scratch with two texts" build/from_scratch $data --text text,thing --label animal --vocab-size 200 --epochs 10
check "from_scratch: the second text is read" holds "$(value ', accuracy') == 1"
refused "from_scratch: unknown label" 'other.tsv, line 2' sh -c "
    { printf '$header'; printf 'the good\tcat\t1\t1\tangry\n'; } > $T/other.tsv
    build/from_scratch --train $T/train.tsv --eval $T/other.tsv $scratch --label mood"
refused "from_scratch: no --label" '--label is missing' build/from_scratch $data $scratch
refused "from_scratch: --dim 0" '--dim must be' build/from_scratch $data $scratch --label mood --dim 0

# ---- distill: a student that never sees a true label learns what the teacher knows ----

build/finetune --from-scratch --layers 2 --dim 64 --heads 2 --vocab-size 200 $data --text text --label mood \
    --epochs 10 --lr 2e-3 --output "$T/teacher" > "$T/stdout" 2> "$T/stderr"
check "a teacher" [ $? -eq 0 ]
awk -F '\t' -v OFS='\t' 'NR > 1 { $5 = NR % 2 ? "glad" : "sad" } 1' "$T/train.tsv" > "$T/wrong.tsv"
distill="build/distill --teacher $T/teacher --text text --label mood"
run "distill" $distill --train "$T/wrong.tsv" --eval "$T/eval.tsv" --alpha 1 --epochs 6 --lr 1e-3 --output "$T/student"
check "distill: the teacher knows" holds "$(value "teacher's accuracy is") > 0.9"
check "distill: so does the student" holds "$(value "student's accuracy") > 0.9"
check "distill: half as many layers" contains "$T/stdout" 'student: 1 layers'
check "distill: names are saved" contains "$T/student/config.json" glad
run "predict takes the student" build/predict --model "$T/student" --text text "$T/eval.tsv"
cut -f 1 "$T/stdout" | tail -n +2 > "$T/said"
tail -n +2 "$T/eval.tsv" | cut -f 5 | paste "$T/said" - | awk '$1 == $2 { n++ } END { print "right", n }' > "$T/stdout"
check "and it is as right" holds "$(value right) > 54"
run "distill with false labels alone" \
    $distill --train "$T/wrong.tsv" --eval "$T/eval.tsv" --alpha 0 --epochs 6 --lr 1e-3
check "they teach nothing" holds "$(value "student's accuracy") < 0.8"
run "distill with both" $distill $data --alpha 0.5 --temperature 4 --layers 2 --epochs 1
check "distill: --layers" contains "$T/stdout" 'student: 2 layers'
refused "distill: too many layers" 'the teacher has only 2' $distill $data --layers 3
refused "distill: a regression" 'is no classifier' \
    build/distill --teacher "$T/regression" $data --text text --label score
refused "distill: no teacher" '--teacher is missing' build/distill $data --text text --label mood
refused "distill: --alpha 2" '--alpha must be' $distill $data --alpha 2
refused "distill: no such folder" 'no such folder' build/distill --teacher "$T/none" $data --text text --label mood

# ---- mlm: an animal is known by what it does ----

sentences() { # sentences SEED COUNT
    awk -v state="$1" -v n="$2" '
        function next_number(n) { state = (state * 1103515245 + 12345) % 2147483648; return int(state / 65536) % n }
        BEGIN {
            split("cat dog bird fish", a); split("meows barks sings swims", v); split("red green small big old", j)
            while (n--) { k = next_number(4) + 1; print "the " j[next_number(5) + 1] " " a[k] " " v[k] " all day" }
        }'
}
sentences 3 400 > "$T/text.txt"
sentences 4 60 > "$T/held_out.txt"
run "mlm" build/mlm --train "$T/text.txt" --eval "$T/held_out.txt" --fill "the old dog [MASK] all day" \
    --vocab-size 120 --dim 64 --layers 1 --max-length 16 --epochs 20 --lr 3e-3 --output "$T/mlm"
check "mlm: perplexity falls" holds "$(value perplexity) < 3 && $(first perplexity) > 10"
check "mlm: the blank is filled" contains "$T/stdout" '[MASK]: barks 0.'
for file in config.json model.safetensors vocab.txt tokenizer_config.json; do
    check "mlm: $file is written" [ -s "$T/mlm/$file" ]
done
check "mlm: no classifier is written" sh -c "! grep -qa classifier.weight $T/mlm/model.safetensors"
check "mlm: the output layer is" grep -qa vocab_projector.bias "$T/mlm/model.safetensors"
run "finetune starts from it, with any number of labels" \
    build/finetune --model "$T/mlm" $data --text text --label thing --epochs 1
refused "mlm: no blank" 'there is no [MASK]' \
    build/mlm --train "$T/text.txt" --fill "the old dog" --vocab-size 120 --dim 16 --epochs 1 --output "$T/out"
refused "mlm: no text" '--train is missing' build/mlm
refused "mlm: no such file" 'none.txt cannot be read' build/mlm --train "$T/none.txt"
refused "mlm: heads that do not divide" 'heads' build/mlm --train "$T/text.txt" --heads 3 --output "$T/out"

# ---- embed: sentences of one animal lie together ----

run "embed" build/embed "$T/mlm" "$T/held_out.txt" "the big cat meows all day" 3
check "embed: as many as asked for" [ "$(wc -l < "$T/stdout")" -eq 3 ]
check "embed: all of the same animal" [ "$(grep -c ' cat meows ' "$T/stdout")" -eq 3 ]
check "embed: nearest first" holds "$(sed -n 1p "$T/stdout" | cut -c 1-7) >= $(sed -n 3p "$T/stdout" | cut -c 1-7)"
head -n 1 "$T/held_out.txt" > "$T/line"
run "embed a text of the file" build/embed "$T/mlm" "$T/held_out.txt" "$(cat "$T/line")" 1
check "embed: it is its own neighbour" grep -qx " 1.0000  $(cat "$T/line")" "$T/stdout"
run "embed, more than there are" build/embed "$T/mlm" "$T/line" "a dog" 10
check "embed: all there are" [ "$(wc -l < "$T/stdout")" -eq 1 ]
refused "embed: count 0" 'usage: ' build/embed "$T/mlm" "$T/line" "a dog" 0
refused "embed: count 2x" 'usage: ' build/embed "$T/mlm" "$T/line" "a dog" 2x
refused "embed: no query" 'usage: ' build/embed "$T/mlm" "$T/line"
refused "embed: invalid UTF-8" 'not valid UTF-8' build/embed "$T/mlm" "$T/line" "$(printf 'a \377')"
refused "embed: no such folder" 'no such folder' build/embed "$T/none" "$T/line" "a dog"
refused "embed: no such file" 'cannot be read' build/embed "$T/mlm" "$T/none" "a dog"

# ---- help ----

for program in regression multilabel from_scratch distill mlm; do
    run "$program --help" build/$program --help
    check "$program --help names its options" contains "$T/stdout" '  --train FILE '
    refused "$program: unknown option" 'unknown option --train-file' build/$program --train-file x
done

echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
