/* What the two demo data programs share: a list of labelled texts, without duplicates, in two parts. */
#ifndef DEMO_DATA_H
#define DEMO_DATA_H
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

typedef struct {
    const char *label;
    int files, entries, kept, unique, train, test; /* counts, filled in */
} demo_class;

typedef struct {
    uint64_t key; /* of its letters alone: texts with equal keys are the same text */
    int class;
    char *text;
} demo_entry;

static demo_entry *demo_entries;
static size_t demo_count, demo_room;

static void demo_fail(const char *what, const char *name) {
    fprintf(stderr, "error: %s %s%s%s\n", what, name, errno ? ": " : "", errno ? strerror(errno) : "");
    exit(1);
}

static void *demo_must(void *pointer) {
    if (!pointer) demo_fail("out of", "memory");
    return pointer;
}

/* The character at *text, which moves on; -1 at the end and for invalid UTF-8. */
static int32_t demo_next(const char **text) {
    utf8proc_int32_t c;
    if (!**text) return -1;
    utf8proc_ssize_t n = utf8proc_iterate((const uint8_t *)*text, -1, &c);
    if (n <= 0) return -1;
    *text += n;
    return c;
}

static bool demo_is_letter(int32_t c) {
    utf8proc_category_t category = utf8proc_category(c);
    return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_MC; /* marks belong to letters */
}

/* FNV-1a over the lower-cased letters. */
static uint64_t demo_key(const char *text) {
    uint64_t hash = 14695981039346656037u;
    for (int32_t c; (c = demo_next(&text)) >= 0;) {
        if (!demo_is_letter(c)) continue;
        uint32_t lower = (uint32_t)utf8proc_tolower(c);
        for (int shift = 0; shift < 24; shift += 8) hash = (hash ^ (lower >> shift & 255)) * 1099511628211u;
    }
    return hash ^ hash >> 29;
}

/* Adds a text, which becomes the list's. */
static void demo_add(demo_class *classes, int class, char *text) {
    if (demo_count == demo_room) {
        demo_room = demo_room ? 2 * demo_room : 4096;
        demo_entries = demo_must(realloc(demo_entries, demo_room * sizeof *demo_entries));
    }
    demo_entries[demo_count++] = (demo_entry){.key = demo_key(text), .class = class, .text = text};
    classes[class].kept++;
}

static int demo_by_key(const void *a, const void *b) {
    const demo_entry *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return x->class != y->class ? x->class - y->class : strcmp(x->text, y->text);
}

/* Sorts by key, which is as good as shuffling, and leaves one of equal texts; none where two classes share it. */
static void demo_drop_duplicates(demo_class *classes) {
    size_t kept = 0, end;
    if (demo_count) qsort(demo_entries, demo_count, sizeof *demo_entries, demo_by_key);
    for (size_t i = 0; i < demo_count; i = end) {
        for (end = i + 1; end < demo_count && demo_entries[end].key == demo_entries[i].key;) end++;
        bool shared = demo_entries[end - 1].class != demo_entries[i].class;
        for (size_t j = i + !shared; j < end; j++) free(demo_entries[j].text);
        if (shared) continue;
        classes[demo_entries[i].class].unique++;
        demo_entries[kept++] = demo_entries[i];
    }
    demo_count = kept;
}

static FILE *demo_create(const char *folder, const char *name, const char *label_column, const char *text_column) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    errno = 0;
    FILE *file = fopen(path, "wb");
    if (!file) demo_fail("cannot write", path);
    fprintf(file, "%s\t%s\n", label_column, text_column);
    return file;
}

/* In the order of keys, the first `test` texts of each class go to FOLDER/test.tsv, the next `train` to
   FOLDER/train.tsv. */
static void demo_write_parts(const char *folder, const char *label_column, const char *text_column, demo_class *classes,
                             int test, int train) {
    FILE *test_file = demo_create(folder, "test.tsv", label_column, text_column);
    FILE *train_file = demo_create(folder, "train.tsv", label_column, text_column);
    for (size_t i = 0; i < demo_count; i++) {
        demo_class *own = &classes[demo_entries[i].class];
        bool for_test = own->test < test;
        if (!for_test && own->train == train) continue;
        *(for_test ? &own->test : &own->train) += 1;
        fprintf(for_test ? test_file : train_file, "%s\t%s\n", own->label, demo_entries[i].text);
    }
    bool failed = ferror(test_file) || ferror(train_file);
    errno = 0;
    if (fclose(test_file) | fclose(train_file) || failed) demo_fail("cannot write into", folder);
}

static void demo_print_counts(const char *label_column, const demo_class *classes, int count) {
    printf("%-10s files  entries    kept  unique   train    test\n", label_column);
    for (int i = 0; i < count; i++) {
        const demo_class *own = &classes[i];
        printf("%-10s %5d %8d %7d %7d %7d %7d\n", own->label, own->files, own->entries, own->kept, own->unique,
               own->train, own->test);
    }
}

static void demo_free(void) {
    for (size_t i = 0; i < demo_count; i++) free(demo_entries[i].text);
    free(demo_entries);
}

/* The whole file as a string; the caller's. */
static char *demo_read(const char *path) {
    errno = 0;
    FILE *file = fopen(path, "rb");
    long size = file && !fseek(file, 0, SEEK_END) ? ftell(file) : -1;
    char *text = demo_must(malloc((size_t)(size < 0 ? 0 : size) + 1));
    if (size < 0 || fseek(file, 0, SEEK_SET) || fread(text, 1, (size_t)size, file) != (size_t)size)
        demo_fail("cannot read", path);
    fclose(file);
    text[size] = 0;
    return text;
}

/* Calls visit for every path that a Debian package has installed. */
static void demo_package_files(const char *package, void (*visit)(const char *path, void *user), void *user) {
    char command[256], path[4096];
    snprintf(command, sizeof command, "dpkg -L %s", package);
    FILE *list = popen(command, "r");
    if (!list) demo_fail("cannot run", command);
    while (fgets(path, sizeof path, list)) {
        path[strcspn(path, "\n")] = 0;
        visit(path, user);
    }
    errno = 0;
    if (pclose(list)) demo_fail("no package", package);
}

#endif
