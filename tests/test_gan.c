/* examples/gan.c as a test: it learns all of the ring, and its two optimizers keep out of each other's way. */
#define main gan_main
#include "../examples/gan.c"
#undef main
#include "test.h"
#include <unistd.h>

/* All values of a model, one parameter behind the other; the caller's. */
static float *values_of(accel_model *model) {
    float *values = malloc((size_t)accel_parameter_elements(model) * sizeof *values), *at = values;
    for (int i = 0; values && i < accel_parameter_count(model); i++) {
        accel_tensor parameter = accel_parameter_at(model, i);
        CHECK(accel_read(parameter, at, accel_count(parameter)));
        at += accel_count(parameter);
    }
    return values;
}

static bool same_values(const accel_model *model, const float *a, const float *b) {
    return memcmp(a, b, (size_t)accel_parameter_elements(model) * sizeof *a) == 0;
}

static accel_t *context(int threads, uint64_t seed) {
    return accel_create(&(accel_desc){.threads = threads, .seed = seed});
}

TEST(all_modes_are_covered) {
    accel_t *acc = context(0, 1);
    gan g = gan_create(acc);
    float points[SAMPLES * 2];
    int hits[MODES];
    CHECK(gan_sample(&g, points));
    CHECK(gan_modes(points, hits) == 0); /* the criterion is none that anything meets */
    gan_train(&g, STEPS);
    CHECK(gan_sample(&g, points));
    int covered = gan_modes(points, hits), all = 0;
    for (int mode = 0; mode < MODES; mode++) all += hits[mode];
    CHECK(covered >= 7);
    CHECK(all >= SAMPLES * 3 / 4);
    CHECK(accel_steps_taken(g.generator_opt) == STEPS);
    CHECK(accel_steps_taken(g.discriminator_opt) == STEPS);
    CHECK(!accel_failed(acc));
    accel_destroy(acc);
}

/* The criterion again, with points that are known. */
TEST(modes_are_counted) {
    float points[SAMPLES * 2];
    int hits[MODES];
    for (int i = 0; i < SAMPLES; i++) center_of(i % MODES, points + 2 * i);
    CHECK(gan_modes(points, hits) == MODES);
    for (int i = 0; i < SAMPLES; i++) center_of(i % (MODES - 1), points + 2 * i);
    CHECK(gan_modes(points, hits) == MODES - 1);
    CHECK(hits[MODES - 1] == 0);
    for (int i = 0; i < SAMPLES; i++) points[2 * i] = points[2 * i + 1] = 0;
    CHECK(gan_modes(points, hits) == 0);
}

TEST(neither_step_touches_the_others_parameters) {
    accel_t *acc = context(2, 3);
    gan g = gan_create(acc);
    gan_train(&g, 5); /* moments are there, so that a stray step would show */
    for (int step = 0; step < 3; step++) {
        accel_begin(acc);
        float *generator = values_of(g.generator), *discriminator = values_of(g.discriminator);
        accel_tensor real = real_points(acc), fake = generated_points(&g, BATCH);
        discriminator_step(&g, real, fake);
        float *generator_then = values_of(g.generator), *discriminator_then = values_of(g.discriminator);
        CHECK(same_values(g.generator, generator, generator_then));
        CHECK(!same_values(g.discriminator, discriminator, discriminator_then));
        generator_step(&g, fake);
        float *generator_last = values_of(g.generator), *discriminator_last = values_of(g.discriminator);
        CHECK(!same_values(g.generator, generator_then, generator_last));
        CHECK(same_values(g.discriminator, discriminator_then, discriminator_last));
        float *all[] = {generator,          discriminator,  generator_then,
                        discriminator_then, generator_last, discriminator_last};
        for (int i = 0; i < 6; i++) free(all[i]);
    }
    CHECK(!accel_failed(acc));
    accel_destroy(acc);
}

/* The largest gradient of a model's parameters. */
static float largest_gradient(accel_model *model) {
    static float values[WIDTH * WIDTH];
    float largest = 0;
    for (int i = 0; i < accel_parameter_count(model); i++) {
        accel_tensor parameter = accel_parameter_at(model, i);
        CHECK(accel_grad(parameter, values, accel_count(parameter)));
        for (int64_t j = 0; j < accel_count(parameter); j++) largest = fmaxf(largest, fabsf(values[j]));
    }
    return largest;
}

TEST(the_detached_points_carry_no_gradient) {
    accel_t *acc = context(2, 4);
    gan g = gan_create(acc);
    accel_begin(acc);
    accel_tensor fake = generated_points(&g, BATCH);
    discriminator_step(&g, real_points(acc), fake);
    CHECK(largest_gradient(g.discriminator) > 0);
    CHECK(largest_gradient(g.generator) == 0);
    generator_step(&g, fake);
    CHECK(largest_gradient(g.generator) > 0);
    accel_destroy(acc);
}

/* What the generator's loss left in the discriminator must not be part of the discriminator's next step. */
TEST(the_generators_loss_does_not_train_the_discriminator) {
    float *last[2];
    for (int with = 0; with < 2; with++) {
        accel_t *acc = context(2, 5);
        gan g = gan_create(acc);
        accel_begin(acc);
        accel_tensor real = real_points(acc), fake = accel_detach(generated_points(&g, BATCH));
        discriminator_step(&g, real, fake);
        if (with) accel_backward(acc, judged_as(&g, fake, 1));
        discriminator_step(&g, real, fake);
        last[with] = values_of(g.discriminator);
        if (with) CHECK(same_values(g.discriminator, last[0], last[1]));
        accel_destroy(acc);
    }
    free(last[0]);
    free(last[1]);
}

TEST(threads_do_not_change_a_bit) {
    const int threads[] = {1, 2, 3};
    float *last[3][2];
    for (int i = 0; i < 3; i++) {
        accel_t *acc = context(threads[i], 6);
        gan g = gan_create(acc);
        gan_train(&g, 50);
        last[i][0] = values_of(g.generator);
        last[i][1] = values_of(g.discriminator);
        CHECK(same_values(g.generator, last[0][0], last[i][0]));
        CHECK(same_values(g.discriminator, last[0][1], last[i][1]));
        accel_destroy(acc);
    }
    for (int i = 0; i < 3; i++) free(last[i][0]), free(last[i][1]);
}

TEST(every_sample_is_drawn) {
    char path[] = "/tmp/test_gan_XXXXXX", line[256] = "";
    int file = mkstemp(path), circles = 0;
    float points[SAMPLES * 2] = {0};
    CHECK(file >= 0 && draw_samples(path, points));
    FILE *drawing = fopen(path, "r");
    while (drawing && fgets(line, sizeof line, drawing)) circles += strncmp(line, "<circle ", 8) == 0;
    CHECK(circles == SAMPLES + MODES);
    CHECK(strcmp(line, "</svg>\n") == 0);
    if (drawing) fclose(drawing);
    if (file >= 0) close(file);
    remove(path);
    CHECK(!draw_samples("/nowhere/at/all.svg", points));
}

int main(int argc, char **argv) {
    return test_main(argc, argv);
}
