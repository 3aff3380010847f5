/* Nothing pretrained: a vocabulary of its own, and a network made of tensor operations (the mean of the tokens'
   vectors, a hidden layer, a score per label), trained to classify the rows of a table.

       from_scratch --train train.tsv --eval test.tsv --text text --label language

   build: cc -O2 from_scratch.c -lcjson -lutf8proc -lopenblas -lpthread -lm */
#define ACCEL_IMPLEMENTATION
#include "encoders.h"

typedef struct run {
    task task;
    const char *label;
    int64_t vocab_size, dim;
    double dropout;
    const char *const *labels;
    int label_count;
    accel_t *acc;
    accel_tokenizer *tokenizer;
    accel_loader *train, *eval;
    accel_model *model;
    accel_tensor words, hidden_weight, hidden_bias, out_weight, out_bias; /* the model's parameters */
} run;

static int read_options(int argc, char **argv, run *r) {
    option_spec own[] = {
        option_text("--label", "COL", &r->label, "column of the label"),
        option_int("--vocab-size", &r->vocab_size, 100, 1 << 24, "tokens to learn from the training texts"),
        option_int("--dim", &r->dim, 1, 65536, "width of the network"),
        option_number("--dropout", &r->dropout, 0, 0.99, "between the layers"),
    };
    return task_options(argc, argv, &r->task, own, (int)(sizeof own / sizeof *own), "--label");
}

/* ---- the network ---- */

static accel_tensor layer_weight(accel_model *model, const char *name, int out, int in) {
    return accel_parameter_uniform(model, name, accel_2d(out, in), 1 / sqrtf((float)in));
}

static void make_model(run *r) {
    int dim = (int)r->dim;
    r->model = accel_model_create(r->acc, "from_scratch");
    r->words = accel_parameter_normal(r->model, "words", accel_2d(accel_vocabulary_size(r->tokenizer), dim), 0.1f);
    r->hidden_weight = layer_weight(r->model, "hidden.weight", dim, dim);
    r->hidden_bias = accel_parameter(r->model, "hidden.bias", accel_1d(dim));
    r->out_weight = layer_weight(r->model, "out.weight", r->label_count, dim);
    r->out_bias = accel_parameter(r->model, "out.bias", accel_1d(r->label_count));
}

/* Logits [examples, labels]. */
static accel_tensor forward(const run *r, const accel_batch *batch) {
    accel_tensor ids = accel_from_ints(r->acc, accel_1d(batch->tokens), batch->ids);
    accel_tensor text = mean_over_tokens(accel_embedding(r->words, ids, -1), batch);
    accel_tensor hidden = accel_gelu(accel_linear(text, r->hidden_weight, r->hidden_bias));
    return accel_linear(accel_dropout(hidden, (float)r->dropout), r->out_weight, r->out_bias);
}

static accel_tensor loss_of(const run *r, const accel_batch *batch) {
    accel_tensor labels = accel_from_ints(r->acc, accel_1d(batch->examples), batch->labels);
    return accel_cross_entropy(forward(r, batch), labels, NULL);
}

/* ---- data and loop ---- */

static bool make_all(run *r) {
    accel_table *train = accel_table_read(r->acc, r->task.train, NULL);
    accel_table *eval = accel_table_read(r->acc, r->task.eval, NULL);
    accel_encode_desc encode = {.label = {r->label}, .max_length = (int)r->task.max_length};
    r->labels = accel_table_labels(train, r->label, &r->label_count);
    if (!text_columns_find(&r->task.text, r->acc, train, encode.text)) return false;
    r->tokenizer = learn_vocabulary(r->acc, train, encode.text, r->vocab_size);
    encode.label_names = r->labels;
    encode.label_count = r->label_count;
    r->train = make_loader(r->acc, r->tokenizer, train, &encode, r->task.batch_size);
    r->eval = make_loader(r->acc, r->tokenizer, eval, &encode, 0);
    make_model(r);
    return r->tokenizer && !accel_failed(r->acc);
}

static double evaluate(const run *r, accel_metrics *metrics) {
    accel_batch batch;
    accel_metrics_reset(metrics);
    accel_eval_begin(r->acc);
    while (accel_next(r->eval, &batch)) accel_metrics_add(metrics, forward(r, &batch), batch.labels, batch.examples);
    accel_eval_end(r->acc);
    return accel_accuracy(metrics);
}

static bool train(run *r) {
    accel_optimizer *opt = accel_adamw(r->acc, r->model, &(accel_adam_desc){.lr = (float)r->task.lr});
    accel_metrics *metrics = accel_metrics_create(r->acc, r->label_count);
    accel_prepare(r->acc, r->model, opt, r->train, r->eval);
    for (int epoch = 1; epoch <= (int)r->task.epochs && !accel_failed(r->acc); epoch++) {
        double loss_sum = 0;
        accel_batch batch;
        while (accel_next(r->train, &batch)) {
            accel_zero_grad(opt);
            accel_tensor loss = loss_of(r, &batch);
            accel_backward(r->acc, loss);
            accel_step(opt);
            loss_sum += (double)accel_item(loss);
        }
        double accuracy = evaluate(r, metrics);
        if (accel_failed(r->acc)) break;
        printf("epoch %d: mean loss %.4f, accuracy %.4f (the most frequent label alone: %.4f)\n", epoch,
               loss_sum / (double)accel_loader_length(r->train), accuracy, accel_majority(metrics));
    }
    return !accel_failed(r->acc);
}

int main(int argc, char **argv) {
    run r = {.task = {.epochs = 5, .batch_size = 32, .max_length = 128, .seed = 42, .lr = 5e-3},
             .vocab_size = 8000,
             .dim = 64,
             .dropout = 0.1};
    int status = read_options(argc, argv, &r);
    if (status >= 0) return status;
    r.acc = accel_create(&(accel_desc){.seed = (uint64_t)r.task.seed});
    bool good = make_all(&r) && train(&r);
    if (accel_failed(r.acc)) fprintf(stderr, "%s\n", accel_message(r.acc));
    accel_destroy(r.acc);
    return good ? 0 : 1;
}
