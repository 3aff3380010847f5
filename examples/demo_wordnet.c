/* Writes the data of `make demo-pretrained`: what kind of thing does a definition define? The definitions are those of
   the nouns in WordNet (package wordnet-base); the label is the lexicographer's file, which it gives for each.

       demo_wordnet FOLDER        writes FOLDER/train.tsv and FOLDER/test.tsv (columns class, definition)

   Each of eight classes has the same number of definitions; they are unique, and none of one part is in the other.

   build: cc -O2 demo_wordnet.c -lutf8proc */
#include "demo_data.h"

enum { TEST_EACH = 250, TRAIN_EACH = 1000 };

enum { CLASSES = 8 };
static demo_class classes[CLASSES] = {
    {.label = "animal"},   {.label = "artifact"}, {.label = "body"},  {.label = "food"},
    {.label = "location"}, {.label = "person"},   {.label = "plant"}, {.label = "substance"},
};
static const int lexicographer_file[CLASSES] = {5, 6, 8, 13, 15, 18, 20, 27};

static int class_of(int file) {
    for (int i = 0; i < CLASSES; i++)
        if (lexicographer_file[i] == file) return i;
    return -1;
}

/* The definition in a gloss: what stands before the first quoted example. NULL where there is none. */
static char *definition_of(const char *gloss) {
    gloss += strspn(gloss, " ");
    const char *example = strstr(gloss, "; \"");
    size_t n = example ? (size_t)(example - gloss) : strlen(gloss);
    while (n && strchr(" ;", gloss[n - 1])) n--;
    if (!n || *gloss == '"') return NULL;
    char *text = demo_must(malloc(n + 1));
    memcpy(text, gloss, n);
    text[n] = 0;
    return text;
}

/* A line: offset, lexicographer's file, type, words and pointers, '|', gloss. The licence's lines begin with spaces. */
static void read_line(char *line) {
    int file;
    char *gloss = strchr(line, '|');
    if (*line == ' ' || !gloss || sscanf(line, "%*s %d", &file) != 1) return;
    int class = class_of(file);
    if (class < 0) return;
    classes[class].entries++;
    char *text = definition_of(gloss + 1);
    if (text) demo_add(classes, class, text);
}

static void visit(const char *path, void *found) {
    const char *name = strrchr(path, '/');
    if (!name || strcmp(name, "/data.noun")) return;
    char *text = demo_read(path), *next;
    for (char *line = text; line; line = next) {
        if ((next = strchr(line, '\n'))) *next++ = 0;
        read_line(line);
    }
    for (int i = 0; i < CLASSES; i++) classes[i].files++;
    *(bool *)found = true;
    free(text);
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: demo_wordnet FOLDER\n");
        return 2;
    }
    bool found = false;
    demo_package_files("wordnet-base", visit, &found);
    errno = 0;
    if (!found) demo_fail("no file data.noun in package", "wordnet-base");
    demo_drop_duplicates(classes);
    demo_write_parts(argv[1], "class", "definition", classes, TEST_EACH, TRAIN_EACH);
    demo_print_counts("class", classes, CLASSES);
    demo_free();
    return 0;
}
