/* accel.h - train networks in plain C: tensors, autograd, a DistilBERT-style encoder, optimizers, a data-parallel loop.
   Version 0.1.0, MIT licence (see LICENSE). Needs OpenBLAS, stb_ds and pthreads; nothing else.

   In ONE source file:   #define ACCEL_IMPLEMENTATION
                         #include "accel.h"
   everywhere else:      #include "accel.h"
   build:                cc -O2 prog.c -lopenblas -lpthread -lm

   CONTENTS (search for the anchor)
     >>manual           how the pieces fit, in one page
     >>configuration    macros that may be set before the include
     >>types            errors, shapes, tensors, descriptions of objects
     >>functions        context, scopes, tensors, operations, models, encoder, losses, optimizers, schedules,
                        data, loader, accelerator, metrics, gradient check
     >>companions       what accel_io.h and other back ends build on
     implementation:    >>memory >>threads >>random >>tensors >>backend >>autograd >>layers >>encoder >>loss
                        >>optimizers >>schedules >>loader >>accelerator

   ================================================ >>manual ========================================================

   THE LOOP. It is the one of PyTorch and Accelerate:

       accel_t *acc = accel_create(NULL);
       accel_model *model = accel_load_pretrained(acc, "distilbert-base-cased", NULL);         // accel_io.h
       accel_optimizer *opt = accel_adam(acc, model, &(accel_adam_desc){ .lr = 2e-5f });
       accel_loader *train = accel_loader_create(acc, data, &(accel_loader_desc){ .batch_size = 16, .shuffle = true });
       int64_t steps = 3 * accel_steps_per_epoch(acc, train);
       accel_schedule *lr = accel_linear_schedule_with_warmup(opt, steps / 10, steps);
       accel_prepare(acc, model, opt, train, lr);
       for (int epoch = 0; epoch < 3; epoch++) {
           accel_batch batch;
           while (accel_next(train, &batch)) {
               accel_zero_grad(opt);
               accel_output out = accel_forward(model, &batch);
               accel_backward(acc, out.loss);
               accel_step(opt);
               accel_schedule_step(lr);
           }
       }
       if (accel_failed(acc)) fprintf(stderr, "%s\n", accel_message(acc));
       accel_destroy(acc);

   ERRORS are values. The first failure is recorded in the context with a code and a message and stays until
   accel_clear; every later call on that context returns at once without harm. NULL objects and null tensors
   are accepted everywhere: accel_failed(NULL) is true, a length is 0, accel_item is NaN, accel_next is false.
   So a loop needs one check, at its end.

   DESCRIPTIONS. Every `*_desc` may be NULL or zero-initialised; a zero field means the documented default. Where zero
   itself is a meaningful value that differs from the default, ACCEL_ZERO stands for it:
   `.weight_decay = ACCEL_ZERO`. Descriptions are copied; nothing in them has to outlive the call.

   MEMORY belongs to the context; accel_destroy frees all of it, accel_free one object. A tensor is a small value
   (a handle), passed and returned by copy. Results of operations live until their SCOPE ends: at the next
   accel_next of a loader, or at accel_begin in a loop without one. Between accel_eval_begin and accel_eval_end a second
   scope is in force and neither graph nor dropout exist. accel_keep lifts a tensor out of its scope. Using a handle
   after its scope ended is an error with a message, not a crash. After its first steps a training step calls the
   allocator no more. Data is read and written with accel_read, accel_write and accel_item: it may lie on a device.
   accel_set_recompute trades time for memory: an encoder's layers keep their inputs only and are computed again in the
   backward pass, with the same bits; accel_checkpoint does so for a function of one's own.

   GRADIENTS ARE POOLED BY WEIGHT. accel_backward adds w times the gradient, where w belongs to the micro-batch: the
   divisor of its first loss (number of labels, sum of class weights, number of elements), 1 where there is no
   loss function, or what accel_set_weight says. Clipping and accel_step divide once by the sum of w. So accumulation,
   uneven batches and a short last window give exactly the gradient of the pooled batch. accel_grad shows the divided
   one.

   RANDOM NUMBERS ARE COUNTED. Each is a function of (seed, name of the place, step, example in the step's batch,
   position, feature), never of a thread or of memory order. THREADS: every operation is cut into pieces that depend on
   shapes only, so 1, 2, 3 or 8 threads give the same bits. A context is used by one thread at a time; several contexts
   may be used side by side. While a context lives, OpenBLAS is set to one thread per call (the workers are ours); the
   last context that is destroyed restores the former number. */
#ifndef ACCEL_H
#define ACCEL_H

/* ============================================ >>configuration =====================================================
   ACCEL_IMPLEMENTATION   define in one source file before the include: the code is compiled there.
   ACCEL_STATIC           define in that file to make every function static (a program of one file).
   No macro changes a public struct, so files compiled with and without them fit together. */

#define ACCEL_VERSION_MAJOR 0
#define ACCEL_VERSION_MINOR 1
#define ACCEL_VERSION_PATCH 0
#define ACCEL_VERSION "0.1.0"

#ifndef ACCEL_API
#ifdef ACCEL_STATIC
#if defined(__GNUC__)
#define ACCEL_API static __attribute__((unused))
#else
#define ACCEL_API static
#endif
#else
#define ACCEL_API extern
#endif
#endif

#if defined(__GNUC__)
#define ACCEL_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define ACCEL_PRINTF(text, first)
#endif

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* =============================================== >>types ========================================================== */

/* What went wrong; accel_message says where and what was expected. */
#define ACCEL_CODES(X)                                                                              \
    X(ACCEL_OK, "no error")                                                                         \
    X(ACCEL_BAD_ARGUMENT, "bad argument")           /* an argument or a field of a description   */ \
    X(ACCEL_BAD_SHAPE, "shapes do not fit")         /* operands that cannot be combined          */ \
    X(ACCEL_BAD_STATE, "not possible now")          /* stale handle, object in use, wrong order  */ \
    X(ACCEL_BAD_DATA, "bad data")                   /* a row, an id, a label, a length           */ \
    X(ACCEL_BAD_FILE, "bad file")                   /* missing, unreadable, malformed            */ \
    X(ACCEL_OUT_OF_MEMORY, "out of memory")                                                         \
    X(ACCEL_NOT_FINITE, "not a finite number")      /* loss or gradient, too often in a row      */ \
    X(ACCEL_CALLBACK, "a callback failed")          /* a custom operation reported failure       */ \
    X(ACCEL_SYSTEM, "the system refused")           /* threads, devices                          */

typedef enum accel_code {
#define ACCEL__X(code, text) code,
    ACCEL_CODES(ACCEL__X)
#undef ACCEL__X
    ACCEL_CODE_COUNT
} accel_code;

/* Stands for the value zero in fields of descriptions where 0 means "default". */
#define ACCEL_ZERO (-1.0f)
/* A label that does not count: neither in a loss nor in its divisor (PyTorch's ignore_index). */
#define ACCEL_IGNORE (-100)

typedef struct accel_t accel_t;                 /* context: owns everything                       */
typedef struct accel_model accel_model;         /* named parameters, perhaps an encoder           */
typedef struct accel_optimizer accel_optimizer;
typedef struct accel_schedule accel_schedule;
typedef struct accel_ema accel_ema;             /* moving average of a model's parameters         */
typedef struct accel_data accel_data;           /* rows in memory                                 */
typedef struct accel_loader accel_loader;
typedef struct accel_metrics accel_metrics;     /* counts of classes                              */
typedef struct accel_scores accel_scores;       /* predicted and true scores of a regression      */

/* Handle of a tensor: float32 or int32, 0 to 4 dimensions, row-major. A zeroed handle is the null tensor. */
typedef struct accel_tensor {
    accel_t *acc;
    uint64_t id; /* private */
} accel_tensor;

/* Rank 0 (a scalar) to 4; dim[rank..3] are 1. Make one with accel_0d .. accel_4d. */
typedef struct accel_shape {
    int rank;
    int dim[4];
} accel_shape;

typedef enum accel_type { ACCEL_FLOAT32, ACCEL_INT32 } accel_type;

/* One function for all of malloc, realloc and free: bytes == 0 frees; NULL means no memory. It may be called from the
   thread that uses the context only. */
typedef struct accel_allocator {
    void *(*reallocate)(void *user, void *pointer, size_t bytes);
    void *user;
} accel_allocator;

/* What the operands of the large matrix products are rounded to. Everything else, sums and the weights themselves
   included, is float32. */
typedef enum accel_precision {
    ACCEL_PRECISION_FP32,
    ACCEL_PRECISION_BF16,    /* by the processor's instruction for it, or rounded and multiplied in float32 where it has
                                none */
    ACCEL_PRECISION_EMULATED /* the latter on every processor */
} accel_precision;

typedef struct accel_desc {
    int threads;                     /* 0: all cores this process may use                                  */
    uint64_t seed;                   /* of every random number; 0 is the default and a seed like any other */
    int accumulate;                  /* micro-batches per optimizer step; 0: 1                             */
    accel_precision precision;
    bool no_device_placement;        /* true: accel_prepare leaves models where they are; use accel_to     */
    int max_skipped_steps;           /* steps in a row skipped for non-finite gradients before it is an error; 0: 5 */
    accel_allocator allocator;       /* zeroed: malloc, realloc, free                                      */
    void (*log)(void *user, const char *line); /* notices, without newline; NULL: stderr                   */
    void *log_user;
} accel_desc;

/* Calls of the allocator hook since the context was created, and bytes it holds. */
typedef struct accel_memory {
    uint64_t calls;
    size_t bytes, peak_bytes;
} accel_memory;

/* ---- models ---- */

typedef enum accel_activation {
    ACCEL_NONE,
    ACCEL_RELU,
    ACCEL_LEAKY_RELU,
    ACCEL_GELU,      /* exact, by erf */
    ACCEL_GELU_TANH, /* "gelu_new"    */
    ACCEL_TANH,
    ACCEL_SIGMOID
} accel_activation;

/* A layer of accel_sequential; make one with accel_linear_layer, accel_activation_layer, accel_dropout_layer or
   accel_layer_norm_layer. */
typedef struct accel_layer {
    int kind; /* private */
    int in, out;
    accel_activation activation;
    float value; /* slope, probability or eps */
} accel_layer;

typedef enum accel_architecture { ACCEL_DISTILBERT, ACCEL_BERT } accel_architecture;
typedef enum accel_problem { ACCEL_SINGLE_LABEL, ACCEL_MULTI_LABEL, ACCEL_REGRESSION } accel_problem;

/* Every field is literal here (dropout 0 is no dropout): start from accel_encoder_defaults and change what differs. */
typedef struct accel_encoder_config {
    accel_architecture architecture;
    accel_problem problem;
    int vocab_size, max_positions, type_vocab_size;    /* 30522, 512, BERT 2 / DistilBERT 0 */
    int dim, layers, heads, hidden_dim;                /* 768, 6 / 12, 12, 3072             */
    int num_labels;                                    /* 2                                 */
    int pad_token_id; /* 0: the row of the word embeddings without gradient; -1: none */
    accel_activation activation;                       /* ACCEL_GELU, _GELU_TANH or _RELU   */
    bool sinusoidal_positions; /* DistilBERT: only their initial values; they train like others */
    float dropout, attention_dropout, classifier_dropout; /* 0.1, 0.1, DistilBERT 0.2 / BERT 0.1 */
    float layer_norm_eps;                              /* 1e-12 */
    float initializer_range;                           /* 0.02  */
} accel_encoder_config;

/* What accel_forward gives. Where accel_output_hidden_states asked for them, hidden[0] is the embeddings' output,
   hidden[layers] the last layer's; all packed [tokens, dim] and valid until the scope ends. In evaluation only
   hidden[layers] exists, the others are null tensors.
 */
typedef struct accel_output {
    accel_tensor loss;   /* scalar; null where the batch has no labels */
    accel_tensor logits; /* [examples, num_labels]                     */
    const accel_tensor *hidden;
    int hidden_count;
} accel_output;

/* Sequences packed one behind the other, without padding: sequence i is ids[offsets[i] .. offsets[i+1]-1].
   The memory belongs to the loader (until its next accel_next) or to the scope (accel_batch_from_padded). */
typedef struct accel_batch {
    int examples, tokens, longest;
    const int32_t *ids;
    const int32_t *offsets;     /* [examples + 1], offsets[0] == 0                                */
    const int32_t *token_types; /* [tokens] or NULL: all 0                                        */
    const int32_t *labels;      /* [examples] or NULL                                             */
    const float *targets;       /* [examples, targets_per_example] or NULL: regression, multi-label */
    int targets_per_example;
    const int64_t *rows;        /* [examples] row numbers in the data, or NULL                    */
    int64_t first_ordinal;      /* of the first example, counted in the optimizer step's whole batch */
} accel_batch;

typedef struct accel_cross_entropy_desc {
    float label_smoothing;      /* 0 .. 1; default 0                              */
    const float *class_weights; /* [classes] or NULL: all 1 (copied)              */
    int class_count;            /* entries of class_weights                       */
} accel_cross_entropy_desc;

/* Attention over packed sequences: each attends to itself alone. */
typedef struct accel_attention_desc {
    int heads;                  /* divides the width                              */
    int sequences;
    const int32_t *offsets;     /* [sequences + 1] (copied)                       */
    float dropout;              /* of the attention probabilities; default 0      */
} accel_attention_desc;

/* ---- an operation of one's own ---- */

#define ACCEL_CUSTOM_INPUTS 8
typedef struct accel_custom_call {
    int piece, pieces;                        /* which part of the result to write                */
    int input_count;
    const void *input[ACCEL_CUSTOM_INPUTS];   /* float or int32_t                                 */
    accel_shape input_shape[ACCEL_CUSTOM_INPUTS];
    float *output;                            /* forward: to be written                           */
    accel_shape shape;
    const float *output_grad;                 /* backward: gradient of the result                 */
    float *input_grad[ACCEL_CUSTOM_INPUTS];   /* backward: zero-filled, to be written; NULL: not wanted */
    void *user;
} accel_custom_call;

/* The callbacks return NULL, or a message, which becomes the context's error (of several pieces that fail, the lowest
   piece's message is kept). They run once per piece, possibly at the same time on different threads, and each writes
   only its piece. `user` must live until the scope ends. */
typedef struct accel_custom_desc {
    const char *name;
    int input_count;
    accel_tensor input[ACCEL_CUSTOM_INPUTS];
    accel_shape shape;                        /* of the result */
    const char *(*forward)(const accel_custom_call *call);
    const char *(*backward)(const accel_custom_call *call); /* NULL: no gradient flows */
    int pieces;                               /* 0: 1, on the calling thread */
    void *user;
} accel_custom_desc;

/* ---- optimizers ---- */

/* Parameters whose name matches one of the comma-separated patterns of `match` ('*' stands for any text). The first
   group that matches counts. lr 0 and weight_decay 0 mean the optimizer's own; ACCEL_ZERO means none. */
typedef struct accel_param_group {
    const char *match;
    float lr, weight_decay;
} accel_param_group;

/* The usual group without weight decay: biases and layer norms. */
#define ACCEL_NO_DECAY_MATCH "*bias,*LayerNorm*,*layer_norm*"

typedef struct accel_adam_desc { /* torch.optim.Adam and AdamW */
    float lr;                    /* 0: 1e-3                                   */
    float beta1, beta2, eps;     /* 0: 0.9, 0.999, 1e-8                       */
    float weight_decay;          /* 0: Adam none, AdamW 0.01                  */
    bool amsgrad;
    const accel_param_group *groups;
    int group_count;
    float layer_decay; /* of an encoder, in (0, 1]; 0: 1. With L layers, layer l (from 0) learns at lr decay^(L - l),
                          the embeddings at lr decay^(L + 1), the head at lr (as in BEiT); it multiplies a group's lr */
} accel_adam_desc;

typedef struct accel_sgd_desc { /* torch.optim.SGD */
    float lr;                   /* 0: 1e-3 */
    float momentum, dampening, weight_decay;
    bool nesterov;
    const accel_param_group *groups;
    int group_count;
    float layer_decay;          /* as in accel_adam_desc */
} accel_sgd_desc;

/* ---- data ---- */

/* Rows of token ids, packed. Everything is copied. */
typedef struct accel_data_desc {
    int64_t rows;
    const int32_t *ids;
    const int64_t *offsets;        /* [rows + 1], offsets[0] == 0                      */
    const int32_t *token_types;    /* [offsets[rows]] or NULL                          */
    const int32_t *labels;         /* [rows] or NULL                                   */
    const float *targets;          /* [rows, targets_per_row] or NULL                  */
    int targets_per_row;
    const char *name;              /* file or other origin, for messages; NULL: "data" */
    const int64_t *line;           /* [rows] line of the origin, for messages, or NULL: the row's number from 1 */
} accel_data_desc;

typedef struct accel_loader_desc {
    int batch_size;          /* examples per batch; 0: 8 as in Transformers                      */
    bool shuffle;            /* a new order each epoch: a function of (seed, epoch)              */
    bool group_by_length;    /* batches of similar lengths, in shuffled order (implies shuffle)  */
    bool drop_last;          /* leave out the last batch where it is smaller than batch_size     */
    bool evaluation;         /* not a training loader: its batches are no micro-batches of a step */
} accel_loader_desc;

typedef struct accel_gradient_check_desc {
    float eps;               /* step of the central differences; 0: 0.02 (a four-point formula, error O(eps^4)) */
    float tolerance;         /* largest error, relative to the largest gradient value of the input; 0: 5e-3 */
    uint64_t seed;           /* of the random projection of a result that is no scalar           */
} accel_gradient_check_desc;

/* ---- metrics ---- */

/* scikit-learn's averages over the classes. Binary: class 1 alone, of two. Macro: every class counts the same. Micro:
   all decisions in one count. Weighted: by the examples that have the label. */
typedef enum accel_average {
    ACCEL_AVERAGE_BINARY,
    ACCEL_AVERAGE_MACRO,
    ACCEL_AVERAGE_MICRO,
    ACCEL_AVERAGE_WEIGHTED
} accel_average;

/* Of one class, or averaged over the classes. A quotient by zero is 0 (scikit-learn's zero_division=0). */
typedef struct accel_prf {
    double precision, recall, f1;
    int64_t labelled, predicted, hits; /* examples with the label (the support), with the prediction, with both; of
                                          several classes: the sums */
} accel_prf;

/* ============================================== >>functions ======================================================= */

/* ---- context ---- */

/* Creates a context with its worker threads. NULL only where not even the context can be allocated; a bad description
   gives a context that has failed. */
ACCEL_API accel_t *accel_create(const accel_desc *desc);
/* Frees the context and everything that belongs to it. NULL is allowed. */
ACCEL_API void accel_destroy(accel_t *acc);
/* Frees one model, optimizer, schedule, loader, data or metrics object before the context goes. An error, without
   effect, while another object uses it. NULL is allowed. */
ACCEL_API void accel_free(void *object);
ACCEL_API bool accel_failed(const accel_t *acc);
ACCEL_API accel_code accel_error(const accel_t *acc);
/* The recorded message, "" without an error; valid until the next call on the context. */
ACCEL_API const char *accel_message(const accel_t *acc);
ACCEL_API const char *accel_code_text(accel_code code);
/* Forgets the recorded error, so that the context can be used again. */
ACCEL_API void accel_clear(accel_t *acc);
ACCEL_API int accel_threads(const accel_t *acc);
ACCEL_API uint64_t accel_seed(const accel_t *acc);
/* Changes the seed of all random numbers drawn from now on (Accelerate's set_seed). */
ACCEL_API void accel_set_seed(accel_t *acc, uint64_t seed);
ACCEL_API accel_memory accel_memory_used(const accel_t *acc);
/* Name of the BLAS kernels in use ("Haswell", "SkylakeX", ...). */
ACCEL_API const char *accel_blas_core(void);

/* ---- scopes ---- */

/* Ends the scope: every tensor that an operation made in it is gone. A training scope is one micro-batch: beginning a
   new one after a backward counts the last one towards the accumulation window. */
ACCEL_API void accel_begin(accel_t *acc);
/* Between these two neither graph nor dropout exist, and results live in a scope of their own. They nest. */
ACCEL_API void accel_eval_begin(accel_t *acc);
ACCEL_API void accel_eval_end(accel_t *acc);
/* Lifts a result out of its scope: it loses its graph and lives until accel_release or the context's end. Returns the
   same handle. */
ACCEL_API accel_tensor accel_keep(accel_tensor x);
ACCEL_API void accel_release(accel_tensor x);

/* ---- tensors ---- */

ACCEL_API accel_shape accel_0d(void);
ACCEL_API accel_shape accel_1d(int n);
ACCEL_API accel_shape accel_2d(int rows, int columns);
ACCEL_API accel_shape accel_3d(int a, int b, int c);
ACCEL_API accel_shape accel_4d(int a, int b, int c, int d);
/* Tensors of the current scope. values may be NULL: zeros. */
ACCEL_API accel_tensor accel_from_floats(accel_t *acc, accel_shape shape, const float *values);
ACCEL_API accel_tensor accel_from_ints(accel_t *acc, accel_shape shape, const int32_t *values);
ACCEL_API accel_tensor accel_full(accel_t *acc, accel_shape shape, float value);
/* Normal(0, 1) and uniform [0, 1) numbers; a function of the seed, the step, the micro-batch's calls so far and the
   index. */
ACCEL_API accel_tensor accel_randn(accel_t *acc, accel_shape shape);
ACCEL_API accel_tensor accel_rand(accel_t *acc, accel_shape shape);
/* Asking is no error: rank 0 with dim[0] == 0, and 0 elements, for a null tensor or a stale handle. */
ACCEL_API accel_shape accel_shape_of(accel_tensor x);
ACCEL_API int64_t accel_count(accel_tensor x);
ACCEL_API accel_type accel_type_of(accel_tensor x);
/* True for a live handle of a context that has not failed. */
ACCEL_API bool accel_valid(accel_tensor x);
/* Copies all `count` elements out of or into a float tensor; count must be accel_count(x). False on error. */
ACCEL_API bool accel_read(accel_tensor x, float *values, int64_t count);
ACCEL_API bool accel_write(accel_tensor x, const float *values, int64_t count);
/* The only element of a tensor; NaN on error. */
ACCEL_API float accel_item(accel_tensor x);
/* Whether a gradient flows to a tensor that no operation made (a leaf). Default: no, parameters yes. Switching it on
   forgets the gradient that a leaf has. */
ACCEL_API void accel_set_requires_grad(accel_tensor x, bool on);
/* Copies the gradient of a parameter or leaf (divided by the pooled weight, and clipped where accel_clip_grad_norm
   did); zeros where none has arrived. False on error. */
ACCEL_API bool accel_grad(accel_tensor x, float *values, int64_t count);

/* ---- operations (each records its gradient unless in evaluation) ---- */

/* [.., m, k] x [.., k, n] -> [.., m, n] (torch.matmul). Leading dimensions are equal, or absent in one operand. */
ACCEL_API accel_tensor accel_matmul(accel_tensor a, accel_tensor b);
/* The same with the last two dimensions of a and b read transposed where the flags say so. */
ACCEL_API accel_tensor accel_matmul_t(accel_tensor a, bool transpose_a, accel_tensor b, bool transpose_b);
/* x [.., in], weight [out, in], bias [out] or null -> [.., out] (torch.nn.functional.linear). */
ACCEL_API accel_tensor accel_linear(accel_tensor x, accel_tensor weight, accel_tensor bias);
/* Element by element with broadcasting as in NumPy. */
ACCEL_API accel_tensor accel_add(accel_tensor a, accel_tensor b);
ACCEL_API accel_tensor accel_sub(accel_tensor a, accel_tensor b);
ACCEL_API accel_tensor accel_mul(accel_tensor a, accel_tensor b);
ACCEL_API accel_tensor accel_div(accel_tensor a, accel_tensor b);
ACCEL_API accel_tensor accel_scale(accel_tensor x, float factor);
ACCEL_API accel_tensor accel_exp(accel_tensor x);
ACCEL_API accel_tensor accel_log(accel_tensor x);
ACCEL_API accel_tensor accel_sqrt(accel_tensor x);
ACCEL_API accel_tensor accel_relu(accel_tensor x);
ACCEL_API accel_tensor accel_leaky_relu(accel_tensor x, float slope); /* torch's default slope is 0.01 */
ACCEL_API accel_tensor accel_gelu(accel_tensor x);                    /* x * Phi(x), by erf                    */
ACCEL_API accel_tensor accel_gelu_tanh(accel_tensor x);               /* torch gelu(approximate="tanh")        */
ACCEL_API accel_tensor accel_tanh(accel_tensor x);
ACCEL_API accel_tensor accel_sigmoid(accel_tensor x);
/* Sum and mean of all elements (a scalar) or along one axis (negative counts from the end; keep leaves it with size 1).
 */
ACCEL_API accel_tensor accel_sum(accel_tensor x);
ACCEL_API accel_tensor accel_mean(accel_tensor x);
ACCEL_API accel_tensor accel_sum_axis(accel_tensor x, int axis, bool keep);
ACCEL_API accel_tensor accel_mean_axis(accel_tensor x, int axis, bool keep);
/* Same elements, other shape; one dimension may be -1. No copy. */
ACCEL_API accel_tensor accel_reshape(accel_tensor x, accel_shape shape);
/* Swaps two axes (torch.transpose); copies. */
ACCEL_API accel_tensor accel_transpose(accel_tensor x, int axis_a, int axis_b);
/* Elements begin .. end-1 of an axis (x[:, begin:end]); copies. */
ACCEL_API accel_tensor accel_slice(accel_tensor x, int axis, int begin, int end);
/* Joins up to 64 tensors along an axis (torch.cat). */
ACCEL_API accel_tensor accel_concat(const accel_tensor *x, int count, int axis);
/* table [rows, width], ids [..] -> [.., width]; the row padding_id gets no gradient (-1: every row does). */
ACCEL_API accel_tensor accel_embedding(accel_tensor table, accel_tensor ids, int padding_id);
/* Over the last axis, variance without Bessel's correction (torch.nn.functional.layer_norm). */
ACCEL_API accel_tensor accel_layer_norm(accel_tensor x, accel_tensor weight, accel_tensor bias, float eps);
/* Over the last axis. */
ACCEL_API accel_tensor accel_softmax(accel_tensor x);
ACCEL_API accel_tensor accel_log_softmax(accel_tensor x);
/* Zeroes elements with probability p and scales the others by 1/(1-p); axis 0 counts examples. Nothing in evaluation.
 */
ACCEL_API accel_tensor accel_dropout(accel_tensor x, float p);
/* qkv [tokens, 3 * width]: queries, keys, values of each token -> [tokens, width]; softmax(Q K^T / sqrt(width / heads))
   V. */
ACCEL_API accel_tensor accel_attention(accel_tensor qkv, const accel_attention_desc *desc);
/* The same values without a gradient path. */
ACCEL_API accel_tensor accel_detach(accel_tensor x);
/* An operation of the user's own; see accel_custom_desc. */
ACCEL_API accel_tensor accel_custom(accel_t *acc, const accel_custom_desc *desc);
/* fn(acc, inputs, user), of which only the inputs (up to 8, null tensors allowed) and the result are kept: accel_backward
   calls fn again and gets the same bits, random numbers included (torch.utils.checkpoint). So fn is called twice, must
   make its result from its inputs and from parameters alone, and `user` must live until the scope ends. In fn no scope
   ends, nothing is kept, freed or trained. A parameter that changed in between is an error in accel_backward. */
ACCEL_API accel_tensor accel_checkpoint(accel_t *acc,
                                        accel_tensor (*fn)(accel_t *acc, const accel_tensor *inputs, void *user),
                                        const accel_tensor *inputs, int count, void *user);

/* ---- losses (scalars; each sets the micro-batch's weight to its divisor if it is the first) ---- */

/* logits [n, classes], labels int32 [n]; ACCEL_IGNORE leaves a row out. Divided by the sum of the labels' class weights
   (torch.nn.functional.cross_entropy, reduction mean). Labels out of range are an error naming the row. */
ACCEL_API accel_tensor accel_cross_entropy(accel_tensor logits, accel_tensor labels,
                                           const accel_cross_entropy_desc *desc);
/* Mean over all elements of binary cross-entropy; same shapes (binary_cross_entropy_with_logits). */
ACCEL_API accel_tensor accel_bce_with_logits(accel_tensor logits, accel_tensor targets);
/* Mean over all elements of (a - b)^2; same shapes (mse_loss). */
ACCEL_API accel_tensor accel_mse(accel_tensor a, accel_tensor b);

/* ---- models and parameters ---- */

/* A model without parameters yet; the name is copied and seeds its initial weights. */
ACCEL_API accel_model *accel_model_create(accel_t *acc, const char *name);
/* Adds a named parameter of zeros (torch.nn.Parameter) / from Normal(0, std) / from Uniform(-bound, bound). The handle
   is valid as long as the model. */
ACCEL_API accel_tensor accel_parameter(accel_model *model, const char *name, accel_shape shape);
ACCEL_API accel_tensor accel_parameter_normal(accel_model *model, const char *name, accel_shape shape, float std);
ACCEL_API accel_tensor accel_parameter_uniform(accel_model *model, const char *name, accel_shape shape, float bound);
/* Layers for accel_sequential. Linear weights start as torch.nn.Linear's: uniform in +-1/sqrt(in). */
ACCEL_API accel_layer accel_linear_layer(int in, int out);
ACCEL_API accel_layer accel_activation_layer(accel_activation activation);
ACCEL_API accel_layer accel_leaky_relu_layer(float slope);
ACCEL_API accel_layer accel_dropout_layer(float p);
ACCEL_API accel_layer accel_layer_norm_layer(int width);
/* Layers applied in turn; parameters are named as torch.nn.Sequential names them: "0.weight", "0.bias", "2.weight". */
ACCEL_API accel_model *accel_sequential(accel_t *acc, const char *name, const accel_layer *layers, int count);
/* x [.., in] through a sequential model. */
ACCEL_API accel_tensor accel_apply(accel_model *model, accel_tensor x);
ACCEL_API int accel_parameter_count(const accel_model *model);
ACCEL_API int64_t accel_parameter_elements(const accel_model *model); /* sum over all parameters */
ACCEL_API const char *accel_parameter_name(const accel_model *model, int index);
ACCEL_API accel_tensor accel_parameter_at(accel_model *model, int index);
/* Null tensor, without an error, where there is none of that name. */
ACCEL_API accel_tensor accel_parameter_find(accel_model *model, const char *name);
/* Freezes (false) or thaws every parameter that matches the comma-separated patterns; returns how many matched. */
ACCEL_API int accel_model_requires_grad(accel_model *model, const char *match, bool on);
/* Drops the gradients of a model's parameters and their pooled weight (for models without an optimizer). */
ACCEL_API void accel_model_zero_grad(accel_model *model);
ACCEL_API const char *accel_model_name(const accel_model *model);
/* Label names of a classifier, num_labels of them (copied); NULL where none were set. */
ACCEL_API bool accel_set_label_names(accel_model *model, const char *const *names, int count);
ACCEL_API const char *accel_label_name(const accel_model *model, int label);

/* ---- the encoder ---- */

ACCEL_API accel_encoder_config accel_encoder_defaults(accel_architecture architecture);
/* A DistilBERT or BERT sequence classifier with fresh weights (Normal(0, initializer_range), biases 0), named as in
   Transformers. The weights depend on the seed alone: accel_set_seed before each one of an ensemble. Zero or
   contradictory sizes are errors. */
ACCEL_API accel_model *accel_encoder_create(accel_t *acc, const accel_encoder_config *config);
/* Gives the parameters of an encoder that match the comma-separated patterns their fresh initial values; returns how
   many. */
ACCEL_API int accel_encoder_reset(accel_model *model, const char *match);
/* NULL where the model is no encoder. */
ACCEL_API const accel_encoder_config *accel_encoder_config_of(const accel_model *model);
/* Overrides the dropout of an encoder: hidden states, attention and classifier alike. */
ACCEL_API void accel_set_dropout(accel_model *model, float p);
/* Whether accel_forward gives the hidden states (Transformers' output_hidden_states). Default: no; then the last layer
   computes only what the head needs, the first token of each sequence, with the same results. */
ACCEL_API void accel_output_hidden_states(accel_model *model, bool on);
/* Whether each layer keeps only its input for the backward pass, which then computes the layer anew (Transformers'
   gradient_checkpointing). Default: no. Same bits; less memory, about a third more time. Hidden states are inputs of
   layers: accel_output_hidden_states gives all of them as before. It counts from the next accel_forward on. */
ACCEL_API void accel_set_recompute(accel_model *model, bool on);
/* Label smoothing and class weights of a single-label encoder's loss, in training and in evaluation; NULL: neither.
   (What accel_train evaluates is the plain loss.) */
ACCEL_API void accel_set_loss(accel_model *model, const accel_cross_entropy_desc *desc);
/* Runs an encoder on a packed batch; the loss is there where the batch has labels or targets. */
ACCEL_API accel_output accel_forward(accel_model *model, const accel_batch *batch);

/* ---- optimizers ---- */

ACCEL_API accel_optimizer *accel_adam(accel_t *acc, accel_model *model, const accel_adam_desc *desc);
ACCEL_API accel_optimizer *accel_adamw(accel_t *acc, accel_model *model, const accel_adam_desc *desc);
ACCEL_API accel_optimizer *accel_sgd(accel_t *acc, accel_model *model, const accel_sgd_desc *desc);
/* Lets an optimizer train another model as well, four at most. A parameter belongs to one optimizer at most. */
ACCEL_API bool accel_optimizer_add(accel_optimizer *opt, accel_model *model);
/* Forgets the gradients. In the middle of an accumulation window it does nothing (as Accelerate's prepared optimizers).
 */
ACCEL_API void accel_zero_grad(accel_optimizer *opt);
/* Norm of all gradients before clipping; at the end of a window they are then scaled so that it is at most max_norm
   (torch.nn.utils.clip_grad_norm_). INFINITY only measures. NaN on error. */
ACCEL_API float accel_clip_grad_norm(accel_optimizer *opt, float max_norm);
/* At the end of a window, limits every element of the divided gradient to -max_value .. max_value
   (torch.nn.utils.clip_grad_value_). */
ACCEL_API void accel_clip_grad_value(accel_optimizer *opt, float max_value);
/* Takes the step and returns true. False, and nothing changes, in the middle of a window, when no gradient has arrived,
   or when the gradient is not finite: then the step is counted as skipped and a notice says so; too many in a row are
   an error. */
ACCEL_API bool accel_step(accel_optimizer *opt);
ACCEL_API int64_t accel_steps_taken(const accel_optimizer *opt);
ACCEL_API int64_t accel_steps_skipped(const accel_optimizer *opt);
/* The rate in force (without the groups' own), and the base rate that schedules scale. */
ACCEL_API float accel_lr(const accel_optimizer *opt);
ACCEL_API void accel_set_lr(accel_optimizer *opt, float lr);
/* The rate in force of one parameter: its group's or the base rate, times layer_decay's and the schedule's factors.
   NaN, with an error, where the optimizer has none of that name; of several models' the first one's. */
ACCEL_API double accel_lr_of(const accel_optimizer *opt, const char *name);

/* ---- averaged weights ---- */

/* A moving average of a model's parameters: average = decay average + (1 - decay) parameter with each accel_ema_update,
   which is called after accel_step (decay 0: 0.999). It begins as a copy, and is part of the saved state. */
ACCEL_API accel_ema *accel_ema_create(accel_t *acc, accel_model *model, float decay);
ACCEL_API void accel_ema_update(accel_ema *ema);
/* Exchanges the model's parameters and the average: once before evaluating or saving, once more to train on. */
ACCEL_API void accel_ema_swap(accel_ema *ema);

/* ---- schedules: the rate is a function of the steps taken; total and warmup count optimizer steps ---- */

ACCEL_API accel_schedule *accel_linear_schedule_with_warmup(accel_optimizer *opt, int64_t warmup, int64_t total);
ACCEL_API accel_schedule *accel_cosine_schedule_with_warmup(accel_optimizer *opt, int64_t warmup, int64_t total);
ACCEL_API accel_schedule *accel_constant_schedule_with_warmup(accel_optimizer *opt, int64_t warmup);
/* Sets the rate for the number of steps taken so far; calling it twice changes nothing. */
ACCEL_API void accel_schedule_step(accel_schedule *schedule);
/* Factor of the base rate after `steps` steps. */
ACCEL_API double accel_schedule_factor(const accel_schedule *schedule, int64_t steps);

/* ---- data and loader ---- */

/* Copies rows. Lengths, offsets and empty rows are checked here, ids and labels when model and loader are prepared. */
ACCEL_API accel_data *accel_data_create(accel_t *acc, const accel_data_desc *desc);
ACCEL_API int64_t accel_data_rows(const accel_data *data);
ACCEL_API const accel_data_desc *accel_data_view(const accel_data *data);
ACCEL_API accel_loader *accel_loader_create(accel_t *acc, accel_data *data, const accel_loader_desc *desc);
/* Batches per epoch. */
ACCEL_API int64_t accel_loader_length(const accel_loader *loader);
/* The next batch; false at the end of the epoch (the next call begins another) or on error. Begins a scope. */
ACCEL_API bool accel_next(accel_loader *loader, accel_batch *batch);
/* Sets the epoch that the next order is drawn from and goes to its begin. */
ACCEL_API void accel_loader_set_epoch(accel_loader *loader, int64_t epoch);
/* Packs right-padded arrays [examples, length]: mask 1 for tokens, 0 for padding (NULL: no padding). labels and
   token_types may be NULL. Lives until the scope ends. */
ACCEL_API bool accel_batch_from_padded(accel_t *acc, const int32_t *ids, const int32_t *mask,
                                       const int32_t *token_types, const int32_t *labels, int examples, int length,
                                       accel_batch *batch);
/* Packed [tokens, width] -> [examples, longest, width], zeros behind each sequence. */
ACCEL_API accel_tensor accel_unpack(accel_tensor packed, const accel_batch *batch);

/* ---- the accelerator ---- */

/* Makes any objects ready to train together, in any order: places models on the device and checks every row of a loader
   against the encoder (ids, lengths, labels). False on error. */
#define accel_prepare(acc, ...) accel__prepare((acc), __VA_ARGS__, (void *)0)
ACCEL_API bool accel__prepare(accel_t *acc, ...);
/* Adds the gradients of a scalar to every parameter and leaf it depends on. Several calls add up. */
ACCEL_API void accel_backward(accel_t *acc, accel_tensor loss);
/* Sets this micro-batch's weight in the pooled gradient instead of its first loss's divisor; before its first backward.
 */
ACCEL_API void accel_set_weight(accel_t *acc, double weight);
/* Micro-batches per optimizer step, from the next window on (n >= 1). */
ACCEL_API void accel_set_accumulate(accel_t *acc, int n);
/* Keeps this micro-batch from ending its window, whatever accumulate says, unless it is the epoch's last (Accelerate's
   no_sync). */
ACCEL_API void accel_no_sync(accel_t *acc);
/* Whether this micro-batch ends its window, so that accel_step will step (Accelerate's sync_gradients). */
ACCEL_API bool accel_sync_gradients(const accel_t *acc);
/* Optimizer steps of one epoch: batches divided by the accumulation, rounded up. */
ACCEL_API int64_t accel_steps_per_epoch(const accel_t *acc, const accel_loader *loader);
/* Moves a model to a device by name; "cpu" is always there. */
ACCEL_API bool accel_to(accel_model *model, const char *device);

/* ---- metrics: counts, one per example; a value that is not defined (no examples, a zero divisor) is 0 ---- */

ACCEL_API accel_metrics *accel_metrics_create(accel_t *acc, int classes);
/* For examples with any number of labels: each label is a yes/no count of its own. */
ACCEL_API accel_metrics *accel_metrics_create_multi_label(accel_t *acc, int labels);
/* Adds the arg-max of each row of logits [n, classes] against labels [n] (ACCEL_IGNORE is left out). */
ACCEL_API bool accel_metrics_add(accel_metrics *metrics, accel_tensor logits, const int32_t *labels, int n);
/* The same for multi-label metrics: logits [n, labels] against targets [n, labels] of 0 and 1. A label is predicted
   where its logit is above 0 (its probability above 1/2). */
ACCEL_API bool accel_metrics_add_multi_label(accel_metrics *metrics, accel_tensor logits, const float *targets, int n);
ACCEL_API void accel_metrics_reset(accel_metrics *metrics);
/* Examples counted so far. */
ACCEL_API int64_t accel_metrics_examples(const accel_metrics *metrics);
/* Confusion matrix; 0 for multi-label metrics. */
ACCEL_API int64_t accel_metrics_count(const accel_metrics *metrics, int label, int predicted);
/* Multi-label: the share of examples whose labels are all right (exact match, scikit-learn's accuracy_score). */
ACCEL_API double accel_accuracy(const accel_metrics *metrics);
/* Precision, recall and F1 of one class or label (zeros where there is none such), and averaged over all of them, those
   without examples included (scikit-learn's precision_recall_fscore_support with labels = 0 .. classes - 1). The binary
   average of anything but two classes is an error. */
ACCEL_API accel_prf accel_class_prf(const accel_metrics *metrics, int label);
ACCEL_API accel_prf accel_average_prf(const accel_metrics *metrics, accel_average average);
/* F1 of class 1 where there are two classes, the mean over the classes (macro) otherwise. */
ACCEL_API double accel_f1(const accel_metrics *metrics);
/* Not for multi-label metrics (0), like the next one. */
ACCEL_API double accel_matthews(const accel_metrics *metrics);
/* Accuracy of always guessing the most frequent label. */
ACCEL_API double accel_majority(const accel_metrics *metrics);

/* ---- metrics of scores: each pair once; they keep the values (8 bytes a pair), since ranks need them all ---- */

ACCEL_API accel_scores *accel_scores_create(accel_t *acc);
/* Adds the n elements of a float tensor of any shape against n targets, which must be finite. */
ACCEL_API bool accel_scores_add(accel_scores *scores, accel_tensor predicted, const float *targets, int n);
ACCEL_API void accel_scores_reset(accel_scores *scores);
ACCEL_API int64_t accel_scores_count(const accel_scores *scores);
/* Pearson's and Spearman's correlation (ties have their average rank); 0 where one side does not vary, NaN where a
   prediction is NaN, or on lack of memory. They do not depend on how the pairs were cut into batches. */
ACCEL_API double accel_pearson(const accel_scores *scores);
ACCEL_API double accel_spearman(const accel_scores *scores);
/* 0 without pairs. */
ACCEL_API double accel_mean_squared_error(const accel_scores *scores);

/* ---- gradient check ---- */

/* Compares the gradient of fn with four-point central differences, for every element of every input: leaf tensors or
   parameters made by the caller and kept (accel_keep) or owned by a model. fn builds its result from them each time it
   is called. Returns the largest error relative to the input's largest gradient (or 1e-2 where that is more) and
   records an error above the tolerance. */
ACCEL_API float accel_gradient_check(accel_t *acc,
                                     accel_tensor (*fn)(accel_t *acc, const accel_tensor *inputs, void *user),
                                     const accel_tensor *inputs, int count, void *user,
                                     const accel_gradient_check_desc *desc);

/* ============================================= >>companions =======================================================
   For accel_io.h and other companion headers, not for programs. */

typedef enum accel__kind {
    ACCEL__MODEL = 0x41434331, ACCEL__OPTIMIZER, ACCEL__SCHEDULE, ACCEL__DATA, ACCEL__LOADER, ACCEL__METRICS,
    ACCEL__TOKENIZER, ACCEL__TABLE, ACCEL__SAFETENSORS,
    ACCEL__REGISTERED, ACCEL__SCORES, ACCEL__TRACKER, ACCEL__EMA, ACCEL__TRACE
} accel__kind;

/* First member of every object that a context owns. `uses` are objects that must outlive this one. */
typedef struct accel__object {
    accel__kind kind;
    int users;
    accel_t *acc;
    struct accel__object *uses[4];
    void (*destroy)(struct accel__object *object); /* frees what hangs on it, not the object itself */
    struct accel__object *next, *previous;
} accel__object;

/* Allocates a zeroed object of `bytes` bytes owned by the context; NULL, with the error recorded, on failure. */
ACCEL_API void *accel__object_create(accel_t *acc, accel__kind kind, size_t bytes,
                                     void (*destroy)(accel__object *object));
ACCEL_API void accel__object_use(accel__object *object, accel__object *used);
/* Records a failure unless one is recorded already. Always returns false. Calling thread of the context only. */
ACCEL_API bool accel__fail(accel_t *acc, accel_code code, const char *format, ...) ACCEL_PRINTF(3, 4);
/* Sends a notice to the log function. */
ACCEL_API void accel__note(accel_t *acc, const char *format, ...) ACCEL_PRINTF(2, 3);
/* Memory through the context's allocator, aligned to 64 bytes; NULL, with the error recorded, on failure. bytes 0 gives
   a valid pointer. */
ACCEL_API void *accel__alloc(accel_t *acc, size_t bytes);
ACCEL_API void *accel__realloc(accel_t *acc, void *pointer, size_t bytes);
ACCEL_API void accel__free(accel_t *acc, void *pointer);
ACCEL_API char *accel__strdup(accel_t *acc, const char *text);
/* Runs run(argument, piece) for each piece on the context's threads; returns when all are done. run must not touch the
   context. */
ACCEL_API void accel__parallel(accel_t *acc, int pieces, void (*run)(void *argument, int piece), void *argument);
/* An encoder whose parameters have no values yet, for a loader that fills them. */
ACCEL_API accel_model *accel__encoder_build(accel_t *acc, const accel_encoder_config *config);
/* Direct pointers to a parameter's values (host memory of the CPU back end), for loading; NULL on error. */
ACCEL_API float *accel__values(accel_tensor x);
/* To be called after a parameter's values were written through accel__values. */
ACCEL_API void accel__values_changed(accel_tensor x);
/* True where `name` matches one of the comma-separated patterns ('*' stands for any text). */
ACCEL_API bool accel__match(const char *patterns, const char *name);
/* 64-bit mix of two numbers: the counted random numbers' only source. */
ACCEL_API uint64_t accel__mix(uint64_t a, uint64_t b);

/* ---- the back-end table: what a device has to offer. Pointers are device memory, matrices are row-major, `add` means
   that results are added to what is there. A kernel cuts its work by shapes alone, so that its bits do not depend on
   the number of threads. ---- */

/* Packed forms of a parameter that a back end keeps until its version changes: as B read transposed or not, or as it
   suits. */
typedef struct accel_packed {
    void *memory[2];
    uint64_t packed[2]; /* version of each form; 0: none */
    uint64_t version;   /* of the parameter, from 1 */
} accel_packed;

/* C[m, n] (+)= alpha op(A) op(B), for each of `batch` matrices `stride_*` elements apart. Then, unless add: bias[n] is
   added, the result goes to `before` where that is set, and C gets its activation. */
typedef struct accel_gemm {
    bool transpose_a, transpose_b, add;
    int m, n, k, lda, ldb, ldc, batch;
    int64_t stride_a, stride_b, stride_c;
    float alpha;
    const float *a, *b, *bias;
    float *c, *before;
    accel_activation activation;
    accel_precision precision;
    accel_packed *keep;     /* B's, where it is a parameter; else NULL */
} accel_gemm;

/* Which elements dropout zeroes: feature j of row r, by the bits of (key, row key, j). */
typedef struct accel_mask {
    float p;                /* 0: none */
    uint64_t key;
    const uint64_t *rows;   /* key of each row, or NULL: first_row + r */
    uint64_t first_row;
} accel_mask;

typedef enum accel_map_kind {
    ACCEL_MAP_CLAMP, /* to -value .. value */
    ACCEL_MAP_SCALE, ACCEL_MAP_EXP, ACCEL_MAP_LOG, ACCEL_MAP_SQRT, ACCEL_MAP_ACTIVATION /* + accel_activation */
} accel_map_kind;

/* Forward: out = f(x). Backward (dy set): out (+)= dy f'(x), where y = f(x) may be used as well. */
typedef struct accel_map {
    int kind;
    int64_t n;
    float value; /* the factor or the slope */
    const float *x, *y, *dy;
    float *out;
    bool add;
} accel_map;

typedef enum accel_pair_kind { ACCEL_PAIR_ADD, ACCEL_PAIR_SUB, ACCEL_PAIR_MUL, ACCEL_PAIR_DIV } accel_pair_kind;

/* Forward: out = a op b over dim, strides 0 where broadcast. Backward (dy set, dense): out (+)= the gradient for
   operand 0 or 1, dense. */
typedef struct accel_pair {
    accel_pair_kind kind;
    int operand;
    int dim[4];
    int64_t stride_a[4], stride_b[4];
    const float *a, *b, *dy;
    float *out;
    bool add;
} accel_pair;

/* x seen as [outer, n, inner]. Reduce: out[outer, inner] (+)= scale * sum over n of x. Expand: out[outer, n, inner]
   (+)= scale * x[outer, inner]. */
typedef struct accel_axis {
    int64_t outer, n, inner;
    int64_t stride; /* of n in x, for reduce with inner > 1; 0: inner */
    float scale;
    const float *x;
    float *out;
    bool add;
} accel_axis;

/* out[index * stride_out] (+)= scale * x[index * stride_x] over dim (scale 1 without add also moves int32 unchanged).
 */
typedef struct accel_move {
    int dim[4];
    int64_t stride_x[4], stride_out[4];
    const float *x;
    float *out;
    float scale;
    bool add;
} accel_move;

/* Gather: out[i, :] = table[ids[i], :]. Scatter: out[ids[i], :] += x[i, :], rows in order, except where ids[i] ==
   padding. */
typedef struct accel_rows {
    const float *x;
    const int32_t *ids;
    float *out;
    int n, width;
    int32_t padding;
} accel_rows;

/* Where there is a residual, x becomes residual + dropout(x), in place; out = (x - mean) rstd weight + bias.
   Backward: x as forward left it; gradients of residual (or x, where residual is NULL) and of dropout's x, and `partial`
   [blocks of ACCEL_NORM_BLOCK rows, 2, width]: the blocks' sums for weight and bias. */
enum { ACCEL_NORM_BLOCK = 32 };
typedef struct accel_norm {
    int rows, width;
    float eps;
    accel_mask mask;
    float *x;
    const float *residual, *weight, *bias;
    float *out, *mean, *rstd;
    const float *dy;
    float *dresidual, *dx, *partial; /* dx NULL: not wanted, or the same as dresidual */
    bool add_residual, add_x;
} accel_norm;

/* Softmax or log-softmax of rows. Backward: y and dy set. */
typedef struct accel_softmax_rows {
    int64_t rows;
    int width;
    bool log;
    const float *x, *y, *dy;
    float *out;
    bool add;
} accel_softmax_rows;

/* out (+)= dropout(x); its own backward with x = dy. */
typedef struct accel_drop {
    int64_t rows, width;
    accel_mask mask;
    const float *x;
    float *out;
    bool add;
} accel_drop;

/* Packed self-attention. qkv [tokens, 3 width]; probabilities: for each sequence and head a [length, length] matrix,
   before dropout, those of sequence s from begin[s] on. Backward (dout set): dqkv is written (or added to). scratch: 2
   longest^2 floats per thread. */
typedef struct accel_attend {
    int sequences, heads, width, longest;
    const int32_t *offsets;
    const int64_t *begin;
    accel_mask mask;
    const float *qkv, *dout;
    float *probabilities, *out, *dqkv, *scratch;
    bool add;
} accel_attend;

/* Per row: loss[i] = the row's loss times its class weight, 0 where ignored; dx = its gradient for the logits (not yet
   divided). */
typedef struct accel_cross_entropy_rows {
    int n, classes;
    float smoothing;
    const float *x, *class_weights;
    const int32_t *labels;
    float *loss, *dx;
} accel_cross_entropy_rows;

/* loss[block of ACCEL_LOSS_BLOCK elements] = their sum; da and db (may be NULL) the gradients for a and b (not yet
   divided). */
enum { ACCEL_LOSS_BLOCK = 4096 };
typedef struct accel_pointwise_loss {
    bool bce; /* else squared error */
    int64_t n;
    const float *a, *b;
    float *loss, *da, *db;
} accel_pointwise_loss;

/* A stretch of one parameter for the optimizer. Where row_width is set, only rows in `touched` have a gradient (others:
   zero), and rows whose has_moments is false are left alone unless they are touched or decay. */
enum { ACCEL_UPDATE_BLOCK = 16384 };
typedef struct accel_update {
    int64_t n;
    float *value, *m, *v, *v_max; /* moments; NULL where not used */
    const float *gradient;
    int row_width;
    const bool *touched;
    bool *has_moments;
    float lr, weight_decay;
    float correction1, sqrt_correction2; /* Adam: 1 - beta1^t, sqrt(1 - beta2^t)              */
    bool first;                          /* SGD: the momentum buffer starts as the gradient */
} accel_update;

typedef enum accel_rule { ACCEL_RULE_ADAM, ACCEL_RULE_ADAMW, ACCEL_RULE_SGD } accel_rule;
typedef struct accel_update_rule {
    accel_rule rule;
    float scale;           /* of the gradient: clipping and the pooled weight */
    float beta1, beta2, eps;
    float momentum, dampening;
    bool nesterov;
} accel_update_rule;

typedef struct accel_backend {
    const char *name;
    void *(*alloc)(accel_t *acc, size_t bytes);
    void *(*alloc_zero)(accel_t *acc, size_t bytes); /* only what is written to takes room, where the system can */
    void (*release)(accel_t *acc, void *memory);
    void (*upload)(accel_t *acc, void *device, const void *host, size_t bytes);
    void (*download)(accel_t *acc, void *host, const void *device, size_t bytes);
    void (*fill)(accel_t *acc, float *x, int64_t n, float value);
    void (*gemm)(accel_t *acc, const accel_gemm *list, int count);
    void (*map)(accel_t *acc, const accel_map *args);
    void (*pair)(accel_t *acc, const accel_pair *args);
    void (*reduce)(accel_t *acc, const accel_axis *args);
    void (*expand)(accel_t *acc, const accel_axis *args);
    void (*move)(accel_t *acc, const accel_move *args);
    void (*gather)(accel_t *acc, const accel_rows *args);
    void (*scatter)(accel_t *acc, const accel_rows *args);
    void (*norm)(accel_t *acc, const accel_norm *args);
    void (*norm_backward)(accel_t *acc, const accel_norm *args);
    void (*softmax)(accel_t *acc, const accel_softmax_rows *args);
    void (*drop)(accel_t *acc, const accel_drop *args);
    void (*attend)(accel_t *acc, const accel_attend *args);
    void (*attend_backward)(accel_t *acc, const accel_attend *args);
    void (*cross_entropy)(accel_t *acc, const accel_cross_entropy_rows *args);
    void (*pointwise_loss)(accel_t *acc, const accel_pointwise_loss *args);
    void (*squares)(accel_t *acc, const accel_update *list, int count, double *sums); /* of gradients, per stretch */
    void (*update)(accel_t *acc, const accel_update *list, int count, const accel_update_rule *rule);
} accel_backend;

#ifdef __cplusplus
}
#endif
#endif /* ACCEL_H */

/* ================================================================================================================
   implementation
   ================================================================================================================ */
#if defined(ACCEL_IMPLEMENTATION) && !defined(ACCEL_IMPLEMENTED)
#define ACCEL_IMPLEMENTED

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "accel.h needs IEEE arithmetic: compile its implementation without -ffast-math and -ffinite-math-only"
#endif

#include <cblas.h>
#include <errno.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

#define ACCEL__COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

/* ---- private types ---- */

typedef struct accel__slab accel__slab;
typedef struct accel__block accel__block;
typedef struct accel__slot accel__slot;
typedef struct accel__node accel__node;
typedef struct accel__param accel__param;
typedef struct accel__pool accel__pool;
typedef struct accel__trace accel__trace;

/* A counted piece of a slab: the storage of tensors and gradients. */
struct accel__block {
    char *base;
    size_t bytes;
    int references; /* 0: free */
    accel__block *previous, *next;           /* neighbours in the slab, or the list of unused descriptors */
    accel__block *previous_free, *next_free; /* in the list of free blocks */
};

struct accel__slab {
    void *memory;
    size_t bytes;
    accel__block *first;
    accel__slab *next;
};

enum { ACCEL__TRAINING, ACCEL__EVALUATION, ACCEL__KEPT, ACCEL__SCOPES };

/* What was pooled into a gradient: the sum of the micro-batches' weights, and what clipping made of it. */
typedef struct accel__window {
    double weight;
    uint64_t micro;    /* the last micro-batch that is in the sum */
    uint64_t round;    /* counts its resets: parameters of an earlier round have no gradient */
    bool consumed;     /* a step was taken: the next backward starts afresh */
    double clip;       /* factor of clipping, 1 without */
    double norm;       /* of the divided, unclipped gradient; negative: not known */
} accel__window;

/* What a tensor handle refers to. */
struct accel__slot {
    uint32_t index, generation;
    bool live, requires_grad;
    int scope;
    accel_type type;
    accel_shape shape;
    int64_t count;
    void *data;
    accel__block *block;      /* of data; NULL for parameters */
    accel__block *grad;       /* NULL: none has arrived */
    accel__node *node;        /* the operation that made it; NULL for leaves */
    accel__param *param;      /* NULL: not a parameter */
    accel__window window;     /* of a leaf's gradient */
    accel__slot *next;        /* in its scope, or in the list of free slots */
};

#define ACCEL__MAX_INPUTS 12
#define ACCEL__MAX_SAVED 4
/* A recorded operation. Operations embed it as the first member of a struct with what their backward needs. */
struct accel__node {
    void (*backward)(accel_t *acc, accel__node *node);
    accel__slot *output;
    accel__slot **input;
    int input_count;
    accel__block *saved[ACCEL__MAX_SAVED];
    accel__node *previous; /* recorded before this one */
};

enum { ACCEL__NO_GRADIENT, ACCEL__ROWS, ACCEL__DENSE };

struct accel__param {
    char *name;
    accel__slot *slot;
    accel_model *model;
    accel_optimizer *optimizer;
    float *gradient;
    int gradient_state;      /* nothing, some rows, all elements */
    uint64_t round;          /* of the window that the state belongs to */
    int64_t steps;           /* taken with it: the count in Adam's bias correction */
    accel_packed packed;     /* of the first of joined parameters: of all of them */
    accel__param *joined;    /* the first one, where this is another */
    int32_t *touched;        /* ACCEL__ROWS: the rows with a gradient, in order of arrival */
    int32_t touched_count;
    bool *is_touched;        /* [rows] */
    bool *has_moments;       /* [rows] whether a row's optimizer state may be other than zero; NULL: every row's may */
    float *moment[3];        /* optimizer state, NULL where not used */
    float lr, weight_decay;  /* of its group; lr 0: the optimizer's */
    double lr_scale;         /* of its layer */
    void *storage;           /* what to free: the first of joined parameters owns the storage of all */
};

/* Bump allocator for nodes: reset at the end of a scope, its memory is kept. */
typedef struct accel__chunk {
    struct accel__chunk *next;
    size_t used, size;
} accel__chunk;

typedef struct accel__micro {
    uint64_t id;
    double weight;
    bool weight_set, had_backward, no_sync;
    int64_t examples;
    uint64_t calls;          /* random operations so far */
} accel__micro;

struct accel_t {
    accel_desc desc;
    accel_code code;
    char message[1024];
    accel_memory memory;
    const struct accel_backend *backend;
    accel__pool *pool;
    accel__trace *trace;     /* NULL: nobody looks on */
    accel__object *objects;
    /* storage of tensors */
    accel__slab *slabs;
    accel__block *unused_blocks, *free_blocks;
    void **block_chunks;     /* stb_ds array */
    accel__slot **slots;     /* stb_ds array of all slots ever made */
    accel__slot *free_slots;
    accel__slot *scope[ACCEL__SCOPES];
    accel__chunk *chunks, *chunk;
    accel__node *tape;       /* the operation recorded last */
    int checkpoints;         /* depth of functions of accel_checkpoint that are running */
    int evaluating;          /* depth of accel_eval_begin */
    uint64_t evaluation_calls; /* random operations in evaluation: they leave the step's alone */
    void *staging;           /* host memory for values on their way, kept */
    size_t staging_bytes;
    /* accumulation */
    accel__micro micro;
    int accumulate, next_accumulate, window_index;
    bool last_of_epoch;
    int64_t window_examples; /* in the window's micro-batches before this one */
    int64_t steps;           /* windows completed */
    const accel_loader *loader; /* that gave the batch in work, for messages; or NULL */
};

/* =============================================== >>memory =========================================================
   Host memory comes from the context's allocator, 64-byte aligned behind a header; tensors live in slabs cut into
   blocks. */

#define ACCEL__ALIGNMENT 64
#define ACCEL__LARGE ((size_t)8 << 20) /* bytes from which on it matters what pages a block lies in */

typedef struct accel__header {
    void *raw;
    size_t bytes; /* as asked for from the allocator */
    accel_t *acc;
} accel__header;

/* Large blocks in huge pages, where the system gives them when asked: fewer faults, and fewer misses of address
   translation in the matrix products. */
static void *accel__allocate_huge(size_t bytes) {
    enum { PAGE = 2 << 20 };
    void *pointer = aligned_alloc(PAGE, (bytes + PAGE - 1) / PAGE * PAGE);
#ifdef MADV_HUGEPAGE
    if (pointer) madvise(pointer, bytes / PAGE * PAGE, MADV_HUGEPAGE);
#endif
    return pointer;
}

static void *accel__default_reallocate(void *user, void *pointer, size_t bytes) {
    (void)user;
    if (!pointer && bytes >= ACCEL__LARGE) return accel__allocate_huge(bytes);
    if (bytes) return realloc(pointer, bytes);
    free(pointer);
    return NULL;
}

static accel__header *accel__header_of(void *pointer) {
    return (accel__header *)(void *)((char *)pointer - sizeof(accel__header));
}

ACCEL_API bool accel__fail(accel_t *acc, accel_code code, const char *format, ...) {
    if (!acc || acc->code != ACCEL_OK) return false;
    acc->code = code;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(acc->message, sizeof acc->message, format, arguments);
    va_end(arguments);
    return false;
}

ACCEL_API void accel__note(accel_t *acc, const char *format, ...) {
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (acc && acc->desc.log) acc->desc.log(acc->desc.log_user, line);
    else fprintf(stderr, "accel: %s\n", line);
}

static void *accel__no_memory(accel_t *acc, size_t bytes) {
    accel__fail(acc, ACCEL_OUT_OF_MEMORY, "out of memory: %zu bytes more were needed, %zu are in use", bytes,
                acc->memory.bytes);
    return NULL;
}

static size_t accel__with_header(size_t bytes) {
    return bytes + sizeof(accel__header) + ACCEL__ALIGNMENT;
}

/* Memory behind a header, in `raw` of accel__with_header(bytes). */
static void *accel__behind_header(accel_t *acc, void *raw, size_t bytes) {
    acc->memory.calls++;
    if (!raw) return accel__no_memory(acc, bytes);
    uintptr_t first = (uintptr_t)raw + sizeof(accel__header);
    void *pointer = (void *)((first + ACCEL__ALIGNMENT - 1) & ~(uintptr_t)(ACCEL__ALIGNMENT - 1));
    *accel__header_of(pointer) = (accel__header){raw, bytes, acc};
    acc->memory.bytes += bytes;
    if (acc->memory.bytes > acc->memory.peak_bytes) acc->memory.peak_bytes = acc->memory.bytes;
    return pointer;
}

ACCEL_API void *accel__alloc(accel_t *acc, size_t bytes) {
    if (!acc) return NULL;
    if (bytes > SIZE_MAX / 2) return accel__no_memory(acc, bytes);
    void *raw = acc->desc.allocator.reallocate(acc->desc.allocator.user, NULL, accel__with_header(bytes));
    return accel__behind_header(acc, raw, bytes);
}

ACCEL_API void accel__free(accel_t *acc, void *pointer) {
    if (!acc || !pointer) return;
    accel__header *header = accel__header_of(pointer);
    acc->memory.bytes -= header->bytes;
    acc->memory.calls++;
    acc->desc.allocator.reallocate(acc->desc.allocator.user, header->raw, 0);
}

ACCEL_API void *accel__realloc(accel_t *acc, void *pointer, size_t bytes) {
    void *moved = accel__alloc(acc, bytes);
    if (!moved || !pointer) return moved;
    size_t old = accel__header_of(pointer)->bytes;
    memcpy(moved, pointer, old < bytes ? old : bytes);
    accel__free(acc, pointer);
    return moved;
}

/* Large blocks as the system gives them: pages that nobody writes to take no room. */
static void *accel__alloc_zero(accel_t *acc, size_t bytes) {
    if (acc && acc->desc.allocator.reallocate == accel__default_reallocate && bytes >= ACCEL__LARGE && bytes < SIZE_MAX / 2)
        return accel__behind_header(acc, calloc(1, accel__with_header(bytes)), bytes);
    void *pointer = accel__alloc(acc, bytes);
    if (pointer) memset(pointer, 0, bytes);
    return pointer;
}

ACCEL_API char *accel__strdup(accel_t *acc, const char *text) {
    size_t bytes = strlen(text) + 1;
    char *copy = (char *)accel__alloc(acc, bytes);
    if (copy) memcpy(copy, text, bytes);
    return copy;
}

/* Host memory for values on their way to or from the device, until the next call. */
static void *accel__staging(accel_t *acc, size_t bytes) {
    if (acc->staging && acc->staging_bytes >= bytes) return acc->staging;
    accel__free(acc, acc->staging);
    acc->staging = accel__alloc(acc, bytes);
    acc->staging_bytes = acc->staging ? bytes : 0;
    return acc->staging;
}

/* ---- growing arrays: stb_ds. A failed allocation inside it would crash, so its realloc hook hands out memory that
   accel__push reserved before. ---- */

static _Thread_local void *accel__stb_reserved;

static void *accel__stb_realloc(void *old, size_t bytes) {
    void *fresh = accel__stb_reserved;
    accel__stb_reserved = NULL;
    if (old) {
        accel__header *header = accel__header_of(old);
        memcpy(fresh, old, header->bytes < bytes ? header->bytes : bytes);
        accel__free(header->acc, old);
    }
    return fresh;
}

__attribute__((unused)) static void accel__stb_nothing(void) {}

static void accel__stb_free(void *pointer) {
    if (pointer) accel__free(accel__header_of(pointer)->acc, pointer);
}

/* stb_ds under private names, invisible outside: a program may use stb_ds itself, in this file or another, before or
   after this include. Only its arrays are used, and only through the functions below. */
#include <assert.h>
#ifdef INCLUDE_STB_DS_H
#define ACCEL__STB_WAS_THERE
#undef INCLUDE_STB_DS_H
#endif
#pragma push_macro("STB_DS_IMPLEMENTATION")
#pragma push_macro("STBDS_NO_SHORT_NAMES")
#pragma push_macro("STBDS_REALLOC")
#pragma push_macro("STBDS_FREE")
#pragma push_macro("STBDS_ASSERT")
#undef STB_DS_IMPLEMENTATION
#undef STBDS_NO_SHORT_NAMES
#undef STBDS_REALLOC
#undef STBDS_FREE
#undef STBDS_ASSERT
#define STB_DS_IMPLEMENTATION
#define STBDS_NO_SHORT_NAMES
#define STBDS_REALLOC(context, pointer, bytes) accel__stb_realloc((pointer), (bytes))
#define STBDS_FREE(context, pointer) accel__stb_free(pointer)
#define STBDS_SH_ARENA ACCEL__STBDS_SH_ARENA
#define STBDS_SH_DEFAULT ACCEL__STBDS_SH_DEFAULT
#define STBDS_SH_NONE ACCEL__STBDS_SH_NONE
#define STBDS_SH_STRDUP ACCEL__STBDS_SH_STRDUP
#define STBDS_SIPHASH_2_4_can_only_be_used_in_64_bit_builds ACCEL__STBDS_SIPHASH_2_4_can_only_be_used_in_64_bit_builds
#define stbds_array_header accel__stbds_array_header
#define stbds_arrfreef accel__stbds_arrfreef
#define stbds_arrgrowf accel__stbds_arrgrowf
#define stbds_hash_bucket accel__stbds_hash_bucket
#define stbds_hash_bytes accel__stbds_hash_bytes
#define stbds_hash_index accel__stbds_hash_index
#define stbds_hash_seed accel__stbds_hash_seed
#define stbds_hash_string accel__stbds_hash_string
#define stbds_hm_find_slot accel__stbds_hm_find_slot
#define stbds_hmdel_key accel__stbds_hmdel_key
#define stbds_hmfree_func accel__stbds_hmfree_func
#define stbds_hmget_key accel__stbds_hmget_key
#define stbds_hmget_key_ts accel__stbds_hmget_key_ts
#define stbds_hmput_default accel__stbds_hmput_default
#define stbds_hmput_key accel__stbds_hmput_key
#define stbds_is_key_equal accel__stbds_is_key_equal
#define stbds_log2 accel__stbds_log2
#define stbds_make_hash_index accel__stbds_make_hash_index
#define stbds_probe_position accel__stbds_probe_position
#define stbds_rand_seed accel__stbds_rand_seed
#define stbds_shmode_func accel__stbds_shmode_func
#define stbds_siphash_bytes accel__stbds_siphash_bytes
#define stbds_stralloc accel__stbds_stralloc
#define stbds_strdup accel__stbds_strdup
#define stbds_string_arena accel__stbds_string_arena
#define stbds_string_block accel__stbds_string_block
#define stbds_strreset accel__stbds_strreset
#ifdef __clang__
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wkeyword-macro"
#endif
#define extern static __attribute__((unused))
#define stbds_unit_tests accel__stb_nothing /* declared there, but defined nowhere */
#include <stb/stb_ds.h>
#undef stbds_unit_tests
#undef extern
#ifdef __clang__
#pragma clang diagnostic pop
#endif

typedef stbds_array_header accel__array_header;

/* Room for one more item; its memory was reserved by accel__array_reserve. */
static void *accel__array_grown(void *array, size_t item) {
    return stbds_arrgrowf(array, item, 1, 0);
}

static void accel__array_free(void *array) {
    if (array) stbds_arrfreef(array);
}

#undef STBDS_ASSERT
#pragma pop_macro("STBDS_ASSERT")
#pragma pop_macro("STBDS_FREE")
#pragma pop_macro("STBDS_REALLOC")
#pragma pop_macro("STBDS_NO_SHORT_NAMES")
#pragma pop_macro("STB_DS_IMPLEMENTATION")
#undef STBDS_SH_ARENA
#undef STBDS_SH_DEFAULT
#undef STBDS_SH_NONE
#undef STBDS_SH_STRDUP
#undef STBDS_SIPHASH_2_4_can_only_be_used_in_64_bit_builds
#undef stbds_array_header
#undef stbds_arrfreef
#undef stbds_arrgrowf
#undef stbds_hash_bucket
#undef stbds_hash_bytes
#undef stbds_hash_index
#undef stbds_hash_seed
#undef stbds_hash_string
#undef stbds_hm_find_slot
#undef stbds_hmdel_key
#undef stbds_hmfree_func
#undef stbds_hmget_key
#undef stbds_hmget_key_ts
#undef stbds_hmput_default
#undef stbds_hmput_key
#undef stbds_is_key_equal
#undef stbds_log2
#undef stbds_make_hash_index
#undef stbds_probe_position
#undef stbds_rand_seed
#undef stbds_shmode_func
#undef stbds_siphash_bytes
#undef stbds_stralloc
#undef stbds_strdup
#undef stbds_string_arena
#undef stbds_string_block
#undef stbds_strreset
#ifdef ACCEL__STB_WAS_THERE
#undef ACCEL__STB_WAS_THERE
#else
#undef INCLUDE_STB_DS_H
#undef STBDS_ADDRESSOF
#undef STBDS_ALIGN_FWD
#undef STBDS_ARR_TO_HASH
#undef STBDS_ASSERT_WAS_UNDEFINED
#undef STBDS_BUCKET_LENGTH
#undef STBDS_BUCKET_MASK
#undef STBDS_BUCKET_SHIFT
#undef STBDS_CACHE_LINE_SIZE
#undef STBDS_HASH_DELETED
#undef STBDS_HASH_EMPTY
#undef STBDS_HASH_TO_ARR
#undef STBDS_HAS_LITERAL_ARRAY
#undef STBDS_HAS_TYPEOF
#undef STBDS_HM_BINARY
#undef STBDS_HM_STRING
#undef STBDS_INDEX_DELETED
#undef STBDS_INDEX_EMPTY
#undef STBDS_INDEX_IN_USE
#undef STBDS_NOTUSED
#undef STBDS_OFFSETOF
#undef STBDS_ROTATE_LEFT
#undef STBDS_ROTATE_RIGHT
#undef STBDS_SIPHASH_C_ROUNDS
#undef STBDS_SIPHASH_D_ROUNDS
#undef STBDS_SIPROUND
#undef STBDS_SIZE_T_BITS
#undef STBDS_STATS
#undef STBDS_STRING_ARENA_BLOCKSIZE_MAX
#undef STBDS_STRING_ARENA_BLOCKSIZE_MIN
#undef stbds_arraddn
#undef stbds_arraddnindex
#undef stbds_arraddnoff
#undef stbds_arraddnptr
#undef stbds_arrcap
#undef stbds_arrdel
#undef stbds_arrdeln
#undef stbds_arrdelswap
#undef stbds_arrfree
#undef stbds_arrgrow
#undef stbds_arrgrowf_wrapper
#undef stbds_arrins
#undef stbds_arrinsn
#undef stbds_arrlast
#undef stbds_arrlen
#undef stbds_arrlenu
#undef stbds_arrmaybegrow
#undef stbds_arrpop
#undef stbds_arrpush
#undef stbds_arrput
#undef stbds_arrsetcap
#undef stbds_arrsetlen
#undef stbds_hash_table
#undef stbds_header
#undef stbds_hmdefault
#undef stbds_hmdefaults
#undef stbds_hmdel
#undef stbds_hmdel_key_wrapper
#undef stbds_hmfree
#undef stbds_hmget
#undef stbds_hmget_key_ts_wrapper
#undef stbds_hmget_key_wrapper
#undef stbds_hmget_ts
#undef stbds_hmgeti
#undef stbds_hmgeti_ts
#undef stbds_hmgetp
#undef stbds_hmgetp_null
#undef stbds_hmgetp_ts
#undef stbds_hmgets
#undef stbds_hmlen
#undef stbds_hmlenu
#undef stbds_hmput
#undef stbds_hmput_default_wrapper
#undef stbds_hmput_key_wrapper
#undef stbds_hmputs
#undef stbds_load_32_or_64
#undef stbds_pshdel
#undef stbds_pshget
#undef stbds_pshgeti
#undef stbds_pshput
#undef stbds_sh_new_arena
#undef stbds_sh_new_strdup
#undef stbds_shdefault
#undef stbds_shdefaults
#undef stbds_shdel
#undef stbds_shfree
#undef stbds_shget
#undef stbds_shgeti
#undef stbds_shgetp
#undef stbds_shgetp_null
#undef stbds_shgets
#undef stbds_shlen
#undef stbds_shlenu
#undef stbds_shmode_func_wrapper
#undef stbds_shput
#undef stbds_shputi
#undef stbds_shputs
#undef stbds_temp
#undef stbds_temp_key
#endif

static accel__array_header *accel__array_header_of(void *array) {
    return (accel__array_header *)array - 1;
}

static size_t accel__length(void *array) {
    return array ? accel__array_header_of(array)->length : 0;
}

static bool accel__array_reserve(accel_t *acc, void *array, size_t item) {
    size_t capacity = array ? accel__array_header_of(array)->capacity : 0;
    if (accel__length(array) < capacity) return true;
    size_t wanted = 2 * capacity > 4 ? 2 * capacity : 4;
    accel__stb_reserved = accel__alloc(acc, wanted * item + sizeof(accel__array_header));
    return accel__stb_reserved != NULL;
}

/* Appends to an array; false, with the error recorded, where memory is lacking. */
#define accel__push(acc, array, value)                                         \
    (accel__array_reserve((acc), (array), sizeof *(array))                     \
         ? ((array) = accel__array_grown((array), sizeof *(array)),            \
            (array)[accel__array_header_of(array)->length++] = (value), true)  \
         : false)

/* ---- slabs and blocks ---- */

static accel__block *accel__block_descriptor(accel_t *acc) {
    if (!acc->unused_blocks) {
        enum { per_chunk = 128 };
        accel__block *chunk = (accel__block *)accel__alloc(acc, per_chunk * sizeof *chunk);
        if (!chunk) return NULL;
        if (!accel__push(acc, acc->block_chunks, chunk)) {
            accel__free(acc, chunk);
            return NULL;
        }
        for (int i = 0; i < per_chunk; i++) {
            chunk[i].next = acc->unused_blocks;
            acc->unused_blocks = &chunk[i];
        }
    }
    accel__block *block = acc->unused_blocks;
    acc->unused_blocks = block->next;
    *block = (accel__block){0};
    return block;
}

static void accel__block_set_free(accel_t *acc, accel__block *block) {
    block->references = 0;
    block->previous_free = NULL;
    block->next_free = acc->free_blocks;
    if (block->next_free) block->next_free->previous_free = block;
    acc->free_blocks = block;
}

static void accel__block_set_used(accel_t *acc, accel__block *block) {
    if (block->next_free) block->next_free->previous_free = block->previous_free;
    if (block->previous_free) block->previous_free->next_free = block->next_free;
    else acc->free_blocks = block->next_free;
}

static void accel__block_discard(accel_t *acc, accel__block *block) {
    block->next = acc->unused_blocks;
    acc->unused_blocks = block;
}

/* A slab at least as large as the memory in use so far, so that a few suffice; the system commits only what is touched.
 */
static accel__slab *accel__slab_add(accel_t *acc, size_t bytes) {
    size_t total = (size_t)1 << 20;
    for (accel__slab *slab = acc->slabs; slab; slab = slab->next) total += slab->bytes;
    if (bytes < total) bytes = total;
    accel__slab *slab = (accel__slab *)accel__alloc_zero(acc, sizeof *slab);
    accel__block *block = slab ? accel__block_descriptor(acc) : NULL;
    void *memory = block ? accel__alloc(acc, bytes) : NULL;
    if (!memory) {
        if (block) accel__block_discard(acc, block);
        accel__free(acc, slab);
        return NULL;
    }
    block->base = (char *)memory;
    block->bytes = bytes;
    *slab = (accel__slab){memory, bytes, block, acc->slabs};
    acc->slabs = slab;
    accel__block_set_free(acc, block);
    return slab;
}

static accel__block *accel__best_free_block(accel_t *acc, size_t bytes) {
    accel__block *best = NULL;
    for (accel__block *block = acc->free_blocks; block; block = block->next_free)
        if (block->bytes >= bytes && (!best || block->bytes < best->bytes)) best = block;
    return best;
}

/* A block with one reference; NULL, with the error recorded, where memory is lacking. */
static accel__block *accel__block_new(accel_t *acc, size_t bytes) {
    bytes = (bytes + ACCEL__ALIGNMENT - 1) & ~(size_t)(ACCEL__ALIGNMENT - 1);
    if (!bytes) bytes = ACCEL__ALIGNMENT;
    accel__block *block = accel__best_free_block(acc, bytes);
    if (!block) {
        accel__slab *slab = accel__slab_add(acc, bytes);
        if (!slab) return NULL;
        block = slab->first;
    }
    if (block->bytes > bytes) {
        accel__block *rest = accel__block_descriptor(acc);
        if (!rest) return NULL;
        *rest = (accel__block){block->base + bytes, block->bytes - bytes, 0, block, block->next, NULL, NULL};
        accel__block_set_free(acc, rest);
        if (rest->next) rest->next->previous = rest;
        block->next = rest;
        block->bytes = bytes;
    }
    accel__block_set_used(acc, block);
    block->references = 1;
    return block;
}

static void accel__block_merge_next(accel_t *acc, accel__block *block) {
    accel__block *next = block->next;
    if (!next || next->references || block->references) return;
    accel__block_set_used(acc, next);
    block->bytes += next->bytes;
    block->next = next->next;
    if (block->next) block->next->previous = block;
    accel__block_discard(acc, next);
}

static void accel__block_release(accel_t *acc, accel__block *block) {
    if (!block || --block->references > 0) return;
    accel__block_set_free(acc, block);
    accel__block_merge_next(acc, block);
    if (block->previous) accel__block_merge_next(acc, block->previous);
}

static float *accel__floats(const accel__block *block) {
    return block ? (float *)(void *)block->base : NULL;
}

/* ---- memory of nodes ---- */

static void *accel__node_alloc(accel_t *acc, size_t bytes) {
    bytes = (bytes + 15) & ~(size_t)15;
    while (acc->chunk && acc->chunk->used + bytes > acc->chunk->size) acc->chunk = acc->chunk->next;
    if (!acc->chunk) {
        size_t size = bytes > 65536 ? bytes : 65536;
        accel__chunk *chunk = (accel__chunk *)accel__alloc(acc, sizeof *chunk + size);
        if (!chunk) return NULL;
        *chunk = (accel__chunk){NULL, 0, size};
        accel__chunk **end = &acc->chunks;
        while (*end) end = &(*end)->next;
        *end = acc->chunk = chunk;
    }
    char *memory = (char *)(acc->chunk + 1) + acc->chunk->used;
    acc->chunk->used += bytes;
    memset(memory, 0, bytes);
    return memory;
}

static void accel__nodes_reset(accel_t *acc) {
    for (accel__chunk *chunk = acc->chunks; chunk; chunk = chunk->next) chunk->used = 0;
    acc->chunk = acc->chunks;
}

/* ---- objects ---- */

ACCEL_API void *accel__object_create(accel_t *acc, accel__kind kind, size_t bytes,
                                     void (*destroy)(accel__object *object)) {
    if (!acc || acc->code != ACCEL_OK) return NULL;
    accel__object *object = (accel__object *)accel__alloc_zero(acc, bytes);
    if (!object) return NULL;
    object->kind = kind;
    object->acc = acc;
    object->destroy = destroy;
    object->next = acc->objects;
    if (object->next) object->next->previous = object;
    acc->objects = object;
    return object;
}

ACCEL_API void accel__object_use(accel__object *object, accel__object *used) {
    for (int i = 0; i < ACCEL__COUNT(object->uses); i++) {
        if (object->uses[i]) continue;
        object->uses[i] = used;
        used->users++;
        return;
    }
}

static void accel__object_destroy(accel__object *object) {
    accel_t *acc = object->acc;
    if (object->destroy) object->destroy(object);
    for (int i = 0; i < ACCEL__COUNT(object->uses); i++)
        if (object->uses[i]) object->uses[i]->users--;
    if (object->next) object->next->previous = object->previous;
    if (object->previous) object->previous->next = object->next;
    else acc->objects = object->next;
    accel__free(acc, object);
}

static const char *accel__kind_text(accel__kind kind) {
    static const char *const text[] = {"model",     "optimizer", "schedule",        "data", "loader", "metrics",
                                       "tokenizer", "table",     "safetensors file", "registered memory",
                                       "scores",    "tracker",   "moving average"};
    unsigned index = (unsigned)kind - (unsigned)ACCEL__MODEL;
    return index < (unsigned)ACCEL__COUNT(text) ? text[index] : "object of no known kind";
}

/* A function of accel_checkpoint may be called again: it must not change what lives outside of it. */
static bool accel__outside_checkpoint(accel_t *acc, const char *where) {
    return !acc->checkpoints ||
           accel__fail(acc, ACCEL_BAD_STATE, "%s: not in a function that accel_checkpoint calls", where);
}

ACCEL_API void accel_free(void *pointer) {
    accel__object *object = (accel__object *)pointer;
    if (!object || !accel__outside_checkpoint(object->acc, "accel_free")) return;
    if (object->users) {
        accel__fail(object->acc, ACCEL_BAD_STATE,
                    "accel_free: this %s is in use by %d other object%s: free those first",
                    accel__kind_text(object->kind), object->users, object->users == 1 ? "" : "s");
        return;
    }
    accel__object_destroy(object);
}

/* =============================================== >>threads ========================================================
   Workers claim pieces of a job from one atomic word: its upper half counts jobs, its lower half the pieces claimed. A
   worker that comes late finds another count there, so nobody waits for it. */

struct accel__pool {
    int workers;
    int spins;                        /* looks at the word before a worker sleeps */
    pthread_t *thread;
    _Atomic(uint64_t) word;
    _Atomic(void (*)(void *, int)) run;
    _Atomic(void *) argument;
    atomic_int pieces, done, sleepers;
    atomic_bool quit;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
};

/* Number of the thread within its context: 0 for the caller's, 1 .. workers for ours. */
static _Thread_local int accel__thread_index;

/* ---- spans: what accel_trace_begin of accel_io.h has recorded. The calling thread makes the room, while no piece runs;
   the thread that runs a piece notes it. ---- */

enum { ACCEL__TRACE_DEPTH = 16, ACCEL__TRACE_LIMIT = 1 << 20 /* spans of one thread */ };

typedef struct accel__span {
    const char *name, *fields; /* literals; fields: names of the numbers, separated by commas, or NULL */
    int64_t number[4];
    int64_t begin, end;        /* nanoseconds of the monotonic clock */
} accel__span;

typedef struct accel__thread_spans {
    accel__span *span;
    size_t count, room;
    char apart[64]; /* each thread's on a cache line of its own */
} accel__thread_spans;

struct accel__trace {
    accel__object object;
    char *path;
    const accel_backend *plain; /* the table that does the work */
    accel_backend table;        /* the one that tells the trace of it */
    accel__thread_spans *threads;
    int thread_count;
    accel__span open[ACCEL__TRACE_DEPTH]; /* of the calling thread */
    int depth, evaluation;                /* evaluation: its place among the open ones, or -1 */
    int64_t began;
    bool full;
};

static int64_t accel__now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* Room for `more` spans of every thread, besides those that are open; false where there is none. */
static bool accel__trace_room(accel_t *acc, size_t more) {
    accel__trace *trace = acc->trace;
    for (int i = 0; i < trace->thread_count && !trace->full; i++) {
        accel__thread_spans *own = &trace->threads[i];
        size_t need = own->count + more + ACCEL__TRACE_DEPTH, room = 2 * own->room > need ? 2 * own->room : need;
        if (need <= own->room) continue;
        accel__span *larger =
            need > ACCEL__TRACE_LIMIT ? NULL : (accel__span *)accel__realloc(acc, own->span, room * sizeof *larger);
        if (!larger) trace->full = true;
        else own->span = larger, own->room = room;
    }
    return !trace->full;
}

/* Opens a span of the calling thread. Returns what accel__span_end wants. */
static int accel__span_begin(accel_t *acc, const char *name, const char *fields, int64_t a, int64_t b, int64_t c,
                             int64_t d) {
    accel__trace *trace = acc->trace;
    if (!trace || trace->depth == ACCEL__TRACE_DEPTH || !accel__trace_room(acc, 1)) return -1;
    trace->open[trace->depth] = (accel__span){name, fields, {a, b, c, d}, accel__now(), 0};
    return trace->depth++;
}

/* Closes it, and those within it that are still open. */
static void accel__span_end(accel_t *acc, int place) {
    accel__trace *trace = acc->trace;
    if (!trace || place < 0) return;
    int64_t now = accel__now();
    while (trace->depth > place) {
        accel__span *span = &trace->open[--trace->depth];
        span->end = now;
        trace->threads[0].span[trace->threads[0].count++] = *span;
    }
}

typedef struct accel__open_span {
    accel_t *acc;
    int place;
} accel__open_span;

static void accel__span_close(accel__open_span *span) { accel__span_end(span->acc, span->place); }

/* A span until the end of the block, however it is left. */
#define ACCEL__SPAN(acc, name, field, number)                                                  \
    __attribute__((cleanup(accel__span_close), unused)) accel__open_span accel__open = {       \
        (acc), (acc)->trace ? accel__span_begin((acc), name, field, (number), 0, 0, 0) : -1}

typedef struct accel__traced {
    accel__trace *trace;
    void (*kernel)(void *, int);
    void *argument;
} accel__traced;

/* Runs a piece and notes it under the name of the span that it is part of. */
static void accel__traced_piece(void *argument, int piece) {
    const accel__traced *traced = (const accel__traced *)argument;
    accel__trace *trace = traced->trace;
    int thread = accel__thread_index < trace->thread_count ? accel__thread_index : 0;
    accel__span span = {trace->depth ? trace->open[trace->depth - 1].name : "work", "piece", {piece}, accel__now(), 0};
    traced->kernel(traced->argument, piece);
    span.end = accel__now();
    trace->threads[thread].span[trace->threads[thread].count++] = span;
}

static void accel__pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

/* Claims and runs one piece; false where none is left. The job's fields are read before the claim. They are written
   only while the word says that no piece is left, and whoever reads them acquires that word too: so a claim succeeds
   only with fields of its own job. */
static bool accel__pool_work(accel__pool *pool) {
    uint64_t word = atomic_load_explicit(&pool->word, memory_order_acquire);
    void (*run)(void *, int) = atomic_load_explicit(&pool->run, memory_order_acquire);
    void *argument = atomic_load_explicit(&pool->argument, memory_order_acquire);
    int pieces = atomic_load_explicit(&pool->pieces, memory_order_acquire);
    int piece = (int)(uint32_t)word;
    if (piece >= pieces) return false;
    if (!atomic_compare_exchange_strong_explicit(&pool->word, &word, word + 1, memory_order_acq_rel,
                                                 memory_order_acquire))
        return true;
    run(argument, piece);
    atomic_fetch_add_explicit(&pool->done, 1, memory_order_release);
    return true;
}

static void accel__pool_sleep(accel__pool *pool, uint32_t job) {
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->sleepers, 1);
    while ((uint32_t)(atomic_load(&pool->word) >> 32) == job && !atomic_load(&pool->quit))
        pthread_cond_wait(&pool->wake, &pool->mutex);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->mutex);
}

typedef struct accel__worker_start {
    accel__pool *pool;
    int index;
} accel__worker_start;

static void *accel__worker(void *argument) {
    accel__worker_start start = *(accel__worker_start *)argument;
    free(argument);
    accel__pool *pool = start.pool;
    accel__thread_index = start.index;
    while (!atomic_load(&pool->quit)) {
        uint32_t job = (uint32_t)(atomic_load(&pool->word) >> 32);
        while (accel__pool_work(pool)) {}
        int spin = 0;
        while (spin < pool->spins && (uint32_t)(atomic_load_explicit(&pool->word, memory_order_relaxed) >> 32) == job) {
            accel__pause();
            spin++;
        }
        if (spin == pool->spins) accel__pool_sleep(pool, job);
    }
    return NULL;
}

ACCEL_API void accel__parallel(accel_t *acc, int pieces, void (*run)(void *argument, int piece), void *argument) {
    accel__pool *pool = acc->pool;
    accel__traced traced = {acc->trace, run, argument};
    if (acc->trace && pieces > 0 && accel__trace_room(acc, (size_t)pieces)) {
        run = accel__traced_piece;
        argument = &traced;
    }
    if (!pool || !pool->workers || pieces <= 1) {
        for (int piece = 0; piece < pieces; piece++) run(argument, piece);
        return;
    }
    uint64_t job = (atomic_load_explicit(&pool->word, memory_order_relaxed) >> 32) + 1;
    atomic_store(&pool->word, (job - 1) << 32 | INT_MAX); /* no piece is left */
    atomic_store_explicit(&pool->run, run, memory_order_release);
    atomic_store_explicit(&pool->argument, argument, memory_order_release);
    atomic_store_explicit(&pool->pieces, pieces, memory_order_release);
    atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
    atomic_store(&pool->word, job << 32);
    if (atomic_load(&pool->sleepers)) {
        pthread_mutex_lock(&pool->mutex);
        pthread_cond_broadcast(&pool->wake);
        pthread_mutex_unlock(&pool->mutex);
    }
    while (accel__pool_work(pool)) {}
    for (int spin = 0; atomic_load_explicit(&pool->done, memory_order_acquire) < pieces; spin++) {
        accel__pause();
        if (spin >= pool->spins) sched_yield();
    }
}

/* Cores this process may run on. */
static int accel__cores(void) {
    int cores = 0;
#ifdef SYS_sched_getaffinity
    unsigned long mask[128] = {0};
    long bytes = syscall(SYS_sched_getaffinity, 0, sizeof mask, mask);
    for (long i = 0; i < bytes / (long)sizeof mask[0]; i++) cores += __builtin_popcountl(mask[i]);
#endif
    if (cores < 1) cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
    return cores < 1 ? 1 : cores;
}

static void accel__pool_destroy(accel_t *acc) {
    accel__pool *pool = acc->pool;
    if (!pool) return;
    pthread_mutex_lock(&pool->mutex);
    atomic_store(&pool->quit, true);
    atomic_fetch_add(&pool->word, (uint64_t)1 << 32);
    atomic_store(&pool->pieces, 0);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
    for (int i = 0; i < pool->workers; i++) pthread_join(pool->thread[i], NULL);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->mutex);
    accel__free(acc, pool->thread);
    accel__free(acc, pool);
    acc->pool = NULL;
}

static bool accel__worker_create(accel__pool *pool) {
    accel__worker_start *start = (accel__worker_start *)malloc(sizeof *start);
    if (!start) return false;
    *start = (accel__worker_start){pool, pool->workers + 1};
    if (pthread_create(&pool->thread[pool->workers], NULL, accel__worker, start) != 0) {
        free(start);
        return false;
    }
    pool->workers++;
    return true;
}

static bool accel__pool_create(accel_t *acc, int threads) {
    accel__pool *pool = (accel__pool *)accel__alloc_zero(acc, sizeof *pool);
    if (!pool) return false;
    pool->thread = (pthread_t *)accel__alloc(acc, (size_t)threads * sizeof *pool->thread);
    if (!pool->thread) {
        accel__free(acc, pool);
        return false;
    }
    acc->pool = pool;
    /* Spinning helps only where every thread has a core of its own. */
    pool->spins = threads <= accel__cores() ? 4000 : 1;
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    while (pool->workers < threads - 1)
        if (!accel__worker_create(pool))
            return accel__fail(acc, ACCEL_SYSTEM, "accel_create: cannot start thread %d of %d: %s", pool->workers + 2,
                               threads, strerror(errno));
    return true;
}

/* Pieces of `size` items that cover `count`; at least one. */
static int accel__pieces(int64_t count, int64_t size) {
    int64_t pieces = (count + size - 1) / size;
    return pieces < 1 ? 1 : (int)pieces;
}

/* =============================================== >>random =========================================================
   Counted random numbers: splitmix64's finalizer mixes keys (Steele, Lea, Flood 2014), a 32-bit mix of the same kind
   gives the bits of each feature, so that the loops over features are vector code. */

ACCEL_API uint64_t accel__mix(uint64_t a, uint64_t b) {
    uint64_t x = a * 0x9E3779B97F4A7C15u + b + 0x632BE59BD9B4E019u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static uint64_t accel__hash_text(const char *text) {
    uint64_t hash = 0;
    for (; *text; text++) hash = accel__mix(hash, (unsigned char)*text);
    return hash;
}

/* 32 random bits for feature j of the row whose key is (low, high). */
static inline uint32_t accel__bits(uint32_t low, uint32_t high, uint32_t j) {
    uint32_t x = j * 0x9E3779B1u + low;
    x = (x ^ (x >> 16)) * 0x7FEB352Du;
    x = (x ^ (x >> 15) ^ high) * 0x846CA68Bu;
    x = (x ^ (x >> 16)) * 0x9E3779B1u;
    return x ^ (x >> 15);
}

/* In (0, 1): the middle of one of 2^24 intervals. */
static double accel__uniform(uint64_t key, uint64_t index) {
    return ((double)(accel__mix(key, index) >> 40) + 0.5) * 0x1p-24;
}

/* In [0, 1), exact as a float. */
static double accel__unit(uint64_t key, uint64_t index) {
    return (double)(accel__mix(key, index) >> 40) * 0x1p-24;
}

/* Normal(0, 1) by Box and Muller, from two uniform numbers. */
static double accel__normal(uint64_t key, uint64_t index) {
    double radius = sqrt(-2.0 * log(accel__uniform(key, 2 * index)));
    return radius * cos(6.283185307179586 * accel__uniform(key, 2 * index + 1));
}

/* Number of the next random operation. */
static uint64_t accel__next_call(accel_t *acc) {
    return acc->evaluating ? acc->evaluation_calls++ : acc->micro.calls++;
}

/* Key of a random operation of this micro-batch at a named place. */
static uint64_t accel__site(accel_t *acc, uint64_t place, uint64_t call) {
    return accel__mix(accel__mix(acc->desc.seed, place), accel__mix((uint64_t)acc->steps, call));
}

/* A uniformly drawn order of 0 .. n-1 (Fisher and Yates). */
static void accel__shuffle(int64_t *order, int64_t n, uint64_t key) {
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t j = (int64_t)(accel__mix(key, (uint64_t)i) % (uint64_t)(i + 1));
        int64_t swapped = order[i];
        order[i] = order[j];
        order[j] = swapped;
    }
}

/* =============================================== >>tensors ========================================================
   A handle holds a slot's number and generation; freeing a slot raises its generation, so stale handles are recognised.
 */

ACCEL_API accel_shape accel_0d(void) { return (accel_shape){0, {1, 1, 1, 1}}; }
ACCEL_API accel_shape accel_1d(int n) { return (accel_shape){1, {n, 1, 1, 1}}; }
ACCEL_API accel_shape accel_2d(int rows, int columns) { return (accel_shape){2, {rows, columns, 1, 1}}; }
ACCEL_API accel_shape accel_3d(int a, int b, int c) { return (accel_shape){3, {a, b, c, 1}}; }
ACCEL_API accel_shape accel_4d(int a, int b, int c, int d) { return (accel_shape){4, {a, b, c, d}}; }

static bool accel__shape_equal(accel_shape a, accel_shape b) {
    return a.rank == b.rank && !memcmp(a.dim, b.dim, sizeof a.dim);
}

static int64_t accel__shape_count(accel_shape shape) {
    int64_t count = 1;
    for (int i = 0; i < shape.rank; i++) count *= shape.dim[i];
    return count;
}

/* Size of the last axis, 1 for a scalar. */
static int accel__shape_last(accel_shape shape) {
    return shape.rank ? shape.dim[shape.rank - 1] : 1;
}

typedef struct accel__text {
    char text[64];
} accel__text;

static accel__text accel__shape_text(accel_shape shape) {
    accel__text result = {"["};
    size_t used = 1;
    for (int i = 0; i < shape.rank && i < 4; i++)
        used += (size_t)snprintf(result.text + used, sizeof result.text - used, i ? ", %d" : "%d", shape.dim[i]);
    snprintf(result.text + used, sizeof result.text - used, "]");
    return result;
}

/* Elements of a tensor that can exist: at least 1 and fewer than 2^31 per axis, no more than 2^40 in all. */
static bool accel__shape_check(accel_t *acc, const char *where, accel_shape shape) {
    if (shape.rank < 0 || shape.rank > 4)
        return accel__fail(acc, ACCEL_BAD_SHAPE, "%s: a tensor has 0 to 4 dimensions, not %d", where, shape.rank);
    double count = 1;
    for (int i = 0; i < shape.rank; i++) {
        if (shape.dim[i] < 1)
            return accel__fail(acc, ACCEL_BAD_SHAPE, "%s: every dimension must be at least 1, the shape is %s", where,
                               accel__shape_text(shape).text);
        count *= shape.dim[i];
    }
    for (int i = shape.rank; i < 4; i++)
        if (shape.dim[i] != 1)
            return accel__fail(acc, ACCEL_BAD_SHAPE, "%s: dim[%d] of a shape of rank %d must be 1, it is %d", where, i,
                               shape.rank, shape.dim[i]);
    return count <= 0x1p40 || accel__fail(acc, ACCEL_BAD_SHAPE, "%s: the shape %s has too many elements", where,
                                          accel__shape_text(shape).text);
}

/* ---- slots ---- */

static accel_tensor accel__null(accel_t *acc) {
    return (accel_tensor){acc, 0};
}

static accel_tensor accel__handle(accel_t *acc, const accel__slot *slot) {
    return (accel_tensor){acc, slot ? (uint64_t)slot->generation << 32 | (slot->index + 1) : 0};
}

static accel__slot *accel__find(accel_tensor x) {
    uint32_t number = (uint32_t)x.id;
    if (!x.acc || !number || number > accel__length(x.acc->slots)) return NULL;
    accel__slot *slot = x.acc->slots[number - 1];
    return slot->live && slot->generation == (uint32_t)(x.id >> 32) ? slot : NULL;
}

/* The tensor behind a handle; NULL, with an error naming the operation, where there is none. */
static accel__slot *accel__get(accel_tensor x, const char *where) {
    if (!x.acc || x.acc->code != ACCEL_OK) return NULL;
    accel__slot *slot = accel__find(x);
    if (slot) return slot;
    if (!x.id) accel__fail(x.acc, ACCEL_BAD_ARGUMENT, "%s: a null tensor was given", where);
    else
        accel__fail(
            x.acc, ACCEL_BAD_STATE,
            "%s: the tensor's scope has ended (at accel_next, accel_begin or accel_eval_end); accel_keep lifts a "
            "tensor out of it",
            where);
    return NULL;
}

/* The same for one of several operands, all of which must belong to acc. */
static accel__slot *accel__operand(accel_t *acc, accel_tensor x, const char *where) {
    if (x.acc && x.acc != acc) {
        accel__fail(acc, ACCEL_BAD_ARGUMENT, "%s: the operands belong to different contexts", where);
        return NULL;
    }
    x.acc = acc;
    return accel__get(x, where);
}

static accel__slot *accel__operand_type(accel_t *acc, accel_tensor x, accel_type type, const char *where) {
    accel__slot *slot = accel__operand(acc, x, where);
    if (!slot || slot->type == type) return slot;
    accel__fail(acc, ACCEL_BAD_ARGUMENT, "%s: %s tensor expected, %s given", where,
                type == ACCEL_INT32 ? "an int32" : "a float32", type == ACCEL_INT32 ? "a float32" : "an int32");
    return NULL;
}

static accel__slot *accel__get_float(accel_tensor x, const char *where) {
    return accel__operand_type(x.acc, x, ACCEL_FLOAT32, where);
}

/* Two operands of one context. */
static bool accel__get_two(accel_tensor a, accel_tensor b, const char *where, accel__slot **first,
                           accel__slot **second) {
    accel_t *acc = a.acc ? a.acc : b.acc;
    *first = accel__operand_type(acc, a, ACCEL_FLOAT32, where);
    *second = accel__operand_type(acc, b, ACCEL_FLOAT32, where);
    return *first && *second;
}

static accel__slot *accel__slot_take(accel_t *acc) {
    accel__slot *slot = acc->free_slots;
    if (slot) {
        acc->free_slots = slot->next;
        return slot;
    }
    slot = (accel__slot *)accel__alloc_zero(acc, sizeof *slot);
    if (!slot) return NULL;
    slot->index = (uint32_t)accel__length(acc->slots);
    slot->generation = 1;
    if (accel__push(acc, acc->slots, slot)) return slot;
    accel__free(acc, slot);
    return NULL;
}

static void accel__slot_free(accel_t *acc, accel__slot *slot) {
    accel__block_release(acc, slot->block);
    accel__block_release(acc, slot->grad);
    uint32_t index = slot->index, generation = slot->generation + 1;
    *slot = (accel__slot){.index = index, .generation = generation ? generation : 1, .next = acc->free_slots};
    acc->free_slots = slot;
}

static int accel__current_scope(const accel_t *acc) {
    return acc->evaluating ? ACCEL__EVALUATION : ACCEL__TRAINING;
}

/* A slot in the current scope on a given block (which it takes over), or on a new one. */
static accel__slot *accel__slot_on(accel_t *acc, accel_type type, accel_shape shape, accel__block *block) {
    accel__slot *slot = block ? accel__slot_take(acc) : NULL;
    if (!slot) {
        accel__block_release(acc, block);
        return NULL;
    }
    *slot = (accel__slot){.index = slot->index, .generation = slot->generation, .live = true, .type = type,
                          .shape = shape, .count = accel__shape_count(shape), .data = block->base, .block = block,
                          .scope = accel__current_scope(acc)};
    slot->next = acc->scope[slot->scope];
    acc->scope[slot->scope] = slot;
    return slot;
}

static accel__slot *accel__new_type(accel_t *acc, accel_type type, accel_shape shape) {
    return accel__slot_on(acc, type, shape, accel__block_new(acc, (size_t)accel__shape_count(shape) * sizeof(float)));
}

static accel__slot *accel__new(accel_t *acc, accel_shape shape) {
    return accel__new_type(acc, ACCEL_FLOAT32, shape);
}

static float *accel__data(const accel__slot *slot) {
    return (float *)slot->data;
}

static const int32_t *accel__ints(const accel__slot *slot) {
    return (const int32_t *)slot->data;
}

/* ---- scopes ---- */

/* Gives back what the operations behind `until` saved (NULL: all of them). */
static void accel__tape_cut(accel_t *acc, accel__node *until) {
    for (accel__node *node = acc->tape; node != until; node = node->previous)
        for (int i = 0; i < ACCEL__MAX_SAVED; i++) accel__block_release(acc, node->saved[i]);
    acc->tape = until;
}

static void accel__scope_end(accel_t *acc, int scope) {
    if (scope == ACCEL__TRAINING) {
        accel__tape_cut(acc, NULL);
        accel__nodes_reset(acc);
    }
    accel__slot *slot = acc->scope[scope];
    acc->scope[scope] = NULL;
    while (slot) {
        accel__slot *next = slot->next;
        accel__slot_free(acc, slot);
        slot = next;
    }
}

/* Takes a slot out of its scope's list. */
static void accel__scope_remove(accel_t *acc, accel__slot *slot) {
    for (accel__slot **link = &acc->scope[slot->scope]; *link; link = &(*link)->next) {
        if (*link != slot) continue;
        *link = slot->next;
        return;
    }
}

/* Closes the micro-batch if a backward ran in it: it is counted, and the window with it when it was the last one. */
static void accel__micro_begin(accel_t *acc, bool last_of_epoch) {
    accel__micro *micro = &acc->micro;
    if (micro->had_backward) {
        bool closes = accel_sync_gradients(acc);
        acc->window_index = closes ? 0 : acc->window_index + 1;
        acc->window_examples = closes ? 0 : acc->window_examples + micro->examples;
        if (closes) acc->accumulate = acc->next_accumulate;
        acc->steps += closes;
    }
    *micro = (accel__micro){.id = micro->id + micro->had_backward};
    acc->last_of_epoch = last_of_epoch;
}

static void accel__begin(accel_t *acc, bool last_of_epoch) {
    if (!acc->evaluating && !accel__outside_checkpoint(acc, "accel_begin or accel_next")) return;
    accel__scope_end(acc, accel__current_scope(acc));
    if (!acc->evaluating) accel__micro_begin(acc, last_of_epoch);
}

ACCEL_API void accel_begin(accel_t *acc) {
    if (!accel_failed(acc)) accel__begin(acc, false);
}

ACCEL_API void accel_eval_begin(accel_t *acc) {
    if (!acc) return;
    if (acc->trace && !acc->evaluating) acc->trace->evaluation = accel__span_begin(acc, "evaluation", NULL, 0, 0, 0, 0);
    acc->evaluating++;
}

ACCEL_API void accel_eval_end(accel_t *acc) {
    if (!acc) return;
    if (!acc->evaluating) {
        accel__fail(acc, ACCEL_BAD_STATE, "accel_eval_end: there was no accel_eval_begin");
        return;
    }
    if (acc->evaluating == 1) accel__scope_end(acc, ACCEL__EVALUATION);
    if (--acc->evaluating || !acc->trace) return;
    accel__span_end(acc, acc->trace->evaluation);
    acc->trace->evaluation = -1;
}

ACCEL_API accel_tensor accel_keep(accel_tensor x) {
    accel__slot *slot = accel__get(x, "accel_keep");
    if (!slot || slot->param || slot->scope == ACCEL__KEPT || !accel__outside_checkpoint(x.acc, "accel_keep")) return x;
    if (slot->node) {
        /* The graph may still need the slot: a kept tensor is another one on the same block, under the same handle. */
        accel__slot *ghost = accel__slot_take(x.acc);
        if (!ghost) return x;
        uint32_t index = ghost->index, generation = ghost->generation;
        *ghost = *slot;
        ghost->index = index;
        ghost->generation = generation;
        ghost->block->references++;
        for (accel__node *node = x.acc->tape; node; node = node->previous) {
            if (node->output == slot) node->output = ghost;
            for (int i = 0; i < node->input_count; i++)
                if (node->input[i] == slot) node->input[i] = ghost;
        }
        ghost->next = x.acc->scope[ghost->scope];
        x.acc->scope[ghost->scope] = ghost;
        slot->node = NULL;
        slot->grad = NULL;
        slot->requires_grad = false;
    }
    accel__scope_remove(x.acc, slot);
    slot->scope = ACCEL__KEPT;
    slot->next = x.acc->scope[ACCEL__KEPT];
    x.acc->scope[ACCEL__KEPT] = slot;
    return x;
}

ACCEL_API void accel_release(accel_tensor x) {
    accel__slot *slot = accel__get(x, "accel_release");
    if (!slot || !accel__outside_checkpoint(x.acc, "accel_release")) return;
    if (slot->scope != ACCEL__KEPT || slot->param) {
        accel__fail(x.acc, ACCEL_BAD_STATE, "accel_release: only a tensor that accel_keep kept can be released");
        return;
    }
    /* A recorded operation may still read it, so it goes with the scope; but its handle is stale from now on. */
    accel__scope_remove(x.acc, slot);
    slot->generation++;
    slot->scope = accel__current_scope(x.acc);
    slot->next = x.acc->scope[slot->scope];
    x.acc->scope[slot->scope] = slot;
}

/* ---- making, reading and writing ---- */

static accel_tensor accel__from_host(accel_t *acc, const char *where, accel_type type, accel_shape shape,
                                     const void *values) {
    if (accel_failed(acc) || !accel__shape_check(acc, where, shape)) return accel__null(acc);
    accel__slot *slot = accel__new_type(acc, type, shape);
    if (!slot) return accel__null(acc);
    if (values) acc->backend->upload(acc, slot->data, values, (size_t)slot->count * sizeof(float));
    else acc->backend->fill(acc, accel__data(slot), slot->count, 0);
    return accel__handle(acc, slot);
}

ACCEL_API accel_tensor accel_from_floats(accel_t *acc, accel_shape shape, const float *values) {
    return accel__from_host(acc, "accel_from_floats", ACCEL_FLOAT32, shape, values);
}

ACCEL_API accel_tensor accel_from_ints(accel_t *acc, accel_shape shape, const int32_t *values) {
    return accel__from_host(acc, "accel_from_ints", ACCEL_INT32, shape, values);
}

ACCEL_API accel_tensor accel_full(accel_t *acc, accel_shape shape, float value) {
    accel_tensor x = accel__from_host(acc, "accel_full", ACCEL_FLOAT32, shape, NULL);
    accel__slot *slot = accel__find(x);
    if (slot) acc->backend->fill(acc, accel__data(slot), slot->count, value);
    return x;
}

/* Notes that this micro-batch has at least so many examples: the next one's random numbers count on from there. */
static void accel__count_examples(accel_t *acc, int64_t examples) {
    if (examples > acc->micro.examples && !acc->evaluating) acc->micro.examples = examples;
}

static accel_tensor accel__random_tensor(accel_t *acc, const char *where, accel_shape shape,
                                         double (*draw)(uint64_t, uint64_t)) {
    accel_tensor x = accel__from_host(acc, where, ACCEL_FLOAT32, shape, NULL);
    accel__slot *slot = accel__find(x);
    float *values = slot ? (float *)accel__staging(acc, (size_t)slot->count * sizeof *values) : NULL;
    if (!values) return accel__null(acc);
    uint64_t key = accel__site(acc, accel__hash_text("random"), accel__next_call(acc));
    int64_t examples = shape.rank ? shape.dim[0] : 1, width = slot->count / examples;
    for (int64_t i = 0; i < slot->count; i++) {
        uint64_t example = (uint64_t)(acc->window_examples + i / width);
        values[i] = (float)draw(accel__mix(key, example), (uint64_t)(i % width));
    }
    accel__count_examples(acc, examples);
    acc->backend->upload(acc, slot->data, values, (size_t)slot->count * sizeof *values);
    return x;
}

ACCEL_API accel_tensor accel_randn(accel_t *acc, accel_shape shape) {
    return accel__random_tensor(acc, "accel_randn", shape, accel__normal);
}

ACCEL_API accel_tensor accel_rand(accel_t *acc, accel_shape shape) {
    return accel__random_tensor(acc, "accel_rand", shape, accel__unit);
}

ACCEL_API accel_shape accel_shape_of(accel_tensor x) {
    const accel__slot *slot = accel_failed(x.acc) ? NULL : accel__find(x);
    return slot ? slot->shape : (accel_shape){0, {0, 0, 0, 0}};
}

ACCEL_API int64_t accel_count(accel_tensor x) {
    const accel__slot *slot = accel_failed(x.acc) ? NULL : accel__find(x);
    return slot ? slot->count : 0;
}

ACCEL_API accel_type accel_type_of(accel_tensor x) {
    const accel__slot *slot = accel_failed(x.acc) ? NULL : accel__find(x);
    return slot ? slot->type : ACCEL_FLOAT32;
}

ACCEL_API bool accel_valid(accel_tensor x) {
    return x.acc && x.acc->code == ACCEL_OK && accel__find(x);
}

/* A float tensor whose elements are to be copied to or from `values`. */
static accel__slot *accel__get_counted(accel_tensor x, const void *values, int64_t count, const char *where) {
    accel__slot *slot = accel__get_float(x, where);
    if (!slot) return NULL;
    if (values && count == slot->count) return slot;
    accel__fail(x.acc, ACCEL_BAD_ARGUMENT, "%s: the tensor %s has %lld elements, %lld were asked for%s", where,
                accel__shape_text(slot->shape).text, (long long)slot->count, (long long)count,
                values ? "" : " at a null pointer");
    return NULL;
}

ACCEL_API bool accel_read(accel_tensor x, float *values, int64_t count) {
    accel__slot *slot = accel__get_counted(x, values, count, "accel_read");
    if (!slot) return false;
    x.acc->backend->download(x.acc, values, slot->data, (size_t)count * sizeof *values);
    return true;
}

ACCEL_API bool accel_write(accel_tensor x, const float *values, int64_t count) {
    accel__slot *slot = accel__get_counted(x, values, count, "accel_write");
    if (!slot) return false;
    x.acc->backend->upload(x.acc, slot->data, values, (size_t)count * sizeof *values);
    accel__values_changed(x);
    return true;
}

ACCEL_API float accel_item(accel_tensor x) {
    float value = NAN;
    accel__slot *slot = accel__get_float(x, "accel_item");
    if (slot && slot->count != 1)
        accel__fail(x.acc, ACCEL_BAD_SHAPE, "accel_item: a tensor of one element is expected, the shape is %s",
                    accel__shape_text(slot->shape).text);
    else if (slot) accel_read(x, &value, 1);
    return value;
}

ACCEL_API float *accel__values(accel_tensor x) {
    accel__slot *slot = accel__get_float(x, "accel__values");
    return slot ? accel__data(slot) : NULL;
}

/* What a back end derived from the values of a parameter is out of date. */
static void accel__param_changed(accel__param *param) {
    (param->joined ? param->joined : param)->packed.version++;
}

ACCEL_API void accel__values_changed(accel_tensor x) {
    accel__slot *slot = accel__find(x);
    if (slot && slot->param) accel__param_changed(slot->param);
}

/* =============================================== >>backend ========================================================
   The CPU. Each kernel is a loop over a piece's rows or elements, compiled for three instruction sets. */

/* The kernels are plain loops that the compiler turns into vector code; they must not depend on the user's flags for
   that. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("O3", "no-trapping-math")
#endif

#if defined(__x86_64__) && defined(__GNUC__)
#define ACCEL__X86
#define ACCEL__AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))
#define ACCEL__AVX2 __attribute__((target("avx2,fma")))
#ifdef __clang__
#define ACCEL__PLAIN
#else
#define ACCEL__PLAIN __attribute__((optimize("O1"))) /* for old processors: not worth the compiler's time */
#endif
#endif

#define ACCEL__INLINE static inline __attribute__((always_inline))

/* name(argument, piece) runs name##_body in the best version that this processor has. */
#ifdef ACCEL__X86
#define ACCEL__KERNEL(name, type)                                                                          \
    ACCEL__AVX512 static void name##_avx512(const type *a, int piece) { name##_body(a, piece); }           \
    ACCEL__AVX2 static void name##_avx2(const type *a, int piece) { name##_body(a, piece); }               \
    ACCEL__PLAIN static void name##_plain(const type *a, int piece) { name##_body(a, piece); }             \
    static void name(void *argument, int piece) {                                                          \
        const type *a = (const type *)argument;                                                            \
        if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) name##_avx512(a, piece); \
        else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) name##_avx2(a, piece);   \
        else name##_plain(a, piece);                                                                       \
    }
#else
#define ACCEL__KERNEL(name, type) \
    static void name(void *argument, int piece) { name##_body((const type *)argument, piece); }
#endif

/* The elements or rows of a piece: begin .. end-1 of count, `size` at a time. */
typedef struct accel__range {
    int64_t begin, end;
} accel__range;

ACCEL__INLINE accel__range accel__range_of(int64_t count, int64_t size, int piece) {
    int64_t begin = size * piece, end = begin + size;
    return (accel__range){begin, end < count ? end : count};
}

enum { ACCEL__ELEMENTS = 16384, ACCEL__ROWS_AT_ONCE = 16, ACCEL__COLUMNS_AT_ONCE = 128, ACCEL__LANES = 16 };

static void accel__run(accel_t *acc, int pieces, void (*kernel)(void *, int), const void *args) {
    union {
        const void *given;
        void *passed;
    } argument = {args}; /* kernels only read it */
    accel__parallel(acc, pieces, kernel, argument.passed);
}

/* ---- elementary functions: branch-free, so that loops over them become vector code ---- */

ACCEL__INLINE float accel__from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

ACCEL__INLINE uint32_t accel__to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* e^x with a relative error of about 1e-7: 2^n by the exponent's bits, the rest by a polynomial fitted on +-ln(2)/2. */
ACCEL__INLINE float accel__exp(float x) {
    float limited = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
    float shifted = limited * 1.44269504f + 12582912.0f; /* adding 1.5 * 2^23 rounds to an integer */
    float n = shifted - 12582912.0f;
    float r = limited - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 0.001383735936f;
    p = p * r + 0.008374742677f;
    p = p * r + 0.0416682148f;
    p = p * r + 0.1666642114f;
    p = p * r + 0.4999999213f;
    p = p * r + 1.000000036f;
    p = p * r + 1.000000001f;
    float power = accel__from_bits((accel__to_bits(shifted) << 23) + 0x3F800000u);
    float result = p * power;
    result = x < -87.0f ? 0.0f : x > 88.0f ? INFINITY : result;
    return x != x ? x : result;
}

/* Phi(x), the normal distribution's integral, and its density phi(x). The lower tail is phi's exponential times a
   polynomial in t = 1 / (1 + 0.33 |x|), fitted to a relative error of 7e-9. */
ACCEL__INLINE float accel__normal_cdf(float x, float *density) {
    float z = x < 0 ? -x : x;
    float t = 1.0f / (1.0f + 0.33f * z);
    float e = accel__exp(-0.5f * z * z);
    float q = -0.02667873602f;
    q = q * t + 0.152736408f;
    q = q * t - 0.3315581959f;
    q = q * t + 0.3032161524f;
    q = q * t - 0.1158245731f;
    q = q * t + 0.1504231274f;
    q = q * t + 0.1022655376f;
    q = q * t + 0.133965112f;
    q = q * t + 0.1314473768f;
    q = q * t + 7.794446836e-6f;
    float tail = q * e;
    *density = 0.398942280f * e;
    return x < 0 ? tail : 1.0f - tail;
}

ACCEL__INLINE float accel__sigmoid1(float x) {
    return 1.0f / (1.0f + accel__exp(-x));
}

ACCEL__INLINE float accel__tanh1(float x) {
    float square = x * x;
    float series = x * (1.0f + square * (-0.333333333f + square * (0.133333333f - square * 0.0539682540f)));
    float ratio = 2.0f * accel__sigmoid1(2.0f * x) - 1.0f;
    return square < 0.01f ? series : ratio;
}

/* gelu_tanh(x) = x s, s = sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3). */
ACCEL__INLINE float accel__gelu_tanh_gate(float x) {
    return accel__sigmoid1(1.59576912f * (x + 0.044715f * x * x * x));
}

ACCEL__INLINE float accel__activate(accel_activation kind, float x, float slope) {
    float density;
    switch (kind) {
    case ACCEL_RELU: return x > 0 ? x : x != x ? x : 0.0f;
    case ACCEL_LEAKY_RELU: return x > 0 ? x : slope * x;
    case ACCEL_GELU: return x * accel__normal_cdf(x, &density);
    case ACCEL_GELU_TANH: return x * accel__gelu_tanh_gate(x);
    case ACCEL_TANH: return accel__tanh1(x);
    case ACCEL_SIGMOID: return accel__sigmoid1(x);
    case ACCEL_NONE: break;
    }
    return x;
}

/* Derivative at x; y is the value there. */
ACCEL__INLINE float accel__slope_at(accel_activation kind, float x, float y, float slope) {
    float density, gate;
    switch (kind) {
    case ACCEL_RELU: return x > 0 ? 1.0f : 0.0f;
    case ACCEL_LEAKY_RELU: return x > 0 ? 1.0f : slope;
    case ACCEL_GELU: gate = accel__normal_cdf(x, &density); return gate + x * density;
    case ACCEL_GELU_TANH:
        gate = accel__gelu_tanh_gate(x);
        return gate + x * gate * (1.0f - gate) * 1.59576912f * (1.0f + 0.134145f * x * x);
    case ACCEL_TANH: return 1.0f - y * y;
    case ACCEL_SIGMOID: return y * (1.0f - y);
    case ACCEL_NONE: break;
    }
    return 1.0f;
}

/* Sum, sum of squares about a centre, and dot product in 16 interleaved partial sums: an order that vector code keeps.
 */
ACCEL__INLINE float accel__sum_lanes(const float *lane) {
    float sum = 0;
    for (int i = 0; i < ACCEL__LANES; i++) sum += lane[i];
    return sum;
}

ACCEL__INLINE float accel__sum_row(const float *x, int n) {
    float lane[ACCEL__LANES] = {0};
    int i = 0;
    for (; i + ACCEL__LANES <= n; i += ACCEL__LANES)
        for (int j = 0; j < ACCEL__LANES; j++) lane[j] += x[i + j];
    for (int j = 0; i < n; i++, j++) lane[j] += x[i];
    return accel__sum_lanes(lane);
}

ACCEL__INLINE float accel__squares_about(const float *x, int n, float centre) {
    float lane[ACCEL__LANES] = {0};
    int i = 0;
    for (; i + ACCEL__LANES <= n; i += ACCEL__LANES)
        for (int j = 0; j < ACCEL__LANES; j++) lane[j] += (x[i + j] - centre) * (x[i + j] - centre);
    for (int j = 0; i < n; i++, j++) lane[j] += (x[i] - centre) * (x[i] - centre);
    return accel__sum_lanes(lane);
}

ACCEL__INLINE float accel__dot(const float *a, const float *b, int n) {
    float lane[ACCEL__LANES] = {0};
    int i = 0;
    for (; i + ACCEL__LANES <= n; i += ACCEL__LANES)
        for (int j = 0; j < ACCEL__LANES; j++) lane[j] += a[i + j] * b[i + j];
    for (int j = 0; i < n; i++, j++) lane[j] += a[i] * b[i];
    return accel__sum_lanes(lane);
}

ACCEL__INLINE float accel__max_row(const float *x, int n) {
    float lane[ACCEL__LANES];
    for (int j = 0; j < ACCEL__LANES; j++) lane[j] = -INFINITY;
    int i = 0;
    for (; i + ACCEL__LANES <= n; i += ACCEL__LANES)
        for (int j = 0; j < ACCEL__LANES; j++) lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
    for (int j = 0; i < n; i++, j++) lane[j] = x[i] > lane[j] ? x[i] : lane[j];
    float max = lane[0];
    for (int j = 1; j < ACCEL__LANES; j++) max = lane[j] > max ? lane[j] : max;
    return max;
}

/* out = add ? out + value : value; `add` is the same for a whole loop. */
ACCEL__INLINE void accel__put(float *out, float value, bool add) {
    *out = add ? *out + value : value;
}

/* out (+)= scale x */
ACCEL__INLINE void accel__put_row(float *out, const float *x, int64_t n, float scale, bool add) {
    if (add)
        for (int64_t i = 0; i < n; i++) out[i] += scale * x[i];
    else if (scale == 1.0f) memcpy(out, x, (size_t)n * sizeof *out);
    else
        for (int64_t i = 0; i < n; i++) out[i] = scale * x[i];
}

/* ---- memory ---- */

static void accel__cpu_copy(accel_t *acc, void *to, const void *from, size_t bytes) {
    (void)acc;
    memcpy(to, from, bytes);
}

typedef struct accel__fill {
    float *x;
    int64_t n;
    float value;
} accel__fill;

ACCEL__INLINE void accel__fill_piece_body(const accel__fill *a, int piece) {
    accel__range r = accel__range_of(a->n, ACCEL__ELEMENTS, piece);
    for (int64_t i = r.begin; i < r.end; i++) a->x[i] = a->value;
}
ACCEL__KERNEL(accel__fill_piece, accel__fill)

static void accel__cpu_fill(accel_t *acc, float *x, int64_t n, float value) {
    accel__fill args = {x, n, value};
    accel__run(acc, accel__pieces(n, ACCEL__ELEMENTS), accel__fill_piece, &args);
}

/* ---- element by element ---- */

ACCEL__INLINE void accel__map_activation(const accel_map *a, accel_activation kind, accel__range r) {
    const float *x = a->x, *y = a->y, *dy = a->dy;
    float *out = a->out, slope = a->value;
    if (!dy)
        for (int64_t i = r.begin; i < r.end; i++) out[i] = accel__activate(kind, x[i], slope);
    else if (a->add)
        for (int64_t i = r.begin; i < r.end; i++) out[i] += dy[i] * accel__slope_at(kind, x[i], y[i], slope);
    else
        for (int64_t i = r.begin; i < r.end; i++) out[i] = dy[i] * accel__slope_at(kind, x[i], y[i], slope);
}

/* The functions that are not activations: value at x, and the factor of dy. */
ACCEL__INLINE void accel__map_function(const accel_map *a, int kind, accel__range r) {
    for (int64_t i = r.begin; i < r.end; i++) {
        float x = a->x[i], y, factor;
        if (kind == ACCEL_MAP_EXP) y = factor = a->dy ? a->y[i] : accel__exp(x);
        else if (kind == ACCEL_MAP_LOG) y = a->dy ? 0 : logf(x), factor = 1.0f / x;
        else if (kind == ACCEL_MAP_SQRT) y = a->dy ? a->y[i] : sqrtf(x), factor = 0.5f / y;
        else if (kind == ACCEL_MAP_CLAMP) y = x > a->value ? a->value : x < -a->value ? -a->value : x, factor = x == y;
        else y = a->value * x, factor = a->value;
        if (a->dy) accel__put(&a->out[i], a->dy[i] * factor, a->add);
        else a->out[i] = y;
    }
}

ACCEL__INLINE void accel__map_piece_body(const accel_map *a, int piece) {
    accel__range r = accel__range_of(a->n, ACCEL__ELEMENTS, piece);
    switch (a->kind) {
    case ACCEL_MAP_CLAMP: accel__map_function(a, ACCEL_MAP_CLAMP, r); break;
    case ACCEL_MAP_SCALE: accel__map_function(a, ACCEL_MAP_SCALE, r); break;
    case ACCEL_MAP_EXP: accel__map_function(a, ACCEL_MAP_EXP, r); break;
    case ACCEL_MAP_LOG: accel__map_function(a, ACCEL_MAP_LOG, r); break;
    case ACCEL_MAP_SQRT: accel__map_function(a, ACCEL_MAP_SQRT, r); break;
    case ACCEL_MAP_ACTIVATION + ACCEL_NONE: accel__map_activation(a, ACCEL_NONE, r); break;
    case ACCEL_MAP_ACTIVATION + ACCEL_RELU: accel__map_activation(a, ACCEL_RELU, r); break;
    case ACCEL_MAP_ACTIVATION + ACCEL_LEAKY_RELU: accel__map_activation(a, ACCEL_LEAKY_RELU, r); break;
    case ACCEL_MAP_ACTIVATION + ACCEL_GELU: accel__map_activation(a, ACCEL_GELU, r); break;
    case ACCEL_MAP_ACTIVATION + ACCEL_GELU_TANH: accel__map_activation(a, ACCEL_GELU_TANH, r); break;
    case ACCEL_MAP_ACTIVATION + ACCEL_TANH: accel__map_activation(a, ACCEL_TANH, r); break;
    case ACCEL_MAP_ACTIVATION + ACCEL_SIGMOID: accel__map_activation(a, ACCEL_SIGMOID, r); break;
    default: break;
    }
}
ACCEL__KERNEL(accel__map_piece, accel_map)

static void accel__cpu_map(accel_t *acc, const accel_map *args) {
    accel__run(acc, accel__pieces(args->n, ACCEL__ELEMENTS), accel__map_piece, args);
}

/* ---- matrix products ---- */

/* Tiles of C: large, since OpenBLAS packs both operands in every call, and of a size that the shape alone decides. */
enum { ACCEL__TILE_ROWS = 384, ACCEL__TILE_COLUMNS = 384 };

typedef struct accel__gemm_list {
    const accel_gemm *gemm;
    int count;
} accel__gemm_list;

static int accel__gemm_pieces(const accel_gemm *g) {
    return g->batch * accel__pieces(g->m, ACCEL__TILE_ROWS) * accel__pieces(g->n, ACCEL__TILE_COLUMNS);
}

/* Cuts n into equal parts, multiples of 16. */
static accel__range accel__tile(int n, int size, int piece) {
    int parts = accel__pieces(n, size);
    int part = ((n + parts - 1) / parts + 15) / 16 * 16;
    return accel__range_of(n, part, piece);
}

typedef struct accel__bias {
    const float *x, *bias;
    float *out;
    int n;
} accel__bias;

ACCEL__INLINE void accel__bias_row_body(const accel__bias *a, int piece) {
    (void)piece;
    for (int j = 0; j < a->n; j++) a->out[j] = a->x[j] + a->bias[j];
}
ACCEL__KERNEL(accel__bias_row, accel__bias)

/* Bias and activation of the rows of a tile that was just computed. */
static void accel__gemm_epilogue(const accel_gemm *g, int64_t at, int column, int rows, int columns) {
    for (int i = 0; i < rows; i++, at += g->ldc) {
        float *c = g->c + at, *before = g->before ? g->before + at : c;
        accel__bias bias = {c, g->bias ? g->bias + column : NULL, before, columns};
        if (g->bias) accel__bias_row(&bias, 0);
        else if (before != c) memcpy(before, c, (size_t)columns * sizeof *c);
        accel_map map = {ACCEL_MAP_ACTIVATION + (int)g->activation, columns, 0.01f, before, NULL, NULL, c, false};
        if (g->activation != ACCEL_NONE) accel__map_piece(&map, 0);
    }
}

static void accel__gemm_tile(const accel_gemm *g, int piece) {
    int columns = accel__pieces(g->n, ACCEL__TILE_COLUMNS), tiles = columns * accel__pieces(g->m, ACCEL__TILE_ROWS);
    int64_t matrix = piece / tiles;
    accel__range row = accel__tile(g->m, ACCEL__TILE_ROWS, piece % tiles / columns);
    accel__range column = accel__tile(g->n, ACCEL__TILE_COLUMNS, piece % columns);
    int m = (int)(row.end - row.begin), n = (int)(column.end - column.begin);
    if (m <= 0 || n <= 0) return;
    const float *a = g->a + matrix * g->stride_a + row.begin * (g->transpose_a ? 1 : g->lda);
    const float *b = g->b + matrix * g->stride_b + column.begin * (g->transpose_b ? g->ldb : 1);
    int64_t at = matrix * g->stride_c + row.begin * g->ldc + column.begin;
    cblas_sgemm(CblasRowMajor, g->transpose_a ? CblasTrans : CblasNoTrans, g->transpose_b ? CblasTrans : CblasNoTrans,
                m, n, g->k, g->alpha, a, g->lda, b, g->ldb, g->add ? 1.0f : 0.0f, g->c + at, g->ldc);
    if (g->add || (!g->bias && !g->before && g->activation == ACCEL_NONE)) return;
    accel__gemm_epilogue(g, at, (int)column.begin, m, n);
}

static void accel__gemm_piece(void *argument, int piece) {
    const accel__gemm_list *list = (const accel__gemm_list *)argument;
    const accel_gemm *g = list->gemm;
    for (int pieces = accel__gemm_pieces(g); piece >= pieces; pieces = accel__gemm_pieces(g)) {
        piece -= pieces;
        g++;
    }
    accel__gemm_tile(g, piece);
}

static void accel__gemm_fp32(accel_t *acc, const accel_gemm *list, int count) {
    accel__gemm_list args = {list, count};
    int pieces = 0;
    for (int i = 0; i < count; i++) pieces += accel__gemm_pieces(&list[i]);
    accel__run(acc, pieces, accel__gemm_piece, &args);
}

/* ---- matrix products with operands in bf16 ----
   Both operands are packed as pairs of bf16 along k, which is what vdpbf16ps multiplies: A in panels of ACCEL__MR rows,
   B in panels of ACCEL__NR columns; what is missing in the last panels is zero. The kernel keeps a tile of MR x NR sums
   in registers. */

enum { ACCEL__MR = 6, ACCEL__NR = 64, ACCEL__BLOCK_ROWS = 16 * ACCEL__MR, ACCEL__BLOCK_COLUMNS = 12 * ACCEL__NR,
       ACCEL__PAIRS_AT_ONCE = 1536 /* of k: a panel of B stays in the second-level cache */,
       ACCEL__GROUP_A = 8 /* panels of A that are packed together */ };

/* Round to nearest even, as the processor does; NaN stays NaN. */
ACCEL__INLINE uint32_t accel__bf16(float x) {
    uint32_t bits = accel__to_bits(x);
    if (x != x) return (bits >> 16) | 0x40;
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
}

static bool accel__has_bf16(void) {
#ifdef ACCEL__X86
    return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl");
#else
    return false;
#endif
}

/* An operand seen as [lines, k]: element (i, k) lies at x[i * step + k * step_k], one of the steps being 1. */
typedef struct accel__operand_matrix {
    const float *x;
    int64_t step, step_k;
    int lines, k, panel; /* lines of a panel: MR or NR */
    uint32_t *packed;    /* [panels][pairs][panel] */
} accel__operand_matrix;

static int accel__pairs(int k) {
    return (k + 1) / 2;
}

static size_t accel__packed_bytes(int lines, int k, int panel) {
    return (size_t)accel__pieces(lines, panel) * (size_t)accel__pairs(k) * (size_t)panel * sizeof(uint32_t);
}

#ifdef ACCEL__X86
#define ACCEL__BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))

/* 16 floats as bf16 in the lower halves of 32-bit lanes. */
ACCEL__BF16 ACCEL__INLINE __m512i accel__bf16_lanes(__m512 x) {
    return _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(x));
}

/* 16 pairs of bf16 from 32 floats that lie in a row. */
ACCEL__BF16 ACCEL__INLINE __m512i accel__bf16_row_pairs(const float *x) {
    return (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + 16), _mm512_loadu_ps(x));
}

/* 16 lines x 16 pairs become 16 pairs x 16 lines: out[pair * stride + line]. */
ACCEL__BF16 ACCEL__INLINE void accel__transpose_pairs(const __m512i *line, uint32_t *out, int64_t stride) {
    __m512i a[16], b[16];
    for (int i = 0; i < 16; i += 2) { /* pairs of lines, then fours, eights, sixteens */
        a[i] = _mm512_unpacklo_epi32(line[i], line[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi32(line[i], line[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; j++) {
            b[i + 2 * j] = _mm512_unpacklo_epi64(a[i + j], a[i + j + 2]);
            b[i + 2 * j + 1] = _mm512_unpackhi_epi64(a[i + j], a[i + j + 2]);
        }
    for (int i = 0; i < 16; i += 8)
        for (int j = 0; j < 4; j++) {
            a[i + j] = _mm512_shuffle_i32x4(b[i + j], b[i + j + 4], 0x88);
            a[i + j + 4] = _mm512_shuffle_i32x4(b[i + j], b[i + j + 4], 0xDD);
        }
    for (int j = 0; j < 8; j++) {
        b[j] = _mm512_shuffle_i32x4(a[j], a[j + 8], 0x88);
        b[j + 8] = _mm512_shuffle_i32x4(a[j], a[j + 8], 0xDD);
    }
    for (int j = 0; j < 16; j++) _mm512_storeu_si512(out + j * stride, b[j]);
}

/* Pairs `begin` .. `end` of one panel, element by element: edges, and whatever has no faster way. */
static void accel__pack_slow(const accel__operand_matrix *o, int first, int lines, int64_t begin, int64_t end,
                             uint32_t *out) {
    for (int64_t p = begin; p < end; p++)
        for (int i = 0; i < o->panel; i++) {
            const float *x = o->x + (first + i) * o->step + 2 * p * o->step_k;
            uint32_t low = i < lines ? accel__bf16(*x) : 0;
            uint32_t high = i < lines && 2 * p + 1 < o->k ? accel__bf16(x[o->step_k]) : 0;
            out[p * o->panel + i] = low | high << 16;
        }
}

/* k lies in a row of memory. */
ACCEL__BF16 static void accel__pack_rows(const accel__operand_matrix *o, int first, uint32_t *out) {
    int64_t pairs = o->k / 2 / 16 * 16;
    for (int64_t p = 0; p < pairs; p += 16) {
        const float *x = o->x + first * o->step + 2 * p;
        if (o->panel == ACCEL__MR) {
            uint32_t row[16];
            for (int i = 0; i < ACCEL__MR; i++) {
                _mm512_storeu_si512(row, accel__bf16_row_pairs(x + i * o->step));
                for (int j = 0; j < 16; j++) out[(p + j) * ACCEL__MR + i] = row[j];
            }
        } else
            for (int block = 0; block < ACCEL__NR; block += 16) {
                __m512i line[16];
                for (int i = 0; i < 16; i++) line[i] = accel__bf16_row_pairs(x + (block + i) * o->step);
                accel__transpose_pairs(line, out + p * ACCEL__NR + block, ACCEL__NR);
            }
    }
    accel__pack_slow(o, first, o->panel, pairs, accel__pairs(o->k), out);
}

/* 16 pairs of bf16 from two rows of floats, as far as the masks reach. */
ACCEL__BF16 ACCEL__INLINE __m512i accel__bf16_column_pairs(const float *even, __mmask16 has_even, const float *odd,
                                                           __mmask16 has_odd) {
    __m512i low = accel__bf16_lanes(_mm512_maskz_loadu_ps(has_even, even));
    __m512i high = accel__bf16_lanes(_mm512_maskz_loadu_ps(has_odd, odd));
    return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

/* Six of 48 pairs to each of the panels of A. */
ACCEL__BF16 ACCEL__INLINE void accel__store_narrow(const __m512i *line, uint32_t *out, int64_t stride, int panels) {
    __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
#pragma GCC unroll 8
    for (int i = 0; i < ACCEL__GROUP_A; i++) {
        int at = i * ACCEL__MR, left = at / 16, right = (at + ACCEL__MR - 1) / 16;
        __m512i index = _mm512_add_epi32(lane, _mm512_set1_epi32(at % 16));
        __m512i six = _mm512_permutex2var_epi32(line[left], index, line[right]);
        if (i < panels) _mm512_mask_storeu_epi32(out + i * stride, (1 << ACCEL__MR) - 1, six);
    }
}

/* The lines lie side by side in memory: rows 2p and 2p + 1 are interleaved, a group of panels at once. */
ACCEL__BF16 ACCEL__INLINE void accel__pack_columns(const accel__operand_matrix *o, int first, int panels, int width,
                                                   uint32_t *out) {
    int64_t pairs = accel__pairs(o->k), ahead = 16 * o->step_k;
    for (int64_t p = 0; p < pairs; p++) {
        const float *even = o->x + first + 2 * p * o->step_k, *odd = even + o->step_k;
        __m512i line[4];
        for (int i = 0; i < width / 16; i++) {
            int left = o->lines - first - 16 * i;
            __mmask16 mask = left >= 16 ? 0xFFFF : left > 0 ? (__mmask16)((1 << left) - 1) : 0;
            _mm_prefetch((const char *)(even + 16 * i) + 4 * ahead, _MM_HINT_T0);
            _mm_prefetch((const char *)(odd + 16 * i) + 4 * ahead, _MM_HINT_T0);
            line[i] = accel__bf16_column_pairs(even + 16 * i, mask, odd + 16 * i, 2 * p + 1 < o->k ? mask : 0);
        }
        if (width == ACCEL__NR)
            for (int i = 0; i < 4; i++) _mm512_storeu_si512(out + p * ACCEL__NR + 16 * i, line[i]);
        else accel__store_narrow(line, out + p * ACCEL__MR, pairs * ACCEL__MR, panels);
    }
}

ACCEL__BF16 static void accel__pack_columns_a(const accel__operand_matrix *o, int first, int panels, uint32_t *out) {
    accel__pack_columns(o, first, panels, ACCEL__GROUP_A * ACCEL__MR, out);
}

ACCEL__BF16 static void accel__pack_columns_b(const accel__operand_matrix *o, int first, uint32_t *out) {
    accel__pack_columns(o, first, 1, ACCEL__NR, out);
}

/* Panels that one piece packs: those of A are narrow, a cache line of a row holds several. */
static int accel__panel_group(const accel__operand_matrix *o) {
    return o->panel == ACCEL__MR ? ACCEL__GROUP_A : 1;
}

static void accel__pack_piece(void *argument, int piece) {
    const accel__operand_matrix *o = (const accel__operand_matrix *)argument;
    accel__range panel = accel__range_of(accel__pieces(o->lines, o->panel), accel__panel_group(o), piece);
    int64_t size = (int64_t)accel__pairs(o->k) * o->panel;
    int first = (int)panel.begin * o->panel;
    uint32_t *out = o->packed + panel.begin * size;
    if (o->step_k != 1 && o->panel == ACCEL__NR) accel__pack_columns_b(o, first, out);
    else if (o->step_k != 1) accel__pack_columns_a(o, first, (int)(panel.end - panel.begin), out);
    else
        for (; first < o->lines && first < panel.end * o->panel; first += o->panel, out += size)
            if (o->lines - first < o->panel) accel__pack_slow(o, first, o->lines - first, 0, accel__pairs(o->k), out);
            else accel__pack_rows(o, first, out);
}

/* C[MR, NR] (+)= sum over `pairs` of a's and b's products. */
ACCEL__BF16 ACCEL__INLINE void accel__bf16_tile(int pairs, const uint32_t *a, const uint32_t *b, float *c, int64_t ldc,
                                                bool add) {
    __m512 sum[ACCEL__MR][4];
    for (int i = 0; i < ACCEL__MR; i++)
        for (int j = 0; j < 4; j++) sum[i][j] = add ? _mm512_loadu_ps(c + i * ldc + 16 * j) : _mm512_setzero_ps();
    for (int p = 0; p < pairs; p++, a += ACCEL__MR, b += ACCEL__NR) {
        __m512bh b0 = (__m512bh)_mm512_loadu_si512(b), b1 = (__m512bh)_mm512_loadu_si512(b + 16);
        __m512bh b2 = (__m512bh)_mm512_loadu_si512(b + 32), b3 = (__m512bh)_mm512_loadu_si512(b + 48);
#pragma GCC unroll 6
        for (int i = 0; i < ACCEL__MR; i++) {
            __m512bh x = (__m512bh)_mm512_set1_epi32((int)a[i]);
            sum[i][0] = _mm512_dpbf16_ps(sum[i][0], x, b0);
            sum[i][1] = _mm512_dpbf16_ps(sum[i][1], x, b1);
            sum[i][2] = _mm512_dpbf16_ps(sum[i][2], x, b2);
            sum[i][3] = _mm512_dpbf16_ps(sum[i][3], x, b3);
        }
    }
    for (int i = 0; i < ACCEL__MR; i++)
        for (int j = 0; j < 4; j++) _mm512_storeu_ps(c + i * ldc + 16 * j, sum[i][j]);
}

typedef struct accel__bf16_product {
    const accel_gemm *gemm;
    const uint32_t *a, *b;
} accel__bf16_product;

/* A tile at the edge goes through a whole one on the stack. */
ACCEL__BF16 static void accel__bf16_edge(int pairs, const uint32_t *a, const uint32_t *b, float *c, int64_t ldc,
                                         bool add, int rows, int columns) {
    float whole[ACCEL__MR * ACCEL__NR];
    accel__bf16_tile(pairs, a, b, whole, ACCEL__NR, false);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) accel__put(&c[i * ldc + j], whole[i * ACCEL__NR + j], add);
}

/* A block of C: its panels of B one after the other, each against all the block's panels of A. */
ACCEL__BF16 static void accel__bf16_piece(void *argument, int piece) {
    const accel__bf16_product *product = (const accel__bf16_product *)argument;
    const accel_gemm *g = product->gemm;
    int across = accel__pieces(g->n, ACCEL__BLOCK_COLUMNS), pairs = accel__pairs(g->k);
    accel__range row = accel__range_of(g->m, ACCEL__BLOCK_ROWS, piece / across);
    accel__range column = accel__range_of(g->n, ACCEL__BLOCK_COLUMNS, piece % across);
    for (int p = 0; p < pairs; p += ACCEL__PAIRS_AT_ONCE) {
        int count = pairs - p < ACCEL__PAIRS_AT_ONCE ? pairs - p : ACCEL__PAIRS_AT_ONCE;
        bool add = g->add || p > 0;
        for (int64_t n = column.begin; n < column.end; n += ACCEL__NR)
            for (int64_t m = row.begin; m < row.end; m += ACCEL__MR) {
                const uint32_t *a = product->a + m * pairs + (int64_t)p * ACCEL__MR,
                               *b = product->b + n * pairs + (int64_t)p * ACCEL__NR;
                float *c = g->c + m * g->ldc + n;
                int rows = (int)(row.end - m), columns = (int)(column.end - n);
                if (rows >= ACCEL__MR && columns >= ACCEL__NR) accel__bf16_tile(count, a, b, c, g->ldc, add);
                else
                    accel__bf16_edge(count, a, b, c, g->ldc, add, rows < ACCEL__MR ? rows : ACCEL__MR,
                                     columns < ACCEL__NR ? columns : ACCEL__NR);
            }
    }
    if (!g->add)
        accel__gemm_epilogue(g, row.begin * g->ldc + column.begin, (int)column.begin, (int)(row.end - row.begin),
                             (int)(column.end - column.begin));
}

static accel__operand_matrix accel__operand_a(const accel_gemm *g) {
    return (accel__operand_matrix){
        g->a, g->transpose_a ? 1 : g->lda, g->transpose_a ? g->lda : 1, g->m, g->k, ACCEL__MR, NULL};
}

static accel__operand_matrix accel__operand_b(const accel_gemm *g) {
    return (accel__operand_matrix){
        g->b, g->transpose_b ? g->ldb : 1, g->transpose_b ? 1 : g->ldb, g->n, g->k, ACCEL__NR, NULL};
}

/* The packed operand: a new block, or what a parameter keeps (then *block is NULL). NULL where memory is lacking. */
static uint32_t *accel__pack(accel_t *acc, accel__operand_matrix o, accel_packed *keep, int form,
                             accel__block **block) {
    size_t bytes = accel__packed_bytes(o.lines, o.k, o.panel);
    *block = NULL;
    if (!keep) {
        *block = accel__block_new(acc, bytes);
        o.packed = *block ? (uint32_t *)(void *)(*block)->base : NULL;
    } else {
        if (!keep->memory[form]) keep->memory[form] = accel__alloc(acc, bytes);
        o.packed = (uint32_t *)keep->memory[form];
        if (keep->packed[form] == keep->version) return o.packed;
        keep->packed[form] = keep->version;
    }
    if (o.packed) accel__run(acc, accel__pieces(accel__pieces(o.lines, o.panel), accel__panel_group(&o)), accel__pack_piece, &o);
    return o.packed;
}

static void accel__gemm_bf16(accel_t *acc, const accel_gemm *g) {
    accel__block *blocks[2];
    accel__bf16_product product = {g, accel__pack(acc, accel__operand_a(g), NULL, 0, &blocks[0]),
                                   accel__pack(acc, accel__operand_b(g), g->keep, g->transpose_b, &blocks[1])};
    int pieces = accel__pieces(g->m, ACCEL__BLOCK_ROWS) * accel__pieces(g->n, ACCEL__BLOCK_COLUMNS);
    if (product.a && product.b) accel__run(acc, pieces, accel__bf16_piece, &product);
    accel__block_release(acc, blocks[0]);
    accel__block_release(acc, blocks[1]);
}
#endif

typedef struct accel__rounding {
    const float *x;
    float *out;
    int64_t rows, width, stride;
} accel__rounding;

ACCEL__INLINE void accel__rounding_piece_body(const accel__rounding *a, int piece) {
    accel__range r = accel__range_of(a->rows, ACCEL__ROWS_AT_ONCE, piece);
    for (int64_t i = r.begin; i < r.end; i++)
        for (int64_t j = 0; j < a->width; j++)
            a->out[i * a->width + j] = accel__from_bits(accel__bf16(a->x[i * a->stride + j]) << 16);
}
ACCEL__KERNEL(accel__rounding_piece, accel__rounding)

/* A copy of a matrix with its elements rounded to bf16. */
static accel__block *accel__rounded(accel_t *acc, const float *x, int64_t rows, int64_t width, int64_t stride) {
    accel__block *block = accel__block_new(acc, (size_t)(rows * width) * sizeof(float));
    if (!block) return NULL;
    accel__rounding args = {x, accel__floats(block), rows, width, stride};
    accel__run(acc, accel__pieces(rows, ACCEL__ROWS_AT_ONCE), accel__rounding_piece, &args);
    return block;
}

static void accel__gemm_rounded(accel_t *acc, const accel_gemm *g) {
    accel_gemm rounded = *g;
    rounded.lda = g->transpose_a ? g->m : g->k;
    rounded.ldb = g->transpose_b ? g->k : g->n;
    accel__block *a = accel__rounded(acc, g->a, g->transpose_a ? g->k : g->m, rounded.lda, g->lda);
    accel__block *b = accel__rounded(acc, g->b, g->transpose_b ? g->n : g->k, rounded.ldb, g->ldb);
    rounded.a = accel__floats(a);
    rounded.b = accel__floats(b);
    if (a && b) accel__gemm_fp32(acc, &rounded, 1);
    accel__block_release(acc, a);
    accel__block_release(acc, b);
}

static void accel__cpu_gemm(accel_t *acc, const accel_gemm *list, int count) {
    if (count < 1 || list[0].precision == ACCEL_PRECISION_FP32) {
        accel__gemm_fp32(acc, list, count);
        return;
    }
    for (int i = 0; i < count; i++) {
#ifdef ACCEL__X86
        if (list[i].precision == ACCEL_PRECISION_BF16 && accel__has_bf16()) {
            accel__gemm_bf16(acc, &list[i]);
            continue;
        }
#endif
        accel__gemm_rounded(acc, &list[i]);
    }
}

/* ---- element by element, two operands ---- */

ACCEL__INLINE float accel__pair_value(accel_pair_kind kind, float a, float b) {
    switch (kind) {
    case ACCEL_PAIR_ADD: return a + b;
    case ACCEL_PAIR_SUB: return a - b;
    case ACCEL_PAIR_MUL: return a * b;
    case ACCEL_PAIR_DIV: break;
    }
    return a / b;
}

/* Factor of dy in the gradient for one operand. */
ACCEL__INLINE float accel__pair_factor(accel_pair_kind kind, int operand, float a, float b) {
    switch (kind) {
    case ACCEL_PAIR_ADD: return 1.0f;
    case ACCEL_PAIR_SUB: return operand ? -1.0f : 1.0f;
    case ACCEL_PAIR_MUL: return operand ? a : b;
    case ACCEL_PAIR_DIV: break;
    }
    return operand ? -a / (b * b) : 1.0f / b;
}

/* A row: the last axis, with steps 0 or 1 for each operand. */
ACCEL__INLINE void accel__pair_row(const accel_pair *p, const float *a, const float *b, int64_t at,
                                   accel_pair_kind kind) {
    int64_t sa = p->stride_a[3], sb = p->stride_b[3];
    float *out = p->out + at;
    const float *dy = p->dy ? p->dy + at : NULL;
    int n = p->dim[3];
    if (dy)
        for (int i = 0; i < n; i++)
            accel__put(&out[i], dy[i] * accel__pair_factor(kind, p->operand, a[i * sa], b[i * sb]), p->add);
    else if (sa && sb)
        for (int i = 0; i < n; i++) out[i] = accel__pair_value(kind, a[i], b[i]);
    else
        for (int i = 0; i < n; i++) out[i] = accel__pair_value(kind, a[i * sa], b[i * sb]);
}

ACCEL__INLINE void accel__pair_piece_body(const accel_pair *p, int piece) {
    int64_t rows = (int64_t)p->dim[0] * p->dim[1] * p->dim[2];
    accel__range r = accel__range_of(rows, accel__pieces(ACCEL__ELEMENTS, p->dim[3]), piece);
    for (int64_t row = r.begin; row < r.end; row++) {
        int64_t k = row % p->dim[2], j = row / p->dim[2] % p->dim[1], i = row / p->dim[2] / p->dim[1];
        const float *a = p->a + i * p->stride_a[0] + j * p->stride_a[1] + k * p->stride_a[2];
        const float *b = p->b + i * p->stride_b[0] + j * p->stride_b[1] + k * p->stride_b[2];
        int64_t at = row * p->dim[3];
        switch (p->kind) {
        case ACCEL_PAIR_ADD: accel__pair_row(p, a, b, at, ACCEL_PAIR_ADD); break;
        case ACCEL_PAIR_SUB: accel__pair_row(p, a, b, at, ACCEL_PAIR_SUB); break;
        case ACCEL_PAIR_MUL: accel__pair_row(p, a, b, at, ACCEL_PAIR_MUL); break;
        case ACCEL_PAIR_DIV: accel__pair_row(p, a, b, at, ACCEL_PAIR_DIV); break;
        }
    }
}
ACCEL__KERNEL(accel__pair_piece, accel_pair)

static void accel__cpu_pair(accel_t *acc, const accel_pair *args) {
    int64_t rows = (int64_t)args->dim[0] * args->dim[1] * args->dim[2];
    accel__run(acc, accel__pieces(rows, accel__pieces(ACCEL__ELEMENTS, args->dim[3])), accel__pair_piece, args);
}

/* ---- sums along an axis, and their opposite ---- */

/* inner == 1: pieces are blocks of outer rows; else a piece is some columns of one outer matrix. Sums of eight are
   added up in double, which keeps the rounding of long sums small. */
ACCEL__INLINE void accel__reduce_columns(const accel_axis *a, int64_t outer, accel__range column) {
    float block[ACCEL__COLUMNS_AT_ONCE];
    double total[ACCEL__COLUMNS_AT_ONCE] = {0};
    int n = (int)(column.end - column.begin);
    int64_t stride = a->stride ? a->stride : a->inner;
    const float *x = a->x + outer * a->n * stride + column.begin;
    for (int64_t begin = 0; begin < a->n; begin += 8) {
        int64_t end = begin + 8 < a->n ? begin + 8 : a->n;
        for (int j = 0; j < n; j++) block[j] = x[begin * stride + j];
        for (int64_t i = begin + 1; i < end; i++)
            for (int j = 0; j < n; j++) block[j] += x[i * stride + j];
        for (int j = 0; j < n; j++) total[j] += (double)block[j];
    }
    float *out = a->out + outer * a->inner + column.begin;
    for (int j = 0; j < n; j++) accel__put(&out[j], (float)(a->scale * total[j]), a->add);
}

ACCEL__INLINE void accel__reduce_piece_body(const accel_axis *a, int piece) {
    if (a->inner > 1 || a->stride) {
        int columns = accel__pieces(a->inner, ACCEL__COLUMNS_AT_ONCE);
        accel__reduce_columns(a, piece / columns, accel__range_of(a->inner, ACCEL__COLUMNS_AT_ONCE, piece % columns));
        return;
    }
    accel__range r = accel__range_of(a->outer, ACCEL__ROWS_AT_ONCE, piece);
    for (int64_t row = r.begin; row < r.end; row++) {
        double sum = 0;
        const float *x = a->x + row * a->n;
        for (int64_t i = 0; i < a->n; i += ACCEL__ELEMENTS)
            sum += accel__sum_row(x + i, (int)(a->n - i < ACCEL__ELEMENTS ? a->n - i : ACCEL__ELEMENTS));
        accel__put(&a->out[row], a->scale * (float)sum, a->add);
    }
}
ACCEL__KERNEL(accel__reduce_piece, accel_axis)

static void accel__cpu_reduce(accel_t *acc, const accel_axis *args) {
    int64_t pieces = args->inner > 1 || args->stride ? args->outer * accel__pieces(args->inner, ACCEL__COLUMNS_AT_ONCE)
                                     : accel__pieces(args->outer, ACCEL__ROWS_AT_ONCE);
    accel__run(acc, (int)pieces, accel__reduce_piece, args);
}

ACCEL__INLINE void accel__expand_piece_body(const accel_axis *a, int piece) {
    int64_t rows = a->outer * a->n;
    accel__range r = accel__range_of(rows, accel__pieces(ACCEL__ELEMENTS, a->inner), piece);
    for (int64_t row = r.begin; row < r.end; row++)
        accel__put_row(a->out + row * a->inner, a->x + row / a->n * a->inner, a->inner, a->scale, a->add);
}
ACCEL__KERNEL(accel__expand_piece, accel_axis)

static void accel__cpu_expand(accel_t *acc, const accel_axis *args) {
    int64_t rows = args->outer * args->n;
    accel__run(acc, accel__pieces(rows, accel__pieces(ACCEL__ELEMENTS, args->inner)), accel__expand_piece, args);
}

ACCEL__INLINE void accel__move_piece_body(const accel_move *a, int piece) {
    int64_t rows = (int64_t)a->dim[0] * a->dim[1] * a->dim[2];
    accel__range r = accel__range_of(rows, accel__pieces(ACCEL__ELEMENTS, a->dim[3]), piece);
    for (int64_t row = r.begin; row < r.end; row++) {
        int64_t k = row % a->dim[2], j = row / a->dim[2] % a->dim[1], i = row / a->dim[2] / a->dim[1];
        const float *x = a->x + i * a->stride_x[0] + j * a->stride_x[1] + k * a->stride_x[2];
        float *out = a->out + i * a->stride_out[0] + j * a->stride_out[1] + k * a->stride_out[2];
        int64_t step_x = a->stride_x[3], step_out = a->stride_out[3];
        if (step_x == 1 && step_out == 1) accel__put_row(out, x, a->dim[3], a->scale, a->add);
        else if (a->add)
            for (int m = 0; m < a->dim[3]; m++) out[m * step_out] += a->scale * x[m * step_x];
        else
            for (int m = 0; m < a->dim[3]; m++) out[m * step_out] = a->scale * x[m * step_x];
    }
}
ACCEL__KERNEL(accel__move_piece, accel_move)

static void accel__cpu_move(accel_t *acc, const accel_move *args) {
    int64_t rows = (int64_t)args->dim[0] * args->dim[1] * args->dim[2];
    accel__run(acc, accel__pieces(rows, accel__pieces(ACCEL__ELEMENTS, args->dim[3])), accel__move_piece, args);
}

/* ---- rows of a table ---- */

ACCEL__INLINE void accel__gather_piece_body(const accel_rows *a, int piece) {
    accel__range r = accel__range_of(a->n, ACCEL__ROWS_AT_ONCE, piece);
    for (int64_t i = r.begin; i < r.end; i++)
        memcpy(a->out + i * a->width, a->x + (int64_t)a->ids[i] * a->width, (size_t)a->width * sizeof *a->out);
}
ACCEL__KERNEL(accel__gather_piece, accel_rows)

static void accel__cpu_gather(accel_t *acc, const accel_rows *args) {
    accel__run(acc, accel__pieces(args->n, ACCEL__ROWS_AT_ONCE), accel__gather_piece, args);
}

/* A piece owns some columns and takes all rows in order, so that repeated ids add up in one order. */
ACCEL__INLINE void accel__scatter_piece_body(const accel_rows *a, int piece) {
    accel__range r = accel__range_of(a->width, ACCEL__COLUMNS_AT_ONCE, piece);
    for (int i = 0; i < a->n; i++) {
        if (a->ids[i] == a->padding) continue;
        const float *x = a->x + (int64_t)i * a->width;
        float *out = a->out + (int64_t)a->ids[i] * a->width;
        for (int64_t j = r.begin; j < r.end; j++) out[j] += x[j];
    }
}
ACCEL__KERNEL(accel__scatter_piece, accel_rows)

static void accel__cpu_scatter(accel_t *acc, const accel_rows *args) {
    accel__run(acc, accel__pieces(args->width, ACCEL__COLUMNS_AT_ONCE), accel__scatter_piece, args);
}

/* ---- dropout ---- */

/* A row's key, and how bits become a decision: an element is kept where its bits are at least `limit`. */
typedef struct accel__mask_row {
    uint32_t low, high, limit;
    float scale;
} accel__mask_row;

ACCEL__INLINE accel__mask_row accel__mask_of(const accel_mask *mask, int64_t row) {
    uint64_t key = accel__mix(mask->key, mask->rows ? mask->rows[row] : mask->first_row + (uint64_t)row);
    double limit = (double)mask->p * 0x1p32;
    return (accel__mask_row){(uint32_t)key, (uint32_t)(key >> 32), limit < 0xFFFFFFFFp0 ? (uint32_t)limit : 0xFFFFFFFFu,
                             mask->p < 1 ? 1.0f / (1.0f - mask->p) : 0.0f};
}

/* Factor of element j: 0 or 1 / (1 - p). */
ACCEL__INLINE float accel__mask_factor(const accel__mask_row *row, uint32_t j) {
    return accel__bits(row->low, row->high, j) >= row->limit ? row->scale : 0.0f;
}

ACCEL__INLINE void accel__drop_piece_body(const accel_drop *a, int piece) {
    accel__range r = accel__range_of(a->rows, accel__pieces(ACCEL__ELEMENTS, a->width), piece);
    for (int64_t i = r.begin; i < r.end; i++) {
        accel__mask_row mask = accel__mask_of(&a->mask, i);
        const float *x = a->x + i * a->width;
        float *out = a->out + i * a->width;
        for (int64_t j = 0; j < a->width; j++)
            accel__put(&out[j], x[j] * accel__mask_factor(&mask, (uint32_t)j), a->add);
    }
}
ACCEL__KERNEL(accel__drop_piece, accel_drop)

static void accel__cpu_drop(accel_t *acc, const accel_drop *args) {
    accel__run(acc, accel__pieces(args->rows, accel__pieces(ACCEL__ELEMENTS, args->width)), accel__drop_piece, args);
}

/* ---- layer norm, with residual and dropout in the same pass ---- */

/* x becomes residual + dropout(x) */
ACCEL__INLINE void accel__residual_row(const accel_norm *a, int64_t row) {
    const float *residual = a->residual + row * a->width;
    float *x = a->x + row * a->width;
    if (a->mask.p > 0) {
        accel__mask_row mask = accel__mask_of(&a->mask, row);
        for (int j = 0; j < a->width; j++) x[j] = residual[j] + x[j] * accel__mask_factor(&mask, (uint32_t)j);
    } else
        for (int j = 0; j < a->width; j++) x[j] = residual[j] + x[j];
}

ACCEL__INLINE void accel__norm_piece_body(const accel_norm *a, int piece) {
    accel__range r = accel__range_of(a->rows, ACCEL__ROWS_AT_ONCE, piece);
    for (int64_t i = r.begin; i < r.end; i++) {
        const float *x = a->x + i * a->width;
        if (a->residual) accel__residual_row(a, i);
        float mean = accel__sum_row(x, a->width) / (float)a->width;
        float variance = accel__squares_about(x, a->width, mean) / (float)a->width;
        float rstd = 1.0f / sqrtf(variance + a->eps);
        float *out = a->out + i * a->width;
        for (int j = 0; j < a->width; j++) out[j] = (x[j] - mean) * rstd * a->weight[j] + a->bias[j];
        a->mean[i] = mean;
        a->rstd[i] = rstd;
    }
}
ACCEL__KERNEL(accel__norm_piece, accel_norm)

static void accel__cpu_norm(accel_t *acc, const accel_norm *args) {
    accel__run(acc, accel__pieces(args->rows, ACCEL__ROWS_AT_ONCE), accel__norm_piece, args);
}

/* With n = (x - mean) rstd and g = dy weight: dx = rstd (g - mean(g) - n mean(g n)); dweight = sum dy n, dbias = sum
   dy. */
ACCEL__INLINE void accel__norm_backward_row(const accel_norm *a, int64_t i, float *dweight, float *dbias) {
    int width = a->width;
    const float *x = a->x + i * width, *dy = a->dy + i * width;
    float mean = a->mean[i], rstd = a->rstd[i];
    float sum_g[ACCEL__LANES] = {0}, sum_gn[ACCEL__LANES] = {0};
    int j = 0;
    for (; j + ACCEL__LANES <= width; j += ACCEL__LANES)
        for (int l = 0; l < ACCEL__LANES; l++) {
            float n = (x[j + l] - mean) * rstd, g = dy[j + l] * a->weight[j + l];
            sum_g[l] += g;
            sum_gn[l] += g * n;
            dweight[j + l] += dy[j + l] * n;
            dbias[j + l] += dy[j + l];
        }
    for (int l = 0; j < width; j++, l++) {
        float n = (x[j] - mean) * rstd, g = dy[j] * a->weight[j];
        sum_g[l] += g;
        sum_gn[l] += g * n;
        dweight[j] += dy[j] * n;
        dbias[j] += dy[j];
    }
    float mean_g = accel__sum_lanes(sum_g) / (float)width, mean_gn = accel__sum_lanes(sum_gn) / (float)width;
    float *dresidual = a->dresidual ? a->dresidual + i * width : NULL, *dx = a->dx ? a->dx + i * width : NULL;
    accel__mask_row mask = accel__mask_of(&a->mask, i);
    if (dresidual)
        for (j = 0; j < width; j++) {
            float n = (x[j] - mean) * rstd, g = dy[j] * a->weight[j];
            accel__put(&dresidual[j], rstd * (g - mean_g - n * mean_gn), a->add_residual);
        }
    if (dx)
        for (j = 0; j < width; j++) {
            float n = (x[j] - mean) * rstd, g = dy[j] * a->weight[j];
            float factor = a->mask.p > 0 ? accel__mask_factor(&mask, (uint32_t)j) : 1.0f;
            accel__put(&dx[j], factor * rstd * (g - mean_g - n * mean_gn), a->add_x);
        }
}

ACCEL__INLINE void accel__norm_backward_piece_body(const accel_norm *a, int piece) {
    accel__range r = accel__range_of(a->rows, ACCEL_NORM_BLOCK, piece);
    float *dweight = a->partial + (int64_t)piece * 2 * a->width, *dbias = dweight + a->width;
    memset(dweight, 0, 2 * (size_t)a->width * sizeof *dweight);
    for (int64_t i = r.begin; i < r.end; i++) accel__norm_backward_row(a, i, dweight, dbias);
}
ACCEL__KERNEL(accel__norm_backward_piece, accel_norm)

static void accel__cpu_norm_backward(accel_t *acc, const accel_norm *args) {
    accel__run(acc, accel__pieces(args->rows, ACCEL_NORM_BLOCK), accel__norm_backward_piece, args);
}

/* ---- softmax ---- */

/* out = softmax(scale x); returns the maximum plus the log of the sum, so that log-softmax is scale x minus that (in
   double, since large logits would lose the small differences). */
ACCEL__INLINE double accel__softmax_row(const float *x, float *out, int n, float scale) {
    float max = accel__max_row(x, n) * scale;
    for (int j = 0; j < n; j++) out[j] = accel__exp(scale * x[j] - max);
    float sum = accel__sum_row(out, n), inverse = 1.0f / sum;
    for (int j = 0; j < n; j++) out[j] *= inverse;
    return (double)max + (double)logf(sum);
}

/* softmax: dx = y (dy - sum(dy y)); log-softmax: dx = dy - exp(y) sum(dy). */
ACCEL__INLINE void accel__softmax_backward_row(const accel_softmax_rows *a, int64_t row) {
    const float *y = a->y + row * a->width, *dy = a->dy + row * a->width;
    float *out = a->out + row * a->width;
    float sum = a->log ? accel__sum_row(dy, a->width) : accel__dot(dy, y, a->width);
    for (int j = 0; j < a->width; j++)
        accel__put(&out[j], a->log ? dy[j] - accel__exp(y[j]) * sum : y[j] * (dy[j] - sum), a->add);
}

ACCEL__INLINE void accel__softmax_piece_body(const accel_softmax_rows *a, int piece) {
    accel__range r = accel__range_of(a->rows, ACCEL__ROWS_AT_ONCE, piece);
    for (int64_t i = r.begin; i < r.end; i++) {
        if (a->dy) {
            accel__softmax_backward_row(a, i);
            continue;
        }
        const float *x = a->x + i * a->width;
        float *out = a->out + i * a->width;
        double total = accel__softmax_row(x, out, a->width, 1.0f);
        if (a->log)
            for (int j = 0; j < a->width; j++) out[j] = (float)(x[j] - total);
    }
}
ACCEL__KERNEL(accel__softmax_piece, accel_softmax_rows)

static void accel__cpu_softmax(accel_t *acc, const accel_softmax_rows *args) {
    accel__run(acc, accel__pieces(args->rows, ACCEL__ROWS_AT_ONCE), accel__softmax_piece, args);
}

/* ---- attention: a piece is one head of one sequence ---- */

typedef struct accel__head {
    int length, size, ld;               /* tokens, width of the head, distance of tokens in qkv */
    int64_t token;                      /* first */
    const float *q, *k, *v;
    float *p, *scratch, *scratch2;      /* [length, length] */
    int64_t out;                        /* offset of the head's part of [tokens, width] */
    uint64_t key;
} accel__head;

static accel__head accel__head_of(const accel_attend *a, int piece) {
    int sequence = piece / a->heads, head = piece % a->heads, size = a->width / a->heads;
    int64_t token = a->offsets[sequence], length = a->offsets[sequence + 1] - token;
    const float *q = a->qkv + token * 3 * a->width + head * size;
    float *scratch = a->scratch + (int64_t)accel__thread_index * 2 * a->longest * a->longest;
    return (accel__head){(int)length, size, 3 * a->width, token, q, q + a->width, q + 2 * a->width,
                         a->probabilities + a->begin[sequence] + head * length * length,
                         scratch, scratch + (int64_t)a->longest * a->longest, token * a->width + head * size,
                         accel__mix(a->mask.key, (uint64_t)head)};
}

typedef struct accel__head_rows {
    const accel_attend *attend;
    accel__head head;
} accel__head_rows;

/* out = p with dropout; row i of the head is token i of its sequence. */
ACCEL__INLINE void accel__head_drop_body(const accel__head_rows *a, int piece) {
    (void)piece;
    const accel__head *h = &a->head;
    accel_mask mask = a->attend->mask;
    mask.key = h->key;
    for (int i = 0; i < h->length; i++) {
        accel__mask_row row = accel__mask_of(&mask, h->token + i);
        const float *p = h->p + (int64_t)i * h->length;
        float *out = h->scratch + (int64_t)i * h->length;
        for (int j = 0; j < h->length; j++) out[j] = p[j] * accel__mask_factor(&row, (uint32_t)j);
    }
}
ACCEL__KERNEL(accel__head_drop, accel__head_rows)

ACCEL__INLINE void accel__head_softmax_body(const accel__head_rows *a, int piece) {
    (void)piece;
    const accel__head *h = &a->head;
    float scale = 1.0f / sqrtf((float)h->size);
    for (int i = 0; i < h->length; i++) {
        float *p = h->p + (int64_t)i * h->length;
        accel__softmax_row(p, p, h->length, scale);
    }
}
ACCEL__KERNEL(accel__head_softmax, accel__head_rows)

/* sum(w x) / sum(w) in double. Attention's probabilities do not add up to exactly 1; with this mean a row's gradients
   still add up to nearly nothing, and so do those of the key bias, which are zero in exact arithmetic. */
ACCEL__INLINE double accel__weighted_mean(const float *x, const float *w, int n) {
    double product[ACCEL__LANES] = {0}, weight[ACCEL__LANES] = {0};
    int i = 0;
    for (; i + ACCEL__LANES <= n; i += ACCEL__LANES)
        for (int j = 0; j < ACCEL__LANES; j++) {
            product[j] += (double)x[i + j] * (double)w[i + j];
            weight[j] += (double)w[i + j];
        }
    for (int j = 0; i < n; i++, j++) {
        product[j] += (double)x[i] * (double)w[i];
        weight[j] += (double)w[i];
    }
    for (int j = 1; j < ACCEL__LANES; j++) {
        product[0] += product[j];
        weight[0] += weight[j];
    }
    return product[0] / weight[0];
}

/* ds = scale p (dp - mean of dp under p), where dp (in scratch2) first gets dropout's factor. Overwrites dp. */
ACCEL__INLINE void accel__head_softmax_backward_body(const accel__head_rows *a, int piece) {
    (void)piece;
    const accel__head *h = &a->head;
    accel_mask mask = a->attend->mask;
    mask.key = h->key;
    float scale = 1.0f / sqrtf((float)h->size);
    for (int i = 0; i < h->length; i++) {
        const float *p = h->p + (int64_t)i * h->length;
        float *dp = h->scratch2 + (int64_t)i * h->length;
        if (mask.p > 0) {
            accel__mask_row row = accel__mask_of(&mask, h->token + i);
            for (int j = 0; j < h->length; j++) dp[j] *= accel__mask_factor(&row, (uint32_t)j);
        }
        double mean = accel__weighted_mean(dp, p, h->length);
        for (int j = 0; j < h->length; j++) dp[j] = scale * p[j] * (float)(dp[j] - mean);
    }
}
ACCEL__KERNEL(accel__head_softmax_backward, accel__head_rows)

static void accel__sgemm(bool ta, bool tb, int m, int n, int k, const float *a, int lda, const float *b, int ldb,
                         bool add, float *c, int ldc) {
    cblas_sgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans, m, n, k, 1.0f, a, lda, b,
                ldb, add ? 1.0f : 0.0f, c, ldc);
}

static void accel__attend_piece(void *argument, int piece) {
    const accel_attend *a = (const accel_attend *)argument;
    accel__head_rows rows = {a, accel__head_of(a, piece)};
    const accel__head *h = &rows.head;
    int n = h->length;
    accel__sgemm(false, true, n, n, h->size, h->q, h->ld, h->k, h->ld, false, h->p, n);
    accel__head_softmax(&rows, 0);
    if (a->mask.p > 0) accel__head_drop(&rows, 0);
    accel__sgemm(false, false, n, h->size, n, a->mask.p > 0 ? h->scratch : h->p, n, h->v, h->ld, false, a->out + h->out,
                 a->width);
}

static void accel__attend_backward_piece(void *argument, int piece) {
    const accel_attend *a = (const accel_attend *)argument;
    accel__head_rows rows = {a, accel__head_of(a, piece)};
    const accel__head *h = &rows.head;
    int n = h->length;
    const float *dout = a->dout + h->out;
    float *dq = a->dqkv + (h->q - a->qkv), *dk = dq + a->width, *dv = dk + a->width;
    if (a->mask.p > 0) accel__head_drop(&rows, 0);
    accel__sgemm(true, false, n, h->size, n, a->mask.p > 0 ? h->scratch : h->p, n, dout, a->width, a->add, dv, h->ld);
    accel__sgemm(false, true, n, n, h->size, dout, a->width, h->v, h->ld, false, h->scratch2, n);
    accel__head_softmax_backward(&rows, 0);
    accel__sgemm(false, false, n, h->size, n, h->scratch2, n, h->k, h->ld, a->add, dq, h->ld);
    accel__sgemm(true, false, n, h->size, n, h->scratch2, n, h->q, h->ld, a->add, dk, h->ld);
}

static void accel__cpu_attend(accel_t *acc, const accel_attend *args) {
    accel__run(acc, args->sequences * args->heads, accel__attend_piece, args);
}

static void accel__cpu_attend_backward(accel_t *acc, const accel_attend *args) {
    accel__run(acc, args->sequences * args->heads, accel__attend_backward_piece, args);
}

/* ---- losses ---- */

/* With smoothing s and class weights w (torch's cross_entropy): loss = -(1 - s) w_y log p_y - s / C sum_c w_c log p_c.
 */
ACCEL__INLINE void accel__cross_entropy_row(const accel_cross_entropy_rows *a, int row) {
    int label = a->labels[row], classes = a->classes;
    const float *x = a->x + (int64_t)row * classes, *w = a->class_weights;
    float *dx = a->dx + (int64_t)row * classes;
    if (label == ACCEL_IGNORE) {
        memset(dx, 0, (size_t)classes * sizeof *dx);
        a->loss[row] = 0;
        return;
    }
    double total = accel__softmax_row(x, dx, classes, 1.0f); /* dx holds the probabilities */
    float hit = (1.0f - a->smoothing) * (w ? w[label] : 1.0f), each = a->smoothing / (float)classes;
    double loss = hit * (total - x[label]), weights = hit;
    if (each > 0)
        for (int c = 0; c < classes; c++) {
            double weight = (double)each * (w ? w[c] : 1.0f);
            loss += weight * (total - x[c]);
            weights += weight;
        }
    for (int c = 0; c < classes; c++) dx[c] = (float)weights * dx[c] - each * (w ? w[c] : 1.0f);
    dx[label] -= hit;
    a->loss[row] = (float)loss;
}

ACCEL__INLINE void accel__cross_entropy_piece_body(const accel_cross_entropy_rows *a, int piece) {
    accel__range r = accel__range_of(a->n, ACCEL__ROWS_AT_ONCE, piece);
    for (int64_t i = r.begin; i < r.end; i++) accel__cross_entropy_row(a, (int)i);
}
ACCEL__KERNEL(accel__cross_entropy_piece, accel_cross_entropy_rows)

static void accel__cpu_cross_entropy(accel_t *acc, const accel_cross_entropy_rows *args) {
    accel__run(acc, accel__pieces(args->n, ACCEL__ROWS_AT_ONCE), accel__cross_entropy_piece, args);
}

/* bce: max(a, 0) - a b + log(1 + e^-|a|), da = sigmoid(a) - b, db = -a; squared error: (a - b)^2, da = 2 (a - b) = -db.
 */
ACCEL__INLINE void accel__pointwise_loss_piece_body(const accel_pointwise_loss *p, int piece) {
    accel__range r = accel__range_of(p->n, ACCEL_LOSS_BLOCK, piece);
    double sum = 0;
    for (int64_t i = r.begin; i < r.end; i++) {
        float a = p->a[i], b = p->b[i], da = 2.0f * (a - b), db = -da;
        if (p->bce) {
            sum += (double)(a > 0 ? a : 0) - (double)a * b + log1p(exp(-fabs((double)a)));
            da = accel__sigmoid1(a) - b;
            db = -a;
        } else sum += ((double)a - b) * ((double)a - b);
        if (p->da) p->da[i] = da;
        if (p->db) p->db[i] = db;
    }
    p->loss[piece] = (float)sum;
}
ACCEL__KERNEL(accel__pointwise_loss_piece, accel_pointwise_loss)

static void accel__cpu_pointwise_loss(accel_t *acc, const accel_pointwise_loss *args) {
    accel__run(acc, accel__pieces(args->n, ACCEL_LOSS_BLOCK), accel__pointwise_loss_piece, args);
}

/* ---- optimizers ---- */

typedef struct accel__squares {
    const accel_update *list;
    double *sums;
} accel__squares;

ACCEL__INLINE void accel__squares_piece_body(const accel__squares *a, int piece) {
    const accel_update *u = &a->list[piece];
    double sum = 0;
    if (!u->row_width) {
        for (int64_t i = 0; i < u->n; i += 1024)
            sum += accel__squares_about(u->gradient + i, (int)(u->n - i < 1024 ? u->n - i : 1024), 0);
    } else
        for (int64_t row = 0; row < u->n / u->row_width; row++)
            if (u->touched[row]) sum += accel__squares_about(u->gradient + row * u->row_width, u->row_width, 0);
    a->sums[piece] = sum;
}
ACCEL__KERNEL(accel__squares_piece, accel__squares)

static void accel__cpu_squares(accel_t *acc, const accel_update *list, int count, double *sums) {
    accel__squares args = {list, sums};
    accel__run(acc, count, accel__squares_piece, &args);
}

/* Square roots. sqrtf may set errno, which keeps a loop over it from becoming vector code. */
ACCEL__INLINE void accel__roots(const float *x, float *out, int64_t n) {
    int64_t i = 0;
#ifdef ACCEL__X86
    for (; i + 4 <= n; i += 4) _mm_storeu_ps(out + i, _mm_sqrt_ps(_mm_loadu_ps(x + i)));
#endif
    for (; i < n; i++) out[i] = sqrtf(x[i]);
}

/* torch.optim.Adam / AdamW, n elements; g NULL: the gradient is zero. */
ACCEL__INLINE void accel__adam_row(const accel_update *u, const accel_update_rule *rule, int64_t begin, int64_t n,
                                   const float *g) {
    enum { AT_ONCE = 256 };
    bool decoupled = rule->rule == ACCEL_RULE_ADAMW;
    float keep = decoupled ? 1.0f - u->lr * u->weight_decay : 1.0f, l2 = decoupled ? 0.0f : u->weight_decay;
    float step = u->lr / u->correction1, beta1 = rule->beta1, beta2 = rule->beta2, eps = rule->eps;
    float scale = g ? rule->scale : 0.0f, inverse = 1.0f / u->sqrt_correction2, root[AT_ONCE];
    for (int64_t at = 0; at < n; at += AT_ONCE) {
        float *value = u->value + begin + at, *m = u->m + begin + at, *v = u->v + begin + at;
        float *v_max = u->v_max ? u->v_max + begin + at : v;
        const float *gradient = g ? g + at : value; /* where there is none, finite numbers that count zero times */
        int64_t count = n - at < AT_ONCE ? n - at : AT_ONCE;
        for (int64_t i = 0; i < count; i++) {
            float along = scale * gradient[i] + l2 * value[i];
            m[i] = beta1 * m[i] + (1.0f - beta1) * along;
            v[i] = beta2 * v[i] + (1.0f - beta2) * along * along;
        }
        if (u->v_max)
            for (int64_t i = 0; i < count; i++) v_max[i] = v_max[i] > v[i] ? v_max[i] : v[i];
        accel__roots(v_max, root, count);
        for (int64_t i = 0; i < count; i++) value[i] = keep * value[i] - step * m[i] / (root[i] * inverse + eps);
    }
}

/* torch.optim.SGD: b = momentum b + (1 - dampening) g, the first time b = g; nesterov steps along g + momentum b. */
ACCEL__INLINE void accel__sgd_row(const accel_update *u, const accel_update_rule *rule, int64_t begin, int64_t n,
                                  const float *g) {
    float *value = u->value + begin, *m = u->m ? u->m + begin : NULL;
    float scale = g ? rule->scale : 0.0f, momentum = rule->momentum, lr = u->lr, decay = u->weight_decay;
    float fresh = u->first ? 1.0f : 1.0f - rule->dampening, old = u->first ? 0.0f : momentum;
    if (!g) g = value;
    for (int64_t i = 0; i < n; i++) {
        float gradient = scale * g[i] + decay * value[i], along = gradient;
        if (m) {
            m[i] = old * m[i] + fresh * gradient;
            along = rule->nesterov ? gradient + momentum * m[i] : m[i];
        }
        value[i] -= lr * along;
    }
}

ACCEL__INLINE void accel__update_row(const accel_update *u, const accel_update_rule *rule, int64_t begin, int64_t n,
                                     const float *g) {
    if (rule->rule == ACCEL_RULE_SGD) accel__sgd_row(u, rule, begin, n, g);
    else accel__adam_row(u, rule, begin, n, g);
}

typedef struct accel__updates {
    const accel_update *list;
    const accel_update_rule *rule;
} accel__updates;

/* A row that was never touched has zero moments: without decay its update changes nothing and is left out. With AdamW
   it only decays. Under L2 decay its gradient is not zero, so it gets moments as well. */
ACCEL__INLINE void accel__update_sparse(const accel_update *u, const accel_update_rule *rule) {
    bool l2 = rule->rule != ACCEL_RULE_ADAMW && u->weight_decay != 0;
    for (int64_t row = 0; row < u->n / u->row_width; row++) {
        int64_t begin = row * u->row_width;
        if (u->touched[row] || l2) u->has_moments[row] = true;
        if (u->has_moments[row])
            accel__update_row(u, rule, begin, u->row_width, u->touched[row] ? u->gradient + begin : NULL);
        else if (u->weight_decay != 0) {
            float keep = 1.0f - u->lr * u->weight_decay;
            for (int i = 0; i < u->row_width; i++) u->value[begin + i] = keep * u->value[begin + i];
        }
    }
}

ACCEL__INLINE void accel__update_piece_body(const accel__updates *a, int piece) {
    const accel_update *u = &a->list[piece];
    if (u->row_width) accel__update_sparse(u, a->rule);
    else accel__update_row(u, a->rule, 0, u->n, u->gradient);
}
ACCEL__KERNEL(accel__update_piece, accel__updates)

static void accel__cpu_update(accel_t *acc, const accel_update *list, int count, const accel_update_rule *rule) {
    accel__updates args = {list, rule};
    accel__run(acc, count, accel__update_piece, &args);
}

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#endif

static const accel_backend accel__cpu_backend = {
    .name = "cpu",
    .alloc = accel__alloc,
    .alloc_zero = accel__alloc_zero,
    .release = accel__free,
    .upload = accel__cpu_copy,
    .download = accel__cpu_copy,
    .fill = accel__cpu_fill,
    .gemm = accel__cpu_gemm,
    .map = accel__cpu_map,
    .pair = accel__cpu_pair,
    .reduce = accel__cpu_reduce,
    .expand = accel__cpu_expand,
    .move = accel__cpu_move,
    .gather = accel__cpu_gather,
    .scatter = accel__cpu_scatter,
    .norm = accel__cpu_norm,
    .norm_backward = accel__cpu_norm_backward,
    .softmax = accel__cpu_softmax,
    .drop = accel__cpu_drop,
    .attend = accel__cpu_attend,
    .attend_backward = accel__cpu_attend_backward,
    .cross_entropy = accel__cpu_cross_entropy,
    .pointwise_loss = accel__cpu_pointwise_loss,
    .squares = accel__cpu_squares,
    .update = accel__cpu_update,
};

/* =============================================== >>autograd =======================================================
   Operations run at once and are recorded on a tape; accel_backward walks it from the loss to the front. An operation's
   forward and backward stand side by side below. */

/* ---- where gradients go ---- */

static void accel__window_reset(accel__window *window) {
    *window = (accel__window){.round = window->round + 1, .clip = 1, .norm = -1};
}

static double accel__micro_weight(const accel_t *acc) {
    return acc->micro.weight_set ? acc->micro.weight : 1;
}

/* A gradient is about to be added: the micro-batch's weight counts, once. */
static void accel__window_enter(accel_t *acc, accel__window *window) {
    if (window->consumed || window->clip == 0) accel__window_reset(window);
    if (window->micro != acc->micro.id + 1) {
        window->weight += accel__micro_weight(acc);
        window->micro = acc->micro.id + 1;
    }
    window->norm = -1;
    window->clip = 1;
}

/* What a stored gradient has to be multiplied by. */
static float accel__window_scale(const accel__window *window) {
    return window->weight > 0 ? (float)(window->clip / window->weight) : 1.0f;
}

static accel__window *accel__param_window(accel__param *param);

/* The state of a parameter's gradient in its window's present round. */
static int accel__gradient_state(accel__param *param) {
    uint64_t round = accel__param_window(param)->round;
    if (param->round != round) {
        for (int32_t i = 0; i < param->touched_count; i++) param->is_touched[param->touched[i]] = false;
        param->touched_count = 0;
        param->gradient_state = ACCEL__NO_GRADIENT;
        param->round = round;
    }
    return param->gradient_state;
}

static size_t accel__param_bytes(const accel__param *param) {
    return (size_t)param->slot->count * sizeof(float);
}

/* Memory for a value of each element; rows: only those of some rows will be written. */
static float *accel__param_memory(accel_t *acc, const accel__param *param, bool rows) {
    return (float *)(rows ? acc->backend->alloc_zero : acc->backend->alloc)(acc, accel__param_bytes(param));
}

static bool accel__param_gradient(accel_t *acc, accel__param *param, bool rows) {
    if (!param->gradient) param->gradient = accel__param_memory(acc, param, rows);
    return param->gradient != NULL;
}

/* Rows without a gradient become zeros, so that the whole can be added to. */
static void accel__rows_to_dense(accel_t *acc, accel__param *param) {
    int width = accel__shape_last(param->slot->shape);
    for (int64_t row = 0; row < param->slot->count / width; row++)
        if (!param->is_touched[row]) acc->backend->fill(acc, param->gradient + row * width, width, 0);
    param->gradient_state = ACCEL__DENSE;
}

typedef struct accel__target {
    float *at; /* NULL: no gradient is wanted, or memory is lacking */
    bool add;
} accel__target;

static accel__target accel__param_target(accel_t *acc, accel__param *param) {
    if (!accel__param_gradient(acc, param, false)) return (accel__target){0};
    accel__window_enter(acc, accel__param_window(param));
    int state = accel__gradient_state(param);
    if (state == ACCEL__ROWS) accel__rows_to_dense(acc, param);
    param->gradient_state = ACCEL__DENSE;
    return (accel__target){param->gradient, state != ACCEL__NO_GRADIENT};
}

/* The gradient block must not be changed while another tensor shares it. */
static bool accel__gradient_own(accel_t *acc, accel__slot *slot) {
    if (slot->grad->references == 1) return true;
    size_t bytes = (size_t)slot->count * sizeof(float);
    accel__block *own = accel__block_new(acc, bytes);
    if (!own) return false;
    acc->backend->download(acc, own->base, slot->grad->base, bytes);
    accel__block_release(acc, slot->grad);
    slot->grad = own;
    return true;
}

/* Where the gradient of an operand is to be written or added. */
static accel__target accel__gradient_of(accel_t *acc, accel__slot *slot) {
    if (!slot || !slot->requires_grad || acc->code != ACCEL_OK) return (accel__target){0};
    if (slot->param) return accel__param_target(acc, slot->param);
    if (!slot->node) accel__window_enter(acc, &slot->window);
    if (slot->grad) return (accel__target){accel__gradient_own(acc, slot) ? accel__floats(slot->grad) : NULL, true};
    slot->grad = accel__block_new(acc, (size_t)slot->count * sizeof(float));
    return (accel__target){accel__floats(slot->grad), false};
}

static void accel__add_scaled(accel_t *acc, float *out, const float *x, int64_t n, float scale, bool add) {
    int rows = accel__pieces(n, ACCEL__ELEMENTS);
    accel_move move = {
        {1, 1, rows, ACCEL__ELEMENTS}, {0, 0, ACCEL__ELEMENTS, 1}, {0, 0, ACCEL__ELEMENTS, 1}, x, out, scale, add};
    int tail = (int)(n - (int64_t)(rows - 1) * ACCEL__ELEMENTS);
    move.dim[2] = rows - 1;
    if (rows > 1) acc->backend->move(acc, &move);
    move.x += (int64_t)(rows - 1) * ACCEL__ELEMENTS;
    move.out += (int64_t)(rows - 1) * ACCEL__ELEMENTS;
    move.dim[2] = 1;
    move.dim[3] = tail;
    acc->backend->move(acc, &move);
}

/* Hands a whole gradient on to an operand with as many elements, sharing the block where nothing has to be added. */
static void accel__gradient_pass(accel_t *acc, accel__slot *slot, accel__block *gradient) {
    if (!slot->requires_grad || acc->code != ACCEL_OK) return;
    if (!slot->param && !slot->grad && slot->node) {
        gradient->references++;
        slot->grad = gradient;
        return;
    }
    accel__target target = accel__gradient_of(acc, slot);
    if (target.at) accel__add_scaled(acc, target.at, accel__floats(gradient), slot->count, 1, target.add);
}

/* ---- recording ---- */

static bool accel__recording(const accel_t *acc, accel__slot *const *input, int count) {
    if (acc->evaluating) return false;
    for (int i = 0; i < count; i++)
        if (input[i] && input[i]->requires_grad) return true;
    return false;
}

/* Puts an operation on the tape: a zeroed struct of `bytes` bytes that begins with an accel__node. NULL where memory is
   lacking. */
static void *accel__record_new(accel_t *acc, size_t bytes, void (*backward)(accel_t *, accel__node *),
                               accel__slot *output, accel__slot *const *input, int count) {
    accel__node *node = (accel__node *)accel__node_alloc(acc, bytes);
    accel__slot **inputs = node ? (accel__slot **)accel__node_alloc(acc, (size_t)count * sizeof *inputs) : NULL;
    if (!inputs) return NULL;
    memcpy(inputs, input, (size_t)count * sizeof *inputs);
    node->backward = backward;
    node->output = output;
    node->input = inputs;
    node->input_count = count;
    node->previous = acc->tape;
    acc->tape = node;
    output->node = node;
    output->requires_grad = true;
    return node;
}

/* The same where a gradient flows to an input; else NULL. */
static void *accel__record(accel_t *acc, size_t bytes, void (*backward)(accel_t *, accel__node *), accel__slot *output,
                           accel__slot *const *input, int count) {
    if (!output || !accel__recording(acc, input, count)) return NULL;
    return accel__record_new(acc, bytes, backward, output, input, count);
}

/* The result of an operation: its handle, unless something failed on the way. */
static accel_tensor accel__result(accel_t *acc, const accel__slot *slot) {
    return acc->code == ACCEL_OK ? accel__handle(acc, slot) : accel__null(acc);
}

ACCEL_API void accel_set_requires_grad(accel_tensor x, bool on) {
    accel__slot *slot = accel__get_float(x, "accel_set_requires_grad");
    if (!slot) return;
    if (slot->node) {
        accel__fail(x.acc, ACCEL_BAD_ARGUMENT,
                    "accel_set_requires_grad: the tensor is the result of an operation, not a leaf");
        return;
    }
    slot->requires_grad = on;
    if (slot->param || !on) return;
    accel__block_release(x.acc, slot->grad);
    slot->grad = NULL;
    accel__window_reset(&slot->window);
}

ACCEL_API bool accel_grad(accel_tensor x, float *values, int64_t count) {
    accel__slot *slot = accel__get_counted(x, values, count, "accel_grad");
    if (!slot) return false;
    size_t bytes = (size_t)count * sizeof *values;
    const float *stored = accel__floats(slot->grad);
    float scale = accel__window_scale(&slot->window);
    if (slot->param) {
        int state = accel__gradient_state(slot->param);
        if (state == ACCEL__ROWS) accel__rows_to_dense(x.acc, slot->param);
        stored = state == ACCEL__NO_GRADIENT ? NULL : slot->param->gradient;
        scale = accel__window_scale(accel__param_window(slot->param));
    }
    memset(values, 0, bytes);
    if (!stored) return true;
    x.acc->backend->download(x.acc, values, stored, bytes);
    for (int64_t i = 0; i < count; i++) values[i] *= scale;
    return true;
}

/* Hands the gradients on, from the operation `from` to the one recorded next after `until`. */
static void accel__backward_walk(accel_t *acc, accel__node *from, const accel__node *until) {
    for (accel__node *node = from; node && node != until; node = node->previous) {
        if (!node->output->grad) continue;
        if (acc->code == ACCEL_OK) node->backward(acc, node);
        accel__block_release(acc, node->output->grad);
        node->output->grad = NULL;
    }
}

ACCEL_API void accel_backward(accel_t *acc, accel_tensor loss) {
    if (!loss.acc) loss.acc = acc;
    if (accel_failed(acc) || !accel__outside_checkpoint(acc, "accel_backward")) return;
    if (loss.acc != acc) {
        accel__fail(acc, ACCEL_BAD_ARGUMENT, "accel_backward: the loss belongs to another context");
        return;
    }
    accel__slot *slot = accel__get_float(loss, "accel_backward");
    if (!slot) return;
    if (slot->count != 1) {
        accel__fail(acc, ACCEL_BAD_SHAPE, "accel_backward: the loss must be a scalar, its shape is %s",
                    accel__shape_text(slot->shape).text);
        return;
    }
    if (acc->evaluating || !slot->requires_grad) {
        accel__fail(acc, ACCEL_BAD_STATE,
                    acc->evaluating ? "accel_backward: not between accel_eval_begin and accel_eval_end"
                                    : "accel_backward: the loss depends on nothing that requires a gradient");
        return;
    }
    if (!acc->micro.weight_set) acc->micro.weight = 1; /* a loss that comes later does not change it any more */
    acc->micro.weight_set = acc->micro.had_backward = true;
    accel__target seed = accel__gradient_of(acc, slot);
    if (!seed.at) return;
    ACCEL__SPAN(acc, "backward", NULL, 0);
    acc->backend->fill(acc, seed.at, 1, (float)accel__micro_weight(acc));
    accel__backward_walk(acc, slot->node, NULL);
}

/* ---- recomputation: what a function recorded is thrown away, and recorded again for its gradients ---- */

/* A point to go back to. */
typedef struct accel__mark {
    accel__node *tape;
    accel__slot *newest; /* of the scope */
    accel__chunk *chunk; /* of the nodes' memory */
    size_t used;
} accel__mark;

static accel__mark accel__mark_here(const accel_t *acc) {
    return (accel__mark){acc->tape, acc->scope[ACCEL__TRAINING], acc->chunk, acc->chunk ? acc->chunk->used : 0};
}

/* Throws away everything since then but one tensor (or NULL); returns whether that was made since then. */
static bool accel__rewind(accel_t *acc, accel__mark mark, accel__slot *except) {
    accel__tape_cut(acc, mark.tape);
    for (accel__chunk *chunk = mark.chunk ? mark.chunk->next : acc->chunks; chunk; chunk = chunk->next) chunk->used = 0;
    acc->chunk = mark.chunk ? mark.chunk : acc->chunks;
    if (mark.chunk) mark.chunk->used = mark.used;
    accel__slot *slot = acc->scope[ACCEL__TRAINING], *kept = NULL;
    while (slot != mark.newest) {
        accel__slot *next = slot->next;
        if (slot == except) kept = slot;
        else accel__slot_free(acc, slot);
        slot = next;
    }
    if (kept) kept->next = mark.newest;
    acc->scope[ACCEL__TRAINING] = kept ? kept : mark.newest;
    return kept != NULL;
}

/* Sum of the versions of all parameters that the operations since then use. */
static uint64_t accel__versions_since(const accel_t *acc, accel__mark mark) {
    uint64_t sum = 0;
    for (const accel__node *node = acc->tape; node != mark.tape; node = node->previous)
        for (int i = 0; i < node->input_count; i++) {
            const accel__param *param = node->input[i] ? node->input[i]->param : NULL;
            if (param) sum += (param->joined ? param->joined : param)->packed.version;
        }
    return sum;
}

typedef struct accel__checkpoint_call {
    accel_tensor (*fn)(accel_t *acc, const accel_tensor *inputs, void *user);
    void *user;
    uint64_t seed, calls; /* its random numbers begin there */
} accel__checkpoint_call;

typedef struct accel__checkpoint_node {
    accel__node node;
    accel__checkpoint_call call;
    uint64_t versions;
} accel__checkpoint_node;

static accel_tensor accel__checkpoint_run(accel_t *acc, const accel__checkpoint_call *call, accel__slot *const *input,
                                          int count) {
    accel_tensor inputs[ACCEL_CUSTOM_INPUTS];
    for (int i = 0; i < count; i++) inputs[i] = accel__handle(acc, input[i]);
    acc->checkpoints++;
    accel_tensor y = call->fn(acc, inputs, call->user);
    acc->checkpoints--;
    return y;
}

static void accel__checkpoint_backward(accel_t *acc, accel__node *node) {
    const accel__checkpoint_node *c = (const accel__checkpoint_node *)node;
    accel__mark mark = accel__mark_here(acc);
    uint64_t seed = acc->desc.seed, calls = acc->micro.calls;
    acc->desc.seed = c->call.seed;
    acc->micro.calls = c->call.calls;
    accel_tensor again = accel__checkpoint_run(acc, &c->call, node->input, node->input_count);
    accel__slot *y = accel__operand(acc, again, "accel_checkpoint: the function's second call");
    acc->desc.seed = seed;
    acc->micro.calls = calls;
    if (y && (!y->node || y->grad || !accel__shape_equal(y->shape, node->output->shape)))
        accel__fail(acc, ACCEL_BAD_STATE, "accel_checkpoint: the function's second call gave another result");
    if (accel__versions_since(acc, mark) != c->versions)
        accel__fail(acc, ACCEL_BAD_STATE,
                    "accel_backward: a parameter changed after the forward pass that is to be computed again");
    if (acc->code == ACCEL_OK) {
        node->output->grad->references++;
        y->grad = node->output->grad;
        accel__backward_walk(acc, y->node, mark.tape);
    }
    accel__rewind(acc, mark, NULL);
}

ACCEL_API accel_tensor accel_checkpoint(accel_t *acc,
                                        accel_tensor (*fn)(accel_t *acc, const accel_tensor *inputs, void *user),
                                        const accel_tensor *inputs, int count, void *user) {
    const char *where = "accel_checkpoint";
    if (accel_failed(acc)) return accel__null(acc);
    if (!fn || count < 0 || count > ACCEL_CUSTOM_INPUTS || (count && !inputs)) {
        accel__fail(acc, ACCEL_BAD_ARGUMENT, "%s: a function and 0 to %d inputs are needed", where,
                    ACCEL_CUSTOM_INPUTS);
        return accel__null(acc);
    }
    accel__slot *in[ACCEL_CUSTOM_INPUTS] = {NULL};
    for (int i = 0; i < count; i++)
        if (inputs[i].id && !(in[i] = accel__operand(acc, inputs[i], where))) return accel__null(acc);
    if (acc->evaluating) return fn(acc, inputs, user);
    accel__checkpoint_call call = {fn, user, acc->desc.seed, acc->micro.calls};
    accel__mark mark = accel__mark_here(acc);
    accel_tensor result = accel__checkpoint_run(acc, &call, in, count);
    accel__slot *y = accel__operand_type(acc, result, ACCEL_FLOAT32, where);
    uint64_t versions = accel__versions_since(acc, mark);
    bool recorded = acc->tape != mark.tape && y && y->node;
    if (!accel__rewind(acc, mark, y)) return accel__result(acc, y);
    y->node = NULL;
    y->requires_grad = false;
    accel__checkpoint_node *node = NULL;
    if (recorded)
        node = (accel__checkpoint_node *)accel__record_new(acc, sizeof *node, accel__checkpoint_backward, y, in, count);
    if (node) *node = (accel__checkpoint_node){node->node, call, versions};
    return accel__result(acc, y);
}

/* ---- element by element, one operand ---- */

typedef struct accel__map_node {
    accel__node node;
    accel_map args;
} accel__map_node;

static void accel__map_backward(accel_t *acc, accel__node *node) {
    accel_map args = ((accel__map_node *)node)->args;
    accel__target dx = accel__gradient_of(acc, node->input[0]);
    if (!dx.at) return;
    args.y = args.out;
    args.dy = accel__floats(node->output->grad);
    args.out = dx.at;
    args.add = dx.add;
    acc->backend->map(acc, &args);
}

static accel_tensor accel__map_tensor(accel_tensor x, const char *where, int kind, float value) {
    accel_t *acc = x.acc;
    accel__slot *in = accel__get_float(x, where);
    accel__slot *out = in ? accel__new(acc, in->shape) : NULL;
    if (!out) return accel__null(acc);
    accel_map args = {kind, in->count, value, accel__data(in), NULL, NULL, accel__data(out), false};
    acc->backend->map(acc, &args);
    accel__map_node *node = (accel__map_node *)accel__record(acc, sizeof *node, accel__map_backward, out, &in, 1);
    if (node) node->args = args;
    return accel__result(acc, out);
}

ACCEL_API accel_tensor accel_scale(accel_tensor x, float factor) {
    return accel__map_tensor(x, "accel_scale", ACCEL_MAP_SCALE, factor);
}

ACCEL_API accel_tensor accel_exp(accel_tensor x) { return accel__map_tensor(x, "accel_exp", ACCEL_MAP_EXP, 0); }
ACCEL_API accel_tensor accel_log(accel_tensor x) { return accel__map_tensor(x, "accel_log", ACCEL_MAP_LOG, 0); }
ACCEL_API accel_tensor accel_sqrt(accel_tensor x) { return accel__map_tensor(x, "accel_sqrt", ACCEL_MAP_SQRT, 0); }

static accel_tensor accel__activation(accel_tensor x, accel_activation kind, float slope, const char *where) {
    return accel__map_tensor(x, where, ACCEL_MAP_ACTIVATION + (int)kind, slope);
}

ACCEL_API accel_tensor accel_relu(accel_tensor x) { return accel__activation(x, ACCEL_RELU, 0, "accel_relu"); }
ACCEL_API accel_tensor accel_gelu(accel_tensor x) { return accel__activation(x, ACCEL_GELU, 0, "accel_gelu"); }
ACCEL_API accel_tensor accel_tanh(accel_tensor x) { return accel__activation(x, ACCEL_TANH, 0, "accel_tanh"); }
ACCEL_API accel_tensor accel_sigmoid(accel_tensor x) { return accel__activation(x, ACCEL_SIGMOID, 0, "accel_sigmoid"); }

ACCEL_API accel_tensor accel_gelu_tanh(accel_tensor x) {
    return accel__activation(x, ACCEL_GELU_TANH, 0, "accel_gelu_tanh");
}

ACCEL_API accel_tensor accel_leaky_relu(accel_tensor x, float slope) {
    return accel__activation(x, ACCEL_LEAKY_RELU, slope, "accel_leaky_relu");
}

/* ---- element by element, two operands with broadcasting ---- */

/* The shape's dimensions moved to the right end of four, 1 in front. */
static void accel__align(accel_shape shape, int dim[4]) {
    for (int i = 0; i < 4; i++) dim[i] = i < 4 - shape.rank ? 1 : shape.dim[i - (4 - shape.rank)];
}

static void accel__strides(const int dim[4], int64_t stride[4]) {
    int64_t step = 1;
    for (int i = 3; i >= 0; i--) {
        stride[i] = step;
        step *= dim[i];
    }
}

/* Sums x [dim] over the axes where `wanted` is 1 into out. */
static void accel__reduce_to(accel_t *acc, const float *x, const int dim[4], const int wanted[4], accel__target out) {
    int size[4], axes = 0;
    memcpy(size, dim, sizeof size);
    for (int i = 0; i < 4; i++) axes += dim[i] != wanted[i];
    if (!axes) accel__add_scaled(acc, out.at, x, (int64_t)dim[0] * dim[1] * dim[2] * dim[3], 1, out.add);
    accel__block *before = NULL;
    for (int i = 0; i < 4; i++) {
        if (size[i] == wanted[i]) continue;
        accel_axis args = {1, size[i], 1, 0, 1, x, out.at, out.add};
        for (int j = 0; j < i; j++) args.outer *= size[j];
        for (int j = i + 1; j < 4; j++) args.inner *= size[j];
        accel__block *block = NULL;
        if (--axes > 0) {
            block = accel__block_new(acc, (size_t)(args.outer * args.inner) * sizeof(float));
            if (!block) break;
            args.out = accel__floats(block);
            args.add = false;
        }
        acc->backend->reduce(acc, &args);
        accel__block_release(acc, before);
        before = block;
        x = args.out;
        size[i] = 1;
    }
    accel__block_release(acc, before);
}

typedef struct accel__pair_node {
    accel__node node;
    accel_pair args;
} accel__pair_node;

static void accel__pair_backward_operand(accel_t *acc, accel__node *node, int operand) {
    accel_pair args = ((accel__pair_node *)node)->args;
    accel__slot *in = node->input[operand];
    bool plain = args.kind == ACCEL_PAIR_ADD || (args.kind == ACCEL_PAIR_SUB && !operand);
    if (plain && in->count == node->output->count) {
        accel__gradient_pass(acc, in, node->output->grad);
        return;
    }
    accel__target dx = accel__gradient_of(acc, in);
    if (!dx.at) return;
    int wanted[4];
    accel__align(in->shape, wanted);
    args.dy = accel__floats(node->output->grad);
    args.operand = operand;
    args.out = dx.at;
    args.add = dx.add;
    accel__block *whole = NULL;
    if (in->count != node->output->count) {
        if (!(whole = accel__block_new(acc, (size_t)node->output->count * sizeof(float)))) return;
        args.out = accel__floats(whole);
        args.add = false;
    }
    acc->backend->pair(acc, &args);
    if (whole) accel__reduce_to(acc, args.out, args.dim, wanted, dx);
    accel__block_release(acc, whole);
}

static void accel__pair_backward(accel_t *acc, accel__node *node) {
    accel__pair_backward_operand(acc, node, 0);
    accel__pair_backward_operand(acc, node, 1);
}

static bool accel__broadcast(accel_t *acc, const char *where, const accel__slot *a, const accel__slot *b,
                             accel_shape *shape, accel_pair *args) {
    int dim_a[4], dim_b[4];
    accel__align(a->shape, dim_a);
    accel__align(b->shape, dim_b);
    accel__strides(dim_a, args->stride_a);
    accel__strides(dim_b, args->stride_b);
    *shape = (accel_shape){a->shape.rank > b->shape.rank ? a->shape.rank : b->shape.rank, {1, 1, 1, 1}};
    for (int i = 0; i < 4; i++) {
        if (dim_a[i] != dim_b[i] && dim_a[i] != 1 && dim_b[i] != 1)
            return accel__fail(acc, ACCEL_BAD_SHAPE, "%s: shapes %s and %s cannot be broadcast together", where,
                               accel__shape_text(a->shape).text, accel__shape_text(b->shape).text);
        args->dim[i] = dim_a[i] > dim_b[i] ? dim_a[i] : dim_b[i];
        if (dim_a[i] == 1) args->stride_a[i] = 0;
        if (dim_b[i] == 1) args->stride_b[i] = 0;
        if (i >= 4 - shape->rank) shape->dim[i - (4 - shape->rank)] = args->dim[i];
    }
    return accel__shape_check(acc, where, *shape);
}

static accel_tensor accel__pair_tensor(accel_tensor a, accel_tensor b, const char *where, accel_pair_kind kind) {
    accel_t *acc = a.acc ? a.acc : b.acc;
    accel__slot *in[2] = {NULL, NULL};
    accel_shape shape;
    accel_pair args = {.kind = kind};
    if (!accel__get_two(a, b, where, &in[0], &in[1]) || !accel__broadcast(acc, where, in[0], in[1], &shape, &args))
        return accel__null(acc);
    accel__slot *out = accel__new(acc, shape);
    if (!out) return accel__null(acc);
    args.a = accel__data(in[0]);
    args.b = accel__data(in[1]);
    args.out = accel__data(out);
    acc->backend->pair(acc, &args);
    accel__pair_node *node = (accel__pair_node *)accel__record(acc, sizeof *node, accel__pair_backward, out, in, 2);
    if (node) node->args = args;
    return accel__result(acc, out);
}

ACCEL_API accel_tensor accel_add(accel_tensor a, accel_tensor b) {
    return accel__pair_tensor(a, b, "accel_add", ACCEL_PAIR_ADD);
}

ACCEL_API accel_tensor accel_sub(accel_tensor a, accel_tensor b) {
    return accel__pair_tensor(a, b, "accel_sub", ACCEL_PAIR_SUB);
}

ACCEL_API accel_tensor accel_mul(accel_tensor a, accel_tensor b) {
    return accel__pair_tensor(a, b, "accel_mul", ACCEL_PAIR_MUL);
}

ACCEL_API accel_tensor accel_div(accel_tensor a, accel_tensor b) {
    return accel__pair_tensor(a, b, "accel_div", ACCEL_PAIR_DIV);
}

/* ---- sums and means ---- */

typedef struct accel__axis_node {
    accel__node node;
    accel_axis args;
} accel__axis_node;

/* dx[outer, n, inner] = scale dy[outer, inner] */
static void accel__axis_backward(accel_t *acc, accel__node *node) {
    accel_axis args = ((accel__axis_node *)node)->args;
    accel__target dx = accel__gradient_of(acc, node->input[0]);
    if (!dx.at) return;
    args.x = accel__floats(node->output->grad);
    args.out = dx.at;
    args.add = dx.add;
    acc->backend->expand(acc, &args);
}

static accel_tensor accel__axis_tensor(accel_t *acc, accel__slot *in, accel_shape shape, accel_axis args) {
    accel__slot *out = accel__new(acc, shape);
    if (!out) return accel__null(acc);
    args.x = accel__data(in);
    args.out = accel__data(out);
    acc->backend->reduce(acc, &args);
    accel__axis_node *node = (accel__axis_node *)accel__record(acc, sizeof *node, accel__axis_backward, out, &in, 1);
    if (node) node->args = args;
    return accel__result(acc, out);
}

static accel_tensor accel__reduce_all(accel_tensor x, const char *where, bool mean) {
    accel__slot *in = accel__get_float(x, where);
    if (!in) return accel__null(x.acc);
    accel_axis args = {.outer = 1, .n = in->count, .inner = 1, .scale = mean ? 1.0f / (float)in->count : 1.0f};
    return accel__axis_tensor(x.acc, in, accel_0d(), args);
}

/* The axis counted from 0; -1, with an error, where there is none. */
static int accel__axis_index(accel_t *acc, const char *where, accel_shape shape, int axis) {
    int index = axis < 0 ? axis + shape.rank : axis;
    if (index >= 0 && index < shape.rank) return index;
    accel__fail(acc, ACCEL_BAD_ARGUMENT, "%s: there is no axis %d in the shape %s", where, axis,
                accel__shape_text(shape).text);
    return -1;
}

static accel_tensor accel__reduce_axis(accel_tensor x, const char *where, int axis, bool keep, bool mean) {
    accel__slot *in = accel__get_float(x, where);
    if (!in || (axis = accel__axis_index(x.acc, where, in->shape, axis)) < 0) return accel__null(x.acc);
    int n = in->shape.dim[axis];
    accel_axis args = {.outer = 1, .n = n, .inner = 1, .scale = mean ? 1.0f / (float)n : 1.0f};
    accel_shape shape = {0, {1, 1, 1, 1}};
    for (int i = 0; i < in->shape.rank; i++) {
        if (i < axis) args.outer *= in->shape.dim[i];
        if (i > axis) args.inner *= in->shape.dim[i];
        if (i != axis || keep) shape.dim[shape.rank++] = i == axis ? 1 : in->shape.dim[i];
    }
    return accel__axis_tensor(x.acc, in, shape, args);
}

ACCEL_API accel_tensor accel_sum(accel_tensor x) { return accel__reduce_all(x, "accel_sum", false); }
ACCEL_API accel_tensor accel_mean(accel_tensor x) { return accel__reduce_all(x, "accel_mean", true); }

ACCEL_API accel_tensor accel_sum_axis(accel_tensor x, int axis, bool keep) {
    return accel__reduce_axis(x, "accel_sum_axis", axis, keep, false);
}

ACCEL_API accel_tensor accel_mean_axis(accel_tensor x, int axis, bool keep) {
    return accel__reduce_axis(x, "accel_mean_axis", axis, keep, true);
}

/* ---- other views of the same elements ---- */

static void accel__alias_backward(accel_t *acc, accel__node *node) {
    accel__gradient_pass(acc, node->input[0], node->output->grad);
}

/* A tensor on the same block; parameters, which have none, are copied. */
static accel__slot *accel__alias(accel_t *acc, accel__slot *in, accel_shape shape) {
    if (in->block) {
        in->block->references++;
        return accel__slot_on(acc, in->type, shape, in->block);
    }
    accel__slot *out = accel__new_type(acc, in->type, shape);
    if (out) accel__add_scaled(acc, accel__data(out), accel__data(in), in->count, 1, false);
    return out;
}

ACCEL_API accel_tensor accel_reshape(accel_tensor x, accel_shape shape) {
    accel__slot *in = accel__get(x, "accel_reshape");
    if (!in) return accel__null(x.acc);
    int64_t known = 1;
    int open = -1;
    for (int i = 0; i < shape.rank && i < 4; i++) {
        if (shape.dim[i] == -1 && open < 0) open = i;
        else known *= shape.dim[i];
    }
    if (open >= 0 && known > 0 && in->count % known == 0) shape.dim[open] = (int)(in->count / known);
    if (!accel__shape_check(x.acc, "accel_reshape", shape)) return accel__null(x.acc);
    if (accel__shape_count(shape) != in->count) {
        accel__fail(x.acc, ACCEL_BAD_SHAPE, "accel_reshape: %s has %lld elements and cannot become %s",
                    accel__shape_text(in->shape).text, (long long)in->count, accel__shape_text(shape).text);
        return accel__null(x.acc);
    }
    accel__slot *out = accel__alias(x.acc, in, shape);
    accel__record(x.acc, sizeof(accel__node), accel__alias_backward, out, &in, 1);
    return accel__result(x.acc, out);
}

ACCEL_API accel_tensor accel_detach(accel_tensor x) {
    accel__slot *in = accel__get(x, "accel_detach");
    return in ? accel__result(x.acc, accel__alias(x.acc, in, in->shape)) : accel__null(x.acc);
}

/* ---- transpose, slice, concat: strided moves, and the same moves back ---- */

typedef struct accel__move_node {
    accel__node node;
    accel_move args;
} accel__move_node;

/* Elements of x that were not moved get the gradient zero. */
static void accel__move_backward(accel_t *acc, accel__node *node) {
    const accel_move *forward = &((accel__move_node *)node)->args;
    accel__slot *in = node->input[0];
    accel__target dx = accel__gradient_of(acc, in);
    if (!dx.at) return;
    if (!dx.add && in->count != node->output->count) {
        acc->backend->fill(acc, dx.at, in->count, 0);
        dx.add = true;
    }
    accel_move args = *forward;
    memcpy(args.stride_x, forward->stride_out, sizeof args.stride_x);
    memcpy(args.stride_out, forward->stride_x, sizeof args.stride_out);
    args.x = accel__floats(node->output->grad);
    args.out = dx.at + (forward->x - accel__data(in));
    args.add = dx.add;
    acc->backend->move(acc, &args);
}

static accel_tensor accel__move_tensor(accel_t *acc, accel__slot *in, accel_shape shape, accel_move args) {
    accel__slot *out = accel__new_type(acc, in->type, shape);
    if (!out) return accel__null(acc);
    args.out = accel__data(out);
    args.scale = 1;
    acc->backend->move(acc, &args);
    accel__move_node *node = (accel__move_node *)accel__record(acc, sizeof *node, accel__move_backward, out, &in, 1);
    if (node) node->args = args;
    return accel__result(acc, out);
}

ACCEL_API accel_tensor accel_transpose(accel_tensor x, int axis_a, int axis_b) {
    const char *where = "accel_transpose";
    accel__slot *in = accel__get(x, where);
    if (!in || (axis_a = accel__axis_index(x.acc, where, in->shape, axis_a)) < 0 ||
        (axis_b = accel__axis_index(x.acc, where, in->shape, axis_b)) < 0)
        return accel__null(x.acc);
    int dim[4], first = 4 - in->shape.rank, a = first + axis_a, b = first + axis_b;
    accel__align(in->shape, dim);
    accel_move args = {.x = accel__data(in)};
    accel__strides(dim, args.stride_x);
    int64_t stride = args.stride_x[a];
    args.stride_x[a] = args.stride_x[b];
    args.stride_x[b] = stride;
    int size = dim[a];
    dim[a] = dim[b];
    dim[b] = size;
    memcpy(args.dim, dim, sizeof dim);
    accel__strides(dim, args.stride_out);
    accel_shape shape = {in->shape.rank, {1, 1, 1, 1}};
    for (int i = 0; i < shape.rank; i++) shape.dim[i] = dim[first + i];
    return accel__move_tensor(x.acc, in, shape, args);
}

ACCEL_API accel_tensor accel_slice(accel_tensor x, int axis, int begin, int end) {
    const char *where = "accel_slice";
    accel__slot *in = accel__get(x, where);
    if (!in || (axis = accel__axis_index(x.acc, where, in->shape, axis)) < 0) return accel__null(x.acc);
    if (begin < 0 || end <= begin || end > in->shape.dim[axis]) {
        accel__fail(x.acc, ACCEL_BAD_ARGUMENT, "%s: elements %d .. %d of axis %d were asked for, the shape is %s",
                    where, begin, end - 1, axis, accel__shape_text(in->shape).text);
        return accel__null(x.acc);
    }
    accel_move args = {{0}, {0}, {0}, NULL, NULL, 1, false};
    accel__align(in->shape, args.dim);
    accel__strides(args.dim, args.stride_x);
    int at = 4 - in->shape.rank + axis;
    args.dim[at] = end - begin;
    accel__strides(args.dim, args.stride_out);
    args.x = accel__data(in) + begin * args.stride_x[at];
    accel_shape shape = in->shape;
    shape.dim[axis] = end - begin;
    return accel__move_tensor(x.acc, in, shape, args);
}

typedef struct accel__concat_node {
    accel__node node;
    int axis; /* of four */
} accel__concat_node;

/* The move between part i (dense) and its place in the whole, `at` elements along the axis. */
static accel_move accel__concat_move(const accel__slot *part, const accel__slot *whole, int axis, int at,
                                     int64_t *offset) {
    accel_move move = {.scale = 1};
    int dim[4];
    accel__align(whole->shape, dim);
    accel__strides(dim, move.stride_out);
    accel__align(part->shape, move.dim);
    accel__strides(move.dim, move.stride_x);
    *offset = at * move.stride_out[axis];
    return move;
}

static void accel__concat_backward(accel_t *acc, accel__node *node) {
    int axis = ((accel__concat_node *)node)->axis, at = 0;
    for (int i = 0; i < node->input_count; i++) {
        int64_t offset;
        accel_move place = accel__concat_move(node->input[i], node->output, axis, at, &offset), back = place;
        at += place.dim[axis];
        accel__target dx = accel__gradient_of(acc, node->input[i]);
        if (!dx.at) continue;
        memcpy(back.stride_x, place.stride_out, sizeof back.stride_x);
        memcpy(back.stride_out, place.stride_x, sizeof back.stride_out);
        back.x = accel__floats(node->output->grad) + offset;
        back.out = dx.at;
        back.add = dx.add;
        acc->backend->move(acc, &back);
    }
}

enum { ACCEL__CONCAT_MAX = 64 };

/* The parts' slots and the shape of the whole; the axis, or -1 with an error. */
static int accel__concat_check(accel_t *acc, const accel_tensor *x, int count, int axis, accel__slot **in,
                               accel_shape *shape) {
    const char *where = "accel_concat";
    for (int i = 0; i < count; i++) {
        if (!(in[i] = accel__operand(acc, x[i], where))) return -1;
        if (i == 0) {
            *shape = in[0]->shape;
            if ((axis = accel__axis_index(acc, where, *shape, axis)) < 0) return -1;
            continue;
        }
        accel_shape expected = *shape;
        expected.dim[axis] = in[i]->shape.dim[axis];
        if (in[i]->type != in[0]->type || !accel__shape_equal(expected, in[i]->shape)) {
            accel__fail(acc, ACCEL_BAD_SHAPE, "%s: tensor %d has the shape %s, which does not fit %s along axis %d",
                        where, i, accel__shape_text(in[i]->shape).text, accel__shape_text(in[0]->shape).text, axis);
            return -1;
        }
        if (shape->dim[axis] > INT_MAX - in[i]->shape.dim[axis]) {
            accel__fail(acc, ACCEL_BAD_SHAPE, "%s: the result is too large", where);
            return -1;
        }
        shape->dim[axis] += in[i]->shape.dim[axis];
    }
    return axis;
}

ACCEL_API accel_tensor accel_concat(const accel_tensor *x, int count, int axis) {
    accel_t *acc = x && count > 0 ? x[0].acc : NULL;
    if (accel_failed(acc)) return accel__null(acc);
    accel__slot *in[ACCEL__CONCAT_MAX];
    accel_shape shape;
    if (count > ACCEL__CONCAT_MAX) {
        accel__fail(acc, ACCEL_BAD_ARGUMENT, "accel_concat: %d tensors were given, %d at most can be joined", count,
                    ACCEL__CONCAT_MAX);
        return accel__null(acc);
    }
    if ((axis = accel__concat_check(acc, x, count, axis, in, &shape)) < 0) return accel__null(acc);
    accel__slot *out = accel__new_type(acc, in[0]->type, shape);
    if (!out) return accel__null(acc);
    int at = 0, place = 4 - shape.rank + axis;
    for (int i = 0; i < count; i++) {
        int64_t offset;
        accel_move move = accel__concat_move(in[i], out, place, at, &offset);
        move.x = accel__data(in[i]);
        move.out = accel__data(out) + offset;
        acc->backend->move(acc, &move);
        at += move.dim[place];
    }
    accel__concat_node *node =
        (accel__concat_node *)accel__record(acc, sizeof *node, accel__concat_backward, out, in, count);
    if (node) node->axis = place;
    return accel__result(acc, out);
}

/* ---- matrix products: C = op(A) op(B) ---- */

typedef struct accel__matmul_node {
    accel__node node;
    accel_gemm args;
} accel__matmul_node;

static accel_gemm accel__gemm_of(bool ta, bool tb, int m, int n, int k, const float *a, int lda, const float *b,
                                 int ldb, float *c, bool add) {
    return (accel_gemm){.transpose_a = ta,
                        .transpose_b = tb,
                        .add = add,
                        .m = m,
                        .n = n,
                        .k = k,
                        .lda = lda,
                        .ldb = ldb,
                        .ldc = n,
                        .batch = 1,
                        .alpha = 1,
                        .a = a,
                        .b = b,
                        .c = c};
}

/* An operand that all matrices of the batch share (stride 0) gets the sum of their gradients, one after the other. */
static void accel__matmul_gradient(accel_t *acc, accel_gemm g, int batch, bool shared) {
    g.batch = shared ? 1 : batch;
    for (int i = 0; i < (shared ? batch : 1); i++) {
        acc->backend->gemm(acc, &g, 1);
        g.a += g.stride_a;
        g.b += g.stride_b;
        g.add = true;
    }
}

/* dA = dC op(B)' or, where A is read transposed, op(B) dC'; dB = op(A)' dC or dC' op(A). */
static void accel__matmul_backward(accel_t *acc, accel__node *node) {
    const accel_gemm f = ((accel__matmul_node *)node)->args;
    const float *dc = accel__floats(node->output->grad);
    accel__target da = accel__gradient_of(acc, node->input[0]);
    if (da.at) {
        accel_gemm g = f.transpose_a
                           ? accel__gemm_of(f.transpose_b, true, f.k, f.m, f.n, f.b, f.ldb, dc, f.n, da.at, da.add)
                           : accel__gemm_of(false, !f.transpose_b, f.m, f.k, f.n, dc, f.n, f.b, f.ldb, da.at, da.add);
        g.stride_a = f.transpose_a ? f.stride_b : f.stride_c;
        g.stride_b = f.transpose_a ? f.stride_c : f.stride_b;
        g.stride_c = f.stride_a;
        accel__matmul_gradient(acc, g, f.batch, f.stride_a == 0);
    }
    accel__target db = accel__gradient_of(acc, node->input[1]);
    if (db.at) {
        accel_gemm g = f.transpose_b
                           ? accel__gemm_of(true, f.transpose_a, f.n, f.k, f.m, dc, f.n, f.a, f.lda, db.at, db.add)
                           : accel__gemm_of(!f.transpose_a, false, f.k, f.n, f.m, f.a, f.lda, dc, f.n, db.at, db.add);
        g.stride_a = f.transpose_b ? f.stride_c : f.stride_a;
        g.stride_b = f.transpose_b ? f.stride_a : f.stride_c;
        g.stride_c = f.stride_b;
        accel__matmul_gradient(acc, g, f.batch, f.stride_b == 0);
    }
}

/* Shape of the product and the batch's strides; false, with an error, where the operands do not fit. */
static bool accel__matmul_shape(accel_t *acc, const accel__slot *a, const accel__slot *b, accel_gemm *g,
                                accel_shape *shape) {
    const accel_shape sa = a->shape, sb = b->shape;
    bool fits = sa.rank >= 2 && sb.rank >= 2;
    int inner_a = 0, inner_b = 0;
    if (fits) {
        int rows_a = sa.dim[sa.rank - 2], columns_a = sa.dim[sa.rank - 1];
        int rows_b = sb.dim[sb.rank - 2], columns_b = sb.dim[sb.rank - 1];
        g->lda = columns_a;
        g->ldb = columns_b;
        g->m = g->transpose_a ? columns_a : rows_a;
        inner_a = g->transpose_a ? rows_a : columns_a;
        inner_b = g->transpose_b ? columns_b : rows_b;
        g->n = g->transpose_b ? rows_b : columns_b;
        *shape = sa.rank >= sb.rank ? sa : sb;
        for (int i = 0; i < shape->rank - 2; i++)
            fits = fits && (sa.rank == 2 || sb.rank == 2 || (sa.rank == sb.rank && sa.dim[i] == sb.dim[i]));
    }
    if (!fits || inner_a != inner_b)
        return accel__fail(acc, ACCEL_BAD_SHAPE, "accel_matmul: %s%s and %s%s cannot be multiplied",
                           accel__shape_text(sa).text, g->transpose_a ? " transposed" : "", accel__shape_text(sb).text,
                           g->transpose_b ? " transposed" : "");
    g->k = inner_a;
    g->ldc = shape->dim[shape->rank - 1] = g->n;
    shape->dim[shape->rank - 2] = g->m;
    for (int i = 0; i < shape->rank - 2; i++) g->batch *= shape->dim[i];
    g->stride_a = sa.rank > 2 || g->batch == 1 ? (int64_t)g->m * g->k : 0;
    g->stride_b = sb.rank > 2 || g->batch == 1 ? (int64_t)g->n * g->k : 0;
    g->stride_c = (int64_t)g->m * g->n;
    return accel__shape_check(acc, "accel_matmul", *shape);
}

ACCEL_API accel_tensor accel_matmul_t(accel_tensor a, bool transpose_a, accel_tensor b, bool transpose_b) {
    accel_t *acc = a.acc ? a.acc : b.acc;
    accel__slot *in[2] = {NULL, NULL};
    accel_gemm args = {.transpose_a = transpose_a, .transpose_b = transpose_b, .batch = 1, .alpha = 1};
    accel_shape shape;
    if (!accel__get_two(a, b, "accel_matmul", &in[0], &in[1]) || !accel__matmul_shape(acc, in[0], in[1], &args, &shape))
        return accel__null(acc);
    accel__slot *out = accel__new(acc, shape);
    if (!out) return accel__null(acc);
    args.a = accel__data(in[0]);
    args.b = accel__data(in[1]);
    args.c = accel__data(out);
    acc->backend->gemm(acc, &args, 1);
    accel__matmul_node *node =
        (accel__matmul_node *)accel__record(acc, sizeof *node, accel__matmul_backward, out, in, 2);
    if (node) node->args = args;
    return accel__result(acc, out);
}

ACCEL_API accel_tensor accel_matmul(accel_tensor a, accel_tensor b) {
    return accel_matmul_t(a, false, b, false);
}

/* ---- linear: y = f(x W' + b); W and b may be several parameters that lie one behind the other ---- */

enum { ACCEL__PARTS = 3 };

typedef struct accel__linear_node {
    accel__node node; /* inputs: x, weights, biases (each NULL where absent) */
    int rows, in, out, parts;
    accel_activation activation;
} accel__linear_node;

/* Gradient before the activation: in the output's own, unless that is shared. */
static accel__block *accel__linear_before(accel_t *acc, const accel__linear_node *l) {
    accel__block *dy = l->node.output->grad;
    accel__block *du = dy;
    if (l->activation == ACCEL_NONE || dy->references == 1) dy->references++;
    else du = accel__block_new(acc, dy->bytes);
    if (!du || l->activation == ACCEL_NONE) return du;
    accel_map args = {ACCEL_MAP_ACTIVATION + (int)l->activation, (int64_t)l->rows * l->out, 0.01f,
                      accel__floats(l->node.saved[0]), accel__data(l->node.output), accel__floats(dy),
                      accel__floats(du), false};
    acc->backend->map(acc, &args);
    return du;
}

/* Whether the form of the weight that the input's gradient reads will be read again before it changes. */
static bool accel__reads_again(const accel_t *acc, const accel__slot *weight) {
    return weight->param && (acc->accumulate > 1 || !weight->requires_grad);
}

/* dx [rows, in] = du W, dW [out, in] = du' x, db = sums of du's columns. */
static void accel__linear_backward(accel_t *acc, accel__node *node) {
    const accel__linear_node *l = (const accel__linear_node *)node;
    accel__block *before = accel__linear_before(acc, l);
    if (!before) return;
    const float *du = accel__floats(before);
    accel_gemm gemm[1 + ACCEL__PARTS];
    accel__slot *weight = node->input[1];
    int count = 0, part = l->out / l->parts;
    accel__target dx = accel__gradient_of(acc, node->input[0]);
    if (dx.at) {
        gemm[count] =
            accel__gemm_of(false, false, l->rows, l->in, l->out, du, l->out, accel__data(weight), l->in, dx.at, dx.add);
        gemm[count++].keep = accel__reads_again(acc, weight) ? &weight->param->packed : NULL;
    }
    for (int i = 0; i < l->parts; i++) {
        accel__target dw = accel__gradient_of(acc, node->input[1 + i]);
        if (dw.at)
            gemm[count++] = accel__gemm_of(true, false, part, l->in, l->rows, du + i * part, l->out,
                                           accel__data(node->input[0]), l->in, dw.at, dw.add);
    }
    for (int i = 0; i < count; i++) gemm[i].precision = acc->desc.precision;
    acc->backend->gemm(acc, gemm, count);
    for (int i = 0; i < l->parts; i++) {
        accel__target db = accel__gradient_of(acc, node->input[1 + l->parts + i]);
        accel_axis args = {1, l->rows, part, l->out, 1, du + i * part, db.at, db.add};
        if (db.at) acc->backend->reduce(acc, &args);
    }
    accel__block_release(acc, before);
}

/* input: x, weights, biases; shapes are known to fit. */
static accel__slot *accel__linear(accel_t *acc, accel__slot *const *input, int parts, accel_activation activation) {
    const accel__slot *x = input[0];
    int in = accel__shape_last(x->shape), out = parts * input[1]->shape.dim[0];
    accel_shape shape = x->shape;
    shape.dim[shape.rank - 1] = out;
    accel__slot *y = accel__new(acc, shape);
    if (!y) return NULL;
    int rows = (int)(x->count / in);
    accel_gemm gemm = accel__gemm_of(false, true, rows, out, in, accel__data(x), in, accel__data(input[1]), in,
                                     accel__data(y), false);
    accel__linear_node *node =
        (accel__linear_node *)accel__record(acc, sizeof *node, accel__linear_backward, y, input, 1 + 2 * parts);
    if (node) {
        *node = (accel__linear_node){node->node, rows, in, out, parts, activation};
        if (activation != ACCEL_NONE) node->node.saved[0] = accel__block_new(acc, y->block->bytes);
        gemm.before = accel__floats(node->node.saved[0]);
    }
    gemm.bias = input[1 + parts] ? accel__data(input[1 + parts]) : NULL;
    gemm.activation = activation;
    gemm.precision = acc->desc.precision;
    gemm.keep = input[1]->param ? &input[1]->param->packed : NULL;
    if (acc->code == ACCEL_OK) acc->backend->gemm(acc, &gemm, 1);
    return y;
}

ACCEL_API accel_tensor accel_linear(accel_tensor x, accel_tensor weight, accel_tensor bias) {
    accel_t *acc = x.acc ? x.acc : weight.acc;
    accel__slot *in[3] = {NULL, NULL, NULL};
    if (!accel__get_two(x, weight, "accel_linear", &in[0], &in[1])) return accel__null(acc);
    if (bias.id && !(in[2] = accel__operand_type(acc, bias, ACCEL_FLOAT32, "accel_linear"))) return accel__null(acc);
    bool fits = in[0]->shape.rank >= 1 && in[1]->shape.rank == 2 &&
                accel__shape_last(in[0]->shape) == in[1]->shape.dim[1] &&
                (!in[2] || (in[2]->shape.rank == 1 && in[2]->shape.dim[0] == in[1]->shape.dim[0]));
    if (!fits || in[0]->count / accel__shape_last(in[0]->shape) > INT_MAX) {
        accel__fail(acc, ACCEL_BAD_SHAPE,
                    "accel_linear: x %s, weight %s and bias %s do not fit; expected [.., in], [out, in], [out]",
                    accel__shape_text(in[0]->shape).text, accel__shape_text(in[1]->shape).text,
                    in[2] ? accel__shape_text(in[2]->shape).text : "none");
        return accel__null(acc);
    }
    return accel__result(acc, accel__linear(acc, in, 1, ACCEL_NONE));
}

/* ---- embedding: rows of a table ---- */

typedef struct accel__embedding_node {
    accel__node node; /* inputs: table, ids */
    accel_rows args;
} accel__embedding_node;

static bool accel__rows_tracking(accel_t *acc, accel__param *param) {
    size_t rows = (size_t)(param->slot->count / accel__shape_last(param->slot->shape));
    if (!param->is_touched) param->is_touched = (bool *)accel__alloc_zero(acc, rows * sizeof(bool));
    if (!param->touched) param->touched = (int32_t *)accel__alloc(acc, rows * sizeof(int32_t));
    return param->is_touched && param->touched;
}

/* The gradient of a parameter's rows: only those in ids are cleared and marked. */
static float *accel__rows_target(accel_t *acc, accel__param *param, const accel_rows *rows) {
    if (!accel__param_gradient(acc, param, true) || !accel__rows_tracking(acc, param)) return NULL;
    accel__window_enter(acc, accel__param_window(param));
    if (accel__gradient_state(param) == ACCEL__DENSE) return param->gradient;
    param->gradient_state = ACCEL__ROWS;
    for (int i = 0; i < rows->n; i++) {
        int32_t id = rows->ids[i];
        if (id == rows->padding || param->is_touched[id]) continue;
        param->is_touched[id] = true;
        param->touched[param->touched_count++] = id;
        acc->backend->fill(acc, param->gradient + (int64_t)id * rows->width, rows->width, 0);
    }
    return param->gradient;
}

/* dtable[ids[i]] += dy[i] */
static void accel__embedding_backward(accel_t *acc, accel__node *node) {
    accel_rows args = ((accel__embedding_node *)node)->args;
    accel__slot *table = node->input[0];
    args.x = accel__floats(node->output->grad);
    if (table->param) args.out = accel__rows_target(acc, table->param, &args);
    else {
        accel__target target = accel__gradient_of(acc, table);
        if (target.at && !target.add) acc->backend->fill(acc, target.at, table->count, 0);
        args.out = target.at;
    }
    if (args.out) acc->backend->scatter(acc, &args);
}

static accel__slot *accel__embedding(accel_t *acc, accel__slot *table, accel__slot *ids, accel_shape shape,
                                     int padding) {
    accel__slot *out = accel__new(acc, shape);
    if (!out) return NULL;
    accel__slot *in[2] = {table, ids};
    accel_rows args = {accel__data(table), accel__ints(ids),    accel__data(out),
                       (int)ids->count,    table->shape.dim[1], padding};
    acc->backend->gather(acc, &args);
    accel__embedding_node *node =
        (accel__embedding_node *)accel__record(acc, sizeof *node, accel__embedding_backward, out, in, 2);
    if (node) node->args = args;
    return out;
}

ACCEL_API accel_tensor accel_embedding(accel_tensor table, accel_tensor ids, int padding_id) {
    const char *where = "accel_embedding";
    accel_t *acc = table.acc ? table.acc : ids.acc;
    accel__slot *rows = accel__operand_type(acc, table, ACCEL_FLOAT32, where);
    accel__slot *index = accel__operand_type(acc, ids, ACCEL_INT32, where);
    if (!rows || !index) return accel__null(acc);
    if (rows->shape.rank != 2 || index->shape.rank > 3 || index->count > INT_MAX) {
        accel__fail(acc, ACCEL_BAD_SHAPE,
                    "%s: a table [rows, width] and ids of up to 3 dimensions are expected, the shapes are %s and %s",
                    where, accel__shape_text(rows->shape).text, accel__shape_text(index->shape).text);
        return accel__null(acc);
    }
    for (int64_t i = 0; i < index->count; i++) {
        int32_t id = accel__ints(index)[i];
        if (id >= 0 && id < rows->shape.dim[0]) continue;
        accel__fail(acc, ACCEL_BAD_DATA, "%s: id %d at position %lld; the table has rows 0 .. %d", where, id,
                    (long long)i, rows->shape.dim[0] - 1);
        return accel__null(acc);
    }
    accel_shape shape = index->shape;
    shape.dim[shape.rank++] = rows->shape.dim[1];
    return accel__result(acc, accel__embedding(acc, rows, index, shape, padding_id));
}

/* ---- layer norm: y = LN(residual + dropout(x)) ---- */

typedef struct accel__norm_node {
    accel__node node; /* inputs: x, weight, bias, residual (or NULL); saved: mean and rstd */
    accel_norm args;
} accel__norm_node;

/* Sums over the blocks of rows, in order. */
static void accel__norm_parameters(accel_t *acc, accel__node *node, const accel_norm *args) {
    int blocks = accel__pieces(args->rows, ACCEL_NORM_BLOCK);
    for (int i = 0; i < 2; i++) {
        accel__target target = accel__gradient_of(acc, node->input[1 + i]);
        accel_axis sum = {
            1,         blocks,    args->width, 2 * (int64_t)args->width, 1, args->partial + i * args->width,
            target.at, target.add};
        if (target.at) acc->backend->reduce(acc, &sum);
    }
}

static void accel__norm_backward(accel_t *acc, accel__node *node) {
    accel_norm args = ((accel__norm_node *)node)->args;
    accel__slot *x = node->input[0], *residual = node->input[3];
    int blocks = accel__pieces(args.rows, ACCEL_NORM_BLOCK);
    accel__block *partial = accel__block_new(acc, (size_t)blocks * 2 * (size_t)args.width * sizeof(float));
    if (!partial) return;
    args.partial = accel__floats(partial);
    args.dy = accel__floats(node->output->grad);
    accel__target direct = accel__gradient_of(acc, residual ? residual : x), dropped = {0};
    args.dresidual = direct.at;
    args.add_residual = direct.add;
    bool share = residual && args.mask.p == 0 && x->node && !x->grad && direct.at && !direct.add && residual->node;
    if (residual && !share) dropped = accel__gradient_of(acc, x);
    args.dx = dropped.at;
    args.add_x = dropped.add;
    if (acc->code == ACCEL_OK) acc->backend->norm_backward(acc, &args);
    if (share) accel__gradient_pass(acc, x, residual->grad);
    accel__norm_parameters(acc, node, &args);
    accel__block_release(acc, partial);
}

/* Where there is a residual, x's values are lost to everyone else. */
static accel__slot *accel__norm(accel_t *acc, accel__slot *x, accel__slot *residual, accel__slot *weight,
                                accel__slot *bias, float eps, accel_mask mask) {
    accel__slot *in[4] = {x, weight, bias, residual}, *out = accel__new(acc, x->shape);
    if (!out) return NULL;
    int width = accel__shape_last(x->shape), rows = (int)(x->count / width);
    accel__block *statistics = accel__block_new(acc, 2 * (size_t)rows * sizeof(float));
    if (acc->code == ACCEL_OK) {
        accel_norm args = {.rows = rows, .width = width, .eps = eps, .mask = mask, .x = accel__data(x),
                           .residual = residual ? accel__data(residual) : NULL, .weight = accel__data(weight),
                           .bias = accel__data(bias), .out = accel__data(out),
                           .mean = accel__floats(statistics), .rstd = accel__floats(statistics) + rows};
        acc->backend->norm(acc, &args);
        accel__norm_node *node = (accel__norm_node *)accel__record(acc, sizeof *node, accel__norm_backward, out, in, 4);
        if (node) {
            node->args = args;
            node->node.saved[0] = statistics;
            return out;
        }
    }
    accel__block_release(acc, statistics);
    return out;
}

ACCEL_API accel_tensor accel_layer_norm(accel_tensor x, accel_tensor weight, accel_tensor bias, float eps) {
    const char *where = "accel_layer_norm";
    accel__slot *in = accel__get_float(x, where);
    accel__slot *w = accel__operand_type(x.acc, weight, ACCEL_FLOAT32, where);
    accel__slot *b = accel__operand_type(x.acc, bias, ACCEL_FLOAT32, where);
    if (!in || !w || !b) return accel__null(x.acc);
    int width = accel__shape_last(in->shape);
    if (in->shape.rank < 1 || w->shape.rank != 1 || w->shape.dim[0] != width ||
        !accel__shape_equal(w->shape, b->shape)) {
        accel__fail(x.acc, ACCEL_BAD_SHAPE, "%s: x %s needs weight and bias of shape [%d], they are %s and %s", where,
                    accel__shape_text(in->shape).text, width, accel__shape_text(w->shape).text,
                    accel__shape_text(b->shape).text);
        return accel__null(x.acc);
    }
    return accel__result(x.acc, accel__norm(x.acc, in, NULL, w, b, eps, (accel_mask){0}));
}

/* ---- softmax and log-softmax ---- */

typedef struct accel__softmax_node {
    accel__node node;
    accel_softmax_rows args;
} accel__softmax_node;

static void accel__softmax_backward(accel_t *acc, accel__node *node) {
    accel_softmax_rows args = ((accel__softmax_node *)node)->args;
    accel__target dx = accel__gradient_of(acc, node->input[0]);
    if (!dx.at) return;
    args.y = args.out;
    args.dy = accel__floats(node->output->grad);
    args.out = dx.at;
    args.add = dx.add;
    acc->backend->softmax(acc, &args);
}

static accel_tensor accel__softmax_tensor(accel_tensor x, const char *where, bool log) {
    accel__slot *in = accel__get_float(x, where);
    accel__slot *out = in ? accel__new(x.acc, in->shape) : NULL;
    if (!out) return accel__null(x.acc);
    int width = accel__shape_last(in->shape);
    accel_softmax_rows args = {.rows = in->count / width, .width = width, .log = log, .x = accel__data(in),
                               .out = accel__data(out)};
    x.acc->backend->softmax(x.acc, &args);
    accel__softmax_node *node =
        (accel__softmax_node *)accel__record(x.acc, sizeof *node, accel__softmax_backward, out, &in, 1);
    if (node) node->args = args;
    return accel__result(x.acc, out);
}

ACCEL_API accel_tensor accel_softmax(accel_tensor x) { return accel__softmax_tensor(x, "accel_softmax", false); }
ACCEL_API accel_tensor accel_log_softmax(accel_tensor x) { return accel__softmax_tensor(x, "accel_log_softmax", true); }

/* ---- dropout ---- */

typedef struct accel__drop_node {
    accel__node node;
    accel_drop args;
} accel__drop_node;

static void accel__drop_backward(accel_t *acc, accel__node *node) {
    accel_drop args = ((accel__drop_node *)node)->args;
    accel__target dx = accel__gradient_of(acc, node->input[0]);
    if (!dx.at) return;
    args.x = accel__floats(node->output->grad);
    args.out = dx.at;
    args.add = dx.add;
    acc->backend->drop(acc, &args);
}

static accel__slot *accel__drop(accel_t *acc, accel__slot *in, int64_t rows, accel_mask mask) {
    if (mask.p == 0 || acc->evaluating) return in;
    accel__slot *out = accel__new(acc, in->shape);
    if (!out) return NULL;
    accel_drop args = {rows, in->count / rows, mask, accel__data(in), accel__data(out), false};
    acc->backend->drop(acc, &args);
    accel__drop_node *node = (accel__drop_node *)accel__record(acc, sizeof *node, accel__drop_backward, out, &in, 1);
    if (node) node->args = args;
    return out;
}

static bool accel__probability(accel_t *acc, const char *where, float p) {
    return (p >= 0 && p <= 1) ||
           accel__fail(acc, ACCEL_BAD_ARGUMENT, "%s: a probability from 0 to 1 is expected, not %g", where, (double)p);
}

ACCEL_API accel_tensor accel_dropout(accel_tensor x, float p) {
    accel__slot *in = accel__get_float(x, "accel_dropout");
    if (!in || !accel__probability(x.acc, "accel_dropout", p)) return accel__null(x.acc);
    int64_t rows = in->shape.rank ? in->shape.dim[0] : 1;
    uint64_t key = accel__site(x.acc, accel__hash_text("dropout"), accel__next_call(x.acc));
    accel__count_examples(x.acc, rows);
    accel_mask mask = {p, key, NULL, (uint64_t)x.acc->window_examples};
    return accel__result(x.acc, accel__drop(x.acc, in, rows, mask));
}

/* ---- attention ---- */

typedef struct accel__attend_node {
    accel__node node; /* saved: probabilities, offsets */
    accel_attend args;
} accel__attend_node;

static accel__block *accel__attend_scratch(accel_t *acc, accel_attend *args) {
    int threads = 1 + (acc->pool ? acc->pool->workers : 0);
    size_t square = (size_t)args->longest * (size_t)args->longest;
    accel__block *scratch = accel__block_new(acc, 2 * square * (size_t)threads * sizeof(float));
    args->scratch = accel__floats(scratch);
    return scratch;
}

static void accel__attend_backward(accel_t *acc, accel__node *node) {
    accel_attend args = ((accel__attend_node *)node)->args;
    accel__target dqkv = accel__gradient_of(acc, node->input[0]);
    accel__block *scratch = dqkv.at ? accel__attend_scratch(acc, &args) : NULL;
    if (!scratch) return;
    args.dout = accel__floats(node->output->grad);
    args.dqkv = dqkv.at;
    args.add = dqkv.add;
    acc->backend->attend_backward(acc, &args);
    accel__block_release(acc, scratch);
}

/* A block with the offsets, and where each sequence's probabilities begin; *total gets their number. */
static accel__block *accel__attend_layout(accel_t *acc, accel_attend *args, const int32_t *offsets, int64_t *total) {
    size_t sequences = (size_t)args->sequences;
    accel__block *block = accel__block_new(acc, sequences * sizeof(int64_t) + (sequences + 1) * sizeof(int32_t));
    if (!block) return NULL;
    int64_t *begin = (int64_t *)(void *)block->base;
    int32_t *copy = (int32_t *)(void *)(begin + sequences);
    memcpy(copy, offsets, (sequences + 1) * sizeof *copy);
    *total = 0;
    for (size_t i = 0; i < sequences; i++) {
        int64_t length = offsets[i + 1] - offsets[i];
        begin[i] = *total;
        *total += length * length * args->heads;
        if (length > args->longest) args->longest = (int)length;
    }
    args->begin = begin;
    args->offsets = copy;
    return block;
}

static accel__slot *accel__attend(accel_t *acc, accel__slot *qkv, int heads, int sequences, const int32_t *offsets,
                                  accel_mask mask) {
    int tokens = qkv->shape.dim[0], width = qkv->shape.dim[1] / 3;
    accel__slot *out = accel__new(acc, accel_2d(tokens, width));
    accel_attend args = {.sequences = sequences, .heads = heads, .width = width, .mask = mask};
    int64_t total = 0;
    accel__block *layout = out ? accel__attend_layout(acc, &args, offsets, &total) : NULL;
    accel__block *scratch = layout ? accel__attend_scratch(acc, &args) : NULL;
    accel__block *probabilities = scratch ? accel__block_new(acc, (size_t)total * sizeof(float)) : NULL;
    if (probabilities) {
        args.qkv = accel__data(qkv);
        args.probabilities = accel__floats(probabilities);
        args.out = accel__data(out);
        acc->backend->attend(acc, &args);
    }
    accel__block_release(acc, scratch);
    accel__attend_node *node = NULL;
    if (probabilities)
        node = (accel__attend_node *)accel__record(acc, sizeof *node, accel__attend_backward, out, &qkv, 1);
    if (node) {
        node->args = args;
        node->node.saved[0] = probabilities;
        node->node.saved[1] = layout;
        return out;
    }
    accel__block_release(acc, probabilities);
    accel__block_release(acc, layout);
    return probabilities ? out : NULL;
}

static bool accel__attend_check(accel_t *acc, const accel__slot *qkv, const accel_attention_desc *desc) {
    const char *where = "accel_attention";
    if (!desc || !desc->offsets || desc->sequences < 1 || desc->heads < 1)
        return accel__fail(acc, ACCEL_BAD_ARGUMENT, "%s: a description with heads, sequences and offsets is needed",
                           where);
    if (qkv->shape.rank != 2 || qkv->shape.dim[1] % (3 * desc->heads))
        return accel__fail(acc, ACCEL_BAD_SHAPE,
                           "%s: qkv must be [tokens, 3 * width] with a width that %d heads divide, it is %s", where,
                           desc->heads, accel__shape_text(qkv->shape).text);
    for (int i = 0; i < desc->sequences; i++)
        if (desc->offsets[0] != 0 || desc->offsets[i + 1] <= desc->offsets[i])
            return accel__fail(acc, ACCEL_BAD_DATA,
                               "%s: offsets must start with 0 and rise; sequence %d goes from %d to %d", where, i,
                               desc->offsets[i], desc->offsets[i + 1]);
    if (desc->offsets[desc->sequences] != qkv->shape.dim[0])
        return accel__fail(acc, ACCEL_BAD_DATA, "%s: the offsets end at %d, qkv has %d tokens", where,
                           desc->offsets[desc->sequences], qkv->shape.dim[0]);
    return accel__probability(acc, where, desc->dropout);
}

ACCEL_API accel_tensor accel_attention(accel_tensor qkv, const accel_attention_desc *desc) {
    accel_t *acc = qkv.acc;
    accel__slot *in = accel__get_float(qkv, "accel_attention");
    if (!in || !accel__attend_check(acc, in, desc)) return accel__null(acc);
    accel_mask mask = {acc->evaluating ? 0 : desc->dropout, 0, NULL, (uint64_t)acc->window_examples};
    mask.key = accel__site(acc, accel__hash_text("attention"), accel__next_call(acc));
    return accel__result(acc, accel__attend(acc, in, desc->heads, desc->sequences, desc->offsets, mask));
}

/* ---- an operation of the user's own ---- */

typedef struct accel__custom_node {
    accel__node node;
    accel_custom_desc desc;
} accel__custom_node;

typedef struct accel__custom_run {
    const char *(*callback)(const accel_custom_call *call);
    accel_custom_call call;
    const char **message; /* of each piece */
} accel__custom_run;

static void accel__custom_piece(void *argument, int piece) {
    const accel__custom_run *run = (const accel__custom_run *)argument;
    accel_custom_call call = run->call;
    call.piece = piece;
    run->message[piece] = run->callback(&call);
}

static void accel__custom_call(accel_t *acc, const accel_custom_desc *desc,
                               const char *(*callback)(const accel_custom_call *), accel__slot *const *input,
                               accel__slot *output, float *const *gradients) {
    int pieces = desc->pieces ? desc->pieces : 1;
    accel__block *messages = accel__block_new(acc, (size_t)pieces * sizeof(char *));
    if (!messages) return;
    accel__custom_run run = {callback,
                             {.pieces = pieces,
                              .input_count = desc->input_count,
                              .output = accel__data(output),
                              .shape = output->shape,
                              .output_grad = accel__floats(output->grad),
                              .user = desc->user},
                             (const char **)(void *)messages->base};
    for (int i = 0; i < desc->input_count; i++) {
        run.call.input[i] = input[i]->data;
        run.call.input_shape[i] = input[i]->shape;
        run.call.input_grad[i] = gradients ? gradients[i] : NULL;
    }
    accel__parallel(acc, pieces, accel__custom_piece, &run);
    for (int piece = 0; piece < pieces; piece++)
        if (run.message[piece])
            accel__fail(acc, ACCEL_CALLBACK, "%s: %s", desc->name ? desc->name : "accel_custom", run.message[piece]);
    accel__block_release(acc, messages);
}

static void accel__custom_backward(accel_t *acc, accel__node *node) {
    const accel_custom_desc *desc = &((accel__custom_node *)node)->desc;
    accel__block *block[ACCEL_CUSTOM_INPUTS] = {NULL};
    float *gradient[ACCEL_CUSTOM_INPUTS] = {NULL};
    if (!desc->backward) return;
    for (int i = 0; i < desc->input_count; i++) {
        if (!node->input[i]->requires_grad) continue;
        block[i] = accel__block_new(acc, (size_t)node->input[i]->count * sizeof(float));
        gradient[i] = accel__floats(block[i]);
        if (block[i]) acc->backend->fill(acc, gradient[i], node->input[i]->count, 0);
    }
    if (acc->code == ACCEL_OK) accel__custom_call(acc, desc, desc->backward, node->input, node->output, gradient);
    for (int i = 0; i < desc->input_count; i++) {
        if (block[i]) accel__gradient_pass(acc, node->input[i], block[i]);
        accel__block_release(acc, block[i]);
    }
}

ACCEL_API accel_tensor accel_custom(accel_t *acc, const accel_custom_desc *desc) {
    if (accel_failed(acc)) return accel__null(acc);
    const char *where = desc && desc->name ? desc->name : "accel_custom";
    if (!desc || !desc->forward || desc->input_count < 0 || desc->input_count > ACCEL_CUSTOM_INPUTS ||
        desc->pieces < 0) {
        accel__fail(acc, ACCEL_BAD_ARGUMENT, "%s: a forward callback, 0 to %d inputs and pieces >= 0 are needed", where,
                    ACCEL_CUSTOM_INPUTS);
        return accel__null(acc);
    }
    accel__slot *in[ACCEL_CUSTOM_INPUTS];
    for (int i = 0; i < desc->input_count; i++)
        if (!(in[i] = accel__operand(acc, desc->input[i], where))) return accel__null(acc);
    accel__slot *out = accel__shape_check(acc, where, desc->shape) ? accel__new(acc, desc->shape) : NULL;
    if (!out) return accel__null(acc);
    accel__custom_call(acc, desc, desc->forward, in, out, NULL);
    accel__custom_node *node =
        (accel__custom_node *)accel__record(acc, sizeof *node, accel__custom_backward, out, in, desc->input_count);
    if (node) node->desc = *desc;
    return accel__result(acc, out);
}

/* =============================================== >>layers =========================================================
   Models: named parameters, and layers that run one after the other. */

typedef struct accel__encoder accel__encoder;

struct accel_model {
    accel__object object;
    char *name;
    accel__param **params;   /* stb_ds array, in the order of their creation */
    accel__window window;    /* of gradients that no optimizer looks after */
    accel_layer *layers;     /* of a sequential model */
    int layer_count;
    accel__encoder *encoder;
    char **label_names;
    int label_count;
};

struct accel_optimizer {
    accel__object object;
    accel_update_rule rule;
    bool amsgrad;
    float base_lr, weight_decay, layer_decay;
    double factor;           /* of the schedule */
    accel__param **params;   /* stb_ds array */
    accel_param_group *groups;
    int group_count;
    accel__window window;
    int64_t steps, skipped;
    int skipped_in_row;
    accel_update *updates;   /* one for each stretch of the parameters that have a gradient */
    double *sums;
    int capacity;            /* of both */
};

static accel__window *accel__param_window(accel__param *param) {
    return param->optimizer ? &param->optimizer->window : &param->model->window;
}

static int accel__param_count(const accel_model *model) {
    return model ? (int)accel__length(model->params) : 0;
}

/* ---- creating and destroying ---- */

static void accel__param_destroy(accel_t *acc, accel__param *param) {
    if (!param) return;
    if (param->slot) accel__slot_free(acc, param->slot);
    if (param->storage) acc->backend->release(acc, param->storage);
    if (param->gradient) acc->backend->release(acc, param->gradient);
    for (int i = 0; i < ACCEL__COUNT(param->packed.memory); i++)
        if (param->packed.memory[i]) acc->backend->release(acc, param->packed.memory[i]);
    for (int i = 0; i < ACCEL__COUNT(param->moment); i++)
        if (param->moment[i]) acc->backend->release(acc, param->moment[i]);
    accel__free(acc, param->touched);
    accel__free(acc, param->is_touched);
    accel__free(acc, param->has_moments);
    accel__free(acc, param->name);
    accel__free(acc, param);
}

static void accel__encoder_destroy(accel_t *acc, accel__encoder *encoder);

static void accel__label_names_free(accel_model *model) {
    accel_t *acc = model->object.acc;
    for (int i = 0; i < model->label_count; i++) accel__free(acc, model->label_names[i]);
    accel__free(acc, model->label_names);
    model->label_names = NULL;
    model->label_count = 0;
}

static void accel__model_destroy(accel__object *object) {
    accel_model *model = (accel_model *)(void *)object;
    accel_t *acc = object->acc;
    accel__scope_end(acc, ACCEL__TRAINING); /* its graph refers to the parameters */
    for (int i = 0; i < accel__param_count(model); i++) accel__param_destroy(acc, model->params[i]);
    accel__array_free(model->params);
    accel__encoder_destroy(acc, model->encoder);
    accel__label_names_free(model);
    accel__free(acc, model->layers);
    accel__free(acc, model->name);
}

ACCEL_API accel_model *accel_model_create(accel_t *acc, const char *name) {
    accel_model *model = (accel_model *)accel__object_create(acc, ACCEL__MODEL, sizeof *model, accel__model_destroy);
    if (!model) return NULL;
    model->name = accel__strdup(acc, name ? name : "model");
    accel__window_reset(&model->window);
    if (model->name) return model;
    accel__object_destroy(&model->object);
    return NULL;
}

static accel__param *accel__param_find(const accel_model *model, const char *name) {
    for (int i = 0; i < accel__param_count(model); i++)
        if (!strcmp(model->params[i]->name, name)) return model->params[i];
    return NULL;
}

/* Adds a parameter whose values lie at `data`; the first of several that share a storage owns it. */
static accel__param *accel__param_add(accel_model *model, const char *name, accel_shape shape, float *data,
                                      void *storage) {
    accel_t *acc = model->object.acc;
    accel__param *param = (accel__param *)accel__alloc_zero(acc, sizeof *param);
    accel__slot *slot = param ? accel__slot_take(acc) : NULL;
    if (slot) {
        *slot = (accel__slot){.index = slot->index, .generation = slot->generation, .live = true, .requires_grad = true,
                              .scope = ACCEL__KEPT, .shape = shape, .count = accel__shape_count(shape), .data = data,
                              .param = param};
        param->slot = slot;
        param->model = model;
        param->name = accel__strdup(acc, name);
        if (param->name && accel__push(acc, model->params, param)) {
            param->storage = storage;
            param->packed.version = 1;
            return param;
        }
    }
    accel__param_destroy(acc, param);
    return NULL;
}

static bool accel__param_check(accel_model *model, const char *name, accel_shape shape) {
    accel_t *acc = model->object.acc;
    if (!name || !*name) return accel__fail(acc, ACCEL_BAD_ARGUMENT, "accel_parameter: a name is needed");
    if (accel__param_find(model, name))
        return accel__fail(acc, ACCEL_BAD_ARGUMENT, "accel_parameter: model %s has a parameter %s already", model->name,
                           name);
    return accel__shape_check(acc, name, shape);
}

/* `count` parameters of one shape that lie one behind the other, without values yet. */
static bool accel__params_joined(accel_model *model, const char *const *names, int count, accel_shape shape,
                                 accel__slot **slots) {
    accel_t *acc = model->object.acc;
    if (acc->code != ACCEL_OK) return false;
    for (int i = 0; i < count; i++)
        if (!accel__param_check(model, names[i], shape)) return false;
    int64_t each = accel__shape_count(shape);
    float *storage = (float *)acc->backend->alloc(acc, (size_t)(count * each) * sizeof *storage);
    for (int i = 0; i < count && storage; i++) {
        accel__param *param = accel__param_add(model, names[i], shape, storage + i * each, i ? NULL : storage);
        if (!param) {
            if (i == 0) acc->backend->release(acc, storage);
            return false;
        }
        slots[i] = param->slot;
        if (i) param->joined = slots[0]->param;
    }
    return storage != NULL;
}

static accel__slot *accel__param_new(accel_model *model, const char *name, accel_shape shape) {
    accel__slot *slot = NULL;
    return accel__params_joined(model, &name, 1, shape, &slot) ? slot : NULL;
}

/* ---- initial values ---- */

typedef struct accel__init {
    float *values;
    int64_t n;
    uint64_t key;
    double scale;
    bool normal;
} accel__init;

static void accel__init_piece(void *argument, int piece) {
    const accel__init *a = (const accel__init *)argument;
    accel__range r = accel__range_of(a->n, ACCEL__ELEMENTS, piece);
    for (int64_t i = r.begin; i < r.end; i++) {
        double x = a->normal ? accel__normal(a->key, (uint64_t)i) : 2 * accel__uniform(a->key, (uint64_t)i) - 1;
        a->values[i] = (float)(a->scale * x);
    }
}

/* Random values that depend on the seed, the model's name and the parameter's name. */
static void accel__param_random(accel__param *param, double scale, bool normal) {
    accel_t *acc = param->model->object.acc;
    accel__slot *slot = param->slot;
    float *values = (float *)accel__alloc(acc, accel__param_bytes(param));
    if (!values) return;
    uint64_t key =
        accel__mix(accel__mix(acc->desc.seed, accel__hash_text(param->model->name)), accel__hash_text(param->name));
    accel__init args = {values, slot->count, key, scale, normal};
    accel__parallel(acc, accel__pieces(slot->count, ACCEL__ELEMENTS), accel__init_piece, &args);
    acc->backend->upload(acc, slot->data, values, accel__param_bytes(param));
    accel__param_changed(param);
    accel__free(acc, values);
}

static void accel__param_fill(accel__slot *slot, float value) {
    accel_t *acc = slot->param->model->object.acc;
    acc->backend->fill(acc, accel__data(slot), slot->count, value);
    accel__param_changed(slot->param);
}

static accel_tensor accel__parameter(accel_model *model, const char *name, accel_shape shape, float scale,
                                     bool normal) {
    if (!model || model->object.acc->code != ACCEL_OK) return accel__null(model ? model->object.acc : NULL);
    if (!(scale >= 0) || !isfinite(scale)) {
        accel__fail(model->object.acc, ACCEL_BAD_ARGUMENT, "accel_parameter: %s cannot have values of spread %g",
                    name ? name : "(null)", (double)scale);
        return accel__null(model->object.acc);
    }
    accel__slot *slot = accel__param_new(model, name, shape);
    if (!slot) return accel__null(model->object.acc);
    if (scale != 0) accel__param_random(slot->param, scale, normal);
    else accel__param_fill(slot, 0);
    return accel__result(model->object.acc, slot);
}

ACCEL_API accel_tensor accel_parameter(accel_model *model, const char *name, accel_shape shape) {
    return accel__parameter(model, name, shape, 0, false);
}

ACCEL_API accel_tensor accel_parameter_normal(accel_model *model, const char *name, accel_shape shape, float std) {
    return accel__parameter(model, name, shape, std, true);
}

ACCEL_API accel_tensor accel_parameter_uniform(accel_model *model, const char *name, accel_shape shape, float bound) {
    return accel__parameter(model, name, shape, bound, false);
}

/* ---- looking at parameters ---- */

ACCEL_API int accel_parameter_count(const accel_model *model) { return accel__param_count(model); }
ACCEL_API const char *accel_model_name(const accel_model *model) { return model ? model->name : ""; }

ACCEL_API int64_t accel_parameter_elements(const accel_model *model) {
    int64_t elements = 0;
    for (int i = 0; i < accel__param_count(model); i++) elements += model->params[i]->slot->count;
    return elements;
}

ACCEL_API const char *accel_parameter_name(const accel_model *model, int index) {
    return index >= 0 && index < accel__param_count(model) ? model->params[index]->name : NULL;
}

ACCEL_API accel_tensor accel_parameter_at(accel_model *model, int index) {
    if (!model) return accel__null(NULL);
    accel_t *acc = model->object.acc;
    if (index >= 0 && index < accel__param_count(model)) return accel__handle(acc, model->params[index]->slot);
    accel__fail(acc, ACCEL_BAD_ARGUMENT, "accel_parameter_at: index %d, the model has %d parameters", index,
                accel__param_count(model));
    return accel__null(acc);
}

ACCEL_API accel_tensor accel_parameter_find(accel_model *model, const char *name) {
    accel__param *param = model && name ? accel__param_find(model, name) : NULL;
    return param ? accel__handle(model->object.acc, param->slot) : accel__null(model ? model->object.acc : NULL);
}

/* pattern .. end matches name, '*' standing for any text. */
static bool accel__match_one(const char *pattern, const char *end, const char *name) {
    if (pattern == end) return !*name;
    if (*pattern != '*') return *name == *pattern && accel__match_one(pattern + 1, end, name + 1);
    for (;; name++) {
        if (accel__match_one(pattern + 1, end, name)) return true;
        if (!*name) return false;
    }
}

ACCEL_API bool accel__match(const char *patterns, const char *name) {
    while (patterns) {
        const char *comma = strchr(patterns, ',');
        const char *end = comma ? comma : patterns + strlen(patterns);
        if (accel__match_one(patterns, end, name)) return true;
        patterns = comma ? comma + 1 : NULL;
    }
    return false;
}

ACCEL_API int accel_model_requires_grad(accel_model *model, const char *match, bool on) {
    int matched = 0;
    for (int i = 0; i < accel__param_count(model); i++) {
        if (!accel__match(match, model->params[i]->name)) continue;
        model->params[i]->slot->requires_grad = on;
        matched++;
    }
    return matched;
}

ACCEL_API void accel_model_zero_grad(accel_model *model) {
    if (model) accel__window_reset(&model->window);
}

ACCEL_API bool accel_set_label_names(accel_model *model, const char *const *names, int count) {
    if (!model || accel_failed(model->object.acc)) return false;
    accel_t *acc = model->object.acc;
    const accel_encoder_config *config = accel_encoder_config_of(model);
    if (!names || count < 1 || (config && count != config->num_labels))
        return accel__fail(acc, ACCEL_BAD_ARGUMENT,
                           "accel_set_label_names: %d names were given, the model has %d labels", count,
                           config ? config->num_labels : 0);
    for (int i = 0; i < count; i++)
        if (!names[i])
            return accel__fail(acc, ACCEL_BAD_ARGUMENT, "accel_set_label_names: name %d is a null pointer", i);
    accel__label_names_free(model);
    model->label_names = (char **)accel__alloc_zero(acc, (size_t)count * sizeof *model->label_names);
    if (!model->label_names) return false;
    model->label_count = count;
    for (int i = 0; i < count; i++) {
        model->label_names[i] = accel__strdup(acc, names[i]);
        if (!model->label_names[i]) return false;
    }
    return true;
}

ACCEL_API const char *accel_label_name(const accel_model *model, int label) {
    return model && label >= 0 && label < model->label_count ? model->label_names[label] : NULL;
}

/* ---- sequential models ---- */

enum { ACCEL__LINEAR_LAYER = 1, ACCEL__ACTIVATION_LAYER, ACCEL__DROPOUT_LAYER, ACCEL__LAYER_NORM_LAYER };

ACCEL_API accel_layer accel_linear_layer(int in, int out) {
    return (accel_layer){ACCEL__LINEAR_LAYER, in, out, ACCEL_NONE, 0};
}

ACCEL_API accel_layer accel_activation_layer(accel_activation activation) {
    return (accel_layer){ACCEL__ACTIVATION_LAYER, 0, 0, activation, 0.01f};
}

ACCEL_API accel_layer accel_leaky_relu_layer(float slope) {
    return (accel_layer){ACCEL__ACTIVATION_LAYER, 0, 0, ACCEL_LEAKY_RELU, slope};
}

ACCEL_API accel_layer accel_dropout_layer(float p) {
    return (accel_layer){ACCEL__DROPOUT_LAYER, 0, 0, ACCEL_NONE, p};
}

ACCEL_API accel_layer accel_layer_norm_layer(int width) {
    return (accel_layer){ACCEL__LAYER_NORM_LAYER, width, width, ACCEL_NONE, 1e-5f};
}

/* Layer i's weight and bias, named as torch.nn.Sequential names them; nothing for layers without parameters. *width is
   what the layers before it give, 0 where that is not known, and then what this one gives. */
static bool accel__layer_create(accel_model *model, int i, const accel_layer *layer, int *width) {
    accel_t *acc = model->object.acc;
    if (layer->in && *width && layer->in != *width)
        return accel__fail(acc, ACCEL_BAD_SHAPE,
                           "accel_sequential: layer %d takes %d features, the layers before it give %d", i, layer->in,
                           *width);
    if (layer->out) *width = layer->out;
    char weight[32], bias[32];
    snprintf(weight, sizeof weight, "%d.weight", i);
    snprintf(bias, sizeof bias, "%d.bias", i);
    if (layer->kind == ACCEL__LINEAR_LAYER) {
        if (layer->in < 1 || layer->out < 1)
            return accel__fail(acc, ACCEL_BAD_ARGUMENT, "accel_sequential: layer %d is linear from %d to %d", i,
                               layer->in, layer->out);
        float bound = 1.0f / sqrtf((float)layer->in);
        accel_parameter_uniform(model, weight, accel_2d(layer->out, layer->in), bound);
        accel_parameter_uniform(model, bias, accel_1d(layer->out), bound);
    } else if (layer->kind == ACCEL__LAYER_NORM_LAYER) {
        accel_parameter(model, weight, accel_1d(layer->in));
        accel_parameter(model, bias, accel_1d(layer->in));
        if (acc->code == ACCEL_OK) accel__param_fill(accel__param_find(model, weight)->slot, 1);
    } else if (layer->kind == ACCEL__DROPOUT_LAYER)
        return accel__probability(acc, "accel_sequential", layer->value);
    else if (layer->kind != ACCEL__ACTIVATION_LAYER)
        return accel__fail(acc, ACCEL_BAD_ARGUMENT, "accel_sequential: layer %d was made by no layer function", i);
    return acc->code == ACCEL_OK;
}

ACCEL_API accel_model *accel_sequential(accel_t *acc, const char *name, const accel_layer *layers, int count) {
    if (accel_failed(acc)) return NULL;
    if (!layers || count < 1) {
        accel__fail(acc, ACCEL_BAD_ARGUMENT, "accel_sequential: at least one layer is needed");
        return NULL;
    }
    accel_model *model = accel_model_create(acc, name);
    bool created = model && (model->layers = (accel_layer *)accel__alloc(acc, (size_t)count * sizeof *layers));
    for (int i = 0, width = 0; i < count && created; i++) created = accel__layer_create(model, i, &layers[i], &width);
    if (!created) {
        if (model) accel__object_destroy(&model->object);
        return NULL;
    }
    memcpy(model->layers, layers, (size_t)count * sizeof *layers);
    model->layer_count = count;
    return model;
}

ACCEL_API accel_tensor accel_apply(accel_model *model, accel_tensor x) {
    accel_t *acc = model ? model->object.acc : x.acc;
    if (accel_failed(acc)) return accel__null(acc);
    if (!model || !model->layer_count) {
        accel__fail(acc, ACCEL_BAD_ARGUMENT, "accel_apply: a model made by accel_sequential is needed");
        return accel__null(acc);
    }
    int next = 0; /* parameter */
    for (int i = 0; i < model->layer_count; i++) {
        const accel_layer *layer = &model->layers[i];
        accel_tensor weight = {acc, 0}, bias = {acc, 0};
        if (layer->kind == ACCEL__LINEAR_LAYER || layer->kind == ACCEL__LAYER_NORM_LAYER) {
            weight = accel_parameter_at(model, next++);
            bias = accel_parameter_at(model, next++);
        }
        switch (layer->kind) {
        case ACCEL__LINEAR_LAYER: x = accel_linear(x, weight, bias); break;
        case ACCEL__LAYER_NORM_LAYER: x = accel_layer_norm(x, weight, bias, layer->value); break;
        case ACCEL__DROPOUT_LAYER: x = accel_dropout(x, layer->value); break;
        default: x = accel__activation(x, layer->activation, layer->value, "accel_apply"); break;
        }
    }
    return x;
}

/* =============================================== >>encoder ========================================================
   DistilBERT and BERT as Transformers computes them, on packed sequences. */

typedef struct accel__encoder_layer {
    accel__slot *qkv_weight[3], *qkv_bias[3];     /* query, key, value: one behind the other */
    accel__slot *out_weight, *out_bias;
    accel__slot *norm_weight, *norm_bias;         /* after attention */
    accel__slot *up_weight, *up_bias;             /* dim -> hidden_dim */
    accel__slot *down_weight, *down_bias;
    accel__slot *last_norm_weight, *last_norm_bias;
} accel__encoder_layer;

struct accel__encoder {
    accel_encoder_config config;
    accel__slot *word, *position, *type;          /* type: BERT only */
    accel__slot *norm_weight, *norm_bias;
    accel__encoder_layer *layer;
    accel__slot *pool_weight, *pool_bias;         /* DistilBERT: pre_classifier; BERT: pooler */
    accel__slot *classifier_weight, *classifier_bias;
    accel_tensor *hidden;
    bool output_hidden, recompute;
    float *class_weights;
    accel_cross_entropy_desc loss;
};

static void accel__encoder_destroy(accel_t *acc, accel__encoder *encoder) {
    if (!encoder) return;
    accel__free(acc, encoder->layer);
    accel__free(acc, encoder->hidden);
    accel__free(acc, encoder->class_weights);
    accel__free(acc, encoder);
}

ACCEL_API accel_encoder_config accel_encoder_defaults(accel_architecture architecture) {
    bool bert = architecture == ACCEL_BERT;
    return (accel_encoder_config){.architecture = architecture,
                                  .problem = ACCEL_SINGLE_LABEL,
                                  .vocab_size = 30522,
                                  .max_positions = 512,
                                  .type_vocab_size = bert ? 2 : 0,
                                  .dim = 768,
                                  .layers = bert ? 12 : 6,
                                  .heads = 12,
                                  .hidden_dim = 3072,
                                  .num_labels = 2,
                                  .pad_token_id = 0,
                                  .activation = ACCEL_GELU,
                                  .sinusoidal_positions = false,
                                  .dropout = 0.1f,
                                  .attention_dropout = 0.1f,
                                  .classifier_dropout = bert ? 0.1f : 0.2f,
                                  .layer_norm_eps = 1e-12f,
                                  .initializer_range = 0.02f};
}

static bool accel__encoder_check(accel_t *acc, const accel_encoder_config *c) {
    const char *where = "accel_encoder_create";
    const struct { const char *name; int value; } sizes[] = {
        {"vocab_size", c->vocab_size}, {"max_positions", c->max_positions}, {"dim", c->dim}, {"layers", c->layers},
        {"heads", c->heads}, {"hidden_dim", c->hidden_dim}, {"num_labels", c->num_labels}};
    for (int i = 0; i < ACCEL__COUNT(sizes); i++)
        if (sizes[i].value < 1 || sizes[i].value > 1 << 24)
            return accel__fail(acc, ACCEL_BAD_ARGUMENT,
                               "%s: %s is %d, it must be at least 1 (start from accel_encoder_defaults)", where,
                               sizes[i].name, sizes[i].value);
    if (c->architecture != ACCEL_DISTILBERT && c->architecture != ACCEL_BERT)
        return accel__fail(acc, ACCEL_BAD_ARGUMENT, "%s: unknown architecture %d", where, (int)c->architecture);
    if (c->architecture == ACCEL_BERT && c->type_vocab_size < 1)
        return accel__fail(acc, ACCEL_BAD_ARGUMENT, "%s: type_vocab_size is %d, BERT needs at least 1", where,
                           c->type_vocab_size);
    if (c->dim % c->heads)
        return accel__fail(acc, ACCEL_BAD_ARGUMENT, "%s: %d heads do not divide dim %d", where, c->heads, c->dim);
    if (c->activation != ACCEL_GELU && c->activation != ACCEL_GELU_TANH && c->activation != ACCEL_RELU)
        return accel__fail(acc, ACCEL_BAD_ARGUMENT,
                           "%s: the activation must be ACCEL_GELU, ACCEL_GELU_TANH or ACCEL_RELU", where);
    if ((int)c->problem < 0 || c->problem > ACCEL_REGRESSION)
        return accel__fail(acc, ACCEL_BAD_ARGUMENT, "%s: unknown problem %d", where, (int)c->problem);
    if (c->pad_token_id < -1 || c->pad_token_id >= c->vocab_size)
        return accel__fail(acc, ACCEL_BAD_ARGUMENT, "%s: pad_token_id is %d, expected -1 (none) to %d", where,
                           c->pad_token_id, c->vocab_size - 1);
    if (!(c->layer_norm_eps > 0) || !(c->initializer_range >= 0))
        return accel__fail(acc, ACCEL_BAD_ARGUMENT,
                           "%s: layer_norm_eps %g must be above 0 and initializer_range %g not below", where,
                           (double)c->layer_norm_eps, (double)c->initializer_range);
    return accel__probability(acc, where, c->dropout) && accel__probability(acc, where, c->attention_dropout) &&
           accel__probability(acc, where, c->classifier_dropout);
}

/* ---- parameters, with Transformers' names ---- */

/* "PREFIXmiddle.weight" and "PREFIXmiddle.bias"; rows 0: vectors [columns], as layer norms have. */
static void accel__encoder_pair(accel_model *model, const char *prefix, const char *middle, int rows, int columns,
                                accel__slot **weight, accel__slot **bias) {
    char name[160];
    snprintf(name, sizeof name, "%s%s.weight", prefix, middle);
    *weight = accel__param_new(model, name, rows ? accel_2d(rows, columns) : accel_1d(columns));
    snprintf(name, sizeof name, "%s%s.bias", prefix, middle);
    *bias = accel__param_new(model, name, accel_1d(rows ? rows : columns));
}

/* The weights of query, key and value lie one behind the other, and so do their biases: one product computes all three.
 */
static void accel__encoder_qkv(accel_model *model, const char *prefix, const char *const *middle, int dim,
                               accel__encoder_layer *l) {
    char name[6][160];
    const char *weights[3] = {name[0], name[1], name[2]}, *biases[3] = {name[3], name[4], name[5]};
    for (int i = 0; i < 3; i++) {
        snprintf(name[i], sizeof name[i], "%s%s.weight", prefix, middle[i]);
        snprintf(name[3 + i], sizeof name[i], "%s%s.bias", prefix, middle[i]);
    }
    size_t first = accel__length(model->params);
    if (!accel__params_joined(model, weights, 3, accel_2d(dim, dim), l->qkv_weight) ||
        !accel__params_joined(model, biases, 3, accel_1d(dim), l->qkv_bias))
        return;
    accel__param **p = model->params + first; /* weight, bias, weight, .. as Transformers lists them */
    accel__param *listed[6] = {p[0], p[3], p[1], p[4], p[2], p[5]};
    memcpy(p, listed, sizeof listed);
}

static const char *accel__base_prefix(accel_architecture architecture) {
    return architecture == ACCEL_BERT ? "bert." : "distilbert.";
}

static const char *accel__layers_prefix(accel_architecture architecture) {
    return architecture == ACCEL_BERT ? "bert.encoder.layer." : "distilbert.transformer.layer.";
}

/* Where a parameter stands in an encoder of L layers: 0 the embeddings, l + 1 layer l, L + 1 the head. */
static int accel__encoder_depth(const accel_encoder_config *c, const char *name) {
    const char *layers = accel__layers_prefix(c->architecture), *base = accel__base_prefix(c->architecture);
    if (!strncmp(name, layers, strlen(layers))) return atoi(name + strlen(layers)) + 1;
    bool embedded = !strncmp(name, base, strlen(base)) && !strncmp(name + strlen(base), "embeddings.", 11);
    return embedded ? 0 : c->layers + 1;
}

static void accel__encoder_layer_create(accel_model *model, int index, accel__encoder_layer *l) {
    const accel_encoder_config *c = &model->encoder->config;
    static const char *const distilbert[] = {"attention.q_lin",   "attention.k_lin",  "attention.v_lin",
                                             "attention.out_lin", "sa_layer_norm",    "ffn.lin1",
                                             "ffn.lin2",          "output_layer_norm"};
    static const char *const bert[] = {"attention.self.query", "attention.self.key", "attention.self.value",
                                       "attention.output.dense", "attention.output.LayerNorm", "intermediate.dense",
                                       "output.dense", "output.LayerNorm"};
    const char *const *names = c->architecture == ACCEL_BERT ? bert : distilbert;
    char prefix[64];
    snprintf(prefix, sizeof prefix, "%s%d.", accel__layers_prefix(c->architecture), index);
    accel__encoder_qkv(model, prefix, names, c->dim, l);
    accel__encoder_pair(model, prefix, names[3], c->dim, c->dim, &l->out_weight, &l->out_bias);
    accel__encoder_pair(model, prefix, names[4], 0, c->dim, &l->norm_weight, &l->norm_bias);
    accel__encoder_pair(model, prefix, names[5], c->hidden_dim, c->dim, &l->up_weight, &l->up_bias);
    accel__encoder_pair(model, prefix, names[6], c->dim, c->hidden_dim, &l->down_weight, &l->down_bias);
    accel__encoder_pair(model, prefix, names[7], 0, c->dim, &l->last_norm_weight, &l->last_norm_bias);
}

static void accel__encoder_create_parameters(accel_model *model) {
    accel__encoder *e = model->encoder;
    const accel_encoder_config *c = &e->config;
    bool bert = c->architecture == ACCEL_BERT;
    const char *prefix = accel__base_prefix(c->architecture);
    char name[96];
    snprintf(name, sizeof name, "%sembeddings.word_embeddings.weight", prefix);
    e->word = accel__param_new(model, name, accel_2d(c->vocab_size, c->dim));
    snprintf(name, sizeof name, "%sembeddings.position_embeddings.weight", prefix);
    e->position = accel__param_new(model, name, accel_2d(c->max_positions, c->dim));
    snprintf(name, sizeof name, "%sembeddings.token_type_embeddings.weight", prefix);
    if (bert) e->type = accel__param_new(model, name, accel_2d(c->type_vocab_size, c->dim));
    accel__encoder_pair(model, prefix, "embeddings.LayerNorm", 0, c->dim, &e->norm_weight, &e->norm_bias);
    for (int i = 0; i < c->layers; i++) accel__encoder_layer_create(model, i, &e->layer[i]);
    accel__encoder_pair(model, bert ? prefix : "", bert ? "pooler.dense" : "pre_classifier", c->dim, c->dim,
                        &e->pool_weight, &e->pool_bias);
    accel__encoder_pair(model, "", "classifier", c->num_labels, c->dim, &e->classifier_weight, &e->classifier_bias);
}

/* Row p: sin(p / 10000^(2i/dim)) in column 2i, the cosine in column 2i + 1 (DistilBERT's create_sinusoidal_embeddings).
 */
static void accel__encoder_sinusoids(accel__slot *slot) {
    accel_t *acc = slot->param->model->object.acc;
    int dim = slot->shape.dim[1];
    float *row = (float *)accel__alloc(acc, (size_t)dim * sizeof *row);
    for (int p = 0; row && p < slot->shape.dim[0]; p++) {
        for (int j = 0; j < dim; j++) {
            double angle = p / pow(10000, 2 * (j / 2) / (double)dim);
            row[j] = (float)(j % 2 ? cos(angle) : sin(angle));
        }
        acc->backend->upload(acc, accel__data(slot) + (int64_t)p * dim, row, (size_t)dim * sizeof *row);
    }
    accel__free(acc, row);
}

/* Transformers' _init_weights: weights and embeddings Normal(0, initializer_range), biases 0, layer norms 1 and 0,
   padding row 0. */
ACCEL_API int accel_encoder_reset(accel_model *model, const char *match) {
    accel__encoder *e = model ? model->encoder : NULL;
    int matched = 0;
    if (!e || model->object.acc->code != ACCEL_OK) return 0;
    for (int i = 0; i < accel__param_count(model); i++) {
        accel__param *param = model->params[i];
        if (!accel__match(match, param->name)) continue;
        bool matrix = param->slot->shape.rank == 2, norm = accel__match("*orm.weight", param->name);
        if (param->slot == e->position && e->config.sinusoidal_positions) accel__encoder_sinusoids(param->slot);
        else if (matrix && e->config.initializer_range > 0)
            accel__param_random(param, e->config.initializer_range, true);
        else accel__param_fill(param->slot, norm ? 1.0f : 0.0f);
        if (param->slot == e->word && e->config.pad_token_id >= 0)
            model->object.acc->backend->fill(model->object.acc,
                                             accel__data(e->word) + (int64_t)e->config.pad_token_id * e->config.dim,
                                             e->config.dim, 0);
        matched++;
    }
    return matched;
}

ACCEL_API accel_model *accel__encoder_build(accel_t *acc, const accel_encoder_config *config) {
    if (accel_failed(acc)) return NULL;
    if (!config) {
        accel__fail(acc, ACCEL_BAD_ARGUMENT, "accel_encoder_create: a configuration is needed");
        return NULL;
    }
    accel_model *model = accel__encoder_check(acc, config) ? accel_model_create(acc, "encoder") : NULL;
    if (!model) return NULL;
    accel__encoder *encoder = model->encoder = (accel__encoder *)accel__alloc_zero(acc, sizeof *encoder);
    if (encoder) {
        encoder->config = *config;
        encoder->layer =
            (accel__encoder_layer *)accel__alloc_zero(acc, (size_t)config->layers * sizeof *encoder->layer);
        encoder->hidden =
            (accel_tensor *)accel__alloc_zero(acc, ((size_t)config->layers + 1) * sizeof *encoder->hidden);
        if (encoder->layer && encoder->hidden) accel__encoder_create_parameters(model);
    }
    if (acc->code == ACCEL_OK) return model;
    accel__object_destroy(&model->object);
    return NULL;
}

ACCEL_API accel_model *accel_encoder_create(accel_t *acc, const accel_encoder_config *config) {
    accel_model *model = accel__encoder_build(acc, config);
    accel_encoder_reset(model, "*");
    return model;
}

ACCEL_API const accel_encoder_config *accel_encoder_config_of(const accel_model *model) {
    return model && model->encoder ? &model->encoder->config : NULL;
}

static accel__encoder *accel__encoder_of(accel_model *model, const char *where) {
    if (!model || accel_failed(model->object.acc)) return NULL;
    if (!model->encoder)
        accel__fail(model->object.acc, ACCEL_BAD_ARGUMENT, "%s: model %s is no encoder", where, model->name);
    return model->encoder;
}

ACCEL_API void accel_output_hidden_states(accel_model *model, bool on) {
    accel__encoder *encoder = accel__encoder_of(model, "accel_output_hidden_states");
    if (encoder) encoder->output_hidden = on;
}

ACCEL_API void accel_set_recompute(accel_model *model, bool on) {
    accel__encoder *encoder = accel__encoder_of(model, "accel_set_recompute");
    if (encoder) encoder->recompute = on;
}

ACCEL_API void accel_set_dropout(accel_model *model, float p) {
    accel__encoder *encoder = accel__encoder_of(model, "accel_set_dropout");
    if (!encoder || !accel__probability(model->object.acc, "accel_set_dropout", p)) return;
    encoder->config.dropout = encoder->config.attention_dropout = encoder->config.classifier_dropout = p;
}

/* ---- checking a batch: what would otherwise read outside of a table ---- */

/* Where a bad example comes from, for messages. */
static accel__text accel__row_text(const accel_batch *batch, int example) {
    accel__text text;
    if (batch->rows) snprintf(text.text, sizeof text.text, "row %lld", (long long)batch->rows[example]);
    else snprintf(text.text, sizeof text.text, "example %d of the batch", example);
    return text;
}

/* What is wrong with one example for an encoder; an empty text if nothing is. */
typedef struct accel__fault {
    char text[192];
} accel__fault;

static accel__fault accel__example_fault(const accel_encoder_config *c, const int32_t *ids, const int32_t *types,
                                         int64_t length, const int32_t *label) {
    accel__fault fault = {""};
    if (length > c->max_positions)
        snprintf(fault.text, sizeof fault.text, "%lld tokens, the model has %d positions", (long long)length,
                 c->max_positions);
    for (int64_t t = 0; t < length && !*fault.text; t++) {
        if (ids[t] < 0 || ids[t] >= c->vocab_size)
            snprintf(fault.text, sizeof fault.text,
                     "token id %d at position %lld, the model's vocabulary has ids 0 .. %d", ids[t], (long long)t,
                     c->vocab_size - 1);
        else if (types && c->architecture == ACCEL_BERT && (types[t] < 0 || types[t] >= c->type_vocab_size))
            snprintf(fault.text, sizeof fault.text, "token type %d at position %lld, the model has types 0 .. %d",
                     types[t], (long long)t, c->type_vocab_size - 1);
    }
    if (!*fault.text && label && c->problem == ACCEL_SINGLE_LABEL && *label != ACCEL_IGNORE &&
        (*label < 0 || *label >= c->num_labels))
        snprintf(fault.text, sizeof fault.text, "label %d, the model has labels 0 .. %d", *label, c->num_labels - 1);
    return fault;
}

/* Sequences that lie one behind the other, none empty. */
static bool accel__batch_offsets(accel_t *acc, const char *where, const accel_batch *batch) {
    if (!batch || batch->examples < 1 || !batch->ids || !batch->offsets)
        return accel__fail(acc, ACCEL_BAD_ARGUMENT, "%s: the batch is empty", where);
    if (batch->offsets[0] != 0)
        return accel__fail(acc, ACCEL_BAD_DATA, "%s: the batch's offsets begin with %d, not 0", where,
                           batch->offsets[0]);
    for (int i = 0; i < batch->examples; i++)
        if (batch->offsets[i + 1] <= batch->offsets[i])
            return accel__fail(acc, ACCEL_BAD_DATA, "%s: %s is empty", where, accel__row_text(batch, i).text);
    return batch->offsets[batch->examples] == batch->tokens ||
           accel__fail(acc, ACCEL_BAD_DATA, "%s: the batch's offsets end at %d, it has %d tokens", where,
                       batch->offsets[batch->examples], batch->tokens);
}

static bool accel__batch_check(accel_t *acc, const accel_encoder_config *c, const accel_batch *batch) {
    if (!accel__batch_offsets(acc, "accel_forward", batch)) return false;
    if (batch->targets && batch->targets_per_example != c->num_labels)
        return accel__fail(acc, ACCEL_BAD_DATA,
                           "accel_forward: the batch has %d targets per example, the model has %d labels",
                           batch->targets_per_example, c->num_labels);
    for (int i = 0; i < batch->examples; i++) {
        int32_t begin = batch->offsets[i], length = batch->offsets[i + 1] - begin;
        accel__fault fault =
            accel__example_fault(c, batch->ids + begin, batch->token_types ? batch->token_types + begin : NULL, length,
                                 batch->labels ? &batch->labels[i] : NULL);
        if (*fault.text)
            return accel__fail(acc, ACCEL_BAD_DATA, "accel_forward: %s: %s", accel__row_text(batch, i).text,
                               fault.text);
    }
    return true;
}

/* ---- forward ---- */

/* What a forward pass carries along: all that its layers need to be computed again. */
typedef struct accel__pass {
    accel_t *acc;
    accel__encoder *encoder;
    accel_encoder_config config;
    accel_batch batch;      /* with offsets of its own */
    uint64_t place, call;   /* of its random numbers */
    const uint64_t *keys;   /* of each token: a function of its example's ordinal and its position */
    const uint64_t *first_keys; /* of the first tokens, one per example */
    accel__slot *first;     /* the first tokens' rows */
} accel__pass;

enum {
    ACCEL__SITE_EMBEDDING,
    ACCEL__SITE_ATTENTION,
    ACCEL__SITE_SELF_OUTPUT,
    ACCEL__SITE_OUTPUT,
    ACCEL__SITE_CLASSIFIER,
    ACCEL__SITES
};

static accel_mask accel__pass_mask(const accel__pass *pass, int layer, int site, float p) {
    uint64_t place = accel__mix(pass->place, (uint64_t)(layer * ACCEL__SITES + site));
    return (accel_mask){pass->acc->evaluating ? 0 : p, accel__site(pass->acc, place, pass->call), pass->keys, 0};
}

/* In evaluation nothing is needed twice: gives a result's memory back at once. */
static void accel__pass_done(const accel__pass *pass, accel__slot *slot) {
    if (!pass->acc->evaluating || !slot) return;
    accel__scope_remove(pass->acc, slot);
    accel__slot_free(pass->acc, slot);
}

static accel__slot *accel__int_slot(accel_t *acc, int count) {
    return accel__new_type(acc, ACCEL_INT32, accel_1d(count));
}

/* An int tensor of values per token: given ones, positions, or zeros. */
static accel__slot *accel__pass_ints(const accel__pass *pass, const int32_t *given, bool positions) {
    const accel_batch *b = &pass->batch;
    accel__slot *slot = accel__int_slot(pass->acc, b->tokens);
    if (!slot) return NULL;
    int32_t *values = (int32_t *)slot->data;
    if (given) memcpy(values, given, (size_t)b->tokens * sizeof *values);
    else memset(values, 0, (size_t)b->tokens * sizeof *values);
    for (int i = 0; positions && i < b->examples; i++)
        for (int32_t t = b->offsets[i]; t < b->offsets[i + 1]; t++) values[t] = t - b->offsets[i];
    return slot;
}

static bool accel__pass_keys(accel__pass *pass) {
    const accel_batch *b = &pass->batch;
    accel__slot *slot = accel__int_slot(pass->acc, 2 * (b->tokens + b->examples) + b->examples + 1);
    pass->first = slot ? accel__int_slot(pass->acc, b->examples) : NULL;
    if (!pass->first) return false;
    memcpy(pass->first->data, b->offsets, (size_t)b->examples * sizeof(int32_t));
    uint64_t *keys = (uint64_t *)slot->data, *first_keys = keys + b->tokens;
    int32_t *offsets = (int32_t *)(void *)(first_keys + b->examples);
    memcpy(offsets, b->offsets, ((size_t)b->examples + 1) * sizeof *offsets);
    for (int i = 0; i < b->examples; i++) {
        for (int32_t t = b->offsets[i]; t < b->offsets[i + 1]; t++)
            keys[t] = accel__mix((uint64_t)(b->first_ordinal + i), (uint64_t)(t - b->offsets[i]));
        first_keys[i] = keys[b->offsets[i]];
    }
    pass->batch.offsets = offsets;
    pass->keys = keys;
    pass->first_keys = first_keys;
    return true;
}

/* The rows of the first tokens: [examples, width]. */
static accel__slot *accel__pass_first(const accel__pass *pass, accel__slot *x) {
    if (!x) return NULL;
    return accel__embedding(pass->acc, x, pass->first, accel_2d(pass->batch.examples, x->shape.dim[1]), -1);
}

static accel__slot *accel__sum_of(const accel__pass *pass, accel__slot *a, accel__slot *b) {
    if (!a || !b) return NULL;
    accel_t *acc = pass->acc;
    accel__slot *sum = accel__find(accel_add(accel__handle(acc, a), accel__handle(acc, b)));
    accel__pass_done(pass, a);
    accel__pass_done(pass, b);
    return sum;
}

/* Word + (token type) + position, layer norm, dropout: [tokens, dim]. */
static accel__slot *accel__encoder_embed(const accel__pass *pass) {
    accel_t *acc = pass->acc;
    accel__encoder *e = pass->encoder;
    accel_shape shape = accel_2d(pass->batch.tokens, pass->config.dim);
    accel__slot *ids = accel__pass_ints(pass, pass->batch.ids, false);
    accel__slot *positions = accel__pass_ints(pass, NULL, true);
    if (!ids || !positions) return NULL;
    accel__slot *x = accel__embedding(acc, e->word, ids, shape, pass->config.pad_token_id);
    if (e->type) {
        accel__slot *types = accel__pass_ints(pass, pass->batch.token_types, false);
        x = types ? accel__sum_of(pass, x, accel__embedding(acc, e->type, types, shape, -1)) : NULL;
    }
    x = accel__sum_of(pass, x, accel__embedding(acc, e->position, positions, shape, -1));
    if (!x) return NULL;
    accel__slot *normed =
        accel__norm(acc, x, NULL, e->norm_weight, e->norm_bias, pass->config.layer_norm_eps, (accel_mask){0});
    accel__pass_done(pass, x);
    if (!normed) return NULL;
    return accel__drop(acc, normed, pass->batch.tokens,
                       accel__pass_mask(pass, 0, ACCEL__SITE_EMBEDDING, pass->config.dropout));
}

static accel__slot *accel__dense(accel_t *acc, accel__slot *x, accel__slot *weight, accel__slot *bias,
                                 accel_activation activation) {
    accel__slot *in[3] = {x, weight, bias};
    return x ? accel__linear(acc, in, 1, activation) : NULL;
}

/* [tokens, dim] -> [tokens, dim] */
static accel__slot *accel__encoder_attention(const accel__pass *pass, int index, accel__slot *x) {
    const accel_encoder_config *c = &pass->config;
    const accel__encoder_layer *l = &pass->encoder->layer[index];
    accel__slot *in[7] = {x,
                          l->qkv_weight[0], l->qkv_weight[1], l->qkv_weight[2],
                          l->qkv_bias[0], l->qkv_bias[1], l->qkv_bias[2]};
    accel__slot *qkv = accel__linear(pass->acc, in, 3, ACCEL_NONE);
    if (!qkv) return NULL;
    accel__slot *attended = accel__attend(pass->acc, qkv, c->heads, pass->batch.examples, pass->batch.offsets,
                                          accel__pass_mask(pass, index, ACCEL__SITE_ATTENTION, c->attention_dropout));
    accel__pass_done(pass, qkv);
    return attended;
}

/* What follows attention, row by row: out, residual + norm; up with activation, down, residual + norm. */
static accel__slot *accel__encoder_rows(const accel__pass *pass, int index, accel__slot *attended, accel__slot *x) {
    accel_t *acc = pass->acc;
    const accel_encoder_config *c = &pass->config;
    const accel__encoder_layer *l = &pass->encoder->layer[index];
    /* DistilBERT has no dropout behind the attention's output. */
    float after_attention = c->architecture == ACCEL_BERT ? c->dropout : 0;
    accel__slot *out = accel__dense(acc, attended, l->out_weight, l->out_bias, ACCEL_NONE);
    if (!out || !x) return NULL;
    accel__slot *middle = accel__norm(acc, out, x, l->norm_weight, l->norm_bias, c->layer_norm_eps,
                                      accel__pass_mask(pass, index, ACCEL__SITE_SELF_OUTPUT, after_attention));
    accel__pass_done(pass, out);
    accel__slot *up = accel__dense(acc, middle, l->up_weight, l->up_bias, c->activation);
    accel__slot *down = accel__dense(acc, up, l->down_weight, l->down_bias, ACCEL_NONE);
    accel__pass_done(pass, up);
    if (!down) return NULL;
    accel__slot *y = accel__norm(acc, down, middle, l->last_norm_weight, l->last_norm_bias, c->layer_norm_eps,
                                 accel__pass_mask(pass, index, ACCEL__SITE_OUTPUT, c->dropout));
    accel__pass_done(pass, down);
    accel__pass_done(pass, middle);
    return y;
}

static accel__slot *accel__encoder_layer_forward(const accel__pass *pass, int index, accel__slot *x) {
    accel__slot *attended = accel__encoder_attention(pass, index, x);
    accel__slot *y = accel__encoder_rows(pass, index, attended, x);
    accel__pass_done(pass, attended);
    accel__pass_done(pass, x);
    return y;
}

/* The last layer where only the first tokens' rows are needed: [examples, dim]. */
static accel__slot *accel__encoder_last_layer(const accel__pass *pass, accel__slot *x) {
    int index = pass->config.layers - 1;
    accel__pass rows = *pass;
    rows.keys = pass->first_keys;
    accel__slot *attended = accel__encoder_attention(pass, index, x);
    accel__slot *first = accel__pass_first(pass, attended), *residual = accel__pass_first(pass, x);
    accel__slot *y = accel__encoder_rows(&rows, index, first, residual);
    accel__pass_done(pass, attended);
    accel__pass_done(pass, x);
    return y;
}

typedef struct accel__layer_call {
    accel__pass pass;
    int index;
    bool first; /* the first tokens' rows are enough */
} accel__layer_call;

static accel__slot *accel__layer_run(const accel__layer_call *call, accel__slot *x) {
    ACCEL__SPAN(call->pass.acc, "layer", "index", call->index);
    return call->first ? accel__encoder_last_layer(&call->pass, x)
                       : accel__encoder_layer_forward(&call->pass, call->index, x);
}

static accel_tensor accel__layer_again(accel_t *acc, const accel_tensor *inputs, void *user) {
    return accel__result(acc, accel__layer_run((const accel__layer_call *)user, accel__find(inputs[0])));
}

/* A layer, which keeps only its input where the model is set so. */
static accel__slot *accel__encoder_next(const accel__pass *pass, int index, bool first, accel__slot *x) {
    accel_t *acc = pass->acc;
    accel__layer_call call = {*pass, index, first};
    if (!pass->encoder->recompute || acc->evaluating) return accel__layer_run(&call, x);
    accel__layer_call *kept = (accel__layer_call *)accel__node_alloc(acc, sizeof *kept);
    if (!kept) return NULL;
    *kept = call;
    accel_tensor input = accel__handle(acc, x);
    return accel__find(accel_checkpoint(acc, accel__layer_again, &input, 1, kept));
}

/* First tokens [examples, dim] through pooler or pre_classifier, dropout and classifier: [examples, num_labels]. */
static accel__slot *accel__encoder_head(const accel__pass *pass, accel__slot *x) {
    accel_t *acc = pass->acc;
    accel__encoder *e = pass->encoder;
    accel_activation activation = pass->config.architecture == ACCEL_BERT ? ACCEL_TANH : ACCEL_RELU;
    x = accel__dense(acc, x, e->pool_weight, e->pool_bias, activation);
    accel_mask mask = accel__pass_mask(pass, 0, ACCEL__SITE_CLASSIFIER, pass->config.classifier_dropout);
    mask.rows = NULL;
    mask.first_row = (uint64_t)pass->batch.first_ordinal;
    if (x) x = accel__drop(acc, x, pass->batch.examples, mask);
    return accel__dense(acc, x, e->classifier_weight, e->classifier_bias, ACCEL_NONE);
}

static accel_tensor accel__encoder_loss(accel__pass *pass, accel_tensor logits) {
    accel_t *acc = pass->acc;
    const accel_batch *b = &pass->batch;
    const accel_encoder_config *c = &pass->config;
    if (c->problem == ACCEL_SINGLE_LABEL && b->labels)
        return accel_cross_entropy(logits, accel_from_ints(acc, accel_1d(b->examples), b->labels),
                                   &pass->encoder->loss);
    if (c->problem == ACCEL_SINGLE_LABEL || !b->targets) return accel__null(acc);
    accel_tensor targets = accel_from_floats(acc, accel_2d(b->examples, c->num_labels), b->targets);
    return c->problem == ACCEL_REGRESSION ? accel_mse(logits, targets) : accel_bce_with_logits(logits, targets);
}

/* All layers, keeping their handles; the last one's first tokens. */
static accel__slot *accel__encoder_hidden(const accel__pass *pass, accel__slot *x) {
    accel__encoder *encoder = pass->encoder;
    for (int i = 0; x; i++) {
        encoder->hidden[i] = accel__handle(pass->acc, x);
        if (i == encoder->config.layers) break;
        x = accel__encoder_next(pass, i, false, x);
        if (pass->acc->evaluating) encoder->hidden[i] = accel__null(pass->acc); /* it is gone already */
    }
    return accel__pass_first(pass, x);
}

/* The last layer's first tokens alone. */
static accel__slot *accel__encoder_first(const accel__pass *pass, accel__slot *x) {
    int last = pass->config.layers - 1;
    for (int i = 0; x && i <= last; i++) x = accel__encoder_next(pass, i, i == last, x);
    return x;
}

ACCEL_API accel_output accel_forward(accel_model *model, const accel_batch *batch) {
    accel__encoder *encoder = accel__encoder_of(model, "accel_forward");
    accel_t *acc = model ? model->object.acc : NULL;
    accel_output output = {accel__null(acc), accel__null(acc), NULL, 0};
    if (!encoder || !accel__batch_check(acc, &encoder->config, batch)) return output;
    ACCEL__SPAN(acc, "forward", "examples", batch->examples);
    accel__pass pass = {.acc = acc, .encoder = encoder, .config = encoder->config, .batch = *batch,
                        .place = accel__hash_text(model->name), .call = accel__next_call(acc)};
    accel__slot *x = accel__pass_keys(&pass) ? accel__encoder_embed(&pass) : NULL;
    x = encoder->output_hidden ? accel__encoder_hidden(&pass, x) : accel__encoder_first(&pass, x);
    if (!x) return output;
    output.logits = accel__result(acc, accel__encoder_head(&pass, x));
    output.loss = accel__encoder_loss(&pass, output.logits);
    if (encoder->output_hidden) {
        output.hidden = encoder->hidden;
        output.hidden_count = encoder->config.layers + 1;
    }
    return output;
}

/* =============================================== >>loss =========================================================== */

/* A loss is a sum divided by `divisor`; its gradients, not yet divided, were made by the forward pass. */
typedef struct accel__loss_node {
    accel__node node; /* inputs: one or two; saved: their gradients */
    double divisor;
} accel__loss_node;

static void accel__loss_backward(accel_t *acc, accel__node *node) {
    double divisor = ((accel__loss_node *)node)->divisor;
    float dy = 0;
    acc->backend->download(acc, &dy, node->output->grad->base, sizeof dy);
    float scale = divisor > 0 ? (float)(dy / divisor) : 0;
    for (int i = 0; i < node->input_count; i++) {
        if (!node->saved[i]) continue;
        accel__target dx = accel__gradient_of(acc, node->input[i]);
        if (dx.at) accel__add_scaled(acc, dx.at, accel__floats(node->saved[i]), node->input[i]->count, scale, dx.add);
    }
}

/* The scalar sum(parts) / divisor (0 where nothing counts), and its node; gradients are taken over. */
static accel_tensor accel__loss_tensor(accel_t *acc, accel__slot *const *input, int count,
                                       accel__block *const *gradient, const accel__block *parts, int part_count,
                                       double divisor) {
    accel__slot *out = parts ? accel__new(acc, accel_0d()) : NULL;
    accel__loss_node *node =
        out ? (accel__loss_node *)accel__record(acc, sizeof *node, accel__loss_backward, out, input, count) : NULL;
    for (int i = 0; i < count; i++) {
        if (node) node->node.saved[i] = gradient[i];
        else accel__block_release(acc, gradient[i]);
    }
    if (!out) return accel__null(acc);
    if (node) node->divisor = divisor;
    double sum = 0;
    for (int i = 0; i < part_count; i++) sum += (double)accel__floats(parts)[i];
    float value = divisor > 0 ? (float)(sum / divisor) : 0;
    acc->backend->upload(acc, out->data, &value, sizeof value);
    if (!acc->micro.weight_set && !acc->evaluating) {
        acc->micro.weight = divisor;
        acc->micro.weight_set = true;
    }
    return accel__result(acc, out);
}

/* Sum of the labels' class weights; negative, with an error, where a label is out of range. */
static double accel__label_weight(accel_t *acc, const int32_t *labels, int n, int classes, const float *weights) {
    double sum = 0;
    for (int i = 0; i < n; i++) {
        if (labels[i] == ACCEL_IGNORE) continue;
        if (labels[i] < 0 || labels[i] >= classes) {
            accel__fail(acc, ACCEL_BAD_DATA,
                        "accel_cross_entropy: label %d in row %d; there are labels 0 .. %d, and %d for none", labels[i],
                        i, classes - 1, ACCEL_IGNORE);
            return -1;
        }
        sum += weights ? (double)weights[labels[i]] : 1;
    }
    return sum;
}

static bool accel__loss_desc_check(accel_t *acc, const char *where, const accel_cross_entropy_desc *d, int classes) {
    if (!(d->label_smoothing >= 0 && d->label_smoothing <= 1))
        return accel__fail(acc, ACCEL_BAD_ARGUMENT, "%s: label_smoothing from 0 to 1 is expected, not %g", where,
                           (double)d->label_smoothing);
    if (d->class_weights && d->class_count != classes)
        return accel__fail(acc, ACCEL_BAD_ARGUMENT, "%s: %d class weights were given for %d classes", where,
                           d->class_count, classes);
    for (int c = 0; d->class_weights && c < classes; c++)
        if (!(d->class_weights[c] >= 0) || !isfinite(d->class_weights[c]))
            return accel__fail(acc, ACCEL_BAD_ARGUMENT,
                               "%s: the weight of class %d is %g, it must be finite and not negative", where, c,
                               (double)d->class_weights[c]);
    return true;
}

static bool accel__cross_entropy_check(accel_t *acc, const accel__slot *x, const accel__slot *labels,
                                       const accel_cross_entropy_desc *d) {
    const char *where = "accel_cross_entropy";
    if (x->shape.rank != 2 || labels->shape.rank != 1 || labels->shape.dim[0] != x->shape.dim[0])
        return accel__fail(acc, ACCEL_BAD_SHAPE,
                           "%s: logits [n, classes] and labels [n] are expected, the shapes are %s and %s", where,
                           accel__shape_text(x->shape).text, accel__shape_text(labels->shape).text);
    return accel__loss_desc_check(acc, where, d, x->shape.dim[1]);
}

ACCEL_API accel_tensor accel_cross_entropy(accel_tensor logits, accel_tensor labels,
                                           const accel_cross_entropy_desc *desc) {
    accel_t *acc = logits.acc ? logits.acc : labels.acc;
    accel_cross_entropy_desc d = desc ? *desc : (accel_cross_entropy_desc){0};
    accel__slot *x = accel__operand_type(acc, logits, ACCEL_FLOAT32, "accel_cross_entropy");
    accel__slot *y = accel__operand_type(acc, labels, ACCEL_INT32, "accel_cross_entropy");
    if (!x || !y || !accel__cross_entropy_check(acc, x, y, &d)) return accel__null(acc);
    int n = x->shape.dim[0], classes = x->shape.dim[1];
    double divisor = accel__label_weight(acc, accel__ints(y), n, classes, d.class_weights);
    if (divisor < 0) return accel__null(acc);
    accel__block *rows = accel__block_new(acc, (size_t)n * sizeof(float));
    accel__block *gradient = accel__block_new(acc, (size_t)x->count * sizeof(float));
    if (rows && gradient) {
        accel_cross_entropy_rows args = {n, classes, d.label_smoothing, accel__data(x), d.class_weights, accel__ints(y),
                                         accel__floats(rows), accel__floats(gradient)};
        acc->backend->cross_entropy(acc, &args);
    }
    accel_tensor loss = accel__loss_tensor(acc, &x, 1, &gradient, rows, n, divisor);
    accel__block_release(acc, rows);
    return loss;
}

static accel_tensor accel__pointwise(accel_tensor a, accel_tensor b, const char *where, bool bce) {
    accel_t *acc = a.acc ? a.acc : b.acc;
    accel__slot *in[2] = {NULL, NULL};
    if (!accel__get_two(a, b, where, &in[0], &in[1])) return accel__null(acc);
    if (!accel__shape_equal(in[0]->shape, in[1]->shape)) {
        accel__fail(acc, ACCEL_BAD_SHAPE, "%s: two tensors of one shape are expected, the shapes are %s and %s", where,
                    accel__shape_text(in[0]->shape).text, accel__shape_text(in[1]->shape).text);
        return accel__null(acc);
    }
    int blocks = accel__pieces(in[0]->count, ACCEL_LOSS_BLOCK);
    size_t bytes = (size_t)in[0]->count * sizeof(float);
    accel__block *parts = accel__block_new(acc, (size_t)blocks * sizeof(float)), *gradient[2];
    for (int i = 0; i < 2; i++) gradient[i] = parts && in[i]->requires_grad ? accel__block_new(acc, bytes) : NULL;
    if (acc->code == ACCEL_OK) {
        accel_pointwise_loss args = {bce, in[0]->count, accel__data(in[0]), accel__data(in[1]), accel__floats(parts),
                                     accel__floats(gradient[0]), accel__floats(gradient[1])};
        acc->backend->pointwise_loss(acc, &args);
    }
    accel_tensor loss = accel__loss_tensor(acc, in, 2, gradient, parts, blocks, (double)in[0]->count);
    accel__block_release(acc, parts);
    return loss;
}

ACCEL_API accel_tensor accel_bce_with_logits(accel_tensor logits, accel_tensor targets) {
    return accel__pointwise(logits, targets, "accel_bce_with_logits", true);
}

ACCEL_API accel_tensor accel_mse(accel_tensor a, accel_tensor b) {
    return accel__pointwise(a, b, "accel_mse", false);
}

ACCEL_API void accel_set_loss(accel_model *model, const accel_cross_entropy_desc *desc) {
    accel__encoder *encoder = accel__encoder_of(model, "accel_set_loss");
    if (!encoder) return;
    accel_t *acc = model->object.acc;
    accel_cross_entropy_desc d = desc ? *desc : (accel_cross_entropy_desc){0};
    if (!accel__loss_desc_check(acc, "accel_set_loss", &d, encoder->config.num_labels)) return;
    accel__free(acc, encoder->class_weights);
    encoder->class_weights = NULL;
    if (d.class_weights) {
        size_t bytes = (size_t)d.class_count * sizeof(float);
        encoder->class_weights = (float *)accel__alloc(acc, bytes);
        if (!encoder->class_weights) return;
        memcpy(encoder->class_weights, d.class_weights, bytes);
        d.class_weights = encoder->class_weights;
    }
    encoder->loss = d;
}

/* =============================================== >>optimizers ===================================================== */

static void accel__optimizer_destroy(accel__object *object) {
    accel_optimizer *opt = (accel_optimizer *)(void *)object;
    accel_t *acc = object->acc;
    for (size_t i = 0; i < accel__length(opt->params); i++) {
        accel__param *param = opt->params[i];
        param->optimizer = NULL;
        param->gradient_state = ACCEL__NO_GRADIENT;
        param->round = 0;
        for (int m = 0; m < ACCEL__COUNT(param->moment); m++) {
            if (param->moment[m]) acc->backend->release(acc, param->moment[m]);
            param->moment[m] = NULL;
        }
        accel__free(acc, param->has_moments);
        param->has_moments = NULL;
        param->steps = 0;
    }
    accel__array_free(opt->params);
    for (int i = 0; i < opt->group_count; i++) {
        union {
            const char *shown;
            char *owned;
        } match = {opt->groups[i].match};
        accel__free(acc, match.owned);
    }
    accel__free(acc, opt->groups);
    accel__free(acc, opt->updates);
    accel__free(acc, opt->sums);
}

/* A description's number: 0 means the default, ACCEL_ZERO zero. */
static float accel__or(float value, float standard) {
    return value == ACCEL_ZERO ? 0.0f : value == 0.0f ? standard : value;
}

static bool accel__check_number(accel_t *acc, const char *where, const char *name, float value, float low, float high) {
    if (value >= low && value <= high) return true;
    return accel__fail(acc, ACCEL_BAD_ARGUMENT, "%s: %s is %g, expected %g to %g", where, name, (double)value,
                       (double)low, (double)high);
}

static bool accel__groups_copy(accel_optimizer *opt, const char *where, const accel_param_group *groups, int count) {
    accel_t *acc = opt->object.acc;
    if (count < 0 || (count && !groups))
        return accel__fail(acc, ACCEL_BAD_ARGUMENT, "%s: %d groups at a null pointer", where, count);
    if (!count) return true;
    opt->groups = (accel_param_group *)accel__alloc_zero(acc, (size_t)count * sizeof *groups);
    for (int i = 0; i < count && opt->groups; i++) {
        if (!groups[i].match) return accel__fail(acc, ACCEL_BAD_ARGUMENT, "%s: group %d has no patterns", where, i);
        if (!accel__check_number(acc, where, "a group's lr", accel__or(groups[i].lr, 0), 0, FLT_MAX) ||
            !accel__check_number(acc, where, "a group's weight_decay", accel__or(groups[i].weight_decay, 0), 0,
                                 FLT_MAX))
            return false;
        opt->groups[i] = groups[i];
        opt->groups[i].match = accel__strdup(acc, groups[i].match);
        opt->group_count = i + 1;
        if (!opt->groups[i].match) return false;
    }
    return opt->groups != NULL;
}

/* Stretches that a parameter is cut into: whole rows of matrices, so that rows of embeddings stay together. */
static int64_t accel__stretch(const accel__slot *slot) {
    if (slot->shape.rank != 2) return ACCEL_UPDATE_BLOCK;
    int width = slot->shape.dim[1];
    return (int64_t)width * (width < ACCEL_UPDATE_BLOCK ? ACCEL_UPDATE_BLOCK / width : 1);
}

static bool accel__updates_grow(accel_optimizer *opt) {
    accel_t *acc = opt->object.acc;
    int64_t needed = 0;
    for (size_t i = 0; i < accel__length(opt->params); i++) {
        const accel__slot *slot = opt->params[i]->slot;
        needed += accel__pieces(slot->count, accel__stretch(slot));
    }
    accel__free(acc, opt->updates);
    accel__free(acc, opt->sums);
    opt->updates = (accel_update *)accel__alloc(acc, (size_t)needed * sizeof *opt->updates);
    opt->sums = (double *)accel__alloc(acc, (size_t)needed * sizeof *opt->sums);
    opt->capacity = (int)needed;
    return opt->updates && opt->sums;
}

/* Layer-wise decay (ELECTRA, arXiv:2003.10555), with the exponents of BEiT's LayerDecayValueAssigner. */
static double accel__layer_scale(const accel_optimizer *opt, const accel__param *param) {
    if (opt->layer_decay == 0) return 1;
    const accel_encoder_config *c = accel_encoder_config_of(param->model);
    return pow((double)opt->layer_decay, c->layers + 1 - accel__encoder_depth(c, param->name));
}

/* The group's rates: kept as the description's codes, 0 for the optimizer's own. */
static void accel__param_group(const accel_optimizer *opt, accel__param *param) {
    param->lr = param->weight_decay = 0;
    param->lr_scale = accel__layer_scale(opt, param);
    for (int i = 0; i < opt->group_count; i++) {
        if (!accel__match(opt->groups[i].match, param->name)) continue;
        param->lr = opt->groups[i].lr;
        param->weight_decay = opt->groups[i].weight_decay;
        return;
    }
}

ACCEL_API bool accel_optimizer_add(accel_optimizer *opt, accel_model *model) {
    accel_t *acc = opt ? opt->object.acc : NULL;
    if (accel_failed(acc)) return false;
    if (!model || model->object.acc != acc || !accel__param_count(model))
        return accel__fail(acc, ACCEL_BAD_ARGUMENT,
                           "accel_optimizer_add: a model of this context with parameters is needed");
    if (opt->object.uses[ACCEL__COUNT(opt->object.uses) - 1])
        return accel__fail(acc, ACCEL_BAD_STATE, "accel_optimizer_add: an optimizer trains %d models at most",
                           ACCEL__COUNT(opt->object.uses));
    if (opt->layer_decay != 0 && !model->encoder)
        return accel__fail(acc, ACCEL_BAD_ARGUMENT, "layer_decay is for encoders, which model %s is not", model->name);
    for (int i = 0; i < accel__param_count(model); i++)
        if (model->params[i]->optimizer)
            return accel__fail(acc, ACCEL_BAD_STATE,
                               "accel_optimizer_add: parameter %s of model %s belongs to an optimizer already",
                               model->params[i]->name, model->name);
    for (int i = 0; i < accel__param_count(model); i++) {
        accel__param *param = model->params[i];
        if (!accel__push(acc, opt->params, param)) return false;
        param->optimizer = opt;
        param->round = 0;
        accel__param_group(opt, param);
    }
    accel__object_use(&opt->object, &model->object);
    return accel__updates_grow(opt);
}

/* What the descriptions have in common, as it is meant. */
typedef struct accel__rates {
    float lr, weight_decay, layer_decay;
    const accel_param_group *groups;
    int group_count;
} accel__rates;

static accel_optimizer *accel__optimizer_create(accel_t *acc, const char *where, accel_model *model,
                                                accel_update_rule rule, accel__rates rates) {
    if (accel_failed(acc)) return NULL;
    accel_optimizer *opt =
        (accel_optimizer *)accel__object_create(acc, ACCEL__OPTIMIZER, sizeof *opt, accel__optimizer_destroy);
    if (!opt) return NULL;
    opt->rule = rule;
    opt->base_lr = rates.lr;
    opt->weight_decay = rates.weight_decay;
    opt->layer_decay = rates.layer_decay;
    opt->factor = 1;
    opt->window.round = 1;
    accel__window_reset(&opt->window);
    bool valid = accel__check_number(acc, where, "lr", rates.lr, 0, FLT_MAX) &&
                 accel__check_number(acc, where, "weight_decay", rates.weight_decay, 0, FLT_MAX) &&
                 accel__check_number(acc, where, "layer_decay", rates.layer_decay, 0, 1) &&
                 accel__groups_copy(opt, where, rates.groups, rates.group_count) && accel_optimizer_add(opt, model);
    if (valid) return opt;
    accel__object_destroy(&opt->object);
    return NULL;
}

static accel_optimizer *accel__adam(accel_t *acc, const char *where, accel_model *model, const accel_adam_desc *desc,
                                    accel_rule kind, float decay) {
    accel_adam_desc d = desc ? *desc : (accel_adam_desc){0};
    accel_update_rule rule = {.rule = kind, .beta1 = accel__or(d.beta1, 0.9f), .beta2 = accel__or(d.beta2, 0.999f),
                              .eps = accel__or(d.eps, 1e-8f)};
    float below_one = nextafterf(1, 0);
    if (accel_failed(acc) || !accel__check_number(acc, where, "beta1", rule.beta1, 0, below_one) ||
        !accel__check_number(acc, where, "beta2", rule.beta2, 0, below_one) ||
        !accel__check_number(acc, where, "eps", rule.eps, 0, FLT_MAX))
        return NULL;
    accel__rates rates = {accel__or(d.lr, 1e-3f), accel__or(d.weight_decay, decay), d.layer_decay, d.groups,
                          d.group_count};
    accel_optimizer *opt = accel__optimizer_create(acc, where, model, rule, rates);
    if (opt) opt->amsgrad = d.amsgrad;
    return opt;
}

ACCEL_API accel_optimizer *accel_adam(accel_t *acc, accel_model *model, const accel_adam_desc *desc) {
    return accel__adam(acc, "accel_adam", model, desc, ACCEL_RULE_ADAM, 0);
}

ACCEL_API accel_optimizer *accel_adamw(accel_t *acc, accel_model *model, const accel_adam_desc *desc) {
    return accel__adam(acc, "accel_adamw", model, desc, ACCEL_RULE_ADAMW, 0.01f);
}

ACCEL_API accel_optimizer *accel_sgd(accel_t *acc, accel_model *model, const accel_sgd_desc *desc) {
    accel_sgd_desc d = desc ? *desc : (accel_sgd_desc){0};
    const char *where = "accel_sgd";
    accel_update_rule rule = {.rule = ACCEL_RULE_SGD,
                              .momentum = accel__or(d.momentum, 0),
                              .dampening = accel__or(d.dampening, 0),
                              .nesterov = d.nesterov};
    if (accel_failed(acc) || !accel__check_number(acc, where, "momentum", rule.momentum, 0, FLT_MAX) ||
        !accel__check_number(acc, where, "dampening", rule.dampening, 0, FLT_MAX))
        return NULL;
    if (d.nesterov && (rule.momentum <= 0 || rule.dampening != 0)) {
        accel__fail(acc, ACCEL_BAD_ARGUMENT, "%s: nesterov needs a momentum and no dampening", where);
        return NULL;
    }
    accel__rates rates = {accel__or(d.lr, 1e-3f), accel__or(d.weight_decay, 0), d.layer_decay, d.groups,
                          d.group_count};
    return accel__optimizer_create(acc, where, model, rule, rates);
}

/* True where this micro-batch does not end its accumulation window. */
static bool accel__mid_window(const accel_optimizer *opt) {
    return !accel_sync_gradients(opt->object.acc);
}

ACCEL_API void accel_zero_grad(accel_optimizer *opt) {
    accel_t *acc = opt ? opt->object.acc : NULL;
    if (accel_failed(acc)) return;
    bool open = acc->window_index > 0 || (acc->micro.had_backward && accel__mid_window(opt));
    if (open && !opt->window.consumed) return;
    accel__window_reset(&opt->window);
}

/* ---- the step ---- */

/* Moments are made when the first gradient arrives, as in torch.optim. */
static bool accel__moments(accel_optimizer *opt, accel__param *param) {
    accel_t *acc = opt->object.acc;
    int count = opt->rule.rule == ACCEL_RULE_SGD ? opt->rule.momentum > 0 : opt->amsgrad ? 3 : 2;
    for (int i = 0; i < count; i++) {
        if (param->moment[i]) continue;
        bool rows = param->gradient_state == ACCEL__ROWS;
        param->moment[i] = accel__param_memory(acc, param, rows);
        if (!param->moment[i]) return false;
        if (!rows) acc->backend->fill(acc, param->moment[i], param->slot->count, 0);
    }
    if (param->gradient_state == ACCEL__DENSE) {
        accel__free(acc, param->has_moments); /* from now on every row's may be other than zero */
        param->has_moments = NULL;
    } else if (!param->has_moments) {
        size_t rows = (size_t)param->slot->shape.dim[0];
        param->has_moments = (bool *)accel__alloc(acc, rows * sizeof(bool));
        if (!param->has_moments) return false;
        for (size_t i = 0; i < rows; i++) param->has_moments[i] = param->steps > 0;
    }
    return true;
}

static double accel__param_lr(const accel_optimizer *opt, const accel__param *param) {
    return (double)accel__or(param->lr, opt->base_lr) * param->lr_scale * opt->factor;
}

/* Lists the stretches of a parameter that has a gradient. */
static int accel__updates_of(accel_optimizer *opt, accel__param *param, accel_update *list) {
    const accel__slot *slot = param->slot;
    bool sparse = param->gradient_state == ACCEL__ROWS;
    int64_t stretch = accel__stretch(slot);
    double t = (double)(param->steps + 1);
    float *const *moment = param->moment;
    accel_update whole = {.lr = (float)accel__param_lr(opt, param),
                          .weight_decay = accel__or(param->weight_decay, opt->weight_decay),
                          .row_width = sparse ? slot->shape.dim[1] : 0,
                          .correction1 = (float)(1 - pow((double)opt->rule.beta1, t)),
                          .sqrt_correction2 = (float)sqrt(1 - pow((double)opt->rule.beta2, t)),
                          .first = param->steps == 0};
    int count = 0;
    for (int64_t begin = 0; begin < slot->count; begin += stretch, count++) {
        accel_update *u = &list[count];
        *u = whole;
        u->n = slot->count - begin < stretch ? slot->count - begin : stretch;
        u->value = accel__data(slot) + begin;
        u->gradient = param->gradient + begin;
        u->m = moment[0] ? moment[0] + begin : NULL;
        u->v = moment[1] ? moment[1] + begin : NULL;
        u->v_max = moment[2] ? moment[2] + begin : NULL;
        u->touched = sparse ? param->is_touched + begin / slot->shape.dim[1] : NULL;
        u->has_moments = sparse && param->has_moments ? param->has_moments + begin / slot->shape.dim[1] : NULL;
    }
    return count;
}

/* Whether a step would change the parameter. */
static bool accel__param_steps(accel__param *param) {
    return param->slot->requires_grad && accel__gradient_state(param) != ACCEL__NO_GRADIENT;
}

static int accel__updates_list(accel_optimizer *opt) {
    int count = 0;
    for (size_t i = 0; i < accel__length(opt->params); i++)
        if (accel__param_steps(opt->params[i])) count += accel__updates_of(opt, opt->params[i], opt->updates + count);
    return count;
}

/* Norm of the divided gradient before clipping; kept until another backward. */
static double accel__gradient_norm(accel_optimizer *opt) {
    accel__window *window = &opt->window;
    if (window->norm >= 0 || window->norm != window->norm) return window->norm;
    int count = accel__updates_list(opt);
    opt->object.acc->backend->squares(opt->object.acc, opt->updates, count, opt->sums);
    double sum = 0;
    for (int i = 0; i < count; i++) sum += opt->sums[i];
    window->norm = window->weight > 0 ? sqrt(sum) / window->weight : sqrt(sum);
    return window->norm;
}

ACCEL_API float accel_clip_grad_norm(accel_optimizer *opt, float max_norm) {
    if (!opt || accel_failed(opt->object.acc)) return NAN;
    if (!(max_norm > 0)) {
        accel__fail(opt->object.acc, ACCEL_BAD_ARGUMENT, "accel_clip_grad_norm: max_norm is %g, it must be above 0",
                    (double)max_norm);
        return NAN;
    }
    ACCEL__SPAN(opt->object.acc, "gradient norm", NULL, 0);
    double norm = accel__gradient_norm(opt) * opt->window.clip, factor = max_norm / (norm + 1e-6);
    if (factor < 1 && !accel__mid_window(opt)) opt->window.clip *= factor;
    return (float)norm;
}

ACCEL_API void accel_clip_grad_value(accel_optimizer *opt, float max_value) {
    accel_t *acc = opt ? opt->object.acc : NULL;
    if (accel_failed(acc) ||
        !accel__check_number(acc, "accel_clip_grad_value", "max_value", max_value, FLT_MIN, FLT_MAX) ||
        accel__mid_window(opt))
        return;
    float stored = max_value / accel__window_scale(&opt->window);
    for (size_t i = 0; i < accel__length(opt->params); i++) {
        accel__param *param = opt->params[i];
        if (!accel__param_steps(param)) continue;
        if (param->gradient_state == ACCEL__ROWS) accel__rows_to_dense(acc, param);
        accel_map args = {
            ACCEL_MAP_CLAMP, param->slot->count, stored, param->gradient, NULL, NULL, param->gradient, false};
        acc->backend->map(acc, &args);
    }
    opt->window.norm = -1;
}

static void accel__skip_step(accel_optimizer *opt);

ACCEL_API bool accel_step(accel_optimizer *opt) {
    if (!opt || accel_failed(opt->object.acc) || accel__mid_window(opt) || opt->window.consumed) return false;
    accel_t *acc = opt->object.acc;
    ACCEL__SPAN(acc, "update", "step", opt->steps + 1);
    double norm = accel__gradient_norm(opt);
    bool any = false;
    for (size_t i = 0; i < accel__length(opt->params); i++) {
        if (!accel__param_steps(opt->params[i])) continue;
        any = true;
        if (isfinite(norm) && !accel__moments(opt, opt->params[i])) return false;
    }
    if (!any) return false;
    if (!isfinite(norm)) {
        accel__skip_step(opt);
        return false;
    }
    int count = accel__updates_list(opt);
    opt->rule.scale = accel__window_scale(&opt->window);
    acc->backend->update(acc, opt->updates, count, &opt->rule);
    for (size_t i = 0; i < accel__length(opt->params); i++)
        if (accel__param_steps(opt->params[i])) {
            opt->params[i]->steps++;
            accel__param_changed(opt->params[i]);
        }
    opt->steps++;
    opt->skipped_in_row = 0;
    opt->window.consumed = true;
    return true;
}

ACCEL_API int64_t accel_steps_taken(const accel_optimizer *opt) { return opt ? opt->steps : 0; }
ACCEL_API int64_t accel_steps_skipped(const accel_optimizer *opt) { return opt ? opt->skipped : 0; }
ACCEL_API float accel_lr(const accel_optimizer *opt) { return opt ? (float)(opt->base_lr * opt->factor) : 0; }

ACCEL_API double accel_lr_of(const accel_optimizer *opt, const char *name) {
    if (!opt || accel_failed(opt->object.acc)) return NAN;
    for (size_t i = 0; name && i < accel__length(opt->params); i++)
        if (!strcmp(opt->params[i]->name, name)) return accel__param_lr(opt, opt->params[i]);
    accel__fail(opt->object.acc, ACCEL_BAD_ARGUMENT, "accel_lr_of: the optimizer has no parameter %.200s",
                name ? name : "(null)");
    return NAN;
}

ACCEL_API void accel_set_lr(accel_optimizer *opt, float lr) {
    if (opt && !accel_failed(opt->object.acc) &&
        accel__check_number(opt->object.acc, "accel_set_lr", "lr", lr, 0, FLT_MAX))
        opt->base_lr = lr;
}

/* ---- averaged weights ---- */

struct accel_ema {
    accel__object object;
    accel_model *model;
    float decay;
    int64_t swapped;  /* 1: the model holds the average */
    int count;        /* parameters when it was made */
    float **average;  /* [count], each like its parameter */
};

static void accel__ema_destroy(accel__object *object) {
    accel_ema *ema = (accel_ema *)(void *)object;
    for (int i = 0; ema->average && i < ema->count; i++)
        if (ema->average[i]) object->acc->backend->release(object->acc, ema->average[i]);
    accel__free(object->acc, ema->average);
}

ACCEL_API accel_ema *accel_ema_create(accel_t *acc, accel_model *model, float decay) {
    if (accel_failed(acc)) return NULL;
    if (!model || model->object.acc != acc || !(decay >= 0 && decay < 1)) {
        accel__fail(acc, ACCEL_BAD_ARGUMENT,
                    "accel_ema_create: a model of this context and a decay from 0 to below 1 are needed");
        return NULL;
    }
    accel_ema *ema = (accel_ema *)accel__object_create(acc, ACCEL__EMA, sizeof *ema, accel__ema_destroy);
    if (!ema) return NULL;
    ema->model = model;
    ema->decay = decay > 0 ? decay : 0.999f;
    ema->count = accel__param_count(model);
    accel__object_use(&ema->object, &model->object);
    ema->average = (float **)accel__alloc_zero(acc, (size_t)ema->count * sizeof *ema->average);
    for (int i = 0; ema->average && i < ema->count; i++) {
        accel__slot *slot = model->params[i]->slot;
        ema->average[i] = (float *)acc->backend->alloc(acc, accel__param_bytes(model->params[i]));
        if (ema->average[i]) accel__add_scaled(acc, ema->average[i], accel__data(slot), slot->count, 1, false);
    }
    if (acc->code == ACCEL_OK) return ema;
    accel__object_destroy(&ema->object);
    return NULL;
}

ACCEL_API void accel_ema_update(accel_ema *ema) {
    if (!ema || accel_failed(ema->object.acc)) return;
    accel_t *acc = ema->object.acc;
    if (ema->swapped) {
        accel__fail(acc, ACCEL_BAD_STATE, "accel_ema_update: the model holds the average; accel_ema_swap first");
        return;
    }
    for (int i = 0; i < ema->count; i++) {
        accel__slot *slot = ema->model->params[i]->slot;
        accel_map decay = {ACCEL_MAP_SCALE, slot->count, ema->decay, ema->average[i], NULL, NULL,
                           ema->average[i], false};
        acc->backend->map(acc, &decay);
        accel__add_scaled(acc, ema->average[i], accel__data(slot), slot->count, 1 - ema->decay, true);
    }
}

ACCEL_API void accel_ema_swap(accel_ema *ema) {
    if (!ema || accel_failed(ema->object.acc)) return;
    accel_t *acc = ema->object.acc;
    for (int i = 0; i < ema->count; i++) {
        accel__param *param = ema->model->params[i];
        accel__block *kept = accel__block_new(acc, accel__param_bytes(param));
        if (!kept) return;
        accel__add_scaled(acc, accel__floats(kept), accel__data(param->slot), param->slot->count, 1, false);
        accel__add_scaled(acc, accel__data(param->slot), ema->average[i], param->slot->count, 1, false);
        accel__add_scaled(acc, ema->average[i], accel__floats(kept), param->slot->count, 1, false);
        accel__block_release(acc, kept);
        accel__param_changed(param);
    }
    ema->swapped = !ema->swapped;
}

/* =============================================== >>schedules ====================================================== */

typedef enum accel__schedule_kind { ACCEL__LINEAR, ACCEL__COSINE, ACCEL__CONSTANT } accel__schedule_kind;

struct accel_schedule {
    accel__object object;
    accel_optimizer *opt;
    accel__schedule_kind kind;
    int64_t warmup, total;
};

/* The lambdas of Transformers' get_linear_, get_cosine_ and get_constant_schedule_with_warmup. */
ACCEL_API double accel_schedule_factor(const accel_schedule *schedule, int64_t steps) {
    if (!schedule) return 0;
    double warmup = (double)schedule->warmup, total = (double)schedule->total, step = (double)steps;
    if (step < warmup) return step / (warmup > 1 ? warmup : 1);
    double rest = total - warmup > 1 ? total - warmup : 1, factor = 1;
    if (schedule->kind == ACCEL__LINEAR) factor = (total - step) / rest;
    if (schedule->kind == ACCEL__COSINE) factor = 0.5 * (1 + cos(3.14159265358979323846 * (step - warmup) / rest));
    return factor > 0 ? factor : 0;
}

ACCEL_API void accel_schedule_step(accel_schedule *schedule) {
    if (!schedule || accel_failed(schedule->object.acc)) return;
    schedule->opt->factor = accel_schedule_factor(schedule, schedule->opt->steps);
}

static accel_schedule *accel__schedule_create(accel_optimizer *opt, accel__schedule_kind kind, int64_t warmup,
                                              int64_t total) {
    accel_t *acc = opt ? opt->object.acc : NULL;
    if (accel_failed(acc)) return NULL;
    if (warmup < 0 || total < 0) {
        accel__fail(acc, ACCEL_BAD_ARGUMENT, "a schedule's steps must not be negative: warmup %lld, total %lld",
                    (long long)warmup, (long long)total);
        return NULL;
    }
    accel_schedule *schedule = (accel_schedule *)accel__object_create(acc, ACCEL__SCHEDULE, sizeof *schedule, NULL);
    if (!schedule) return NULL;
    schedule->opt = opt;
    schedule->kind = kind;
    schedule->warmup = warmup;
    schedule->total = total;
    accel__object_use(&schedule->object, &opt->object);
    accel_schedule_step(schedule);
    return schedule;
}

ACCEL_API accel_schedule *accel_linear_schedule_with_warmup(accel_optimizer *opt, int64_t warmup, int64_t total) {
    return accel__schedule_create(opt, ACCEL__LINEAR, warmup, total);
}

ACCEL_API accel_schedule *accel_cosine_schedule_with_warmup(accel_optimizer *opt, int64_t warmup, int64_t total) {
    return accel__schedule_create(opt, ACCEL__COSINE, warmup, total);
}

ACCEL_API accel_schedule *accel_constant_schedule_with_warmup(accel_optimizer *opt, int64_t warmup) {
    return accel__schedule_create(opt, ACCEL__CONSTANT, warmup, 0);
}

/* =============================================== >>loader ========================================================= */

struct accel_data {
    accel__object object;
    accel_data_desc view; /* of our own copies */
    char *name;
    void *copies[6];
};

struct accel_loader {
    accel__object object;
    accel_loader_desc desc;
    accel_data *data;
    int64_t epoch, cursor;    /* the next batch of the epoch */
    int64_t *order;           /* [rows] of the present epoch; made when its first batch is asked for */
    int64_t *spare;           /* [rows + full batches] for group_by_length */
    int32_t *ids, *offsets, *types, *labels;
    float *targets;
    int64_t *rows;
    int examples;             /* of the batch given last */
};

/* ---- data ---- */

static void accel__data_destroy(accel__object *object) {
    accel_data *data = (accel_data *)(void *)object;
    for (int i = 0; i < ACCEL__COUNT(data->copies); i++) accel__free(object->acc, data->copies[i]);
    accel__free(object->acc, data->name);
}

static bool accel__data_check(accel_t *acc, const accel_data_desc *d) {
    const char *name = d && d->name ? d->name : "data";
    if (!d || d->rows < 1) return accel__fail(acc, ACCEL_BAD_DATA, "%s has no rows", name);
    if (!d->ids || !d->offsets)
        return accel__fail(acc, ACCEL_BAD_ARGUMENT, "accel_data_create: %s has no ids or no offsets", name);
    if (d->targets && d->targets_per_row < 1)
        return accel__fail(acc, ACCEL_BAD_ARGUMENT, "accel_data_create: targets_per_row is %d", d->targets_per_row);
    if (d->offsets[0] != 0)
        return accel__fail(acc, ACCEL_BAD_DATA, "%s: the offsets begin with %lld, not 0", name,
                           (long long)d->offsets[0]);
    for (int64_t i = 0; i < d->rows; i++) {
        int64_t length = d->offsets[i + 1] - d->offsets[i];
        long long line = (long long)(d->line ? d->line[i] : i + 1);
        if (length < 1) return accel__fail(acc, ACCEL_BAD_DATA, "%s, line %lld: the row has no tokens", name, line);
        if (length > 1 << 20)
            return accel__fail(acc, ACCEL_BAD_DATA, "%s, line %lld: the row has %lld tokens", name, line,
                               (long long)length);
        for (int j = 0; d->targets && j < d->targets_per_row; j++)
            if (!isfinite(d->targets[i * d->targets_per_row + j]))
                return accel__fail(acc, ACCEL_BAD_DATA, "%s, line %lld: target %d is not a finite number", name, line,
                                   j);
    }
    return true;
}

/* Copies an array that may be absent; false where memory is lacking. */
static const void *accel__data_copy(accel_data *data, int which, const void *from, size_t bytes) {
    if (!from) return NULL;
    data->copies[which] = accel__alloc(data->object.acc, bytes);
    if (data->copies[which]) memcpy(data->copies[which], from, bytes);
    return data->copies[which];
}

ACCEL_API accel_data *accel_data_create(accel_t *acc, const accel_data_desc *desc) {
    if (accel_failed(acc) || !accel__data_check(acc, desc)) return NULL;
    accel_data *data = (accel_data *)accel__object_create(acc, ACCEL__DATA, sizeof *data, accel__data_destroy);
    if (!data) return NULL;
    size_t rows = (size_t)desc->rows, tokens = (size_t)desc->offsets[rows];
    data->view = *desc;
    data->view.name = data->name = accel__strdup(acc, desc->name ? desc->name : "data");
    data->view.ids = (const int32_t *)accel__data_copy(data, 0, desc->ids, tokens * sizeof(int32_t));
    data->view.offsets = (const int64_t *)accel__data_copy(data, 1, desc->offsets, (rows + 1) * sizeof(int64_t));
    data->view.token_types = (const int32_t *)accel__data_copy(data, 2, desc->token_types, tokens * sizeof(int32_t));
    data->view.labels = (const int32_t *)accel__data_copy(data, 3, desc->labels, rows * sizeof(int32_t));
    size_t targets = rows * (size_t)(desc->targets ? desc->targets_per_row : 0);
    data->view.targets = (const float *)accel__data_copy(data, 4, desc->targets, targets * sizeof(float));
    int64_t *line = (int64_t *)accel__alloc(acc, rows * sizeof *line);
    for (size_t i = 0; line && i < rows; i++) line[i] = desc->line ? desc->line[i] : (int64_t)i + 1;
    data->copies[5] = line;
    data->view.line = line;
    if (acc->code == ACCEL_OK) return data;
    accel__object_destroy(&data->object);
    return NULL;
}

ACCEL_API int64_t accel_data_rows(const accel_data *data) { return data ? data->view.rows : 0; }
ACCEL_API const accel_data_desc *accel_data_view(const accel_data *data) { return data ? &data->view : NULL; }

static int64_t accel__row_length(const accel_data *data, int64_t row) {
    return data->view.offsets[row + 1] - data->view.offsets[row];
}

/* ---- the loader ---- */

static void accel__loader_destroy(accel__object *object) {
    accel_loader *loader = (accel_loader *)(void *)object;
    accel_t *acc = object->acc;
    if (acc->loader == loader) acc->loader = NULL;
    void *owned[] = {loader->order, loader->spare,  loader->ids,     loader->offsets,
                     loader->types, loader->labels, loader->targets, loader->rows};
    for (int i = 0; i < ACCEL__COUNT(owned); i++) accel__free(acc, owned[i]);
}

/* Buffers that fit any batch. */
static bool accel__loader_buffers(accel_loader *loader) {
    accel_t *acc = loader->object.acc;
    const accel_data_desc *d = &loader->data->view;
    int64_t longest = 0;
    for (int64_t i = 0; i < d->rows; i++) {
        int64_t length = accel__row_length(loader->data, i);
        if (length > longest) longest = length;
    }
    int64_t batch = loader->desc.batch_size < d->rows ? loader->desc.batch_size : d->rows, tokens = batch * longest;
    if (tokens > d->offsets[d->rows]) tokens = d->offsets[d->rows];
    if (tokens > INT_MAX / 2)
        return accel__fail(acc, ACCEL_BAD_ARGUMENT,
                           "accel_loader_create: batches of %lld rows of up to %lld tokens are too large",
                           (long long)batch, (long long)longest);
    loader->order = (int64_t *)accel__alloc(acc, (size_t)d->rows * sizeof(int64_t));
    if (loader->desc.group_by_length)
        loader->spare =
            (int64_t *)accel__alloc(acc, (size_t)(d->rows + d->rows / loader->desc.batch_size) * sizeof(int64_t));
    loader->ids = (int32_t *)accel__alloc(acc, (size_t)tokens * sizeof(int32_t));
    loader->offsets = (int32_t *)accel__alloc(acc, (size_t)(batch + 1) * sizeof(int32_t));
    loader->rows = (int64_t *)accel__alloc(acc, (size_t)batch * sizeof(int64_t));
    if (d->token_types) loader->types = (int32_t *)accel__alloc(acc, (size_t)tokens * sizeof(int32_t));
    if (d->labels) loader->labels = (int32_t *)accel__alloc(acc, (size_t)batch * sizeof(int32_t));
    if (d->targets) loader->targets = (float *)accel__alloc(acc, (size_t)(batch * d->targets_per_row) * sizeof(float));
    return acc->code == ACCEL_OK;
}

ACCEL_API accel_loader *accel_loader_create(accel_t *acc, accel_data *data, const accel_loader_desc *desc) {
    if (accel_failed(acc)) return NULL;
    accel_loader_desc d = desc ? *desc : (accel_loader_desc){0};
    if (!d.batch_size) d.batch_size = 8;
    if (!data || data->object.acc != acc || d.batch_size < 0 || (d.drop_last && data->view.rows < d.batch_size)) {
        accel__fail(acc, ACCEL_BAD_ARGUMENT,
                    !data || data->object.acc != acc ? "accel_loader_create: data of this context is needed"
                    : d.batch_size < 0               ? "accel_loader_create: batch_size is %d"
                                                     : "accel_loader_create: drop_last leaves no batch of %d rows",
                    d.batch_size);
        return NULL;
    }
    accel_loader *loader =
        (accel_loader *)accel__object_create(acc, ACCEL__LOADER, sizeof *loader, accel__loader_destroy);
    if (!loader) return NULL;
    loader->desc = d;
    loader->data = data;
    accel__object_use(&loader->object, &data->object);
    if (accel__loader_buffers(loader)) return loader;
    accel__object_destroy(&loader->object);
    return NULL;
}

ACCEL_API int64_t accel_loader_length(const accel_loader *loader) {
    if (!loader || accel_failed(loader->object.acc)) return 0;
    int64_t rows = loader->data->view.rows, batch = loader->desc.batch_size;
    return loader->desc.drop_last ? rows / batch : (rows + batch - 1) / batch;
}

/* Sorts order[0 .. n-1] by falling length, equal lengths as they were: a stable merge of runs through `spare`. */
static void accel__sort_by_length(const accel_data *data, int64_t *order, int64_t *spare, int64_t n) {
    for (int64_t run = 1; run < n; run *= 2) {
        for (int64_t begin = 0; begin < n; begin += 2 * run) {
            int64_t middle = begin + run < n ? begin + run : n, end = begin + 2 * run < n ? begin + 2 * run : n;
            int64_t a = begin, b = middle;
            for (int64_t i = begin; i < end; i++) {
                bool first =
                    b >= end || (a < middle && accel__row_length(data, order[a]) >= accel__row_length(data, order[b]));
                spare[i] = first ? order[a++] : order[b++];
            }
        }
        memcpy(order, spare, (size_t)n * sizeof *order);
    }
}

/* Batches of similar lengths (Transformers' group_by_length): runs of 50 batches of the shuffled rows are sorted by
   length; then the full batches are shuffled. */
static void accel__group_by_length(accel_loader *loader, uint64_t key) {
    int64_t rows = loader->data->view.rows, size = loader->desc.batch_size, batches = rows / size, run = 50 * size;
    int64_t *copy = loader->spare, *which = copy + rows;
    for (int64_t begin = 0; begin < rows; begin += run)
        accel__sort_by_length(loader->data, loader->order + begin, copy, rows - begin < run ? rows - begin : run);
    for (int64_t i = 0; i < batches; i++) which[i] = i;
    accel__shuffle(which, batches, accel__mix(key, 1));
    memcpy(copy, loader->order, (size_t)rows * sizeof *copy);
    for (int64_t i = 0; i < batches; i++)
        memcpy(loader->order + i * size, copy + which[i] * size, (size_t)size * sizeof *copy);
}

/* The order of an epoch: a function of (seed, epoch) alone. */
static void accel__loader_order(accel_loader *loader) {
    accel_t *acc = loader->object.acc;
    int64_t rows = loader->data->view.rows;
    uint64_t key = accel__mix(accel__mix(acc->desc.seed, accel__hash_text("loader")), (uint64_t)loader->epoch);
    for (int64_t i = 0; i < rows; i++) loader->order[i] = i;
    if (loader->desc.shuffle || loader->desc.group_by_length) accel__shuffle(loader->order, rows, key);
    if (loader->desc.group_by_length) accel__group_by_length(loader, key);
}

static void accel__loader_pack(accel_loader *loader, accel_batch *batch) {
    const accel_data_desc *d = &loader->data->view;
    int64_t first = loader->cursor * loader->desc.batch_size, left = d->rows - first;
    int examples = (int)(left < loader->desc.batch_size ? left : loader->desc.batch_size);
    *batch = (accel_batch){.examples = examples,
                           .ids = loader->ids,
                           .offsets = loader->offsets,
                           .token_types = loader->types,
                           .labels = loader->labels,
                           .targets = loader->targets,
                           .rows = loader->rows,
                           .targets_per_example = d->targets ? d->targets_per_row : 0};
    loader->offsets[0] = 0;
    for (int i = 0; i < examples; i++) {
        int64_t row = loader->order[first + i];
        int length = (int)accel__row_length(loader->data, row), at = loader->offsets[i], per_row = d->targets_per_row;
        size_t bytes = (size_t)length * sizeof(int32_t);
        memcpy(loader->ids + at, d->ids + d->offsets[row], bytes);
        if (d->token_types) memcpy(loader->types + at, d->token_types + d->offsets[row], bytes);
        if (d->labels) loader->labels[i] = d->labels[row];
        if (d->targets)
            memcpy(loader->targets + (int64_t)i * per_row, d->targets + row * per_row, (size_t)per_row * sizeof(float));
        loader->rows[i] = row;
        loader->offsets[i + 1] = at + length;
        if (length > batch->longest) batch->longest = length;
    }
    batch->tokens = loader->offsets[examples];
    loader->examples = examples;
}

ACCEL_API bool accel_next(accel_loader *loader, accel_batch *batch) {
    if (!loader || !batch || accel_failed(loader->object.acc)) return false;
    accel_t *acc = loader->object.acc;
    if (loader->cursor >= accel_loader_length(loader)) {
        accel_loader_set_epoch(loader, loader->epoch + 1);
        return false;
    }
    ACCEL__SPAN(acc, "batch", "number", loader->cursor);
    bool training = !loader->desc.evaluation && !acc->evaluating;
    if (training || acc->evaluating)
        accel__begin(acc, training && loader->cursor + 1 == accel_loader_length(loader));
    if (loader->cursor == 0) accel__loader_order(loader);
    accel__loader_pack(loader, batch);
    loader->cursor++;
    if (training) {
        batch->first_ordinal = acc->window_examples;
        acc->micro.examples += batch->examples;
        acc->loader = loader;
    }
    return !accel_failed(acc);
}

ACCEL_API void accel_loader_set_epoch(accel_loader *loader, int64_t epoch) {
    if (!loader || accel_failed(loader->object.acc)) return;
    if (epoch < 0) {
        accel__fail(loader->object.acc, ACCEL_BAD_ARGUMENT, "accel_loader_set_epoch: epoch %lld, expected 0 or more",
                    (long long)epoch);
        return;
    }
    loader->epoch = epoch;
    loader->cursor = 0;
}

/* ---- batches from padded arrays, and back ---- */

static int accel__padded_length(const int32_t *mask, int length) {
    if (!mask) return length;
    int tokens = 0;
    while (tokens < length && mask[tokens]) tokens++;
    for (int t = tokens; t < length; t++)
        if (mask[t]) return -1;
    return tokens;
}

ACCEL_API bool accel_batch_from_padded(accel_t *acc, const int32_t *ids, const int32_t *mask,
                                       const int32_t *token_types, const int32_t *labels, int examples, int length,
                                       accel_batch *batch) {
    if (accel_failed(acc)) return false;
    if (!ids || !batch || examples < 1 || length < 1 || (int64_t)examples * length > INT_MAX / 8)
        return accel__fail(acc, ACCEL_BAD_ARGUMENT,
                           "accel_batch_from_padded: ids, a batch and at least one example and token are needed");
    int64_t room = (int64_t)examples * length;
    accel__slot *slot = accel__int_slot(acc, (int)(2 * room + 2 * examples + 1));
    if (!slot) return false;
    int32_t *packed = (int32_t *)slot->data, *types = packed + room, *offsets = types + room,
            *copy = offsets + examples + 1;
    offsets[0] = 0;
    int longest = 0;
    for (int i = 0; i < examples; i++) {
        int tokens = accel__padded_length(mask ? mask + (int64_t)i * length : NULL, length);
        if (tokens < 1)
            return accel__fail(acc, ACCEL_BAD_DATA,
                               tokens ? "accel_batch_from_padded: the mask of example %d has zeros before ones"
                                      : "accel_batch_from_padded: example %d has no tokens",
                               i);
        size_t bytes = (size_t)tokens * sizeof *packed;
        memcpy(packed + offsets[i], ids + (int64_t)i * length, bytes);
        if (token_types) memcpy(types + offsets[i], token_types + (int64_t)i * length, bytes);
        offsets[i + 1] = offsets[i] + tokens;
        if (tokens > longest) longest = tokens;
    }
    if (labels) memcpy(copy, labels, (size_t)examples * sizeof *copy);
    *batch = (accel_batch){.examples = examples,
                           .tokens = offsets[examples],
                           .longest = longest,
                           .ids = packed,
                           .offsets = offsets,
                           .token_types = token_types ? types : NULL,
                           .labels = labels ? copy : NULL,
                           .first_ordinal = acc->window_examples};
    accel__count_examples(acc, examples);
    return true;
}

ACCEL_API accel_tensor accel_unpack(accel_tensor packed, const accel_batch *batch) {
    accel_t *acc = packed.acc;
    accel__slot *in = accel__get_float(packed, "accel_unpack");
    if (!in) return accel__null(acc);
    if (!accel__batch_offsets(acc, "accel_unpack", batch)) return accel__null(acc);
    if (in->shape.rank != 2 || in->shape.dim[0] != batch->tokens) {
        accel__fail(acc, ACCEL_BAD_SHAPE, "accel_unpack: [tokens, width] and its batch are expected, the shape is %s",
                    accel__shape_text(in->shape).text);
        return accel__null(acc);
    }
    /* Row `tokens` of the table is zeros: what padding gathers. */
    int width = in->shape.dim[1];
    accel_tensor both[2] = {packed, accel_full(acc, accel_2d(1, width), 0)};
    accel__slot *table = accel__find(accel_concat(both, 2, 0)),
                *ids = accel__int_slot(acc, batch->examples * batch->longest);
    if (!table || !ids) return accel__null(acc);
    int32_t *row = (int32_t *)ids->data;
    for (int i = 0; i < batch->examples; i++)
        for (int t = 0; t < batch->longest; t++)
            *row++ = t < batch->offsets[i + 1] - batch->offsets[i] ? batch->offsets[i] + t : batch->tokens;
    accel_shape shape = accel_3d(batch->examples, batch->longest, width);
    return accel__result(acc, accel__embedding(acc, table, ids, shape, batch->tokens));
}

/* ============================================= >>accelerator ====================================================== */

/* OpenBLAS' number of threads is global: the first context sets it to one, the last one sets it back. */
static pthread_mutex_t accel__blas_mutex = PTHREAD_MUTEX_INITIALIZER;
static int accel__blas_users, accel__blas_threads;

static void accel__blas_acquire(void) {
    pthread_mutex_lock(&accel__blas_mutex);
    if (accel__blas_users++ == 0) {
        accel__blas_threads = openblas_get_num_threads();
        openblas_set_num_threads(1);
    }
    pthread_mutex_unlock(&accel__blas_mutex);
}

static void accel__blas_release(void) {
    pthread_mutex_lock(&accel__blas_mutex);
    if (--accel__blas_users == 0) openblas_set_num_threads(accel__blas_threads);
    pthread_mutex_unlock(&accel__blas_mutex);
}

ACCEL_API const char *accel_blas_core(void) { return openblas_get_corename(); }

static const char *const accel__code_texts[] = {
#define ACCEL__X(code, text) text,
    ACCEL_CODES(ACCEL__X)
#undef ACCEL__X
};

ACCEL_API const char *accel_code_text(accel_code code) {
    return (unsigned)code < (unsigned)ACCEL_CODE_COUNT ? accel__code_texts[code] : "unknown error";
}

ACCEL_API bool accel_failed(const accel_t *acc) { return !acc || acc->code != ACCEL_OK; }
ACCEL_API accel_code accel_error(const accel_t *acc) { return acc ? acc->code : ACCEL_OUT_OF_MEMORY; }
ACCEL_API const char *accel_message(const accel_t *acc) {
    return acc ? acc->message : "no context: accel_create found no memory";
}
ACCEL_API int accel_threads(const accel_t *acc) { return acc && acc->pool ? acc->pool->workers + 1 : 0; }
ACCEL_API uint64_t accel_seed(const accel_t *acc) { return acc ? acc->desc.seed : 0; }
ACCEL_API accel_memory accel_memory_used(const accel_t *acc) { return acc ? acc->memory : (accel_memory){0, 0, 0}; }

ACCEL_API void accel_clear(accel_t *acc) {
    if (!acc) return;
    acc->code = ACCEL_OK;
    acc->message[0] = 0;
}

ACCEL_API void accel_set_seed(accel_t *acc, uint64_t seed) {
    if (acc) acc->desc.seed = seed;
}

static bool accel__desc_check(accel_t *acc) {
    const accel_desc *d = &acc->desc;
    if (d->threads < 0 || d->threads > 1024)
        return accel__fail(acc, ACCEL_BAD_ARGUMENT, "accel_create: threads is %d, expected 0 (all cores) to 1024",
                           d->threads);
    if ((int)d->precision < 0 || d->precision > ACCEL_PRECISION_EMULATED)
        return accel__fail(acc, ACCEL_BAD_ARGUMENT, "accel_create: unknown precision %d", (int)d->precision);
    if (d->accumulate < 0)
        return accel__fail(acc, ACCEL_BAD_ARGUMENT, "accel_create: accumulate is %d, expected 1 or more",
                           d->accumulate);
    if (d->max_skipped_steps < 0)
        return accel__fail(acc, ACCEL_BAD_ARGUMENT, "accel_create: max_skipped_steps is %d, expected 1 or more",
                           d->max_skipped_steps);
    return true;
}

ACCEL_API accel_t *accel_create(const accel_desc *desc) {
    accel_desc d = desc ? *desc : (accel_desc){0};
    if (!d.allocator.reallocate) d.allocator.reallocate = accel__default_reallocate;
    accel_t *acc = (accel_t *)d.allocator.reallocate(d.allocator.user, NULL, sizeof *acc);
    if (!acc) return NULL;
    memset(acc, 0, sizeof *acc);
    acc->desc = d;
    acc->backend = &accel__cpu_backend;
    accel__blas_acquire();
    if (!accel__desc_check(acc)) return acc;
    acc->accumulate = acc->next_accumulate = d.accumulate ? d.accumulate : 1;
    if (!d.max_skipped_steps) acc->desc.max_skipped_steps = 5;
    accel__pool_create(acc, d.threads ? d.threads : accel__cores());
    return acc;
}

/* Users go before what they use. */
static void accel__objects_destroy(accel_t *acc) {
    while (acc->objects) {
        accel__object *object = acc->objects;
        while (object->users && object->next) object = object->next;
        accel__object_destroy(object);
    }
}

ACCEL_API void accel_destroy(accel_t *acc) {
    if (!acc) return;
    accel__pool_destroy(acc);
    for (int scope = 0; scope < ACCEL__SCOPES; scope++) accel__scope_end(acc, scope);
    accel__objects_destroy(acc);
    for (size_t i = 0; i < accel__length(acc->slots); i++) accel__free(acc, acc->slots[i]);
    accel__array_free(acc->slots);
    while (acc->slabs) {
        accel__slab *next = acc->slabs->next;
        acc->backend->release(acc, acc->slabs->memory);
        accel__free(acc, acc->slabs);
        acc->slabs = next;
    }
    for (size_t i = 0; i < accel__length(acc->block_chunks); i++) accel__free(acc, acc->block_chunks[i]);
    accel__array_free(acc->block_chunks);
    accel__free(acc, acc->staging);
    while (acc->chunks) {
        accel__chunk *next = acc->chunks->next;
        accel__free(acc, acc->chunks);
        acc->chunks = next;
    }
    accel__blas_release();
    acc->desc.allocator.reallocate(acc->desc.allocator.user, acc, 0);
}

/* ---- prepare ---- */

static bool accel__rows_check(const accel_loader *loader, const accel_encoder_config *c) {
    const accel_data_desc *d = &loader->data->view;
    if (d->targets && c->problem != ACCEL_SINGLE_LABEL && d->targets_per_row != c->num_labels)
        return accel__fail(loader->object.acc, ACCEL_BAD_DATA, "%s has %d targets per row, the model has %d labels",
                           d->name, d->targets_per_row, c->num_labels);
    for (int64_t i = 0; i < d->rows; i++) {
        int64_t begin = d->offsets[i];
        accel__fault fault = accel__example_fault(c, d->ids + begin, d->token_types ? d->token_types + begin : NULL,
                                                  d->offsets[i + 1] - begin, d->labels ? &d->labels[i] : NULL);
        if (*fault.text)
            return accel__fail(loader->object.acc, ACCEL_BAD_DATA, "%s, line %lld: %s", d->name, (long long)d->line[i],
                               fault.text);
    }
    return true;
}

enum { ACCEL__PREPARE_MAX = 32 };

/* Every loader is checked against every encoder it is prepared with. */
static bool accel__prepare_check(void *const *objects, int count) {
    for (int i = 0; i < count; i++)
        for (int j = 0; j < count; j++) {
            const accel__object *loader = (const accel__object *)objects[i], *model = (const accel__object *)objects[j];
            if (loader->kind != ACCEL__LOADER || model->kind != ACCEL__MODEL) continue;
            const accel_encoder_config *config = accel_encoder_config_of((const accel_model *)objects[j]);
            if (config && !accel__rows_check((const accel_loader *)objects[i], config)) return false;
        }
    return true;
}

ACCEL_API bool accel__prepare(accel_t *acc, ...) {
    if (accel_failed(acc)) return false;
    void *objects[ACCEL__PREPARE_MAX], *object;
    int count = 0;
    bool valid = true;
    va_list list;
    va_start(list, acc);
    while (valid && (object = va_arg(list, void *))) {
        valid = count < ACCEL__PREPARE_MAX && ((accel__object *)object)->acc == acc;
        if (valid) objects[count++] = object;
    }
    va_end(list);
    if (!valid)
        return accel__fail(acc, ACCEL_BAD_ARGUMENT,
                           "accel_prepare: object %d belongs to another context, or there are more than %d", count + 1,
                           ACCEL__PREPARE_MAX);
    if (!accel__prepare_check(objects, count)) return false;
    for (int i = 0; i < count; i++)
        if (((accel__object *)objects[i])->kind == ACCEL__MODEL && !acc->desc.no_device_placement &&
            !accel_to((accel_model *)objects[i], acc->backend->name))
            return false;
    return true;
}

ACCEL_API bool accel_to(accel_model *model, const char *device) {
    if (!model || accel_failed(model->object.acc)) return false;
    accel_t *acc = model->object.acc;
    return (device && !strcmp(device, acc->backend->name)) ||
           accel__fail(acc, ACCEL_BAD_ARGUMENT, "accel_to: there is no device \"%s\"; this context has \"%s\"",
                       device ? device : "(null)", acc->backend->name);
}

/* ---- accumulation ---- */

ACCEL_API void accel_set_weight(accel_t *acc, double weight) {
    if (accel_failed(acc)) return;
    if (!(weight >= 0) || !isfinite(weight)) {
        accel__fail(acc, ACCEL_BAD_ARGUMENT, "accel_set_weight: the weight is %g, it must be finite and not negative",
                    weight);
        return;
    }
    if (acc->micro.had_backward) {
        accel__fail(acc, ACCEL_BAD_STATE,
                    "accel_set_weight: this micro-batch's gradient has its weight already: set it before");
        return;
    }
    acc->micro.weight = weight;
    acc->micro.weight_set = true;
}

ACCEL_API void accel_set_accumulate(accel_t *acc, int n) {
    if (accel_failed(acc)) return;
    if (n < 1) {
        accel__fail(acc, ACCEL_BAD_ARGUMENT, "accel_set_accumulate: %d micro-batches per step, expected 1 or more", n);
        return;
    }
    acc->next_accumulate = n;
    if (acc->window_index == 0 && !acc->micro.had_backward) acc->accumulate = n;
}

ACCEL_API bool accel_sync_gradients(const accel_t *acc) {
    return acc && ((acc->window_index + 1 >= acc->accumulate && !acc->micro.no_sync) || acc->last_of_epoch);
}

ACCEL_API void accel_no_sync(accel_t *acc) {
    if (!accel_failed(acc)) acc->micro.no_sync = true;
}

ACCEL_API int64_t accel_steps_per_epoch(const accel_t *acc, const accel_loader *loader) {
    if (accel_failed(acc) || !loader) return 0;
    return (accel_loader_length(loader) + acc->next_accumulate - 1) / acc->next_accumulate;
}

/* The step is not taken and the gradient forgotten; the notice names the last micro-batch's rows. */
static void accel__skip_step(accel_optimizer *opt) {
    accel_t *acc = opt->object.acc;
    char rows[160] = "";
    const accel_loader *loader = acc->loader;
    size_t used = 0;
    for (int i = 0; loader && i < loader->examples && used < sizeof rows - 32; i++) {
        long long line = (long long)loader->data->view.line[loader->rows[i]];
        used += (size_t)snprintf(rows + used, sizeof rows - used, i ? ", %lld" : " (lines %lld", line);
    }
    if (used)
        snprintf(rows + used, sizeof rows - used, "%s of %.64s)", used < sizeof rows - 32 ? "" : ", ..",
                 loader->data->name);
    opt->skipped++;
    opt->window.consumed = true;
    accel__note(acc, "the gradient is not finite: step %lld is skipped%s", (long long)opt->steps + 1, rows);
    if (++opt->skipped_in_row >= acc->desc.max_skipped_steps)
        accel__fail(acc, ACCEL_NOT_FINITE, "the gradient was not finite for %d steps in a row%s", opt->skipped_in_row,
                    rows);
}

/* ---- metrics ---- */

struct accel_metrics {
    accel__object object;
    int classes;
    bool multi_label;
    int64_t examples, exact; /* exact: multi-label, those with all labels right */
    int64_t *count;          /* [label, predicted]; multi-label: [label, ACCEL__LABEL_COUNTERS] */
    size_t counters;
};

/* Examples with a label, with a prediction, and with both, of one class. */
typedef struct accel__class_count {
    int64_t label, predicted, both;
} accel__class_count;

enum { ACCEL__LABEL_COUNTERS = 3 }; /* of each label in multi-label metrics: the fields of an accel__class_count */

static void accel__metrics_destroy(accel__object *object) {
    accel__free(object->acc, ((accel_metrics *)(void *)object)->count);
}

static accel_metrics *accel__metrics_make(accel_t *acc, int classes, bool multi_label, const char *where) {
    if (accel_failed(acc)) return NULL;
    if (classes < 1 || classes > 1 << 14) {
        accel__fail(acc, ACCEL_BAD_ARGUMENT, "%s: %d classes, expected 1 to %d", where, classes, 1 << 14);
        return NULL;
    }
    accel_metrics *metrics =
        (accel_metrics *)accel__object_create(acc, ACCEL__METRICS, sizeof *metrics, accel__metrics_destroy);
    if (!metrics) return NULL;
    metrics->classes = classes;
    metrics->multi_label = multi_label;
    metrics->counters = (size_t)classes * (multi_label ? ACCEL__LABEL_COUNTERS : (size_t)classes);
    metrics->count = (int64_t *)accel__alloc_zero(acc, metrics->counters * sizeof *metrics->count);
    if (metrics->count) return metrics;
    accel__object_destroy(&metrics->object);
    return NULL;
}

ACCEL_API accel_metrics *accel_metrics_create(accel_t *acc, int classes) {
    return accel__metrics_make(acc, classes, false, "accel_metrics_create");
}

ACCEL_API accel_metrics *accel_metrics_create_multi_label(accel_t *acc, int labels) {
    return accel__metrics_make(acc, labels, true, "accel_metrics_create_multi_label");
}

/* Logits that fit the metrics; NULL, with an error, where they do not. */
static accel__slot *accel__metrics_logits(const accel_metrics *metrics, accel_tensor logits, bool multi_label,
                                          const void *expected, int n, const char *where) {
    accel_t *acc = metrics ? metrics->object.acc : NULL;
    accel__slot *slot = accel__operand_type(acc, logits, ACCEL_FLOAT32, where);
    if (!slot) return NULL;
    if (metrics->multi_label != multi_label) {
        accel__fail(acc, ACCEL_BAD_STATE, "%s: these metrics are for %s", where,
                    multi_label ? "one label of each example" : "several labels of each example");
        return NULL;
    }
    if (expected && slot->shape.rank == 2 && slot->shape.dim[0] == n && slot->shape.dim[1] == metrics->classes)
        return slot;
    accel__fail(acc, ACCEL_BAD_SHAPE, "%s: logits [%d, %d] and %s are expected, the shape is %s", where, n,
                metrics->classes, multi_label ? "targets" : "labels", accel__shape_text(slot->shape).text);
    return NULL;
}

ACCEL_API bool accel_metrics_add(accel_metrics *metrics, accel_tensor logits, const int32_t *labels, int n) {
    accel__slot *slot = accel__metrics_logits(metrics, logits, false, labels, n, "accel_metrics_add");
    if (!slot) return false;
    accel_t *acc = metrics->object.acc;
    int classes = metrics->classes;
    for (int i = 0; i < n; i++)
        if (labels[i] != ACCEL_IGNORE && (labels[i] < 0 || labels[i] >= classes))
            return accel__fail(acc, ACCEL_BAD_DATA, "accel_metrics_add: label %d in row %d; there are labels 0 .. %d",
                               labels[i], i, classes - 1);
    float *values = (float *)accel__staging(acc, (size_t)slot->count * sizeof *values);
    if (!values || !accel_read(logits, values, slot->count)) return false;
    for (int i = 0; i < n; i++, values += classes) {
        int best = 0;
        for (int c = 1; c < classes; c++)
            if (values[c] > values[best]) best = c;
        if (labels[i] == ACCEL_IGNORE) continue;
        metrics->count[(int64_t)labels[i] * classes + best]++;
        metrics->examples++;
    }
    return true;
}

ACCEL_API bool accel_metrics_add_multi_label(accel_metrics *metrics, accel_tensor logits, const float *targets, int n) {
    accel__slot *slot = accel__metrics_logits(metrics, logits, true, targets, n, "accel_metrics_add_multi_label");
    if (!slot) return false;
    accel_t *acc = metrics->object.acc;
    int classes = metrics->classes;
    for (int64_t i = 0; i < slot->count; i++)
        if (targets[i] != 0 && targets[i] != 1)
            return accel__fail(acc, ACCEL_BAD_DATA,
                               "accel_metrics_add_multi_label: target %g in row %d, label %d; expected 0 or 1",
                               (double)targets[i], (int)(i / classes), (int)(i % classes));
    float *values = (float *)accel__staging(acc, (size_t)slot->count * sizeof *values);
    if (!values || !accel_read(logits, values, slot->count)) return false;
    for (int i = 0; i < n; i++, values += classes, targets += classes) {
        int right = 0;
        for (int c = 0; c < classes; c++) {
            int64_t *count = metrics->count + (int64_t)ACCEL__LABEL_COUNTERS * c;
            bool label = targets[c] != 0, predicted = values[c] > 0;
            count[0] += label;
            count[1] += predicted;
            count[2] += label && predicted;
            right += label == predicted;
        }
        metrics->examples++;
        metrics->exact += right == classes;
    }
    return true;
}

ACCEL_API void accel_metrics_reset(accel_metrics *metrics) {
    if (!metrics) return;
    memset(metrics->count, 0, metrics->counters * sizeof *metrics->count);
    metrics->examples = metrics->exact = 0;
}

ACCEL_API int64_t accel_metrics_examples(const accel_metrics *metrics) { return metrics ? metrics->examples : 0; }

static bool accel__metrics_has(const accel_metrics *metrics, int label) {
    return metrics && label >= 0 && label < metrics->classes;
}

ACCEL_API int64_t accel_metrics_count(const accel_metrics *metrics, int label, int predicted) {
    bool inside = accel__metrics_has(metrics, label) && accel__metrics_has(metrics, predicted) && !metrics->multi_label;
    return inside ? metrics->count[(int64_t)label * metrics->classes + predicted] : 0;
}

static accel__class_count accel__class_counts(const accel_metrics *metrics, int c) {
    const int64_t *count = metrics->count + (int64_t)ACCEL__LABEL_COUNTERS * c;
    if (metrics->multi_label) return (accel__class_count){count[0], count[1], count[2]};
    accel__class_count n = {0, 0, accel_metrics_count(metrics, c, c)};
    for (int i = 0; i < metrics->classes; i++) {
        n.label += accel_metrics_count(metrics, c, i);
        n.predicted += accel_metrics_count(metrics, i, c);
    }
    return n;
}

/* Over all classes: examples, hits, the largest label count, and the sums of products that Matthews' correlation needs.
   Zeros for multi-label metrics. */
typedef struct accel__totals {
    double n, hits, largest, label_predicted, label_label, predicted_predicted;
} accel__totals;

static accel__totals accel__metrics_totals(const accel_metrics *metrics) {
    accel__totals t = {0, 0, 0, 0, 0, 0};
    for (int c = 0; metrics && !metrics->multi_label && c < metrics->classes; c++) {
        accel__class_count k = accel__class_counts(metrics, c);
        double label = (double)k.label, predicted = (double)k.predicted;
        t.n += label;
        t.hits += (double)k.both;
        if (label > t.largest) t.largest = label;
        t.label_predicted += label * predicted;
        t.label_label += label * label;
        t.predicted_predicted += predicted * predicted;
    }
    return t;
}

static double accel__quotient(double part, double whole) { return whole > 0 ? part / whole : 0; }

ACCEL_API double accel_accuracy(const accel_metrics *metrics) {
    if (metrics && metrics->multi_label) return accel__quotient((double)metrics->exact, (double)metrics->examples);
    accel__totals t = accel__metrics_totals(metrics);
    return accel__quotient(t.hits, t.n);
}

ACCEL_API double accel_majority(const accel_metrics *metrics) {
    accel__totals t = accel__metrics_totals(metrics);
    return accel__quotient(t.largest, t.n);
}

static accel_prf accel__prf_of(accel__class_count k) {
    double label = (double)k.label, predicted = (double)k.predicted, both = (double)k.both;
    return (accel_prf){accel__quotient(both, predicted), accel__quotient(both, label),
                       accel__quotient(2 * both, label + predicted), k.label, k.predicted, k.both};
}

ACCEL_API accel_prf accel_class_prf(const accel_metrics *metrics, int label) {
    if (!accel__metrics_has(metrics, label)) return (accel_prf){0, 0, 0, 0, 0, 0};
    return accel__prf_of(accel__class_counts(metrics, label));
}

/* Mean of the classes' values, each class with the weight 1 or with that of its examples. */
static accel_prf accel__mean_prf(const accel_metrics *metrics, accel__class_count sum, bool weighted) {
    accel_prf mean = {0, 0, 0, sum.label, sum.predicted, sum.both};
    double whole = weighted ? (double)sum.label : metrics->classes;
    for (int c = 0; c < metrics->classes; c++) {
        accel_prf one = accel_class_prf(metrics, c);
        double weight = weighted ? (double)one.labelled : 1;
        mean.precision += weight * one.precision;
        mean.recall += weight * one.recall;
        mean.f1 += weight * one.f1;
    }
    mean.precision = accel__quotient(mean.precision, whole);
    mean.recall = accel__quotient(mean.recall, whole);
    mean.f1 = accel__quotient(mean.f1, whole);
    return mean;
}

ACCEL_API accel_prf accel_average_prf(const accel_metrics *metrics, accel_average average) {
    accel_prf none = {0, 0, 0, 0, 0, 0};
    if (!metrics) return none;
    if (average == ACCEL_AVERAGE_BINARY) {
        if (metrics->classes == 2 && !metrics->multi_label) return accel_class_prf(metrics, 1);
        accel__fail(metrics->object.acc, ACCEL_BAD_ARGUMENT,
                    "accel_average_prf: the binary average is for two classes, not for %d %s", metrics->classes,
                    metrics->multi_label ? "labels" : metrics->classes == 1 ? "class" : "classes");
        return none;
    }
    accel__class_count sum = {0, 0, 0};
    for (int c = 0; c < metrics->classes; c++) {
        accel__class_count k = accel__class_counts(metrics, c);
        sum.label += k.label;
        sum.predicted += k.predicted;
        sum.both += k.both;
    }
    if (average == ACCEL_AVERAGE_MICRO) return accel__prf_of(sum);
    if (average == ACCEL_AVERAGE_MACRO || average == ACCEL_AVERAGE_WEIGHTED)
        return accel__mean_prf(metrics, sum, average == ACCEL_AVERAGE_WEIGHTED);
    accel__fail(metrics->object.acc, ACCEL_BAD_ARGUMENT, "accel_average_prf: there is no average %d", (int)average);
    return none;
}

ACCEL_API double accel_f1(const accel_metrics *metrics) {
    bool binary = metrics && metrics->classes == 2 && !metrics->multi_label;
    return accel_average_prf(metrics, binary ? ACCEL_AVERAGE_BINARY : ACCEL_AVERAGE_MACRO).f1;
}

/* The multi-class R_k statistic (Gorodkin 2004; scikit-learn's matthews_corrcoef); 0 where it is not defined. */
ACCEL_API double accel_matthews(const accel_metrics *metrics) {
    accel__totals t = accel__metrics_totals(metrics);
    double square = (t.n * t.n - t.predicted_predicted) * (t.n * t.n - t.label_label);
    return square > 0 ? (t.hits * t.n - t.label_predicted) / sqrt(square) : 0;
}

/* ---- metrics of scores ---- */

struct accel_scores {
    accel__object object;
    float *predicted, *target;
    int64_t count, room;
};

static void accel__scores_destroy(accel__object *object) {
    accel_scores *scores = (accel_scores *)(void *)object;
    accel__free(object->acc, scores->predicted);
    accel__free(object->acc, scores->target);
}

ACCEL_API accel_scores *accel_scores_create(accel_t *acc) {
    return (accel_scores *)accel__object_create(acc, ACCEL__SCORES, sizeof(accel_scores), accel__scores_destroy);
}

static bool accel__scores_reserve(accel_scores *scores, int64_t need) {
    if (need <= scores->room) return true;
    accel_t *acc = scores->object.acc;
    int64_t room = scores->room * 2 > need ? scores->room * 2 : need < 256 ? 256 : need;
    float *predicted = (float *)accel__realloc(acc, scores->predicted, (size_t)room * sizeof *predicted);
    if (!predicted) return false;
    scores->predicted = predicted;
    float *target = (float *)accel__realloc(acc, scores->target, (size_t)room * sizeof *target);
    if (!target) return false;
    scores->target = target;
    scores->room = room;
    return true;
}

ACCEL_API bool accel_scores_add(accel_scores *scores, accel_tensor predicted, const float *targets, int n) {
    accel_t *acc = scores ? scores->object.acc : NULL;
    accel__slot *slot = accel__operand_type(acc, predicted, ACCEL_FLOAT32, "accel_scores_add");
    if (!slot) return false;
    if (!targets || slot->count != n)
        return accel__fail(acc, ACCEL_BAD_SHAPE,
                           "accel_scores_add: %d elements and targets are expected, the shape is %s", n,
                           accel__shape_text(slot->shape).text);
    for (int i = 0; i < n; i++)
        if (!isfinite(targets[i]))
            return accel__fail(acc, ACCEL_BAD_DATA, "accel_scores_add: target %g in row %d is not finite",
                               (double)targets[i], i);
    if (!accel__scores_reserve(scores, scores->count + n)) return false;
    if (!accel_read(predicted, scores->predicted + scores->count, n)) return false;
    memcpy(scores->target + scores->count, targets, (size_t)n * sizeof *targets);
    scores->count += n;
    return true;
}

ACCEL_API void accel_scores_reset(accel_scores *scores) {
    if (scores) scores->count = 0;
}

ACCEL_API int64_t accel_scores_count(const accel_scores *scores) { return scores ? scores->count : 0; }

/* Takes the means off x and y, and gives Pearson's correlation. */
static double accel__correlation(double *x, double *y, int64_t n) {
    double mean_x = 0, mean_y = 0, xx = 0, yy = 0, xy = 0;
    for (int64_t i = 0; i < n; i++) mean_x += x[i], mean_y += y[i];
    mean_x /= (double)n, mean_y /= (double)n;
    for (int64_t i = 0; i < n; i++) {
        x[i] -= mean_x, y[i] -= mean_y;
        xx += x[i] * x[i], yy += y[i] * y[i], xy += x[i] * y[i];
    }
    if (xx == 0 || yy == 0) return 0;
    double r = xy / (sqrt(xx) * sqrt(yy));
    return r > 1 ? 1 : r < -1 ? -1 : r;
}

typedef struct accel__ranked {
    float value;
    int64_t index;
} accel__ranked;

static int accel__by_value(const void *a, const void *b) {
    float x = ((const accel__ranked *)a)->value, y = ((const accel__ranked *)b)->value;
    return (x > y) - (x < y);
}

/* Ranks from 1; equal values have the mean of theirs. */
static void accel__ranks(const float *values, int64_t n, accel__ranked *order, double *rank) {
    for (int64_t i = 0; i < n; i++) order[i] = (accel__ranked){values[i], i};
    qsort(order, (size_t)n, sizeof *order, accel__by_value);
    for (int64_t first = 0, end; first < n; first = end) {
        for (end = first + 1; end < n && order[end].value == order[first].value;) end++;
        for (int64_t i = first; i < end; i++) rank[order[i].index] = 0.5 * (double)(first + 1 + end);
    }
}

static double accel__scores_correlation(const accel_scores *scores, bool ranks) {
    int64_t n = scores ? scores->count : 0;
    if (!n) return 0;
    for (int64_t i = 0; i < n; i++)
        if (isnan(scores->predicted[i])) return NAN;
    accel_t *acc = scores->object.acc;
    double *x = (double *)accel__alloc(acc, (size_t)n * 2 * sizeof *x), *y = x ? x + n : NULL, r = NAN;
    accel__ranked *order = x && ranks ? (accel__ranked *)accel__alloc(acc, (size_t)n * sizeof *order) : NULL;
    if (order) {
        accel__ranks(scores->predicted, n, order, x);
        accel__ranks(scores->target, n, order, y);
        r = accel__correlation(x, y, n);
    } else if (x && !ranks) {
        for (int64_t i = 0; i < n; i++) x[i] = (double)scores->predicted[i], y[i] = (double)scores->target[i];
        r = accel__correlation(x, y, n);
    }
    accel__free(acc, order);
    accel__free(acc, x);
    return r;
}

ACCEL_API double accel_pearson(const accel_scores *scores) { return accel__scores_correlation(scores, false); }
ACCEL_API double accel_spearman(const accel_scores *scores) { return accel__scores_correlation(scores, true); }

ACCEL_API double accel_mean_squared_error(const accel_scores *scores) {
    double sum = 0;
    int64_t n = scores ? scores->count : 0;
    for (int64_t i = 0; i < n; i++) {
        double error = (double)scores->predicted[i] - (double)scores->target[i];
        sum += error * error;
    }
    return accel__quotient(sum, (double)n);
}


/* ---- gradient check ---- */

typedef struct accel__check {
    accel_t *acc;
    accel_tensor (*fn)(accel_t *acc, const accel_tensor *inputs, void *user);
    const accel_tensor *inputs;
    void *user;
    uint64_t key;
} accel__check;

/* fn's result, reduced to a number by random weights unless it is a scalar. */
static double accel__check_value(const accel__check *check) {
    accel_begin(check->acc);
    accel__slot *y = accel__get_float(check->fn(check->acc, check->inputs, check->user), "accel_gradient_check");
    if (!y) return NAN;
    if (y->count == 1) return (double)accel__data(y)[0];
    double sum = 0;
    for (int64_t i = 0; i < y->count; i++)
        sum += (double)accel__data(y)[i] * (float)accel__uniform(check->key, (uint64_t)i);
    return sum;
}

static void accel__check_backward(const accel__check *check) {
    accel_t *acc = check->acc;
    accel_begin(acc);
    accel_tensor y = check->fn(acc, check->inputs, check->user);
    int64_t count = accel_count(y);
    if (count > 1) {
        accel_tensor weights = accel_full(acc, accel_shape_of(y), 0);
        float *values = accel__values(weights);
        for (int64_t i = 0; values && i < count; i++) values[i] = (float)accel__uniform(check->key, (uint64_t)i);
        y = accel_sum(accel_mul(y, weights));
    }
    accel_backward(acc, y);
}

/* (8 (f(x+h) - f(x-h)) - (f(x+2h) - f(x-2h))) / 12h for every element of an input. */
static void accel__check_differences(const accel__check *check, accel_tensor x, float eps, double *derivative) {
    int64_t count = accel_count(x);
    float *values = accel__values(x);
    for (int64_t i = 0; values && i < count && !accel_failed(check->acc); i++) {
        float kept = values[i];
        double f[4];
        static const int at[4] = {1, -1, 2, -2};
        for (int k = 0; k < 4; k++) {
            values[i] = kept + (float)at[k] * eps;
            f[k] = accel__check_value(check);
        }
        values[i] = kept;
        derivative[i] = (8 * (f[0] - f[1]) - (f[2] - f[3])) / (12 * (double)eps);
    }
}

static double accel__check_compare(accel_t *acc, accel_tensor x, int input, const double *derivative, float *gradient,
                                   double tolerance) {
    int64_t count = accel_count(x), worst = 0;
    double largest = 1e-2, error = 0;
    if (!accel_grad(x, gradient, count)) return 0;
    for (int64_t i = 0; i < count; i++) {
        if (fabs(derivative[i]) > largest) largest = fabs(derivative[i]);
        double difference = fabs(derivative[i] - (double)gradient[i]);
        if (difference > error || difference != difference) error = difference, worst = i;
    }
    if (!(error / largest <= tolerance))
        accel__fail(acc, ACCEL_CALLBACK,
                    "accel_gradient_check: input %d, element %lld: the gradient is %g, differences give %g", input,
                    (long long)worst, (double)gradient[worst], derivative[worst]);
    return error / largest;
}

ACCEL_API float accel_gradient_check(accel_t *acc,
                                     accel_tensor (*fn)(accel_t *acc, const accel_tensor *inputs, void *user),
                                     const accel_tensor *inputs, int count, void *user,
                                     const accel_gradient_check_desc *desc) {
    if (accel_failed(acc)) return NAN;
    if (!fn || (count && !inputs)) {
        accel__fail(acc, ACCEL_BAD_ARGUMENT, "accel_gradient_check: a function and its inputs are needed");
        return NAN;
    }
    accel_gradient_check_desc d = desc ? *desc : (accel_gradient_check_desc){0};
    accel__check check = {acc, fn, inputs, user, accel__mix(d.seed, accel__hash_text("gradient check"))};
    int64_t total = 0, done = 0, largest = 1;
    for (int i = 0; i < count; i++) {
        int64_t n = accel_count(inputs[i]);
        total += n;
        if (n > largest) largest = n;
        accel_set_requires_grad(inputs[i], true);
        accel__slot *slot = accel__find(inputs[i]);
        if (slot && slot->param) accel__window_reset(accel__param_window(slot->param));
    }
    double *derivative = (double *)accel__alloc(acc, (size_t)total * sizeof *derivative), error = 0;
    float *gradient = (float *)accel__alloc(acc, (size_t)largest * sizeof *gradient);
    for (int i = 0; i < count && !accel_failed(acc); done += accel_count(inputs[i]), i++)
        accel__check_differences(&check, inputs[i], d.eps > 0 ? d.eps : 0.02f, derivative + done);
    accel__check_backward(&check);
    done = 0;
    for (int i = 0; i < count && !accel_failed(acc); done += accel_count(inputs[i]), i++) {
        double worst = accel__check_compare(acc, inputs[i], i, derivative + done, gradient,
                                            d.tolerance > 0 ? (double)d.tolerance : 5e-3);
        if (!(worst <= error)) error = worst;
    }
    accel__free(acc, derivative);
    accel__free(acc, gradient);
    return (float)error;
}

#endif /* ACCEL_IMPLEMENTATION */
