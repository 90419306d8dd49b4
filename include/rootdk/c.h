/* rootdk from C, or from any language that can call C. The same flow as the C++ headers, where every term is explained:
 * tensors, a problem, forward or backward, statistics.
 *
 * Every function that returns int returns ROOTDK_OK or another rootdk_status and never lets an exception through; on an
 * error nothing has been written to any output, and rootdk_last_error() says which argument was wrong, and how.
 *
 * Structs are filled with zeros (or, for a problem, by rootdk_problem_init) before use; zero means absent. `reserved`
 * space must stay zero: fields of later versions come from there, so structs keep their size, and an older library
 * refuses what it does not know instead of ignoring it.
 *
 * Nothing passed is owned or kept. Threads are OpenMP's: OMP_NUM_THREADS or omp_set_num_threads. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "rootdk/export.h"

#ifdef __cplusplus
extern "C" {
#endif

enum rootdk_status {
  ROOTDK_OK = 0,
  ROOTDK_INVALID_ARGUMENT = 1, /* an argument is wrong on its own or does not fit the others */
  ROOTDK_OUT_OF_MEMORY = 2,
  ROOTDK_INTERNAL = 3 /* a bug in rootdk; please report it */
};

/* Enumerations travel as int32_t: their size is then the same for every compiler, and a wrong value is just a number.
 */
typedef int32_t rootdk_dtype;
enum { ROOTDK_F32 = 0, ROOTDK_F16 = 1, ROOTDK_BF16 = 2, ROOTDK_F64 = 3, ROOTDK_BOOL = 4 /* one byte */ };

typedef int32_t rootdk_device;
enum { ROOTDK_CPU = 0, ROOTDK_CUDA = 1 };

typedef int32_t rootdk_scale_rule;
enum {
  ROOTDK_SCALE_NONE = 0,        /* c = 1 */
  ROOTDK_SCALE_INV_SQRT_DK = 1, /* c = 1/sqrt(d_k) */
  ROOTDK_SCALE_INV_DK = 2,      /* c = 1/d_k */
  ROOTDK_SCALE_CONSTANT = 3,    /* c = scale_value */
  ROOTDK_SCALE_PER_HEAD = 4     /* c = scale_per_head[query head] */
};

typedef int32_t rootdk_diagonal;
enum {
  ROOTDK_BOTTOM_RIGHT = 0, /* the last query stands on the last key */
  ROOTDK_TOP_LEFT = 1,     /* the first query stands on the first key */
  ROOTDK_LAST_KEY = 2,     /* the last query (of query_lengths[batch]) stands on the last of key_lengths[batch] keys */
  ROOTDK_AT = 3            /* query i stands on key i + diagonal_offset */
};

typedef int32_t rootdk_stats_level;
enum { ROOTDK_STATS_NONE = 0, ROOTDK_STATS_BASIC = 1, ROOTDK_STATS_FULL = 2 };

/* Bits of rootdk_problem.stats_flags: StatsOptions of rootdk/stats.h. */
enum { ROOTDK_STATS_NO_CAUSES = 1, ROOTDK_STATS_GAPS = 2, ROOTDK_STATS_KEY_MASS = 4, ROOTDK_STATS_BY_KEYS = 8 };

enum { ROOTDK_GAP_BINS = 320 };

typedef int32_t rootdk_pass;
enum { ROOTDK_FORWARD = 0, ROOTDK_BACKWARD = 1 };

#define ROOTDK_UNBOUNDED INT64_MAX

/* A view of [batch, heads, length, dim]. Inputs are only read, whatever the type of `data` allows. */
typedef struct rootdk_tensor {
  void* data; /* NULL: absent */
  rootdk_dtype dtype;
  rootdk_device device;
  int64_t shape[4];
  int64_t strides[4]; /* in elements */
} rootdk_tensor;

/* Arrays with their length, so that a wrong one is an error and not a crash. */
typedef struct rootdk_floats {
  const float* data; /* NULL: absent */
  int64_t count;
} rootdk_floats;
typedef struct rootdk_mutable_floats {
  float* data; /* NULL: absent */
  int64_t count;
} rootdk_mutable_floats;
typedef struct rootdk_int64s {
  const int64_t* data; /* NULL: absent */
  int64_t count;
} rootdk_int64s;
typedef struct rootdk_int32s {
  const int32_t* data; /* NULL: absent */
  int64_t count;
} rootdk_int32s;

/* Your own function of the score: all four, or none. They must be pure, return normally, and may be called from several
 * threads at once. */
typedef struct rootdk_transform {
  const void* context;
  void (*apply_f32)(const void* context, float* s, size_t n); /* s = f(s) */
  void (*apply_f64)(const void* context, double* s, size_t n);
  void (*chain_f32)(const void* context, float* s, float* slope, size_t n); /* slope *= f'(s), then s = f(s) */
  void (*chain_f64)(const void* context, double* s, double* slope, size_t n);
} rootdk_transform;

/* In 64-bit words: a mask that is added takes two out of those reserved. */
enum { ROOTDK_PROBLEM_SPARE = 24 };

/* What to compute; rootdk_problem_init gives the defaults. Per-head arrays have one entry per query head. */
typedef struct rootdk_problem {
  int32_t version;              /* set by rootdk_problem_init; a problem without it is refused */
  rootdk_scale_rule scale_rule; /* ROOTDK_SCALE_INV_SQRT_DK */
  double scale_value;
  rootdk_floats scale_per_head;

  int32_t has_soft_cap; /* 0 */
  float soft_cap;       /* cap * tanh(s / cap) */
  rootdk_transform transform;

  int32_t causal;                  /* 0 */
  rootdk_diagonal diagonal;        /* ROOTDK_BOTTOM_RIGHT */
  int64_t diagonal_offset;         /* for ROOTDK_AT */
  int64_t window_left;             /* ROOTDK_UNBOUNDED */
  int64_t window_right;            /* ROOTDK_UNBOUNDED */
  rootdk_int64s document_q_starts; /* documents + 1 entries; both or none */
  rootdk_int64s document_kv_starts;
  rootdk_tensor allowed; /* ROOTDK_BOOL, 0 hides; axes may be 1 */
  rootdk_tensor bias;    /* added to the score; axes may be 1 */
  rootdk_floats alibi_slopes;

  rootdk_floats sink;
  uint64_t dropout_seed;
  float dropout_p; /* 0 */

  rootdk_stats_level stats; /* ROOTDK_STATS_BASIC */

  rootdk_int32s page_table; /* [batch, pages_per_item]; present: k and v are [pages, heads_kv, page_size, dim] */
  int64_t pages_per_item;
  int64_t paged_len_kv;

  const char* scale; /* NULL: scale_rule says; else any scale by name, "sqrt_dk*yarn(4)", in place of scale_rule */
  /* Present: the scale, which must have no length rule of its own, times a * ln n + b; absent gains a are 1, offsets b
   * 0. */
  rootdk_floats ssmax_gains, ssmax_offsets;

  int64_t stats_sample,
      stats_sample_offset; /* full statistics from every so many blocks of 64 queries; 0 and 1: from all */
  int64_t stats_first_query;
  int32_t stats_flags;    /* 0 */
  int32_t document_items; /* 0; batch: document_q_starts and document_kv_starts are [batch, documents + 1] */

  const uint64_t* dropout_device_seed; /* rootdk_cuda_* only: device memory that holds the seed when the kernels run, in
                                          place of dropout_seed */

  /* One entry per batch item each: key_starts, key_lengths, query_lengths; rootdk/masks.def says what they hide. */
#define ROOTDK_PER_ITEM(name, axis, words, doc) rootdk_int64s name;
#include "rootdk/masks.def"
  uint64_t reserved[ROOTDK_PROBLEM_SPARE
#define ROOTDK_PER_ITEM(name, axis, words, doc) -2
#include "rootdk/masks.def"
  ];
} rootdk_problem;

typedef struct rootdk_inputs {
  rootdk_tensor q, k, v;
  uint64_t reserved[8];
} rootdk_inputs;

/* In 64-bit words: a statistic that is added takes one out of those reserved. */
enum { ROOTDK_HEAD_STATS_WORDS = 96 };

/* One head of one batch item: `int64_t name` or `double name` for each ROOTDK_STATISTIC of rootdk/statistics.def, which
 * says what it is. What is not known is NaN; what belongs to a higher level than the problem's is zero. */
typedef struct rootdk_head_stats {
#define ROOTDK_TYPE_whole int64_t
#define ROOTDK_TYPE_real double
#define ROOTDK_STATISTIC(level, type, name, value, merges, doc) ROOTDK_TYPE_##type name;
#include "rootdk/statistics.def"
#undef ROOTDK_TYPE_whole
#undef ROOTDK_TYPE_real
  uint64_t reserved[ROOTDK_HEAD_STATS_WORDS
#define ROOTDK_STATISTIC(level, type, name, value, merges, doc) -1
#include "rootdk/statistics.def"
  ]; /* written as zero */
} rootdk_head_stats;

/* Statistics of every row, each optional: f32 (f64 for f64 problems) of [batch, heads_q, len_q, 1]; with
 * ROOTDK_STATS_FULL. Each ROOTDK_FULL_ROW of rootdk/statistics.def. */
typedef struct rootdk_row_tensors {
#define ROOTDK_FULL_ROW(merges, name, value, doc) rootdk_tensor name;
#include "rootdk/statistics.def"
  uint64_t reserved[8];
} rootdk_row_tensors;

/* The statistics of all heads of a call, whole, so that they merge. rootdk_stats_free ends them. */
typedef struct rootdk_stats rootdk_stats;

typedef struct rootdk_outputs {
  rootdk_tensor o;
  rootdk_tensor lse; /* optional; backward wants it */
#define ROOTDK_BASIC_ROW(name, doc) rootdk_tensor row_##name;
#include "rootdk/statistics.def"  /* row_raw_max, row_score_max, row_p_max: optional */
  rootdk_head_stats* head_stats;  /* optional, [batch][query head] */
  int64_t head_stats_count;       /* batch * heads_q */
  rootdk_tensor key_mass;         /* with ROOTDK_STATS_KEY_MASS: [batch, heads_q, len_kv, 1] */
  int64_t* gaps;                  /* optional, with ROOTDK_STATS_GAPS: [batch][query head][ROOTDK_GAP_BINS] */
  int64_t gaps_count;             /* batch * heads_q * ROOTDK_GAP_BINS */
  const rootdk_row_tensors* rows; /* optional, with ROOTDK_STATS_FULL */
  rootdk_stats** stats;           /* optional: where to put new statistics, with a level above ROOTDK_STATS_NONE */
  uint64_t reserved[6];
} rootdk_outputs;

typedef struct rootdk_backward_inputs {
  rootdk_tensor q, k, v;
  rootdk_tensor o, lse; /* as forward returned them */
  rootdk_tensor d_o;
  rootdk_tensor d_lse; /* optional */
  uint64_t reserved[8];
} rootdk_backward_inputs;

/* One head of one batch item: each ROOTDK_GRADIENT of rootdk/statistics.def. */
typedef struct rootdk_head_gradients {
#define ROOTDK_GRADIENT(sign, name, doc) double name;
#include "rootdk/statistics.def"
  uint64_t reserved[3]; /* written as zero */
} rootdk_head_gradients;

/* Each is optional; what is absent is not computed. */
typedef struct rootdk_gradients {
  rootdk_tensor d_q, d_k, d_v;
  rootdk_tensor d_bias;
  rootdk_mutable_floats d_scale, d_sink; /* one per query head */
  rootdk_mutable_floats d_ssmax_gains, d_ssmax_offsets;
  rootdk_head_gradients* head_stats; /* optional, with ROOTDK_STATS_FULL: [batch][query head] */
  int64_t head_stats_count;          /* batch * heads_q */
  uint64_t reserved[4];
} rootdk_gradients;

/* A view of row-major memory on the CPU. */
ROOTDK_API rootdk_tensor rootdk_row_major(const void* data, rootdk_dtype dtype, int64_t batch, int64_t heads,
                                          int64_t length, int64_t dim);

ROOTDK_API void rootdk_problem_init(rootdk_problem* problem);

/* A NULL problem is the default one: causal off, c = 1/sqrt(d_k).
 * With workspace NULL and workspace_size 0 memory is allocated; else at least what rootdk_workspace_size says for the
 * same problem, inputs and number of threads, at any alignment. */
ROOTDK_API int rootdk_forward(const rootdk_problem* problem, const rootdk_inputs* inputs, const rootdk_outputs* outputs,
                              void* workspace, size_t workspace_size);
ROOTDK_API int rootdk_backward(const rootdk_problem* problem, const rootdk_backward_inputs* inputs,
                               const rootdk_gradients* gradients, void* workspace, size_t workspace_size);

/* Both passes ask with q, k and v. */
ROOTDK_API int rootdk_workspace_size(const rootdk_problem* problem, const rootdk_inputs* inputs, rootdk_pass pass,
                                     size_t* size);

/* How the problem will be computed, in words: at most capacity bytes with the closing NUL; *needed is what all of it
 * takes. Either of buffer (with capacity 0) and needed may be NULL. */
ROOTDK_API int rootdk_explain(const rootdk_problem* problem, const rootdk_inputs* inputs, rootdk_pass pass,
                              char* buffer, size_t capacity, size_t* needed);

/* What structural masks (causal, window, documents, one number per item) leave each query, in words of
 * [batch][len_q][4]: the first key that it sees, one past the last, where it stands among the keys, and 0 if it is
 * padding. */
ROOTDK_API int rootdk_visible_keys(const rootdk_problem* problem, int64_t batch, int64_t len_q, int64_t len_kv,
                                   int64_t* ranges, int64_t count);

/* One entry for each head, in the order [batch][query head]; heads and gaps (of statistics with ROOTDK_STATS_GAPS) may
 * be NULL, with a count of 0. */
ROOTDK_API int rootdk_stats_read(const rootdk_stats* stats, rootdk_head_stats* heads, int64_t heads_count,
                                 int64_t* gaps, int64_t gaps_count);

/* batch and heads of the statistics; either may be NULL. */
ROOTDK_API int rootdk_stats_shape(const rootdk_stats* stats, int64_t* batch, int64_t* heads);

/* New statistics into *merged: of both, head by head, as if one pass had seen all rows; and of one batch item that
 * stands for all. */
ROOTDK_API int rootdk_stats_merge(const rootdk_stats* a, const rootdk_stats* b, rootdk_stats** merged);
ROOTDK_API int rootdk_stats_over_batch(const rootdk_stats* stats, rootdk_stats** merged);

/* Full statistics from those of rows, on the CPU: lse, row_raw_max, row_score_max, row_p_max and rows of `outputs`; the
 * rest is absent. */
ROOTDK_API int rootdk_stats_of_rows(const rootdk_outputs* outputs, rootdk_stats** stats);

ROOTDK_API void rootdk_stats_free(rootdk_stats* stats); /* NULL is allowed */

/* Attention over keys A and over keys B into attention over both, in o and lse. */
ROOTDK_API int rootdk_merge(const rootdk_tensor* o, const rootdk_tensor* lse, const rootdk_tensor* other_o,
                            const rootdk_tensor* other_lse);

/* On a GPU: rootdk/cuda.h. Tensors have ROOTDK_CUDA and lie on the current device of this thread, and so do the floats
 * of rootdk_gradients; arrays of the problem stay on the host and are read before the call returns. A call checks,
 * enqueues on `stream` (a cudaStream_t; NULL is the default stream) and returns; it neither allocates device memory nor
 * waits, and a stream capture may record it. The workspace is device memory of at least what rootdk_cuda_workspace_size
 * says, at any alignment, and belongs to the call until the stream has passed it. Statistics stay in it: head_stats,
 * gaps and stats of rootdk_outputs and head_stats of rootdk_gradients are refused here. */

/* Why there is no GPU to use; "" if there is one. Valid until this thread's next call. */
ROOTDK_API const char* rootdk_cuda_missing(void);

/* Whether the kernel that will run is a fast one: *fast is 1 or 0. Where it is not, the first line of
 * rootdk_cuda_explain says why, and what to change. */
ROOTDK_API int rootdk_cuda_is_fast(const rootdk_problem* problem, const rootdk_inputs* inputs, rootdk_pass pass,
                                   int32_t* fast);

ROOTDK_API int rootdk_cuda_workspace_size(const rootdk_problem* problem, const rootdk_inputs* inputs, rootdk_pass pass,
                                          size_t* size);
ROOTDK_API int rootdk_cuda_explain(const rootdk_problem* problem, const rootdk_inputs* inputs, rootdk_pass pass,
                                   char* buffer, size_t capacity, size_t* needed);
ROOTDK_API int rootdk_cuda_forward(const rootdk_problem* problem, const rootdk_inputs* inputs,
                                   const rootdk_outputs* outputs, void* workspace, size_t workspace_size, void* stream);
ROOTDK_API int rootdk_cuda_backward(const rootdk_problem* problem, const rootdk_backward_inputs* inputs,
                                    const rootdk_gradients* gradients, void* workspace, size_t workspace_size,
                                    void* stream);

/* What the last call in this workspace learned; problem and inputs are those of that call, whose tensors are not looked
 * at again. These wait for the stream, which may be another than the call's once the call is done. Those of gradients
 * need ROOTDK_STATS_FULL and batch * heads_q entries. */
ROOTDK_API int rootdk_cuda_read_stats(const rootdk_problem* problem, const rootdk_inputs* inputs, void* workspace,
                                      size_t workspace_size, void* stream, rootdk_stats** stats);
ROOTDK_API int rootdk_cuda_read_gradient_stats(const rootdk_problem* problem, const rootdk_inputs* inputs,
                                               const void* workspace, size_t workspace_size, void* stream,
                                               rootdk_head_gradients* heads, int64_t heads_count);

/* Why the last call on this thread failed; "" if it did not. Valid until this thread's next call. */
ROOTDK_API const char* rootdk_last_error(void);

/* "0.2.0": the library's, at run time; rootdk/version.h has that of the headers. */
ROOTDK_API const char* rootdk_version(void);

#ifdef __cplusplus
}
#endif
