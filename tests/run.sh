#!/bin/sh
# usage: run.sh PROGRAM...    runs test programs and scripts (.sh) from the repository's root.
# Each closes with a line "N passed, N failed, N skipped"; so does this script, with the sums. What a program prints is
# shown where something failed, otherwise only its skipped tests. A program that crashes, hangs, or ends without that
# line is one more failure; so is a run without any test.
logs=build/tmp/logs
mkdir -p "$logs"
passed=0 failed=0 skipped=0
# The thread sanitizer of older compilers cannot run with full address randomisation.
fixed=; setarch "$(uname -m)" -R true 2>/dev/null && fixed="setarch $(uname -m) -R"

for program in "$@"; do
    log=$logs/$(echo "$program" | tr / _).log
    case $program in
        *.sh) timeout 900 sh "$program" ;;
        build/tsan/*) timeout 900 $fixed "$program" ;;
        *) timeout 900 "$program" ;;
    esac > "$log" 2>&1 < /dev/null
    status=$?
    counts=$(tail -n 1 "$log" | grep -Ex '[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?' | tr -dc '0-9 ')
    set -- ${counts:-0 0 0}
    p=$1 f=$2 s=${3:-0}
    if [ -z "$counts" ] || { [ $status -ne 0 ] && [ "$f" -eq 0 ]; }; then
        f=$((f + 1)) ended=", ended with status $status"
    else
        ended=
    fi
    if [ -z "$counts" ]; then cat "$log"; elif [ "$f" -gt 0 ]; then sed '$d' "$log"; else grep '^skipped' "$log"; fi
    echo "$program: $p passed, $f failed, $s skipped$ended."
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
done
[ $((passed + failed)) -gt 0 ] || failed=1
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
