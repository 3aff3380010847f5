/* The tokenizer and the vocabulary trainer of accel_io.h. The ids expected here and in tests/cases/tokenizer are those
   of Hugging Face's tokenizers 0.23. */
#define ACCEL_IMPLEMENTATION
#include "accel_io.h"

#include <pthread.h>
#include "test.h"
#include "helpers.h"
#include "tokenizer_cases.h"

#define CASED "tests/cases/tokenizer/cased.txt"
#define UNCASED "tests/cases/tokenizer/uncased.txt"
#define SPECIALS "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"

/* ---- files ---- */

/* An empty folder under build/tmp, valid until the next call. */
static const char *folder_of(const char *name) {
    static char folder[200], command[500];
    snprintf(folder, sizeof folder, "build/tmp/tokenizer/%s", name);
    snprintf(command, sizeof command, "rm -rf '%s' && mkdir -p '%s'", folder, folder);
    CHECK(system(command) == 0);
    return folder;
}

static void write_bytes(const char *folder, const char *name, const void *bytes, size_t count) {
    char path[300];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    CHECK(file && fwrite(bytes, 1, count, file) == count && fclose(file) == 0);
}

/* In JSON, single quotes stand for the double ones. */
static void write_text(const char *folder, const char *name, const char *text) {
    char *copy = strdup(text);
    for (char *at = copy; strstr(name, ".json") && *at; at++)
        if (*at == '\'') *at = '"';
    write_bytes(folder, name, copy, strlen(copy));
    free(copy);
}

static bool is_there(const char *folder, const char *name) {
    char path[300];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return accel__file_exists(path);
}

/* A tokenizer from one file with this text. */
static accel_tokenizer *load_text(accel_t *acc, const char *name, const char *text) {
    char path[300];
    const char *folder = folder_of("file");
    write_text(folder, name, text);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return accel_tokenizer_load(acc, path, NULL);
}

/* ---- ids ---- */

/* The ids of a text as words of a string, valid until the next call. */
static const char *ids_of(const accel_tokenizer *tokenizer, const char *text) {
    static char words[4000];
    int32_t ids[512];
    int count = accel_tokenize(tokenizer, text, NULL, 512, ids, NULL, NULL), used = 0;
    if (count < 0) return "-1";
    for (int i = 0; i < count; i++)
        used += snprintf(words + used, sizeof words - (size_t)used, i ? " %d" : "%d", ids[i]);
    return words;
}

/* The ids of a text must be these, in words. */
#define CHECK_IDS(tokenizer, text, expected) check_ids(__LINE__, tokenizer, text, expected)
static void check_ids(int line, const accel_tokenizer *tokenizer, const char *text, const char *expected) {
    const char *ids = ids_of(tokenizer, text);
    if (strcmp(ids, expected) == 0) return;
    test_faults++;
    printf("  %s:%d: \"%s\" gives %s, expected %s\n", __FILE__, line, text ? text : "(null)", ids, expected);
}

/* The same vocabulary, number for number. */
static bool same_vocabulary(const accel_tokenizer *a, const accel_tokenizer *b) {
    if (!a || !b || accel_vocabulary_size(a) != accel_vocabulary_size(b)) return false;
    for (int i = 0; i < accel_vocabulary_size(a); i++) {
        if (strcmp(accel_token_text(a, i), accel_token_text(b, i)) != 0) return false;
    }
    return true;
}

/* ---- equal to the library ---- */

static void check_file(const char *cases, const char *vocabulary) {
    accel_t *acc = context();
    cases_total total = {0, 0};
    cases_run(acc, cases, vocabulary, 3, &total);
    CHECK_FINE(acc);
    CHECK(total.cases > 40);
    CHECK(total.wrong == 0);
    accel_destroy(acc);
}

TEST(committed_cases_cased) { check_file("tests/cases/tokenizer/cased.json", CASED); }
TEST(committed_cases_uncased) { check_file("tests/cases/tokenizer/uncased.json", UNCASED); }
TEST(committed_cases_code_points) { check_file("tests/cases/tokenizer/unicode.json", CASED); }

TEST(shared_cases) {
    static const char *const names[] = {"cased", "uncased", "multilingual", "own_12000"};
    const char *shared = test_shared();
    if (!shared) SKIP("no ../shared");
    for (int i = 0; i < COUNT(names); i++) {
        char cases[4200], vocabulary[4200];
        snprintf(cases, sizeof cases, "%s/cases/tokenizer/%s.json", shared, names[i]);
        snprintf(vocabulary, sizeof vocabulary, "%s/data/vocab/%s.txt", shared, names[i]);
        check_file(cases, vocabulary);
    }
}

TEST(a_difference_is_noticed) {
    accel_t *acc = context();
    cases_total total = {0, 0};
    const char *folder = folder_of("wrong");
    write_text(folder, "cases.json",
               "[{'options': {}, 'max_length': 9, 'text': '', 'ids': [2, 3]},"
               "{'options': {}, 'max_length': 9, 'text': '', 'ids': [2]},"
               "{'options': {}, 'max_length': 9, 'text': '', 'ids': [2, 3, 3]},"
               "{'options': {}, 'max_length': 9, 'text': ''}]");
    CHECK(cases_run(acc, "build/tmp/tokenizer/wrong/cases.json", CASED, 0, &total));
    CHECK(total.cases == 4 && total.wrong == 3);
    accel_destroy(acc);
}

/* ---- options ---- */

TEST(options_come_from_the_folder_unless_given) {
    accel_t *acc = context();
    const char *folder = folder_of("options");
    write_text(folder, "vocab.txt",
               SPECIALS "Ab\nab\n\xC3\xA4\na\n\xE4\xB8\xAD\xE6\x96\x87\n\xE4\xB8\xAD\n\xE6\x96\x87\nA\n");
    accel_tokenizer *plain = accel_tokenizer_load(acc, folder, NULL);
    CHECK_IDS(plain, "Ab \xC3\xA4 \xE4\xB8\xAD\xE6\x96\x87", "2 6 8 10 11 3");
    write_text(folder, "tokenizer_config.json", "{'do_lower_case': false, 'tokenize_chinese_chars': false}");
    accel_tokenizer *cased = accel_tokenizer_load(acc, folder, NULL);
    CHECK_IDS(cased, "Ab \xC3\xA4 \xE4\xB8\xAD\xE6\x96\x87", "2 5 7 9 3");
    accel_tokenizer *given = accel_tokenizer_load(
        acc, folder,
        &(accel_tokenizer_desc){.lower_case = ACCEL_YES, .strip_accents = ACCEL_NO, .chinese_chars = ACCEL_YES});
    CHECK_IDS(given, "Ab \xC3\xA4 \xE4\xB8\xAD\xE6\x96\x87", "2 6 7 10 11 3");
    write_text(folder, "tokenizer_config.json", "{'do_lower_case': false, 'strip_accents': true}");
    accel_tokenizer *stripped = accel_tokenizer_load(acc, folder, NULL);
    CHECK_IDS(stripped, "Ab \xC3\xA4 \xC3\x84", "2 5 8 12 3");
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(tokenizer_json_gives_the_options_that_the_config_leaves_open) {
    accel_t *acc = context();
    const char *folder = folder_of("open");
    write_text(folder, "vocab.txt", SPECIALS "Ab\nab\n");
    write_text(folder, "tokenizer_config.json", "{'model_max_length': 512}");
    write_text(folder, "tokenizer.json", "{'normalizer': {'type': 'BertNormalizer', 'lowercase': false}}");
    CHECK_IDS(accel_tokenizer_load(acc, folder, NULL), "Ab", "2 5 3");
    write_text(folder, "tokenizer_config.json", "{'do_lower_case': true}");
    CHECK_IDS(accel_tokenizer_load(acc, folder, NULL), "Ab", "2 6 3");
    CHECK_FINE(acc);
    accel_destroy(acc);
}

/* What no vocabulary of common words shows: decompositions and capitals that Unicode versions disagree about. */
TEST(rare_code_points) {
    accel_t *acc = context();
    const char *folder = folder_of("rare");
    write_text(folder, "vocab.txt",
               SPECIALS "i\n##\xCC\x87\n\xF0\x91\xA4\xB8\n\xC9\xA4\n\xEA\x9F\x8D\n\xF0\x90\xB5\xB0\n");
    accel_tokenizer *kept = accel_tokenizer_load(acc, folder, &(accel_tokenizer_desc){.strip_accents = ACCEL_NO});
    accel_tokenizer *stripped = accel_tokenizer_load(acc, folder, NULL);
    CHECK_IDS(kept, "\xC4\xB0", "2 5 6 3");                                             /* U+0130 */
    CHECK_IDS(stripped, "\xC4\xB0", "2 5 3");
    CHECK_IDS(stripped, "\xF0\x91\xA4\xB8", "2 7 3");                                   /* U+11938 */
    CHECK_IDS(kept, "\xEA\x9F\x8B \xEA\x9F\x8C \xF0\x90\xB5\x90", "2 8 9 10 3"); /* U+A7CB, U+A7CC, U+10D50 */
    CHECK_FINE(acc);
    accel_destroy(acc);
}

static int notices_of_case(const char *vocabulary, accel_choice lower_case, notices *log) {
    *log = (notices){0};
    accel_t *acc = context_of((accel_desc){.threads = 1}, log);
    accel_tokenizer_load(acc, vocabulary, &(accel_tokenizer_desc){.lower_case = lower_case});
    CHECK_FINE(acc);
    accel_destroy(acc);
    return log->lines;
}

/* transformers#343: cased text was lower-cased, and nothing said so. */
TEST(case_that_does_not_fit_the_vocabulary_is_noticed) {
    notices log;
    CHECK(notices_of_case(CASED, ACCEL_NO, &log) == 0);
    CHECK(notices_of_case(UNCASED, ACCEL_YES, &log) == 0);
    CHECK(notices_of_case(CASED, ACCEL_YES, &log) == 1);
    CHECK_TEXT(log.last, "text is lower-cased");
    CHECK(notices_of_case(UNCASED, ACCEL_NO, &log) == 1);
    CHECK_TEXT(log.last, "not lower-cased");
}

/* ---- vocab.txt ---- */

TEST(numbers_are_lines) {
    accel_t *acc = context();
    accel_tokenizer *t = load_text(acc, "vocab.txt", SPECIALS "a\n##b\n");
    CHECK_FINE(acc);
    CHECK(accel_vocabulary_size(t) == 7);
    CHECK_TEXT(accel_token_text(t, 6), "##b");
    CHECK(!accel_token_text(t, 7) && !accel_token_text(t, -1) && !accel_token_text(NULL, 0));
    CHECK(accel_token_id(t, "a") == 5 && accel_token_id(t, "b") == -1 && accel_token_id(t, NULL) == -1);
    CHECK(accel_token_id(NULL, "a") == -1 && accel_vocabulary_size(NULL) == 0);
    CHECK_IDS(t, "ab abb ba A", "2 5 6 5 6 6 1 5 3");
    accel_destroy(acc);
}

TEST(special_tokens_lie_where_the_vocabulary_has_them) {
    accel_t *acc = context();
    CHECK_IDS(load_text(acc, "vocab.txt", "x\n[SEP]\na\n[UNK]\n[CLS]\n"), "a y [SEP] [MASK]", "4 2 3 1 3 3 3 1");
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(lines_as_transformers_reads_them) {
    notices log = {0};
    accel_t *acc = context_of((accel_desc){.threads = 1}, &log);
    CHECK_IDS(load_text(acc, "crlf", "[PAD]\r\n[UNK]\r\n[CLS]\r\n[SEP]\r\na\r\n##b"), "ab", "2 4 5 3");
    CHECK_IDS(load_text(acc, "mark", "\xEF\xBB\xBF" SPECIALS "a\n"), "a [PAD]", "2 5 0 3");
    CHECK_IDS(load_text(acc, "spaces", SPECIALS "a \ny\xE3\x80\x80\n\xC2\xA0x\nz\xC2\xA0\n"), "a y x z", "2 5 6 1 8 3");
    accel_tokenizer *empty = load_text(acc, "empty", SPECIALS "a\n\nb\n\n\n");
    CHECK_IDS(empty, "a b", "2 5 7 3");
    CHECK(accel_vocabulary_size(empty) == 10);
    CHECK(log.lines == 0);
    accel_tokenizer *twice = load_text(acc, "twice", SPECIALS "a\nb\na\nc\n");
    CHECK_IDS(twice, "a b c", "2 7 6 8 3");
    CHECK(accel_vocabulary_size(twice) == 9);
    CHECK(log.lines == 1);
    CHECK_TEXT(log.last, "line 8");
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(bad_vocabularies) {
    accel_t *acc = context();
    CHECK(!load_text(acc, "vocab.txt", ""));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "holds no tokens");
    CHECK(!load_text(acc, "vocab.txt", "[PAD]\n[CLS]\n[SEP]\na\n"));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "\"[UNK]\" (unk_token)");
    CHECK(!load_text(acc, "vocab.txt", "[PAD]\n[UNK]\n[SEP]\na\n"));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "\"[CLS]\" (cls_token)");
    CHECK(!load_text(acc, "vocab.txt", "[PAD]\n[UNK]\n[CLS]\na\n"));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "\"[SEP]\" (sep_token)");
    CHECK(!load_text(acc, "vocab.txt", SPECIALS "a\xFF\n"));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "line 6");
    write_bytes(folder_of("zero"), "vocab.txt", SPECIALS "a\0b\n", sizeof SPECIALS + 3);
    CHECK(!accel_tokenizer_load(acc, "build/tmp/tokenizer/zero", NULL));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "line 6");
    accel_destroy(acc);
}

TEST(bad_paths) {
    accel_t *acc = context();
    CHECK(!accel_tokenizer_load(acc, "build/tmp/no/such", NULL));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "build/tmp/no/such");
    CHECK(!accel_tokenizer_load(acc, folder_of("bare"), NULL));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "neither vocab.txt nor tokenizer.json");
    CHECK(!accel_tokenizer_load(acc, NULL, NULL));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "path");
    char long_path[5000];
    memset(long_path, 'x', sizeof long_path - 1);
    long_path[sizeof long_path - 1] = 0;
    CHECK(!accel_tokenizer_load(acc, long_path, NULL));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "xxx");
    CHECK(!accel_tokenizer_load(NULL, CASED, NULL));
    CHECK(!accel_tokenizer_save(NULL, "build/tmp"));
    accel_destroy(acc);
}

TEST(a_failed_context_loads_nothing) {
    accel_t *acc = context();
    accel__fail(acc, ACCEL_BAD_DATA, "an earlier failure");
    const char *text = "a b a b";
    CHECK(!accel_tokenizer_load(acc, CASED, NULL));
    CHECK(!accel_tokenizer_train(acc, &text, 1, NULL));
    CHECK_TEXT(accel_message(acc), "an earlier failure");
    accel_destroy(acc);
}

/* ---- special tokens under other names ---- */

TEST(names_of_special_tokens) {
    accel_t *acc = context();
    const char *folder = folder_of("names");
    write_text(folder, "vocab.txt", "<s>\n</s>\n<unk>\na\n<mask>\n<x>\n");
    write_text(folder, "special_tokens_map.json",
               "{'cls_token': '<s>', 'sep_token': {'content': '</s>'}, 'unk_token': 'a', "
               "'additional_special_tokens': ['<x>']}");
    write_text(folder, "tokenizer_config.json", "{'unk_token': '<unk>', 'mask_token': null}");
    CHECK_IDS(accel_tokenizer_load(acc, folder, NULL), "a b<x><y>", "0 3 2 5 2 2 2 1");
    CHECK_FINE(acc);
    write_text(folder, "tokenizer_config.json", "{'unk_token': '<unk>', 'mask_token': '<gone>'}");
    CHECK(!accel_tokenizer_load(acc, folder, NULL));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "\"<gone>\" (mask_token)");
    write_text(folder, "tokenizer_config.json", "{'unk_token': ");
    CHECK(!accel_tokenizer_load(acc, folder, NULL));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "tokenizer_config.json");
    write_text(folder, "tokenizer_config.json", "[]");
    CHECK(!accel_tokenizer_load(acc, folder, NULL));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "not a JSON object");
    accel_destroy(acc);
}

TEST(added_tokens_of_a_folder) {
    accel_t *acc = context();
    const char *folder = folder_of("added");
    write_text(folder, "vocab.txt", SPECIALS "a\nb\n");
    write_text(folder, "tokenizer_config.json",
               "{'added_tokens_decoder': {'7': {'content': '<T>', 'normalized': false, 'special': true}, "
               "'5': {'content': 'a'}}}");
    write_text(folder, "added_tokens.json", "{'second': 9, 'First': 8}");
    accel_tokenizer *t = accel_tokenizer_load(acc, folder, NULL);
    CHECK_FINE(acc);
    CHECK(accel_vocabulary_size(t) == 10);
    CHECK_IDS(t, "b<T>bab<t> FIRST seconds", "2 6 7 6 5 6 1 1 1 8 9 1 3");
    write_text(folder, "added_tokens.json", "{'First': 10}");
    CHECK(!accel_tokenizer_load(acc, folder, NULL));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "\"First\" has number 10");
    accel_destroy(acc);
}

TEST(added_tokens_that_overlap) {
    accel_t *acc = context();
    const char *folder = folder_of("overlap");
    write_text(folder, "vocab.txt", SPECIALS "world\n");
    write_text(folder, "tokenizer_config.json",
               "{'added_tokens_decoder': {'6': {'content': 'wor', 'normalized': false, 'single_word': true},"
               "'7': {'content': 'rld', 'normalized': false}, '8': {'content': 'rldrld', 'normalized': false},"
               "'9': {'content': 'or', 'normalized': false}}}");
    accel_tokenizer *t = accel_tokenizer_load(acc, folder, NULL);
    CHECK_FINE(acc);
    CHECK_IDS(t, "wor or", "2 6 9 3");
    CHECK_IDS(t, "world", "2 5 3"); /* "wor" is refused, and what begins in it is not looked at */
    CHECK_IDS(t, "orldxrld", "2 9 1 7 3");
    CHECK_IDS(t, "rldrldrld", "2 8 7 3"); /* the longest */
    accel_destroy(acc);
}

/* ---- tokenizer.json ---- */

#define FLAGS ", 'single_word': false, 'lstrip': false, 'rstrip': false, 'normalized': false, 'special': true}"
static const char small_json[] =
    "{'version': '1.0', 'truncation': null, 'padding': null, 'added_tokens': ["
    "{'id': 0, 'content': '<pad>'" FLAGS ", {'id': 1, 'content': '<unk>'" FLAGS ","
    "{'id': 2, 'content': '<cls>'" FLAGS ", {'id': 3, 'content': '<sep>'" FLAGS ","
    "{'id': 20, 'content': 'New York', 'single_word': false, 'normalized': true, 'special': false},"
    "{'id': 21, 'content': '[ENT]', 'single_word': true, 'normalized': false, 'special': true},"
    "{'id': 22, 'content': 'worlds', 'single_word': false, 'normalized': false, 'special': false}],"
    "'normalizer': {'type': 'BertNormalizer', 'clean_text': true, 'handle_chinese_chars': true, 'strip_accents': null,"
    "'lowercase': true}, 'pre_tokenizer': {'type': 'BertPreTokenizer'},"
    "'post_processor': {'type': 'BertProcessing', 'sep': ['<sep>', 3], 'cls': ['<cls>', 2]}, 'decoder': null,"
    "'model': {'type': 'WordPiece', 'unk_token': '<unk>', 'continuing_subword_prefix': '@@',"
    "'max_input_chars_per_word': 10, 'vocab': {'<pad>': 0, '<unk>': 1, '<cls>': 2, '<sep>': 3, 'un': 4, '@@aff': 5,"
    "'@@able': 6, 'hello': 7, 'world': 8, 'new': 9, 'york': 10, '!': 11, '@@s': 12, '@@york': 13, 'the': 14,"
    "'[': 15, ']': 16, 'e': 17, '@@n': 18, '@@t': 19}}}";

static const struct {
    const char *text, *ids;
} small_ids[] = {
    {"unaffable", "2 4 5 6 3"},
    {"unaffables", "2 4 5 6 12 3"},
    {"unaffableun", "2 1 3"}, /* more than 10 characters */
    {"hello world!", "2 7 8 11 3"},
    {"NEW  york", "2 9 10 3"},
    {"New York", "2 20 3"},
    {"in new YORK!", "2 1 20 11 3"},
    {"N\xC3\xA9w York", "2 20 3"},
    {"hellonew yorks", "2 7 20 1 3"},
    {"newyork", "2 9 13 3"},
    {"[ENT]", "2 21 3"},
    {"[ENT]s", "2 15 17 18 19 16 1 3"},
    {"the [ent]", "2 14 15 17 18 19 16 3"},
    {"the[ENT]", "2 14 15 17 18 19 16 3"},
    {"[ENT]\xC3\xA9", "2 15 17 18 19 16 17 3"},
    {"\xC2\xBD[ENT].", "2 1 21 1 3"},
    {"_[ENT]", "2 1 15 17 18 19 16 3"},
    {"worlds", "2 22 3"},
    {"WORLDS", "2 8 12 3"}, /* added tokens are no pieces */
    {"hello<sep>world", "2 7 3 8 3"},
};

TEST(tokenizer_json_alone) {
    accel_t *acc = context();
    const char *folder = folder_of("json");
    write_text(folder, "tokenizer.json", small_json);
    accel_tokenizer *t = accel_tokenizer_load(acc, folder, NULL);
    CHECK_FINE(acc);
    CHECK(accel_vocabulary_size(t) == 23);
    for (int i = 0; i < COUNT(small_ids); i++) CHECK_IDS(t, small_ids[i].text, small_ids[i].ids);
    /* What was loaded is saved in another form, and that gives the same ids. */
    CHECK(accel_tokenizer_save(t, "build/tmp/tokenizer/json/again"));
    accel_tokenizer *again = accel_tokenizer_load(acc, "build/tmp/tokenizer/json/again", NULL);
    CHECK_FINE(acc);
    CHECK(same_vocabulary(t, again));
    for (int i = 0; i < COUNT(small_ids); i++) CHECK_IDS(again, small_ids[i].text, small_ids[i].ids);
    accel_destroy(acc);
}

/* small_json with one part replaced. */
static accel_tokenizer *load_changed(accel_t *acc, const char *from, const char *to) {
    static char changed[sizeof small_json + 200];
    const char *at = strstr(small_json, from);
    CHECK(at != NULL);
    if (!at) return NULL;
    snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - small_json), small_json, to, at + strlen(from));
    return load_text(acc, "tokenizer.json", changed);
}

TEST(tokenizer_json_in_other_forms) {
    accel_t *acc = context();
    accel_tokenizer *gap = load_changed(acc, ", '@@n': 18", ""); /* numbers may leave gaps */
    CHECK_FINE(acc);
    CHECK(accel_vocabulary_size(gap) == 23);
    CHECK(accel_token_text(gap, 18) && !*accel_token_text(gap, 18));
    CHECK_IDS(load_changed(acc, "'lowercase': true", "'lowercase': false"), "hello Hello", "2 7 1 3");
    CHECK_IDS(
        load_changed(acc, "'BertProcessing', 'sep': ['<sep>', 3], 'cls': ['<cls>', 2]",
                     "'TemplateProcessing', 'single': [{'SpecialToken': {'id': '<sep>'}}, {'Sequence': {}},"
                     "{'SpecialToken': {'id': '<cls>'}}]"),
        "hello", "3 7 2");
    CHECK_IDS(load_changed(acc, "'normalizer': {", "'normalizer': null, 'unused': {"), "Hello \xC2\xADhello",
              "2 1 1 3");
    const char *folder = folder_of("unclean"); /* control characters stay, and the text still ends where it does */
    write_text(folder, "vocab.txt", SPECIALS "a\n##\x01\n##b\n\x01\n");
    write_text(folder, "tokenizer_config.json", "{'clean_text': false}");
    char *text = strdup("a\x01 \x01" "b");
    CHECK_IDS(accel_tokenizer_load(acc, folder, NULL), text, "2 5 6 8 7 3");
    free(text);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(bad_tokenizer_json) {
    static const struct {
        const char *from, *to, *message;
    } faults[] = {
        {"{'version'", "{{'version'", "malformed JSON"},
        {"'WordPiece'", "'BPE'", "its model is BPE"},
        {"'BertNormalizer'", "'NFC'", "its normalizer is NFC"},
        {"'BertPreTokenizer'", "'Whitespace'", "its pre_tokenizer is Whitespace"},
        {"'vocab': {", "'vocab': {}, 'other': {", "model.vocab"},
        {"'vocab': {", "'other': {", "model.vocab"},
        {"'un': 4", "'un': 5", "same number 5"},
        {"'un': 4", "'un': -4", "\"un\""},
        {"'un': 4", "'un': 4.5", "\"un\""},
        {"'un': 4", "'un': 1e9", "\"un\""},
        {"'un': 4", "'un': '4'", "\"un\""},
        {"'un': 4", "'u\xFFn': 4", "not UTF-8"},
        {"'unk_token': '<unk>'", "'unk_token': '<none>'", "\"<none>\" (unk_token)"},
        {"_per_word': 10", "_per_word': 0", "max_input_chars_per_word"},
        {"_per_word': 10", "_per_word': 1e6", "max_input_chars_per_word"},
        {"{'id': 22, 'content': 'worlds'", "{'id': 22, 'content': 5", "without content"},
        {"{'id': 22", "{'id': 25", "\"worlds\" has number 25"},
        {"'york': 10", "'york': 30", "\"New York\" has number 20"},
    };
    accel_t *acc = context();
    for (int i = 0; i < COUNT(faults); i++) {
        CHECK(!load_changed(acc, faults[i].from, faults[i].to));
        CHECK_ERROR(acc, ACCEL_BAD_FILE, faults[i].message);
    }
    CHECK(!load_text(acc, "tokenizer.json", "[]"));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "not a JSON object");
    accel_destroy(acc);
}

/* ---- encoding ---- */

TEST(pairs_are_cut_longest_first) {
    static const struct {
        int first, second, room, kept_first, kept_second;
    } cuts[] = {
        {0, 0, 7, 0, 0}, {0, 2, 7, 0, 2}, {0, 8, 7, 0, 7}, {2, 2, 7, 2, 2}, {2, 4, 7, 2, 4}, {2, 8, 7, 2, 5},
        {4, 0, 7, 4, 0}, {4, 4, 7, 3, 4}, {4, 8, 7, 3, 4}, {8, 0, 7, 7, 0}, {8, 2, 7, 5, 2}, {8, 4, 7, 4, 3},
        {8, 8, 7, 3, 4}, {8, 8, 0, 0, 0}, {3, 1, 1, 1, 0}, {1, 3, 1, 0, 1}, {5, 5, 10, 5, 5}, {5, 5, 9, 4, 5},
    };
    accel_t *acc = context();
    accel_tokenizer *t = load_text(acc, "vocab.txt", SPECIALS "a\nb\n");
    for (int i = 0; i < COUNT(cuts); i++) {
        char first[20] = "", second[20] = "";
        int32_t ids[20], types[20], full = -1;
        for (int k = 0; k < cuts[i].first; k++) strcat(first, "a ");
        for (int k = 0; k < cuts[i].second; k++) strcat(second, "b ");
        int count = accel_tokenize(t, first, second, cuts[i].room + 3, ids, types, &full);
        int separator = cuts[i].kept_first + 1;
        CHECK(count == cuts[i].kept_first + cuts[i].kept_second + 3);
        CHECK(full == cuts[i].first + cuts[i].second + 3);
        CHECK(ids[0] == 2 && ids[separator] == 3 && ids[count - 1] == 3);
        for (int k = 1; k < count - 1; k++) CHECK(k == separator || ids[k] == (k < separator ? 5 : 6));
        for (int k = 0; k < count; k++) CHECK(types[k] == (k > separator));
    }
    accel_destroy(acc);
}

TEST(lengths_too_small_for_the_special_tokens) {
    accel_t *acc = context();
    accel_tokenizer *t = load_text(acc, "vocab.txt", SPECIALS "a\nb\n");
    int32_t ids[8], full = -1;
    CHECK(accel_tokenize(t, "a b a", NULL, 0, NULL, NULL, &full) == 0 && full == 5); /* measures without room */
    CHECK(accel_tokenize(t, "a b a", NULL, 1, ids, NULL, NULL) == 0);
    CHECK(accel_tokenize(t, "a b a", NULL, -5, NULL, NULL, NULL) == 0);
    CHECK(accel_tokenize(t, "a b a", NULL, 2, ids, NULL, &full) == 2 && ids[0] == 2 && ids[1] == 3 && full == 5);
    CHECK(accel_tokenize(t, "a", "b", 2, ids, NULL, &full) == 0 && full == 5);
    CHECK(accel_tokenize(t, "a", "b", 3, ids, NULL, &full) == 3 && ids[1] == 3 && ids[2] == 3);
    accel_destroy(acc);
}

TEST(empty_texts) {
    accel_t *acc = context();
    accel_tokenizer *t = load_text(acc, "vocab.txt", SPECIALS "a\n");
    int32_t ids[8], full;
    CHECK_IDS(t, NULL, "2 3");
    CHECK_IDS(t, "", "2 3");
    CHECK_IDS(t, " \t\r\n\xE2\x80\xA8\xEF\xBB\xBF", "2 3");
    CHECK(accel_tokenize(t, NULL, "", 8, ids, NULL, &full) == 3 && full == 3);
    CHECK(accel_tokenize(NULL, "a", NULL, 8, ids, NULL, NULL) == -1);
    accel_destroy(acc);
}

TEST(words_of_a_hundred_characters_and_more) {
    accel_t *acc = context();
    const char *folder = folder_of("umlauts");
    write_text(folder, "vocab.txt", SPECIALS "\xC3\xA4\n##\xC3\xA4\n");
    accel_tokenizer *t = accel_tokenizer_load(acc, folder, &(accel_tokenizer_desc){.strip_accents = ACCEL_NO});
    CHECK_FINE(acc);
    static char text[2 * 100000 + 1];
    int32_t ids[512];
    for (int chars = 99; chars <= 102; chars++) {
        for (int i = 0; i < chars; i++) memcpy(text + 2 * i, "\xC3\xA4", 3);
        CHECK(accel_tokenize(t, text, NULL, 512, ids, NULL, NULL) == (chars <= 100 ? chars + 2 : 3));
        CHECK(ids[1] == (chars <= 100 ? 5 : 1));
    }
    for (int i = 0; i < 100000; i++) memcpy(text + 2 * i, "\xC3\xA4", 3);
    CHECK_IDS(t, text, "2 1 3");
    accel_destroy(acc);
}

TEST(long_texts) {
    accel_t *acc = context();
    accel_tokenizer *t = load_text(acc, "vocab.txt", SPECIALS "a\n");
    enum { WORDS = 1000000 };
    char *text = malloc(2 * WORDS + 1);
    int32_t ids[16], full = 0;
    for (int i = 0; i < WORDS; i++) memcpy(text + 2 * i, "a ", 3);
    CHECK(accel_tokenize(t, text, NULL, 16, ids, NULL, &full) == 16 && full == WORDS + 2 && ids[14] == 5 &&
          ids[15] == 3);
    CHECK(accel_tokenize(t, text, text, 16, ids, NULL, &full) == 16 && full == 2 * WORDS + 3);
    free(text);
    accel_destroy(acc);
}

/* ---- invalid UTF-8 ---- */

static const char *const invalid[] = {
    "a\x80", "\xBF.a", "\xC0\x80", "\xC1\xBF", "\xC3", "\xC3.", "\xE0\x80\x80", "\xE2\x82", "\xE2\x82.a",
    "\xED\xA0\x80", "\xED\xBF\xBF", "\xF0\x80\x80\x80", "\xF0\x9F\x98", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF",
    "\xFE", "aa\xFF\x80", "\xFF\xFF.",
};

TEST(invalid_text_is_refused_or_replaced) {
    accel_t *acc = context();
    accel_tokenizer *strict = load_text(acc, "vocab.txt", SPECIALS "a\n##a\naaaa\n");
    accel_tokenizer *lenient = accel_tokenizer_load(acc, "build/tmp/tokenizer/file/vocab.txt",
                                                    &(accel_tokenizer_desc){.replace_invalid = ACCEL_YES});
    int32_t ids[16];
    for (int i = 0; i < COUNT(invalid); i++) {
        char kept[16] = "";
        for (const char *at = invalid[i]; *at; at++)
            if (!(*at & 0x80)) strncat(kept, at, 1); /* U+FFFD is dropped, as by the library */
        char expected[200];
        snprintf(expected, sizeof expected, "%s", ids_of(strict, kept));
        CHECK(accel_tokenize(strict, invalid[i], NULL, 16, ids, NULL, NULL) == -1);
        CHECK(accel_tokenize(strict, "a", invalid[i], 16, ids, NULL, NULL) == -1);
        CHECK(accel_tokenize(strict, invalid[i], NULL, 0, NULL, NULL, NULL) == -1);
        CHECK_IDS(lenient, invalid[i], expected);
    }
    CHECK_FINE(acc);
    accel_destroy(acc);
}

/* ---- any bytes at all ---- */

/* Some text of up to 60 random bytes or characters. */
static void random_text(uint64_t *random, char *text) {
    static const char *const parts[] = {"[MASK]",   "[SEP]",        "[", "the", "New York", "e\xCC\x81",
                                        "\xC4\xB0", "\xEA\xB0\x80", "##"};
    bool bytes = random_int(random, 0, 3) == 0;
    int count = random_int(random, 0, 16);
    for (int i = 0; i < count; i++) {
        int kind = random_int(random, 0, 4);
        if (bytes) *text++ = (char)random_int(random, 1, 256);
        else if (kind == 0) text += sprintf(text, "%s", parts[random_int(random, 0, COUNT(parts))]);
        else if (kind == 1) *text++ = (char)random_int(random, 1, 128);
        else {
            int c = random_int(random, 1, kind == 2 ? 0x3100 : 0x110000);
            text += utf8proc_encode_char(c >= 0xD800 && c < 0xE000 ? 'x' : c, (utf8proc_uint8_t *)text);
        }
    }
    *text = 0;
}

static void check_random_text(const accel_tokenizer *t, uint64_t *random) {
    enum { ROOM = 256, GUARD = -77 };
    char text[200], pair[200];
    int32_t whole[ROOM], ids[ROOM + 1], types[ROOM + 1], full = -1;
    random_text(random, text);
    random_text(random, pair);
    const char *second = random_int(random, 0, 2) ? pair : NULL;
    int length = random_int(random, 0, 24), all = accel_tokenize(t, text, NULL, ROOM, whole, NULL, NULL);
    for (int i = 0; i <= ROOM; i++) ids[i] = types[i] = GUARD;
    int count = accel_tokenize(t, text, second, length, ids, types, &full);
    CHECK(count <= length && (all >= 0 || count < 0));
    for (int i = count > 0 ? count : 0; i <= ROOM && count >= 0; i++) CHECK(types[i] == GUARD);
    for (int i = length; i <= ROOM; i++) CHECK(ids[i] == GUARD);
    for (int i = 0; i < count; i++) CHECK(ids[i] >= 0 && ids[i] < accel_vocabulary_size(t));
    if (count > 0) CHECK(count == (full < length ? full : length));
    for (int i = 0; !second && i < count - 1; i++) CHECK(ids[i] == whole[i]);
}

TEST(random_bytes_and_characters) {
    accel_t *acc = context();
    uint64_t random = 5;
    accel_tokenizer *tokenizers[] = {
        load_text(acc, "tokenizer.json", small_json),
        accel_tokenizer_load(acc, UNCASED, NULL),
        accel_tokenizer_load(acc, CASED, &(accel_tokenizer_desc){.lower_case = ACCEL_NO, .replace_invalid = ACCEL_YES}),
        accel_tokenizer_load(acc, CASED,
                             &(accel_tokenizer_desc){.strip_accents = ACCEL_YES, .replace_invalid = ACCEL_YES}),
    };
    CHECK_FINE(acc);
    for (int i = 0; i < 20000; i++) check_random_text(tokenizers[i % COUNT(tokenizers)], &random);
    accel_destroy(acc);
}

/* ---- threads ---- */

enum { RACE_TEXTS = 400, RACE_ROOM = 48 };
typedef struct race {
    const accel_tokenizer *tokenizer;
    int32_t ids[RACE_TEXTS][RACE_ROOM];
    int count[RACE_TEXTS];
} race;

static void *run_race(void *argument) {
    race *r = argument;
    uint64_t random = 11;
    for (int i = 0; i < RACE_TEXTS; i++) {
        char text[200], pair[200];
        random_text(&random, text);
        random_text(&random, pair);
        r->count[i] = accel_tokenize(r->tokenizer, text, i % 2 ? pair : NULL, RACE_ROOM, r->ids[i], NULL, NULL);
    }
    return NULL;
}

TEST(threads_share_a_tokenizer) {
    accel_t *acc = context();
    static race races[4];
    pthread_t threads[3];
    accel_tokenizer *t = load_text(acc, "tokenizer.json", small_json);
    for (int i = 0; i < 4; i++) races[i].tokenizer = t;
    for (int i = 0; i < 3; i++) CHECK(pthread_create(&threads[i], NULL, run_race, &races[i]) == 0);
    run_race(&races[3]);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 3; i++) CHECK(memcmp(&races[i], &races[3], sizeof races[3]) == 0);
    accel_destroy(acc);
}

/* ---- saving ---- */

TEST(saved_folder_loads_again) {
    accel_t *acc = context();
    accel_tokenizer *cased =
        accel_tokenizer_load(acc, CASED, &(accel_tokenizer_desc){.lower_case = ACCEL_NO, .strip_accents = ACCEL_YES});
    CHECK(accel_tokenizer_save(cased, "build/tmp/tokenizer/saved/a/b"));
    accel_tokenizer *again = accel_tokenizer_load(acc, "build/tmp/tokenizer/saved/a/b", NULL);
    CHECK_FINE(acc);
    CHECK(same_vocabulary(cased, again));
    const char *text = "Der Fr\xC3\xBChling [MASK] kommt, na\xC3\xAFve \xE4\xB8\xAD\xE6\x96\x87 [CLS]";
    char expected[4000];
    snprintf(expected, sizeof expected, "%s", ids_of(cased, text));
    CHECK(strcmp(expected, ids_of(accel_tokenizer_load(acc, UNCASED, NULL), text)) != 0);
    CHECK_IDS(again, text, expected);
    accel_destroy(acc);
}

TEST(saving_keeps_what_only_transformers_reads) {
    accel_t *acc = context();
    const char *folder = folder_of("kept");
    write_text(folder, "vocab.txt", SPECIALS "a\n");
    write_text(folder, "tokenizer_config.json", "{'do_lower_case': true, 'model_max_length': 300}");
    CHECK(accel_tokenizer_save(accel_tokenizer_load(acc, folder, NULL), folder));
    cJSON *config = accel__json_read(acc, "build/tmp/tokenizer/kept/tokenizer_config.json");
    CHECK_NEAR(cJSON_GetNumberValue(accel__json_get(config, "model_max_length")), 300, 0);
    CHECK_TEXT(cJSON_GetStringValue(accel__json_get(config, "mask_token")), "[MASK]");
    CHECK(cJSON_IsNull(accel__json_get(config, "strip_accents")));
    cJSON_Delete(config);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(a_tokenizer_json_in_the_way_is_noticed) {
    notices log = {0};
    accel_t *acc = context_of((accel_desc){.threads = 1}, &log);
    accel_tokenizer *t = load_text(acc, "vocab.txt", SPECIALS "a\n");
    const char *folder = folder_of("stale");
    write_text(folder, "tokenizer.json", small_json);
    CHECK(accel_tokenizer_save(t, folder) && log.lines == 1);
    CHECK_TEXT(log.last, "build/tmp/tokenizer/stale/tokenizer.json");
    accel_destroy(acc);
}

TEST(folders_that_cannot_be_written) {
    accel_t *acc = context();
    accel_tokenizer *t = load_text(acc, "vocab.txt", SPECIALS "a\n");
    CHECK(!accel_tokenizer_save(t, "build/tmp/tokenizer/file/vocab.txt/below"));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "vocab.txt");
    CHECK(!accel_tokenizer_save(t, NULL));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "folder");
    accel_tokenizer *broken = load_changed(acc, "'york': 10", "'yo\\nrk': 10");
    CHECK_FINE(acc);
    const char *folder = folder_of("unwritten");
    CHECK(!accel_tokenizer_save(broken, folder));
    CHECK_ERROR(acc, ACCEL_BAD_DATA, "token 10");
    CHECK(!is_there(folder, "vocab.txt") && !is_there(folder, "tokenizer_config.json"));
    accel_destroy(acc);
}

/* ---- the trainer ---- */

/* `count` times the word, in one text. */
static void repeat(char *text, const char *word, int count) {
    *text = 0;
    for (int i = 0; i < count; i++) strcat(strcat(text, word), " ");
}

static accel_tokenizer *train_hugs(accel_t *acc, const accel_vocabulary_desc *desc) {
    static char text[5][200];
    const char *texts[5] = {text[0], text[1], text[2], text[3], text[4]};
    repeat(text[0], "hug", 10);
    repeat(text[1], "pug", 5);
    repeat(text[2], "Pun", 12);
    repeat(text[3], "bun", 4);
    repeat(text[4], "hugs", 5);
    return accel_tokenizer_train(acc, texts, 5, desc);
}

/* The vocabulary behind the special tokens, separated by spaces. */
static const char *learned(const accel_tokenizer *t) {
    static char words[4000];
    words[0] = 0;
    for (int i = ACCEL__SPECIALS; i < accel_vocabulary_size(t); i++) {
        if (*words) strcat(words, " ");
        strcat(words, accel_token_text(t, i));
    }
    return words;
}

#define CHECK_LEARNED(tokenizer, expected) check_learned(__LINE__, tokenizer, expected)
static void check_learned(int line, const accel_tokenizer *tokenizer, const char *expected) {
    const char *words = learned(tokenizer);
    if (strcmp(words, expected) == 0) return;
    test_faults++;
    printf("  %s:%d: learned %s, expected %s\n", __FILE__, line, words, expected);
}

TEST(learned_vocabulary) {
    accel_t *acc = context();
    accel_tokenizer *t = train_hugs(acc, NULL);
    static const char *const specials[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
    for (int i = 0; i < COUNT(specials); i++) CHECK_TEXT(accel_token_text(t, i), specials[i]);
    CHECK_LEARNED(t, "b g h n p s u ##g ##n ##s ##u ##ug ##un hug pun pug hugs bun");
    CHECK_IDS(t, "Hugs [MASK] punug x", "2 21 4 19 16 1 3");
    CHECK_LEARNED(train_hugs(acc, &(accel_vocabulary_desc){.size = 19}), "b g h n p s u ##g ##n ##s ##u ##ug ##un hug");
    CHECK_LEARNED(train_hugs(acc, &(accel_vocabulary_desc){.min_frequency = 11}),
                  "b g h n p s u ##g ##n ##s ##u ##ug ##un hug pun");
    CHECK_LEARNED(train_hugs(acc, &(accel_vocabulary_desc){.max_alphabet = 4, .min_frequency = 30}),
                  "g n p u ##g ##n ##u");
    CHECK_LEARNED(train_hugs(acc, &(accel_vocabulary_desc){.min_frequency = 30, .tokenizer = {.lower_case = ACCEL_NO}}),
                  "P b g h n p s u ##g ##n ##s ##u");
    accel_destroy(acc);
}

/* Merges that meet themselves: the second token of one pair is the first of the next. */
TEST(learned_from_repeated_characters) {
    accel_t *acc = context();
    const char *texts[] = {"aaaa aaaa aaaa", NULL, "aaaaaaa"};
    CHECK_LEARNED(accel_tokenizer_train(acc, texts, 3, &(accel_vocabulary_desc){.min_frequency = 1}),
                  "a ##a ##aa aaa aaaa ##aaaa aaaaaaa");
    accel_destroy(acc);
}

TEST(size_is_kept_where_the_alphabet_is_too_large) {
    notices log = {0};
    accel_t *acc = context_of((accel_desc){.threads = 1}, &log);
    accel_tokenizer *t = train_hugs(acc, &(accel_vocabulary_desc){.size = 10});
    CHECK_LEARNED(t, "g p u ##g ##u");
    CHECK(log.lines == 1);
    accel_destroy(acc);
}

TEST(training_is_the_same_in_any_order) {
    static const char *const words[] = {
        "lorem", "ipsum", "dolor", "sit", "amet", "consectetur", "adipiscing", "elit", "sed", "dolore",
        "\xD0\xBF\xD1\x80\xD0\xB8\xD0\xB2\xD0\xB5\xD1\x82", "\xE4\xB8\xAD\xE6\x96\x87"};
    enum { TEXTS = 500 };
    static char text[TEXTS][200];
    const char *forth[TEXTS], *back[TEXTS];
    uint64_t random = 3;
    for (int i = 0; i < TEXTS; i++) {
        for (int k = random_int(&random, 0, 8); k > 0; k--) {
            strcat(text[i], words[random_int(&random, 0, COUNT(words))]);
            strcat(text[i], random_int(&random, 0, 3) ? " " : words[random_int(&random, 0, COUNT(words))]);
        }
        forth[i] = back[TEXTS - 1 - i] = text[i];
    }
    accel_t *acc = context();
    accel_vocabulary_desc desc = {.size = 300};
    accel_tokenizer *a = accel_tokenizer_train(acc, forth, TEXTS, &desc);
    accel_tokenizer *b = accel_tokenizer_train(acc, back, TEXTS, &desc);
    CHECK_FINE(acc);
    CHECK(accel_vocabulary_size(a) > 150 && accel_vocabulary_size(a) <= 300);
    CHECK(same_vocabulary(a, b));
    for (int i = 0; i < TEXTS; i++) { /* every character was seen, so nothing is unknown */
        int32_t ids[200];
        int count = accel_tokenize(a, text[i], NULL, 200, ids, NULL, NULL);
        for (int k = 0; k < count; k++) CHECK(ids[k] != 1);
    }
    accel_destroy(acc);
}

TEST(bad_training) {
    accel_t *acc = context();
    const char *texts[] = {"good", "b\xFF" "d"}, *blank = " \n";
    CHECK(!accel_tokenizer_train(acc, texts, 2, NULL));
    CHECK_ERROR(acc, ACCEL_BAD_DATA, "text 2 of 2");
    accel_vocabulary_desc lenient = {.tokenizer = {.replace_invalid = ACCEL_YES}};
    CHECK(accel_tokenizer_train(acc, texts, 2, &lenient) != NULL);
    CHECK_FINE(acc);
    CHECK(!accel_tokenizer_train(acc, &blank, 1, NULL));
    CHECK_ERROR(acc, ACCEL_BAD_DATA, "no words in 1 texts");
    CHECK(!accel_tokenizer_train(acc, NULL, 0, NULL));
    CHECK_ERROR(acc, ACCEL_BAD_DATA, "no words");
    CHECK(!accel_tokenizer_train(acc, NULL, 3, NULL));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "texts");
    CHECK(!accel_tokenizer_train(acc, texts, -1, NULL));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "texts");
    CHECK(!accel_tokenizer_train(acc, texts, 1, &(accel_vocabulary_desc){.size = 5}));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "size 5");
    CHECK(!accel_tokenizer_train(acc, texts, 1, &(accel_vocabulary_desc){.min_frequency = -1}));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "min_frequency");
    CHECK(!accel_tokenizer_train(NULL, texts, 1, NULL));
    accel_destroy(acc);
}

/* ---- memory ---- */

typedef struct meter {
    int64_t calls, fail_at, blocks;
} meter;

static void *meter_reallocate(void *user, void *pointer, size_t bytes) {
    meter *m = user;
    if (!bytes) {
        m->blocks -= pointer != NULL;
        free(pointer);
        return NULL;
    }
    if (m->fail_at && ++m->calls == m->fail_at) return NULL;
    void *grown = realloc(pointer, bytes);
    m->blocks += grown && !pointer;
    return grown;
}

static void load_and_train(accel_t *acc, int which) {
    if (which == 0) accel_tokenizer_load(acc, UNCASED, NULL);
    if (which == 1) accel_tokenizer_load(acc, "build/tmp/tokenizer/file/tokenizer.json", NULL);
    if (which == 2) train_hugs(acc, NULL);
}

TEST(lack_of_memory_is_an_error) {
    accel_t *writer = context();
    load_text(writer, "tokenizer.json", small_json);
    CHECK_FINE(writer);
    accel_destroy(writer);
    for (int which = 0; which < 3; which++) {
        bool failed = true;
        for (int64_t at = 1; failed && at < 500; at++) {
            meter m = {0};
            accel_t *acc = context_of((accel_desc){.threads = 1, .allocator = {meter_reallocate, &m}}, NULL);
            m.fail_at = at;
            load_and_train(acc, which);
            failed = accel_failed(acc);
            if (failed) CHECK_ERROR(acc, ACCEL_OUT_OF_MEMORY, "");
            m.fail_at = 0;
            accel_destroy(acc);
            CHECK(m.blocks == 0);
            if (at == 1) CHECK(failed);
        }
        CHECK(!failed);
    }
}

TEST(freed_before_its_context) {
    accel_t *acc = context();
    size_t before = accel_memory_used(acc).bytes;
    for (int i = 0; i < 3; i++) accel_free(accel_tokenizer_load(acc, CASED, NULL));
    CHECK(accel_memory_used(acc).bytes == before);
    accel_destroy(acc);
}

int main(int argc, char **argv) { return test_main(argc, argv); }
