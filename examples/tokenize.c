/* Prints the token ids of texts, a line for each row of the input, separated by spaces.

       tokenize --model DIR --text "#1 String,#2 String" val.tsv
       echo "a text in each line" | tokenize --model DIR -

   build: cc -O2 tokenize.c -lcjson -lutf8proc -lopenblas -lpthread -lm */
#define ACCEL_IMPLEMENTATION
#include "common.h"

typedef struct settings {
    const char *model, *file;
    text_columns text; /* none: every line is a text */
    int64_t max_length;
} settings;

static int read_settings(int argc, char **argv, settings *s) {
    s->max_length = 512;
    option_spec options[] = {
        option_text("--model", "DIR", &s->model, "folder of a model, or its vocab.txt or tokenizer.json"),
        option_columns("--text", &s->text, "columns, by name or number from 0; without it every line is a text"),
        option_int("--max-length", &s->max_length, 3, 1 << 20, "tokens of a text; longer ones are cut"),
    };
    int status = options_parse(argc, argv, "FILE|-", options, (int)(sizeof options / sizeof *options), &s->file);
    if (status >= 0 || s->model) return status;
    return fprintf(stderr, "--model is missing, see --help\n"), 1;
}

static bool print_row(const accel_tokenizer *tokenizer, const char *text, const char *pair, int32_t *ids, int room) {
    int count = ids ? accel_tokenize(tokenizer, text, pair, room, ids, NULL, NULL) : -1;
    if (count < 0) return fprintf(stderr, "out of memory\n"), false;
    for (int i = 0; i < count; i++) printf(i ? " %d" : "%d", ids[i]);
    putchar('\n');
    return true;
}

static bool print_rows(const accel_tokenizer *tokenizer, const accel_table *rows, const char *text[2], int room) {
    int columns[2] = {accel_table_column(rows, text[0]), text[1] ? accel_table_column(rows, text[1]) : -1};
    if (columns[0] < 0 || (text[1] && columns[1] < 0)) return false; /* the context holds the error */
    int32_t *ids = malloc((size_t)room * sizeof *ids);
    bool good = true;
    for (int64_t row = 0; row < accel_table_rows(rows) && good; row++) {
        const char *pair = text[1] ? accel_table_cell(rows, row, columns[1]) : NULL;
        good = print_row(tokenizer, accel_table_cell(rows, row, columns[0]), pair, ids, room);
    }
    free(ids);
    return good;
}

int main(int argc, char **argv) {
    settings s = {0};
    int status = read_settings(argc, argv, &s);
    if (status >= 0) return status;
    accel_t *acc = accel_create(&(accel_desc){.threads = 1});
    accel_tokenizer *tokenizer = accel_tokenizer_load(acc, s.model, NULL);
    accel_format format = s.text.count ? ACCEL_FORMAT_BY_NAME : ACCEL_LINES;
    accel_table *rows = accel_table_read(acc, s.file, &(accel_table_desc){.format = format});
    const char *text[2] = {"0", NULL};
    bool good = !accel_failed(acc) && (!s.text.count || text_columns_find(&s.text, acc, rows, text)) &&
                print_rows(tokenizer, rows, text, (int)s.max_length);
    if (accel_failed(acc)) fprintf(stderr, "%s\n", accel_message(acc));
    if (fflush(stdout) != 0 || ferror(stdout)) good = fprintf(stderr, "the output cannot be written\n") < 0;
    accel_destroy(acc);
    return good ? 0 : 1;
}
