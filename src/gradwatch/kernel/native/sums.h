/* Joining blocks: counts, central power sums, extremes (Pébay), always in double. */
#ifndef GRADWATCH_SUMS_H
#define GRADWATCH_SUMS_H

#include "kernel.h"

#include <math.h>

/* mean, the power sums and `absolute` are in units of 2^exponent, a multiple of 128. Fourth powers
 * of all float32 values fit into double, so the exponent is 0 for all but extreme doubles. */
typedef struct {
    double n, mean, m2, m3, m4, absolute;
    double low, high;
    uint64_t zeros, nan, pos_inf, neg_inf;
    int exponent;
} Sums;

static inline Sums sums_empty(void) { return (Sums){.low = INFINITY, .high = -INFINITY}; }

/* Join what is not the first part. */
void sums_add(Sums *into, const Sums *part);

/* The first part with elements is taken as it is: joining it to nothing would take time and round. */
static inline void sums_join(Sums *into, const Sums *part) {
    if (into->n != 0.0) {
        sums_add(into, part);
        return;
    }
    Sums before = *into;
    *into = *part;
    into->zeros += before.zeros, into->nan += before.nan;
    into->pos_inf += before.pos_inf, into->neg_inf += before.neg_inf;
}

void sums_finish(const Sums *sums, uint64_t count, Record *record);

/* Σx² in units of 4^exponent. */
typedef struct {
    double squares;
    int exponent;
} Norm;

void norm_add(Norm *norm, double squares, int exponent);
double norm_value(const Norm *norm);

/* The multiple of 128 nearest to the exponent of a finite value; 0 for 0. */
int common_exponent(double largest);

#endif
