/* Tables, labels and encoding of accel_io.h. */
#define ACCEL_IMPLEMENTATION
#include "accel_io.h"

#include <sys/stat.h>
#include "test.h"

static char notice[1000]; /* the context's last notice */

static void take_notice(void *user, const char *line) {
    (void)user;
    snprintf(notice, sizeof notice, "%s", line);
}

static accel_t *context(int threads) {
    notice[0] = 0;
    return accel_create(&(accel_desc){.threads = threads, .log = take_notice});
}

/* Writes a file under build/tmp and returns its path, valid until the next call. */
static const char *file_of(const char *name, const void *bytes, size_t count) {
    static char path[200];
    mkdir("build", 0777);
    mkdir("build/tmp", 0777);
    mkdir("build/tmp/tables", 0777);
    snprintf(path, sizeof path, "build/tmp/tables/%s", name);
    FILE *file = fopen(path, "wb");
    if (file) {
        fwrite(bytes, 1, count, file);
        fclose(file);
    }
    return path;
}

static const char *file(const char *name, const char *text) { return file_of(name, text, strlen(text)); }

static accel_table *read_text(accel_t *acc, const char *name, const char *text) {
    return accel_table_read(acc, file(name, text), NULL);
}

static bool is(const accel_table *table, int64_t row, int column, const char *expected) {
    const char *cell = accel_table_cell(table, row, column);
    if (cell && !strcmp(cell, expected)) return true;
    printf("  row %d column %d: \"%s\", expected \"%s\"\n", (int)row, column, cell ? cell : "(null)", expected);
    return false;
}

/* The text must be refused with a message that contains `part`. */
static bool refused_with(const char *name, const void *bytes, size_t count, const accel_table_desc *desc,
                         const char *part) {
    accel_t *acc = context(1);
    accel_table *table = accel_table_read(acc, file_of(name, bytes, count), desc);
    bool good = !table && accel_failed(acc) && strstr(accel_message(acc), part) && strstr(accel_message(acc), name);
    if (!good) printf("  %s: \"%s\" does not say \"%s\"\n", name, accel_message(acc), part);
    accel_destroy(acc);
    return good;
}

static bool refused(const char *name, const char *text, const char *part) {
    return refused_with(name, text, strlen(text), NULL, part);
}

/* ---- formats ---- */

TEST(tsv_of_glue) {
    accel_t *acc = context(1);
    accel_table *t = read_text(acc, "glue.tsv",
                               "\xEF\xBB\xBFQuality\t#1 ID\t#1 String\r\n1\t7\tHe said \"so\r\n0\t8\t\r\n");
    CHECK(accel_table_rows(t) == 2 && accel_table_columns(t) == 3);
    CHECK(accel_table_column(t, "Quality") == 0 && accel_table_column(t, "#1 String") == 2 &&
          accel_table_column(t, "1") == 1);
    CHECK(is(t, 0, 0, "1") && is(t, 0, 2, "He said \"so") && is(t, 1, 1, "8") && is(t, 1, 2, ""));
    CHECK(accel_table_line(t, 0) == 2 && accel_table_line(t, 1) == 3);
    CHECK_TEXT(accel_table_name(t), "glue.tsv");
    CHECK(!accel_table_cell(t, 2, 0) && !accel_table_cell(t, 0, 3) && !accel_table_cell(t, -1, 0) &&
          !accel_failed(acc));
    accel_destroy(acc);
}

TEST(last_line_without_end) {
    accel_t *acc = context(1);
    accel_table *t = read_text(acc, "open.tsv", "a\tb\n1\t2\n3\t4");
    CHECK(accel_table_rows(t) == 2 && is(t, 1, 1, "4"));
    t = read_text(acc, "open.csv", "a,b\n1,\"2\"\n3,");
    CHECK(accel_table_rows(t) == 2 && is(t, 0, 1, "2") && is(t, 1, 1, ""));
    t = read_text(acc, "return.csv", "a,b\r\n1,2\r");
    CHECK(accel_table_rows(t) == 1 && is(t, 0, 1, "2"));
    accel_destroy(acc);
}

TEST(empty_lines) {
    accel_t *acc = context(1);
    accel_table *t = read_text(acc, "end.tsv", "a\tb\n1\t2\n\n\r\n");
    CHECK(accel_table_rows(t) == 1);
    t = read_text(acc, "single.tsv", "text\nx\n\ny\n\n");
    CHECK(accel_table_rows(t) == 4 && is(t, 1, 0, "") && is(t, 2, 0, "y") && is(t, 3, 0, "") &&
          accel_table_line(t, 2) == 4);
    t = read_text(acc, "lines.jsonl", "{\"a\": 1}\n\n{\"a\": 2}\n\n");
    CHECK(accel_table_rows(t) == 2 && accel_table_line(t, 1) == 3);
    CHECK(!accel_failed(acc));
    accel_destroy(acc);
    CHECK(refused("middle.tsv", "a\tb\n1\t2\n\n3\t4\n", "line 3: 1 column, expected 2"));
}

TEST(ragged_rows) {
    CHECK(
        refused("short.tsv", "a\tb\tc\td\te\n1\t2\t3\t4\t5\n1\t2\t3\t4\n", "short.tsv, line 3: 4 columns, expected 5"));
    CHECK(refused("long.tsv", "a\tb\n1\t2\t3\n", "line 2: 3 columns, expected 2"));
    CHECK(refused("short.csv", "a,b\n\"x\ny\",1\nz\n", "line 4: 1 column, expected 2"));
}

TEST(csv_quotes) {
    accel_t *acc = context(1);
    accel_table *t = read_text(acc, "q.csv",
                               "name,\"the, text\"\r\n1,\"say \"\"hi\"\"\r\nthere\"\r\n\"\",5\" disk\r\n\"\"\"\",\r\n");
    CHECK(accel_table_rows(t) == 3 && accel_table_column(t, "the, text") == 1);
    CHECK(is(t, 0, 1, "say \"hi\"\r\nthere") && is(t, 1, 0, "") && is(t, 1, 1, "5\" disk") && is(t, 2, 0, "\"") &&
          is(t, 2, 1, ""));
    CHECK(accel_table_line(t, 0) == 2 && accel_table_line(t, 1) == 4);
    accel_destroy(acc);
    CHECK(refused("never.csv", "a,b\n1,2\n3,\"open\n4,5\n", "line 3: the quote that begins here is never closed"));
    CHECK(refused("double.csv", "a,b\n1,\"x\"\"\n", "line 2: the quote that begins here is never closed"));
    CHECK(refused("behind.csv", "a,b\n\"1\n2\"x,3\n", "line 3: text behind a closing quote"));
}

TEST(jsonl_values) {
    accel_t *acc = context(1);
    accel_table *t = read_text(acc, "v.jsonl",
                               "{\"text\": \"a\\tb \\u00e9 \\ud83d\\ude00 \\\"\\\\\\/\", \"n\":-1.5e+3,\"ok\":true}\r\n"
                               " { \"ok\" : false , \"text\":\"\", \"n\" : 0 } \n");
    CHECK(accel_table_rows(t) == 2 && accel_table_columns(t) == 3);
    CHECK(is(t, 0, 0, "a\tb \xC3\xA9 \xF0\x9F\x98\x80 \"\\/") && is(t, 0, 1, "-1.5e+3") && is(t, 0, 2, "true"));
    CHECK(is(t, 1, 0, "") && is(t, 1, 1, "0") && is(t, 1, 2, "false"));
    CHECK(accel_table_column(t, "ok") == 2);
    accel_destroy(acc);
}

TEST(jsonl_faults) {
    CHECK(refused("keys.jsonl", "{\"a\": 1, \"b\": 2}\n{\"a\": 1}\n", "line 2: the key \"b\" is missing"));
    CHECK(refused("more.jsonl", "{\"a\": 1}\n{\"a\": 1, \"b\": 2}\n",
                  "line 2: the key \"b\" is not in the first object"));
    CHECK(refused("twice.jsonl", "{\"a\": 1, \"a\": 2}\n", "line 1: the key \"a\" is there twice"));
    CHECK(refused("again.jsonl", "{\"a\": 1}\n{\"a\": 1, \"a\": 2}\n", "line 2: the key \"a\" is there twice"));
    CHECK(refused("nested.jsonl", "{\"a\": {\"b\": 1}}\n", "line 1: the value of \"a\" is an object"));
    CHECK(refused("array.jsonl", "{\"a\": [1]}\n", "the value of \"a\" is an array"));
    CHECK(refused("null.jsonl", "{\"a\": null}\n", "the value of \"a\" is null"));
    CHECK(refused("open.jsonl", "{\"a\": \"x\n", "line 1: malformed JSON at byte 9: expected a closing quote"));
    CHECK(refused("number.jsonl", "{\"a\": 01}\n", "expected a value"));
    CHECK(refused("number2.jsonl", "{\"a\": 1.}\n", "expected a value"));
    CHECK(refused("word.jsonl", "{\"a\": truely}\n", "expected \",\" or \"}\""));
    CHECK(refused("comma.jsonl", "{\"a\": 1,}\n", "expected a key in quotes"));
    CHECK(refused("colon.jsonl", "{\"a\" 1}\n", "expected \":\""));
    CHECK(refused("rest.jsonl", "{\"a\": 1} x\n", "expected the end of the line"));
    CHECK(refused("list.jsonl", "[1]\n", "expected \"{\""));
    CHECK(refused("nothing.jsonl", "{}\n", "expected at least one key"));
    CHECK(refused("escape.jsonl", "{\"a\": \"\\x\"}\n", "byte 8: expected an escape"));
    CHECK(refused("half.jsonl", "{\"a\": \"\\ud83d\"}\n", "expected an escape"));
    CHECK(refused("zero.jsonl", "{\"a\": \"\\u0000\"}\n", "expected an escape"));
    CHECK(refused("end.jsonl", "{\"a\": \"\\", "expected an escape"));
    CHECK(refused("stop.jsonl", "{\"a\":", "expected a value"));
}

TEST(lines_and_no_header) {
    accel_t *acc = context(1);
    accel_table *t = accel_table_read(acc, file("plain", "one\ttwo\r\n\n\"three\n"),
                                      &(accel_table_desc){.format = ACCEL_LINES});
    CHECK(accel_table_rows(t) == 3 && accel_table_columns(t) == 1);
    CHECK(is(t, 0, 0, "one\ttwo") && is(t, 1, 0, "") && is(t, 2, 0, "\"three") && accel_table_line(t, 0) == 1);
    t = accel_table_read(acc, file("bare.tsv", "x\t0\ny\t1\n"), &(accel_table_desc){.no_header = true});
    CHECK(accel_table_rows(t) == 2 && accel_table_column(t, "1") == 1 && is(t, 0, 0, "x"));
    CHECK(accel_table_column(t, "text") == -1);
    CHECK_TEXT(accel_message(acc), "numbers only");
    accel_destroy(acc);
}

TEST(limit_keeps_the_first_rows) {
    accel_t *acc = context(1);
    const char *text = "a\tb\n1\t2\n3\t4\n5\n";
    accel_table *t = accel_table_read(acc, file("l.tsv", text), &(accel_table_desc){.limit = 2});
    CHECK(accel_table_rows(t) == 2 && is(t, 1, 0, "3"));
    CHECK(!accel_table_read(acc, file("l.tsv", text), &(accel_table_desc){.limit = -1}) &&
          accel_error(acc) == ACCEL_BAD_ARGUMENT);
    accel_destroy(acc);
}

TEST(empty_files) {
    CHECK(refused("none.tsv", "", "is empty"));
    CHECK(refused("mark.csv", "\xEF\xBB\xBF", "is empty"));
    CHECK(refused("blank.tsv", "\n\n", "is empty"));
    CHECK(refused("none.jsonl", "\n", "is empty"));
    CHECK(refused_with("nolines", "", 0, &(accel_table_desc){.format = ACCEL_LINES}, "is empty"));
    CHECK(refused_with("bare.tsv", "", 0, &(accel_table_desc){.no_header = true}, "is empty"));
    accel_t *acc = context(1);
    CHECK(!accel_table_read(acc, "build/tmp/tables/absent.tsv", NULL) && accel_error(acc) == ACCEL_BAD_FILE);
    CHECK_TEXT(accel_message(acc), "absent.tsv");
    accel_clear(acc);
    accel_table *t = read_text(acc, "header.tsv", "a\tb\n");
    CHECK(t && accel_table_rows(t) == 0 && accel_table_columns(t) == 2);
    int count = 7;
    CHECK(!accel_table_labels(t, "b", &count) && count == 0);
    CHECK_TEXT(accel_message(acc), "header.tsv has no rows");
    accel_destroy(acc);
}

TEST(bytes_that_are_no_text) {
    CHECK(refused_with("nul.tsv", "a\tb\n1\t\0\n", 8, NULL, "line 2: a NUL byte"));
    CHECK(refused("bad.tsv", "a\tb\n1\t2\nx\xFF\t3\n", "bad.tsv, line 3: invalid UTF-8 (byte 0xff)"));
    CHECK(refused("long.csv", "a\n\xC0\x80\n", "line 2: invalid UTF-8"));
    CHECK(refused("surrogate.csv", "a\n\xED\xA0\x80\n", "line 2: invalid UTF-8"));
    CHECK(refused("cut.csv", "a\nx\xE2\x82", "line 2: invalid UTF-8"));
    accel_t *acc = context(1);
    accel_table_desc desc = {.replace_invalid = ACCEL_YES};
    accel_table *t = accel_table_read(acc, file("mend.tsv", "a\tb\nx\xFFy\xC3\xA9\t\xE2\x82\n"), &desc);
    CHECK(is(t, 0, 0, "x\xEF\xBF\xBDy\xC3\xA9") && is(t, 0, 1, "\xEF\xBF\xBD\xEF\xBF\xBD"));
    t = accel_table_read(acc, file("mend.jsonl", "{\"a\": \"\\ud83d!\"}\n"), &desc);
    CHECK(is(t, 0, 0, "\xEF\xBF\xBD!"));
    accel_destroy(acc);
}

/* Many rows, so that every array grows several times, in each format. */
TEST(large_tables) {
    static char text[3][400000];
    size_t used[3] = {0};
    int rows = 5000;
    used[0] = (size_t)sprintf(text[0], "n\ttext\n"), used[1] = (size_t)sprintf(text[1], "n,text\n");
    for (int i = 0; i < rows; i++) {
        used[0] += (size_t)sprintf(text[0] + used[0], "%d\trow %d\n", i, i);
        used[1] += (size_t)sprintf(text[1] + used[1], "%d,\"row %d\"\n", i, i);
        used[2] += (size_t)sprintf(text[2] + used[2], "{\"n\": %d, \"text\": \"row %d\"}\n", i, i);
    }
    static const char *const names[3] = {"large.tsv", "large.csv", "large.jsonl"};
    accel_t *acc = context(1);
    for (int f = 0; f < 3; f++) {
        accel_table *t = read_text(acc, names[f], text[f]);
        int wrong = 0;
        CHECK(accel_table_rows(t) == rows);
        for (int i = 0; t && i < rows; i++) {
            char expected[40];
            snprintf(expected, sizeof expected, "row %d", i);
            wrong += atoi(accel_table_cell(t, i, 0)) != i || strcmp(accel_table_cell(t, i, 1), expected) != 0;
        }
        CHECK(wrong == 0);
        accel_free(t);
    }
    CHECK(!accel_failed(acc));
    accel_destroy(acc);
}

TEST(columns_that_are_not_there) {
    accel_t *acc = context(1);
    accel_table *t = read_text(acc, "columns.csv", "text,label,label,7\na,b,c,d\n");
    CHECK(accel_table_column(t, "7") == 3 && accel_table_column(t, "2") == 2 && !accel_failed(acc));
    CHECK(accel_table_column(t, "Text") == -1 && accel_error(acc) == ACCEL_BAD_DATA);
    CHECK_TEXT(accel_message(acc),
               "columns.csv: no column \"Text\"; columns from 0: \"text\", \"label\", \"label\", \"7\"");
    accel_clear(acc);
    CHECK(accel_table_column(t, "label") == -1);
    CHECK_TEXT(accel_message(acc), "\"label\" is there twice");
    accel_clear(acc);
    CHECK(accel_table_column(t, "4") == -1 && accel_table_column(t, "-1") == -1 && accel_table_column(t, NULL) == -1);
    accel_destroy(acc);
    CHECK(accel_table_column(NULL, "a") == -1 && accel_table_rows(NULL) == 0 && accel_table_columns(NULL) == 0);
    CHECK(!accel_table_cell(NULL, 0, 0) && accel_table_line(NULL, 0) == 0 && !accel_table_labels(NULL, "a", NULL));
}

/* ---- labels ---- */

TEST(labels_are_ordered) {
    accel_t *acc = context(1);
    int count;
    accel_table *t = read_text(
        acc, "labels.csv",
        "n,w,g\n2,pear,1\n10,Apple,3\n0,zoo,2\n1,pear,1\n3,apple,3\n4,b,1\n5,b,1\n6,b,1\n7,b,1\n8,b,1\n9,b,1\n");
    const char *const *names = accel_table_labels(t, "n", &count);
    CHECK(count == 11 && names && !strcmp(names[2], "2") && !strcmp(names[10], "10"));
    CHECK(accel_table_labels(t, "0", &count) == names && count == 11);
    names = accel_table_labels(t, "w", &count);
    CHECK(count == 5 && names && !strcmp(names[0], "Apple") && !strcmp(names[1], "apple") && !strcmp(names[3], "pear"));
    names = accel_table_labels(t, "g", &count);
    CHECK(count == 3 && names && !strcmp(names[0], "1"));
    t = read_text(acc, "hole.tsv", "t\tl\na\tx\nb\t\n");
    CHECK(!accel_table_labels(t, "l", &count) && count == 0);
    CHECK_TEXT(accel_message(acc), "hole.tsv, line 3: the label is empty");
    accel_destroy(acc);
}

/* ---- encoding ---- */

static accel_tokenizer *tokenizer_of(accel_t *acc) {
    return accel_tokenizer_load(acc, file("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\nd\ne\n##a\n"),
                                NULL);
}

static bool ids_are(const accel_data *data, int64_t row, int count, const int32_t *expected) {
    const accel_data_desc *d = accel_data_view(data);
    return d && d->offsets[row + 1] - d->offsets[row] == count &&
           !memcmp(d->ids + d->offsets[row], expected, (size_t)count * sizeof *expected);
}

TEST(encode_singles_and_pairs) {
    accel_t *acc = context(2);
    accel_tokenizer *tokenizer = tokenizer_of(acc);
    accel_table *t = read_text(acc, "pairs.tsv", "x\ty\tl\na b\tc\t1\nz\t\t0\n");
    accel_data *data = accel_encode_table(tokenizer, t, &(accel_encode_desc){.text = {"x", "y"}, .label = {"l"}});
    CHECK(accel_data_rows(data) == 2);
    CHECK(ids_are(data, 0, 6, (int32_t[]){2, 5, 6, 3, 7, 3}) && ids_are(data, 1, 4, (int32_t[]){2, 1, 3, 3}));
    const accel_data_desc *d = accel_data_view(data);
    CHECK(d && d->token_types &&
          !memcmp(d->token_types, (int32_t[]){0, 0, 0, 0, 1, 1, 0, 0, 0, 1}, 10 * sizeof(int32_t)));
    CHECK(d && d->labels && d->labels[0] == 1 && d->labels[1] == 0 && !d->targets && !notice[0]);
    data = accel_encode_table(tokenizer, t, &(accel_encode_desc){.text = {"0"}});
    d = accel_data_view(data);
    CHECK(ids_are(data, 0, 4, (int32_t[]){2, 5, 6, 3}) && d && !d->token_types && !d->labels && !d->targets);
    CHECK(!accel_failed(acc));
    accel_destroy(acc);
}

TEST(encode_cuts_and_says_so_once) {
    accel_t *acc = context(1);
    accel_tokenizer *tokenizer = tokenizer_of(acc);
    accel_table *t = read_text(acc, "cut.tsv", "x\tl\na b c d\t0\na b c\t1\na b c d e\t0\n");
    accel_data *data = accel_encode_table(tokenizer, t,
                                          &(accel_encode_desc){.text = {"x"}, .label = {"l"}, .max_length = 5});
    CHECK(ids_are(data, 0, 5, (int32_t[]){2, 5, 6, 7, 3}) && ids_are(data, 2, 5, (int32_t[]){2, 5, 6, 7, 3}));
    CHECK_TEXT(notice, "cut.tsv: 2 of 3 texts were longer than 5 tokens and were cut");
    CHECK(!accel_encode_table(tokenizer, t, &(accel_encode_desc){.text = {"x"}, .max_length = 2}));
    CHECK_TEXT(accel_message(acc), "leaves no room");
    accel_clear(acc);
    CHECK(!accel_encode_table(tokenizer, t, &(accel_encode_desc){.text = {"x"}, .max_length = -5}) &&
          accel_failed(acc));
    accel_destroy(acc);
}

/* 10000 rows, more than a wave, by 1, 2, 3 and 8 threads. */
TEST(encode_is_the_same_for_any_number_of_threads) {
    static char text[300000];
    size_t used = (size_t)sprintf(text, "x\ty\n");
    for (int i = 0; i < 10000; i++) {
        for (int j = 0; j < i % 9; j++) used += (size_t)sprintf(text + used, "%c ", 'a' + (i + j) % 7);
        used += (size_t)sprintf(text + used, "\t%d\n", i % 3);
    }
    static const int threads[4] = {1, 2, 3, 8};
    accel_t *acc[4];
    const accel_data_desc *d[4];
    for (int i = 0; i < 4; i++) {
        acc[i] = context(threads[i]);
        accel_table *t = read_text(acc[i], "many.tsv", text);
        d[i] = accel_data_view(accel_encode_table(
            tokenizer_of(acc[i]), t, &(accel_encode_desc){.text = {"x"}, .label = {"y"}, .max_length = 8}));
        CHECK(d[i] && d[i]->rows == 10000 && d[i]->labels[9999] == 0 && d[i]->labels[9998] == 2);
        CHECK_TEXT(notice, "2222 of 10000");
        if (!d[0] || !d[i]) continue;
        CHECK(d[i]->offsets[10000] == d[0]->offsets[10000]);
        CHECK(!memcmp(d[i]->offsets, d[0]->offsets, 10001 * sizeof *d[0]->offsets));
        CHECK(!memcmp(d[i]->ids, d[0]->ids, (size_t)d[0]->offsets[10000] * sizeof *d[0]->ids));
        CHECK(!memcmp(d[i]->labels, d[0]->labels, 10000 * sizeof *d[0]->labels));
    }
    for (int i = 0; i < 4; i++) accel_destroy(acc[i]);
}

/* Encodes the text's columns x (text) and l with desc and expects a refusal that says `part`. */
static bool encode_refused(const char *name, const char *text, accel_encode_desc desc, const char *part) {
    accel_t *acc = context(2);
    accel_tokenizer *tokenizer = tokenizer_of(acc);
    accel_table *t = read_text(acc, name, text);
    desc.text[0] = "x";
    accel_data *data = accel_encode_table(tokenizer, t, &desc);
    bool good = !data && accel_error(acc) == ACCEL_BAD_DATA && strstr(accel_message(acc), part) &&
                strstr(accel_message(acc), name);
    if (!good) printf("  %s: \"%s\" does not say \"%s\"\n", name, accel_message(acc), part);
    accel_destroy(acc);
    return good;
}

TEST(encode_refuses_bad_labels) {
    static const char *const names[] = {"no", "yes"};
    accel_encode_desc named = {.label = {"l"}, .label_names = names, .label_count = 2};
    accel_encode_desc numbered = {.label = {"l"}, .label_count = 2},
                      score = {.label = {"l"}, .problem = ACCEL_REGRESSION};
    accel_encode_desc several = {.label = {"l", "m"}, .problem = ACCEL_MULTI_LABEL};
    CHECK(encode_refused("a.tsv", "x\tl\na\tyes\nb\tYes\nc\tmaybe\n", named,
                         "a.tsv, line 3: unknown label \"Yes\"; known are \"no\", \"yes\""));
    CHECK(encode_refused("b.tsv", "x\tl\na\t0\nb\t2\n", numbered, "b.tsv, line 3: label 2 is out of range 0 .. 1"));
    CHECK(encode_refused("c.tsv", "x\tl\na\t-1\n", numbered, "c.tsv, line 2, column \"l\": \"-1\" is not a label"));
    CHECK(encode_refused("d.tsv", "x\tl\na\t1.0\n", numbered, "\"1.0\" is not a label"));
    CHECK(encode_refused("e.tsv", "x\tl\na\t\n", numbered, "\"\" is not a label"));
    CHECK(encode_refused("f.tsv", "x\tl\na\t99999999999\n", numbered, "is not a label"));
    CHECK(encode_refused("g.tsv", "x\tl\na\t1.5\nb\tnan\n", score,
                         "g.tsv, line 3, column \"l\": \"nan\" is not a finite number"));
    CHECK(encode_refused("h.tsv", "x\tl\na\t1e999\n", score, "is not a finite number"));
    CHECK(encode_refused("i.tsv", "x\tl\na\t1 \n", score, "is not a finite number"));
    CHECK(encode_refused("j.tsv", "x\tl\na\t0x10\n", score, "is not a finite number"));
    CHECK(encode_refused("k.tsv", "x\tl\na\t\n", score, "is not a finite number"));
    CHECK(encode_refused("m.tsv", "x\tl\tm\na\t1\t0\nb\t0\t2\n", several,
                         "m.tsv, line 3, column \"m\": \"2\" is not 0 or 1"));
    CHECK(encode_refused("n.tsv", "x\tl\n", numbered, "n.tsv has no rows"));
    CHECK(encode_refused("o.tsv", "x\ty\na\t1\n", numbered, "no column \"l\""));
}

TEST(encode_targets) {
    accel_t *acc = context(1);
    accel_tokenizer *tokenizer = tokenizer_of(acc);
    accel_table *t = read_text(acc, "targets.csv", "x,s,p,q\na,2.5,1,false\nb,-1e-1,true,1\n");
    accel_encode_desc desc = {.text = {"x"}, .label = {"s"}, .problem = ACCEL_REGRESSION};
    const accel_data_desc *d = accel_data_view(accel_encode_table(tokenizer, t, &desc));
    CHECK(d && d->targets_per_row == 1 && !d->labels && d->targets[0] == 2.5f && d->targets[1] == -0.1f);
    desc = (accel_encode_desc){.text = {"x"}, .label = {"p", "q"}, .problem = ACCEL_MULTI_LABEL};
    d = accel_data_view(accel_encode_table(tokenizer, t, &desc));
    CHECK(d && d->targets_per_row == 2 && !memcmp(d->targets, (float[]){1, 0, 1, 1}, 4 * sizeof(float)));
    desc.problem = ACCEL_SINGLE_LABEL;
    CHECK(!accel_encode_table(tokenizer, t, &desc) && accel_error(acc) == ACCEL_BAD_ARGUMENT);
    accel_clear(acc);
    CHECK(!accel_encode_table(tokenizer, t, NULL) && accel_failed(acc));
    accel_clear(acc);
    CHECK(!accel_encode_table(NULL, t, &desc) && accel_failed(acc));
    accel_clear(acc);
    CHECK(!accel_encode_table(tokenizer, t, &(accel_encode_desc){0}) && accel_failed(acc));
    CHECK(!accel_encode_table(tokenizer, NULL, &desc));
    accel_destroy(acc);
}

/* ---- with a model ---- */

static accel_model *model_of(accel_t *acc, accel_problem problem, int words, int positions, int labels) {
    accel_encoder_config config = accel_encoder_defaults(ACCEL_DISTILBERT);
    config.problem = problem;
    config.vocab_size = words;
    config.max_positions = positions;
    config.dim = 8, config.layers = 1, config.heads = 2, config.hidden_dim = 16;
    config.num_labels = labels;
    return accel_encoder_create(acc, &config);
}

TEST(encode_follows_the_model) {
    accel_t *acc = context(1);
    accel_tokenizer *tokenizer = tokenizer_of(acc);
    accel_model *model = model_of(acc, ACCEL_SINGLE_LABEL, 11, 6, 2);
    accel_table *t = read_text(acc, "model.tsv", "x\tl\na b c d e a b\tgood\nb\tbad\n");
    accel_encode_desc desc = {.text = {"x"}, .label = {"l"}, .model = model, .max_length = 128};
    CHECK(!accel_encode_table(tokenizer, t, &desc)); /* no names yet: labels are numbers */
    CHECK_TEXT(accel_message(acc), "\"good\" is not a label");
    accel_clear(acc);
    accel_set_label_names(model, (const char *const[]){"good", "bad"}, 2);
    accel_data *data = accel_encode_table(tokenizer, t, &desc);
    const accel_data_desc *d = accel_data_view(data);
    CHECK(d && d->labels[0] == 0 && d->labels[1] == 1 && d->offsets[1] == 6);
    CHECK_TEXT(notice, "1 of 2 texts were longer than 6 tokens");
    desc.problem = ACCEL_REGRESSION;
    CHECK(!accel_encode_table(tokenizer, t, &desc) && accel_error(acc) == ACCEL_BAD_ARGUMENT);
    accel_clear(acc);
    desc = (accel_encode_desc){.text = {"x"}, .model = model_of(acc, ACCEL_SINGLE_LABEL, 10, 6, 2)};
    CHECK(!accel_encode_table(tokenizer, t, &desc));
    CHECK_TEXT(accel_message(acc), "the vocabulary has 11 tokens, the model's word embeddings have 10 rows");
    accel_destroy(acc);
}

TEST(encode_checks_numbers_against_the_model) {
    accel_t *acc = context(1);
    accel_tokenizer *tokenizer = tokenizer_of(acc);
    accel_model *model = model_of(acc, ACCEL_SINGLE_LABEL, 11, 8, 2);
    accel_table *t = read_text(acc, "numbers.tsv", "x\tl\na\t1\nb\t0\nc\t2\n");
    accel_encode_desc desc = {.text = {"x"}, .label = {"l"}, .model = model};
    CHECK(!accel_encode_table(tokenizer, t, &desc));
    CHECK_TEXT(accel_message(acc), "numbers.tsv, line 4: label 2 is out of range 0 .. 1");
    accel_clear(acc);
    t = read_text(acc, "numbers.tsv", "x\tl\na\t1\nb\t0\n");
    const accel_data_desc *d = accel_data_view(accel_encode_table(tokenizer, t, &desc));
    CHECK(d && d->labels[0] == 1 && d->labels[1] == 0);
    accel_destroy(acc);
}

TEST(encode_checks_the_order_of_multi_label_columns) {
    accel_t *acc = context(1);
    accel_tokenizer *tokenizer = tokenizer_of(acc);
    accel_model *model = model_of(acc, ACCEL_MULTI_LABEL, 11, 8, 2);
    accel_set_label_names(model, (const char *const[]){"rude", "kind"}, 2);
    accel_table *t = read_text(acc, "multi.csv", "x,kind,rude\na,1,0\n");
    accel_encode_desc desc = {.text = {"x"}, .label = {"rude", "kind"}, .model = model};
    const accel_data_desc *d = accel_data_view(accel_encode_table(tokenizer, t, &desc));
    CHECK(d && d->targets_per_row == 2 && d->targets[0] == 0.0f && d->targets[1] == 1.0f);
    desc.label[0] = "kind", desc.label[1] = "rude";
    CHECK(!accel_encode_table(tokenizer, t, &desc));
    CHECK_TEXT(accel_message(acc), "label column 0 is \"kind\", the model's label 0 is \"rude\"");
    accel_clear(acc);
    desc.label[1] = NULL;
    CHECK(!accel_encode_table(tokenizer, t, &desc));
    CHECK_TEXT(accel_message(acc), "1 label columns, the model has 2 labels");
    accel_destroy(acc);
}

/* An allocator that fails from its n-th call on: nothing may leak or crash. */
typedef struct budget {
    int left;
    long blocks;
} budget;

static void *limited(void *user, void *pointer, size_t bytes) {
    budget *b = user;
    if (!bytes) {
        b->blocks -= pointer != NULL;
        free(pointer);
        return NULL;
    }
    if (b->left-- <= 0) return NULL;
    void *block = realloc(pointer, bytes);
    b->blocks += block && !pointer;
    return block;
}

TEST(no_memory_is_an_error) {
    int finished = 0;
    char path[200];
    snprintf(path, sizeof path, "%s", file("memory.tsv", "x\ty\tl\na b\tc\t1\nz\td\t0\n"));
    for (int calls = 0; calls < 200 && finished < 3; calls++) {
        budget b = {.left = calls};
        accel_t *acc = accel_create(&(accel_desc){.threads = 1, .allocator = {limited, &b}, .log = take_notice});
        accel_table *t = accel_table_read(acc, path, NULL);
        accel_tokenizer *tokenizer = tokenizer_of(acc);
        accel_data *data = accel_encode_table(tokenizer, t, &(accel_encode_desc){.text = {"x", "y"}, .label = {"l"}});
        CHECK(!data == accel_failed(acc));
        finished += data != NULL;
        accel_destroy(acc);
        CHECK(b.blocks == 0);
    }
    CHECK(finished == 3);
}

/* The real files: every row has its columns. */
TEST(real_tables) {
    const char *shared = test_shared();
    if (!shared) SKIP("no reference material");
    char path[4200];
    accel_t *acc = context(1);
    int count;
    snprintf(path, sizeof path, "%s/data/mrpc/train.tsv", shared);
    accel_table *t = accel_table_read(acc, path, NULL);
    CHECK(accel_table_rows(t) == 3576 && accel_table_columns(t) == 5 && accel_table_column(t, "#2 String") == 4);
    const char *const *names = accel_table_labels(t, "Quality", &count);
    CHECK(count == 2 && names && !strcmp(names[0], "0") && !strcmp(names[1], "1"));
    snprintf(path, sizeof path, "%s/data/sst2/train.tsv", shared);
    t = accel_table_read(acc, path, NULL);
    CHECK(accel_table_rows(t) == 12000 && accel_table_columns(t) == 2);
    CHECK(!accel_failed(acc));
    accel_destroy(acc);
}

int main(int argc, char **argv) { return test_main(argc, argv); }
