/* Shapes, values, random numbers, scopes and lifetimes of tensors. */
#define ACCEL_IMPLEMENTATION
#include "accel.h"
#include "test.h"
#include "helpers.h"

TEST(shapes_of_every_rank) {
    accel_shape shapes[] = {accel_0d(), accel_1d(7), accel_2d(7, 1), accel_3d(2, 1, 5), accel_4d(2, 3, 4, 5)};
    int64_t counts[] = {1, 7, 7, 10, 120};
    accel_t *acc = context();
    for (int rank = 0; rank <= 4; rank++) {
        CHECK(shapes[rank].rank == rank);
        for (int axis = rank; axis < 4; axis++) CHECK(shapes[rank].dim[axis] == 1);
        accel_tensor x = accel_from_floats(acc, shapes[rank], NULL);
        CHECK(accel_valid(x));
        CHECK(accel_count(x) == counts[rank]);
        CHECK(same_shape(accel_shape_of(x), shapes[rank]));
        CHECK(accel_type_of(x) == ACCEL_FLOAT32);
    }
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(values_go_in_and_out) {
    accel_t *acc = context();
    float in[6] = {1, -2, 0.5f, 1e30f, -0.0f, 7}, out[6];
    accel_tensor x = accel_from_floats(acc, accel_2d(2, 3), in);
    in[0] = 99; /* the values were copied */
    CHECK(accel_read(x, out, 6));
    CHECK(out[0] == 1 && out[3] == 1e30f && signbit(out[4]) && out[5] == 7);
    CHECK(accel_write(x, in, 6) && accel_read(x, out, 6) && out[0] == 99);

    accel_tensor zeros = accel_from_floats(acc, accel_1d(3), NULL), full = accel_full(acc, accel_1d(3), -1.5f);
    CHECK(accel_read(zeros, out, 3) && out[0] == 0 && out[2] == 0);
    CHECK(accel_read(full, out, 3) && out[0] == -1.5f && out[2] == -1.5f);
    CHECK(accel_item(accel_full(acc, accel_0d(), 3)) == 3);
    CHECK(accel_item(accel_full(acc, accel_3d(1, 1, 1), 4)) == 4);

    accel_tensor ids = accel_from_ints(acc, accel_1d(2), (int32_t[]){3, -4});
    CHECK(accel_type_of(ids) == ACCEL_INT32 && accel_count(ids) == 2);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(reading_with_a_wrong_count_or_type_is_an_error) {
    accel_t *acc = context();
    accel_tensor x = accel_full(acc, accel_1d(3), 1), ids = accel_from_ints(acc, accel_1d(3), NULL);
    float values[4] = {8, 8, 8, 8};
    CHECK(!accel_read(x, values, 4));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "accel_read");
    CHECK(!accel_read(x, values, 2));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "3");
    CHECK(!accel_write(x, values, 4));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "accel_write");
    CHECK(!accel_read(ids, values, 3));
    CHECK(accel_failed(acc));
    accel_clear(acc);
    CHECK(isnan(accel_item(x)));
    CHECK_ERROR(acc, ACCEL_BAD_SHAPE, "accel_item");
    CHECK(values[0] == 8);
    accel_destroy(acc);
}

TEST(impossible_shapes_are_errors) {
    accel_shape bad[] = {accel_1d(0),
                         accel_1d(-1),
                         accel_2d(3, 0),
                         accel_3d(1, -2, 3),
                         {.rank = 5, .dim = {1, 1, 1, 1}},
                         {.rank = -1, .dim = {1, 1, 1, 1}},
                         {.rank = 1, .dim = {3, 4, 1, 1}},
                         accel_4d(65536, 65536, 65536, 65536),
                         accel_4d(46341, 46341, 46341, 2)};
    accel_t *acc = context();
    for (int i = 0; i < COUNT(bad); i++) {
        CHECK(!accel_valid(accel_from_floats(acc, bad[i], NULL)));
        CHECK(accel_failed(acc));
        accel_clear(acc);
        CHECK(!accel_valid(accel_full(acc, bad[i], 1)));
        CHECK(accel_failed(acc));
        accel_clear(acc);
    }
    CHECK(accel_item(accel_full(acc, accel_0d(), 5)) == 5); /* still usable */
    accel_destroy(acc);
}

TEST(the_null_tensor) {
    accel_tensor null = {0};
    float value = 6;
    CHECK(!accel_valid(null));
    CHECK(accel_count(null) == 0);
    CHECK(accel_shape_of(null).rank == 0 && accel_shape_of(null).dim[0] == 0);
    CHECK(isnan(accel_item(null)));
    CHECK(!accel_read(null, &value, 1) && value == 6);
    CHECK(!accel_write(null, &value, 1));
    accel_release(null);
    accel_set_requires_grad(null, true);
    CHECK(!accel_valid(accel_keep(null)));
}

/* Mean, variance and fourth moment of 40000 numbers; five standard deviations of each estimate. */
TEST(random_numbers_have_the_right_distribution) {
    accel_t *acc = context();
    enum { N = 40000 };
    float *normal = values_of(accel_randn(acc, accel_2d(200, 200))), *uniform = values_of(accel_rand(acc, accel_1d(N)));
    double mean = 0, square = 0, fourth = 0, average = 0, spread = 0, low = 1, high = 0;
    for (int i = 0; i < N; i++) {
        mean += normal[i] / (double)N, square += (double)normal[i] * normal[i] / N, fourth += pow(normal[i], 4) / N;
        average += uniform[i] / (double)N, spread += pow(uniform[i] - 0.5, 2) / N;
        low = fmin(low, uniform[i]), high = fmax(high, uniform[i]);
    }
    CHECK_NEAR(mean, 0, 5 / sqrt(N));
    CHECK_NEAR(square, 1, 5 * sqrt(2.0 / N));
    CHECK_NEAR(fourth, 3, 5 * sqrt(96.0 / N));
    CHECK_NEAR(average, 0.5, 5 * sqrt(1.0 / 12 / N));
    CHECK_NEAR(spread, 1.0 / 12, 5 * sqrt(1.0 / 180 / N));
    CHECK(low >= 0 && low < 1e-3 && high < 1 && high > 1 - 1e-3);
    free(normal), free(uniform);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(random_numbers_are_counted) {
    accel_t *acc = context(), *other = context_of((accel_desc){.threads = 1, .seed = 1}, NULL);
    accel_shape shape = accel_1d(9);
    accel_tensor first = accel_keep(accel_randn(acc, shape)), second = accel_keep(accel_randn(acc, shape));
    accel_tensor elsewhere = accel_randn(other, shape);
    CHECK(!same_values(first, second));
    CHECK(!same_values(first, elsewhere));
    accel_begin(acc); /* the same step, counted from its begin again */
    CHECK(same_values(accel_randn(acc, shape), first));
    CHECK(same_values(accel_randn(acc, shape), second));
    CHECK(!same_values(accel_rand(acc, shape), second));
    accel_set_seed(acc, 1);
    CHECK(accel_seed(acc) == 1);
    accel_begin(acc);
    CHECK(same_values(accel_randn(acc, shape), elsewhere));
    accel_destroy(acc), accel_destroy(other);
}

TEST(a_longer_random_tensor_begins_like_a_shorter_one) {
    accel_t *acc = context();
    accel_tensor longer = accel_keep(accel_rand(acc, accel_1d(500)));
    accel_begin(acc);
    accel_tensor shorter = accel_rand(acc, accel_1d(7));
    CHECK(same_values(accel_slice(longer, 0, 0, 7), shorter));
    accel_destroy(acc);
}

TEST(results_live_until_their_scope_ends) {
    accel_t *acc = context();
    float value;
    accel_tensor x = accel_full(acc, accel_1d(1), 2), y = accel_scale(x, 3);
    CHECK(accel_item(y) == 6);
    accel_begin(acc);
    CHECK(!accel_valid(y));
    CHECK(accel_count(y) == 0);
    CHECK_FINE(acc); /* asking is no error, using is */
    CHECK(!accel_read(y, &value, 1));
    CHECK_ERROR(acc, ACCEL_BAD_STATE, "scope");
    accel_tensor sum = accel_add(x, accel_full(acc, accel_1d(1), 1));
    CHECK(!accel_valid(sum));
    CHECK_ERROR(acc, ACCEL_BAD_STATE, "accel_add");
    CHECK(isnan(accel_item(y)));
    CHECK_ERROR(acc, ACCEL_BAD_STATE, "scope");
    accel_destroy(acc);
}

TEST(keep_and_release) {
    accel_t *acc = context();
    accel_tensor view = accel_reshape(accel_full(acc, accel_1d(6), 7), accel_2d(2, 3));
    accel_tensor kept = accel_keep(view), other = accel_keep(accel_scale(view, 2));
    CHECK(kept.acc == view.acc && kept.id == view.id);
    for (int i = 0; i < 5; i++) {
        accel_begin(acc);
        accel_full(acc, accel_1d(100 + i), -1); /* must not lie where the kept ones do */
    }
    CHECK(accel_item(accel_mean(kept)) == 7 && accel_item(accel_mean(other)) == 14);
    accel_release(kept); /* goes with the scope: the graph may still need it */
    accel_begin(acc);
    CHECK(!accel_valid(kept) && accel_valid(other));
    CHECK(!accel_valid(accel_scale(kept, 2)));
    CHECK_ERROR(acc, ACCEL_BAD_STATE, "accel_scale");
    CHECK(accel_item(accel_mean(other)) == 14);
    accel_destroy(acc);
}

TEST(evaluation_has_a_scope_of_its_own) {
    accel_t *acc = context();
    accel_tensor outer = accel_full(acc, accel_1d(1), 2);
    accel_eval_begin(acc);
    accel_tensor inner = accel_scale(outer, 3);
    CHECK(accel_item(inner) == 6);
    accel_eval_begin(acc); /* nested */
    CHECK(accel_item(accel_add(inner, outer)) == 8);
    accel_eval_end(acc);
    CHECK(accel_item(accel_add(inner, outer)) == 8);
    accel_begin(acc); /* ends the evaluation's scope only */
    CHECK(!accel_valid(inner));
    accel_tensor kept = accel_keep(accel_scale(outer, 5)), gone = accel_scale(outer, 4);
    accel_eval_end(acc);
    CHECK(accel_valid(outer) && accel_item(outer) == 2);
    CHECK(!accel_valid(gone));
    CHECK(accel_item(kept) == 10);
    CHECK_FINE(acc);
    accel_eval_end(acc); /* one too many */
    CHECK(accel_failed(acc));
    accel_destroy(acc);
}

TEST(evaluation_in_mid_step_harms_nothing) {
    accel_t *acc = context();
    accel_tensor x = accel_full(acc, accel_1d(3), 2);
    accel_set_requires_grad(x, true);
    accel_tensor loss = accel_sum(accel_mul(x, x)), noise = accel_randn(acc, accel_1d(5));
    for (int i = 0; i < 3; i++) {
        accel_eval_begin(acc);
        accel_randn(acc, accel_1d(1000 << i));
        accel_sum(accel_mul(x, x));
        accel_eval_end(acc);
    }
    accel_backward(acc, loss);
    CHECK_NEAR(first_grad(x), 4, 0);
    accel_tensor after = accel_keep(accel_randn(acc, accel_1d(5)));
    CHECK(accel_valid(noise) && !same_values(noise, after));
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(evaluation_in_mid_step_draws_no_random_numbers_of_the_step) {
    accel_t *acc = context();
    accel_tensor ones = accel_keep(accel_full(acc, accel_2d(9, 9), 1));
    accel_tensor first = accel_keep(accel_dropout(ones, 0.5f)), second = accel_keep(accel_randn(acc, accel_1d(9)));
    accel_begin(acc);
    CHECK(same_values(accel_dropout(ones, 0.5f), first));
    accel_eval_begin(acc);
    accel_randn(acc, accel_1d(100)), accel_dropout(ones, 0.5f), accel_rand(acc, accel_1d(4));
    accel_eval_end(acc);
    CHECK(same_values(accel_randn(acc, accel_1d(9)), second));
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(many_tensors_and_many_scopes) {
    accel_t *acc = context();
    for (int round = 0; round < 20; round++) {
        accel_begin(acc);
        accel_tensor sum = accel_full(acc, accel_0d(), 0);
        for (int i = 0; i < 500; i++) sum = accel_add(sum, accel_full(acc, accel_1d(1 + i % 7), 1));
        CHECK(!accel_valid(sum)); /* 2 + 3 do not broadcast */
        accel_clear(acc);
        sum = accel_full(acc, accel_0d(), 0);
        for (int i = 0; i < 500; i++) sum = accel_add(sum, accel_full(acc, accel_0d(), 1));
        CHECK(accel_item(sum) == 500);
    }
    accel_destroy(acc);
}

int main(int argc, char **argv) {
    return test_main(argc, argv);
}
