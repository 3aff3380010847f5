/* The loop: fine-tunes a pretrained DistilBERT or BERT folder to classify texts.

       first_loop MODEL TRAIN.tsv EVAL.tsv LABEL TEXT [TEXT2]      LABEL and TEXT name columns

   build: cc -O2 first_loop.c -lcjson -lutf8proc -lopenblas -lpthread -lm */
#define ACCEL_IMPLEMENTATION
#include "accel_io.h"
#include <stdio.h>

enum { EPOCHS = 3, BATCH_SIZE = 16, MAX_LENGTH = 128 };

static void train(accel_t *acc, accel_model *model, accel_loader *loader) {
    accel_optimizer *opt = accel_adam(acc, model, &(accel_adam_desc){.lr = 2e-5f});
    int64_t steps = EPOCHS * accel_steps_per_epoch(acc, loader);
    accel_schedule *lr = accel_linear_schedule_with_warmup(opt, steps / 10, steps);
    accel_prepare(acc, model, opt, loader, lr);
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        float loss = 0;
        accel_batch batch;
        while (accel_next(loader, &batch)) {
            accel_zero_grad(opt);
            accel_output out = accel_forward(model, &batch);
            accel_backward(acc, out.loss);
            accel_step(opt);
            accel_schedule_step(lr);
            loss += accel_item(out.loss);
        }
        printf("epoch %d: mean loss %.4f\n", epoch + 1, (double)loss / (double)accel_loader_length(loader));
    }
}

static double evaluate(accel_t *acc, accel_model *model, accel_loader *loader, int labels) {
    accel_metrics *metrics = accel_metrics_create(acc, labels);
    accel_batch batch;
    accel_prepare(acc, model, loader);
    accel_eval_begin(acc);
    while (accel_next(loader, &batch))
        accel_metrics_add(metrics, accel_forward(model, &batch).logits, batch.labels, batch.examples);
    accel_eval_end(acc);
    return accel_accuracy(metrics);
}

int main(int argc, char **argv) {
    if (argc < 6) return fprintf(stderr, "usage: %s MODEL TRAIN.tsv EVAL.tsv LABEL TEXT [TEXT2]\n", argv[0]), 1;
    accel_t *acc = accel_create(NULL);
    accel_table *rows = accel_table_read(acc, argv[2], NULL), *held_out = accel_table_read(acc, argv[3], NULL);
    int labels;
    const char *const *names = accel_table_labels(rows, argv[4], &labels);

    accel_pretrained_desc head = {.num_labels = labels, .label_names = names};
    accel_model *model = accel_load_pretrained(acc, argv[1], &head);
    accel_tokenizer *tokenizer = accel_tokenizer_load(acc, argv[1], NULL);
    accel_encode_desc columns = {
        .text = {argv[5], argv[6]}, .label = {argv[4]}, .max_length = MAX_LENGTH, .model = model};
    accel_data *data = accel_encode_table(tokenizer, rows, &columns);
    accel_data *held_out_data = accel_encode_table(tokenizer, held_out, &columns);

    accel_loader_desc batches = {.batch_size = BATCH_SIZE, .shuffle = true};
    train(acc, model, accel_loader_create(acc, data, &batches));
    batches = (accel_loader_desc){.batch_size = BATCH_SIZE, .evaluation = true};
    double accuracy = evaluate(acc, model, accel_loader_create(acc, held_out_data, &batches), labels);

    bool failed = accel_failed(acc);
    if (failed) fprintf(stderr, "%s\n", accel_message(acc));
    else printf("accuracy %.4f\n", accuracy);
    accel_destroy(acc);
    return failed;
}
