/* Work on a batch, cut into pieces of fixed size. Who works on a piece does not matter to what is
 * found in it, and what was found is joined in the order of the pieces: so the results are the
 * same, bit for bit, for any number of threads. */
#ifndef GRADWATCH_JOB_H
#define GRADWATCH_JOB_H

#include "sums.h"

enum { PIECE = 64 * BLOCK };

/* What is found in a piece, by what was looked for. */
typedef struct {
    Sums sums;
    uint64_t zero_rows;
    double buckets[SKETCH_WIDTH];
} Measured;

typedef struct {
    uint64_t changed, lost, with_gradient, finite, under;
    Norm change, weight, ratio;
} StepSums;

/* Elements [first, first + n) of a tensor: a small one whole, or a part of a large one. */
typedef struct {
    size_t tensor, first, n;
    union {
        Measured measured;
        StepSums step;
        uint64_t mark;
    };
} Piece;

/* Where planning stands. */
typedef struct {
    size_t tensor, first;
} Cursor;

typedef struct Job Job;
struct Job {
    const Batch *batch; /* whose counts say what there is to do */
    void (*share)(Job *job); /* works on pieces until there are none left; one call per thread */
    void (*join)(Job *job, const Piece *piece); /* in order, after it has been worked on */
    int is_shared;                              /* more than one thread may be at work */
    Cursor at;
    Piece *pieces; /* all of them, or the one at hand where there is one thread */
    size_t n, next;
};

/* For `share`: a piece that nobody has taken yet, or NULL. */
Piece *next_piece(Job *job);

static inline int is_last(const Job *job, const Piece *piece) {
    return piece->first + piece->n == (size_t)job->batch->counts[piece->tensor];
}

/* The elements of a piece as a tensor of their own. */
static inline Tensor stretch_of(const Batch *batch, const Piece *piece) {
    Tensor tensor = tensor_of(batch, piece->tensor);
    return (Tensor){tensor.data + piece->first * itemsize(tensor.dtype), piece->n, tensor.dtype, 0};
}

/* How many threads the batch is worth. */
int useful_threads(const Batch *batch);

/* With more than one thread memory is needed; where there is none, one does all the work. */
void run_job(Job *job, int threads);

/* How many threads a job may use, the caller's included. */
void set_threads(int threads);

#endif
