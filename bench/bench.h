/* What the programs of bench/ share: the lines that say where and how a figure was made, the processor's measured
   limits, and a training loop. Lines that begin with '#' are remarks; all others are tables that gnuplot reads as they
   are.

   A program that looks inside accel.h includes it whole; the Makefile lists those under WHOLE. */
#ifndef BENCH_H
#define BENCH_H

#include "../examples/common.h"
#include <cblas.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

static inline double bench_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline int bench_compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts the values; 0 where there are none. */
static inline double bench_median(double *values, int count) {
    if (count < 1) return 0;
    qsort(values, (size_t)count, sizeof *values, bench_compare);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

/* ---- where and how ---- */

/* The rest of the first line of a file that begins with `key`, without what separates them. */
static inline void bench_line_of(const char *path, const char *key, char *out, size_t size) {
    FILE *file = fopen(path, "r");
    char line[512];
    snprintf(out, size, "unknown");
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, key, strlen(key)) != 0) continue;
        const char *value = line + strlen(key);
        value += strspn(value, " \t:");
        snprintf(out, size, "%.*s", (int)strcspn(value, "\n"), value);
        break;
    }
    if (file) fclose(file);
}

/* Largest resident memory so far, in bytes; 0 where the system does not say. */
static inline double bench_peak_resident(void) {
    char text[64];
    bench_line_of("/proc/self/status", "VmHWM", text, sizeof text);
    return 1024 * atof(text);
}

static inline const char *bench_instructions(void) {
#if defined(__x86_64__) && defined(__GNUC__)
    if (__builtin_cpu_supports("avx512bf16")) return "AVX-512 with bf16";
    if (__builtin_cpu_supports("avx512f")) return "AVX-512";
    if (__builtin_cpu_supports("avx2")) return "AVX2";
#endif
    return "no AVX2";
}

/* The command that repeats the run. */
static inline void bench_command(int argc, char **argv) {
    static const char *const names[] = {"OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"};
    printf("# command: ");
    for (int i = 0; i < 2; i++) {
        const char *value = getenv(names[i]);
        if (value) printf("%s=%s ", names[i], value);
    }
    for (int i = 0; i < argc; i++)
        printf(strpbrk(argv[i], " #\"$*") ? "'%s'%s" : "%s%s", argv[i], i + 1 < argc ? " " : "\n");
}

static inline void bench_header(int argc, char **argv, const char *what) {
    char cpu[256], load[64];
    bench_line_of("/proc/cpuinfo", "model name", cpu, sizeof cpu);
    bench_line_of("/proc/loadavg", "", load, sizeof load);
    printf("# %s\n", what);
    printf("# machine: %s, %ld cores, %s; load before the run %.4s\n", cpu, sysconf(_SC_NPROCESSORS_ONLN),
           bench_instructions(), load);
    printf("# BLAS core: %s; %s\n", accel_blas_core(), openblas_get_config());
    printf("# versions: accel.h %s, compiler %s\n", ACCEL_VERSION, __VERSION__);
    bench_command(argc, argv);
    fflush(stdout);
}

/* Exit status of a program: 1, with the message, where the context failed. */
static inline int bench_end(accel_t *acc) {
    int status = accel_failed(acc);
    if (status) fprintf(stderr, "%s\n", accel_message(acc));
    accel_destroy(acc);
    return status;
}

/* ---- limits of the processor: multiply-add on registers alone, and memory ---- */

enum { BENCH_SUMS = 12, BENCH_TRIES = 5 };
typedef enum bench_limit { BENCH_FP32, BENCH_BF16, BENCH_MEMORY } bench_limit;

#if defined(__x86_64__) && defined(__GNUC__)
/* name(rounds) runs BENCH_SUMS independent chains of fma. */
#define BENCH_CHAINS(name, instructions, vector, zero, add, total)                    \
    __attribute__((target(instructions))) static inline float name(int64_t rounds) {  \
        vector sum[BENCH_SUMS];                                                       \
        for (int i = 0; i < BENCH_SUMS; i++) sum[i] = zero;                           \
        for (int64_t r = 0; r < rounds; r++) {                                        \
            _Pragma("GCC unroll 12") for (int i = 0; i < BENCH_SUMS; i++) add;        \
        }                                                                             \
        float result = 0;                                                             \
        for (int i = 0; i < BENCH_SUMS; i++) result += total;                         \
        return result;                                                                \
    }
BENCH_CHAINS(bench_fma_512, "avx512f", __m512, _mm512_setzero_ps(),
             sum[i] = _mm512_fmadd_ps(_mm512_set1_ps(0.5f), _mm512_set1_ps(0.25f), sum[i]),
             _mm512_reduce_add_ps(sum[i]))
BENCH_CHAINS(bench_fma_256, "avx2,fma", __m256, _mm256_setzero_ps(),
             sum[i] = _mm256_fmadd_ps(_mm256_set1_ps(0.5f), _mm256_set1_ps(0.25f), sum[i]),
             _mm256_cvtss_f32(sum[i]))
BENCH_CHAINS(bench_dot_bf16, "avx512f,avx512bf16", __m512, _mm512_setzero_ps(),
             sum[i] = _mm512_dpbf16_ps(sum[i], (__m512bh)_mm512_set1_epi32(0x3e803f00),
                                       (__m512bh)_mm512_set1_epi32(0x3e803f00)),
             _mm512_reduce_add_ps(sum[i]))

/* Runs `rounds` of a limit's chains; returns their operations, 0 where the processor has no such instruction. */
static inline double bench_chains(bench_limit limit, int64_t rounds, float *result) {
    double chains = (double)BENCH_SUMS * (double)rounds;
    if (limit == BENCH_BF16) {
        if (!__builtin_cpu_supports("avx512bf16")) return 0;
        *result = bench_dot_bf16(rounds);
        return 64 * chains;
    }
    if (__builtin_cpu_supports("avx512f")) {
        *result = bench_fma_512(rounds);
        return 32 * chains;
    }
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
    *result = bench_fma_256(rounds);
    return 16 * chains;
}
#else
static inline double bench_chains(bench_limit limit, int64_t rounds, float *result) {
    *result = (float)(limit + rounds);
    return 0;
}
#endif

typedef struct bench_probe {
    bench_limit limit;
    int64_t floats; /* of each thread's part of x and y */
    float *x, *y;
    double rate[1024];
} bench_probe;

/* Bytes read and written by x = a x + y over a thread's part. */
static inline double bench_stream(const bench_probe *probe, int piece) {
    typedef float four __attribute__((vector_size(16)));
    four *x = (four *)(void *)(probe->x + piece * probe->floats);
    const four *y = (const four *)(const void *)(probe->y + piece * probe->floats);
    for (int64_t i = 0; i < probe->floats / 4; i++) x[i] = 0.5f * x[i] + y[i];
    return 12 * (double)probe->floats;
}

static inline void bench_probe_piece(void *argument, int piece) {
    bench_probe *probe = (bench_probe *)argument;
    volatile float sink;
    float result = 0;
    double begin = bench_now(), work;
    if (probe->limit == BENCH_MEMORY) work = bench_stream(probe, piece);
    else work = bench_chains(probe->limit, 1000000, &result);
    sink = result;
    (void)sink;
    probe->rate[piece] = work / (bench_now() - begin);
}

/* What all threads together reach, at best: operations per second, or bytes per second. 0 where it is not known. */
static inline double bench_limit_of(accel_t *acc, bench_limit limit) {
    int threads = accel_threads(acc);
    static bench_probe probe;
    probe = (bench_probe){.limit = limit, .floats = (int64_t)1 << 24};
    size_t bytes = (size_t)threads * (size_t)probe.floats * sizeof(float);
    if (limit == BENCH_MEMORY) {
        probe.x = calloc(1, bytes);
        probe.y = calloc(1, bytes);
        if (!probe.x || !probe.y) return 0;
        memset(probe.y, 0, bytes); /* pages of its own */
    }
    double best = 0;
    for (int i = 0; i < BENCH_TRIES; i++) {
        accel__parallel(acc, threads, bench_probe_piece, &probe);
        double sum = 0;
        for (int j = 0; j < threads; j++) sum += probe.rate[j];
        if (sum > best) best = sum;
    }
    free(probe.x);
    free(probe.y);
    return best;
}

/* ---- a training step of DistilBERT-base ---- */

typedef struct bench_options {
    const char *precision, *model, *tsv, *label;
    text_columns text;
    int64_t threads, batch, length, steps, warmup, layers;
    double dropout;
    bool mixed;
} bench_options;

static inline bench_options bench_defaults(void) {
    return (bench_options){
        .precision = "fp32", .batch = 16, .length = 128, .steps = 10, .warmup = 2, .layers = 6, .dropout = NAN};
}

/* The rows of the options table that all training programs have; returns their number. */
enum { BENCH_COMMON_OPTIONS = 11 };
static inline void bench_common_options(bench_options *o, option_spec *rows) {
    option_spec common[BENCH_COMMON_OPTIONS] = {
        option_int("--batch", &o->batch, 1, 1 << 16, "texts per batch"),
        option_int("--length", &o->length, 2, 1 << 16, "tokens of each synthetic text; a real one is cut to them"),
        option_int("--steps", &o->steps, 1, 1e6, "steps that are timed"),
        option_int("--warmup", &o->warmup, 0, 1e6, "steps before"),
        option_int("--layers", &o->layers, 1, 1000, "layers of a model without --model"),
        option_text("--model", "DIR", &o->model, "pretrained folder, instead of fresh weights"),
        option_text("--tsv", "FILE", &o->tsv, "texts in the order of the file, instead of random ids; with --model"),
        option_columns("--text", &o->text, "columns of --tsv with texts"),
        option_text("--label", "COL", &o->label, "column of --tsv with the label"),
        option_number("--dropout", &o->dropout, 0, 0.99, "instead of the model's own"),
        option_flag("--mixed", &o->mixed, "random ids of 5 to --length tokens, instead of --length all"),
    };
    memcpy(rows, common, sizeof common);
}

typedef enum bench_part { BENCH_BATCH, BENCH_FORWARD, BENCH_BACKWARD, BENCH_UPDATE } bench_part;

typedef struct bench_training {
    accel_t *acc;
    accel_model *model;
    accel_optimizer *optimizer;
    accel_loader *loader;
    accel_tokenizer *tokenizer;
    accel_table *table;
    bench_part part;  /* of the step that is under way */
    accel_batch batch;
    double loss;
} bench_training;

static inline accel_precision bench_precision(const char *name) {
    return strcmp(name, "bf16") ? ACCEL_PRECISION_FP32 : ACCEL_PRECISION_BF16;
}

/* Rows of ids that are spread over the vocabulary, the same in bench/peer.py. */
static inline accel_data *bench_synthetic(accel_t *acc, const bench_options *o, int vocabulary) {
    int64_t rows = 4 * o->batch, count = 0;
    int32_t *ids = malloc((size_t)(rows * o->length) * sizeof *ids), *labels = malloc((size_t)rows * sizeof *labels);
    int64_t *offsets = malloc((size_t)(rows + 1) * sizeof *offsets);
    accel_data *data = NULL;
    if (ids && labels && offsets) {
        offsets[0] = 0;
        for (int64_t i = 0; i < rows; i++) {
            int64_t length = o->mixed && o->length > 5 ? 5 + i * 37 % (o->length - 4) : o->length;
            for (int64_t end = count + length; count < end; count++)
                ids[count] = (int32_t)(1000 + count * 7919 % (vocabulary - 1000));
            offsets[i + 1] = count;
            labels[i] = (int32_t)(i & 1);
        }
        accel_data_desc desc = {.rows = rows, .ids = ids, .offsets = offsets, .labels = labels};
        data = accel_data_create(acc, &desc);
    }
    free(ids);
    free(labels);
    free(offsets);
    return data;
}

static inline accel_data *bench_texts(bench_training *t, bench_options *o) {
    const char *text[2];
    t->tokenizer = accel_tokenizer_load(t->acc, o->model, NULL);
    t->table = accel_table_read(t->acc, o->tsv, NULL);
    if (!text_columns_find(&o->text, t->acc, t->table, text)) return NULL;
    return accel_encode_table(t->tokenizer, t->table,
                              &(accel_encode_desc){.text = {text[0], text[1]}, .label = {o->label},
                                                   .max_length = (int)o->length, .model = t->model});
}

static inline accel_model *bench_model(accel_t *acc, const bench_options *o) {
    if (o->model) return accel_load_pretrained(acc, o->model, NULL);
    accel_encoder_config config = accel_encoder_defaults(ACCEL_DISTILBERT);
    config.layers = (int)o->layers;
    if (o->length > config.max_positions) config.max_positions = (int)o->length;
    return accel_encoder_create(acc, &config);
}

static inline void bench_quiet(void *user, const char *line) {
    (void)user;
    (void)line;
}

/* Everything up to the first step. False on error, with the message in t->acc. */
static inline bool bench_open(bench_training *t, bench_options *o) {
    *t = (bench_training){0};
    t->acc = accel_create(&(accel_desc){
        .threads = (int)o->threads, .precision = bench_precision(o->precision), .log = bench_quiet});
    t->model = bench_model(t->acc, o);
    if (!isnan(o->dropout)) accel_set_dropout(t->model, (float)o->dropout);
    const accel_encoder_config *config = accel_encoder_config_of(t->model);
    if (!config) return false;
    accel_data *data = o->tsv ? bench_texts(t, o) : bench_synthetic(t->acc, o, config->vocab_size);
    t->loader = accel_loader_create(t->acc, data, &(accel_loader_desc){.batch_size = (int)o->batch});
    t->optimizer = accel_adam(t->acc, t->model, &(accel_adam_desc){.lr = 2e-5f});
    return accel_prepare(t->acc, t->model, t->optimizer, t->loader);
}

/* One step, from the batch to the updated weights. False on error. */
static inline bool bench_step(bench_training *t) {
    t->part = BENCH_BATCH;
    if (!accel_next(t->loader, &t->batch) && !accel_next(t->loader, &t->batch)) return false;
    accel_zero_grad(t->optimizer);
    t->part = BENCH_FORWARD;
    accel_output out = accel_forward(t->model, &t->batch);
    t->loss = (double)accel_item(out.loss);
    t->part = BENCH_BACKWARD;
    accel_backward(t->acc, out.loss);
    t->part = BENCH_UPDATE;
    return accel_step(t->optimizer);
}

/* Products of a training step for this batch: forward, gradients of the inputs and of the weights. */
static inline double bench_operations(const accel_encoder_config *c, const accel_batch *batch) {
    double width = c->dim, layer = 4 * width * width + 2 * width * (double)c->hidden_dim, squares = 0;
    for (int i = 0; i < batch->examples; i++) {
        double length = batch->offsets[i + 1] - batch->offsets[i];
        squares += length * length;
    }
    double head = batch->examples * width * (width + c->num_labels);
    return 6 * (c->layers * (batch->tokens * layer + 2 * squares * width) + head);
}

typedef struct bench_result {
    double seconds, step, samples, tokens, operations; /* of all timed steps; `step` is the median */
} bench_result;

/* Warms up and times steps. False on error. */
static inline bool bench_run(bench_training *t, const bench_options *o, bench_result *result) {
    double *seconds = malloc((size_t)o->steps * sizeof *seconds);
    *result = (bench_result){0};
    bool good = seconds != NULL;
    for (int64_t i = 0; good && i < o->warmup; i++) good = bench_step(t);
    for (int64_t i = 0; good && i < o->steps; i++) {
        double begin = bench_now();
        good = bench_step(t);
        seconds[i] = bench_now() - begin;
        result->seconds += seconds[i];
        result->samples += t->batch.examples;
        result->tokens += t->batch.tokens;
        result->operations += bench_operations(accel_encoder_config_of(t->model), &t->batch);
    }
    if (good) result->step = bench_median(seconds, (int)o->steps);
    free(seconds);
    return good;
}

/* Reads the command line of a training program: its own rows and the common ones. Returns as options_parse does. */
static inline int bench_parse(int argc, char **argv, bench_options *o, const option_spec *own, int count) {
    option_spec rows[BENCH_COMMON_OPTIONS + 8];
    bench_common_options(o, rows);
    for (int i = 0; i < count; i++) rows[BENCH_COMMON_OPTIONS + i] = own[i];
    int status = options_parse(argc, argv, "", rows, BENCH_COMMON_OPTIONS + count, NULL);
    if (status >= 0 || !o->tsv || (o->model && o->text.count && o->label)) return status;
    return fprintf(stderr, "--tsv needs --model, --text and --label\n"), 1;
}

#endif
