/* accel_train against the same loop written by hand, its stopping, and its resuming. */
#define ACCEL_IMPLEMENTATION
#include "accel_io.h"
#include "test.h"
#include <signal.h>
#include <unistd.h>

#define FOLDER "build/tmp/trainer"

enum { ROWS = 30, BATCH = 4, BATCHES = 8 /* per epoch */ };

typedef struct setting {
    accel_t *acc;
    accel_train_desc d;
    int evaluations, saves;
    int64_t stop_at;
} setting;

static void quiet(void *user, const char *line) { (void)user, (void)line; }

static accel_data *data_of(accel_t *acc, int rows, int shift) {
    int32_t ids[ROWS * 6], labels[ROWS];
    int64_t offsets[ROWS + 1] = {0};
    for (int i = 0; i < rows; i++) {
        labels[i] = (i + shift) % 2;
        offsets[i + 1] = offsets[i] + 3 + i % 4;
        for (int64_t t = offsets[i]; t < offsets[i + 1]; t++) ids[t] = 1 + ((i + shift) * 3 + (int)t) % 18 + labels[i] * 18;
    }
    return accel_data_create(acc, &(accel_data_desc){.rows = rows, .ids = ids, .offsets = offsets, .labels = labels});
}

static setting setting_of(int threads) {
    setting s = {.acc = accel_create(&(accel_desc){.threads = threads, .seed = 3, .accumulate = 2, .log = quiet})};
    accel_encoder_config config = accel_encoder_defaults(ACCEL_DISTILBERT);
    config.vocab_size = 40, config.max_positions = 8, config.dim = 16, config.layers = 1, config.heads = 2, config.hidden_dim = 32;
    s.d.model = accel_encoder_create(s.acc, &config);
    s.d.optimizer = accel_adam(s.acc, s.d.model, &(accel_adam_desc){.lr = 2e-3f});
    s.d.train = accel_loader_create(s.acc, data_of(s.acc, ROWS, 0), &(accel_loader_desc){.batch_size = BATCH, .shuffle = true});
    s.d.evaluation = accel_loader_create(s.acc, data_of(s.acc, 10, 1), &(accel_loader_desc){.batch_size = 5, .evaluation = true});
    s.d.epochs = 3;
    s.d.schedule = accel_linear_schedule_with_warmup(s.d.optimizer, 2, 3 * accel_steps_per_epoch(s.acc, s.d.train));
    s.d.max_grad_norm = 1;
    return s;
}

static bool run(setting *s, accel_progress *progress) {
    s->d.user = s;
    bool good = accel_train(s->acc, &s->d, progress);
    if (!good) printf("  %s\n", accel_message(s->acc));
    return good;
}

static void by_hand(setting *s) {
    accel_prepare(s->acc, s->d.model, s->d.optimizer, s->d.train, s->d.schedule);
    accel_ema *ema = s->d.ema > 0 ? accel_ema_create(s->acc, s->d.model, s->d.ema) : NULL;
    for (int epoch = 0; epoch < 3; epoch++) {
        accel_batch batch;
        while (accel_next(s->d.train, &batch)) {
            accel_zero_grad(s->d.optimizer);
            accel_output out = accel_forward(s->d.model, &batch);
            accel_backward(s->acc, out.loss);
            if (s->d.max_grad_value > 0) accel_clip_grad_value(s->d.optimizer, s->d.max_grad_value);
            if (accel_sync_gradients(s->acc)) accel_clip_grad_norm(s->d.optimizer, 1);
            if (accel_step(s->d.optimizer)) accel_ema_update(ema);
            accel_schedule_step(s->d.schedule);
        }
    }
    accel_ema_swap(ema);
}

/* Mean loss over the evaluation rows, which come in two batches of 5. */
static double evaluate(setting *s) {
    accel_batch batch;
    double loss = 0;
    accel_eval_begin(s->acc);
    while (accel_next(s->d.evaluation, &batch)) loss += 5 * (double)accel_item(accel_forward(s->d.model, &batch).loss);
    accel_eval_end(s->acc);
    return loss / 10;
}

static bool same_model(setting *a, setting *b) {
    bool same = !accel_failed(a->acc) && !accel_failed(b->acc);
    for (int i = 0; i < accel_parameter_count(a->d.model); i++) {
        accel_tensor x = accel_parameter_at(a->d.model, i), y = accel_parameter_at(b->d.model, i);
        float u[1024], v[1024];
        CHECK(accel_count(x) <= 1024);
        same = same && accel_read(x, u, accel_count(x)) && accel_read(y, v, accel_count(y)) &&
               !memcmp(u, v, (size_t)accel_count(x) * sizeof *u);
    }
    return same;
}

static void clear_folder(void) { CHECK(system("rm -rf " FOLDER) == 0); }

TEST(it_gives_the_bytes_of_the_loop_written_by_hand) {
    setting loop = setting_of(1), trainer = setting_of(2);
    accel_progress p;
    by_hand(&loop);
    CHECK(run(&trainer, &p));
    CHECK(same_model(&loop, &trainer));
    CHECK(p.step == 12 && p.steps == 12 && p.epoch == 4 && p.stopped == ACCEL_FINISHED);
    CHECK(p.best_step > 0 && isfinite(p.best_score) && isfinite(p.eval_accuracy) && isfinite(p.loss));
    accel_destroy(loop.acc), accel_destroy(trainer.acc);
}

static bool stop_there(void *user, const accel_progress *p) { return p->step != ((setting *)user)->stop_at; }
static bool count_evaluation(void *user, const accel_progress *p) {
    (void)p;
    ((setting *)user)->evaluations++;
    return true;
}
static bool count_save(void *user, const accel_progress *p, const char *folder) {
    (void)p, (void)folder;
    ((setting *)user)->saves++;
    return true;
}

/* Stopped by a callback after every step there is, by hand or at an epoch's end, and resumed: nothing is lost or done twice. */
TEST(stopped_and_resumed_it_gives_the_same_bytes_and_the_same_evaluations) {
    setting whole = setting_of(1);
    accel_progress expected, p;
    CHECK(run(&whole, &expected));
    for (int64_t stop = 1; stop <= 12; stop++) {
        clear_folder();
        setting first = setting_of(2), second = setting_of(3);
        first.d.output = second.d.output = FOLDER;
        first.d.on_step = stop_there, first.stop_at = stop;
        first.d.on_evaluate = second.d.on_evaluate = count_evaluation;
        CHECK(run(&first, &p) && p.stopped == ACCEL_BY_CALLBACK && p.step == stop);
        second.d.resume = true;
        CHECK(run(&second, &p));
        if (!same_model(&whole, &second)) test_faults++, printf("  stopped after step %d: other bytes\n", (int)stop);
        CHECK(p.best_step == expected.best_step && p.best_score == expected.best_score && p.step == 12);
        CHECK(first.evaluations + second.evaluations == 3);
        accel_destroy(first.acc), accel_destroy(second.acc);
    }
    accel_destroy(whole.acc);
}

TEST(elements_of_the_gradient_are_clipped_before_its_norm) {
    setting loop = setting_of(1), trainer = setting_of(2), unclipped = setting_of(1);
    accel_progress p, q;
    loop.d.max_grad_value = trainer.d.max_grad_value = 1e-3f;
    by_hand(&loop);
    CHECK(run(&trainer, &p) && run(&unclipped, &q));
    CHECK(same_model(&loop, &trainer) && !same_model(&loop, &unclipped));
    accel_destroy(loop.acc), accel_destroy(trainer.acc), accel_destroy(unclipped.acc);
}

TEST(averaged_weights_are_evaluated_and_left_in_the_model) {
    setting loop = setting_of(1), trainer = setting_of(2), plain = setting_of(1);
    accel_progress p, q;
    loop.d.ema = trainer.d.ema = 0.8f;
    by_hand(&loop);
    CHECK(run(&trainer, &p) && run(&plain, &q));
    CHECK(same_model(&loop, &trainer) && !same_model(&plain, &trainer));
    CHECK(p.eval_loss == evaluate(&trainer) && q.eval_loss == evaluate(&plain) && p.eval_loss != q.eval_loss);
    CHECK(p.loss == q.loss); /* training goes on from the weights themselves */
    accel_destroy(loop.acc), accel_destroy(trainer.acc), accel_destroy(plain.acc);
}

TEST(averaged_weights_go_on_with_the_same_bytes_and_are_the_best_that_is_loaded) {
    setting whole = setting_of(1);
    accel_progress expected, p;
    whole.d.ema = 0.8f;
    CHECK(run(&whole, &expected));
    for (int64_t stop = 3; stop <= 12; stop += 3) {
        clear_folder();
        setting first = setting_of(2), second = setting_of(3);
        first.d.output = second.d.output = FOLDER, first.d.ema = second.d.ema = 0.8f;
        first.d.on_step = stop_there, first.stop_at = stop, second.d.resume = true;
        CHECK(run(&first, &p) && p.step == stop);
        CHECK(run(&second, &p) && same_model(&whole, &second) && p.best_score == expected.best_score);
        accel_destroy(first.acc), accel_destroy(second.acc);
    }
    clear_folder();
    setting best = setting_of(1), short_run = setting_of(1);
    best.d.ema = short_run.d.ema = 0.8f, best.d.output = FOLDER, best.d.load_best = true, best.d.min_improvement = 1e6f;
    short_run.d.max_steps = 4;
    CHECK(run(&best, &p) && p.best_step == 4 && run(&short_run, &p) && p.step == 4);
    CHECK(same_model(&best, &short_run));
    accel_destroy(whole.acc), accel_destroy(best.acc), accel_destroy(short_run.acc);
}

TEST(the_loss_of_an_evaluation_is_the_plain_one) {
    setting s = setting_of(1);
    accel_progress p;
    accel_cross_entropy_desc loss = {.label_smoothing = 0.3f, .class_weights = (float[]){1, 5}, .class_count = 2};
    accel_set_loss(s.d.model, &loss);
    CHECK(run(&s, &p));
    CHECK(fabs(evaluate(&s) - p.eval_loss) > 1e-3);
    accel_set_loss(s.d.model, NULL);
    CHECK(evaluate(&s) == p.eval_loss);
    accel_destroy(s.acc);
}

/* The loss of a step is that of its micro-batches in one: here they have unequal sums of class weights. */
TEST(the_loss_of_a_step_is_pooled_by_class_weights) {
    setting parts = setting_of(1), whole = setting_of(1);
    accel_cross_entropy_desc weights = {.class_weights = (float[]){1, 7}, .class_count = 2};
    accel_progress p, q;
    accel_set_dropout(parts.d.model, 0), accel_set_dropout(whole.d.model, 0);
    accel_set_loss(parts.d.model, &weights), accel_set_loss(whole.d.model, &weights);
    accel_set_accumulate(parts.acc, BATCHES), accel_set_accumulate(whole.acc, 1);
    accel_data *rows = data_of(whole.acc, ROWS, 0);
    whole.d.train = accel_loader_create(whole.acc, rows, &(accel_loader_desc){.batch_size = ROWS});
    parts.d.epochs = whole.d.epochs = 1, parts.d.max_steps = whole.d.max_steps = 1;
    CHECK(run(&parts, &p) && run(&whole, &q) && p.examples == ROWS && q.examples == ROWS);
    CHECK_NEAR(p.loss, q.loss, 1e-6); /* float32 sums in another order */
    accel_destroy(parts.acc), accel_destroy(whole.acc);
}

TEST(patience_ends_the_run_and_survives_a_resume) {
    clear_folder();
    setting s = setting_of(1);
    accel_progress p;
    s.d.output = FOLDER, s.d.epochs = 50, s.d.patience = 2, s.d.min_improvement = 1e6f; /* nothing is ever better than the first */
    s.d.on_evaluate = count_evaluation;
    CHECK(run(&s, &p) && p.stopped == ACCEL_NO_IMPROVEMENT && s.evaluations == 3 && p.best_step == 4);
    accel_destroy(s.acc);
    clear_folder();
    setting first = setting_of(1), second = setting_of(1);
    first.d = (accel_train_desc){.model = first.d.model, .optimizer = first.d.optimizer, .train = first.d.train,
                                 .evaluation = first.d.evaluation, .output = FOLDER, .epochs = 2, .patience = 2, .min_improvement = 1e6f};
    second.d.output = FOLDER, second.d.epochs = 50, second.d.patience = 2, second.d.min_improvement = 1e6f, second.d.resume = true;
    second.d.on_evaluate = count_evaluation;
    CHECK(run(&first, &p) && p.stopped == ACCEL_FINISHED);
    CHECK(run(&second, &p) && p.stopped == ACCEL_NO_IMPROVEMENT && second.evaluations == 1);
    accel_destroy(first.acc), accel_destroy(second.acc);
}

TEST(a_run_that_patience_ended_is_at_its_end_when_resumed) {
    clear_folder();
    setting first = setting_of(1), second = setting_of(1);
    accel_progress p, again;
    first.d.output = second.d.output = FOLDER, first.d.epochs = second.d.epochs = 50, first.d.patience = second.d.patience = 1;
    first.d.min_improvement = second.d.min_improvement = 1e6f, second.d.resume = true, second.d.on_evaluate = count_evaluation;
    CHECK(run(&first, &p) && p.stopped == ACCEL_NO_IMPROVEMENT && p.step == 8);
    CHECK(run(&second, &again) && again.stopped == ACCEL_NO_IMPROVEMENT && again.step == 8 && second.evaluations == 0);
    CHECK(same_model(&first, &second));
    accel_destroy(first.acc), accel_destroy(second.acc);
}

/* The model has no finite weights while step 4 (and 12, where `twice`) is evaluated. */
static float spoilt_bias[2];
static bool spoil(void *user, const accel_progress *p) {
    setting *s = user;
    accel_tensor bias = accel_parameter_find(s->d.model, "classifier.bias");
    if (p->step == 4 || (s->stop_at && p->step == 12))
        CHECK(accel_read(bias, spoilt_bias, 2) && accel_write(bias, (const float[]){NAN, NAN}, 2));
    return true;
}
static bool repair(void *user, const accel_progress *p) {
    setting *s = user;
    if (isnan(p->eval_loss)) CHECK(accel_write(accel_parameter_find(s->d.model, "classifier.bias"), spoilt_bias, 2));
    s->evaluations += isnan(p->eval_loss);
    return true;
}

TEST(a_score_that_is_not_a_number_is_never_the_best) {
    for (int twice = 0; twice < 2; twice++) {
        setting s = setting_of(1);
        accel_progress p;
        s.d.on_step = spoil, s.d.on_evaluate = repair, s.stop_at = twice, s.d.min_improvement = 1e6f;
        CHECK(run(&s, &p));
        CHECK(s.evaluations == 1 + twice && p.best_step == 8 && isfinite(p.best_score));
        accel_destroy(s.acc);
    }
    setting s = setting_of(1);
    accel_progress p;
    s.d.on_step = spoil, s.d.on_evaluate = repair, s.d.epochs = 1, s.d.patience = 1;
    CHECK(run(&s, &p) && p.best_step == 0 && isnan(p.best_score) && p.stopped == ACCEL_NO_IMPROVEMENT);
    accel_destroy(s.acc);
}

TEST(the_best_state_is_kept_and_loaded_at_the_end) {
    clear_folder();
    setting s = setting_of(2);
    accel_progress p;
    s.d.output = FOLDER, s.d.epochs = 4, s.d.save_total_limit = 1, s.d.load_best = true, s.d.min_improvement = 1e6f;
    s.d.on_save = count_save;
    CHECK(run(&s, &p));
    CHECK(p.best_step == 4);
    CHECK(p.step == 16);
    CHECK(s.saves == 4);
    CHECK(access(FOLDER "/step-4", F_OK) == 0 && access(FOLDER "/step-8", F_OK) != 0 && access(FOLDER "/step-16", F_OK) == 0);
    setting best = setting_of(1);
    best.d.epochs = 4, best.d.max_steps = 4;
    CHECK(run(&best, &p) && p.step == 4);
    CHECK(same_model(&s, &best));
    accel_destroy(s.acc), accel_destroy(best.acc);
}

static int states(void) { return system("exit $(ls " FOLDER " | grep -c ^step-)") >> 8; }

TEST(without_saving_only_the_best_is_kept_and_only_for_load_best) {
    for (int load = 0; load < 2; load++) {
        clear_folder();
        setting s = setting_of(1);
        accel_progress p;
        s.d.output = FOLDER, s.d.save = ACCEL_NEVER, s.d.load_best = load;
        CHECK(run(&s, &p) && p.step == 12);
        CHECK(states() == load);
        char best[64];
        snprintf(best, sizeof best, FOLDER "/step-%d", (int)p.best_step);
        CHECK((access(best, F_OK) == 0) == load);
        accel_destroy(s.acc);
    }
}

static bool read_metrics(void *user, const accel_progress *p) {
    setting *s = user;
    s->evaluations++;
    CHECK(accel_metrics_examples(p->metrics) == 10 && accel_majority(p->metrics) == 0.5 && p->examples == 6);
    CHECK(accel_accuracy(p->metrics) == p->eval_accuracy && p->epoch == s->evaluations);
    return true;
}

TEST(callbacks_see_the_counts_and_states_hold_no_address) {
    clear_folder();
    for (int turn = 0; turn < 2; turn++) {
        setting s = setting_of(1 + turn);
        accel_progress p;
        s.d.output = turn ? FOLDER "/b" : FOLDER "/a", s.d.on_evaluate = read_metrics;
        CHECK(system("mkdir -p " FOLDER) == 0 && run(&s, &p) && s.evaluations == 3 && !p.metrics);
        accel_destroy(s.acc);
    }
    CHECK(system("cmp " FOLDER "/a/step-12/state.safetensors " FOLDER "/b/step-12/state.safetensors") == 0);
}

static bool interrupt(void *user, const accel_progress *p) {
    if (p->step == ((setting *)user)->stop_at) raise(SIGTERM);
    return true;
}

TEST(a_signal_ends_the_run_after_the_step_with_its_state_saved) {
    clear_folder();
    setting s = setting_of(1);
    accel_progress p;
    char path[512];
    s.d.output = FOLDER, s.d.save = ACCEL_NEVER, s.d.on_step = interrupt, s.stop_at = 5;
    CHECK(run(&s, &p) && p.stopped == ACCEL_BY_SIGNAL && p.step == 5);
    CHECK(accel_find_state(s.acc, FOLDER, path, sizeof path) == 5);
    struct sigaction now;
    sigaction(SIGTERM, NULL, &now);
    CHECK(now.sa_handler == SIG_DFL);
    accel_destroy(s.acc);
}

TEST(a_signal_that_the_program_ignores_stays_ignored) {
    setting s = setting_of(1);
    accel_progress p;
    signal(SIGTERM, SIG_IGN);
    s.d.on_step = interrupt, s.stop_at = 5;
    CHECK(run(&s, &p) && p.stopped == ACCEL_FINISHED && p.step == 12);
    signal(SIGTERM, SIG_DFL);
    accel_destroy(s.acc);
}

TEST(a_metric_of_classes_needs_a_model_of_classes) {
    setting s = setting_of(1);
    accel_encoder_config config = *accel_encoder_config_of(s.d.model);
    config.problem = ACCEL_REGRESSION, config.num_labels = 1;
    s.d.model = accel_encoder_create(s.acc, &config);
    s.d.optimizer = accel_adam(s.acc, s.d.model, NULL), s.d.schedule = NULL, s.d.metric = "accuracy";
    CHECK(!accel_train(s.acc, &s.d, NULL));
    CHECK_TEXT(accel_message(s.acc), "metric accuracy needs a model of single labels");
    accel_destroy(s.acc);
}

TEST(what_makes_no_sense_is_refused) {
    setting s = setting_of(1);
    accel_train_desc good = s.d, bad[] = {good, good, good, good, good, good, good, good, good};
    bad[0].model = NULL, bad[1].metric = "f2", bad[2].load_best = true, bad[3].epochs = -1, bad[4].evaluation = s.d.train;
    bad[5].evaluation = NULL, bad[5].patience = 1;
    bad[6].ema = 1, bad[7].max_grad_value = -1, bad[8].max_grad_norm = NAN;
    for (int i = 0; i < 9; i++) {
        CHECK(!accel_train(s.acc, &bad[i], NULL));
        CHECK_TEXT(accel_message(s.acc), "accel_train: ");
        accel_clear(s.acc);
    }
    CHECK(!accel_train(s.acc, NULL, NULL) && !accel_train(NULL, &good, NULL));
    accel_destroy(s.acc);
}

int main(int argc, char **argv) {
    if (system("mkdir -p build/tmp")) return 1;
    return test_main(argc, argv);
}
