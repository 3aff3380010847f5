/* threads: how a training step of DistilBERT-base gets faster with the number of cores.

       threads --batch 16 --length 128 --rounds 5

   Columns: threads, then for fp32 and bf16 the median step in ms, the gain over one thread and the efficiency (gain /
   threads). Rounds take turns between the numbers of threads, so that other work on the machine hits all alike. */
#define ACCEL_IMPLEMENTATION
#include "bench.h"

enum { MOST_COUNTS = 16, MOST_ROUNDS = 100 };

/* 1, 2, 4, ... and the number of cores. */
static int thread_counts(int cores, int *counts) {
    int n = 0;
    for (int threads = 1; threads < cores && n < MOST_COUNTS - 1; threads *= 2) counts[n++] = threads;
    counts[n++] = cores;
    return n;
}

static int cores(void) {
    accel_t *acc = accel_create(NULL);
    int threads = accel_threads(acc);
    accel_destroy(acc);
    return threads;
}

static bool time_step(const bench_options *given, int threads, const char *precision, double *step) {
    bench_options o = *given;
    bench_training training;
    bench_result result;
    o.threads = threads;
    o.precision = precision;
    bool good = bench_open(&training, &o) && bench_run(&training, &o, &result);
    if (good) *step = result.step;
    return !bench_end(training.acc) && good;
}

int main(int argc, char **argv) {
    static const char *const precisions[] = {"fp32", "bf16"};
    static double seconds[MOST_COUNTS][2][MOST_ROUNDS];
    int64_t rounds = 3, most = 0;
    bench_options o = bench_defaults();
    option_spec own[] = {
        option_int("--rounds", &rounds, 1, MOST_ROUNDS, "turns; the table has their medians"),
        option_int("--most", &most, 1, 1024, "threads; else the number of cores"),
    };
    int status = bench_parse(argc, argv, &o, own, 2);
    if (status >= 0) return status;
    bench_header(argc, argv, "scaling of a training step with threads");
    int counts[MOST_COUNTS], n = thread_counts(most ? (int)most : cores(), counts);
    for (int round = 0; round < (int)rounds; round++)
        for (int p = 0; p < 2; p++)
            for (int i = 0; i < n; i++)
                if (!time_step(&o, counts[i], precisions[p], &seconds[i][p][round])) return 1;
    printf("#%7s %9s %6s %11s %9s %6s %11s\n", "threads", "fp32 ms", "gain", "efficiency", "bf16 ms", "gain",
           "efficiency");
    double first[2] = {0};
    for (int i = 0; i < n; i++) {
        printf("%8d", counts[i]);
        for (int p = 0; p < 2; p++) {
            double step = bench_median(seconds[i][p], (int)rounds);
            if (i == 0) first[p] = step;
            printf(" %9.1f %6.2f %9.1f %%", 1e3 * step, first[p] / step, 100 * first[p] / step / counts[i]);
        }
        printf("\n");
    }
    return 0;
}
