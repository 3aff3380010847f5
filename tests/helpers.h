/* Helpers shared by the tests of accel.h: quiet contexts, reproducible random data, comparison with float64 references,
   small models and data sets. Include after accel.h and test.h. */
#ifndef HELPERS_H
#define HELPERS_H

#define HELPER __attribute__((unused)) static
#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

/* ---- contexts ---- */

typedef struct notices {
    int lines;
    char last[512];
} notices;

HELPER void keep_notice(void *user, const char *line) {
    notices *log = user;
    log->lines++;
    snprintf(log->last, sizeof log->last, "%s", line);
}

/* A context whose notices go to `log` (NULL: nowhere), with a desc's other fields as given. */
HELPER accel_t *context_of(accel_desc desc, notices *log) {
    static notices nowhere;
    desc.log = keep_notice;
    desc.log_user = log ? log : &nowhere;
    return accel_create(&desc);
}

HELPER accel_t *context(void) {
    return context_of((accel_desc){.threads = 2}, NULL);
}

/* The context must have failed with this code and a message that contains the text; the error is cleared. */
#define CHECK_ERROR(acc, code, text)                                                                        \
    do {                                                                                                    \
        CHECK(accel_failed(acc));                                                                           \
        CHECK_TEXT(accel_code_text(accel_error(acc)), accel_code_text(code));                               \
        CHECK_TEXT(accel_message(acc), (text));                                                             \
        accel_clear(acc);                                                                                   \
    } while (0)

/* The context must not have failed; its message is shown. */
#define CHECK_FINE(acc)                                                                                     \
    do {                                                                                                    \
        if (accel_failed(acc)) {                                                                            \
            test_faults++;                                                                                  \
            printf("  %s:%d: failed: %s\n", __FILE__, __LINE__, accel_message(acc));                        \
            accel_clear(acc);                                                                               \
        }                                                                                                   \
    } while (0)

/* ---- random data, the same in every run ---- */

HELPER uint64_t random_bits(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

HELPER double random_between(uint64_t *state, double low, double high) {
    return low + (high - low) * (double)(random_bits(state) >> 11) * 0x1p-53;
}

HELPER int random_int(uint64_t *state, int low, int high) { /* low .. high - 1 */
    return low + (int)(random_bits(state) % (uint64_t)(high - low));
}

HELPER void fill(float *values, int64_t count, double low, double high, uint64_t seed) {
    for (int64_t i = 0; i < count; i++) values[i] = (float)random_between(&seed, low, high);
}

HELPER float *random_floats(int64_t count, double low, double high, uint64_t seed) {
    float *values = malloc((size_t)count * sizeof *values);
    fill(values, count, low, high, seed);
    return values;
}

HELPER int64_t shape_count(accel_shape shape) {
    return (int64_t)shape.dim[0] * shape.dim[1] * shape.dim[2] * shape.dim[3];
}

HELPER accel_tensor random_tensor(accel_t *acc, accel_shape shape, double low, double high, uint64_t seed) {
    float *values = random_floats(shape_count(shape), low, high, seed);
    accel_tensor x = accel_from_floats(acc, shape, values);
    free(values);
    return x;
}

/* ---- values ---- */

/* Copies of a tensor's values and gradient, to be freed; NaN where they cannot be read. */
HELPER float *values_of(accel_tensor x) {
    int64_t count = accel_count(x);
    float *values = malloc((size_t)(count + 1) * sizeof *values);
    if (!accel_read(x, values, count)) for (int64_t i = 0; i < count; i++) values[i] = NAN;
    return values;
}

HELPER float *grad_of(accel_tensor x) {
    int64_t count = accel_count(x);
    float *values = malloc((size_t)(count + 1) * sizeof *values);
    if (!accel_grad(x, values, count)) for (int64_t i = 0; i < count; i++) values[i] = NAN;
    return values;
}

/* Largest |value - expected| / max(1, |expected|); infinite where the number of elements is another or one is NaN. */
HELPER double error_of(const float *values, const double *expected, int64_t count) {
    double largest = 0;
    for (int64_t i = 0; i < count; i++) {
        double error = fabs(values[i] - expected[i]) / fmax(1, fabs(expected[i]));
        if (!(error <= largest)) largest = isnan(error) ? INFINITY : error;
    }
    return largest;
}

HELPER double value_error(accel_tensor x, const double *expected, int64_t count) {
    if (accel_count(x) != count) return INFINITY;
    float *values = values_of(x);
    double error = error_of(values, expected, count);
    free(values);
    return error;
}

HELPER double grad_error(accel_tensor x, const double *expected, int64_t count) {
    if (accel_count(x) != count) return INFINITY;
    float *values = grad_of(x);
    double error = error_of(values, expected, count);
    free(values);
    return error;
}

HELPER float first_grad(accel_tensor x) {
    float *values = grad_of(x), first = values[0];
    free(values);
    return first;
}

HELPER bool same_shape(accel_shape a, accel_shape b) {
    return a.rank == b.rank && memcmp(a.dim, b.dim, sizeof a.dim) == 0;
}

HELPER bool same_values(accel_tensor a, accel_tensor b) { /* bit for bit */
    if (accel_count(a) != accel_count(b) || accel_count(a) == 0) return false;
    float *x = values_of(a), *y = values_of(b);
    bool same = memcmp(x, y, (size_t)accel_count(a) * sizeof *x) == 0;
    free(x), free(y);
    return same;
}

/* All parameters of a model (or their gradients), one after the other; to be freed. */
HELPER float *all_of(accel_model *model, bool (*copy)(accel_tensor, float *, int64_t)) {
    float *all = malloc((size_t)(accel_parameter_elements(model) + 1) * sizeof *all), *at = all;
    for (int i = 0; i < accel_parameter_count(model); i++) {
        accel_tensor parameter = accel_parameter_at(model, i);
        if (!copy(parameter, at, accel_count(parameter))) *at = NAN;
        at += accel_count(parameter);
    }
    return all;
}

HELPER bool same_parameters(accel_model *model, const float *expected) { /* bit for bit */
    float *all = all_of(model, accel_read);
    bool same = memcmp(all, expected, (size_t)accel_parameter_elements(model) * sizeof *all) == 0;
    free(all);
    return same;
}

/* Two encoders of one context start with different weights: gives `to` those of `from`. */
HELPER void copy_parameters(accel_model *to, accel_model *from) {
    float *all = all_of(from, accel_read), *at = all;
    for (int i = 0; i < accel_parameter_count(to); i++) {
        accel_tensor parameter = accel_parameter_at(to, i);
        accel_write(parameter, at, accel_count(parameter));
        at += accel_count(parameter);
    }
    free(all);
}

/* Largest difference of two models' gradients, for each parameter relative to its largest gradient in `expected`, or to
   a hundredth of the largest of all where that is more (a key bias has the gradient zero in exact arithmetic). */
HELPER double gradient_distance(accel_model *model, const float *actual, const float *expected) {
    double largest = 0, distance = 0;
    for (int64_t i = 0; i < accel_parameter_elements(model); i++) largest = fmax(largest, fabs(expected[i]));
    for (int i = 0; i < accel_parameter_count(model); i++) {
        int64_t count = accel_count(accel_parameter_at(model, i));
        double scale = 1e-2 * largest, error = 0;
        for (int64_t k = 0; k < count; k++) {
            scale = fmax(scale, fabs(expected[k]));
            double difference = fabs((double)actual[k] - expected[k]);
            error = isnan(difference) ? INFINITY : fmax(error, difference);
        }
        distance = fmax(distance, error / scale);
        actual += count, expected += count;
    }
    return distance;
}

/* ---- float64 references ---- */

/* Position in an operand of the result's element `at` under NumPy's broadcasting. */
HELPER int64_t broadcast_index(accel_shape result, int64_t at, accel_shape operand) {
    int64_t index = 0, stride = 1;
    for (int back = 1; back <= operand.rank; back++) { /* from the last axis */
        int size = operand.dim[operand.rank - back], extent = result.dim[result.rank - back];
        if (size > 1) index += at % extent * stride;
        stride *= size, at /= extent;
    }
    return index;
}

HELPER void reference_softmax(const float *x, int columns, double *probability) {
    double largest = -INFINITY, sum = 0;
    for (int i = 0; i < columns; i++) largest = fmax(largest, x[i]);
    for (int i = 0; i < columns; i++) sum += probability[i] = exp(x[i] - largest);
    for (int i = 0; i < columns; i++) probability[i] /= sum;
}

/* torch.nn.functional.cross_entropy; the divisor goes to *divisor where it is not NULL. */
HELPER double reference_cross_entropy(const float *logits, const int32_t *labels, int rows, int classes,
                                      double smoothing, const float *weights, double *divisor) {
    double loss = 0, count = 0, *probability = malloc((size_t)classes * sizeof *probability);
    for (int i = 0; i < rows; i++) {
        if (labels[i] == ACCEL_IGNORE) continue;
        reference_softmax(logits + (size_t)i * (size_t)classes, classes, probability);
        for (int c = 0; c < classes; c++) {
            double weight = weights ? weights[c] : 1;
            loss -= weight * log(probability[c]) * (smoothing / classes + (c == labels[i] ? 1 - smoothing : 0));
        }
        count += weights ? weights[labels[i]] : 1;
    }
    free(probability);
    if (divisor) *divisor = count;
    return loss / count;
}

/* ---- small encoders and their data ---- */

enum { VOCABULARY = 41, POSITIONS = 24 };

/* Two layers, odd widths, no dropout. */
HELPER accel_encoder_config small_encoder(accel_architecture architecture) {
    accel_encoder_config config = accel_encoder_defaults(architecture);
    config.vocab_size = VOCABULARY, config.max_positions = POSITIONS;
    config.dim = 21, config.layers = 2, config.heads = 3, config.hidden_dim = 35;
    config.initializer_range = 0.2f; /* so that gradients are not tiny */
    config.dropout = config.attention_dropout = config.classifier_dropout = 0;
    return config;
}

HELPER accel_encoder_config dropping_encoder(accel_architecture architecture) {
    accel_encoder_config config = small_encoder(architecture);
    config.dropout = config.attention_dropout = config.classifier_dropout = 0.1f;
    return config;
}

typedef struct rows {
    int count;
    int64_t *offsets;
    int32_t *ids, *types, *labels;
    float *targets;
} rows;

/* Texts of 2 .. longest tokens (1 where longest is 1) with two halves, labels 0 .. classes - 1 and a 0/1 target per
   class. */
HELPER rows random_rows(int count, int longest, int classes, uint64_t seed) {
    rows made = {.count = count};
    made.offsets = calloc((size_t)count + 1, sizeof *made.offsets);
    made.ids = malloc((size_t)(count * longest) * sizeof *made.ids);
    made.types = malloc((size_t)(count * longest) * sizeof *made.types);
    made.labels = malloc((size_t)count * sizeof *made.labels);
    made.targets = malloc((size_t)(count * classes) * sizeof *made.targets);
    for (int i = 0; i < count; i++) {
        int length = longest > 2 ? random_int(&seed, 2, longest + 1) : longest;
        made.offsets[i + 1] = made.offsets[i] + length;
        for (int k = 0; k < length; k++) {
            made.ids[made.offsets[i] + k] = random_int(&seed, 1, VOCABULARY);
            made.types[made.offsets[i] + k] = 2 * k >= length;
        }
        made.labels[i] = random_int(&seed, 0, classes);
        for (int c = 0; c < classes; c++) made.targets[i * classes + c] = (float)random_int(&seed, 0, 2);
    }
    return made;
}

HELPER void free_rows(rows *made) {
    free(made->offsets), free(made->ids), free(made->types), free(made->labels), free(made->targets);
}

/* Labelled data without token types. */
HELPER accel_data *data_of(accel_t *acc, const rows *made) {
    return accel_data_create(acc, &(accel_data_desc){
        .rows = made->count, .ids = made->ids, .offsets = made->offsets, .labels = made->labels});
}

HELPER accel_data *small_data(accel_t *acc, int count, int longest, uint64_t seed) {
    rows made = random_rows(count, longest, 2, seed);
    accel_data *data = data_of(acc, &made);
    free_rows(&made);
    return data;
}

#endif
