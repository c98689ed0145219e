#include "sums.h"

int common_exponent(double largest) {
    int exponent;
    frexp(largest, &exponent);
    int away = exponent < 0 ? -64 : 64;
    return largest == 0.0 ? 0 : (exponent + away) / 128 * 128;
}

/* Express the sums in units of a larger power of two; what vanishes is too small to matter. */
static void rescale(Sums *sums, int exponent) {
    int shift = sums->exponent - exponent;
    sums->mean = ldexp(sums->mean, shift);
    sums->absolute = ldexp(sums->absolute, shift);
    sums->m2 = ldexp(sums->m2, 2 * shift);
    sums->m3 = ldexp(sums->m3, 3 * shift);
    sums->m4 = ldexp(sums->m4, 4 * shift);
    sums->exponent = exponent;
}

static void join_moments(Sums *a, const Sums *b) {
    double total = a->n + b->n, delta = b->mean - a->mean;
    double step = delta / total, joint = delta * step * a->n * b->n;
    double an = a->n, bn = b->n;
    a->m4 += b->m4 + joint * step * step * (an * an - an * bn + bn * bn) +
             6.0 * step * step * (an * an * b->m2 + bn * bn * a->m2) +
             4.0 * step * (an * b->m3 - bn * a->m3);
    a->m3 += b->m3 + joint * step * (an - bn) + 3.0 * step * (an * b->m2 - bn * a->m2);
    a->m2 += b->m2 + joint;
    a->mean += step * bn;
    a->absolute += b->absolute;
    a->n = total;
}

void sums_add(Sums *into, const Sums *part) {
    into->zeros += part->zeros;
    into->nan += part->nan;
    into->pos_inf += part->pos_inf;
    into->neg_inf += part->neg_inf;
    if (part->n == 0.0) return;
    if (part->low < into->low) into->low = part->low;
    if (part->high > into->high) into->high = part->high;
    Sums other = *part;
    if (into->exponent < other.exponent) rescale(into, other.exponent);
    if (into->exponent > other.exponent) rescale(&other, into->exponent);
    join_moments(into, &other);
}

/* ldexp, which is hardly ever needed and as slow as all the rest. */
static inline double shifted(double value, int exponent) {
    return exponent ? ldexp(value, exponent) : value;
}

static void finish_shape(const Sums *sums, Record *record) {
    double variance = sums->m2 / sums->n, std = sqrt(variance);
    /* All equal: what is left of the powers is rounding, and its shape means nothing. */
    int flat = sums->low == sums->high || !(variance > 0.0);
    record->mean = sums->low == sums->high ? sums->low : shifted(sums->mean, sums->exponent);
    record->std = flat ? 0.0 : shifted(std, sums->exponent);
    record->skewness = flat ? NAN : sums->m3 / sums->n / (variance * std);
    record->kurtosis = flat ? NAN : sums->m4 / sums->n / (variance * variance) - 3.0;
    record->norm = shifted(sqrt(sums->m2 + sums->n * sums->mean * sums->mean), sums->exponent);
    record->abs_mean = shifted(sums->absolute / sums->n, sums->exponent);
}

void sums_finish(const Sums *sums, uint64_t count, Record *record) {
    record->count = count;
    record->zeros = sums->zeros;
    record->nan = sums->nan;
    record->pos_inf = sums->pos_inf;
    record->neg_inf = sums->neg_inf;
    if (sums->n == 0.0) {
        record->mean = record->std = record->skewness = record->kurtosis = record->norm = NAN;
        record->abs_mean = record->abs_max = record->min = record->max = NAN;
        return;
    }
    record->min = sums->low;
    record->max = sums->high;
    record->abs_max = fmax(fabs(sums->low), fabs(sums->high));
    finish_shape(sums, record);
}

void norm_add(Norm *norm, double squares, int exponent) {
    if (squares == 0.0) return;
    if (norm->squares == 0.0) norm->exponent = exponent;
    int larger = norm->exponent > exponent ? norm->exponent : exponent;
    norm->squares = ldexp(norm->squares, 2 * (norm->exponent - larger)) +
                    ldexp(squares, 2 * (exponent - larger));
    norm->exponent = larger;
}

double norm_value(const Norm *norm) { return ldexp(sqrt(norm->squares), norm->exponent); }
