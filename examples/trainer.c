/* Fine-tuning without a loop: accel_train trains, evaluates after each epoch, keeps the best state and resumes.
       trainer MODEL-FOLDER train.tsv eval.tsv TEXT-COLUMN LABEL-COLUMN OUTPUT
   build: cc -O2 trainer.c -lcjson -lutf8proc -lopenblas -lpthread -lm */
#define ACCEL_IMPLEMENTATION
#include "accel_io.h"
#include <stdio.h>

int main(int argc, char **argv) {
    if (argc != 7) return fprintf(stderr, "usage: %s MODEL train.tsv eval.tsv TEXT LABEL OUTPUT\n", argv[0]), 1;
    int labels = 0;
    accel_t *acc = accel_create(NULL);
    accel_table *rows = accel_table_read(acc, argv[2], NULL);
    const char *const *names = accel_table_labels(rows, argv[5], &labels);
    accel_tokenizer *tokenizer = accel_tokenizer_load(acc, argv[1], NULL);
    accel_model *model = accel_load_pretrained(acc, argv[1], &(accel_pretrained_desc){.num_labels = labels, .label_names = names});
    accel_encode_desc how = {.text = {argv[4]}, .label = {argv[5]}, .max_length = 128, .model = model};
    accel_data *train = accel_encode_table(tokenizer, rows, &how);
    accel_data *eval = accel_encode_table(tokenizer, accel_table_read(acc, argv[3], NULL), &how);
    accel_optimizer *opt = accel_adamw(acc, model, &(accel_adam_desc){.lr = 2e-5f});
    accel_progress end = {0};
    accel_train(acc, &(accel_train_desc){.model = model, .optimizer = opt, .epochs = 3, .output = argv[6],
                .train = accel_loader_create(acc, train, &(accel_loader_desc){.batch_size = 16, .shuffle = true}),
                .evaluation = accel_loader_create(acc, eval, &(accel_loader_desc){.batch_size = 64, .evaluation = true}),
                .resume = true, .save_total_limit = 2, .metric = "accuracy", .load_best = true, .patience = 2}, &end);
    if (accel_save_pretrained(model, tokenizer, argv[6])) printf("best accuracy %.4f at step %lld\n", end.best_score, (long long)end.best_step);
    bool failed = accel_failed(acc);
    if (failed) fprintf(stderr, "%s\n", accel_message(acc));
    accel_destroy(acc);
    return failed;
}
