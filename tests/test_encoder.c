/* The encoder: names, shapes, and the same numbers as the network written out with operations. */
#define ACCEL_IMPLEMENTATION
#include "accel.h"
#include "test.h"
#include "helpers.h"

typedef struct named_shape {
    const char *name;
    accel_shape shape;
} named_shape;

#define V VOCABULARY
#define P POSITIONS
#define D 21
#define H 35
#define WEIGHTS(name, out, in) {name ".weight", {2, {out, in, 1, 1}}}, {name ".bias", {1, {out, 1, 1, 1}}}
#define NORM(name) {name ".weight", {1, {D, 1, 1, 1}}}, {name ".bias", {1, {D, 1, 1, 1}}}

#define DISTILBERT_LAYER(prefix)                                                                                      \
    WEIGHTS(prefix "attention.q_lin", D, D), WEIGHTS(prefix "attention.k_lin", D, D),                                 \
    WEIGHTS(prefix "attention.v_lin", D, D), WEIGHTS(prefix "attention.out_lin", D, D), NORM(prefix "sa_layer_norm"), \
    WEIGHTS(prefix "ffn.lin1", H, D), WEIGHTS(prefix "ffn.lin2", D, H), NORM(prefix "output_layer_norm")

#define BERT_LAYER(prefix)                                                                                            \
    WEIGHTS(prefix "attention.self.query", D, D), WEIGHTS(prefix "attention.self.key", D, D),                         \
    WEIGHTS(prefix "attention.self.value", D, D), WEIGHTS(prefix "attention.output.dense", D, D),                     \
    NORM(prefix "attention.output.LayerNorm"), WEIGHTS(prefix "intermediate.dense", H, D),                            \
    WEIGHTS(prefix "output.dense", D, H), NORM(prefix "output.LayerNorm")

/* In the order of named_parameters() of Transformers' models. */
static const named_shape distilbert_parameters[] = {
    {"distilbert.embeddings.word_embeddings.weight", {2, {V, D, 1, 1}}},
    {"distilbert.embeddings.position_embeddings.weight", {2, {P, D, 1, 1}}},
    NORM("distilbert.embeddings.LayerNorm"),
    DISTILBERT_LAYER("distilbert.transformer.layer.0."),
    DISTILBERT_LAYER("distilbert.transformer.layer.1."),
    WEIGHTS("pre_classifier", D, D),
    WEIGHTS("classifier", 2, D),
};

static const named_shape bert_parameters[] = {
    {"bert.embeddings.word_embeddings.weight", {2, {V, D, 1, 1}}},
    {"bert.embeddings.position_embeddings.weight", {2, {P, D, 1, 1}}},
    {"bert.embeddings.token_type_embeddings.weight", {2, {2, D, 1, 1}}},
    NORM("bert.embeddings.LayerNorm"),
    BERT_LAYER("bert.encoder.layer.0."),
    BERT_LAYER("bert.encoder.layer.1."),
    WEIGHTS("bert.pooler.dense", D, D),
    WEIGHTS("classifier", 2, D),
};

static void check_parameters(accel_architecture architecture, const named_shape *expected, int count) {
    accel_t *acc = context();
    accel_encoder_config config = small_encoder(architecture);
    accel_model *model = accel_encoder_create(acc, &config);
    CHECK(accel_parameter_count(model) == count);
    for (int i = 0; i < count; i++) {
        const char *name = accel_parameter_name(model, i);
        if (!name || strcmp(name, expected[i].name))
            test_faults++, printf("  %s, expected %s\n", name ? name : "(null)", expected[i].name);
        if (!same_shape(accel_shape_of(accel_parameter_at(model, i)), expected[i].shape))
            test_faults++, printf("  shape of %s\n", expected[i].name);
    }
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(names_and_shapes_of_distilbert) {
    check_parameters(ACCEL_DISTILBERT, distilbert_parameters, COUNT(distilbert_parameters));
}

TEST(names_and_shapes_of_bert) {
    check_parameters(ACCEL_BERT, bert_parameters, COUNT(bert_parameters));
}

/* distilbert-base-uncased has 66,955,010 parameters with two labels, bert-base-uncased 109,483,778: the formulas give
   them, and the small models follow the formulas. */
static int64_t elements_of(const accel_encoder_config *c) {
    int64_t d = c->dim, h = c->hidden_dim;
    int64_t embeddings = (int64_t)(c->vocab_size + c->max_positions + c->type_vocab_size) * d + 2 * d;
    int64_t layer = 4 * (d * d + d) + 2 * d + (h * d + h) + (d * h + d) + 2 * d;
    return embeddings + c->layers * layer + (d * d + d) + c->num_labels * (d + 1);
}

TEST(numbers_of_parameters) {
    accel_encoder_config distilbert = accel_encoder_defaults(ACCEL_DISTILBERT),
                         bert = accel_encoder_defaults(ACCEL_BERT);
    CHECK(elements_of(&distilbert) == 66955010 && elements_of(&bert) == 109483778);
    for (int a = 0; a < 2; a++) {
        accel_t *acc = context();
        accel_encoder_config config = small_encoder((accel_architecture)a);
        CHECK(accel_parameter_elements(accel_encoder_create(acc, &config)) == elements_of(&config));
        CHECK_FINE(acc);
        accel_destroy(acc);
    }
}

TEST(defaults) {
    accel_encoder_config d = accel_encoder_defaults(ACCEL_DISTILBERT), b = accel_encoder_defaults(ACCEL_BERT);
    CHECK(d.vocab_size == 30522 && d.max_positions == 512 && d.type_vocab_size == 0 && b.type_vocab_size == 2);
    CHECK(d.dim == 768 && d.layers == 6 && b.layers == 12 && d.heads == 12 && d.hidden_dim == 3072 &&
          d.num_labels == 2);
    CHECK(d.activation == ACCEL_GELU && d.problem == ACCEL_SINGLE_LABEL && !d.sinusoidal_positions &&
          d.pad_token_id == 0);
    CHECK(d.dropout == 0.1f && d.attention_dropout == 0.1f && d.classifier_dropout == 0.2f &&
          b.classifier_dropout == 0.1f);
    CHECK(d.layer_norm_eps == 1e-12f && d.initializer_range == 0.02f);
}

/* ---- the network written out ---- */

static accel_model *written_model; /* whose parameters `named` finds */
/* Dropout with probability 1 is a factor of 0, which shows exactly where each kind of dropout is. */
static float hidden_factor, attention_factor, classifier_factor;

static accel_tensor named(const char *prefix, int layer, const char *suffix) {
    char name[128];
    if (layer < 0) snprintf(name, sizeof name, "%s%s", prefix, suffix);
    else snprintf(name, sizeof name, "%s%d%s", prefix, layer, suffix);
    return accel_parameter_find(written_model, name);
}

static accel_tensor dense(accel_tensor x, const char *prefix, int layer, const char *module) {
    char weight[64], bias[64];
    snprintf(weight, sizeof weight, "%s.weight", module);
    snprintf(bias, sizeof bias, "%s.bias", module);
    return accel_linear(x, named(prefix, layer, weight), named(prefix, layer, bias));
}

static accel_tensor norm(accel_tensor x, const char *prefix, int layer, const char *module) {
    char weight[64], bias[64];
    snprintf(weight, sizeof weight, "%s.weight", module);
    snprintf(bias, sizeof bias, "%s.bias", module);
    return accel_layer_norm(x, named(prefix, layer, weight), named(prefix, layer, bias), 1e-12f);
}

typedef struct module_names {
    const char *embeddings, *layer, *query, *key, *value, *out, *first_norm, *up, *down, *second_norm;
} module_names;

static const module_names module_of[] = {
    [ACCEL_DISTILBERT] = {"distilbert.embeddings.", "distilbert.transformer.layer.", ".attention.q_lin",
                          ".attention.k_lin", ".attention.v_lin", ".attention.out_lin", ".sa_layer_norm", ".ffn.lin1",
                          ".ffn.lin2", ".output_layer_norm"},
    [ACCEL_BERT] = {"bert.embeddings.", "bert.encoder.layer.", ".attention.self.query", ".attention.self.key",
                    ".attention.self.value", ".attention.output.dense", ".attention.output.LayerNorm",
                    ".intermediate.dense", ".output.dense", ".output.LayerNorm"}};

static accel_tensor activate(accel_tensor x, accel_activation activation) {
    return activation == ACCEL_RELU        ? accel_relu(x)
           : activation == ACCEL_GELU_TANH ? accel_gelu_tanh(x)
                                           : accel_gelu(x);
}

static accel_tensor written_embeddings(accel_t *acc, const accel_encoder_config *config, const accel_batch *batch) {
    const module_names *m = &module_of[config->architecture];
    int32_t *positions = malloc((size_t)batch->tokens * sizeof *positions);
    for (int i = 0; i < batch->examples; i++)
        for (int at = batch->offsets[i]; at < batch->offsets[i + 1]; at++) positions[at] = at - batch->offsets[i];
    accel_shape shape = accel_1d(batch->tokens);
    accel_tensor x = accel_add(accel_embedding(named(m->embeddings, -1, "word_embeddings.weight"),
                                               accel_from_ints(acc, shape, batch->ids), config->pad_token_id),
                               accel_embedding(named(m->embeddings, -1, "position_embeddings.weight"),
                                               accel_from_ints(acc, shape, positions), -1));
    free(positions);
    if (config->architecture == ACCEL_BERT)
        x = accel_add(x, accel_embedding(named(m->embeddings, -1, "token_type_embeddings.weight"),
                                         accel_from_ints(acc, shape, batch->token_types), -1));
    return accel_scale(norm(x, m->embeddings, -1, "LayerNorm"), hidden_factor);
}

/* The first token's row of each sequence -> logits. */
static accel_tensor written_head(accel_t *acc, const accel_encoder_config *config, accel_tensor x,
                                 const accel_batch *batch) {
    accel_tensor first = accel_embedding(x, accel_from_ints(acc, accel_1d(batch->examples), batch->offsets), -1);
    if (config->architecture == ACCEL_BERT) first = accel_tanh(dense(first, "bert.pooler.", -1, "dense"));
    else first = accel_relu(dense(first, "", -1, "pre_classifier"));
    return dense(accel_scale(first, classifier_factor), "", -1, "classifier");
}

static accel_tensor written_encoder(accel_t *acc, accel_model *model, const accel_batch *batch) {
    const accel_encoder_config *config = accel_encoder_config_of(model);
    const module_names *m = &module_of[config->architecture];
    written_model = model;
    hidden_factor = 1 - config->dropout, attention_factor = 1 - config->attention_dropout;
    classifier_factor = 1 - config->classifier_dropout;
    float after_attention = config->architecture == ACCEL_BERT ? hidden_factor : 1; /* DistilBERT has none there */
    accel_tensor x = written_embeddings(acc, config, batch);
    for (int layer = 0; layer < config->layers; layer++) {
        accel_tensor qkv[] = {dense(x, m->layer, layer, m->query), dense(x, m->layer, layer, m->key),
                              dense(x, m->layer, layer, m->value)};
        accel_tensor context = accel_attention(accel_concat(qkv, 3, 1), &(accel_attention_desc){
            .heads = config->heads, .sequences = batch->examples, .offsets = batch->offsets});
        accel_tensor out = dense(accel_scale(context, attention_factor), m->layer, layer, m->out);
        x = norm(accel_add(x, accel_scale(out, after_attention)), m->layer, layer, m->first_norm);
        accel_tensor wide = activate(dense(x, m->layer, layer, m->up), config->activation);
        accel_tensor down = accel_scale(dense(wide, m->layer, layer, m->down), hidden_factor);
        x = norm(accel_add(x, down), m->layer, layer, m->second_norm);
    }
    return written_head(acc, config, x, batch);
}

/* A batch over rows made by random_rows; `offsets` has room for them. */
static accel_batch batch_of(const rows *made, int begin, int end, int32_t *offsets) {
    accel_batch batch = {.examples = end - begin, .offsets = offsets, .ids = made->ids + made->offsets[begin],
                         .token_types = made->types + made->offsets[begin], .labels = made->labels + begin};
    for (int i = 0; i <= end - begin; i++) offsets[i] = (int32_t)(made->offsets[begin + i] - made->offsets[begin]);
    for (int i = 0; i < end - begin; i++)
        if (offsets[i + 1] - offsets[i] > batch.longest) batch.longest = offsets[i + 1] - offsets[i];
    batch.tokens = offsets[end - begin];
    return batch;
}

static double tensor_distance(accel_tensor a, accel_tensor b) {
    int64_t count = accel_count(b);
    float *values = values_of(b);
    double *expected = malloc((size_t)count * sizeof *expected);
    for (int64_t i = 0; i < count; i++) expected[i] = values[i];
    double error = value_error(a, expected, count);
    free(values), free(expected);
    return error;
}

/* Two models with the same weights: one runs as encoder, one as written out. Only the order of sums differs: 1e-5. */
static void check_written(accel_encoder_config config) {
    accel_t *acc = context();
    config.num_labels = 3;
    accel_model *fused = accel_encoder_create(acc, &config), *plain = accel_encoder_create(acc, &config);
    rows made = random_rows(7, 19, 3, 2);
    made.ids[3] = config.pad_token_id; /* it may occur in a text */
    int32_t offsets[8];
    accel_batch batch = batch_of(&made, 0, 7, offsets);
    for (int i = 0; i < accel_parameter_count(fused); i++) { /* biases of 0 would hide much */
        accel_tensor parameter = accel_parameter_at(fused, i);
        float *values = random_floats(accel_count(parameter), -0.4, 0.4, (uint64_t)i);
        accel_write(parameter, values, accel_count(parameter));
        accel_write(accel_parameter_at(plain, i), values, accel_count(parameter));
        free(values);
    }
    accel_output out = accel_forward(fused, &batch);
    accel_tensor logits = written_encoder(acc, plain, &batch);
    accel_tensor loss = accel_cross_entropy(logits, accel_from_ints(acc, accel_1d(7), batch.labels), NULL);
    CHECK(tensor_distance(out.logits, logits) < 1e-5);
    CHECK_NEAR(accel_item(out.loss), accel_item(loss), 1e-5);
    accel_backward(acc, out.loss);
    accel_backward(acc, loss);
    float *actual = all_of(fused, accel_grad), *expected = all_of(plain, accel_grad);
    CHECK(gradient_distance(fused, actual, expected) < 1e-5);
    free(actual), free(expected), free_rows(&made);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(distilbert_equals_the_network_written_out) {
    accel_encoder_config config = small_encoder(ACCEL_DISTILBERT);
    check_written(config);
    config.activation = ACCEL_RELU;
    check_written(config);
}

TEST(bert_equals_the_network_written_out) {
    accel_encoder_config config = small_encoder(ACCEL_BERT);
    check_written(config);
    config.activation = ACCEL_GELU_TANH, config.layers = 1, config.heads = 1, config.pad_token_id = 5;
    check_written(config);
}

TEST(dropout_is_where_transformers_has_it) {
    for (int a = 0; a < 2; a++) {
        accel_encoder_config config[3];
        for (int kind = 0; kind < 3; kind++) config[kind] = small_encoder((accel_architecture)a);
        config[0].dropout = config[1].attention_dropout = config[2].classifier_dropout = 1;
        for (int kind = 0; kind < 3; kind++) check_written(config[kind]);
    }
}

/* ---- what an encoder gives ---- */

TEST(shapes_of_the_output) {
    accel_t *acc = context();
    accel_encoder_config config = small_encoder(ACCEL_BERT);
    config.num_labels = 5;
    accel_model *model = accel_encoder_create(acc, &config);
    accel_output_hidden_states(model, true);
    rows made = random_rows(6, 17, 5, 2);
    int32_t offsets[7];
    accel_batch batch = batch_of(&made, 0, 6, offsets);
    accel_output out = accel_forward(model, &batch);
    CHECK(same_shape(accel_shape_of(out.logits), accel_2d(6, 5)) && accel_shape_of(out.loss).rank == 0);
    CHECK(out.hidden_count == 3);
    for (int i = 0; i < out.hidden_count; i++)
        CHECK(same_shape(accel_shape_of(out.hidden[i]), accel_2d(batch.tokens, D)));
    CHECK(same_shape(accel_shape_of(accel_unpack(out.hidden[2], &batch)), accel_3d(6, batch.longest, D)));
    batch.labels = NULL;
    CHECK(!accel_valid(accel_forward(model, &batch).loss));
    accel_eval_begin(acc);
    out = accel_forward(model, &batch);
    CHECK(out.hidden_count == 3 && !accel_valid(out.hidden[0]) && !accel_valid(out.hidden[1]));
    CHECK(same_shape(accel_shape_of(out.hidden[2]), accel_2d(batch.tokens, D)));
    accel_eval_end(acc);
    free_rows(&made);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

/* Without hidden states the last layer computes first tokens only: the same logits and gradients, dropout included. Tolerance: both are
   float32 sums of the same terms in another order. */
TEST(the_short_last_layer_gives_the_same_results) {
    for (int architecture = 0; architecture < 2; architecture++) {
        accel_t *acc = context(), *other = context();
        accel_encoder_config config = small_encoder((accel_architecture)architecture);
        config.dropout = config.attention_dropout = config.classifier_dropout = 0.2f;
        accel_model *fast = accel_encoder_create(acc, &config), *whole = accel_encoder_create(other, &config);
        accel_output_hidden_states(whole, true);
        rows made = random_rows(5, 11, 2, 4);
        int32_t offsets[6];
        accel_batch batch = batch_of(&made, 0, 5, offsets);
        accel_output a = accel_forward(fast, &batch), b = accel_forward(whole, &batch);
        CHECK(a.hidden == NULL && a.hidden_count == 0);
        float x[10], y[10];
        CHECK(accel_read(a.logits, x, accel_count(a.logits)) && accel_read(b.logits, y, accel_count(b.logits)));
        for (int64_t i = 0; i < accel_count(a.logits); i++) CHECK_NEAR(x[i], y[i], 1e-6);
        accel_backward(acc, a.loss), accel_backward(other, b.loss);
        for (int i = 0; i < accel_parameter_count(fast); i++) {
            accel_tensor p = accel_parameter_at(fast, i), q = accel_parameter_at(whole, i);
            float *g = grad_of(p), *h = grad_of(q);
            for (int64_t k = 0; k < accel_count(p); k++) CHECK_NEAR(g[k], h[k], 1e-6);
            free(g), free(h);
        }
        free_rows(&made);
        CHECK_FINE(acc);
        accel_destroy(acc), accel_destroy(other);
    }
}

/* A loss of one's own on a hidden state sends its gradient into the encoder. */
TEST(hidden_states_carry_gradients) {
    accel_t *acc = context();
    accel_encoder_config config = small_encoder(ACCEL_DISTILBERT);
    accel_model *model = accel_encoder_create(acc, &config);
    accel_output_hidden_states(model, true);
    rows made = random_rows(3, 7, 2, 2);
    int32_t offsets[4];
    accel_batch batch = batch_of(&made, 0, 3, offsets);
    batch.labels = NULL;
    accel_output out = accel_forward(model, &batch);
    accel_backward(acc, accel_mean(accel_mul(out.hidden[1], out.hidden[1])));
    accel_tensor used = accel_parameter_find(model, "distilbert.transformer.layer.0.ffn.lin1.weight");
    accel_tensor unused = accel_parameter_find(model, "distilbert.transformer.layer.1.ffn.lin1.weight");
    float *grad = grad_of(used), *none = grad_of(unused), sum = 0, zero = 0;
    for (int i = 0; i < D * H; i++) sum += fabsf(grad[i]), zero += fabsf(none[i]);
    CHECK(sum > 0 && zero == 0);
    free(grad), free(none), free_rows(&made);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(packed_and_padded_batches_give_the_same) {
    accel_t *acc = context();
    accel_encoder_config config = small_encoder(ACCEL_BERT);
    accel_model *model = accel_encoder_create(acc, &config);
    rows made = random_rows(6, 17, 2, 2);
    int32_t offsets[7], ids[6 * 20] = {0}, mask[6 * 20] = {0}, types[6 * 20] = {0};
    accel_batch packed = batch_of(&made, 0, 6, offsets), padded;
    for (int i = 0; i < 6; i++)
        for (int k = 0; k < offsets[i + 1] - offsets[i]; k++) {
            ids[i * 20 + k] = packed.ids[offsets[i] + k];
            types[i * 20 + k] = packed.token_types[offsets[i] + k];
            mask[i * 20 + k] = 1;
        }
    CHECK(accel_batch_from_padded(acc, ids, mask, types, made.labels, 6, 20, &padded));
    CHECK(padded.tokens == packed.tokens && padded.longest == packed.longest);
    accel_output a = accel_forward(model, &packed), b = accel_forward(model, &padded);
    CHECK(same_values(a.logits, b.logits) && accel_item(a.loss) == accel_item(b.loss));
    free_rows(&made);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(the_padding_row_gets_no_gradient) {
    for (int pad = 0; pad < 8; pad += 7) {
        accel_t *acc = context();
        accel_encoder_config config = small_encoder(ACCEL_DISTILBERT);
        config.pad_token_id = pad;
        accel_model *model = accel_encoder_create(acc, &config);
        int32_t ids[] = {pad, 3, pad, 4, 3}, offsets[] = {0, 3, 5}, labels[] = {0, 1};
        accel_batch batch = {
            .examples = 2, .tokens = 5, .longest = 3, .ids = ids, .offsets = offsets, .labels = labels};
        accel_backward(acc, accel_forward(model, &batch).loss);
        float *grad = grad_of(accel_parameter_at(model, 0));
        for (int row = 0; row < VOCABULARY; row++) {
            float sum = 0;
            for (int i = 0; i < D; i++) sum += fabsf(grad[row * D + i]);
            CHECK((sum > 0) == (row == 3 || row == 4));
        }
        free(grad);
        CHECK_FINE(acc);
        accel_destroy(acc);
    }
}

/* transformers#2702: the encoder's kind decides, not the caller. */
TEST(token_types_are_for_bert_alone) {
    for (int a = 0; a < 2; a++) {
        accel_t *acc = context();
        accel_encoder_config config = small_encoder((accel_architecture)a);
        accel_model *model = accel_encoder_create(acc, &config);
        rows made = random_rows(5, 9, 2, 2);
        int32_t offsets[6];
        accel_batch with = batch_of(&made, 0, 5, offsets), without = with, zeros = with;
        int32_t none[5 * 9] = {0};
        without.token_types = NULL, zeros.token_types = none;
        accel_tensor x = accel_forward(model, &with).logits, y = accel_forward(model, &without).logits,
                     z = accel_forward(model, &zeros).logits;
        CHECK(same_values(x, y) == (a == ACCEL_DISTILBERT));
        CHECK(same_values(y, z));
        free_rows(&made);
        CHECK_FINE(acc);
        accel_destroy(acc);
    }
}

TEST(evaluation_has_no_dropout) {
    for (int a = 0; a < 2; a++) {
        accel_t *acc = context();
        accel_encoder_config config = small_encoder((accel_architecture)a),
                             dropping = dropping_encoder((accel_architecture)a);
        accel_model *plain = accel_encoder_create(acc, &config), *noisy = accel_encoder_create(acc, &dropping);
        copy_parameters(noisy, plain);
        rows made = random_rows(5, 9, 2, 2);
        int32_t offsets[6];
        accel_batch batch = batch_of(&made, 0, 5, offsets);
        accel_tensor clean = accel_forward(plain, &batch).logits, first = accel_forward(noisy, &batch).logits;
        accel_eval_begin(acc);
        CHECK(tensor_distance(accel_forward(plain, &batch).logits, clean) < 1e-6);
        CHECK(tensor_distance(accel_forward(noisy, &batch).logits, clean) < 1e-6);
        accel_eval_end(acc);
        CHECK(!same_values(first, clean));
        accel_set_dropout(noisy, 0);
        CHECK(same_values(accel_forward(noisy, &batch).logits, clean));
        accel_set_dropout(noisy, 0.5f);
        CHECK(!same_values(accel_forward(noisy, &batch).logits, clean));
        free_rows(&made);
        CHECK_FINE(acc);
        accel_set_dropout(noisy, 1.5f);
        CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "dropout");
        accel_destroy(acc);
    }
}

/* Each of the three kinds of dropout alone changes the training logits, and differs from step to step. */
TEST(each_dropout_does_something) {
    for (int kind = 0; kind < 3; kind++) {
        accel_t *acc = context();
        accel_encoder_config config = small_encoder(ACCEL_DISTILBERT);
        accel_model *plain = accel_encoder_create(acc, &config);
        if (kind == 0) config.dropout = 0.3f;
        if (kind == 1) config.attention_dropout = 0.3f;
        if (kind == 2) config.classifier_dropout = 0.3f;
        accel_model *noisy = accel_encoder_create(acc, &config);
        copy_parameters(noisy, plain);
        accel_optimizer *opt = accel_sgd(acc, noisy, NULL);
        accel_set_lr(opt, 0);
        rows made = random_rows(5, 9, 2, 2);
        int32_t offsets[6];
        accel_batch batch = batch_of(&made, 0, 5, offsets);
        accel_tensor clean = accel_keep(accel_forward(plain, &batch).logits);
        accel_begin(acc);
        accel_output out = accel_forward(noisy, &batch);
        CHECK(!same_values(out.logits, clean));
        accel_tensor first = accel_keep(accel_scale(out.logits, 1));
        accel_backward(acc, out.loss);
        accel_step(opt);
        accel_begin(acc);
        CHECK(!same_values(accel_forward(noisy, &batch).logits, first));
        free_rows(&made);
        CHECK_FINE(acc);
        accel_destroy(acc);
    }
}

/* An example's logits do not depend on the others beside it (nor, with counted masks, on their number). */
TEST(examples_are_independent) {
    for (int noisy = 0; noisy < 2; noisy++) {
        accel_t *acc = context();
        accel_encoder_config config = noisy ? dropping_encoder(ACCEL_BERT) : small_encoder(ACCEL_BERT);
        accel_model *model = accel_encoder_create(acc, &config);
        rows made = random_rows(9, 19, 2, 2);
        int32_t offsets[10], part_offsets[10];
        accel_batch all = batch_of(&made, 0, 9, offsets);
        accel_tensor together = accel_keep(accel_forward(model, &all).logits);
        for (int i = 0; i < 9; i++) {
            accel_begin(acc);
            accel_batch one = batch_of(&made, i, i + 1, part_offsets);
            one.first_ordinal = i;
            CHECK(tensor_distance(accel_forward(model, &one).logits, accel_slice(together, 0, i, i + 1)) < 2e-6);
        }
        free_rows(&made);
        CHECK_FINE(acc);
        accel_destroy(acc);
    }
}

TEST(multi_label_and_regression_losses) {
    for (int problem = ACCEL_MULTI_LABEL; problem <= ACCEL_REGRESSION; problem++) {
        for (int labels = 1; labels <= 3; labels += 2) {
            accel_t *acc = context();
            accel_encoder_config config = small_encoder(ACCEL_DISTILBERT);
            config.problem = (accel_problem)problem, config.num_labels = labels;
            accel_model *model = accel_encoder_create(acc, &config);
            rows made = random_rows(6, 9, labels, 2);
            int32_t offsets[7];
            accel_batch batch = batch_of(&made, 0, 6, offsets);
            batch.labels = NULL, batch.targets = made.targets, batch.targets_per_example = labels;
            accel_output out = accel_forward(model, &batch);
            accel_tensor targets = accel_from_floats(acc, accel_2d(6, labels), made.targets);
            accel_tensor loss = problem == ACCEL_REGRESSION ? accel_mse(out.logits, targets)
                                                            : accel_bce_with_logits(out.logits, targets);
            CHECK_NEAR(accel_item(out.loss), accel_item(loss), 1e-6);
            CHECK(accel_item(loss) > 0);
            free_rows(&made);
            CHECK_FINE(acc);
            accel_destroy(acc);
        }
    }
}

TEST(class_weights_and_smoothing_of_the_loss) {
    accel_t *acc = context();
    accel_encoder_config config = small_encoder(ACCEL_BERT);
    accel_model *model = accel_encoder_create(acc, &config);
    float weights[] = {0.25f, 4};
    accel_cross_entropy_desc desc = {.label_smoothing = 0.2f, .class_weights = weights, .class_count = 2};
    accel_set_loss(model, &desc);
    weights[0] = 100; /* they were copied */
    rows made = random_rows(6, 9, 2, 2);
    int32_t offsets[7];
    accel_batch batch = batch_of(&made, 0, 6, offsets);
    accel_output out = accel_forward(model, &batch);
    float *logits = values_of(out.logits);
    double expected = reference_cross_entropy(logits, made.labels, 6, 2, (double)desc.label_smoothing,
                                              (float[]){0.25f, 4}, NULL);
    CHECK_NEAR(accel_item(out.loss), expected, 1e-6);
    accel_set_loss(model, NULL);
    expected = reference_cross_entropy(logits, made.labels, 6, 2, 0, NULL, NULL);
    CHECK_NEAR(accel_item(accel_forward(model, &batch).loss), expected, 1e-6);
    free(logits), free_rows(&made);
    CHECK_FINE(acc);
    desc.class_count = 3, desc.class_weights = (float[]){1, 1, 1};
    accel_set_loss(model, &desc);
    CHECK(accel_failed(acc));
    accel_destroy(acc);
}

TEST(initial_weights) {
    accel_t *acc = context();
    accel_encoder_config config = small_encoder(ACCEL_DISTILBERT);
    config.initializer_range = 0.05f, config.sinusoidal_positions = true;
    accel_model *model = accel_encoder_create(acc, &config);
    float *words = values_of(accel_parameter_at(model, 0)), *positions = values_of(accel_parameter_at(model, 1)),
          square = 0;
    for (int i = 0; i < V * D; i++)
        square += words[i] * words[i] / (V * D - D); /* the padding row is zero, as in torch.nn.Embedding */
    CHECK_NEAR(sqrtf(square), 0.05, 5 * 0.05 / sqrt(2.0 * V * D));
    for (int i = 0; i < D; i++) CHECK(words[i] == 0);
    for (int at = 0; at < P; at++)
        for (int i = 0; i < D; i++) {
            double angle = at / pow(10000, 2 * (i / 2) / (double)D);
            CHECK_NEAR(positions[at * D + i], i % 2 ? cos(angle) : sin(angle), 2e-6);
        }
    CHECK_NEAR(value_error(accel_parameter_find(model, "classifier.bias"), (double[]){0, 0}, 2), 0, 0);
    CHECK_NEAR(accel_item(accel_mean(accel_parameter_find(model, "distilbert.embeddings.LayerNorm.weight"))), 1, 1e-7);
    free(words), free(positions);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(parameters_can_be_reset_by_name) {
    accel_t *acc = context();
    accel_encoder_config config = small_encoder(ACCEL_DISTILBERT);
    accel_model *model = accel_encoder_create(acc, &config);
    float *fresh = all_of(model, accel_read), ones[D * D];
    for (int i = 0; i < D * D; i++) ones[i] = 1;
    accel_tensor head = accel_parameter_find(model, "pre_classifier.weight");
    accel_tensor body = accel_parameter_find(model, "distilbert.transformer.layer.0.attention.q_lin.weight");
    CHECK(accel_write(head, ones, D * D) && accel_write(body, ones, D * D));
    CHECK(accel_encoder_reset(model, "pre_classifier*,classifier*") == 4);
    CHECK(!same_parameters(model, fresh) && accel_item(accel_mean(body)) == 1 && accel_item(accel_mean(head)) != 1);
    CHECK(accel_encoder_reset(model, "*") == accel_parameter_count(model) && same_parameters(model, fresh));
    CHECK(accel_encoder_reset(model, "no.such") == 0);
    free(fresh);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(the_same_seed_gives_the_same_encoder) {
    accel_t *acc = context(), *other = context_of((accel_desc){.threads = 1}, NULL),
            *seeded = context_of((accel_desc){.seed = 3}, NULL);
    accel_encoder_config config = small_encoder(ACCEL_BERT);
    accel_model *a = accel_encoder_create(acc, &config), *b = accel_encoder_create(other, &config),
                *c = accel_encoder_create(seeded, &config);
    float *values = all_of(a, accel_read);
    CHECK(same_parameters(b, values) && !same_parameters(c, values));
    free(values);
    CHECK_FINE(acc);
    accel_destroy(acc), accel_destroy(other), accel_destroy(seeded);
}

TEST(encoders_that_are_refused) {
    accel_t *acc = context();
    accel_encoder_config good = small_encoder(ACCEL_BERT), bad[13];
    for (int i = 0; i < COUNT(bad); i++) bad[i] = good;
    bad[0].dim = 0, bad[1].heads = 4, bad[2].layers = 0, bad[3].vocab_size = 0, bad[4].max_positions = -1,
    bad[5].hidden_dim = 0;
    bad[6].num_labels = 0, bad[7].pad_token_id = VOCABULARY, bad[8].dropout = 1.5f, bad[9].activation = ACCEL_TANH;
    bad[10].type_vocab_size = 0, bad[11].layer_norm_eps = NAN, bad[12].heads = 0;
    for (int i = 0; i < COUNT(bad); i++) {
        accel_model *model = accel_encoder_create(acc, &bad[i]);
        if (model || !accel_failed(acc)) test_faults++, printf("  bad[%d] is accepted\n", i);
        accel_clear(acc);
    }
    accel_destroy(acc);
}

TEST(batches_that_are_refused) {
    accel_t *acc = context();
    accel_encoder_config config = small_encoder(ACCEL_BERT);
    accel_model *model = accel_encoder_create(acc, &config);
    int32_t ids[] = {1, 2, 3, 4, 5}, high[] = {1, 2, VOCABULARY, 4, 5}, offsets[] = {0, 3, 5}, empty[] = {0, 0, 5},
            backwards[] = {0, 6, 5}, late_offsets[] = {1, 3, 5};
    int32_t labels[] = {0, 2}, types[] = {0, 0, 2, 0, 0};
    accel_batch good = {.examples = 2, .tokens = 5, .longest = 3, .ids = ids, .offsets = offsets}, bad[10];
    CHECK(accel_valid(accel_forward(model, &good).logits));
    for (int i = 0; i < COUNT(bad); i++) bad[i] = good;
    bad[0].ids = high, bad[1].offsets = empty, bad[2].offsets = backwards, bad[3].labels = labels,
    bad[4].token_types = types;
    bad[5].ids = NULL, bad[6].examples = 0, bad[7].tokens = 4;
    bad[8].tokens = 6, bad[9].offsets = late_offsets;
    for (int i = 0; i < COUNT(bad); i++) {
        accel_output out = accel_forward(model, &bad[i]);
        if (accel_valid(out.logits) || !accel_failed(acc)) test_faults++, printf("  bad[%d] is accepted\n", i);
        accel_clear(acc);
    }
    int32_t many[POSITIONS + 1] = {0}, whole[] = {0, POSITIONS + 1};
    accel_batch late = {
        .examples = 1, .tokens = POSITIONS + 1, .longest = POSITIONS + 1, .ids = many, .offsets = whole};
    CHECK(!accel_valid(accel_forward(model, &late).logits));
    CHECK_ERROR(acc, ACCEL_BAD_DATA, "24");
    accel_destroy(acc);
}

TEST(a_model_that_is_no_encoder) {
    accel_t *acc = context();
    accel_model *model = accel_model_create(acc, "bare");
    int32_t ids[] = {1, 2}, offsets[] = {0, 2};
    accel_batch batch = {.examples = 1, .tokens = 2, .longest = 2, .ids = ids, .offsets = offsets};
    CHECK(accel_encoder_config_of(model) == NULL);
    CHECK(!accel_valid(accel_forward(model, &batch).logits));
    CHECK_TEXT(accel_message(acc), "bare");
    CHECK(accel_failed(acc));
    accel_destroy(acc);
}

/* A small model learns a rule from nothing: whether the first token is odd. */
TEST(it_learns) {
    accel_t *acc = context();
    accel_encoder_config config = small_encoder(ACCEL_DISTILBERT);
    accel_model *model = accel_encoder_create(acc, &config);
    accel_optimizer *opt = accel_adam(acc, model, &(accel_adam_desc){.lr = 3e-3f});
    rows made = random_rows(200, 9, 2, 2);
    for (int i = 0; i < 200; i++) made.labels[i] = made.ids[made.offsets[i]] % 2;
    accel_loader *loader = accel_loader_create(acc, data_of(acc, &made),
                                               &(accel_loader_desc){.batch_size = 16, .shuffle = true});
    accel_prepare(acc, model, opt, loader);
    accel_metrics *metrics = accel_metrics_create(acc, 2);
    accel_batch batch;
    for (int epoch = 0; epoch < 12; epoch++) {
        accel_metrics_reset(metrics);
        while (accel_next(loader, &batch)) {
            accel_zero_grad(opt);
            accel_output out = accel_forward(model, &batch);
            accel_metrics_add(metrics, out.logits, batch.labels, batch.examples);
            accel_backward(acc, out.loss);
            accel_step(opt);
        }
    }
    CHECK(accel_accuracy(metrics) > 0.98);
    free_rows(&made);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

int main(int argc, char **argv) {
    return test_main(argc, argv);
}
