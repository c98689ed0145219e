/* Moments of one block, in two passes over memory that is in the first-level cache by the second:
 * first sum and extremes, then central powers around a pivot near the mean. Raw power sums would
 * lose everything to cancellation where the mean is large beside the spread. */

/* What the first pass finds. */
typedef struct {
    double sum, absolute, low, high;
    uint64_t zeros;
} Sweep;

static inline double sweep_largest(const Sweep *s) { return fmax(fabs(s->low), fabs(s->high)); }

/* Float sums may take this many terms per lane before they move to double: with constant terms
 * every rounding goes the same way, and 32 of them stay well under one in a million. */
enum { TERMS = 32 };

static Sweep sweep_floats(const float *x, size_t n) {
    vf sum0 = {0}, sum1 = {0}, low = vf_all(INFINITY), high = vf_all(-INFINITY);
    vf low1 = low, high1 = high;
    vd absolute = {0};
    vi zeros = {0}, zeros1 = {0};
    size_t i = 0;
    while (i + 2 * LANES <= n) {
        vf abs0 = {0}, abs1 = {0};
        size_t stop = smaller(n - 2 * LANES + 1, i + TERMS * 2 * LANES);
        for (; i < stop; i += 2 * LANES) {
            vf a = load_vf(x + i), b = load_vf(x + i + LANES);
            sum0 += a, sum1 += b;
            abs0 += vf_abs(a), abs1 += vf_abs(b);
            low = vf_min(low, a), low1 = vf_min(low1, b);
            high = vf_max(high, a), high1 = vf_max(high1, b);
            zeros = count_zero(zeros, a), zeros1 = count_zero(zeros1, b);
        }
        absolute += vf_fold(abs0) + vf_fold(abs1);
    }
    low = vf_min(low, low1), high = vf_max(high, high1);
    Sweep s = {vd_sum(vf_fold(sum0 + sum1)), vd_sum(absolute), INFINITY, -INFINITY,
               vi_sum(zeros + zeros1)};
    for (int lane = 0; lane < LANES; lane++) {
        if (low[lane] < s.low) s.low = low[lane];
        if (high[lane] > s.high) s.high = high[lane];
    }
    for (; i < n; i++) {
        s.sum += x[i], s.absolute += fabs((double)x[i]), s.zeros += x[i] == 0.0f;
        if (x[i] < s.low) s.low = x[i];
        if (x[i] > s.high) s.high = x[i];
    }
    return s;
}

static Sweep sweep_doubles(const double *x, size_t n) {
    vd sum = {0}, absolute = {0}, low = vd_all(INFINITY), high = vd_all(-INFINITY);
    vl zeros = {0};
    size_t i = 0;
    for (; i + WIDE <= n; i += WIDE) {
        vd a = load_vd(x + i);
        sum += a, absolute += vd_abs(a), zeros -= (vl)(a == vd_all(0.0));
        low = vd_min(low, a), high = vd_max(high, a);
    }
    Sweep s = {vd_sum(sum), vd_sum(absolute), INFINITY, -INFINITY, vl_sum(zeros)};
    for (int lane = 0; lane < WIDE; lane++) {
        if (low[lane] < s.low) s.low = low[lane];
        if (high[lane] > s.high) s.high = high[lane];
    }
    for (; i < n; i++) {
        s.sum += x[i], s.absolute += fabs(x[i]), s.zeros += x[i] == 0.0;
        if (x[i] < s.low) s.low = x[i];
        if (x[i] > s.high) s.high = x[i];
    }
    return s;
}

/* Sums of the powers of (x − pivot)·scale. */
typedef struct {
    double p1, p2, p3, p4;
} Powers;

static inline void add_powers(Powers *p, double d) {
    double square = d * d;
    p->p1 += d, p->p2 += square, p->p3 += square * d, p->p4 += square * square;
}

/* `scale` is a power of two that brings every term under 2, so that no power overflows a float and
 * none that matters underflows; the product with it is exact. */
static Powers powers_floats(const float *x, size_t n, float pivot, float scale) {
    vf factor = vf_all(scale), shift = vf_all(pivot * scale);
    vd p1 = {0}, p2 = {0}, p3 = {0}, p4 = {0};
    size_t i = 0;
    while (i + 2 * LANES <= n) {
        vf a1 = {0}, a2 = {0}, a3 = {0}, a4 = {0}, b1 = {0}, b2 = {0}, b3 = {0}, b4 = {0};
        size_t stop = smaller(n - 2 * LANES + 1, i + TERMS * 2 * LANES);
        for (; i < stop; i += 2 * LANES) {
            vf a = load_vf(x + i) * factor - shift, b = load_vf(x + i + LANES) * factor - shift;
            /* The next block on its way into the cache while this one is at work. */
            __builtin_prefetch((const char *)(x + i) + BLOCK * sizeof *x);
            if (WIDTH == 64) __builtin_prefetch((const char *)(x + i + LANES) + BLOCK * sizeof *x);
            vf aa = a * a, bb = b * b;
            a1 += a, b1 += b, a2 += aa, b2 += bb;
            a3 += aa * a, b3 += bb * b, a4 += aa * aa, b4 += bb * bb;
        }
        p1 += vf_fold(a1) + vf_fold(b1), p2 += vf_fold(a2) + vf_fold(b2);
        p3 += vf_fold(a3) + vf_fold(b3), p4 += vf_fold(a4) + vf_fold(b4);
    }
    Powers p = {vd_sum(p1), vd_sum(p2), vd_sum(p3), vd_sum(p4)};
    for (; i < n; i++) add_powers(&p, ((double)x[i] - pivot) * scale);
    return p;
}

static Powers powers_doubles(const double *x, size_t n, double pivot) {
    vd p1 = {0}, p2 = {0}, p3 = {0}, p4 = {0}, shift = vd_all(pivot);
    size_t i = 0;
    for (; i + WIDE <= n; i += WIDE) {
        vd a = load_vd(x + i) - shift, aa = a * a;
        p1 += a, p2 += aa, p3 += aa * a, p4 += aa * aa;
    }
    Powers p = {vd_sum(p1), vd_sum(p2), vd_sum(p3), vd_sum(p4)};
    for (; i < n; i++) add_powers(&p, x[i] - pivot);
    return p;
}

/* Whether the pivot is so far from the mean that moving the powers there would cancel digits. */
static inline int is_far(const Powers *p, size_t n) {
    return p->p1 * p->p1 > 0.1 * (double)n * p->p2;
}

/* From powers around the pivot to powers around the true mean, out of the scale. */
static void settle(Sums *sums, const Powers *p, size_t n, double pivot, double scale) {
    double delta = p->p1 / (double)n, square = delta * delta, unit = 1.0 / scale;
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
    sums->low = ldexp(s->low, exponent);
    sums->high = ldexp(s->high, exponent);
    sums->exponent = exponent;
}

/* The range in which fourth powers of doubles are harmless. */
static inline int is_moderate(const Sweep *s) {
    double largest = sweep_largest(s);
    return s->absolute < 0x1p120 && (largest > 0x1p-100 || largest == 0.0);
}

static void regular_doubles(const double *x, size_t n, const Sweep *s, int exponent, Sums *sums) {
    double pivot = s->sum / (double)n;
    Powers p = powers_doubles(x, n, pivot);
    if (is_far(&p, n)) {
        pivot += p.p1 / (double)n;
        p = powers_doubles(x, n, pivot);
    }
    note_sweep(sums, s, exponent);
    settle(sums, &p, n, pivot, 1.0);
}

/* Count a non-finite element, or say that it is finite. */
static inline int is_finite_counted(double x, Sums *sums) {
    if (isfinite(x)) return 1;
    if (isnan(x)) sums->nan++;
    else if (x > 0) sums->pos_inf++;
    else sums->neg_inf++;
    return 0;
}

/* Doubles that are not finite or not moderate: the finite ones scaled into the middle. */
static void irregular_doubles(const double *x, size_t n, Sums *sums) {
    double kept[BLOCK], low = INFINITY, high = -INFINITY;
    size_t m = 0;
    for (size_t i = 0; i < n; i++) {
        if (!is_finite_counted(x[i], sums)) continue;
        kept[m++] = x[i];
        low = fmin(low, x[i]), high = fmax(high, x[i]);
    }
    if (m == 0) return;
    int exponent = common_exponent(fmax(fabs(low), fabs(high)));
    uint64_t zeros = 0;
    for (size_t i = 0; i < m; i++) {
        zeros += kept[i] == 0.0;
        kept[i] = ldexp(kept[i], -exponent);
    }
    Sweep s = sweep_doubles(kept, m);
    regular_doubles(kept, m, &s, exponent, sums);
    /* Scaling may have rounded the smallest ones to zero. */
    sums->zeros = zeros, sums->low = low, sums->high = high;
}

static void block_doubles(const double *x, size_t n, Sums *sums) {
    Sweep s = sweep_doubles(x, n);
    if (is_moderate(&s)) regular_doubles(x, n, &s, 0, sums);
    else irregular_doubles(x, n, sums);
}

/* The power of two that brings values up to `largest`, minus a pivot among them, under 2. */
static inline float scale_for(double largest) {
    int exponent;
    frexp(largest, &exponent);
    return largest == 0.0 ? 1.0f : ldexpf(1.0f, -exponent);
}

static int regular_floats(const float *x, size_t n, Sums *sums) {
    Sweep s = sweep_floats(x, n);
    /* A NaN or Inf reaches the sum of magnitudes; a comparison with NaN is false. */
    if (!is_moderate(&s)) return 0;
    float pivot = (float)(s.sum / (double)n), scale = scale_for(sweep_largest(&s));
    Powers p = powers_floats(x, n, pivot, scale);
    if (is_far(&p, n)) {
        pivot = (float)(pivot + p.p1 / (double)n / scale);
        p = powers_floats(x, n, pivot, scale);
    }
    note_sweep(sums, &s, 0);
    settle(sums, &p, n, pivot, scale);
    return 1;
}

/* One block of floats; says whether all its elements were finite and moderate. */
static int block_floats(const float *x, size_t n, Sums *sums) {
    if (regular_floats(x, n, sums)) return 1;
    float kept[BLOCK];
    double wide[BLOCK];
    size_t m = 0;
    for (size_t i = 0; i < n; i++)
        if (is_finite_counted(x[i], sums)) kept[m++] = x[i];
    if (m == 0 || (m < n && regular_floats(kept, m, sums))) return 0;
    for (size_t i = 0; i < m; i++) wide[i] = kept[i];
    block_doubles(wide, m, sums);
    return 0;
}
