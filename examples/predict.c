/* Classifies texts with a folder that finetune (or Transformers) saved. Prints a row for each row of the input, as TSV:
   the label, then the probability of each.

       predict --model OUT --text "#1 String,#2 String" val.tsv
       echo "a text in each line" | predict --model OUT -

   build: cc -O2 predict.c -lcjson -lutf8proc -lopenblas -lpthread -lm */
#define ACCEL_IMPLEMENTATION
#include "common.h"

typedef struct settings {
    const char *model, *file;
    text_columns text; /* none: every line is a text */
    int64_t max_length, threads, batch_size;
    bool logits;
} settings;

static int read_settings(int argc, char **argv, settings *s) {
    option_spec options[] = {
        option_text("--model", "DIR", &s->model, "folder of a trained model"),
        option_columns("--text", &s->text, "columns, by name or number from 0; without it every line is a text"),
        option_int("--max-length", &s->max_length, 5, 1 << 20,
                   "tokens of a text; longer ones are cut; else the model's positions"),
        option_int("--batch-size", &s->batch_size, 1, 1 << 20, "texts per batch"),
        option_int("--threads", &s->threads, 0, 4096, "0: all cores"),
        option_flag("--logits", &s->logits, "print the model's raw results instead of probabilities"),
    };
    int status = options_parse(argc, argv, "FILE|-", options, (int)(sizeof options / sizeof *options), &s->file);
    if (status >= 0 || s->model) return status;
    return fprintf(stderr, "--model is missing, see --help\n"), 1;
}

static accel_data *read_data(settings *s, accel_t *acc, const accel_model *model, const accel_tokenizer *tokenizer) {
    accel_table *rows = accel_table_read(
        acc, s->file, &(accel_table_desc){.format = s->text.count ? ACCEL_FORMAT_BY_NAME : ACCEL_LINES});
    accel_encode_desc encode = {.text = {"0"}, .max_length = (int)s->max_length, .model = model};
    if (!encode.max_length && model) encode.max_length = accel_encoder_config_of(model)->max_positions;
    if (s->text.count && !text_columns_find(&s->text, acc, rows, encode.text)) return NULL;
    return accel_encode_table(tokenizer, rows, &encode);
}

/* A cell of the output: tabs and line ends in a name become spaces. */
static void print_name(const accel_model *model, int label) {
    const char *name = accel_label_name(model, label);
    if (!name) printf("LABEL_%d", label);
    for (; name && *name; name++) putchar(strchr("\t\r\n", *name) ? ' ' : *name);
}

static void print_header(const accel_model *model, const accel_encoder_config *config) {
    if (config->problem != ACCEL_REGRESSION) fputs("label", stdout);
    for (int i = 0; i < config->num_labels; i++) {
        if (i || config->problem != ACCEL_REGRESSION) putchar('\t');
        if (config->problem == ACCEL_REGRESSION && !accel_label_name(model, i)) printf("score");
        else print_name(model, i);
    }
    putchar('\n');
}

/* The most likely label, or all labels above the threshold where there may be several. */
static void print_labels(const accel_model *model, const float *values, float threshold) {
    const accel_encoder_config *config = accel_encoder_config_of(model);
    int best = 0, printed = 0;
    for (int i = 1; i < config->num_labels; i++)
        if (values[i] > values[best]) best = i;
    for (int i = 0; i < config->num_labels; i++) {
        if (config->problem == ACCEL_MULTI_LABEL ? !(values[i] > threshold) : i != best) continue;
        if (printed++) putchar(',');
        print_name(model, i);
    }
}

static void print_row(const accel_model *model, const float *values, bool logits) {
    const accel_encoder_config *config = accel_encoder_config_of(model);
    bool score = config->problem == ACCEL_REGRESSION;
    if (!score) print_labels(model, values, logits ? 0.0f : 0.5f);
    for (int i = 0; i < config->num_labels; i++) {
        if (i || !score) putchar('\t');
        printf(logits ? "%.9g" : score ? "%.6g" : "%.6f", (double)values[i]);
    }
    putchar('\n');
}

/* What is printed of a batch: [examples, labels]. */
static accel_tensor results(accel_tensor logits, accel_problem problem, bool raw) {
    if (raw || problem == ACCEL_REGRESSION) return logits;
    return problem == ACCEL_MULTI_LABEL ? accel_sigmoid(logits) : accel_softmax(logits);
}

static bool predict(const settings *s, accel_t *acc, accel_model *model, accel_loader *loader) {
    if (!accel_prepare(acc, model, loader)) return false;
    const accel_encoder_config *config = accel_encoder_config_of(model);
    float *values = malloc((size_t)(s->batch_size * config->num_labels) * sizeof *values);
    if (!values) return fprintf(stderr, "out of memory\n"), false;
    accel_batch batch;
    print_header(model, config);
    accel_eval_begin(acc);
    while (accel_next(loader, &batch)) {
        accel_tensor result = results(accel_forward(model, &batch).logits, config->problem, s->logits);
        if (!accel_read(result, values, accel_count(result))) break;
        for (int i = 0; i < batch.examples; i++) print_row(model, values + i * config->num_labels, s->logits);
    }
    accel_eval_end(acc);
    free(values);
    if (fflush(stdout) == 0 && !ferror(stdout)) return !accel_failed(acc);
    return fprintf(stderr, "the results cannot be written\n"), false;
}

int main(int argc, char **argv) {
    settings s = {.batch_size = 32};
    int status = read_settings(argc, argv, &s);
    if (status >= 0) return status;
    accel_t *acc = accel_create(&(accel_desc){.threads = (int)s.threads});
    accel_model *model = accel_load_pretrained(acc, s.model, NULL);
    accel_tokenizer *tokenizer = accel_tokenizer_load(acc, s.model, NULL);
    accel_data *data = read_data(&s, acc, model, tokenizer);
    accel_loader *loader = accel_loader_create(
        acc, data, &(accel_loader_desc){.batch_size = (int)s.batch_size, .evaluation = true});
    bool good = loader && predict(&s, acc, model, loader);
    if (accel_failed(acc)) fprintf(stderr, "%s\n", accel_message(acc));
    accel_destroy(acc);
    return good ? 0 : 1;
}
