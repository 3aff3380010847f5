/* accel_checkpoint and accel_set_recompute: the same bits as without, in less memory. */
#define ACCEL_IMPLEMENTATION
#include "accel.h"
#include "test.h"
#include "helpers.h"

typedef struct setting {
    accel_architecture architecture;
    accel_precision precision;
    int threads, accumulate, layers;
    bool hidden, frozen, sgd; /* frozen: embeddings and the lowest layer */
} setting;

typedef struct outcome {
    float *parameters, *gradients; /* the latter of the last micro-batch's window */
    int64_t count;
    double losses;
    float norm;
} outcome;

static void freeze(accel_model *model) {
    CHECK(accel_model_requires_grad(model, "*embeddings*,*layer.0.*", false) > 10);
}

/* Two epochs with dropout, shuffling, clipping and, where hidden states are given, a second loss that reaches one. */
static outcome train(const setting *s, bool recompute) {
    accel_t *acc = context_of((accel_desc){.threads = s->threads ? s->threads : 1, .accumulate = s->accumulate,
                                           .precision = s->precision, .seed = 5}, NULL);
    accel_encoder_config config = dropping_encoder(s->architecture);
    config.layers = s->layers ? s->layers : 3;
    accel_model *model = accel_encoder_create(acc, &config);
    if (s->frozen) freeze(model);
    accel_output_hidden_states(model, s->hidden);
    accel_set_recompute(model, recompute);
    accel_optimizer *opt = s->sgd ? accel_sgd(acc, model, &(accel_sgd_desc){.lr = 0.05f, .momentum = 0.9f})
                                  : accel_adamw(acc, model, &(accel_adam_desc){.lr = 0.01f});
    accel_loader *loader = accel_loader_create(acc, small_data(acc, 22, 17, 3),
                                               &(accel_loader_desc){.batch_size = 6, .shuffle = true});
    accel_prepare(acc, model, opt, loader);
    outcome result = {.count = accel_parameter_elements(model)};
    for (int epoch = 0; epoch < 2; epoch++) {
        accel_batch batch;
        while (accel_next(loader, &batch)) {
            accel_zero_grad(opt);
            accel_output out = accel_forward(model, &batch);
            accel_tensor loss = out.loss;
            if (s->hidden) {
                accel_tensor middle = out.hidden[1];
                loss = accel_add(loss, accel_scale(accel_mean(accel_mul(middle, middle)), 0.01f));
            }
            accel_backward(acc, loss);
            if (s->hidden) accel_backward(acc, accel_scale(out.loss, 0.5f)); /* once more through the same graph */
            result.norm = accel_clip_grad_norm(opt, 0.5f);
            free(result.gradients);
            result.gradients = all_of(model, accel_grad);
            accel_step(opt);
            result.losses = 3 * result.losses + (double)accel_item(loss);
        }
    }
    CHECK_FINE(acc);
    result.parameters = all_of(model, accel_read);
    accel_destroy(acc);
    return result;
}

static bool same_outcome(const outcome *a, const outcome *b) {
    size_t bytes = (size_t)a->count * sizeof(float);
    return a->count == b->count && !memcmp(a->parameters, b->parameters, bytes) &&
           !memcmp(a->gradients, b->gradients, bytes) && a->losses == b->losses && a->norm == b->norm;
}

static void free_outcome(outcome *o) {
    free(o->parameters), free(o->gradients);
}

/* Without recomputation on one thread, against recomputation on 1, 2 and 3. */
static void check_same(setting s) {
    outcome plain = train(&s, false);
    CHECK(isfinite(plain.losses) && plain.norm > 0);
    for (s.threads = 1; s.threads <= 3; s.threads++) {
        outcome again = train(&s, true);
        if (!same_outcome(&plain, &again)) test_faults++, printf("  %d threads: other bits\n", s.threads);
        free_outcome(&again);
    }
    free_outcome(&plain);
}

TEST(distilbert_has_the_same_bits) { check_same((setting){.architecture = ACCEL_DISTILBERT}); }
TEST(bert_has_the_same_bits) { check_same((setting){.architecture = ACCEL_BERT}); }
TEST(accumulation_has_the_same_bits) { check_same((setting){.architecture = ACCEL_BERT, .accumulate = 3}); }
TEST(sgd_has_the_same_bits) { check_same((setting){.sgd = true}); }
TEST(bf16_has_the_same_bits) { check_same((setting){.precision = ACCEL_PRECISION_BF16}); }
TEST(emulated_bf16_has_the_same_bits) { check_same((setting){.precision = ACCEL_PRECISION_EMULATED}); }
TEST(frozen_lower_layers_have_the_same_bits) { check_same((setting){.architecture = ACCEL_BERT, .frozen = true}); }
TEST(one_layer_has_the_same_bits) { check_same((setting){.layers = 1}); }

TEST(hidden_states_and_a_second_backward_have_the_same_bits) {
    check_same((setting){.architecture = ACCEL_DISTILBERT, .hidden = true});
    check_same((setting){.architecture = ACCEL_BERT, .hidden = true, .frozen = true});
}

TEST(the_comparison_can_fail) {
    setting s = {.architecture = ACCEL_BERT}, other = {.architecture = ACCEL_BERT, .accumulate = 2};
    outcome a = train(&s, false), b = train(&other, true);
    CHECK(!same_outcome(&a, &b));
    free_outcome(&a), free_outcome(&b);
}

/* What the forward pass was given may change before the backward pass. */
static float *gradients_after_changes(bool recompute) {
    accel_t *acc = context_of((accel_desc){.threads = 2, .seed = 3}, NULL);
    accel_encoder_config config = dropping_encoder(ACCEL_BERT);
    accel_model *model = accel_encoder_create(acc, &config);
    accel_set_recompute(model, recompute);
    int32_t ids[] = {1, 2, 3, 4, 5, 6, 7}, offsets[] = {0, 2, 7}, labels[] = {0, 1};
    accel_begin(acc);
    accel_tensor loss = accel_forward(model, &(accel_batch){.examples = 2, .tokens = 7, .longest = 5, .ids = ids,
                                                            .offsets = offsets, .labels = labels}).loss;
    memset(ids, -1, sizeof ids), memset(offsets, -1, sizeof offsets), memset(labels, -1, sizeof labels);
    accel_set_dropout(model, 0.9f), accel_set_seed(acc, 8), accel_set_recompute(model, !recompute);
    accel_backward(acc, loss);
    CHECK_FINE(acc);
    float *all = all_of(model, accel_grad);
    accel_destroy(acc);
    return all;
}

TEST(a_forward_pass_is_repeated_as_it_was) {
    float *plain = gradients_after_changes(false), *again = gradients_after_changes(true);
    accel_t *acc = context();
    accel_encoder_config config = dropping_encoder(ACCEL_BERT);
    size_t count = (size_t)accel_parameter_elements(accel_encoder_create(acc, &config));
    accel_destroy(acc);
    CHECK(!memcmp(plain, again, count * sizeof *plain));
    free(plain), free(again);
}

/* ---- memory ---- */

typedef struct use {
    size_t first, peak; /* allocated before the first step, and at most */
    uint64_t late_calls; /* of the allocator after the first epoch */
} use;

/* Peak of wide texts through six layers whose activations outweigh the parameters. */
static use memory_of(bool recompute) {
    accel_t *acc = context_of((accel_desc){.threads = 2}, NULL);
    accel_encoder_config config = dropping_encoder(ACCEL_DISTILBERT);
    config.layers = 6, config.dim = 48, config.hidden_dim = 192, config.heads = 4;
    accel_model *model = accel_encoder_create(acc, &config);
    accel_set_recompute(model, recompute);
    accel_optimizer *opt = accel_adam(acc, model, NULL);
    accel_loader *loader =
        accel_loader_create(acc, small_data(acc, 256, 24, 3), &(accel_loader_desc){.batch_size = 128, .shuffle = true});
    accel_prepare(acc, model, opt, loader);
    use result = {.first = accel_memory_used(acc).bytes};
    for (int epoch = 0; epoch < 5; epoch++) {
        uint64_t calls = accel_memory_used(acc).calls;
        accel_batch batch;
        while (accel_next(loader, &batch)) {
            accel_zero_grad(opt);
            accel_backward(acc, accel_forward(model, &batch).loss);
            accel_step(opt);
        }
        if (epoch) result.late_calls += accel_memory_used(acc).calls - calls;
    }
    CHECK_FINE(acc);
    result.peak = accel_memory_used(acc).peak_bytes;
    accel_destroy(acc);
    return result;
}

/* A layer saves about 18 widths per token and its attention; with recomputation 1 for each layer and the 18, with their
   gradients, of one: (6 + 18 + 8) / (6 * 18 + 8) = 0.28 of the activations. Slabs, gradients and moments come on top. */
TEST(it_takes_less_than_half_the_memory) {
    use plain = memory_of(false), again = memory_of(true);
    size_t plain_growth = plain.peak - plain.first, growth = again.peak - again.first;
    if (growth > plain_growth / 2) test_faults++, printf("  %zu bytes, %zu without\n", growth, plain_growth);
    CHECK(plain.late_calls == 0 && again.late_calls == 0);
}

/* ---- functions of one's own ---- */

typedef struct net {
    accel_model *model;
    accel_tensor w, b;
    int calls;
    float p;
} net;

static net net_of(accel_t *acc) {
    net n = {.model = accel_model_create(acc, "net"), .p = 0.3f};
    n.w = accel_parameter_normal(n.model, "w", accel_2d(7, 7), 0.5f);
    n.b = accel_parameter_normal(n.model, "b", accel_1d(7), 0.5f);
    return n;
}

static accel_tensor block(accel_t *acc, const accel_tensor *inputs, void *user) {
    net *n = user;
    n->calls++;
    accel_tensor x = accel_dropout(accel_gelu(accel_linear(inputs[0], n->w, n->b)), n->p);
    if (inputs[1].id) x = accel_add(x, accel_mul(inputs[1], accel_randn(acc, accel_shape_of(x))));
    return accel_add(x, inputs[0]);
}

static accel_tensor two_blocks(accel_t *acc, const accel_tensor *inputs, void *user) {
    accel_tensor middle[2] = {accel_checkpoint(acc, block, inputs, 2, user), {0}};
    return block(acc, middle, user);
}

/* Three blocks, the middle two in a function of their own; the gradients of all that has one, to be freed. */
static float *gradients_of(bool checkpoints, int *calls) {
    accel_t *acc = context_of((accel_desc){.threads = 2, .seed = 3}, NULL);
    net n = net_of(acc);
    accel_begin(acc);
    accel_tensor x[2] = {random_tensor(acc, accel_2d(5, 7), -1, 1, 1), random_tensor(acc, accel_2d(5, 7), -1, 1, 2)};
    accel_set_requires_grad(x[0], true), accel_set_requires_grad(x[1], true);
    accel_tensor y[2] = {checkpoints ? accel_checkpoint(acc, block, x, 2, &n) : block(acc, x, &n), x[1]};
    accel_tensor middle[2] = {y[0], {0}};
    if (checkpoints) y[0] = accel_checkpoint(acc, two_blocks, y, 2, &n);
    else middle[0] = block(acc, y, &n), y[0] = block(acc, middle, &n);
    accel_tensor loss = accel_mean(accel_mul(accel_dropout(y[0], 0.2f), y[0])); /* its mask comes after theirs */
    accel_backward(acc, loss);
    float *all = malloc((49 + 7 + 2 * 35) * sizeof *all);
    CHECK(accel_grad(n.w, all, 49) && accel_grad(n.b, all + 49, 7));
    CHECK(accel_grad(x[0], all + 56, 35) && accel_grad(x[1], all + 91, 35));
    CHECK_FINE(acc);
    *calls = n.calls;
    accel_destroy(acc);
    return all;
}

TEST(functions_within_functions_have_the_same_gradients) {
    int calls, again;
    float *plain = gradients_of(false, &calls), *twice = gradients_of(true, &again);
    CHECK(!memcmp(plain, twice, (49 + 7 + 2 * 35) * sizeof *plain));
    CHECK(calls == 3 && again == 7); /* forward 3, backward 1 + 2 for the outer, of which 1 once more */
    CHECK(plain[0] != 0 && plain[91] != 0);
    free(plain), free(twice);
}

TEST(nothing_but_inputs_and_result_is_kept) {
    accel_t *acc = context();
    net n = net_of(acc);
    accel_begin(acc);
    accel_tensor x[2] = {accel_full(acc, accel_2d(5, 7), 1), {0}};
    accel_tensor y = accel_checkpoint(acc, block, x, 2, &n);
    CHECK(accel_valid(y) && accel_valid(x[0]));
    accel_tensor kept = accel_keep(y); /* of which the graph goes on */
    accel_backward(acc, accel_sum(accel_mul(y, y)));
    CHECK(accel_failed(acc)); /* a kept tensor has no graph */
    accel_clear(acc);
    accel_begin(acc);
    CHECK(accel_valid(kept) && accel_count(kept) == 35);
    accel_destroy(acc);
}

static accel_tensor identity(accel_t *acc, const accel_tensor *inputs, void *user) {
    (void)acc, (void)user;
    return inputs[0];
}

static accel_tensor reshaped(accel_t *acc, const accel_tensor *inputs, void *user) {
    (void)acc, (void)user;
    return accel_reshape(inputs[0], accel_1d(35));
}

TEST(results_that_are_inputs_or_views_of_them) {
    accel_t *acc = context();
    accel_begin(acc);
    accel_tensor x = random_tensor(acc, accel_2d(5, 7), -1, 1, 1);
    accel_set_requires_grad(x, true);
    accel_tensor same = accel_checkpoint(acc, identity, &x, 1, NULL), view = accel_checkpoint(acc, reshaped, &x, 1, NULL);
    CHECK(same.id == x.id);
    CHECK(accel_shape_of(view).rank == 1);
    accel_backward(acc, accel_add(accel_sum(accel_mul(same, same)), accel_sum(accel_mul(view, view))));
    float values[35], gradient[35];
    CHECK(accel_read(x, values, 35) && accel_grad(x, gradient, 35));
    for (int i = 0; i < 35; i++) CHECK(gradient[i] == 4 * values[i]);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(in_evaluation_the_function_just_runs) {
    accel_t *acc = context();
    net n = net_of(acc);
    accel_eval_begin(acc);
    accel_tensor x[2] = {accel_full(acc, accel_2d(5, 7), 1), {0}};
    accel_tensor y = accel_checkpoint(acc, block, x, 2, &n), plain = block(acc, x, &n);
    CHECK(same_values(y, plain));
    accel_eval_end(acc);
    CHECK(!accel_valid(y));
    CHECK_FINE(acc);
    accel_destroy(acc);
}

/* ---- what is refused ---- */

TEST(a_parameter_that_changed_in_between_is_an_error) {
    accel_t *acc = context();
    accel_encoder_config config = small_encoder(ACCEL_BERT);
    accel_model *model = accel_encoder_create(acc, &config);
    accel_set_recompute(model, true);
    accel_optimizer *opt = accel_adam(acc, model, NULL);
    accel_loader *loader = accel_loader_create(acc, small_data(acc, 4, 9, 1), NULL);
    accel_prepare(acc, model, opt, loader);
    accel_batch batch;
    accel_next(loader, &batch);
    accel_output out = accel_forward(model, &batch);
    accel_backward(acc, out.loss);
    CHECK(accel_step(opt));
    CHECK_FINE(acc);
    accel_backward(acc, out.loss);
    CHECK_ERROR(acc, ACCEL_BAD_STATE, "parameter changed");
    while (accel_next(loader, &batch)) {} /* the context goes on */
    accel_next(loader, &batch);
    accel_zero_grad(opt);
    accel_backward(acc, accel_forward(model, &batch).loss);
    CHECK(accel_step(opt));
    CHECK_FINE(acc);
    accel_destroy(acc);
}

typedef struct misuse {
    accel_loader *loader;
    accel_model *model;
    int kind, calls;
} misuse;

static accel_tensor misused(accel_t *acc, const accel_tensor *inputs, void *user) {
    misuse *m = user;
    accel_tensor y = accel_scale(inputs[0], 2);
    accel_batch batch;
    m->calls++;
    switch (m->kind) {
    case 0: accel_begin(acc); break;
    case 1: accel_next(m->loader, &batch); break;
    case 2: accel_keep(y); break;
    case 3: accel_backward(acc, accel_sum(y)); break;
    case 4: accel_free(m->model); break;
    case 5: if (m->calls == 2) return accel_scale(accel_slice(inputs[0], 0, 0, 2), 2); break;
    default: return (accel_tensor){0};
    }
    return y;
}

TEST(a_function_must_not_change_what_lives_outside) {
    accel_t *acc = context();
    misuse m = {.loader = accel_loader_create(acc, small_data(acc, 4, 9, 1), NULL),
                .model = accel_model_create(acc, "net")};
    const char *text[] = {"accel_begin", "accel_next", "accel_keep", "accel_backward", "accel_free"};
    for (m.kind = 0; m.kind < 5; m.kind++) {
        accel_begin(acc);
        accel_tensor x = accel_full(acc, accel_1d(3), 1);
        accel_set_requires_grad(x, true);
        CHECK(!accel_valid(accel_checkpoint(acc, misused, &x, 1, &m)));
        CHECK_ERROR(acc, ACCEL_BAD_STATE, text[m.kind]);
    }
    accel_begin(acc);
    accel_tensor x = accel_full(acc, accel_1d(3), 1);
    accel_set_requires_grad(x, true);
    m.calls = 0;
    accel_backward(acc, accel_sum(accel_checkpoint(acc, misused, &x, 1, &m)));
    CHECK_ERROR(acc, ACCEL_BAD_STATE, "another result");
    m.kind = 6;
    CHECK(!accel_valid(accel_checkpoint(acc, misused, &x, 1, &m)));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "accel_checkpoint");
    CHECK(!accel_valid(accel_checkpoint(acc, NULL, &x, 1, &m)));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "function");
    CHECK(!accel_valid(accel_checkpoint(acc, identity, &x, 9, &m)));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "0 to 8 inputs");
    accel_set_recompute(m.model, true);
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "no encoder");
    accel_destroy(acc);
}

int main(int argc, char **argv) {
    return test_main(argc, argv);
}
