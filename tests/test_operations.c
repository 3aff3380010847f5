/* Every operation: forward values against float64 references written here, gradients against central differences, and
   shapes that do not fit.

   Tolerances. Errors are relative to max(1, |expected|). One float32 rounding is 6e-8 of the value; an element-wise
   function may err by some of them: 1e-6. Sums of up to 300 products of numbers up to 1, whose partial sums reach 20,
   were measured to err by 5e-6 at most: 1e-5 holds for any order of summation. Gradients: accel_gradient_check's own
   rounding error is about 1e-5 / the result's size; 2e-3 of the largest gradient finds any wrong factor, sign or index.
 */
#define ACCEL_IMPLEMENTATION
#include "accel.h"
#include "test.h"
#include "helpers.h"

#define ELEMENT 1e-6
#define SUMMED 1e-5

static const int widths[] = {1, 7, 17, 33, 100, 257};

/* Reports a value that is too far away under the operation's name. */
static void check_error(const char *what, int size, double error, double tolerance) {
    if (error <= tolerance) return;
    test_faults++;
    printf("  %s (size %d): error %g\n", what, size, error);
}

typedef accel_tensor build_function(accel_t *acc, const accel_tensor *inputs, void *user);

enum { MOST_INPUTS = 4 };

/* An operation used twice on the same operands, which are used a third time beside it: gradients add up, whichever
 * comes first. */
typedef struct reuse {
    build_function *fn;
    void *user;
    int count;
    bool intermediate; /* the operands are results themselves, not parameters */
} reuse;

static accel_tensor build_reuse(accel_t *acc, const accel_tensor *inputs, void *user) {
    const reuse *r = user;
    accel_tensor x[MOST_INPUTS], total = accel_full(acc, accel_0d(), 0);
    for (int i = 0; i < r->count; i++) x[i] = r->intermediate ? accel_scale(inputs[i], 1) : inputs[i];
    accel_tensor first = r->fn(acc, x, r->user), second = r->fn(acc, x, r->user);
    for (int i = 0; i < r->count; i++) total = accel_add(total, accel_mean(accel_mul(x[i], x[i])));
    return accel_add(total, accel_add(accel_mean(accel_mul(first, first)), accel_scale(accel_mean(second), 0.5f)));
}

static void check_gradient_once(const char *what, const char *how, build_function *fn, void *user, int count,
                                const accel_shape *shapes, double low, double high) {
    accel_t *acc = context();
    accel_model *model = accel_model_create(acc, "inputs");
    accel_tensor inputs[MOST_INPUTS];
    for (int i = 0; i < count; i++) {
        char name[32];
        snprintf(name, sizeof name, "input.%d", i);
        inputs[i] = accel_parameter(model, name, shapes[i]);
        float *values = random_floats(accel_count(inputs[i]), low, high, 77 + (uint64_t)i);
        accel_write(inputs[i], values, accel_count(inputs[i]));
        free(values);
    }
    float error = accel_gradient_check(acc, fn, inputs, count, user, NULL);
    if (!(error < 2e-3f) || accel_failed(acc)) {
        test_faults++;
        printf("  gradient of %s%s: error %g %s\n", what, how, error, accel_message(acc));
    }
    accel_destroy(acc);
}

/* Checks the gradient of fn at inputs of these shapes, drawn from [low, high). */
static void check_gradient(const char *what, build_function *fn, void *user, int count, const accel_shape *shapes,
                           double low, double high) {
    reuse again = {fn, user, count, false}, inside = {fn, user, count, true};
    check_gradient_once(what, "", fn, user, count, shapes, low, high);
    check_gradient_once(what, " used twice", build_reuse, &again, count, shapes, low, high);
    check_gradient_once(what, " used twice on results", build_reuse, &inside, count, shapes, low, high);
}

/* ---- element by element ---- */

typedef struct unary {
    const char *name;
    accel_tensor (*run)(accel_tensor);
    double (*reference)(double);
    double low, high;
} unary;

static accel_tensor run_leaky_relu(accel_tensor x) { return accel_leaky_relu(x, 0.2f); }
static accel_tensor run_scale(accel_tensor x) { return accel_scale(x, -1.75f); }
static double relu(double x) { return x > 0 ? x : 0; }
static double leaky_relu(double x) { return x > 0 ? x : (double)0.2f * x; }
static double gelu(double x) { return 0.5 * x * erfc(-x / sqrt(2)); }
static double gelu_tanh(double x) { return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x))); }
static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double scaled(double x) { return -1.75 * x; }

static const unary unaries[] = {
    {"exp", accel_exp, exp, -3, 2},
    {"log", accel_log, log, 0.3, 4},
    {"sqrt", accel_sqrt, sqrt, 0.3, 4},
    {"relu", accel_relu, relu, -3, 3},
    {"leaky_relu", run_leaky_relu, leaky_relu, -3, 3},
    {"gelu", accel_gelu, gelu, -6, 6},
    {"gelu_tanh", accel_gelu_tanh, gelu_tanh, -6, 6},
    {"tanh", accel_tanh, tanh, -4, 4},
    {"sigmoid", accel_sigmoid, sigmoid, -6, 6},
    {"scale", run_scale, scaled, -3, 3},
};

TEST(element_wise_functions) {
    accel_t *acc = context();
    for (int u = 0; u < COUNT(unaries); u++) {
        for (int w = 0; w < COUNT(widths); w++) {
            accel_shape shape = accel_2d(3, widths[w]);
            int64_t count = shape_count(shape);
            accel_tensor x = random_tensor(acc, shape, unaries[u].low, unaries[u].high, 5), y = unaries[u].run(x);
            float *in = values_of(x);
            double *expected = malloc((size_t)count * sizeof *expected);
            for (int64_t i = 0; i < count; i++) expected[i] = unaries[u].reference(in[i]);
            CHECK(same_shape(accel_shape_of(y), shape));
            check_error(unaries[u].name, widths[w], value_error(y, expected, count), ELEMENT);
            free(in), free(expected);
        }
    }
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(element_wise_functions_of_every_rank) {
    accel_shape shapes[] = {accel_0d(), accel_1d(5), accel_2d(3, 5), accel_3d(2, 3, 5), accel_4d(2, 2, 3, 5)};
    accel_t *acc = context();
    for (int u = 0; u < COUNT(unaries); u++) {
        for (int rank = 0; rank <= 4; rank++) {
            accel_tensor x = random_tensor(acc, shapes[rank], unaries[u].low, unaries[u].high, 9),
                         y = unaries[u].run(x);
            float *in = values_of(x), *out = values_of(y);
            CHECK(same_shape(accel_shape_of(y), shapes[rank]));
            int64_t last = shape_count(shapes[rank]) - 1;
            CHECK_NEAR(out[last], unaries[u].reference(in[last]), ELEMENT * fmax(1, fabs(out[last])));
            free(in), free(out);
        }
    }
    CHECK_FINE(acc);
    accel_destroy(acc);
}

/* Far tails and special values: no NaN where the limit exists. */
TEST(element_wise_functions_in_the_tails) {
    accel_t *acc = context();
    float in[6] = {-1e4f, -50, -12, 12, 50, 1e4f};
    accel_tensor x = accel_from_floats(acc, accel_1d(6), in);
    for (int u = 3; u < COUNT(unaries) - 1; u++) {
        double expected[6];
        for (int i = 0; i < 6; i++) expected[i] = unaries[u].reference(in[i]);
        check_error(unaries[u].name, 6, value_error(unaries[u].run(x), expected, 6), ELEMENT);
    }
    accel_tensor edge = accel_from_floats(acc, accel_1d(2), (float[]){0, 200});
    float *e = values_of(accel_exp(edge)), *l = values_of(accel_log(edge)), *s = values_of(accel_sqrt(edge));
    CHECK(e[0] == 1 && isinf(e[1]) && isinf(l[0]) && l[0] < 0 && s[0] == 0);
    accel_tensor nan = accel_full(acc, accel_1d(1), NAN);
    for (int u = 0; u < COUNT(unaries); u++) CHECK(isnan(accel_item(unaries[u].run(nan))));
    free(e), free(l), free(s);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

static accel_tensor build_unary(accel_t *acc, const accel_tensor *inputs, void *user) {
    (void)acc;
    return ((const unary *)user)->run(inputs[0]);
}

TEST(element_wise_gradients) {
    for (int u = 0; u < COUNT(unaries); u++) {
        unary op = unaries[u];
        check_gradient(op.name, build_unary, &op, 1, (accel_shape[]){accel_2d(3, 7)}, fmax(op.low, 0.3),
                       fmin(op.high, 2));
        if (op.low < 0) /* the negative half, without the kink of the ReLUs */
            check_gradient(op.name, build_unary, &op, 1, (accel_shape[]){accel_1d(17)}, -2, -0.3);
    }
}

typedef struct binary {
    const char *name;
    accel_tensor (*run)(accel_tensor, accel_tensor);
    double (*reference)(double, double);
} binary;

static double add(double a, double b) { return a + b; }
static double sub(double a, double b) { return a - b; }
static double mul(double a, double b) { return a * b; }
static double divide(double a, double b) { return a / b; }

static const binary binaries[] = {
    {"add", accel_add, add}, {"sub", accel_sub, sub}, {"mul", accel_mul, mul}, {"div", accel_div, divide}};

typedef struct pair {
    accel_shape a, b, result;
} pair;

TEST(broadcasting) {
    pair pairs[] = {
        {accel_0d(), accel_0d(), accel_0d()},
        {accel_1d(7), accel_1d(7), accel_1d(7)},
        {accel_2d(3, 257), accel_2d(3, 257), accel_2d(3, 257)},
        {accel_2d(33, 100), accel_1d(100), accel_2d(33, 100)},
        {accel_1d(17), accel_2d(7, 17), accel_2d(7, 17)},
        {accel_2d(33, 17), accel_2d(33, 1), accel_2d(33, 17)},
        {accel_2d(1, 5), accel_2d(4, 1), accel_2d(4, 5)},
        {accel_2d(4, 1), accel_2d(1, 5), accel_2d(4, 5)},
        {accel_1d(1), accel_1d(257), accel_1d(257)},
        {accel_0d(), accel_4d(2, 3, 4, 5), accel_4d(2, 3, 4, 5)},
        {accel_3d(2, 3, 7), accel_0d(), accel_3d(2, 3, 7)},
        {accel_4d(2, 1, 4, 5), accel_3d(3, 1, 5), accel_4d(2, 3, 4, 5)},
        {accel_4d(2, 3, 1, 1), accel_4d(1, 1, 4, 5), accel_4d(2, 3, 4, 5)},
        {accel_3d(2, 1, 5), accel_2d(3, 1), accel_3d(2, 3, 5)},
        {accel_4d(1, 3, 1, 5), accel_4d(2, 3, 4, 1), accel_4d(2, 3, 4, 5)},
        {accel_1d(1), accel_4d(1, 1, 1, 1), accel_4d(1, 1, 1, 1)},
    };
    accel_t *acc = context();
    for (int o = 0; o < COUNT(binaries); o++) {
        for (int p = 0; p < COUNT(pairs); p++) {
            accel_tensor a = random_tensor(acc, pairs[p].a, -2, 2, 3), b = random_tensor(acc, pairs[p].b, 0.4, 2, 4);
            accel_tensor c = binaries[o].run(a, b);
            int64_t count = shape_count(pairs[p].result);
            float *x = values_of(a), *y = values_of(b);
            double *expected = malloc((size_t)count * sizeof *expected);
            for (int64_t i = 0; i < count; i++)
                expected[i] = binaries[o].reference(x[broadcast_index(pairs[p].result, i, pairs[p].a)],
                                                    y[broadcast_index(pairs[p].result, i, pairs[p].b)]);
            CHECK(same_shape(accel_shape_of(c), pairs[p].result));
            check_error(binaries[o].name, p, value_error(c, expected, count), ELEMENT);
            free(x), free(y), free(expected);
        }
    }
    CHECK_FINE(acc);
    accel_destroy(acc);
}

static accel_tensor build_binary(accel_t *acc, const accel_tensor *inputs, void *user) {
    (void)acc;
    return ((const binary *)user)->run(inputs[0], inputs[1]);
}

TEST(broadcasting_gradients) {
    accel_shape pairs[][2] = {
        {accel_2d(3, 5), accel_2d(3, 5)},
        {accel_2d(3, 5), accel_1d(5)},
        {accel_1d(5), accel_2d(3, 5)},
        {accel_2d(3, 5), accel_2d(3, 1)},
        {accel_2d(1, 5), accel_2d(4, 1)},
        {accel_0d(), accel_3d(2, 3, 2)},
        {accel_3d(2, 3, 2), accel_0d()},
        {accel_4d(2, 1, 2, 3), accel_3d(3, 1, 3)},
        {accel_3d(2, 1, 3), accel_2d(3, 1)},
        {accel_4d(1, 3, 1, 2), accel_4d(2, 3, 2, 1)},
        {accel_0d(), accel_0d()},
        {accel_1d(1), accel_1d(33)},
    };
    for (int o = 0; o < COUNT(binaries); o++) {
        binary op = binaries[o];
        for (int p = 0; p < COUNT(pairs); p++) check_gradient(op.name, build_binary, &op, 2, pairs[p], 0.5, 2);
    }
}

static accel_tensor build_same_operand(accel_t *acc, const accel_tensor *inputs, void *user) {
    (void)acc;
    return ((const binary *)user)->run(inputs[0], accel_scale(inputs[0], 1.5f));
}

static accel_tensor build_square(accel_t *acc, const accel_tensor *inputs, void *user) {
    (void)acc, (void)user;
    return accel_mul(inputs[0], inputs[0]);
}

TEST(both_operands_depend_on_the_same_input) {
    for (int o = 0; o < COUNT(binaries) - 1; o++) { /* x / 1.5 x is constant */
        binary op = binaries[o];
        check_gradient(op.name, build_same_operand, &op, 1, (accel_shape[]){accel_2d(2, 7)}, 0.5, 2);
    }
    check_gradient("square", build_square, NULL, 1, (accel_shape[]){accel_2d(2, 7)}, -2, 2);
}

TEST(operands_that_do_not_broadcast) {
    accel_t *acc = context();
    accel_tensor a = accel_full(acc, accel_2d(3, 5), 1), b = accel_full(acc, accel_1d(4), 1),
                 c = accel_full(acc, accel_2d(5, 3), 1);
    accel_tensor ids = accel_from_ints(acc, accel_1d(5), NULL);
    for (int o = 0; o < COUNT(binaries); o++) {
        CHECK(!accel_valid(binaries[o].run(a, b)));
        CHECK(accel_error(acc) == ACCEL_BAD_SHAPE);
        CHECK_TEXT(accel_message(acc), "3, 5");
        CHECK_TEXT(accel_message(acc), "4");
        CHECK_ERROR(acc, ACCEL_BAD_SHAPE, binaries[o].name);
        CHECK(!accel_valid(binaries[o].run(c, a)));
        CHECK_ERROR(acc, ACCEL_BAD_SHAPE, "5, 3");
        CHECK(!accel_valid(binaries[o].run(a, ids)));
        CHECK(accel_failed(acc));
        accel_clear(acc);
    }
    accel_destroy(acc);
}

/* ---- matmul and linear ---- */

/* c[batch, m, n] in float64; an operand with step 0 is the same for every batch. */
static double *reference_matmul(const float *a, bool at, int64_t a_step, const float *b, bool bt, int64_t b_step,
                                int batches, int m, int k, int n) {
    double *c = calloc((size_t)batches * (size_t)m * (size_t)n, sizeof *c), *out = c;
    for (int batch = 0; batch < batches; batch++, a += a_step, b += b_step)
        for (int i = 0; i < m; i++)
            for (int j = 0; j < n; j++, out++)
                for (int p = 0; p < k; p++)
                    *out += (double)(at ? a[p * m + i] : a[i * k + p]) * (bt ? b[j * k + p] : b[p * n + j]);
    return c;
}

static accel_shape matrix(int batches, bool transposed, int rows, int columns) {
    if (transposed) { int swap = rows; rows = columns; columns = swap; }
    return batches ? accel_3d(batches, rows, columns) : accel_2d(rows, columns);
}

static void check_matmul(accel_t *acc, int a_batches, bool at, int b_batches, bool bt, int m, int k, int n) {
    accel_tensor a = random_tensor(acc, matrix(a_batches, at, m, k), -1, 1, 1);
    accel_tensor b = random_tensor(acc, matrix(b_batches, bt, k, n), -1, 1, 2);
    accel_tensor c = accel_matmul_t(a, at, b, bt);
    int batches = a_batches > b_batches ? a_batches : b_batches;
    float *x = values_of(a), *y = values_of(b);
    double *expected = reference_matmul(x, at, a_batches ? m * k : 0, y, bt, b_batches ? k * n : 0,
                                        batches ? batches : 1, m, k, n);
    CHECK(same_shape(accel_shape_of(c), matrix(batches, false, m, n)));
    check_error("matmul", m * 1000000 + k * 1000 + n,
                value_error(c, expected, (int64_t)(batches ? batches : 1) * m * n), SUMMED);
    free(x), free(y), free(expected);
}

TEST(matmul_values) {
    int sizes[][3] = {{1, 1, 1}, {1, 7, 17}, {7, 1, 5}, {17, 33, 7}, {33, 257, 100}, {100, 17, 257}, {257, 100, 1}};
    accel_t *acc = context();
    for (int flags = 0; flags < 4; flags++) {
        bool at = flags & 1, bt = flags & 2;
        for (int s = 0; s < COUNT(sizes); s++) {
            int m = sizes[s][0], k = sizes[s][1], n = sizes[s][2];
            accel_begin(acc);
            check_matmul(acc, 0, at, 0, bt, m, k, n);
            check_matmul(acc, 3, at, 3, bt, m, k, n);
            check_matmul(acc, 3, at, 0, bt, m, k, n);
            check_matmul(acc, 0, at, 3, bt, m, k, n);
        }
    }
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(matmul_of_four_dimensions) {
    accel_t *acc = context();
    accel_tensor a = random_tensor(acc, accel_4d(2, 3, 5, 7), -2, 2, 1),
                 b = random_tensor(acc, accel_4d(2, 3, 7, 4), -2, 2, 2);
    accel_tensor c = accel_matmul(a, b);
    float *x = values_of(a), *y = values_of(b);
    double *expected = reference_matmul(x, false, 35, y, false, 28, 6, 5, 7, 4);
    CHECK(same_shape(accel_shape_of(c), accel_4d(2, 3, 5, 4)));
    check_error("matmul 4d", 0, value_error(c, expected, 120), SUMMED);
    free(x), free(y), free(expected);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(matmul_shapes_that_do_not_fit) {
    accel_t *acc = context();
    accel_tensor a = accel_full(acc, accel_2d(3, 5), 1), b = accel_full(acc, accel_2d(4, 7), 1),
                 v = accel_full(acc, accel_1d(5), 1);
    accel_tensor two = accel_full(acc, accel_3d(2, 3, 5), 1), three = accel_full(acc, accel_3d(3, 5, 7), 1);
    CHECK(!accel_valid(accel_matmul(a, b)));
    CHECK_TEXT(accel_message(acc), "3, 5");
    CHECK_TEXT(accel_message(acc), "4, 7");
    CHECK_ERROR(acc, ACCEL_BAD_SHAPE, "matmul");
    CHECK(!accel_valid(accel_matmul_t(a, true, a, true)));
    CHECK_ERROR(acc, ACCEL_BAD_SHAPE, "matmul");
    CHECK(!accel_valid(accel_matmul(two, three)));
    CHECK_TEXT(accel_message(acc), "2, 3, 5");
    CHECK_ERROR(acc, ACCEL_BAD_SHAPE, "3, 5, 7");
    CHECK(!accel_valid(accel_linear(a, b, (accel_tensor){0})));
    CHECK_TEXT(accel_message(acc), "4, 7");
    CHECK_ERROR(acc, ACCEL_BAD_SHAPE, "linear");
    CHECK(!accel_valid(accel_linear(a, accel_full(acc, accel_2d(4, 5), 1), v))); /* bias of 5 for 4 outputs */
    CHECK_ERROR(acc, ACCEL_BAD_SHAPE, "linear");
    accel_destroy(acc);
}

typedef struct matmul_flags {
    bool a, b;
} matmul_flags;

static accel_tensor build_matmul(accel_t *acc, const accel_tensor *inputs, void *user) {
    (void)acc;
    const matmul_flags *flags = user;
    return accel_matmul_t(inputs[0], flags->a, inputs[1], flags->b);
}

TEST(matmul_gradients) {
    for (int f = 0; f < 4; f++) {
        matmul_flags flags = {f & 1, f & 2};
        for (int batched = 0; batched < 4; batched++) { /* bit 0: a has batches, bit 1: b has */
            accel_shape shapes[] = {matrix(batched & 1 ? 2 : 0, flags.a, 3, 5),
                                    matrix(batched & 2 ? 2 : 0, flags.b, 5, 4)};
            check_gradient("matmul", build_matmul, &flags, 2, shapes, -1, 1);
        }
    }
    check_gradient("matmul 4d", build_matmul, &(matmul_flags){false, true}, 2,
                   (accel_shape[]){accel_4d(2, 2, 3, 2), accel_4d(2, 2, 4, 2)}, -1, 1);
}

TEST(linear_values) {
    accel_t *acc = context();
    for (int w = 0; w < COUNT(widths); w++) {
        int in = widths[w], out = widths[COUNT(widths) - 1 - w];
        accel_begin(acc);
        accel_tensor x = random_tensor(acc, accel_3d(3, 2, in), -1, 1, 1),
                     weight = random_tensor(acc, accel_2d(out, in), -1, 1, 2);
        accel_tensor bias = random_tensor(acc, accel_1d(out), -1, 1, 3);
        float *a = values_of(x), *b = values_of(weight), *c = values_of(bias);
        double *expected = reference_matmul(a, false, 0, b, true, 0, 1, 6, in, out);
        check_error("linear without bias", in,
                    value_error(accel_linear(x, weight, (accel_tensor){0}), expected, 6 * out), SUMMED);
        for (int i = 0; i < 6 * out; i++) expected[i] += c[i % out];
        accel_tensor y = accel_linear(x, weight, bias);
        CHECK(same_shape(accel_shape_of(y), accel_3d(3, 2, out)));
        check_error("linear", in, value_error(y, expected, 6 * out), SUMMED);
        free(a), free(b), free(c), free(expected);
    }
    accel_tensor vector = accel_linear(accel_full(acc, accel_1d(3), 2), accel_full(acc, accel_2d(2, 3), 1),
                                       (accel_tensor){0});
    CHECK(same_shape(accel_shape_of(vector), accel_1d(2)));
    CHECK_FINE(acc);
    accel_destroy(acc);
}

static accel_tensor build_linear(accel_t *acc, const accel_tensor *inputs, void *user) {
    (void)acc;
    return accel_linear(inputs[0], inputs[1], user ? inputs[2] : (accel_tensor){0});
}

TEST(linear_gradients) {
    accel_shape shapes[] = {accel_2d(4, 3), accel_2d(5, 3), accel_1d(5)};
    check_gradient("linear", build_linear, "bias", 3, shapes, -1, 1);
    check_gradient("linear without bias", build_linear, NULL, 2, shapes, -1, 1);
    shapes[0] = accel_3d(2, 3, 3);
    check_gradient("linear of three dimensions", build_linear, "bias", 3, shapes, -1, 1);
    shapes[0] = accel_1d(3);
    check_gradient("linear of a vector", build_linear, "bias", 3, shapes, -1, 1);
}

/* Large enough to be cut into pieces: every element of the weight's and the bias's gradient against float64. */
TEST(linear_gradients_of_many_rows) {
    enum { ROWS = 301, IN = 33, OUT = 17 };
    accel_t *acc = context_of((accel_desc){.threads = 3}, NULL);
    accel_tensor t[] = {random_tensor(acc, accel_2d(ROWS, IN), -1, 1, 1),
                        random_tensor(acc, accel_2d(OUT, IN), -1, 1, 2), random_tensor(acc, accel_1d(OUT), -1, 1, 3),
                        random_tensor(acc, accel_2d(ROWS, OUT), -1, 1, 4)};
    for (int i = 0; i < 3; i++) accel_set_requires_grad(t[i], true);
    accel_backward(acc, accel_sum(accel_mul(accel_linear(t[0], t[1], t[2]), t[3])));
    float *x = values_of(t[0]), *w = values_of(t[1]), *g = values_of(t[3]);
    double *dx = reference_matmul(g, false, 0, w, false, 0, 1, ROWS, OUT, IN);
    double *dw = reference_matmul(g, true, 0, x, false, 0, 1, OUT, ROWS, IN), db[OUT] = {0};
    for (int i = 0; i < ROWS * OUT; i++) db[i % OUT] += g[i];
    check_error("linear input gradient", ROWS, grad_error(t[0], dx, ROWS * IN), SUMMED);
    check_error("linear weight gradient", ROWS, grad_error(t[1], dw, OUT * IN), SUMMED);
    check_error("linear bias gradient", ROWS, grad_error(t[2], db, OUT), SUMMED);
    free(x), free(w), free(g), free(dx), free(dw);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

/* ---- sums ---- */

TEST(sum_and_mean_values) {
    accel_shape shapes[] = {accel_0d(),          accel_1d(257),        accel_2d(33, 17),
                            accel_3d(5, 1, 100), accel_4d(3, 4, 5, 7), accel_2d(1000, 33)};
    accel_t *acc = context();
    for (int s = 0; s < COUNT(shapes); s++) {
        accel_tensor x = random_tensor(acc, shapes[s], -1, 2, 6);
        float *values = values_of(x);
        int64_t count = shape_count(shapes[s]);
        double sum = 0;
        for (int64_t i = 0; i < count; i++) sum += values[i];
        CHECK(accel_shape_of(accel_sum(x)).rank == 0);
        CHECK_NEAR(accel_item(accel_sum(x)), sum, SUMMED * fmax(1, fabs(sum)));
        CHECK_NEAR(accel_item(accel_mean(x)), sum / (double)count, SUMMED);
        free(values);
    }
    CHECK_FINE(acc);
    accel_destroy(acc);
}

/* Sums over one axis of [outer, size, inner]. */
static double *reference_axis(const float *x, accel_shape shape, int axis, bool mean) {
    int inner = 1, outer = 1, size = shape.dim[axis];
    for (int i = axis + 1; i < shape.rank; i++) inner *= shape.dim[i];
    for (int i = 0; i < axis; i++) outer *= shape.dim[i];
    double *out = calloc((size_t)(outer * inner), sizeof *out);
    for (int o = 0; o < outer; o++)
        for (int k = 0; k < size; k++)
            for (int i = 0; i < inner; i++)
                out[o * inner + i] += x[(o * size + k) * inner + i] / (mean ? (double)size : 1);
    return out;
}

TEST(sums_along_an_axis) {
    accel_shape shapes[] = {accel_1d(257), accel_2d(33, 17), accel_2d(17, 100), accel_3d(5, 7, 33),
                            accel_4d(3, 4, 5, 7)};
    accel_t *acc = context();
    for (int s = 0; s < COUNT(shapes); s++) {
        accel_tensor x = random_tensor(acc, shapes[s], -1, 2, 8);
        float *values = values_of(x);
        for (int axis = 0; axis < shapes[s].rank; axis++) {
            int64_t count = shape_count(shapes[s]) / shapes[s].dim[axis];
            double *sum = reference_axis(values, shapes[s], axis, false),
                   *mean = reference_axis(values, shapes[s], axis, true);
            accel_tensor kept = accel_sum_axis(x, axis, true),
                         dropped = accel_mean_axis(x, axis - shapes[s].rank, false);
            CHECK(accel_shape_of(kept).rank == shapes[s].rank && accel_shape_of(kept).dim[axis] == 1);
            CHECK(accel_shape_of(dropped).rank == shapes[s].rank - 1);
            check_error("sum_axis", axis, value_error(kept, sum, count), SUMMED);
            check_error("mean_axis", axis, value_error(dropped, mean, count), SUMMED);
            free(sum), free(mean);
        }
        free(values);
    }
    CHECK_FINE(acc);
    accel_tensor x = accel_full(acc, accel_2d(3, 5), 1);
    CHECK(!accel_valid(accel_sum_axis(x, 2, false)));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "sum_axis");
    CHECK(!accel_valid(accel_mean_axis(x, -3, true)));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "mean_axis");
    accel_destroy(acc);
}

/* What an axis is done to: sum, mean, transpose and slice, in tests of gradients. */
typedef struct axis_call {
    int kind, axis, other;
    bool keep;
} axis_call;

static accel_tensor build_axis(accel_t *acc, const accel_tensor *inputs, void *user) {
    (void)acc;
    const axis_call *call = user;
    switch (call->kind) {
    case 0: return accel_sum_axis(inputs[0], call->axis, call->keep);
    case 1: return accel_mean_axis(inputs[0], call->axis, call->keep);
    case 2: return accel_transpose(inputs[0], call->axis, call->other);
    default: return accel_slice(inputs[0], call->axis, 1, 2 + call->other);
    }
}

static accel_tensor build_sum(accel_t *acc, const accel_tensor *inputs, void *user) {
    (void)acc;
    accel_tensor square = accel_mul(inputs[0], inputs[0]);
    return user ? accel_mean(square) : accel_sum(square);
}

TEST(sum_gradients) {
    check_gradient("sum", build_sum, NULL, 1, (accel_shape[]){accel_3d(2, 3, 5)}, -1, 1);
    check_gradient("mean", build_sum, "mean", 1, (accel_shape[]){accel_3d(2, 3, 5)}, -1, 1);
    for (int axis = -4; axis < 4; axis++) {
        for (int keep = 0; keep < 2; keep++) {
            axis_call sum = {0, axis, 0, keep}, mean = {1, axis, 0, keep};
            check_gradient("sum_axis", build_axis, &sum, 1, (accel_shape[]){accel_4d(2, 3, 2, 3)}, -1, 1);
            check_gradient("mean_axis", build_axis, &mean, 1, (accel_shape[]){accel_4d(2, 3, 2, 3)}, -1, 1);
        }
    }
}

/* ---- moving elements: exact ---- */

TEST(reshape_values) {
    accel_t *acc = context();
    accel_tensor x = random_tensor(acc, accel_2d(6, 10), -1, 1, 1);
    accel_shape shapes[] = {accel_1d(60),     accel_3d(3, 4, 5), accel_4d(1, 60, 1, 1),
                            accel_2d(-1, 12), accel_1d(-1),      accel_3d(2, -1, 3)};
    accel_shape results[] = {accel_1d(60),    accel_3d(3, 4, 5), accel_4d(1, 60, 1, 1),
                             accel_2d(5, 12), accel_1d(60),      accel_3d(2, 10, 3)};
    for (int i = 0; i < COUNT(shapes); i++) {
        accel_tensor y = accel_reshape(x, shapes[i]);
        CHECK(same_shape(accel_shape_of(y), results[i]) && same_values(x, y));
    }
    CHECK(accel_shape_of(accel_reshape(accel_full(acc, accel_2d(1, 1), 1), accel_0d())).rank == 0);
    CHECK_FINE(acc);
    accel_shape bad[] = {accel_1d(59),      accel_2d(-1, 7), accel_2d(-1, -1),
                         accel_2d(-2, -30), accel_0d(),      accel_2d(0, -1)};
    for (int i = 0; i < COUNT(bad); i++) {
        CHECK(!accel_valid(accel_reshape(x, bad[i])));
        CHECK_ERROR(acc, ACCEL_BAD_SHAPE, "reshape");
    }
    accel_destroy(acc);
}

static accel_tensor build_reshape(accel_t *acc, const accel_tensor *inputs, void *user) {
    (void)acc, (void)user;
    return accel_mul(accel_reshape(inputs[0], accel_2d(-1, 3)), accel_reshape(inputs[1], accel_2d(4, 3)));
}

TEST(reshape_gradients) {
    check_gradient("reshape", build_reshape, NULL, 2, (accel_shape[]){accel_3d(2, 2, 3), accel_1d(12)}, -1, 1);
}

TEST(transpose_values) {
    accel_shape shape = accel_4d(3, 4, 5, 7);
    accel_t *acc = context();
    accel_tensor x = random_tensor(acc, shape, -1, 1, 1);
    float *in = values_of(x);
    for (int a = 0; a < 4; a++) {
        for (int b = -4; b < 4; b++) {
            int second = b < 0 ? b + 4 : b;
            accel_tensor y = accel_transpose(x, a, b);
            accel_shape result = shape;
            result.dim[a] = shape.dim[second], result.dim[second] = shape.dim[a];
            CHECK(same_shape(accel_shape_of(y), result));
            float *out = values_of(y);
            int wrong = 0;
            for (int i = 0; i < 420; i++) {
                int at[4] = {i / 140, i / 35 % 4, i / 7 % 5, i % 7}, swap = at[a];
                at[a] = at[second], at[second] = swap;
                wrong += in[i] !=
                         out[((at[0] * result.dim[1] + at[1]) * result.dim[2] + at[2]) * result.dim[3] + at[3]];
            }
            CHECK(wrong == 0);
            free(out);
        }
    }
    CHECK_FINE(acc);
    CHECK(!accel_valid(accel_transpose(x, 0, 4)));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "transpose");
    free(in);
    accel_destroy(acc);
}

TEST(transpose_and_slice_gradients) {
    for (int a = 0; a < 4; a++) {
        for (int b = 0; b < 4; b++)
            check_gradient("transpose", build_axis, &(axis_call){2, a, b, 0}, 1, (accel_shape[]){accel_4d(2, 3, 2, 3)},
                           -1, 1);
        check_gradient("slice", build_axis, &(axis_call){3, a, 1, 0}, 1, (accel_shape[]){accel_4d(3, 4, 3, 4)}, -1, 1);
        check_gradient("slice from the end", build_axis, &(axis_call){3, a - 4, 0, 0}, 1,
                       (accel_shape[]){accel_4d(3, 4, 3, 4)}, -1, 1);
    }
}

TEST(slice_and_concat_values) {
    accel_t *acc = context();
    accel_tensor x = random_tensor(acc, accel_3d(7, 9, 17), -1, 1, 1);
    for (int axis = 0; axis < 3; axis++) {
        int size = accel_shape_of(x).dim[axis];
        accel_tensor parts[] = {accel_slice(x, axis, 0, 1), accel_slice(x, axis, 1, size - 2),
                                accel_slice(x, axis - 3, size - 2, size)};
        CHECK(accel_shape_of(parts[1]).dim[axis] == size - 3);
        accel_tensor joined = accel_concat(parts, 3, axis);
        CHECK(same_shape(accel_shape_of(joined), accel_shape_of(x)) && same_values(joined, x));
    }
    float *in = values_of(x), *out = values_of(accel_slice(x, 1, 2, 4));
    CHECK(out[0] == in[2 * 17] && out[2 * 17] == in[9 * 17 + 2 * 17] && out[17 + 3] == in[3 * 17 + 3]);
    free(in), free(out);

    accel_tensor many[64];
    for (int i = 0; i < 64; i++) many[i] = accel_full(acc, accel_1d(1), (float)i);
    CHECK(accel_item(accel_slice(accel_concat(many, 64, 0), 0, 63, 64)) == 63);
    CHECK(same_values(accel_concat(&x, 1, 2), x));
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(slices_and_concats_that_do_not_fit) {
    accel_t *acc = context();
    accel_tensor x = accel_full(acc, accel_2d(3, 5), 1), y = accel_full(acc, accel_2d(4, 5), 1), many[65];
    int bad[][3] = {{0, 0, 4}, {0, -1, 2}, {0, 2, 2}, {1, 3, 1}, {2, 0, 1}, {-3, 0, 1}};
    for (int i = 0; i < COUNT(bad); i++) {
        CHECK(!accel_valid(accel_slice(x, bad[i][0], bad[i][1], bad[i][2])));
        CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "slice");
    }
    CHECK(!accel_valid(accel_concat((accel_tensor[]){x, y}, 2, 1)));
    CHECK_TEXT(accel_message(acc), "3, 5");
    CHECK_TEXT(accel_message(acc), "4, 5");
    CHECK_ERROR(acc, ACCEL_BAD_SHAPE, "concat");
    CHECK(!accel_valid(accel_concat((accel_tensor[]){x, accel_full(acc, accel_1d(5), 1)}, 2, 0)));
    CHECK_ERROR(acc, ACCEL_BAD_SHAPE, "concat");
    for (int i = 0; i < 65; i++) many[i] = x;
    CHECK(!accel_valid(accel_concat(many, 65, 0)));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "64");
    CHECK(!accel_valid(accel_concat((accel_tensor[]){x, x}, 2, 2)));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "concat");
    accel_destroy(acc);
}

static accel_tensor build_concat(accel_t *acc, const accel_tensor *inputs, void *user) {
    (void)acc;
    accel_tensor parts[] = {inputs[0], inputs[1], inputs[0]};
    return accel_concat(parts, 3, *(int *)user);
}

TEST(concat_gradients) {
    int axes[] = {0, 1, -1};
    check_gradient("concat", build_concat, &axes[0], 2, (accel_shape[]){accel_3d(2, 3, 2), accel_3d(1, 3, 2)}, -1, 1);
    check_gradient("concat", build_concat, &axes[1], 2, (accel_shape[]){accel_3d(2, 2, 2), accel_3d(2, 3, 2)}, -1, 1);
    check_gradient("concat", build_concat, &axes[2], 2, (accel_shape[]){accel_2d(3, 4), accel_2d(3, 1)}, -1, 1);
}

/* ---- embedding ---- */

static const int32_t repeated_ids[6] = {4, 0, 4, 2, 0, 4};

TEST(embedding_values) {
    accel_t *acc = context();
    for (int w = 0; w < COUNT(widths); w++) {
        accel_tensor table = random_tensor(acc, accel_2d(5, widths[w]), -1, 1, 1);
        accel_tensor y = accel_embedding(table, accel_from_ints(acc, accel_2d(2, 3), repeated_ids), -1);
        CHECK(same_shape(accel_shape_of(y), accel_3d(2, 3, widths[w])));
        float *rows = values_of(table), *out = values_of(y);
        for (int i = 0; i < 6; i++)
            CHECK(!memcmp(out + i * widths[w], rows + repeated_ids[i] * widths[w], (size_t)widths[w] * sizeof *out));
        free(rows), free(out);
    }
    CHECK_FINE(acc);
    accel_tensor table = accel_full(acc, accel_2d(5, 3), 1);
    CHECK(!accel_valid(accel_embedding(table, accel_from_ints(acc, accel_1d(2), (int32_t[]){1, 5}), -1)));
    CHECK_TEXT(accel_message(acc), "embedding");
    CHECK_ERROR(acc, ACCEL_BAD_DATA, "5");
    CHECK(!accel_valid(accel_embedding(table, accel_from_ints(acc, accel_1d(2), (int32_t[]){-1, 0}), 0)));
    CHECK_ERROR(acc, ACCEL_BAD_DATA, "-1");
    CHECK(!accel_valid(accel_embedding(table, accel_full(acc, accel_1d(2), 1), -1))); /* ids are not integers */
    CHECK(accel_failed(acc));
    accel_destroy(acc);
}

static accel_tensor build_embedding(accel_t *acc, const accel_tensor *inputs, void *user) {
    (void)user;
    return accel_embedding(inputs[0], accel_from_ints(acc, accel_1d(6), repeated_ids), -1);
}

TEST(embedding_gradients) {
    check_gradient("embedding", build_embedding, NULL, 1, (accel_shape[]){accel_2d(5, 3)}, -1, 1);
    accel_t *acc = context();
    accel_tensor table = random_tensor(acc, accel_2d(5, 2), -1, 1, 1);
    accel_set_requires_grad(table, true);
    accel_backward(acc, accel_sum(accel_embedding(table, accel_from_ints(acc, accel_1d(6), repeated_ids), 4)));
    double expected[10] = {2, 2, 0, 0, 1, 1, 0, 0, 0, 0}; /* row 4 is the padding's */
    CHECK(grad_error(table, expected, 10) == 0);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

/* ---- over the last axis ---- */

static void reference_layer_norm(const float *x, const float *weight, const float *bias, int rows, int columns,
                                 double eps, double *y) {
    for (int r = 0; r < rows; r++, x += columns, y += columns) {
        double mean = 0, variance = 0;
        for (int i = 0; i < columns; i++) mean += x[i] / (double)columns;
        for (int i = 0; i < columns; i++) variance += (x[i] - mean) * (x[i] - mean) / columns;
        for (int i = 0; i < columns; i++) y[i] = (x[i] - mean) / sqrt(variance + eps) * weight[i] + bias[i];
    }
}

TEST(layer_norm_values) {
    accel_t *acc = context();
    for (int w = 0; w < COUNT(widths); w++) {
        int n = widths[w];
        accel_tensor x = random_tensor(acc, accel_3d(2, 3, n), 1, 4, 1),
                     weight = random_tensor(acc, accel_1d(n), -2, 2, 2);
        accel_tensor bias = random_tensor(acc, accel_1d(n), -2, 2, 3);
        float *a = values_of(x), *b = values_of(weight), *c = values_of(bias);
        double *expected = malloc((size_t)(6 * n) * sizeof *expected);
        reference_layer_norm(a, b, c, 6, n, 1e-5, expected);
        accel_tensor y = accel_layer_norm(x, weight, bias, 1e-5f);
        CHECK(same_shape(accel_shape_of(y), accel_3d(2, 3, n)));
        check_error("layer_norm", n, value_error(y, expected, 6 * n), SUMMED);
        free(a), free(b), free(c), free(expected);
    }
    CHECK_FINE(acc);
    accel_tensor x = accel_full(acc, accel_2d(3, 5), 1), four = accel_full(acc, accel_1d(4), 1),
                 five = accel_full(acc, accel_1d(5), 1);
    CHECK(!accel_valid(accel_layer_norm(x, four, five, 1e-5f)));
    CHECK_TEXT(accel_message(acc), "3, 5");
    CHECK_ERROR(acc, ACCEL_BAD_SHAPE, "layer_norm");
    CHECK(!accel_valid(accel_layer_norm(x, five, four, 1e-5f)));
    CHECK_ERROR(acc, ACCEL_BAD_SHAPE, "layer_norm");
    accel_destroy(acc);
}

/* A large common offset must not cost the digits of the variance: 100 +- 1 in float32 has 7e-6 relative input error
   itself, so the reference works from the float32 inputs and only the arithmetic counts. */
TEST(layer_norm_far_from_zero) {
    accel_t *acc = context();
    accel_tensor x = random_tensor(acc, accel_2d(4, 100), 99, 101, 1);
    float *a = values_of(x), ones[100], zeros[100] = {0};
    double expected[400];
    for (int i = 0; i < 100; i++) ones[i] = 1;
    reference_layer_norm(a, ones, zeros, 4, 100, 1e-12, expected);
    accel_tensor y = accel_layer_norm(x, accel_full(acc, accel_1d(100), 1), accel_full(acc, accel_1d(100), 0), 1e-12f);
    CHECK(value_error(y, expected, 400) < 5e-5);
    free(a);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

static accel_tensor build_layer_norm(accel_t *acc, const accel_tensor *inputs, void *user) {
    (void)acc, (void)user;
    return accel_layer_norm(inputs[0], inputs[1], inputs[2], 1e-5f);
}

TEST(layer_norm_gradients) {
    check_gradient("layer_norm", build_layer_norm, NULL, 3, (accel_shape[]){accel_2d(5, 7), accel_1d(7), accel_1d(7)},
                   -1, 1);
    check_gradient("layer_norm", build_layer_norm, NULL, 3,
                   (accel_shape[]){accel_3d(2, 2, 17), accel_1d(17), accel_1d(17)}, -2, 2);
}

TEST(softmax_values) {
    accel_t *acc = context();
    for (int w = 0; w < COUNT(widths); w++) {
        int n = widths[w];
        accel_tensor x = random_tensor(acc, accel_2d(5, n), -8, 8, 1);
        float *a = values_of(x);
        double *expected = malloc((size_t)(5 * n) * sizeof *expected);
        for (int r = 0; r < 5; r++) reference_softmax(a + r * n, n, expected + r * n);
        check_error("softmax", n, value_error(accel_softmax(x), expected, 5 * n), ELEMENT);
        for (int i = 0; i < 5 * n; i++) expected[i] = log(expected[i]);
        check_error("log_softmax", n, value_error(accel_log_softmax(x), expected, 5 * n), ELEMENT);
        free(a), free(expected);
    }
    float large[3] = {1000, 999, -1000};
    double expected[3] = {1 / (1 + exp(-1)), 1 / (1 + exp(1)), 0},
           logarithm[3] = {-log1p(exp(-1)), -log1p(exp(1)), -2000 - log1p(exp(-1))};
    accel_tensor x = accel_from_floats(acc, accel_1d(3), large);
    CHECK(value_error(accel_softmax(x), expected, 3) < ELEMENT);
    CHECK(value_error(accel_log_softmax(x), logarithm, 3) < ELEMENT);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

static const unary soft[] = {{"softmax", accel_softmax, NULL, 0, 0}, {"log_softmax", accel_log_softmax, NULL, 0, 0}};

TEST(softmax_gradients) {
    for (int i = 0; i < 2; i++) {
        unary op = soft[i];
        check_gradient(op.name, build_unary, &op, 1, (accel_shape[]){accel_2d(3, 7)}, -2, 2);
        check_gradient(op.name, build_unary, &op, 1, (accel_shape[]){accel_4d(2, 1, 2, 5)}, -2, 2);
    }
}

/* ---- dropout ---- */

TEST(dropout_values) {
    enum { ROWS = 200, COLUMNS = 257 };
    accel_t *acc = context();
    accel_tensor x = accel_full(acc, accel_2d(ROWS, COLUMNS), 3);
    float *out = values_of(accel_dropout(x, 0.25f));
    int zeros = 0, wrong = 0, columns[COLUMNS] = {0};
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        if (out[i] == 0) zeros++, columns[i % COLUMNS]++;
        else if (fabsf(out[i] - 4) > 1e-6f) wrong++;
    }
    CHECK(wrong == 0);
    double n = ROWS * COLUMNS, deviation = sqrt(n * 0.25 * 0.75);
    CHECK_NEAR(zeros, n * 0.25, 5 * deviation);
    for (int i = 0; i < COLUMNS; i++)
        CHECK_NEAR(columns[i], ROWS * 0.25, 6 * sqrt(ROWS * 0.25 * 0.75)); /* rows differ */
    free(out);
    CHECK(same_values(accel_dropout(x, 0), x));
    accel_eval_begin(acc);
    CHECK(same_values(accel_dropout(x, 0.25f), x));
    accel_eval_end(acc);
    CHECK_FINE(acc);
    float bad[] = {-0.1f, 1.5f, NAN};
    for (int i = 0; i < COUNT(bad); i++) {
        CHECK(!accel_valid(accel_dropout(x, bad[i])));
        CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "dropout");
    }
    accel_destroy(acc);
}

TEST(dropout_masks_are_counted) {
    accel_t *acc = context();
    accel_shape shape = accel_2d(7, 33);
    accel_tensor ones = accel_keep(accel_full(acc, shape, 1));
    accel_tensor first = accel_keep(accel_dropout(ones, 0.5f)), second = accel_keep(accel_dropout(ones, 0.5f));
    CHECK(!same_values(first, second)); /* another place */
    accel_begin(acc);                   /* the same step again */
    CHECK(same_values(accel_dropout(ones, 0.5f), first));
    CHECK(same_values(accel_dropout(ones, 0.5f), second));
    CHECK(!same_values(accel_slice(first, 0, 0, 1), accel_slice(first, 0, 1, 2))); /* another example */
    accel_begin(acc); /* an example's mask does not depend on how many others there are */
    CHECK(same_values(accel_dropout(accel_slice(ones, 0, 0, 3), 0.5f), accel_slice(first, 0, 0, 3)));
    CHECK_FINE(acc);
    accel_destroy(acc);
}

static accel_tensor build_dropout(accel_t *acc, const accel_tensor *inputs, void *user) {
    (void)acc, (void)user;
    return accel_dropout(inputs[0], 0.3f);
}

TEST(dropout_gradients) {
    check_gradient("dropout", build_dropout, NULL, 1, (accel_shape[]){accel_2d(5, 7)}, 0.3, 1);
}

/* ---- attention ---- */

static const int32_t sequence_offsets[] = {0, 5, 6, 13, 16};
enum { SEQUENCES = 4, TOKENS = 16 };

static void reference_attention(const float *qkv, int width, int heads, double *out) {
    int size = width / heads;
    double score[TOKENS];
    for (int s = 0; s < SEQUENCES; s++)
        for (int h = 0; h < heads; h++)
            for (int i = sequence_offsets[s]; i < sequence_offsets[s + 1]; i++) {
                double sum = 0;
                for (int j = sequence_offsets[s]; j < sequence_offsets[s + 1]; j++) {
                    double dot = 0;
                    for (int d = 0; d < size; d++)
                        dot += (double)qkv[i * 3 * width + h * size + d] * qkv[j * 3 * width + width + h * size + d];
                    sum += score[j] = exp(dot / sqrt(size));
                }
                for (int d = 0; d < size; d++) {
                    double *o = &out[i * width + h * size + d];
                    *o = 0;
                    for (int j = sequence_offsets[s]; j < sequence_offsets[s + 1]; j++)
                        *o += score[j] / sum * qkv[j * 3 * width + 2 * width + h * size + d];
                }
            }
}

TEST(attention_values) {
    int cases[][2] = {{1, 1}, {3, 1}, {3, 3}, {21, 3}, {34, 2}, {64, 4}, {99, 3}};
    accel_t *acc = context();
    for (int c = 0; c < COUNT(cases); c++) {
        int width = cases[c][0];
        accel_tensor qkv = random_tensor(acc, accel_2d(TOKENS, 3 * width), -1, 1, 1);
        accel_tensor y = accel_attention(qkv, &(accel_attention_desc){
            .heads = cases[c][1], .sequences = SEQUENCES, .offsets = sequence_offsets});
        float *in = values_of(qkv);
        double *expected = malloc((size_t)(TOKENS * width) * sizeof *expected);
        reference_attention(in, width, cases[c][1], expected);
        CHECK(same_shape(accel_shape_of(y), accel_2d(TOKENS, width)));
        check_error("attention", width, value_error(y, expected, TOKENS * width), SUMMED);
        free(in), free(expected);
    }
    CHECK_FINE(acc);
    accel_destroy(acc);
}

static accel_tensor build_attention(accel_t *acc, const accel_tensor *inputs, void *user) {
    (void)acc;
    return accel_attention(inputs[0], user);
}

TEST(attention_gradients) {
    static const int32_t offsets[] = {0, 3, 4, 8};
    accel_attention_desc one = {.heads = 1, .sequences = 3, .offsets = offsets}, three = one, dropping = one;
    three.heads = 3, dropping.dropout = 0.3f;
    check_gradient("attention with one head", build_attention, &one, 1, (accel_shape[]){accel_2d(8, 9)}, -1, 1);
    check_gradient("attention with three heads", build_attention, &three, 1, (accel_shape[]){accel_2d(8, 18)}, -1, 1);
    check_gradient("attention with dropout", build_attention, &dropping, 1, (accel_shape[]){accel_2d(8, 9)}, -1, 1);
}

TEST(attention_dropout_is_unbiased_and_off_in_evaluation) {
    accel_t *acc = context();
    int32_t offsets[] = {0, 300};
    accel_tensor qkv = accel_full(acc, accel_2d(300, 3), 1); /* uniform attention to ones */
    accel_attention_desc plain = {.heads = 1, .sequences = 1, .offsets = offsets}, dropping = plain;
    dropping.dropout = 0.5f;
    accel_tensor y = accel_attention(qkv, &dropping);
    CHECK_NEAR(accel_item(accel_mean(y)), 1, 5 / 300.0); /* 90000 coins: deviation 1 / 300 */
    CHECK(!same_values(accel_slice(y, 0, 0, 1), accel_slice(y, 0, 1, 2)));
    accel_tensor clean = accel_attention(qkv, &plain);
    accel_eval_begin(acc);
    CHECK(same_values(accel_attention(qkv, &dropping), clean));
    accel_eval_end(acc);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(attention_that_does_not_fit) {
    accel_t *acc = context();
    accel_tensor qkv = accel_full(acc, accel_2d(4, 12), 1);
    int32_t good[] = {0, 2, 4}, short_of[] = {0, 2, 3}, beyond[] = {0, 2, 5}, backwards[] = {0, 3, 2},
            late[] = {1, 2, 4}, empty[] = {0, 0, 4};
    accel_attention_desc bad[] = {
        {.heads = 3, .sequences = 2, .offsets = good},
        {.heads = 0, .sequences = 2, .offsets = good},
        {.heads = 2, .sequences = 2, .offsets = short_of},
        {.heads = 2, .sequences = 2, .offsets = beyond},
        {.heads = 2, .sequences = 2, .offsets = backwards},
        {.heads = 2, .sequences = 2, .offsets = late},
        {.heads = 2, .sequences = 2, .offsets = empty},
        {.heads = 2, .sequences = 2, .offsets = NULL},
        {.heads = 2, .sequences = 0, .offsets = good},
        {.heads = 2, .sequences = 2, .offsets = good, .dropout = 1.5f},
    };
    for (int i = 0; i < COUNT(bad); i++) {
        CHECK(!accel_valid(accel_attention(qkv, &bad[i])));
        CHECK(accel_failed(acc));
        CHECK_TEXT(accel_message(acc), "attention");
        accel_clear(acc);
    }
    CHECK(!accel_valid(accel_attention(accel_full(acc, accel_2d(4, 11), 1), &(accel_attention_desc){1, 2, good, 0})));
    CHECK_ERROR(acc, ACCEL_BAD_SHAPE, "attention");
    CHECK(accel_valid(accel_attention(qkv, &(accel_attention_desc){2, 2, good, 0})));
    accel_destroy(acc);
}

/* ---- losses ---- */

static const float class_weights[5] = {0.5f, 2, 1, 0.25f, 3};
static const int32_t some_labels[6] = {4, ACCEL_IGNORE, 0, 3, 3, 1};

static const accel_cross_entropy_desc cross_entropies[] = {
    {.label_smoothing = 0},
    {.label_smoothing = 0.1f},
    {.class_weights = class_weights, .class_count = 5},
    {.label_smoothing = 0.3f, .class_weights = class_weights, .class_count = 5},
};

TEST(cross_entropy_values) {
    accel_t *acc = context();
    for (int c = 0; c < COUNT(cross_entropies); c++) {
        const accel_cross_entropy_desc *desc = &cross_entropies[c];
        accel_tensor logits = random_tensor(acc, accel_2d(6, 5), -3, 3, 1);
        accel_tensor loss = accel_cross_entropy(logits, accel_from_ints(acc, accel_1d(6), some_labels), desc);
        float *values = values_of(logits);
        double expected = reference_cross_entropy(values, some_labels, 6, 5, (double)desc->label_smoothing,
                                                  desc->class_weights, NULL);
        CHECK(accel_shape_of(loss).rank == 0);
        CHECK_NEAR(accel_item(loss), expected, ELEMENT * fmax(1, expected));
        free(values);
    }
    accel_tensor far = accel_from_floats(acc, accel_2d(1, 2), (float[]){500, -500});
    CHECK_NEAR(accel_item(accel_cross_entropy(far, accel_from_ints(acc, accel_1d(1), (int32_t[]){1}), NULL)), 1000,
               1e-3);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(cross_entropy_of_many_classes_and_rows) {
    accel_t *acc = context();
    for (int w = 1; w < COUNT(widths); w++) {
        int rows = 301, classes = widths[w];
        accel_begin(acc);
        accel_tensor logits = random_tensor(acc, accel_2d(rows, classes), -3, 3, 1);
        int32_t labels[301];
        uint64_t seed = 1;
        for (int i = 0; i < rows; i++) labels[i] = i % 5 ? random_int(&seed, 0, classes) : ACCEL_IGNORE;
        float *values = values_of(logits);
        double expected = reference_cross_entropy(values, labels, rows, classes, 0, NULL, NULL);
        CHECK_NEAR(accel_item(accel_cross_entropy(logits, accel_from_ints(acc, accel_1d(rows), labels), NULL)),
                   expected, SUMMED * expected);
        free(values);
    }
    CHECK_FINE(acc);
    accel_destroy(acc);
}

static accel_tensor build_cross_entropy(accel_t *acc, const accel_tensor *inputs, void *user) {
    return accel_cross_entropy(inputs[0], accel_from_ints(acc, accel_1d(6), some_labels), user);
}

TEST(cross_entropy_gradients) {
    for (int c = 0; c < COUNT(cross_entropies); c++) {
        accel_cross_entropy_desc desc = cross_entropies[c];
        check_gradient("cross_entropy", build_cross_entropy, &desc, 1, (accel_shape[]){accel_2d(6, 5)}, -2, 2);
    }
}

/* The whole gradient in closed form: (softmax - target) * weight / divisor. */
TEST(cross_entropy_gradient_formula) {
    accel_t *acc = context();
    const accel_cross_entropy_desc *desc = &cross_entropies[3];
    accel_tensor logits = random_tensor(acc, accel_2d(6, 5), -3, 3, 1);
    accel_set_requires_grad(logits, true);
    accel_backward(acc, accel_cross_entropy(logits, accel_from_ints(acc, accel_1d(6), some_labels), desc));
    float *x = values_of(logits);
    double divisor, expected[30] = {0};
    double smoothing = (double)desc->label_smoothing;
    reference_cross_entropy(x, some_labels, 6, 5, smoothing, class_weights, &divisor);
    for (int i = 0; i < 6; i++) {
        if (some_labels[i] == ACCEL_IGNORE) continue;
        double probability[5], total = 0, target[5];
        reference_softmax(x + i * 5, 5, probability);
        for (int c = 0; c < 5; c++) {
            target[c] = class_weights[c] * (smoothing / 5 + (c == some_labels[i] ? 1 - smoothing : 0));
            total += target[c];
        }
        for (int c = 0; c < 5; c++) expected[i * 5 + c] = (probability[c] * total - target[c]) / divisor;
    }
    CHECK(grad_error(logits, expected, 30) < ELEMENT);
    free(x);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(cross_entropy_that_does_not_fit) {
    accel_t *acc = context();
    accel_tensor logits = accel_full(acc, accel_2d(3, 5), 1);
    CHECK(!accel_valid(accel_cross_entropy(logits, accel_from_ints(acc, accel_1d(3), (int32_t[]){0, 5, 1}), NULL)));
    CHECK_TEXT(accel_message(acc), "row 1");
    CHECK_ERROR(acc, ACCEL_BAD_DATA, "5");
    CHECK(!accel_valid(accel_cross_entropy(logits, accel_from_ints(acc, accel_1d(3), (int32_t[]){0, 1, -1}), NULL)));
    CHECK_TEXT(accel_message(acc), "row 2");
    CHECK_ERROR(acc, ACCEL_BAD_DATA, "-1");
    CHECK(!accel_valid(accel_cross_entropy(logits, accel_from_ints(acc, accel_1d(4), NULL), NULL)));
    CHECK_ERROR(acc, ACCEL_BAD_SHAPE, "cross_entropy");
    accel_tensor labels = accel_from_ints(acc, accel_1d(3), NULL);
    accel_cross_entropy_desc bad[] = {{.class_weights = class_weights, .class_count = 4}, {.label_smoothing = 1.5f},
                                      {.label_smoothing = NAN},
                                      {.class_weights = (float[]){1, -2, 1, 1, 1}, .class_count = 5},
                                      {.class_weights = (float[]){1, 1, NAN, 1, 1}, .class_count = 5}};
    for (int i = 0; i < COUNT(bad); i++) {
        CHECK(!accel_valid(accel_cross_entropy(logits, labels, &bad[i])));
        CHECK_TEXT(accel_message(acc), "cross_entropy");
        CHECK(accel_failed(acc));
        accel_clear(acc);
    }
    accel_destroy(acc);
}

typedef struct mean_loss {
    const char *name;
    accel_tensor (*run)(accel_tensor, accel_tensor);
    double (*reference)(double, double);
} mean_loss;

static double bce(double x, double target) { return fmax(x, 0) - x * target + log1p(exp(-fabs(x))); }
static double squared(double a, double b) { return (a - b) * (a - b); }
static const mean_loss mean_losses[] = {{"bce_with_logits", accel_bce_with_logits, bce}, {"mse", accel_mse, squared}};

TEST(bce_and_mse_values) {
    accel_t *acc = context();
    for (int l = 0; l < 2; l++) {
        for (int w = 0; w < COUNT(widths); w++) {
            accel_tensor a = random_tensor(acc, accel_2d(7, widths[w]), -4, 4, 1),
                         b = random_tensor(acc, accel_2d(7, widths[w]), 0, 1, 2);
            float *x = values_of(a), *y = values_of(b);
            double expected = 0;
            for (int i = 0; i < 7 * widths[w]; i++) expected += mean_losses[l].reference(x[i], y[i]) / (7 * widths[w]);
            accel_tensor loss = mean_losses[l].run(a, b);
            CHECK(accel_shape_of(loss).rank == 0);
            CHECK_NEAR(accel_item(loss), expected, SUMMED * fmax(1, expected));
            free(x), free(y);
        }
        CHECK_FINE(acc);
        CHECK(!accel_valid(mean_losses[l].run(accel_full(acc, accel_2d(3, 5), 1), accel_full(acc, accel_1d(5), 1))));
        CHECK_TEXT(accel_message(acc), "3, 5");
        CHECK_ERROR(acc, ACCEL_BAD_SHAPE, mean_losses[l].name);
    }
    accel_tensor far = accel_from_floats(acc, accel_1d(2), (float[]){300, -300});
    CHECK_NEAR(accel_item(accel_bce_with_logits(far, accel_full(acc, accel_1d(2), 0))), 150, 1e-4);
    accel_destroy(acc);
}

static accel_tensor build_mean_loss(accel_t *acc, const accel_tensor *inputs, void *user) {
    (void)acc;
    return ((const mean_loss *)user)->run(inputs[0], inputs[1]);
}

TEST(bce_and_mse_gradients) {
    for (int l = 0; l < 2; l++) {
        mean_loss loss = mean_losses[l];
        check_gradient(loss.name, build_mean_loss, &loss, 2, (accel_shape[]){accel_2d(3, 7), accel_2d(3, 7)}, 0.1, 0.9);
    }
}

/* ---- detach and custom operations ---- */

TEST(detach_stops_the_gradient) {
    accel_t *acc = context();
    accel_tensor x = accel_from_floats(acc, accel_1d(3), (float[]){1, 2, 3});
    accel_set_requires_grad(x, true);
    accel_tensor y = accel_detach(accel_mul(x, x));
    double squares[3] = {1, 4, 9};
    CHECK(value_error(y, squares, 3) == 0);
    accel_backward(acc, accel_sum(accel_mul(x, y)));
    CHECK(grad_error(x, squares, 3) == 0); /* not 3 x^2 */
    CHECK_FINE(acc);
    accel_destroy(acc);
}

/* a * b + a, cut into pieces; `user` is the factor of a's gradient: 1, or something wrong. */
static const char *custom_forward(const accel_custom_call *call) {
    const float *a = call->input[0], *b = call->input[1];
    int64_t count = shape_count(call->shape);
    for (int64_t i = call->piece; i < count; i += call->pieces) call->output[i] = a[i] * b[i] + a[i];
    return NULL;
}

static const char *custom_backward(const accel_custom_call *call) {
    const float *a = call->input[0], *b = call->input[1], factor = *(float *)call->user;
    int64_t count = shape_count(call->shape);
    for (int64_t i = call->piece; i < count; i += call->pieces) {
        if (call->input_grad[0]) call->input_grad[0][i] = factor * (b[i] + 1) * call->output_grad[i];
        if (call->input_grad[1]) call->input_grad[1][i] = a[i] * call->output_grad[i];
    }
    return NULL;
}

static accel_custom_desc custom(accel_tensor a, accel_tensor b, int pieces, float *factor) {
    return (accel_custom_desc){.name = "fused",
                               .input_count = 2,
                               .input = {a, b},
                               .shape = accel_shape_of(a),
                               .forward = custom_forward,
                               .backward = custom_backward,
                               .pieces = pieces,
                               .user = factor};
}

static accel_tensor build_custom(accel_t *acc, const accel_tensor *inputs, void *user) {
    accel_custom_desc desc = custom(inputs[0], inputs[1], 3, user);
    return accel_custom(acc, &desc);
}

TEST(custom_operations) {
    accel_t *acc = context();
    float right = 1;
    for (int pieces = 0; pieces < 6; pieces++) {
        accel_tensor a = random_tensor(acc, accel_2d(5, 7), -1, 1, 1), b = random_tensor(acc, accel_2d(5, 7), -1, 1, 2);
        accel_custom_desc desc = custom(a, b, pieces, &right);
        accel_tensor y = accel_custom(acc, &desc);
        float *x = values_of(a), *z = values_of(b);
        double expected[35];
        for (int i = 0; i < 35; i++) expected[i] = (double)x[i] * z[i] + x[i];
        CHECK(value_error(y, expected, 35) < ELEMENT);
        free(x), free(z);
    }
    CHECK_FINE(acc);
    accel_destroy(acc);
    check_gradient("custom", build_custom, &right, 2, (accel_shape[]){accel_2d(3, 7), accel_2d(3, 7)}, -1, 1);
}

static const char *custom_fails(const accel_custom_call *call) {
    static const char *messages[] = {NULL, "piece one is unhappy", "piece two is unhappy", NULL};
    return messages[call->piece];
}

TEST(custom_operations_that_fail) {
    accel_t *acc = context();
    accel_tensor x = accel_full(acc, accel_1d(8), 1);
    accel_set_requires_grad(x, true);
    float right = 1;
    accel_custom_desc desc = custom(x, x, 4, &right);
    desc.forward = custom_fails;
    CHECK(!accel_valid(accel_custom(acc, &desc)));
    CHECK_TEXT(accel_message(acc), "fused");
    CHECK_ERROR(acc, ACCEL_CALLBACK, "piece one is unhappy"); /* of several the lowest */
    desc.forward = custom_forward, desc.backward = custom_fails;
    accel_tensor y = accel_sum(accel_custom(acc, &desc));
    CHECK_FINE(acc);
    accel_backward(acc, y);
    CHECK_ERROR(acc, ACCEL_CALLBACK, "piece one is unhappy");
    desc.backward = custom_backward;
    accel_custom_desc bad[] = {desc, desc, desc, desc};
    bad[0].forward = NULL, bad[1].input_count = ACCEL_CUSTOM_INPUTS + 1, bad[2].shape = accel_1d(-4),
    bad[3].pieces = -1;
    for (int i = 0; i < COUNT(bad); i++) {
        CHECK(!accel_valid(accel_custom(acc, &bad[i])));
        CHECK(accel_failed(acc));
        accel_clear(acc);
    }
    accel_destroy(acc);
}

TEST(a_custom_operation_without_backward_passes_no_gradient) {
    accel_t *acc = context();
    accel_tensor x = accel_full(acc, accel_1d(4), 2);
    accel_set_requires_grad(x, true);
    float right = 1;
    accel_custom_desc desc = custom(x, x, 1, &right);
    desc.backward = NULL;
    accel_tensor y = accel_custom(acc, &desc);
    accel_backward(acc, accel_sum(accel_add(y, x)));
    CHECK(grad_error(x, (double[]){1, 1, 1, 1}, 4) == 0);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

/* ---- the gradient check itself ---- */

TEST(the_gradient_check_finds_wrong_gradients) {
    float factors[] = {1.02f, 0, -1, 2};
    for (int i = 0; i < COUNT(factors); i++) {
        accel_t *acc = context();
        accel_tensor inputs[] = {random_tensor(acc, accel_2d(3, 7), -1, 1, 1),
                                 random_tensor(acc, accel_2d(3, 7), -1, 1, 2)};
        for (int k = 0; k < 2; k++) accel_set_requires_grad(inputs[k], true), accel_keep(inputs[k]);
        CHECK(accel_gradient_check(acc, build_custom, inputs, 2, &factors[i], NULL) > 0.01f);
        CHECK(accel_failed(acc));
        CHECK_TEXT(accel_message(acc), "gradient");
        accel_clear(acc);
        if (i == 0) { /* 2 % pass under a tolerance of 5 % */
            accel_gradient_check(acc, build_custom, inputs, 2, &factors[i],
                                 &(accel_gradient_check_desc){.tolerance = 0.05f});
            CHECK_FINE(acc);
        }
        accel_destroy(acc);
    }
}

TEST(the_gradient_check_leaves_its_inputs_alone) {
    accel_t *acc = context();
    float right = 1;
    accel_tensor inputs[] = {random_tensor(acc, accel_2d(3, 7), -1, 1, 1),
                             random_tensor(acc, accel_2d(3, 7), -1, 1, 2)};
    float *before = values_of(inputs[0]);
    for (int k = 0; k < 2; k++) accel_set_requires_grad(inputs[k], true), accel_keep(inputs[k]);
    CHECK(accel_gradient_check(acc, build_custom, inputs, 2, &right, NULL) < 1e-3f);
    float *after = values_of(inputs[0]);
    CHECK(memcmp(before, after, 21 * sizeof *before) == 0);
    free(before), free(after);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

int main(int argc, char **argv) {
    return test_main(argc, argv);
}
