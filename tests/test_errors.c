/* Errors are values: NULL everywhere, the sticky error, clearing, bad descriptions, contexts that do not disturb each
   other. */
#define ACCEL_IMPLEMENTATION
#include "accel.h"
#include "test.h"
#include "helpers.h"

static accel_tensor give_nothing(accel_t *acc, const accel_tensor *inputs, void *user) {
    (void)acc, (void)inputs, (void)user;
    return (accel_tensor){0};
}

/* Calls every public function on this context, with NULL for all else (and with a NULL context where acc is NULL); each
   must return its harmless value. */
static void call_everything(accel_t *acc) {
    accel_tensor null = {0}, some[2] = {{0}, {0}};
    accel_shape shape = accel_1d(3);
    accel_batch batch = {0};
    float value = 7;
    int32_t label = 0;

    accel_free(NULL);
    CHECK(accel_failed(acc) && accel_message(acc) != NULL);
    CHECK(accel_error(NULL) != ACCEL_OK && accel_message(NULL) != NULL && accel_threads(NULL) == 0);
    accel_seed(NULL), accel_set_seed(NULL, 1), accel_clear(NULL);
    CHECK(accel_memory_used(NULL).bytes == 0);
    accel_begin(acc), accel_eval_begin(acc), accel_eval_end(acc);
    CHECK(!accel_valid(accel_keep(null)));
    accel_release(null);

    CHECK(!accel_valid(accel_from_floats(acc, shape, NULL)) && !accel_valid(accel_from_ints(acc, shape, NULL)));
    CHECK(!accel_valid(accel_full(acc, shape, 1)) && !accel_valid(accel_randn(acc, shape)) &&
          !accel_valid(accel_rand(acc, shape)));
    CHECK(accel_count(null) == 0 && isnan(accel_item(null)) && !accel_read(null, &value, 1) &&
          !accel_write(null, &value, 1));
    CHECK(!accel_grad(null, &value, 1) && value == 7);
    accel_type_of(null), accel_set_requires_grad(null, true);

    accel_tensor results[] = {accel_matmul(null, null),
                              accel_matmul_t(null, true, null, false),
                              accel_linear(null, null, null),
                              accel_add(null, null),
                              accel_sub(null, null),
                              accel_mul(null, null),
                              accel_div(null, null),
                              accel_scale(null, 2),
                              accel_exp(null),
                              accel_log(null),
                              accel_sqrt(null),
                              accel_relu(null),
                              accel_leaky_relu(null, 0.1f),
                              accel_gelu(null),
                              accel_gelu_tanh(null),
                              accel_tanh(null),
                              accel_sigmoid(null),
                              accel_sum(null),
                              accel_mean(null),
                              accel_sum_axis(null, 0, true),
                              accel_mean_axis(null, 0, false),
                              accel_reshape(null, shape),
                              accel_transpose(null, 0, 1),
                              accel_slice(null, 0, 0, 1),
                              accel_concat(NULL, 0, 0),
                              accel_concat(NULL, 2, 0),
                              accel_concat(some, 2, 0),
                              accel_embedding(null, null, 0),
                              accel_layer_norm(null, null, null, 1e-5f),
                              accel_softmax(null),
                              accel_log_softmax(null),
                              accel_dropout(null, 0.1f),
                              accel_attention(null, NULL),
                              accel_detach(null),
                              accel_custom(acc, NULL),
                              accel_custom(acc, &(accel_custom_desc){0}),
                              accel_cross_entropy(null, null, NULL),
                              accel_bce_with_logits(null, null),
                              accel_mse(null, null),
                              accel_parameter(NULL, "w", shape),
                              accel_parameter_normal(NULL, "w", shape, 1),
                              accel_parameter_uniform(NULL, "w", shape, 1),
                              accel_apply(NULL, null),
                              accel_parameter_at(NULL, 0),
                              accel_parameter_find(NULL, "w"),
                              accel_unpack(null, NULL),
                              accel_unpack(null, &batch)};
    for (int i = 0; i < COUNT(results); i++) CHECK(!accel_valid(results[i]));

    CHECK(!accel_model_create(acc, NULL) && !accel_sequential(acc, NULL, NULL, 0) && !accel_encoder_create(acc, NULL));
    CHECK(accel_parameter_count(NULL) == 0 && accel_parameter_elements(NULL) == 0 &&
          accel_parameter_name(NULL, 0) == NULL);
    CHECK(accel_model_requires_grad(NULL, "*", true) == 0 && !accel_set_label_names(NULL, NULL, 0) &&
          !accel_label_name(NULL, 0));
    accel_model_zero_grad(NULL), accel_model_name(NULL), accel_set_dropout(NULL, 0.1f), accel_set_loss(NULL, NULL);
    CHECK(accel_encoder_config_of(NULL) == NULL && !accel_to(NULL, "cpu"));
    CHECK(accel_encoder_reset(NULL, "*") == 0);
    accel_output out = accel_forward(NULL, NULL);
    CHECK(!accel_valid(out.loss) && !accel_valid(out.logits) && out.hidden_count == 0);
    accel_forward(NULL, &batch);

    CHECK(!accel_adam(acc, NULL, NULL) && !accel_adamw(acc, NULL, NULL) && !accel_sgd(acc, NULL, NULL) &&
          !accel_optimizer_add(NULL, NULL));
    accel_zero_grad(NULL), accel_set_lr(NULL, 1);
    CHECK(isnan(accel_clip_grad_norm(NULL, 1)) && !accel_step(NULL) && accel_steps_taken(NULL) == 0 &&
          accel_steps_skipped(NULL) == 0);
    accel_lr(NULL);
    CHECK(!accel_linear_schedule_with_warmup(NULL, 1, 2) && !accel_cosine_schedule_with_warmup(NULL, 1, 2));
    CHECK(!accel_constant_schedule_with_warmup(NULL, 1));
    accel_schedule_step(NULL), accel_schedule_factor(NULL, 1);

    CHECK(!accel_data_create(acc, NULL) && accel_data_rows(NULL) == 0 && !accel_data_view(NULL));
    CHECK(!accel_loader_create(acc, NULL, NULL) && accel_loader_length(NULL) == 0 && !accel_next(NULL, &batch) &&
          !accel_next(NULL, NULL));
    accel_loader_set_epoch(NULL, 1);
    CHECK(!accel_batch_from_padded(acc, NULL, NULL, NULL, NULL, 1, 1, &batch) &&
          !accel_batch_from_padded(acc, NULL, NULL, NULL, NULL, 1, 1, NULL));
    CHECK(!accel_prepare(acc, NULL));
    accel_backward(acc, null), accel_set_weight(acc, 1), accel_set_accumulate(acc, 1);
    CHECK(!accel_sync_gradients(NULL));
    CHECK(accel_steps_per_epoch(acc, NULL) == 0);
    CHECK(!accel_metrics_create(acc, 2) && !accel_metrics_add(NULL, null, &label, 1) &&
          accel_metrics_count(NULL, 0, 0) == 0);
    accel_metrics_reset(NULL), accel_accuracy(NULL), accel_f1(NULL), accel_matthews(NULL), accel_majority(NULL);
    accel_gradient_check(acc, NULL, NULL, 0, NULL, NULL);
    accel_gradient_check(acc, give_nothing, some, 1, NULL, NULL);
    CHECK(accel_failed(acc));
}

TEST(null_everywhere) {
    call_everything(NULL);
    accel_destroy(NULL);
}

TEST(a_failed_context_takes_every_call) {
    accel_t *acc = context();
    accel_full(acc, accel_1d(-3), 1);
    char first[512];
    snprintf(first, sizeof first, "%s", accel_message(acc));
    accel_code code = accel_error(acc);
    CHECK(code != ACCEL_OK && first[0]);
    call_everything(acc);
    CHECK(!strcmp(accel_message(acc), first) && accel_error(acc) == code); /* the first failure stays */
    accel_clear(acc);
    CHECK(!accel_failed(acc) && accel_error(acc) == ACCEL_OK && accel_message(acc)[0] == 0);
    CHECK(accel_item(accel_full(acc, accel_0d(), 2)) == 2);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(a_failed_context_trains_no_further) {
    accel_t *acc = context();
    accel_encoder_config config = small_encoder(ACCEL_DISTILBERT);
    accel_model *model = accel_encoder_create(acc, &config);
    accel_optimizer *opt = accel_adam(acc, model, NULL);
    accel_loader *loader = accel_loader_create(acc, small_data(acc, 9, 7, 1), &(accel_loader_desc){.batch_size = 2});
    accel_prepare(acc, model, opt, loader);
    accel_batch batch;
    CHECK(accel_next(loader, &batch));
    float *before = all_of(model, accel_read);
    accel_output out = accel_forward(model, &batch);
    accel_backward(acc, out.loss);
    accel_add(out.logits, accel_full(acc, accel_1d(7), 1)); /* fails */
    CHECK(accel_failed(acc));
    CHECK(!accel_step(opt) && !accel_next(loader, &batch) && isnan(accel_item(out.loss)));
    CHECK(!accel_valid(accel_forward(model, &batch).logits) && isnan(accel_clip_grad_norm(opt, 1)));
    CHECK(accel_error(acc) == ACCEL_BAD_SHAPE);
    accel_clear(acc);
    CHECK(same_parameters(model, before));
    free(before);
    CHECK(accel_step(opt)); /* the gradient is still there */
    while (accel_next(loader, &batch)) {}
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(every_operation_refuses_a_null_operand) {
    accel_t *acc = context();
    accel_tensor null = {0}, x = accel_full(acc, accel_2d(2, 2), 1), row = accel_full(acc, accel_1d(2), 1);
    accel_tensor ids = accel_from_ints(acc, accel_1d(2), NULL);
    accel_tensor (*two[])(accel_tensor, accel_tensor) = {
        accel_add, accel_sub, accel_mul, accel_div, accel_matmul, accel_bce_with_logits, accel_mse};
    for (int i = 0; i < COUNT(two); i++) {
        CHECK(!accel_valid(two[i](x, null)) && accel_failed(acc));
        accel_clear(acc);
        CHECK(!accel_valid(two[i](null, x)) && accel_failed(acc));
        accel_clear(acc);
    }
#define REFUSED(call) (CHECK(!accel_valid(call) && accel_failed(acc)), accel_clear(acc))
    REFUSED(accel_linear(x, null, null));
    REFUSED(accel_linear(null, x, row));
    REFUSED(accel_concat((accel_tensor[]){x, null}, 2, 0));
    REFUSED(accel_embedding(x, null, -1));
    REFUSED(accel_embedding(null, ids, -1));
    REFUSED(accel_layer_norm(x, null, row, 1e-5f));
    REFUSED(accel_layer_norm(x, row, null, 1e-5f));
    REFUSED(accel_cross_entropy(x, null, NULL));
    REFUSED(accel_cross_entropy(null, ids, NULL));
    REFUSED(accel_attention(x, NULL));
    REFUSED(accel_exp(ids)); /* integers are no floats */
    REFUSED(accel_cross_entropy(x, row, NULL));
    REFUSED(accel_custom(acc, NULL));
#undef REFUSED
    accel_backward(acc, null);
    CHECK(accel_failed(acc));
    accel_destroy(acc);
}

static const char *no_forward(const accel_custom_call *call) {
    (void)call;
    return NULL;
}

TEST(tensors_of_two_contexts_do_not_mix) {
    accel_t *acc = context(), *other = context();
    accel_tensor a = accel_full(acc, accel_1d(2), 1), b = accel_full(other, accel_1d(2), 1);
    CHECK(!accel_valid(accel_add(a, b)));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "context");
    accel_tensor x = accel_full(acc, accel_2d(2, 2), 1), y = accel_full(other, accel_2d(2, 2), 1), null = {0};
    accel_tensor ids = accel_from_ints(acc, accel_1d(2), NULL), foreign = accel_from_ints(other, accel_1d(2), NULL);
    accel_custom_desc custom = {.input_count = 1, .input = {b}, .shape = accel_1d(2), .forward = no_forward};
#define MIXED(call) (CHECK(!accel_valid(call) && accel_failed(acc)), accel_clear(acc), accel_clear(other))
    MIXED(accel_matmul(x, y));
    MIXED(accel_linear(x, y, null));
    MIXED(accel_linear(x, x, b));
    MIXED(accel_concat((accel_tensor[]){x, y}, 2, 0));
    MIXED(accel_embedding(x, foreign, -1));
    MIXED(accel_layer_norm(x, b, b, 1e-5f));
    MIXED(accel_layer_norm(x, a, b, 1e-5f));
    MIXED(accel_cross_entropy(x, foreign, NULL));
    MIXED(accel_mse(x, y));
    MIXED(accel_custom(acc, &custom));
#undef MIXED
    CHECK(accel_valid(accel_embedding(x, ids, -1)));
    accel_metrics *metrics = accel_metrics_create(acc, 2);
    CHECK(!accel_metrics_add(metrics, y, (int32_t[]){0, 1}, 2) && accel_failed(acc));
    accel_clear(acc), accel_clear(other);
    CHECK(!accel_apply(accel_sequential(acc, "net", (accel_layer[]){accel_linear_layer(2, 2)}, 1), y).id);
    CHECK(accel_failed(acc) || accel_failed(other));
    accel_clear(acc), accel_clear(other);
    accel_backward(acc, accel_sum(b));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "context");
    CHECK_FINE(other);
    accel_destroy(acc), accel_destroy(other);
}

TEST(a_failure_stays_in_its_context) {
    accel_t *acc = context(), *other = context();
    accel_full(acc, accel_1d(-1), 1);
    CHECK(accel_failed(acc) && !accel_failed(other));
    CHECK(accel_item(accel_full(other, accel_0d(), 2)) == 2);
    accel_destroy(acc);
    CHECK(accel_item(accel_full(other, accel_0d(), 3)) == 3);
    CHECK_FINE(other);
    accel_destroy(other);
}

TEST(bad_descriptions_give_a_failed_context) {
    struct {
        accel_desc desc; const char *text;
    } cases[] = {{{.threads = -2}, "threads"},
                 {{.accumulate = -1}, "accumulate"},
                 {{.max_skipped_steps = -1}, "max_skipped_steps"}};
    for (int i = 0; i < COUNT(cases); i++) {
        accel_t *acc = context_of(cases[i].desc, NULL);
        CHECK(acc != NULL);
        CHECK_TEXT(accel_message(acc), cases[i].text);
        CHECK(accel_error(acc) == ACCEL_BAD_ARGUMENT);
        accel_destroy(acc);
    }
}

TEST(code_texts) {
    CHECK_TEXT(accel_code_text(ACCEL_OK), "no error");
    for (int i = 0; i < ACCEL_CODE_COUNT; i++)
        for (int k = 0; k < i; k++) CHECK(strcmp(accel_code_text((accel_code)i), accel_code_text((accel_code)k)));
    CHECK(accel_code_text(ACCEL_CODE_COUNT) != NULL && accel_code_text((accel_code)99) != NULL);
}

TEST(the_blas_has_a_name) {
    CHECK(accel_blas_core() && accel_blas_core()[0]);
}

TEST(long_names_in_messages_are_cut_not_overrun) {
    accel_t *acc = context();
    accel_model *model = accel_model_create(acc, "m");
    char name[5000];
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = 0;
    CHECK(accel_valid(accel_parameter(model, name, accel_1d(2))));
    CHECK(!accel_valid(accel_parameter(model, name, accel_1d(2))));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "nnnn");
    CHECK(!accel_to(model, name));
    CHECK(accel_failed(acc));
    accel_clear(acc);
    accel__fail(acc, ACCEL_BAD_FILE, "%s %d %%", "file.txt", 12);
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "file.txt 12 %");
    accel_destroy(acc);
}

int main(int argc, char **argv) {
    return test_main(argc, argv);
}
