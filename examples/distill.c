/* Distillation: a student with fewer layers learns from its teacher's logits, softened by a temperature T, and from the
   labels: loss = alpha T^2 KL(teacher || student) + (1 - alpha) cross-entropy (Hinton, Vinyals, Dean 2015). As for
   DistilBERT, the student starts with every n-th of its teacher's layers.

       distill --teacher DIR --train train.tsv --eval dev.tsv --text sentence --label label --layers 3 --output OUT

   The teacher is a trained classifier, such as finetune saves.
   build: cc -O2 distill.c -lcjson -lutf8proc -lopenblas -lpthread -lm */
#define ACCEL_IMPLEMENTATION
#include "encoders.h"

typedef struct run {
    task task;
    const char *teacher_folder, *label, *output;
    int64_t layers;
    double temperature, alpha;
    accel_t *acc;
    accel_tokenizer *tokenizer;
    accel_model *teacher, *student;
    accel_loader *train, *eval;
} run;

static int read_options(int argc, char **argv, run *r) {
    option_spec own[] = {
        option_text("--teacher", "DIR", &r->teacher_folder, "folder of a trained classifier"),
        option_text("--label", "COL", &r->label, "column of the label"),
        option_text("--output", "DIR", &r->output, "folder for the student"),
        option_int("--layers", &r->layers, 1, 1000, "the student's; else half of the teacher's"),
        option_number("--temperature", &r->temperature, ABOVE_ZERO, 0, "softens the logits"),
        option_number("--alpha", &r->alpha, 0, 1, "share of the teacher in the loss"),
    };
    return task_options(argc, argv, &r->task, own, (int)(sizeof own / sizeof *own), "--teacher --label");
}

/* ---- the student ---- */

/* The teacher's parameter that a student's starts from: the same name, with `stride` times its layer's number. */
static accel_tensor source_of(const run *r, const char *name, int stride) {
    char source[256];
    const char *layer = strstr(name, "layer.");
    int number = 0, used = 0;
    if (!layer || sscanf(layer, "layer.%d%n", &number, &used) != 1) return accel_parameter_find(r->teacher, name);
    snprintf(source, sizeof source, "%.*slayer.%d%s", (int)(layer - name), name, number * stride, layer + used);
    return accel_parameter_find(r->teacher, source);
}

static bool copy_parameter(accel_tensor from, accel_tensor to) {
    int64_t count = accel_count(to);
    float *values = malloc((size_t)count * sizeof *values);
    if (!values) return fprintf(stderr, "out of memory\n"), false;
    bool good = accel_read(from, values, count) && accel_write(to, values, count);
    free(values);
    return good;
}

static bool copy_label_names(run *r, int count) {
    if (!accel_label_name(r->teacher, 0)) return true;
    const char **names = malloc((size_t)count * sizeof *names);
    if (!names) return fprintf(stderr, "out of memory\n"), false;
    for (int i = 0; i < count; i++) names[i] = accel_label_name(r->teacher, i);
    bool good = accel_set_label_names(r->student, names, count);
    free(names);
    return good;
}

static bool make_student(run *r) {
    accel_encoder_config config = *accel_encoder_config_of(r->teacher);
    int layers = config.layers;
    if (!r->layers) r->layers = layers > 1 ? layers / 2 : 1;
    if (r->layers > layers) return fprintf(stderr, "--layers: the teacher has only %d\n", layers), false;
    config.layers = (int)r->layers;
    r->student = accel_encoder_create(r->acc, &config);
    for (int i = 0; i < accel_parameter_count(r->student); i++) {
        accel_tensor from = source_of(r, accel_parameter_name(r->student, i), layers / config.layers);
        if (!copy_parameter(from, accel_parameter_at(r->student, i))) return false;
    }
    return copy_label_names(r, config.num_labels);
}

static bool make_all(run *r) {
    accel_table *train = accel_table_read(r->acc, r->task.train, NULL);
    accel_table *eval = accel_table_read(r->acc, r->task.eval, NULL);
    r->teacher = accel_load_pretrained(r->acc, r->teacher_folder, NULL);
    r->tokenizer = accel_tokenizer_load(r->acc, r->teacher_folder, NULL);
    accel_encode_desc encode = {.label = {r->label}, .max_length = (int)r->task.max_length, .model = r->teacher};
    if (accel_failed(r->acc) || !text_columns_find(&r->task.text, r->acc, train, encode.text)) return false;
    if (accel_encoder_config_of(r->teacher)->problem != ACCEL_SINGLE_LABEL)
        return fprintf(stderr, "%s is no classifier with single labels\n", r->teacher_folder), false;
    r->train = make_loader(r->acc, r->tokenizer, train, &encode, r->task.batch_size);
    r->eval = make_loader(r->acc, r->tokenizer, eval, &encode, 0);
    return !accel_failed(r->acc) && make_student(r);
}

/* ---- the loss ---- */

/* Without dropout or graph. The logits outlive the evaluation's scope: accel_release them. */
static accel_tensor teach(run *r, const accel_batch *batch) {
    accel_eval_begin(r->acc);
    accel_tensor logits = accel_keep(accel_forward(r->teacher, batch).logits);
    accel_eval_end(r->acc);
    return logits;
}

/* T^2 KL(softmax(teacher / T) || softmax(student / T)), the mean over the examples; T^2 keeps the gradient's size. */
static accel_tensor soft_loss(accel_tensor teacher, accel_tensor student, float temperature, int examples) {
    accel_tensor wanted = accel_log_softmax(accel_scale(teacher, 1 / temperature));
    accel_tensor got = accel_log_softmax(accel_scale(student, 1 / temperature));
    accel_tensor divergence = accel_sum(accel_mul(accel_exp(wanted), accel_sub(wanted, got)));
    return accel_scale(divergence, temperature * temperature / (float)examples);
}

static float train_batch(run *r, accel_optimizer *opt, const accel_batch *batch) {
    accel_tensor teacher = teach(r, batch);
    accel_zero_grad(opt);
    accel_output out = accel_forward(r->student, batch);
    accel_tensor soft = soft_loss(teacher, out.logits, (float)r->temperature, batch->examples);
    accel_tensor loss = accel_add(accel_scale(soft, (float)r->alpha), accel_scale(out.loss, 1 - (float)r->alpha));
    accel_backward(r->acc, loss);
    accel_step(opt);
    accel_release(teacher);
    return accel_item(loss);
}

/* ---- the loop ---- */

static double accuracy_of(run *r, accel_model *model, accel_metrics *metrics) {
    accel_batch batch;
    accel_metrics_reset(metrics);
    accel_eval_begin(r->acc);
    while (accel_next(r->eval, &batch))
        accel_metrics_add(metrics, accel_forward(model, &batch).logits, batch.labels, batch.examples);
    accel_eval_end(r->acc);
    return accel_accuracy(metrics);
}

static void show_sizes(run *r, double accuracy) {
    const accel_model *models[2] = {r->teacher, r->student};
    for (int i = 0; i < 2 && !accel_failed(r->acc); i++)
        printf("%s: %d layers, %.2f million parameters\n", i ? "student" : "teacher",
               accel_encoder_config_of(models[i])->layers, 1e-6 * (double)accel_parameter_elements(models[i]));
    printf("the teacher's accuracy is %.4f\n", accuracy);
}

static bool train(run *r) {
    accel_optimizer *opt = accel_adamw(r->acc, r->student, &(accel_adam_desc){.lr = (float)r->task.lr});
    accel_metrics *metrics = accel_metrics_create(r->acc, accel_encoder_config_of(r->student)->num_labels);
    int64_t steps = r->task.epochs * accel_steps_per_epoch(r->acc, r->train);
    accel_schedule *lr = accel_linear_schedule_with_warmup(opt, steps / 10, steps);
    accel_prepare(r->acc, r->teacher, r->student, opt, lr, r->train, r->eval);
    show_sizes(r, accuracy_of(r, r->teacher, metrics));
    for (int epoch = 1; epoch <= (int)r->task.epochs && !accel_failed(r->acc); epoch++) {
        double loss = 0;
        accel_batch batch;
        while (accel_next(r->train, &batch)) {
            loss += (double)train_batch(r, opt, &batch);
            accel_schedule_step(lr);
        }
        double accuracy = accuracy_of(r, r->student, metrics);
        if (accel_failed(r->acc)) break;
        printf("epoch %d: mean loss %.4f, the student's accuracy %.4f\n", epoch,
               loss / (double)accel_loader_length(r->train), accuracy);
    }
    return !accel_failed(r->acc) && (!r->output || accel_save_pretrained(r->student, r->tokenizer, r->output));
}

int main(int argc, char **argv) {
    run r = {.task = {.epochs = 3, .batch_size = 16, .max_length = 128, .seed = 42, .lr = 5e-5},
             .temperature = 2,
             .alpha = 0.5};
    int status = read_options(argc, argv, &r);
    if (status >= 0) return status;
    r.acc = accel_create(&(accel_desc){.seed = (uint64_t)r.task.seed});
    bool good = make_all(&r) && train(&r);
    if (accel_failed(r.acc)) fprintf(stderr, "%s\n", accel_message(r.acc));
    accel_destroy(r.acc);
    return good ? 0 : 1;
}
