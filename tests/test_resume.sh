#!/bin/sh
# finetune is killed (SIGKILL) at 20 random moments after its first saved state; every time a usable state is there, and the run that
# goes on from it ends with the same bytes as the run that was never stopped. Dropout, shuffling, clipping and accumulation are on.
passed=0 failed=0
folder=build/tmp/resume
rm -rf $folder && mkdir -p $folder || exit 1

awk 'BEGIN { srand(3); print "text\tlabel"
    for (i = 0; i < 400; i++) { line = ""; kind = int(rand() * 3)
        for (j = 0; j < 4 + rand() * 12; j++) line = line " " substr("anotherwordslikethese", 1 + int(rand() * 15), 2 + kind + int(rand() * 3))
        print line "\t" kind } }' > $folder/train.tsv

check() { # name, status of the check
    if [ "$2" -eq 0 ]; then passed=$((passed + 1)); echo "ok $1"; else failed=$((failed + 1)); echo "FAIL $1"; fi
}

train() { # output, further options
    output=$1
    shift
    build/finetune --from-scratch --layers 2 --dim 32 --heads 2 --vocab-size 200 --train $folder/train.tsv --text text --label label \
        --epochs 3 --batch-size 4 --grad-accum 2 --max-grad-norm 1 --dropout 0.1 --save-steps 3 --save-total-limit 2 \
        --output $output "$@" > $output.log 2>&1
}

train $folder/whole --threads 1
check "a run that is not stopped" $?
check "no more states than the limit" "$([ "$(ls -d $folder/whole/step-* | wc -l)" -eq 2 ]; echo $?)"

for kill in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    rm -rf $folder/killed
    build/finetune --from-scratch --layers 2 --dim 32 --heads 2 --vocab-size 200 --train $folder/train.tsv --text text --label label \
        --epochs 3 --batch-size 4 --grad-accum 2 --max-grad-norm 1 --dropout 0.1 --save-steps 3 --save-total-limit 2 \
        --output $folder/killed --threads 2 > $folder/killed.log 2>&1 &
    process=$!
    while [ ! -e $folder/killed/step-3 ] && [ ! -e $folder/killed/step-6 ] && kill -0 $process 2> /dev/null; do sleep 0.01; done
    sleep "$(awk -v seed="$kill$$" 'BEGIN { srand(seed); print rand() * 0.5 }')"
    kill -9 $process 2> /dev/null
    wait $process 2> /dev/null
    train $folder/killed --threads 3 --resume && grep -q "^going on from" $folder/killed.log &&
        cmp -s $folder/whole/model.safetensors $folder/killed/model.safetensors
    check "killed for the ${kill}th time: the same bytes, $(grep '^going on' $folder/killed.log)" $?
done
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
