/* config.json and pretrained folders: what Transformers writes is read, what it does not say has its defaults, what
   does not fit is refused by name, and what is saved is loaded again. The folders are variations of two under
   tests/cases. */
#define ACCEL_IMPLEMENTATION
#include <cjson/cJSON.h>
#include "accel_io.h"

#include <signal.h>
#include <sys/resource.h>

#include "test.h"
#include "helpers.h"
#include "files.h"

#define BERT "tests/cases/bert_gelu_new"               /* 2 labels */
#define DISTILBERT "tests/cases/distilbert_accumulate" /* 3 labels */
#define COPY "build/tmp/pretrained"
#define WEIGHTS COPY "/model.safetensors"
#define CONFIG COPY "/config.json"
#define MAX_ARRAYS 128

/* ---- folders in memory, to be changed and written ---- */

typedef struct folder {
    accel_named_array arrays[MAX_ARRAYS];
    char *names[MAX_ARRAYS];
    float *values[MAX_ARRAYS];
    int count;
    cJSON *config;
} folder;

static int64_t elements(accel_shape shape) {
    int64_t count = 1;
    for (int i = 0; i < shape.rank; i++) count *= shape.dim[i];
    return count;
}

static folder folder_read(accel_t *acc, const char *path) {
    folder f = {.count = 0};
    char name[512];
    snprintf(name, sizeof name, "%s/config.json", path);
    f.config = read_json(name);
    snprintf(name, sizeof name, "%s/model.safetensors", path);
    accel_safetensors *file = accel_safetensors_open(acc, name);
    for (int i = 0; i < accel_safetensors_count(file); i++) {
        accel_shape shape = accel_safetensors_shape(file, i);
        int64_t count = elements(shape);
        f.names[i] = strdup(accel_safetensors_name(file, i));
        f.values[i] = malloc((size_t)count * sizeof(float));
        CHECK(accel_safetensors_read(file, i, f.values[i], count));
        f.arrays[f.count++] = (accel_named_array){f.names[i], ACCEL_F32, shape, f.values[i]};
    }
    accel_free(file);
    CHECK_FINE(acc);
    return f;
}

static void folder_free(folder *f) {
    for (int i = 0; i < MAX_ARRAYS; i++) {
        free(f->names[i]);
        free(f->values[i]);
    }
    cJSON_Delete(f->config);
}

static int folder_find(const folder *f, const char *name) {
    for (int i = 0; i < f->count; i++)
        if (strcmp(f->arrays[i].name, name) == 0) return i;
    CHECK(!"a tensor of that name");
    return 0;
}

/* Takes out every tensor that matches. */
static void folder_drop(folder *f, const char *match) {
    int kept = 0;
    for (int i = 0; i < f->count; i++)
        if (!accel__match(match, f->arrays[i].name)) f->arrays[kept++] = f->arrays[i];
    CHECK(kept < f->count);
    f->count = kept;
}

/* Adds a tensor of a few zeros. */
static void folder_add(folder *f, const char *name, accel_dtype dtype, accel_shape shape) {
    static const double zeros[64];
    CHECK(elements(shape) <= 64);
    f->arrays[f->count++] = (accel_named_array){name, dtype, shape, zeros};
}

/* Sets a key of the config to a JSON value; NULL takes it out. */
static void folder_set(folder *f, const char *key, const char *value) {
    cJSON_DeleteItemFromObjectCaseSensitive(f->config, key);
    if (value) cJSON_AddItemToObject(f->config, key, cJSON_Parse(value));
}

static void folder_write(accel_t *acc, const folder *f) {
    char *text = cJSON_Print(f->config);
    make_folder(COPY);
    write_text(CONFIG, text);
    cJSON_free(text);
    accel_safetensors_write(acc, WEIGHTS, f->arrays, f->count, NULL);
    CHECK_FINE(acc);
}

/* A context with its notices kept, and an empty folder COPY. */
static notices notes;

static accel_t *open_context(void) {
    memset(&notes, 0, sizeof notes);
    accel_t *acc = context_of((accel_desc){.threads = 2}, &notes);
    make_folder(COPY);
    empty_folder(COPY);
    CHECK_FINE(acc);
    return acc;
}

/* Largest difference of all parameters; infinite where the models differ otherwise. */
static double model_distance(accel_model *a, accel_model *b) {
    double worst = 0;
    if (!a || !b || accel_parameter_count(a) != accel_parameter_count(b)) return INFINITY;
    for (int i = 0; i < accel_parameter_count(a); i++) {
        accel_tensor x = accel_parameter_at(a, i), y = accel_parameter_find(b, accel_parameter_name(a, i));
        if (accel_count(x) != accel_count(y)) return INFINITY;
        const float *p = accel__values(x), *q = accel__values(y);
        for (int64_t j = 0; j < accel_count(x); j++) worst = fmax(worst, fabs((double)p[j] - (double)q[j]));
    }
    return worst;
}

/* Loads a variation of a folder and expects a refusal. */
static void check_refused(accel_t *acc, const folder *f, const accel_pretrained_desc *desc, accel_code code,
                          const char *text) {
    folder_write(acc, f);
    CHECK(accel_load_pretrained(acc, COPY, desc) == NULL);
    CHECK_TEXT(accel_message(acc), COPY);
    CHECK_ERROR(acc, code, text);
}

/* ---- loading ---- */

TEST(both_architectures_are_loaded) {
    accel_t *acc = open_context();
    accel_model *bert = accel_load_pretrained(acc, BERT, NULL),
                *distilbert = accel_load_pretrained(acc, DISTILBERT "/", NULL);
    CHECK_FINE(acc);
    const accel_encoder_config *b = accel_encoder_config_of(bert), *d = accel_encoder_config_of(distilbert);
    CHECK(b && b->architecture == ACCEL_BERT && b->dim == 30 && b->layers == 2 && b->heads == 5 && b->hidden_dim == 56);
    CHECK(b && b->vocab_size == 61 && b->max_positions == 24 && b->type_vocab_size == 2 &&
          b->activation == ACCEL_GELU_TANH);
    CHECK(d && d->architecture == ACCEL_DISTILBERT && d->dim == 24 && d->layers == 2 && d->heads == 3 &&
          d->num_labels == 3);
    CHECK(d && d->activation == ACCEL_GELU && d->dropout == 0 && d->attention_dropout == 0 &&
          d->classifier_dropout == 0);
    CHECK(d && d->problem == ACCEL_SINGLE_LABEL && !d->sinusoidal_positions && accel_label_name(distilbert, 0) == NULL);
    CHECK(notes.lines == 0);
    folder f = folder_read(acc, BERT);
    CHECK(f.count == accel_parameter_count(bert));
    for (int i = 0; i < f.count; i++) {
        accel_tensor x = accel_parameter_find(bert, f.arrays[i].name);
        CHECK(accel_valid(x) && memcmp(accel__values(x), f.values[i], (size_t)accel_count(x) * sizeof(float)) == 0);
    }
    folder_free(&f);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

/* Base models are saved without their prefix; TensorFlow's layer norms have gamma and beta. */
static void check_renamed(const char *path, const char *prefix) {
    accel_t *acc = open_context();
    folder f = folder_read(acc, path);
    for (int i = 0; i < f.count; i++) {
        char *name = f.names[i], *dot = strrchr(name, '.');
        bool norm = strstr(name, "LayerNorm") || strstr(name, "layer_norm");
        if (norm) strcpy(dot, strcmp(dot, ".weight") == 0 ? ".gamma" : ".beta");
        if (strncmp(name, prefix, strlen(prefix)) == 0) f.arrays[i].name = name + strlen(prefix);
    }
    folder_write(acc, &f);
    accel_model *original = accel_load_pretrained(acc, path, NULL), *renamed = accel_load_pretrained(acc, COPY, NULL);
    CHECK_FINE(acc);
    CHECK(model_distance(original, renamed) == 0);
    folder_free(&f);
    accel_destroy(acc);
}

TEST(names_without_prefix_and_old_layer_norms_are_understood) {
    check_renamed(BERT, "bert.");
    check_renamed(DISTILBERT, "distilbert.");
}

TEST(left_overs_are_ignored) {
    accel_t *acc = open_context();
    folder f = folder_read(acc, BERT), d = folder_read(acc, DISTILBERT);
    folder_add(&f, "cls.predictions.transform.dense.weight", ACCEL_F32, accel_2d(3, 2));
    folder_add(&f, "cls.seq_relationship.bias", ACCEL_F32, accel_1d(2));
    folder_add(&f, "bert.embeddings.position_ids", ACCEL_I64, accel_2d(1, 24));
    folder_write(acc, &f);
    CHECK(accel_load_pretrained(acc, COPY, NULL));
    CHECK_FINE(acc);
    folder_add(&d, "vocab_transform.weight", ACCEL_F32, accel_2d(3, 2));
    folder_add(&d, "vocab_layer_norm.bias", ACCEL_F32, accel_1d(2));
    folder_add(&d, "vocab_projector.bias", ACCEL_F32, accel_1d(2));
    folder_add(&d, "qa_outputs.weight", ACCEL_F32, accel_2d(2, 2));
    folder_add(&d, "pooler.dense.weight", ACCEL_F32, accel_2d(2, 2));
    folder_write(acc, &d);
    CHECK(accel_load_pretrained(acc, COPY, NULL));
    CHECK_FINE(acc);
    CHECK(notes.lines == 0);
    folder_free(&f);
    folder_free(&d);
    accel_destroy(acc);
}

TEST(narrow_weights_are_widened) {
    accel_t *acc = open_context();
    const accel_dtype dtypes[] = {ACCEL_BF16, ACCEL_F16};
    const double tolerance[] = {1.0 / 256, 1.0 / 2048};
    accel_model *original = accel_load_pretrained(acc, BERT, NULL);
    folder f = folder_read(acc, BERT);
    for (int i = 0; i < 2; i++) {
        for (int j = 0; j < f.count; j++) f.arrays[j].dtype = dtypes[i];
        folder_write(acc, &f);
        double distance = model_distance(original, accel_load_pretrained(acc, COPY, NULL));
        CHECK(distance > 0 && distance < 2 * tolerance[i]);
    }
    CHECK_FINE(acc);
    folder_free(&f);
    accel_destroy(acc);
}

/* ---- what does not fit is named ---- */

TEST(a_missing_tensor_is_named) {
    accel_t *acc = open_context();
    folder f = folder_read(acc, BERT);
    folder_drop(&f, "bert.encoder.layer.1.output.dense.bias");
    check_refused(acc, &f, NULL, ACCEL_BAD_FILE,
                  "tensor bert.encoder.layer.1.output.dense.bias of shape [30] is missing (1 missing in all)");
    folder_free(&f);
    accel_destroy(acc);
}

TEST(an_unexpected_tensor_is_named) {
    accel_t *acc = open_context();
    folder f = folder_read(acc, DISTILBERT);
    folder_add(&f, "distilbert.transformer.layer.2.attention.q_lin.bias", ACCEL_F32, accel_1d(24));
    folder_add(&f, "distilbert.transformer.layer.2.attention.k_lin.bias", ACCEL_F32, accel_1d(24));
    check_refused(acc, &f, NULL, ACCEL_BAD_FILE,
                  "unexpected tensor distilbert.transformer.layer.2.attention.k_lin.bias of shape [24]");
    folder_free(&f);
    accel_destroy(acc);
}

TEST(the_same_tensor_under_two_names_is_refused) {
    accel_t *acc = open_context();
    folder f = folder_read(acc, DISTILBERT);
    folder_add(&f, "embeddings.LayerNorm.weight", ACCEL_F32, accel_1d(24));
    check_refused(acc, &f, NULL, ACCEL_BAD_FILE, "unexpected tensor embeddings.LayerNorm.weight");
    folder_free(&f);
    accel_destroy(acc);
}

TEST(another_shape_is_named) {
    accel_t *acc = open_context();
    folder f = folder_read(acc, BERT);
    int bias = folder_find(&f, "bert.encoder.layer.0.intermediate.dense.bias");
    f.arrays[bias].shape = accel_1d(55);
    check_refused(acc, &f, NULL, ACCEL_BAD_SHAPE,
                  "tensor bert.encoder.layer.0.intermediate.dense.bias has shape [55], config.json makes it [56]");
    f.arrays[bias].shape = accel_2d(56, 1);
    check_refused(acc, &f, NULL, ACCEL_BAD_SHAPE, "has shape [56, 1], config.json makes it [56]");
    f.arrays[bias].shape = accel_1d(56);
    folder_add(&f, "pooler.weight", ACCEL_F32, accel_1d(1));
    check_refused(acc, &f, NULL, ACCEL_BAD_FILE, "unexpected tensor pooler.weight of shape [1]");
    f.count--;
    folder_set(&f, "vocab_size", "60");
    check_refused(acc, &f, NULL, ACCEL_BAD_SHAPE,
                  "word_embeddings.weight has shape [61, 30], config.json makes it [60, 30]");
    folder_free(&f);
    accel_destroy(acc);
}

TEST(another_dtype_is_named) {
    accel_t *acc = open_context();
    static const int64_t whole[56];
    folder f = folder_read(acc, BERT);
    accel_named_array *bias = &f.arrays[folder_find(&f, "bert.encoder.layer.0.intermediate.dense.bias")];
    bias->dtype = ACCEL_I64;
    bias->values = whole;
    check_refused(acc, &f, NULL, ACCEL_BAD_FILE, "tensor bert.encoder.layer.0.intermediate.dense.bias has dtype I64");
    folder_free(&f);
    accel_destroy(acc);
}

/* No memory is asked for on the word of config.json alone. */
TEST(a_config_that_lies_about_its_size_is_refused) {
    accel_t *acc = open_context();
    folder f = folder_read(acc, BERT);
    folder_set(&f, "vocab_size", "2000000000");
    check_refused(acc, &f, NULL, ACCEL_BAD_FILE, "describes an encoder of");
    folder_set(&f, "vocab_size", "61");
    folder_set(&f, "num_hidden_layers", "2000000000");
    check_refused(acc, &f, NULL, ACCEL_BAD_FILE, "describes an encoder of");
    CHECK(accel_memory_used(acc).peak_bytes < (size_t)64 << 20);
    folder_free(&f);
    accel_destroy(acc);
}

TEST(folders_that_are_none_are_named) {
    accel_t *acc = open_context();
    CHECK(!accel_load_pretrained(acc, COPY "/absent", NULL));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, COPY "/absent: no such folder");
    CHECK(!accel_load_pretrained(acc, BERT "/config.json", NULL));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "config.json: no such folder");
    CHECK(!accel_load_pretrained(acc, COPY, NULL));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, CONFIG " cannot be read: No such file");
    write_text(CONFIG, "{\"model_type\": \"bert\", }");
    CHECK(!accel_load_pretrained(acc, COPY, NULL));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, CONFIG ": malformed JSON near line 1");
    write_text(CONFIG, "[1]");
    CHECK(!accel_load_pretrained(acc, COPY, NULL));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "no JSON object");
    write_text(CONFIG, "{\"model_type\": \"bert\"}");
    CHECK(!accel_load_pretrained(acc, COPY, NULL));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, COPY " has neither model.safetensors nor model.safetensors.index.json");
    write_text(COPY "/pytorch_model.bin", "PK");
    CHECK(!accel_load_pretrained(acc, COPY, NULL));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, COPY " has pytorch_model.bin but no model.safetensors");
    write_text(WEIGHTS, "short");
    CHECK(!accel_load_pretrained(acc, COPY, NULL));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, WEIGHTS ": no safetensors file");
    accel_destroy(acc);
}

TEST(null_is_accepted_everywhere) {
    accel_t *acc = open_context();
    accel_encoder_config config;
    CHECK(!accel_load_pretrained(NULL, BERT, NULL) && !accel_read_config(NULL, BERT, &config));
    CHECK(!accel_save_pretrained(NULL, NULL, COPY));
    CHECK(!accel_load_pretrained(acc, NULL, NULL));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "folder is NULL");
    CHECK(!accel_read_config(acc, BERT, NULL));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "config is NULL");
    accel_model *model = accel_load_pretrained(acc, BERT, NULL);
    CHECK(!accel_save_pretrained(model, NULL, NULL));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "folder is NULL");
    accel__fail(acc, ACCEL_BAD_STATE, "before");
    CHECK(!accel_load_pretrained(acc, BERT, NULL) && !accel_read_config(acc, BERT, &config) &&
          !accel_save_pretrained(model, NULL, COPY));
    CHECK(files_in(COPY) == 0);
    CHECK_ERROR(acc, ACCEL_BAD_STATE, "before");
    accel_destroy(acc);
}

/* ---- fresh heads ---- */

static float first_value(accel_model *model, const char *name) {
    float *values = accel__values(accel_parameter_find(model, name));
    return values ? values[0] : NAN;
}

TEST(an_absent_head_is_fresh_and_announced_once) {
    accel_t *acc = open_context();
    folder f = folder_read(acc, DISTILBERT);
    folder_drop(&f, "pre_classifier.*,classifier.*");
    folder_write(acc, &f);
    accel_model *original = accel_load_pretrained(acc, DISTILBERT, NULL),
                *model = accel_load_pretrained(acc, COPY, NULL);
    CHECK_FINE(acc);
    CHECK(notes.lines == 1);
    CHECK_TEXT(notes.last, COPY
               ": no trained head: fresh weights for pre_classifier.weight, pre_classifier.bias, classifier.weight, "
               "classifier.bias");
    CHECK(first_value(model, "classifier.bias") == 0 && first_value(model, "classifier.weight") != 0);
    CHECK(first_value(model, "classifier.weight") != first_value(original, "classifier.weight"));
    CHECK(first_value(model, "distilbert.embeddings.word_embeddings.weight") ==
          first_value(original, "distilbert.embeddings.word_embeddings.weight"));
    folder_free(&f);
    accel_destroy(acc);
}

/* A head depends on the seed alone: not on what was drawn before. */
TEST(a_fresh_head_depends_on_the_seed_alone) {
    float value[3];
    for (int i = 0; i < 3; i++) {
        accel_t *acc = context_of((accel_desc){.threads = 1 + i, .seed = i == 2 ? 5 : 0}, &notes);
        if (i == 1) accel_load_pretrained(acc, BERT, &(accel_pretrained_desc){.fresh_head = true});
        value[i] = first_value(accel_load_pretrained(acc, DISTILBERT, &(accel_pretrained_desc){.fresh_head = true}),
                               "classifier.weight");
        CHECK_FINE(acc);
        accel_destroy(acc);
    }
    CHECK(value[0] == value[1] && value[0] != value[2] && value[0] != 0);
}

TEST(a_fresh_head_may_be_asked_for) {
    accel_t *acc = open_context();
    accel_model *model =
        accel_load_pretrained(acc, DISTILBERT, &(accel_pretrained_desc){.fresh_head = true, .num_labels = 7});
    CHECK_FINE(acc);
    CHECK(notes.lines == 1 && accel_encoder_config_of(model)->num_labels == 7);
    CHECK_TEXT(notes.last, "a fresh head as asked: fresh weights for pre_classifier.weight");
    CHECK(accel_shape_of(accel_parameter_find(model, "classifier.weight")).dim[0] == 7);
    model = accel_load_pretrained(acc, BERT, &(accel_pretrained_desc){.fresh_head = true});
    accel_model *original = accel_load_pretrained(acc, BERT, NULL);
    CHECK(first_value(model, "bert.pooler.dense.weight") == first_value(original, "bert.pooler.dense.weight"));
    CHECK(notes.lines == 2 && !strstr(notes.last, "pooler"));
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(half_a_head_is_refused) {
    accel_t *acc = open_context();
    folder f = folder_read(acc, DISTILBERT);
    folder_drop(&f, "pre_classifier.bias");
    check_refused(
        acc, &f, NULL, ACCEL_BAD_FILE,
        "tensor pre_classifier.bias of shape [24] is missing (1 missing in all); fresh_head takes a new head");
    CHECK(accel_load_pretrained(acc, COPY, &(accel_pretrained_desc){.fresh_head = true}));
    CHECK_FINE(acc);
    folder_free(&f);
    accel_destroy(acc);
}

TEST(a_pooler_is_fresh_only_together_with_the_head) {
    accel_t *acc = open_context();
    folder f = folder_read(acc, BERT);
    folder_drop(&f, "bert.pooler.*");
    check_refused(acc, &f, NULL, ACCEL_BAD_FILE,
                  "tensor bert.pooler.dense.weight of shape [30, 30] is missing (2 missing in all); fresh_head");
    CHECK(notes.lines == 0);
    folder_drop(&f, "classifier.*");
    folder_write(acc, &f);
    CHECK(accel_load_pretrained(acc, COPY, NULL));
    CHECK_FINE(acc);
    CHECK(notes.lines == 1);
    CHECK_TEXT(
        notes.last,
        "fresh weights for bert.pooler.dense.weight, bert.pooler.dense.bias, classifier.weight, classifier.bias");
    folder_free(&f);
    f = folder_read(acc, BERT);
    folder_drop(&f, "bert.pooler.dense.bias,classifier.*");
    check_refused(acc, &f, NULL, ACCEL_BAD_FILE, "tensor bert.pooler.dense.bias of shape [30] is missing");
    folder_free(&f);
    accel_destroy(acc);
}

/* ---- labels: matched by name, never by position ---- */

#define LABELS(...)                        \
    .label_names = (const char *const[]) { \
        __VA_ARGS__                        \
    }

/* The copy has BERT's trained head of 2 labels with these names. */
static void write_named(accel_t *acc, const char *id2label, const char *label2id) {
    folder f = folder_read(acc, BERT);
    folder_set(&f, "id2label", id2label);
    folder_set(&f, "label2id", label2id);
    folder_write(acc, &f);
    folder_free(&f);
}

static void check_labels(accel_t *acc, const accel_pretrained_desc *desc, const char *first, const char *second) {
    accel_model *model = accel_load_pretrained(acc, COPY, desc);
    CHECK_FINE(acc);
    const char *found[] = {accel_label_name(model, 0), accel_label_name(model, 1)}, *expected[] = {first, second};
    for (int i = 0; i < 2; i++) {
        CHECK((found[i] != NULL) == (expected[i] != NULL));
        if (found[i] && expected[i]) CHECK_TEXT(found[i], expected[i]);
    }
}

TEST(names_of_a_trained_head_keep_their_order) {
    accel_t *acc = open_context();
    write_named(acc, "{\"0\": \"yes\", \"1\": \"no\"}", "{\"yes\": 0, \"no\": 1}");
    check_labels(acc, NULL, "yes", "no");
    check_labels(acc, &(accel_pretrained_desc){.num_labels = 2}, "yes", "no");
    check_labels(acc, &(accel_pretrained_desc){.num_labels = 2, LABELS("yes", "no")}, "yes", "no");
    check_labels(acc, &(accel_pretrained_desc){.num_labels = 2, LABELS("no", "yes")}, "yes", "no");
    check_labels(acc, &(accel_pretrained_desc){.num_labels = 2, LABELS("LABEL_0", "LABEL_1")}, "yes", "no");
    CHECK(notes.lines == 0);
    accel_destroy(acc);
}

TEST(other_names_for_a_trained_head_are_refused) {
    accel_t *acc = open_context();
    write_named(acc, "{\"0\": \"yes\", \"1\": \"no\"}", "{\"yes\": 0, \"no\": 1}");
    CHECK(!accel_load_pretrained(acc, COPY, &(accel_pretrained_desc){.num_labels = 2, LABELS("yes", "maybe")}));
    CHECK_ERROR(acc, ACCEL_BAD_DATA,
                "its trained head has the labels yes, no, not yes, maybe (fresh_head takes a new head)");
    CHECK(!accel_load_pretrained(acc, COPY, &(accel_pretrained_desc){.num_labels = 3, LABELS("yes", "no", "maybe")}));
    CHECK_ERROR(acc, ACCEL_BAD_SHAPE, "its trained head has 2 labels, not 3 (fresh_head takes a new head)");
    check_labels(acc, &(accel_pretrained_desc){.num_labels = 2, .fresh_head = true, LABELS("yes", "maybe")}, "yes",
                 "maybe");
    check_labels(acc, &(accel_pretrained_desc){.num_labels = 2, .fresh_head = true}, "yes", "no");
    check_labels(acc, &(accel_pretrained_desc){.num_labels = 3, .fresh_head = true}, NULL, NULL);
    accel_destroy(acc);
}

TEST(a_head_without_names_takes_those_given_and_says_so) {
    accel_t *acc = open_context();
    write_named(acc, "{\"0\": \"LABEL_0\", \"1\": \"LABEL_1\"}", "{\"LABEL_0\": 0, \"LABEL_1\": 1}");
    check_labels(acc, NULL, NULL, NULL);
    CHECK(notes.lines == 0);
    check_labels(acc, &(accel_pretrained_desc){.num_labels = 2, LABELS("bad", "good")}, "bad", "good");
    CHECK(notes.lines == 1);
    CHECK_TEXT(notes.last, "has no label names; labels 0 .. 1 are taken for bad, good");
    write_named(acc, NULL, NULL);
    check_labels(acc, &(accel_pretrained_desc){.num_labels = 2, LABELS("bad", "good")}, "bad", "good");
    accel_destroy(acc);
}

TEST(descriptions_that_contradict_themselves_are_refused) {
    accel_t *acc = open_context();
    const struct {
        accel_pretrained_desc desc;
        const char *message;
    } bad[] = {
        {{LABELS("a", "b")}, "it must be the number of label_names"},
        {{.num_labels = -1}, "num_labels is -1"},
        {{.num_labels = 2, LABELS("a", "a")}, "\"a\" stands twice in label_names"},
        {{.num_labels = 2, LABELS("a", NULL)}, "label_names[1] is NULL"},
        {{.problem_type = "ranking"},
         "problem_type \"ranking\" is none of single_label_classification, multi_label_classification, regression"},
        {{.dropout = 1}, "dropout 1 must be"},
        {{.dropout = -0.5f}, "dropout -0.5 must be"},
        {{.dropout = NAN}, "dropout"},
        {{.num_labels = 1, .fresh_head = true, .problem_type = "single_label_classification"},
         "needs 2 labels or more"},
    };
    for (int i = 0; i < COUNT(bad); i++) {
        CHECK(!accel_load_pretrained(acc, BERT, &bad[i].desc));
        CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, bad[i].message);
    }
    accel_destroy(acc);
}

TEST(dropout_and_problem_are_overridden) {
    accel_t *acc = open_context();
    const accel_encoder_config *c =
        accel_encoder_config_of(accel_load_pretrained(acc, BERT, &(accel_pretrained_desc){.dropout = 0.25f}));
    CHECK(c && c->dropout == 0.25f && c->attention_dropout == 0.25f && c->classifier_dropout == 0.25f);
    folder f = folder_read(acc, BERT);
    folder_set(&f, "hidden_dropout_prob", "0.5");
    folder_write(acc, &f);
    c = accel_encoder_config_of(accel_load_pretrained(acc, COPY, &(accel_pretrained_desc){.dropout = ACCEL_ZERO}));
    CHECK(c && c->dropout == 0 && c->attention_dropout == 0 && c->classifier_dropout == 0);
    c = accel_encoder_config_of(accel_load_pretrained(acc, COPY, NULL));
    CHECK(c && c->dropout == 0.5f && c->attention_dropout == 0 && c->classifier_dropout == 0.5f);
    c = accel_encoder_config_of(
        accel_load_pretrained(acc, COPY, &(accel_pretrained_desc){.problem_type = "multi_label_classification"}));
    CHECK(c && c->problem == ACCEL_MULTI_LABEL && c->num_labels == 2);
    c = accel_encoder_config_of(
        accel_load_pretrained(acc, COPY, &(accel_pretrained_desc){.num_labels = 1, .fresh_head = true}));
    CHECK(c && c->problem == ACCEL_REGRESSION && c->num_labels == 1);
    folder_free(&f);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

/* ---- config.json ---- */

static bool read_config(accel_t *acc, const char *text, accel_encoder_config *config) {
    write_text(CONFIG, text);
    return accel_read_config(acc, COPY, config);
}

/* The figures are those of Transformers' BertConfig and DistilBertConfig. */
TEST(what_a_config_does_not_say_has_transformers_defaults) {
    accel_t *acc = open_context();
    accel_encoder_config c;
    CHECK(read_config(acc, "{\"model_type\": \"bert\"}", &c));
    CHECK(c.architecture == ACCEL_BERT && c.problem == ACCEL_SINGLE_LABEL && c.vocab_size == 30522 &&
          c.max_positions == 512);
    CHECK(c.type_vocab_size == 2 && c.dim == 768 && c.layers == 12 && c.heads == 12 && c.hidden_dim == 3072 &&
          c.num_labels == 2);
    CHECK(c.pad_token_id == 0 && c.activation == ACCEL_GELU && c.dropout == 0.1f && c.attention_dropout == 0.1f);
    CHECK(c.classifier_dropout == 0.1f && c.layer_norm_eps == 1e-12f && c.initializer_range == 0.02f);
    CHECK(read_config(acc, "{\"model_type\": \"distilbert\"}", &c));
    CHECK(c.architecture == ACCEL_DISTILBERT && c.layers == 6 && c.heads == 12 && c.dim == 768 && c.hidden_dim == 3072);
    CHECK(c.type_vocab_size == 0 && !c.sinusoidal_positions && c.dropout == 0.1f && c.attention_dropout == 0.1f);
    CHECK(c.classifier_dropout == 0.2f && c.layer_norm_eps == 1e-12f && c.activation == ACCEL_GELU &&
          c.pad_token_id == 0);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(every_key_of_a_config_is_read) {
    accel_t *acc = open_context();
    accel_encoder_config c;
    CHECK(read_config(acc,
                      "{\"model_type\":\"distilbert\",\"vocab_size\":11,\"max_position_embeddings\":12,\"dim\":20,\"n_"
                      "layers\":3,\"n_heads\":4,"
                      "\"hidden_dim\":21,\"activation\":\"relu\",\"dropout\":0.25,\"attention_dropout\":0.5,\"seq_"
                      "classif_dropout\":0.75,"
                      "\"sinusoidal_pos_embds\":true,\"pad_token_id\":7,\"initializer_range\":0.5,\"num_labels\":5,"
                      "\"problem_type\":\"multi_label_classification\",\"qa_dropout\":0.1,\"architectures\":null}",
                      &c));
    CHECK(c.vocab_size == 11 && c.max_positions == 12 && c.dim == 20 && c.layers == 3 && c.heads == 4 &&
          c.hidden_dim == 21);
    CHECK(c.activation == ACCEL_RELU && c.dropout == 0.25f && c.attention_dropout == 0.5f &&
          c.classifier_dropout == 0.75f);
    CHECK(c.sinusoidal_positions && c.pad_token_id == 7 && c.initializer_range == 0.5f && c.num_labels == 5 &&
          c.problem == ACCEL_MULTI_LABEL);
    CHECK(read_config(
        acc,
        "{\"model_type\":\"bert\",\"vocab_size\":11,\"max_position_embeddings\":12,\"hidden_size\":20,\"num_hidden_"
        "layers\":3,"
        "\"num_attention_heads\":4,\"intermediate_size\":21,\"hidden_act\":\"gelu_pytorch_tanh\",\"hidden_dropout_"
        "prob\":0.25,"
        "\"attention_probs_dropout_prob\":0.5,\"classifier_dropout\":0.75,\"type_vocab_size\":3,\"layer_norm_eps\":1e-"
        "05,"
        "\"pad_token_id\":null,\"id2label\":{\"1\":\"b\",\"0\":\"a\",\"2\":\"c\"},\"problem_type\":\"regression\","
        "\"position_embedding_type\":\"absolute\",\"is_decoder\":false}",
        &c));
    CHECK(c.vocab_size == 11 && c.max_positions == 12 && c.dim == 20 && c.layers == 3 && c.heads == 4 &&
          c.hidden_dim == 21);
    CHECK(c.activation == ACCEL_GELU_TANH && c.dropout == 0.25f && c.attention_dropout == 0.5f &&
          c.classifier_dropout == 0.75f);
    CHECK(c.type_vocab_size == 3 && c.layer_norm_eps == 1e-5f && c.pad_token_id == -1 && c.num_labels == 3 &&
          c.problem == ACCEL_REGRESSION);
    CHECK(read_config(acc, "{\"num_hidden_layers\":3,\"type_vocab_size\":2,\"_num_labels\":1}",
                      &c)); /* files older than model_type */
    CHECK(c.architecture == ACCEL_BERT && c.layers == 3 && c.num_labels == 1 && c.problem == ACCEL_REGRESSION);
    CHECK(read_config(acc, "{\"n_layers\":4,\"label2id\":{\"x\":2,\"y\":0,\"z\":1}}", &c));
    CHECK(c.architecture == ACCEL_DISTILBERT && c.layers == 4 && c.num_labels == 3);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(configs_that_cannot_be_are_refused_by_key) {
    static const struct {
        const char *text, *message;
    } bad[] = {
        {"{}", "model_type is missing; supported: distilbert, bert"},
        {"{\"model_type\":\"roberta\"}", "model_type \"roberta\" is not supported; supported: distilbert, bert"},
        {"{\"model_type\":3}", "model_type \"(no string)\""},
        {"{\"model_type\":\"bert\",\"hidden_act\":\"silu\"}",
         "hidden_act \"silu\" is not supported; supported: gelu, gelu_new, gelu_pytorch_tanh, relu"},
        {"{\"model_type\":\"distilbert\",\"activation\":\"tanh\"}", "activation \"tanh\" is not supported"},
        {"{\"model_type\":\"bert\",\"position_embedding_type\":\"relative_key\"}",
         "position_embedding_type \"relative_key\" is not supported; supported: absolute"},
        {"{\"model_type\":\"bert\",\"is_decoder\":true}", "is_decoder"},
        {"{\"model_type\":\"bert\",\"is_decoder\":1}", "is_decoder must be true or false"},
        {"{\"model_type\":\"bert\",\"hidden_size\":0}", "hidden_size must be a whole number of at least 1"},
        {"{\"model_type\":\"bert\",\"hidden_size\":-8}", "hidden_size must be"},
        {"{\"model_type\":\"bert\",\"hidden_size\":7.5}", "hidden_size must be"},
        {"{\"model_type\":\"bert\",\"hidden_size\":\"768\"}", "hidden_size must be"},
        {"{\"model_type\":\"bert\",\"hidden_size\":1e10}", "hidden_size must be"},
        {"{\"model_type\":\"bert\",\"hidden_size\":100}", "hidden_size 100 is no multiple of num_attention_heads 12"},
        {"{\"model_type\":\"distilbert\",\"n_heads\":5}", "dim 768 is no multiple of n_heads 5"},
        {"{\"model_type\":\"bert\",\"hidden_dropout_prob\":1}",
         "hidden_dropout_prob must be a number of at least 0 and below 1"},
        {"{\"model_type\":\"bert\",\"hidden_dropout_prob\":-0.1}", "hidden_dropout_prob must be"},
        {"{\"model_type\":\"distilbert\",\"seq_classif_dropout\":\"no\"}", "seq_classif_dropout must be"},
        {"{\"model_type\":\"bert\",\"pad_token_id\":30522}", "pad_token_id 30522 is outside the 30522 words"},
        {"{\"model_type\":\"bert\",\"problem_type\":\"ranking\"}", "problem_type \"ranking\" is not supported"},
        {"{\"model_type\":\"bert\",\"num_labels\":1,\"problem_type\":\"single_label_classification\"}",
         "needs 2 labels or more, not 1"},
        {"{\"model_type\":\"bert\",\"num_labels\":0}", "num_labels must be"},
        {"{\"model_type\":\"bert\",\"id2label\":{}}", "id2label must be an object with a label or more"},
        {"{\"model_type\":\"bert\",\"id2label\":[\"a\"]}", "id2label must be an object"},
        {"{\"model_type\":\"bert\",\"id2label\":{\"0\":\"a\",\"2\":\"b\"}}",
         "number 2 of label \"b\" is not one of 0 .. 1"},
        {"{\"model_type\":\"bert\",\"id2label\":{\"0\":\"a\",\"00\":\"b\"}}",
         "labels \"a\" and \"b\" have the same number 0"},
        {"{\"model_type\":\"bert\",\"id2label\":{\"0\":\"a\",\"x\":\"b\"}}", "id2label: \"x\" must be a number"},
        {"{\"model_type\":\"bert\",\"id2label\":{\"0\":\"a\",\"-1\":\"b\"}}", "id2label: \"-1\" must be a number"},
        {"{\"model_type\":\"bert\",\"id2label\":{\"0\":\"a\",\"1\":7}}",
         "id2label: \"1\" must be a number with a name"},
        {"{\"model_type\":\"bert\",\"id2label\":{\"0\":\"a\",\"1\":\"a\"}}", "two labels have the name \"a\""},
        {"{\"model_type\":\"bert\",\"label2id\":{\"a\":\"0\"}}", "label2id: \"a\" has no number"},
        {"{\"model_type\":\"bert\",\"label2id\":{\"a\":0,\"b\":0}}", "labels \"a\" and \"b\" have the same number 0"},
        {"{\"model_type\":\"bert\",\"id2label\":{\"0\":\"a\",\"1\":\"b\"},\"label2id\":{\"a\":1,\"b\":0}}",
         "label 0 is \"a\" in id2label and \"b\" in label2id"},
        {"{\"model_type\":\"bert\",\"id2label\":{\"0\":\"a\",\"1\":\"b\"},\"label2id\":{\"a\":0}}",
         "speak of 2, 1 and 0 labels"},
        {"{\"model_type\":\"bert\",\"id2label\":{\"0\":\"a\",\"1\":\"b\"},\"num_labels\":3}",
         "speak of 2, 0 and 3 labels"},
    };
    accel_t *acc = open_context();
    accel_encoder_config config = {.dim = 12345};
    for (int i = 0; i < COUNT(bad); i++) {
        CHECK(!read_config(acc, bad[i].text, &config));
        CHECK_TEXT(accel_message(acc), CONFIG);
        CHECK_ERROR(acc, ACCEL_BAD_FILE, bad[i].message);
    }
    CHECK(config.dim == 12345);
    accel_destroy(acc);
}

/* Whatever a config.json becomes by damage, it is read or refused. */
TEST(damaged_configs_do_no_harm) {
    static const char stuff[] = {0, ' ', '"', '{', '}', '[', ']', ',', ':', '-', '.', '0', '9', 'e', 'n', (char)0x80};
    accel_t *acc = open_context();
    accel_encoder_config config;
    size_t bytes = 0;
    char *text = read_bytes(BERT "/config.json", &bytes);
    int refused = 0;
    CHECK(text && bytes > 100);
    for (size_t at = 0; at < bytes; at++) {
        char original = text[at];
        for (size_t i = 0; i < sizeof stuff; i++) {
            text[at] = stuff[i];
            write_bytes(CONFIG, text, bytes);
            bool good = accel_read_config(acc, COPY, &config);
            CHECK(good != accel_failed(acc) && (good || accel_error(acc) == ACCEL_BAD_FILE));
            refused += !good;
            accel_clear(acc);
        }
        text[at] = original;
        write_bytes(CONFIG, text, at);
        CHECK(!accel_read_config(acc, COPY, &config) || at == bytes - 1); /* the last byte ends the line */
        accel_clear(acc);
    }
    CHECK(refused > 1000);
    free(text);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

/* Common on model hubs: one map was named, the other left as it was made. */
TEST(given_names_win_over_generic_ones) {
    accel_t *acc = open_context();
    write_named(acc, "{\"0\": \"yes\", \"1\": \"no\"}", "{\"LABEL_0\": 0, \"LABEL_1\": 1}");
    check_labels(acc, NULL, "yes", "no");
    write_named(acc, "{\"0\": \"LABEL_0\", \"1\": \"LABEL_1\"}", "{\"no\": 1, \"yes\": 0}");
    check_labels(acc, NULL, "yes", "no");
    write_named(acc, NULL, "{\"no\": 1, \"yes\": 0}");
    check_labels(acc, NULL, "yes", "no");
    accel_destroy(acc);
}

/* ---- shards ---- */

/* Splits the folder into two files; the tensors that match go into the second. */
static void write_shards(accel_t *acc, const folder *f, const char *second) {
    accel_named_array part[2][MAX_ARRAYS];
    int count[2] = {0, 0};
    cJSON *index = cJSON_CreateObject(), *map = cJSON_AddObjectToObject(index, "weight_map");
    folder_write(acc, f);
    for (int i = 0; i < f->count; i++) {
        int shard = accel__match(second, f->arrays[i].name);
        part[shard][count[shard]++] = f->arrays[i];
        cJSON_AddStringToObject(map, f->arrays[i].name, shard ? "model-2.safetensors" : "model-1.safetensors");
    }
    CHECK(accel_safetensors_write(acc, COPY "/model-1.safetensors", part[0], count[0], NULL));
    CHECK(accel_safetensors_write(acc, COPY "/model-2.safetensors", part[1], count[1], NULL));
    char *text = cJSON_Print(index);
    write_text(COPY "/model.safetensors.index.json", text);
    cJSON_free(text);
    cJSON_Delete(index);
    CHECK(unlink(WEIGHTS) == 0);
}

TEST(shards_are_followed) {
    accel_t *acc = open_context();
    folder f = folder_read(acc, BERT);
    write_shards(acc, &f, "*layer.1.*,classifier.*");
    accel_model *original = accel_load_pretrained(acc, BERT, NULL), *model = accel_load_pretrained(acc, COPY, NULL);
    CHECK_FINE(acc);
    CHECK(model_distance(original, model) == 0 && notes.lines == 0);
    CHECK(unlink(COPY "/model-2.safetensors") == 0);
    CHECK(!accel_load_pretrained(acc, COPY, NULL));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, COPY "/model-2.safetensors cannot be read");
    write_text(COPY "/model.safetensors.index.json", "{\"weight_map\":{\"classifier.bias\":\"model-1.safetensors\"}}");
    CHECK(!accel_load_pretrained(acc, COPY, NULL));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "tensor classifier.bias is not in model-1.safetensors");
    write_text(COPY "/model.safetensors.index.json",
               "{\"weight_map\":{\"classifier.bias\":\"../model-1.safetensors\"}}");
    CHECK(!accel_load_pretrained(acc, COPY, NULL));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "must be a name within the folder");
    write_text(COPY "/model.safetensors.index.json", "{\"weight_map\":{}}");
    CHECK(!accel_load_pretrained(acc, COPY, NULL));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "has no weight_map");
    write_text(COPY "/model.safetensors.index.json", "{}");
    CHECK(!accel_load_pretrained(acc, COPY, NULL));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "has no weight_map");
    folder_free(&f);
    accel_destroy(acc);
}

TEST(a_tensor_in_two_shards_is_refused) {
    accel_t *acc = open_context();
    folder f = folder_read(acc, BERT);
    write_shards(acc, &f, "classifier.*");
    CHECK(accel_safetensors_write(acc, COPY "/model-1.safetensors", f.arrays, f.count, NULL));
    CHECK(!accel_load_pretrained(acc, COPY, NULL));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "tensor classifier.bias is in two files");
    folder_free(&f);
    accel_destroy(acc);
}

/* ---- saving ---- */

static void check_saved(const char *path) {
    accel_t *acc = open_context();
    accel_model *model = accel_load_pretrained(acc, path, NULL);
    CHECK(accel_save_pretrained(model, NULL, COPY));
    accel_model *again = accel_load_pretrained(acc, COPY, NULL);
    CHECK_FINE(acc);
    CHECK(model_distance(model, again) == 0 && notes.lines == 0 && files_in(COPY) == 2);
    accel_encoder_config a = *accel_encoder_config_of(model), b = *accel_encoder_config_of(again);
    CHECK(a.architecture == b.architecture && a.problem == b.problem && a.vocab_size == b.vocab_size &&
          a.max_positions == b.max_positions);
    CHECK(a.type_vocab_size == b.type_vocab_size && a.dim == b.dim && a.layers == b.layers && a.heads == b.heads);
    CHECK(a.hidden_dim == b.hidden_dim && a.num_labels == b.num_labels && a.pad_token_id == b.pad_token_id);
    CHECK(a.activation == b.activation && a.sinusoidal_positions == b.sinusoidal_positions && a.dropout == b.dropout);
    CHECK(a.attention_dropout == b.attention_dropout && a.classifier_dropout == b.classifier_dropout);
    CHECK(a.layer_norm_eps == b.layer_norm_eps && a.initializer_range == b.initializer_range);
    accel_destroy(acc);
}

TEST(what_is_saved_is_loaded_again) {
    check_saved(BERT);
    check_saved(DISTILBERT);
    check_saved("tests/cases/distilbert_sinusoidal");
    check_saved("tests/cases/distilbert_multi_label");
    check_saved("tests/cases/bert_regression");
}

static accel_encoder_config small_config(accel_architecture architecture) {
    accel_encoder_config c = accel_encoder_defaults(architecture);
    c.vocab_size = 20, c.max_positions = 8, c.dim = 8, c.layers = 1, c.heads = 2, c.hidden_dim = 12;
    return c;
}

TEST(odd_settings_and_names_survive) {
    accel_t *acc = open_context();
    const char *names[] = {"say \"hi\"", "caf\xc3\xa9\\\n", "LABEL_2"};
    accel_encoder_config c = small_config(ACCEL_BERT);
    c.num_labels = 3, c.pad_token_id = -1, c.dropout = 0.3f, c.attention_dropout = 1.0f / 3, c.classifier_dropout = 0,
    c.layer_norm_eps = 1e-5f;
    c.activation = ACCEL_GELU_TANH, c.initializer_range = 0.01f;
    accel_model *model = accel_encoder_create(acc, &c);
    CHECK(accel_set_label_names(model, names, 3));
    CHECK(accel_save_pretrained(model, NULL, COPY));
    accel_model *again = accel_load_pretrained(acc, COPY, NULL);
    CHECK_FINE(acc);
    const accel_encoder_config *found = accel_encoder_config_of(again);
    CHECK(found && found->pad_token_id == -1 && found->dropout == c.dropout &&
          found->attention_dropout == c.attention_dropout);
    CHECK(found && found->classifier_dropout == 0 && found->layer_norm_eps == c.layer_norm_eps &&
          found->initializer_range == c.initializer_range);
    for (int i = 0; i < 3; i++)
        CHECK(again && accel_label_name(again, i) && strcmp(accel_label_name(again, i), names[i]) == 0);
    accel_destroy(acc);
}

/* The keys by which Transformers finds the class, the type and the names. */
TEST(a_saved_config_says_what_transformers_needs) {
    accel_t *acc = open_context();
    CHECK(accel_save_pretrained(accel_load_pretrained(acc, DISTILBERT, NULL), NULL, COPY));
    cJSON *json = read_json(CONFIG);
    char *text = cJSON_PrintUnformatted(json);
    CHECK_TEXT(text, "\"architectures\":[\"DistilBertForSequenceClassification\"]");
    CHECK_TEXT(text, "\"model_type\":\"distilbert\"");
    CHECK_TEXT(text, "\"dtype\":\"float32\"");
    CHECK_TEXT(text, "\"problem_type\":\"single_label_classification\"");
    CHECK_TEXT(text, "\"id2label\":{\"0\":\"LABEL_0\",\"1\":\"LABEL_1\",\"2\":\"LABEL_2\"}");
    CHECK_TEXT(text, "\"label2id\":{\"LABEL_0\":0,\"LABEL_1\":1,\"LABEL_2\":2}");
    CHECK_TEXT(text, "\"initializer_range\":0.02,"); /* and not 0.0199999995529652 */
    cJSON_free(text);
    cJSON_Delete(json);
    size_t bytes = 0;
    char *file = read_bytes(WEIGHTS, &bytes);
    const char metadata[] = "{\"__metadata__\":{\"format\":\"pt\"},";
    CHECK(file && bytes > 100 && memcmp(file + 8, metadata, strlen(metadata)) == 0);
    free(file);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(saving_replaces_another_model) {
    accel_t *acc = open_context();
    accel_model *bert = accel_load_pretrained(acc, BERT, NULL),
                *distilbert = accel_load_pretrained(acc, DISTILBERT, NULL);
    CHECK(accel_save_pretrained(bert, NULL, COPY) && accel_save_pretrained(distilbert, NULL, COPY));
    CHECK(model_distance(distilbert, accel_load_pretrained(acc, COPY, NULL)) == 0);
    CHECK(files_in(COPY) == 2);
    CHECK(accel_save_pretrained(bert, NULL, COPY "/a/b") &&
          model_distance(bert, accel_load_pretrained(acc, COPY "/a/b", NULL)) == 0);
    CHECK(unlink(COPY "/a/b/config.json") == 0 && unlink(COPY "/a/b/model.safetensors") == 0 &&
          rmdir(COPY "/a/b") == 0 && rmdir(COPY "/a") == 0);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(a_save_that_fails_leaves_the_old_model) {
    accel_t *acc = open_context();
    accel_model *bert = accel_load_pretrained(acc, BERT, NULL),
                *distilbert = accel_load_pretrained(acc, DISTILBERT, NULL);
    CHECK(accel_save_pretrained(bert, NULL, COPY));
    struct rlimit before, small;
    CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0);
    small = before;
    small.rlim_cur = 10000;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
    CHECK(!accel_save_pretrained(distilbert, NULL, COPY));
    CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
    signal(SIGXFSZ, handler);
    CHECK_ERROR(acc, ACCEL_BAD_FILE, WEIGHTS " cannot be written: File too large");
    CHECK(files_in(COPY) == 2 && model_distance(bert, accel_load_pretrained(acc, COPY, NULL)) == 0);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(what_cannot_be_saved_is_refused_before_anything_is_written) {
    accel_t *acc = open_context();
    CHECK(!accel_save_pretrained(accel_model_create(acc, "plain"), NULL, COPY));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "only encoders");
    accel_model *bert = accel_load_pretrained(acc, BERT, NULL);
    const char *twice[] = {"same", "same"};
    CHECK(accel_set_label_names(bert, twice, 2));
    CHECK(!accel_save_pretrained(bert, NULL, COPY));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "labels 0 and 1 are both called \"same\"");
    write_text(COPY "/file", "x");
    CHECK(!accel_save_pretrained(accel_load_pretrained(acc, BERT, NULL), NULL, COPY "/file/below"));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "folder " COPY "/file");
    CHECK(files_in(COPY) == 1);
    accel_destroy(acc);
}

TEST(a_vocabulary_larger_than_the_model_is_refused) {
    accel_t *acc = open_context();
    const char *texts[] = {"one two three four five six seven eight nine ten eleven twelve thirteen"};
    accel_encoder_config c = small_config(ACCEL_BERT);
    c.vocab_size = 6;
    accel_model *small = accel_encoder_create(acc, &c);
    accel_tokenizer *tokenizer = accel_tokenizer_train(acc, texts, 1, NULL);
    CHECK_FINE(acc);
    CHECK(!accel_save_pretrained(small, tokenizer, COPY));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "words, the model 6");
    CHECK(files_in(COPY) == 0);
    c.vocab_size = accel_vocabulary_size(tokenizer);
    CHECK(accel_save_pretrained(accel_encoder_create(acc, &c), tokenizer, COPY));
    accel_tokenizer *again = accel_tokenizer_load(acc, COPY, NULL);
    CHECK_FINE(acc);
    CHECK(accel_vocabulary_size(again) == c.vocab_size);
    accel_destroy(acc);
}

TEST(an_eps_that_transformers_would_not_take_is_announced) {
    accel_t *acc = open_context();
    accel_encoder_config c = small_config(ACCEL_DISTILBERT);
    c.layer_norm_eps = 1e-6f;
    CHECK(accel_save_pretrained(accel_encoder_create(acc, &c), NULL, COPY));
    CHECK(notes.lines == 1);
    CHECK_TEXT(notes.last, "layer_norm_eps 1e-06 is kept");
    const accel_encoder_config *found = accel_encoder_config_of(accel_load_pretrained(acc, COPY, NULL));
    CHECK(found && found->layer_norm_eps == 1e-6f);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

int main(int argc, char **argv) {
    return lock_folder(COPY) ? test_main(argc, argv) : 1;
}
