/* Traces: what the file holds, read by cJSON, and that looking on changes no result. */
#define ACCEL_IMPLEMENTATION
#include "accel_io.h"
#include "test.h"
#include "helpers.h"
#include "files.h"

#define FOLDER "build/tmp/traces"

enum { LAYERS = 2 };

/* ---- a small run ---- */

typedef struct training {
    accel_t *acc;
    accel_model *model;
    accel_optimizer *optimizer;
    accel_loader *train, *evaluation;
} training;

static training training_of(int threads) {
    training t = {.acc = context_of((accel_desc){.threads = threads, .seed = 5}, NULL)};
    accel_encoder_config config = dropping_encoder(ACCEL_DISTILBERT);
    t.model = accel_encoder_create(t.acc, &config);
    t.optimizer = accel_adam(t.acc, t.model, NULL);
    t.train = accel_loader_create(t.acc, small_data(t.acc, 24, 10, 1), &(accel_loader_desc){.batch_size = 8});
    t.evaluation = accel_loader_create(t.acc, small_data(t.acc, 10, 10, 2),
                                       &(accel_loader_desc){.batch_size = 5, .evaluation = true});
    accel_prepare(t.acc, t.model, t.optimizer, t.train, t.evaluation);
    return t;
}

static void train_epoch(training *t) {
    accel_batch batch;
    while (accel_next(t->train, &batch)) {
        accel_zero_grad(t->optimizer);
        accel_backward(t->acc, accel_forward(t->model, &batch).loss);
        accel_clip_grad_norm(t->optimizer, 1);
        accel_step(t->optimizer);
    }
    accel_eval_begin(t->acc);
    while (accel_next(t->evaluation, &batch)) accel_forward(t->model, &batch);
    accel_eval_end(t->acc);
}

/* The events of a traced epoch; the file's JSON goes to *json. */
static const cJSON *traced_epoch(int threads, const char *path, cJSON **json) {
    training t = training_of(threads);
    CHECK(accel_trace_begin(t.acc, path));
    train_epoch(&t);
    CHECK(accel_trace_end(t.acc));
    CHECK_FINE(t.acc);
    accel_destroy(t.acc);
    *json = read_json(path);
    const cJSON *events = cJSON_GetObjectItemCaseSensitive(*json, "traceEvents");
    CHECK(cJSON_IsArray(events));
    return events;
}

/* ---- events ---- */

static const char *text_of(const cJSON *event, const char *name) {
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(event, name));
    return text ? text : "";
}

static double number_of(const cJSON *event, const char *name) {
    const cJSON *number = cJSON_GetObjectItemCaseSensitive(event, name);
    return cJSON_IsNumber(number) ? number->valuedouble : NAN;
}

static double argument_of(const cJSON *event, const char *name) {
    return number_of(cJSON_GetObjectItemCaseSensitive(event, "args"), name);
}

static bool is_span(const cJSON *event, const char *name) {
    return !strcmp(text_of(event, "ph"), "X") && !strcmp(text_of(event, "name"), name);
}

/* Spans of that name, the pieces of operations left out. */
static int spans(const cJSON *events, const char *name) {
    int count = 0;
    const cJSON *event;
    cJSON_ArrayForEach(event, events) count += is_span(event, name) && isnan(argument_of(event, "piece"));
    return count;
}

/* Times are given in thousandths, so the sums of two are compared with that slack. */
static bool within(const cJSON *inner, const cJSON *outer) {
    double begin = number_of(outer, "ts"), end = begin + number_of(outer, "dur"), slack = 2e-3;
    return number_of(inner, "ts") >= begin - slack && number_of(inner, "ts") + number_of(inner, "dur") <= end + slack;
}

static bool apart(const cJSON *a, const cJSON *b) {
    double slack = 2e-3;
    return number_of(a, "ts") + number_of(a, "dur") <= number_of(b, "ts") + slack ||
           number_of(b, "ts") + number_of(b, "dur") <= number_of(a, "ts") + slack;
}

static bool nest(const cJSON *a, const cJSON *b) {
    return number_of(a, "tid") != number_of(b, "tid") || apart(a, b) || within(a, b) || within(b, a);
}

/* ---- the tests ---- */

TEST(phases_operations_and_pieces) {
    cJSON *json;
    const cJSON *events = traced_epoch(2, FOLDER "/run.json", &json), *event;
    int batches = 3, evaluated = 2;
    CHECK(spans(events, "batch") == batches + evaluated);
    CHECK(spans(events, "forward") == batches + evaluated);
    CHECK(spans(events, "layer") == (batches + evaluated) * LAYERS);
    CHECK(spans(events, "backward") == batches);
    CHECK(spans(events, "gradient norm") == batches);
    CHECK(spans(events, "update") == 2 * batches); /* the phase and its only operation */
    CHECK(spans(events, "evaluation") == 1);
    CHECK(spans(events, "gemm") >= 5 * 6 * LAYERS);
    CHECK(spans(events, "attend_backward") == batches * LAYERS);
    int pieces = 0, products = 0;
    cJSON_ArrayForEach(event, events) {
        pieces += argument_of(event, "piece") >= 0;
        products += is_span(event, "gemm") && argument_of(event, "k") == 35 && argument_of(event, "n") == 21;
    }
    CHECK(pieces > spans(events, "gemm"));
    CHECK(products >= (batches + evaluated) * LAYERS); /* the second of each feed-forward block */
    cJSON_Delete(json);
}

TEST(spans_nest_and_last) {
    for (int threads = 1; threads <= 3; threads += 2) {
        cJSON *json;
        const cJSON *events = traced_epoch(threads, FOLDER "/nest.json", &json), *a, *b;
        int overlapping = 0, bad = 0;
        cJSON_ArrayForEach(a, events) {
            if (strcmp(text_of(a, "ph"), "X")) continue;
            bad += !(number_of(a, "ts") >= 0) || !(number_of(a, "dur") >= 0) || !*text_of(a, "name");
            bad += !(number_of(a, "tid") >= 0 && number_of(a, "tid") < threads) || number_of(a, "pid") != 1;
            for (b = a->next; b; b = b->next) overlapping += !strcmp(text_of(b, "ph"), "X") && !nest(a, b);
        }
        CHECK(bad == 0);
        CHECK(overlapping == 0);
        cJSON_Delete(json);
    }
}

TEST(every_thread_has_its_name) {
    cJSON *json;
    const cJSON *events = traced_epoch(3, FOLDER "/names.json", &json), *event;
    static const char *const names[] = {"main", "worker 1", "worker 2"};
    int found[3] = {0};
    cJSON_ArrayForEach(event, events) {
        if (strcmp(text_of(event, "name"), "thread_name")) continue;
        int thread = (int)number_of(event, "tid");
        CHECK(thread >= 0 && thread < 3);
        CHECK_TEXT(text_of(cJSON_GetObjectItemCaseSensitive(event, "args"), "name"), names[thread]);
        found[thread]++;
    }
    CHECK(found[0] == 1 && found[1] == 1 && found[2] == 1);
    cJSON_Delete(json);
}

/* Weights and moments after an epoch that is traced in part, as the saved state has them. */
TEST(looking_on_changes_nothing) {
    size_t bytes[2];
    char *state[2];
    for (int traced = 0; traced < 2; traced++) {
        training t = training_of(2);
        train_epoch(&t);
        if (traced) CHECK(accel_trace_begin(t.acc, FOLDER "/same.json"));
        train_epoch(&t);
        if (traced) CHECK(accel_trace_end(t.acc));
        train_epoch(&t);
        CHECK(accel_save_state(t.acc, traced ? FOLDER "/state1" : FOLDER "/state0"));
        CHECK_FINE(t.acc);
        accel_destroy(t.acc);
        state[traced] = read_bytes(traced ? FOLDER "/state1/state.safetensors" : FOLDER "/state0/state.safetensors",
                                   &bytes[traced]);
    }
    CHECK(state[0] && state[1] && bytes[0] == bytes[1] && memcmp(state[0], state[1], bytes[0]) == 0);
    free(state[0]), free(state[1]);
}

/* One that begins within an evaluation, and ends within the next one. */
TEST(begins_and_ends_anywhere) {
    training t = training_of(2);
    accel_batch batch;
    accel_eval_begin(t.acc);
    CHECK(accel_trace_begin(t.acc, FOLDER "/anywhere.json"));
    accel_next(t.evaluation, &batch);
    accel_eval_end(t.acc);
    accel_eval_begin(t.acc);
    CHECK(accel_trace_end(t.acc));
    CHECK(accel_trace_begin(t.acc, FOLDER "/second.json"));
    accel_eval_end(t.acc);
    CHECK(accel_trace_end(t.acc));
    CHECK_FINE(t.acc);
    cJSON *first = read_json(FOLDER "/anywhere.json"), *second = read_json(FOLDER "/second.json");
    CHECK(spans(cJSON_GetObjectItem(first, "traceEvents"), "evaluation") == 1);
    CHECK(spans(cJSON_GetObjectItem(first, "traceEvents"), "batch") == 1);
    CHECK(second && spans(cJSON_GetObjectItem(second, "traceEvents"), "evaluation") == 0);
    cJSON_Delete(first), cJSON_Delete(second);
    accel_destroy(t.acc);
}

/* An end is missing where a thread has more spans than are kept; what is there is still well-formed. */
TEST(more_spans_than_are_kept) {
    notices log = {0};
    accel_t *acc = context_of((accel_desc){.threads = 1}, &log);
    CHECK(accel_trace_begin(acc, FOLDER "/full.json"));
    for (int i = 0; i < 600000; i++) { /* each fills by one operation of one piece */
        accel_begin(acc);
        accel_full(acc, accel_1d(1), 1);
    }
    CHECK(accel_trace_end(acc));
    CHECK_FINE(acc);
    CHECK_TEXT(log.last, "full.json: its end is missing");
    cJSON *json = read_json(FOLDER "/full.json");
    CHECK(cJSON_GetArraySize(cJSON_GetObjectItem(json, "traceEvents")) > 1000000);
    cJSON_Delete(json);
    unlink(FOLDER "/full.json");
    accel_destroy(acc);
}

TEST(wrong_calls) {
    accel_t *acc = context();
    CHECK(!accel_trace_begin(acc, NULL));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "a path is expected");
    CHECK(!accel_trace_begin(acc, FOLDER "/none/run.json"));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "none/run.json cannot be written: No such file");
    CHECK(!accel_trace_end(acc));
    CHECK_ERROR(acc, ACCEL_BAD_STATE, "there was no accel_trace_begin");
    CHECK(accel_trace_begin(acc, FOLDER "/lost.json"));
    CHECK(!accel_trace_begin(acc, FOLDER "/lost.json"));
    CHECK_ERROR(acc, ACCEL_BAD_STATE, "a trace is under way");
    CHECK(!accel_trace_begin(NULL, "x") && !accel_trace_end(NULL));
    accel_destroy(acc);
    CHECK(!file_exists(FOLDER "/lost.json"));
}

int main(int argc, char **argv) {
    if (!lock_folder(FOLDER)) return fprintf(stderr, "cannot lock " FOLDER "\n"), 1;
    empty_folder(FOLDER);
    return test_main(argc, argv);
}
