/* The same bits for any number of threads, and several contexts side by side. */
#define ACCEL_IMPLEMENTATION
#include "accel.h"
#include "test.h"
#include "helpers.h"
#include <pthread.h>
#include <stdatomic.h>

typedef struct outcome {
    float *parameters;
    int64_t count;
    float loss, norm;
    char error[256];
} outcome;

/* Two epochs of everything that could depend on threads: dropout, shuffling, clipping, Adam, accumulation. */
static outcome train(accel_architecture architecture, int threads, uint64_t seed) {
    accel_t *acc = context_of((accel_desc){.threads = threads, .seed = seed, .accumulate = 2}, NULL);
    accel_encoder_config config = dropping_encoder(architecture);
    accel_model *model = accel_encoder_create(acc, &config);
    accel_optimizer *opt = accel_adamw(acc, model, &(accel_adam_desc){.lr = 0.01f});
    accel_loader *loader = accel_loader_create(acc, small_data(acc, 40, 17, 3),
                                               &(accel_loader_desc){.batch_size = 6, .shuffle = true});
    accel_schedule *schedule = accel_linear_schedule_with_warmup(opt, 2, 2 * accel_steps_per_epoch(acc, loader));
    accel_prepare(acc, model, opt, loader, schedule);
    outcome result = {.count = accel_parameter_elements(model)};
    for (int epoch = 0; epoch < 2; epoch++) {
        accel_batch batch;
        while (accel_next(loader, &batch)) {
            accel_zero_grad(opt);
            accel_output out = accel_forward(model, &batch);
            accel_backward(acc, out.loss);
            result.norm = accel_clip_grad_norm(opt, 0.5f);
            accel_step(opt);
            accel_schedule_step(schedule);
            result.loss = accel_item(out.loss);
        }
    }
    snprintf(result.error, sizeof result.error, "%s", accel_message(acc));
    result.parameters = all_of(model, accel_read);
    accel_destroy(acc);
    return result;
}

static bool same_outcome(const outcome *a, const outcome *b) {
    return a->count == b->count && !memcmp(a->parameters, b->parameters, (size_t)a->count * sizeof(float)) &&
           a->loss == b->loss && a->norm == b->norm;
}

static void check_threads(accel_architecture architecture) {
    int threads[] = {2, 3, 8};
    outcome one = train(architecture, 1, 5);
    CHECK_TEXT(one.error, "");
    CHECK(one.error[0] == 0 && isfinite(one.loss));
    for (int i = 0; i < COUNT(threads); i++) {
        outcome many = train(architecture, threads[i], 5);
        if (!same_outcome(&one, &many)) test_faults++, printf("  %d threads: other bits\n", threads[i]);
        free(many.parameters);
    }
    outcome seeded = train(architecture, 1, 6); /* the comparison can fail */
    CHECK(!same_outcome(&one, &seeded));
    free(one.parameters), free(seeded.parameters);
}

TEST(distilbert_has_the_same_bits_for_1_2_3_and_8_threads) {
    check_threads(ACCEL_DISTILBERT);
}

TEST(bert_has_the_same_bits_for_1_2_3_and_8_threads) {
    check_threads(ACCEL_BERT);
}

/* Wide enough that every operation is cut into several pieces. */
static float *train_wide(int threads, int64_t *count) {
    accel_t *acc = context_of((accel_desc){.threads = threads}, NULL);
    accel_layer layers[] = {accel_linear_layer(129, 257), accel_activation_layer(ACCEL_GELU),
                            accel_layer_norm_layer(257), accel_dropout_layer(0.2f), accel_linear_layer(257, 33)};
    accel_model *model = accel_sequential(acc, "wide", layers, COUNT(layers));
    accel_optimizer *opt = accel_sgd(acc, model, &(accel_sgd_desc){.lr = 0.1f, .momentum = 0.9f});
    for (int step = 0; step < 3; step++) {
        accel_begin(acc);
        accel_zero_grad(opt);
        accel_tensor y = accel_apply(model, accel_randn(acc, accel_2d(517, 129)));
        accel_tensor mixed = accel_matmul_t(accel_softmax(y), true, accel_sigmoid(y), false);
        accel_backward(acc, accel_add(accel_mean(accel_mul(mixed, mixed)),
                                      accel_mean(accel_sum_axis(accel_exp(accel_tanh(y)), 0, false))));
        accel_clip_grad_norm(opt, 1);
        accel_step(opt);
    }
    CHECK_FINE(acc);
    float *parameters = all_of(model, accel_read);
    *count = accel_parameter_elements(model);
    accel_destroy(acc);
    return parameters;
}

TEST(wide_operations_have_the_same_bits) {
    int64_t count;
    float *one = train_wide(1, &count);
    int threads[] = {2, 3, 8};
    for (int i = 0; i < COUNT(threads); i++) {
        float *many = train_wide(threads[i], &count);
        CHECK(!memcmp(one, many, (size_t)count * sizeof *one));
        free(many);
    }
    free(one);
}

TEST(the_number_of_threads) {
    accel_t *acc = context_of((accel_desc){.threads = 3}, NULL);
    CHECK(accel_threads(acc) == 3);
    accel_destroy(acc);
    acc = context_of((accel_desc){.threads = 0}, NULL);
    CHECK(accel_threads(acc) >= 1);
    CHECK_FINE(acc);
    accel_destroy(acc);
    acc = context_of((accel_desc){.threads = -1}, NULL);
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "threads");
    accel_destroy(acc);
}

typedef struct job {
    accel_architecture architecture;
    int threads;
    outcome result;
} job;

static void *run_job(void *argument) {
    job *j = argument;
    for (int i = 0; i < 3; i++) {
        free(j->result.parameters);
        j->result = train(j->architecture, j->threads, 5);
    }
    return NULL;
}

TEST(contexts_in_different_threads_do_not_disturb_each_other) {
    job jobs[] = {{.architecture = ACCEL_DISTILBERT, .threads = 2},
                  {.architecture = ACCEL_BERT, .threads = 1},
                  {.architecture = ACCEL_DISTILBERT, .threads = 3}};
    pthread_t threads[COUNT(jobs)];
    for (int i = 0; i < COUNT(jobs); i++) CHECK(pthread_create(&threads[i], NULL, run_job, &jobs[i]) == 0);
    for (int i = 0; i < COUNT(jobs); i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < COUNT(jobs); i++) {
        outcome alone = train(jobs[i].architecture, 1, 5);
        CHECK(jobs[i].result.error[0] == 0);
        CHECK(same_outcome(&alone, &jobs[i].result));
        free(alone.parameters), free(jobs[i].result.parameters);
    }
}

static void count_piece(void *argument, int piece) {
    ((int *)argument)[piece]++;
}

TEST(every_piece_runs_once) {
    int sizes[] = {1, 2, 7, 100, 1000};
    for (int threads = 1; threads <= 4; threads++) {
        accel_t *acc = context_of((accel_desc){.threads = threads}, NULL);
        for (int round = 0; round < 50; round++)
            for (int s = 0; s < COUNT(sizes); s++) {
                int runs[1000] = {0}, wrong = 0;
                accel__parallel(acc, sizes[s], count_piece, runs);
                for (int i = 0; i < 1000; i++) wrong += runs[i] != (i < sizes[s]);
                CHECK(wrong == 0);
            }
        accel_destroy(acc);
    }
}

static void count_atomically(void *argument, int piece) {
    atomic_fetch_add(&((atomic_int *)argument)[piece], 1);
}

/* A worker that comes late to a small job must not take a piece of the larger one after it. */
TEST(jobs_of_different_sizes_in_quick_turn) {
    for (int threads = 2; threads <= 8; threads += 2) {
        accel_t *acc = context_of((accel_desc){.threads = threads}, NULL);
        long wrong = 0;
        for (int round = 0; round < 20000; round++) {
            atomic_int small[41] = {0}, large[41] = {0};
            accel__parallel(acc, 2, count_atomically, small);
            accel__parallel(acc, 40, count_atomically, large);
            for (int i = 0; i < 41; i++) wrong += (small[i] != (i < 2)) + (large[i] != (i < 40));
        }
        CHECK(wrong == 0);
        accel_destroy(acc);
    }
}

int main(int argc, char **argv) {
    return test_main(argc, argv);
}
