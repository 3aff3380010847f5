/* The graph: what flows where, how several backward calls and micro-batches add up. Numbers are chosen so that float32
   is exact. */
#define ACCEL_IMPLEMENTATION
#include "accel.h"
#include "test.h"
#include "helpers.h"

/* A leaf [n] of 1, 2, 3, ... that wants its gradient. */
static accel_tensor leaf(accel_t *acc, int n) {
    float values[64];
    for (int i = 0; i < n; i++) values[i] = (float)(i + 1);
    accel_tensor x = accel_from_floats(acc, accel_1d(n), values);
    accel_set_requires_grad(x, true);
    return x;
}

/* A model with one parameter "w" [3] = 1, 2, 3. */
static accel_model *three(accel_t *acc, accel_tensor *w) {
    accel_model *model = accel_model_create(acc, "three");
    *w = accel_parameter(model, "w", accel_1d(3));
    accel_write(*w, (float[]){1, 2, 3}, 3);
    return model;
}

#define CHECK_GRAD(x, ...)                                                                       \
    do {                                                                                         \
        double expected_grad[] = {__VA_ARGS__};                                                  \
        CHECK_NEAR(grad_error((x), expected_grad, COUNT(expected_grad)), 0, 1e-6);               \
    } while (0)

TEST(two_backward_calls_add_up) {
    accel_t *acc = context();
    accel_tensor x = leaf(acc, 3), loss = accel_sum(accel_mul(x, x));
    accel_backward(acc, loss);
    CHECK_GRAD(x, 2, 4, 6);
    accel_backward(acc, loss); /* the graph is still there */
    CHECK_GRAD(x, 4, 8, 12);
    accel_backward(acc, accel_sum(x)); /* another loss */
    CHECK_GRAD(x, 5, 9, 13);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(a_tensor_used_twice) {
    accel_t *acc = context();
    accel_tensor x = leaf(acc, 2), y = accel_scale(x, 3);
    accel_backward(acc, accel_sum(accel_add(accel_mul(y, y), y))); /* 9 x^2 + 3 x */
    CHECK_GRAD(x, 21, 39);
    accel_tensor z = leaf(acc, 2);
    accel_backward(acc, accel_sum(accel_add(z, z)));
    CHECK_GRAD(z, 2, 2);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(diamonds) {
    accel_t *acc = context();
    accel_tensor x = leaf(acc, 2), top = x;
    for (int i = 0; i < 10; i++) { /* 2^10 paths; each level is visited once */
        accel_tensor left = accel_scale(top, 2), right = accel_scale(top, 3);
        top = accel_sub(left, right); /* -top */
        top = accel_add(top, accel_scale(top, 1)); /* -2 top */
    }
    accel_backward(acc, accel_sum(top));
    CHECK_GRAD(x, 1024, 1024);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(branches_of_different_depth) {
    accel_t *acc = context();
    accel_tensor x = leaf(acc, 3), deep = x;
    for (int i = 0; i < 7; i++) deep = accel_scale(deep, 2);
    accel_tensor loss = accel_sum(accel_add(accel_mul(x, deep), x)); /* 128 x^2 + x */
    accel_backward(acc, loss);
    CHECK_GRAD(x, 257, 513, 769);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

/* A chain as long as this must not recurse over the stack. */
TEST(a_very_deep_graph) {
    accel_t *acc = context_of((accel_desc){.threads = 1}, NULL);
    accel_tensor x = leaf(acc, 1), y = x;
    for (int i = 0; i < 20000; i++) y = accel_add(y, x);
    accel_backward(acc, accel_sum(y));
    CHECK_GRAD(x, 20001);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(only_scalars_have_a_backward) {
    accel_t *acc = context();
    accel_tensor x = leaf(acc, 3), y = accel_scale(x, 2);
    accel_backward(acc, y);
    CHECK_TEXT(accel_message(acc), "3");
    CHECK_ERROR(acc, ACCEL_BAD_SHAPE, "accel_backward");
    CHECK_GRAD(x, 0, 0, 0);
    accel_backward(acc, accel_reshape(accel_sum(y), accel_2d(1, 1))); /* one element is a scalar */
    CHECK_GRAD(x, 2, 2, 2);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(leaves_want_no_gradient_unless_told) {
    accel_t *acc = context();
    accel_tensor x = leaf(acc, 2), y = accel_from_floats(acc, accel_1d(2), (float[]){5, 7});
    accel_backward(acc, accel_sum(accel_mul(x, y)));
    CHECK_GRAD(x, 5, 7);
    CHECK_GRAD(y, 0, 0);
    accel_set_requires_grad(x, false), accel_set_requires_grad(y, true);
    accel_backward(acc, accel_sum(accel_mul(x, y)));
    CHECK_GRAD(x, 5, 7);
    CHECK_GRAD(y, 1, 2);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(a_gradient_reaches_leaves_and_parameters_alike) {
    accel_t *acc = context();
    accel_tensor w, x = leaf(acc, 3);
    three(acc, &w);
    accel_backward(acc, accel_sum(accel_mul(accel_mul(w, w), x)));
    CHECK_GRAD(w, 2, 8, 18);
    CHECK_GRAD(x, 1, 4, 9);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(asking_for_a_gradient_with_a_wrong_count) {
    accel_t *acc = context();
    accel_tensor x = leaf(acc, 3);
    float grad[4];
    CHECK(!accel_grad(x, grad, 4));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "accel_grad");
    accel_destroy(acc);
}

TEST(detach_and_keep_cut_the_graph) {
    accel_t *acc = context();
    accel_tensor w;
    three(acc, &w);
    accel_tensor square = accel_mul(w, w), kept = accel_keep(accel_mul(w, w));
    accel_backward(acc, accel_sum(accel_mul(w, accel_detach(square))));
    CHECK_GRAD(w, 1, 4, 9);
    accel_backward(acc, accel_sum(accel_mul(w, kept)));
    CHECK_GRAD(w, 2, 8, 18);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(keeping_and_releasing_between_forward_and_backward) {
    accel_t *acc = context();
    accel_tensor w;
    three(acc, &w);
    accel_tensor square = accel_mul(w, w), cube = accel_mul(square, w), kept = accel_keep(square);
    accel_tensor loss = accel_sum(accel_add(cube, accel_mul(kept, w))); /* 3 w^2, and w^2 through the kept one */
    accel_release(kept);
    accel_backward(acc, loss);
    CHECK_GRAD(w, 4, 16, 36);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(evaluation_records_no_graph) {
    accel_t *acc = context();
    accel_tensor w;
    three(acc, &w);
    accel_eval_begin(acc);
    accel_tensor kept = accel_keep(accel_mul(w, w));
    accel_eval_end(acc);
    accel_backward(acc, accel_sum(accel_mul(w, kept)));
    CHECK_GRAD(w, 1, 4, 9);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

/* An embedding whose table is the output layer as well (tied weights): the gradient is the sum of both uses. */
TEST(tied_weights) {
    accel_t *acc = context();
    accel_model *tied = accel_model_create(acc, "tied"), *apart = accel_model_create(acc, "apart");
    accel_tensor table = accel_parameter_normal(tied, "table", accel_2d(5, 3), 1);
    accel_tensor in = accel_parameter(apart, "in", accel_2d(5, 3)), out = accel_parameter(apart, "out", accel_2d(5, 3));
    float *values = values_of(table);
    CHECK(accel_write(in, values, 15) && accel_write(out, values, 15));
    accel_tensor ids = accel_from_ints(acc, accel_1d(3), (int32_t[]){2, 4, 2}), none = {0};
    accel_backward(acc, accel_cross_entropy(accel_linear(accel_embedding(table, ids, -1), table, none), ids, NULL));
    accel_backward(acc, accel_cross_entropy(accel_linear(accel_embedding(in, ids, -1), out, none), ids, NULL));
    float *a = grad_of(in), *b = grad_of(out);
    double sum[15];
    for (int i = 0; i < 15; i++) sum[i] = (double)a[i] + b[i];
    CHECK(grad_error(table, sum, 15) < 1e-6);
    free(values), free(a), free(b);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(frozen_parameters_get_no_gradient) {
    accel_t *acc = context();
    accel_model *model = accel_model_create(acc, "m");
    accel_tensor a = accel_parameter_normal(model, "body.weight", accel_1d(3), 1),
                 b = accel_parameter_normal(model, "head.weight", accel_1d(3), 1);
    CHECK(accel_model_requires_grad(model, "body*", false) == 1);
    accel_backward(acc, accel_sum(accel_add(accel_scale(a, 2), accel_scale(b, 3))));
    CHECK_GRAD(a, 0, 0, 0);
    CHECK_GRAD(b, 3, 3, 3);
    CHECK(accel_model_requires_grad(model, "*.weight", true) == 2);
    accel_backward(acc, accel_sum(accel_add(accel_scale(a, 2), accel_scale(b, 3))));
    CHECK_GRAD(a, 2, 2, 2);
    CHECK_GRAD(b, 6, 6, 6);
    CHECK(accel_model_requires_grad(model, "nothing,*.bias", true) == 0);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

/* ---- pooling by weight ---- */

TEST(one_micro_batch_shows_the_plain_gradient_whatever_its_weight) {
    accel_t *acc = context();
    accel_tensor x = leaf(acc, 2);
    accel_set_weight(acc, 7);
    accel_backward(acc, accel_sum(accel_mul(x, x)));
    CHECK_GRAD(x, 2, 4);
    accel_begin(acc);
    accel_tensor a = leaf(acc, 4); /* mse's divisor is 4: the gradient is 2 a / 4 */
    accel_backward(acc, accel_mse(a, accel_full(acc, accel_1d(4), 0)));
    CHECK_GRAD(a, 0.5, 1, 1.5, 2);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(micro_batches_are_pooled_by_weight) {
    accel_t *acc = context_of((accel_desc){.threads = 2, .accumulate = 2}, NULL);
    accel_tensor w;
    three(acc, &w);
    accel_set_weight(acc, 1);
    accel_backward(acc, accel_sum(accel_mul(w, w))); /* 2, 4, 6 */
    CHECK_GRAD(w, 2, 4, 6);
    accel_begin(acc);
    accel_set_weight(acc, 3);
    accel_backward(acc, accel_sum(w)); /* 1, 1, 1 */
    CHECK_GRAD(w, 1.25, 1.75, 2.25); /* (1 g1 + 3 g2) / 4 */
    CHECK_FINE(acc);
    accel_destroy(acc);
}

/* Half of a batch's rows twice is the batch: mean squared error over 2 and over 6 elements. */
TEST(a_loss_sets_its_divisor_as_the_weight) {
    accel_t *acc = context_of((accel_desc){.threads = 2, .accumulate = 2}, NULL);
    accel_tensor w, target;
    three(acc, &w);
    target = accel_full(acc, accel_1d(3), 0);
    accel_backward(acc, accel_mse(w, target)); /* weight 3, gradient 2 w / 3 */
    accel_begin(acc);
    accel_tensor one = accel_slice(w, 0, 0, 1);
    accel_backward(acc, accel_mse(one, accel_full(acc, accel_1d(1), 0))); /* weight 1, gradient 2, 0, 0 */
    CHECK_GRAD(w, 4 / 4.0, 4 / 4.0, 6 / 4.0);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

/* A GAN's real and fake losses in one micro-batch: a plain sum, as in PyTorch; the weight is the first loss's. */
TEST(several_losses_in_one_micro_batch) {
    accel_t *acc = context_of((accel_desc){.threads = 2, .accumulate = 2}, NULL);
    accel_tensor w;
    three(acc, &w);
    accel_tensor zero = accel_full(acc, accel_1d(3), 0), one = accel_full(acc, accel_1d(1), 0);
    accel_backward(acc, accel_mse(w, zero)); /* 2 w / 3, weight 3 */
    accel_backward(acc, accel_mse(accel_slice(w, 0, 2, 3), one)); /* 0, 0, 6 */
    CHECK_GRAD(w, 2 / 3.0, 4 / 3.0, 8);
    accel_begin(acc);
    accel_set_weight(acc, 9);
    accel_backward(acc, accel_sum(w));
    CHECK_GRAD(w, (3 * 2 / 3.0 + 9) / 12, (3 * 4 / 3.0 + 9) / 12, (3 * 8 + 9) / 12.0);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

/* The first backward fixes the weight: a penalty's before the loss is made counts as the loss's own would. */
TEST(a_backward_before_the_first_loss) {
    accel_t *acc = context();
    accel_tensor w;
    three(acc, &w);
    accel_backward(acc, accel_sum(w));
    accel_backward(acc, accel_mse(w, accel_full(acc, accel_1d(3), 0))); /* 2 w / 3 */
    CHECK_GRAD(w, 1 + 2 / 3.0, 1 + 4 / 3.0, 3);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(a_forward_without_backward_leaves_no_weight_behind) {
    accel_t *acc = context_of((accel_desc){.threads = 2, .accumulate = 2}, NULL);
    accel_tensor w;
    three(acc, &w);
    accel_mse(w, accel_full(acc, accel_1d(3), 0)); /* a batch that is left out, of weight 3 */
    accel_begin(acc);
    accel_backward(acc, accel_mse(accel_slice(w, 0, 0, 1), accel_full(acc, accel_1d(1), 0))); /* 2, 0, 0; weight 1 */
    accel_begin(acc);
    accel_backward(acc, accel_mse(w, accel_full(acc, accel_1d(3), 0))); /* 2 w / 3, weight 3 */
    CHECK_GRAD(w, 1, 1, 1.5);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(a_parameter_that_misses_a_micro_batch) {
    accel_t *acc = context_of((accel_desc){.threads = 2, .accumulate = 2}, NULL);
    accel_model *model = accel_model_create(acc, "m");
    accel_tensor a = accel_parameter(model, "a", accel_1d(2)), b = accel_parameter(model, "b", accel_1d(2));
    accel_backward(acc, accel_sum(accel_add(a, b)));
    accel_begin(acc);
    accel_backward(acc, accel_sum(a)); /* b is not in this one: its pooled gradient is half, as in a full batch */
    CHECK_GRAD(a, 1, 1);
    CHECK_GRAD(b, 0.5, 0.5);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(zero_grad_without_an_optimizer) {
    accel_t *acc = context();
    accel_tensor w;
    accel_model *model = three(acc, &w);
    accel_backward(acc, accel_sum(accel_mul(w, w)));
    accel_model_zero_grad(model);
    CHECK_GRAD(w, 0, 0, 0);
    accel_begin(acc);
    accel_backward(acc, accel_sum(w)); /* the weight was dropped too: no half gradient */
    CHECK_GRAD(w, 1, 1, 1);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(an_all_ignored_micro_batch_adds_nothing) {
    accel_t *acc = context_of((accel_desc){.threads = 2, .accumulate = 2}, NULL);
    accel_model *model = accel_model_create(acc, "m");
    accel_tensor w = accel_parameter_normal(model, "w", accel_2d(2, 3), 1);
    accel_backward(acc, accel_cross_entropy(w, accel_from_ints(acc, accel_1d(2), (int32_t[]){1, 2}), NULL));
    float *before = grad_of(w);
    accel_begin(acc);
    accel_backward(
        acc, accel_cross_entropy(w, accel_from_ints(acc, accel_1d(2), (int32_t[]){ACCEL_IGNORE, ACCEL_IGNORE}), NULL));
    float *after = grad_of(w);
    CHECK(before[0] != 0 && memcmp(before, after, 6 * sizeof *before) == 0);
    free(before), free(after);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(bad_weights_are_errors) {
    accel_t *acc = context();
    double bad[] = {-1, NAN, INFINITY};
    for (int i = 0; i < COUNT(bad); i++) {
        accel_set_weight(acc, bad[i]);
        CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "weight");
    }
    accel_set_accumulate(acc, 0);
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "accumulate");
    accel_destroy(acc);
}

TEST(backward_on_a_bare_loss_without_prepare_or_parameters) {
    accel_t *acc = context();
    accel_backward(acc, accel_full(acc, accel_0d(), 3)); /* nothing to do is no crash */
    accel_clear(acc);
    accel_tensor x = leaf(acc, 2);
    accel_backward(acc, accel_sum(accel_mul(x, x)));
    CHECK_GRAD(x, 2, 4);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(backward_on_a_stale_loss_is_an_error) {
    accel_t *acc = context();
    accel_tensor w;
    three(acc, &w);
    accel_tensor loss = accel_sum(w);
    accel_begin(acc);
    accel_backward(acc, loss);
    CHECK_ERROR(acc, ACCEL_BAD_STATE, "accel_backward");
    CHECK_GRAD(w, 0, 0, 0);
    accel_destroy(acc);
}

TEST(parameters_can_be_written_between_steps) {
    accel_t *acc = context();
    accel_tensor w;
    accel_model *model = three(acc, &w);
    accel_backward(acc, accel_sum(accel_mul(w, w)));
    accel_begin(acc);
    accel_model_zero_grad(model);
    CHECK(accel_write(w, (float[]){10, 20, 30}, 3));
    accel_backward(acc, accel_sum(accel_mul(w, w)));
    CHECK_GRAD(w, 20, 40, 60);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

int main(int argc, char **argv) {
    return test_main(argc, argv);
}
