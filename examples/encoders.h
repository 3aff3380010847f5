/* What several examples do beside the loop they show: options, a vocabulary and a small encoder where there is no
   pretrained folder, loaders of tables, the mean over tokens. */
#ifndef ENCODERS_H
#define ENCODERS_H
#include "common.h"

enum { EVAL_BATCH_SIZE = 64 };

/* What an example that trains on the rows of a table is asked to do. */
typedef struct task {
    const char *train, *eval;
    text_columns text;
    int64_t epochs, batch_size, max_length, seed;
    double lr;
} task;

/* Reads a task's options and the example's own (at most 10), of which those that are text and named in `needed` must be
   there. Returns -1 where the program can go on, else its exit status. */
static inline int task_options(int argc, char **argv, task *t, const option_spec *own, int count, const char *needed) {
    option_spec options[20] = {
        option_text("--train", "FILE", &t->train, "rows to train on: .tsv, .csv or .jsonl"),
        option_text("--eval", "FILE", &t->eval, "rows to evaluate on after each epoch"),
        option_columns("--text", &t->text, "one or two columns, by name or number from 0"),
        option_int("--epochs", &t->epochs, 1, 1e6, "passes over the training rows"),
        option_int("--batch-size", &t->batch_size, 1, 1 << 20, "texts per batch"),
        option_int("--max-length", &t->max_length, 5, 1 << 20, "tokens of a text; longer ones are cut"),
        option_int("--seed", &t->seed, 0, 0, "of every random number"),
        option_number("--lr", &t->lr, ABOVE_ZERO, 0, "learning rate"),
    };
    memcpy(options + 8, own, (size_t)count * sizeof *own);
    int status = options_parse(argc, argv, "", options, 8 + count, NULL);
    if (status >= 0) return status;
    for (int i = 0; i < 8 + count; i++) {
        bool need = i < 3 || (options[i].kind == OPTION_TEXT && strstr(needed, options[i].name));
        if (need && !options[i].given) return fprintf(stderr, "%s is missing, see --help\n", options[i].name), 1;
    }
    return -1;
}

/* Learns a vocabulary from one or two columns of a table (text[1] may be NULL). NULL on error. */
static inline accel_tokenizer *learn_vocabulary(accel_t *acc, const accel_table *rows, const char *const text[2],
                                                int64_t size) {
    int64_t row_count = accel_table_rows(rows), count = 0;
    const char **texts = malloc((size_t)(2 * row_count + 1) * sizeof *texts);
    for (int i = 0; texts && i < 2 && text[i]; i++) {
        int column = accel_table_column(rows, text[i]);
        for (int64_t row = 0; row < row_count; row++) texts[count++] = accel_table_cell(rows, row, column);
    }
    accel_tokenizer *tokenizer = NULL;
    if (texts) tokenizer = accel_tokenizer_train(acc, texts, count, &(accel_vocabulary_desc){.size = (int)size});
    else fprintf(stderr, "out of memory\n");
    free(texts);
    return tokenizer;
}

/* A small DistilBERT for a vocabulary: 2 layers, 128 wide. */
static inline accel_encoder_config small_encoder(const accel_tokenizer *tokenizer, int64_t max_length) {
    accel_encoder_config config = accel_encoder_defaults(ACCEL_DISTILBERT);
    int32_t padding = accel_token_id(tokenizer, "[PAD]");
    config.vocab_size = accel_vocabulary_size(tokenizer);
    config.pad_token_id = padding;
    config.max_positions = (int)max_length;
    config.layers = config.heads = 2;
    config.dim = 128;
    config.hidden_dim = 512;
    return config;
}

/* A loader of a table's rows, shuffled for training, in order and in large batches for evaluation. */
static inline accel_loader *make_loader(accel_t *acc, const accel_tokenizer *tokenizer, const accel_table *rows,
                                        const accel_encode_desc *encode, int64_t batch_size) {
    accel_loader_desc training = {.batch_size = (int)batch_size, .shuffle = true};
    accel_loader_desc evaluation = {.batch_size = EVAL_BATCH_SIZE, .evaluation = true};
    return accel_loader_create(acc, accel_encode_table(tokenizer, rows, encode), batch_size ? &training : &evaluation);
}

static inline accel_tensor sum_over_tokens(accel_tensor packed, const accel_batch *batch) {
    return accel_sum_axis(accel_unpack(packed, batch), 1, false);
}

/* The mean over each sequence's tokens: packed [tokens, width] -> [examples, width]. */
static inline accel_tensor mean_over_tokens(accel_tensor packed, const accel_batch *batch) {
    accel_tensor ones = accel_full(packed.acc, accel_2d(batch->tokens, 1), 1);
    return accel_div(sum_over_tokens(packed, batch), sum_over_tokens(ones, batch));
}

#endif
