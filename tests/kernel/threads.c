/* Every pass in one thread and in four, over the same tensors: equal results, and work for the
 * thread sanitizer. Gives 0 where all is well. */
#include "job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TENSORS = 6, LARGE = 5 * PIECE + 3 };

static float x[LARGE], y[LARGE], v[LARGE], room[LARGE];
static const int64_t counts[TENSORS] = {LARGE, 7, 0, PIECE, PIECE + 1, LARGE - 4};
static const int64_t rows[TENSORS] = {0, 7, 0, 64, 0, 32767};
static uint8_t dtypes[TENSORS];
static uint64_t first[TENSORS], other[TENSORS], second[TENSORS], target[TENSORS];

typedef struct {
    Record records[TENSORS];
    int64_t exponents[TENSORS], sizes[TENSORS];
    uint64_t bins[TENSORS * 2 * 277], marks[TENSORS], sum;
    float sketches[TENSORS][SKETCH_WIDTH];
    uint8_t touched[TENSORS][32767];
    UpdateRecord updates[TENSORS];
    AdamRecord ratios[TENSORS];
} Results;

static void run(const Kernel *kernel, Results *r) {
    Batch a = {TENSORS, first, counts, dtypes, rows}, b = {TENSORS, other, counts, dtypes, rows};
    Batch c = {TENSORS, second, counts, dtypes, rows}, to = {TENSORS, target, counts, dtypes, rows};
    uint64_t seeds[TENSORS] = {1, 2, 3, 4, 5, 6};
    int64_t offsets[TENSORS] = {0, 1, 2, 3, 4, 5};
    double ones[TENSORS] = {1, 1, 1, 1, 1, 1};
    uint8_t *touched[TENSORS];
    for (size_t t = 0; t < TENSORS; t++) touched[t] = rows[t] ? r->touched[t] : NULL;
    Sketches sketches = {seeds, offsets, counts, r->sketches[0]};
    Bins bins = {-149, 277, r->exponents, r->sizes, r->bins};
    Outputs out = {r->records, touched, &bins, &sketches};
    Steps steps = {TENSORS, &a, &b, &a, &c, ones, ones, r->updates, r->ratios};
    kernel->measure(&a, &out);
    kernel->step(&steps);
    kernel->hashes(&a, offsets, r->marks);
    kernel->copy(&a, &to);
    r->sum = kernel->read(&a);
}

int main(void) {
    static Results one, four;
    for (size_t i = 0; i < LARGE; i++) {
        x[i] = i / 100 % 3 ? (float)(i % 1013) - 500.0f : 0.0f, y[i] = x[i] + (float)(i % 2);
        v[i] = x[i] * x[i];
    }
    for (size_t t = 0; t < TENSORS; t++) {
        first[t] = (uintptr_t)x, other[t] = (uintptr_t)y, second[t] = (uintptr_t)v;
        target[t] = (uintptr_t)(t == 0 ? room : calloc((size_t)counts[t] + 1, sizeof *room));
    }
    for (const Kernel *const *k = supported_kernels(); *k; k++) {
        memset(&one, 0, sizeof one), memset(&four, 0, sizeof four);
        set_threads(1);
        run(*k, &one);
        set_threads(4);
        run(*k, &four);
        if (memcmp(&one, &four, sizeof one) != 0 || memcmp(x, room, sizeof x) != 0) {
            printf("%s: the results differ\n", (*k)->name);
            return 1;
        }
    }
    return 0;
}
