/* Learning rates: the formulas of Transformers' schedules, as a function of the steps taken. */
#define ACCEL_IMPLEMENTATION
#include "accel.h"
#include "test.h"
#include "helpers.h"

static const int64_t plans[][2] = {{0, 10}, {1, 10}, {3, 10}, {10, 10}, {15, 10},
                                   {0, 1},  {1, 1},  {0, 0},  {5, 0},   {100, 1000}};

static double warming(int64_t step, int64_t warmup) {
    return (double)step / (double)(warmup > 1 ? warmup : 1);
}

static double remaining(int64_t warmup, int64_t total) {
    return (double)(total - warmup > 1 ? total - warmup : 1);
}

static double linear(int64_t step, int64_t warmup, int64_t total) {
    if (step < warmup) return warming(step, warmup);
    return fmax(0, (double)(total - step) / remaining(warmup, total));
}

static double cosine(int64_t step, int64_t warmup, int64_t total) {
    if (step < warmup) return warming(step, warmup);
    return fmax(0, 0.5 * (1 + cos(acos(-1) * (double)(step - warmup) / remaining(warmup, total))));
}

static double constant(int64_t step, int64_t warmup, int64_t total) {
    (void)total;
    return step < warmup ? warming(step, warmup) : 1;
}

static accel_schedule *make_constant(accel_optimizer *opt, int64_t warmup, int64_t total) {
    (void)total;
    return accel_constant_schedule_with_warmup(opt, warmup);
}

static const struct {
    accel_schedule *(*make)(accel_optimizer *, int64_t, int64_t);
    double (*factor)(int64_t, int64_t, int64_t);
} kinds[] = {{accel_linear_schedule_with_warmup, linear},
             {accel_cosine_schedule_with_warmup, cosine},
             {make_constant, constant}};

typedef struct toy {
    accel_t *acc;
    accel_tensor w;
    accel_optimizer *opt;
} toy;

static toy toy_of(accel_desc desc, float lr) {
    toy made = {.acc = context_of(desc, NULL)};
    accel_model *model = accel_model_create(made.acc, "toy");
    made.w = accel_parameter(model, "w", accel_1d(2));
    made.opt = accel_sgd(made.acc, model, &(accel_sgd_desc){.lr = lr});
    return made;
}

/* One step with the gradient `value`; returns what accel_step says. */
static bool step(toy *t, float value) {
    accel_begin(t->acc);
    accel_zero_grad(t->opt);
    accel_backward(t->acc, accel_sum(accel_scale(t->w, value)));
    return accel_step(t->opt);
}

TEST(factors) {
    toy t = toy_of((accel_desc){.threads = 1}, 1);
    for (int k = 0; k < COUNT(kinds); k++) {
        for (int p = 0; p < COUNT(plans); p++) {
            int64_t warmup = plans[p][0], total = plans[p][1];
            accel_schedule *schedule = kinds[k].make(t.opt, warmup, total);
            for (int64_t s = 0; s <= total + warmup + 5; s++)
                CHECK_NEAR(accel_schedule_factor(schedule, s), kinds[k].factor(s, warmup, total), 1e-12);
            accel_free(schedule);
        }
    }
    CHECK_FINE(t.acc);
    accel_destroy(t.acc);
}

TEST(the_rate_follows_the_steps) {
    toy t = toy_of((accel_desc){.threads = 1}, 0.5f);
    CHECK(accel_lr(t.opt) == 0.5f);
    accel_schedule *schedule = accel_linear_schedule_with_warmup(t.opt, 2, 6);
    CHECK(accel_lr(t.opt) == 0); /* lr(0), in force from the start */
    for (int64_t s = 1; s <= 8; s++) {
        CHECK(step(&t, 1));
        accel_schedule_step(schedule);
        CHECK_NEAR(accel_lr(t.opt), 0.5 * linear(s, 2, 6), 1e-7);
    }
    CHECK(accel_steps_taken(t.opt) == 8);
    float w[2];
    accel_read(t.w, w, 2); /* moved by the sum of the rates in force: 0, 1/2, 1, 3/4, 1/2, 1/4, 0, 0 of 0.5 */
    CHECK_NEAR(w[0], -0.5 * 3, 1e-6);
    CHECK_FINE(t.acc);
    accel_destroy(t.acc);
}

TEST(calling_it_twice_changes_nothing) {
    toy t = toy_of((accel_desc){.threads = 1}, 1);
    accel_schedule *schedule = accel_linear_schedule_with_warmup(t.opt, 4, 8);
    for (int64_t s = 1; s <= 8; s++) {
        step(&t, 1);
        for (int i = 0; i < 3; i++) accel_schedule_step(schedule);
        CHECK_NEAR(accel_lr(t.opt), linear(s, 4, 8), 1e-7);
    }
    CHECK_FINE(t.acc);
    accel_destroy(t.acc);
}

TEST(a_skipped_step_does_not_count) {
    toy t = toy_of((accel_desc){.threads = 1}, 1);
    accel_schedule *schedule = accel_linear_schedule_with_warmup(t.opt, 0, 10);
    step(&t, 1), accel_schedule_step(schedule);
    CHECK_NEAR(accel_lr(t.opt), 0.9, 1e-7);
    CHECK(!step(&t, INFINITY)), accel_schedule_step(schedule);
    CHECK_NEAR(accel_lr(t.opt), 0.9, 1e-7);
    step(&t, 1), accel_schedule_step(schedule);
    CHECK_NEAR(accel_lr(t.opt), 0.8, 1e-7);
    CHECK_FINE(t.acc);
    accel_destroy(t.acc);
}

TEST(micro_batches_do_not_count) {
    toy t = toy_of((accel_desc){.threads = 1, .accumulate = 3}, 1);
    accel_schedule *schedule = accel_linear_schedule_with_warmup(t.opt, 0, 10);
    for (int micro = 1; micro <= 9; micro++) {
        CHECK(step(&t, 1) == (micro % 3 == 0));
        accel_schedule_step(schedule);
        CHECK_NEAR(accel_lr(t.opt), 1 - 0.1 * (micro / 3), 1e-7);
    }
    CHECK_FINE(t.acc);
    accel_destroy(t.acc);
}

TEST(setting_the_base_rate) {
    toy t = toy_of((accel_desc){.threads = 1}, 1);
    accel_set_lr(t.opt, 0.25f);
    CHECK(accel_lr(t.opt) == 0.25f);
    accel_schedule *schedule = accel_linear_schedule_with_warmup(t.opt, 0, 10);
    step(&t, 1), accel_schedule_step(schedule);
    CHECK_NEAR(accel_lr(t.opt), 0.225, 1e-7);
    accel_set_lr(t.opt, 2);
    accel_schedule_step(schedule);
    CHECK_NEAR(accel_lr(t.opt), 1.8, 1e-6);
    CHECK_FINE(t.acc);
    accel_destroy(t.acc);
}

TEST(negative_plans_are_errors) {
    toy t = toy_of((accel_desc){.threads = 1}, 1);
    CHECK(accel_linear_schedule_with_warmup(t.opt, -1, 10) == NULL);
    CHECK_ERROR(t.acc, ACCEL_BAD_ARGUMENT, "warmup");
    CHECK(accel_cosine_schedule_with_warmup(t.opt, 1, -10) == NULL);
    CHECK_ERROR(t.acc, ACCEL_BAD_ARGUMENT, "total");
    accel_destroy(t.acc);
}

int main(int argc, char **argv) {
    return test_main(argc, argv);
}
