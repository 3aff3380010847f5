/* Writes the data of `make demo`: which language is a text in? The texts are the fortunes of nine Debian packages.

       demo_languages FOLDER      writes FOLDER/train.tsv and FOLDER/test.tsv (columns language, text)

   What would give a language away without being language is taken out: terminal escapes, lines that name an author or a
   source, headings, layout, length, and the punctuation at both ends. Chat logs, mail, program code and drawings are
   left out whole. Texts are unique, every language has the same number of them, and no text of one part is in the
   other. The same package files always give the same two parts.

   build: cc -O2 demo_languages.c -lutf8proc */
#include "demo_data.h"
#include <ctype.h>
#include <sys/stat.h>

enum { SHORTEST = 20, LONGEST = 100, TEST_SHARE = 8 }; /* bytes; characters; one text in eight is for the test */

typedef enum { LATIN, CYRILLIC, HAN, OTHER_SCRIPT } script;

enum { LANGUAGES = 9 };
static demo_class languages[LANGUAGES] = {
    {.label = "cs"}, {.label = "de"}, {.label = "en"}, {.label = "es"}, {.label = "it"},
    {.label = "pl"}, {.label = "pt"}, {.label = "ru"}, {.label = "zh"},
};
static const struct {
    const char *name;
    int language;
    script script;
} packages[] = {
    {"fortunes-cs", 0, LATIN}, {"fortunes-de", 1, LATIN}, {"fortunes", 2, LATIN},       {"fortunes-min", 2, LATIN},
    {"fortunes-es", 3, LATIN}, {"fortunes-it", 4, LATIN}, {"fortunes-pl", 5, LATIN},    {"fortunes-br", 6, LATIN},
    {"fortunes-ru", 7, CYRILLIC}, {"fortunes-zh", 8, HAN},
};
enum { PACKAGES = sizeof packages / sizeof *packages };

static script script_of(int32_t letter) {
    if (letter < 0x250 || (letter >= 0x1E00 && letter < 0x1F00)) return LATIN;
    if (letter >= 0x400 && letter < 0x530) return CYRILLIC;
    if ((letter >= 0x3400 && letter < 0xA000) || (letter >= 0x20000 && letter < 0x32000)) return HAN;
    return OTHER_SCRIPT;
}

/* ---- lines: what is no text is emptied ---- */

/* Takes terminal escapes out of a line. True where the whole line was in colour: a heading or a source. */
static bool strip_escapes(char *line) {
    bool starts = line[strspn(line, " \t")] == '\033', ends = false;
    char *to = line;
    for (char *from = line; *from;) {
        if (*from != '\033') {
            if (!isspace((unsigned char)*from)) ends = false;
            *to++ = *from++;
            continue;
        }
        if (*++from == '[')
            for (from++; *from && !(*from >= '@' && *from <= '~');) from++;
        if (*from) from++;
        ends = true;
    }
    *to = 0;
    return starts && ends;
}

static bool is_blank(const char *line) {
    return !line[strspn(line, " \t\r")];
}

/* Column of the first character; a tab leads to the next multiple of 8. */
static int indentation(const char *line) {
    int column = 0;
    for (; *line == ' ' || *line == '\t'; line++) column = *line == '\t' ? (column / 8 + 1) * 8 : column + 1;
    return column;
}

/* Where "-- Author" starts: two hyphens or a long dash at the line's begin, or behind a tab or two spaces. */
static char *attribution(char *line) {
    char *p = line + strspn(line, " \t");
    for (bool gap = true; *p; p++) {
        bool dash = !strncmp(p, "--", 2) || !strncmp(p, "\u2014", 3) || !strncmp(p, "\u2015", 3);
        if (gap && dash) return p;
        gap = *p == '\t' || (p > line && *p == ' ' && p[-1] == ' ') || (gap && *p == ' ');
    }
    return NULL;
}

/* A heading, or a saying in Latin beside its translation: at least four capitals and no small letter. */
static bool is_in_capitals(const char *line) {
    int capitals = 0;
    for (int32_t c; (c = demo_next(&line)) >= 0;) {
        utf8proc_category_t category = utf8proc_category(c);
        if (category == UTF8PROC_CATEGORY_LL || category == UTF8PROC_CATEGORY_LO) return false;
        capitals += category == UTF8PROC_CATEGORY_LU;
    }
    return capitals >= 4;
}

/* Empties the lines of an entry that name its author or source; each part ends at the next blank line. */
static void strip_sources(char **line, int count) {
    bool source = false;
    for (int i = 0; i < count; i++) {
        bool coloured = strip_escapes(line[i]);
        if (is_blank(line[i])) source = false;
        char *start = source ? line[i] : attribution(line[i]);
        if (start) *start = 0, source = true;
        if (coloured || is_in_capitals(line[i])) *line[i] = 0;
    }
    /* A last line far to the right, or short and alone behind a blank line, is a source without a dash. */
    int last = count - 1;
    while (last > 0 && is_blank(line[last])) last--;
    int column = indentation(line[0]) + 16;
    while (last > 0 && indentation(line[last]) >= column) *line[last--] = 0;
    if (last > 1 && is_blank(line[last - 1]) && strlen(line[last]) < 40) *line[last] = 0;
}

/* ---- an entry as one line of text ---- */

/* Joins words by single spaces. */
static char *join(char **line, int count, size_t bytes) {
    char *text = demo_must(malloc(bytes + (size_t)count + 1)), *to = text;
    for (int i = 0; i < count; i++) {
        const char *p = line[i], *at = p;
        for (int32_t c; (c = demo_next(&p)) >= 0; at = p) {
            bool space = c == '\t' || c == '\r' || utf8proc_category(c) == UTF8PROC_CATEGORY_ZS;
            if (space && to > text && to[-1] != ' ') *to++ = ' ';
            if (!space) memcpy(to, at, (size_t)(p - at)), to += p - at;
        }
        if (to > text && to[-1] != ' ') *to++ = ' ';
    }
    while (to > text && to[-1] == ' ') to--;
    *to = 0;
    return text;
}

/* Cuts a remark in brackets off the end: a page, a year, a book. */
static void strip_last_bracket(char *text) {
    size_t n = strlen(text);
    while (n && strchr(" .", text[n - 1])) n--;
    if (!n || !strchr(")]", text[n - 1])) return;
    char open = text[n - 1] == ')' ? '(' : '[', close = text[n - 1];
    for (int depth = 0; n > 0; n--) {
        depth += (text[n - 1] == close) - (text[n - 1] == open);
        if (depth == 0) break;
    }
    if (n > 1) text[n - 1] = 0;
}

/* Leaves what lies between the first letter and the last letter or digit of a whole word (of a character in Chinese)
   within LONGEST characters. */
static void trim(char *text) {
    const char *begin = text, *p = text;
    for (int32_t c; (c = demo_next(&p)) >= 0 && !demo_is_letter(c);) begin = p;
    p = begin;
    const char *word_end = begin, *end = begin;
    for (int n = 0; n <= LONGEST; n++) {
        int32_t c = demo_next(&p);
        if (c < 0 || c == ' ' || script_of(c) == HAN) end = word_end;
        if (c < 0) break;
        if (demo_is_letter(c) || utf8proc_category(c) == UTF8PROC_CATEGORY_ND) word_end = p;
    }
    size_t length = (size_t)(end - begin);
    memmove(text, begin, length);
    text[length] = 0;
}

/* Whether a text is prose in the script of its language: four characters in five are letters, most of them of the
   script. Chat logs, mail, addresses, program code and drawings show by their signs. */
static bool is_prose(const char *text, script script) {
    if (strpbrk(text, "<>|@#$\\^~_={}") || strstr(text, "://") || strlen(text) < SHORTEST) return false;
    int letters = 0, own = 0, signs = 0;
    for (int32_t c; (c = demo_next(&text)) >= 0;) {
        if (utf8proc_category(c) == UTF8PROC_CATEGORY_CC) return false;
        if (demo_is_letter(c)) letters++, own += script_of(c) == script;
        else if (c != ' ') signs++;
    }
    return signs * 5 <= letters + signs && own * 2 > letters;
}

/* ---- files ---- */

/* Splits a text at line ends, which become zeros. The array is the caller's. */
static char **split_lines(char *text, int *count) {
    int room = 1;
    for (char *p = text; *p; p++) room += *p == '\n';
    char **line = demo_must(malloc((size_t)room * sizeof *line));
    *count = 0;
    for (char *p = text; p; *count += 1) {
        line[*count] = p;
        if ((p = strchr(p, '\n'))) *p++ = 0;
    }
    return line;
}

static void add_entry(char **line, int count, int package) {
    int language = packages[package].language;
    size_t bytes = 0;
    for (int i = 0; i < count; i++) bytes += strlen(line[i]);
    if (!bytes) return;
    languages[language].entries++;
    strip_sources(line, count);
    char *text = join(line, count, bytes);
    bool prose = is_prose(text, packages[package].script);
    strip_last_bracket(text);
    trim(text);
    if (prose && is_prose(text, packages[package].script)) demo_add(languages, language, text);
    else free(text);
}

/* A file holds entries that are parted by lines that begin with '%'. */
static void read_fortunes(const char *path, int package) {
    char *text = demo_read(path);
    int count, first = 0;
    char **line = split_lines(text, &count);
    for (int i = 0; i <= count; i++) {
        if (i < count && line[i][0] != '%') continue;
        if (i > first) add_entry(line + first, i - first, package);
        first = i + 1;
    }
    languages[packages[package].language].files++;
    free(line);
    free(text);
}

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

/* Regular files below a folder named fortunes, without indexes (.dat), links (.u8), offensive texts (off/), and Slovak,
   which the Czech package holds too. */
static bool is_fortune_file(const char *path) {
    struct stat status;
    if (!strstr(path, "/fortunes/") || strstr(path, "/off/")) return false;
    if (ends_with(path, ".dat") || ends_with(path, ".u8") || ends_with(path, "-sk")) return false;
    return !lstat(path, &status) && S_ISREG(status.st_mode);
}

static void visit(const char *path, void *package) {
    if (is_fortune_file(path)) read_fortunes(path, *(int *)package);
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: demo_languages FOLDER\n");
        return 2;
    }
    for (int i = 0; i < PACKAGES; i++) demo_package_files(packages[i].name, visit, &i);
    demo_drop_duplicates(languages);
    int each = languages[0].unique;
    for (int i = 1; i < LANGUAGES; i++)
        if (languages[i].unique < each) each = languages[i].unique;
    demo_write_parts(argv[1], "language", "text", languages, each / TEST_SHARE, each - each / TEST_SHARE);
    demo_print_counts("language", languages, LANGUAGES);
    demo_free();
    return 0;
}
