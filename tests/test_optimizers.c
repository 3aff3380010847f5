/* Adam, AdamW and SGD against float64 re-implementations of torch.optim's formulas; groups, clipping, skipped steps,
   embedding rows.

   The loss is sum(p * c) with random c, so the gradient is exactly c. Tolerance 2e-6 x max(1, |value|): float32 rounds
   each of 30 updates of a value of size 1 by 6e-8 at most, and the moments a little more. */
#define ACCEL_IMPLEMENTATION
#include "accel.h"
#include "test.h"
#include "helpers.h"

#define TOLERANCE 2e-6

/* ---- torch.optim in float64, one number at a time ---- */

typedef struct number {
    double value, m, v, largest, buffer;
    int steps;
} number;

static void reference_adam(number *p, double g, double lr, double decay, double beta1, double beta2, double eps,
                           bool amsgrad, bool decoupled) {
    p->steps++;
    if (decoupled) p->value *= 1 - lr * decay;
    else g += decay * p->value;
    p->m = beta1 * p->m + (1 - beta1) * g;
    p->v = beta2 * p->v + (1 - beta2) * g * g;
    p->largest = fmax(p->largest, p->v);
    double root = sqrt((amsgrad ? p->largest : p->v) / (1 - pow(beta2, p->steps)));
    p->value -= lr / (1 - pow(beta1, p->steps)) * p->m / (root + eps);
}

static void reference_sgd(number *p, double g, double lr, double decay, double momentum, double dampening,
                          bool nesterov) {
    g += decay * p->value;
    if (momentum != 0) {
        p->buffer = p->steps++ ? momentum * p->buffer + (1 - dampening) * g : g;
        g = nesterov ? g + momentum * p->buffer : p->buffer;
    }
    p->value -= lr * g;
}

/* ---- a model of four parameters ---- */

enum { PARAMETERS = 4, LARGEST = 15 };
static const char *const names[PARAMETERS] = {"body.weight", "body.bias", "sometimes", "never"};

typedef struct toy {
    accel_t *acc;
    accel_model *model;
    accel_tensor p[PARAMETERS];
    number reference[PARAMETERS][LARGEST];
} toy;

static toy toy_of(accel_desc desc) {
    toy t = {.acc = context_of(desc, NULL)};
    t.model = accel_model_create(t.acc, "toy");
    accel_shape shapes[PARAMETERS] = {accel_2d(3, 5), accel_1d(5), accel_1d(4), accel_1d(2)};
    for (int i = 0; i < PARAMETERS; i++) {
        t.p[i] = accel_parameter_normal(t.model, names[i], shapes[i], 1);
        float *values = values_of(t.p[i]);
        for (int k = 0; k < accel_count(t.p[i]); k++) t.reference[i][k].value = values[k];
        free(values);
    }
    return t;
}

static bool takes_part(int parameter, int step) {
    return parameter < 2 || (parameter == 2 && step % 3 == 1);
}

static float *gradient(int parameter, int step) {
    return random_floats(LARGEST, -1, 1, 1000 * (uint64_t)parameter + (uint64_t)step);
}

/* A micro-batch whose gradient is gradient(parameter, step) for the parameters that take part, times `factor`. */
static void toy_backward(toy *t, int step, float factor) {
    accel_begin(t->acc);
    accel_tensor loss = accel_full(t->acc, accel_0d(), 0);
    for (int i = 0; i < PARAMETERS; i++) {
        if (!takes_part(i, step)) continue;
        float *g = gradient(i, step);
        accel_tensor c = accel_from_floats(t->acc, accel_shape_of(t->p[i]), g);
        loss = accel_add(loss, accel_scale(accel_sum(accel_mul(t->p[i], c)), factor));
        free(g);
    }
    accel_backward(t->acc, loss);
}

static double toy_error(toy *t) {
    double error = 0;
    for (int i = 0; i < PARAMETERS; i++) {
        double expected[LARGEST];
        for (int k = 0; k < accel_count(t->p[i]); k++) expected[k] = t->reference[i][k].value;
        error = fmax(error, value_error(t->p[i], expected, accel_count(t->p[i])));
    }
    return error;
}

typedef struct recipe {
    const char *name;
    bool sgd, decoupled;
    accel_adam_desc adam;
    accel_sgd_desc plain;
    double lr[PARAMETERS], decay[PARAMETERS]; /* expected, by parameter */
} recipe;

static accel_optimizer *make(toy *t, const recipe *r) {
    if (r->sgd) return accel_sgd(t->acc, t->model, &r->plain);
    return r->decoupled ? accel_adamw(t->acc, t->model, &r->adam) : accel_adam(t->acc, t->model, &r->adam);
}

static void reference_step(toy *t, const recipe *r, int step, double lr_factor) {
    double beta1 = r->adam.beta1 != 0 ? (double)r->adam.beta1 : 0.9,
           beta2 = r->adam.beta2 != 0 ? (double)r->adam.beta2 : 0.999;
    double eps = r->adam.eps != 0 ? (double)r->adam.eps : 1e-8;
    for (int i = 0; i < PARAMETERS; i++) {
        if (!takes_part(i, step)) continue;
        float *g = gradient(i, step);
        double lr = r->lr[i] * lr_factor;
        for (int k = 0; k < accel_count(t->p[i]); k++) {
            number *n = &t->reference[i][k];
            if (r->sgd)
                reference_sgd(n, g[k], lr, r->decay[i], (double)r->plain.momentum, (double)r->plain.dampening,
                              r->plain.nesterov);
            else reference_adam(n, g[k], lr, r->decay[i], beta1, beta2, eps, r->adam.amsgrad, r->decoupled);
        }
        free(g);
    }
}

#define ALL(x) {x, x, x, x}
static const accel_param_group some_groups[] = {
    {"*bias", 0, ACCEL_ZERO}, {"some*,never", 0.05f, 0.3f}, {"*", ACCEL_ZERO, 0}};

static const recipe recipes[] = {
    {"adam by default", .lr = ALL(1e-3), .decay = ALL(0)},
    {"adam", .adam = {.lr = 0.02f, .beta1 = 0.8f, .beta2 = 0.95f, .eps = 1e-3f, .weight_decay = 0.1f}, .lr = ALL(0.02),
     .decay = ALL(0.1)},
    {"amsgrad", .adam = {.lr = 0.02f, .beta2 = 0.7f, .amsgrad = true}, .lr = ALL(0.02), .decay = ALL(0)},
    {"adamw by default", .decoupled = true, .lr = ALL(1e-3), .decay = ALL(0.01)},
    {"adamw", .decoupled = true, .adam = {.lr = 0.02f, .weight_decay = 0.2f, .amsgrad = true}, .lr = ALL(0.02),
     .decay = ALL(0.2)},
    {"adamw without decay", .decoupled = true, .adam = {.lr = 0.02f, .weight_decay = ACCEL_ZERO}, .lr = ALL(0.02),
     .decay = ALL(0)},
    {"adamw with groups", .decoupled = true,
     .adam = {.lr = 0.02f, .weight_decay = 0.2f, .groups = some_groups, .group_count = 2},
     .lr = {0.02, 0.02, 0.05, 0.05}, .decay = {0.2, 0, 0.3, 0.3}},
    {"a group that stands still", .adam = {.lr = 0.02f, .groups = some_groups, .group_count = 3},
     .lr = {0, 0.02, 0.05, 0.05}, .decay = {0, 0, 0.3, 0.3}},
    {"sgd by default", .sgd = true, .lr = ALL(1e-3), .decay = ALL(0)},
    {"sgd with momentum", .sgd = true, .plain = {.lr = 0.02f, .momentum = 0.9f}, .lr = ALL(0.02), .decay = ALL(0)},
    {"nesterov", .sgd = true, .plain = {.lr = 0.02f, .momentum = 0.9f, .weight_decay = 0.1f, .nesterov = true},
     .lr = ALL(0.02), .decay = ALL(0.1)},
    {"dampening", .sgd = true, .plain = {.lr = 0.02f, .momentum = 0.8f, .dampening = 0.3f}, .lr = ALL(0.02),
     .decay = ALL(0)},
    {"sgd with groups", .sgd = true,
     .plain = {.lr = 0.02f, .momentum = 0.9f, .weight_decay = 0.1f, .groups = some_groups, .group_count = 2},
     .lr = {0.02, 0.02, 0.05, 0.05}, .decay = {0.1, 0, 0.3, 0.3}},
};

TEST(trajectories) {
    for (int i = 0; i < COUNT(recipes); i++) {
        toy t = toy_of((accel_desc){.threads = 2});
        accel_optimizer *opt = make(&t, &recipes[i]);
        double largest = 0;
        for (int s = 1; s <= 30; s++) {
            accel_zero_grad(opt);
            toy_backward(&t, s, 1);
            CHECK(accel_step(opt));
            reference_step(&t, &recipes[i], s, 1);
            largest = fmax(largest, toy_error(&t));
        }
        if (!(largest <= TOLERANCE)) test_faults++, printf("  %s: error %g\n", recipes[i].name, largest);
        CHECK(accel_steps_taken(opt) == 30 && accel_steps_skipped(opt) == 0);
        CHECK_FINE(t.acc);
        accel_destroy(t.acc);
    }
}

/* As torch's LambdaLR: a schedule scales every group's own rate. */
TEST(schedules_scale_the_rates_of_groups) {
    const recipe *r = &recipes[6];
    toy t = toy_of((accel_desc){.threads = 2});
    accel_optimizer *opt = make(&t, r);
    accel_schedule *schedule = accel_linear_schedule_with_warmup(opt, 2, 10);
    for (int s = 1; s <= 10; s++) {
        accel_zero_grad(opt);
        toy_backward(&t, s, 1);
        double factor = accel_schedule_factor(schedule, s - 1);
        CHECK(accel_step(opt));
        reference_step(&t, r, s, factor);
        accel_schedule_step(schedule);
    }
    CHECK(toy_error(&t) < TOLERANCE);
    CHECK_FINE(t.acc);
    accel_destroy(t.acc);
}

TEST(parameters_without_gradient_are_left_alone) {
    toy t = toy_of((accel_desc){.threads = 2});
    accel_optimizer *opt = accel_adamw(t.acc, t.model, &(accel_adam_desc){.lr = 0.1f, .weight_decay = 0.5f});
    accel_model_requires_grad(t.model, "body.bias", false);
    float *frozen = values_of(t.p[1]), *never = values_of(t.p[3]);
    for (int s = 1; s <= 3; s++) accel_zero_grad(opt), toy_backward(&t, s, 1), accel_step(opt);
    float *frozen_after = values_of(t.p[1]), *never_after = values_of(t.p[3]);
    CHECK(!memcmp(frozen, frozen_after, 5 * sizeof *frozen) && !memcmp(never, never_after, 2 * sizeof *never));
    free(frozen), free(never), free(frozen_after), free(never_after);
    CHECK_FINE(t.acc);
    accel_destroy(t.acc);
}

TEST(without_a_gradient_no_step) {
    toy t = toy_of((accel_desc){.threads = 2});
    accel_optimizer *opt = accel_adam(t.acc, t.model, &(accel_adam_desc){.lr = 0.1f, .weight_decay = 0.5f});
    float *before = all_of(t.model, accel_read);
    CHECK(!accel_step(opt) && same_parameters(t.model, before));
    toy_backward(&t, 1, 1);
    accel_zero_grad(opt);
    CHECK(!accel_step(opt) && same_parameters(t.model, before));
    CHECK(accel_steps_taken(opt) == 0);
    free(before);
    CHECK_FINE(t.acc);
    accel_destroy(t.acc);
}

TEST(rates) {
    toy t = toy_of((accel_desc){.threads = 1});
    accel_optimizer *opt = accel_sgd(t.acc, t.model, &(accel_sgd_desc){.lr = 0.5f});
    CHECK(accel_lr(opt) == 0.5f);
    accel_set_lr(opt, 0.125f);
    CHECK(accel_lr(opt) == 0.125f);
    float before[5], after[5], *g = gradient(1, 1);
    accel_read(t.p[1], before, 5);
    toy_backward(&t, 1, 1);
    accel_step(opt);
    accel_read(t.p[1], after, 5);
    for (int i = 0; i < 5; i++) CHECK_NEAR(after[i], before[i] - 0.125 * g[i], 1e-6);
    free(g);
    CHECK_FINE(t.acc);
    accel_set_lr(opt, NAN);
    CHECK_ERROR(t.acc, ACCEL_BAD_ARGUMENT, "lr");
    accel_set_lr(opt, -1);
    CHECK_ERROR(t.acc, ACCEL_BAD_ARGUMENT, "lr");
    CHECK(accel_lr(opt) == 0.125f);
    accel_destroy(t.acc);
}

TEST(optimizers_that_are_refused) {
    toy t = toy_of((accel_desc){.threads = 1});
    accel_adam_desc adam[] = {{.lr = -2},
                              {.lr = NAN},
                              {.lr = INFINITY},
                              {.beta1 = 1},
                              {.beta2 = 1.5f},
                              {.beta1 = -0.5f},
                              {.eps = -2},
                              {.weight_decay = -2},
                              {.weight_decay = NAN},
                              {.groups = NULL, .group_count = 1},
                              {.groups = (accel_param_group[]){{NULL, 0, 0}}, .group_count = 1}};
    accel_sgd_desc sgd[] = {{.lr = -2}, {.momentum = -2}, {.momentum = NAN}, {.weight_decay = -2}, {.nesterov = true},
                            {.momentum = 0.9f, .dampening = 0.1f, .nesterov = true}};
    for (int i = 0; i < COUNT(adam); i++) {
        CHECK(accel_adam(t.acc, t.model, &adam[i]) == NULL);
        CHECK(accel_failed(t.acc));
        accel_clear(t.acc);
    }
    for (int i = 0; i < COUNT(sgd); i++) {
        CHECK(accel_sgd(t.acc, t.model, &sgd[i]) == NULL);
        CHECK(accel_failed(t.acc));
        accel_clear(t.acc);
    }
    CHECK(accel_adam(t.acc, t.model, NULL) != NULL);
    CHECK_FINE(t.acc);
    CHECK(accel_sgd(t.acc, t.model, NULL) == NULL); /* the parameters have an optimizer already */
    CHECK(accel_failed(t.acc));
    accel_destroy(t.acc);
}

/* ---- layer-wise decay ---- */

/* Exponent of the decay in an encoder of two layers, by the parameter's place in Transformers' model. */
static int decay_exponent(const char *name) {
    return strstr(name, ".embeddings.") ? 3 : strstr(name, ".layer.0.") ? 2 : strstr(name, ".layer.1.") ? 1 : 0;
}

/* lr of each parameter: base or group's rate x 0.5^exponent x the schedule's factor, exact in float64. An SGD step
   moves it by that times its gradient: one rounding of the product and one of the difference; 1e-6 is ten times that. */
TEST(layer_decay_multiplies_the_rates_of_groups_and_of_the_schedule) {
    for (int architecture = ACCEL_DISTILBERT; architecture <= ACCEL_BERT; architecture++) {
        accel_t *acc = context();
        accel_encoder_config config = small_encoder((accel_architecture)architecture);
        accel_model *model = accel_encoder_create(acc, &config);
        accel_param_group biases = {.match = "*bias", .lr = 0.25f};
        accel_sgd_desc desc = {.lr = 0.5f, .layer_decay = 0.5f, .groups = &biases, .group_count = 1};
        accel_optimizer *opt = accel_sgd(acc, model, &desc);
        accel_schedule *schedule = accel_linear_schedule_with_warmup(opt, 0, 4);
        accel_data *data = small_data(acc, 8, 9, 1);
        accel_loader *loader = accel_loader_create(acc, data, &(accel_loader_desc){.batch_size = 4});
        accel_batch batch;
        for (int step = 0; accel_next(loader, &batch); step++) {
            accel_zero_grad(opt);
            accel_backward(acc, accel_forward(model, &batch).loss);
            float *before = all_of(model, accel_read), *gradient = all_of(model, accel_grad);
            float *x = before, *g = gradient;
            double factor = 1 - step / 4.0;
            CHECK(accel_step(opt));
            for (int i = 0; i < accel_parameter_count(model); i++) {
                const char *name = accel_parameter_name(model, i);
                double lr = (strstr(name, "bias") ? 0.25 : 0.5) * pow(0.5, decay_exponent(name)) * factor;
                accel_tensor parameter = accel_parameter_at(model, i);
                CHECK(accel_lr_of(opt, name) == lr);
                float *after = values_of(parameter);
                for (int64_t k = 0; k < accel_count(parameter); k++) CHECK_NEAR(after[k], *x++ - lr * *g++, 1e-6);
                free(after);
            }
            free(before), free(gradient);
            accel_schedule_step(schedule);
        }
        CHECK(accel_steps_taken(opt) == 2);
        CHECK_FINE(acc);
        accel_destroy(acc);
    }
}

TEST(layer_decay_that_is_refused) {
    accel_t *acc = context();
    accel_encoder_config config = small_encoder(ACCEL_DISTILBERT);
    accel_model *encoder = accel_encoder_create(acc, &config), *other = accel_model_create(acc, "other");
    accel_parameter(other, "w", accel_1d(1));
    float values[] = {-0.5f, 1.5f, NAN};
    for (int i = 0; i < COUNT(values); i++) {
        CHECK(accel_adamw(acc, encoder, &(accel_adam_desc){.layer_decay = values[i]}) == NULL);
        CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "layer_decay");
    }
    CHECK(accel_sgd(acc, other, &(accel_sgd_desc){.layer_decay = 0.9f}) == NULL);
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "layer_decay is for encoders, which model other is not");
    accel_optimizer *opt = accel_adam(acc, encoder, &(accel_adam_desc){.layer_decay = 1});
    CHECK(accel_lr_of(opt, "distilbert.embeddings.word_embeddings.weight") == (double)1e-3f);
    CHECK(!accel_optimizer_add(opt, other));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "layer_decay");
    CHECK(isnan(accel_lr_of(opt, "w")));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "no parameter w");
    CHECK(isnan(accel_lr_of(opt, NULL)));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "accel_lr_of");
    CHECK(isnan(accel_lr_of(NULL, "w")));
    accel_destroy(acc);
}

TEST(one_optimizer_for_two_models) {
    accel_t *acc = context();
    accel_model *first = accel_model_create(acc, "first"), *second = accel_model_create(acc, "second");
    accel_tensor a = accel_parameter(first, "w", accel_1d(1)), b = accel_parameter(second, "w", accel_1d(1));
    accel_optimizer *opt = accel_sgd(acc, first, &(accel_sgd_desc){.lr = 1});
    CHECK(accel_optimizer_add(opt, second));
    accel_backward(acc, accel_sum(accel_add(a, accel_scale(b, 2))));
    CHECK_NEAR(accel_clip_grad_norm(opt, INFINITY), sqrt(5), 1e-6);
    CHECK(accel_step(opt));
    CHECK(accel_item(a) == -1 && accel_item(b) == -2);
    CHECK_FINE(acc);
    CHECK(!accel_optimizer_add(opt, second));
    CHECK(accel_failed(acc));
    accel_destroy(acc);
}

TEST(another_optimizer_after_the_first_was_freed_starts_afresh) {
    toy t = toy_of((accel_desc){.threads = 2});
    accel_optimizer *first = make(&t, &recipes[2]);
    for (int s = 1; s <= 4; s++) accel_zero_grad(first), toy_backward(&t, s, 1), accel_step(first);
    accel_free(first);
    for (int i = 0; i < PARAMETERS; i++) {
        float *values = values_of(t.p[i]);
        for (int k = 0; k < accel_count(t.p[i]); k++) t.reference[i][k] = (number){.value = values[k]};
        free(values);
    }
    accel_optimizer *second = make(&t, &recipes[2]);
    for (int s = 5; s <= 8; s++) {
        accel_zero_grad(second);
        toy_backward(&t, s, 1);
        CHECK(accel_step(second));
        reference_step(&t, &recipes[2], s, 1);
    }
    CHECK(toy_error(&t) < TOLERANCE);
    CHECK_FINE(t.acc);
    accel_destroy(t.acc);
}

TEST(two_optimizers_side_by_side) {
    accel_t *acc = context();
    accel_model *first = accel_model_create(acc, "first"), *second = accel_model_create(acc, "second");
    accel_tensor a = accel_parameter(first, "w", accel_1d(1)), b = accel_parameter(second, "w", accel_1d(1));
    accel_optimizer *one = accel_sgd(acc, first, &(accel_sgd_desc){.lr = 1}),
                    *two = accel_sgd(acc, second, &(accel_sgd_desc){.lr = 10});
    for (int i = 0; i < 2; i++) {
        accel_begin(acc);
        accel_zero_grad(one);
        accel_backward(acc, accel_sum(accel_add(a, b)));
        CHECK(accel_step(one));
    }
    CHECK(accel_item(a) == -2 && accel_item(b) == 0);
    accel_zero_grad(two);
    accel_begin(acc);
    accel_backward(acc, accel_sum(b));
    CHECK(accel_step(two) && accel_item(b) == -10 && accel_item(a) == -2);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

/* ---- clipping ---- */

static double toy_norm(toy *t, int step) {
    double sum = 0;
    for (int i = 0; i < PARAMETERS; i++) {
        float *g = gradient(i, step);
        for (int k = 0; takes_part(i, step) && k < accel_count(t->p[i]); k++) sum += (double)g[k] * g[k];
        free(g);
    }
    return sqrt(sum);
}

TEST(clipping_gives_the_norm_before_and_scales) {
    toy t = toy_of((accel_desc){.threads = 2});
    accel_optimizer *opt = accel_sgd(t.acc, t.model, &(accel_sgd_desc){.lr = 1});
    toy_backward(&t, 1, 1);
    double norm = toy_norm(&t, 1), scale = 0.5 / (norm + 1e-6);
    CHECK_NEAR(accel_clip_grad_norm(opt, INFINITY), norm, 1e-6 * norm);
    CHECK_NEAR(accel_clip_grad_norm(opt, 100), norm, 1e-6 * norm); /* under the limit nothing changes */
    float *g = gradient(1, 1), clipped[5];
    CHECK(accel_grad(t.p[1], clipped, 5));
    for (int i = 0; i < 5; i++) CHECK_NEAR(clipped[i], g[i], 0);
    CHECK_NEAR(accel_clip_grad_norm(opt, 0.5f), norm, 1e-6 * norm);
    CHECK(accel_grad(t.p[1], clipped, 5));
    for (int i = 0; i < 5; i++) CHECK_NEAR(clipped[i], g[i] * scale, 1e-7);
    CHECK_NEAR(accel_clip_grad_norm(opt, INFINITY), 0.5, 1e-6);
    float before[5], after[5];
    accel_read(t.p[1], before, 5);
    CHECK(accel_step(opt));
    accel_read(t.p[1], after, 5);
    for (int i = 0; i < 5; i++) CHECK_NEAR(after[i], before[i] - g[i] * scale, 3e-7);
    free(g);
    CHECK_FINE(t.acc);
    accel_destroy(t.acc);
}

/* At the end of a window the pooled gradient is clipped, not its parts. */
TEST(clipping_in_a_window) {
    toy t = toy_of((accel_desc){.threads = 2, .accumulate = 2});
    accel_optimizer *opt = accel_sgd(t.acc, t.model, &(accel_sgd_desc){.lr = 1});
    double norm = toy_norm(&t, 1);
    float *g = gradient(0, 1), grad[15];
    toy_backward(&t, 1, 1);
    accel_clip_grad_norm(opt, 0.01f);
    CHECK(accel_grad(t.p[0], grad, 15));
    CHECK_NEAR(grad[3], g[3], 1e-6); /* not yet */
    toy_backward(&t, 1, 3);          /* the mean of 1 and 3 times the gradient */
    CHECK_NEAR(accel_clip_grad_norm(opt, 0.01f), 2 * norm, 2e-6 * norm);
    CHECK(accel_grad(t.p[0], grad, 15));
    CHECK_NEAR(grad[3], g[3] * 2 * 0.01 / (2 * norm + 1e-6), 1e-8);
    free(g);
    CHECK_FINE(t.acc);
    accel_destroy(t.acc);
}

TEST(the_norm_of_a_non_finite_gradient) {
    toy t = toy_of((accel_desc){.threads = 2});
    accel_optimizer *opt = accel_sgd(t.acc, t.model, NULL);
    CHECK(accel_clip_grad_norm(opt, 1) == 0); /* no gradient yet */
    toy_backward(&t, 1, INFINITY);
    CHECK(!isfinite(accel_clip_grad_norm(opt, 1)));
    CHECK_FINE(t.acc);
    CHECK(!accel_step(opt));
    accel_clip_grad_norm(opt, -1);
    CHECK_ERROR(t.acc, ACCEL_BAD_ARGUMENT, "max_norm");
    accel_destroy(t.acc);
}

/* ---- gradients that are not finite ---- */

TEST(a_non_finite_gradient_skips_the_step) {
    float poison[] = {INFINITY, NAN};
    for (int i = 0; i < COUNT(recipes); i++) {
        toy t = toy_of((accel_desc){.threads = 2});
        accel_optimizer *opt = make(&t, &recipes[i]);
        for (int s = 1; s <= 8; s++) {
            accel_zero_grad(opt);
            bool bad = s == 3 || s == 6;
            toy_backward(&t, s, bad ? poison[s / 6] : 1);
            float *before = all_of(t.model, accel_read);
            CHECK(accel_step(opt) == !bad);
            CHECK(same_parameters(t.model, before) == bad);
            free(before);
            if (!bad) reference_step(&t, &recipes[i], s, 1); /* moments and step counts as if it had not been */
        }
        CHECK(toy_error(&t) < TOLERANCE);
        CHECK(accel_steps_taken(opt) == 6 && accel_steps_skipped(opt) == 2);
        CHECK_FINE(t.acc);
        accel_destroy(t.acc);
    }
}

TEST(a_skipped_step_is_noted) {
    notices log = {0};
    accel_t *acc = context_of((accel_desc){.threads = 2}, &log);
    accel_model *model = accel_model_create(acc, "toy");
    accel_tensor w = accel_parameter(model, "w", accel_1d(3));
    accel_optimizer *opt = accel_adam(acc, model, NULL);
    accel_backward(acc, accel_sum(accel_scale(w, NAN)));
    int lines = log.lines;
    CHECK(!accel_step(opt) && log.lines == lines + 1);
    CHECK_TEXT(log.last, "skipped");
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(too_many_skipped_steps_are_an_error) {
    toy t = toy_of((accel_desc){.threads = 2, .max_skipped_steps = 3});
    accel_optimizer *opt = accel_adam(t.acc, t.model, NULL);
    for (int round = 0; round < 3; round++) { /* a good step in between starts the count again */
        for (int s = 0; s < 2; s++) accel_zero_grad(opt), toy_backward(&t, 1, NAN), CHECK(!accel_step(opt));
        accel_zero_grad(opt), toy_backward(&t, 1, 1), CHECK(accel_step(opt));
    }
    CHECK_FINE(t.acc);
    for (int s = 0; s < 4; s++) accel_zero_grad(opt), toy_backward(&t, 1, NAN), accel_step(opt);
    CHECK_ERROR(t.acc, ACCEL_NOT_FINITE, "3");
    accel_destroy(t.acc);
}

/* ---- embedding rows ---- */

enum { ROWS = 40, WIDTH = 9, TOUCHED = 5 };

/* Ten steps that touch a few rows each. dense: the same gradient, but arriving as a whole matrix. */
static float *train_table(const recipe *r, bool dense) {
    accel_t *acc = context();
    accel_model *model = accel_model_create(acc, "toy");
    accel_tensor table = accel_parameter_normal(model, "body.weight", accel_2d(ROWS, WIDTH), 1);
    toy t = {.acc = acc, .model = model};
    accel_optimizer *opt = make(&t, r);
    for (int s = 0; s < 10; s++) {
        float part[TOUCHED * WIDTH], whole[ROWS * WIDTH] = {0};
        int32_t ids[TOUCHED];
        fill(part, TOUCHED * WIDTH, -1, 1, (uint64_t)s);
        for (int i = 0; i < TOUCHED; i++) {
            ids[i] = (i * 7 + s * 11) % (ROWS - 3); /* no repeats; the last three rows are never touched */
            memcpy(whole + ids[i] * WIDTH, part + i * WIDTH, WIDTH * sizeof *part);
        }
        accel_begin(acc);
        accel_zero_grad(opt);
        accel_tensor chosen = dense ? table : accel_embedding(table, accel_from_ints(acc, accel_1d(TOUCHED), ids), -1);
        accel_tensor c = accel_from_floats(acc, accel_shape_of(chosen), dense ? whole : part);
        accel_backward(acc, accel_sum(accel_mul(chosen, c)));
        accel_step(opt);
    }
    CHECK_FINE(acc);
    float *values = values_of(table);
    accel_destroy(acc);
    return values;
}

TEST(untouched_embedding_rows_are_as_in_a_dense_update) {
    for (int i = 0; i < COUNT(recipes); i++) {
        float *sparse = train_table(&recipes[i], false), *dense = train_table(&recipes[i], true);
        if (memcmp(sparse, dense, ROWS * WIDTH * sizeof *sparse))
            test_faults++, printf("  %s: rows differ\n", recipes[i].name);
        free(sparse), free(dense);
    }
}

int main(int argc, char **argv) {
    return test_main(argc, argv);
}
