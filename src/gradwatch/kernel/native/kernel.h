/* What the parts of the kernel tell one another. No Python here, except in module.c. */
#ifndef GRADWATCH_KERNEL_H
#define GRADWATCH_KERNEL_H

#include <stddef.h>
#include <stdint.h>

enum { F32, F64, BF16, F16, DTYPES };
enum { SKETCH_WIDTH = 32, SPREAD_ROWS = 16, MOST_BINS = 2098 };

/* Elements handled at a time: as floats they stay in the first-level cache between the passes. The
 * structure of blocks is fixed, so a tensor's results never depend on who measures it. */
enum { BLOCK = 4096 };

static inline size_t itemsize(int dtype) {
    return dtype == F64 ? 8 : dtype == F32 ? 4 : 2;
}

static inline size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

/* Tensors by address; `rows` may be 0 (none). Checked by module.c before anything is read. */
typedef struct {
    size_t n;
    const uint64_t *pointers;
    const int64_t *counts;
    const uint8_t *dtypes;
    const int64_t *rows;
} Batch;

/* One tensor of a batch. */
typedef struct {
    const char *data;
    size_t count;
    int dtype;
    size_t rows;
} Tensor;

static inline Tensor tensor_of(const Batch *batch, size_t index) {
    return (Tensor){(const char *)(uintptr_t)batch->pointers[index], (size_t)batch->counts[index],
                    batch->dtypes[index], batch->rows ? (size_t)batch->rows[index] : 0};
}

/* MOMENTS, UPDATE and ADAM of batch.py. */
typedef struct {
    uint64_t count, zeros, nan, pos_inf, neg_inf, zero_rows;
    double mean, std, skewness, kurtosis, norm, abs_mean, abs_max, min, max;
} Record;

typedef struct {
    double update_norm, before_norm;
    uint64_t changed, lost, with_gradient;
} UpdateRecord;

typedef struct {
    double ratio_rms, eps_fraction;
} AdamRecord;

/* What sketches need and fill: seeds, where tensors begin in their wholes, the wholes' sizes. */
typedef struct {
    const uint64_t *seeds;
    const int64_t *offsets, *wholes;
    float *out; /* [n][SKETCH_WIDTH] */
} Sketches;

/* BinTable of batch.py: of each tensor the stretch of bins from its first to its last occupied one,
 * out of `width` bins of which the first is 2^lowest. The negative ones of a tensor, its positive
 * ones, and then the next tensor's lie in `counts`, which has room for them all. */
typedef struct {
    int lowest;
    size_t width;
    int64_t *first_exponents, *sizes;
    uint64_t *counts;
} Bins;

/* What measuring fills; all may be NULL, but without records there are sketches alone. */
typedef struct {
    Record *records;
    uint8_t *const *touched; /* per tensor: NULL or one byte per row */
    const Bins *bins;
    const Sketches *sketches;
} Outputs;

/* What a step went through, and what is found. Without `before` and `after` there are gradients;
 * `second` comes with gradients, correction, eps and ratios. Batches may lack tensors (count 0). */
typedef struct {
    size_t n;
    const Batch *before, *after, *grads, *second;
    const double *correction, *eps;
    UpdateRecord *updates;
    AdamRecord *ratios;
} Steps;

/* Uniform grids, one per tensor, and what counting on them fills. */
typedef struct {
    const int64_t *exponents; /* of the cell width, from -1023 to 1023 */
    const double *firsts;     /* whole: the first cell begins at first · 2^exponent */
    size_t cells;             /* at most 256 */
    uint64_t *counts;         /* [n][cells] */
    uint64_t *outside;        /* [n][below, above, non-finite] */
} Grids;

/* Limits, and the lists of the finite elements x ≤ low or x ≥ high. */
typedef struct {
    const double *lows, *highs;
    size_t most;
    uint64_t *totals;
    int64_t *indices; /* [n][most], of which min(total, most) are written */
} Limits;

/* One instruction set's functions. */
typedef struct {
    const char *name;
    void (*measure)(const Batch *batch, const Outputs *out);
    void (*step)(const Steps *steps);
    void (*hashes)(const Batch *batch, const int64_t *offsets, uint64_t *out);
    void (*row_spread)(const Batch *batch, float *out);
    void (*count_cells)(const Batch *batch, const Grids *grids);
    void (*list_beyond)(const Batch *batch, const Limits *limits);
    void (*copy)(const Batch *source, const Batch *target);
    uint64_t (*read)(const Batch *batch);
    size_t (*nonfinite)(const void *data, size_t n, int dtype, size_t stride);
} Kernel;

extern const Kernel kernel_base, kernel_avx2, kernel_avx512;

/* The kernels this processor can run, the best first, NULL at the end. */
const Kernel *const *supported_kernels(void);

/* splitmix64's finisher: every output bit depends on every input bit. */
#define GOLDEN 0x9E3779B97F4A7C15u
#define FIRST 0xBF58476D1CE4E5B9u
#define SECOND 0x94D049BB133111EBu

static inline uint64_t scramble(uint64_t word) {
    word = (word ^ (word >> 30)) * FIRST;
    word = (word ^ (word >> 27)) * SECOND;
    return word ^ (word >> 31);
}

#endif
