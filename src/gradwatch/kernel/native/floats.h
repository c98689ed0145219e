/* Moments of a block of floats (and what is widened to them), in one pass around a guess: the mean and
 * size of the block before. That leaves the processor time to fetch memory meanwhile. Afterwards it
 * is known whether the guess was good; where it was not, another pass over the block, by now in the
 * first-level cache, is. */

/* Float sums may take this many terms per lane before they move to double: with constant terms
 * every rounding goes the same way, and 32 of them stay well under one in a million. */
enum { TERMS = 32 };

/* A pivot, and a power of two that brings (x − pivot)·scale near 1, so that no power overflows a
 * float and none that matters underflows. The product with it is exact. */
typedef struct {
    float pivot, scale, unit; /* unit: 1 / scale */
} Guess;

/* Running sums of one stream of vectors. Two streams hide the additions' latency, where there are
 * registers for two. */
typedef struct {
    vf p1, p2, p3, p4, absolute, low, high, least; /* least: of the magnitudes */
} Lane;

enum { STREAMS = WIDTH == 64 ? 2 : 1 };

static inline Lane lane_start(void) {
    vf most = vf_all(INFINITY);
    return (Lane){.low = most, .high = -most, .least = most};
}

static inline void lane_add(Lane *lane, vf x, vf factor, vf shift) {
    vf d = x * factor - shift, square = d * d;
    lane->p1 += d;
    lane->p2 += square;
    lane->p3 += square * d;
    lane->p4 += square * square;
    vf magnitude = vf_abs(x);
    lane->absolute += magnitude;
    lane->least = vf_min(lane->least, magnitude);
    lane->low = vf_min(lane->low, x);
    lane->high = vf_max(lane->high, x);
}

/* Both halves widened and added. */
static inline vd vf_fold(vf v) { return vf_low(v) + vf_high(v); }

/* What lanes move to before their float sums grow inexact. */
typedef struct {
    vd p1, p2, p3, p4, absolute;
} Total;

static inline void lane_fold(Lane *lane, Total *total) {
    total->p1 += vf_fold(lane->p1), total->p2 += vf_fold(lane->p2);
    total->p3 += vf_fold(lane->p3), total->p4 += vf_fold(lane->p4);
    total->absolute += vf_fold(lane->absolute);
    lane->p1 = lane->p2 = lane->p3 = lane->p4 = lane->absolute = (vf){0};
}

static inline void lane_join(Lane *lane, const Lane *other) {
    lane->low = vf_min(lane->low, other->low);
    lane->high = vf_max(lane->high, other->high);
    lane->least = vf_min(lane->least, other->least);
}

/* The last elements, in double: all four powers of one side by side. */
static inline void sweep_tail(const float *x, size_t n, Guess guess, Sweep *s, Powers *p) {
    typedef double Four __attribute__((vector_size(32)));
    Four powers = {p->p1, p->p2, p->p3, p->p4};
    double low = s->low, high = s->high, absolute = s->absolute;
    uint64_t zeros = s->zeros;
    for (size_t i = 0; i < n; i++) {
        double value = x[i], d = (value - guess.pivot) * guess.scale, square = d * d;
        powers += (Four){d, square, square, square} * (Four){1.0, 1.0, d, square};
        absolute += fabs(value), zeros += value == 0.0;
        low = value < low ? value : low;
        high = value > high ? value : high;
    }
    *p = (Powers){powers[0], powers[1], powers[2], powers[3]};
    s->low = low, s->high = high, s->absolute = absolute, s->zeros = zeros;
}

/* The zeros among whole pairs of vectors. */
static inline uint64_t count_zeros(const char *x, size_t n, int dtype) {
    vi zeros = {0};
    for (size_t i = 0; i < n; i += LANES)
        zeros = count_zero(zeros, load_lanes(x + i * itemsize(dtype), dtype));
    return vi_sum(zeros);
}

/* The processor's own prefetching stops at every page; this one looks a page ahead. Beyond the end
 * of a tensor it is harmless: prefetching an address that cannot be read does nothing. */
static inline void prefetch(const char *x, size_t bytes) {
    for (size_t line = 0; line < bytes; line += 64) __builtin_prefetch(x + 4096 + line);
}

static inline void add_twice(Lane *lanes, const char *x, int dtype, vf factor, vf shift) {
    vf one, other;
    load_twice(x, dtype, &one, &other);
    lane_add(&lanes[0], one, factor, shift);
    lane_add(&lanes[STREAMS - 1], other, factor, shift);
}

/* A whole block, both halves at once: the processor fetches from several pages side by side faster
 * than from one after another. The same places of the next block are asked for meanwhile, into the
 * second-level cache: the first may be too small for two blocks. */
static inline __attribute__((always_inline)) void sweep_halves(const char *x, int dtype, vf factor,
                                                               vf shift, Lane *lanes,
                                                               Total *total) {
    size_t half = BLOCK / 2 * itemsize(dtype), step = 2 * LANES * itemsize(dtype);
    for (size_t i = 0; i < half;) {
        for (size_t stop = i + TERMS / 4 * STREAMS * step; i < stop; i += step) {
            for (size_t line = 0; line < step; line += 64) {
                __builtin_prefetch(x + 2 * half + i + line, 0, 2);
                __builtin_prefetch(x + 3 * half + i + line, 0, 2);
            }
            add_twice(lanes, x + i, dtype, factor, shift);
            add_twice(lanes, x + half + i, dtype, factor, shift);
        }
        for (int stream = 0; stream < STREAMS; stream++) lane_fold(&lanes[stream], total);
    }
}

/* Everything about a block, around the guess. `dtype` is a constant at every call, so that each
 * type has its own loop and narrow ones are widened on their way into a register. */
static inline __attribute__((always_inline)) void sweep(const char *x, size_t n, int dtype,
                                                        Guess guess, Sweep *s, Powers *p) {
    size_t size = itemsize(dtype), i = n == BLOCK ? BLOCK : 0;
    vf factor = vf_all(guess.scale), shift = vf_all(guess.pivot * guess.scale);
    Lane lanes[2] = {lane_start(), lane_start()};
    Total total = {0};
    if (n == BLOCK) sweep_halves(x, dtype, factor, shift, lanes, &total);
    while (i + 2 * LANES <= n) {
        size_t stop = smaller(n - 2 * LANES + 1, i + TERMS * STREAMS * LANES);
        for (; i < stop; i += 2 * LANES) add_twice(lanes, x + i * size, dtype, factor, shift);
        for (int stream = 0; stream < STREAMS; stream++) lane_fold(&lanes[stream], &total);
    }
    lane_join(&lanes[0], &lanes[STREAMS - 1]);
    *p = (Powers){vd_sum(total.p1), vd_sum(total.p2), vd_sum(total.p3), vd_sum(total.p4)};
    *s = (Sweep){0.0, vd_sum(total.absolute), INFINITY, -INFINITY, 0};
    /* One minimum tells whether there is a zero at all; only then they are counted. */
    if (vf_least(lanes[0].least) == 0.0f) s->zeros = count_zeros(x, i, dtype);
    s->low = vf_least(lanes[0].low);
    s->high = -vf_least(-lanes[0].high);
    if (i == n) return;
    float scratch[2 * LANES];
    Tensor tail = {x + i * size, n - i, dtype, 0};
    sweep_tail(load_floats(&tail, 0, n - i, scratch), n - i, guess, s, p);
}

static void sweep_any(const char *x, size_t n, int dtype, Guess guess, Sweep *s, Powers *p) {
    if (dtype == F32) sweep(x, n, F32, guess, s, p);
    else if (dtype == BF16) sweep(x, n, BF16, guess, s, p);
    else sweep(x, n, F16, guess, s, p);
}

/* The power of two that brings `largest` under 1. */
static inline float scale_for(double largest) {
    int exponent;
    frexp(largest, &exponent);
    return largest == 0.0 ? 1.0f : ldexpf(1.0f, -exponent);
}

/* Whether powers around the guess have all the digits they should. */
static inline int is_good(Guess guess, const Sweep *s, const Powers *p, size_t n) {
    /* Squared distance from the pivot, scaled. */
    return p->p2 > 0x1p-40 * (double)n && p->p2 < 0x1p40 * (double)n && !is_far(p, n) &&
           sweep_largest(s) * guess.scale < 0x1p28;
}

/* A block whose elements are finite and moderate; 0 if they are not. */
static int regular_floats(const char *x, size_t n, int dtype, Guess *guess, Sums *sums) {
    Sweep s;
    Powers p;
    sweep_any(x, n, dtype, *guess, &s, &p);
    /* A NaN or Inf reaches the sum of magnitudes; a comparison with NaN is false. */
    if (!is_moderate(&s)) return 0;
    for (int tries = 0; tries < 2 && s.low < s.high && !is_good(*guess, &s, &p, n); tries++) {
        /* The pivot first, then a scale that suits the distance from it. */
        double mean = guess->pivot + p.p1 / (double)n * guess->unit;
        if (!(mean >= s.low && mean <= s.high)) mean = 0.5 * (s.low + s.high);
        guess->pivot = (float)mean;
        guess->scale = scale_for(fmax(s.high - guess->pivot, guess->pivot - s.low));
        guess->unit = 1.0f / guess->scale;
        sweep_any(x, n, dtype, *guess, &s, &p);
    }
    if (s.low == s.high) { /* constant: nothing to round */
        guess->pivot = (float)s.low;
        p = (Powers){0};
    }
    note_sweep(sums, &s, 0);
    settle(sums, &p, n, guess->pivot, guess->unit);
    return 1;
}

/* What is not: the finite ones alone, and as doubles where they are not moderate. */
static void irregular_floats(const float *x, size_t n, Guess *guess, Sums *sums) {
    float kept[BLOCK];
    double wide[BLOCK];
    size_t m = 0;
    for (size_t i = 0; i < n; i++)
        if (is_finite_counted(x[i], sums)) kept[m++] = x[i];
    if (m == 0) return;
    if (m < n && regular_floats((const char *)kept, m, F32, guess, sums)) return;
    for (size_t i = 0; i < m; i++) wide[i] = kept[i];
    block_doubles(wide, m, sums);
}

/* One block of any type but float64; says whether all its elements were finite and moderate. */
static int block_floats(const Tensor *tensor, size_t first, size_t n, Guess *guess, Sums *sums) {
    const char *data = tensor->data + first * itemsize(tensor->dtype);
    if (regular_floats(data, n, tensor->dtype, guess, sums)) return 1;
    float scratch[BLOCK];
    irregular_floats(load_floats(tensor, first, n, scratch), n, guess, sums);
    return 0;
}
