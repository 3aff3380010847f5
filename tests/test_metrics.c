/* Metrics against figures of scikit-learn 1.9.1 and SciPy 1.17.1; each table names the call it comes from. */
#define ACCEL_IMPLEMENTATION
#include "accel.h"
#include "test.h"
#include "helpers.h"

typedef struct prf_case {
    double precision, recall, f1;
    int64_t support;
} prf_case;

#define CHECK_PRF(prf, expected)                               \
    do {                                                       \
        accel_prf prf_a = (prf);                               \
        prf_case prf_e = (expected);                           \
        CHECK_NEAR(prf_a.precision, prf_e.precision, 1e-14);   \
        CHECK_NEAR(prf_a.recall, prf_e.recall, 1e-14);         \
        CHECK_NEAR(prf_a.f1, prf_e.f1, 1e-14);                 \
        CHECK(prf_a.labelled == prf_e.support);                \
    } while (0)

/* ---- one label of each example ---- */

/* Adds rows whose largest logit is at `predicted`, in batches of `batch`. */
static void add_classes(accel_metrics *metrics, accel_t *acc, int classes, const int32_t *labels, const int *predicted,
                        int count, int batch) {
    float logits[64];
    for (int from = 0; from < count; from += batch) {
        int n = count - from < batch ? count - from : batch;
        for (int i = 0; i < n * classes; i++) logits[i] = i % classes == predicted[from + i / classes] ? 0.5f : -1.0f;
        CHECK(accel_metrics_add(metrics, accel_from_floats(acc, accel_2d(n, classes), logits), labels + from, n));
    }
}

static const int32_t two_labels[] = {1, 1, 0, 1, 0, 1, 1, 0, 1, 0, 0, 0, 1, 0, 0,
                                     0, 0, 0, 0, 1, 0, 1, 1, 0, 0, 0, 0, 1, 0, 1};
static const int two_guesses[] = {0, 1, 0, 1, 0, 1, 1, 1, 1, 0, 1, 0, 0, 1, 0,
                                  1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 1, 1, 0, 0};

/* precision_recall_fscore_support(y, q, labels=[0, 1], zero_division=0), the same with average=...;
   matthews_corrcoef(y, q) */
TEST(two_classes) {
    accel_t *acc = context();
    accel_metrics *metrics = accel_metrics_create(acc, 2);
    add_classes(metrics, acc, 2, two_labels, two_guesses, COUNT(two_labels), 7);
    CHECK_PRF(accel_class_prf(metrics, 0), ((prf_case){0.764705882352941, 0.722222222222222, 0.742857142857143, 18}));
    CHECK_PRF(accel_class_prf(metrics, 1), ((prf_case){0.615384615384615, 0.666666666666667, 0.64, 12}));
    CHECK_PRF(accel_average_prf(metrics, ACCEL_AVERAGE_BINARY),
              ((prf_case){0.615384615384615, 0.666666666666667, 0.64, 12}));
    CHECK_PRF(accel_average_prf(metrics, ACCEL_AVERAGE_MACRO),
              ((prf_case){0.690045248868778, 0.694444444444444, 0.691428571428571, 30}));
    CHECK_PRF(accel_average_prf(metrics, ACCEL_AVERAGE_MICRO), ((prf_case){0.7, 0.7, 0.7, 30}));
    CHECK_PRF(accel_average_prf(metrics, ACCEL_AVERAGE_WEIGHTED),
              ((prf_case){0.704977375565611, 0.7, 0.701714285714286, 30}));
    CHECK_NEAR(accel_f1(metrics), 0.64, 1e-14);
    CHECK_NEAR(accel_accuracy(metrics), 0.7, 1e-14);
    CHECK_NEAR(accel_matthews(metrics), 0.384464525466763, 1e-14);
    CHECK(accel_metrics_examples(metrics) == 30);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

/* Class 3 is never a label, class 4 never a guess, class 5 neither: quotients by zero are 0, and every class counts in
   the mean. precision_recall_fscore_support(y, q, labels=range(6), zero_division=0), the same with average=... */
TEST(six_classes_some_without_labels_or_guesses) {
    static const int32_t labels[] = {1, 1, 0, 0, 4, 0, 2, 0, 4, 0, 4, 1, 0, 2, 1, 1, 0, 0, 1, 0,
                                     1, 1, 0, 2, 0, 0, 2, 0, 2, 1, 4, 4, 2, 2, 0, 2, 2, 0, 1, 0};
    static const int guesses[] = {3, 1, 0, 0, 3, 2, 3, 2, 3, 0, 3, 0, 0, 2, 1, 0, 2, 0, 1, 0,
                                  1, 0, 0, 2, 0, 0, 2, 0, 2, 1, 2, 1, 2, 2, 0, 3, 2, 3, 1, 1};
    static const prf_case classes[] = {{0.785714285714286, 0.6875, 0.733333333333333, 16}, {0.75, 0.6, 2 / 3.0, 10},
                                       {0.636363636363636, 0.777777777777778, 0.7, 9},     {0, 0, 0, 0},
                                       {0, 0, 0, 5},                                       {0, 0, 0, 0}};
    accel_t *acc = context();
    accel_metrics *metrics = accel_metrics_create(acc, 6);
    add_classes(metrics, acc, 6, labels, guesses, COUNT(labels), 9);
    for (int c = 0; c < 6; c++) CHECK_PRF(accel_class_prf(metrics, c), classes[c]);
    CHECK(accel_class_prf(metrics, 3).predicted == 7 && accel_class_prf(metrics, 3).hits == 0);
    CHECK_PRF(accel_average_prf(metrics, ACCEL_AVERAGE_MACRO),
              ((prf_case){0.362012987012987, 0.344212962962963, 0.35, 40}));
    CHECK_PRF(accel_average_prf(metrics, ACCEL_AVERAGE_MICRO), ((prf_case){0.6, 0.6, 0.6, 40}));
    CHECK_PRF(accel_average_prf(metrics, ACCEL_AVERAGE_WEIGHTED), ((prf_case){0.644967532467532, 0.6, 0.6175, 40}));
    CHECK_NEAR(accel_f1(metrics), 0.35, 1e-14);
    CHECK_NEAR(accel_matthews(metrics), 0.48271537665531, 1e-13);
    CHECK_FINE(acc);
    accel_prf none = accel_class_prf(metrics, 6);
    CHECK(none.f1 == 0 && none.labelled == 0 && accel_class_prf(metrics, -1).labelled == 0);
    accel_average_prf(metrics, ACCEL_AVERAGE_BINARY);
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "two classes, not for 6");
    accel_average_prf(metrics, (accel_average)17);
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "no average 17");
    accel_destroy(acc);
}

/* How the examples are cut into batches makes no difference, and labels that do not count do not. */
TEST(batches_and_ignored_labels) {
    accel_t *acc = context();
    accel_metrics *whole = accel_metrics_create(acc, 2), *cut = accel_metrics_create(acc, 2);
    int32_t labels[COUNT(two_labels) + 1] = {ACCEL_IGNORE};
    int guesses[COUNT(two_labels) + 1] = {1};
    memcpy(labels + 1, two_labels, sizeof two_labels);
    memcpy(guesses + 1, two_guesses, sizeof two_guesses);
    add_classes(whole, acc, 2, two_labels, two_guesses, COUNT(two_labels), 30);
    add_classes(cut, acc, 2, labels, guesses, COUNT(labels), 4);
    for (int i = 0; i < 4; i++)
        CHECK(accel_metrics_count(whole, i / 2, i % 2) == accel_metrics_count(cut, i / 2, i % 2));
    CHECK(accel_metrics_examples(cut) == 30);
    accel_metrics_reset(cut);
    CHECK(accel_metrics_examples(cut) == 0 && accel_class_prf(cut, 1).predicted == 0);
    accel_prf none = accel_average_prf(cut, ACCEL_AVERAGE_WEIGHTED);
    CHECK(none.precision == 0 && none.recall == 0 && none.f1 == 0);
    CHECK(accel_average_prf(cut, ACCEL_AVERAGE_MICRO).f1 == 0 && accel_matthews(cut) == 0 && accel_majority(cut) == 0);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

/* An evaluation over a loader sees each row once, also where the batch size does not divide their number. */
TEST(every_row_counts_once) {
    accel_t *acc = context();
    accel_encoder_config config = small_encoder(ACCEL_DISTILBERT);
    accel_model *model = accel_encoder_create(acc, &config);
    rows made = random_rows(11, 9, 2, 3);
    accel_loader *loader =
        accel_loader_create(acc, data_of(acc, &made), &(accel_loader_desc){.batch_size = 4, .evaluation = true});
    accel_metrics *metrics = accel_metrics_create(acc, 2);
    accel_prepare(acc, model, loader);
    int ones = 0;
    for (int i = 0; i < 11; i++) ones += made.labels[i];
    for (int pass = 0; pass < 2; pass++) {
        accel_batch batch;
        accel_metrics_reset(metrics);
        accel_eval_begin(acc);
        while (accel_next(loader, &batch))
            accel_metrics_add(metrics, accel_forward(model, &batch).logits, batch.labels, batch.examples);
        accel_eval_end(acc);
        CHECK(accel_metrics_examples(metrics) == 11 && accel_class_prf(metrics, 1).labelled == ones);
    }
    CHECK_FINE(acc);
    free_rows(&made);
    accel_destroy(acc);
}

/* ---- several labels of each example ---- */

static const float many_targets[20][4] = {
    {0, 0, 0, 0}, {0, 0, 0, 0}, {1, 0, 1, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {1, 0, 0, 0},
    {0, 0, 0, 0}, {1, 1, 1, 0}, {1, 0, 0, 0}, {1, 1, 0, 0}, {0, 0, 0, 0}, {1, 0, 0, 0}, {1, 1, 0, 0},
    {0, 0, 0, 0}, {1, 1, 0, 0}, {0, 0, 0, 0}, {0, 1, 0, 0}, {0, 0, 0, 0}, {1, 0, 0, 0}};
static const int many_guesses[20][4] = {
    {0, 1, 0, 1}, {0, 0, 0, 0}, {1, 0, 0, 0}, {0, 0, 0, 1}, {0, 0, 0, 0}, {0, 1, 0, 0}, {0, 0, 0, 0},
    {0, 1, 0, 0}, {1, 1, 0, 0}, {1, 0, 0, 0}, {1, 1, 0, 0}, {0, 0, 0, 1}, {1, 0, 0, 0}, {0, 1, 0, 1},
    {0, 1, 0, 0}, {1, 1, 0, 0}, {0, 0, 0, 1}, {0, 1, 0, 1}, {1, 0, 0, 0}, {1, 0, 0, 0}};

static void add_many(accel_metrics *metrics, accel_t *acc, int batch) {
    for (int from = 0; from < 20; from += batch) {
        float logits[80];
        int n = 20 - from < batch ? 20 - from : batch;
        for (int i = 0; i < 4 * n; i++) logits[i] = many_guesses[from + i / 4][i % 4] ? 0.01f : 0.0f;
        accel_tensor x = accel_from_floats(acc, accel_2d(n, 4), logits);
        CHECK(accel_metrics_add_multi_label(metrics, x, many_targets[from], n));
    }
}

/* precision_recall_fscore_support(y, q, zero_division=0), the same with average=...; accuracy_score(y, q).
   Label 2 is never guessed, label 3 is never right: 0, not NaN. */
TEST(four_labels_at_once) {
    static const prf_case labels[] = {{0.875, 0.777777777777778, 0.823529411764706, 9},
                                      {0.555555555555556, 1, 0.714285714285714, 5}, {0, 0, 0, 2}, {0, 0, 0, 0}};
    accel_t *acc = context();
    accel_metrics *metrics = accel_metrics_create_multi_label(acc, 4);
    for (int batch = 20; batch > 0; batch -= 17) { /* all at once; 3 and a rest of 2 */
        accel_metrics_reset(metrics);
        add_many(metrics, acc, batch);
        for (int c = 0; c < 4; c++) CHECK_PRF(accel_class_prf(metrics, c), labels[c]);
        CHECK_PRF(accel_average_prf(metrics, ACCEL_AVERAGE_MACRO),
                  ((prf_case){0.357638888888889, 0.444444444444444, 0.384453781512605, 16}));
        CHECK_PRF(accel_average_prf(metrics, ACCEL_AVERAGE_MICRO),
                  ((prf_case){0.521739130434783, 0.75, 0.615384615384615, 16}));
        CHECK_PRF(accel_average_prf(metrics, ACCEL_AVERAGE_WEIGHTED),
                  ((prf_case){0.665798611111111, 0.75, 0.686449579831933, 16}));
        CHECK_NEAR(accel_f1(metrics), 0.384453781512605, 1e-14);
        CHECK_NEAR(accel_accuracy(metrics), 0.35, 1e-14);
        CHECK(accel_metrics_examples(metrics) == 20);
    }
    /* multilabel_confusion_matrix(y, q)[1] is [[11, 4], [0, 5]] */
    accel_prf one = accel_class_prf(metrics, 1);
    CHECK(one.predicted - one.hits == 4 && one.labelled - one.hits == 0 && one.hits == 5);
    CHECK(accel_matthews(metrics) == 0 && accel_majority(metrics) == 0 && accel_metrics_count(metrics, 1, 1) == 0);
    CHECK_FINE(acc);
    accel_average_prf(metrics, ACCEL_AVERAGE_BINARY);
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "4 labels");
    accel_destroy(acc);
}

/* Two labels are not two classes, and a NaN is no prediction. */
TEST(two_labels_at_once) {
    accel_t *acc = context();
    accel_metrics *metrics = accel_metrics_create_multi_label(acc, 2);
    accel_tensor logits = accel_from_floats(acc, accel_2d(2, 2), (float[]){1, NAN, -1, 1});
    CHECK(accel_metrics_add_multi_label(metrics, logits, (float[]){1, 0, 0, 0}, 2));
    CHECK_NEAR(accel_f1(metrics), 0.5, 1e-15); /* label 0: 1; label 1: 0 */
    CHECK_NEAR(accel_accuracy(metrics), 0.5, 1e-15);
    CHECK_FINE(acc);
    accel_average_prf(metrics, ACCEL_AVERAGE_BINARY);
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "2 labels");
    accel_destroy(acc);
}

TEST(labels_that_do_not_fit) {
    accel_t *acc = context();
    accel_metrics *many = accel_metrics_create_multi_label(acc, 2), *one = accel_metrics_create(acc, 2);
    accel_tensor logits = accel_full(acc, accel_2d(2, 2), 1);
    float targets[] = {1, 0, 0, 0.5f};
    int32_t labels[] = {0, 1};
    CHECK(!accel_metrics_add_multi_label(many, logits, targets, 2));
    CHECK_ERROR(acc, ACCEL_BAD_DATA, "target 0.5 in row 1, label 1");
    targets[3] = NAN;
    CHECK(!accel_metrics_add_multi_label(many, logits, targets, 2));
    CHECK_ERROR(acc, ACCEL_BAD_DATA, "expected 0 or 1");
    targets[3] = 1;
    CHECK(!accel_metrics_add_multi_label(many, logits, targets, 1));
    CHECK_ERROR(acc, ACCEL_BAD_SHAPE, "[1, 2] and targets are expected");
    CHECK(!accel_metrics_add_multi_label(many, logits, NULL, 2));
    CHECK_ERROR(acc, ACCEL_BAD_SHAPE, "targets");
    CHECK(!accel_metrics_add_multi_label(one, logits, targets, 2));
    CHECK_ERROR(acc, ACCEL_BAD_STATE, "one label of each");
    CHECK(!accel_metrics_add(many, logits, labels, 2));
    CHECK_ERROR(acc, ACCEL_BAD_STATE, "several labels of each");
    CHECK(accel_metrics_examples(many) == 0 && accel_class_prf(many, 0).labelled == 0); /* nothing was counted */
    CHECK(!accel_metrics_create_multi_label(acc, 0));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "0 classes");
    CHECK(!accel_metrics_add_multi_label(NULL, (accel_tensor){0}, targets, 2));
    CHECK(accel_metrics_examples(NULL) == 0 && accel_class_prf(NULL, 0).f1 == 0);
    CHECK(accel_average_prf(NULL, ACCEL_AVERAGE_BINARY).f1 == 0);
    accel_destroy(acc);
}

/* ---- scores ---- */

static const float true_scores[] = {3.25f, 0.75f, 2.75f, 0.75f, 3.75f, 4.25f, 4.25f, 1.25f, 2.25f, 4.25f, 4.25f, 0,
                                    3.25f, 0.25f, 3.25f, 0.25f, 3, 4.75f, 2, 4.25f, 1.5f, 0, 2.5f, 4.75f};
static const float guessed_scores[] = {5.375f, 0.5f, 1.625f, -0.25f, 2.375f, 3.625f, 3.5f, -0.125f,
                                       2.75f, 1.625f, 2.875f, 2, 4.25f, 0.75f, 3.75f, 2,
                                       3.5f, 4.875f, 0.75f, 4.125f, 0.75f, -0.75f, 1.75f, 4.75f};

static bool add_scores(accel_scores *scores, accel_t *acc, int from, int n) {
    accel_tensor x = accel_from_floats(acc, accel_2d(n, 1), guessed_scores + from);
    return accel_scores_add(scores, x, true_scores + from, n);
}

/* scipy.stats.pearsonr(p, t), scipy.stats.spearmanr(p, t), sklearn.metrics.mean_squared_error(t, p); both have ties */
TEST(scores_against_scipy) {
    accel_t *acc = context();
    accel_scores *scores = accel_scores_create(acc);
    for (int from = 0; from < 24; from += 7) CHECK(add_scores(scores, acc, from, from + 7 < 24 ? 7 : 24 - from));
    CHECK(accel_scores_count(scores) == 24);
    CHECK_NEAR(accel_pearson(scores), 0.759775469703935, 1e-14);
    CHECK_NEAR(accel_spearman(scores), 0.745681493608291, 1e-14);
    CHECK_NEAR(accel_mean_squared_error(scores), 1.36263020833333, 1e-13);
    accel_scores *whole = accel_scores_create(acc);
    CHECK(add_scores(whole, acc, 0, 24));
    CHECK(accel_pearson(whole) == accel_pearson(scores) && accel_spearman(whole) == accel_spearman(scores));
    accel_scores_reset(scores);
    CHECK(accel_scores_count(scores) == 0 && accel_pearson(scores) == 0 && accel_spearman(scores) == 0);
    CHECK(accel_mean_squared_error(scores) == 0);
    CHECK_FINE(acc);
    accel_free(whole);
    accel_destroy(acc);
}

/* Any monotone curve has Spearman 1 (or -1); a large offset does not harm Pearson. */
TEST(exact_correlations) {
    accel_t *acc = context();
    accel_scores *scores = accel_scores_create(acc);
    float up[1000], cubed[1000];
    for (int i = 0; i < 1000; i++) up[i] = (float)((i * 7) % 1000), cubed[i] = -up[i] * up[i] * up[i];
    CHECK(accel_scores_add(scores, accel_from_floats(acc, accel_1d(1000), cubed), up, 1000));
    CHECK_NEAR(accel_spearman(scores), -1, 1e-14);
    CHECK(accel_pearson(scores) > -0.95);
    accel_scores_reset(scores);
    for (int i = 0; i < 1000; i++) cubed[i] = 1e6f + up[i];
    CHECK(accel_scores_add(scores, accel_from_floats(acc, accel_1d(1000), cubed), up, 1000));
    CHECK_NEAR(accel_pearson(scores), 1, 1e-14);
    CHECK(accel_pearson(scores) <= 1);
    CHECK_NEAR(accel_mean_squared_error(scores), 1e12, 1e-3);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

/* What is not defined: one side constant, a single pair (both 0), a prediction that is no number (NaN). */
TEST(scores_without_a_correlation) {
    accel_t *acc = context();
    accel_scores *scores = accel_scores_create(acc);
    float targets[] = {1, 2, 3};
    CHECK(accel_scores_add(scores, accel_full(acc, accel_1d(1), 0.3f), targets, 1));
    CHECK(accel_pearson(scores) == 0 && accel_spearman(scores) == 0);
    CHECK(accel_scores_add(scores, accel_full(acc, accel_1d(2), 0.3f), targets + 1, 2));
    CHECK(accel_pearson(scores) == 0 && accel_spearman(scores) == 0);
    CHECK(accel_scores_add(scores, accel_full(acc, accel_1d(1), NAN), targets, 1));
    CHECK(isnan(accel_pearson(scores)) && isnan(accel_spearman(scores)) && isnan(accel_mean_squared_error(scores)));
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(scores_that_do_not_fit) {
    accel_t *acc = context(), *other = context();
    accel_scores *scores = accel_scores_create(acc);
    float targets[] = {1, 2, INFINITY};
    CHECK(!accel_scores_add(scores, accel_full(acc, accel_1d(3), 1), targets, 3));
    CHECK_ERROR(acc, ACCEL_BAD_DATA, "row 2 is not finite");
    CHECK(!accel_scores_add(scores, accel_full(acc, accel_1d(3), 1), targets, 2));
    CHECK_ERROR(acc, ACCEL_BAD_SHAPE, "2 elements");
    CHECK(!accel_scores_add(scores, accel_full(acc, accel_1d(2), 1), NULL, 2));
    CHECK_ERROR(acc, ACCEL_BAD_SHAPE, "targets");
    CHECK(!accel_scores_add(scores, accel_from_ints(acc, accel_1d(2), (int32_t[]){1, 2}), targets, 2));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "float32");
    CHECK(!accel_scores_add(scores, accel_full(other, accel_1d(2), 1), targets, 2));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "different contexts");
    CHECK(accel_scores_count(scores) == 0);
    CHECK(!accel_scores_create(NULL) && accel_scores_count(NULL) == 0 && accel_pearson(NULL) == 0);
    CHECK(!accel_scores_add(NULL, (accel_tensor){0}, targets, 2));
    accel_scores_reset(NULL);
    accel_destroy(other);
    accel_destroy(acc);
}

/* After the first evaluation, the next ones of the same size need no memory to add. */
TEST(scores_keep_their_memory) {
    accel_t *acc = context();
    accel_scores *scores = accel_scores_create(acc);
    uint64_t calls = 0;
    for (int pass = 0; pass < 3; pass++) {
        accel_begin(acc);
        if (pass == 2) calls = accel_memory_used(acc).calls;
        accel_scores_reset(scores);
        for (int from = 0; from < 24; from += 4) add_scores(scores, acc, from, 4);
    }
    CHECK(accel_memory_used(acc).calls == calls);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

/* A refused allocation at any place is an error and leaves nothing behind. */
static int allowed;
static void *short_of_memory(void *user, void *pointer, size_t bytes) {
    (void)user;
    if (!bytes) return free(pointer), NULL;
    return --allowed < 0 ? NULL : realloc(pointer, bytes);
}

TEST(metrics_short_of_memory) {
    bool good = false;
    for (int limit = 0; limit < 200 && !good; limit++) {
        allowed = 1000;
        accel_t *acc = context_of(
            (accel_desc){.threads = 1, .allocator = {.reallocate = short_of_memory, .user = NULL}}, NULL);
        accel_tensor x = accel_keep(accel_full(acc, accel_2d(2, 2), 1));
        allowed = limit;
        accel_metrics *metrics = accel_metrics_create_multi_label(acc, 2);
        accel_scores *scores = accel_scores_create(acc);
        good = accel_metrics_add_multi_label(metrics, x, (float[]){1, 0, 1, 0}, 2) &&
               accel_scores_add(scores, x, (float[]){1, 2, 3, 4}, 4) && accel_spearman(scores) == 0 &&
               accel_pearson(scores) == 0;
        CHECK(good == !accel_failed(acc));
        if (!good) CHECK_ERROR(acc, ACCEL_OUT_OF_MEMORY, "out of memory");
        allowed = 1000;
        accel_destroy(acc);
    }
    CHECK(good);
}

int main(int argc, char **argv) { return test_main(argc, argv); }
