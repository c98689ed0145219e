/* What moments of floats and doubles have in common: extremes and sums of one block, and central powers
 * around a pivot near the mean. Raw power sums would lose everything to cancellation where the mean
 * is large beside the spread. */

/* What the first pass finds. */
typedef struct {
    double sum, absolute, low, high;
    uint64_t zeros;
} Sweep;

static inline double sweep_largest(const Sweep *s) { return fmax(fabs(s->low), fabs(s->high)); }

/* Sums of the powers of (x − pivot)·scale. */
typedef struct {
    double p1, p2, p3, p4;
} Powers;

static inline void add_powers(Powers *p, double d) {
    double square = d * d;
    p->p1 += d, p->p2 += square, p->p3 += square * d, p->p4 += square * square;
}

/* Whether the pivot is so far from the mean that moving the powers there would cancel digits. */
static inline int is_far(const Powers *p, size_t n) {
    return p->p1 * p->p1 > 0.1 * (double)n * p->p2;
}

/* From powers around the pivot to powers around the true mean; they were in units of `unit`. */
static void settle(Sums *sums, const Powers *p, size_t n, double pivot, double unit) {
    double delta = p->p1 / (double)n, square = delta * delta;
    double m2 = p->p2 - (double)n * square;
    double m3 = p->p3 - 3.0 * delta * p->p2 + 2.0 * (double)n * square * delta;
    double m4 = p->p4 - 4.0 * delta * p->p3 + 6.0 * square * p->p2 -
                3.0 * (double)n * square * square;
    sums->n = (double)n;
    sums->mean = pivot + delta * unit;
    sums->m2 = fmax(m2, 0.0) * unit * unit;
    sums->m3 = m3 * unit * unit * unit;
    sums->m4 = fmax(m4, 0.0) * unit * unit * unit * unit;
}

static void note_sweep(Sums *sums, const Sweep *s, int exponent) {
    sums->zeros = s->zeros;
    sums->absolute = s->absolute;
    sums->low = exponent ? ldexp(s->low, exponent) : s->low;
    sums->high = exponent ? ldexp(s->high, exponent) : s->high;
    sums->exponent = exponent;
}

/* The range in which fourth powers of doubles are harmless, and in which even floats that differ by
 * one in the last place have a scale (scale_for) that is a float. */
static inline int is_moderate(const Sweep *s) {
    double largest = sweep_largest(s);
    return s->absolute < 0x1p120 && (largest > 0x1p-100 || largest == 0.0);
}

/* Count a non-finite element, or say that it is finite. */
static inline int is_finite_counted(double x, Sums *sums) {
    if (isfinite(x)) return 1;
    if (isnan(x)) sums->nan++;
    else if (x > 0) sums->pos_inf++;
    else sums->neg_inf++;
    return 0;
}
