/* Command lines of the example programs: a table says which options there are, and --help is printed from it.

       int64_t rows = 10;
       option_spec options[] = {option_int("--rows", &rows, 1, 0, "rows to read")};
       int status = options_parse(argc, argv, "FILE", options, 1, &file);
       if (status >= 0) return status; */
#ifndef COMMON_H
#define COMMON_H

#include "accel_io.h"
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum option_kind {
    OPTION_FLAG,    /* bool: no value follows      */
    OPTION_TEXT,    /* const char *                */
    OPTION_COLUMNS, /* text_columns                */
    OPTION_CHOICE,  /* const char *: a word of choices */
    OPTION_INT,     /* int64_t                     */
    OPTION_NUMBER   /* double; NAN: not given      */
} option_kind;

#define ABOVE_ZERO ((double)FLT_MIN) /* as a minimum */

typedef struct option_spec {
    const char *name;
    const char *argument; /* its name in --help; the words of OPTION_CHOICE, separated by '|' */
    option_kind kind;
    void *value;
    const char *help;
    double min, max;       /* of OPTION_INT and OPTION_NUMBER; max 0: none      */
    const char *only_with; /* an option without which this one makes no sense   */
    bool given;
} option_spec;

/* --text COL[,COL], or --text COL twice for names with commas. */
typedef struct text_columns {
    const char *given[2];
    int count;
    char parts[1000]; /* a list taken apart */
} text_columns;

/* ---- rows of the table ---- */

static inline option_spec option_flag(const char *name, bool *value, const char *help) {
    return (option_spec){.name = name, .argument = "", .kind = OPTION_FLAG, .value = value, .help = help};
}

static inline option_spec option_text(const char *name, const char *argument, const char **value, const char *help) {
    return (option_spec){.name = name, .argument = argument, .kind = OPTION_TEXT, .value = value, .help = help};
}

static inline option_spec option_columns(const char *name, text_columns *value, const char *help) {
    return (option_spec){.name = name, .argument = "COL[,COL]", .kind = OPTION_COLUMNS, .value = value, .help = help};
}

static inline option_spec option_choice(const char *name, const char *words, const char **value, const char *help) {
    return (option_spec){.name = name, .argument = words, .kind = OPTION_CHOICE, .value = value, .help = help};
}

static inline option_spec option_int(const char *name, int64_t *value, double min, double max, const char *help) {
    return (option_spec){
        .name = name, .argument = "N", .kind = OPTION_INT, .value = value, .help = help, .min = min, .max = max};
}

static inline option_spec option_number(const char *name, double *value, double min, double max, const char *help) {
    return (option_spec){
        .name = name, .argument = "X", .kind = OPTION_NUMBER, .value = value, .help = help, .min = min, .max = max};
}

static inline option_spec option_with(const char *other, option_spec option) {
    option.only_with = other;
    return option;
}

/* ---- values ---- */

static inline bool option_bad(const option_spec *o, const char *value, const char *expected) {
    fprintf(stderr, "%s must be %s, not \"%s\"\n", o->name, expected, value);
    return false;
}

static inline bool option_in_range(const option_spec *o, double value) {
    double limit = o->kind == OPTION_INT ? 9e15 : (double)FLT_MAX;
    return isfinite(value) && value >= o->min && value <= (o->max > 0 ? o->max : limit);
}

static inline bool option_bad_number(const option_spec *o, const char *value) {
    char expected[100];
    const char *what = o->kind == OPTION_INT ? "a whole number" : "a number";
    if (o->max > 0) snprintf(expected, sizeof expected, "%s from %.10g to %.10g", what, o->min, o->max);
    else if (o->min == ABOVE_ZERO) snprintf(expected, sizeof expected, "%s above 0", what);
    else snprintf(expected, sizeof expected, "%s, at least %.10g", what, o->min);
    return option_bad(o, value, expected);
}

static inline bool option_set_number(option_spec *o, const char *value) {
    char *end = NULL;
    bool whole = o->kind == OPTION_INT;
    long long integer = 0;
    double number = 0;
    errno = 0;
    if (whole) number = (double)(integer = strtoll(value, &end, 10));
    else number = strtod(value, &end);
    if (end == value || *end || (whole && errno) || !option_in_range(o, number)) return option_bad_number(o, value);
    if (whole) *(int64_t *)o->value = integer;
    else *(double *)o->value = number;
    return true;
}

static inline bool option_set_choice(option_spec *o, const char *value) {
    size_t length = strlen(value);
    for (const char *word = o->argument; word; word = strchr(word, '|') ? strchr(word, '|') + 1 : NULL) {
        if (!length || strcspn(word, "|") != length || strncmp(word, value, length) != 0) continue;
        *(const char **)o->value = value;
        return true;
    }
    return option_bad(o, value, o->argument);
}

static inline bool option_set(option_spec *o, const char *value) {
    if (o->kind == OPTION_INT || o->kind == OPTION_NUMBER) return option_set_number(o, value);
    if (o->kind == OPTION_CHOICE) return option_set_choice(o, value);
    if (!*value) return option_bad(o, value, "a name");
    if (o->kind == OPTION_TEXT) {
        *(const char **)o->value = value;
        return true;
    }
    text_columns *columns = o->value;
    if (columns->count == 2) return option_bad(o, value, "given at most twice");
    columns->given[columns->count++] = value;
    return true;
}

/* ---- the command line ---- */

static inline void options_help(const char *program, const char *operand, const option_spec *options, int count) {
    printf("usage: %s [options]%s%s\n", program, *operand ? " " : "", operand);
    for (int i = 0; i < count; i++) {
        const option_spec *o = &options[i];
        int used = printf("  %s %s", o->name, o->argument);
        printf("%*s%s", used < 25 ? 25 - used : 1, "", o->help);
        if (o->kind == OPTION_INT && *(int64_t *)o->value) printf(" (default %lld)", (long long)*(int64_t *)o->value);
        if (o->kind == OPTION_NUMBER && *(double *)o->value > 0) printf(" (default %g)", *(double *)o->value);
        if (o->kind == OPTION_CHOICE) printf(" (default %s)", *(const char **)o->value);
        printf("\n");
    }
    printf("  %-22s %s\n", "--help", "this text");
}

static inline option_spec *option_find(option_spec *options, int count, const char *name, size_t length) {
    for (int i = 0; i < count; i++)
        if (strlen(options[i].name) == length && !strncmp(options[i].name, name, length)) return &options[i];
    return NULL;
}

/* Reads the option argv[*i], written "--name value" or "--name=value". */
static inline bool option_read(int argc, char **argv, int *i, option_spec *options, int count) {
    const char *name = argv[*i], *value = strchr(name, '=');
    option_spec *o = option_find(options, count, name, value ? (size_t)(value - name) : strlen(name));
    if (!o) return fprintf(stderr, "unknown option %s, see --help\n", name), false;
    o->given = true;
    if (o->kind == OPTION_FLAG) {
        if (value) return fprintf(stderr, "%s takes no value\n", o->name), false;
        return *(bool *)o->value = true;
    }
    if (!value && (*i + 1 == argc || !strncmp(argv[*i + 1], "--", 2)))
        return fprintf(stderr, "%s needs a value, see --help\n", o->name), false;
    return option_set(o, value ? value + 1 : argv[++*i]);
}

static inline bool options_fit(option_spec *options, int count) {
    for (int i = 0; i < count; i++) {
        const char *other = options[i].only_with;
        if (!options[i].given || !other || option_find(options, count, other, strlen(other))->given) continue;
        return fprintf(stderr, "%s is of use with %s only\n", options[i].name, other), false;
    }
    return true;
}

/* Reads the command line. `operand` names the argument that is no option ("": there is none), which goes to *argument.
   Returns -1 where the program can go on, else its exit status. */
static inline int options_parse(int argc, char **argv, const char *operand, option_spec *options, int count,
                                const char **argument) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") != 0) continue;
        options_help(argv[0], operand, options, count);
        return 0;
    }
    for (int i = 1; i < argc; i++) {
        bool option = argv[i][0] == '-' && argv[i][1];
        if (option && !option_read(argc, argv, &i, options, count)) return 1;
        if (option) continue;
        if (!*operand || *argument) return fprintf(stderr, "unexpected argument \"%s\", see --help\n", argv[i]), 1;
        *argument = argv[i];
    }
    if (*operand && !*argument) return fprintf(stderr, "%s is missing, see --help\n", operand), 1;
    return options_fit(options, count) ? -1 : 1;
}

/* The columns that --text names in this table. False, with a message, where they are more than two. */
static inline bool text_columns_find(text_columns *columns, accel_t *acc, const accel_table *table,
                                     const char *text[2]) {
    text[0] = columns->given[0];
    text[1] = columns->given[1];
    if (columns->count != 1 || !strchr(text[0], ',') || accel_failed(acc)) return !accel_failed(acc);
    if (accel_table_column(table, text[0]) >= 0) return true; /* one column whose name has a comma */
    accel_clear(acc);
    snprintf(columns->parts, sizeof columns->parts, "%s", text[0]);
    char *comma = strchr(columns->parts, ',');
    *comma = 0;
    text[0] = columns->parts;
    text[1] = comma + 1;
    if (!strchr(text[1], ',')) return true;
    fprintf(stderr, "--text names more than two columns; repeat it for names with commas\n");
    return false;
}

#endif
