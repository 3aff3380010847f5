/* usage: check_case DIR [--threads N]
   DIR is a model's folder with reference figures (tests/cases/README.md says what it holds), or a folder of such
   folders, optimizers.json and schedules.json. Prints the largest error of everything and exits with 1 where one is
   outside its tolerance. */
#define ACCEL_IMPLEMENTATION
#include "accel_io.h"

#include "case.h"

int main(int argc, char **argv) {
    case_check check = {.out = stdout, .threads = 0};
    const char *folder = NULL;
    bool good = true;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc) {
            char *end;
            long threads = strtol(argv[++i], &end, 10);
            if (*end || threads < 1 || threads > 1024) good = false;
            check.threads = (int)threads;
        } else if (argv[i][0] == '-' || folder) {
            good = false;
        } else {
            folder = argv[i];
        }
    }
    if (!good || !folder) {
        fprintf(stderr, "usage: check_case DIR [--threads N]\n");
        return 1;
    }
    check.verbose = case_is_model(folder);
    bool within = case_check_folder(&check, folder);
    printf("%d figures compared, %d outside their tolerance%s%s\n", check.compared, check.failed,
           check.failed ? "; first: " : "", check.first);
    return within ? 0 : 1;
}
