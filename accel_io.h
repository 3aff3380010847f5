/* accel_io.h - everything of accel.h that touches a file or a string: safetensors, config.json, the WordPiece
   tokenizer, tables (TSV, CSV, JSONL). Needs accel.h, cJSON and utf8proc.

   In ONE source file:   #define ACCEL_IMPLEMENTATION
                         #include "accel_io.h"        (it includes accel.h and compiles both)
   build:                cc -O2 prog.c -lcjson -lutf8proc -lopenblas -lpthread -lm

   CONTENTS (search for the anchor)
     >>io-types         descriptions
     >>io-functions     pretrained folders, safetensors, tokenizer, vocabulary, tables, labels, encoding, saved state,
                        trainer, trackers, traces
     implementation:    >>io-files >>io-safetensors >>io-config >>io-pretrained >>io-unicode >>io-tokenizer
                        >>io-vocabulary >>io-tables >>io-encoding >>io-state >>io-trainer
                        >>io-trackers >>io-traces */
#ifndef ACCEL_IO_H
#define ACCEL_IO_H

#include "accel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ============================================== >>io-types ======================================================== */

typedef struct accel_tokenizer accel_tokenizer; /* WordPiece vocabulary and its options          */
typedef struct accel_table accel_table;         /* a text file's rows and columns in memory      */
typedef struct accel_safetensors accel_safetensors; /* an open file of named tensors             */
typedef struct accel_tracker accel_tracker;     /* a log of named numbers by step                */

/* A yes/no field whose default is what a folder or file says. */
typedef enum accel_choice { ACCEL_DEFAULT, ACCEL_NO, ACCEL_YES } accel_choice;

typedef struct accel_pretrained_desc {
    int num_labels;                 /* 0: as config.json says (2 where it does not)                      */
    const char *const *label_names; /* [num_labels] or NULL. A folder with a trained head and other names is refused;
                                       where they are the same, the head's order holds; a head without names takes
                                       these, and a notice says so                                                  */
    const char *problem_type; /* "single_label_classification", "multi_label_classification", "regression"; NULL: as
                                 config.json says */
    float dropout;            /* overrides all of the model's dropouts; 0: as config.json says, ACCEL_ZERO: none */
    bool fresh_head;                /* a new head even where the folder has a trained one                */
} accel_pretrained_desc;

/* ACCEL_OTHER_DTYPE: one that safetensors has and this header neither reads nor writes (F64, U8, BOOL, ...). */
typedef enum accel_dtype { ACCEL_F32, ACCEL_F16, ACCEL_BF16, ACCEL_I32, ACCEL_I64, ACCEL_OTHER_DTYPE } accel_dtype;

/* A tensor to be written; I32 and I64 take int32_t and int64_t values, the others float. */
typedef struct accel_named_array {
    const char *name;
    accel_dtype dtype;              /* in the file; floats are rounded to nearest even */
    accel_shape shape;
    const void *values;
} accel_named_array;

typedef struct accel_tokenizer_desc {
    accel_choice lower_case;        /* default: tokenizer_config.json / tokenizer.json, yes where nothing says so */
    accel_choice strip_accents;     /* default: the folder's, else the same as lower_case        */
    accel_choice chinese_chars;     /* spaces around CJK characters; default: the folder's, else yes */
    accel_choice replace_invalid;   /* invalid UTF-8 becomes U+FFFD instead of an error; default: no */
} accel_tokenizer_desc;

typedef struct accel_vocabulary_desc {
    int size;                       /* tokens, special ones included; 0: 8000                    */
    int min_frequency;              /* of a pair to be merged; 0: 2                              */
    int max_alphabet;               /* single characters kept, the most frequent; 0: 1000        */
    accel_tokenizer_desc tokenizer; /* how text is split into words                              */
} accel_vocabulary_desc;

/* ACCEL_LINES: every line is a row of one column, without header. */
typedef enum accel_format { ACCEL_FORMAT_BY_NAME, ACCEL_TSV, ACCEL_CSV, ACCEL_JSONL, ACCEL_LINES } accel_format;

typedef struct accel_table_desc {
    accel_format
        format; /* default: by the file name's ending: .csv, .jsonl and .json; all others and "-" (stdin) are TSV */
    bool no_header;                 /* the first line is a row; columns have numbers only        */
    accel_choice replace_invalid;   /* each invalid byte becomes U+FFFD instead of an error; default: no */
    int64_t limit;                  /* rows to keep, from the first; 0: all                      */
} accel_table_desc;

#define ACCEL_MAX_COLUMNS 16
/* How rows of a table become ids and labels. */
typedef struct accel_encode_desc {
    const char *text[2];            /* column names or numbers from 0; text[1] NULL: single texts            */
    int max_length; /* tokens, special ones included; 0: 512; never more than the model's positions. Longer pairs
                       lose from the longer side (longest_first) */
    const char *label[ACCEL_MAX_COLUMNS]; /* one column (class or score), or several 0/1 columns for multi-label; none:
                                             unlabelled */
    accel_problem problem;          /* of the labels, where model is NULL: a model decides itself */
    const accel_model *model; /* gives problem and label names, and is checked against the vocabulary; may be NULL */
    const char *const *label_names; /* [label_count], where model is NULL: names in the order of their numbers; NULL:
                                       labels are numbers */
    int label_count;                /* numbers are below it; 0: any                                          */
} accel_encode_desc;

/* ---- the trainer ---- */

typedef enum accel_strategy { ACCEL_EACH_EPOCH, ACCEL_EACH_STEPS, ACCEL_NEVER } accel_strategy;
typedef enum accel_stop { ACCEL_FINISHED, ACCEL_NO_IMPROVEMENT, ACCEL_BY_CALLBACK, ACCEL_BY_SIGNAL } accel_stop;

/* Where a run stands: given to callbacks, and what accel_train leaves. */
typedef struct accel_progress {
    int64_t epoch, step, steps; /* present epoch from 1, optimizer steps taken and planned                     */
    double loss, lr, grad_norm; /* of the last step: mean over its labels, rate used, norm before clipping     */
    int64_t examples;           /* of the last step                                                            */
    double eval_loss, eval_accuracy, eval_f1, eval_matthews; /* of the last evaluation; NaN before there was one */
    double best_score; /* of the metric that decides; NaN before there was one. NaN is never the best */
    int64_t best_step; /* 0: none                                                                     */
    accel_stop stopped;
    const accel_metrics *metrics; /* in on_evaluate only: its counts; NULL for other than single labels */
} accel_progress;

typedef struct accel_train_desc {
    accel_model *model; /* an encoder                                                                  */
    accel_optimizer *optimizer;
    accel_schedule *schedule;         /* may be NULL                                                                 */
    accel_loader *train, *evaluation; /* evaluation: a loader with .evaluation, or NULL                              */
    int64_t epochs, max_steps;        /* 0: 3 epochs; 0: as many steps as the epochs have                            */
    float max_grad_norm;              /* 0: no clipping                                                              */
    float max_grad_value; /* limit of each element of the gradient, before the norm is clipped; 0: none  */
    float ema;            /* decay of a moving average of the weights, below 1; 0: none. What is evaluated, and what the
                             model holds at the end, is then the average                                 */
    accel_strategy evaluate, save; /* default: after each epoch. A new best state is saved as well; with save ==
                                      ACCEL_NEVER only where load_best needs it, and it is the only one kept */
    int64_t evaluate_steps, save_steps; /* for ACCEL_EACH_STEPS; 0: 500. The last step is evaluated too */
    const char *output;   /* folder of the states step-N; NULL: nothing is saved                         */
    int save_total_limit; /* states to keep, the best and the newest one in any case; 0: all             */
    bool resume;          /* go on from the newest usable state in output, if there is one               */
    const char *metric;   /* "loss" (default), "accuracy", "f1" or "matthews": decides what is best      */
    int patience;         /* evaluations in a row without improvement before it stops; 0: it never does  */
    float min_improvement;
    bool load_best;      /* the best evaluation's parameters are in the model at the end                */
    bool ignore_signals; /* else SIGINT and SIGTERM end the run after the step: its state is saved      */
    bool (*on_step)(void *user, const accel_progress *progress); /* false ends the run                             */
    bool (*on_evaluate)(void *user, const accel_progress *progress);
    bool (*on_save)(void *user, const accel_progress *progress, const char *folder);
    void *user;
} accel_train_desc;

/* JSON lines: {"step": 3, "loss": 0.5} for each call. CSV: a row for each call below one header, an empty cell where it
   has no value. TensorBoard: an event file of scalars (float32), for which the path is the run's folder. A value that
   is not finite is null in JSON, an empty cell in CSV, and itself in TensorBoard. */
typedef enum accel_tracker_kind {
    ACCEL_TRACKER_JSONL,
    ACCEL_TRACKER_CSV,
    ACCEL_TRACKER_TENSORBOARD
} accel_tracker_kind;

typedef struct accel_tracker_desc {
    bool append;                    /* go on with the lines that are there, a torn last one taken off; else the file
                                       begins anew. TensorBoard always gets another file in the folder and shows all */
    bool buffered;                  /* write when there is much, at accel_tracker_flush and at the end; else each call's
                                       record is written at once                                */
    const char *const *columns;     /* CSV: of the header, behind "step"; NULL: the names of the first call */
    int column_count;
} accel_tracker_desc;

/* ============================================ >>io-functions ====================================================== */

/* ---- pretrained folders, as Hugging Face lays them out ---- */

/* Loads config.json and model.safetensors of a DistilBERT or BERT folder. A fresh head (announced in a notice) takes
   the place of one that is absent; left-over MLM and pooler weights are ignored; anything else missing, unexpected or
   of another shape is an error naming the tensor. */
ACCEL_API accel_model *accel_load_pretrained(accel_t *acc, const char *folder, const accel_pretrained_desc *desc);
/* Reads config.json alone. False on error. */
ACCEL_API bool accel_read_config(accel_t *acc, const char *folder, accel_encoder_config *config);
/* Writes config.json (label names included), model.safetensors and, where a tokenizer is given, vocab.txt and
   tokenizer_config.json, so that Transformers loads the folder. Each file is written aside, synced and renamed. */
ACCEL_API bool accel_save_pretrained(const accel_model *model, const accel_tokenizer *tokenizer, const char *folder);

/* ---- safetensors ---- */

/* Maps a file and checks its header: every offset, size, shape and overlap. Tensors are numbered in the order of their
   names. accel_free closes it; until then nothing may cut the file short. */
ACCEL_API accel_safetensors *accel_safetensors_open(accel_t *acc, const char *path);
ACCEL_API int accel_safetensors_count(const accel_safetensors *file);
ACCEL_API const char *accel_safetensors_name(const accel_safetensors *file, int index);
/* -1 where there is none of that name. */
ACCEL_API int accel_safetensors_find(const accel_safetensors *file, const char *name);
/* Rank 0 with dim[0] == 0 where there is no such tensor, or it has more than 4 dimensions (it can be listed, not read).
 */
ACCEL_API accel_shape accel_safetensors_shape(const accel_safetensors *file, int index);
ACCEL_API accel_dtype accel_safetensors_dtype(const accel_safetensors *file, int index);
/* Converts to float (F32, F16, BF16) / to int32 (I32, I64, out of range is an error); count must be the number of
   elements. */
ACCEL_API bool accel_safetensors_read(const accel_safetensors *file, int index, float *values, int64_t count);
ACCEL_API bool accel_safetensors_read_ints(const accel_safetensors *file, int index, int32_t *values, int64_t count);
/* Writes a file atomically: temporary file, fsync, rename. metadata: pairs of strings ended by NULL, or NULL. */
ACCEL_API bool accel_safetensors_write(accel_t *acc, const char *path, const accel_named_array *arrays, int count,
                                       const char *const *metadata);

/* ---- tokenizer: Hugging Face's BertTokenizer, id for id ---- */

/* path: a folder (vocab.txt, or tokenizer.json where that is all there is; tokenizer_config.json), or one such file.
   A vocabulary without [UNK], [CLS] or [SEP] (or what the files name instead) is an error; one whose capitals do not
   fit the lower-case option is noticed. */
ACCEL_API accel_tokenizer *accel_tokenizer_load(accel_t *acc, const char *path, const accel_tokenizer_desc *desc);
/* Learns a WordPiece vocabulary from texts; special tokens [PAD] [UNK] [CLS] [SEP] [MASK] are 0 to 4. The same texts,
   in any order, give the same vocabulary. */
ACCEL_API accel_tokenizer *accel_tokenizer_train(accel_t *acc, const char *const *texts, int64_t count,
                                                 const accel_vocabulary_desc *desc);
/* Writes vocab.txt and tokenizer_config.json. */
ACCEL_API bool accel_tokenizer_save(const accel_tokenizer *tokenizer, const char *folder);
ACCEL_API int accel_vocabulary_size(const accel_tokenizer *tokenizer);
/* NULL for an id out of range. */
ACCEL_API const char *accel_token_text(const accel_tokenizer *tokenizer, int32_t id);
/* -1 for a token that is not in the vocabulary. */
ACCEL_API int32_t accel_token_id(const accel_tokenizer *tokenizer, const char *token);
/* Encodes a text (NULL: empty), or a pair (NULL: none), as [CLS] text [SEP] pair [SEP], cut to max_length by
   longest_first. ids and types (may be NULL) have room for max_length. Returns the number of ids, 0 where max_length
   does not hold the special tokens, -1 on invalid UTF-8 or lack of memory (no error is recorded); *full (may be NULL)
   gets the length before truncation. May be called from several threads at once. */
ACCEL_API int accel_tokenize(const accel_tokenizer *tokenizer, const char *text, const char *pair, int max_length,
                             int32_t *ids, int32_t *types, int *full);

/* ---- tables ---- */

/* Reads a whole file ("-": stdin). TSV as GLUE has it: no quoting; CSV: RFC 4180 quoting; JSONL: an object per line,
   all with the keys of the first, values strings, numbers or booleans. A byte-order mark and CRLF are understood. Empty
   lines at the end are ignored, but in TSV and CSV files of one column every line is a row. A ragged row, a quote that
   is never closed, a NUL byte, invalid UTF-8 or malformed JSON is an error naming file and line; so is an empty file,
   while a header alone gives a table of 0 rows. */
ACCEL_API accel_table *accel_table_read(accel_t *acc, const char *path, const accel_table_desc *desc);
ACCEL_API int64_t accel_table_rows(const accel_table *table);
ACCEL_API int accel_table_columns(const accel_table *table);
/* Column by name or, where no column has that name, by number from 0; -1, with an error that lists the columns, where
   there is none. */
ACCEL_API int accel_table_column(const accel_table *table, const char *name);
/* Text of a cell, which lives as long as the table; NULL where there is no such cell. */
ACCEL_API const char *accel_table_cell(const accel_table *table, int64_t row, int column);
/* Line of the file where a row begins, counted from 1. */
ACCEL_API int64_t accel_table_line(const accel_table *table, int64_t row);
/* The path, "standard input" for "-". */
ACCEL_API const char *accel_table_name(const accel_table *table);
/* The distinct labels of a column in the order of their ids: if all are whole numbers 0 .. n-1 in number order, else
   sorted by bytes. Sets *count; the array belongs to the table. NULL on error, such as an empty label or a table
   without rows. */
ACCEL_API const char *const *accel_table_labels(accel_table *table, const char *column, int *count);
/* Tokenises every row, in parallel, and maps its labels: by name, or as numbers where there are no names. Scores are
   finite numbers, multi-label columns 0 / 1 (or false / true) in the order of the model's labels. An unknown label or
   another bad cell is an error naming file, line and what was expected; texts that were cut are counted in one notice.
   The result is the same for any number of threads. */
ACCEL_API accel_data *accel_encode_table(const accel_tokenizer *tokenizer, const accel_table *table,
                                         const accel_encode_desc *desc);

/* ---- saved state: everything that a run needs to go on as if it had never stopped ---- */

/* Has memory of the program's own saved and restored with the state, under a name that is unique in the context. It is
   copied when accel_save_state and accel_load_state run, and must stay valid as long as the context. */
ACCEL_API bool accel_register_state(accel_t *acc, const char *name, void *memory, size_t bytes);
/* Writes the state of every object of the context into folder/state.safetensors: parameters, optimizers (moments,
   steps, rates), loaders (epoch, position), the accumulation window with its gradients, the seed, and registered
   memory. The folder is written aside, synced and renamed, so that it is there as a whole or not at all; one of the
   same name is replaced. Call it between micro-batches: after accel_step or at the end of an epoch. */
ACCEL_API bool accel_save_state(accel_t *acc, const char *folder);
/* Restores it into a context with the same objects, made in the same order. The number of threads may differ: the run
   goes on with the same bits. A checksum guards against damage; anything missing or of another shape is an error naming
   it. */
ACCEL_API bool accel_load_state(accel_t *acc, const char *folder);
/* The newest usable state among the folders step-N of `parent`: its path in `path`, N as the result; damaged ones are
   passed over with a notice. -1 where there is none. */
ACCEL_API int64_t accel_find_state(accel_t *acc, const char *parent, char *path, size_t size);
/* Deletes the oldest folders step-N of `parent` until `limit` are left. Never deletes step-`best` (-1: none), nor the
   newest usable one. */
ACCEL_API bool accel_limit_states(accel_t *acc, const char *parent, int limit, int64_t best);

/* ---- the trainer: the loop for those who want none ---- */

/* Prepares everything, trains, evaluates, saves and resumes as the description says; the bytes are those of the same
   loop written by hand. Early-stopping counters and the best score are part of the state. False on error; progress (may
   be NULL) gets where the run ended. While it runs, SIGINT and SIGTERM are handled by it, unless they were ignored. */
ACCEL_API bool accel_train(accel_t *acc, const accel_train_desc *desc, accel_progress *progress);

/* ---- trackers ---- */

/* path: a file or, for TensorBoard, a folder, which is made. NULL on error. accel_free writes what is left and closes;
   where only accel_destroy does, an error of that last write goes unseen. */
ACCEL_API accel_tracker *accel_tracker_open(accel_t *acc, accel_tracker_kind kind, const char *path,
                                            const accel_tracker_desc *desc);
/* Notes one number, or several of one step. Names are UTF-8 without control characters, differ, and are not "step". In
   CSV a name without a column is an error, and nothing of the call is noted. */
ACCEL_API bool accel_track(accel_tracker *tracker, int64_t step, const char *name, double value);
ACCEL_API bool accel_track_all(accel_tracker *tracker, int64_t step, int count, const char *const *names,
                               const double *values);
/* Hands everything noted so far to the system. */
ACCEL_API bool accel_tracker_flush(accel_tracker *tracker);
/* The file that is written. */
ACCEL_API const char *accel_tracker_path(const accel_tracker *tracker);

/* ---- traces: what each thread does when ---- */

/* Between these two everything that the context does is recorded, and accel_trace_end writes it to `path` for
   chrome://tracing or ui.perfetto.dev (Trace Event Format, complete events): the phases batch, forward with its layers,
   backward, gradient norm, update and evaluation; within them each operation of the back end with its sizes; and on
   every thread the pieces of those operations. It changes no result. Some hundred bytes are kept for a piece, so a few
   steps are what to trace; beyond a million spans of a thread recording stops, and a notice says so. A path that cannot
   be written is an error of accel_trace_begin already; so is a second trace at the same time. A trace that is not
   ended when the context goes is lost. */
ACCEL_API bool accel_trace_begin(accel_t *acc, const char *path);
ACCEL_API bool accel_trace_end(accel_t *acc);

#ifdef __cplusplus
}
#endif
#endif /* ACCEL_IO_H */

/* ============================================ implementation ====================================================== */
#if defined(ACCEL_IMPLEMENTATION) && !defined(ACCEL_IO_IMPLEMENTED)
#define ACCEL_IO_IMPLEMENTED

/* =============================================== >>io-files =======================================================
   Whole files in, whole files out. A file is never written in place: accel__writer fills a temporary file beside the
   target and renames it when it is complete and on disk, so a crash leaves the old file or the new one. */

#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <utf8proc.h>

#define ACCEL__PATH_SIZE 4096

typedef struct accel__writer {
    accel_t *acc;
    FILE *file; /* NULL: not open */
    int fault;  /* errno of the first failed write, 0: none */
    char path[ACCEL__PATH_SIZE], temporary[ACCEL__PATH_SIZE + 32];
} accel__writer;

/* Makes room for `need` elements, at least doubling what is there. `pointer` is the address of the array's pointer. */
static bool accel__grow(accel_t *acc, void *pointer, size_t *room, size_t need, size_t element) {
    if (need <= *room) return true;
    size_t larger = *room * 2 > need ? *room * 2 : need < 64 ? 64 : need;
    void *array;
    memcpy(&array, pointer, sizeof array);
    array = accel__realloc(acc, array, larger * element);
    if (!array) return false;
    memcpy(pointer, &array, sizeof array);
    *room = larger;
    return true;
}

/* Joins folder and name; false, with an error, where the result does not fit. */
static bool accel__path(char *out, size_t size, accel_t *acc, const char *folder, const char *name) {
    size_t length = strlen(folder);
    const char *slash = length && folder[length - 1] == '/' ? "" : "/";
    int written = snprintf(out, size, "%s%s%s", folder, slash, name);
    if (written >= 0 && (size_t)written < size) return true;
    return accel__fail(acc, ACCEL_BAD_FILE, "path of %s in %.60s... is longer than %zu bytes", name, folder, size - 1);
}

static bool accel__file_exists(const char *path) {
    struct stat info;
    return stat(path, &info) == 0;
}

static bool accel__is_folder(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* mkdir -p */
static bool accel__make_folder(accel_t *acc, const char *folder) {
    char part[ACCEL__PATH_SIZE];
    size_t length = strlen(folder);
    if (!length) return accel__fail(acc, ACCEL_BAD_FILE, "the name of a folder is empty");
    if (length >= sizeof part)
        return accel__fail(acc, ACCEL_BAD_FILE, "folder %.60s...: path is longer than %zu bytes", folder,
                           sizeof part - 1);
    memcpy(part, folder, length + 1);
    for (size_t i = 1; i <= length; i++) {
        if (part[i] != '/' && part[i] != 0) continue;
        part[i] = 0;
        /* What counts is that a folder is there: mkdir may also be refused on a read-only parent of one that exists. */
        if (mkdir(part, 0777) != 0) {
            int fault = errno;
            if (!accel__is_folder(part))
                return accel__fail(acc, ACCEL_BAD_FILE, "folder %s cannot be made: %s", part, strerror(fault));
        }
        part[i] = folder[i];
    }
    return true;
}

/* Opens a new file beside the target. Not mkstemp: that would make the file readable for its owner only. */
static int accel__writer_create(accel__writer *w) {
    for (int attempt = 0; attempt < 10000; attempt++) {
        snprintf(w->temporary, sizeof w->temporary, "%s.tmp-%ld-%d", w->path, (long)getpid(), attempt);
        int handle = open(w->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (handle >= 0 || errno != EEXIST) return handle;
    }
    return -1;
}

/* Begins to write `path`. Every open writer ends with accel__writer_commit or accel__writer_abort. */
static bool accel__writer_open(accel__writer *w, accel_t *acc, const char *path) {
    w->acc = acc;
    w->file = NULL;
    w->fault = 0;
    w->path[0] = w->temporary[0] = 0;
    if (accel_failed(acc)) return false;
    size_t length = strlen(path);
    if (length >= sizeof w->path)
        return accel__fail(acc, ACCEL_BAD_FILE, "%.60s...: path is longer than %zu bytes", path, sizeof w->path - 1);
    memcpy(w->path, path, length + 1);
    if (accel__is_folder(path)) return accel__fail(acc, ACCEL_BAD_FILE, "%s cannot be written: it is a folder", path);
    int handle = accel__writer_create(w);
    if (handle < 0) return accel__fail(acc, ACCEL_BAD_FILE, "%s cannot be written: %s", path, strerror(errno));
    w->file = fdopen(handle, "wb");
    if (w->file) return true;
    accel__fail(acc, ACCEL_BAD_FILE, "%s cannot be written: %s", path, strerror(errno));
    close(handle);
    unlink(w->temporary);
    return false;
}

static bool accel__writer_fault(accel__writer *w) {
    if (!w->fault) w->fault = errno ? errno : EIO;
    return false;
}

/* After a failed write the later ones return false and do nothing; accel__writer_commit records the error. */
static bool accel__writer_put(accel__writer *w, const void *data, size_t bytes) {
    if (!w->file || w->fault) return false;
    if (!bytes) return true;
    errno = 0;
    return fwrite(data, 1, bytes, w->file) == bytes ? true : accel__writer_fault(w);
}

static bool accel__writer_printf(accel__writer *w, const char *format, ...) ACCEL_PRINTF(2, 3);
static bool accel__writer_printf(accel__writer *w, const char *format, ...) {
    if (!w->file || w->fault) return false;
    va_list arguments;
    va_start(arguments, format);
    errno = 0;
    int written = vfprintf(w->file, format, arguments);
    va_end(arguments);
    return written >= 0 ? true : accel__writer_fault(w);
}

/* Removes the temporary file; harmless after a failed open, a commit or another abort. */
static void accel__writer_abort(accel__writer *w) {
    if (!w->file) return;
    fclose(w->file);
    w->file = NULL;
    unlink(w->temporary);
}

/* A rename is on disk only when its folder is. */
static bool accel__sync_folder_of(const char *path) {
    char folder[ACCEL__PATH_SIZE];
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (!slash) snprintf(folder, sizeof folder, ".");
    else slash[slash == folder] = 0;
    int handle = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (handle < 0) return errno == EACCES;                                /* a folder one may write but not list */
    bool good = fsync(handle) == 0 || errno == EINVAL || errno == ENOTSUP; /* file systems without it */
    int fault = errno;
    close(handle);
    errno = fault;
    return good;
}

/* When this returns true, all that was put is on disk; the file is still aside and open. Records the first fault. */
static bool accel__writer_sync(accel__writer *w) {
    if (!w->file || accel_failed(w->acc)) return false;
    errno = 0;
    if (!w->fault && (fflush(w->file) != 0 || fsync(fileno(w->file)) != 0)) accel__writer_fault(w);
    if (!w->fault) return true;
    return accel__fail(w->acc, ACCEL_BAD_FILE, "%s cannot be written: %s", w->path, strerror(w->fault));
}

/* Puts the finished file in its place; on failure the temporary file is removed and the target is as it was. */
static bool accel__writer_commit(accel__writer *w) {
    if (!accel__writer_sync(w)) {
        accel__writer_abort(w);
        return false;
    }
    errno = 0;
    bool good = fclose(w->file) == 0 && rename(w->temporary, w->path) == 0;
    w->file = NULL;
    if (!good) {
        accel__fail(w->acc, ACCEL_BAD_FILE, "%s cannot be written: %s", w->path, strerror(errno));
        unlink(w->temporary);
        return false;
    }
    if (accel__sync_folder_of(w->path)) return true;
    return accel__fail(w->acc, ACCEL_BAD_FILE, "%s: its folder cannot be synced: %s", w->path, strerror(errno));
}

/* Reads on to the end of the file into memory that grows; *bytes gets the length. NULL on error. */
static char *accel__read_stream(accel_t *acc, FILE *file, const char *path, size_t *bytes) {
    struct stat info;
    size_t room = fstat(fileno(file), &info) == 0 && info.st_size > 0 ? (size_t)info.st_size + 2 : 65536, used = 0;
    char *text = accel__alloc(acc, room);
    while (text) {
        errno = 0;
        used += fread(text + used, 1, room - used - 1, file);
        if (ferror(file)) {
            accel__fail(acc, ACCEL_BAD_FILE, "%s cannot be read: %s", path, strerror(errno));
            accel__free(acc, text);
            return NULL;
        }
        if (feof(file)) {
            text[used] = 0;
            *bytes = used;
            return text;
        }
        char *larger = accel__realloc(acc, text, room * 2);
        if (!larger) accel__free(acc, text);
        text = larger;
        room *= 2;
    }
    return NULL;
}

/* Finds out whether `path` can be written, and leaves nothing behind. */
static bool accel__writable(accel_t *acc, const char *path) {
    accel__writer w;
    bool good = accel__writer_open(&w, acc, path);
    accel__writer_abort(&w);
    return good;
}

/* A whole file ("-": stdin) in memory of accel__alloc with a NUL behind it, which *bytes does not count. */
static char *accel__read_file(accel_t *acc, const char *path, size_t *bytes) {
    *bytes = 0;
    if (accel_failed(acc)) return NULL;
    bool standard = strcmp(path, "-") == 0;
    FILE *file = standard ? stdin : fopen(path, "rb");
    if (!file) {
        accel__fail(acc, ACCEL_BAD_FILE, "%s cannot be read: %s", path, strerror(errno));
        return NULL;
    }
    char *text = accel__read_stream(acc, file, standard ? "standard input" : path, bytes);
    if (!standard) fclose(file);
    return text;
}

/* Parses a text that must be one JSON value. `end`, where it fails, is about where it broke. */
static cJSON *accel__json_parse(const char *text, size_t bytes, const char **end) {
    size_t length = strlen(text); /* cJSON would take a NUL for the end */
    *end = text + length;
    return length == bytes ? cJSON_ParseWithLengthOpts(text, bytes + 1, end, true) : NULL;
}

/* The JSON value of a file, to be freed with cJSON_Delete; NULL, with an error that says where it broke. */
static cJSON *accel__json_read(accel_t *acc, const char *path) {
    size_t bytes;
    const char *end;
    char *text = accel__read_file(acc, path, &bytes);
    if (!text) return NULL;
    cJSON *json = accel__json_parse(text, bytes, &end);
    if (!json) {
        int line = 1, column = 1;
        for (const char *c = text; c < end && c < text + bytes; c++) {
            column = *c == '\n' ? 1 : column + 1;
            line += *c == '\n';
        }
        accel__fail(acc, ACCEL_BAD_FILE, "%s: malformed JSON near line %d, column %d", path, line, column);
    }
    accel__free(acc, text);
    return json;
}

/* ============================================ >>io-safetensors ====================================================
   A file is: the header's length (8 bytes, little-endian), the header (JSON: name -> dtype, shape, data_offsets), the
   data. As in the reference implementation the tensors must fill the data exactly, one behind the other, without holes
   or overlaps. The file is mapped and must not be cut while it is open. */

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "accel_io.h reads and writes little-endian files by copying: big-endian machines are not supported"
#endif

#define ACCEL__HEADER_LIMIT 100000000           /* bytes; the reference implementation's */
#define ACCEL__ELEMENT_LIMIT (INT64_C(1) << 56) /* so that a count of bits fits */
#define ACCEL__CONVERT_PIECE (INT64_C(1) << 18) /* elements that one thread converts at a time */

typedef struct accel__dtype {
    const char *name;
    int bits;
    accel_dtype dtype; /* ACCEL_OTHER_DTYPE: sizes can be checked, values not read */
} accel__dtype;

static const accel__dtype accel__dtypes[] = {
    {"F32", 32, ACCEL_F32},
    {"F16", 16, ACCEL_F16},
    {"BF16", 16, ACCEL_BF16},
    {"I32", 32, ACCEL_I32},
    {"I64", 64, ACCEL_I64},
    {"F64", 64, ACCEL_OTHER_DTYPE},
    {"BOOL", 8, ACCEL_OTHER_DTYPE},
    {"U8", 8, ACCEL_OTHER_DTYPE},
    {"I8", 8, ACCEL_OTHER_DTYPE},
    {"I16", 16, ACCEL_OTHER_DTYPE},
    {"U16", 16, ACCEL_OTHER_DTYPE},
    {"U32", 32, ACCEL_OTHER_DTYPE},
    {"U64", 64, ACCEL_OTHER_DTYPE},
    {"C64", 64, ACCEL_OTHER_DTYPE},
    {"F8_E4M3", 8, ACCEL_OTHER_DTYPE},
    {"F8_E5M2", 8, ACCEL_OTHER_DTYPE},
    {"F8_E8M0", 8, ACCEL_OTHER_DTYPE},
    {"F8_E4M3FNUZ", 8, ACCEL_OTHER_DTYPE},
    {"F8_E5M2FNUZ", 8, ACCEL_OTHER_DTYPE},
    {"F6_E2M3", 6, ACCEL_OTHER_DTYPE},
    {"F6_E3M2", 6, ACCEL_OTHER_DTYPE},
    {"F4", 4, ACCEL_OTHER_DTYPE},
};
#define ACCEL__DTYPE_COUNT (sizeof accel__dtypes / sizeof accel__dtypes[0])

typedef struct accel__entry {
    const char *name; /* in the header's JSON */
    const accel__dtype *dtype;
    int rank;
    int64_t dim[4]; /* the first four */
    int64_t elements;
    uint64_t begin, end; /* bytes in the data */
} accel__entry;

struct accel_safetensors {
    accel__object object;
    char *path;
    unsigned char *map;
    size_t bytes;
    const unsigned char *data; /* in the map, behind the header */
    uint64_t data_bytes;
    cJSON *header;
    accel__entry *entries; /* sorted by name */
    int count;
};

/* ---- numbers ---- */

static float accel__float_from_half(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = (half >> 10) & 31, fraction = half & 0x3ff;
    if (exponent == 31) return accel__from_bits(sign | 0x7f800000u | fraction << 13);
    if (exponent) return accel__from_bits(sign | (exponent + 112) << 23 | fraction << 13);
    uint32_t subnormal = accel__to_bits((float)fraction * 0x1p-24f); /* exact: a normal float */
    return accel__from_bits(sign | subnormal);
}

/* To nearest, ties to even; NaN stays NaN and keeps the high bits of its payload. */
static uint16_t accel__half_from_float(float value) {
    uint32_t bits = accel__to_bits(value), sign = bits >> 16 & 0x8000u;
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (bits >> 13 & 0x3ffu));
    if (bits >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520, half way past the largest, and up */
    if (bits < 0x38800000u) { /* below 2^-14: 0.5f has steps of 2^-24, a half's smallest */
        uint32_t sum = accel__to_bits(accel__from_bits(bits) + 0.5f);
        return (uint16_t)(sign | (sum - 0x3f000000u));
    }
    bits += 0xc8000fffu + (bits >> 13 & 1u); /* exponent less 112, and rounding */
    return (uint16_t)(sign | bits >> 13);
}

static float accel__float_from_bfloat(uint16_t bfloat) {
    return accel__from_bits((uint32_t)bfloat << 16);
}

/* To nearest, ties to even; NaN stays NaN. */
static uint16_t accel__bfloat_from_float(float value) {
    return (uint16_t)accel__bf16(value);
}

/* ---- opening ---- */

static void accel__safetensors_destroy(accel__object *object) {
    accel_safetensors *file = (accel_safetensors *)object;
    if (file->map) munmap(file->map, file->bytes);
    cJSON_Delete(file->header);
    accel__free(object->acc, file->entries);
    accel__free(object->acc, file->path);
}

/* Maps the file and checks the header's length. */
static bool accel__safetensors_map(accel_safetensors *file, uint64_t *header) {
    accel_t *acc = file->object.acc;
    int handle = open(file->path, O_RDONLY | O_CLOEXEC);
    if (handle < 0) return accel__fail(acc, ACCEL_BAD_FILE, "%s cannot be read: %s", file->path, strerror(errno));
    struct stat info;
    if (fstat(handle, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size < 8) {
        close(handle);
        return accel__fail(acc, ACCEL_BAD_FILE, "%s: no safetensors file (not a regular file of 8 bytes or more)",
                           file->path);
    }
    void *map = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, handle, 0);
    int fault = errno;
    close(handle);
    if (map == MAP_FAILED)
        return accel__fail(acc, ACCEL_BAD_FILE, "%s cannot be mapped: %s", file->path, strerror(fault));
    file->map = map;
    file->bytes = (size_t)info.st_size;
    memcpy(header, file->map, 8);
    if (memcmp(file->map, "version ", 8) == 0)
        return accel__fail(acc, ACCEL_BAD_FILE, "%s: a Git LFS pointer stands in place of the file (run git lfs pull)",
                           file->path);
    if (*header > ACCEL__HEADER_LIMIT || *header > file->bytes - 8)
        return accel__fail(acc, ACCEL_BAD_FILE,
                           "%s: truncated, or no safetensors file: its header would have %llu bytes, the file has %zu",
                           file->path, (unsigned long long)*header, file->bytes);
    file->data = file->map + 8 + *header;
    file->data_bytes = file->bytes - 8 - *header;
    return true;
}

static bool accel__safetensors_parse(accel_safetensors *file, size_t bytes) {
    accel_t *acc = file->object.acc;
    char *text = accel__alloc(acc, bytes + 1);
    if (!text) return false;
    memcpy(text, file->map + 8, bytes);
    text[bytes] = 0;
    const char *end;
    file->header = accel__json_parse(text, bytes, &end);
    if (!file->header)
        accel__fail(acc, ACCEL_BAD_FILE, "%s: its header is malformed JSON near byte %td", file->path, end - text);
    else if (!cJSON_IsObject(file->header))
        accel__fail(acc, ACCEL_BAD_FILE, "%s: its header is no JSON object", file->path);
    accel__free(acc, text);
    return !accel_failed(acc);
}

/* A whole number of at most 2^53, which JSON's doubles hold exactly. */
static bool accel__json_whole(const cJSON *item, uint64_t *value) {
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble <= 0x1p53)) return false;
    *value = (uint64_t)item->valuedouble;
    return (double)*value == item->valuedouble;
}

static bool accel__entry_shape(accel_safetensors *file, accel__entry *entry, const cJSON *shape) {
    accel_t *acc = file->object.acc;
    if (!cJSON_IsArray(shape))
        return accel__fail(acc, ACCEL_BAD_FILE, "%s: tensor %.200s has no shape", file->path, entry->name);
    entry->elements = 1;
    for (const cJSON *item = shape->child; item; item = item->next) {
        uint64_t size;
        if (!accel__json_whole(item, &size))
            return accel__fail(acc, ACCEL_BAD_FILE, "%s: tensor %.200s: dimension %d of its shape is no size",
                               file->path, entry->name, entry->rank);
        if (size && entry->elements > ACCEL__ELEMENT_LIMIT / (int64_t)size)
            return accel__fail(acc, ACCEL_BAD_FILE, "%s: tensor %.200s: its shape has too many elements", file->path,
                               entry->name);
        entry->elements *= (int64_t)size;
        if (entry->rank < 4) entry->dim[entry->rank] = (int64_t)size;
        entry->rank++;
    }
    return true;
}

static bool accel__entry_dtype(accel_safetensors *file, accel__entry *entry, const cJSON *dtype) {
    accel_t *acc = file->object.acc;
    if (!cJSON_IsString(dtype))
        return accel__fail(acc, ACCEL_BAD_FILE, "%s: tensor %.200s has no dtype", file->path, entry->name);
    for (size_t i = 0; i < ACCEL__DTYPE_COUNT; i++)
        if (strcmp(accel__dtypes[i].name, dtype->valuestring) == 0) entry->dtype = &accel__dtypes[i];
    if (entry->dtype) return true;
    return accel__fail(acc, ACCEL_BAD_FILE, "%s: tensor %.200s has the unknown dtype \"%.40s\"", file->path,
                       entry->name, dtype->valuestring);
}

static bool accel__entry_offsets(accel_safetensors *file, accel__entry *entry, const cJSON *offsets) {
    accel_t *acc = file->object.acc;
    if (!cJSON_IsArray(offsets) || cJSON_GetArraySize(offsets) != 2 ||
        !accel__json_whole(offsets->child, &entry->begin) || !accel__json_whole(offsets->child->next, &entry->end) ||
        entry->begin > entry->end)
        return accel__fail(acc, ACCEL_BAD_FILE, "%s: tensor %.200s: data_offsets must be a begin and an end",
                           file->path, entry->name);
    uint64_t bits = (uint64_t)entry->elements * (uint64_t)entry->dtype->bits, bytes = entry->end - entry->begin;
    if (bits % 8 || bits / 8 != bytes)
        return accel__fail(
            acc, ACCEL_BAD_FILE, "%s: tensor %.200s: %lld elements of %s are not the %llu bytes of its data_offsets",
            file->path, entry->name, (long long)entry->elements, entry->dtype->name, (unsigned long long)bytes);
    if (entry->end > file->data_bytes)
        return accel__fail(acc, ACCEL_BAD_FILE,
                           "%s: truncated: tensor %.200s ends at byte %llu of the data, the file has %llu", file->path,
                           entry->name, (unsigned long long)entry->end, (unsigned long long)file->data_bytes);
    return true;
}

static bool accel__entry_read(accel_safetensors *file, accel__entry *entry, const cJSON *item) {
    entry->name = item->string;
    if (!cJSON_IsObject(item))
        return accel__fail(file->object.acc, ACCEL_BAD_FILE,
                           "%s: the header's entry of tensor %.200s is no JSON object", file->path, entry->name);
    return accel__entry_shape(file, entry, cJSON_GetObjectItemCaseSensitive(item, "shape")) &&
           accel__entry_dtype(file, entry, cJSON_GetObjectItemCaseSensitive(item, "dtype")) &&
           accel__entry_offsets(file, entry, cJSON_GetObjectItemCaseSensitive(item, "data_offsets"));
}

static int accel__entry_by_offset(const void *a, const void *b) {
    const accel__entry *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end) return x->end < y->end ? -1 : 1;
    return 0;
}

static int accel__entry_by_name(const void *a, const void *b) {
    return strcmp(((const accel__entry *)a)->name, ((const accel__entry *)b)->name);
}

/* The tensors must lie one behind the other and fill the data. */
static bool accel__safetensors_check_layout(accel_safetensors *file) {
    accel_t *acc = file->object.acc;
    uint64_t end = 0;
    qsort(file->entries, (size_t)file->count, sizeof *file->entries, accel__entry_by_offset);
    for (int i = 0; i < file->count; i++) {
        const accel__entry *entry = &file->entries[i];
        if (entry->begin != end)
            return accel__fail(acc, ACCEL_BAD_FILE,
                               "%s: tensor %.200s begins at byte %llu of the data, where %s it ends at %llu",
                               file->path, entry->name, (unsigned long long)entry->begin,
                               i ? "the one before" : "nothing before", (unsigned long long)end);
        end = entry->end;
    }
    if (end == file->data_bytes) return true;
    return accel__fail(acc, ACCEL_BAD_FILE, "%s: %llu bytes behind the last tensor belong to none", file->path,
                       (unsigned long long)(file->data_bytes - end));
}

static bool accel__safetensors_check_names(accel_safetensors *file) {
    qsort(file->entries, (size_t)file->count, sizeof *file->entries, accel__entry_by_name);
    for (int i = 1; i < file->count; i++)
        if (strcmp(file->entries[i - 1].name, file->entries[i].name) == 0)
            return accel__fail(file->object.acc, ACCEL_BAD_FILE, "%s: two tensors have the name %.200s", file->path,
                               file->entries[i].name);
    return true;
}

static bool accel__safetensors_metadata(accel_safetensors *file, const cJSON *metadata) {
    bool good = cJSON_IsObject(metadata);
    for (const cJSON *item = good ? metadata->child : NULL; item; item = item->next)
        good = good && cJSON_IsString(item);
    return good || accel__fail(file->object.acc, ACCEL_BAD_FILE,
                               "%s: __metadata__ in its header must map strings to strings", file->path);
}

static bool accel__safetensors_entries(accel_safetensors *file) {
    size_t room = (size_t)cJSON_GetArraySize(file->header) * sizeof *file->entries;
    file->entries = accel__alloc(file->object.acc, room);
    if (!file->entries) return false;
    memset(file->entries, 0, room);
    for (const cJSON *item = file->header->child; item; item = item->next) {
        if (strcmp(item->string, "__metadata__") == 0) {
            if (!accel__safetensors_metadata(file, item)) return false;
        } else if (!accel__entry_read(file, &file->entries[file->count++], item)) {
            return false;
        }
    }
    return accel__safetensors_check_layout(file) && accel__safetensors_check_names(file);
}

ACCEL_API accel_safetensors *accel_safetensors_open(accel_t *acc, const char *path) {
    if (accel_failed(acc)) return NULL;
    if (!path) {
        accel__fail(acc, ACCEL_BAD_ARGUMENT, "accel_safetensors_open: path is NULL");
        return NULL;
    }
    accel_safetensors *file = accel__object_create(acc, ACCEL__SAFETENSORS, sizeof *file, accel__safetensors_destroy);
    if (!file) return NULL;
    uint64_t header = 0;
    file->path = accel__strdup(acc, path);
    if (file->path && accel__safetensors_map(file, &header) && accel__safetensors_parse(file, (size_t)header) &&
        accel__safetensors_entries(file))
        return file;
    accel_free(file);
    return NULL;
}

/* ---- reading ---- */

/* NULL where there is no such tensor. */
static const accel__entry *accel__entry_at(const accel_safetensors *file, int index) {
    return file && index >= 0 && index < file->count ? &file->entries[index] : NULL;
}

ACCEL_API int accel_safetensors_count(const accel_safetensors *file) {
    return file ? file->count : 0;
}

ACCEL_API const char *accel_safetensors_name(const accel_safetensors *file, int index) {
    const accel__entry *entry = accel__entry_at(file, index);
    return entry ? entry->name : NULL;
}

ACCEL_API int accel_safetensors_find(const accel_safetensors *file, const char *name) {
    if (!file || !name || !file->count) return -1;
    accel__entry key = {.name = name};
    const accel__entry *found = bsearch(&key, file->entries, (size_t)file->count, sizeof key, accel__entry_by_name);
    return found ? (int)(found - file->entries) : -1;
}

/* Whether an accel_shape can hold the tensor's shape. */
static bool accel__entry_fits(const accel__entry *entry) {
    bool fits = entry->rank <= 4;
    for (int i = 0; i < entry->rank && fits; i++) fits = entry->dim[i] <= INT_MAX;
    return fits;
}

ACCEL_API accel_shape accel_safetensors_shape(const accel_safetensors *file, int index) {
    const accel__entry *entry = accel__entry_at(file, index);
    accel_shape shape = {0, {0, 0, 0, 0}};
    if (!entry || !accel__entry_fits(entry)) return shape;
    shape.rank = entry->rank;
    for (int i = 0; i < 4; i++) shape.dim[i] = i < entry->rank ? (int)entry->dim[i] : 1;
    return shape;
}

ACCEL_API accel_dtype accel_safetensors_dtype(const accel_safetensors *file, int index) {
    const accel__entry *entry = accel__entry_at(file, index);
    return entry ? entry->dtype->dtype : ACCEL_OTHER_DTYPE;
}

typedef struct accel__conversion {
    const unsigned char *from; /* not aligned */
    float *to;
    int64_t count;
    accel_dtype dtype;
} accel__conversion;

static void accel__convert_piece(void *argument, int piece) {
    const accel__conversion *job = argument;
    int64_t begin = piece * ACCEL__CONVERT_PIECE, end = begin + ACCEL__CONVERT_PIECE;
    if (end > job->count) end = job->count;
    if (job->dtype == ACCEL_F32) {
        memcpy(job->to + begin, job->from + 4 * begin, 4 * (size_t)(end - begin));
        return;
    }
    for (int64_t i = begin; i < end; i++) {
        uint16_t bits;
        memcpy(&bits, job->from + 2 * i, 2);
        job->to[i] = job->dtype == ACCEL_F16 ? accel__float_from_half(bits) : accel__float_from_bfloat(bits);
    }
}

/* The entry, if it can be read as what is asked for into `count` elements; NULL, with the error, otherwise. */
static const accel__entry *accel__entry_readable(const accel_safetensors *file, int index, const void *values,
                                                 int64_t count, bool floats) {
    if (!file || accel_failed(file->object.acc)) return NULL;
    accel_t *acc = file->object.acc;
    const accel__entry *entry = accel__entry_at(file, index);
    accel_dtype dtype = entry ? entry->dtype->dtype : ACCEL_OTHER_DTYPE;
    if (!entry) {
        accel__fail(acc, ACCEL_BAD_ARGUMENT, "%s: tensor number %d of %d does not exist", file->path, index,
                    file->count);
    } else if (floats ? dtype != ACCEL_F32 && dtype != ACCEL_F16 && dtype != ACCEL_BF16
                      : dtype != ACCEL_I32 && dtype != ACCEL_I64) {
        accel__fail(acc, ACCEL_BAD_FILE, "%s: tensor %.200s has dtype %s; %s can be read here", file->path, entry->name,
                    entry->dtype->name, floats ? "F32, F16 and BF16" : "I32 and I64");
    } else if (!accel__entry_fits(entry)) {
        accel__fail(acc, ACCEL_BAD_FILE,
                    "%s: tensor %.200s has %d dimensions or a size that is too large; up to 4 can be read", file->path,
                    entry->name, entry->rank);
    } else if (count != entry->elements || (!values && count)) {
        accel__fail(acc, ACCEL_BAD_ARGUMENT, "%s: tensor %.200s has %lld elements, there is room for %lld", file->path,
                    entry->name, (long long)entry->elements, (long long)(values ? count : 0));
    } else {
        return entry;
    }
    return NULL;
}

ACCEL_API bool accel_safetensors_read(const accel_safetensors *file, int index, float *values, int64_t count) {
    const accel__entry *entry = accel__entry_readable(file, index, values, count, true);
    if (!entry) return false;
    accel__conversion job = {file->data + entry->begin, values, count, entry->dtype->dtype};
    int64_t pieces = (count + ACCEL__CONVERT_PIECE - 1) / ACCEL__CONVERT_PIECE;
    if (pieces > INT_MAX)
        return accel__fail(file->object.acc, ACCEL_BAD_FILE, "%s: tensor %.200s is too large", file->path, entry->name);
    if (pieces) accel__parallel(file->object.acc, (int)pieces, accel__convert_piece, &job);
    return true;
}

ACCEL_API bool accel_safetensors_read_ints(const accel_safetensors *file, int index, int32_t *values, int64_t count) {
    const accel__entry *entry = accel__entry_readable(file, index, values, count, false);
    if (!entry) return false;
    const unsigned char *from = file->data + entry->begin;
    if (entry->dtype->dtype == ACCEL_I32) {
        if (count) memcpy(values, from, 4 * (size_t)count);
        return true;
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t value;
        memcpy(&value, from + 8 * i, 8);
        if (value < INT32_MIN || value > INT32_MAX)
            return accel__fail(file->object.acc, ACCEL_BAD_FILE,
                               "%s: tensor %.200s: element %lld is %lld, which 32 bits do not hold", file->path,
                               entry->name, (long long)i, (long long)value);
        values[i] = (int32_t)value;
    }
    return true;
}

/* ---- writing ---- */

static const accel__dtype *accel__dtype_of(accel_dtype dtype) {
    for (size_t i = 0; i < ACCEL__DTYPE_COUNT && dtype != ACCEL_OTHER_DTYPE; i++)
        if (accel__dtypes[i].dtype == dtype) return &accel__dtypes[i];
    return NULL;
}

/* -1 for a shape that is none. */
static int64_t accel__named_elements(const accel_named_array *array) {
    int64_t elements = 1;
    if (array->shape.rank < 0 || array->shape.rank > 4) return -1;
    for (int i = 0; i < array->shape.rank; i++) {
        int size = array->shape.dim[i];
        if (size < 0 || (size && elements > ACCEL__ELEMENT_LIMIT / size)) return -1;
        elements *= size;
    }
    return elements;
}

static bool accel__named_check(accel_t *acc, const accel_named_array *array) {
    if (!array->name || strcmp(array->name, "__metadata__") == 0)
        return accel__fail(acc, ACCEL_BAD_ARGUMENT,
                           "accel_safetensors_write: a tensor has no name or is called __metadata__");
    if (!accel__dtype_of(array->dtype))
        return accel__fail(acc, ACCEL_BAD_ARGUMENT,
                           "accel_safetensors_write: tensor %.200s: dtype %d cannot be written", array->name,
                           (int)array->dtype);
    int64_t elements = accel__named_elements(array);
    if (elements < 0 || (elements && !array->values))
        return accel__fail(acc, ACCEL_BAD_ARGUMENT, "accel_safetensors_write: tensor %.200s: %s", array->name,
                           elements < 0 ? "bad shape" : "values are NULL");
    return true;
}

static int accel__named_by_name(const void *a, const void *b) {
    return strcmp((*(const accel_named_array *const *)a)->name, (*(const accel_named_array *const *)b)->name);
}

/* Wide elements first, so that each tensor is aligned to its elements; then by name. */
static int accel__named_by_layout(const void *a, const void *b) {
    int x = accel__dtype_of((*(const accel_named_array *const *)a)->dtype)->bits;
    int y = accel__dtype_of((*(const accel_named_array *const *)b)->dtype)->bits;
    return x != y ? y - x : accel__named_by_name(a, b);
}

/* The arrays in the order of the file; NULL on error. */
static const accel_named_array **accel__named_sorted(accel_t *acc, const accel_named_array *arrays, int count) {
    const accel_named_array **sorted = accel__alloc(acc, (size_t)count * sizeof *sorted);
    if (!sorted) return NULL;
    bool good = true;
    for (int i = 0; i < count && good; i++) {
        good = accel__named_check(acc, &arrays[i]);
        sorted[i] = &arrays[i];
    }
    if (good) qsort(sorted, (size_t)count, sizeof *sorted, accel__named_by_name);
    for (int i = 1; i < count && good; i++)
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0)
            good = accel__fail(acc, ACCEL_BAD_ARGUMENT, "accel_safetensors_write: two tensors have the name %.200s",
                               sorted[i]->name);
    if (good) {
        qsort(sorted, (size_t)count, sizeof *sorted, accel__named_by_layout);
        return sorted;
    }
    accel__free(acc, sorted);
    return NULL;
}

static bool accel__json_append(cJSON *array, double value) {
    cJSON *item = cJSON_CreateNumber(value);
    if (item && cJSON_AddItemToArray(array, item)) return true;
    cJSON_Delete(item);
    return false;
}

/* Adds name: {dtype, shape, data_offsets} for bytes begin .. end-1; false where memory is short. */
static bool accel__header_add(cJSON *header, const accel_named_array *array, uint64_t begin, uint64_t end) {
    cJSON *entry = cJSON_AddObjectToObject(header, array->name);
    if (!entry || !cJSON_AddStringToObject(entry, "dtype", accel__dtype_of(array->dtype)->name)) return false;
    cJSON *shape = cJSON_AddArrayToObject(entry, "shape"), *offsets = cJSON_AddArrayToObject(entry, "data_offsets");
    bool good = shape && offsets;
    for (int i = 0; i < array->shape.rank && good; i++) good = accel__json_append(shape, array->shape.dim[i]);
    return good && accel__json_append(offsets, (double)begin) && accel__json_append(offsets, (double)end);
}

static uint64_t accel__named_bytes(const accel_named_array *array) {
    return (uint64_t)accel__named_elements(array) * (uint64_t)(accel__dtype_of(array->dtype)->bits / 8);
}

/* The header's JSON, to be freed with cJSON_free; NULL where memory is short. */
static char *accel__header_text(const accel_named_array *const *sorted, int count, const char *const *metadata) {
    cJSON *header = cJSON_CreateObject();
    cJSON *pairs = metadata && header ? cJSON_AddObjectToObject(header, "__metadata__") : NULL;
    bool good = header && (!metadata || pairs);
    for (int i = 0; good && metadata && metadata[i] && metadata[i + 1]; i += 2)
        good = cJSON_AddStringToObject(pairs, metadata[i], metadata[i + 1]) != NULL;
    uint64_t offset = 0;
    for (int i = 0; i < count && good; i++) {
        uint64_t bytes = accel__named_bytes(sorted[i]);
        good = accel__header_add(header, sorted[i], offset, offset + bytes);
        offset += bytes;
    }
    char *text = good ? cJSON_PrintUnformatted(header) : NULL;
    cJSON_Delete(header);
    return text;
}

static void accel__named_put(accel__writer *w, const accel_named_array *array) {
    if (array->dtype != ACCEL_F16 && array->dtype != ACCEL_BF16) {
        accel__writer_put(w, array->values, (size_t)accel__named_bytes(array));
        return;
    }
    const float *values = array->values;
    int64_t elements = accel__named_elements(array);
    uint16_t block[2048];
    for (int64_t begin = 0; begin < elements; begin += 2048) {
        size_t size = elements - begin < 2048 ? (size_t)(elements - begin) : 2048;
        for (size_t i = 0; i < size; i++)
            block[i] = array->dtype == ACCEL_F16 ? accel__half_from_float(values[begin + (int64_t)i])
                                                 : accel__bfloat_from_float(values[begin + (int64_t)i]);
        accel__writer_put(w, block, 2 * size);
    }
}

/* Puts a whole safetensors file; faults of the writer show when it is committed. */
static bool accel__safetensors_put(accel__writer *w, const accel_named_array *arrays, int count,
                                   const char *const *metadata) {
    accel_t *acc = w->acc;
    const accel_named_array **sorted = accel__named_sorted(acc, arrays, count);
    if (!sorted) return false;
    char *text = accel__header_text(sorted, count, metadata);
    if (text) {
        uint64_t used = strlen(text), length = (used + 7) / 8 * 8;
        accel__writer_put(w, &length, 8);
        accel__writer_put(w, text, used);
        accel__writer_put(w, "       ", length - used);
        for (int i = 0; i < count; i++) accel__named_put(w, sorted[i]);
        cJSON_free(text);
    } else {
        accel__fail(acc, ACCEL_OUT_OF_MEMORY, "%s: no memory for its header", w->path);
    }
    accel__free(acc, sorted);
    return text != NULL;
}

ACCEL_API bool accel_safetensors_write(accel_t *acc, const char *path, const accel_named_array *arrays, int count,
                                       const char *const *metadata) {
    if (accel_failed(acc)) return false;
    if (!path || count < 0 || (count && !arrays))
        return accel__fail(acc, ACCEL_BAD_ARGUMENT,
                           "accel_safetensors_write: path or arrays are NULL, or count is negative");
    accel__writer w;
    if (!accel__writer_open(&w, acc, path)) return false;
    if (accel__safetensors_put(&w, arrays, count, metadata)) return accel__writer_commit(&w);
    accel__writer_abort(&w);
    return false;
}

/* ============================================== >>io-config =======================================================
   config.json of a DistilBERT or BERT sequence classifier. What a key means and what its absence means is Transformers'
   DistilBertConfig and BertConfig. */

typedef struct accel__choice_name {
    const char *name;
    int value;
} accel__choice_name;

/* The first name of a value is the one that is written. Each list ends with a NULL name. */
static const accel__choice_name accel__model_types[] = {
    {"distilbert", ACCEL_DISTILBERT}, {"bert", ACCEL_BERT}, {NULL, 0}};
static const accel__choice_name accel__activations[] = {{"gelu", ACCEL_GELU},
                                                        {"gelu_new", ACCEL_GELU_TANH},
                                                        {"gelu_pytorch_tanh", ACCEL_GELU_TANH},
                                                        {"relu", ACCEL_RELU},
                                                        {NULL, 0}};
static const accel__choice_name accel__problems[] = {{"single_label_classification", ACCEL_SINGLE_LABEL},
                                                     {"multi_label_classification", ACCEL_MULTI_LABEL},
                                                     {"regression", ACCEL_REGRESSION},
                                                     {NULL, 0}};

typedef struct accel__config_keys {
    const char *class_name, *dim, *layers, *heads, *hidden_dim, *activation, *dropout, *attention_dropout,
        *classifier_dropout;
} accel__config_keys;

static const accel__config_keys accel__keys_of[] = {
    [ACCEL_DISTILBERT] = {"DistilBertForSequenceClassification", "dim", "n_layers", "n_heads", "hidden_dim",
                          "activation", "dropout", "attention_dropout", "seq_classif_dropout"},
    [ACCEL_BERT] = {"BertForSequenceClassification", "hidden_size", "num_hidden_layers", "num_attention_heads",
                    "intermediate_size", "hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob",
                    "classifier_dropout"},
};

/* A config.json that was read. */
typedef struct accel__config {
    accel_t *acc;
    char path[ACCEL__PATH_SIZE];
    cJSON *json;
    accel_encoder_config encoder;
    const char **names; /* [encoder.num_labels], in json; NULL: none but LABEL_0, LABEL_1, ... */
    bool problem_given; /* by the file, not guessed */
} accel__config;

/* ---- names and numbers ---- */

/* -1 for a name that is not in the list. */
static int accel__choice_find(const accel__choice_name *choices, const char *name) {
    for (int i = 0; choices[i].name; i++)
        if (strcmp(choices[i].name, name) == 0) return choices[i].value;
    return -1;
}

static const char *accel__choice_text(const accel__choice_name *choices, int value) {
    while (choices->name && choices->value != value) choices++;
    return choices->name;
}

/* Appends "a, b, c" to a text, cut where it does not fit. */
static void accel__append_name(char *out, size_t size, const char *name) {
    size_t used = strlen(out);
    snprintf(out + used, size - used, "%s%.60s", used ? ", " : "", name);
}

static void accel__choice_list(char *out, size_t size, const accel__choice_name *choices) {
    out[0] = 0;
    for (; choices->name; choices++) accel__append_name(out, size, choices->name);
}

/* Names of labels for a message. */
static void accel__name_list(char *out, size_t size, const char *const *names, int count) {
    out[0] = 0;
    for (int i = 0; i < count && i < 8; i++) accel__append_name(out, size, names[i]);
    if (count > 8) accel__append_name(out, size, "...");
}

/* The first name that stands twice in the list, or NULL. */
static const char *accel__repeated_name(const char *const *names, int count) {
    for (int i = 0; i < count; i++)
        for (int j = 0; j < i; j++)
            if (strcmp(names[i], names[j]) == 0) return names[i];
    return NULL;
}

/* Transformers' names of labels that nobody named: LABEL_0, LABEL_1, ... */
static bool accel__generic_names(const char *const *names, int count) {
    for (int i = 0; i < count; i++) {
        char generic[32];
        snprintf(generic, sizeof generic, "LABEL_%d", i);
        if (strcmp(names[i], generic) != 0) return false;
    }
    return true;
}

/* ---- reading keys ---- */

/* NULL where the key is absent or null. */
static const cJSON *accel__config_item(const accel__config *c, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(c->json, key);
    return cJSON_IsNull(item) ? NULL : item;
}

static int accel__config_whole(accel__config *c, const char *key, int fallback, int minimum) {
    const cJSON *item = accel__config_item(c, key);
    uint64_t value;
    if (!item) return fallback;
    if (accel__json_whole(item, &value) && value <= INT_MAX && (int)value >= minimum) return (int)value;
    accel__fail(c->acc, ACCEL_BAD_FILE, "%s: %s must be a whole number of at least %d", c->path, key, minimum);
    return fallback;
}

/* A number of at least 0 and below `limit`. */
static float accel__config_float(accel__config *c, const char *key, float fallback, double limit) {
    const cJSON *item = accel__config_item(c, key);
    if (!item) return fallback;
    if (cJSON_IsNumber(item) && item->valuedouble >= 0 && item->valuedouble < limit) return (float)item->valuedouble;
    accel__fail(c->acc, ACCEL_BAD_FILE, "%s: %s must be a number of at least 0 and below %g", c->path, key, limit);
    return fallback;
}

static bool accel__config_bool(accel__config *c, const char *key) {
    const cJSON *item = accel__config_item(c, key);
    if (item && !cJSON_IsBool(item)) accel__fail(c->acc, ACCEL_BAD_FILE, "%s: %s must be true or false", c->path, key);
    return cJSON_IsTrue(item);
}

static int accel__config_choice(accel__config *c, const char *key, const accel__choice_name *choices, int fallback) {
    const cJSON *item = accel__config_item(c, key);
    if (!item) return fallback;
    int value = cJSON_IsString(item) ? accel__choice_find(choices, item->valuestring) : -1;
    if (value >= 0) return value;
    char list[256];
    accel__choice_list(list, sizeof list, choices);
    accel__fail(c->acc, ACCEL_BAD_FILE, "%s: %s \"%.80s\" is not supported; supported: %s", c->path, key,
                cJSON_IsString(item) ? item->valuestring : "(no string)", list);
    return fallback;
}

/* Old files do not say what they are; their keys do. */
static accel_architecture accel__config_architecture(accel__config *c) {
    int found = accel__config_choice(c, "model_type", accel__model_types, -1);
    if (found >= 0 || accel_failed(c->acc)) return found == ACCEL_BERT ? ACCEL_BERT : ACCEL_DISTILBERT;
    if (accel__config_item(c, accel__keys_of[ACCEL_DISTILBERT].layers)) return ACCEL_DISTILBERT;
    if (accel__config_item(c, accel__keys_of[ACCEL_BERT].layers) && accel__config_item(c, "type_vocab_size"))
        return ACCEL_BERT;
    char list[256];
    accel__choice_list(list, sizeof list, accel__model_types);
    accel__fail(c->acc, ACCEL_BAD_FILE, "%s: model_type is missing; supported: %s", c->path, list);
    return ACCEL_DISTILBERT;
}

/* Variants of BERT that compute something else. */
static void accel__config_refuse_variants(accel__config *c) {
    const cJSON *positions = accel__config_item(c, "position_embedding_type");
    if (positions && (!cJSON_IsString(positions) || strcmp(positions->valuestring, "absolute") != 0))
        accel__fail(c->acc, ACCEL_BAD_FILE,
                    "%s: position_embedding_type \"%.80s\" is not supported; supported: absolute", c->path,
                    cJSON_IsString(positions) ? positions->valuestring : "(no string)");
    if (accel__config_bool(c, "is_decoder") || accel__config_bool(c, "add_cross_attention"))
        accel__fail(c->acc, ACCEL_BAD_FILE,
                    "%s: is_decoder and add_cross_attention are not supported; an encoder has them false", c->path);
}

static void accel__config_sizes(accel__config *c) {
    accel_encoder_config *e = &c->encoder;
    *e = accel_encoder_defaults(accel__config_architecture(c));
    const accel__config_keys *keys = &accel__keys_of[e->architecture];
    e->vocab_size = accel__config_whole(c, "vocab_size", e->vocab_size, 1);
    e->max_positions = accel__config_whole(c, "max_position_embeddings", e->max_positions, 1);
    e->dim = accel__config_whole(c, keys->dim, e->dim, 1);
    e->layers = accel__config_whole(c, keys->layers, e->layers, 1);
    e->heads = accel__config_whole(c, keys->heads, e->heads, 1);
    e->hidden_dim = accel__config_whole(c, keys->hidden_dim, e->hidden_dim, 1);
    e->activation = (accel_activation)accel__config_choice(c, keys->activation, accel__activations, (int)e->activation);
    e->dropout = accel__config_float(c, keys->dropout, e->dropout, 1);
    e->attention_dropout = accel__config_float(c, keys->attention_dropout, e->attention_dropout, 1);
    float classifier = e->architecture == ACCEL_BERT ? e->dropout : e->classifier_dropout;
    e->classifier_dropout = accel__config_float(c, keys->classifier_dropout, classifier, 1);
    e->layer_norm_eps = accel__config_float(c, "layer_norm_eps", e->layer_norm_eps, 1);
    e->initializer_range = accel__config_float(c, "initializer_range", e->initializer_range, 1e6);
    bool no_padding = cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(c->json, "pad_token_id"));
    e->pad_token_id = no_padding ? -1 : accel__config_whole(c, "pad_token_id", e->pad_token_id, 0);
    if (e->architecture == ACCEL_DISTILBERT) e->sinusoidal_positions = accel__config_bool(c, "sinusoidal_pos_embds");
    else e->type_vocab_size = accel__config_whole(c, "type_vocab_size", e->type_vocab_size, 1);
    accel__config_refuse_variants(c);
    if (e->dim % e->heads)
        accel__fail(c->acc, ACCEL_BAD_FILE, "%s: %s %d is no multiple of %s %d", c->path, keys->dim, e->dim,
                    keys->heads, e->heads);
    if (e->pad_token_id >= e->vocab_size)
        accel__fail(c->acc, ACCEL_BAD_FILE, "%s: pad_token_id %d is outside the %d words", c->path, e->pad_token_id,
                    e->vocab_size);
}

/* ---- labels ---- */

/* Puts a name at its number; false, with an error, for a number out of 0 .. count-1 or one that is taken. */
static bool accel__config_name(accel__config *c, const char **names, int count, uint64_t number, const char *name,
                               const char *key) {
    if (number >= (uint64_t)count)
        return accel__fail(c->acc, ACCEL_BAD_FILE, "%s: %s: number %llu of label \"%.80s\" is not one of 0 .. %d",
                           c->path, key, (unsigned long long)number, name, count - 1);
    if (names[number])
        return accel__fail(c->acc, ACCEL_BAD_FILE, "%s: %s: labels \"%.80s\" and \"%.80s\" have the same number %llu",
                           c->path, key, names[number], name, (unsigned long long)number);
    names[number] = name;
    return true;
}

/* id2label: {"0": name, ...} */
static bool accel__config_names_by_number(accel__config *c, const cJSON *map, const char **names, int count) {
    for (const cJSON *item = map->child; item; item = item->next) {
        char *end;
        errno = 0;
        unsigned long number = strtoul(item->string, &end, 10);
        if (errno || *end || item->string[0] < '0' || item->string[0] > '9' || !cJSON_IsString(item))
            return accel__fail(c->acc, ACCEL_BAD_FILE,
                               "%s: id2label: \"%.80s\" must be a number with a name for its value", c->path,
                               item->string);
        if (!accel__config_name(c, names, count, number, item->valuestring, "id2label")) return false;
    }
    return true;
}

/* label2id: {name: 0, ...} */
static bool accel__config_names_by_name(accel__config *c, const cJSON *map, const char **names, int count) {
    for (const cJSON *item = map->child; item; item = item->next) {
        uint64_t number;
        if (!accel__json_whole(item, &number))
            return accel__fail(c->acc, ACCEL_BAD_FILE, "%s: label2id: \"%.80s\" has no number for its value", c->path,
                               item->string);
        if (!accel__config_name(c, names, count, number, item->string, "label2id")) return false;
    }
    return true;
}

static const cJSON *accel__config_map(accel__config *c, const char *key) {
    const cJSON *map = accel__config_item(c, key);
    if (map && (!cJSON_IsObject(map) || !map->child)) {
        accel__fail(c->acc, ACCEL_BAD_FILE, "%s: %s must be an object with a label or more", c->path, key);
        return NULL;
    }
    return map;
}

/* num_labels from whichever key says it; all that say it must agree. */
static int accel__config_label_count(accel__config *c, const cJSON *by_number, const cJSON *by_name) {
    int number = accel__config_whole(c, "num_labels", accel__config_whole(c, "_num_labels", 0, 1), 1);
    int numbered = by_number ? cJSON_GetArraySize(by_number) : 0, named = by_name ? cJSON_GetArraySize(by_name) : 0;
    int count = numbered ? numbered : named ? named : number ? number : c->encoder.num_labels;
    if ((named && named != count) || (number && number != count))
        accel__fail(c->acc, ACCEL_BAD_FILE,
                    "%s: id2label, label2id and num_labels speak of %d, %d and %d labels (0: not given)", c->path,
                    numbered, named, number);
    return count;
}

/* Names of both maps are in `names`, [2 x count]; keeps the agreed ones in front. Names that nobody gave yield to those
   that somebody did. */
static bool accel__config_agree(accel__config *c, const char **names, int count) {
    const char **other = names + count;
    if (accel__generic_names(other, count)) return true;
    if (accel__generic_names(names, count)) {
        memcpy(names, other, (size_t)count * sizeof *names);
        return true;
    }
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], other[i]) != 0)
            return accel__fail(c->acc, ACCEL_BAD_FILE,
                               "%s: label %d is \"%.80s\" in id2label and \"%.80s\" in label2id", c->path, i, names[i],
                               other[i]);
    return true;
}

static bool accel__config_labels(accel__config *c) {
    const cJSON *by_number = accel__config_map(c, "id2label"), *by_name = accel__config_map(c, "label2id");
    int count = c->encoder.num_labels = accel__config_label_count(c, by_number, by_name);
    if (accel_failed(c->acc) || (!by_number && !by_name)) return !accel_failed(c->acc);
    size_t room = 2 * (size_t)count * sizeof *c->names;
    const char **names = c->names = accel__alloc(c->acc, room);
    if (!names) return false;
    memset(names, 0, room);
    /* A map of `count` entries with distinct numbers below `count` has every number. */
    if (by_number && !accel__config_names_by_number(c, by_number, names, count)) return false;
    if (by_name && !accel__config_names_by_name(c, by_name, by_number ? names + count : names, count)) return false;
    if (by_number && by_name && !accel__config_agree(c, names, count)) return false;
    const char *repeated = accel__repeated_name(names, count);
    if (repeated)
        return accel__fail(c->acc, ACCEL_BAD_FILE, "%s: two labels have the name \"%.80s\"", c->path, repeated);
    if (accel__generic_names(names, count)) {
        accel__free(c->acc, names);
        c->names = NULL;
    }
    return true;
}

/* What Transformers makes of a classifier whose problem_type is null. */
static accel_problem accel__guessed_problem(int num_labels) {
    return num_labels == 1 ? ACCEL_REGRESSION : ACCEL_SINGLE_LABEL;
}

static void accel__config_close(accel__config *c) {
    cJSON_Delete(c->json);
    accel__free(c->acc, c->names);
}

/* Reads and checks folder/config.json. To be closed in any case. */
static bool accel__config_open(accel__config *c, accel_t *acc, const char *folder) {
    memset(c, 0, sizeof *c);
    c->acc = acc;
    if (!accel__path(c->path, sizeof c->path, acc, folder, "config.json")) return false;
    if (!accel__is_folder(folder))
        return accel__fail(
            acc, ACCEL_BAD_FILE,
            "%s: no such folder (models are not downloaded: give a folder with config.json and model.safetensors)",
            folder);
    c->json = accel__json_read(acc, c->path);
    if (!c->json) return false;
    if (!cJSON_IsObject(c->json)) return accel__fail(acc, ACCEL_BAD_FILE, "%s is no JSON object", c->path);
    accel__config_sizes(c);
    if (accel_failed(acc) || !accel__config_labels(c)) return false;
    accel_encoder_config *e = &c->encoder;
    c->problem_given = accel__config_item(c, "problem_type") != NULL;
    e->problem = (accel_problem)accel__config_choice(c, "problem_type", accel__problems,
                                                     (int)accel__guessed_problem(e->num_labels));
    if (!accel_failed(acc) && e->problem == ACCEL_SINGLE_LABEL && e->num_labels == 1)
        accel__fail(acc, ACCEL_BAD_FILE, "%s: single_label_classification needs 2 labels or more, not 1", c->path);
    return !accel_failed(acc);
}

ACCEL_API bool accel_read_config(accel_t *acc, const char *folder, accel_encoder_config *config) {
    if (accel_failed(acc)) return false;
    if (!folder || !config) return accel__fail(acc, ACCEL_BAD_ARGUMENT, "accel_read_config: folder or config is NULL");
    accel__config c;
    bool good = accel__config_open(&c, acc, folder);
    if (good) *config = c.encoder;
    accel__config_close(&c);
    return good;
}

/* ---- writing ---- */

/* The number that a reader of the shortest text of a float sees: 0.1, not 0.100000001490116. */
static double accel__shortest(float value) {
    char text[32];
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value) break;
    }
    return strtod(text, NULL);
}

static bool accel__config_put_whole(cJSON *json, const char *key, int value) {
    return cJSON_AddNumberToObject(json, key, value) != NULL;
}

static bool accel__config_put_float(cJSON *json, const char *key, float value) {
    return cJSON_AddNumberToObject(json, key, accel__shortest(value)) != NULL;
}

static bool accel__config_put_text(cJSON *json, const char *key, const char *value) {
    return cJSON_AddStringToObject(json, key, value) != NULL;
}

static bool accel__config_put_labels(cJSON *json, const accel_model *model, int count) {
    cJSON *by_number = cJSON_AddObjectToObject(json, "id2label"), *by_name = cJSON_AddObjectToObject(json, "label2id");
    bool good = by_number && by_name;
    for (int i = 0; i < count && good; i++) {
        char number[16], generic[32];
        snprintf(number, sizeof number, "%d", i);
        snprintf(generic, sizeof generic, "LABEL_%d", i);
        const char *name = accel_label_name(model, i);
        if (!name) name = generic;
        good = accel__config_put_text(by_number, number, name) && accel__config_put_whole(by_name, name, i);
    }
    return good;
}

static bool accel__config_put_sizes(cJSON *json, const accel_encoder_config *e) {
    const accel__config_keys *keys = &accel__keys_of[e->architecture];
    return accel__config_put_whole(json, "vocab_size", e->vocab_size) &&
           accel__config_put_whole(json, "max_position_embeddings", e->max_positions) &&
           accel__config_put_whole(json, keys->dim, e->dim) && accel__config_put_whole(json, keys->layers, e->layers) &&
           accel__config_put_whole(json, keys->heads, e->heads) &&
           accel__config_put_whole(json, keys->hidden_dim, e->hidden_dim) &&
           accel__config_put_text(json, keys->activation, accel__choice_text(accel__activations, (int)e->activation)) &&
           accel__config_put_float(json, keys->dropout, e->dropout) &&
           accel__config_put_float(json, keys->attention_dropout, e->attention_dropout) &&
           accel__config_put_float(json, keys->classifier_dropout, e->classifier_dropout) &&
           accel__config_put_float(json, "initializer_range", e->initializer_range) &&
           (e->pad_token_id < 0 ? cJSON_AddNullToObject(json, "pad_token_id") != NULL
                                : accel__config_put_whole(json, "pad_token_id", e->pad_token_id));
}

/* Keys that only one of the architectures has; layer_norm_eps of a DistilBERT is Transformers' constant. */
static bool accel__config_put_variant(cJSON *json, const accel_encoder_config *e) {
    bool constant = e->layer_norm_eps == accel_encoder_defaults(ACCEL_DISTILBERT).layer_norm_eps;
    if (e->architecture == ACCEL_BERT)
        return accel__config_put_whole(json, "type_vocab_size", e->type_vocab_size) &&
               accel__config_put_float(json, "layer_norm_eps", e->layer_norm_eps);
    return cJSON_AddBoolToObject(json, "sinusoidal_pos_embds", e->sinusoidal_positions) &&
           (constant || accel__config_put_float(json, "layer_norm_eps", e->layer_norm_eps));
}

/* The text of config.json, to be freed with cJSON_free; NULL where memory is short. */
static char *accel__config_text(const accel_model *model) {
    const accel_encoder_config *e = accel_encoder_config_of(model);
    cJSON *json = cJSON_CreateObject();
    cJSON *classes = json ? cJSON_AddArrayToObject(json, "architectures") : NULL;
    cJSON *class_name = classes ? cJSON_CreateString(accel__keys_of[e->architecture].class_name) : NULL;
    bool good = class_name && cJSON_AddItemToArray(classes, class_name);
    good = good &&
           accel__config_put_text(json, "model_type", accel__choice_text(accel__model_types, (int)e->architecture)) &&
           accel__config_put_text(json, "dtype", "float32") && accel__config_put_sizes(json, e) &&
           accel__config_put_variant(json, e) &&
           accel__config_put_text(json, "problem_type", accel__choice_text(accel__problems, (int)e->problem)) &&
           accel__config_put_labels(json, model, e->num_labels);
    char *text = good ? cJSON_Print(json) : NULL;
    cJSON_Delete(json);
    return text;
}

/* ============================================ >>io-pretrained =====================================================
   A folder's tensors go into an encoder's parameters by name. Every parameter must find its tensor, every tensor its
   parameter, except for the lists below. */

/* Tensors that a classifier does not need: heads for language models and answers, and a buffer of old versions. */
#define ACCEL__LEFT_OUT \
    "cls.*,vocab_transform.*,vocab_layer_norm.*,vocab_projector.*,qa_outputs.*,*embeddings.position_ids"

typedef struct accel__parts {
    const char *prefix;   /* which a saved base model leaves out   */
    const char *left_out; /* tensors to pass over                  */
    const char *head;     /* parameters that may be fresh          */
    const char *pooler;   /* fresh only together with the head; "": none */
} accel__parts;

static const accel__parts accel__parts_of[] = {
    [ACCEL_DISTILBERT] = {"distilbert.", ACCEL__LEFT_OUT ",pooler.*,distilbert.pooler.*",
                          "pre_classifier.*,classifier.*", ""},
    [ACCEL_BERT] = {"bert.", ACCEL__LEFT_OUT, "classifier.*", "bert.pooler.*"},
};

/* A tensor of the folder. */
typedef struct accel__weight {
    accel_safetensors *file;
    int index;
    bool used;
} accel__weight;

typedef struct accel__loading {
    accel_t *acc;
    const char *folder;
    accel_pretrained_desc desc;
    accel__config config; /* becomes that of the model */
    const accel__parts *parts;
    accel_safetensors **files; /* one, or the shards */
    int file_count;
    accel__weight *weights; /* file by file, by name in each */
    int weight_count;
    bool head;                /* the folder's trained head is taken */
    bool pooler;              /* the folder has (part of) one */
    const char *const *names; /* the model's labels; NULL: none */
    accel_model *model;
    int *source; /* [parameters] number of its weight, -1: stays fresh */
} accel__loading;

/* ---- the files ---- */

static bool accel__loading_add_file(accel__loading *l, const char *name) {
    char path[ACCEL__PATH_SIZE];
    if (!accel__path(path, sizeof path, l->acc, l->folder, name)) return false;
    accel_safetensors **files = accel__realloc(l->acc, l->files, (size_t)(l->file_count + 1) * sizeof *files);
    if (!files) return false;
    l->files = files;
    files[l->file_count] = accel_safetensors_open(l->acc, path);
    if (!files[l->file_count]) return false;
    l->weight_count += accel_safetensors_count(files[l->file_count++]);
    return true;
}

/* The shard of that name among those that are open, or NULL. */
static accel_safetensors *accel__loading_shard(const accel__loading *l, const char *name) {
    char path[ACCEL__PATH_SIZE];
    if (!accel__path(path, sizeof path, l->acc, l->folder, name)) return NULL;
    for (int i = 0; i < l->file_count; i++)
        if (strcmp(l->files[i]->path, path) == 0) return l->files[i];
    return NULL;
}

/* Opens every file that the index's weight_map {tensor: file} names, and looks for the tensor in it. */
static bool accel__loading_open_map(accel__loading *l, const char *index, const cJSON *map) {
    if (!cJSON_IsObject(map) || !map->child) return accel__fail(l->acc, ACCEL_BAD_FILE, "%s has no weight_map", index);
    for (const cJSON *item = map->child; item; item = item->next) {
        if (!cJSON_IsString(item) || strchr(item->valuestring, '/'))
            return accel__fail(l->acc, ACCEL_BAD_FILE, "%s: the file of tensor %.200s must be a name within the folder",
                               index, item->string);
        if (!accel__loading_shard(l, item->valuestring) && !accel__loading_add_file(l, item->valuestring)) return false;
        if (accel_safetensors_find(accel__loading_shard(l, item->valuestring), item->string) < 0)
            return accel__fail(l->acc, ACCEL_BAD_FILE, "%s: tensor %.200s is not in %.200s", index, item->string,
                               item->valuestring);
    }
    return true;
}

static bool accel__loading_open_shards(accel__loading *l, const char *index) {
    cJSON *json = accel__json_read(l->acc, index);
    bool good = json && accel__loading_open_map(l, index, cJSON_GetObjectItemCaseSensitive(json, "weight_map"));
    cJSON_Delete(json);
    return good;
}

static bool accel__loading_has(accel__loading *l, const char *name, char *path) {
    return accel__path(path, ACCEL__PATH_SIZE, l->acc, l->folder, name) && accel__file_exists(path);
}

static bool accel__loading_open_files(accel__loading *l) {
    static const char single[] = "model.safetensors", index[] = "model.safetensors.index.json",
                      pickle[] = "pytorch_model.bin";
    char path[ACCEL__PATH_SIZE];
    if (accel__loading_has(l, single, path)) return accel__loading_add_file(l, single);
    if (accel__loading_has(l, index, path)) return accel__loading_open_shards(l, path);
    if (accel__loading_has(l, pickle, path))
        return accel__fail(l->acc, ACCEL_BAD_FILE,
                           "%s has %s but no %s: load and save it once with Transformers, which writes the latter",
                           l->folder, pickle, single);
    return accel__fail(l->acc, ACCEL_BAD_FILE, "%s has neither %s nor %s", l->folder, single, index);
}

/* Number of the weight of that name, or -1. */
static int accel__loading_find(const accel__loading *l, const char *name) {
    int first = 0;
    for (int i = 0; i < l->file_count; i++) {
        int index = accel_safetensors_find(l->files[i], name);
        if (index >= 0) return first + index;
        first += accel_safetensors_count(l->files[i]);
    }
    return -1;
}

static const char *accel__weight_name(const accel__weight *weight) {
    return accel_safetensors_name(weight->file, weight->index);
}

/* Opens the folder's files and lists their tensors. */
static bool accel__loading_open(accel__loading *l) {
    if (!accel__loading_open_files(l)) return false;
    l->weights = accel__alloc(l->acc, (size_t)l->weight_count * sizeof *l->weights);
    if (!l->weights) return false;
    int number = 0;
    for (int i = 0; i < l->file_count; i++)
        for (int index = 0; index < accel_safetensors_count(l->files[i]); index++)
            l->weights[number++] = (accel__weight){l->files[i], index, false};
    for (int i = 0; i < number; i++)
        if (accel__loading_find(l, accel__weight_name(&l->weights[i])) != i)
            return accel__fail(l->acc, ACCEL_BAD_FILE, "%s: tensor %.200s is in two files", l->folder,
                               accel__weight_name(&l->weights[i]));
    return true;
}

/* A config.json that lies about its sizes must not make the encoder ask for all the memory there is. */
static bool accel__loading_check_size(const accel__loading *l) {
    const accel_encoder_config *e = &l->config.encoder;
    double dim = e->dim, wanted = ((double)e->vocab_size + e->max_positions + e->type_vocab_size) * dim;
    double held = 0;
    wanted += e->layers * (4 * dim * dim + 2 * dim * e->hidden_dim);
    for (int i = 0; i < l->weight_count; i++) held += (double)l->weights[i].file->entries[l->weights[i].index].elements;
    if (wanted <= 4 * held + 1e6) return true;
    return accel__fail(l->acc, ACCEL_BAD_FILE, "%s describes an encoder of %.0f weights, the folder's files hold %.0f",
                       l->config.path, wanted, held);
}

/* ---- labels ---- */

static bool accel__same_set(const char *const *a, const char *const *b, int count) {
    for (int i = 0; i < count; i++) {
        bool found = false;
        for (int j = 0; j < count && !found; j++) found = strcmp(a[i], b[j]) == 0;
        if (!found) return false;
    }
    return true; /* names do not repeat */
}

/* Names asked for and a trained head: its own names stay, in its order; they must be the same ones. A head without
   names takes those asked for, in their order, and says so. */
static bool accel__match_names(accel__loading *l) {
    const accel__config *c = &l->config;
    int count = c->encoder.num_labels;
    const char *const *asked = l->desc.label_names, *const *own = (const char *const *)c->names;
    if (!asked || accel__generic_names(asked, count)) return true;
    char asked_list[600], own_list[600];
    accel__name_list(asked_list, sizeof asked_list, asked, count);
    if (!own) {
        l->names = asked;
        accel__note(l->acc, "%s: its trained head has no label names; labels 0 .. %d are taken for %s", l->folder,
                    count - 1, asked_list);
        return true;
    }
    if (accel__same_set(asked, own, count)) return true;
    accel__name_list(own_list, sizeof own_list, own, count);
    return accel__fail(l->acc, ACCEL_BAD_DATA,
                       "%s: its trained head has the labels %s, not %s (fresh_head takes a new head)", l->folder,
                       own_list, asked_list);
}

static bool accel__loading_check_desc(accel__loading *l) {
    const accel_pretrained_desc *d = &l->desc;
    char list[256];
    if (d->num_labels < 0 || (d->label_names && !d->num_labels))
        return accel__fail(l->acc, ACCEL_BAD_ARGUMENT, "accel_load_pretrained: num_labels is %d%s", d->num_labels,
                           d->label_names ? "; it must be the number of label_names" : "");
    for (int i = 0; d->label_names && i < d->num_labels; i++)
        if (!d->label_names[i])
            return accel__fail(l->acc, ACCEL_BAD_ARGUMENT, "accel_load_pretrained: label_names[%d] is NULL", i);
    const char *repeated = d->label_names ? accel__repeated_name(d->label_names, d->num_labels) : NULL;
    if (repeated)
        return accel__fail(l->acc, ACCEL_BAD_ARGUMENT, "accel_load_pretrained: \"%.80s\" stands twice in label_names",
                           repeated);
    accel__choice_list(list, sizeof list, accel__problems);
    if (d->problem_type && accel__choice_find(accel__problems, d->problem_type) < 0)
        return accel__fail(l->acc, ACCEL_BAD_ARGUMENT, "accel_load_pretrained: problem_type \"%.80s\" is none of %s",
                           d->problem_type, list);
    if (!(d->dropout >= 0 && d->dropout < 1) && d->dropout != ACCEL_ZERO)
        return accel__fail(l->acc, ACCEL_BAD_ARGUMENT,
                           "accel_load_pretrained: dropout %g must be at least 0 and below 1", (double)d->dropout);
    return true;
}

/* Decides between the folder's head and a fresh one, and what its labels are. */
static bool accel__loading_plan_head(accel__loading *l) {
    accel_encoder_config *e = &l->config.encoder;
    int asked = l->desc.num_labels;
    for (int i = 0; i < l->weight_count && !l->desc.fresh_head; i++)
        l->head = l->head || accel__match(l->parts->head, accel__weight_name(&l->weights[i]));
    if (l->head && asked && asked != e->num_labels)
        return accel__fail(l->acc, ACCEL_BAD_SHAPE,
                           "%s: its trained head has %d labels, not %d (fresh_head takes a new head)", l->folder,
                           e->num_labels, asked);
    bool same_count = !asked || asked == e->num_labels;
    l->names = same_count ? (const char *const *)l->config.names : NULL;
    if (asked) e->num_labels = asked;
    if (l->head) {
        if (!accel__match_names(l)) return false;
    } else if (l->desc.label_names && !accel__generic_names(l->desc.label_names, asked)) {
        l->names = l->desc.label_names;
    }
    return true;
}

/* The config of the model: the folder's, with what the desc overrides. */
static bool accel__loading_plan(accel__loading *l) {
    if (!accel__loading_plan_head(l)) return false;
    const accel_pretrained_desc *d = &l->desc;
    accel_encoder_config *e = &l->config.encoder;
    if (d->problem_type) e->problem = (accel_problem)accel__choice_find(accel__problems, d->problem_type);
    else if (!l->config.problem_given) e->problem = accel__guessed_problem(e->num_labels);
    if (e->problem == ACCEL_SINGLE_LABEL && e->num_labels == 1)
        return accel__fail(l->acc, ACCEL_BAD_ARGUMENT,
                           "accel_load_pretrained: single_label_classification needs 2 labels or more, not 1");
    if (d->dropout != 0) {
        float p = d->dropout == ACCEL_ZERO ? 0 : d->dropout;
        e->dropout = e->attention_dropout = e->classifier_dropout = p;
    }
    return true;
}

/* ---- matching tensors and parameters ---- */

/* Old files call the weight and bias of a layer norm gamma and beta. False where the name is no layer norm's. */
static bool accel__old_name(char *out, size_t size, const char *name) {
    bool weight = accel__match("*LayerNorm.weight,*layer_norm.weight", name);
    if (!weight && !accel__match("*LayerNorm.bias,*layer_norm.bias", name)) return false;
    int stem = (int)(strrchr(name, '.') - name);
    int written = snprintf(out, size, "%.*s.%s", stem, name, weight ? "gamma" : "beta");
    return written > 0 && (size_t)written < size;
}

/* The weight for a parameter: by its full name, without the base model's prefix, or an old name of either; -1: none. */
static int accel__loading_source(const accel__loading *l, const char *name) {
    char old[512];
    size_t prefix = strlen(l->parts->prefix);
    bool based = strncmp(name, l->parts->prefix, prefix) == 0;
    for (const char *stem = name; stem; stem = based && stem == name ? name + prefix : NULL) {
        int found = accel__loading_find(l, stem);
        if (found < 0 && accel__old_name(old, sizeof old, stem)) found = accel__loading_find(l, old);
        if (found >= 0) return found;
    }
    return -1;
}

/* Finds the weight of every parameter; those of a fresh head get none. */
static bool accel__loading_match(accel__loading *l) {
    int count = accel_parameter_count(l->model);
    l->source = accel__alloc(l->acc, (size_t)count * sizeof *l->source);
    for (int i = 0; i < count && l->source; i++) {
        const char *name = accel_parameter_name(l->model, i);
        bool fresh = !l->head && accel__match(l->parts->head, name);
        l->source[i] = fresh ? -1 : accel__loading_source(l, name);
        if (l->source[i] < 0) continue;
        l->weights[l->source[i]].used = true;
        l->pooler = l->pooler || accel__match(l->parts->pooler, name);
    }
    return l->source != NULL;
}

static bool accel__loading_check_missing(const accel__loading *l) {
    int first = -1, missing = 0;
    for (int i = 0; i < accel_parameter_count(l->model); i++) {
        const char *name = accel_parameter_name(l->model, i);
        bool head = accel__match(l->parts->head, name), pooler = accel__match(l->parts->pooler, name);
        bool fresh = !l->head && (head || (pooler && !l->pooler));
        if (l->source[i] < 0 && !fresh && !missing++) first = i;
    }
    if (!missing) return true;
    const char *name = accel_parameter_name(l->model, first);
    bool part_of_head = accel__match(l->parts->head, name) || accel__match(l->parts->pooler, name);
    return accel__fail(l->acc, ACCEL_BAD_FILE, "%s: tensor %s of shape %s is missing (%d missing in all)%s",
                       l->files[0]->path, name,
                       accel__shape_text(accel_shape_of(accel_parameter_at(l->model, first))).text, missing,
                       l->head && part_of_head ? "; fresh_head takes a new head" : "");
}

static accel__text accel__weight_shape_text(const accel__weight *weight) {
    accel__text large = {"[more than can be read]"};
    bool fits = accel__entry_fits(accel__entry_at(weight->file, weight->index));
    return fits ? accel__shape_text(accel_safetensors_shape(weight->file, weight->index)) : large;
}

static bool accel__loading_check_unexpected(const accel__loading *l) {
    const accel__weight *first = NULL;
    int count = 0;
    for (int i = 0; i < l->weight_count; i++) {
        const char *name = accel__weight_name(&l->weights[i]);
        bool old_head = !l->head && accel__match(l->parts->head, name);
        if (l->weights[i].used || old_head || accel__match(l->parts->left_out, name)) continue;
        if (!count++) first = &l->weights[i];
    }
    if (!first) return true;
    return accel__fail(l->acc, ACCEL_BAD_FILE,
                       "%s: unexpected tensor %.200s of shape %s: this %s has no such parameter (%d unexpected in all)",
                       first->file->path, accel__weight_name(first), accel__weight_shape_text(first).text,
                       accel__choice_text(accel__model_types, (int)l->config.encoder.architecture), count);
}

static bool accel__loading_check_shapes(const accel__loading *l) {
    for (int i = 0; i < accel_parameter_count(l->model); i++) {
        if (l->source[i] < 0) continue;
        const accel__weight *weight = &l->weights[l->source[i]];
        accel_shape wanted = accel_shape_of(accel_parameter_at(l->model, i)),
                    found = accel_safetensors_shape(weight->file, weight->index);
        if (accel__shape_equal(wanted, found)) continue;
        return accel__fail(
            l->acc, ACCEL_BAD_SHAPE, "%s: tensor %.200s has shape %s, config.json makes it %s%s", weight->file->path,
            accel__weight_name(weight), accel__weight_shape_text(weight).text, accel__shape_text(wanted).text,
            accel__match(l->parts->head, accel_parameter_name(l->model, i)) ? " (fresh_head takes a new head)" : "");
    }
    return true;
}

/* Draws the parameters that no tensor fills, and says so in one notice. */
static void accel__loading_start_fresh(const accel__loading *l) {
    char list[600] = "";
    for (int i = 0; i < accel_parameter_count(l->model); i++) {
        if (l->source[i] >= 0) continue;
        accel_encoder_reset(l->model, accel_parameter_name(l->model, i));
        accel__append_name(list, sizeof list, accel_parameter_name(l->model, i));
    }
    if (list[0])
        accel__note(l->acc, "%s: %s: fresh weights for %s (to be trained)", l->folder,
                    l->desc.fresh_head ? "a fresh head as asked" : "no trained head", list);
}

/* Converts each tensor from the mapped file right into its parameter. */
static bool accel__loading_read(const accel__loading *l) {
    for (int i = 0; i < accel_parameter_count(l->model); i++) {
        if (l->source[i] < 0) continue;
        const accel__weight *weight = &l->weights[l->source[i]];
        accel_tensor parameter = accel_parameter_at(l->model, i);
        float *values = accel__values(parameter);
        if (!values || !accel_safetensors_read(weight->file, weight->index, values, accel_count(parameter)))
            return false;
        accel__values_changed(parameter);
    }
    return true;
}

/* ---- loading ---- */

static bool accel__loading_run(accel__loading *l) {
    if (!accel__loading_check_desc(l) || !accel__config_open(&l->config, l->acc, l->folder)) return false;
    l->parts = &accel__parts_of[l->config.encoder.architecture];
    if (!accel__loading_open(l) || !accel__loading_check_size(l) || !accel__loading_plan(l)) return false;
    l->model = accel__encoder_build(l->acc, &l->config.encoder);
    if (!l->model || !accel__loading_match(l) || !accel__loading_check_missing(l) ||
        !accel__loading_check_unexpected(l) || !accel__loading_check_shapes(l))
        return false;
    if (!accel__loading_read(l)) return false;
    if (l->names && !accel_set_label_names(l->model, l->names, l->config.encoder.num_labels)) return false;
    accel__loading_start_fresh(l);
    return !accel_failed(l->acc);
}

ACCEL_API accel_model *accel_load_pretrained(accel_t *acc, const char *folder, const accel_pretrained_desc *desc) {
    if (accel_failed(acc)) return NULL;
    if (!folder) {
        accel__fail(acc, ACCEL_BAD_ARGUMENT, "accel_load_pretrained: folder is NULL");
        return NULL;
    }
    accel__loading l = {.acc = acc, .folder = folder, .config = {.acc = acc}};
    if (desc) l.desc = *desc;
    bool good = accel__loading_run(&l);
    if (!good) accel_free(l.model);
    for (int i = 0; i < l.file_count; i++) accel_free(l.files[i]);
    accel__config_close(&l.config);
    accel__free(acc, l.files);
    accel__free(acc, l.weights);
    accel__free(acc, l.source);
    return good ? l.model : NULL;
}

/* ---- saving ---- */

static bool accel__save_weights(accel__writer *w, accel_model *model) {
    static const char *const metadata[] = {"format", "pt", NULL};
    int count = accel_parameter_count(model);
    accel_named_array *arrays = accel__alloc(w->acc, (size_t)count * sizeof *arrays);
    if (!arrays) return false;
    for (int i = 0; i < count; i++) {
        accel_tensor parameter = accel_parameter_at(model, i);
        arrays[i] = (accel_named_array){accel_parameter_name(model, i), ACCEL_F32, accel_shape_of(parameter),
                                        accel__values(parameter)};
    }
    bool good = accel__safetensors_put(w, arrays, count, metadata);
    accel__free(w->acc, arrays);
    return good && accel__writer_sync(w);
}

/* Whether a file holds just this text. */
static bool accel__file_equals(accel_t *acc, const char *path, const char *text) {
    size_t bytes;
    if (!accel__file_exists(path)) return false;
    char *found = accel__read_file(acc, path, &bytes);
    bool same = found && bytes == strlen(text) && memcmp(found, text, bytes) == 0;
    accel__free(acc, found);
    return same;
}

/* Both files are complete and on disk, aside. Another model's config.json goes first and the new one comes last, so
   that a crash in between leaves a folder that is no model rather than one whose parts do not belong together. */
static bool accel__save_commit(accel__writer *weights, accel__writer *config, const char *config_text,
                               const accel_tokenizer *tokenizer, const char *folder) {
    accel_t *acc = weights->acc;
    if (!accel__file_equals(acc, config->path, config_text)) {
        if (unlink(config->path) != 0 && errno != ENOENT)
            return accel__fail(acc, ACCEL_BAD_FILE, "%s cannot be replaced: %s", config->path, strerror(errno));
        accel__sync_folder_of(config->path);
    }
    if (tokenizer && !accel_tokenizer_save(tokenizer, folder)) return false;
    return accel__writer_commit(weights) && accel__writer_commit(config);
}

static bool accel__save_files(accel_t *acc, accel_model *model, const accel_tokenizer *tokenizer, const char *folder,
                              const char *config_text) {
    accel__writer weights = {0}, config = {0};
    char path[ACCEL__PATH_SIZE];
    bool good = accel__path(path, sizeof path, acc, folder, "model.safetensors") &&
                accel__writer_open(&weights, acc, path) && accel__save_weights(&weights, model);
    good = good && accel__path(path, sizeof path, acc, folder, "config.json") && accel__writer_open(&config, acc, path);
    accel__writer_put(&config, config_text, strlen(config_text));
    good = good && accel__writer_sync(&config);
    good = good && accel__save_commit(&weights, &config, config_text, tokenizer, folder);
    accel__writer_abort(&weights);
    accel__writer_abort(&config);
    return good && !accel_failed(acc);
}

/* What Transformers, or a later load, could not make sense of. */
static bool accel__save_check(accel_t *acc, const accel_model *model, const accel_tokenizer *tokenizer,
                              const char *folder) {
    const accel_encoder_config *e = accel_encoder_config_of(model);
    if (!e || !folder)
        return accel__fail(acc, ACCEL_BAD_ARGUMENT, "accel_save_pretrained: %s",
                           e ? "folder is NULL" : "only encoders can be saved this way");
    if (tokenizer && accel_vocabulary_size(tokenizer) > e->vocab_size)
        return accel__fail(acc, ACCEL_BAD_ARGUMENT, "accel_save_pretrained: the tokenizer has %d words, the model %d",
                           accel_vocabulary_size(tokenizer), e->vocab_size);
    for (int i = 0; i < e->num_labels; i++)
        for (int j = 0; j < i && accel_label_name(model, i); j++)
            if (accel_label_name(model, j) && strcmp(accel_label_name(model, i), accel_label_name(model, j)) == 0)
                return accel__fail(acc, ACCEL_BAD_ARGUMENT,
                                   "accel_save_pretrained: labels %d and %d are both called \"%.80s\"", j, i,
                                   accel_label_name(model, i));
    if (e->architecture == ACCEL_DISTILBERT &&
        e->layer_norm_eps != accel_encoder_defaults(ACCEL_DISTILBERT).layer_norm_eps)
        accel__note(acc,
                    "%s: layer_norm_eps %g is kept in config.json, but Transformers' DistilBERT always takes 1e-12",
                    folder, (double)e->layer_norm_eps);
    return true;
}

ACCEL_API bool accel_save_pretrained(const accel_model *model, const accel_tokenizer *tokenizer, const char *folder) {
    accel_t *acc = model ? ((const accel__object *)model)->acc : NULL;
    if (accel_failed(acc) || !accel__save_check(acc, model, tokenizer, folder) || !accel__make_folder(acc, folder))
        return false;
    char *text = accel__config_text(model);
    if (!text) return accel__fail(acc, ACCEL_OUT_OF_MEMORY, "%s: no memory for config.json", folder);
    bool good =
        accel__save_files(acc, (accel_model *)model, tokenizer, folder, text); /* reading parameters changes nothing */
    cJSON_free(text);
    return good;
}

/* ============================================== >>io-unicode ======================================================
   What Hugging Face's BertNormalizer and BertPreTokenizer think of each code point. Their tables are those of Unicode 8
   and 9, so utf8proc's newer categories would split other words; these three were made by asking the tokenizers library
   (0.23) about all 1.1 million code points (tests/make_unicode_tables.py). utf8proc gives decompositions and lower
   case. An entry is a range: first code point << 8 | number of further ones. */


static const uint32_t accel__punctuation[] = {
    0x00210e, 0x003a06, 0x005b05, 0x007b03, 0x00a100, 0x00a700, 0x00ab00, 0x00b601, 0x00bb00, 0x00bf00,
    0x037e00, 0x038700, 0x055a05, 0x058901, 0x05be00, 0x05c000, 0x05c300, 0x05c600, 0x05f301, 0x060901,
    0x060c01, 0x061b00, 0x061e01, 0x066a03, 0x06d400, 0x07000d, 0x07f702, 0x08300e, 0x085e00, 0x096401,
    0x097000, 0x0af000, 0x0df400, 0x0e4f00, 0x0e5a01, 0x0f040e, 0x0f1400, 0x0f3a03, 0x0f8500, 0x0fd004,
    0x0fd901, 0x104a05, 0x10fb00, 0x136008, 0x140000, 0x166d01, 0x169b01, 0x16eb02, 0x173501, 0x17d402,
    0x17d802, 0x18000a, 0x194401, 0x1a1e01, 0x1aa006, 0x1aa805, 0x1b5a06, 0x1bfc03, 0x1c3b04, 0x1c7e01,
    0x1cc007, 0x1cd300, 0x201017, 0x203013, 0x20450c, 0x20530b, 0x207d01, 0x208d01, 0x230803, 0x232901,
    0x27680d, 0x27c501, 0x27e609, 0x298315, 0x29d803, 0x29fc01, 0x2cf903, 0x2cfe01, 0x2d7000, 0x2e002e,
    0x2e3012, 0x300102, 0x300809, 0x30140b, 0x303000, 0x303d00, 0x30a000, 0x30fb00, 0xa4fe01, 0xa60d02,
    0xa67300, 0xa67e00, 0xa6f205, 0xa87403, 0xa8ce01, 0xa8f802, 0xa8fc00, 0xa92e01, 0xa95f00, 0xa9c10c,
    0xa9de01, 0xaa5c03, 0xaade01, 0xaaf001, 0xabeb00, 0xfd3e01, 0xfe1009, 0xfe3022, 0xfe540d, 0xfe6300,
    0xfe6800, 0xfe6a01, 0xff0102, 0xff0505, 0xff0c03, 0xff1a01, 0xff1f01, 0xff3b02, 0xff3f00, 0xff5b00,
    0xff5d00, 0xff5f06, 0x1010002, 0x1039f00, 0x103d000, 0x1056f00, 0x1085700, 0x1091f00, 0x1093f00, 0x10a5008,
    0x10a7f00, 0x10af006, 0x10b3906, 0x10b9903, 0x1104706, 0x110bb01, 0x110be03, 0x1114003, 0x1117401, 0x111c504,
    0x111cd00, 0x111db00, 0x111dd02, 0x1123805, 0x112a900, 0x114c600, 0x115c116, 0x1164102, 0x1173c02, 0x1247004,
    0x16a6e01, 0x16af500, 0x16b3704, 0x16b4400, 0x1bc9f00, 0x1da8704,
};
static const uint32_t accel__marks[] = {
    0x03006f, 0x048304, 0x05912c, 0x05bf00, 0x05c101, 0x05c401, 0x05c700, 0x06100a, 0x064b14, 0x067000,
    0x06d606, 0x06df05, 0x06e701, 0x06ea03, 0x071100, 0x07301a, 0x07a60a, 0x07eb08, 0x081603, 0x081b08,
    0x082502, 0x082904, 0x085902, 0x08e31f, 0x093a00, 0x093c00, 0x094107, 0x094d00, 0x095106, 0x096201,
    0x098100, 0x09bc00, 0x09c103, 0x09cd00, 0x09e201, 0x0a0101, 0x0a3c00, 0x0a4101, 0x0a4701, 0x0a4b02,
    0x0a5100, 0x0a7001, 0x0a7500, 0x0a8101, 0x0abc00, 0x0ac104, 0x0ac701, 0x0acd00, 0x0ae201, 0x0b0100,
    0x0b3c00, 0x0b3f00, 0x0b4103, 0x0b4d00, 0x0b5600, 0x0b6201, 0x0b8200, 0x0bc000, 0x0bcd00, 0x0c0000,
    0x0c3e02, 0x0c4602, 0x0c4a03, 0x0c5501, 0x0c6201, 0x0c8100, 0x0cbc00, 0x0cbf00, 0x0cc600, 0x0ccc01,
    0x0ce201, 0x0d0100, 0x0d4103, 0x0d4d00, 0x0d6201, 0x0dca00, 0x0dd202, 0x0dd600, 0x0e3100, 0x0e3406,
    0x0e4707, 0x0eb100, 0x0eb405, 0x0ebb01, 0x0ec805, 0x0f1801, 0x0f3500, 0x0f3700, 0x0f3900, 0x0f710d,
    0x0f8004, 0x0f8601, 0x0f8d0a, 0x0f9923, 0x0fc600, 0x102d03, 0x103205, 0x103901, 0x103d01, 0x105801,
    0x105e02, 0x107103, 0x108200, 0x108501, 0x108d00, 0x109d00, 0x135d02, 0x171202, 0x173202, 0x175201,
    0x177201, 0x17b401, 0x17b706, 0x17c600, 0x17c90a, 0x17dd00, 0x180b02, 0x18a900, 0x192002, 0x192701,
    0x193200, 0x193902, 0x1a1701, 0x1a1b00, 0x1a5600, 0x1a5806, 0x1a6000, 0x1a6200, 0x1a6507, 0x1a7309,
    0x1a7f00, 0x1ab00d, 0x1b0003, 0x1b3400, 0x1b3604, 0x1b3c00, 0x1b4200, 0x1b6b08, 0x1b8001, 0x1ba203,
    0x1ba801, 0x1bab02, 0x1be600, 0x1be801, 0x1bed00, 0x1bef02, 0x1c2c07, 0x1c3601, 0x1cd002, 0x1cd40c,
    0x1ce206, 0x1ced00, 0x1cf400, 0x1cf801, 0x1dc035, 0x1dfc03, 0x20d00c, 0x20e100, 0x20e50b, 0x2cef02,
    0x2d7f00, 0x2de01f, 0x302a03, 0x309901, 0xa66f00, 0xa67409, 0xa69e01, 0xa6f001, 0xa80200, 0xa80600,
    0xa80b00, 0xa82501, 0xa8c400, 0xa8e011, 0xa92607, 0xa9470a, 0xa98002, 0xa9b300, 0xa9b603, 0xa9bc00,
    0xa9e500, 0xaa2905, 0xaa3101, 0xaa3501, 0xaa4300, 0xaa4c00, 0xaa7c00, 0xaab000, 0xaab202, 0xaab701,
    0xaabe01, 0xaac100, 0xaaec01, 0xaaf600, 0xabe500, 0xabe800, 0xabed00, 0xfb1e00, 0xfe000f, 0xfe200f,
    0x101fd00, 0x102e000, 0x1037604, 0x10a0102, 0x10a0501, 0x10a0c03, 0x10a3802, 0x10a3f00, 0x10ae501, 0x1100100,
    0x110380e, 0x1107f02, 0x110b303, 0x110b901, 0x1110002, 0x1112704, 0x1112d07, 0x1117300, 0x1118001, 0x111b608,
    0x111ca02, 0x1122f02, 0x1123400, 0x1123601, 0x112df00, 0x112e307, 0x1130001, 0x1133c00, 0x1134000, 0x1136606,
    0x1137004, 0x114b305, 0x114ba00, 0x114bf01, 0x114c201, 0x115b203, 0x115bc01, 0x115bf01, 0x115dc01, 0x1163307,
    0x1163d00, 0x1163f01, 0x116ab00, 0x116ad00, 0x116b005, 0x116b700, 0x1171d02, 0x1172203, 0x1172704, 0x16af004,
    0x16b3006, 0x16f8f03, 0x1bc9d01, 0x1d16702, 0x1d17b07, 0x1d18506, 0x1d1aa03, 0x1d24202, 0x1da0036, 0x1da3b31,
    0x1da7500, 0x1da8400, 0x1da9b04, 0x1daa10e, 0x1e8d006, 0xe0100ef,
};
static const uint32_t accel__removed[] = {
    0x000008, 0x000b01, 0x000e11, 0x007f20, 0x00ad00, 0x060005, 0x061c00, 0x06dd00, 0x070f00, 0x180e00,
    0x200b04, 0x202a04, 0x206004, 0x206609, 0xfeff00, 0xfff902, 0xfffd00, 0x110bd00, 0x1bca003, 0x1d17307,
    0xe000100, 0xe00205f,
};

/* What a tokenizer does with a code point; one byte for each, so that a character of text costs one look-up. */
enum {
    ACCEL__DROP = 1,           /* control and format characters, private use, U+FFFD        */
    ACCEL__SPACE = 2,
    ACCEL__PUNCTUATION = 4,    /* a word of its own                                         */
    ACCEL__CHINESE = 8,        /* spaces are put around it                                  */
    ACCEL__MARK = 16,          /* dropped after decomposition                               */
    ACCEL__BEGINS_RAW = 32,    /* an added token that is matched in raw text may begin here */
    ACCEL__BEGINS_NORMAL = 64, /* the same for normalised text                              */
    ACCEL__CODE_POINTS = 0x110000
};

static const struct {
    uint32_t first, last;
    uint8_t bit;
} accel__spans[] = {
    {0x09, 0x0D, ACCEL__SPACE},         {0x20, 0x20, ACCEL__SPACE},         {0x85, 0x85, ACCEL__SPACE},
    {0xA0, 0xA0, ACCEL__SPACE},         {0x1680, 0x1680, ACCEL__SPACE},     {0x2000, 0x200A, ACCEL__SPACE},
    {0x2028, 0x2029, ACCEL__SPACE},     {0x202F, 0x202F, ACCEL__SPACE},     {0x205F, 0x205F, ACCEL__SPACE},
    {0x3000, 0x3000, ACCEL__SPACE},     {0x3400, 0x4DBF, ACCEL__CHINESE},   {0x4E00, 0x9FFF, ACCEL__CHINESE},
    {0xF900, 0xFAFF, ACCEL__CHINESE},   {0x20000, 0x2A6DF, ACCEL__CHINESE}, {0x2A700, 0x2B81F, ACCEL__CHINESE},
    {0x2B920, 0x2CEAF, ACCEL__CHINESE}, {0x2F800, 0x2FA1F, ACCEL__CHINESE}, {0xE000, 0xF8FF, ACCEL__DROP},
    {0xF0000, 0xFFFFD, ACCEL__DROP},    {0x100000, 0x10FFFD, ACCEL__DROP},
};

static void accel__classes_mark(uint8_t *classes, const uint32_t *ranges, int count, uint8_t bit) {
    for (int i = 0; i < count; i++) {
        for (uint32_t c = ranges[i] >> 8, last = c + (ranges[i] & 255); c <= last; c++) classes[c] |= bit;
    }
}

/* Fills the zeroed classes with the bits in `wanted`. Where a code point is both space and dropped, it is dropped. */
static void accel__classes_fill(uint8_t *classes, int wanted) {
    for (int i = 0; i < ACCEL__COUNT(accel__spans); i++) {
        for (uint32_t c = accel__spans[i].first; c <= accel__spans[i].last && accel__spans[i].bit & wanted; c++)
            classes[c] |= accel__spans[i].bit;
    }
    accel__classes_mark(classes, accel__punctuation, ACCEL__COUNT(accel__punctuation), ACCEL__PUNCTUATION);
    if (wanted & ACCEL__MARK) accel__classes_mark(classes, accel__marks, ACCEL__COUNT(accel__marks), ACCEL__MARK);
    if (wanted & ACCEL__DROP) accel__classes_mark(classes, accel__removed, ACCEL__COUNT(accel__removed), ACCEL__DROP);
    classes[0] = ACCEL__DROP; /* never a letter: it ends the text */
}

/* The code point at `at`, a text that ends with NUL, and its bytes; an invalid byte is U+FFFD, 1 byte, *valid false. */
static int accel__point_at(const char *at, uint32_t *c, bool *valid) {
    utf8proc_int32_t point;
    utf8proc_ssize_t bytes = utf8proc_iterate((const utf8proc_uint8_t *)at, -1, &point);
    *valid = bytes > 0;
    *c = *valid ? (uint32_t)point : 0xFFFD;
    return *valid ? (int)bytes : 1;
}

/* The last code point of the valid text begin .. at-1 (not empty), and where it begins. */
static const char *accel__point_before(const char *begin, const char *at, uint32_t *c) {
    bool valid;
    do at--;
    while (at > begin && (*at & 0xC0) == 0x80);
    accel__point_at(at, c, &valid);
    return at;
}

/* The first byte that is not part of a valid character, or end. */
static const char *accel__utf8_invalid(const char *at, const char *end) {
    while (at < end) {
        utf8proc_int32_t point;
        utf8proc_ssize_t bytes = 1;
        if ((unsigned char)*at >= 0x80) bytes = utf8proc_iterate((const utf8proc_uint8_t *)at, end - at, &point);
        if (bytes < 1) return at;
        at += bytes;
    }
    return end;
}

static bool accel__is_utf8(const char *text) {
    const char *end = text + strlen(text);
    return accel__utf8_invalid(text, end) == end;
}

/* Letters that Rust's lower case knows and utf8proc 2.8 does not. */
static const struct {
    uint32_t first, last, lower;
} accel__new_capitals[] = {
    {0x1C89, 0x1C89, 0x1C8A}, {0xA7CB, 0xA7CB, 0x264},  {0xA7CC, 0xA7CC, 0xA7CD},    {0xA7CE, 0xA7CE, 0xA7CF},
    {0xA7D2, 0xA7D2, 0xA7D3}, {0xA7D4, 0xA7D4, 0xA7D5}, {0xA7DA, 0xA7DA, 0xA7DB},    {0xA7DC, 0xA7DC, 0x19B},
    {0x10D50, 0x10D65, 0x10D70}, {0x16EA0, 0x16EB8, 0x16EBB},
};

/* Lower case of one character, without context: one code point, or two. */
static int accel__lower(uint32_t c, uint32_t out[2]) {
    out[0] = c;
    if (c < 0x80) {
        if (c - 'A' < 26) out[0] = c + 32;
        return 1;
    }
    if (c == 0x130) { /* I with a dot keeps the dot */
        out[0] = 'i';
        out[1] = 0x307;
        return 2;
    }
    for (int i = 0; c >= 0x1C89 && i < ACCEL__COUNT(accel__new_capitals); i++) {
        if (c < accel__new_capitals[i].first || c > accel__new_capitals[i].last) continue;
        out[0] = accel__new_capitals[i].lower + (c - accel__new_capitals[i].first);
        return 1;
    }
    out[0] = (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
    return 1;
}

#define ACCEL__DECOMPOSED 8
/* Canonical decomposition as of Unicode 9: what later versions decompose (U+11938 and a few new blocks) stays whole. */
static int accel__decompose(uint32_t c, uint32_t out[ACCEL__DECOMPOSED]) {
    out[0] = c;
    if (c < 0xC0 || c == 0x11938 || (c >= 0x105C0 && c <= 0x105FF) || (c >= 0x11380 && c <= 0x113FF) ||
        (c >= 0x16100 && c <= 0x1613F) || (c >= 0x16D40 && c <= 0x16D7F))
        return 1;
    utf8proc_int32_t parts[ACCEL__DECOMPOSED];
    int boundary = 0;
    utf8proc_ssize_t count =
        utf8proc_decompose_char((utf8proc_int32_t)c, parts, ACCEL__DECOMPOSED, UTF8PROC_DECOMPOSE, &boundary);
    if (count < 1 || count > ACCEL__DECOMPOSED) return 1;
    for (utf8proc_ssize_t i = 0; i < count; i++) out[i] = (uint32_t)parts[i];
    return (int)count;
}

/* Part of a word, as \w of regular expressions has it: letters, marks, numbers, connecting punctuation, joiners. */
static bool accel__is_word_point(uint32_t c) {
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return (category > UTF8PROC_CATEGORY_CN && category <= UTF8PROC_CATEGORY_PC && category != UTF8PROC_CATEGORY_NO) ||
           c == 0x200C || c == 0x200D;
}

/* ============================================= >>io-tokenizer =====================================================
   Text goes through one character at a time: added tokens are found in the raw text, the rest is normalised as
   BertNormalizer does it (clean, Chinese, accents, lower case), cut into words at spaces and punctuation, and each word
   into the longest pieces of the vocabulary. A word lies in a fixed buffer, so a text of any length needs no memory.
   Canonical reordering is left out: it could only exchange two marks that survive the removal of accents, from scripts
   that share no word. */

/* ---- numbered strings, found by content ---- */

typedef struct accel__string_slot {
    uint32_t tag;
    int32_t index; /* -1: free */
} accel__string_slot;

typedef struct accel__strings {
    accel_t *acc;
    char *bytes;               /* all strings, each with a NUL behind it                     */
    size_t *start;             /* [count + 1]; string i is bytes[start[i] .. start[i+1] - 2] */
    size_t byte_room, start_room;
    int32_t count;
    accel__string_slot *slots; /* [2^bits], at most half of them taken; NULL while empty     */
    int bits;
} accel__strings;

#define ACCEL__HASH_BASE 0x100000001B3u
/* A polynomial of the bytes: h(ab) = h(a) * base^|b| + h(b), so any piece's hash follows from those of the prefixes. */
static uint64_t accel__hash(const char *text, size_t bytes) {
    uint64_t hash = 0;
    for (size_t i = 0; i < bytes; i++) hash = hash * ACCEL__HASH_BASE + (unsigned char)text[i];
    return hash;
}

/* Lets every bit of a hash reach the upper ones, which choose the slot. */
static uint64_t accel__spread(uint64_t hash) { return hash * 0x9E3779B97F4A7C15u; }

static void accel__strings_free(accel__strings *s) {
    accel__free(s->acc, s->bytes);
    accel__free(s->acc, s->start);
    accel__free(s->acc, s->slots);
}

static const char *accel__string_at(const accel__strings *s, int32_t i) { return s->bytes + s->start[i]; }
static size_t accel__string_bytes(const accel__strings *s, int32_t i) { return s->start[i + 1] - s->start[i] - 1; }

/* The slot that holds the string head + tail of this hash, or the free one where it belongs. */
static accel__string_slot *accel__strings_slot(const accel__strings *s, uint64_t hash, const char *head,
                                               size_t head_bytes, const char *tail, size_t tail_bytes) {
    uint64_t mixed = accel__spread(hash);
    size_t mask = ((size_t)1 << s->bits) - 1, i = (size_t)(mixed >> (64 - s->bits));
    for (;; i = (i + 1) & mask) {
        accel__string_slot *slot = &s->slots[i];
        if (slot->index < 0) return slot;
        if (slot->tag != (uint32_t)mixed || accel__string_bytes(s, slot->index) != head_bytes + tail_bytes) continue;
        const char *found = accel__string_at(s, slot->index);
        if (memcmp(found, head, head_bytes) == 0 && memcmp(found + head_bytes, tail, tail_bytes) == 0) return slot;
    }
}

/* Lets the content of string i lead to i, even where an earlier string had the same. */
static void accel__strings_link(accel__strings *s, int32_t i) {
    const char *text = accel__string_at(s, i);
    size_t bytes = accel__string_bytes(s, i);
    uint64_t hash = accel__hash(text, bytes);
    accel__string_slot *slot = accel__strings_slot(s, hash, "", 0, text, bytes);
    slot->tag = (uint32_t)accel__spread(hash);
    slot->index = i;
}

static bool accel__strings_rehash(accel__strings *s) {
    int bits = s->slots ? s->bits + 1 : 10;
    size_t slots = (size_t)1 << bits;
    accel__string_slot *larger = accel__alloc(s->acc, slots * sizeof *larger);
    if (!larger) return false;
    for (size_t i = 0; i < slots; i++) larger[i] = (accel__string_slot){0, -1};
    accel__free(s->acc, s->slots);
    s->slots = larger;
    s->bits = bits;
    for (int32_t i = 0; i < s->count; i++) accel__strings_link(s, i);
    return true;
}

/* Appends a string (not one of its own), whether or not it is there already; its number, or -1 without memory. */
static int32_t accel__strings_add(accel__strings *s, const char *text, size_t bytes) {
    size_t count = (size_t)s->count, used = count ? s->start[count] : 0;
    if (s->count == INT32_MAX) accel__fail(s->acc, ACCEL_OUT_OF_MEMORY, "more than %d strings", INT32_MAX);
    if (s->count == INT32_MAX) return -1;
    if (!accel__grow(s->acc, &s->bytes, &s->byte_room, used + bytes + 1, 1)) return -1;
    if (!accel__grow(s->acc, &s->start, &s->start_room, count + 2, sizeof *s->start)) return -1;
    if ((!s->slots || (count + 1) * 2 > (size_t)1 << s->bits) && !accel__strings_rehash(s)) return -1;
    memcpy(s->bytes + used, text, bytes);
    s->bytes[used + bytes] = 0;
    s->start[count] = used;
    s->start[count + 1] = used + bytes + 1;
    s->count++;
    accel__strings_link(s, s->count - 1);
    return s->count - 1;
}

/* The number of a string (the last of equal ones), -1: not there. */
static int32_t accel__strings_find(const accel__strings *s, const char *text, size_t bytes) {
    return s->count ? accel__strings_slot(s, accel__hash(text, bytes), "", 0, text, bytes)->index : -1;
}

/* ---- the tokenizer ---- */

enum { ACCEL__UNK, ACCEL__CLS, ACCEL__SEP, ACCEL__PAD, ACCEL__MASK, ACCEL__SPECIALS };
static const struct {
    const char *key, *text; /* in tokenizer_config.json; the usual token */
} accel__specials[ACCEL__SPECIALS] = {
    {"unk_token", "[UNK]"}, {"cls_token", "[CLS]"},   {"sep_token", "[SEP]"},
    {"pad_token", "[PAD]"}, {"mask_token", "[MASK]"},
};

/* A token that is matched whole in the text, before it is cut into words. */
typedef struct accel__added {
    int32_t id;
    bool special, normalized, single_word; /* normalized: looked for in normalised text */
    char *pattern;                         /* what is looked for                        */
    size_t bytes;
} accel__added;

#define ACCEL__WORD_CHARS 1000 /* largest max_input_chars_per_word */
struct accel_tokenizer {
    accel__object object;
    accel__strings vocabulary;
    int32_t pieces;                     /* words are made of ids below this; the others are added tokens             */
    int32_t special[ACCEL__SPECIALS];   /* ids; -1: none                                                             */
    bool lower_case, strip_accents, chinese_chars, clean_text, replace_invalid;
    char *prefix;                       /* of a piece that goes on with a word: "##"                                 */
    size_t prefix_bytes;
    uint64_t prefix_hash;
    int word_chars;                     /* a longer word is unknown                                                  */
    double model_max_length;            /* of tokenizer_config.json, kept for Transformers; 0: not there             */
    size_t longest, longest_next;       /* bytes of the longest piece, and of one that goes on, without its prefix   */
    uint64_t *power;                    /* [longest + 1] powers of ACCEL__HASH_BASE                                  */
    uint8_t *classes;                   /* [ACCEL__CODE_POINTS]                                                      */
    accel__added *added;
    size_t added_count, added_room;
    bool any_normalized;
};

static void accel__tokenizer_destroy(accel__object *object) {
    accel_tokenizer *t = (accel_tokenizer *)object;
    for (size_t i = 0; i < t->added_count; i++) accel__free(object->acc, t->added[i].pattern);
    accel__free(object->acc, t->added);
    accel__strings_free(&t->vocabulary);
    accel__free(object->acc, t->prefix);
    accel__free(object->acc, t->power);
    accel__free(object->acc, t->classes);
}

static accel_tokenizer *accel__tokenizer_create(accel_t *acc) {
    accel_tokenizer *t = accel__object_create(acc, ACCEL__TOKENIZER, sizeof *t, accel__tokenizer_destroy);
    if (!t) return NULL;
    t->vocabulary.acc = acc;
    for (int i = 0; i < ACCEL__SPECIALS; i++) t->special[i] = -1;
    t->word_chars = 100;
    return t;
}

/* Copies the prefix and makes the class table; after the options are set, before the first text. */
static bool accel__tokenizer_prepare(accel_tokenizer *t, const char *prefix) {
    accel_t *acc = t->object.acc;
    t->prefix = accel__strdup(acc, prefix);
    t->classes = accel__alloc(acc, ACCEL__CODE_POINTS);
    if (!t->prefix || !t->classes) return false;
    t->prefix_bytes = strlen(prefix);
    t->prefix_hash = accel__hash(prefix, t->prefix_bytes);
    memset(t->classes, 0, ACCEL__CODE_POINTS);
    accel__classes_fill(t->classes, ACCEL__SPACE | (t->clean_text ? ACCEL__DROP : 0) |
                                        (t->chinese_chars ? ACCEL__CHINESE : 0) | (t->strip_accents ? ACCEL__MARK : 0));
    return true;
}

/* Measures the vocabulary that words are cut into, before tokens are added to it. */
static bool accel__tokenizer_measure(accel_tokenizer *t) {
    const accel__strings *v = &t->vocabulary;
    t->pieces = v->count;
    for (int32_t i = 0; i < v->count; i++) {
        size_t bytes = accel__string_bytes(v, i);
        if (bytes > t->longest) t->longest = bytes;
        if (strncmp(accel__string_at(v, i), t->prefix, t->prefix_bytes) != 0) continue;
        if (bytes - t->prefix_bytes > t->longest_next) t->longest_next = bytes - t->prefix_bytes;
    }
    t->power = accel__alloc(t->object.acc, (t->longest + 1) * sizeof *t->power);
    if (!t->power) return false;
    t->power[0] = 1;
    for (size_t i = 1; i <= t->longest; i++) t->power[i] = t->power[i - 1] * ACCEL__HASH_BASE;
    return true;
}

/* ---- from text to words ---- */

/* One pass over a text; lives on the stack of the calling thread. */
typedef struct accel__scan {
    const accel_tokenizer *tokenizer;
    void (*take)(struct accel__scan *scan); /* gets each word: word[0 .. bytes-1], or chars > word_chars: too long */
    void *target;                           /* of `take` */
    int32_t *ids;                           /* the first `room` ids of the text */
    int room, count;                        /* count: ids so far, stored or not */
    bool holds;                             /* normalised text is held back instead of cut into words */
    bool no_memory;
    char *held;
    size_t held_bytes, held_room;
    int bytes, chars;                       /* of the word so far */
    char word[4 * ACCEL__WORD_CHARS + 1];
} accel__scan;

static void accel__scan_begin(accel__scan *s, const accel_tokenizer *t, void (*take)(accel__scan *scan)) {
    s->tokenizer = t;
    s->take = take;
    s->target = NULL;
    s->ids = NULL;
    s->room = s->count = 0;
    s->holds = t->any_normalized;
    s->no_memory = false;
    s->held = NULL;
    s->held_bytes = s->held_room = 0;
    s->bytes = s->chars = 0;
}

static void accel__put_id(accel__scan *s, int32_t id) {
    if (s->count < s->room) s->ids[s->count] = id;
    if (s->count < INT_MAX) s->count++;
}

static void accel__end_word(accel__scan *s) {
    if (s->chars) s->take(s);
    s->bytes = s->chars = 0;
}

static void accel__put_letter(accel__scan *s, uint32_t c) {
    if (s->chars < s->tokenizer->word_chars)
        s->bytes += (int)utf8proc_encode_char((utf8proc_int32_t)c, (utf8proc_uint8_t *)s->word + s->bytes);
    if (s->chars <= s->tokenizer->word_chars) s->chars++;
}

/* Cuts normalised text into words. */
static void accel__put_normal(accel__scan *s, uint32_t c) {
    uint8_t class = s->tokenizer->classes[c];
    if (class & (ACCEL__SPACE | ACCEL__PUNCTUATION)) accel__end_word(s);
    if (class & ACCEL__SPACE) return;
    accel__put_letter(s, c);
    if (class & ACCEL__PUNCTUATION) accel__end_word(s);
}

/* Keeps normalised text for accel__release_held. malloc, since this may be any thread. */
static void accel__hold(accel__scan *s, uint32_t c) {
    if (s->held_room - s->held_bytes < 5) {
        size_t room = s->held_room ? s->held_room * 2 : 1024;
        char *larger = s->no_memory ? NULL : realloc(s->held, room);
        s->no_memory = !larger;
        if (!larger) return;
        s->held = larger;
        s->held_room = room;
    }
    s->held_bytes += (size_t)utf8proc_encode_char((utf8proc_int32_t)c, (utf8proc_uint8_t *)s->held + s->held_bytes);
    s->held[s->held_bytes] = 0;
}

static void accel__put_lower(accel__scan *s, uint32_t c) {
    uint32_t lower[2] = {c, 0};
    int count = s->tokenizer->lower_case ? accel__lower(c, lower) : 1;
    for (int i = 0; i < count; i++) {
        if (s->holds) accel__hold(s, lower[i]);
        else accel__put_normal(s, lower[i]);
    }
}

/* Normalises one character of the raw text. */
static void accel__put_raw(accel__scan *s, uint32_t c) {
    const accel_tokenizer *t = s->tokenizer;
    uint8_t class = t->classes[c];
    if (class & ACCEL__DROP) return;
    if (class & ACCEL__SPACE && t->clean_text) c = ' ';
    if (class & ACCEL__CHINESE) accel__put_lower(s, ' ');
    uint32_t parts[ACCEL__DECOMPOSED] = {c};
    int count = t->strip_accents ? accel__decompose(c, parts) : 1;
    for (int i = 0; i < count; i++) {
        if (!(t->classes[parts[i]] & ACCEL__MARK)) accel__put_lower(s, parts[i]);
    }
    if (class & ACCEL__CHINESE) accel__put_lower(s, ' ');
}

/* ASCII letters and digits from `at` on, the bulk of most text; returns where they end. */
static const char *accel__put_ascii(accel__scan *s, const char *at) {
    const accel_tokenizer *t = s->tokenizer;
    int bytes = s->bytes, chars = s->chars;
    for (; !(*at & 0x80) && t->classes[(unsigned char)*at] == 0; at++) {
        unsigned char c = (unsigned char)*at;
        if (t->lower_case && c >= 'A' && c <= 'Z') c = (unsigned char)(c + 32);
        if (chars < t->word_chars) s->word[bytes++] = (char)c;
        if (chars <= t->word_chars) chars++;
    }
    s->bytes = bytes;
    s->chars = chars;
    return at;
}

/* ---- added tokens ---- */

/* The longest added token of the kind that begins at `at`, or NULL. */
static const accel__added *accel__added_at(const accel_tokenizer *t, const char *at, bool normalized) {
    const accel__added *best = NULL;
    for (size_t i = 0; i < t->added_count; i++) {
        const accel__added *a = &t->added[i];
        if (a->normalized != normalized || (best && a->bytes <= best->bytes)) continue;
        if (strncmp(at, a->pattern, a->bytes) == 0) best = a;
    }
    return best;
}

/* False where the token must be a single word and is a part of one. */
static bool accel__added_fits(const accel__added *a, const char *begin, const char *at) {
    uint32_t c;
    bool valid;
    if (!a->single_word) return true;
    if (at > begin) {
        accel__point_before(begin, at, &c);
        if (accel__is_word_point(c)) return false;
    }
    accel__point_at(at + a->bytes, &c, &valid);
    return !at[a->bytes] || !valid || !accel__is_word_point(c);
}

/* Cuts the normalised text that was held back into words and added tokens. */
static void accel__release_held(accel__scan *s) {
    const accel_tokenizer *t = s->tokenizer;
    uint32_t c;
    bool valid;
    const char *refused = s->held; /* a token that does not fit is plain text to its end */
    for (const char *at = s->held, *end = at + s->held_bytes; at < end;) {
        int bytes = accel__point_at(at, &c, &valid);
        const accel__added *a = NULL;
        if (t->classes[c] & ACCEL__BEGINS_NORMAL && at >= refused) a = accel__added_at(t, at, true);
        if (a && accel__added_fits(a, s->held, at)) {
            accel__end_word(s);
            accel__put_id(s, a->id);
            at += a->bytes;
            continue;
        }
        if (a) refused = at + a->bytes;
        accel__put_normal(s, c);
        at += bytes;
    }
    s->held_bytes = 0;
}

static void accel__end_piece(accel__scan *s) {
    if (s->held) accel__release_held(s);
    accel__end_word(s);
}

/* Reads a text to its end; false on invalid UTF-8 that is not to be replaced. */
static bool accel__scan_text(accel__scan *s, const char *text) {
    const accel_tokenizer *t = s->tokenizer;
    const char *refused = text;
    for (const char *at = text; at && *at;) {
        if (!s->holds) at = accel__put_ascii(s, at);
        if (!*at) break;
        uint32_t c;
        bool valid;
        int bytes = accel__point_at(at, &c, &valid);
        if (!valid && !t->replace_invalid) return false;
        const accel__added *a = NULL;
        if (t->classes[c] & ACCEL__BEGINS_RAW && at >= refused) a = accel__added_at(t, at, false);
        if (a && accel__added_fits(a, text, at)) {
            accel__end_piece(s);
            accel__put_id(s, a->id);
            at += a->bytes;
            continue;
        }
        if (a) refused = at + a->bytes;
        accel__put_raw(s, c);
        at += bytes;
    }
    return true;
}

/* ---- from words to ids ---- */

/* The id of the longest piece of word[begin ..] and its end in *end; -1: none. hash[i] is that of word[0 .. i-1]. */
static int32_t accel__longest_piece(const accel__scan *s, const uint64_t *hash, size_t begin, size_t *end) {
    const accel_tokenizer *t = s->tokenizer;
    const accel__strings *v = &t->vocabulary;
    size_t longest = begin ? t->longest_next : t->longest, head = begin ? t->prefix_bytes : 0;
    size_t rest = (size_t)s->bytes - begin;
    for (size_t bytes = rest < longest ? rest : longest; bytes > 0; bytes--) {
        if ((s->word[begin + bytes] & 0xC0) == 0x80) continue; /* in the middle of a character */
        uint64_t power = t->power[bytes], piece = hash[begin + bytes] - hash[begin] * power;
        if (begin) piece += t->prefix_hash * power;
        int32_t id = accel__strings_slot(v, piece, t->prefix, head, s->word + begin, bytes)->index;
        if (id < 0 || id >= t->pieces) continue;
        *end = begin + bytes;
        return id;
    }
    return -1;
}

/* Cuts a word into the longest pieces from its begin on; a word with a remainder is unknown as a whole. */
static void accel__word_to_ids(accel__scan *s) {
    uint64_t hash[4 * ACCEL__WORD_CHARS + 1];
    int before = s->count;
    size_t bytes = (size_t)s->bytes, end = 0;
    bool known = s->chars <= s->tokenizer->word_chars;
    s->word[bytes] = 0;
    hash[0] = 0;
    for (size_t i = 0; known && i < bytes; i++) hash[i + 1] = hash[i] * ACCEL__HASH_BASE + (unsigned char)s->word[i];
    for (size_t begin = 0; known && begin < bytes; begin = end) {
        int32_t id = accel__longest_piece(s, hash, begin, &end);
        known = id >= 0;
        accel__put_id(s, id);
    }
    if (known) return;
    s->count = before;
    accel__put_id(s, s->tokenizer->special[ACCEL__UNK]);
}

/* The ids of a text: the first `room` are stored, all are counted. -1: invalid UTF-8 or no memory. */
static int accel__text_to_ids(const accel_tokenizer *t, const char *text, int32_t *ids, int room) {
    accel__scan scan;
    accel__scan_begin(&scan, t, accel__word_to_ids);
    scan.ids = ids;
    scan.room = room;
    bool good = accel__scan_text(&scan, text);
    accel__end_piece(&scan);
    free(scan.held);
    return good && !scan.no_memory ? scan.count : -1;
}

/* Shortens a pair to `room` ids in all, as the library's longest_first does: the longer one, and where that is not
   enough both to half. */
static void accel__longest_first(int room, int *first, int *second) {
    int64_t total = (int64_t)*first + *second;
    if (total <= room) return;
    int shorter = *first < *second ? *first : *second, longer = room - shorter;
    if (shorter > longer) {
        shorter = room / 2;
        longer = room - shorter;
    }
    bool swapped = *first > *second;
    *first = swapped ? longer : shorter;
    *second = swapped ? shorter : longer;
}

ACCEL_API int accel_tokenize(const accel_tokenizer *tokenizer, const char *text, const char *pair, int max_length,
                             int32_t *ids, int32_t *types, int *full) {
    int specials = pair ? 3 : 2, room = max_length > specials ? max_length - specials : 0, second = 0;
    if (!tokenizer) return -1;
    int first = accel__text_to_ids(tokenizer, text, room ? ids + 1 : NULL, room);
    if (first < 0) return -1;
    int stored = first < room ? first : room;
    /* Where the pair's ids belong if the first text keeps all that it has stored. */
    if (pair) second = accel__text_to_ids(tokenizer, pair, room ? ids + stored + 2 : NULL, room - stored);
    if (second < 0) return -1;
    int64_t whole = (int64_t)first + second + specials;
    if (full) *full = whole < INT_MAX ? (int)whole : INT_MAX;
    if (max_length < specials) return 0;
    accel__longest_first(room, &first, &second);
    if (pair && first < stored && accel__text_to_ids(tokenizer, pair, ids + first + 2, second) < 0) return -1;
    int length = first + second + specials;
    ids[0] = tokenizer->special[ACCEL__CLS];
    ids[first + 1] = ids[length - 1] = tokenizer->special[ACCEL__SEP];
    for (int i = 0; types && i < length; i++) types[i] = i > first + 1;
    return length;
}

ACCEL_API int accel_vocabulary_size(const accel_tokenizer *tokenizer) {
    return tokenizer ? tokenizer->vocabulary.count : 0;
}

ACCEL_API const char *accel_token_text(const accel_tokenizer *tokenizer, int32_t id) {
    return id >= 0 && id < accel_vocabulary_size(tokenizer) ? accel__string_at(&tokenizer->vocabulary, id) : NULL;
}

ACCEL_API int32_t accel_token_id(const accel_tokenizer *tokenizer, const char *token) {
    return tokenizer && token ? accel__strings_find(&tokenizer->vocabulary, token, strlen(token)) : -1;
}

/* ---- reading a tokenizer's files ---- */

/* The files of a folder, or the one file that was named. */
typedef struct accel__tokenizer_files {
    char vocabulary[ACCEL__PATH_SIZE]; /* vocab.txt or tokenizer.json                                            */
    bool listed;                       /* the vocabulary is a vocab.txt                                          */
    cJSON *config;                     /* tokenizer_config.json, NULL: absent                                    */
    cJSON *names;                      /* special_tokens_map.json, of older folders                              */
    cJSON *more;                       /* added_tokens.json, of older folders                                    */
    cJSON *whole;                      /* tokenizer.json, where the vocabulary or the options must come from it  */
} accel__tokenizer_files;

static const cJSON *accel__json_get(const cJSON *object, const char *key) {
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

/* A token's text, written as a string or as an object with its content; NULL for anything else. */
static const char *accel__json_token(const cJSON *item) {
    const char *text = cJSON_GetStringValue(cJSON_IsObject(item) ? accel__json_get(item, "content") : item);
    return text && *text ? text : NULL;
}

static accel_choice accel__json_choice(const cJSON *object, const char *key) {
    const cJSON *item = accel__json_get(object, key);
    return cJSON_IsBool(item) ? cJSON_IsTrue(item) ? ACCEL_YES : ACCEL_NO : ACCEL_DEFAULT;
}

/* A file of the folder that may be absent; false on a malformed one. */
static bool accel__read_optional(accel_t *acc, const char *folder, const char *name, cJSON **json) {
    char path[ACCEL__PATH_SIZE];
    if (!accel__path(path, sizeof path, acc, folder, name)) return false;
    if (accel__file_exists(path)) *json = accel__json_read(acc, path);
    if (*json && !cJSON_IsObject(*json)) return accel__fail(acc, ACCEL_BAD_FILE, "%s is not a JSON object", path);
    return !accel_failed(acc);
}

static bool accel__open_folder(accel_t *acc, const char *folder, accel__tokenizer_files *f) {
    if (!accel__path(f->vocabulary, sizeof f->vocabulary, acc, folder, "vocab.txt")) return false;
    f->listed = accel__file_exists(f->vocabulary);
    if (!f->listed && !accel__path(f->vocabulary, sizeof f->vocabulary, acc, folder, "tokenizer.json")) return false;
    if (!f->listed && !accel__file_exists(f->vocabulary))
        return accel__fail(acc, ACCEL_BAD_FILE, "%s holds neither vocab.txt nor tokenizer.json", folder);
    if (!accel__read_optional(acc, folder, "tokenizer_config.json", &f->config) ||
        !accel__read_optional(acc, folder, "special_tokens_map.json", &f->names) ||
        !accel__read_optional(acc, folder, "added_tokens.json", &f->more))
        return false;
    bool silent = accel__json_choice(f->config, "do_lower_case") == ACCEL_DEFAULT;
    return (f->listed && !silent) || accel__read_optional(acc, folder, "tokenizer.json", &f->whole);
}

static bool accel__open_tokenizer_files(accel_t *acc, const char *path, accel__tokenizer_files *f) {
    size_t length = strlen(path);
    if (!accel__file_exists(path)) return accel__fail(acc, ACCEL_BAD_FILE, "%s: no such file or folder", path);
    if (accel__is_folder(path)) return accel__open_folder(acc, path, f);
    if (length >= sizeof f->vocabulary)
        return accel__fail(acc, ACCEL_BAD_FILE, "%.60s...: path is longer than %zu bytes", path,
                           sizeof f->vocabulary - 1);
    memcpy(f->vocabulary, path, length + 1);
    f->listed = length < 5 || strcmp(path + length - 5, ".json") != 0;
    if (f->listed) return true;
    f->whole = accel__json_read(acc, path);
    if (!f->whole) return false;
    return cJSON_IsObject(f->whole) || accel__fail(acc, ACCEL_BAD_FILE, "%s is not a JSON object", path);
}

static void accel__close_tokenizer_files(accel__tokenizer_files *f) {
    cJSON_Delete(f->config);
    cJSON_Delete(f->names);
    cJSON_Delete(f->more);
    cJSON_Delete(f->whole);
}

/* Refuses a part of tokenizer.json that is of another type than BERT's. */
static bool accel__check_type(accel_t *acc, const cJSON *whole, const char *part, const char *expected) {
    const cJSON *item = accel__json_get(whole, part);
    const char *type = cJSON_GetStringValue(accel__json_get(item, "type"));
    if (!type || strcmp(type, expected) == 0) return true; /* old files name no type */
    return accel__fail(acc, ACCEL_BAD_FILE, "tokenizer.json: its %s is %s, but only %s is supported", part, type,
                       expected);
}

static bool accel__pick(accel_choice asked, accel_choice config, accel_choice whole, bool otherwise) {
    accel_choice choice = asked != ACCEL_DEFAULT ? asked : config != ACCEL_DEFAULT ? config : whole;
    return choice == ACCEL_DEFAULT ? otherwise : choice == ACCEL_YES;
}

/* How text is normalised: what the description says, else tokenizer_config.json, else tokenizer.json, else BERT. */
static void accel__normalizer_options(accel_tokenizer *t, const accel_tokenizer_desc *d,
                                      const accel__tokenizer_files *f) {
    const cJSON *c = f->config, *n = accel__json_get(f->whole, "normalizer");
    bool normalizes = !f->whole || cJSON_IsObject(n); /* "normalizer": null does nothing to the text */
    t->clean_text = accel__pick(ACCEL_DEFAULT, accel__json_choice(c, "clean_text"), accel__json_choice(n, "clean_text"),
                                normalizes);
    t->chinese_chars = accel__pick(d->chinese_chars, accel__json_choice(c, "tokenize_chinese_chars"),
                                   accel__json_choice(n, "handle_chinese_chars"), normalizes);
    t->lower_case = accel__pick(d->lower_case, accel__json_choice(c, "do_lower_case"),
                                accel__json_choice(n, "lowercase"), normalizes);
    t->strip_accents = accel__pick(d->strip_accents, accel__json_choice(c, "strip_accents"),
                                   accel__json_choice(n, "strip_accents"), t->lower_case);
    t->replace_invalid = d->replace_invalid == ACCEL_YES;
}

/* How words are cut, and what is kept for Transformers. */
static bool accel__model_options(accel_tokenizer *t, const accel__tokenizer_files *f) {
    const cJSON *c = f->config, *model = accel__json_get(f->whole, "model");
    const cJSON *most = accel__json_get(c, "model_max_length"), *limit = accel__json_get(c, "max_input_chars_per_word");
    const char *prefix = cJSON_GetStringValue(accel__json_get(c, "continuing_subword_prefix"));
    if (!prefix) prefix = cJSON_GetStringValue(accel__json_get(model, "continuing_subword_prefix"));
    if (!limit) limit = accel__json_get(model, "max_input_chars_per_word");
    if (limit && !(limit->valuedouble >= 1 && limit->valuedouble <= ACCEL__WORD_CHARS))
        return accel__fail(t->object.acc, ACCEL_BAD_FILE, "%s: max_input_chars_per_word must be 1 to %d", f->vocabulary,
                           ACCEL__WORD_CHARS);
    if (limit) t->word_chars = limit->valueint;
    if (cJSON_IsNumber(most) && most->valuedouble < INT_MAX) t->model_max_length = most->valuedouble;
    return accel__tokenizer_prepare(t, prefix ? prefix : "##");
}

static bool accel__tokenizer_options(accel_tokenizer *t, const accel_tokenizer_desc *d,
                                     const accel__tokenizer_files *f) {
    accel_t *acc = t->object.acc;
    if (!accel__check_type(acc, f->whole, "model", "WordPiece") ||
        !accel__check_type(acc, f->whole, "normalizer", "BertNormalizer") ||
        !accel__check_type(acc, f->whole, "pre_tokenizer", "BertPreTokenizer"))
        return false;
    accel__normalizer_options(t, d, f);
    return accel__model_options(t, f);
}

/* Appends the token of a line, without the white space at its end. */
static bool accel__add_line(accel_tokenizer *t, const char *path, char *line, char *end, int32_t *repeated) {
    accel_t *acc = t->object.acc;
    long long number = t->vocabulary.count + 1LL;
    *end = 0;
    if (strlen(line) != (size_t)(end - line) || !accel__is_utf8(line))
        return accel__fail(acc, ACCEL_BAD_FILE, "%s, line %lld: not UTF-8 text", path, number);
    while (end > line) {
        uint32_t c;
        const char *last = accel__point_before(line, end, &c);
        if (!(t->classes[c] & ACCEL__SPACE)) break;
        end = line + (last - line);
    }
    size_t bytes = (size_t)(end - line);
    if (bytes && accel__strings_find(&t->vocabulary, line, bytes) >= 0 && !*repeated)
        *repeated = t->vocabulary.count + 1;
    return accel__strings_add(&t->vocabulary, line, bytes) >= 0;
}

/* vocab.txt: a token in each line, its number is the line's. Of equal lines the last one counts, and an empty line
   takes up a number, as in Transformers. */
static bool accel__read_lines(accel_tokenizer *t, const char *path) {
    accel_t *acc = t->object.acc;
    size_t bytes;
    int32_t repeated = 0;
    char *text = accel__read_file(acc, path, &bytes);
    if (!text) return false;
    char *line = text, *stop = text + bytes;
    if (bytes >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) line += 3;
    bool good = line < stop || accel__fail(acc, ACCEL_BAD_FILE, "%s holds no tokens", path);
    while (good && line < stop) {
        char *end = memchr(line, '\n', (size_t)(stop - line));
        if (!end) end = stop;
        good = accel__add_line(t, path, line, end, &repeated);
        line = end + 1;
    }
    accel__free(acc, text);
    if (good && repeated)
        accel__note(acc, "%s, line %d: a token that is there already; its later number counts", path, repeated);
    return good;
}

#define ACCEL__TOP_ID 0x1000000
/* "vocab" of tokenizer.json: an object of numbers by token. Numbers that no token has become empty tokens. */
static bool accel__read_json_vocabulary(accel_tokenizer *t, const accel__tokenizer_files *f) {
    accel_t *acc = t->object.acc;
    const cJSON *item, *vocabulary = accel__json_get(accel__json_get(f->whole, "model"), "vocab");
    int32_t size = 0;
    if (!cJSON_IsObject(vocabulary) || !vocabulary->child)
        return accel__fail(acc, ACCEL_BAD_FILE, "%s: model.vocab must be an object that holds tokens", f->vocabulary);
    cJSON_ArrayForEach(item, vocabulary) {
        if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble < ACCEL__TOP_ID) ||
            item->valuedouble != item->valueint)
            return accel__fail(acc, ACCEL_BAD_FILE, "%s: the number of token \"%s\" must be a whole number below %d",
                               f->vocabulary, item->string, ACCEL__TOP_ID);
        if (item->valueint >= size) size = item->valueint + 1;
    }
    const char **tokens = accel__alloc(acc, (size_t)size * sizeof *tokens);
    if (!tokens) return false;
    for (int32_t i = 0; i < size; i++) tokens[i] = "";
    bool good = true;
    cJSON_ArrayForEach(item, vocabulary) {
        if (*tokens[item->valueint] && good)
            good = accel__fail(acc, ACCEL_BAD_FILE, "%s: tokens \"%s\" and \"%s\" have the same number %d",
                               f->vocabulary, tokens[item->valueint], item->string, item->valueint);
        tokens[item->valueint] = item->string;
    }
    for (int32_t i = 0; i < size && good; i++) {
        good = accel__is_utf8(tokens[i]) ||
               accel__fail(acc, ACCEL_BAD_FILE, "%s: token %d is not UTF-8", f->vocabulary, i);
        good = good && accel__strings_add(&t->vocabulary, tokens[i], strlen(tokens[i])) >= 0;
    }
    accel__free(acc, tokens);
    return good;
}

/* ---- special and added tokens ---- */

/* The name that post_processor of tokenizer.json gives the first or last token of a single text, or NULL. */
static const char *accel__template_name(const cJSON *whole, int which) {
    const cJSON *processor = accel__json_get(whole, "post_processor"), *single = accel__json_get(processor, "single");
    if (which == ACCEL__UNK) return cJSON_GetStringValue(accel__json_get(accel__json_get(whole, "model"), "unk_token"));
    if (which != ACCEL__CLS && which != ACCEL__SEP) return NULL;
    const cJSON *pair = accel__json_get(processor, which == ACCEL__CLS ? "cls" : "sep"); /* BertProcessing */
    if (cJSON_IsArray(pair)) return cJSON_GetStringValue(cJSON_GetArrayItem(pair, 0));
    const cJSON *part = cJSON_GetArrayItem(single, which == ACCEL__CLS ? 0 : cJSON_GetArraySize(single) - 1);
    return cJSON_GetStringValue(accel__json_get(accel__json_get(part, "SpecialToken"), "id"));
}

/* Registers a token to be matched whole, appending it to the vocabulary where it is new. The first registration counts.
   item (may be NULL) can say how it is matched. */
static bool accel__add_token(accel_tokenizer *t, const char *text, const cJSON *item, bool special) {
    accel_t *acc = t->object.acc;
    int32_t id = accel__strings_find(&t->vocabulary, text, strlen(text));
    if (id < 0) id = accel__strings_add(&t->vocabulary, text, strlen(text));
    if (id < 0) return false;
    for (size_t i = 0; i < t->added_count; i++) {
        if (t->added[i].id == id) return true;
    }
    if (!accel__grow(acc, &t->added, &t->added_room, t->added_count + 1, sizeof *t->added)) return false;
    special = accel__pick(accel__json_choice(item, "special"), ACCEL_DEFAULT, ACCEL_DEFAULT, special);
    t->added[t->added_count++] = (accel__added){
        .id = id,
        .special = special,
        .normalized = accel__pick(accel__json_choice(item, "normalized"), ACCEL_DEFAULT, ACCEL_DEFAULT, !special),
        .single_word = accel__json_choice(item, "single_word") == ACCEL_YES,
    };
    return true;
}

/* A token of one of the lists and its number: {"id": 5, "content": ..}, "5": {"content": ..} or "token": 5. */
typedef struct accel__listed {
    const cJSON *item;
    const char *text;
    double id;
} accel__listed;

static accel__listed accel__listed_token(const cJSON *item) {
    const cJSON *id = cJSON_IsNumber(item) ? item : accel__json_get(item, "id");
    accel__listed entry = {item, cJSON_IsNumber(item) ? item->string : accel__json_token(item), -1};
    if (cJSON_IsNumber(id)) entry.id = id->valuedouble;
    else if (item->string) entry.id = strtod(item->string, NULL);
    return entry;
}

static int accel__compare_listed(const void *a, const void *b) {
    double x = ((const accel__listed *)a)->id, y = ((const accel__listed *)b)->id;
    return (x > y) - (x < y);
}

/* Registers the tokens of a list in the order of their numbers, which must be those that the vocabulary gives them. */
static bool accel__add_listed(accel_tokenizer *t, const char *origin, const cJSON *list) {
    accel_t *acc = t->object.acc;
    const cJSON *item;
    size_t count = 0, i = 0;
    cJSON_ArrayForEach(item, list) count++;
    accel__listed *entries = count ? accel__alloc(acc, count * sizeof *entries) : NULL;
    if (!entries) return !count;
    cJSON_ArrayForEach(item, list) entries[i++] = accel__listed_token(item);
    qsort(entries, count, sizeof *entries, accel__compare_listed);
    bool good = true;
    for (i = 0; i < count && good; i++) {
        const char *text = entries[i].text;
        good = text || accel__fail(acc, ACCEL_BAD_FILE, "%s: an added token without content", origin);
        good = good && accel__add_token(t, text, entries[i].item, false);
        int32_t id = good ? accel_token_id(t, text) : 0;
        if (good && entries[i].id != id)
            good = accel__fail(acc, ACCEL_BAD_FILE,
                               "%s: added token \"%s\" has number %.0f there, but %d in the vocabulary of %d", origin,
                               text, entries[i].id, id, t->vocabulary.count);
    }
    accel__free(acc, entries);
    return good;
}

/* Finds the special tokens by the names that the files give them, else by the usual ones. */
static bool accel__find_specials(accel_tokenizer *t, const accel__tokenizer_files *f) {
    for (int i = 0; i < ACCEL__SPECIALS; i++) {
        const char *key = accel__specials[i].key;
        const cJSON *item = accel__json_get(f->config, key);
        if (!accel__json_token(item)) item = accel__json_get(f->names, key);
        const char *name = accel__json_token(item);
        if (!name) name = accel__template_name(f->whole, i);
        bool needed = name || i == ACCEL__UNK || i == ACCEL__CLS || i == ACCEL__SEP;
        if (!name) name = accel__specials[i].text;
        t->special[i] = accel_token_id(t, name);
        if (t->special[i] >= 0 && !accel__add_token(t, name, item, true)) return false;
        if (t->special[i] < 0 && needed)
            return accel__fail(t->object.acc, ACCEL_BAD_FILE,
                               "%s: the special token \"%s\" (%s) is not in the vocabulary", f->vocabulary, name, key);
    }
    return true;
}

static bool accel__add_more_specials(accel_tokenizer *t, const cJSON *object) {
    static const char *const keys[] = {"additional_special_tokens", "extra_special_tokens"};
    for (int i = 0; i < ACCEL__COUNT(keys); i++) {
        const cJSON *item, *list = accel__json_get(object, keys[i]);
        if (!cJSON_IsArray(list)) continue;
        cJSON_ArrayForEach(item, list) {
            if (accel__json_token(item) && !accel__add_token(t, accel__json_token(item), item, true)) return false;
        }
    }
    return true;
}

/* Gives each added token its pattern, normalised where it is looked for in such text, and marks where one can begin. */
static bool accel__added_patterns(accel_tokenizer *t) {
    for (size_t i = 0; i < t->added_count; i++) {
        accel__added *a = &t->added[i];
        const char *text = accel_token_text(t, a->id);
        accel__scan scan;
        accel__scan_begin(&scan, t, accel__word_to_ids);
        scan.holds = true;
        if (a->normalized) accel__scan_text(&scan, text);
        a->pattern = accel__strdup(t->object.acc, !a->normalized ? text : scan.held ? scan.held : "");
        free(scan.held);
        if (!a->pattern) return false;
        if (scan.no_memory) return accel__fail(t->object.acc, ACCEL_OUT_OF_MEMORY, "no memory for an added token");
        a->bytes = strlen(a->pattern);
    }
    for (size_t i = 0; i < t->added_count; i++) { /* not before all are normalised: the marks change how text is read */
        accel__added *a = &t->added[i];
        uint32_t c;
        bool valid;
        if (!a->bytes) continue;
        accel__point_at(a->pattern, &c, &valid);
        t->classes[c] |= a->normalized ? ACCEL__BEGINS_NORMAL : ACCEL__BEGINS_RAW;
        t->any_normalized |= a->normalized;
    }
    return true;
}

/* Tells of a vocabulary whose capitals and the lower-case option do not go together. */
static void accel__check_case(const accel_tokenizer *t, const char *path) {
    int32_t capital = 0, small = 0;
    for (int32_t i = 0; i < t->vocabulary.count; i++) {
        const char *at = accel__string_at(&t->vocabulary, i);
        bool has_capital = false, has_small = false, valid;
        bool named = *at == '[' || *at == '<'; /* [CLS], [unused1], <S> */
        for (uint32_t c, lower[2]; *at && !named; at += accel__point_at(at, &c, &valid)) {
            accel__point_at(at, &c, &valid);
            accel__lower(c, lower);
            has_capital |= lower[0] != c;
            has_small |= utf8proc_toupper((utf8proc_int32_t)c) != (utf8proc_int32_t)c;
        }
        capital += has_capital;
        small += has_small;
    }
    if (t->lower_case && capital > 5 && capital > small / 50)
        accel__note(t->object.acc, "%s: text is lower-cased, but %d of %d tokens hold capitals and can never match; "
                    "is this a cased vocabulary (do_lower_case false)?", path, capital, t->vocabulary.count);
    if (!t->lower_case && !capital && small > 100)
        accel__note(t->object.acc,
                    "%s: text is not lower-cased, but no token of %d holds a capital, so every word that does is "
                    "unknown; is this an uncased vocabulary (do_lower_case true)?",
                    path, t->vocabulary.count);
}

static bool accel__tokenizer_read(accel_tokenizer *t, const accel_tokenizer_desc *desc,
                                  const accel__tokenizer_files *f) {
    if (!accel__tokenizer_options(t, desc, f)) return false;
    if (!(f->listed ? accel__read_lines(t, f->vocabulary) : accel__read_json_vocabulary(t, f))) return false;
    if (!accel__tokenizer_measure(t)) return false;
    if (!f->listed && !accel__add_listed(t, f->vocabulary, accel__json_get(f->whole, "added_tokens"))) return false;
    if (!accel__add_listed(t, "tokenizer_config.json", accel__json_get(f->config, "added_tokens_decoder")))
        return false;
    if (!accel__find_specials(t, f) || !accel__add_more_specials(t, f->names) ||
        !accel__add_more_specials(t, f->config) || !accel__add_listed(t, "added_tokens.json", f->more))
        return false;
    if (!accel__added_patterns(t)) return false;
    accel__check_case(t, f->vocabulary);
    return true;
}

ACCEL_API accel_tokenizer *accel_tokenizer_load(accel_t *acc, const char *path, const accel_tokenizer_desc *desc) {
    static const accel_tokenizer_desc defaults;
    if (accel_failed(acc)) return NULL;
    if (!path) {
        accel__fail(acc, ACCEL_BAD_ARGUMENT, "accel_tokenizer_load: path is NULL");
        return NULL;
    }
    accel_tokenizer *t = accel__tokenizer_create(acc);
    if (!t) return NULL;
    accel__tokenizer_files files;
    memset(&files, 0, sizeof files);
    bool good = accel__open_tokenizer_files(acc, path, &files);
    good = good && accel__tokenizer_read(t, desc ? desc : &defaults, &files);
    accel__close_tokenizer_files(&files);
    if (good) return t;
    accel_free(t);
    return NULL;
}

/* ---- writing ---- */

static bool accel__write_vocabulary(const accel_tokenizer *t, const char *path) {
    accel__writer w;
    accel_t *acc = t->object.acc;
    for (int32_t i = 0; i < t->pieces; i++) {
        if (strpbrk(accel__string_at(&t->vocabulary, i), "\r\n"))
            return accel__fail(acc, ACCEL_BAD_DATA, "%s: token %d holds a line break, which vocab.txt cannot", path, i);
    }
    if (!accel__writer_open(&w, acc, path)) return false;
    for (int32_t i = 0; i < t->pieces; i++) accel__writer_printf(&w, "%s\n", accel__string_at(&t->vocabulary, i));
    return accel__writer_commit(&w);
}

/* "added_tokens_decoder", where there are more tokens than the named ones. */
static void accel__describe_added(const accel_tokenizer *t, cJSON *config) {
    int named = 0;
    for (int i = 0; i < ACCEL__SPECIALS; i++) named += t->special[i] >= 0;
    cJSON *list = t->added_count > (size_t)named ? cJSON_AddObjectToObject(config, "added_tokens_decoder") : NULL;
    for (size_t i = 0; list && i < t->added_count; i++) {
        const accel__added *a = &t->added[i];
        char id[16];
        snprintf(id, sizeof id, "%d", a->id);
        cJSON *token = cJSON_AddObjectToObject(list, id);
        cJSON_AddStringToObject(token, "content", accel_token_text(t, a->id));
        cJSON_AddBoolToObject(token, "lstrip", false); /* spaces are dropped in any case */
        cJSON_AddBoolToObject(token, "rstrip", false);
        cJSON_AddBoolToObject(token, "normalized", a->normalized);
        cJSON_AddBoolToObject(token, "single_word", a->single_word);
        cJSON_AddBoolToObject(token, "special", a->special);
    }
}

/* The content of tokenizer_config.json, for cJSON_free. It has no tokenizer_class: the model's config.json decides. */
static char *accel__describe_tokenizer(const accel_tokenizer *t) {
    cJSON *config = cJSON_CreateObject();
    cJSON_AddBoolToObject(config, "do_lower_case", t->lower_case);
    if (t->strip_accents == t->lower_case) cJSON_AddNullToObject(config, "strip_accents");
    else cJSON_AddBoolToObject(config, "strip_accents", t->strip_accents);
    cJSON_AddBoolToObject(config, "tokenize_chinese_chars", t->chinese_chars);
    if (t->model_max_length > 0) cJSON_AddNumberToObject(config, "model_max_length", t->model_max_length);
    for (int i = 0; i < ACCEL__SPECIALS; i++) {
        if (t->special[i] >= 0)
            cJSON_AddStringToObject(config, accel__specials[i].key, accel_token_text(t, t->special[i]));
    }
    /* What Transformers has no key for; accel_tokenizer_load reads these back. */
    if (!t->clean_text) cJSON_AddBoolToObject(config, "clean_text", false);
    if (strcmp(t->prefix, "##") != 0) cJSON_AddStringToObject(config, "continuing_subword_prefix", t->prefix);
    if (t->word_chars != 100) cJSON_AddNumberToObject(config, "max_input_chars_per_word", t->word_chars);
    accel__describe_added(t, config);
    char *text = cJSON_Print(config);
    cJSON_Delete(config);
    return text;
}

ACCEL_API bool accel_tokenizer_save(const accel_tokenizer *tokenizer, const char *folder) {
    char path[ACCEL__PATH_SIZE];
    accel__writer w;
    if (!tokenizer || accel_failed(tokenizer->object.acc)) return false;
    accel_t *acc = tokenizer->object.acc;
    if (!folder) return accel__fail(acc, ACCEL_BAD_ARGUMENT, "accel_tokenizer_save: folder is NULL");
    if (!accel__make_folder(acc, folder) || !accel__path(path, sizeof path, acc, folder, "vocab.txt")) return false;
    if (!accel__write_vocabulary(tokenizer, path)) return false;
    if (!accel__path(path, sizeof path, acc, folder, "tokenizer.json")) return false;
    if (accel__file_exists(path))
        accel__note(acc, "%s is left as it was; Transformers reads it rather than the new vocab.txt", path);
    if (!accel__path(path, sizeof path, acc, folder, "tokenizer_config.json")) return false;
    char *text = accel__describe_tokenizer(tokenizer);
    if (!text) return accel__fail(acc, ACCEL_OUT_OF_MEMORY, "no memory for %s", path);
    bool opened = accel__writer_open(&w, acc, path);
    if (opened) accel__writer_printf(&w, "%s\n", text);
    cJSON_free(text);
    return opened && accel__writer_commit(&w);
}

/* ============================================ >>io-vocabulary =====================================================
   Learns a WordPiece vocabulary as Hugging Face's WordPieceTrainer does: words are counted and cut into characters, all
   but a word's first with the prefix ##; then the most frequent pair of neighbours becomes a token, again and again.
   Pairs know the words they stand in and wait in a heap, so a merge costs what it changes. The library leaves equal
   counts, and the numbers of the ## characters, to the order of its hash tables; here both follow the code points. */

typedef struct accel__letter { /* a character of the texts */
    uint32_t point;
    int32_t first, next;  /* its tokens at the begin of a word and after it; -1: none */
    int64_t count;
    bool follows;         /* somewhere it is not a word's first         */
} accel__letter;

typedef struct accel__pair {
    int32_t left, right;  /* tokens                                     */
    int64_t count;        /* in all words                               */
    int64_t place;        /* the newest of its places; -1: none         */
    bool grown;           /* by the merge in hand: to be queued         */
} accel__pair;

typedef struct accel__place { /* a word in which a pair stands */
    int64_t next;
    int32_t word;
} accel__place;

typedef struct accel__queued {
    int64_t count;        /* of the pair when it was queued             */
    int32_t left, right, pair;
} accel__queued;

typedef struct accel__trainer {
    accel_t *acc;
    accel_tokenizer *tokenizer;
    accel__strings words;
    int64_t *word_count;
    size_t *word_start;       /* of each word's tokens in `tokens`      */
    int32_t *word_length;     /* tokens that are left                   */
    int32_t *tokens;
    accel__letter *letters;
    accel__pair *pairs;
    int32_t *pair_slots;      /* [2^pair_bits] numbers of pairs, -1: free; at most half of them taken */
    accel__place *places;
    accel__queued *heap;
    int32_t *grown;
    size_t word_room, letter_room, pair_room, place_room, heap_room, grown_room;
    size_t letter_count, pair_count, place_count, heap_count, grown_count;
    int pair_bits;
} accel__trainer;

static void accel__trainer_free(accel__trainer *tr) {
    accel__strings_free(&tr->words);
    accel__free(tr->acc, tr->word_count);
    accel__free(tr->acc, tr->word_start);
    accel__free(tr->acc, tr->word_length);
    accel__free(tr->acc, tr->tokens);
    accel__free(tr->acc, tr->letters);
    accel__free(tr->acc, tr->pairs);
    accel__free(tr->acc, tr->pair_slots);
    accel__free(tr->acc, tr->places);
    accel__free(tr->acc, tr->heap);
    accel__free(tr->acc, tr->grown);
}

/* ---- words and letters ---- */

static void accel__count_word(accel__scan *s) {
    accel__trainer *tr = s->target;
    if (s->chars > s->tokenizer->word_chars || accel_failed(tr->acc)) return; /* too long to be anything but unknown */
    int32_t word = accel__strings_find(&tr->words, s->word, (size_t)s->bytes);
    if (word < 0) {
        if (!accel__grow(tr->acc, &tr->word_count, &tr->word_room, (size_t)tr->words.count + 1, sizeof *tr->word_count))
            return;
        word = accel__strings_add(&tr->words, s->word, (size_t)s->bytes);
        if (word < 0) return;
        tr->word_count[word] = 0;
    }
    tr->word_count[word]++;
}

static bool accel__count_words(accel__trainer *tr, const char *const *texts, int64_t count) {
    accel__scan scan;
    accel__scan_begin(&scan, tr->tokenizer, accel__count_word);
    scan.target = tr;
    for (int64_t i = 0; i < count && !accel_failed(tr->acc); i++) {
        if (!accel__scan_text(&scan, texts[i]))
            return accel__fail(tr->acc, ACCEL_BAD_DATA, "text %lld of %lld is not valid UTF-8", (long long)i + 1,
                               (long long)count);
        accel__end_word(&scan);
    }
    if (!tr->words.count)
        accel__fail(tr->acc, ACCEL_BAD_DATA, "no words in %lld texts to learn a vocabulary from", (long long)count);
    return !accel_failed(tr->acc);
}

/* Adds a word's characters to the letters; letter_of[code point] is a letter's number + 1. */
static bool accel__count_letters(accel__trainer *tr, int32_t word, int32_t *letter_of) {
    const char *text = accel__string_at(&tr->words, word);
    uint32_t c;
    bool valid;
    for (const char *at = text; *at;) {
        const char *begin = at;
        at += accel__point_at(at, &c, &valid);
        if (!letter_of[c]) {
            if (!accel__grow(tr->acc, &tr->letters, &tr->letter_room, tr->letter_count + 1, sizeof *tr->letters))
                return false;
            tr->letters[tr->letter_count++] = (accel__letter){.point = c, .first = -1, .next = -1};
            letter_of[c] = (int32_t)tr->letter_count;
        }
        accel__letter *letter = &tr->letters[letter_of[c] - 1];
        letter->count += tr->word_count[word];
        letter->follows |= begin > text;
    }
    return true;
}

static int accel__by_count(const void *a, const void *b) {
    const accel__letter *x = a, *y = b;
    return x->count != y->count ? (x->count < y->count) - (x->count > y->count)
                                : (x->point > y->point) - (x->point < y->point);
}

static int accel__by_point(const void *a, const void *b) {
    const accel__letter *x = a, *y = b;
    return (x->point > y->point) - (x->point < y->point);
}

/* Keeps the most frequent letters, at most `most` and no more than `room` tokens hold. */
static void accel__choose_letters(accel__trainer *tr, int most, int room) {
    size_t kept = 0;
    qsort(tr->letters, tr->letter_count, sizeof *tr->letters, accel__by_count);
    for (; kept < tr->letter_count && kept < (size_t)most; kept++) {
        room -= tr->letters[kept].follows ? 2 : 1;
        if (room < 0) break;
    }
    if (room < 0)
        accel__note(tr->acc, "the vocabulary has room for %zu of %zu characters", kept, tr->letter_count);
    tr->letter_count = kept;
    qsort(tr->letters, kept, sizeof *tr->letters, accel__by_point);
}

/* Makes the letters tokens, first those that begin words, then those with ##. */
static bool accel__add_letters(accel__trainer *tr) {
    accel__strings *v = &tr->tokenizer->vocabulary;
    char text[8] = "##";
    for (size_t i = 0; i < tr->letter_count * 2; i++) {
        accel__letter *letter = &tr->letters[i % tr->letter_count];
        bool next = i >= tr->letter_count;
        if (next && !letter->follows) continue;
        size_t bytes = (size_t)utf8proc_encode_char((utf8proc_int32_t)letter->point, (utf8proc_uint8_t *)text + 2);
        int32_t token = next ? accel__strings_add(v, text, bytes + 2) : accel__strings_add(v, text + 2, bytes);
        if (token < 0) return false;
        *(next ? &letter->next : &letter->first) = token;
    }
    return true;
}

/* Writes every word as tokens, one for each letter that was kept. */
static bool accel__split_words(accel__trainer *tr, const int32_t *letter_of) {
    size_t words = (size_t)tr->words.count, used = 0;
    tr->word_start = accel__alloc(tr->acc, words * sizeof *tr->word_start);
    tr->word_length = accel__alloc(tr->acc, words * sizeof *tr->word_length);
    tr->tokens = accel__alloc(tr->acc, tr->words.start[words] * sizeof *tr->tokens); /* no more letters than bytes */
    if (!tr->word_start || !tr->word_length || !tr->tokens) return false;
    for (size_t w = 0; w < words; w++) {
        const char *text = accel__string_at(&tr->words, (int32_t)w);
        uint32_t c;
        bool valid;
        tr->word_start[w] = used;
        for (const char *at = text; *at;) {
            bool first = at == text;
            at += accel__point_at(at, &c, &valid);
            if (!letter_of[c]) continue;
            const accel__letter *letter = &tr->letters[letter_of[c] - 1];
            tr->tokens[used++] = first ? letter->first : letter->next;
        }
        tr->word_length[w] = (int32_t)(used - tr->word_start[w]);
    }
    return true;
}

/* From words to the first tokens of the vocabulary, and to words made of these. */
static bool accel__make_alphabet(accel__trainer *tr, int most, int room) {
    size_t bytes = ACCEL__CODE_POINTS * sizeof(int32_t);
    int32_t *letter_of = accel__alloc(tr->acc, bytes);
    bool good = letter_of != NULL;
    if (good) memset(letter_of, 0, bytes);
    for (int32_t w = 0; good && w < tr->words.count; w++) good = accel__count_letters(tr, w, letter_of);
    if (good) {
        accel__choose_letters(tr, most, room);
        memset(letter_of, 0, bytes);
        for (size_t i = 0; i < tr->letter_count; i++) letter_of[tr->letters[i].point] = (int32_t)i + 1;
        good = accel__add_letters(tr) && accel__split_words(tr, letter_of);
    }
    accel__free(tr->acc, letter_of);
    return good;
}

/* ---- pairs ---- */

static int32_t *accel__pair_slot(const accel__trainer *tr, int32_t left, int32_t right) {
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t mask = ((size_t)1 << tr->pair_bits) - 1, i = (size_t)(accel__spread(key) >> (64 - tr->pair_bits));
    for (;; i = (i + 1) & mask) {
        int32_t pair = tr->pair_slots[i];
        if (pair < 0 || (tr->pairs[pair].left == left && tr->pairs[pair].right == right)) return &tr->pair_slots[i];
    }
}

static bool accel__pair_rehash(accel__trainer *tr) {
    int bits = tr->pair_slots ? tr->pair_bits + 1 : 12;
    int32_t *larger = accel__realloc(tr->acc, tr->pair_slots, sizeof *larger << bits);
    if (!larger) return false;
    tr->pair_slots = larger;
    tr->pair_bits = bits;
    for (size_t i = 0; i < (size_t)1 << bits; i++) larger[i] = -1;
    for (size_t i = 0; i < tr->pair_count; i++)
        *accel__pair_slot(tr, tr->pairs[i].left, tr->pairs[i].right) = (int32_t)i;
    return true;
}

/* The pair of two tokens, made where it is new; NULL without memory. */
static accel__pair *accel__pair_of(accel__trainer *tr, int32_t left, int32_t right) {
    if ((!tr->pair_slots || tr->pair_count * 2 >= (size_t)1 << tr->pair_bits) && !accel__pair_rehash(tr)) return NULL;
    int32_t *slot = accel__pair_slot(tr, left, right);
    if (*slot >= 0) return &tr->pairs[*slot];
    if (!accel__grow(tr->acc, &tr->pairs, &tr->pair_room, tr->pair_count + 1, sizeof *tr->pairs)) return NULL;
    *slot = (int32_t)tr->pair_count;
    tr->pairs[tr->pair_count] = (accel__pair){.left = left, .right = right, .place = -1};
    return &tr->pairs[tr->pair_count++];
}

/* Counts a pair `change` times more (or less) because of a word. */
static void accel__pair_change(accel__trainer *tr, int32_t left, int32_t right, int64_t change, int32_t word) {
    accel__pair *pair = accel__pair_of(tr, left, right);
    if (!pair) return;
    pair->count += change;
    if (change < 0) return;
    if (pair->place < 0 || tr->places[pair->place].word != word) {
        if (!accel__grow(tr->acc, &tr->places, &tr->place_room, tr->place_count + 1, sizeof *tr->places)) return;
        tr->places[tr->place_count] = (accel__place){pair->place, word};
        pair->place = (int64_t)tr->place_count++;
    }
    if (pair->grown || !accel__grow(tr->acc, &tr->grown, &tr->grown_room, tr->grown_count + 1, sizeof *tr->grown))
        return;
    pair->grown = true;
    tr->grown[tr->grown_count++] = (int32_t)(pair - tr->pairs);
}

/* ---- the heap: most frequent first, then the lowest tokens ---- */

static bool accel__queued_before(const accel__queued *a, const accel__queued *b) {
    if (a->count != b->count) return a->count > b->count;
    return a->left != b->left ? a->left < b->left : a->right < b->right;
}

static void accel__queue(accel__trainer *tr, int32_t pair) {
    const accel__pair *p = &tr->pairs[pair];
    if (p->count <= 0 || !accel__grow(tr->acc, &tr->heap, &tr->heap_room, tr->heap_count + 1, sizeof *tr->heap)) return;
    accel__queued entry = {p->count, p->left, p->right, pair};
    size_t i = tr->heap_count++;
    for (; i && accel__queued_before(&entry, &tr->heap[(i - 1) / 2]); i = (i - 1) / 2)
        tr->heap[i] = tr->heap[(i - 1) / 2];
    tr->heap[i] = entry;
}

/* Takes the first entry; the heap is not empty. */
static accel__queued accel__unqueue(accel__trainer *tr) {
    accel__queued top = tr->heap[0], last = tr->heap[--tr->heap_count];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < tr->heap_count; i = child) {
        if (child + 1 < tr->heap_count && accel__queued_before(&tr->heap[child + 1], &tr->heap[child])) child++;
        if (!accel__queued_before(&tr->heap[child], &last)) break;
        tr->heap[i] = tr->heap[child];
    }
    tr->heap[i] = last;
    return top;
}

static void accel__queue_grown(accel__trainer *tr) {
    for (size_t i = 0; i < tr->grown_count; i++) {
        tr->pairs[tr->grown[i]].grown = false;
        accel__queue(tr, tr->grown[i]);
    }
    tr->grown_count = 0;
}

/* ---- merges ---- */

/* The token of two joined ones, added where it is new; -1 without memory. */
static int32_t accel__joined_token(accel__trainer *tr, int32_t left, int32_t right) {
    accel_tokenizer *t = tr->tokenizer;
    char text[4 * ACCEL__WORD_CHARS]; /* any part of a word of 100 characters, and its prefix */
    accel__strings *v = &t->vocabulary;
    size_t head = accel__string_bytes(v, left), tail = accel__string_bytes(v, right) - t->prefix_bytes;
    memcpy(text, accel__string_at(v, left), head);
    memcpy(text + head, accel__string_at(v, right) + t->prefix_bytes, tail); /* the right one never begins a word */
    int32_t token = accel__strings_find(v, text, head + tail);
    return token >= 0 ? token : accel__strings_add(v, text, head + tail);
}

static void accel__merge_in_word(accel__trainer *tr, int32_t word, int32_t left, int32_t right, int32_t token) {
    int32_t *tokens = tr->tokens + tr->word_start[word];
    int32_t length = tr->word_length[word], kept = 0;
    int64_t count = tr->word_count[word];
    for (int32_t i = 0; i < length; i++) {
        bool found = i + 1 < length && tokens[i] == left && tokens[i + 1] == right;
        if (found && kept) {
            accel__pair_change(tr, tokens[kept - 1], left, -count, word);
            accel__pair_change(tr, tokens[kept - 1], token, count, word);
        }
        if (found && i + 2 < length) {
            accel__pair_change(tr, right, tokens[i + 2], -count, word);
            accel__pair_change(tr, token, tokens[i + 2], count, word);
        }
        tokens[kept++] = found ? token : tokens[i];
        i += found;
    }
    tr->word_length[word] = kept;
}

static void accel__count_pairs(accel__trainer *tr) {
    for (int32_t w = 0; w < tr->words.count; w++) {
        const int32_t *tokens = tr->tokens + tr->word_start[w];
        for (int32_t i = 0; i + 1 < tr->word_length[w]; i++)
            accel__pair_change(tr, tokens[i], tokens[i + 1], tr->word_count[w], w);
    }
    accel__queue_grown(tr);
}

/* Merges until the vocabulary has its size or no pair is frequent enough. */
static bool accel__merge_pairs(accel__trainer *tr, int32_t size, int64_t least) {
    accel__count_pairs(tr);
    while (tr->tokenizer->vocabulary.count < size && tr->heap_count && !accel_failed(tr->acc)) {
        accel__queued top = accel__unqueue(tr);
        int64_t count = tr->pairs[top.pair].count;
        if (count < top.count) accel__queue(tr, top.pair); /* it lost some since; one that gained was queued again */
        if (count != top.count) continue;
        if (count < least) break;
        int32_t token = accel__joined_token(tr, top.left, top.right);
        if (token < 0) break;
        int64_t place = tr->pairs[top.pair].place;
        tr->pairs[top.pair].place = -1;
        for (; place >= 0; place = tr->places[place].next)
            accel__merge_in_word(tr, tr->places[place].word, top.left, top.right, token);
        accel__queue_grown(tr);
    }
    return !accel_failed(tr->acc);
}

/* ---- the whole ---- */

static bool accel__train(accel__trainer *tr, const char *const *texts, int64_t count, const accel_vocabulary_desc *d) {
    static const int order[ACCEL__SPECIALS] = {ACCEL__PAD, ACCEL__UNK, ACCEL__CLS, ACCEL__SEP, ACCEL__MASK};
    accel_tokenizer *t = tr->tokenizer;
    int size = d->size ? d->size : 8000;
    accel__tokenizer_files no_files;
    memset(&no_files, 0, sizeof no_files);
    if (!accel__tokenizer_options(t, &d->tokenizer, &no_files) || !accel__count_words(tr, texts, count)) return false;
    for (int i = 0; i < ACCEL__SPECIALS; i++) {
        const char *name = accel__specials[order[i]].text;
        if (accel__strings_add(&t->vocabulary, name, strlen(name)) < 0) return false;
    }
    return accel__make_alphabet(tr, d->max_alphabet ? d->max_alphabet : 1000, size - ACCEL__SPECIALS) &&
           accel__merge_pairs(tr, size, d->min_frequency ? d->min_frequency : 2) && accel__tokenizer_measure(t) &&
           accel__find_specials(t, &no_files) && accel__added_patterns(t);
}

ACCEL_API accel_tokenizer *accel_tokenizer_train(accel_t *acc, const char *const *texts, int64_t count,
                                                 const accel_vocabulary_desc *desc) {
    static const accel_vocabulary_desc defaults;
    const accel_vocabulary_desc *d = desc ? desc : &defaults;
    if (accel_failed(acc)) return NULL;
    if (count < 0 || (count && !texts)) accel__fail(acc, ACCEL_BAD_ARGUMENT, "accel_tokenizer_train: no texts");
    if (d->size < 0 || (d->size && d->size <= ACCEL__SPECIALS))
        accel__fail(acc, ACCEL_BAD_ARGUMENT,
                    "accel_tokenizer_train: size %d, but %d special tokens need a place beside others", d->size,
                    ACCEL__SPECIALS);
    if (d->min_frequency < 0 || d->max_alphabet < 0)
        accel__fail(acc, ACCEL_BAD_ARGUMENT,
                    "accel_tokenizer_train: min_frequency and max_alphabet must not be negative");
    if (accel_failed(acc)) return NULL;
    accel__trainer trainer;
    memset(&trainer, 0, sizeof trainer);
    trainer.acc = trainer.words.acc = acc;
    trainer.tokenizer = accel__tokenizer_create(acc);
    bool good = trainer.tokenizer && accel__train(&trainer, texts, count, d);
    accel__trainer_free(&trainer);
    if (good) return trainer.tokenizer;
    accel_free(trainer.tokenizer);
    return NULL;
}

/* =============================================== >>io-tables ======================================================
   A table is its file in memory, cut in place: every cell points into the text, ends with a NUL and is valid UTF-8. */


/* The distinct labels of one column, made when first asked for. */
typedef struct accel__labels {
    struct accel__labels *next;
    int column, count;
    const char *names[];
} accel__labels;

struct accel_table {
    accel__object object;
    char *name, *text;
    char **names;   /* [columns] or NULL: no header  */
    char **cells;   /* [rows, columns]               */
    int64_t *lines; /* [rows] where each row begins  */
    int64_t rows;
    int columns;
    accel__labels *labels;
};

typedef struct accel__reader {
    accel_table *table;
    accel_t *acc;
    accel_table_desc desc;
    char *at, *end;         /* what is still to be read; *end is 0 */
    int64_t line, row_line; /* of `at`, and of the row being read, from 1 */
    int64_t cells;
    size_t cell_room, row_room, name_room;
    int filled; /* cells of the row being read */
} accel__reader;

static void accel__table_destroy(accel__object *object) {
    accel_table *table = (accel_table *)object;
    accel_t *acc = object->acc;
    while (table->labels) {
        accel__labels *next = table->labels->next;
        accel__free(acc, table->labels);
        table->labels = next;
    }
    accel__free(acc, table->names);
    accel__free(acc, table->cells);
    accel__free(acc, table->lines);
    accel__free(acc, table->text);
    accel__free(acc, table->name);
}

/* ---- the text: no NUL, valid UTF-8 ---- */

static int64_t accel__lines_before(const char *text, const char *at) {
    int64_t line = 1;
    for (const char *c = text; (c = memchr(c, '\n', (size_t)(at - c))) != NULL; c++) line++;
    return line;
}

/* The text with U+FFFD in the place of each invalid byte, in new memory. */
static char *accel__utf8_replace(accel_t *acc, const char *text, size_t *bytes) {
    const char *end = text + *bytes, *bad;
    size_t faults = 0, used = 0;
    for (bad = text; (bad = accel__utf8_invalid(bad, end)) < end; bad++) faults++;
    char *clean = accel__alloc(acc, *bytes + 2 * faults + 1);
    if (!clean) return NULL;
    for (const char *at = text; at < end; at = bad + 1) {
        bad = accel__utf8_invalid(at, end);
        memcpy(clean + used, at, (size_t)(bad - at));
        used += (size_t)(bad - at);
        if (bad == end) break;
        memcpy(clean + used, "\xEF\xBF\xBD", 3);
        used += 3;
    }
    clean[used] = 0;
    *bytes = used;
    return clean;
}

static bool accel__table_check_text(accel__reader *r, size_t *bytes) {
    accel_table *table = r->table;
    const char *zero = memchr(table->text, 0, *bytes);
    if (zero)
        return accel__fail(r->acc, ACCEL_BAD_FILE, "%s, line %lld: a NUL byte; is this a text file in UTF-8?",
                           table->name, (long long)accel__lines_before(table->text, zero));
    const char *end = table->text + *bytes, *bad = accel__utf8_invalid(table->text, end);
    if (bad == end) return true;
    if (r->desc.replace_invalid != ACCEL_YES)
        return accel__fail(r->acc, ACCEL_BAD_FILE, "%s, line %lld: invalid UTF-8 (byte 0x%02x)", table->name,
                           (long long)accel__lines_before(table->text, bad), (unsigned)(unsigned char)*bad);
    char *clean = accel__utf8_replace(r->acc, table->text, bytes);
    if (!clean) return false;
    accel__free(r->acc, table->text);
    table->text = clean;
    return true;
}

/* ---- rows ---- */

static bool accel__row_begin(accel__reader *r) {
    r->filled = 0;
    r->row_line = r->line;
    return accel__grow(r->acc, &r->table->lines, &r->row_room, (size_t)r->table->rows + 1, sizeof *r->table->lines);
}

static bool accel__row_put(accel__reader *r, char *cell) {
    if (!accel__grow(r->acc, &r->table->cells, &r->cell_room, (size_t)r->cells + 1, sizeof *r->table->cells))
        return false;
    r->table->cells[r->cells++] = cell;
    r->filled++;
    return true;
}

/* The cells read so far are the header's. */
static bool accel__row_to_header(accel__reader *r) {
    accel_table *table = r->table;
    table->names = table->cells;
    table->cells = NULL;
    table->columns = r->filled;
    r->cells = 0;
    r->cell_room = 0;
    return true;
}

static bool accel__row_end(accel__reader *r, bool header) {
    accel_table *table = r->table;
    if (header) return accel__row_to_header(r);
    if (!table->columns) table->columns = r->filled;
    if (r->filled != table->columns)
        return accel__fail(r->acc, ACCEL_BAD_FILE, "%s, line %lld: %d column%s, expected %d", table->name,
                           (long long)r->row_line, r->filled, r->filled == 1 ? "" : "s", table->columns);
    table->lines[table->rows++] = r->row_line;
    return true;
}

/* Cuts the line at `at` off the rest and returns it without its end. */
static char *accel__line_cut(accel__reader *r) {
    char *line = r->at, *stop = memchr(line, '\n', (size_t)(r->end - line));
    r->at = stop ? stop + 1 : r->end;
    if (!stop) stop = r->end;
    if (stop > line && stop[-1] == '\r') stop--;
    *stop = 0;
    r->line++;
    return line;
}

/* TSV has no quoting: a tab always ends a cell. */
static bool accel__tsv_row(accel__reader *r) {
    char *cell = accel__line_cut(r);
    if (r->desc.format == ACCEL_LINES) return accel__row_put(r, cell);
    for (char *tab; (tab = strchr(cell, '\t')) != NULL; cell = tab + 1) {
        *tab = 0;
        if (!accel__row_put(r, cell)) return false;
    }
    return accel__row_put(r, cell);
}

/* Steps over the mark behind a CSV cell: 1 where another cell follows, 0 at the end of the row, -1 at anything else. */
static int accel__csv_mark(accel__reader *r) {
    char *at = r->at;
    if (at < r->end && *at == ',') {
        r->at++;
        return 1;
    }
    if (at + 1 < r->end && at[0] == '\r' && at[1] == '\n') at++;
    else if (at + 1 == r->end && *at == '\r') at++;
    if (at < r->end && *at != '\n') return -1;
    r->at = at < r->end ? at + 1 : r->end;
    r->line++;
    return 0;
}

/* Takes the quotes off a cell, in place. */
static bool accel__csv_quoted(accel__reader *r) {
    char *in = r->at + 1, *out = r->at, *cell = r->at;
    int64_t begin = r->line;
    for (;; in++) {
        if (in == r->end)
            return accel__fail(r->acc, ACCEL_BAD_FILE, "%s, line %lld: the quote that begins here is never closed",
                               r->table->name, (long long)begin);
        if (*in == '"' && *++in != '"') break;
        if (*in == '\n') r->line++;
        *out++ = *in;
    }
    r->at = in;
    *out = 0;
    return accel__row_put(r, cell);
}

static bool accel__csv_row(accel__reader *r) {
    for (int more = 1; more == 1;) {
        char *plain = NULL;
        if (*r->at != '"') {
            plain = r->at;
            r->at += strcspn(r->at, ",\n");
            if (r->at > plain && r->at[-1] == '\r' && *r->at != ',') r->at--;
            if (!accel__row_put(r, plain)) return false;
        } else if (!accel__csv_quoted(r)) {
            return false;
        }
        char *stop = r->at;
        int64_t line = r->line;
        more = accel__csv_mark(r);
        if (more < 0)
            return accel__fail(r->acc, ACCEL_BAD_FILE, "%s, line %lld: text behind a closing quote", r->table->name,
                               (long long)line);
        if (plain) *stop = 0;
    }
    return true;
}

/* ---- JSONL: an object per line; the keys of the first are the columns ---- */

static bool accel__jsonl_expected(accel__reader *r, const char *line, const char *at, const char *what) {
    return accel__fail(r->acc, ACCEL_BAD_FILE, "%s, line %lld: malformed JSON at byte %lld: expected %s",
                       r->table->name, (long long)r->row_line, (long long)(at - line) + 1, what);
}

static char *accel__jsonl_space(char *at) { return at + strspn(at, " \t\r"); }

/* Reads the four digits of \uXXXX; -1 where they are none. */
static int32_t accel__jsonl_hex(const char *at) {
    static const char digits[] = "0123456789abcdefABCDEF";
    int32_t value = 0;
    for (int i = 0; i < 4; i++) {
        const char *digit = at[i] ? strchr(digits, at[i]) : NULL;
        if (!digit) return -1;
        int32_t number = (int32_t)(digit - digits);
        value = value * 16 + (number < 16 ? number : number - 6);
    }
    return value;
}

/* The character of the escape \uXXXX (or a surrogate pair) at *at, which is moved behind it; -1 where it is none. */
static int32_t accel__jsonl_unicode(char **at, bool replace) {
    int32_t high = accel__jsonl_hex(*at + 2);
    if (high <= 0) return -1;
    *at += 6;
    if (high < 0xD800 || high > 0xDFFF) return high;
    int32_t low = high < 0xDC00 && (*at)[0] == '\\' && (*at)[1] == 'u' ? accel__jsonl_hex(*at + 2) : -1;
    if (low < 0xDC00 || low > 0xDFFF) return replace ? 0xFFFD : -1;
    *at += 6;
    return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
}

/* Writes what the escape at *at stands for, which is never longer than the escape; false where it is no escape. */
static bool accel__jsonl_escape(char **at, char **out, bool replace) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    char c = (*at)[1];
    if (c == 'u') {
        int32_t point = accel__jsonl_unicode(at, replace);
        if (point < 0) return false;
        *out += utf8proc_encode_char(point, (utf8proc_uint8_t *)*out);
        return true;
    }
    const char *name = c ? strchr(names, c) : NULL;
    if (!name) return false;
    *(*out)++ = values[name - names];
    *at += 2;
    return true;
}

/* Undoes a string's quotes and escapes in place; *end gets the end of its text, which the caller may cut. Returns the
   byte behind the closing quote, NULL on error. */
static char *accel__jsonl_string(accel__reader *r, const char *line, char *at, char **end) {
    char *out = at++;
    while (*at != '"') {
        if (*at == '\\') {
            if (accel__jsonl_escape(&at, &out, r->desc.replace_invalid == ACCEL_YES)) continue;
            accel__jsonl_expected(r, line, at, "an escape that stands for a character");
            return NULL;
        }
        if ((unsigned char)*at < 0x20) {
            accel__jsonl_expected(r, line, at, "a closing quote");
            return NULL;
        }
        *out++ = *at++;
    }
    *end = out;
    return at + 1;
}

/* The end of the number at `at`, NULL where there is none. */
static char *accel__jsonl_number(char *at) {
    static const char digits[] = "0123456789";
    at += *at == '-';
    size_t whole = strspn(at, digits), part;
    if (!whole || (whole > 1 && *at == '0')) return NULL;
    at += whole;
    if (*at == '.') {
        if (!(part = strspn(at + 1, digits))) return NULL;
        at += 1 + part;
    }
    if (*at == 'e' || *at == 'E') {
        at += 1 + (at[1] == '+' || at[1] == '-');
        if (!(part = strspn(at, digits))) return NULL;
        at += part;
    }
    return at;
}

/* Reads a value; its text is *cell .. *end. Returns where to read on, NULL on error. */
static char *accel__jsonl_value(accel__reader *r, const char *line, const char *key, char *at, char **cell,
                                char **end) {
    *cell = at;
    if (*at == '"') return accel__jsonl_string(r, line, at, end);
    const char *other = *at == '{' ? "an object" : *at == '[' ? "an array" : !strncmp(at, "null", 4) ? "null" : NULL;
    if (other) {
        accel__fail(r->acc, ACCEL_BAD_FILE,
                    "%s, line %lld: the value of \"%s\" is %s; expected text, a number or true / false", r->table->name,
                    (long long)r->row_line, key, other);
        return NULL;
    }
    *end = !strncmp(at, "true", 4) ? at + 4 : !strncmp(at, "false", 5) ? at + 5 : accel__jsonl_number(at);
    if (!*end) accel__jsonl_expected(r, line, at, "a value");
    return *end;
}

/* The column of a key: `guess` in most rows. The first row's keys make the columns. -1 on error. */
static int accel__jsonl_column(accel__reader *r, const char *key, int guess, bool first) {
    accel_table *table = r->table;
    int columns = first ? guess : table->columns, column = guess;
    if (guess >= columns || strcmp(table->names[guess], key) != 0)
        for (column = 0; column < columns && strcmp(table->names[column], key) != 0;) column++;
    if (column < columns && (first || table->cells[r->cells - table->columns + column])) {
        accel__fail(r->acc, ACCEL_BAD_FILE, "%s, line %lld: the key \"%s\" is there twice", table->name,
                    (long long)r->row_line, key);
        return -1;
    }
    if (column < columns) return column;
    if (first) return column;
    accel__fail(r->acc, ACCEL_BAD_FILE, "%s, line %lld: the key \"%s\" is not in the first object", table->name,
                (long long)r->row_line, key);
    return -1;
}

static bool accel__jsonl_add_column(accel__reader *r, char *key) {
    if (!accel__grow(r->acc, &r->table->names, &r->name_room, (size_t)r->filled + 1, sizeof *r->table->names))
        return false;
    r->table->names[r->filled] = key;
    return accel__row_put(r, NULL);
}

/* Reads "key": value into the row's cell; *mark gets the character behind it. Returns where to read on. */
static char *accel__jsonl_member(accel__reader *r, const char *line, char *at, int guess, bool first, char *mark) {
    char *key = at, *end, *cell;
    if (*at != '"') return accel__jsonl_expected(r, line, at, "a key in quotes"), NULL;
    at = accel__jsonl_string(r, line, at, &end);
    if (!at) return NULL;
    *end = 0;
    at = accel__jsonl_space(at);
    if (*at != ':') return accel__jsonl_expected(r, line, at, "\":\""), NULL;
    int column = accel__jsonl_column(r, key, guess, first);
    if (column < 0 || (first && !accel__jsonl_add_column(r, key))) return NULL;
    at = accel__jsonl_value(r, line, key, accel__jsonl_space(at + 1), &cell, &end);
    if (!at) return NULL;
    at = accel__jsonl_space(at);
    *mark = *at;
    if (*mark != ',' && *mark != '}') return accel__jsonl_expected(r, line, at, "\",\" or \"}\""), NULL;
    *end = 0; /* only now: a number may end at the mark */
    r->table->cells[r->cells - (first ? r->filled : r->table->columns) + column] = cell;
    return accel__jsonl_space(at + 1);
}

static bool accel__jsonl_row(accel__reader *r) {
    bool first = r->table->columns == 0;
    char *line = accel__line_cut(r), *at = accel__jsonl_space(line), mark = ',';
    for (int i = 0; i < r->table->columns; i++)
        if (!accel__row_put(r, NULL)) return false;
    if (*at != '{') return accel__jsonl_expected(r, line, at, "\"{\"");
    at = accel__jsonl_space(at + 1);
    if (*at == '}') at = accel__jsonl_space(at + 1), mark = '}';
    for (int member = 0; mark == ','; member++)
        if (!(at = accel__jsonl_member(r, line, at, member, first, &mark))) return false;
    if (*at) return accel__jsonl_expected(r, line, at, "the end of the line");
    if (!r->filled) return accel__jsonl_expected(r, line, line, "at least one key");
    for (int i = 0; i < r->table->columns; i++)
        if (!r->table->cells[r->cells - r->table->columns + i])
            return accel__fail(r->acc, ACCEL_BAD_FILE, "%s, line %lld: the key \"%s\" is missing", r->table->name,
                               (long long)r->row_line, r->table->names[i]);
    return true;
}

/* ---- files ---- */

static accel_format accel__format_of(const char *path) {
    const char *dot = strrchr(path, '.');
    if (!dot) return ACCEL_TSV;
    if (!strcmp(dot, ".csv")) return ACCEL_CSV;
    return !strcmp(dot, ".jsonl") || !strcmp(dot, ".json") ? ACCEL_JSONL : ACCEL_TSV;
}

/* Empty lines at the end are none of a table with several columns; a file of one column has a row in every line. */
static bool accel__reader_done(const accel__reader *r) {
    if (r->at == r->end || (r->desc.limit > 0 && r->table->rows == r->desc.limit)) return true;
    return r->table->columns != 1 && r->at + strspn(r->at, "\r\n") == r->end;
}

static bool accel__read_rows(accel__reader *r) {
    bool json = r->desc.format == ACCEL_JSONL, header = !json && !r->desc.no_header && r->desc.format != ACCEL_LINES;
    if (r->desc.format == ACCEL_LINES) r->table->columns = 1;
    for (; !accel__reader_done(r); header = false) {
        if (json && r->at[strspn(r->at, " \t\r")] == '\n') { /* an empty line between objects */
            accel__line_cut(r);
            continue;
        }
        if (!accel__row_begin(r)) return false;
        bool good = json ? accel__jsonl_row(r) : r->desc.format == ACCEL_CSV ? accel__csv_row(r) : accel__tsv_row(r);
        if (!good || !accel__row_end(r, header)) return false;
    }
    if (r->table->columns && (r->table->rows || r->desc.format != ACCEL_LINES)) return true;
    return accel__fail(r->acc, ACCEL_BAD_FILE, "%s is empty", r->table->name);
}

static bool accel__table_fill(accel__reader *r, const char *path) {
    size_t bytes;
    accel_table *table = r->table;
    table->name = accel__strdup(r->acc, strcmp(path, "-") ? path : "standard input");
    table->text = accel__read_file(r->acc, path, &bytes);
    if (!table->name || !table->text || !accel__table_check_text(r, &bytes)) return false;
    bool mark = bytes >= 3 && !memcmp(table->text, "\xEF\xBB\xBF", 3);
    r->at = table->text + (mark ? 3 : 0);
    r->end = table->text + bytes;
    r->line = 1;
    return accel__read_rows(r);
}

ACCEL_API accel_table *accel_table_read(accel_t *acc, const char *path, const accel_table_desc *desc) {
    if (accel_failed(acc)) return NULL;
    accel__reader r = {.acc = acc};
    if (desc) r.desc = *desc;
    if (!path || r.desc.limit < 0) {
        accel__fail(acc, ACCEL_BAD_ARGUMENT,
                    path ? "accel_table_read: limit is negative" : "accel_table_read: path is NULL");
        return NULL;
    }
    if (r.desc.format == ACCEL_FORMAT_BY_NAME) r.desc.format = accel__format_of(path);
    r.table = accel__object_create(acc, ACCEL__TABLE, sizeof *r.table, accel__table_destroy);
    if (!r.table) return NULL;
    if (accel__table_fill(&r, path)) return r.table;
    accel_free(r.table);
    return NULL;
}

ACCEL_API int64_t accel_table_rows(const accel_table *table) { return table ? table->rows : 0; }
ACCEL_API int accel_table_columns(const accel_table *table) { return table ? table->columns : 0; }
ACCEL_API const char *accel_table_name(const accel_table *table) { return table ? table->name : ""; }

ACCEL_API const char *accel_table_cell(const accel_table *table, int64_t row, int column) {
    if (!table || row < 0 || row >= table->rows || column < 0 || column >= table->columns) return NULL;
    return table->cells[row * table->columns + column];
}

ACCEL_API int64_t accel_table_line(const accel_table *table, int64_t row) {
    return table && row >= 0 && row < table->rows ? table->lines[row] : 0;
}

/* Appends `text` in quotes to a list in a buffer, or "..." once where it is full. */
static void accel__list_append(char *list, size_t size, const char *text) {
    size_t used = strlen(list), room = size - used;
    if (used >= 3 && !strcmp(list + used - 3, "...")) return;
    if (strlen(text) + 9 < room) snprintf(list + used, room, "%s\"%s\"", used ? ", " : "", text);
    else snprintf(list + used, room, "%s...", used ? ", " : "");
}

/* A whole number 0 .. INT32_MAX without sign, space or leading zero; -1 for other texts. */
static int32_t accel__whole_number(const char *text) {
    size_t length = strspn(text, "0123456789");
    if (!length || text[length] || length > 10 || (length > 1 && text[0] == '0')) return -1;
    long long value = strtoll(text, NULL, 10);
    return value <= INT32_MAX ? (int32_t)value : -1;
}

ACCEL_API int accel_table_column(const accel_table *table, const char *name) {
    if (!table || accel_failed(table->object.acc)) return -1;
    int found = -1, same = 0;
    for (int i = 0; name && table->names && i < table->columns; i++)
        if (!strcmp(table->names[i], name) && same++ == 0) found = i;
    if (same == 1) return found;
    int32_t number = name ? accel__whole_number(name) : -1;
    if (!same && number >= 0 && number < table->columns) return number;
    char list[400] = "";
    for (int i = 0; table->names && i < table->columns; i++) accel__list_append(list, sizeof list, table->names[i]);
    accel__fail(table->object.acc, ACCEL_BAD_DATA,
                same ? "%s: column name \"%s\" is there twice, use its number; columns from 0: %s"
                     : "%s: no column \"%s\"; columns from 0: %s",
                table->name, name ? name : "(null)", list[0] ? list : "numbers only, there is no header");
    return -1;
}

/* ============================================== >>io-encoding ===================================================== */

/* ---- labels ---- */

static int accel__compare_texts(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int accel__compare_numbers(const void *a, const void *b) {
    int32_t x = accel__whole_number(*(const char *const *)a), y = accel__whole_number(*(const char *const *)b);
    return (x > y) - (x < y);
}

/* The first row whose cell in this column is empty, -1 where there is none. */
static int64_t accel__empty_cell(const accel_table *table, int column) {
    for (int64_t row = 0; row < table->rows; row++)
        if (!*accel_table_cell(table, row, column)) return row;
    return -1;
}

/* Sorts and drops repetitions; where the labels are the numbers 0 .. n-1, number order. */
static int accel__labels_sort(const char **names, int64_t rows) {
    int count = 0;
    bool numbers = true;
    qsort(names, (size_t)rows, sizeof *names, accel__compare_texts);
    for (int64_t row = 0; row < rows; row++)
        if (!count || strcmp(names[count - 1], names[row]) != 0) names[count++] = names[row];
    for (int i = 0; i < count; i++) {
        int32_t number = accel__whole_number(names[i]);
        numbers = numbers && number >= 0 && number < count;
    }
    if (numbers) qsort(names, (size_t)count, sizeof *names, accel__compare_numbers);
    return count;
}

static accel__labels *accel__labels_make(accel_table *table, int column) {
    accel_t *acc = table->object.acc;
    int64_t empty = accel__empty_cell(table, column);
    if (empty >= 0 || !table->rows || table->rows > INT_MAX) {
        if (empty >= 0)
            accel__fail(acc, ACCEL_BAD_DATA, "%s, line %lld: the label is empty", table->name,
                        (long long)table->lines[empty]);
        else accel__fail(acc, ACCEL_BAD_DATA, "%s has %s rows", table->name, table->rows ? "too many" : "no");
        return NULL;
    }
    accel__labels *labels = accel__alloc(acc, sizeof *labels + (size_t)table->rows * sizeof *labels->names);
    if (!labels) return NULL;
    for (int64_t row = 0; row < table->rows; row++) labels->names[row] = accel_table_cell(table, row, column);
    labels->column = column;
    labels->count = accel__labels_sort(labels->names, table->rows);
    labels->next = table->labels;
    return table->labels = labels;
}

ACCEL_API const char *const *accel_table_labels(accel_table *table, const char *column, int *count) {
    if (count) *count = 0;
    int index = accel_table_column(table, column);
    if (index < 0) return NULL;
    accel__labels *labels = table->labels;
    while (labels && labels->column != index) labels = labels->next;
    if (!labels) labels = accel__labels_make(table, index);
    if (!labels) return NULL;
    if (count) *count = labels->count;
    return labels->names;
}

/* ---- rows to ids ---- */

/* Rows are tokenised in waves: each row has its own space for ids, so that pieces share nothing, and what a wave gave
   is packed in row order by the calling thread. */
#define ACCEL__WAVE_ROWS 4096
#define ACCEL__WAVE_IDS (1 << 21)
#define ACCEL__PIECE_ROWS 32

typedef struct accel__label_entry {
    const char *name;
    int32_t id;
} accel__label_entry;

typedef struct accel__encoding {
    accel_t *acc;
    const accel_tokenizer *tokenizer;
    const accel_table *table;
    accel_problem problem;
    int text[2], max_length; /* text[1] -1: single texts */
    int label[ACCEL_MAX_COLUMNS], label_columns;
    accel__label_entry *names; /* sorted by name; NULL: labels are numbers */
    int name_count;
    int label_limit; /* labels that are numbers are below it */
    int64_t wave;    /* its first row */
    int wave_rows, wave_room;
    int32_t *wave_ids, *wave_types; /* [wave_room, max_length] */
    int *length, *full;             /* [wave_room] */
    int32_t *ids, *types, *labels;
    float *targets;
    int64_t *offsets;
    size_t id_room, type_room;
    int64_t cut;
} accel__encoding;

static void accel__encoding_free(accel__encoding *e) {
    void *parts[] = {e->names, e->wave_ids, e->wave_types, e->length,  e->full,
                     e->ids,   e->types,    e->labels,     e->targets, e->offsets};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) accel__free(e->acc, parts[i]);
}

static bool accel__encoding_columns(accel__encoding *e, const accel_encode_desc *desc) {
    e->text[1] = -1;
    if (!desc->text[0]) return accel__fail(e->acc, ACCEL_BAD_ARGUMENT, "accel_encode_table: text[0] names no column");
    for (int i = 0; i < 2 && desc->text[i]; i++)
        if ((e->text[i] = accel_table_column(e->table, desc->text[i])) < 0) return false;
    for (int i = 0; i < ACCEL_MAX_COLUMNS && desc->label[i]; i++, e->label_columns++)
        if ((e->label[i] = accel_table_column(e->table, desc->label[i])) < 0) return false;
    if (e->problem != ACCEL_SINGLE_LABEL || e->label_columns < 2) return true;
    return accel__fail(e->acc, ACCEL_BAD_ARGUMENT,
                       "accel_encode_table: %d label columns, a single-label problem has one", e->label_columns);
}

/* What the model says goes: its problem, its positions, its vocabulary and the number of its labels. */
static bool accel__encoding_model(accel__encoding *e, const accel_encode_desc *desc,
                                  const accel_encoder_config *config) {
    if (desc->problem != ACCEL_SINGLE_LABEL && desc->problem != config->problem)
        return accel__fail(e->acc, ACCEL_BAD_ARGUMENT, "accel_encode_table: problem differs from the model's");
    int words = accel_vocabulary_size(e->tokenizer);
    if (words > config->vocab_size)
        return accel__fail(
            e->acc, ACCEL_BAD_DATA,
            "the vocabulary has %d tokens, the model's word embeddings have %d rows: they do not belong together",
            words, config->vocab_size);
    if (config->problem != ACCEL_SINGLE_LABEL && e->label_columns && e->label_columns != config->num_labels)
        return accel__fail(e->acc, ACCEL_BAD_DATA, "%s: %d label columns, the model has %d labels", e->table->name,
                           e->label_columns, config->num_labels);
    if (e->max_length > config->max_positions) e->max_length = config->max_positions;
    return true;
}

static bool accel__encoding_length(accel__encoding *e) {
    int least = e->text[1] < 0 ? 3 : 5; /* the special tokens and one of each text */
    if (e->max_length >= least) return true;
    return accel__fail(e->acc, ACCEL_BAD_ARGUMENT,
                       "a maximal length of %d tokens leaves no room for text, %d is the least", e->max_length, least);
}

static const char *accel__given_label(const accel_encode_desc *desc, int id) {
    return desc->model ? accel_label_name(desc->model, id) : desc->label_names ? desc->label_names[id] : NULL;
}

/* Labels are numbers unless every one has a name. */
static bool accel__encoding_names(accel__encoding *e, const accel_encode_desc *desc) {
    const accel_encoder_config *config = accel_encoder_config_of(desc->model);
    int count = config ? config->num_labels : desc->model ? 0 : desc->label_count;
    e->label_limit = count > 0 ? count : INT32_MAX;
    for (int i = 0; i < count; i++)
        if (!accel__given_label(desc, i)) return true;
    if (count <= 0) return true;
    e->names = accel__alloc(e->acc, (size_t)count * sizeof *e->names);
    if (!e->names) return false;
    e->name_count = count;
    for (int i = 0; i < count; i++) e->names[i] = (accel__label_entry){accel__given_label(desc, i), i};
    return true;
}

/* Multi-label columns that have names stand in the order of the model's labels. */
static bool accel__encoding_order(const accel__encoding *e) {
    if (e->problem != ACCEL_MULTI_LABEL || !e->table->names) return true;
    for (int i = 0; i < e->name_count && i < e->label_columns; i++) {
        const char *column = e->table->names[e->label[i]];
        if (strcmp(column, e->names[i].name) != 0)
            return accel__fail(e->acc, ACCEL_BAD_DATA, "%s: label column %d is \"%s\", the model's label %d is \"%s\"",
                               e->table->name, i, column, i, e->names[i].name);
    }
    return true;
}

static bool accel__encoding_allocate(accel__encoding *e) {
    int64_t rows = e->table->rows, fit = ACCEL__WAVE_IDS / e->max_length;
    if (fit > ACCEL__WAVE_ROWS) fit = ACCEL__WAVE_ROWS;
    if (fit > rows) fit = rows;
    e->wave_room = fit < 1 ? 1 : (int)fit;
    size_t room = (size_t)e->wave_room, columns = (size_t)e->label_columns, ids = room * (size_t)e->max_length;
    e->wave_ids = accel__alloc(e->acc, ids * sizeof *e->wave_ids);
    e->length = accel__alloc(e->acc, room * sizeof *e->length);
    e->full = accel__alloc(e->acc, room * sizeof *e->full);
    e->offsets = accel__alloc(e->acc, (size_t)(rows + 1) * sizeof *e->offsets);
    if (e->text[1] >= 0) e->wave_types = accel__alloc(e->acc, ids * sizeof *e->wave_types);
    if (columns && e->problem == ACCEL_SINGLE_LABEL) e->labels = accel__alloc(e->acc, (size_t)rows * sizeof *e->labels);
    if (columns && e->problem != ACCEL_SINGLE_LABEL)
        e->targets = accel__alloc(e->acc, (size_t)rows * columns * sizeof *e->targets);
    if (accel_failed(e->acc)) return false;
    e->offsets[0] = 0;
    return true;
}

static bool accel__encoding_open(accel__encoding *e, const accel_encode_desc *desc) {
    const accel_encoder_config *config = accel_encoder_config_of(desc->model);
    if (!e->table->rows) return accel__fail(e->acc, ACCEL_BAD_DATA, "%s has no rows", e->table->name);
    if (desc->max_length < 0)
        return accel__fail(e->acc, ACCEL_BAD_ARGUMENT, "accel_encode_table: max_length is negative");
    e->max_length = desc->max_length ? desc->max_length : 512;
    e->problem = config ? config->problem : desc->problem;
    if (!accel__encoding_columns(e, desc) || (config && !accel__encoding_model(e, desc, config))) return false;
    if (!accel__encoding_length(e) || !accel__encoding_names(e, desc) || !accel__encoding_order(e)) return false;
    if (e->names) qsort(e->names, (size_t)e->name_count, sizeof *e->names, accel__compare_texts);
    return accel__encoding_allocate(e);
}

/* Runs on any thread. */
static void accel__encoding_piece(void *argument, int piece) {
    accel__encoding *e = argument;
    int begin = piece * ACCEL__PIECE_ROWS, end = begin + ACCEL__PIECE_ROWS;
    for (int i = begin; i < end && i < e->wave_rows; i++) {
        const char *text = accel_table_cell(e->table, e->wave + i, e->text[0]);
        const char *pair = e->text[1] < 0 ? NULL : accel_table_cell(e->table, e->wave + i, e->text[1]);
        size_t place = (size_t)i * (size_t)e->max_length;
        e->length[i] = accel_tokenize(e->tokenizer, text, pair, e->max_length, e->wave_ids + place,
                                      e->wave_types ? e->wave_types + place : NULL, &e->full[i]);
    }
}

static bool accel__bad_cell(const accel__encoding *e, int64_t row, int column, const char *expected) {
    char place[64], list[400] = "";
    if (e->table->names) accel__list_append(list, sizeof list, e->table->names[column]);
    snprintf(place, sizeof place, "%d", column);
    return accel__fail(e->acc, ACCEL_BAD_DATA, "%s, line %lld, column %s: \"%.100s\" is not %s", e->table->name,
                       (long long)e->table->lines[row], list[0] ? list : place, accel_table_cell(e->table, row, column),
                       expected);
}

static bool accel__unknown_label(const accel__encoding *e, int64_t row, const char *cell) {
    char list[400] = "";
    for (int i = 0; i < e->name_count; i++) accel__list_append(list, sizeof list, e->names[i].name);
    return accel__fail(e->acc, ACCEL_BAD_DATA, "%s, line %lld: unknown label \"%.100s\"; known are %s", e->table->name,
                       (long long)e->table->lines[row], cell, list);
}

static bool accel__encode_name(accel__encoding *e, int64_t row) {
    const char *cell = accel_table_cell(e->table, row, e->label[0]);
    accel__label_entry key = {cell, 0}, *entry;
    entry = bsearch(&key, e->names, (size_t)e->name_count, sizeof key, accel__compare_texts);
    if (!entry) return accel__unknown_label(e, row, cell);
    e->labels[row] = entry->id;
    return true;
}

static bool accel__encode_number(accel__encoding *e, int64_t row) {
    int32_t id = accel__whole_number(accel_table_cell(e->table, row, e->label[0]));
    if (id < 0) return accel__bad_cell(e, row, e->label[0], "a label: a whole number from 0");
    if (id >= e->label_limit)
        return accel__fail(e->acc, ACCEL_BAD_DATA, "%s, line %lld: label %d is out of range 0 .. %d", e->table->name,
                           (long long)e->table->lines[row], id, e->label_limit - 1);
    e->labels[row] = id;
    return true;
}

/* The whole cell is a finite decimal number; hexadecimal ones, "inf" and "nan" are none. */
static bool accel__parse_score(const char *cell, float *score) {
    char *end;
    if (!*cell || strspn(cell, "+-.0123456789eE") != strlen(cell)) return false;
    double value = strtod(cell, &end);
    if (*end || !(fabs(value) <= (double)FLT_MAX)) return false;
    *score = (float)value;
    return true;
}

static bool accel__encode_targets(accel__encoding *e, int64_t row) {
    float *target = e->targets + row * e->label_columns;
    for (int i = 0; i < e->label_columns; i++) {
        const char *cell = accel_table_cell(e->table, row, e->label[i]);
        if (e->problem == ACCEL_REGRESSION) {
            if (!accel__parse_score(cell, &target[i])) return accel__bad_cell(e, row, e->label[i], "a finite number");
            continue;
        }
        bool yes = !strcmp(cell, "1") || !strcmp(cell, "true");
        if (!yes && strcmp(cell, "0") != 0 && strcmp(cell, "false") != 0)
            return accel__bad_cell(e, row, e->label[i], "0 or 1");
        target[i] = yes ? 1.0f : 0.0f;
    }
    return true;
}

/* Moves one row of the wave behind the rows that are done, and reads its labels. */
static bool accel__encoding_take(accel__encoding *e, int i) {
    int64_t row = e->wave + i, used = e->offsets[row], need = used + e->length[i];
    size_t place = (size_t)i * (size_t)e->max_length;
    if (e->length[i] < 0)
        return accel__fail(e->acc, ACCEL_OUT_OF_MEMORY, "%s, line %lld: out of memory while it was tokenised",
                           e->table->name, (long long)e->table->lines[row]);
    size_t bytes = (size_t)e->length[i] * sizeof *e->ids;
    if (!accel__grow(e->acc, &e->ids, &e->id_room, (size_t)need, sizeof *e->ids)) return false;
    memcpy(e->ids + used, e->wave_ids + place, bytes);
    if (e->wave_types) {
        if (!accel__grow(e->acc, &e->types, &e->type_room, (size_t)need, sizeof *e->types)) return false;
        memcpy(e->types + used, e->wave_types + place, bytes);
    }
    e->offsets[row + 1] = need;
    e->cut += e->full[i] > e->length[i];
    if (e->labels) return e->names ? accel__encode_name(e, row) : accel__encode_number(e, row);
    return e->targets ? accel__encode_targets(e, row) : true;
}

static bool accel__encoding_run(accel__encoding *e) {
    for (e->wave = 0; e->wave < e->table->rows; e->wave += e->wave_rows) {
        int64_t left = e->table->rows - e->wave;
        e->wave_rows = left < e->wave_room ? (int)left : e->wave_room;
        accel__parallel(e->acc, (e->wave_rows + ACCEL__PIECE_ROWS - 1) / ACCEL__PIECE_ROWS, accel__encoding_piece, e);
        for (int i = 0; i < e->wave_rows; i++)
            if (!accel__encoding_take(e, i)) return false;
    }
    if (e->cut)
        accel__note(e->acc, "%s: %lld of %lld texts were longer than %d tokens and were cut", e->table->name,
                    (long long)e->cut, (long long)e->table->rows, e->max_length);
    return true;
}

ACCEL_API accel_data *accel_encode_table(const accel_tokenizer *tokenizer, const accel_table *table,
                                         const accel_encode_desc *desc) {
    if (!table || accel_failed(table->object.acc)) return NULL;
    accel__encoding e = {.acc = table->object.acc, .tokenizer = tokenizer, .table = table};
    accel_data *data = NULL;
    if (!tokenizer || !desc)
        accel__fail(e.acc, ACCEL_BAD_ARGUMENT, "accel_encode_table: %s is NULL", tokenizer ? "desc" : "tokenizer");
    else if (accel__encoding_open(&e, desc) && accel__encoding_run(&e))
        data = accel_data_create(e.acc, &(accel_data_desc){.rows = table->rows,
                                                           .ids = e.ids,
                                                           .offsets = e.offsets,
                                                           .token_types = e.types,
                                                           .labels = e.labels,
                                                           .targets = e.targets,
                                                           .targets_per_row = e.targets ? e.label_columns : 0,
                                                           .name = table->name,
                                                           .line = table->lines});
    accel__encoding_free(&e);
    return data;
}

/* ================================================ >>io-state ======================================================
   One safetensors file: floats as they are, counters as int64. Objects are told apart by their kind and the order in
   which they were made. */

typedef struct accel__registered {
    accel__object object;
    char *name;
    void *memory;
    size_t bytes;
} accel__registered;

static void accel__registered_destroy(accel__object *object) {
    accel__free(object->acc, ((accel__registered *)(void *)object)->name);
}

/* The objects of one kind, oldest first: the one after `previous`, or the first. */
static accel__object *accel__object_next(accel_t *acc, accel__kind kind, const accel__object *previous) {
    accel__object *found = NULL;
    for (accel__object *object = acc->objects; object && object != previous; object = object->next)
        if (object->kind == kind) found = object;
    return found;
}

ACCEL_API bool accel_register_state(accel_t *acc, const char *name, void *memory, size_t bytes) {
    if (accel_failed(acc)) return false;
    if (!name || !*name || !memory || !bytes || bytes > INT32_MAX)
        return accel__fail(acc, ACCEL_BAD_ARGUMENT,
                           "accel_register_state: a name and 1 to 2^31 bytes of memory are needed");
    for (accel__object *o = accel__object_next(acc, ACCEL__REGISTERED, NULL); o;
         o = accel__object_next(acc, ACCEL__REGISTERED, o))
        if (!strcmp(((accel__registered *)(void *)o)->name, name))
            return accel__fail(acc, ACCEL_BAD_ARGUMENT, "accel_register_state: the name %s is taken", name);
    accel__registered *entry = (accel__registered *)accel__object_create(acc, ACCEL__REGISTERED, sizeof *entry,
                                                                         accel__registered_destroy);
    if (!entry) return false;
    entry->memory = memory;
    entry->bytes = bytes;
    entry->name = accel__strdup(acc, name);
    return entry->name != NULL;
}

/* ---- a walk over the state: the same for saving and for loading, so that the two cannot differ ---- */

typedef struct accel__state {
    accel_t *acc;
    const accel_safetensors *file; /* loading: where it comes from; NULL: saving */
    accel_named_array *arrays;     /* saving: what to write (stb_ds array) */
    int visited;
} accel__state;

static uint64_t accel__checksum(const char *name, const void *data, size_t bytes) {
    const char *at = (const char *)data;
    uint64_t sum = accel__hash_text(name);
    for (; bytes >= sizeof(uint64_t); bytes -= sizeof(uint64_t), at += sizeof(uint64_t)) {
        uint64_t word;
        memcpy(&word, at, sizeof word);
        sum = accel__mix(sum, word);
    }
    for (; bytes; bytes--) sum = accel__mix(sum, (unsigned char)*at++);
    return sum;
}

/* Of all tensors, in whatever order. */
static uint64_t accel__file_checksum(const accel_safetensors *file) {
    uint64_t sum = 0;
    for (int i = 0; i < file->count; i++) {
        const accel__entry *entry = &file->entries[i];
        sum ^= accel__checksum(entry->name, file->data + entry->begin, (size_t)(entry->end - entry->begin));
    }
    return sum;
}

static uint64_t accel__arrays_checksum(const accel_named_array *arrays, size_t count) {
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        sum ^= accel__checksum(arrays[i].name, arrays[i].values, (size_t)accel__named_bytes(&arrays[i]));
    return sum;
}

/* Index of a tensor of the file; -1, with an error, where it is missing or of another size. */
static int accel__state_find(accel__state *s, const char *name, int64_t elements) {
    int index = accel_safetensors_find(s->file, name);
    accel_shape shape = index < 0 ? accel_0d() : accel_safetensors_shape(s->file, index);
    if (index >= 0 && accel__shape_count(shape) == elements) return index;
    if (index < 0)
        accel__fail(s->acc, ACCEL_BAD_FILE, "%s: the state has no %s; was it saved by the same program?", s->file->path,
                    name);
    else
        accel__fail(s->acc, ACCEL_BAD_FILE, "%s: %s has the shape %s in the state, %lld elements are expected",
                    s->file->path, name, accel__shape_text(shape).text, (long long)elements);
    return -1;
}

/* A copy of values that are to be written under a name. */
static bool accel__state_put(accel__state *s, const char *name, accel_dtype dtype, const void *values, int64_t elements,
                             size_t size) {
    accel_named_array array = {accel__strdup(s->acc, name), dtype, accel_1d((int)elements), NULL};
    void *copy = NULL;
    if (size) { /* counters: copied, since they lie on the stack */
        copy = accel__alloc(s->acc, (size_t)elements * size);
        if (copy) memcpy(copy, values, (size_t)elements * size);
    }
    array.values = size ? copy : values;
    if (array.name && array.values && accel__push(s->acc, s->arrays, array)) return true;
    union {
        const char *shown;
        char *owned;
    } text = {array.name};
    accel__free(s->acc, text.owned);
    accel__free(s->acc, copy);
    return false;
}

static bool accel__state_floats(accel__state *s, const char *name, float *values, int64_t count) {
    if (accel_failed(s->acc)) return false;
    s->visited++;
    if (!s->file) {
        if (!accel__state_put(s, name, ACCEL_F32, values, count, 0)) return false;
    } else {
        int index = accel__state_find(s, name, count);
        if (index < 0 || !accel_safetensors_read(s->file, index, values, count)) return false;
    }
    return true;
}

static bool accel__state_counters(accel__state *s, const char *name, int64_t *values, int count) {
    if (accel_failed(s->acc)) return false;
    s->visited++;
    if (!s->file) {
        if (!accel__state_put(s, name, ACCEL_I64, values, count, sizeof *values)) return false;
    } else {
        int index = accel__state_find(s, name, count);
        if (index < 0) return false;
        const accel__entry *entry = accel__entry_readable(s->file, index, values, count, false);
        if (!entry) return false;
        if (entry->dtype->dtype != ACCEL_I64)
            return accel__fail(s->acc, ACCEL_BAD_FILE, "%s: %s is not of type I64", s->file->path, name);
        memcpy(values, s->file->data + entry->begin, (size_t)count * sizeof *values);
    }
    return true;
}

/* Doubles travel as the integers with the same bits. */
static int64_t accel__bits_of(double value) {
    int64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static double accel__double_of(int64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* ---- parts of the state ---- */

/* What the context will be when the next micro-batch begins. */
static bool accel__state_context(accel__state *s) {
    accel_t *acc = s->acc;
    bool done = acc->micro.had_backward, closes = done && accel_sync_gradients(acc);
    int64_t c[] = {1 /* version of this layout */,
                   (int64_t)acc->desc.seed,
                   acc->steps + closes,
                   closes ? 0 : acc->window_index + done,
                   closes ? 0 : acc->window_examples + (done ? acc->micro.examples : 0),
                   closes ? acc->next_accumulate : acc->accumulate,
                   acc->next_accumulate};
    if (!accel__state_counters(s, "context", c, ACCEL__COUNT(c))) return false;
    if (!s->file) return true;
    if (c[0] != 1)
        return accel__fail(acc, ACCEL_BAD_FILE, "%s: unknown version %lld of the state", s->file->path,
                           (long long)c[0]);
    accel__scope_end(acc, ACCEL__TRAINING);
    acc->desc.seed = (uint64_t)c[1];
    acc->steps = c[2];
    acc->window_index = (int)c[3];
    acc->window_examples = c[4];
    acc->accumulate = (int)c[5];
    acc->next_accumulate = (int)c[6];
    acc->micro = (accel__micro){.id = acc->micro.id + 1};
    return true;
}

static bool accel__state_moments(accel__state *s, accel__param *param, const char *prefix, int64_t present) {
    for (int m = 0; m < ACCEL__COUNT(param->moment); m++) {
        if (!(present >> m & 1)) continue;
        char name[320];
        snprintf(name, sizeof name, "%s.moment%d", prefix, m);
        if (!param->moment[m]) param->moment[m] = (float *)accel__alloc(s->acc, accel__param_bytes(param));
        if (!param->moment[m] || !accel__state_floats(s, name, param->moment[m], param->slot->count)) return false;
    }
    if (s->file) {
        accel__free(s->acc, param->has_moments);
        param->has_moments = NULL; /* any row's may be other than zero now */
    }
    return true;
}

/* A gradient is part of the state only in the middle of a window. */
static bool accel__state_gradient(accel__state *s, accel__param *param, const char *prefix, bool present) {
    if (!present) return true;
    char name[320];
    snprintf(name, sizeof name, "%s.gradient", prefix);
    if (!accel__param_gradient(s->acc, param, false)) return false;
    if (accel__gradient_state(param) == ACCEL__ROWS) accel__rows_to_dense(s->acc, param);
    if (!accel__state_floats(s, name, param->gradient, param->slot->count)) return false;
    param->gradient_state = ACCEL__DENSE;
    return true;
}

static bool accel__state_param(accel__state *s, accel__param *param, int model) {
    char prefix[256];
    snprintf(prefix, sizeof prefix, "model%d.%.200s", model, param->name);
    const accel__window *window = accel__param_window(param);
    int64_t c[] = {param->steps, 0, 0, param->slot->requires_grad};
    for (int m = 0; m < ACCEL__COUNT(param->moment); m++) c[1] |= (int64_t)(param->moment[m] != NULL) << m;
    c[2] = !window->consumed && accel__gradient_state(param) != ACCEL__NO_GRADIENT;
    char name[320];
    snprintf(name, sizeof name, "%s.counters", prefix);
    if (!accel__state_counters(s, name, c, ACCEL__COUNT(c))) return false;
    param->steps = c[0];
    param->slot->requires_grad = c[3] != 0;
    if (!accel__state_floats(s, prefix, accel__data(param->slot), param->slot->count)) return false;
    if (s->file) accel__param_changed(param);
    return accel__state_moments(s, param, prefix, c[1]) && accel__state_gradient(s, param, prefix, c[2] != 0);
}

static bool accel__state_window(accel__state *s, accel__window *window, const char *name) {
    bool open = !window->consumed && window->weight > 0;
    int64_t c[] = {open, accel__bits_of(open ? window->weight : 0)};
    if (!accel__state_counters(s, name, c, ACCEL__COUNT(c))) return false;
    if (!s->file) return true;
    accel__window_reset(window);
    window->weight = accel__double_of(c[1]);
    return true;
}

static bool accel__state_optimizer(accel__state *s, accel_optimizer *opt, int index) {
    char name[64];
    snprintf(name, sizeof name, "optimizer%d", index);
    int64_t c[] = {opt->steps, opt->skipped, opt->skipped_in_row, accel__bits_of((double)opt->base_lr),
                   accel__bits_of(opt->factor)};
    if (!accel__state_counters(s, name, c, ACCEL__COUNT(c))) return false;
    opt->steps = c[0];
    opt->skipped = c[1];
    opt->skipped_in_row = (int)c[2];
    opt->base_lr = (float)accel__double_of(c[3]);
    opt->factor = accel__double_of(c[4]);
    snprintf(name, sizeof name, "optimizer%d.window", index);
    return accel__state_window(s, &opt->window, name);
}

static bool accel__state_model(accel__state *s, accel_model *model, int index) {
    char name[64];
    snprintf(name, sizeof name, "model%d.window", index);
    if (!accel__state_window(s, &model->window, name)) return false;
    for (int i = 0; i < accel__param_count(model); i++)
        if (!accel__state_param(s, model->params[i], index)) return false;
    return true;
}

static bool accel__state_loader(accel__state *s, accel_loader *loader, int index) {
    char name[64];
    snprintf(name, sizeof name, "loader%d", index);
    int64_t c[] = {loader->epoch, loader->cursor, accel_data_rows(loader->data)};
    if (!accel__state_counters(s, name, c, ACCEL__COUNT(c))) return false;
    if (!s->file) return true;
    if (c[2] != accel_data_rows(loader->data))
        return accel__fail(s->acc, ACCEL_BAD_FILE, "%s: loader %d had %lld rows, now it has %lld", s->file->path, index,
                           (long long)c[2], (long long)accel_data_rows(loader->data));
    if (c[0] < 0 || c[1] < 0 || c[1] > accel_loader_length(loader))
        return accel__fail(s->acc, ACCEL_BAD_FILE, "%s: loader %d cannot be at batch %lld", s->file->path, index,
                           (long long)c[1]);
    loader->epoch = c[0];
    loader->cursor = c[1];
    accel__loader_order(loader);
    return true;
}

static bool accel__state_registered(accel__state *s, accel__registered *entry) {
    char name[256];
    snprintf(name, sizeof name, "user.%.200s", entry->name);
    int64_t words = (int64_t)((entry->bytes + 7) / 8);
    int64_t *copy = (int64_t *)accel__alloc(s->acc, (size_t)words * sizeof *copy);
    if (!copy) return false;
    copy[words - 1] = 0;
    memcpy(copy, entry->memory, entry->bytes);
    bool good = accel__state_counters(s, name, copy, (int)words);
    if (good) memcpy(entry->memory, copy, entry->bytes);
    accel__free(s->acc, copy);
    return good;
}

static bool accel__state_ema(accel__state *s, accel_ema *ema, int index) {
    char name[320];
    snprintf(name, sizeof name, "average%d", index);
    if (!accel__state_counters(s, name, &ema->swapped, 1)) return false;
    for (int i = 0; i < ema->count; i++) {
        const accel__param *param = ema->model->params[i];
        snprintf(name, sizeof name, "average%d.%.200s", index, param->name);
        if (!accel__state_floats(s, name, ema->average[i], param->slot->count)) return false;
    }
    return true;
}

static bool accel__state_object(accel__state *s, accel__object *object, int index) {
    switch (object->kind) {
    case ACCEL__OPTIMIZER: return accel__state_optimizer(s, (accel_optimizer *)(void *)object, index);
    case ACCEL__MODEL: return accel__state_model(s, (accel_model *)(void *)object, index);
    case ACCEL__LOADER: return accel__state_loader(s, (accel_loader *)(void *)object, index);
    case ACCEL__EMA: return accel__state_ema(s, (accel_ema *)(void *)object, index);
    case ACCEL__REGISTERED: return accel__state_registered(s, (accel__registered *)(void *)object);
    default: return true;
    }
}

/* Optimizers come before models: a parameter's gradient belongs to its optimizer's window. */
static bool accel__state_walk(accel__state *s) {
    static const accel__kind kinds[] = {ACCEL__OPTIMIZER, ACCEL__MODEL, ACCEL__EMA, ACCEL__LOADER, ACCEL__REGISTERED};
    if (!accel__state_context(s)) return false;
    for (int k = 0; k < ACCEL__COUNT(kinds); k++) {
        int index = 0;
        for (accel__object *o = accel__object_next(s->acc, kinds[k], NULL); o;
             o = accel__object_next(s->acc, kinds[k], o))
            if (!accel__state_object(s, o, index++)) return false;
    }
    return true;
}

/* ---- saving ---- */

static void accel__state_free(accel__state *s) {
    for (size_t i = 0; i < accel__length(s->arrays); i++) {
        union {
            const void *shown;
            void *owned;
        } name = {s->arrays[i].name}, values = {s->arrays[i].values};
        accel__free(s->acc, name.owned);
        if (s->arrays[i].dtype == ACCEL_I64) accel__free(s->acc, values.owned);
    }
    accel__array_free(s->arrays);
}

/* Removes a folder and the files in it. */
static bool accel__state_remove(const char *folder) {
    DIR *list = opendir(folder);
    if (!list) return false;
    for (struct dirent *entry; (entry = readdir(list));) {
        char path[4400];
        snprintf(path, sizeof path, "%.4096s/%.255s", folder, entry->d_name);
        unlink(path); /* folders refuse: then rmdir refuses as well */
    }
    closedir(list);
    return rmdir(folder) == 0;
}

static bool accel__state_write(accel__state *s, const char *folder) {
    char path[4200], checksum[32];
    snprintf(checksum, sizeof checksum, "%016llx",
             (unsigned long long)accel__arrays_checksum(s->arrays, accel__length(s->arrays)));
    const char *metadata[] = {"format", "accel-state", "checksum", checksum, NULL};
    return accel__make_folder(s->acc, folder) && accel__path(path, sizeof path, s->acc, folder, "state.safetensors") &&
           accel_safetensors_write(s->acc, path, s->arrays, (int)accel__length(s->arrays), metadata);
}

/* Exchanges two folders at once, where the system can. */
static bool accel__state_exchange(const char *a, const char *b) {
#ifdef SYS_renameat2
    enum { exchange = 2 }; /* RENAME_EXCHANGE */
    return syscall(SYS_renameat2, AT_FDCWD, a, AT_FDCWD, b, exchange) == 0;
#else
    (void)a;
    (void)b;
    return false;
#endif
}

/* Puts a finished folder in the place of its name, so that at no moment there is none. Where folders cannot be exchanged, the
   former one is out of the way under another name for a moment. */
static bool accel__state_rename(accel_t *acc, const char *aside, const char *folder) {
    char old[4200];
    snprintf(old, sizeof old, "%.4096s.old-%ld", folder, (long)getpid());
    bool replaces = accel__is_folder(folder), exchanged = replaces && accel__state_exchange(aside, folder);
    if (replaces && !exchanged) rename(folder, old);
    if (!exchanged && rename(aside, folder) != 0)
        return accel__fail(acc, ACCEL_BAD_FILE, "%s cannot be renamed to %s: %s", aside, folder, strerror(errno));
    accel__sync_folder_of(folder);
    if (replaces) accel__state_remove(exchanged ? aside : old);
    return true;
}

ACCEL_API bool accel_save_state(accel_t *acc, const char *folder) {
    if (accel_failed(acc)) return false;
    if (!folder || !*folder || strlen(folder) > 4000)
        return accel__fail(acc, ACCEL_BAD_ARGUMENT, "accel_save_state: a folder's name is needed");
    accel__state s = {.acc = acc};
    char aside[4200];
    snprintf(aside, sizeof aside, "%s.part-%ld", folder, (long)getpid());
    bool good = accel__state_walk(&s) && accel__state_write(&s, aside) && accel__state_rename(acc, aside, folder);
    if (!good) accel__state_remove(aside);
    accel__state_free(&s);
    return good;
}

/* ---- loading ---- */

/* Opens a state whose checksum fits; NULL, with an error, otherwise. */
static accel_safetensors *accel__state_open(accel_t *acc, const char *folder) {
    char path[4200];
    if (!accel__path(path, sizeof path, acc, folder, "state.safetensors")) return NULL;
    accel_safetensors *file = accel_safetensors_open(acc, path);
    if (!file) return NULL;
    const cJSON *metadata = cJSON_GetObjectItemCaseSensitive(file->header, "__metadata__");
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(metadata, "checksum"));
    char checksum[32];
    snprintf(checksum, sizeof checksum, "%016llx", (unsigned long long)accel__file_checksum(file));
    if (text && !strcmp(text, checksum)) return file;
    accel__fail(acc, ACCEL_BAD_FILE,
                text ? "%s: the checksum does not fit: the file is damaged" : "%s is not a saved state", path);
    accel__object_destroy(&file->object);
    return NULL;
}

ACCEL_API bool accel_load_state(accel_t *acc, const char *folder) {
    if (accel_failed(acc)) return false;
    if (!folder) return accel__fail(acc, ACCEL_BAD_ARGUMENT, "accel_load_state: a folder's name is needed");
    accel_safetensors *file = accel__state_open(acc, folder);
    if (!file) return false;
    accel__state s = {.acc = acc, .file = file};
    bool good = accel__state_walk(&s);
    if (good && s.visited != file->count)
        good = accel__fail(acc, ACCEL_BAD_FILE, "%s: the state has %d parts, this program has %d", file->path,
                           file->count, s.visited);
    accel__object_destroy(&file->object);
    return good;
}

/* ---- folders step-N ---- */

/* The numbers of a folder's step-N (an stb_ds array), falling; unfinished ones of runs that were killed are removed
   where `clean`. */
static int64_t *accel__state_steps(accel_t *acc, const char *parent, bool clean) {
    int64_t *steps = NULL;
    DIR *list = opendir(parent);
    if (!list) return NULL;
    for (struct dirent *entry; (entry = readdir(list));) {
        long long step;
        int used = 0;
        if (sscanf(entry->d_name, "step-%lld%n", &step, &used) != 1 || step < 0) continue;
        if (!entry->d_name[used]) {
            if (!accel__push(acc, steps, (int64_t)step)) break;
        } else if (clean &&
                   (!strncmp(entry->d_name + used, ".part-", 6) || !strncmp(entry->d_name + used, ".old-", 5))) {
            char path[4400];
            snprintf(path, sizeof path, "%.4096s/%.255s", parent, entry->d_name);
            accel__state_remove(path);
        }
    }
    closedir(list);
    for (size_t i = 1; i < accel__length(steps); i++)
        for (size_t j = i; j > 0 && steps[j] > steps[j - 1]; j--) {
            int64_t swapped = steps[j];
            steps[j] = steps[j - 1];
            steps[j - 1] = swapped;
        }
    return steps;
}

static void accel__state_path(char *path, size_t size, const char *parent, int64_t step) {
    snprintf(path, size, "%.4096s/step-%lld", parent, (long long)step);
}

/* Whether a state can be loaded; if not, the context's error becomes a notice. */
static bool accel__state_usable(accel_t *acc, const char *folder) {
    accel_safetensors *file = accel__state_open(acc, folder);
    if (file) {
        accel__object_destroy(&file->object);
        return true;
    }
    accel__note(acc, "%s; it is passed over", accel_message(acc));
    accel_clear(acc);
    return false;
}

ACCEL_API int64_t accel_find_state(accel_t *acc, const char *parent, char *path, size_t size) {
    if (accel_failed(acc)) return -1;
    if (!parent || !path) {
        accel__fail(acc, ACCEL_BAD_ARGUMENT, "accel_find_state: a folder and room for a path are needed");
        return -1;
    }
    int64_t *steps = accel__state_steps(acc, parent, false), found = -1;
    for (size_t i = 0; i < accel__length(steps) && found < 0; i++) {
        char folder[4200];
        accel__state_path(folder, sizeof folder, parent, steps[i]);
        if (!accel__state_usable(acc, folder)) continue;
        if (strlen(folder) < size) memcpy(path, folder, strlen(folder) + 1);
        else accel__fail(acc, ACCEL_BAD_ARGUMENT, "accel_find_state: %s needs more room than %zu bytes", folder, size);
        found = accel_failed(acc) ? -1 : steps[i];
        break;
    }
    accel__array_free(steps);
    return found;
}

ACCEL_API bool accel_limit_states(accel_t *acc, const char *parent, int limit, int64_t best) {
    if (accel_failed(acc)) return false;
    if (!parent || limit < 1)
        return accel__fail(acc, ACCEL_BAD_ARGUMENT, "accel_limit_states: a folder and a limit of 1 or more are needed");
    char path[4200];
    int64_t newest = accel_find_state(acc, parent, path, sizeof path);
    int64_t *steps = accel__state_steps(acc, parent, true);
    size_t count = accel__length(steps), left = count;
    for (size_t i = count; i > 0 && left > (size_t)limit; i--) {
        if (steps[i - 1] == best || steps[i - 1] == newest) continue;
        accel__state_path(path, sizeof path, parent, steps[i - 1]);
        if (!accel__state_remove(path)) accel__note(acc, "%s cannot be removed: %s", path, strerror(errno));
        left--;
    }
    accel__array_free(steps);
    return !accel_failed(acc);
}

/* =============================================== >>io-trainer ===================================================== */

/* The part of a run that its state keeps. */
typedef struct accel__fit_saved {
    accel_progress progress;
    int64_t bad_evaluations; /* in a row without improvement */
    int64_t evaluated;       /* step of the last evaluation; -1: none */
    double loss, weight;     /* sums of the window's micro-batches */
    int64_t examples;
} accel__fit_saved;

typedef struct accel__fit {
    accel_t *acc;
    accel_train_desc d;
    accel_metrics *metrics; /* NULL: not a single-label model */
    accel_ema *ema;         /* NULL: none */
    accel__fit_saved at;
    bool stop;
} accel__fit;

static volatile sig_atomic_t accel__signal; /* a handler can reach nothing else */

static void accel__on_signal(int number) {
    accel__signal = number;
}

static const int accel__signals[] = {SIGINT, SIGTERM};

/* Those that the program ignores stay ignored. */
static void accel__signals_take(struct sigaction *former) {
    struct sigaction action = {.sa_handler = accel__on_signal};
    accel__signal = 0;
    for (int i = 0; i < ACCEL__COUNT(accel__signals); i++)
        if (sigaction(accel__signals[i], NULL, &former[i]) == 0 && former[i].sa_handler != SIG_IGN)
            sigaction(accel__signals[i], &action, NULL);
}

static void accel__signals_give_back(const struct sigaction *former) {
    for (int i = 0; i < ACCEL__COUNT(accel__signals); i++) sigaction(accel__signals[i], &former[i], NULL);
}

/* ---- evaluation ---- */

static const char *const accel__metric_names[] = {"loss", "accuracy", "f1", "matthews"};

/* The metric's number, 0 for the loss. */
static int accel__fit_metric(const accel_train_desc *d) {
    int metric = ACCEL__COUNT(accel__metric_names) - 1;
    while (metric && (!d->metric || strcmp(d->metric, accel__metric_names[metric]))) metric--;
    return metric;
}

static double accel__fit_score(const accel__fit *t) {
    const accel_progress *p = &t->at.progress;
    const double scores[] = {p->eval_loss, p->eval_accuracy, p->eval_f1, p->eval_matthews};
    return scores[accel__fit_metric(&t->d)];
}

/* NaN is no score: it is never better than another, and any other is better than none. */
static bool accel__fit_better(const accel__fit *t, double score) {
    double best = t->at.progress.best_score, gain = accel__fit_metric(&t->d) ? score - best : best - score;
    return !isnan(score) && (isnan(best) || gain > (double)t->d.min_improvement);
}

/* Labels that count in a batch: the loss is their mean. */
static double accel__batch_labels(const accel_batch *batch) {
    double count = 0;
    for (int i = 0; i < batch->examples; i++) count += !batch->labels || batch->labels[i] != ACCEL_IGNORE;
    return count;
}

/* The plain loss, whatever accel_set_loss has changed for training: so it compares between runs. */
static double accel__plain_loss(accel_output out, const accel_batch *batch) {
    if (!batch->labels || !accel_valid(out.logits)) return (double)accel_item(out.loss);
    accel_tensor labels = accel_from_ints(out.logits.acc, accel_1d(batch->examples), batch->labels);
    return (double)accel_item(accel_cross_entropy(out.logits, labels, NULL));
}

static void accel__fit_measure(accel__fit *t) {
    accel_progress *p = &t->at.progress;
    double loss = 0, weight = 0;
    accel_batch batch;
    accel_metrics_reset(t->metrics);
    accel_ema_swap(t->ema);
    accel_eval_begin(t->acc);
    while (accel_next(t->d.evaluation, &batch)) {
        accel_output out = accel_forward(t->d.model, &batch);
        double labels = accel__batch_labels(&batch);
        if (labels > 0) loss += labels * accel__plain_loss(out, &batch);
        weight += labels;
        if (t->metrics) accel_metrics_add(t->metrics, out.logits, batch.labels, batch.examples);
    }
    accel_eval_end(t->acc);
    accel_ema_swap(t->ema);
    p->eval_loss = loss / weight;
    p->eval_accuracy = t->metrics ? accel_accuracy(t->metrics) : NAN;
    p->eval_f1 = t->metrics ? accel_f1(t->metrics) : NAN;
    p->eval_matthews = t->metrics ? accel_matthews(t->metrics) : NAN;
}

/* ---- saving ---- */

static bool accel__fit_save(accel__fit *t) {
    if (!t->d.output || accel_failed(t->acc)) return !accel_failed(t->acc);
    char folder[4200];
    accel_progress *p = &t->at.progress;
    accel__state_path(folder, sizeof folder, t->d.output, p->step);
    if (!accel_save_state(t->acc, folder)) return false;
    int limit = t->d.save_total_limit ? t->d.save_total_limit : t->d.save == ACCEL_NEVER;
    if (limit) accel_limit_states(t->acc, t->d.output, limit, p->best_step ? p->best_step : -1);
    if (t->d.on_save && !t->d.on_save(t->d.user, p, folder)) t->stop = true, p->stopped = ACCEL_BY_CALLBACK;
    return !accel_failed(t->acc);
}

static void accel__fit_check_patience(accel__fit *t) {
    if (!t->d.patience || t->at.bad_evaluations < t->d.patience) return;
    t->stop = true;
    t->at.progress.stopped = ACCEL_NO_IMPROVEMENT;
}

/* Measures, and decides what that means; true where the present state has to be kept as the best. */
static bool accel__fit_evaluate(accel__fit *t) {
    accel_progress *p = &t->at.progress;
    if (!t->d.evaluation || accel_failed(t->acc)) return false;
    accel__fit_measure(t);
    double score = accel__fit_score(t);
    bool better = accel__fit_better(t, score);
    t->at.evaluated = p->step;
    t->at.bad_evaluations = better ? 0 : t->at.bad_evaluations + 1;
    if (better) p->best_step = p->step, p->best_score = score;
    accel__fit_check_patience(t);
    p->metrics = t->metrics;
    if (t->d.on_evaluate && !t->d.on_evaluate(t->d.user, p)) t->stop = true, p->stopped = ACCEL_BY_CALLBACK;
    p->metrics = NULL; /* no pointer in the state */
    return better && (t->d.save != ACCEL_NEVER || t->d.load_best);
}

/* ---- steps ---- */

static bool accel__each_steps(accel_strategy strategy, int64_t every, int64_t step) {
    return strategy == ACCEL_EACH_STEPS && step % (every ? every : 500) == 0;
}

static void accel__fit_end_step(accel__fit *t, bool taken) {
    accel_progress *p = &t->at.progress;
    p->loss = t->at.weight > 0 ? t->at.loss / t->at.weight : 0;
    p->examples = t->at.examples;
    t->at.loss = t->at.weight = 0;
    t->at.examples = 0;
    p->step += taken;
    if (t->d.on_step && !t->d.on_step(t->d.user, p)) t->stop = true, p->stopped = ACCEL_BY_CALLBACK;
    if (accel__signal && !t->d.ignore_signals) t->stop = true, p->stopped = ACCEL_BY_SIGNAL;
    if (p->step >= p->steps) t->stop = true;
    /* Evaluation first, so that what it found is part of the state. */
    bool last = t->d.evaluate == ACCEL_EACH_STEPS && p->step >= p->steps;
    bool due = last || accel__each_steps(t->d.evaluate, t->d.evaluate_steps, p->step);
    bool best = taken && due && accel__fit_evaluate(t);
    bool save = taken && accel__each_steps(t->d.save, t->d.save_steps, p->step);
    if (save || best || p->stopped != ACCEL_FINISHED) accel__fit_save(t);
}

/* A gradient that is not finite stays so, and the step is skipped. */
static void accel__fit_clip(accel__fit *t) {
    double norm = t->at.progress.grad_norm = (double)accel_clip_grad_norm(t->d.optimizer, INFINITY);
    if (t->d.max_grad_value > 0 && isfinite(norm)) accel_clip_grad_value(t->d.optimizer, t->d.max_grad_value);
    if (t->d.max_grad_norm > 0) accel_clip_grad_norm(t->d.optimizer, t->d.max_grad_norm);
}

static void accel__fit_batch(accel__fit *t, const accel_batch *batch) {
    accel_progress *p = &t->at.progress;
    accel_zero_grad(t->d.optimizer);
    accel_output out = accel_forward(t->d.model, batch);
    accel_backward(t->acc, out.loss);
    double weight = t->acc->micro.weight; /* the loss's divisor */
    t->at.loss += weight * (double)accel_item(out.loss);
    t->at.weight += weight;
    t->at.examples += batch->examples;
    if (!accel_sync_gradients(t->acc)) return;
    p->lr = (double)accel_lr(t->d.optimizer);
    accel__fit_clip(t);
    bool taken = accel_step(t->d.optimizer);
    if (taken) accel_ema_update(t->ema);
    accel_schedule_step(t->d.schedule);
    if (!accel_failed(t->acc)) accel__fit_end_step(t, taken);
}

/* ---- the run ---- */

static bool accel__fit_check(accel_t *acc, const accel_train_desc *d) {
    const char *where = "accel_train";
    bool known = !d->metric || accel__fit_metric(d) || !strcmp(d->metric, accel__metric_names[0]);
    const char *fault =
        !d->model || !d->optimizer || !d->train            ? "a model, an optimizer and a training loader are needed"
        : d->train->desc.evaluation                        ? "the training loader is one for evaluation"
        : d->evaluation && !d->evaluation->desc.evaluation ? "the evaluation loader needs .evaluation"
        : !known                                           ? "metric must be loss, accuracy, f1 or matthews"
        : d->epochs < 0 || d->max_steps < 0 || d->evaluate_steps < 0 || d->save_steps < 0
            ? "numbers of epochs and steps must not be negative"
        : !(d->max_grad_norm >= 0)                        ? "max_grad_norm must not be negative"
        : !(d->max_grad_value >= 0)                       ? "max_grad_value must not be negative"
        : !(d->ema >= 0 && d->ema < 1)                    ? "ema must be 0 or more and below 1"
        : d->patience < 0 || d->save_total_limit < 0      ? "patience and save_total_limit must not be negative"
        : (d->load_best || d->patience) && !d->evaluation ? "load_best and patience need an evaluation loader"
        : (d->load_best || d->resume) && !d->output       ? "load_best and resume need an output folder"
        : d->load_best && d->evaluate == ACCEL_NEVER      ? "load_best needs evaluations"
                                                          : NULL;
    return !fault || accel__fail(acc, ACCEL_BAD_ARGUMENT, "%s: %s", where, fault);
}

/* Goes on from the newest state, if there is one. */
static bool accel__fit_resume(accel__fit *t) {
    accel_progress *p = &t->at.progress;
    char folder[4200];
    int64_t steps = p->steps;
    if (accel_find_state(t->acc, t->d.output, folder, sizeof folder) < 0) {
        if (accel_failed(t->acc)) return false;
        accel__note(t->acc, "%s has no state to go on from: starting anew", t->d.output);
        return true;
    }
    if (!accel_load_state(t->acc, folder)) return false;
    accel__note(t->acc, "going on from %s", folder);
    p->steps = steps; /* the description may ask for more epochs now */
    p->stopped = ACCEL_FINISHED;
    t->stop = p->step >= p->steps || p->epoch > t->d.epochs;
    accel__fit_check_patience(t);
    return true;
}

static bool accel__fit_begin(accel__fit *t) {
    accel_progress *p = &t->at.progress;
    const accel_encoder_config *config = accel_encoder_config_of(t->d.model);
    if (!config) return accel__fail(t->acc, ACCEL_BAD_ARGUMENT, "accel_train: the model must be an encoder");
    if (accel__fit_metric(&t->d) && config->problem != ACCEL_SINGLE_LABEL)
        return accel__fail(t->acc, ACCEL_BAD_ARGUMENT, "accel_train: metric %s needs a model of single labels",
                           t->d.metric);
    t->at.evaluated = -1;
    *p = (accel_progress){.epoch = 1,
                          .loss = NAN,
                          .grad_norm = NAN,
                          .eval_loss = NAN,
                          .eval_accuracy = NAN,
                          .eval_f1 = NAN,
                          .eval_matthews = NAN,
                          .best_score = NAN};
    p->steps = t->d.epochs * accel_steps_per_epoch(t->acc, t->d.train);
    if (t->d.max_steps && t->d.max_steps < p->steps) p->steps = t->d.max_steps;
    if (config->problem == ACCEL_SINGLE_LABEL) t->metrics = accel_metrics_create(t->acc, config->num_labels);
    if (t->d.ema > 0) t->ema = accel_ema_create(t->acc, t->d.model, t->d.ema);
    accel_register_state(t->acc, "accel_train", &t->at, sizeof t->at);
    bool prepared = t->d.evaluation ? accel_prepare(t->acc, t->d.model, t->d.optimizer, t->d.train, t->d.evaluation)
                                    : accel_prepare(t->acc, t->d.model, t->d.optimizer, t->d.train);
    if (!prepared || (t->d.output && !accel__make_folder(t->acc, t->d.output))) return false;
    return !t->d.resume || accel__fit_resume(t);
}

/* Evaluates, goes to the next epoch where this one is at its end, and saves. */
static void accel__fit_end_epoch(accel__fit *t) {
    accel_progress *p = &t->at.progress;
    bool best = t->d.evaluate == ACCEL_EACH_EPOCH && accel__fit_evaluate(t);
    int64_t at = t->d.train->cursor; /* 0: accel_next has begun another epoch */
    if (at == accel_loader_length(t->d.train)) accel_loader_set_epoch(t->d.train, t->d.train->epoch + 1);
    if (at == 0 || at == accel_loader_length(t->d.train)) p->epoch++;
    if (p->epoch > t->d.epochs) t->stop = true; /* steps that were skipped are not made up for */
    if (best || t->d.save == ACCEL_EACH_EPOCH || p->stopped != ACCEL_FINISHED) accel__fit_save(t);
}

static void accel__fit_epoch(accel__fit *t) {
    accel_batch batch;
    while (!t->stop && accel_next(t->d.train, &batch)) accel__fit_batch(t, &batch);
    if (t->at.progress.stopped == ACCEL_FINISHED && !accel_failed(t->acc)) accel__fit_end_epoch(t);
}

/* Whether a state that was saved after the last step, and loaded now, has the evaluation of its epoch before it. */
static bool accel__fit_unevaluated(const accel__fit *t) {
    const accel_progress *p = &t->at.progress;
    return t->d.evaluation && t->d.evaluate == ACCEL_EACH_EPOCH && p->stopped == ACCEL_FINISHED && p->step > 0 &&
           t->at.evaluated != p->step;
}

/* The best parameters, which lie in a state of their own. */
static bool accel__fit_best(accel__fit *t) {
    accel_progress kept = t->at.progress;
    char folder[4200];
    if (!t->d.load_best || !kept.best_step || kept.best_step == kept.step) return true;
    accel__state_path(folder, sizeof folder, t->d.output, kept.best_step);
    if (!accel_load_state(t->acc, folder)) return false;
    t->at.progress = kept;
    return true;
}

static void accel__fit_unregister(accel_t *acc) {
    for (accel__object *o = acc->objects; o; o = o->next)
        if (o->kind == ACCEL__REGISTERED && !strcmp(((accel__registered *)(void *)o)->name, "accel_train")) {
            accel__object_destroy(o);
            return;
        }
}

ACCEL_API bool accel_train(accel_t *acc, const accel_train_desc *desc, accel_progress *progress) {
    if (accel_failed(acc)) return false;
    accel__fit t = {.acc = acc, .d = desc ? *desc : (accel_train_desc){0}};
    if (!t.d.epochs) t.d.epochs = 3;
    if (!accel__fit_check(acc, &t.d)) return false;
    struct sigaction former[ACCEL__COUNT(accel__signals)];
    if (!t.d.ignore_signals) accel__signals_take(former);
    bool begun = accel__fit_begin(&t);
    if (begun && t.stop && accel__fit_unevaluated(&t)) accel__fit_end_epoch(&t);
    while (begun && !t.stop && !accel_failed(acc)) accel__fit_epoch(&t);
    bool good = begun && !accel_failed(acc) && accel__fit_best(&t);
    if (!t.d.ignore_signals) accel__signals_give_back(former);
    accel_ema_swap(t.ema);
    accel_free(t.ema);
    accel__fit_unregister(acc);
    if (t.metrics) accel__object_destroy(&t.metrics->object);
    if (progress) *progress = t.at.progress;
    return good;
}

/* ============================================== >>io-trackers =====================================================
   A record is built in memory and leaves by one write, so that a reader sees whole records; what could not be
   written stays for the next try. */

#define ACCEL__TRACKER_BUFFER 65536 /* bytes that a buffered tracker gathers */

struct accel_tracker {
    accel__object object;
    accel_tracker_kind kind;
    bool buffered;
    int handle;           /* -1: not open */
    char *path;
    unsigned char *bytes; /* records that are not written yet */
    size_t used, room;
    char **columns;       /* CSV: those behind the step; NULL: not known yet */
    int column_count;
};

/* ---- bytes; a failure is recorded in the context ---- */

static void accel__tracker_put(accel_tracker *t, const void *data, size_t bytes) {
    if (!accel__grow(t->object.acc, &t->bytes, &t->room, t->used + bytes, 1)) return;
    memcpy(t->bytes + t->used, data, bytes);
    t->used += bytes;
}

static void accel__tracker_text(accel_tracker *t, const char *text) { accel__tracker_put(t, text, strlen(text)); }

static void accel__tracker_whole(accel_tracker *t, int64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    accel__tracker_text(t, text);
}

/* The shortest text that gives the same double; with a point, whatever the program's locale has. */
static void accel__tracker_number(accel_tracker *t, double value) {
    char text[40];
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    char *comma = strchr(text, ',');
    if (comma) *comma = '.';
    accel__tracker_text(t, text);
}

/* A text in quotes; the characters of `marked` get `mark` before them. */
static void accel__tracker_quoted(accel_tracker *t, const char *text, const char *marked, char mark) {
    accel__tracker_text(t, "\"");
    for (; *text; text++) {
        if (strchr(marked, *text)) accel__tracker_put(t, &mark, 1);
        accel__tracker_put(t, text, 1);
    }
    accel__tracker_text(t, "\"");
}

static void accel__tracker_drop_columns(accel_tracker *t) {
    for (int i = 0; i < t->column_count; i++) accel__free(t->object.acc, t->columns[i]);
    accel__free(t->object.acc, t->columns);
    t->columns = NULL;
    t->column_count = 0;
}

/* Writes what has gathered; what fails stays. */
static bool accel__tracker_write(accel_tracker *t) {
    size_t done = 0;
    int fault = 0;
    while (done < t->used && !fault) {
        ssize_t written = write(t->handle, t->bytes + done, t->used - done);
        if (written > 0) done += (size_t)written;
        else if (written == 0 || errno != EINTR) fault = written ? errno : EIO;
    }
    if (done) memmove(t->bytes, t->bytes + done, t->used - done);
    t->used -= done;
    return !fault || accel__fail(t->object.acc, ACCEL_BAD_FILE, "%s cannot be written: %s", t->path, strerror(fault));
}

static void accel__tracker_destroy(accel__object *object) {
    accel_tracker *t = (accel_tracker *)(void *)object;
    accel_t *acc = object->acc;
    if (t->handle >= 0) {
        accel__tracker_write(t);
        if (close(t->handle) != 0 && errno != EINTR)
            accel__fail(acc, ACCEL_BAD_FILE, "%s cannot be written: %s", t->path, strerror(errno));
    }
    accel__tracker_drop_columns(t);
    accel__free(acc, t->bytes);
    accel__free(acc, t->path);
}

/* ---- names ---- */

static bool accel__tracker_name_fits(const char *name) {
    if (!name || !*name || strcmp(name, "step") == 0 || !accel__is_utf8(name)) return false;
    for (const char *c = name; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127) return false;
    return true;
}

static bool accel__tracker_check_names(accel_t *acc, const char *const *names, int count, const char *where) {
    for (int i = 0; i < count; i++)
        if (!accel__tracker_name_fits(names[i]))
            return accel__fail(acc, ACCEL_BAD_ARGUMENT,
                               "%s: name %d is '%.60s'; expected is UTF-8 text without control characters, not 'step'",
                               where, i, names[i] ? names[i] : "");
    const char *repeated = accel__repeated_name(names, count);
    return !repeated || accel__fail(acc, ACCEL_BAD_ARGUMENT, "%s: the name %.60s stands twice", where, repeated);
}

/* ---- JSON lines ---- */

static void accel__jsonl_put(accel_tracker *t, int64_t step, int count, const char *const *names,
                             const double *values) {
    accel__tracker_text(t, "{\"step\": ");
    accel__tracker_whole(t, step);
    for (int i = 0; i < count; i++) {
        accel__tracker_text(t, ", ");
        accel__tracker_quoted(t, names[i], "\"\\", '\\');
        accel__tracker_text(t, ": ");
        if (isfinite(values[i])) accel__tracker_number(t, values[i]);
        else accel__tracker_text(t, "null");
    }
    accel__tracker_text(t, "}\n");
}

/* ---- CSV ---- */

static bool accel__csv_set_columns(accel_tracker *t, const char *const *names, int count) {
    accel_t *acc = t->object.acc;
    t->columns = (char **)accel__alloc(acc, (size_t)count * sizeof *t->columns);
    for (int i = 0; t->columns && i < count; i++) {
        t->columns[i] = accel__strdup(acc, names[i]);
        if (!t->columns[i]) return false;
        t->column_count++;
    }
    return t->columns != NULL;
}

static void accel__csv_put_header(accel_tracker *t) {
    accel__tracker_text(t, "step");
    for (int i = 0; i < t->column_count; i++) {
        accel__tracker_text(t, ",");
        if (strpbrk(t->columns[i], ",\"")) accel__tracker_quoted(t, t->columns[i], "\"", '"');
        else accel__tracker_text(t, t->columns[i]);
    }
    accel__tracker_text(t, "\n");
}

static int accel__name_index(const char *const *names, int count, const char *name) {
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0) return i;
    return -1;
}

/* A new file's header: as a whole or not at all. */
static bool accel__csv_begin(accel_tracker *t, const char *const *names, int count) {
    size_t begin = t->used;
    if (accel__csv_set_columns(t, names, count)) accel__csv_put_header(t);
    if (!accel_failed(t->object.acc)) return true;
    t->used = begin;
    accel__tracker_drop_columns(t);
    return false;
}

/* Whether every name has its column. The columns come from the first call where nothing else gave them. */
static bool accel__csv_ready(accel_tracker *t, const char *const *names, int count) {
    if (!t->columns && !accel__csv_begin(t, names, count)) return false;
    for (int i = 0; i < count; i++) {
        if (accel__name_index((const char *const *)t->columns, t->column_count, names[i]) >= 0) continue;
        char list[600];
        accel__name_list(list, sizeof list, (const char *const *)t->columns, t->column_count);
        return accel__fail(t->object.acc, ACCEL_BAD_ARGUMENT, "%s has no column %.60s; its header is step, %s", t->path,
                           names[i], list);
    }
    return true;
}

static void accel__csv_put(accel_tracker *t, int64_t step, int count, const char *const *names, const double *values) {
    accel__tracker_whole(t, step);
    for (int i = 0; i < t->column_count; i++) {
        int at = accel__name_index(names, count, t->columns[i]);
        accel__tracker_text(t, ",");
        if (at >= 0 && isfinite(values[at])) accel__tracker_number(t, values[at]);
    }
    accel__tracker_text(t, "\n");
}

/* Takes the columns of the file that is to be continued. */
static bool accel__csv_read_header(accel_tracker *t) {
    accel_table_desc desc = {.format = ACCEL_CSV, .limit = 1};
    accel_table *table = accel_table_read(t->object.acc, t->path, &desc);
    if (!table) return false;
    bool good = table->columns > 1 && strcmp(table->names[0], "step") == 0;
    if (good) good = accel__csv_set_columns(t, (const char *const *)table->names + 1, table->columns - 1);
    else
        accel__fail(t->object.acc, ACCEL_BAD_FILE, "%s: its header begins with %.60s, expected step and names", t->path,
                    table->names[0]);
    accel_free(table);
    return good;
}

static bool accel__csv_open(accel_tracker *t, const accel_tracker_desc *desc, bool continued) {
    if (continued && !accel__csv_read_header(t)) return false;
    return !desc->column_count || accel__csv_ready(t, desc->columns, desc->column_count);
}

/* ---- files of lines ---- */

/* Removes a last line without its end, which a killed program left; *bytes gets the file's size. */
static bool accel__cut_torn_line(int handle, int64_t *bytes) {
    struct stat info;
    if (fstat(handle, &info) != 0) return false;
    off_t end = info.st_size;
    char last = 0;
    while (end > 0 && pread(handle, &last, 1, end - 1) == 1 && last != '\n' && info.st_size - end < 1 << 20) end--;
    *bytes = end;
    if (info.st_size > 0 && last != '\n') return errno = EINVAL, false; /* no whole line: not a tracker's file */
    return end == info.st_size || ftruncate(handle, end) == 0;
}

static bool accel__lines_open(accel_tracker *t, const char *path, const accel_tracker_desc *desc) {
    accel_t *acc = t->object.acc;
    int64_t bytes = 0;
    t->path = accel__strdup(acc, path);
    if (!t->path) return false;
    t->handle = open(path, O_CREAT | O_APPEND | O_CLOEXEC | (desc->append ? O_RDWR : O_WRONLY | O_TRUNC), 0666);
    if (t->handle < 0) return accel__fail(acc, ACCEL_BAD_FILE, "%s cannot be written: %s", path, strerror(errno));
    if (desc->append && !accel__cut_torn_line(t->handle, &bytes))
        return accel__fail(acc, ACCEL_BAD_FILE, "%s cannot be continued: %s", path,
                           errno == EINVAL ? "its last line has no end" : strerror(errno));
    return t->kind != ACCEL_TRACKER_CSV || accel__csv_open(t, desc, bytes > 0);
}

/* ---- TensorBoard: TFRecords of Event messages. A protobuf field begins with number << 3 | type, which is 0 for a
   varint, 1 for 8 bytes, 2 for a length and bytes, 5 for 4 bytes ---- */

/* CRC-32C (Castagnoli), masked as TFRecord has it. */
static uint32_t accel__masked_crc(const unsigned char *data, size_t bytes) {
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static void accel__store_little(unsigned char *out, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) out[i] = (unsigned char)(value >> 8 * i);
}

static void accel__tracker_little(accel_tracker *t, uint64_t value, int bytes) {
    unsigned char out[8];
    accel__store_little(out, value, bytes);
    accel__tracker_put(t, out, (size_t)bytes);
}

static int accel__varint(unsigned char out[10], uint64_t value) {
    int bytes = 0;
    for (; value >= 128; value >>= 7) out[bytes++] = (unsigned char)(value | 128);
    out[bytes++] = (unsigned char)value;
    return bytes;
}

/* A field's key and its varint: a number, or the length of what follows. */
static void accel__tracker_field(accel_tracker *t, unsigned char key, uint64_t value) {
    unsigned char out[11] = {key};
    accel__tracker_put(t, out, 1 + (size_t)accel__varint(out + 1, value));
}

static uint64_t accel__block_size(uint64_t bytes) { /* key, length and bytes */
    unsigned char out[10];
    return 1 + (uint64_t)accel__varint(out, bytes) + bytes;
}

static uint64_t accel__scalar_size(const char *name) { return accel__block_size(strlen(name)) + 5; }

/* Begins a record: room for the head of its frame, then Event.wall_time (1). */
static size_t accel__event_begin(accel_tracker *t) {
    size_t begin = t->used;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    accel__tracker_put(t, (const unsigned char[12]){0}, 12);
    accel__tracker_text(t, "\x09");
    accel__tracker_little(t, (uint64_t)accel__bits_of((double)now.tv_sec + 1e-9 * (double)now.tv_nsec), 8);
    return begin;
}

static void accel__event_end(accel_tracker *t, size_t begin) {
    if (accel_failed(t->object.acc)) return;
    size_t bytes = t->used - begin - 12;
    accel__store_little(t->bytes + begin, bytes, 8);
    accel__store_little(t->bytes + begin + 8, accel__masked_crc(t->bytes + begin, 8), 4);
    accel__tracker_little(t, accel__masked_crc(t->bytes + begin + 12, bytes), 4);
}

/* Event.step (2), Event.summary (5) with a Summary.value (1) for each name: tag (1), simple_value (2). */
static void accel__event_put(accel_tracker *t, int64_t step, int count, const char *const *names,
                             const double *values) {
    uint64_t summary = 0;
    for (int i = 0; i < count; i++) summary += accel__block_size(accel__scalar_size(names[i]));
    size_t begin = accel__event_begin(t);
    accel__tracker_field(t, 0x10, (uint64_t)step);
    accel__tracker_field(t, 0x2a, summary);
    for (int i = 0; i < count; i++) {
        accel__tracker_field(t, 0x0a, accel__scalar_size(names[i]));
        accel__tracker_field(t, 0x0a, strlen(names[i]));
        accel__tracker_text(t, names[i]);
        accel__tracker_text(t, "\x15");
        accel__tracker_little(t, accel__to_bits((float)values[i]), 4);
    }
    accel__event_end(t, begin);
}

/* A new file in the folder; the first event names the format: Event.file_version (3). */
static bool accel__events_open(accel_tracker *t, const char *folder) {
    accel_t *acc = t->object.acc;
    char host[128] = "", name[256], path[ACCEL__PATH_SIZE];
    if (!accel__make_folder(acc, folder)) return false;
    if (gethostname(host, sizeof host - 1) != 0 || !*host || strchr(host, '/'))
        snprintf(host, sizeof host, "localhost");
    long long now = (long long)time(NULL);
    for (int attempt = 0; t->handle < 0 && attempt < 10000; attempt++) {
        snprintf(name, sizeof name, "events.out.tfevents.%010lld.%s.%ld.%d", now, host, (long)getpid(), attempt);
        if (!accel__path(path, sizeof path, acc, folder, name)) return false;
        t->handle = open(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
        if (t->handle < 0 && errno != EEXIST) break;
    }
    if (t->handle < 0) return accel__fail(acc, ACCEL_BAD_FILE, "%s cannot be written: %s", path, strerror(errno));
    t->path = accel__strdup(acc, path);
    size_t begin = accel__event_begin(t);
    accel__tracker_field(t, 0x1a, strlen("brain.Event:2"));
    accel__tracker_text(t, "brain.Event:2");
    accel__event_end(t, begin);
    return !accel_failed(acc);
}

/* ---- the interface ---- */

ACCEL_API accel_tracker *accel_tracker_open(accel_t *acc, accel_tracker_kind kind, const char *path,
                                            const accel_tracker_desc *desc) {
    if (accel_failed(acc)) return NULL;
    accel_tracker_desc d = desc ? *desc : (accel_tracker_desc){0};
    if (!path || !*path || (unsigned)kind > ACCEL_TRACKER_TENSORBOARD || d.column_count < 0 ||
        (d.column_count && (!d.columns || kind != ACCEL_TRACKER_CSV))) {
        accel__fail(acc, ACCEL_BAD_ARGUMENT,
                    "accel_tracker_open: a kind, a path, and columns for CSV alone are expected");
        return NULL;
    }
    if (!accel__tracker_check_names(acc, d.columns, d.column_count, "accel_tracker_open")) return NULL;
    accel_tracker *t = (accel_tracker *)accel__object_create(acc, ACCEL__TRACKER, sizeof *t, accel__tracker_destroy);
    if (!t) return NULL;
    t->kind = kind;
    t->buffered = d.buffered;
    t->handle = -1;
    bool opened = kind == ACCEL_TRACKER_TENSORBOARD ? accel__events_open(t, path) : accel__lines_open(t, path, &d);
    if (opened && (t->buffered || accel__tracker_write(t))) return t;
    t->used = 0;
    accel__object_destroy(&t->object);
    return NULL;
}

ACCEL_API bool accel_track_all(accel_tracker *tracker, int64_t step, int count, const char *const *names,
                               const double *values) {
    accel_t *acc = tracker ? tracker->object.acc : NULL;
    if (accel_failed(acc)) return false;
    if (count < 1 || !names || !values)
        return accel__fail(acc, ACCEL_BAD_ARGUMENT, "accel_track: names and values are expected, %d are given", count);
    if (!accel__tracker_check_names(acc, names, count, "accel_track")) return false;
    if (tracker->kind == ACCEL_TRACKER_CSV && !accel__csv_ready(tracker, names, count)) return false;
    static void (*const put[])(accel_tracker *, int64_t, int, const char *const *, const double *) = {
        accel__jsonl_put, accel__csv_put, accel__event_put};
    size_t begin = tracker->used;
    put[tracker->kind](tracker, step, count, names, values);
    if (accel_failed(acc)) {
        tracker->used = begin; /* no part of a record */
        return false;
    }
    return (tracker->buffered && tracker->used < ACCEL__TRACKER_BUFFER) || accel__tracker_write(tracker);
}

ACCEL_API bool accel_track(accel_tracker *tracker, int64_t step, const char *name, double value) {
    return accel_track_all(tracker, step, 1, &name, &value);
}

ACCEL_API bool accel_tracker_flush(accel_tracker *tracker) {
    return tracker && !accel_failed(tracker->object.acc) && accel__tracker_write(tracker);
}

ACCEL_API const char *accel_tracker_path(const accel_tracker *tracker) { return tracker ? tracker->path : ""; }

/* ============================================== >>io-traces =======================================================
   A trace takes the place of the context's back-end table with one that notes each call as a span; accel.h notes the
   phases and the pieces. */

/* ---- the table ---- */

#define ACCEL__TRACED(kernel, type, fields, a0, a1, a2, a3)                     \
    static void accel__traced_##kernel(accel_t *acc, const type *a) {           \
        int span = accel__span_begin(acc, #kernel, fields, a0, a1, a2, a3);     \
        acc->trace->plain->kernel(acc, a);                                      \
        accel__span_end(acc, span);                                             \
    }

ACCEL__TRACED(map, accel_map, "elements,backward", a->n, a->dy != NULL, 0, 0)
ACCEL__TRACED(pair, accel_pair, "a,b,c,d", a->dim[0], a->dim[1], a->dim[2], a->dim[3])
ACCEL__TRACED(reduce, accel_axis, "outer,n,inner", a->outer, a->n, a->inner, 0)
ACCEL__TRACED(expand, accel_axis, "outer,n,inner", a->outer, a->n, a->inner, 0)
ACCEL__TRACED(move, accel_move, "a,b,c,d", a->dim[0], a->dim[1], a->dim[2], a->dim[3])
ACCEL__TRACED(gather, accel_rows, "rows,width", a->n, a->width, 0, 0)
ACCEL__TRACED(scatter, accel_rows, "rows,width", a->n, a->width, 0, 0)
ACCEL__TRACED(norm, accel_norm, "rows,width", a->rows, a->width, 0, 0)
ACCEL__TRACED(norm_backward, accel_norm, "rows,width", a->rows, a->width, 0, 0)
ACCEL__TRACED(softmax, accel_softmax_rows, "rows,width,backward", a->rows, a->width, a->dy != NULL, 0)
ACCEL__TRACED(drop, accel_drop, "rows,width", a->rows, a->width, 0, 0)
ACCEL__TRACED(attend, accel_attend, "sequences,heads,width,longest", a->sequences, a->heads, a->width, a->longest)
ACCEL__TRACED(attend_backward, accel_attend, "sequences,heads,width,longest", a->sequences, a->heads, a->width,
              a->longest)
ACCEL__TRACED(cross_entropy, accel_cross_entropy_rows, "rows,classes", a->n, a->classes, 0, 0)
ACCEL__TRACED(pointwise_loss, accel_pointwise_loss, "elements", a->n, 0, 0, 0)

static void accel__traced_fill(accel_t *acc, float *x, int64_t n, float value) {
    int span = accel__span_begin(acc, "fill", "elements", n, 0, 0, 0);
    acc->trace->plain->fill(acc, x, n, value);
    accel__span_end(acc, span);
}

/* The first product's sizes, and how many of them run at once. */
static void accel__traced_gemm(accel_t *acc, const accel_gemm *list, int count) {
    int span = accel__span_begin(acc, "gemm", "m,n,k,products", list->m, list->n, list->k, count * list->batch);
    acc->trace->plain->gemm(acc, list, count);
    accel__span_end(acc, span);
}

static void accel__traced_squares(accel_t *acc, const accel_update *list, int count, double *sums) {
    int span = accel__span_begin(acc, "squares", "stretches", count, 0, 0, 0);
    acc->trace->plain->squares(acc, list, count, sums);
    accel__span_end(acc, span);
}

static void accel__traced_update(accel_t *acc, const accel_update *list, int count, const accel_update_rule *rule) {
    int span = accel__span_begin(acc, "update", "stretches", count, 0, 0, 0);
    acc->trace->plain->update(acc, list, count, rule);
    accel__span_end(acc, span);
}

static accel_backend accel__traced_table(const accel_backend *plain) {
    accel_backend table = *plain; /* moving bytes is left alone */
    table.fill = accel__traced_fill, table.gemm = accel__traced_gemm, table.map = accel__traced_map;
    table.pair = accel__traced_pair, table.reduce = accel__traced_reduce, table.expand = accel__traced_expand;
    table.move = accel__traced_move, table.gather = accel__traced_gather, table.scatter = accel__traced_scatter;
    table.norm = accel__traced_norm, table.norm_backward = accel__traced_norm_backward;
    table.softmax = accel__traced_softmax, table.drop = accel__traced_drop;
    table.attend = accel__traced_attend, table.attend_backward = accel__traced_attend_backward;
    table.cross_entropy = accel__traced_cross_entropy, table.pointwise_loss = accel__traced_pointwise_loss;
    table.squares = accel__traced_squares, table.update = accel__traced_update;
    return table;
}

/* ---- the file ---- */

static void accel__trace_put_thread(accel__writer *w, int thread) {
    char name[32] = "main";
    if (thread) snprintf(name, sizeof name, "worker %d", thread);
    accel__writer_printf(w, ",\n{\"ph\": \"M\", \"pid\": 1, \"tid\": %d, \"name\": \"thread_name\", "
                            "\"args\": {\"name\": \"%s\"}}", thread, name);
    accel__writer_printf(w, ",\n{\"ph\": \"M\", \"pid\": 1, \"tid\": %d, \"name\": \"thread_sort_index\", "
                            "\"args\": {\"sort_index\": %d}}", thread, thread);
}

/* Nanoseconds as microseconds, whatever the program's locale has for a point. */
static void accel__trace_put_time(accel__writer *w, const char *name, int64_t time) {
    accel__writer_printf(w, "\"%s\": %lld.%03d, ", name, (long long)(time / 1000), (int)(time % 1000));
}

static void accel__trace_put_span(accel__writer *w, const accel__span *span, int thread, int64_t began) {
    accel__writer_printf(w, ",\n{\"ph\": \"X\", \"pid\": 1, \"tid\": %d, ", thread);
    accel__trace_put_time(w, "ts", span->begin - began);
    accel__trace_put_time(w, "dur", span->end - span->begin);
    accel__writer_printf(w, "\"name\": \"%s\", \"args\": {", span->name);
    const char *field = span->fields;
    for (int i = 0; field && *field; i++) {
        int length = (int)strcspn(field, ",");
        accel__writer_printf(w, "%s\"%.*s\": %lld", i ? ", " : "", length, field, (long long)span->number[i]);
        field += length + (field[length] == ',');
    }
    accel__writer_printf(w, "}}");
}

static bool accel__trace_write(const accel__trace *trace) {
    accel__writer w;
    if (!accel__writer_open(&w, trace->object.acc, trace->path)) return false;
    accel__writer_printf(&w, "{\"displayTimeUnit\": \"ms\", \"otherData\": {\"accel.h\": \"%s\", \"BLAS core\": "
                             "\"%s\"}, \"traceEvents\": [\n{\"ph\": \"M\", \"pid\": 1, \"tid\": 0, \"name\": "
                             "\"process_name\", \"args\": {\"name\": \"accel.h\"}}",
                         ACCEL_VERSION, accel_blas_core());
    for (int i = 0; i < trace->thread_count; i++) accel__trace_put_thread(&w, i);
    for (int i = 0; i < trace->thread_count; i++)
        for (size_t j = 0; j < trace->threads[i].count; j++)
            accel__trace_put_span(&w, &trace->threads[i].span[j], i, trace->began);
    accel__writer_printf(&w, "\n]}\n");
    return accel__writer_commit(&w);
}

/* ---- the interface ---- */

static void accel__trace_destroy(accel__object *object) {
    accel__trace *trace = (accel__trace *)(void *)object;
    accel_t *acc = object->acc;
    if (acc->trace == trace) {
        acc->backend = trace->plain;
        acc->trace = NULL;
    }
    for (int i = 0; i < trace->thread_count; i++) accel__free(acc, trace->threads[i].span);
    accel__free(acc, trace->threads);
    accel__free(acc, trace->path);
}

ACCEL_API bool accel_trace_begin(accel_t *acc, const char *path) {
    if (accel_failed(acc)) return false;
    if (acc->trace) return accel__fail(acc, ACCEL_BAD_STATE, "accel_trace_begin: a trace is under way");
    if (!path || !*path) return accel__fail(acc, ACCEL_BAD_ARGUMENT, "accel_trace_begin: a path is expected");
    if (!accel__writable(acc, path)) return false;
    accel__trace *trace = (accel__trace *)accel__object_create(acc, ACCEL__TRACE, sizeof *trace, accel__trace_destroy);
    if (!trace) return false;
    size_t bytes = (size_t)accel_threads(acc) * sizeof *trace->threads;
    trace->path = accel__strdup(acc, path);
    trace->threads = (accel__thread_spans *)accel__alloc(acc, bytes);
    if (accel_failed(acc)) {
        accel__object_destroy(&trace->object);
        return false;
    }
    memset(trace->threads, 0, bytes);
    trace->thread_count = accel_threads(acc);
    trace->plain = acc->backend;
    trace->table = accel__traced_table(acc->backend);
    trace->evaluation = -1;
    trace->began = accel__now();
    acc->backend = &trace->table;
    acc->trace = trace;
    return true;
}

ACCEL_API bool accel_trace_end(accel_t *acc) {
    if (accel_failed(acc)) return false;
    accel__trace *trace = acc->trace;
    if (!trace) return accel__fail(acc, ACCEL_BAD_STATE, "accel_trace_end: there was no accel_trace_begin");
    if (trace->depth) accel__span_end(acc, 0);
    if (trace->full)
        accel__note(acc, "%s: its end is missing, since a thread had more than %d spans", trace->path,
                    ACCEL__TRACE_LIMIT);
    bool good = accel__trace_write(trace);
    accel__object_destroy(&trace->object);
    return good;
}

#endif /* ACCEL_IMPLEMENTATION */
