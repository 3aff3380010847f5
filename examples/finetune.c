/* Fine-tunes a pretrained DistilBERT or BERT folder to classify texts, or trains a small encoder from scratch.

       finetune --model DIR --train train.tsv --eval val.tsv --text "#1 String,#2 String" --label Quality --output OUT
       finetune --from-scratch --train train.csv --eval test.csv --text text --label language --output OUT

   build: cc -O2 finetune.c -lcjson -lutf8proc -lopenblas -lpthread -lm */
#define ACCEL_IMPLEMENTATION
#include "common.h"
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { EVAL_BATCH_SIZE = 64 };

typedef struct settings {
    const char *model, *vocab, *train, *eval, *label, *output, *log, *optimizer, *schedule, *precision;
    const char *metric, *freeze;
    text_columns text;
    bool from_scratch, no_shuffle, resume, load_best, recompute;
    int64_t save_steps, save_total_limit, eval_steps, max_steps, patience;
    int64_t layers, dim, heads, hidden_dim, vocab_size;
    int64_t epochs, batch_size, max_length, seed, threads, grad_accum, limit;
    double lr, warmup_ratio, weight_decay, max_grad_norm, max_grad_value, dropout;
    double label_smoothing, layer_decay, ema;
} settings;

typedef struct run {
    settings s;
    accel_t *acc;
    accel_table *train_rows, *eval_rows;
    const char *text[2];
    const char *const *labels; /* of the training rows */
    int label_count;
    accel_tokenizer *tokenizer;
    accel_model *model;
    accel_loader *train, *eval;
    accel_optimizer *optimizer;
    accel_schedule *schedule;
    accel_tracker *log;
    bool made_output;                      /* the output folder was not there before */
    int64_t steps;                         /* optimizer steps to do */
    double shown_loss, shown_steps;        /* sums since the last line */
    double examples, seconds, timed_steps; /* trained by this process; evaluating and saving left out */
    double step_began;
} run;

/* ---- command line ---- */

static int read_settings(int argc, char **argv, settings *s) {
    option_spec options[] = {
        option_text("--model", "DIR", &s->model, "pretrained folder to start from"),
        option_flag("--from-scratch", &s->from_scratch, "new vocabulary and new weights instead of --model"),
        option_with("--from-scratch", option_int("--layers", &s->layers, 1, 1000, "layers")),
        option_with("--from-scratch", option_int("--dim", &s->dim, 1, 65536, "width")),
        option_with("--from-scratch", option_int("--heads", &s->heads, 1, 65536, "attention heads, divide the width")),
        option_with("--from-scratch",
                    option_int("--hidden-dim", &s->hidden_dim, 1, 1 << 20, "inner width, else 4 x --dim")),
        option_with("--from-scratch", option_int("--vocab-size", &s->vocab_size, 100, 1 << 24,
                                                 "tokens to learn from the training texts")),
        option_with("--from-scratch",
                    option_text("--vocab", "PATH", &s->vocab, "take this folder's or vocab.txt's tokens instead")),
        option_text("--train", "FILE", &s->train, "rows to train on: .tsv, .csv or .jsonl"),
        option_text("--eval", "FILE", &s->eval, "rows to evaluate on after each epoch"),
        option_columns("--text", &s->text, "one or two columns, by name or number from 0; twice for names with commas"),
        option_text("--label", "COL", &s->label, "column of the label"),
        option_text("--output", "DIR", &s->output, "folder for the trained model"),
        option_int("--epochs", &s->epochs, 1, 1e6, "passes over the training rows"),
        option_int("--max-steps", &s->max_steps, 1, 0, "end after N optimizer steps, if not before"),
        option_int("--batch-size", &s->batch_size, 1, 1 << 20, "texts per batch"),
        option_int("--grad-accum", &s->grad_accum, 1, 1 << 20, "batches per optimizer step"),
        option_int("--max-length", &s->max_length, 5, 1 << 20, "tokens of a text; longer ones are cut"),
        option_int("--limit", &s->limit, 1, 0, "use the first N training rows only"),
        option_flag("--no-shuffle", &s->no_shuffle, "train in the order of the file"),
        option_number("--lr", &s->lr, ABOVE_ZERO, 0, "learning rate, else 5e-5 for --model, 5e-4 for --from-scratch"),
        option_choice("--schedule", "linear|cosine|constant", &s->schedule, "of the learning rate"),
        option_number("--warmup-ratio", &s->warmup_ratio, 0, 1, "share of the steps in which it rises"),
        option_choice("--optimizer", "adam|adamw|sgd", &s->optimizer, "as in torch.optim"),
        option_number("--weight-decay", &s->weight_decay, 0, 0,
                      "biases and layer norms have none; else 0.01 for adamw, 0"),
        option_number("--max-grad-norm", &s->max_grad_norm, 0, 0, "clip the gradient's norm; 0: never"),
        option_number("--max-grad-value", &s->max_grad_value, 0, 0, "clip each element of the gradient; 0: never"),
        option_number("--layer-decay", &s->layer_decay, ABOVE_ZERO, 1,
                      "each layer learns at this times the rate of the one above"),
        option_number("--label-smoothing", &s->label_smoothing, 0, 1, "share of the target that all labels divide"),
        option_number("--ema", &s->ema, 0, 0.999999,
                      "decay of the weights' moving average, which is the result; 0: none"),
        option_text("--freeze", "PATTERNS", &s->freeze,
                    "parameters that stay as they are, as in '*embeddings*,*layer.0.*'"),
        option_flag("--recompute", &s->recompute, "less memory for more time: the same result"),
        option_number("--dropout", &s->dropout, 0, 0.99, "instead of the model's own"),
        option_choice("--precision", "fp32|bf16", &s->precision, "of the matrix products' operands"),
        option_with("--eval",
                    option_int("--eval-steps", &s->eval_steps, 1, 0, "evaluate every N steps, not each epoch")),
        option_with("--eval",
                    option_choice("--metric", "loss|accuracy|f1|matthews", &s->metric, "decides what is best")),
        option_with("--eval", option_int("--patience", &s->patience, 1, 1 << 20,
                                         "end after N evaluations without a better one")),
        option_with("--eval", option_flag("--load-best", &s->load_best, "the result is the best evaluation's model")),
        option_int("--save-steps", &s->save_steps, 1, 0, "save the run's state in --output every N steps"),
        option_int("--save-total-limit", &s->save_total_limit, 1, 1 << 20, "states to keep: the newest ones, and the best"),
        option_flag("--resume", &s->resume, "go on from the newest usable state in --output"),
        option_int("--seed", &s->seed, 0, 0, "of every random number"),
        option_int("--threads", &s->threads, 0, 4096, "0: all cores"),
        option_text("--log", "FILE", &s->log, "JSON line for every step and every evaluation"),
    };
    int status = options_parse(argc, argv, "", options, (int)(sizeof options / sizeof *options), NULL);
    if (status >= 0) return status;
    const char *missing = !s->train ? "--train" : !s->text.count ? "--text" : !s->label ? "--label" : NULL;
    if (missing) return fprintf(stderr, "%s is missing, see --help\n", missing), 1;
    if (!s->output && (s->save_steps || s->resume || s->load_best))
        return fprintf(stderr, "--save-steps, --resume and --load-best need --output\n"), 1;
    if ((s->model != NULL) != s->from_scratch) return -1;
    return fprintf(stderr, "one of --model and --from-scratch is needed, see --help\n"), 1;
}

/* ---- data and model ---- */

static bool read_tables(run *r) {
    const settings *s = &r->s;
    r->train_rows = accel_table_read(r->acc, s->train, &(accel_table_desc){.limit = s->limit});
    if (s->eval) r->eval_rows = accel_table_read(r->acc, s->eval, NULL);
    r->labels = accel_table_labels(r->train_rows, s->label, &r->label_count);
    if (!text_columns_find(&r->s.text, r->acc, r->train_rows, r->text)) return false;
    if (r->label_count > 1) return true;
    fprintf(stderr, "%s: all rows have the label \"%s\"\n", s->train, r->labels[0]);
    return false;
}

/* A trained head keeps its own labels; a fresh one gets those of the training rows. */
static bool load_model(run *r) {
    accel_pretrained_desc desc = {.num_labels = r->label_count, .label_names = r->labels};
    r->tokenizer = accel_tokenizer_load(r->acc, r->s.model, NULL);
    if (!r->tokenizer) return false;
    r->model = accel_load_pretrained(r->acc, r->s.model, &desc);
    if (!r->model) {
        accel_clear(r->acc);
        r->model = accel_load_pretrained(r->acc, r->s.model, NULL);
    }
    if (!r->model || accel_encoder_config_of(r->model)->problem == ACCEL_SINGLE_LABEL) return r->model != NULL;
    fprintf(stderr, "%s: its head is not for single labels, which is what finetune trains\n", r->s.model);
    return false;
}

/* A vocabulary from the training texts alone. */
static bool learn_vocabulary(run *r) {
    int columns = r->text[1] ? 2 : 1;
    int64_t rows = accel_table_rows(r->train_rows), count = 0;
    const char **texts = malloc((size_t)(rows * columns) * sizeof *texts);
    for (int c = 0; texts && c < columns; c++) {
        int column = accel_table_column(r->train_rows, r->text[c]);
        for (int64_t i = 0; i < rows; i++) texts[count++] = accel_table_cell(r->train_rows, i, column);
    }
    if (texts && !accel_failed(r->acc))
        r->tokenizer = accel_tokenizer_train(r->acc, texts, count,
                                             &(accel_vocabulary_desc){.size = (int)r->s.vocab_size});
    free(texts);
    return r->tokenizer != NULL;
}

static bool create_model(run *r) {
    const settings *s = &r->s;
    if (s->vocab) r->tokenizer = accel_tokenizer_load(r->acc, s->vocab, NULL);
    else learn_vocabulary(r);
    if (!r->tokenizer) return false;
    int32_t padding = accel_token_id(r->tokenizer, "[PAD]");
    accel_encoder_config config = accel_encoder_defaults(ACCEL_DISTILBERT);
    config.vocab_size = accel_vocabulary_size(r->tokenizer);
    config.pad_token_id = padding < 0 ? 0 : padding;
    config.max_positions = (int)s->max_length;
    config.layers = (int)s->layers;
    config.dim = (int)s->dim;
    config.heads = (int)s->heads;
    config.hidden_dim = (int)(s->hidden_dim ? s->hidden_dim : 4 * s->dim);
    config.num_labels = r->label_count;
    r->model = accel_encoder_create(r->acc, &config);
    return accel_set_label_names(r->model, r->labels, r->label_count);
}

static accel_loader *make_loader(run *r, const accel_table *rows, const accel_loader_desc *desc) {
    accel_encode_desc encode = {
        .text = {r->text[0], r->text[1]}, .label = {r->s.label}, .max_length = (int)r->s.max_length, .model = r->model};
    return accel_loader_create(r->acc, accel_encode_table(r->tokenizer, rows, &encode), desc);
}

static bool set_up_model(run *r) {
    const settings *s = &r->s;
    if (!isnan(s->dropout)) accel_set_dropout(r->model, (float)s->dropout);
    accel_set_recompute(r->model, s->recompute);
    if (s->label_smoothing > 0)
        accel_set_loss(r->model, &(accel_cross_entropy_desc){.label_smoothing = (float)s->label_smoothing});
    if (!s->freeze || accel_model_requires_grad(r->model, s->freeze, false)) return true;
    fprintf(stderr, "--freeze %s: the model has no such parameter\n", s->freeze);
    return false;
}

static bool make_model_and_loaders(run *r) {
    bool good = r->s.from_scratch ? create_model(r) : load_model(r);
    if (!good) return false;
    if (!set_up_model(r)) return false;
    r->train = make_loader(r, r->train_rows,
                           &(accel_loader_desc){.batch_size = (int)r->s.batch_size, .shuffle = !r->s.no_shuffle});
    if (r->s.eval)
        r->eval = make_loader(r, r->eval_rows, &(accel_loader_desc){.batch_size = EVAL_BATCH_SIZE, .evaluation = true});
    return !accel_failed(r->acc);
}

/* ---- optimizer ---- */

static accel_optimizer *make_optimizer(const run *r, float lr) {
    double decay = r->s.weight_decay;
    float given = isnan(decay) ? 0.0f : decay > 0 ? (float)decay : ACCEL_ZERO; /* 0 stands for the default */
    accel_param_group no_decay = {.match = ACCEL_NO_DECAY_MATCH, .weight_decay = ACCEL_ZERO};
    float layers = (float)r->s.layer_decay;
    accel_adam_desc adam = {
        .lr = lr, .weight_decay = given, .groups = &no_decay, .group_count = 1, .layer_decay = layers};
    accel_sgd_desc sgd = {.lr = lr,
                          .weight_decay = decay > 0 ? (float)decay : 0.0f,
                          .groups = &no_decay,
                          .group_count = 1,
                          .layer_decay = layers};
    if (!strcmp(r->s.optimizer, "sgd")) return accel_sgd(r->acc, r->model, &sgd);
    return !strcmp(r->s.optimizer, "adam") ? accel_adam(r->acc, r->model, &adam) : accel_adamw(r->acc, r->model, &adam);
}

static accel_schedule *make_schedule(const run *r) {
    int64_t warmup = (int64_t)(r->s.warmup_ratio * (double)r->steps);
    if (!strcmp(r->s.schedule, "constant")) return accel_constant_schedule_with_warmup(r->optimizer, warmup);
    if (!strcmp(r->s.schedule, "cosine")) return accel_cosine_schedule_with_warmup(r->optimizer, warmup, r->steps);
    return accel_linear_schedule_with_warmup(r->optimizer, warmup, r->steps);
}

static bool make_optimizer_and_schedule(run *r) {
    double lr = !isnan(r->s.lr) ? r->s.lr : r->s.from_scratch ? 5e-4 : 5e-5;
    r->optimizer = make_optimizer(r, (float)lr);
    r->steps = r->s.epochs * accel_steps_per_epoch(r->acc, r->train);
    if (r->s.max_steps && r->s.max_steps < r->steps) r->steps = r->s.max_steps;
    r->schedule = make_schedule(r);
    return !accel_failed(r->acc);
}

/* ---- what goes to files ---- */

static bool cannot_write(const char *path) {
    fprintf(stderr, "%s cannot be written: %s\n", path, strerror(errno));
    return false;
}

/* Finds out before training whether its results can be written. */
static bool open_outputs(run *r) {
    if (r->s.output) {
        char probe[4200];
        r->made_output = mkdir(r->s.output, 0777) == 0;
        if (!r->made_output && errno != EEXIST) return cannot_write(r->s.output);
        snprintf(probe, sizeof probe, "%.4000s/.finetune-%ld", r->s.output, (long)getpid());
        FILE *file = fopen(probe, "wb");
        if (!file) return cannot_write(r->s.output);
        fclose(file);
        unlink(probe);
    }
    if (r->s.log)
        r->log = accel_tracker_open(r->acc, ACCEL_TRACKER_JSONL, r->s.log, &(accel_tracker_desc){.append = r->s.resume});
    return !accel_failed(r->acc);
}

static bool save_model(run *r) {
    if (!r->s.output) return printf("the model is not saved: no --output\n"), true;
    if (!accel_save_pretrained(r->model, r->tokenizer, r->s.output)) return false;
    printf("saved in %s\n", r->s.output);
    return true;
}

/* ---- what is shown and logged ---- */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool on_terminal(void) { return isatty(STDOUT_FILENO); }

static void clear_bar(void) {
    if (on_terminal()) fputs("\r\033[K", stdout), fflush(stdout);
}

static void show_notice(void *user, const char *line) {
    (void)user;
    clear_bar();
    fprintf(stderr, "%s\n", line);
}

static void show_begin(const run *r) {
    const accel_encoder_config *config = accel_encoder_config_of(r->model);
    printf("%d thread%s, BLAS core %s, seed %llu, %.1f million parameters (%d layers of %d)\n", accel_threads(r->acc),
           accel_threads(r->acc) == 1 ? "" : "s", accel_blas_core(), (unsigned long long)accel_seed(r->acc),
           1e-6 * (double)accel_parameter_elements(r->model), config->layers, config->dim);
    printf("%lld rows to train on, %lld to evaluate on, %d labels, %lld steps\n",
           (long long)accel_table_rows(r->train_rows), (long long)accel_table_rows(r->eval_rows), config->num_labels,
           (long long)r->steps);
    fflush(stdout);
}

/* A bar that is drawn again and again on a terminal, elsewhere a line for each tenth of the run. */
static void show_progress(run *r, const accel_progress *p) {
    static const char full[] = "####################", empty[] = "....................";
    int width = (int)sizeof full - 1, filled = (int)(p->step * width / p->steps);
    bool line = p->step * 10 / p->steps != (p->step - 1) * 10 / p->steps;
    double rate = r->examples / r->seconds, left = r->seconds / r->timed_steps * (double)(p->steps - p->step);
    if (!line && !on_terminal()) return;
    if (on_terminal()) printf("\r\033[K%.*s%.*s ", filled, full, width - filled, empty);
    printf("epoch %lld, step %lld of %lld: loss %.4f, lr %.3g, %.1f samples/s, %d:%02d left", (long long)p->epoch,
           (long long)p->step, (long long)p->steps, r->shown_loss / r->shown_steps, p->lr, rate, (int)left / 60,
           (int)left % 60);
    if (!on_terminal()) printf("\n");
    if (line) r->shown_loss = r->shown_steps = 0;
    fflush(stdout);
}

static bool on_step(void *user, const accel_progress *p) {
    static const char *const names[] = {"epoch", "loss", "lr", "grad_norm", "samples_per_second"};
    run *r = user;
    double seconds = now() - r->step_began;
    r->seconds += seconds;
    r->timed_steps++;
    r->examples += (double)p->examples;
    r->shown_loss += p->loss;
    r->shown_steps++;
    if (r->log)
        accel_track_all(r->log, p->step, 5, names, (const double[]){(double)p->epoch, p->loss, p->lr, p->grad_norm,
                                                                    (double)p->examples / seconds});
    show_progress(r, p);
    r->step_began = now();
    return true;
}

static bool on_evaluate(void *user, const accel_progress *p) {
    static const char *const names[] = {"epoch", "eval_accuracy", "eval_f1", "eval_matthews", "eval_loss",
                                        "eval_majority"};
    run *r = user;
    double majority = accel_majority(p->metrics);
    clear_bar();
    printf("epoch %lld: accuracy %.4f (the most frequent label alone: %.4f), F1 %.4f, Matthews %.4f, loss %.4f\n",
           (long long)p->epoch, p->eval_accuracy, majority, p->eval_f1, p->eval_matthews, p->eval_loss);
    fflush(stdout);
    if (r->log)
        accel_track_all(r->log, p->step, 6, names, (const double[]){(double)p->epoch, p->eval_accuracy, p->eval_f1,
                                                                    p->eval_matthews, p->eval_loss, majority});
    r->step_began = now();
    return true;
}

static bool on_save(void *user, const accel_progress *p, const char *folder) {
    run *r = user;
    (void)p, (void)folder;
    r->step_began = now();
    return true;
}

/* ---- training ---- */

/* A signal leaves the state of the run instead of a model. */
static bool stopped_by_signal(const run *r, const accel_progress *p) {
    if (p->stopped != ACCEL_BY_SIGNAL) return false;
    if (r->s.output)
        fprintf(stderr, "stopped by a signal after step %lld of %lld; its state is in %s/step-%lld, go on with --resume\n",
                (long long)p->step, (long long)p->steps, r->s.output, (long long)p->step);
    else
        fprintf(stderr, "stopped by a signal after step %lld of %lld; nothing is saved: no --output\n",
                (long long)p->step, (long long)p->steps);
    return true;
}

static bool train(run *r) {
    accel_train_desc desc = {.model = r->model,
                             .optimizer = r->optimizer,
                             .schedule = r->schedule,
                             .train = r->train,
                             .evaluation = r->eval,
                             .epochs = r->s.epochs,
                             .max_steps = r->s.max_steps,
                             .max_grad_norm = (float)r->s.max_grad_norm,
                             .max_grad_value = (float)r->s.max_grad_value,
                             .ema = (float)r->s.ema,
                             .evaluate = r->s.eval_steps ? ACCEL_EACH_STEPS : ACCEL_EACH_EPOCH,
                             .evaluate_steps = r->s.eval_steps,
                             .metric = r->s.metric,
                             .patience = (int)r->s.patience,
                             .load_best = r->s.load_best,
                             .save = r->s.save_steps ? ACCEL_EACH_STEPS : ACCEL_NEVER,
                             .save_steps = r->s.save_steps,
                             .output = r->s.output,
                             .save_total_limit = (int)r->s.save_total_limit,
                             .resume = r->s.resume,
                             .on_step = on_step,
                             .on_evaluate = on_evaluate,
                             .on_save = on_save,
                             .user = r};
    accel_progress end;
    show_begin(r);
    r->step_began = now();
    bool good = accel_train(r->acc, &desc, &end);
    clear_bar();
    accel_free(r->log); /* writes what is left */
    r->log = NULL;
    return good && !accel_failed(r->acc) && !stopped_by_signal(r, &end);
}

int main(int argc, char **argv) {
    run r = {.s = {.optimizer = "adam",
                   .schedule = "linear",
                   .precision = "fp32",
                   .metric = "loss",
                   .layers = 2,
                   .dim = 128,
                   .heads = 2,
                   .vocab_size = 8000,
                   .epochs = 3,
                   .batch_size = 16,
                   .grad_accum = 1,
                   .max_length = 128,
                   .seed = 42,
                   .lr = NAN,
                   .warmup_ratio = 0.1,
                   .weight_decay = NAN,
                   .dropout = NAN}};
    int status = read_settings(argc, argv, &r.s);
    if (status >= 0) return status;
    r.acc = accel_create(&(accel_desc){.threads = (int)r.s.threads,
                                       .seed = (uint64_t)r.s.seed,
                                       .accumulate = (int)r.s.grad_accum,
                                       .precision = strcmp(r.s.precision, "bf16") ? ACCEL_PRECISION_FP32
                                                                                  : ACCEL_PRECISION_BF16,
                                       .log = show_notice});
    bool good = read_tables(&r) && make_model_and_loaders(&r) && make_optimizer_and_schedule(&r) && open_outputs(&r) &&
                train(&r) && save_model(&r);
    if (accel_failed(r.acc)) fprintf(stderr, "%s\n", accel_message(r.acc));
    if (!good && r.made_output) rmdir(r.s.output); /* as it is empty */
    accel_destroy(r.acc);
    return good ? 0 : 1;
}
