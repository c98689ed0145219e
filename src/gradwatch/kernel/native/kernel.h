/* What the parts of the kernel share: tensors, what is found in them, and the work of threads. No
 * Python here. */
#ifndef GRADWATCH_KERNEL_H
#define GRADWATCH_KERNEL_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

enum { F32, F64, BF16, F16, DTYPES };
enum { FLOAT_BINS = 277, DOUBLE_BINS = 2098, LOWEST_FLOAT = -149, LOWEST_DOUBLE = -1074 };

/* Elements handled at a time: as floats they stay in the first-level cache between the passes. The
 * structure of blocks is fixed, so a tensor's results never depend on who measures it. */
enum { BLOCK = 4096, PIECE = 64 * BLOCK };

static inline size_t itemsize(int dtype) { return dtype == F64 ? 8 : dtype == F32 ? 4 : 2; }

static inline size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

/* A tensor by address; module.c checks it before anything is read. */
typedef struct {
    const char *data;
    size_t count;
    int dtype;
    size_t rows; /* 0: none */
} Tensor;

typedef struct { size_t n; Tensor *items; } Batch;

/* MOMENTS, UPDATE and ADAM of batch.py. */
typedef struct {
    uint64_t count, zeros, nan, pos_inf, neg_inf, zero_rows;
    double mean, std, skewness, kurtosis, norm, abs_mean, abs_max, min, max;
} Record;

typedef struct {
    double update_norm, before_norm;
    uint64_t changed, lost, with_gradient;
} UpdateRecord;

typedef struct { double ratio_rms, eps_fraction; } AdamRecord;

/* BinTable of batch.py: of each tensor the stretch of bins from its first to its last occupied one,
 * out of `width` bins of which the first is 2^lowest. The negative ones of a tensor, its positive
 * ones, and then the next tensor's lie in `counts`, which has room for them all. */
typedef struct {
    int lowest;
    size_t width;
    double multiplier; /* of the elements, before their bins are looked for */
    int64_t *first_exponents, *sizes;
    uint64_t *counts;
} Bins;

/* What measuring fills; all but the records may be NULL. */
typedef struct {
    Record *records;
    uint8_t *const *touched; /* per tensor: NULL or one byte per row */
    const Bins *bins;
} Outputs;

/* What a step went through, and what is found. Without `before` and `after` there are gradients;
 * `second` comes with gradients, correction, eps and ratios. Batches may lack tensors (count 0). */
typedef struct {
    const Batch *before, *after, *grads, *second;
    const double *correction, *eps;
    UpdateRecord *updates;
    AdamRecord *ratios;
} Steps;

/* One instruction set's functions. */
typedef struct {
    const char *name;
    void (*measure)(const Batch *batch, const Outputs *out);
    void (*step)(const Steps *steps);
    void (*hashes)(const Batch *batch, const int64_t *offsets, uint64_t *out);
    size_t (*nonfinite)(const void *data, size_t n, int dtype, size_t stride);
    /* NaN: there is none, or it is not finite. */
    double (*cosine)(const void *a, const void *b, size_t n, int dtype);
    /* At most a block as doubles: in place, or in the room. */
    const double *(*doubles)(const void *from, size_t n, int dtype, double *room);
} Kernel;

extern const Kernel kernel_base, kernel_avx2, kernel_avx512;

/* The kernels this processor can run, the best first, NULL at the end. */
const Kernel *const *supported_kernels(void);

/* -- sums of parts, joined in double (Pébay) -- */

/* mean, the power sums and `absolute` are in units of 2^exponent, a multiple of 128. Fourth powers
 * of all float32 values fit into double, so the exponent is 0 for all but extreme doubles. */
typedef struct {
    double n, mean, m2, m3, m4, absolute;
    double low, high;
    uint64_t zeros, nan, pos_inf, neg_inf, zero_rows;
    int exponent;
} Sums;

void sums_join(Sums *into, const Sums *part);
void sums_finish(const Sums *sums, uint64_t count, Record *record);

/* Σx² in units of 4^exponent. */
typedef struct { double squares; int exponent; } Norm;

void norm_add(Norm *norm, double squares, int exponent);
double norm_value(const Norm *norm);

/* The multiple of 128 nearest to the exponent of a finite value; 0 for 0. */
int common_exponent(double largest);

/* What is counted in an optimizer's step, and norms of changes, weights and Adam's ratios. */
enum { CHANGED, WITH, LOST, UNDER, FINITE, STRANGE, COUNTERS };
typedef struct { uint64_t counts[COUNTERS]; Norm norms[3]; } StepSums;

/* -- work on a batch, cut into pieces of fixed size --
 *
 * Who works on a piece does not matter to what is found in it, and what was found is joined in the
 * order of the pieces: so the results are the same, bit for bit, for any number of threads. */

/* Elements [first, first + n) of a tensor: a small one whole, or a part of a large one. */
typedef struct {
    size_t tensor, first, n;
    union {
        Sums sums;
        StepSums step;
        uint64_t mark;
    };
} Piece;

typedef struct Job Job;
struct Job {
    const Batch *batch; /* whose counts say what there is to do */
    void (*share)(Job *job); /* works on pieces until there are none left; one call per thread */
    void (*join)(Job *job, const Piece *piece); /* in order, after it has been worked on */
    int is_shared;                              /* more than one thread may be at work */
    size_t tensor, first;                       /* where planning stands */
    Piece *pieces; /* all of them, or the one at hand where there is one thread */
    size_t n, next;
};

/* For `share`: a piece that nobody has taken yet, or NULL. */
Piece *next_piece(Job *job);

static inline int is_last(const Job *job, const Piece *piece) {
    return piece->first + piece->n == job->batch->items[piece->tensor].count;
}

/* How many threads the batch is worth. */
int useful_threads(const Batch *batch);

/* With more than one thread memory is needed; where there is none, one does all the work. */
void run_job(Job *job, int threads);

/* How many threads a job may use, the caller's included. */
void set_threads(int threads);

#endif
