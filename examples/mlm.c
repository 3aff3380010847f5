/* Masked-language-model pre-training on plain text, one passage a line: of 15 % of the tokens, 80 % become [MASK], 10 %
   another token and 10 % stay, and the encoder has to tell what they were. The output layer is tied: it scores the
   words with their own embeddings. The vocabulary is learnt from the text.

       mlm --train text.txt --eval held_out.txt --fill "I drink a cup of [MASK]." --output OUT

   OUT is a pretrained folder, which finetune --model OUT starts from (and DistilBertForMaskedLM loads).
   build: cc -O2 mlm.c -lcjson -lutf8proc -lopenblas -lpthread -lm */
#define ACCEL_IMPLEMENTATION
#include "encoders.h"

enum { MAX_DIM = 4096, TOP = 5 };
static const float MASKED = 0.15f, BECOME_MASK = 0.8f, BECOME_ANOTHER = 0.1f;

/* A batch whose tokens are masked, and what has to be told. */
typedef struct quiz {
    int32_t *ids, *positions, *answers;
    float *random;
    int count;
} quiz;

typedef struct run {
    const char *train_file, *eval_file, *fill, *output;
    int64_t vocab_size, layers, dim, heads, epochs, batch_size, max_length, seed;
    double lr;
    accel_t *acc;
    accel_tokenizer *tokenizer;
    accel_model *encoder, *head;
    accel_tensor words, transform, transform_bias, norm, norm_bias, word_bias; /* parameters of the output layer */
    accel_loader *train, *eval;
    quiz quiz;
} run;

static int read_options(int argc, char **argv, run *r) {
    option_spec options[] = {
        option_text("--train", "FILE", &r->train_file, "text to learn from, a passage a line"),
        option_text("--eval", "FILE", &r->eval_file, "text to evaluate on after each epoch"),
        option_text("--fill", "TEXT", &r->fill, "a text with [MASK], to be filled in at the end"),
        option_text("--output", "DIR", &r->output, "folder for the encoder"),
        option_int("--vocab-size", &r->vocab_size, 100, 1 << 24, "tokens to learn from the text"),
        option_int("--layers", &r->layers, 1, 1000, "layers"),
        option_int("--dim", &r->dim, 1, MAX_DIM, "width"),
        option_int("--heads", &r->heads, 1, MAX_DIM, "attention heads, divide the width"),
        option_int("--epochs", &r->epochs, 1, 1e6, "passes over the text"),
        option_int("--batch-size", &r->batch_size, 1, 1 << 12, "lines per batch"),
        option_int("--max-length", &r->max_length, 5, 1 << 12, "tokens of a line; longer ones are cut"),
        option_int("--seed", &r->seed, 0, 0, "of every random number"),
        option_number("--lr", &r->lr, ABOVE_ZERO, 0, "learning rate"),
    };
    int status = options_parse(argc, argv, "", options, (int)(sizeof options / sizeof *options), NULL);
    if (status >= 0 || r->train_file) return status;
    return fprintf(stderr, "--train is missing, see --help\n"), 1;
}

/* ---- the model ---- */

/* What the encoder's hidden states go through before they meet the words, named as in Transformers. */
static void make_head(run *r) {
    static float ones[MAX_DIM];
    int dim = (int)r->dim;
    for (int i = 0; i < dim; i++) ones[i] = 1;
    r->head = accel_model_create(r->acc, "mlm");
    r->words = accel_parameter_find(r->encoder, "distilbert.embeddings.word_embeddings.weight");
    r->transform = accel_parameter_normal(r->head, "vocab_transform.weight", accel_2d(dim, dim), 0.02f);
    r->transform_bias = accel_parameter(r->head, "vocab_transform.bias", accel_1d(dim));
    r->norm = accel_parameter(r->head, "vocab_layer_norm.weight", accel_1d(dim));
    r->norm_bias = accel_parameter(r->head, "vocab_layer_norm.bias", accel_1d(dim));
    r->word_bias = accel_parameter(r->head, "vocab_projector.bias", accel_1d(accel_vocabulary_size(r->tokenizer)));
    accel_write(r->norm, ones, dim);
}

/* A score for each word, [positions, words], at some positions of the batch's packed tokens. */
static accel_tensor word_scores(run *r, const accel_batch *batch, const int32_t *positions, int count) {
    accel_output out = accel_forward(r->encoder, batch);
    if (!out.hidden) return (accel_tensor){0};
    accel_tensor rows = accel_from_ints(r->acc, accel_1d(count), positions);
    accel_tensor hidden = accel_embedding(out.hidden[out.hidden_count - 1], rows, -1); /* picks rows */
    accel_tensor x = accel_gelu(accel_linear(hidden, r->transform, r->transform_bias));
    return accel_linear(accel_layer_norm(x, r->norm, r->norm_bias, 1e-12f), r->words, r->word_bias);
}

/* ---- masking ---- */

static bool make_quiz(run *r) {
    int64_t lines = r->batch_size > EVAL_BATCH_SIZE ? r->batch_size : EVAL_BATCH_SIZE;
    size_t room = (size_t)(lines * r->max_length);
    quiz *q = &r->quiz;
    q->ids = malloc(3 * room * sizeof *q->ids);
    q->random = malloc(3 * room * sizeof *q->random);
    if (!q->ids || !q->random) return fprintf(stderr, "out of memory\n"), false;
    q->positions = q->ids + room;
    q->answers = q->positions + room;
    return true;
}

/* Three random numbers per token: whether it is asked for, what becomes of it, and which other token that is. */
static void mask_tokens(run *r, const accel_batch *batch) {
    quiz *q = &r->quiz;
    int words = accel_vocabulary_size(r->tokenizer);
    int32_t mask = accel_token_id(r->tokenizer, "[MASK]"); /* the last of the special tokens, which come first */
    q->count = 0;
    if (!accel_read(accel_rand(r->acc, accel_2d(batch->tokens, 3)), q->random, 3 * batch->tokens)) return;
    for (int i = 0; i < batch->tokens; i++) {
        const float *random = q->random + 3 * i;
        q->ids[i] = batch->ids[i];
        if (batch->ids[i] <= mask || random[0] >= MASKED) continue;
        q->positions[q->count] = i;
        q->answers[q->count++] = batch->ids[i];
        if (random[1] < BECOME_MASK) q->ids[i] = mask;
        else if (random[1] < BECOME_MASK + BECOME_ANOTHER) q->ids[i] = (int32_t)(random[2] * (float)words);
    }
}

/* Cross-entropy over the tokens that are asked for; null where chance asks for none. */
static accel_tensor masked_loss(run *r, const accel_batch *batch) {
    accel_batch masked = *batch;
    mask_tokens(r, batch);
    if (!r->quiz.count) return (accel_tensor){0};
    masked.ids = r->quiz.ids;
    accel_tensor scores = word_scores(r, &masked, r->quiz.positions, r->quiz.count);
    accel_tensor answers = accel_from_ints(r->acc, accel_1d(r->quiz.count), r->quiz.answers);
    return accel_cross_entropy(scores, answers, NULL);
}

/* ---- the loop ---- */

static bool make_all(run *r) {
    accel_table_desc lines = {.format = ACCEL_LINES};
    accel_table *train = accel_table_read(r->acc, r->train_file, &lines);
    accel_table *eval = r->eval_file ? accel_table_read(r->acc, r->eval_file, &lines) : NULL;
    accel_encode_desc encode = {.text = {"0"}, .max_length = (int)r->max_length};
    r->tokenizer = learn_vocabulary(r->acc, train, encode.text, r->vocab_size);
    if (!r->tokenizer) return false;
    accel_encoder_config config = small_encoder(r->tokenizer, r->max_length);
    config.layers = (int)r->layers;
    config.dim = (int)r->dim;
    config.heads = (int)r->heads;
    config.hidden_dim = 4 * config.dim;
    r->encoder = accel_encoder_create(r->acc, &config);
    accel_output_hidden_states(r->encoder, true);
    make_head(r);
    r->train = make_loader(r->acc, r->tokenizer, train, &encode, r->batch_size);
    if (r->eval_file) r->eval = make_loader(r->acc, r->tokenizer, eval, &encode, 0);
    return !accel_failed(r->acc) && make_quiz(r);
}

typedef struct mean {
    double sum, count;
} mean;

static void mean_add(mean *m, double loss, int count) {
    m->sum += loss * count;
    m->count += count;
}

static mean evaluate(run *r) {
    mean result = {0};
    accel_batch batch;
    accel_eval_begin(r->acc);
    while (accel_next(r->eval, &batch)) {
        accel_tensor loss = masked_loss(r, &batch);
        if (r->quiz.count) mean_add(&result, (double)accel_item(loss), r->quiz.count);
    }
    accel_eval_end(r->acc);
    return result;
}

static mean train_epoch(run *r, accel_optimizer *opt, accel_schedule *lr) {
    mean result = {0};
    accel_batch batch;
    while (accel_next(r->train, &batch)) {
        accel_zero_grad(opt);
        accel_tensor loss = masked_loss(r, &batch);
        if (!r->quiz.count) continue;
        accel_backward(r->acc, loss);
        accel_clip_grad_norm(opt, 1);
        accel_step(opt);
        accel_schedule_step(lr);
        mean_add(&result, (double)accel_item(loss), r->quiz.count);
    }
    return result;
}

static bool train(run *r) {
    accel_param_group no_decay = {.match = ACCEL_NO_DECAY_MATCH, .weight_decay = ACCEL_ZERO};
    accel_adam_desc adam = {.lr = (float)r->lr, .groups = &no_decay, .group_count = 1};
    accel_optimizer *opt = accel_adamw(r->acc, r->encoder, &adam);
    accel_optimizer_add(opt, r->head);
    int64_t steps = r->epochs * accel_steps_per_epoch(r->acc, r->train);
    accel_schedule *lr = accel_linear_schedule_with_warmup(opt, steps / 10, steps);
    accel_prepare(r->acc, r->encoder, r->head, opt, lr, r->train, r->eval);
    for (int epoch = 1; epoch <= (int)r->epochs && !accel_failed(r->acc); epoch++) {
        mean loss = train_epoch(r, opt, lr), held_out = r->eval ? evaluate(r) : (mean){0};
        if (accel_failed(r->acc)) break;
        printf("epoch %d: loss %.4f, perplexity %.2f", epoch, loss.sum / loss.count, exp(loss.sum / loss.count));
        if (r->eval) printf(", held out: loss %.4f, perplexity %.2f", held_out.sum / held_out.count,
                            exp(held_out.sum / held_out.count));
        printf("\n");
    }
    return !accel_failed(r->acc);
}

/* ---- what it has learnt ---- */

static void print_top(const run *r, float *scores) {
    int words = accel_vocabulary_size(r->tokenizer);
    for (int n = 0; n < TOP && n < words; n++) {
        int best = 0;
        for (int i = 1; i < words; i++)
            if (scores[i] > scores[best]) best = i;
        printf("%s%s %.3f", n ? ", " : "  [MASK]: ", accel_token_text(r->tokenizer, best), (double)scores[best]);
        scores[best] = -1;
    }
    printf("\n");
}

/* The likeliest words for each [MASK] of a text. */
static bool fill(run *r) {
    quiz *q = &r->quiz;
    int count = accel_tokenize(r->tokenizer, r->fill, NULL, (int)r->max_length, q->ids, NULL, NULL);
    int words = accel_vocabulary_size(r->tokenizer), masks = 0;
    for (int i = 0; i < count; i++)
        if (q->ids[i] == accel_token_id(r->tokenizer, "[MASK]")) q->positions[masks++] = i;
    if (!masks) return fprintf(stderr, "--fill: there is no [MASK] in \"%s\"\n", r->fill), false;
    float *scores = malloc((size_t)masks * (size_t)words * sizeof *scores);
    if (!scores) return fprintf(stderr, "out of memory\n"), false;
    accel_batch batch = {.examples = 1, .tokens = count, .longest = count, .ids = q->ids,
                         .offsets = (int32_t[]){0, count}};
    accel_eval_begin(r->acc);
    bool good = accel_read(accel_softmax(word_scores(r, &batch, q->positions, masks)), scores, (int64_t)masks * words);
    accel_eval_end(r->acc);
    printf("%s\n", r->fill);
    for (int i = 0; good && i < masks; i++) print_top(r, scores + (int64_t)i * words);
    free(scores);
    return good;
}

/* ---- saving: encoder and output layer, without the classifier that pre-training has no use for ---- */

static bool add_array(accel_named_array *array, accel_model *model, int index) {
    accel_tensor x = accel_parameter_at(model, index);
    float *values = malloc((size_t)accel_count(x) * sizeof *values);
    *array = (accel_named_array){accel_parameter_name(model, index), ACCEL_F32, accel_shape_of(x), values};
    return values && accel_read(x, values, accel_count(x));
}

static bool write_tensors(run *r, accel_named_array *arrays) {
    char path[4096];
    int count = 0;
    bool good = true;
    for (int i = 0; good && i < accel_parameter_count(r->encoder); i++)
        if (!strstr(accel_parameter_name(r->encoder, i), "classifier"))
            good = add_array(&arrays[count++], r->encoder, i);
    for (int i = 0; good && i < accel_parameter_count(r->head); i++) good = add_array(&arrays[count++], r->head, i);
    snprintf(path, sizeof path, "%s/model.safetensors", r->output);
    const char *const metadata[] = {"format", "pt", NULL};
    good = good && accel_safetensors_write(r->acc, path, arrays, count, metadata);
    for (int i = 0; i < count; i++) free((void *)arrays[i].values);
    return good;
}

static bool save(run *r) {
    int count = accel_parameter_count(r->encoder) + accel_parameter_count(r->head);
    accel_named_array *arrays = calloc((size_t)count, sizeof *arrays);
    bool good = arrays && accel_save_pretrained(r->encoder, r->tokenizer, r->output) && write_tensors(r, arrays);
    free(arrays);
    if (!good && !accel_failed(r->acc)) fprintf(stderr, "out of memory\n");
    if (good) printf("saved in %s\n", r->output);
    return good;
}

int main(int argc, char **argv) {
    run r = {.vocab_size = 8000, .layers = 2, .dim = 128, .heads = 2, .epochs = 3, .batch_size = 32, .max_length = 128,
             .seed = 42, .lr = 1e-3};
    int status = read_options(argc, argv, &r);
    if (status >= 0) return status;
    r.acc = accel_create(&(accel_desc){.seed = (uint64_t)r.seed});
    bool good = make_all(&r) && train(&r) && (!r.fill || fill(&r)) && (!r.output || save(&r));
    if (accel_failed(r.acc)) fprintf(stderr, "%s\n", accel_message(r.acc));
    free(r.quiz.ids);
    free(r.quiz.random);
    accel_destroy(r.acc);
    return good ? 0 : 1;
}
