/* Every pass in one thread and in four, over the same tensors: equal results, and work for the
 * thread sanitizer. Gives 0 where all is well. */
#include "kernel.h"

#include <stdio.h>
#include <string.h>

enum { TENSORS = 6, LARGE = 5 * PIECE + 3 };

static float x[LARGE], y[LARGE], v[LARGE];
static const size_t counts[TENSORS] = {LARGE, 7, 0, PIECE, PIECE + 1, LARGE - 4};
static const size_t rows[TENSORS] = {0, 7, 0, 64, 0, 32767};

typedef struct {
    Record records[TENSORS];
    int64_t exponents[TENSORS], sizes[TENSORS];
    uint64_t bins[TENSORS * 2 * FLOAT_BINS], marks[TENSORS];
    uint8_t touched[TENSORS][32767];
    UpdateRecord updates[TENSORS];
    AdamRecord ratios[TENSORS];
} Results;

static void run(const Kernel *kernel, Results *r) {
    Tensor items[3][TENSORS];
    const float *memory[] = {x, y, v};
    Batch batches[3];
    int64_t offsets[TENSORS] = {0, 1, 2, 3, 4, 5};
    double ones[TENSORS] = {1, 1, 1, 1, 1, 1};
    uint8_t *touched[TENSORS];
    for (size_t t = 0; t < TENSORS; t++) touched[t] = rows[t] ? r->touched[t] : NULL;
    for (size_t k = 0; k < 3; k++) {
        for (size_t t = 0; t < TENSORS; t++)
            items[k][t] = (Tensor){(const char *)memory[k], counts[t], F32, rows[t]};
        batches[k] = (Batch){TENSORS, items[k]};
    }
    Bins bins = {LOWEST_FLOAT, FLOAT_BINS, 1.0, r->exponents, r->sizes, r->bins};
    Outputs out = {r->records, touched, &bins};
    Steps steps = {&batches[0], &batches[1], &batches[0], &batches[2],
                   ones,        ones,        r->updates,  r->ratios};
    kernel->measure(&batches[0], &out);
    kernel->step(&steps);
    kernel->hashes(&batches[0], offsets, r->marks);
}

int main(void) {
    static Results one, four;
    for (size_t i = 0; i < LARGE; i++) {
        x[i] = i / 100 % 3 ? (float)(i % 1013) - 500.0f : 0.0f, y[i] = x[i] + (float)(i % 2);
        v[i] = x[i] * x[i];
    }
    for (const Kernel *const *k = supported_kernels(); *k; k++) {
        memset(&one, 0, sizeof one), memset(&four, 0, sizeof four);
        set_threads(1);
        run(*k, &one);
        set_threads(4);
        run(*k, &four);
        if (memcmp(&one, &four, sizeof one) != 0) {
            printf("%s: the results differ\n", (*k)->name);
            return 1;
        }
    }
    return 0;
}
