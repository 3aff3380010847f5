/* identity: whether the bytes of all parameters are the same after some steps on 1, 2, 3 and 8 threads.

       env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE build/bench/identity
       OPENBLAS_CORETYPE=Haswell build/bench/identity

   The first form runs under the processor's own BLAS kernels. Exit status 1 where any byte differs. */
#define ACCEL_IMPLEMENTATION
#include "bench.h"

/* All parameters one behind the other; NULL on error. */
static float *parameters(bench_training *t, int64_t *count) {
    *count = accel_parameter_elements(t->model);
    float *values = malloc((size_t)*count * sizeof *values);
    int64_t at = 0;
    for (int i = 0; values && i < accel_parameter_count(t->model); i++) {
        accel_tensor x = accel_parameter_at(t->model, i);
        accel_read(x, values + at, accel_count(x));
        at += accel_count(x);
    }
    return values;
}

static uint64_t hash(const float *values, int64_t count) {
    uint64_t h = 0;
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        h = (h ^ bits) * 0x100000001b3u + (h >> 47);
    }
    return h;
}

/* Trains on `threads` threads and returns the parameters. */
static float *train(const bench_options *given, const char *precision, int threads, int64_t *count, double *loss) {
    bench_options o = *given;
    bench_training training;
    o.precision = precision;
    o.threads = threads;
    bool good = bench_open(&training, &o);
    for (int64_t i = 0; good && i < o.steps; i++) good = bench_step(&training);
    float *values = good ? parameters(&training, count) : NULL;
    *loss = training.loss;
    if (!bench_end(training.acc) && values) return values;
    free(values);
    return NULL;
}

/* Number of runs that differ from the one on one thread; -1 on error. */
static int compare(const bench_options *o, const char *precision) {
    static const int threads[] = {1, 2, 3, 8};
    float *first = NULL;
    int different = 0;
    for (int i = 0; i < 4; i++) {
        int64_t count, unequal = 0;
        double loss;
        float *values = train(o, precision, threads[i], &count, &loss);
        if (!values) return free(first), -1;
        if (!first) first = values;
        for (int64_t j = 0; j < count; j++) unequal += memcmp(&values[j], &first[j], sizeof *values) != 0;
        printf("%-10s %7d   %016llx   %.9g   %s", precision, threads[i], (unsigned long long)hash(values, count), loss,
               unequal ? "" : "same\n");
        if (unequal) printf("%lld of %lld parameters differ\n", (long long)unequal, (long long)count);
        fflush(stdout);
        different += unequal > 0;
        if (values != first) free(values);
    }
    free(first);
    return different;
}

int main(int argc, char **argv) {
    bench_options o = bench_defaults();
    o.steps = 3;
    o.layers = 2;
    o.mixed = true;
    int status = bench_parse(argc, argv, &o, NULL, 0);
    if (status >= 0) return status;
    bench_header(argc, argv, "the same bytes on any number of threads");
    if (getenv("OPENBLAS_CORETYPE") || getenv("OPENBLAS_L2_SIZE"))
        printf("# OPENBLAS_CORETYPE or OPENBLAS_L2_SIZE is set: these are not the processor's own kernels\n");
    printf("# %lld steps, %lld layers, batch %lld, 5 to %lld tokens, dropout on\n", (long long)o.steps,
           (long long)o.layers, (long long)o.batch, (long long)o.length);
    printf("#%-9s %7s   %-16s   %s\n", "precision", "threads", "hash", "loss");
    int different[] = {compare(&o, "fp32"), compare(&o, "bf16")};
    bool good = different[0] == 0 && different[1] == 0;
    printf(good ? "# all the same\n" : "# DIFFERENT\n");
    return !good;
}
