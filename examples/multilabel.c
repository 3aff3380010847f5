/* Several yes/no labels per text: each label is a column of 0 and 1. Reports precision, recall and F1 of each label and
   of all, and how many rows are right in every label. Without --model, a small encoder is trained from scratch. --lr is
   5e-5 with --model, else 5e-4.

       multilabel --model DIR --train train.csv --eval test.csv --text comment --labels toxic,insult,threat --output OUT

   build: cc -O2 multilabel.c -lcjson -lutf8proc -lopenblas -lpthread -lm */
#define ACCEL_IMPLEMENTATION
#include "encoders.h"

typedef struct run {
    task task;
    const char *model_folder, *label_list, *output;
    char label_text[2000]; /* the list, taken apart */
    const char *labels[ACCEL_MAX_COLUMNS];
    int label_count;
    accel_t *acc;
    accel_tokenizer *tokenizer;
    accel_model *model;
    accel_loader *train, *eval;
} run;

static int read_options(int argc, char **argv, run *r) {
    option_spec own[] = {
        option_text("--model", "DIR", &r->model_folder, "pretrained folder to start from; else from scratch"),
        option_text("--labels", "COL,COL,...", &r->label_list, "columns of 0 and 1"),
        option_text("--output", "DIR", &r->output, "folder for the trained model"),
    };
    return task_options(argc, argv, &r->task, own, (int)(sizeof own / sizeof *own), "--labels");
}

static bool split_labels(run *r) {
    if (strlen(r->label_list) >= sizeof r->label_text) return fprintf(stderr, "--labels is too long\n"), false;
    strcpy(r->label_text, r->label_list);
    for (char *name = strtok(r->label_text, ","); name; name = strtok(NULL, ",")) {
        if (r->label_count == ACCEL_MAX_COLUMNS)
            return fprintf(stderr, "--labels names more than %d columns\n", ACCEL_MAX_COLUMNS), false;
        r->labels[r->label_count++] = name;
    }
    return r->label_count ? true : (fprintf(stderr, "--labels names no column\n"), false);
}

/* An output per label, each with a binary cross-entropy of its own: that is what ACCEL_MULTI_LABEL means. */
static bool make_model(run *r, const accel_table *rows, const char *const text[2]) {
    if (r->model_folder) {
        accel_pretrained_desc desc = {.num_labels = r->label_count,
                                      .label_names = r->labels,
                                      .problem_type = "multi_label_classification",
                                      .fresh_head = true};
        r->model = accel_load_pretrained(r->acc, r->model_folder, &desc);
        r->tokenizer = accel_tokenizer_load(r->acc, r->model_folder, NULL);
        return r->tokenizer && r->model;
    }
    r->tokenizer = learn_vocabulary(r->acc, rows, text, 8000);
    accel_encoder_config config = small_encoder(r->tokenizer, r->task.max_length);
    config.problem = ACCEL_MULTI_LABEL;
    config.num_labels = r->label_count;
    r->model = r->tokenizer ? accel_encoder_create(r->acc, &config) : NULL;
    return accel_set_label_names(r->model, r->labels, r->label_count);
}

static bool make_all(run *r) {
    accel_table *train = accel_table_read(r->acc, r->task.train, NULL);
    accel_table *eval = accel_table_read(r->acc, r->task.eval, NULL);
    accel_encode_desc encode = {.max_length = (int)r->task.max_length};
    if (!split_labels(r) || !text_columns_find(&r->task.text, r->acc, train, encode.text)) return false;
    if (!make_model(r, train, encode.text)) return false;
    memcpy(encode.label, r->labels, sizeof encode.label);
    encode.model = r->model;
    r->train = make_loader(r->acc, r->tokenizer, train, &encode, r->task.batch_size);
    r->eval = make_loader(r->acc, r->tokenizer, eval, &encode, 0);
    return !accel_failed(r->acc);
}

static void print_scores(const char *name, accel_prf scores) {
    printf("  %-20s precision %.4f, recall %.4f, F1 %.4f (%lld rows)\n", name, scores.precision, scores.recall,
           scores.f1, (long long)scores.labelled);
}

static void report(const run *r, int epoch, const accel_metrics *metrics) {
    printf("epoch %d: %.2f %% of %lld rows are right in every label\n", epoch, 100 * accel_accuracy(metrics),
           (long long)accel_metrics_examples(metrics));
    for (int i = 0; i < r->label_count; i++) print_scores(r->labels[i], accel_class_prf(metrics, i));
    print_scores("all (micro)", accel_average_prf(metrics, ACCEL_AVERAGE_MICRO));
    print_scores("all (macro)", accel_average_prf(metrics, ACCEL_AVERAGE_MACRO));
}

static void evaluate(run *r, int epoch, accel_metrics *metrics) {
    accel_batch batch;
    accel_metrics_reset(metrics);
    accel_eval_begin(r->acc);
    while (accel_next(r->eval, &batch)) {
        accel_tensor logits = accel_forward(r->model, &batch).logits;
        accel_metrics_add_multi_label(metrics, logits, batch.targets, batch.examples);
    }
    accel_eval_end(r->acc);
    if (!accel_failed(r->acc)) report(r, epoch, metrics);
}

static bool train(run *r) {
    accel_optimizer *opt = accel_adamw(r->acc, r->model, &(accel_adam_desc){.lr = (float)r->task.lr});
    int64_t steps = r->task.epochs * accel_steps_per_epoch(r->acc, r->train);
    accel_schedule *lr = accel_linear_schedule_with_warmup(opt, steps / 10, steps);
    accel_metrics *metrics = accel_metrics_create_multi_label(r->acc, r->label_count);
    accel_prepare(r->acc, r->model, opt, lr, r->train, r->eval);
    for (int epoch = 1; epoch <= (int)r->task.epochs && !accel_failed(r->acc); epoch++) {
        accel_batch batch;
        while (accel_next(r->train, &batch)) {
            accel_zero_grad(opt);
            accel_backward(r->acc, accel_forward(r->model, &batch).loss);
            accel_step(opt);
            accel_schedule_step(lr);
        }
        evaluate(r, epoch, metrics);
    }
    return !accel_failed(r->acc) && (!r->output || accel_save_pretrained(r->model, r->tokenizer, r->output));
}

int main(int argc, char **argv) {
    run r = {.task = {.epochs = 3, .batch_size = 16, .max_length = 128, .seed = 42}};
    int status = read_options(argc, argv, &r);
    if (status >= 0) return status;
    if (r.task.lr == 0) r.task.lr = r.model_folder ? 5e-5 : 5e-4;
    r.acc = accel_create(&(accel_desc){.seed = (uint64_t)r.task.seed});
    bool good = make_all(&r) && train(&r);
    if (accel_failed(r.acc)) fprintf(stderr, "%s\n", accel_message(r.acc));
    accel_destroy(r.acc);
    return good ? 0 : 1;
}
