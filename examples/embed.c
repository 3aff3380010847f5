/* Sentence vectors: the mean of a pretrained encoder's last hidden states, brought to length 1. Prints which texts of a
   file, one a line, are nearest to a query by the cosine of the angle between them.

       embed MODEL TEXTS.txt "a query" [COUNT]

   build: cc -O2 embed.c -lcjson -lutf8proc -lopenblas -lpthread -lm */
#define ACCEL_IMPLEMENTATION
#include "encoders.h"

enum { MAX_LENGTH = 256 };

/* Each row divided by its length: [n, width]. */
static accel_tensor normalized(accel_tensor x) {
    accel_tensor squares = accel_sum_axis(accel_mul(x, x), 1, true);
    return accel_div(x, accel_sqrt(squares));
}

/* [examples, width] */
static accel_tensor vectors_of(accel_model *model, const accel_batch *batch) {
    accel_output out = accel_forward(model, batch);
    if (!out.hidden) return (accel_tensor){0};
    return normalized(mean_over_tokens(out.hidden[out.hidden_count - 1], batch));
}

/* The query's vector, [1, width]; lives until accel_release. */
static accel_tensor query_vector(accel_t *acc, accel_model *model, const accel_tokenizer *tokenizer,
                                 const char *query) {
    int32_t ids[MAX_LENGTH];
    int positions = accel_encoder_config_of(model)->max_positions;
    int count = accel_tokenize(tokenizer, query, NULL, positions < MAX_LENGTH ? positions : MAX_LENGTH, ids, NULL,
                               NULL);
    if (count < 0) fprintf(stderr, "the query is not valid UTF-8\n");
    if (count <= 0) return (accel_tensor){0};
    const int32_t offsets[2] = {0, count};
    accel_batch batch = {.examples = 1, .tokens = count, .longest = count, .ids = ids, .offsets = offsets};
    accel_eval_begin(acc);
    accel_tensor vector = accel_keep(vectors_of(model, &batch));
    accel_eval_end(acc);
    return vector;
}

/* cosines: one for each row of the loader's data. */
static bool compare(accel_t *acc, accel_model *model, accel_loader *loader, accel_tensor query, float *cosines) {
    float values[EVAL_BATCH_SIZE];
    accel_batch batch;
    accel_eval_begin(acc);
    while (accel_next(loader, &batch)) {
        accel_tensor products = accel_matmul_t(vectors_of(model, &batch), false, query, true);
        if (!accel_read(products, values, batch.examples)) break;
        for (int i = 0; i < batch.examples; i++) cosines[batch.rows[i]] = values[i];
    }
    accel_eval_end(acc);
    return !accel_failed(acc);
}

static void print_nearest(const accel_table *texts, float *cosines, long count) {
    int64_t rows = accel_table_rows(texts);
    for (int64_t printed = 0; printed < count && printed < rows; printed++) {
        int64_t best = 0;
        for (int64_t i = 1; i < rows; i++)
            if (cosines[i] > cosines[best]) best = i;
        printf("%7.4f  %s\n", (double)cosines[best], accel_table_cell(texts, best, 0));
        cosines[best] = -INFINITY;
    }
}

static bool find_nearest(accel_t *acc, const char *folder, const char *file, const char *query, long count) {
    accel_model *model = accel_load_pretrained(acc, folder, NULL);
    accel_output_hidden_states(model, true);
    accel_tokenizer *tokenizer = accel_tokenizer_load(acc, folder, NULL);
    accel_table *texts = accel_table_read(acc, file, &(accel_table_desc){.format = ACCEL_LINES});
    accel_encode_desc encode = {.text = {"0"}, .max_length = MAX_LENGTH, .model = model};
    accel_loader *loader = make_loader(acc, tokenizer, texts, &encode, 0);
    if (!accel_prepare(acc, model, loader)) return false;
    float *cosines = malloc((size_t)accel_table_rows(texts) * sizeof *cosines);
    accel_tensor vector = query_vector(acc, model, tokenizer, query);
    bool good = cosines && accel_valid(vector) && compare(acc, model, loader, vector, cosines);
    if (good) print_nearest(texts, cosines, count);
    accel_release(vector);
    free(cosines);
    return good;
}

int main(int argc, char **argv) {
    char *end = NULL;
    long count = argc == 5 ? strtol(argv[4], &end, 10) : 5;
    if (argc < 4 || argc > 5 || (end && (end == argv[4] || *end)) || count < 1)
        return fprintf(stderr, "usage: %s MODEL TEXTS.txt QUERY [COUNT]\n", argv[0]), 1;
    accel_t *acc = accel_create(NULL);
    bool good = find_nearest(acc, argv[1], argv[2], argv[3], count);
    if (accel_failed(acc)) fprintf(stderr, "%s\n", accel_message(acc));
    accel_destroy(acc);
    return good ? 0 : 1;
}
