/* accel_io.h - everything of accel.h that touches a file or a string: safetensors, config.json, the WordPiece tokenizer,
   tables (TSV, CSV, JSONL). Needs accel.h, cJSON and utf8proc.

   In ONE source file:   #define ACCEL_IMPLEMENTATION
                         #include "accel_io.h"        (it includes accel.h and compiles both)
   build:                cc -O2 prog.c -lcjson -lutf8proc -lopenblas -lpthread -lm

   CONTENTS (search for the anchor)
     >>io-types         descriptions
     >>io-functions     pretrained folders, safetensors, tokenizer, vocabulary, tables, labels, encoding
     implementation:    >>io-files >>io-safetensors >>io-config >>io-pretrained >>io-unicode >>io-tokenizer
                        >>io-vocabulary >>io-tables >>io-encoding */
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

/* A yes/no field whose default is what a folder or file says. */
typedef enum accel_choice { ACCEL_DEFAULT, ACCEL_NO, ACCEL_YES } accel_choice;

typedef struct accel_pretrained_desc {
    int num_labels;                 /* 0: as config.json says (2 where it does not)                      */
    const char *const *label_names; /* [num_labels] or NULL. A folder with a trained head and other names is refused; where
                                       they are the same, the head's order holds; a head without names takes these, and
                                       a notice says so                                                  */
    const char *problem_type;       /* "single_label_classification", "multi_label_classification", "regression"; NULL: as config.json says */
    float dropout;                  /* overrides all of the model's dropouts; 0: as config.json says, ACCEL_ZERO: none */
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
    accel_format format;            /* default: by the file name's ending: .csv, .jsonl and .json; all others and "-" (stdin) are TSV */
    bool no_header;                 /* the first line is a row; columns have numbers only        */
    accel_choice replace_invalid;   /* each invalid byte becomes U+FFFD instead of an error; default: no */
    int64_t limit;                  /* rows to keep, from the first; 0: all                      */
} accel_table_desc;

#define ACCEL_MAX_COLUMNS 16
/* How rows of a table become ids and labels. */
typedef struct accel_encode_desc {
    const char *text[2];            /* column names or numbers from 0; text[1] NULL: single texts            */
    int max_length;                 /* tokens, special ones included; 0: 512; never more than the model's positions. Longer pairs
                                       lose from the longer side (longest_first) */
    const char *label[ACCEL_MAX_COLUMNS]; /* one column (class or score), or several 0/1 columns for multi-label; none: unlabelled */
    accel_problem problem;          /* of the labels, where model is NULL: a model decides itself */
    const accel_model *model;       /* gives problem and label names, and is checked against the vocabulary; may be NULL */
    const char *const *label_names; /* [label_count], where model is NULL: names in the order of their numbers; NULL: labels are numbers */
    int label_count;                /* numbers are below it; 0: any                                          */
} accel_encode_desc;

/* ============================================ >>io-functions ====================================================== */

/* ---- pretrained folders, as Hugging Face lays them out ---- */

/* Loads config.json and model.safetensors of a DistilBERT or BERT folder. A fresh head (announced in a notice) takes the place of one that
   is absent; left-over MLM and pooler weights are ignored; anything else missing, unexpected or of another shape is an error
   naming the tensor. */
ACCEL_API accel_model *accel_load_pretrained(accel_t *acc, const char *folder, const accel_pretrained_desc *desc);
/* Reads config.json alone. False on error. */
ACCEL_API bool accel_read_config(accel_t *acc, const char *folder, accel_encoder_config *config);
/* Writes config.json (label names included), model.safetensors and, where a tokenizer is given, vocab.txt and
   tokenizer_config.json, so that Transformers loads the folder. Each file is written aside, synced and renamed. */
ACCEL_API bool accel_save_pretrained(const accel_model *model, const accel_tokenizer *tokenizer, const char *folder);

/* ---- safetensors ---- */

/* Maps a file and checks its header: every offset, size, shape and overlap. Tensors are numbered in the order of their names.
   accel_free closes it; until then nothing may cut the file short. */
ACCEL_API accel_safetensors *accel_safetensors_open(accel_t *acc, const char *path);
ACCEL_API int accel_safetensors_count(const accel_safetensors *file);
ACCEL_API const char *accel_safetensors_name(const accel_safetensors *file, int index);
/* -1 where there is none of that name. */
ACCEL_API int accel_safetensors_find(const accel_safetensors *file, const char *name);
/* Rank 0 with dim[0] == 0 where there is no such tensor, or it has more than 4 dimensions (it can be listed, not read). */
ACCEL_API accel_shape accel_safetensors_shape(const accel_safetensors *file, int index);
ACCEL_API accel_dtype accel_safetensors_dtype(const accel_safetensors *file, int index);
/* Converts to float (F32, F16, BF16) / to int32 (I32, I64, out of range is an error); count must be the number of elements. */
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

/* Reads a whole file ("-": stdin). TSV as GLUE has it: no quoting; CSV: RFC 4180 quoting; JSONL: an object per line, all with
   the keys of the first, values strings, numbers or booleans. A byte-order mark and CRLF are understood. Empty lines at the end are
   ignored, but in TSV and CSV files of one column every line is a row. A ragged row, a quote that is never closed, a NUL byte,
   invalid UTF-8 or malformed JSON is an error naming file and line; so is an empty file, while a header alone gives a table of 0 rows. */
ACCEL_API accel_table *accel_table_read(accel_t *acc, const char *path, const accel_table_desc *desc);
ACCEL_API int64_t accel_table_rows(const accel_table *table);
ACCEL_API int accel_table_columns(const accel_table *table);
/* Column by name or, where no column has that name, by number from 0; -1, with an error that lists the columns, where there is none. */
ACCEL_API int accel_table_column(const accel_table *table, const char *name);
/* Text of a cell, which lives as long as the table; NULL where there is no such cell. */
ACCEL_API const char *accel_table_cell(const accel_table *table, int64_t row, int column);
/* Line of the file where a row begins, counted from 1. */
ACCEL_API int64_t accel_table_line(const accel_table *table, int64_t row);
/* The path, "standard input" for "-". */
ACCEL_API const char *accel_table_name(const accel_table *table);
/* The distinct labels of a column in the order of their ids: if all are whole numbers 0 .. n-1 in number order, else sorted by
   bytes. Sets *count; the array belongs to the table. NULL on error, such as an empty label or a table without rows. */
ACCEL_API const char *const *accel_table_labels(accel_table *table, const char *column, int *count);
/* Tokenises every row, in parallel, and maps its labels: by name, or as numbers where there are no names. Scores are finite
   numbers, multi-label columns 0 / 1 (or false / true) in the order of the model's labels. An unknown label or another bad cell
   is an error naming file, line and what was expected; texts that were cut are counted in one notice. The result is the same
   for any number of threads. */
ACCEL_API accel_data *accel_encode_table(const accel_tokenizer *tokenizer, const accel_table *table,
                                         const accel_encode_desc *desc);

#ifdef __cplusplus
}
#endif
#endif /* ACCEL_IO_H */

/* ============================================ implementation ====================================================== */
#if defined(ACCEL_IMPLEMENTATION) && !defined(ACCEL_IO_IMPLEMENTED)
#define ACCEL_IO_IMPLEMENTED
#include "io_files.inc"
#include "io_pretrained.inc"
#include "io_tokenizer.inc"
#include "io_tables.inc"
#endif
