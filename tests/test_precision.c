/* bf16: matrix products with operands rounded to bf16 and sums in float32, by the processor's instruction and by emulation. */
#define ACCEL_IMPLEMENTATION
#include "accel.h"
#include "test.h"

static const accel_precision precisions[] = {ACCEL_PRECISION_BF16, ACCEL_PRECISION_EMULATED};

/* Round to nearest even, from the definition: a bf16 keeps the upper 16 bits. */
static double rounded(float x) {
    int exponent;
    double fraction = frexp((double)x, &exponent);
    return ldexp(nearbyint(ldexp(fraction, 8)), exponent - 8);
}

static float noise(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / (float)(1 << 23) - 1;
}

static float *noise_array(int64_t n, uint32_t seed) {
    float *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = noise(&seed);
    return x;
}

typedef struct product {
    int rows, in, out;
    float *x, *w, *b, *dy; /* [rows, in], [out, in], [out], [rows, out] */
    float *y, *dx, *dw;    /* results */
} product;

static void product_run(product *p, accel_precision precision, int threads) {
    accel_t *acc = accel_create(&(accel_desc){.threads = threads, .precision = precision});
    accel_model *model = accel_model_create(acc, "linear");
    accel_tensor w = accel_parameter(model, "w", accel_2d(p->out, p->in));
    accel_write(w, p->w, (int64_t)p->out * p->in);
    accel_tensor x = accel_from_floats(acc, accel_2d(p->rows, p->in), p->x);
    accel_set_requires_grad(x, true);
    accel_tensor y = accel_linear(x, w, accel_from_floats(acc, accel_1d(p->out), p->b));
    accel_read(y, p->y, (int64_t)p->rows * p->out);
    accel_backward(acc, accel_sum(accel_mul(y, accel_from_floats(acc, accel_2d(p->rows, p->out), p->dy))));
    accel_grad(x, p->dx, (int64_t)p->rows * p->in);
    accel_grad(w, p->dw, (int64_t)p->out * p->in);
    CHECK(!accel_failed(acc));
    accel_destroy(acc);
}

/* Largest error of sum_k a(i, k) b(j, k) with rounded operands, relative to the sum of the products' sizes. */
static double product_error(const float *c, int m, int n, int k, const float *a, int ai, int ak, const float *b, int bj, int bk,
                            const float *bias) {
    double error = 0;
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            double sum = bias ? (double)bias[j] : 0, size = fabs(sum);
            for (int q = 0; q < k; q++) {
                double term = rounded(a[i * ai + q * ak]) * rounded(b[j * bj + q * bk]);
                sum += term;
                size += fabs(term);
            }
            error = fmax(error, fabs(sum - (double)c[i * n + j]) / size);
        }
    return error;
}

static product product_of(int rows, int in, int out) {
    product p = {rows, in, out, noise_array((int64_t)rows * in, 1), noise_array((int64_t)out * in, 2), noise_array(out, 3),
                 noise_array((int64_t)rows * out, 4), NULL, NULL, NULL};
    p.y = noise_array((int64_t)rows * out, 5);
    p.dx = noise_array((int64_t)rows * in, 6);
    p.dw = noise_array((int64_t)out * in, 7);
    return p;
}

static void product_free(product *p) {
    free(p->x), free(p->w), free(p->b), free(p->dy), free(p->y), free(p->dx), free(p->dw);
}

/* Tolerance: float32 sums of k rounded products, whose products are exact in float32: k * 2^-24 at worst, about sqrt(k) of
   that in fact. */
TEST(products_are_those_of_rounded_operands) {
    static const int sizes[][3] = {{1, 1, 1}, {5, 3, 2}, {6, 64, 64}, {7, 33, 65}, {97, 31, 130}, {100, 96, 70}, {13, 3500, 5}, {3200, 7, 9}};
    for (int s = 0; s < (int)(sizeof sizes / sizeof *sizes); s++)
        for (int i = 0; i < 2; i++) {
            product p = product_of(sizes[s][0], sizes[s][1], sizes[s][2]);
            product_run(&p, precisions[i], 2);
            CHECK(product_error(p.y, p.rows, p.out, p.in, p.x, p.in, 1, p.w, p.in, 1, p.b) < 2e-6);
            CHECK(product_error(p.dx, p.rows, p.in, p.out, p.dy, p.out, 1, p.w, 1, p.in, NULL) < 2e-6);
            CHECK(product_error(p.dw, p.out, p.in, p.rows, p.dy, 1, p.out, p.x, 1, p.in, NULL) < 2e-6);
            product_free(&p);
        }
}

enum { EXAMPLES = 9, LENGTH = 21, STEPS = 6 };

/* Trains a small encoder; its parameters (malloc'd) and the losses of the steps. */
static float *train(accel_precision precision, int threads, double *losses, int64_t *count) {
    accel_t *acc = accel_create(&(accel_desc){.threads = threads, .precision = precision});
    accel_encoder_config config = accel_encoder_defaults(ACCEL_BERT);
    config.vocab_size = 50, config.max_positions = 32, config.dim = 48, config.layers = 2, config.heads = 4, config.hidden_dim = 100;
    accel_model *model = accel_encoder_create(acc, &config);
    accel_optimizer *opt = accel_adam(acc, model, &(accel_adam_desc){.lr = 1e-3f});
    int32_t ids[EXAMPLES * LENGTH], mask[EXAMPLES * LENGTH], labels[EXAMPLES];
    for (int i = 0; i < EXAMPLES * LENGTH; i++) {
        ids[i] = 1 + i * 31 % 49;
        mask[i] = i % LENGTH < 4 + i / LENGTH * 2;
        labels[i / LENGTH] = ids[i / LENGTH * LENGTH] % 2;
    }
    for (int step = 0; step < STEPS; step++) {
        accel_batch batch;
        accel_begin(acc);
        accel_batch_from_padded(acc, ids, mask, NULL, labels, EXAMPLES, LENGTH, &batch);
        accel_zero_grad(opt);
        accel_output out = accel_forward(model, &batch);
        losses[step] = (double)accel_item(out.loss);
        accel_backward(acc, out.loss);
        accel_step(opt);
    }
    *count = accel_parameter_elements(model);
    float *all = malloc((size_t)*count * sizeof *all), *at = all;
    for (int i = 0; i < accel_parameter_count(model); i++) {
        accel_tensor x = accel_parameter_at(model, i);
        accel_read(x, at, accel_count(x));
        at += accel_count(x);
    }
    CHECK(!accel_failed(acc));
    accel_destroy(acc);
    return all;
}

/* The weights are packed once per step: a stale packing would show from the second step on. */
TEST(both_ways_agree_and_stay_near_float32) {
    double losses[3][STEPS];
    int64_t count;
    free(train(ACCEL_PRECISION_FP32, 2, losses[0], &count));
    for (int i = 0; i < 2; i++) free(train(precisions[i], 2, losses[1 + i], &count));
    for (int step = 0; step < STEPS; step++) {
        CHECK_NEAR(losses[1][step], losses[2][step], 2e-4); /* rounding that Adam magnifies */
        CHECK_NEAR(losses[1][step], losses[0][step], 2e-2);
    }
}

TEST(the_same_bytes_for_any_number_of_threads) {
    static const int threads[] = {2, 3, 8};
    for (int p = 0; p < 2; p++) {
        double losses[STEPS];
        int64_t count;
        float *one = train(precisions[p], 1, losses, &count);
        for (int i = 0; i < 3; i++) {
            float *other = train(precisions[p], threads[i], losses, &count);
            CHECK(!memcmp(one, other, (size_t)count * sizeof *one));
            free(other);
        }
        free(one);
    }
}

TEST(unknown_precisions_are_refused) {
    accel_t *acc = accel_create(&(accel_desc){.threads = 1, .precision = (accel_precision)7});
    CHECK_TEXT(accel_message(acc), "precision");
    accel_destroy(acc);
}

int main(int argc, char **argv) { return test_main(argc, argv); }
