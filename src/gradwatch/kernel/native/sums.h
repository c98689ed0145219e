/* Joining blocks: counts, central power sums, extremes (Pébay), always in double. */
#ifndef GRADWATCH_SUMS_H
#define GRADWATCH_SUMS_H

#include "kernel.h"

/* mean, the power sums and `absolute` are in units of 2^exponent, a multiple of 128. Fourth powers
 * of all float32 values fit into double, so the exponent is 0 for all but extreme doubles. */
typedef struct {
    double n, mean, m2, m3, m4, absolute;
    double low, high;
    uint64_t zeros, nan, pos_inf, neg_inf;
    int exponent;
} Sums;

Sums sums_empty(void);
void sums_join(Sums *into, const Sums *part);
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
