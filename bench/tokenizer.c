/* tokenizer: tokens per second of WordPiece, on 1, 2, 4, ... threads.

       tokenizer --vocab DIR --tsv train.tsv --text "#1 String,#2 String"

   Columns: threads, million tokens/s, MB of text/s, gain over one thread, efficiency. The texts lie in memory; a row
   with two columns is encoded as a pair, cut to --length tokens. */
#define ACCEL_IMPLEMENTATION
#include "bench.h"

enum { ROWS_AT_ONCE = 64, MOST_LENGTH = 4096, MOST_ROUNDS = 1000 };

typedef struct job {
    const accel_tokenizer *tokenizer;
    const accel_table *table;
    int64_t rows;
    int columns, column[2], length;
    int64_t *tokens; /* of each piece */
} job;

static void encode_piece(void *argument, int piece) {
    const job *j = (const job *)argument;
    int32_t ids[MOST_LENGTH], types[MOST_LENGTH];
    int64_t begin = (int64_t)piece * ROWS_AT_ONCE, end = begin + ROWS_AT_ONCE, tokens = 0;
    for (int64_t row = begin; row < end && row < j->rows; row++) {
        const char *text = accel_table_cell(j->table, row, j->column[0]);
        const char *pair = j->columns == 2 ? accel_table_cell(j->table, row, j->column[1]) : NULL;
        int count = accel_tokenize(j->tokenizer, text, pair, j->length, ids, types, NULL);
        if (count > 0) tokens += count;
    }
    j->tokens[piece] = tokens;
}

static double bytes_of(const job *j) {
    double bytes = 0;
    for (int64_t row = 0; row < j->rows; row++)
        for (int c = 0; c < j->columns; c++) bytes += (double)strlen(accel_table_cell(j->table, row, j->column[c]));
    return bytes;
}

/* Median seconds to encode all rows once. */
static double time_rows(int threads, const job *j, double seconds) {
    static double times[MOST_ROUNDS];
    accel_t *acc = accel_create(&(accel_desc){.threads = threads});
    job copy = *j;
    int pieces = (int)((j->rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE), count = 0;
    accel__parallel(acc, pieces, encode_piece, &copy);
    for (double end = bench_now() + seconds; count < MOST_ROUNDS && (count < 3 || bench_now() < end); count++) {
        double begin = bench_now();
        accel__parallel(acc, pieces, encode_piece, &copy);
        times[count] = bench_now() - begin;
    }
    accel_destroy(acc);
    return bench_median(times, count);
}

static bool open_job(job *j, accel_t *acc, const char *vocab, const char *tsv, text_columns *columns, int64_t length) {
    const char *text[2];
    j->tokenizer = accel_tokenizer_load(acc, vocab, NULL);
    j->table = accel_table_read(acc, tsv, NULL);
    if (!text_columns_find(columns, acc, j->table, text)) return false;
    j->columns = text[1] ? 2 : 1;
    for (int c = 0; c < j->columns; c++) j->column[c] = accel_table_column(j->table, text[c]);
    j->rows = accel_table_rows(j->table);
    j->length = (int)length;
    j->tokens = calloc((size_t)(j->rows / ROWS_AT_ONCE + 1), sizeof *j->tokens);
    return !accel_failed(acc) && j->tokens;
}

static void print_table(const job *j, int cores, double seconds) {
    double first = 0, bytes = bytes_of(j);
    printf("#%7s %10s %10s %7s %11s\n", "threads", "Mtokens/s", "MB/s", "gain", "efficiency");
    for (int threads = 1; threads <= cores; threads = threads < cores && threads * 2 > cores ? cores : threads * 2) {
        double time = time_rows(threads, j, seconds), tokens = 0;
        for (int64_t i = 0; i * ROWS_AT_ONCE < j->rows; i++) tokens += (double)j->tokens[i];
        if (threads == 1) first = time;
        if (threads == 1) printf("# %lld rows, %.0f tokens, %.2f MB\n", (long long)j->rows, tokens, 1e-6 * bytes);
        printf("%8d %10.3f %10.2f %7.2f %9.1f %%\n", threads, 1e-6 * tokens / time, 1e-6 * bytes / time, first / time,
               100 * first / time / threads);
    }
}

int main(int argc, char **argv) {
    const char *vocab = NULL, *tsv = NULL;
    text_columns columns = {0};
    int64_t length = 128, most = 0;
    double seconds = 1;
    option_spec options[] = {
        option_text("--vocab", "PATH", &vocab, "pretrained folder or vocab.txt"),
        option_text("--tsv", "FILE", &tsv, "table with the texts"),
        option_columns("--text", &columns, "one or two columns of it"),
        option_int("--length", &length, 5, MOST_LENGTH, "tokens; longer texts are cut"),
        option_int("--most", &most, 1, 1024, "threads; else the number of cores"),
        option_number("--seconds", &seconds, ABOVE_ZERO, 0, "for each number of threads"),
    };
    int status = options_parse(argc, argv, "", options, 6, NULL);
    if (status >= 0) return status;
    if (!vocab || !tsv || !columns.count)
        return fprintf(stderr, "--vocab, --tsv and --text are needed, see --help\n"), 1;
    bench_header(argc, argv, "tokenizer");
    accel_t *acc = accel_create(NULL);
    job j = {0};
    if (open_job(&j, acc, vocab, tsv, &columns, length))
        print_table(&j, most ? (int)most : accel_threads(acc), seconds);
    free(j.tokens);
    return bench_end(acc);
}
