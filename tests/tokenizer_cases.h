/* Compares accel_tokenize with a file of cases from Hugging Face's library: an array of {options: {lowercase,
   strip_accents, chinese}, max_length, text, pair, ids, type_ids}; type_ids may be left out. Include after the
   implementation of accel_io.h. */
#ifndef TOKENIZER_CASES_H
#define TOKENIZER_CASES_H

#include <cjson/cJSON.h>

typedef struct cases_total {
    int cases, wrong;
} cases_total;

/* Takes the escape of U+0000 out of a JSON text: a C string ends there, and the library drops the character anyway. */
static void cases_drop_zeros(char *json) {
    char *out = json;
    for (char *at = json; *at;) {
        if (*at == '\\' && strncmp(at, "\\u0000", 6) == 0) {
            at += 6;
            continue;
        }
        if (*at == '\\' && at[1]) *out++ = *at++;
        *out++ = *at++;
    }
    *out = 0;
}

static cJSON *cases_read(accel_t *acc, const char *path) {
    size_t bytes;
    char *text = accel__read_file(acc, path, &bytes);
    if (!text) return NULL;
    cases_drop_zeros(text);
    cJSON *cases = cJSON_Parse(text);
    accel__free(acc, text);
    if (cJSON_IsArray(cases)) return cases;
    accel__fail(acc, ACCEL_BAD_FILE, "%s is not a JSON array", path);
    cJSON_Delete(cases);
    return NULL;
}

static accel_choice cases_choice(const cJSON *options, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(options, key);
    return cJSON_IsBool(item) ? cJSON_IsTrue(item) ? ACCEL_YES : ACCEL_NO : ACCEL_DEFAULT;
}

static bool cases_same(const cJSON *expected, const int32_t *ids, int count) {
    int i = 0;
    const cJSON *item;
    if (!cJSON_IsArray(expected)) return false;
    cJSON_ArrayForEach(item, expected) {
        if (i >= count || item->valueint != ids[i]) return false;
        i++;
    }
    return i == count;
}

static void cases_show(int number, const cJSON *item, const int32_t *ids, const int32_t *types, int count) {
    char *expected = cJSON_PrintUnformatted(item);
    printf("case %d: %.2000s\n  gives", number, expected);
    for (int i = 0; i < count; i++) printf(" %d", ids[i]);
    printf("\n  types");
    for (int i = 0; i < count; i++) printf(" %d", types[i]);
    printf("\n");
    cJSON_free(expected);
}

/* Runs every case of a file on a vocabulary; prints the first `show` differences. False where a file is of no use. */
static bool cases_run(accel_t *acc, const char *path, const char *vocabulary, int show, cases_total *total) {
    cJSON *cases = cases_read(acc, path), *item;
    accel_tokenizer *tokenizer = NULL;
    accel_tokenizer_desc now = {0};
    static int32_t ids[4096], types[4096];
    cJSON_ArrayForEach(item, cases) {
        const cJSON *options = cJSON_GetObjectItemCaseSensitive(item, "options");
        accel_tokenizer_desc desc = {
            .lower_case = cases_choice(options, "lowercase"),
            .strip_accents = cases_choice(options, "strip_accents"),
            .chinese_chars = cases_choice(options, "chinese"),
        };
        if (!tokenizer || memcmp(&desc, &now, sizeof desc) != 0) {
            accel_free(tokenizer);
            tokenizer = accel_tokenizer_load(acc, vocabulary, &desc);
            now = desc;
        }
        const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "text"));
        const char *pair = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "pair"));
        const cJSON *max_length = cJSON_GetObjectItemCaseSensitive(item, "max_length");
        if (!tokenizer || !text || !cJSON_IsNumber(max_length) || max_length->valueint > 4096) {
            accel__fail(acc, ACCEL_BAD_FILE, "%s: case %d has no text or no max_length up to 4096", path, total->cases);
            break;
        }
        int count = accel_tokenize(tokenizer, text, pair, max_length->valueint, ids, types, NULL);
        const cJSON *type_ids = cJSON_GetObjectItemCaseSensitive(item, "type_ids");
        bool same = cases_same(cJSON_GetObjectItemCaseSensitive(item, "ids"), ids, count) &&
                    (!type_ids || cases_same(type_ids, types, count));
        if (!same && total->wrong++ < show) cases_show(total->cases, item, ids, types, count);
        total->cases++;
    }
    cJSON_Delete(cases);
    accel_free(tokenizer);
    return !accel_failed(acc);
}

#endif
