/* The encoder, its training, optimizers and schedules against figures of PyTorch, Transformers and Accelerate. */
#define ACCEL_IMPLEMENTATION
#include "accel_io.h"

#include "case.h"
#include "test.h"

#define DISTURBED "build/tmp/disturbed_case"

/* Every case of a folder must be within its tolerance. */
static void check_folder(const char *folder, int threads) {
    case_check check = {.threads = threads};
    CHECK(case_check_folder(&check, folder));
    if (check.failed) printf("  %d of %d figures outside; first: %s\n", check.failed, check.compared, check.first);
}

static const char *shared_cases(void) {
    static char folder[4096];
    const char *shared = test_shared();
    if (!shared) return NULL;
    snprintf(folder, sizeof folder, "%s/cases", shared);
    return folder;
}

TEST(committed_cases_one_thread) {
    check_folder("tests/cases", 1);
}

TEST(committed_cases_two_threads) {
    check_folder("tests/cases", 2);
}

TEST(shared_cases_one_thread) {
    const char *folder = shared_cases();
    if (!folder) SKIP("no reference folder");
    check_folder(folder, 1);
}

TEST(shared_cases_two_threads) {
    const char *folder = shared_cases();
    if (!folder) SKIP("no reference folder");
    check_folder(folder, 2);
}

/* ---- the checks themselves must notice what is wrong ---- */

static void copy_file(const char *from_folder, const char *to_folder, const char *name) {
    char path[4096];
    size_t bytes = 0;
    snprintf(path, sizeof path, "%s/%s", from_folder, name);
    char *text = read_bytes(path, &bytes);
    snprintf(path, sizeof path, "%s/%s", to_folder, name);
    CHECK(text && write_bytes(path, text, bytes));
    free(text);
}

/* Adds to the last float of a file. */
static void disturb(const char *path, float by) {
    float value = 0;
    FILE *file = fopen(path, "r+b");
    CHECK(file != NULL);
    if (!file) return;
    CHECK(fseek(file, -4, SEEK_END) == 0 && fread(&value, 4, 1, file) == 1);
    value += by;
    CHECK(fseek(file, -4, SEEK_END) == 0 && fwrite(&value, 4, 1, file) == 1);
    fclose(file);
}

static void check_disturbed(const char *name, float by, const char *noticed) {
    static const char *const files[] = {
        "config.json", "model.safetensors",        "inputs.safetensors",     "expect.safetensors",
        "train.json",  "train_inputs.safetensors", "train_final.safetensors"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        copy_file("tests/cases/bert_regression", DISTURBED, files[i]);
    case_check check = {.threads = 1};
    CHECK(case_check_folder(&check, DISTURBED));
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", DISTURBED, name);
    disturb(path, by);
    check = (case_check){.threads = 1};
    CHECK(!case_check_folder(&check, DISTURBED));
    CHECK_TEXT(check.first, noticed);
}

TEST(a_disturbed_weight_is_noticed) {
    check_disturbed("model.safetensors", 1e-3f, "logits");
}

TEST(a_disturbed_expectation_is_noticed) {
    check_disturbed("expect.safetensors", 1e-3f, "error");
}

TEST(a_disturbed_end_of_training_is_noticed) {
    check_disturbed("train_final.safetensors", 1e-3f, "final parameters");
}

TEST(a_folder_without_a_case_is_noticed) {
    case_check check = {.threads = 1};
    CHECK(!case_check_folder(&check, "tests"));
    CHECK_TEXT(check.first, "no case here");
}

int main(int argc, char **argv) {
    return lock_folder(DISTURBED) ? test_main(argc, argv) : 1;
}
