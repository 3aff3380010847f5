#!/bin/sh
# What the headers leave in a program that includes them: warnings, names, macros; and that they get along with others.
# Runs from the repository's root with gcc and clang where they are there, or with those that COMPILERS names.
work=build/tmp/headers
rm -rf "$work"
mkdir -p "$work"
passed=0 failed=0 skipped=0

# check NAME COMMAND...: the command has to succeed.
check() {
    name=$1
    shift
    if "$@" > "$work/output" 2>&1; then
        passed=$((passed + 1))
        echo "ok $name"
    else
        failed=$((failed + 1))
        echo "FAIL $name"
        head -n 20 "$work/output"
    fi
}

skip() {
    skipped=$((skipped + 1))
    echo "skipped $1"
}

refused() { # the command has to fail, with a message that holds the text
    text=$1
    shift
    ! "$@" > "$work/refused" 2>&1 && grep -q "$text" "$work/refused"
}

empty() { # the file has to be empty; shows it
    ! grep . "$1"
}

core="-lopenblas -lpthread -lm"
all="-lcjson -lutf8proc $core"
warnings="-Wall -Wextra -Wpedantic -Wconversion -Werror"

# ---- programs ----

cat > "$work/core.c" << 'END'
#define ACCEL_IMPLEMENTATION
#include "accel.h"
int main(void) {
    accel_t *acc = accel_create(NULL);
    accel_tensor x = accel_full(acc, accel_2d(2, 3), 2.0f);
    float sum = accel_item(accel_sum(accel_mul(x, x)));
    int bad = accel_failed(acc) || !(sum > 23.99f && sum < 24.01f);
    accel_destroy(acc);
    return bad;
}
END

cat > "$work/io.c" << 'END'
#define ACCEL_IMPLEMENTATION
#include "accel.h"
#include "accel_io.h"
int main(void) {
    accel_t *acc = accel_create(NULL);
    const char *texts[] = {"one two three two three", "three two"};
    accel_tokenizer *tokenizer = accel_tokenizer_train(acc, texts, 2, NULL);
    int bad = accel_failed(acc) || accel_vocabulary_size(tokenizer) < 6;
    accel_destroy(acc);
    return bad;
}
END
sed 's/#define ACCEL_IMPLEMENTATION/&\n#define ACCEL_STATIC/' "$work/io.c" > "$work/io_static.c"

# The implementation in one file, its use in another; C and C++.
cat > "$work/implementation.c" << 'END'
#define ACCEL_IMPLEMENTATION
#include "accel.h"
#include "accel_io.h"
END
cat > "$work/use.c" << 'END'
#include "accel_io.h"
#include "accel.h"
int main(void) {
    static accel_desc desc;
    desc.threads = 1;
    desc.seed = 7;
    accel_t *acc = accel_create(&desc);
    int bad = accel_failed(acc) || accel_threads(acc) != 1 || accel_seed(acc) != 7 ||
              accel_vocabulary_size(NULL) != 0 || !accel_failed(NULL);
    accel_destroy(acc);
    return bad;
}
END
cp "$work/use.c" "$work/use.cpp"

# ---- a program's own use of stb_ds, before and after the header in the same file, and in another file ----

cat > "$work/stb_use.h" << 'END'
static int use_stb(void) {
    int *list = NULL;
    struct { int key, value; } *map = NULL;
    for (int i = 0; i < 100; i++) {
        arrput(list, i);
        hmput(map, i, 2 * i);
    }
    int bad = arrlen(list) != 100 || list[99] != 99 || hmlen(map) != 100 || hmget(map, 40) != 80;
    arrfree(list);
    hmfree(map);
    return bad;
}
END
program() { sed -e '/^int main/i #include "stb_use.h"' -e 's/return bad;/return bad || use_stb();/' "$work/core.c"; }
stb='#define STB_DS_IMPLEMENTATION\n#include <stb/stb_ds.h>'
program | sed "1i $stb" > "$work/stb_before.c"
program | sed "/^#include \"accel.h\"/a $stb" > "$work/stb_after.c"
program | sed '/^#include "accel.h"/a #include <stb/stb_ds.h>' > "$work/stb_beside.c"
printf "$stb\n" > "$work/stb_own.c"

# ---- macros ----

macros() { # names that a preprocessed file defines
    "$@" -dM -E | sed 's/^#define \([A-Za-z0-9_]*\).*/\1/' | sort -u
}

system_headers() { # those that the headers include, without stb_ds
    sed -n 's/^ *# *include *\(<[^>]*>\).*/#include \1/p' accel.h accel_io.h | grep -v stb_ds | sort -u
}

new_macros() { # SOURCE SYSTEM: what the first file defines beyond the second, but for accel's own
    macros $CC -std=gnu11 -I. "$1" > "$work/with"
    macros $CC -std=gnu11 "$2" > "$work/without"
    comm -23 "$work/with" "$work/without" | grep -Ev '^(ACCEL_|accel_|__need_)' > "$work/new"
    empty "$work/new"
}

printf '#include "accel.h"\n#include "accel_io.h"\n' > "$work/declarations.c"
cp "$work/declarations.c" "$work/declarations.cpp"
printf '#include <%s.h>\n' stdbool stddef stdint > "$work/system_declarations.c"
# stb_ds itself includes these four.
{ system_headers; printf '#include <%s.h>\n' stddef stdlib string assert; } > "$work/system_implementation.c"

# ---- names ----

exported() { nm -g --defined-only "$1" | awk 'NF == 3 { print $3 }' | sort -u; }
declared() { # functions that the headers declare
    sed -n 's/^ACCEL_API [A-Za-z0-9_ *]*[ *]\(accel_[a-z0-9_]*\)(.*/\1/p' accel.h accel_io.h | sort -u
}

only_accel_exported() {
    exported "$1" | grep -v '^accel_' > "$work/foreign"
    exported "$1" | grep -qx accel_create && empty "$work/foreign"
}
all_declared_exported() {
    exported "$1" > "$work/exported"
    declared > "$work/declared"
    comm -23 "$work/declared" "$work/exported" > "$work/undefined"
    [ "$(wc -l < "$work/declared")" -gt 100 ] && empty "$work/undefined"
}
only_main_exported() {
    exported "$1" | grep -vx main > "$work/foreign"
    exported "$1" | grep -qx main && empty "$work/foreign"
}
no_accel_undefined() { # weak ones, by which a companion registers itself, are allowed
    nm -u "$1" > "$work/missing" && ! grep ' U accel_' "$work/missing"
}

# ---- the checks ----

for CC in ${COMPILERS:-gcc clang}; do
    if ! command -v $CC > /dev/null; then
        skip "$CC: not installed"
        continue
    fi
    case $CC in gcc) CXX=g++ ;; *) CXX=clang++ ;; esac
    # Both programs are compiled for both standards; one of the two fully.
    check "$CC gnu11: a program with accel.h alone, no warning" \
        $CC -std=gnu11 -O1 $warnings -I. "$work/core.c" -o "$work/core" $core
    check "$CC gnu17: the same" $CC -std=gnu17 -fsyntax-only $warnings -I. "$work/core.c"
    check "$CC: it runs" "$work/core"
    check "$CC gnu17: a program with accel_io.h, no warning" \
        $CC -std=gnu17 -O2 $warnings -I. "$work/io.c" -o "$work/io" $all
    check "$CC gnu11: the same" $CC -std=gnu11 -fsyntax-only $warnings -I. "$work/io.c"
    check "$CC: it runs" "$work/io"
    for std in c11 c17; do
        check "$CC $std: declarations" $CC -std=$std $warnings -I. -c "$work/declarations.c" -o "$work/declarations.o"
    done
    check "$CC: ACCEL_STATIC, no warning" $CC -std=gnu11 -O0 $warnings -I. -c "$work/io_static.c" -o "$work/io_static.o"
    check "$CC: it exports nothing" only_main_exported "$work/io_static.o"
    check "$CC: it lacks nothing" no_accel_undefined "$work/io_static.o"
    check "$CC: it links" $CC "$work/io_static.o" -o "$work/io_static" $all
    check "$CC: it runs" "$work/io_static"
    check "$CC: the implementation alone" \
        $CC -std=gnu11 -O0 $warnings -I. -c "$work/implementation.c" -o "$work/implementation.o"
    check "$CC: only accel_ names are exported" only_accel_exported "$work/implementation.o"
    check "$CC: every declared function is defined" all_declared_exported "$work/implementation.o"
    check "$CC: two files link" $CC -std=c11 -I. "$work/use.c" "$work/implementation.o" -o "$work/use" $all
    check "$CC: and run" "$work/use"
    if command -v $CXX > /dev/null; then
        check "$CXX c++17: declarations" \
            $CXX -std=c++17 $warnings -I. -c "$work/declarations.cpp" -o "$work/declarations.o"
        check "$CXX: a C++ file and the C implementation link" \
            $CXX -std=c++17 $warnings -I. "$work/use.cpp" "$work/implementation.o" -o "$work/usepp" $all
        check "$CXX: and run" "$work/usepp"
    else
        skip "$CXX: not installed"
    fi
    check "$CC: macros of the declarations" new_macros "$work/declarations.c" "$work/system_declarations.c"
    check "$CC: macros of the implementation" new_macros "$work/implementation.c" "$work/system_implementation.c"
    for place in before after; do
        check "$CC: stb_ds $place it in the same file" \
            $CC -std=gnu11 -I. "$work/stb_$place.c" -o "$work/stb_$place" $core
        check "$CC: and runs" "$work/stb_$place"
    done
    check "$CC: stb_ds declared here, implemented in another file" \
        $CC -std=gnu11 -I. "$work/stb_beside.c" "$work/stb_own.c" -o "$work/stb_beside" $core
    check "$CC: and runs" "$work/stb_beside"
    for flag in -ffast-math -Ofast; do
        check "$CC: $flag is refused" refused "fast-math" $CC -std=gnu11 $flag -fsyntax-only -I. "$work/core.c"
    done
done

echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
