/* length: what a training step of DistilBERT-base costs, by the length of the texts and their number in a batch.

       length --precision bf16 --most-tokens 8192

   Columns: length, batch, tokens, median step in ms, microseconds per token, samples/s, GF/s. */
#define ACCEL_IMPLEMENTATION
#include "bench.h"

static bool measure(const bench_options *given, int length, int batch) {
    bench_options o = *given;
    bench_training training;
    bench_result r;
    o.length = length;
    o.batch = batch;
    bool good = bench_open(&training, &o) && bench_run(&training, &o, &r);
    double tokens = (double)length * batch;
    if (good)
        printf("%8d %6d %7.0f %10.2f %9.2f %9.2f %8.1f\n", length, batch, tokens, 1e3 * r.step, 1e6 * r.step / tokens,
               batch / r.step, 1e-9 * r.operations / (double)o.steps / r.step);
    fflush(stdout);
    return !bench_end(training.acc) && good;
}

int main(int argc, char **argv) {
    static const int lengths[] = {8, 16, 32, 64, 128, 256, 512}, batches[] = {1, 4, 16, 64};
    int64_t most = 4096;
    bench_options o = bench_defaults();
    o.steps = 5;
    option_spec own[] = {
        option_choice("--precision", "fp32|bf16", &o.precision, "of the operands of matrix products"),
        option_int("--threads", &o.threads, 0, 1024, "0: all cores"),
        option_int("--most-tokens", &most, 8, 1 << 24, "leave out larger batches"),
    };
    int status = bench_parse(argc, argv, &o, own, 3);
    if (status >= 0) return status;
    bench_header(argc, argv, "cost of a training step by length and batch");
    printf("#%7s %6s %7s %10s %9s %9s %8s\n", "length", "batch", "tokens", "ms", "us/token", "samples/s", "GF/s");
    for (int b = 0; b < 4; b++) {
        for (int l = 0; l < 7; l++)
            if (lengths[l] * batches[b] <= most && !measure(&o, lengths[l], batches[b])) return 1;
        printf("\n\n"); /* gnuplot's mark between sets */
    }
    return 0;
}
