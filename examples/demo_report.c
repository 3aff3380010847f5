/* Shows how well predictions fit: accuracy, confusion matrix, some texts.

       demo_report TEST.tsv PREDICTIONS.tsv     the first has columns label and text, the second is what predict printed

   build: cc -O2 demo_report.c -lcjson -lutf8proc -lopenblas -lpthread -lm */
#define ACCEL_IMPLEMENTATION
#include "accel.h"
#include "accel_io.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LABEL, TEXT };                         /* columns of the test file */
enum { RIGHT_SHOWN = 5, WRONG_SHOWN = 5, TEXT_SHOWN = 120, CLASSES = 64 };

static int class_of(const char *const *labels, int classes, const char *label) {
    for (int i = 0; i < classes; i++)
        if (label && !strcmp(labels[i], label)) return i;
    return -1;
}

static void print_matrix(int count[CLASSES][CLASSES], const char *const *labels, int classes) {
    printf("\nrows: true class, columns: prediction\n%-12s", "");
    for (int j = 0; j < classes; j++) printf("%10.9s", labels[j]);
    for (int i = 0; i < classes; i++) {
        printf("\n%-12.11s", labels[i]);
        for (int j = 0; j < classes; j++) printf("%10d", count[i][j]);
    }
    printf("\n");
}

/* Bytes of a text that are shown, without a broken character at the end. */
static int shown(const char *text) {
    size_t n = strlen(text);
    if (n <= TEXT_SHOWN) return (int)n;
    for (n = TEXT_SHOWN; n && (text[n] & 0xC0) == 0x80;) n--;
    return (int)n;
}

/* The first texts whose prediction is right, or wrong. */
static void print_texts(const accel_table *test, const accel_table *predicted, bool right, int most) {
    printf("\n%s\n", right ? "some predictions" : "some mistakes (true class -> prediction)");
    for (int64_t row = 0; row < accel_table_rows(test) && most; row++) {
        const char *label = accel_table_cell(test, row, LABEL), *text = accel_table_cell(test, row, TEXT);
        const char *guess = accel_table_cell(predicted, row, 0);
        if (!label || !text || !guess || !strcmp(label, guess) != right) continue;
        if (right) printf("  %s: %.*s\n", guess, shown(text), text);
        else printf("  %s -> %s: %.*s\n", label, guess, shown(text), text);
        most--;
    }
}

static bool report(accel_t *acc, const char *test_path, const char *predicted_path) {
    static int count[CLASSES][CLASSES];
    accel_table *test = accel_table_read(acc, test_path, NULL);
    accel_table *predicted = accel_table_read(acc, predicted_path, NULL);
    int classes = 0, right = 0, rows = (int)accel_table_rows(test);
    const char *const *labels = accel_table_labels(test, "0", &classes);
    if (!labels || classes > CLASSES || !rows || accel_table_rows(predicted) != rows) return false;
    for (int row = 0; row < rows; row++) {
        int label = class_of(labels, classes, accel_table_cell(test, row, LABEL));
        int guess = class_of(labels, classes, accel_table_cell(predicted, row, 0));
        if (label < 0 || guess < 0) return false;
        count[label][guess]++;
        right += label == guess;
    }
    print_matrix(count, labels, classes);
    print_texts(test, predicted, true, RIGHT_SHOWN);
    print_texts(test, predicted, false, WRONG_SHOWN);
    printf("\n%d of %d texts that were not seen in training are right: %.1f %%; guessing gives %.1f %%.\n", right, rows,
           100.0 * right / rows, 100.0 / classes);
    return true;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: demo_report TEST.tsv PREDICTIONS.tsv\n");
        return 2;
    }
    accel_t *acc = accel_create(&(accel_desc){.threads = 1});
    bool done = report(acc, argv[1], argv[2]);
    if (!done)
        fprintf(stderr, "error: %s\n", accel_failed(acc) ? accel_message(acc) : "the two files do not fit together");
    accel_destroy(acc);
    return done ? 0 : 1;
}
