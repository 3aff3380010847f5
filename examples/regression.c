/* Learns scores of texts or pairs of texts (STS-B's similarity of two sentences, 0 to 5) and reports how well predicted
   and given scores correlate. Without --model, a small encoder is trained from scratch. --lr is 5e-5 with --model, else
   5e-4.

       regression --model DIR --train train.tsv --eval dev.tsv --text sentence1,sentence2 --score score --output OUT

   build: cc -O2 regression.c -lcjson -lutf8proc -lopenblas -lpthread -lm */
#define ACCEL_IMPLEMENTATION
#include "encoders.h"

typedef struct run {
    task task;
    const char *model_folder, *score, *output;
    accel_t *acc;
    accel_tokenizer *tokenizer;
    accel_model *model;
    accel_loader *train, *eval;
} run;

static int read_options(int argc, char **argv, run *r) {
    option_spec own[] = {
        option_text("--model", "DIR", &r->model_folder, "pretrained folder to start from; else from scratch"),
        option_text("--score", "COL", &r->score, "column of the score, a number"),
        option_text("--output", "DIR", &r->output, "folder for the trained model"),
    };
    return task_options(argc, argv, &r->task, own, (int)(sizeof own / sizeof *own), "--score");
}

/* One output and the mean squared error, which is what ACCEL_REGRESSION means. */
static bool make_model(run *r, const accel_table *rows, const char *const text[2]) {
    if (r->model_folder) {
        accel_pretrained_desc desc = {.num_labels = 1, .problem_type = "regression", .fresh_head = true};
        r->model = accel_load_pretrained(r->acc, r->model_folder, &desc);
        r->tokenizer = accel_tokenizer_load(r->acc, r->model_folder, NULL);
        return r->tokenizer && r->model;
    }
    r->tokenizer = learn_vocabulary(r->acc, rows, text, 8000);
    accel_encoder_config config = small_encoder(r->tokenizer, r->task.max_length);
    config.problem = ACCEL_REGRESSION;
    config.num_labels = 1;
    r->model = r->tokenizer ? accel_encoder_create(r->acc, &config) : NULL;
    return r->model != NULL;
}

static bool make_all(run *r) {
    accel_table *train = accel_table_read(r->acc, r->task.train, NULL);
    accel_table *eval = accel_table_read(r->acc, r->task.eval, NULL);
    accel_encode_desc encode = {.label = {r->score}, .max_length = (int)r->task.max_length};
    if (!text_columns_find(&r->task.text, r->acc, train, encode.text)) return false;
    if (!make_model(r, train, encode.text)) return false;
    encode.model = r->model;
    r->train = make_loader(r->acc, r->tokenizer, train, &encode, r->task.batch_size);
    r->eval = make_loader(r->acc, r->tokenizer, eval, &encode, 0);
    return !accel_failed(r->acc);
}

static void evaluate(run *r, int epoch, accel_scores *scores) {
    accel_batch batch;
    accel_scores_reset(scores);
    accel_eval_begin(r->acc);
    while (accel_next(r->eval, &batch))
        accel_scores_add(scores, accel_forward(r->model, &batch).logits, batch.targets, batch.examples);
    accel_eval_end(r->acc);
    if (accel_failed(r->acc)) return;
    printf("epoch %d: mean squared error %.4f, Pearson %.4f, Spearman %.4f\n", epoch, accel_mean_squared_error(scores),
           accel_pearson(scores), accel_spearman(scores));
}

static bool train(run *r) {
    accel_optimizer *opt = accel_adamw(r->acc, r->model, &(accel_adam_desc){.lr = (float)r->task.lr});
    int64_t steps = r->task.epochs * accel_steps_per_epoch(r->acc, r->train);
    accel_schedule *lr = accel_linear_schedule_with_warmup(opt, steps / 10, steps);
    accel_scores *scores = accel_scores_create(r->acc);
    accel_prepare(r->acc, r->model, opt, lr, r->train, r->eval);
    for (int epoch = 1; epoch <= (int)r->task.epochs && !accel_failed(r->acc); epoch++) {
        accel_batch batch;
        while (accel_next(r->train, &batch)) {
            accel_zero_grad(opt);
            accel_backward(r->acc, accel_forward(r->model, &batch).loss);
            accel_step(opt);
            accel_schedule_step(lr);
        }
        evaluate(r, epoch, scores);
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
