/* Accumulation windows, prepare, metrics. The rule under test: whatever a step's examples are cut into, the gradient is
   that of the whole batch.

   Only the order of float32 sums differs: single elements by up to 1e-6 of their parameter's largest gradient,
   measured. A wrong weight would be off by 1e-2 at least. */
#define ACCEL_IMPLEMENTATION
#include "accel.h"
#include "test.h"
#include "helpers.h"

#define TOLERANCE 2e-6

enum { ROWS = 20, LONGEST = 11, LABELS = 3 };

/* Labels of every other row of the first half are ignored, so that micro-batches have unequal numbers of labels. */
static rows uneven_rows(void) {
    rows made = random_rows(ROWS, LONGEST, LABELS, 8);
    for (int i = 0; i < ROWS / 2; i += 2) made.labels[i] = ACCEL_IGNORE;
    return made;
}

typedef struct setup {
    accel_t *acc;
    accel_model *model;
    accel_optimizer *opt; /* its rate is 0: parameters stay as they are */
    accel_loader *loader;
} setup;

static setup setup_of(accel_encoder_config config, int accumulate, int batch_size) {
    setup s = {.acc = context_of((accel_desc){.threads = 2, .accumulate = accumulate}, NULL)};
    config.num_labels = config.problem == ACCEL_REGRESSION ? 1 : LABELS;
    s.model = accel_encoder_create(s.acc, &config);
    s.opt = accel_sgd(s.acc, s.model, NULL);
    accel_set_lr(s.opt, 0);
    rows made = uneven_rows();
    accel_data_desc desc = {.rows = ROWS, .ids = made.ids, .offsets = made.offsets};
    if (config.problem == ACCEL_SINGLE_LABEL) desc.labels = made.labels;
    else desc.targets = made.targets, desc.targets_per_row = config.num_labels;
    s.loader = accel_loader_create(s.acc, accel_data_create(s.acc, &desc),
                                   &(accel_loader_desc){.batch_size = batch_size});
    free_rows(&made);
    accel_prepare(s.acc, s.model, s.opt, s.loader);
    return s;
}

/* The gradients at each of two windows' ends, one behind the other, and the norms that clipping reports. */
static float *two_windows(setup *s, double *norms) {
    size_t count = (size_t)accel_parameter_elements(s->model);
    float *both = calloc(2 * count, sizeof *both);
    accel_batch batch;
    int windows = 0;
    while (accel_next(s->loader, &batch)) {
        accel_zero_grad(s->opt);
        accel_backward(s->acc, accel_forward(s->model, &batch).loss);
        norms[windows] = (double)accel_clip_grad_norm(s->opt, INFINITY);
        if (accel_sync_gradients(s->acc)) {
            float *window = all_of(s->model, accel_grad);
            memcpy(both + (size_t)windows++ * count, window, count * sizeof *window);
            free(window);
        }
        accel_step(s->opt);
    }
    CHECK(windows == 2);
    return both;
}

/* 7 micro-batches of 3 (the last of 2) in windows of 4 and of 3, against batches of 12 and of 8. */
static void check_accumulation(const char *what, accel_encoder_config config, const accel_cross_entropy_desc *loss) {
    setup whole = setup_of(config, 1, 12), parts = setup_of(config, 4, 3);
    if (loss) accel_set_loss(whole.model, loss), accel_set_loss(parts.model, loss);
    double whole_norm[2], part_norm[3];
    float *expected = two_windows(&whole, whole_norm), *actual = two_windows(&parts, part_norm);
    int64_t count = accel_parameter_elements(whole.model);
    for (int window = 0; window < 2; window++) {
        double distance = gradient_distance(whole.model, actual + window * count, expected + window * count);
        if (!(distance < TOLERANCE)) test_faults++, printf("  %s, window %d: distance %g\n", what, window, distance);
        CHECK_NEAR(part_norm[window], whole_norm[window], 1e-5 * whole_norm[window]);
        CHECK(whole_norm[window] > 1e-3);
    }
    free(expected), free(actual);
    CHECK_FINE(whole.acc);
    CHECK_FINE(parts.acc);
    accel_destroy(whole.acc), accel_destroy(parts.acc);
}

TEST(micro_batches_give_the_gradient_of_the_whole_batch) {
    check_accumulation("DistilBERT", small_encoder(ACCEL_DISTILBERT), NULL);
    check_accumulation("BERT", small_encoder(ACCEL_BERT), NULL);
}

TEST(micro_batches_with_class_weights_and_smoothing) {
    float weights[LABELS] = {0.5f, 3, 1};
    accel_cross_entropy_desc loss = {.label_smoothing = 0.1f, .class_weights = weights, .class_count = LABELS};
    check_accumulation("weighted", small_encoder(ACCEL_DISTILBERT), &loss);
}

TEST(micro_batches_with_multi_label_and_regression) {
    accel_encoder_config config = small_encoder(ACCEL_DISTILBERT);
    config.problem = ACCEL_MULTI_LABEL;
    check_accumulation("multi-label", config, NULL);
    config.problem = ACCEL_REGRESSION;
    check_accumulation("regression", config, NULL);
}

/* Masks follow the example, not its place in a micro-batch. */
TEST(micro_batches_with_dropout) {
    check_accumulation("DistilBERT with dropout", dropping_encoder(ACCEL_DISTILBERT), NULL);
    check_accumulation("BERT with dropout", dropping_encoder(ACCEL_BERT), NULL);
}

TEST(micro_batches_of_unequal_size_by_hand) {
    rows made = uneven_rows();
    int cuts[][6] = {{0, ROWS, -1}, {0, 5, 6, 15, ROWS, -1}}; /* all at once; 5, 1, 9 and 5 */
    float *grads[2];
    accel_t *contexts[2];
    accel_model *model = NULL;
    for (int run = 0; run < 2; run++) {
        accel_t *acc = contexts[run] = context_of((accel_desc){.threads = 2, .accumulate = run ? 4 : 1}, NULL);
        accel_encoder_config config = dropping_encoder(ACCEL_DISTILBERT);
        config.num_labels = LABELS;
        model = accel_encoder_create(acc, &config);
        for (int c = 0; cuts[run][c + 1] >= 0; c++) {
            int begin = cuts[run][c], end = cuts[run][c + 1];
            int32_t offsets[ROWS + 1];
            accel_batch batch = {.examples = end - begin, .ids = made.ids + made.offsets[begin], .offsets = offsets,
                                 .labels = made.labels + begin, .first_ordinal = begin};
            for (int i = begin; i <= end; i++) offsets[i - begin] = (int32_t)(made.offsets[i] - made.offsets[begin]);
            for (int i = 0; i < end - begin; i++)
                if (offsets[i + 1] - offsets[i] > batch.longest) batch.longest = offsets[i + 1] - offsets[i];
            batch.tokens = offsets[end - begin];
            accel_begin(acc);
            accel_backward(acc, accel_forward(model, &batch).loss);
        }
        CHECK(accel_sync_gradients(acc));
        grads[run] = all_of(model, accel_grad);
        CHECK_FINE(acc);
    }
    CHECK(gradient_distance(model, grads[1], grads[0]) < TOLERANCE);
    free(grads[0]), free(grads[1]), free_rows(&made);
    accel_destroy(contexts[0]), accel_destroy(contexts[1]);
}

/* The same for a dropout of one's own, and for random numbers: axis 0 counts the step's examples. */
TEST(masks_and_random_rows_follow_the_example) {
    accel_t *acc = context_of((accel_desc){.threads = 2, .accumulate = 3}, NULL);
    accel_tensor ones = accel_keep(accel_full(acc, accel_2d(9, 7), 1)), w = accel_full(acc, accel_0d(), 1);
    accel_tensor mask = accel_keep(accel_dropout(ones, 0.5f)), noise = accel_keep(accel_randn(acc, accel_2d(9, 7)));
    accel_set_requires_grad(accel_keep(w), true);
    int cuts[] = {0, 2, 7, 9};
    for (int i = 0; i < 3; i++) {
        accel_begin(acc);
        accel_tensor part = accel_slice(ones, 0, cuts[i], cuts[i + 1]);
        CHECK(same_values(accel_dropout(part, 0.5f), accel_slice(mask, 0, cuts[i], cuts[i + 1])));
        CHECK(same_values(accel_randn(acc, accel_shape_of(part)), accel_slice(noise, 0, cuts[i], cuts[i + 1])));
        accel_backward(acc, accel_sum(accel_mul(part, w)));
    }
    CHECK(accel_sync_gradients(acc));
    CHECK_FINE(acc);
    accel_destroy(acc);
}

/* ---- windows ---- */

typedef struct toy {
    accel_t *acc;
    accel_tensor w;
    accel_optimizer *opt;
} toy;

static toy toy_of(int accumulate) {
    toy t = {.acc = context_of((accel_desc){.threads = 2, .accumulate = accumulate}, NULL)};
    accel_model *model = accel_model_create(t.acc, "toy");
    t.w = accel_parameter(model, "w", accel_1d(1));
    t.opt = accel_sgd(t.acc, model, &(accel_sgd_desc){.lr = 1});
    return t;
}

TEST(windows_in_a_loop_without_a_loader) {
    toy t = toy_of(3);
    for (int micro = 1; micro <= 9; micro++) {
        accel_begin(t.acc);
        accel_zero_grad(t.opt);
        accel_backward(t.acc, accel_sum(accel_scale(t.w, (float)micro)));
        CHECK(accel_sync_gradients(t.acc) == (micro % 3 == 0));
        CHECK(accel_step(t.opt) == (micro % 3 == 0));
    }
    CHECK_NEAR(accel_item(t.w), -(2 + 5 + 8), 1e-6); /* the mean of each window */
    CHECK_FINE(t.acc);
    accel_destroy(t.acc);
}

/* PyTorch's order of the loop: zero_grad after the step. */
TEST(no_sync_keeps_the_window_open) {
    toy t = toy_of(1);
    for (int micro = 1; micro <= 4; micro++) {
        accel_begin(t.acc);
        if (micro % 2) accel_no_sync(t.acc);
        CHECK(accel_sync_gradients(t.acc) == (micro % 2 == 0));
        accel_backward(t.acc, accel_sum(accel_scale(t.w, (float)micro)));
        CHECK(accel_step(t.opt) == (micro % 2 == 0));
    }
    CHECK_NEAR(accel_item(t.w), -(1.5 + 3.5), 1e-6);
    CHECK_FINE(t.acc);
    accel_destroy(t.acc);
}

/* The divided gradient is limited, not the pooled sum: -(1 + 8) / 2 becomes -4, and 0.5 stays. */
TEST(clipping_by_value) {
    toy t = toy_of(2);
    static const float slopes[2][2] = {{1, 8}, {0.25f, 0.75f}};
    for (int window = 0; window < 2; window++)
        for (int micro = 0; micro < 2; micro++) {
            accel_begin(t.acc);
            accel_zero_grad(t.opt);
            accel_backward(t.acc, accel_sum(accel_scale(t.w, slopes[window][micro])));
            accel_clip_grad_value(t.opt, 4);
            accel_step(t.opt);
        }
    CHECK_NEAR(accel_item(t.w), -(4 + 0.5), 1e-6);
    CHECK_FINE(t.acc);
    accel_clip_grad_value(t.opt, 0);
    CHECK(accel_error(t.acc) == ACCEL_BAD_ARGUMENT);
    accel_destroy(t.acc);
}

TEST(zero_grad_after_the_step) {
    toy t = toy_of(2);
    for (int micro = 1; micro <= 4; micro++) {
        accel_begin(t.acc);
        accel_backward(t.acc, accel_sum(accel_scale(t.w, (float)micro)));
        CHECK(accel_step(t.opt) == (micro % 2 == 0));
        accel_zero_grad(t.opt);
    }
    CHECK_NEAR(accel_item(t.w), -(1.5 + 3.5), 1e-6);
    CHECK_FINE(t.acc);
    accel_destroy(t.acc);
}

TEST(without_zero_grad_no_gradient_is_lost_or_used_twice_within_a_window) {
    toy t = toy_of(1);
    accel_begin(t.acc);
    for (int i = 0; i < 3; i++) accel_begin(t.acc); /* empty scopes are no micro-batches */
    accel_backward(t.acc, accel_sum(accel_scale(t.w, 4)));
    CHECK(accel_step(t.opt));
    CHECK_NEAR(accel_item(t.w), -4, 1e-6);
    CHECK_FINE(t.acc);
    accel_destroy(t.acc);
}

static accel_loader *loader_of(accel_t *acc, int rows, int batch_size) {
    return accel_loader_create(acc, small_data(acc, rows, 3, 1), &(accel_loader_desc){.batch_size = batch_size});
}

TEST(steps_per_epoch) {
    struct {
        int rows, batch, accumulate, steps;
    } cases[] = {{20, 3, 4, 2}, {20, 3, 1, 7}, {24, 3, 4, 2}, {25, 3, 4, 3}, {1, 8, 4, 1}, {20, 20, 3, 1}};
    for (int i = 0; i < COUNT(cases); i++) {
        toy t = toy_of(cases[i].accumulate);
        accel_loader *loader = loader_of(t.acc, cases[i].rows, cases[i].batch);
        CHECK(accel_steps_per_epoch(t.acc, loader) == cases[i].steps);
        accel_prepare(t.acc, t.opt, loader);
        int steps = 0;
        accel_batch batch;
        while (accel_next(loader, &batch)) {
            accel_zero_grad(t.opt);
            accel_backward(t.acc, accel_sum(t.w));
            steps += accel_step(t.opt);
        }
        CHECK(steps == cases[i].steps);
        CHECK_NEAR(accel_item(t.w), -steps, 1e-6);
        CHECK_FINE(t.acc);
        accel_destroy(t.acc);
    }
}

TEST(windows_end_with_the_epoch) {
    toy t = toy_of(4);
    accel_loader *loader = loader_of(t.acc, 7, 1);
    accel_prepare(t.acc, t.opt, loader);
    bool expected[] = {false, false, false, true, false, false, true};
    for (int epoch = 0; epoch < 3; epoch++) {
        accel_batch batch;
        for (int i = 0; accel_next(loader, &batch); i++) {
            accel_zero_grad(t.opt);
            accel_backward(t.acc, accel_sum(t.w));
            CHECK(accel_sync_gradients(t.acc) == expected[i]);
            CHECK(accel_step(t.opt) == expected[i]);
            CHECK(batch.first_ordinal == i % 4);
        }
    }
    CHECK(accel_steps_taken(t.opt) == 6);
    CHECK_FINE(t.acc);
    accel_destroy(t.acc);
}

TEST(changing_the_window_takes_effect_at_the_next_one) {
    toy t = toy_of(3);
    bool expected[] = {false, false, true, false, true, false, true};
    for (int i = 0; i < COUNT(expected); i++) {
        accel_begin(t.acc);
        accel_zero_grad(t.opt);
        accel_backward(t.acc, accel_sum(t.w));
        if (i == 1) accel_set_accumulate(t.acc, 2);
        CHECK(accel_step(t.opt) == expected[i]);
    }
    CHECK_FINE(t.acc);
    accel_destroy(t.acc);
}

/* ---- prepare ---- */

TEST(prepare_takes_objects_in_any_order) {
    accel_t *acc = context();
    accel_encoder_config config = small_encoder(ACCEL_DISTILBERT);
    accel_model *model = accel_encoder_create(acc, &config);
    accel_optimizer *opt = accel_adam(acc, model, NULL);
    accel_data *data = small_data(acc, 9, 5, 1);
    accel_loader *train = accel_loader_create(acc, data, NULL),
                 *eval = accel_loader_create(acc, data, &(accel_loader_desc){.evaluation = true});
    accel_schedule *schedule = accel_linear_schedule_with_warmup(opt, 0, 10);
    CHECK(accel_prepare(acc, schedule, eval, train, opt, model));
    CHECK(accel_prepare(acc, model)); /* again, or one alone, is fine */
    CHECK(accel_prepare(acc, train, model));
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(prepare_refuses_what_belongs_to_another_context) {
    accel_t *acc = context(), *other = context();
    accel_model *model = accel_model_create(other, "elsewhere");
    CHECK(!accel_prepare(acc, model));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "context");
    CHECK_FINE(other);
    accel_destroy(acc), accel_destroy(other);
}

/* ---- metrics ---- */

static void add_pairs(accel_metrics *metrics, accel_t *acc, int classes, int (*pairs)[2], int count) {
    accel_eval_begin(acc);
    for (int i = 0; i < count; i++) {
        float logits[8] = {0};
        logits[pairs[i][1]] = 2.5f;
        int32_t label = pairs[i][0];
        CHECK(accel_metrics_add(metrics, accel_from_floats(acc, accel_2d(1, classes), logits), &label, 1));
    }
    accel_eval_end(acc);
}

TEST(metrics_of_two_classes) {
    accel_t *acc = context();
    accel_metrics *metrics = accel_metrics_create(acc, 2);
    /* label, predicted: 3 true positives, 1 false positive, 2 false negatives, 4 true negatives, one ignored */
    int pairs[][2] = {{1, 1}, {1, 1}, {1, 1}, {0, 1}, {1, 0},           {1, 0},
                      {0, 0}, {0, 0}, {0, 0}, {0, 0}, {ACCEL_IGNORE, 1}};
    add_pairs(metrics, acc, 2, pairs, COUNT(pairs));
    CHECK(accel_metrics_count(metrics, 1, 1) == 3 && accel_metrics_count(metrics, 0, 1) == 1);
    CHECK(accel_metrics_count(metrics, 1, 0) == 2 && accel_metrics_count(metrics, 0, 0) == 4);
    CHECK_NEAR(accel_accuracy(metrics), 0.7, 1e-12);
    CHECK_NEAR(accel_f1(metrics), 2 * 3 / (2 * 3 + 1 + 2.0), 1e-12);
    CHECK_NEAR(accel_matthews(metrics), (3 * 4 - 1 * 2) / sqrt(4.0 * 5 * 5 * 6), 1e-12);
    CHECK_NEAR(accel_majority(metrics), 0.5, 1e-12);
    accel_metrics_reset(metrics);
    CHECK(accel_metrics_count(metrics, 1, 1) == 0);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

/* Checked against scikit-learn: f1_score(average="macro") and matthews_corrcoef. */
TEST(metrics_of_three_classes) {
    accel_t *acc = context();
    accel_metrics *metrics = accel_metrics_create(acc, 3);
    int pairs[][2] = {{0, 0}, {0, 0}, {0, 1}, {1, 1}, {1, 2}, {2, 2}, {2, 2}, {2, 2}, {2, 0}, {2, 1}};
    add_pairs(metrics, acc, 3, pairs, COUNT(pairs));
    CHECK_NEAR(accel_accuracy(metrics), 0.6, 1e-12);
    CHECK_NEAR(accel_f1(metrics), (2 / 3.0 + 2 / 5.0 + 6 / 9.0) / 3, 1e-12);
    CHECK_NEAR(accel_matthews(metrics), 25 / sqrt(66.0 * 62), 1e-12);
    CHECK_NEAR(accel_majority(metrics), 0.5, 1e-12);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(metrics_take_the_first_of_equal_logits) {
    accel_t *acc = context();
    accel_metrics *metrics = accel_metrics_create(acc, 3);
    float logits[] = {1, 1, 0, -2, -1, -1};
    int32_t labels[] = {0, 1};
    CHECK(accel_metrics_add(metrics, accel_from_floats(acc, accel_2d(2, 3), logits), labels, 2));
    CHECK(accel_accuracy(metrics) == 1);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(metrics_that_do_not_fit) {
    accel_t *acc = context();
    CHECK(accel_metrics_create(acc, 0) == NULL);
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "classes");
    accel_metrics *metrics = accel_metrics_create(acc, 3);
    accel_tensor logits = accel_full(acc, accel_2d(2, 3), 1), two = accel_full(acc, accel_2d(2, 2), 1);
    int32_t labels[] = {0, 3};
    CHECK(!accel_metrics_add(metrics, logits, labels, 2));
    CHECK_ERROR(acc, ACCEL_BAD_DATA, "3");
    CHECK(!accel_metrics_add(metrics, two, labels, 2));
    CHECK(accel_failed(acc));
    accel_clear(acc);
    CHECK(!accel_metrics_add(metrics, logits, labels, 3));
    CHECK(accel_failed(acc));
    accel_clear(acc);
    CHECK(accel_metrics_count(metrics, 0, 0) == 0 && accel_metrics_count(metrics, 3, 0) == 0);
    accel_destroy(acc);
}

int main(int argc, char **argv) {
    return test_main(argc, argv);
}
