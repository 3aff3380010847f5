/* gemm: the matrix products of DistilBERT-base against the processor's measured limit.

       gemm --threads 1
       gemm --tokens 880 --seconds 1

   Columns: product, tokens, then GF/s and share of the limit in fp32 (OpenBLAS on tiles) and in bf16 (our own kernel;
   weights are packed anew each time, as after every optimizer step). */
#define ACCEL_IMPLEMENTATION
#include "../accel_io.h"
#include "bench.h"

typedef struct layer {
    const char *name;
    int in, out;
} layer;
static const layer layers[] = {{"QKV", 768, 2304}, {"out", 768, 768}, {"up", 768, 3072}, {"down", 3072, 768}};
static const char *const forms[] = {"forward", "input gradient", "weight gradient"};

typedef struct buffers {
    float *x, *w, *y; /* [tokens, in], [out, in], [tokens, out] */
    accel_packed packed;
} buffers;

static float *numbers(int64_t count) {
    float *values = malloc((size_t)count * sizeof *values);
    for (int64_t i = 0; values && i < count; i++) values[i] = (float)(i * 7919 % 2001 - 1000) * 1e-3f;
    return values;
}

/* y = x w', dx = y w, dw = y' x. */
static accel_gemm product(int form, const layer *l, int tokens, buffers *b, accel_precision precision) {
    accel_gemm g = {.batch = 1, .alpha = 1, .precision = precision};
    if (form == 0) {
        g.transpose_b = true;
        g.m = tokens, g.n = l->out, g.k = l->in, g.lda = l->in, g.ldb = l->in, g.ldc = l->out;
        g.a = b->x, g.b = b->w, g.c = b->y;
    } else if (form == 1) {
        g.m = tokens, g.n = l->in, g.k = l->out, g.lda = l->out, g.ldb = l->in, g.ldc = l->in;
        g.a = b->y, g.b = b->w, g.c = b->x;
    } else {
        g.transpose_a = true;
        g.m = l->out, g.n = l->in, g.k = tokens, g.lda = l->out, g.ldb = l->in, g.ldc = l->in;
        g.a = b->y, g.b = b->x, g.c = b->w;
    }
    g.keep = form < 2 && precision == ACCEL_PRECISION_BF16 ? &b->packed : NULL;
    return g;
}

/* Median rate of as many products as fit into the time. */
static double rate(accel_t *acc, accel_gemm g, double seconds) {
    enum { MOST = 1000 };
    static double times[MOST];
    int count = 0;
    double end = 0;
    for (int i = -1; i < MOST && (i < 2 || bench_now() < end); i++) { /* the first one warms up */
        if (g.keep) g.keep->version++;
        double begin = bench_now();
        acc->backend->gemm(acc, &g, 1);
        if (i < 0) end = bench_now() + seconds;
        else times[count++] = bench_now() - begin;
    }
    return 2.0 * g.m * g.n * g.k / bench_median(times, count);
}

static void print_rate(double rate, double limit) {
    if (limit > 0) printf(" %9.1f %7.1f", 1e-9 * rate, 100 * rate / limit);
    else printf(" %9.1f %7s", 1e-9 * rate, "-");
}

static bool measure(accel_t *acc, const layer *l, int tokens, double seconds, const double limit[2]) {
    int64_t in = l->in, out = l->out;
    buffers b = {numbers(tokens * in), numbers(out * in), numbers(tokens * out), {.version = 1}};
    bool good = b.x && b.w && b.y;
    for (int form = 0; good && form < 3; form++) {
        char name[64];
        snprintf(name, sizeof name, "\"%s %s\"", l->name, forms[form]);
        printf("%-24s %6d", name, tokens);
        for (int p = 0; p < 2; p++) {
            accel_precision precision = p ? ACCEL_PRECISION_BF16 : ACCEL_PRECISION_FP32;
            print_rate(rate(acc, product(form, l, tokens, &b, precision), seconds), limit[p]);
        }
        printf("\n");
        fflush(stdout);
    }
    for (int i = 0; i < 2; i++) accel__free(acc, b.packed.memory[i]);
    free(b.x);
    free(b.w);
    free(b.y);
    return good && !accel_failed(acc);
}

int main(int argc, char **argv) {
    int64_t threads = 0, tokens = 0;
    double seconds = 0.2;
    option_spec options[] = {
        option_int("--threads", &threads, 0, 1024, "0: all cores"),
        option_int("--tokens", &tokens, 1, 1 << 20, "rows of the product; else 220, 880 and 2048"),
        option_number("--seconds", &seconds, ABOVE_ZERO, 0, "for each figure"),
    };
    int status = options_parse(argc, argv, "", options, 3, NULL);
    if (status >= 0) return status;
    bench_header(argc, argv, "matrix products of DistilBERT-base");
    accel_t *acc = accel_create(&(accel_desc){.threads = (int)threads});
    double limit[2] = {bench_limit_of(acc, BENCH_FP32), bench_limit_of(acc, BENCH_BF16)};
    printf("# limit of %d threads: fp32 %.0f GF/s, bf16 %.0f GF/s%s\n", accel_threads(acc), 1e-9 * limit[0],
           1e-9 * limit[1], limit[1] > 0 ? "" : " (no such instruction: operands are rounded and multiplied in fp32)");
    printf("#%-23s %6s %9s %7s %9s %7s\n", "product", "tokens", "fp32", "%limit", "bf16", "%limit");
    int standard[] = {220, 880, 2048};
    for (int t = 0; t < (tokens ? 1 : 3); t++)
        for (int i = 0; i < 4; i++)
            if (!measure(acc, &layers[i], tokens ? (int)tokens : standard[t], seconds, limit)) return bench_end(acc);
    return bench_end(acc);
}
