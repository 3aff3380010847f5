/* A small test frame: TEST(name) { CHECK(...); } registers itself; test_main runs all, or those whose name contains the argument.
   Every program closes with "N passed, N failed, N skipped". */
#ifndef TEST_H
#define TEST_H
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct test_case {
    const char *name;
    void (*run)(void);
    struct test_case *next;
} test_case;

static test_case *test_first, **test_last = &test_first;
static int test_faults;           /* of the running test */
static const char *test_skipped;  /* why the running test was skipped */

static void test_add(test_case *test) {
    *test_last = test;
    test_last = &test->next;
}

#define TEST(name)                                                          \
    static void test__##name(void);                                         \
    static test_case test_case__##name = {#name, test__##name, NULL};       \
    __attribute__((constructor)) static void test_register__##name(void) {  \
        test_add(&test_case__##name);                                       \
    }                                                                       \
    static void test__##name(void)

#define CHECK(condition)                                                    \
    ((condition) ? (void)0                                                  \
                 : (void)(test_faults++, printf("  %s:%d: %s\n", __FILE__, __LINE__, #condition)))

/* |actual - expected| <= tolerance; NaN fails. */
#define CHECK_NEAR(actual, expected, tolerance)                                                               \
    do {                                                                                                      \
        double test_a = (double)(actual), test_e = (double)(expected);                                        \
        if (!(fabs(test_a - test_e) <= (double)(tolerance))) {                                                \
            test_faults++;                                                                                    \
            printf("  %s:%d: %s is %.9g, expected %.9g\n", __FILE__, __LINE__, #actual, test_a, test_e);      \
        }                                                                                                     \
    } while (0)

/* The text must contain the part; for error messages. */
#define CHECK_TEXT(text, part)                                                                                \
    do {                                                                                                      \
        const char *test_t = (text);                                                                          \
        if (!test_t || !strstr(test_t, (part))) {                                                             \
            test_faults++;                                                                                    \
            printf("  %s:%d: \"%s\" does not contain \"%s\"\n", __FILE__, __LINE__, test_t ? test_t : "(null)", (part)); \
        }                                                                                                     \
    } while (0)

#define SKIP(reason)           \
    do {                       \
        test_skipped = reason; \
        return;                \
    } while (0)

/* Folder of the reference material; tests that need it are skipped where it is absent. */
__attribute__((unused)) static const char *test_shared(void) {
    const char *folder = getenv("ACCEL_SHARED");
    if (!folder) folder = "../shared";
    static char probe[4096];
    snprintf(probe, sizeof probe, "%s/cases/schedules.json", folder);
    FILE *file = fopen(probe, "rb");
    if (!file) return NULL;
    fclose(file);
    return folder;
}

__attribute__((unused)) static int test_main(int argc, char **argv) {
    int passed = 0, failed = 0, skipped = 0;
    for (test_case *test = test_first; test; test = test->next) {
        if (argc > 1 && !strstr(test->name, argv[1])) continue;
        test_faults = 0;
        test_skipped = NULL;
        test->run();
        if (test_faults) failed++, printf("FAIL %s\n", test->name);
        else if (test_skipped) skipped++, printf("skipped %s: %s\n", test->name, test_skipped);
        else passed++, printf("ok %s\n", test->name);
        fflush(stdout);
    }
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed ? 1 : 0;
}

#endif
