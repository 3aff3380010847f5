/* Saved state: a run that was stopped and goes on gives the same bytes as one that was not. */
#define ACCEL_IMPLEMENTATION
#include "accel_io.h"
#include "test.h"
#include <sys/stat.h>
#include <unistd.h>

#define FOLDER "build/tmp/state"

enum { ROWS = 37, EPOCHS = 2, MICRO_BATCHES = 10 /* per epoch, of 4 rows */ };

typedef struct toy_run {
    accel_t *acc;
    accel_model *model;
    accel_optimizer *opt;
    accel_schedule *schedule;
    accel_loader *loader;
    int64_t micro_batches; /* done; registered with the state */
} toy_run;

static accel_data *toy_data(accel_t *acc) {
    static int32_t ids[ROWS * 12], labels[ROWS];
    static int64_t offsets[ROWS + 1];
    int64_t count = 0;
    for (int i = 0; i < ROWS; i++) {
        labels[i] = i % 5 == 4 ? ACCEL_IGNORE : i % 3;
        for (int t = 0; t < 3 + i % 9; t++) ids[count++] = 1 + (i * 7 + t * 5) % 40;
        offsets[i + 1] = count;
    }
    return accel_data_create(acc, &(accel_data_desc){.rows = ROWS, .ids = ids, .offsets = offsets, .labels = labels});
}

/* A small encoder with dropout, clipping, accumulation and a schedule. */
static void toy_open(toy_run *r, int threads, uint64_t seed) {
    *r = (toy_run){.acc = accel_create(&(accel_desc){.threads = threads, .seed = seed, .accumulate = 3})};
    accel_encoder_config config = accel_encoder_defaults(ACCEL_DISTILBERT);
    config.vocab_size = 41, config.max_positions = 16, config.dim = 16, config.layers = 2, config.heads = 2;
    config.hidden_dim = 24, config.num_labels = 3;
    r->model = accel_encoder_create(r->acc, &config);
    r->opt = accel_adamw(r->acc, r->model, &(accel_adam_desc){.lr = 3e-3f, .amsgrad = true});
    r->loader = accel_loader_create(r->acc, toy_data(r->acc), &(accel_loader_desc){.batch_size = 4, .shuffle = true});
    r->schedule = accel_linear_schedule_with_warmup(r->opt, 2, 8);
    accel_register_state(r->acc, "micro-batches", &r->micro_batches, sizeof r->micro_batches);
    accel_prepare(r->acc, r->model, r->opt, r->loader, r->schedule);
}

/* Trains up to `until` micro-batches in all. */
static void toy_train(toy_run *r, int64_t until) {
    accel_batch batch;
    while (r->micro_batches < until && !accel_failed(r->acc)) {
        if (!accel_next(r->loader, &batch)) continue;
        accel_zero_grad(r->opt);
        accel_output out = accel_forward(r->model, &batch);
        accel_backward(r->acc, out.loss);
        if (accel_sync_gradients(r->acc)) accel_clip_grad_norm(r->opt, 0.5f);
        accel_step(r->opt);
        accel_schedule_step(r->schedule);
        r->micro_batches++;
    }
}

static bool same_parameters(toy_run *a, toy_run *b) {
    bool same = true;
    for (int i = 0; i < accel_parameter_count(a->model); i++) {
        accel_tensor x = accel_parameter_at(a->model, i), y = accel_parameter_at(b->model, i);
        size_t bytes = (size_t)accel_count(x) * sizeof(float);
        float *u = malloc(bytes), *v = malloc(bytes);
        accel_read(x, u, accel_count(x)), accel_read(y, v, accel_count(y));
        same = same && accel_count(x) == accel_count(y) && !memcmp(u, v, bytes);
        free(u), free(v);
    }
    return same;
}

static void check_fine(toy_run *r) {
    CHECK(!accel_failed(r->acc));
    if (accel_failed(r->acc)) printf("  %s\n", accel_message(r->acc));
}

/* Stops after every number of micro-batches there is: within a window, at its end, at an epoch's end. */
TEST(resuming_anywhere_gives_the_same_bytes_with_any_number_of_threads) {
    toy_run whole;
    toy_open(&whole, 1, 5);
    toy_train(&whole, EPOCHS * MICRO_BATCHES);
    check_fine(&whole);
    for (int64_t stop = 0; stop <= EPOCHS * MICRO_BATCHES; stop++) {
        toy_run first, second;
        toy_open(&first, 2, 5);
        toy_train(&first, stop);
        CHECK(accel_save_state(first.acc, FOLDER "/resume"));
        check_fine(&first);
        accel_destroy(first.acc);
        toy_open(&second, 3, 77); /* the seed comes with the state */
        CHECK(accel_load_state(second.acc, FOLDER "/resume"));
        CHECK(second.micro_batches == stop);
        toy_train(&second, EPOCHS * MICRO_BATCHES);
        check_fine(&second);
        if (!same_parameters(&whole, &second)) test_faults++, printf("  stopped after %lld: other bytes\n", (long long)stop);
        CHECK(accel_steps_taken(second.opt) == accel_steps_taken(whole.opt));
        CHECK(accel_lr(second.opt) == accel_lr(whole.opt));
        accel_destroy(second.acc);
    }
    accel_destroy(whole.acc);
}

TEST(a_moving_average_is_right_and_part_of_the_state) {
    for (int part = 0; part < 2; part++) {
        accel_t *acc = accel_create(&(accel_desc){.threads = 2});
        accel_model *model = accel_model_create(acc, "m");
        accel_tensor w = accel_parameter(model, "w", accel_1d(1));
        accel_ema *ema = accel_ema_create(acc, model, 0.75f);
        double expected = 0;
        for (int step = 1; step <= 4; step++) {
            float value = (float)(step * step);
            if (part && step == 3) CHECK(accel_load_state(acc, FOLDER "/average"));
            accel_write(w, &value, 1);
            accel_ema_update(ema);
            expected = 0.75 * expected + 0.25 * value;
            if (!part && step == 2) CHECK(accel_save_state(acc, FOLDER "/average"));
        }
        accel_ema_swap(ema);
        CHECK_NEAR(accel_item(w), expected, 1e-5); /* a few roundings of numbers up to 16 */
        accel_ema_update(ema);
        CHECK_TEXT(accel_message(acc), "accel_ema_swap first");
        accel_clear(acc);
        accel_ema_swap(ema);
        CHECK(accel_item(w) == 16);
        CHECK(accel_ema_create(acc, model, 1) == NULL && accel_failed(acc));
        accel_destroy(acc);
    }
}

TEST(saving_changes_nothing) {
    toy_run plain, saving;
    toy_open(&plain, 2, 1), toy_open(&saving, 2, 1);
    toy_train(&plain, 14);
    for (int64_t i = 1; i <= 14; i++) {
        toy_train(&saving, i);
        CHECK(accel_save_state(saving.acc, FOLDER "/again")); /* replaces the one before */
    }
    CHECK(same_parameters(&plain, &saving));
    check_fine(&saving);
    accel_destroy(plain.acc), accel_destroy(saving.acc);
}

static void save_step(toy_run *r, int64_t step) {
    char folder[256];
    snprintf(folder, sizeof folder, FOLDER "/steps/step-%lld", (long long)step);
    CHECK(accel_save_state(r->acc, folder));
}

static bool there(const char *folder) {
    char path[256];
    snprintf(path, sizeof path, FOLDER "/steps/%s/state.safetensors", folder);
    return access(path, F_OK) == 0;
}

/* Flips a byte of a state, or cuts the file where at is negative. */
static void damage(const char *folder, long at) {
    char path[256];
    snprintf(path, sizeof path, FOLDER "/steps/%s/state.safetensors", folder);
    if (at < 0) {
        CHECK(truncate(path, -at) == 0);
        return;
    }
    FILE *file = fopen(path, "r+b");
    fseek(file, -at, SEEK_END);
    int byte = fgetc(file);
    fseek(file, -at, SEEK_END);
    fputc(byte ^ 1, file);
    fclose(file);
}

static int notices;
static void count_notice(void *user, const char *line) {
    (void)user, (void)line;
    notices++;
}

TEST(damaged_states_are_passed_over_and_the_limit_spares_the_best_and_the_only_usable_one) {
    toy_run r;
    char path[512];
    toy_open(&r, 1, 1);
    r.acc->desc.log = count_notice;
    for (int64_t step = 8; step <= 12; step++) save_step(&r, step); /* 10 comes after 9, not before */
    mkdir(FOLDER "/steps/step-99.part-1", 0777);                    /* left by a run that was killed */
    CHECK(accel_find_state(r.acc, FOLDER "/steps", path, sizeof path) == 12);
    CHECK_TEXT(path, "step-12");
    notices = 0;
    damage("step-12", 5), damage("step-11", -100);
    CHECK(accel_find_state(r.acc, FOLDER "/steps", path, sizeof path) == 10 && notices == 2);
    CHECK(!accel_load_state(r.acc, FOLDER "/steps/step-12"));
    CHECK(accel_error(r.acc) == ACCEL_BAD_FILE);
    CHECK_TEXT(accel_message(r.acc), "step-12/state.safetensors: the checksum does not fit");
    accel_clear(r.acc);
    CHECK(accel_limit_states(r.acc, FOLDER "/steps", 1, 8));
    CHECK(there("step-8") && there("step-10") && !there("step-9") && !there("step-11") && !there("step-12"));
    CHECK(access(FOLDER "/steps/step-99.part-1", F_OK) != 0);
    CHECK(accel_limit_states(r.acc, FOLDER "/steps", 1, -1) && !there("step-8") && there("step-10"));
    CHECK(accel_find_state(r.acc, FOLDER "/nowhere", path, sizeof path) == -1);
    check_fine(&r);
    accel_destroy(r.acc);
}

TEST(states_of_another_program_are_refused) {
    toy_run r;
    toy_open(&r, 1, 1);
    CHECK(accel_save_state(r.acc, FOLDER "/other"));
    accel_t *acc = accel_create(&(accel_desc){.threads = 1});
    accel_model *model = accel_sequential(acc, "net", (accel_layer[]){accel_linear_layer(3, 2)}, 1);
    accel_optimizer *opt = accel_sgd(acc, model, NULL);
    CHECK(opt && !accel_load_state(acc, FOLDER "/other"));
    CHECK_TEXT(accel_message(acc), "0.weight");
    accel_destroy(acc);
    int64_t more = 0;
    accel_register_state(r.acc, "more", &more, sizeof more);
    CHECK(!accel_load_state(r.acc, FOLDER "/other"));
    CHECK_TEXT(accel_message(r.acc), "user.more");
    accel_clear(r.acc);
    CHECK(!accel_register_state(r.acc, "more", &more, sizeof more));
    CHECK_TEXT(accel_message(r.acc), "more");
    accel_clear(r.acc);
    CHECK(!accel_save_state(r.acc, "/dev/null/state"));
    CHECK(accel_error(r.acc) == ACCEL_BAD_FILE);
    accel_clear(r.acc);
    CHECK(!accel_load_state(r.acc, FOLDER "/absent"));
    CHECK(!accel_save_state(NULL, "x") && !accel_load_state(NULL, "x") && accel_find_state(NULL, "x", NULL, 0) == -1);
    accel_destroy(r.acc);
}

int main(int argc, char **argv) {
    if (system("rm -rf " FOLDER " && mkdir -p " FOLDER "/steps")) return 1;
    return test_main(argc, argv);
}
