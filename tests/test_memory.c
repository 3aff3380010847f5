/* Who owns what, what is freed, how often the allocator is called, and what happens when it refuses. */
#define ACCEL_IMPLEMENTATION
#include "accel.h"
#include "test.h"
#include "helpers.h"

/* An allocator that counts, and refuses the fail_at-th call (and all later ones where `lasting`). */
typedef struct heap {
    size_t bytes;
    int64_t blocks, calls, fail_at;
    bool lasting;
} heap;

#define HEADER 64 /* keeps the alignment of malloc; holds the size */

static void *heap_reallocate(void *user, void *pointer, size_t bytes) {
    heap *h = user;
    char *block = pointer ? (char *)pointer - HEADER : NULL;
    size_t old = 0;
    if (block) memcpy(&old, block, sizeof old);
    h->calls++;
    if (bytes == 0) {
        h->bytes -= old, h->blocks -= block != NULL;
        free(block);
        return NULL;
    }
    if (h->fail_at && (h->lasting ? h->calls >= h->fail_at : h->calls == h->fail_at)) return NULL;
    char *grown = realloc(block, bytes + HEADER);
    if (!grown) return NULL;
    memcpy(grown, &bytes, sizeof bytes);
    h->bytes += bytes - old, h->blocks += block == NULL;
    return grown + HEADER;
}

static accel_t *counted_context(heap *h, int threads) {
    return context_of((accel_desc){.threads = threads, .accumulate = 2, .allocator = {heap_reallocate, h}}, NULL);
}

typedef struct training {
    accel_model *model;
    accel_optimizer *opt;
    accel_loader *loader, *eval;
    accel_schedule *schedule;
} training;

static training training_of(accel_t *acc, int layers, int rows) {
    accel_encoder_config config = dropping_encoder(ACCEL_BERT);
    config.layers = layers;
    training t = {.model = accel_encoder_create(acc, &config)};
    t.opt = accel_adam(acc, t.model, &(accel_adam_desc){.amsgrad = true});
    accel_data *data = small_data(acc, rows, 20, 3);
    t.loader = accel_loader_create(acc, data, &(accel_loader_desc){.batch_size = 5, .shuffle = true});
    t.eval = accel_loader_create(acc, data, &(accel_loader_desc){.batch_size = 16, .evaluation = true});
    t.schedule = accel_cosine_schedule_with_warmup(t.opt, 1, 10);
    accel_prepare(acc, t.model, t.opt, t.loader, t.eval, t.schedule);
    return t;
}

static void train_epoch(accel_t *acc, training *t) {
    accel_batch batch;
    while (accel_next(t->loader, &batch)) {
        accel_zero_grad(t->opt);
        accel_output out = accel_forward(t->model, &batch);
        accel_tensor penalty = accel_mean(
            accel_mul(accel_dropout(out.logits, 0.1f), out.logits)); /* operations of one's own too */
        accel_backward(acc, accel_add(out.loss, accel_scale(penalty, 0.01f)));
        accel_clip_grad_norm(t->opt, 1);
        accel_step(t->opt);
        accel_schedule_step(t->schedule);
        accel_item(out.loss);
    }
}

static void evaluate(accel_t *acc, training *t) {
    accel_batch batch;
    accel_eval_begin(acc);
    while (accel_next(t->eval, &batch)) accel_item(accel_forward(t->model, &batch).loss);
    accel_eval_end(acc);
}

TEST(a_training_step_allocates_nothing_after_the_first_epoch) {
    heap h = {0};
    accel_t *acc = counted_context(&h, 2);
    training t = training_of(acc, 2, 43); /* a last batch of 3, lengths 2 to 20 */
    train_epoch(acc, &t), evaluate(acc, &t);
    uint64_t calls = accel_memory_used(acc).calls;
    int64_t hook_calls = h.calls;
    size_t bytes = accel_memory_used(acc).bytes;
    for (int epoch = 0; epoch < 6; epoch++) train_epoch(acc, &t), evaluate(acc, &t);
    CHECK(accel_memory_used(acc).calls == calls && h.calls == hook_calls);
    CHECK(accel_memory_used(acc).bytes == bytes);
    CHECK_FINE(acc);
    accel_destroy(acc);
    CHECK(h.bytes == 0 && h.blocks == 0);
}

TEST(grouping_by_length_allocates_nothing_after_the_first_epoch_either) {
    heap h = {0};
    accel_t *acc = counted_context(&h, 1);
    accel_loader_desc desc = {.batch_size = 4, .group_by_length = true};
    accel_loader *loader = accel_loader_create(acc, small_data(acc, 43, 20, 3), &desc);
    accel_batch batch;
    while (accel_next(loader, &batch)) {}
    int64_t calls = h.calls;
    for (int epoch = 0; epoch < 3; epoch++) while (accel_next(loader, &batch)) {}
    CHECK(h.calls == calls);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

/* Bigger batches than ever before may allocate; those seen before do not. */
TEST(a_loop_without_a_loader_allocates_nothing_either) {
    heap h = {0};
    accel_t *acc = counted_context(&h, 2);
    accel_layer layers[] = {accel_linear_layer(7, 33), accel_activation_layer(ACCEL_TANH), accel_linear_layer(33, 3)};
    accel_model *model = accel_sequential(acc, "net", layers, 3);
    accel_optimizer *opt = accel_sgd(acc, model, &(accel_sgd_desc){.momentum = 0.9f});
    int64_t calls = 0;
    for (int step = 0; step < 40; step++) {
        accel_begin(acc);
        accel_zero_grad(opt);
        accel_backward(acc, accel_mean(accel_apply(model, accel_randn(acc, accel_2d(1 + step * 7 % 11, 7)))));
        accel_step(opt);
        if (step == 21) calls = h.calls; /* every size has come, in either half of a window */
    }
    CHECK(h.calls == calls);
    CHECK_FINE(acc);
    accel_destroy(acc);
    CHECK(h.bytes == 0 && h.blocks == 0);
}

TEST(the_context_counts_its_memory) {
    heap h = {0};
    accel_t *acc = counted_context(&h, 2);
    training t = training_of(acc, 2, 20);
    train_epoch(acc, &t);
    accel_memory used = accel_memory_used(acc);
    CHECK(used.calls + 1 == (uint64_t)h.calls); /* all but the one for the context itself */
    CHECK(used.bytes > 0 && used.bytes <= h.bytes + 4096 && used.peak_bytes >= used.bytes);
    accel_destroy(acc);
    CHECK(h.bytes == 0 && h.blocks == 0);
}

TEST(a_hundred_contexts_leak_nothing) {
    heap h = {0};
    for (int i = 0; i < 100; i++) {
        accel_t *acc = counted_context(&h, 1 + i % 3);
        training t = training_of(acc, 1, 7);
        if (i % 2) train_epoch(acc, &t);
        else { /* torn down in mid-epoch, with a graph, in evaluation */
            accel_batch batch;
            accel_next(t.loader, &batch);
            accel_keep(accel_forward(t.model, &batch).logits);
            accel_eval_begin(acc);
            accel_next(t.eval, &batch);
            accel_forward(t.model, &batch);
        }
        CHECK_FINE(acc);
        accel_destroy(acc);
        CHECK(h.bytes == 0 && h.blocks == 0);
    }
}

TEST(a_hundred_models_loaders_and_evaluations_in_one_context_do_not_pile_up) {
    heap h = {0};
    accel_t *acc = counted_context(&h, 2);
    size_t after_two = 0;
    for (int i = 0; i < 100; i++) {
        accel_encoder_config config = small_encoder(ACCEL_DISTILBERT);
        accel_model *model = accel_encoder_create(acc, &config);
        accel_optimizer *opt = accel_adam(acc, model, NULL);
        accel_data *data = small_data(acc, 7, 9, 1);
        accel_loader *loader = accel_loader_create(acc, data, NULL);
        accel_prepare(acc, model, opt, loader);
        accel_batch batch;
        while (accel_next(loader, &batch)) accel_backward(acc, accel_forward(model, &batch).loss), accel_step(opt);
        accel_free(opt), accel_free(model), accel_free(loader), accel_free(data);
        CHECK_FINE(acc);
        if (i == 1) after_two = h.bytes;
    }
    CHECK(h.bytes <= after_two);
    accel_destroy(acc);
    CHECK(h.bytes == 0);
}

/* ---- memory that runs out ---- */

/* Everything a program does, under a heap that fails; must end in success or ACCEL_OUT_OF_MEMORY. */
static void run_under(heap *h) {
    accel_t *acc = counted_context(h, 2);
    if (!acc) return;
    training t = training_of(acc, 1, 7);
    train_epoch(acc, &t);
    evaluate(acc, &t);
    accel_set_recompute(t.model, true);
    train_epoch(acc, &t);
    accel_metrics *metrics = accel_metrics_create(acc, 2);
    accel_keep(accel_concat((accel_tensor[]){accel_randn(acc, accel_1d(3)), accel_full(acc, accel_1d(2), 1)}, 2, 0));
    int32_t label = 1;
    accel_metrics_add(metrics, accel_full(acc, accel_2d(1, 2), 1), &label, 1);
    accel_code code = accel_error(acc);
    if (code != ACCEL_OK && code != ACCEL_OUT_OF_MEMORY) {
        test_faults++;
        printf("  call %ld refused: %s\n", (long)h->fail_at, accel_message(acc));
    }
    accel_destroy(acc);
}

static void check_refusals(bool lasting) {
    heap clean = {0};
    run_under(&clean);
    CHECK(clean.calls > 10 && clean.blocks == 0);
    int64_t refused = 0;
    for (int64_t n = 1; n <= clean.calls && test_faults < 10; n++) {
        heap h = {.fail_at = n, .lasting = lasting};
        run_under(&h);
        refused += h.calls != clean.calls;
        if (h.bytes || h.blocks)
            test_faults++, printf("  call %ld refused: %ld blocks leak\n", (long)n, (long)h.blocks);
    }
    CHECK(refused > clean.calls / 4); /* frees cannot fail, most others cut the run short */
}

TEST(any_one_refused_allocation_is_an_error_without_a_leak) {
    check_refusals(false);
}

TEST(memory_that_stays_exhausted_is_an_error_without_a_leak) {
    check_refusals(true);
}

TEST(a_context_recovers_from_a_refused_allocation) {
    heap h = {0};
    accel_t *acc = counted_context(&h, 2);
    training t = training_of(acc, 2, 12);
    h.fail_at = h.calls + 1, h.lasting = true;
    accel_begin(acc);
    CHECK(!accel_valid(accel_full(acc, accel_2d(1000, 2000), 1)));
    CHECK(accel_error(acc) == ACCEL_OUT_OF_MEMORY);
    h.fail_at = 0;
    accel_clear(acc);
    CHECK(accel_item(accel_mean(accel_full(acc, accel_2d(1000, 2000), 1))) == 1);
    train_epoch(acc, &t);
    CHECK_FINE(acc);
    CHECK(accel_steps_taken(t.opt) == 2);
    accel_destroy(acc);
    CHECK(h.bytes == 0 && h.blocks == 0);
}

/* ---- ownership ---- */

TEST(objects_in_use_are_not_freed) {
    accel_t *acc = context();
    training t = training_of(acc, 1, 5);
    accel_free(t.model);
    CHECK_ERROR(acc, ACCEL_BAD_STATE, "use");
    accel_free(t.opt);
    CHECK_ERROR(acc, ACCEL_BAD_STATE, "use");
    train_epoch(acc, &t); /* nothing happened to them */
    CHECK(accel_steps_taken(t.opt) == 1);
    accel_free(t.schedule), accel_free(t.opt), accel_free(t.model);
    CHECK_FINE(acc);
    evaluate(acc, &(training){.eval = t.eval}); /* the loader lives on */
    accel_clear(acc);
    accel_free(t.eval), accel_free(t.loader), accel_free(NULL);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(data_is_in_use_by_its_loaders) {
    accel_t *acc = context();
    accel_data *data = small_data(acc, 5, 7, 1);
    accel_loader *loader = accel_loader_create(acc, data, NULL);
    accel_free(data);
    CHECK_ERROR(acc, ACCEL_BAD_STATE, "use");
    accel_free(loader), accel_free(data);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(handles_of_a_freed_model_are_stale) {
    accel_t *acc = context();
    accel_model *model = accel_model_create(acc, "gone");
    accel_tensor w = accel_parameter(model, "w", accel_1d(3)), loss = accel_sum(accel_mul(w, w));
    accel_free(model);
    CHECK(!accel_valid(w));
    accel_backward(acc, loss); /* a graph over freed parameters: an error or nothing, not a crash */
    accel_clear(acc);
    CHECK(!accel_valid(accel_scale(w, 2)));
    CHECK(accel_failed(acc));
    accel_clear(acc);
    accel_model *next = accel_model_create(acc, "next");
    accel_tensor v = accel_parameter(next, "w", accel_1d(3));
    CHECK(accel_valid(v) && !accel_valid(w)); /* the old handle does not point to the new one */
    accel_destroy(acc);
}

TEST(batches_of_a_freed_loader_end) {
    accel_t *acc = context();
    training t = training_of(acc, 2, 12);
    accel_batch batch;
    accel_next(t.loader, &batch);
    accel_backward(acc, accel_forward(t.model, &batch).loss);
    accel_free(t.loader);
    CHECK_FINE(acc);
    accel_step(t.opt);
    accel_begin(acc);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(companion_allocation) {
    heap h = {0};
    accel_t *acc = counted_context(&h, 1);
    char *text = accel__strdup(acc, "hello"), *empty = accel__alloc(acc, 0), *block = accel__alloc(acc, 100);
    CHECK(text && !strcmp(text, "hello") && empty && block);
    CHECK((uintptr_t)text % 64 == 0 && (uintptr_t)block % 64 == 0);
    memset(block, 7, 100);
    block = accel__realloc(acc, block, 100000);
    CHECK(block && block[0] == 7 && block[99] == 7 && (uintptr_t)block % 64 == 0);
    CHECK(!accel__alloc(acc, SIZE_MAX - 8));
    CHECK(accel_error(acc) == ACCEL_OUT_OF_MEMORY);
    accel_clear(acc);
    accel__free(acc, text), accel__free(acc, empty), accel__free(acc, block), accel__free(acc, NULL);
    accel_destroy(acc);
    CHECK(h.bytes == 0 && h.blocks == 0);
}

int main(int argc, char **argv) {
    return test_main(argc, argv);
}
