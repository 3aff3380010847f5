/* step: where the time of a DistilBERT training step goes, phase by phase, against what the processor can do.

       step --precision bf16 --batch 16 --length 128
       step --model DIR --tsv train.tsv --text "#1 String,#2 String" --label Quality

   The context's back-end table is replaced by one that times each kernel. For idle time every piece of work is timed as
   well, by a macro in the place of the call run(argument, piece) in accel.h; hence the system's headers come first. */
#include <cblas.h>
#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <utf8proc.h>
#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif
static void timed_piece(void (*piece_of)(void *, int), void *argument, int piece);
#define run(argument, piece) timed_piece(run, argument, piece)
#define ACCEL_IMPLEMENTATION
#include "../accel_io.h"
#undef run
#include "bench.h"

#define PARTS(X)                          \
    X(EMBED, "embed", false)              \
    X(QKV, "QKV", true)                   \
    X(ATTENTION, "attention", true)       \
    X(OUT, "attention output", true)      \
    X(FFN, "FFN", true)                   \
    X(ACTIVATION, "activation", false)    \
    X(BIAS, "biases", false)              \
    X(NORM, "residual + norm", false)     \
    X(HEAD, "head", true)                 \
    X(LOSS, "loss", false)                \
    X(GRADIENT_NORM, "gradient norm", false) \
    X(OPTIMIZER, "Adam", false)
#define NAME_OF(part, name, product) part,
typedef enum part { PARTS(NAME_OF) PART_COUNT } part;
#define ROW_OF(part, name, product) {name, product},
static const struct {
    const char *name;
    bool product; /* matrix products */
} parts[] = {PARTS(ROW_OF)};

/* Sums over the timed steps: [forward or neither, backward]. */
typedef struct phase {
    double seconds, busy, operations, bytes;
} phase;
static phase phases[2][PART_COUNT];

static bench_training training;
static const accel_backend *plain;   /* the table that does the work */
static enum { IN_EMBEDDINGS, IN_LAYERS, IN_HEAD } place; /* of the model, where the next kernel belongs */
static bench_part last_part;         /* of the step, when the last kernel ran */
static int layers_left;              /* whose backward is not done */
static double kernel_began, busy_before;

/* ---- busy time of each thread ---- */

static struct {
    double seconds;
    char apart[56];
} busy[1025];

static void timed_piece(void (*piece_of)(void *, int), void *argument, int piece) {
    double begin = bench_now();
    piece_of(argument, piece);
    busy[accel__thread_index].seconds += bench_now() - begin;
}

static double busy_sum(void) {
    double sum = 0;
    for (int i = 0; i < accel_threads(training.acc); i++) sum += busy[i].seconds;
    return sum;
}

/* ---- which phase a kernel belongs to: the order of the model's operations says so ---- */

static bool backward(void) { return training.part == BENCH_BACKWARD; }

static void kernel_begin(void) {
    if (training.part != last_part) {
        place = backward() ? IN_HEAD : IN_EMBEDDINGS;
        layers_left = accel_encoder_config_of(training.model)->layers;
        last_part = training.part;
    }
    busy_before = busy_sum();
    kernel_began = bench_now();
}

static void kernel_end(part in_layers, double operations, double bytes) {
    part which = in_layers;
    if (which < HEAD && place == IN_EMBEDDINGS) which = EMBED;
    if (which < HEAD && place == IN_HEAD) which = HEAD;
    phase *p = &phases[backward()][which];
    p->seconds += bench_now() - kernel_began;
    p->busy += busy_sum() - busy_before;
    p->operations += operations;
    p->bytes += bytes;
}

static part part_of_product(const accel_gemm *g) {
    const accel_encoder_config *c = accel_encoder_config_of(training.model);
    if (g->n == 3 * c->dim || g->k == 3 * c->dim) return QKV;
    return g->n == c->hidden_dim || g->k == c->hidden_dim ? FFN : OUT;
}

static void timed_gemm(accel_t *acc, const accel_gemm *list, int count) {
    kernel_begin();
    plain->gemm(acc, list, count);
    part which = part_of_product(&list[0]);
    double operations = 0;
    for (int i = 0; i < count; i++) operations += 2.0 * list[i].m * list[i].n * list[i].k * list[i].batch;
    if (!backward() && which == QKV) place = IN_LAYERS;
    kernel_end(which, operations, 0);
    if (backward() && which == QKV && place == IN_LAYERS) layers_left--;
}

static double attention_squares(const accel_attend *a) {
    double sum = 0;
    for (int i = 0; i < a->sequences; i++) {
        double length = a->offsets[i + 1] - a->offsets[i];
        sum += length * length;
    }
    return sum * a->width;
}

static void timed_attend(accel_t *acc, const accel_attend *a) {
    kernel_begin();
    plain->attend(acc, a);
    kernel_end(ATTENTION, 4 * attention_squares(a), 0);
}

static void timed_attend_backward(accel_t *acc, const accel_attend *a) {
    kernel_begin();
    plain->attend_backward(acc, a);
    kernel_end(ATTENTION, 8 * attention_squares(a), 0);
}

static void timed_norm(accel_t *acc, const accel_norm *a) {
    kernel_begin();
    plain->norm(acc, a);
    kernel_end(NORM, 0, 4.0 * a->rows * a->width * (a->residual ? 4 : 2));
}

static void timed_norm_backward(accel_t *acc, const accel_norm *a) {
    kernel_begin();
    place = layers_left ? IN_LAYERS : IN_EMBEDDINGS;
    plain->norm_backward(acc, a);
    kernel_end(NORM, 0, 4.0 * a->rows * a->width * (3 + a->add_residual + (a->dx != NULL) + a->add_x));
}

static void timed_drop(accel_t *acc, const accel_drop *a) {
    kernel_begin();
    if (backward() && !layers_left) place = IN_EMBEDDINGS;
    plain->drop(acc, a);
    kernel_end(NORM, 0, 8.0 * (double)(a->rows * a->width));
}

/* Sums for layer norms come from pairs of partial sums, two rows apart. */
static void timed_reduce(accel_t *acc, const accel_axis *a) {
    kernel_begin();
    plain->reduce(acc, a);
    kernel_end(a->stride == 2 * a->inner ? NORM : BIAS, 0, 4.0 * (double)(a->outer * a->n * a->inner));
}

static void timed_map(accel_t *acc, const accel_map *a) {
    kernel_begin();
    plain->map(acc, a);
    kernel_end(ACTIVATION, 0, 4.0 * (double)a->n * (a->dy ? 3 : 2));
}

/* A gather of one row per text begins the head. */
static void timed_gather(accel_t *acc, const accel_rows *a) {
    kernel_begin();
    if (place == IN_LAYERS) place = IN_HEAD;
    plain->gather(acc, a);
    kernel_end(EMBED, 0, 8.0 * a->n * a->width);
}

static void timed_cross_entropy(accel_t *acc, const accel_cross_entropy_rows *a) {
    kernel_begin();
    plain->cross_entropy(acc, a);
    kernel_end(LOSS, 0, 8.0 * a->n * a->classes);
}

/* Kernels that belong to the place where they run. */
#define TIMED(kernel, type)                                      \
    static void timed_##kernel(accel_t *acc, const type *a) {    \
        kernel_begin();                                          \
        plain->kernel(acc, a);                                   \
        kernel_end(place == IN_LAYERS ? BIAS : EMBED, 0, 0);     \
    }
TIMED(pair, accel_pair)
TIMED(expand, accel_axis)
TIMED(move, accel_move)
TIMED(scatter, accel_rows)

static void timed_fill(accel_t *acc, float *x, int64_t n, float value) {
    kernel_begin();
    plain->fill(acc, x, n, value);
    kernel_end(place == IN_LAYERS ? BIAS : EMBED, 0, 4.0 * (double)n);
}

/* Elements of the stretches that a step reads. */
static double update_elements(const accel_update *list, int count, bool all) {
    double elements = 0;
    for (int i = 0; i < count; i++) {
        const accel_update *u = &list[i];
        const bool *rows = all && u->has_moments ? u->has_moments : u->touched;
        if (!u->row_width) elements += (double)u->n;
        else
            for (int64_t row = 0; row < u->n / u->row_width; row++) elements += rows[row] ? u->row_width : 0;
    }
    return elements;
}

static void timed_squares(accel_t *acc, const accel_update *list, int count, double *sums) {
    kernel_begin();
    plain->squares(acc, list, count, sums);
    kernel_end(GRADIENT_NORM, 0, 4 * update_elements(list, count, false));
}

/* Reads gradient, weight and two moments, writes the last three. */
static void timed_update(accel_t *acc, const accel_update *list, int count, const accel_update_rule *rule) {
    kernel_begin();
    plain->update(acc, list, count, rule);
    kernel_end(OPTIMIZER, 0, 28 * update_elements(list, count, true));
}

static void install(void) {
    static accel_backend timed;
    plain = training.acc->backend;
    timed = *plain;
    timed.gemm = timed_gemm, timed.attend = timed_attend, timed.attend_backward = timed_attend_backward;
    timed.norm = timed_norm, timed.norm_backward = timed_norm_backward, timed.drop = timed_drop;
    timed.reduce = timed_reduce, timed.map = timed_map, timed.gather = timed_gather, timed.scatter = timed_scatter;
    timed.pair = timed_pair, timed.expand = timed_expand, timed.move = timed_move, timed.fill = timed_fill;
    timed.cross_entropy = timed_cross_entropy, timed.squares = timed_squares, timed.update = timed_update;
    training.acc->backend = &timed;
}

/* ---- the tables ---- */

typedef struct limits {
    double operations, bytes; /* per second */
} limits;

static void print_number(double value, bool known, const char *format) {
    if (known) printf(format, value);
    else printf(" %9s", "-");
}

/* One line: milliseconds of a step, its share, operations and bytes against their limits, and how long a thread had no
   work. */
static void print_phase(const char *name, const phase *p, double step, double steps, limits limit) {
    bool known = p->operations > 0, memory = p->bytes > 0 && !known;
    int threads = accel_threads(training.acc);
    printf("%-28s %9.2f %9.1f", name, 1e3 * p->seconds / steps, 100 * p->seconds / steps / step);
    print_number(1e-9 * p->operations / p->seconds, known, " %9.1f");
    print_number(100 * p->operations / p->seconds / limit.operations, known && limit.operations > 0, " %9.1f");
    print_number(1e-9 * p->bytes / p->seconds, memory, " %9.1f");
    print_number(100 * p->bytes / p->seconds / limit.bytes, memory && limit.bytes > 0, " %9.1f");
    print_number(100 * (1 - p->busy / p->seconds / threads), p->busy > 0, " %9.1f");
    printf("\n");
}

static void phase_add(phase *sum, const phase *p) {
    sum->seconds += p->seconds;
    sum->busy += p->busy;
    sum->operations += p->operations;
    sum->bytes += p->bytes;
}

static void print_phases(const bench_result *r, double steps, limits limit) {
    phase all = {0}, products = {0}, between = {0}, idle = {0};
    double step = r->seconds / steps;
    printf("%-28s %9s %9s %9s %9s %9s %9s %9s\n", "#phase", "ms", "%step", "GF/s", "%limit", "GB/s", "%memory",
           "%idle");
    for (int direction = 0; direction < 2; direction++)
        for (int i = 0; i < PART_COUNT; i++) {
            const phase *p = &phases[direction][i];
            char name[64];
            snprintf(name, sizeof name, "\"%s%s\"", parts[i].name, direction ? ", backward" : "");
            if (p->seconds > 0) print_phase(name, p, step, steps, limit);
            phase_add(&all, p);
            if (parts[i].product) phase_add(&products, p);
        }
    between.seconds = r->seconds - all.seconds;
    idle.seconds = r->seconds - all.busy / accel_threads(training.acc);
    print_phase("\"between the kernels\"", &between, step, steps, limit);
    printf("# sums:\n");
    print_phase("# all products", &products, step, steps, limit);
    if (all.busy > 0) print_phase("# idle: no piece to work on", &idle, step, steps, limit);
}

static void print_summary(const bench_options *o, const bench_result *r, accel_memory before, limits limit) {
    accel_memory after = accel_memory_used(training.acc);
    double rate = r->operations / r->seconds;
    printf("# step: median %.1f ms, %.1f samples/s, %.0f real tokens/s, %.1f GF/s", 1e3 * r->step,
           r->samples / r->seconds, r->tokens / r->seconds, 1e-9 * rate);
    if (limit.operations > 0) printf(" = %.1f %% of the limit for the whole step", 100 * rate / limit.operations);
    printf("\n# allocator calls per step %.1f; peak memory: allocator %.0f MB, resident %.0f MB; last loss %.4f\n",
           (double)(after.calls - before.calls) / (double)o->steps, 1e-6 * (double)after.peak_bytes,
           1e-6 * bench_peak_resident(), training.loss);
}

/* For programs that read it: one line. */
static void print_brief(const bench_result *r, double start) {
    printf("samples_per_second=%.4f median_step=%.6f tokens=%.0f samples=%.0f loss=%.6f peak_mb=%.1f start=%.3f\n",
           r->samples / r->seconds, r->step, r->tokens, r->samples, training.loss, 1e-6 * bench_peak_resident(), start);
}

static limits measure_limits(const bench_options *o) {
    accel_t *acc = accel_create(&(accel_desc){.threads = (int)o->threads});
    bench_limit product = bench_precision(o->precision) == ACCEL_PRECISION_BF16 ? BENCH_BF16 : BENCH_FP32;
    limits limit = {bench_limit_of(acc, product), bench_limit_of(acc, BENCH_MEMORY)};
    printf("# limit of %d threads: %.0f GF/s in %s, memory %.1f GB/s\n", accel_threads(acc), 1e-9 * limit.operations,
           o->precision, 1e-9 * limit.bytes);
    accel_destroy(acc);
    return limit;
}

static bool measure_phases(bench_options *o, limits limit) {
    bench_result result;
    bench_options warm = *o;
    warm.steps = o->warmup;
    warm.warmup = 0;
    if (o->warmup && !bench_run(&training, &warm, &result)) return false;
    install();
    o->warmup = 0;
    accel_memory before = accel_memory_used(training.acc);
    if (!bench_run(&training, o, &result)) return false;
    print_phases(&result, (double)o->steps, limit);
    print_summary(o, &result, before, limit);
    return true;
}

static bool measure(bench_options *o, bool brief) {
    limits limit = {0};
    if (!brief) limit = measure_limits(o);
    double began = bench_now();
    if (!bench_open(&training, o)) return false;
    double ready = bench_now() - began;
    if (!bench_step(&training)) return false;
    double start = bench_now() - began;
    if (o->warmup > 0) o->warmup--; /* the one just done; it is never timed */
    if (!brief) printf("# start to the first step: %.2f s, to its end: %.2f s\n", ready, start);
    if (!brief) return measure_phases(o, limit);
    bench_result result;
    if (!bench_run(&training, o, &result)) return false;
    print_brief(&result, start);
    return true;
}

int main(int argc, char **argv) {
    bench_options o = bench_defaults();
    bool brief = false;
    option_spec own[] = {
        option_choice("--precision", "fp32|bf16", &o.precision, "of the operands of matrix products"),
        option_int("--threads", &o.threads, 0, 1024, "0: all cores"),
        option_flag("--brief", &brief, "time whole steps only, for other programs"),
    };
    int status = bench_parse(argc, argv, &o, own, 3);
    if (status >= 0) return status;
    if (!brief) bench_header(argc, argv, "where the time of a training step goes");
    measure(&o, brief);
    return bench_end(training.acc);
}
