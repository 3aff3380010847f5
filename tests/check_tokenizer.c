/* Compares the tokenizer with Hugging Face's, id for id.   check_tokenizer CASES.json VOCAB
   CASES.json comes from the library; VOCAB is a vocab.txt, a tokenizer.json or a folder. Prints the first differences
   and the totals; exit status 1 where anything differs or cannot be read. */
#define ACCEL_IMPLEMENTATION
#include "accel_io.h"
#include "tokenizer_cases.h"

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: check_tokenizer CASES.json VOCAB\n");
        return 1;
    }
    accel_t *acc = accel_create(&(accel_desc){.threads = 1});
    cases_total total = {0, 0};
    bool good = cases_run(acc, argv[1], argv[2], 5, &total);
    if (!good) fprintf(stderr, "%s\n", accel_message(acc));
    printf("%s: %d cases, %d different\n", argv[1], total.cases, total.wrong);
    accel_destroy(acc);
    return good && total.cases && !total.wrong ? 0 : 1;
}
