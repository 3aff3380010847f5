/* Data in memory and the loader: orders, lengths, packing, checks before training. */
#define ACCEL_IMPLEMENTATION
#include "accel.h"
#include "test.h"
#include "helpers.h"

enum { ROWS = 53, LONGEST = 19 };

static accel_loader *loader_of(accel_t *acc, accel_loader_desc desc) {
    return accel_loader_create(acc, small_data(acc, ROWS, LONGEST, 4), &desc);
}

/* The row numbers of one epoch in their order; returns how many there were. */
static int epoch_rows(accel_loader *loader, int64_t *rows) {
    accel_batch batch;
    int count = 0;
    while (accel_next(loader, &batch))
        for (int i = 0; i < batch.examples; i++, count++) rows[count] = batch.rows[i];
    return count;
}

static bool is_permutation(const int64_t *rows, int count) {
    bool seen[ROWS] = {false};
    for (int i = 0; i < count; i++) {
        if (rows[i] < 0 || rows[i] >= ROWS || seen[rows[i]]) return false;
        seen[rows[i]] = true;
    }
    return count == ROWS;
}

TEST(without_shuffling_rows_come_in_order) {
    accel_t *acc = context();
    accel_loader *loader = loader_of(acc, (accel_loader_desc){.batch_size = 5});
    int64_t rows[ROWS];
    for (int epoch = 0; epoch < 2; epoch++) {
        CHECK(epoch_rows(loader, rows) == ROWS);
        for (int i = 0; i < ROWS; i++) CHECK(rows[i] == i);
    }
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(shuffled_orders_are_permutations_and_differ_by_epoch) {
    accel_loader_desc descs[] = {{.batch_size = 4, .shuffle = true}, {.batch_size = 4, .group_by_length = true}};
    for (int d = 0; d < COUNT(descs); d++) {
        accel_t *acc = context();
        accel_loader *loader = loader_of(acc, descs[d]);
        int64_t epochs[3][ROWS];
        for (int e = 0; e < 3; e++) CHECK(is_permutation(epochs[e], epoch_rows(loader, epochs[e])));
        CHECK(memcmp(epochs[0], epochs[1], sizeof epochs[0]) && memcmp(epochs[1], epochs[2], sizeof epochs[0]));
        int in_place = 0;
        for (int i = 0; i < ROWS; i++) in_place += epochs[0][i] == i;
        CHECK(in_place < 10); /* one is expected */
        CHECK_FINE(acc);
        accel_destroy(acc);
    }
}

static void rows_of_epoch(int threads, uint64_t seed, int64_t epoch, accel_loader_desc desc, int64_t *rows) {
    accel_t *acc = context_of((accel_desc){.threads = threads, .seed = seed}, NULL);
    accel_loader *loader = loader_of(acc, desc);
    accel_loader_set_epoch(loader, epoch);
    CHECK(epoch_rows(loader, rows) == ROWS);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(the_order_is_a_function_of_seed_and_epoch) {
    accel_loader_desc descs[] = {{.batch_size = 4, .shuffle = true}, {.batch_size = 4, .group_by_length = true}};
    for (int d = 0; d < COUNT(descs); d++) {
        accel_t *acc = context_of((accel_desc){.threads = 1, .seed = 6}, NULL);
        accel_loader *loader = loader_of(acc, descs[d]);
        int64_t run[4][ROWS], rows[ROWS];
        for (int e = 0; e < 4; e++) epoch_rows(loader, run[e]);
        for (int e = 0; e < 4; e++) { /* straight to any epoch, with any number of threads */
            rows_of_epoch(e + 1, 6, e, descs[d], rows);
            CHECK(!memcmp(rows, run[e], sizeof rows));
        }
        rows_of_epoch(1, 7, 0, descs[d], rows);
        CHECK(memcmp(rows, run[0], sizeof rows));
        accel_batch batch;
        accel_next(loader, &batch), accel_next(loader, &batch); /* in mid-epoch 4 */
        accel_loader_set_epoch(loader, 2);
        CHECK(epoch_rows(loader, rows) == ROWS && !memcmp(rows, run[2], sizeof rows));
        CHECK(epoch_rows(loader, rows) == ROWS && !memcmp(rows, run[3], sizeof rows));
        CHECK_FINE(acc);
        accel_destroy(acc);
    }
}

TEST(every_row_is_equally_likely_first) {
    accel_t *acc = context_of((accel_desc){.threads = 1}, NULL);
    enum { EPOCHS = 2000, FEW = 7 };
    accel_loader *loader = accel_loader_create(acc, small_data(acc, FEW, 3, 1),
                                               &(accel_loader_desc){.batch_size = 1, .shuffle = true});
    int first[FEW] = {0}, last[FEW] = {0};
    accel_batch batch;
    for (int e = 0; e < EPOCHS; e++)
        for (int i = 0; accel_next(loader, &batch); i++)
            first[batch.rows[0]] += i == 0, last[batch.rows[0]] += i == FEW - 1;
    double deviation = sqrt(EPOCHS * (1.0 / FEW) * (1 - 1.0 / FEW));
    for (int i = 0; i < FEW; i++) {
        CHECK_NEAR(first[i], (double)EPOCHS / FEW, 5 * deviation);
        CHECK_NEAR(last[i], (double)EPOCHS / FEW, 5 * deviation);
    }
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(lengths_and_drop_last) {
    struct {
        int batch; bool drop; int batches, examples;
    } cases[] = {{5, false, 11, 53},  {5, true, 10, 50}, {53, false, 1, 53}, {53, true, 1, 53},
                 {100, false, 1, 53}, {1, true, 53, 53}, {0, false, 7, 53}};
    for (int c = 0; c < COUNT(cases); c++) {
        for (int grouped = 0; grouped < 2; grouped++) {
            accel_t *acc = context_of((accel_desc){.threads = 1}, NULL);
            accel_loader *loader = loader_of(acc, (accel_loader_desc){
                .batch_size = cases[c].batch, .drop_last = cases[c].drop, .group_by_length = grouped});
            CHECK(accel_loader_length(loader) == cases[c].batches);
            accel_batch batch;
            int batches = 0, examples = 0;
            while (accel_next(loader, &batch)) batches++, examples += batch.examples;
            CHECK(batches == cases[c].batches && examples == cases[c].examples);
            CHECK_FINE(acc);
            accel_destroy(acc);
        }
    }
}

TEST(loaders_that_are_refused) {
    accel_t *acc = context();
    accel_data *data = small_data(acc, 5, 7, 1);
    CHECK(accel_loader_create(acc, data, &(accel_loader_desc){.batch_size = -1}) == NULL);
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "batch_size");
    CHECK(accel_loader_create(acc, data, &(accel_loader_desc){.batch_size = 6, .drop_last = true}) ==
          NULL); /* no batch at all */
    CHECK(accel_failed(acc));
    accel_clear(acc);
    CHECK(accel_loader_create(acc, data, &(accel_loader_desc){.drop_last = true}) ==
          NULL); /* 8 by default, there are 5 */
    CHECK(accel_failed(acc));
    accel_clear(acc);
    CHECK(accel_loader_create(acc, NULL, NULL) == NULL);
    accel_clear(acc);
    accel_loader *loader = accel_loader_create(acc, data, NULL);
    accel_loader_set_epoch(loader, -1);
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "epoch");
    CHECK(accel_loader_length(loader) == 1);
    accel_destroy(acc);
}

/* Sum over the batches of longest - shortest. */
static int spread(accel_loader_desc desc) {
    accel_t *acc = context_of((accel_desc){.threads = 1}, NULL);
    accel_loader *loader = loader_of(acc, desc);
    accel_batch batch;
    int sum = 0;
    while (accel_next(loader, &batch)) {
        int shortest = batch.longest;
        for (int i = 0; i < batch.examples; i++) {
            int length = batch.offsets[i + 1] - batch.offsets[i];
            if (length < shortest) shortest = length;
        }
        sum += batch.longest - shortest;
    }
    CHECK_FINE(acc);
    accel_destroy(acc);
    return sum;
}

TEST(grouping_by_length_brings_similar_lengths_together) {
    int plain = spread((accel_loader_desc){.batch_size = 6, .shuffle = true});
    int grouped = spread((accel_loader_desc){.batch_size = 6, .group_by_length = true});
    CHECK(grouped * 2 < plain);
}

/* Every field of a batch against the rows it was packed from. */
TEST(batches_are_packed_right) {
    accel_t *acc = context();
    rows made = random_rows(ROWS, LONGEST, 3, 4);
    accel_data *data = accel_data_create(acc, &(accel_data_desc){
        .rows = ROWS, .ids = made.ids, .offsets = made.offsets, .token_types = made.types, .labels = made.labels,
        .targets = made.targets, .targets_per_row = 3});
    accel_loader *loader = accel_loader_create(acc, data, &(accel_loader_desc){.batch_size = 6, .shuffle = true});
    accel_batch batch;
    while (accel_next(loader, &batch)) {
        CHECK(batch.offsets[0] == 0 && batch.offsets[batch.examples] == batch.tokens && batch.targets_per_example == 3);
        int longest = 0;
        for (int i = 0; i < batch.examples; i++) {
            int64_t row = batch.rows[i], at = made.offsets[row];
            int length = batch.offsets[i + 1] - batch.offsets[i];
            CHECK(length == made.offsets[row + 1] - at);
            CHECK(!memcmp(batch.ids + batch.offsets[i], made.ids + at, (size_t)length * sizeof *made.ids));
            CHECK(!memcmp(batch.token_types + batch.offsets[i], made.types + at, (size_t)length * sizeof *made.types));
            CHECK(batch.labels[i] == made.labels[row]);
            CHECK(!memcmp(batch.targets + i * 3, made.targets + row * 3, 3 * sizeof *made.targets));
            if (length > longest) longest = length;
        }
        CHECK(batch.longest == longest);
    }
    free_rows(&made);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(what_the_data_lacks_is_null) {
    accel_t *acc = context();
    accel_data *data = accel_data_create(acc, &(accel_data_desc){
        .rows = 2, .ids = (int32_t[]){1, 2, 3}, .offsets = (int64_t[]){0, 1, 3}});
    accel_batch batch;
    CHECK(accel_next(accel_loader_create(acc, data, NULL), &batch));
    CHECK(batch.examples == 2 && batch.tokens == 3 && !batch.labels && !batch.token_types && !batch.targets);
    CHECK(batch.targets_per_example == 0);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(data_is_copied_and_can_be_viewed) {
    accel_t *acc = context();
    int32_t ids[] = {1, 2, 3};
    int64_t offsets[] = {0, 1, 3};
    accel_data *data = accel_data_create(acc, &(accel_data_desc){.rows = 2, .ids = ids, .offsets = offsets});
    ids[0] = offsets[1] = 99;
    const accel_data_desc *view = accel_data_view(data);
    CHECK(accel_data_rows(data) == 2 && view->rows == 2 && view->ids[0] == 1 && view->offsets[1] == 1);
    CHECK_TEXT(view->name, "data");
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(data_that_is_refused) {
    accel_t *acc = context();
    int32_t ids[] = {1, 2, 3, 4};
    int64_t good[] = {0, 1, 4}, empty[] = {0, 1, 1, 4}, backwards[] = {0, 3, 2}, late[] = {1, 2, 4},
            lines[] = {10, 20, 30};
    struct { accel_data_desc desc; const char *text; } cases[] = {
        {{.rows = 3, .ids = ids, .offsets = empty, .name = "train.tsv", .line = lines}, "train.tsv"},
        {{.rows = 3, .ids = ids, .offsets = empty, .name = "train.tsv", .line = lines}, "20"},
        {{.rows = 3, .ids = ids, .offsets = empty}, "2"}, /* the row's number from 1 */
        {{.rows = 2, .ids = ids, .offsets = backwards}, "2"},
        {{.rows = 2, .ids = ids, .offsets = late}, "offset"},
        {{.rows = 0, .ids = ids, .offsets = good}, "rows"},
        {{.rows = -1, .ids = ids, .offsets = good}, "rows"},
        {{.rows = 2, .ids = NULL, .offsets = good}, "ids"},
        {{.rows = 2, .ids = ids, .offsets = NULL}, "offsets"},
        {{.rows = 2, .ids = ids, .offsets = good, .targets = (float[2]){0}}, "targets_per_row"}};
    for (int i = 0; i < COUNT(cases); i++) {
        CHECK(accel_data_create(acc, &cases[i].desc) == NULL);
        CHECK_TEXT(accel_message(acc), cases[i].text);
        CHECK(accel_failed(acc));
        accel_clear(acc);
    }
    accel_destroy(acc);
}

/* ---- checks against the encoder ---- */

static accel_encoder_config five_labels(void) {
    accel_encoder_config config = small_encoder(ACCEL_BERT);
    config.num_labels = 5;
    return config;
}

/* Prepares an encoder with one wrong row among good ones; returns the context, which is to have failed. */
static accel_t *prepare_with(accel_data_desc desc) {
    accel_t *acc = context();
    accel_encoder_config config = five_labels();
    accel_model *model = accel_encoder_create(acc, &config);
    static const int64_t lines[] = {12, 34, 56};
    desc.name = "train.tsv", desc.line = lines;
    accel_loader *loader = accel_loader_create(acc, accel_data_create(acc, &desc), NULL);
    CHECK_FINE(acc);
    CHECK(!accel_prepare(acc, loader, model));
    CHECK_TEXT(accel_message(acc), "train.tsv");
    CHECK(accel_error(acc) == ACCEL_BAD_DATA);
    return acc;
}

TEST(rows_are_checked_at_prepare) {
    int32_t good[] = {1, 2, 3, 4, 5}, high[] = {1, 2, VOCABULARY, 4, 5}, low[] = {1, 2, 3, 4, -1},
            labels[] = {0, 4, ACCEL_IGNORE};
    int32_t high_label[] = {0, 5, 1}, low_label[] = {0, 1, -1}, types[] = {0, 0, 0, 2, 0};
    int32_t longs[POSITIONS + 6] = {0};
    int64_t offsets[] = {0, 2, 3, 5},
            too_long[] = {0, 2, POSITIONS + 3, POSITIONS + 5}; /* row 1 has one token too many */
    struct { accel_data_desc desc; const char *line, *found, *limit; } cases[] = {
        {{.rows = 3, .ids = high, .offsets = offsets, .labels = labels}, "34", "41", "40"},
        {{.rows = 3, .ids = low, .offsets = offsets, .labels = labels}, "56", "-1", "40"},
        {{.rows = 3, .ids = good, .offsets = offsets, .labels = high_label}, "34", "5", "4"},
        {{.rows = 3, .ids = good, .offsets = offsets, .labels = low_label}, "56", "-1", "4"},
        {{.rows = 3, .ids = good, .offsets = offsets, .labels = labels, .token_types = types}, "56", "2", "1"},
        {{.rows = 3, .ids = longs, .offsets = too_long, .labels = labels}, "34", "25", "24"}};
    for (int i = 0; i < COUNT(cases); i++) {
        accel_t *acc = prepare_with(cases[i].desc);
        CHECK_TEXT(accel_message(acc), cases[i].line);
        CHECK_TEXT(accel_message(acc), cases[i].found);
        CHECK_TEXT(accel_message(acc), cases[i].limit);
        accel_destroy(acc);
    }
}

TEST(good_rows_pass_the_check) {
    accel_t *acc = context();
    accel_encoder_config config = five_labels();
    accel_model *model = accel_encoder_create(acc, &config);
    int32_t ids[POSITIONS + 1] = {0, VOCABULARY - 1}, labels[] = {4, ACCEL_IGNORE};
    accel_data *data = accel_data_create(acc, &(accel_data_desc){
        .rows = 2, .ids = ids, .offsets = (int64_t[]){0, POSITIONS, POSITIONS + 1}, .labels = labels});
    CHECK(accel_prepare(acc, accel_loader_create(acc, data, NULL), model));
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(targets_that_do_not_fit_the_model) {
    accel_t *acc = context();
    accel_encoder_config config = five_labels();
    config.problem = ACCEL_MULTI_LABEL;
    accel_model *model = accel_encoder_create(acc, &config);
    float targets[6] = {0};
    accel_data *data = accel_data_create(acc, &(accel_data_desc){.rows = 2,
                                                                 .ids = (int32_t[]){1, 2, 3},
                                                                 .offsets = (int64_t[]){0, 1, 3},
                                                                 .targets = targets,
                                                                 .targets_per_row = 3});
    CHECK(!accel_prepare(acc, model, accel_loader_create(acc, data, NULL)));
    CHECK_TEXT(accel_message(acc), "3");
    CHECK_ERROR(acc, ACCEL_BAD_DATA, "5");
    accel_destroy(acc);
}

/* ---- evaluation ---- */

TEST(an_evaluation_loader_makes_no_micro_batches) {
    accel_t *acc = context_of((accel_desc){.threads = 2, .accumulate = 2}, NULL);
    accel_model *model = accel_model_create(acc, "toy");
    accel_tensor w = accel_parameter(model, "w", accel_1d(1));
    accel_optimizer *opt = accel_sgd(acc, model, &(accel_sgd_desc){.lr = 1});
    accel_loader *train = loader_of(acc, (accel_loader_desc){.batch_size = 10});
    accel_loader *eval = loader_of(acc, (accel_loader_desc){.batch_size = 10, .evaluation = true});
    CHECK(accel_prepare(acc, model, opt, train, eval));
    accel_batch batch, other;
    int steps = 0, seen = 0;
    while (accel_next(train, &batch)) {
        accel_zero_grad(opt);
        accel_backward(acc, accel_sum(w));
        bool ends = accel_sync_gradients(acc);
        accel_eval_begin(acc);
        while (accel_next(eval, &other)) seen += other.examples;
        accel_eval_end(acc);
        CHECK(accel_sync_gradients(acc) == ends);
        CHECK(accel_step(opt) == ends);
        steps += ends;
    }
    CHECK(steps == 3 && seen == 6 * ROWS && accel_item(w) == -3);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

/* ---- from padded arrays and back ---- */

TEST(packing_padded_arrays) {
    accel_t *acc = context();
    int32_t ids[] = {5, 6, 7, 0, 8, 0, 0, 0, 1, 2, 3, 4}, mask[] = {1, 1, 1, 0, 1, 0, 0, 0, 1, 1, 1, 1};
    int32_t types[] = {0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1}, labels[] = {1, 0, 1}, packed[] = {5, 6, 7, 8, 1, 2, 3, 4};
    int32_t packed_types[] = {0, 0, 1, 0, 0, 1, 1, 1}, offsets[] = {0, 3, 4, 8};
    accel_batch batch;
    CHECK(accel_batch_from_padded(acc, ids, mask, types, labels, 3, 4, &batch));
    CHECK(batch.examples == 3 && batch.tokens == 8 && batch.longest == 4);
    CHECK(!memcmp(batch.ids, packed, sizeof packed) && !memcmp(batch.token_types, packed_types, sizeof packed_types));
    CHECK(!memcmp(batch.offsets, offsets, sizeof offsets) && !memcmp(batch.labels, labels, sizeof labels));
    CHECK(accel_batch_from_padded(acc, ids, NULL, NULL, NULL, 3, 4, &batch));
    CHECK(batch.tokens == 12 && !batch.labels && !batch.token_types && !memcmp(batch.ids, ids, sizeof ids));
    CHECK_FINE(acc);
    int32_t hole[] = {1, 0, 1, 0, 1, 0, 0, 0, 1, 1, 1, 1}, empty[] = {1, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1};
    CHECK(!accel_batch_from_padded(acc, ids, hole, NULL, NULL, 3, 4, &batch));
    CHECK_ERROR(acc, ACCEL_BAD_DATA, "0");
    CHECK(!accel_batch_from_padded(acc, ids, empty, NULL, NULL, 3, 4, &batch));
    CHECK_ERROR(acc, ACCEL_BAD_DATA, "1");
    CHECK(!accel_batch_from_padded(acc, NULL, NULL, NULL, NULL, 3, 4, &batch));
    CHECK(accel_failed(acc));
    accel_clear(acc);
    CHECK(!accel_batch_from_padded(acc, ids, NULL, NULL, NULL, 0, 4, &batch));
    CHECK(accel_failed(acc));
    accel_destroy(acc);
}

TEST(unpacking) {
    accel_t *acc = context();
    int32_t ids[12] = {0}, mask[] = {1, 1, 1, 0, 1, 0, 0, 0, 1, 1, 0, 0};
    accel_batch batch;
    CHECK(accel_batch_from_padded(acc, ids, mask, NULL, NULL, 3, 4, &batch));
    accel_tensor packed = random_tensor(acc, accel_2d(6, 5), 1, 2, 1);
    accel_set_requires_grad(packed, true);
    accel_tensor padded = accel_unpack(packed, &batch);
    CHECK(same_shape(accel_shape_of(padded), accel_3d(3, 3, 5)));
    float *in = values_of(packed), *out = values_of(padded);
    int rows[9] = {0, 1, 2, 3, -1, -1, 4, 5, -1};
    for (int r = 0; r < 9; r++)
        for (int i = 0; i < 5; i++) CHECK(out[r * 5 + i] == (rows[r] < 0 ? 0 : in[rows[r] * 5 + i]));
    accel_backward(acc, accel_sum(accel_mul(padded, padded)));
    float *grad = grad_of(packed);
    for (int i = 0; i < 30; i++) CHECK_NEAR(grad[i], 2 * in[i], 1e-6);
    free(in), free(out), free(grad);
    CHECK_FINE(acc);
    CHECK(!accel_valid(accel_unpack(accel_full(acc, accel_2d(5, 5), 1), &batch)));
    CHECK_ERROR(acc, ACCEL_BAD_SHAPE, "unpack");
    accel_destroy(acc);
}

int main(int argc, char **argv) {
    return test_main(argc, argv);
}
