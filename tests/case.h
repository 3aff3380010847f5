/* Checks accel.h against reference figures of PyTorch: small models (one folder each), trajectories of optimizers,
   schedules. tests/cases/README.md says what the files hold. Include after accel_io.h. */
#ifndef CASE_H
#define CASE_H
#include <cjson/cJSON.h>
#include <stdio.h>
#include <dirent.h>
#include <math.h>
#include <strings.h>

#include "files.h"

/* Largest errors that pass. PyTorch's own float32 run is within these figures of the float64 one, too. */
#define CASE_HIDDEN 5e-6 /* of a hidden state */
#define CASE_LOGITS 2e-6
#define CASE_LOSS 5e-6
#define CASE_GRADIENT 1e-5 /* of the tensor's largest value, or of a thousandth of the model's where that is more */
#define CASE_TRAIN_LOSS 5e-6
#define CASE_LR 1e-6        /* of the base rate */
#define CASE_NORM 1e-4      /* of the gradient's norm */
#define CASE_PARAMETER 5e-5 /* after training */
#define CASE_OPTIMIZER 1e-6 /* of the value, or of 1 where that is more */
/* The gradient of a key's bias is zero in exact arithmetic, so that Adam makes full steps of rounding noise. */
#define CASE_KEY_BIASES "*.k_lin.bias,*.self.key.bias"

/* What is checked and how it went. `out` NULL: nothing is printed; verbose: a line for each gradient. */
typedef struct case_check {
    FILE *out;
    int threads;
    bool verbose;
    int compared, failed;
    char first[1024]; /* first figure outside its tolerance, or error */
} case_check;

static void case_fault(case_check *check, const char *what) {
    if (!check->failed++) snprintf(check->first, sizeof check->first, "%s", what);
    if (check->out) fprintf(check->out, "  FAILED: %s\n", what);
}

/* Judges an error; NaN is outside every tolerance. */
static void case_judge(case_check *check, bool show, const char *what, double error, double tolerance) {
    bool good = error <= tolerance;
    check->compared++;
    if (check->out && show)
        fprintf(check->out, "  %-78s %9.2e  of %.0e%s\n", what, error, tolerance, good ? "" : "  <-- outside");
    if (good) return;
    char text[300];
    snprintf(text, sizeof text, "%s: error %.3g, allowed %.0e", what, error, tolerance);
    if (!check->failed++) snprintf(check->first, sizeof check->first, "%s", text);
}

/* Keeps the larger one; a NaN stays. */
static void case_keep_worst(double *worst, double error) {
    if (!(error <= *worst)) *worst = error;
}

static double case_distance(const float *actual, const float *expected, int64_t count) {
    double worst = 0;
    for (int64_t i = 0; i < count && worst == worst; i++)
        case_keep_worst(&worst, fabs((double)actual[i] - (double)expected[i]));
    return worst;
}

static double case_largest(const float *values, int64_t count) {
    double largest = 0;
    for (int64_t i = 0; i < count; i++) largest = fmax(largest, fabs((double)values[i]));
    return largest;
}

/* ---- files ---- */

/* The tensor's elements in memory of malloc; NULL, with the context's error, where it is not there. */
static float *case_floats(accel_t *acc, const accel_safetensors *file, const char *name, int64_t *count) {
    int index = accel_safetensors_find(file, name);
    accel_shape shape = accel_safetensors_shape(file, index);
    *count = 1;
    for (int i = 0; i < shape.rank; i++) *count *= shape.dim[i];
    if (index < 0 && file) accel__fail(acc, ACCEL_BAD_FILE, "the reference file has no tensor %s", name);
    float *values = index < 0 ? NULL : malloc((size_t)*count * sizeof *values);
    if (values && !accel_safetensors_read(file, index, values, *count)) free(values), values = NULL;
    return values;
}

static int32_t *case_ints(const accel_safetensors *file, const char *name, accel_shape *shape) {
    int index = accel_safetensors_find(file, name);
    *shape = accel_safetensors_shape(file, index);
    int64_t count = 1;
    for (int i = 0; i < shape->rank; i++) count *= shape->dim[i];
    int32_t *values = index < 0 ? NULL : malloc((size_t)count * sizeof *values);
    if (values && !accel_safetensors_read_ints(file, index, values, count)) free(values), values = NULL;
    return values;
}

static accel_safetensors *case_open(accel_t *acc, const char *folder, const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return accel_safetensors_open(acc, path);
}

/* Batches of equal size: [steps, batch, length], or one [batch, length]. */
typedef struct case_batches {
    int32_t *ids, *mask, *types, *labels;
    float *targets;
    int steps, examples, length, targets_per_example;
} case_batches;

static void case_batches_free(case_batches *b) {
    free(b->ids);
    free(b->mask);
    free(b->types);
    free(b->labels);
    free(b->targets);
}

static bool case_batches_read(accel_t *acc, const char *folder, const char *name, case_batches *b) {
    memset(b, 0, sizeof *b);
    accel_safetensors *file = case_open(acc, folder, name);
    accel_shape shape, other;
    b->ids = case_ints(file, "input_ids", &shape);
    b->mask = case_ints(file, "attention_mask", &other);
    b->types = case_ints(file, "token_type_ids", &other);
    if (!b->ids || !b->mask)
        return accel__fail(acc, ACCEL_BAD_FILE, "%s/%s lacks input_ids or attention_mask", folder, name);
    b->length = shape.dim[shape.rank - 1];
    b->examples = shape.dim[shape.rank - 2];
    b->steps = shape.rank == 3 ? shape.dim[0] : 1;
    if (accel_safetensors_dtype(file, accel_safetensors_find(file, "labels")) == ACCEL_I64) {
        b->labels = case_ints(file, "labels", &other);
    } else {
        int64_t count;
        b->targets = case_floats(acc, file, "labels", &count);
        b->targets_per_example = (int)(count / b->steps / b->examples);
    }
    accel_free(file);
    return !accel_failed(acc);
}

/* Batch number `step`, in the current scope. */
static bool case_batch(accel_t *acc, const case_batches *b, int step, accel_batch *batch) {
    int64_t first = (int64_t)step * b->examples, tokens = first * b->length;
    const int32_t *types = b->types ? b->types + tokens : NULL, *labels = b->labels ? b->labels + first : NULL;
    if (!accel_batch_from_padded(acc, b->ids + tokens, b->mask + tokens, types, labels, b->examples, b->length, batch))
        return false;
    if (b->targets) {
        batch->targets = b->targets + first * b->targets_per_example;
        batch->targets_per_example = b->targets_per_example;
    }
    return true;
}

/* ---- one batch: hidden states, logits, loss, gradients ---- */

/* Distance of a tensor from the one of that name in the file; NaN where there is none or the counts differ. */
static double case_against(accel_t *acc, accel_tensor x, const accel_safetensors *expect, const char *name) {
    int64_t count;
    double distance = NAN;
    float *expected = case_floats(acc, expect, name, &count);
    float *actual = malloc((size_t)count * sizeof *actual);
    if (expected && actual && accel_read(x, actual, count)) distance = case_distance(actual, expected, count);
    free(expected);
    free(actual);
    return distance;
}

static void case_check_outputs(case_check *check, accel_t *acc, const accel_output *out, const accel_batch *batch,
                               const accel_safetensors *expect) {
    for (int i = 0; i < out->hidden_count; i++) {
        char name[32];
        snprintf(name, sizeof name, "hidden.%d", i);
        case_judge(check, true, name, case_against(acc, accel_unpack(out->hidden[i], batch), expect, name),
                   CASE_HIDDEN);
    }
    case_judge(check, true, "logits", case_against(acc, out->logits, expect, "logits"), CASE_LOGITS);
    int64_t count;
    float *loss = case_floats(acc, expect, "loss", &count);
    case_judge(check, true, "loss", loss ? fabs((double)accel_item(out->loss) - (double)*loss) : NAN, CASE_LOSS);
    free(loss);
}

static double case_largest_gradient(accel_t *acc, const accel_safetensors *expect) {
    double largest = 0;
    for (int i = 0; i < accel_safetensors_count(expect); i++) {
        const char *name = accel_safetensors_name(expect, i);
        int64_t count;
        if (strncmp(name, "grad.", 5) != 0) continue;
        float *values = case_floats(acc, expect, name, &count);
        if (values) largest = fmax(largest, case_largest(values, count));
        free(values);
    }
    return largest;
}

/* Every parameter must have an expected gradient, and every expected gradient its parameter. */
static void case_check_gradients(case_check *check, accel_t *acc, accel_model *model, const accel_safetensors *expect) {
    double least = case_largest_gradient(acc, expect) * 1e-3, worst = 0;
    char name[300], worst_name[330] = "";
    int expected_count = 0;
    for (int i = 0; i < accel_safetensors_count(expect); i++)
        expected_count += strncmp(accel_safetensors_name(expect, i), "grad.", 5) == 0;
    if (expected_count != accel_parameter_count(model))
        case_fault(check, "the model has not as many parameters as there are gradients");
    for (int i = 0; i < accel_parameter_count(model); i++) {
        int64_t count;
        snprintf(name, sizeof name, "grad.%s", accel_parameter_name(model, i));
        float *expected = case_floats(acc, expect, name, &count), *actual = malloc((size_t)count * sizeof *actual);
        double error = NAN;
        if (expected && actual && accel_grad(accel_parameter_at(model, i), actual, count))
            error = case_distance(actual, expected, count) / fmax(case_largest(expected, count), least);
        free(expected);
        free(actual);
        case_judge(check, check->verbose, name, error, CASE_GRADIENT);
        if (!(error <= worst)) worst = error, snprintf(worst_name, sizeof worst_name, "worst gradient (%s)", name);
    }
    if (check->out && !check->verbose)
        fprintf(check->out, "  %-78s %9.2e  of %.0e\n", worst_name, worst, CASE_GRADIENT);
}

static void case_check_batch(case_check *check, accel_t *acc, const char *folder) {
    accel_model *model = accel_load_pretrained(acc, folder, NULL);
    accel_output_hidden_states(model, true);
    accel_safetensors *expect = case_open(acc, folder, "expect.safetensors");
    case_batches inputs;
    accel_batch batch;
    accel_begin(acc);
    if (case_batches_read(acc, folder, "inputs.safetensors", &inputs) && case_batch(acc, &inputs, 0, &batch)) {
        accel_output out = accel_forward(model, &batch);
        accel_backward(acc, out.loss);
        case_check_outputs(check, acc, &out, &batch, expect);
        case_check_gradients(check, acc, model, expect);
    }
    case_batches_free(&inputs);
    accel_free(expect);
}

/* ---- the training loop ---- */

static double case_number(const cJSON *json, const char *key, double fallback) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);
    return cJSON_IsNumber(item) ? item->valuedouble : fallback;
}

static const char *case_text(const cJSON *json, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);
    return cJSON_IsString(item) ? item->valuestring : "";
}

static const cJSON *case_item(const cJSON *json, const char *key, int index) {
    return cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(json, key), index);
}

/* NaN where the array is too short. */
static double case_at(const cJSON *json, const char *key, int index) {
    const cJSON *item = case_item(json, key, index);
    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

/* 0 as a description says it. */
static float case_zero(double value) {
    return value == 0 ? ACCEL_ZERO : (float)value;
}

/* An optimizer by torch's name of it (in any case), with its options. */
static accel_optimizer *case_optimizer(accel_t *acc, accel_model *model, const char *kind, const cJSON *options) {
    float lr = (float)case_number(options, "lr", 1e-3);
    const cJSON *betas = cJSON_GetObjectItemCaseSensitive(options, "betas");
    if (strcasecmp(kind, "SGD") == 0)
        return accel_sgd(
            acc, model,
            &(accel_sgd_desc){.lr = lr,
                              .momentum = (float)case_number(options, "momentum", 0),
                              .weight_decay = (float)case_number(options, "weight_decay", 0),
                              .nesterov = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(options, "nesterov"))});
    accel_adam_desc desc = {.lr = lr,
                            .eps = (float)case_number(options, "eps", 1e-8),
                            .beta1 = betas ? (float)case_at(options, "betas", 0) : 0,
                            .beta2 = betas ? (float)case_at(options, "betas", 1) : 0,
                            .amsgrad = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(options, "amsgrad")),
                            .weight_decay = case_zero(case_number(options, "weight_decay", 0))};
    return strcasecmp(kind, "AdamW") == 0 ? accel_adamw(acc, model, &desc) : accel_adam(acc, model, &desc);
}

static accel_schedule *case_schedule(accel_optimizer *opt, const char *kind, int64_t warmup, int64_t total) {
    if (strcmp(kind, "cosine") == 0) return accel_cosine_schedule_with_warmup(opt, warmup, total);
    if (strcmp(kind, "constant") == 0) return accel_constant_schedule_with_warmup(opt, warmup);
    return accel_linear_schedule_with_warmup(opt, warmup, total);
}

static void case_check_final(case_check *check, accel_t *acc, accel_model *model, const char *folder) {
    accel_safetensors *expect = case_open(acc, folder, "train_final.safetensors");
    double worst = 0;
    for (int i = 0; i < accel_parameter_count(model); i++) {
        const char *name = accel_parameter_name(model, i);
        if (!accel__match(CASE_KEY_BIASES, name))
            case_keep_worst(&worst, case_against(acc, accel_parameter_at(model, i), expect, name));
    }
    case_judge(check, true, "final parameters, without key biases", worst, CASE_PARAMETER);
    accel_free(expect);
}

/* Runs train.json's loop and compares it with the float64 figures. */
static void case_train(case_check *check, accel_t *acc, const char *folder, const cJSON *train, const case_batches *b) {
    const cJSON *expect = cJSON_GetObjectItemCaseSensitive(train, "float64");
    double base = case_number(train, "lr", NAN), clip = case_number(train, "max_grad_norm", INFINITY);
    double loss_error = 0, lr_error = 0, norm_error = 0;
    int updates = 0;
    accel_model *model = accel_load_pretrained(acc, folder, NULL);
    accel_optimizer *opt = case_optimizer(acc, model, case_text(train, "optimizer"), train);
    accel_schedule *schedule =
        case_schedule(opt, case_text(train, "schedule"), (int64_t)case_number(train, "warmup_updates", 0),
                      (int64_t)case_number(train, "updates", 0));
    accel_prepare(acc, model, opt, schedule);
    accel_set_accumulate(acc, (int)case_number(train, "gradient_accumulation_steps", 1));
    for (int step = 0; step < b->steps; step++) {
        accel_batch batch;
        accel_begin(acc);
        accel_zero_grad(opt);
        if (!case_batch(acc, b, step, &batch)) return;
        accel_output out = accel_forward(model, &batch);
        case_keep_worst(&loss_error, fabs((double)accel_item(out.loss) - case_at(expect, "loss", step)));
        accel_backward(acc, out.loss);
        if (accel_sync_gradients(acc)) {
            case_keep_worst(&lr_error, fabs((double)accel_lr(opt) - case_at(expect, "lr", updates)) / base);
            double norm = case_at(expect, "grad_norm", updates++);
            case_keep_worst(&norm_error, fabs((double)accel_clip_grad_norm(opt, (float)clip) - norm) / norm);
        }
        accel_step(opt);
        accel_schedule_step(schedule);
    }
    case_judge(check, true, "training losses", loss_error, CASE_TRAIN_LOSS);
    case_judge(check, true, "lr of each step", lr_error, CASE_LR);
    case_judge(check, true, "gradient norm of each step, relative", norm_error, CASE_NORM);
    if (updates != (int)case_number(train, "updates", -1) || accel_steps_taken(opt) != updates)
        case_fault(check, "another number of optimizer steps than expected");
    case_check_final(check, acc, model, folder);
}

static void case_check_training(case_check *check, accel_t *acc, const char *folder) {
    char path[4096];
    case_batches batches = {0};
    snprintf(path, sizeof path, "%s/train.json", folder);
    cJSON *train = read_json(path);
    if (!train) accel__fail(acc, ACCEL_BAD_FILE, "%s is absent or no JSON", path);
    if (train && case_batches_read(acc, folder, "train_inputs.safetensors", &batches))
        case_train(check, acc, folder, train, &batches);
    case_batches_free(&batches);
    cJSON_Delete(train);
}

static accel_t *case_context(const case_check *check) {
    return accel_create(&(accel_desc){.threads = check->threads});
}

static void case_close(case_check *check, accel_t *acc) {
    if (accel_failed(acc)) case_fault(check, accel_message(acc));
    accel_destroy(acc);
}

static void case_check_model(case_check *check, const char *folder) {
    if (check->out) fprintf(check->out, "%s\n", folder);
    accel_t *acc = case_context(check);
    case_check_batch(check, acc, folder);
    case_close(check, acc);
    acc = case_context(check);
    case_check_training(check, acc, folder);
    case_close(check, acc);
}

/* ---- optimizers.json and schedules.json ---- */

#define CASE_WIDTH 64

/* A step with the gradient that the file gives: the loss is the sum of parameter times gradient. */
static void case_fed_step(accel_t *acc, accel_optimizer *opt, accel_tensor p, const float *gradient, int width) {
    accel_begin(acc);
    accel_zero_grad(opt);
    accel_backward(acc, accel_sum(accel_mul(p, accel_from_floats(acc, accel_1d(width), gradient))));
    accel_step(opt);
}

static int case_row(const cJSON *row, float *values) {
    int width = 0;
    for (const cJSON *item = row ? row->child : NULL; item && width < CASE_WIDTH; item = item->next)
        values[width++] = (float)item->valuedouble;
    return width;
}

static void case_check_optimizer(case_check *check, accel_t *acc, const cJSON *entry) {
    float row[CASE_WIDTH], actual[CASE_WIDTH];
    int width = case_row(cJSON_GetObjectItemCaseSensitive(entry, "start"), row);
    const cJSON *options = cJSON_GetObjectItemCaseSensitive(entry, "options");
    accel_model *model = accel_model_create(acc, "case");
    accel_tensor p = accel_parameter(model, "p", accel_1d(width));
    accel_write(p, row, width);
    accel_optimizer *opt = case_optimizer(acc, model, case_text(entry, "optimizer"), options);
    double worst = 0;
    int steps = cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(entry, "grads"));
    for (int step = 0; step < steps; step++) {
        if (case_row(case_item(entry, "grads", step), row) != width) case_fault(check, "ragged gradients");
        case_fed_step(acc, opt, p, row, width);
        const cJSON *expected = case_item(entry, "trajectory", step);
        if (!accel_read(p, actual, width)) worst = NAN;
        for (int i = 0; i < width; i++) {
            const cJSON *item = cJSON_GetArrayItem(expected, i);
            double value = item ? item->valuedouble : NAN;
            case_keep_worst(&worst, fabs((double)actual[i] - value) / fmax(1, fabs(value)));
        }
    }
    char name[200], *text = cJSON_PrintUnformatted(options);
    snprintf(name, sizeof name, "%s %s", case_text(entry, "optimizer"), text ? text : "");
    cJSON_free(text);
    case_judge(check, true, name, steps ? worst : NAN, CASE_OPTIMIZER);
}

static void case_check_schedule(case_check *check, accel_t *acc, const cJSON *entry) {
    double base = case_number(entry, "base_lr", NAN), worst = 0;
    int64_t warmup = (int64_t)case_number(entry, "warmup", 0), total = (int64_t)case_number(entry, "total", 0);
    accel_model *model = accel_model_create(acc, "case");
    accel_tensor p = accel_parameter(model, "p", accel_1d(1));
    accel_optimizer *opt = accel_sgd(acc, model, &(accel_sgd_desc){.lr = (float)base});
    accel_schedule *schedule = case_schedule(opt, case_text(entry, "schedule"), warmup, total);
    int steps = cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(entry, "lr"));
    for (int step = 0; step < steps; step++) {
        double expected = case_at(entry, "lr", step);
        case_keep_worst(&worst, fabs((double)accel_lr(opt) - expected) / base);
        case_keep_worst(&worst, fabs(accel_schedule_factor(schedule, step) * base - expected) / base);
        case_fed_step(acc, opt, p, &(float){1}, 1);
        accel_schedule_step(schedule);
    }
    char name[100];
    snprintf(name, sizeof name, "%s, warmup %d, total %d", case_text(entry, "schedule"), (int)warmup, (int)total);
    case_judge(check, true, name, steps ? worst : NAN, CASE_LR);
}

/* Checks each entry of a file; true where the file is there. */
static bool case_check_list(case_check *check, const char *folder, const char *name,
                            void (*entry_check)(case_check *check, accel_t *acc, const cJSON *entry)) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (!file_exists(path)) return false;
    if (check->out) fprintf(check->out, "%s\n", path);
    accel_t *acc = case_context(check);
    cJSON *list = read_json(path);
    if (!list) accel__fail(acc, ACCEL_BAD_FILE, "%s is no JSON", path);
    for (const cJSON *entry = list ? list->child : NULL; entry; entry = entry->next) entry_check(check, acc, entry);
    cJSON_Delete(list);
    case_close(check, acc);
    return true;
}

/* ---- folders ---- */

static bool case_is_model(const char *folder) {
    char path[4200];
    snprintf(path, sizeof path, "%s/expect.safetensors", folder);
    return file_exists(path);
}

/* Checks the models in a folder's sub-folders, in the order of their names; true where there are any. */
static bool case_check_models(case_check *check, const char *folder) {
    struct dirent **list = NULL;
    int count = scandir(folder, &list, NULL, alphasort);
    bool found = false;
    for (int i = 0; i < count; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", folder, list[i]->d_name);
        if (list[i]->d_name[0] != '.' && case_is_model(path)) {
            case_check_model(check, path);
            found = true;
        }
        free(list[i]);
    }
    free(list);
    return found;
}

/* A model's folder, or one that holds such folders, optimizers.json or schedules.json. True where all is well. */
static bool case_check_folder(case_check *check, const char *folder) {
    if (case_is_model(folder)) {
        case_check_model(check, folder);
    } else {
        bool found = case_check_models(check, folder);
        found = case_check_list(check, folder, "optimizers.json", case_check_optimizer) || found;
        found = case_check_list(check, folder, "schedules.json", case_check_schedule) || found;
        if (!found)
            case_fault(
                check,
                "no case here: neither expect.safetensors, nor folders with it, nor optimizers.json or schedules.json");
    }
    return check->failed == 0 && check->compared > 0;
}

#endif
