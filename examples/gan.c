/* Two networks and two optimizers in one loop: a generator learns to draw points from a ring of eight Gaussians while a
   discriminator learns to tell its points from real ones. Prints the samples, and draws them where a file is named.

       gan [SAMPLES.svg]

   build: cc -O2 gan.c -lopenblas -lpthread -lm */
#define ACCEL_IMPLEMENTATION
#include "accel.h"
#include <math.h>
#include <stdio.h>

enum { MODES = 8, NOISE = 16, WIDTH = 64, BATCH = 128, STEPS = 5000, SAMPLES = 1000 };
static const float RADIUS = 2, SPREAD = 0.1f; /* of the ring, and the standard deviation around each of its centres */

typedef struct gan {
    accel_t *acc;
    accel_model *generator, *discriminator;
    accel_optimizer *generator_opt, *discriminator_opt;
} gan;

static void center_of(int mode, float *point) {
    double angle = 2 * 3.14159265358979 * mode / MODES;
    point[0] = RADIUS * (float)cos(angle);
    point[1] = RADIUS * (float)sin(angle);
}

static gan gan_create(accel_t *acc) {
    accel_layer draw[] = {accel_linear_layer(NOISE, WIDTH), accel_activation_layer(ACCEL_RELU),
                          accel_linear_layer(WIDTH, WIDTH), accel_activation_layer(ACCEL_RELU),
                          accel_linear_layer(WIDTH, 2)};
    accel_layer judge[] = {accel_linear_layer(2, WIDTH), accel_leaky_relu_layer(0.2f), accel_linear_layer(WIDTH, WIDTH),
                           accel_leaky_relu_layer(0.2f), accel_linear_layer(WIDTH, 1)};
    gan g = {.acc = acc};
    g.generator = accel_sequential(acc, "generator", draw, 5);
    g.discriminator = accel_sequential(acc, "discriminator", judge, 5);
    accel_adam_desc adam = {.lr = 1e-3f, .beta1 = 0.5f};
    g.generator_opt = accel_adam(acc, g.generator, &adam);
    g.discriminator_opt = accel_adam(acc, g.discriminator, &adam);
    accel_prepare(acc, g.generator, g.discriminator, g.generator_opt, g.discriminator_opt);
    return g;
}

/* As many points of one mode as of another: [BATCH, 2]. */
static accel_tensor real_points(accel_t *acc) {
    float centers[BATCH * 2];
    for (int i = 0; i < BATCH; i++) center_of(i % MODES, centers + 2 * i);
    accel_tensor noise = accel_randn(acc, accel_2d(BATCH, 2));
    return accel_add(accel_from_floats(acc, accel_2d(BATCH, 2), centers), accel_scale(noise, SPREAD));
}

static accel_tensor generated_points(gan *g, int count) {
    return accel_apply(g->generator, accel_randn(g->acc, accel_2d(count, NOISE)));
}

/* How far the discriminator is from calling the points real (1) or generated (0). */
static accel_tensor judged_as(gan *g, accel_tensor points, float target) {
    accel_tensor logits = accel_apply(g->discriminator, points);
    return accel_bce_with_logits(logits, accel_full(g->acc, accel_shape_of(logits), target));
}

/* The generator gets no gradient here: its points are detached from it. */
static float discriminator_step(gan *g, accel_tensor real, accel_tensor fake) {
    accel_zero_grad(g->discriminator_opt);
    accel_tensor real_loss = judged_as(g, real, 1), fake_loss = judged_as(g, accel_detach(fake), 0);
    accel_backward(g->acc, real_loss);
    accel_backward(g->acc, fake_loss);
    accel_step(g->discriminator_opt);
    return accel_item(real_loss) + accel_item(fake_loss);
}

/* The gradient passes through the discriminator, whose own share the next accel_zero_grad throws away. */
static float generator_step(gan *g, accel_tensor fake) {
    accel_zero_grad(g->generator_opt);
    accel_tensor loss = judged_as(g, fake, 1);
    accel_backward(g->acc, loss);
    accel_step(g->generator_opt);
    return accel_item(loss);
}

static void gan_train(gan *g, int steps) {
    for (int step = 1; step <= steps && !accel_failed(g->acc); step++) {
        accel_begin(g->acc);
        accel_tensor real = real_points(g->acc), fake = generated_points(g, BATCH);
        float discriminator_loss = discriminator_step(g, real, fake), generator_loss = generator_step(g, fake);
        if (step % (STEPS / 10)) continue;
        printf("step %4d: discriminator's loss %.4f, generator's loss %.4f\n", step, (double)discriminator_loss,
               (double)generator_loss);
    }
}

/* points: [SAMPLES, 2] */
static bool gan_sample(gan *g, float *points) {
    accel_eval_begin(g->acc);
    bool good = accel_read(generated_points(g, SAMPLES), points, SAMPLES * 2);
    accel_eval_end(g->acc);
    return good;
}

/* Counts the samples within three standard deviations of each centre. A mode is covered where there are at least a
   quarter of its due number; returns how many modes are. */
static int gan_modes(const float *points, int hits[MODES]) {
    int covered = 0;
    for (int mode = 0; mode < MODES; mode++) {
        float center[2];
        center_of(mode, center);
        hits[mode] = 0;
        for (int i = 0; i < SAMPLES; i++)
            hits[mode] += hypotf(points[2 * i] - center[0], points[2 * i + 1] - center[1]) < 3 * SPREAD;
        covered += 4 * hits[mode] * MODES >= SAMPLES;
    }
    return covered;
}

/* The samples by density in a square of -2.5 .. 2.5. */
static void print_samples(const float *points) {
    enum { COLUMNS = 51, LINES = 25 };
    int count[LINES][COLUMNS] = {{0}};
    for (int i = 0; i < SAMPLES; i++) {
        float column = (points[2 * i] + 2.5f) / 5 * COLUMNS, line = (2.5f - points[2 * i + 1]) / 5 * LINES;
        if (column >= 0 && column < COLUMNS && line >= 0 && line < LINES) count[(int)line][(int)column]++;
    }
    for (int line = 0; line < LINES; line++) {
        char text[COLUMNS + 1] = "";
        for (int i = 0; i < COLUMNS; i++) text[i] = " .:+*#"[count[line][i] < 5 ? count[line][i] : 5];
        printf("|%s|\n", text);
    }
}

static void print_modes(const int hits[MODES], int covered) {
    int all = 0;
    for (int mode = 0; mode < MODES; mode++) {
        printf("%4d samples at %3d degrees\n", hits[mode], 360 * mode / MODES);
        all += hits[mode];
    }
    printf("%d of %d modes covered, %d of %d samples in them\n", covered, MODES, all, SAMPLES);
}

/* A drawing: the ring's centres as circles of three standard deviations, the samples as dots. */
static bool draw_samples(const char *path, const float *points) {
    FILE *file = fopen(path, "w");
    if (!file) return false;
    fprintf(file, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"-3 -3 6 6\" width=\"600\" height=\"600\">\n"
                  "<rect x=\"-3\" y=\"-3\" width=\"6\" height=\"6\" fill=\"#fff\"/>\n<g fill=\"#ddd\">\n");
    for (int mode = 0; mode < MODES; mode++) {
        float center[2];
        center_of(mode, center);
        fprintf(file, "<circle cx=\"%.3f\" cy=\"%.3f\" r=\"%.3f\"/>\n", (double)center[0], -(double)center[1],
                (double)(3 * SPREAD));
    }
    fprintf(file, "</g>\n<g fill=\"#06c\" fill-opacity=\"0.5\">\n");
    for (int i = 0; i < SAMPLES; i++)
        fprintf(file, "<circle cx=\"%.3f\" cy=\"%.3f\" r=\"0.02\"/>\n", (double)points[2 * i],
                -(double)points[2 * i + 1]);
    fprintf(file, "</g>\n</svg>\n");
    bool good = !ferror(file);
    return fclose(file) == 0 && good;
}

int main(int argc, char **argv) {
    if (argc > 2 || (argc == 2 && argv[1][0] == '-')) return fprintf(stderr, "usage: %s [SAMPLES.svg]\n", argv[0]), 1;
    accel_t *acc = accel_create(&(accel_desc){.seed = 1});
    gan g = gan_create(acc);
    float points[SAMPLES * 2];
    int hits[MODES];
    gan_train(&g, STEPS);
    bool good = gan_sample(&g, points), drawn = true;
    if (good) {
        print_samples(points);
        print_modes(hits, gan_modes(points, hits));
        drawn = argc < 2 || draw_samples(argv[1], points);
    }
    if (accel_failed(acc)) fprintf(stderr, "%s\n", accel_message(acc));
    if (!drawn) fprintf(stderr, "%s cannot be written\n", argv[1]);
    accel_destroy(acc);
    return good && drawn ? 0 : 1;
}
