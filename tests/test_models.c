/* Named parameters, their initial values, sequential models, freezing, label names, devices. */
#define ACCEL_IMPLEMENTATION
#include "accel.h"
#include "test.h"
#include "helpers.h"

TEST(parameters_by_number_and_name) {
    accel_t *acc = context();
    accel_model *model = accel_model_create(acc, "toy");
    char name[] = "a.weight";
    accel_tensor a = accel_parameter(model, name, accel_2d(3, 5));
    name[0] = 'x'; /* names are copied */
    accel_tensor b = accel_parameter_normal(model, "a.bias", accel_1d(5), 1),
                 c = accel_parameter_uniform(model, "c", accel_0d(), 1);
    CHECK_TEXT(accel_model_name(model), "toy");
    CHECK(accel_parameter_count(model) == 3 && accel_parameter_elements(model) == 21);
    CHECK(!strcmp(accel_parameter_name(model, 0), "a.weight") && !strcmp(accel_parameter_name(model, 2), "c"));
    CHECK(accel_parameter_at(model, 1).id == b.id && accel_parameter_find(model, "c").id == c.id);
    CHECK(same_shape(accel_shape_of(a), accel_2d(3, 5)));
    CHECK_NEAR(value_error(a, (double[15]){0}, 15), 0, 0);
    CHECK(!accel_valid(accel_parameter_find(model, "a")) && !accel_valid(accel_parameter_find(model, NULL)));
    CHECK_FINE(acc); /* not to find is no error */
    accel_begin(acc);
    CHECK(accel_valid(a)); /* parameters outlive scopes */
    accel_destroy(acc);
}

TEST(parameters_that_are_refused) {
    accel_t *acc = context();
    accel_model *model = accel_model_create(acc, "toy");
    accel_parameter(model, "w", accel_1d(3));
    CHECK(!accel_valid(accel_parameter(model, "w", accel_1d(3))));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "w");
    CHECK(!accel_valid(accel_parameter(model, "v", accel_1d(0))));
    CHECK_TEXT(accel_message(acc), "v");
    accel_clear(acc);
    CHECK(!accel_valid(accel_parameter(model, NULL, accel_1d(3))));
    CHECK(accel_failed(acc));
    accel_clear(acc);
    CHECK(!accel_valid(accel_parameter_normal(model, "n", accel_1d(3), NAN)));
    CHECK(accel_failed(acc));
    accel_clear(acc);
    CHECK(!accel_valid(accel_parameter_at(model, 7)) && !accel_valid(accel_parameter_at(model, -1)));
    accel_clear(acc);
    CHECK(accel_parameter_name(model, 7) == NULL);
    accel_clear(acc);
    CHECK(accel_parameter_count(model) == 1);
    accel_destroy(acc);
}

/* Mean and variance within five standard deviations of their estimates. */
TEST(initial_values_have_the_right_distribution) {
    enum { N = 30000 };
    accel_t *acc = context();
    accel_model *model = accel_model_create(acc, "toy");
    float *normal = values_of(accel_parameter_normal(model, "normal", accel_2d(300, 100), 0.02f));
    float *uniform = values_of(accel_parameter_uniform(model, "uniform", accel_1d(N), 0.3f));
    double mean = 0, square = 0, average = 0, spread = 0, largest = 0;
    for (int i = 0; i < N; i++) {
        mean += normal[i] / (double)N, square += (double)normal[i] * normal[i] / N;
        average += uniform[i] / (double)N, spread += (double)uniform[i] * uniform[i] / N;
        largest = fmax(largest, fabs(uniform[i]));
    }
    CHECK_NEAR(mean, 0, 5 * 0.02 / sqrt(N));
    CHECK_NEAR(square, 0.0004, 5 * 0.0004 * sqrt(2.0 / N));
    CHECK_NEAR(average, 0, 5 * 0.3 / sqrt(3.0 * N));
    CHECK_NEAR(spread, 0.03, 5 * 0.09 * sqrt(4.0 / 45 / N));
    CHECK(largest <= 0.3f && largest > 0.299);
    free(normal), free(uniform);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

static accel_tensor initial(accel_t *acc, const char *model, const char *name, bool first) {
    accel_model *made = accel_model_create(acc, model);
    if (!first) accel_parameter_normal(made, "earlier", accel_1d(5), 1);
    return accel_parameter_normal(made, name, accel_1d(9), 1);
}

/* A function of the seed and the names, not of what was made before or of how many threads there are. */
TEST(initial_values_are_counted) {
    accel_t *acc = context(), *other = context_of((accel_desc){.threads = 1}, NULL),
            *seeded = context_of((accel_desc){.seed = 5}, NULL);
    accel_tensor w = initial(acc, "m", "w", true);
    accel_randn(other, accel_1d(100));
    CHECK(same_values(w, initial(other, "m", "w", false)));
    CHECK(!same_values(w, initial(seeded, "m", "w", true)));
    CHECK(!same_values(w, initial(acc, "m", "v", true)));
    CHECK(!same_values(w, initial(acc, "n", "w", true)));
    CHECK_FINE(acc);
    accel_destroy(acc), accel_destroy(other), accel_destroy(seeded);
}

TEST(sequential_names_and_shapes) {
    accel_t *acc = context();
    accel_layer layers[] = {accel_linear_layer(7, 17), accel_activation_layer(ACCEL_RELU), accel_linear_layer(17, 5),
                            accel_layer_norm_layer(5), accel_dropout_layer(0.1f), accel_leaky_relu_layer(0.2f),
                            accel_linear_layer(5, 1), accel_activation_layer(ACCEL_SIGMOID)};
    accel_model *model = accel_sequential(acc, "net", layers, COUNT(layers));
    const char *names[] = {"0.weight", "0.bias", "2.weight", "2.bias", "3.weight", "3.bias", "6.weight", "6.bias"};
    accel_shape shapes[] = {accel_2d(17, 7), accel_1d(17), accel_2d(5, 17), accel_1d(5),
                            accel_1d(5),     accel_1d(5),  accel_2d(1, 5),  accel_1d(1)};
    CHECK(accel_parameter_count(model) == COUNT(names));
    for (int i = 0; i < accel_parameter_count(model) && i < COUNT(names); i++) {
        CHECK_TEXT(accel_parameter_name(model, i), names[i]);
        CHECK(same_shape(accel_shape_of(accel_parameter_at(model, i)), shapes[i]));
    }
    CHECK_NEAR(value_error(accel_parameter_find(model, "3.weight"), (double[]){1, 1, 1, 1, 1}, 5), 0, 0);
    CHECK_NEAR(value_error(accel_parameter_find(model, "3.bias"), (double[5]){0}, 5), 0, 0);
    float *weight = values_of(accel_parameter_at(model, 0)), *bias = values_of(accel_parameter_at(model, 1)),
          largest = 0;
    for (int i = 0; i < 17 * 7; i++) largest = fmaxf(largest, fabsf(weight[i]));
    CHECK(largest <= 1 / sqrtf(7) && largest > 0.9f / sqrtf(7) && bias[0] != 0); /* torch.nn.Linear's start */
    free(weight), free(bias);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(sequential_is_its_layers_in_turn) {
    accel_t *acc = context();
    accel_layer layers[] = {accel_linear_layer(7, 17), accel_activation_layer(ACCEL_GELU), accel_layer_norm_layer(17),
                            accel_linear_layer(17, 3), accel_activation_layer(ACCEL_TANH)};
    accel_model *model = accel_sequential(acc, "net", layers, COUNT(layers));
    accel_tensor x = random_tensor(acc, accel_3d(2, 4, 7), -1, 1, 1), p[6];
    for (int i = 0; i < 6; i++) p[i] = accel_parameter_at(model, i);
    accel_tensor y = accel_apply(model, x);
    accel_tensor expected = accel_tanh(
        accel_linear(accel_layer_norm(accel_gelu(accel_linear(x, p[0], p[1])), p[2], p[3], 1e-5f), p[4], p[5]));
    CHECK(same_shape(accel_shape_of(y), accel_3d(2, 4, 3)));
    float *values = values_of(expected);
    double reference[24];
    for (int i = 0; i < 24; i++) reference[i] = values[i];
    CHECK(value_error(y, reference, 24) < 1e-6);
    free(values);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(every_activation_layer) {
    accel_t *acc = context();
    accel_tensor x = random_tensor(acc, accel_2d(3, 5), -2, 2, 1);
    struct {
        accel_activation activation; accel_tensor expected;
    } cases[] = {{ACCEL_NONE, x},
                 {ACCEL_RELU, accel_relu(x)},
                 {ACCEL_LEAKY_RELU, accel_leaky_relu(x, 0.01f)},
                 {ACCEL_GELU, accel_gelu(x)},
                 {ACCEL_GELU_TANH, accel_gelu_tanh(x)},
                 {ACCEL_TANH, accel_tanh(x)},
                 {ACCEL_SIGMOID, accel_sigmoid(x)}};
    for (int i = 0; i < COUNT(cases); i++) {
        accel_layer layer = accel_activation_layer(cases[i].activation);
        CHECK(same_values(accel_apply(accel_sequential(acc, "one", &layer, 1), x), cases[i].expected));
    }
    accel_layer leaky = accel_leaky_relu_layer(0.3f);
    CHECK(same_values(accel_apply(accel_sequential(acc, "leaky", &leaky, 1), x), accel_leaky_relu(x, 0.3f)));
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(dropout_layers_drop_in_training_only) {
    accel_t *acc = context();
    accel_layer layers[] = {accel_dropout_layer(0.5f), accel_dropout_layer(0.5f)};
    accel_model *model = accel_sequential(acc, "net", layers, 2);
    accel_tensor x = accel_full(acc, accel_2d(100, 100), 1);
    CHECK_NEAR(accel_item(accel_mean(accel_apply(model, x))), 1, 0.1); /* 4 with probability 1/4: deviation 0.017 */
    float *values = values_of(accel_apply(model, x));
    int quarter = 0;
    for (int i = 0; i < 10000; i++) quarter += values[i] > 3.9f;
    CHECK_NEAR(quarter, 2500, 250); /* two layers are two places: independent */
    free(values);
    accel_eval_begin(acc);
    CHECK(same_values(accel_apply(model, x), x));
    accel_eval_end(acc);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(sequentials_that_do_not_fit) {
    accel_t *acc = context();
    accel_layer good[] = {accel_linear_layer(7, 17), accel_linear_layer(17, 5)};
    accel_layer bad[][2] = {{accel_linear_layer(7, 17), accel_linear_layer(16, 5)},
                            {accel_linear_layer(7, 0), accel_linear_layer(0, 5)},
                            {accel_linear_layer(7, 17), accel_layer_norm_layer(16)},
                            {accel_linear_layer(7, 17), accel_dropout_layer(1.5f)}};
    for (int i = 0; i < COUNT(bad); i++) {
        CHECK(accel_sequential(acc, "net", bad[i], 2) == NULL);
        CHECK(accel_failed(acc));
        accel_clear(acc);
    }
    CHECK(accel_sequential(acc, "net", NULL, 2) == NULL);
    accel_clear(acc);
    accel_model *model = accel_sequential(acc, "net", good, 2);
    CHECK_FINE(acc);
    CHECK(!accel_valid(accel_apply(model, accel_full(acc, accel_2d(3, 6), 1))));
    CHECK_ERROR(acc, ACCEL_BAD_SHAPE, "3, 6");
    CHECK(!accel_valid(accel_apply(accel_model_create(acc, "bare"), accel_full(acc, accel_2d(3, 6), 1))));
    CHECK(accel_failed(acc));
    accel_destroy(acc);
}

TEST(label_names) {
    accel_t *acc = context();
    accel_encoder_config config = small_encoder(ACCEL_DISTILBERT);
    accel_model *model = accel_encoder_create(acc, &config);
    CHECK(accel_label_name(model, 0) == NULL);
    char first[] = "no";
    const char *names[] = {first, "yes", "maybe"};
    CHECK(accel_set_label_names(model, names, 2));
    first[0] = 'g';
    CHECK_TEXT(accel_label_name(model, 0), "no");
    CHECK_TEXT(accel_label_name(model, 1), "yes");
    CHECK(accel_label_name(model, 2) == NULL && accel_label_name(model, -1) == NULL);
    CHECK_FINE(acc);
    CHECK(!accel_set_label_names(model, names, 3)); /* the model has two */
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "3");
    CHECK_TEXT(accel_label_name(model, 1), "yes");
    CHECK(!accel_set_label_names(model, (const char *[]){"no", NULL}, 2));
    CHECK(accel_failed(acc));
    accel_destroy(acc);
}

TEST(patterns) {
    struct {
        const char *patterns, *name; bool match;
    } cases[] = {{"*", "anything", true},
                 {"a.weight", "a.weight", true},
                 {"a.weight", "a.weights", false},
                 {"weight", "a.weight", false},
                 {"*bias", "layer.0.bias", true},
                 {"*bias", "bias.x", false},
                 {"*.0.*", "layer.0.bias", true},
                 {"*.0.*", "layer.10.bias", false},
                 {"x,*bias", "a.bias", true},
                 {"x,y", "z", false},
                 {"a*b*c", "aXbYbZc", true},
                 {"a*b*c", "aXbYbZ", false},
                 {"", "a", false},
                 {ACCEL_NO_DECAY_MATCH, "distilbert.embeddings.LayerNorm.weight", true},
                 {ACCEL_NO_DECAY_MATCH, "distilbert.transformer.layer.1.sa_layer_norm.weight", true},
                 {ACCEL_NO_DECAY_MATCH, "classifier.weight", false}};
    for (int i = 0; i < COUNT(cases); i++) CHECK(accel__match(cases[i].patterns, cases[i].name) == cases[i].match);
}

TEST(devices) {
    accel_t *acc = context();
    accel_model *model = accel_model_create(acc, "m");
    CHECK(accel_to(model, "cpu"));
    CHECK_FINE(acc);
    CHECK(!accel_to(model, "abacus"));
    CHECK_TEXT(accel_message(acc), "abacus");
    CHECK(accel_failed(acc));
    accel_destroy(acc);
    acc = context_of((accel_desc){.no_device_placement = true}, NULL);
    model = accel_model_create(acc, "m");
    CHECK(accel_prepare(acc, model) && accel_to(model, "cpu"));
    CHECK_FINE(acc);
    accel_destroy(acc);
}

int main(int argc, char **argv) {
    return test_main(argc, argv);
}
