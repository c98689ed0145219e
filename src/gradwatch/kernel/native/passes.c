/* The passes over memory, once per instruction set: this file for every processor, and avx2.c and
 * avx512.c, which set WIDTH and include it. Everything after the pragma is compiled for that set. */
#ifndef WIDTH
#define WIDTH 16 /* bytes of a vector; every 64-bit processor has them, but for the first x86 */
#endif
#if WIDTH == 16 || defined(__x86_64__)
#include "kernel.h"

#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if WIDTH == 64
#define FEATURES "avx512f,avx512bw,avx512vl,avx512dq,fma,f16c"
#elif WIDTH == 32
#define FEATURES "avx2,fma,f16c"
#elif defined(__x86_64__)
#define FEATURES "ssse3"
#endif
#define QUOTE(words) #words
#define QUOTED(words) QUOTE(words)
#define PRAGMA(words) _Pragma(QUOTE(words))
#if defined(FEATURES) && defined(__clang__)
PRAGMA(clang attribute push(__attribute__((target(FEATURES))), apply_to = function))
#elif defined(FEATURES)
PRAGMA(GCC target(FEATURES))
#endif

/* -- vectors of WIDTH bytes: what differs between the instruction sets -- */

enum { LANES = WIDTH / 4, WIDE = WIDTH / 8 };

typedef float vf __attribute__((vector_size(WIDTH)));
typedef int32_t vi __attribute__((vector_size(WIDTH)));
typedef uint32_t vu __attribute__((vector_size(WIDTH)));
typedef double vd __attribute__((vector_size(WIDTH)));
typedef uint64_t vq __attribute__((vector_size(WIDTH)));
typedef uint8_t vb __attribute__((vector_size(WIDTH)));
/* Half as many bytes: words about to be widened to the types above. */
typedef uint16_t vh __attribute__((vector_size(WIDTH / 2)));

/* memcpy is how C says "unaligned load"; it compiles to one instruction. */
#define LOAD(type, from) ({ type v_; memcpy(&v_, from, sizeof v_); v_; })

/* A scalar in every lane (x − 0 keeps x as it is, −0 and NaN included). */
static inline vf vf_all(float x) { return x - (vf){0}; }
static inline vu vu_all(uint32_t x) { return x - (vu){0}; }
static inline vq vq_all(uint64_t x) { return x - (vq){0}; }
static inline vb vb_all(uint8_t x) { return x - (vb){0}; }

static inline vf vf_abs(vf v) { return (vf)((vu)v & vu_all(0x7fffffff)); }
static inline vd vd_abs(vd v) { return (vd)((vq)v & vq_all(INT64_MAX)); }

/* The lanes summed in their order. */
#define SUM(type, vector) ({                                                             \
    __typeof__(vector) v_ = vector;                                                      \
    type sum_ = 0;                                                                       \
    for (size_t i_ = 0; i_ < sizeof v_ / sizeof v_[0]; i_++) sum_ += (type)v_[i_];       \
    sum_; })

/* What differs. */

#if defined(__x86_64__)
#if WIDTH == 64
#define SET avx512
#define X86(operation) _mm512_##operation
#define BITS(v) ((__m512i)(v))
#define NO_BITS _mm512_setzero_si512()
typedef __m512 FLOATS;
static inline vd vf_low(vf v) { return (vd)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)v)); }
static inline vd vf_high(vf v) { return (vd)_mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)v, 1)); }
static inline float vf_least(vf v) { return _mm512_reduce_min_ps((__m512)v); }
#elif WIDTH == 32
#define SET avx2
#define X86(operation) _mm256_##operation
#define BITS(v) ((__m256i)(v))
#define NO_BITS _mm256_setzero_si256()
typedef __m256 FLOATS;
static inline vd vf_low(vf v) { return (vd)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)v)); }
static inline vd vf_high(vf v) { return (vd)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)v, 1)); }
#else
#define SET base
#define X86(operation) _mm_##operation
#define BITS(v) ((__m128i)(v))
#define NO_BITS _mm_setzero_si128()
typedef __m128 FLOATS;
#endif
static inline vf vf_min(vf a, vf b) { return (vf)X86(min_ps)((FLOATS)a, (FLOATS)b); }
static inline vf vf_max(vf a, vf b) { return (vf)X86(max_ps)((FLOATS)a, (FLOATS)b); }
static inline vf vf_sqrt(vf v) { return (vf)X86(sqrt_ps)((FLOATS)v); }
/* The byte of each 16 of the table that an index from 0 to 15 says; 0 for one from 128. */
static inline vb look_up(vb table, vb index) {
    return (vb)X86(shuffle_epi8)(BITS(table), BITS(index));
}
/* Sums of eight bytes each. */
static inline vq vb_sums(vb v) { return (vq)X86(sad_epu8)(BITS(v), NO_BITS); }
#else
#define SET base
static inline vf vf_pick(vi mask, vf a, vf b) { return (vf)(((vi)a & mask) | ((vi)b & ~mask)); }
static inline vf vf_min(vf a, vf b) { return vf_pick(a < b, a, b); }
static inline vf vf_max(vf a, vf b) { return vf_pick(a > b, a, b); }
static inline vf vf_sqrt(vf v) { return (vf){sqrtf(v[0]), sqrtf(v[1]), sqrtf(v[2]), sqrtf(v[3])}; }
static inline vb look_up(vb table, vb index) {
    for (int i = 0; i < WIDTH; i++) index[i] = index[i] < 16 ? table[index[i]] : 0;
    return index;
}
static inline vq vb_sums(vb v) { return (vq){SUM(uint64_t, v)}; }
#endif

#if WIDTH == 16
static inline vd vf_low(vf v) { return (vd){v[0], v[1]}; }
static inline vd vf_high(vf v) { return (vd){v[2], v[3]}; }
#endif
#if WIDTH < 64
static inline float vf_least(vf v) {
    float least = v[0];
    for (int i = 1; i < LANES; i++) least = v[i] < least ? v[i] : least;
    return least;
}
#endif

#if WIDTH > 16
static inline vf half_to_float(vh half) {
    typedef long long Half __attribute__((vector_size(WIDTH / 2)));
    return (vf)X86(cvtph_ps)((Half)half);
}
#else
/* float16 by arithmetic: its exponent and mantissa in a float's place are 2^112 times too small,
 * and so small that older processors multiply them slowly. Inf and NaN get the largest exponent. */
static inline vf half_to_float(vh half) {
    vu bits = __builtin_convertvector(half, vu), magnitude = (bits & 0x7fff) << 13;
    vu special = (vu)((bits & 0x7c00) == 0x7c00) & 0x7f800000;
    return (vf)((vu)((vf)magnitude * 0x1p112f) | special | (bits & 0x8000) << 16);
}
#endif

/* In functions marked so `dtype` and the like are constants at every call: each has its own
 * loop. */
#define INLINE static inline __attribute__((always_inline))

/* -- elements of any type as floats or doubles, a block at a time -- */

/* The bits of one element. */
INLINE uint64_t word_at(const char *x, size_t i, size_t size) {
    if (size == 2) return ((const uint16_t *)x)[i];
    return size == 4 ? ((const uint32_t *)x)[i] : ((const uint64_t *)x)[i];
}

/* The processor's own prefetching stops at every page; this one looks a page ahead. Beyond the end
 * of a tensor it is harmless: prefetching an address that cannot be read does nothing. */
static inline void prefetch(const char *x, size_t bytes) {
    for (size_t line = 0; line < bytes; line += 64) __builtin_prefetch(x + 4096 + line);
}

/* n elements of a type that is not float64: in place, or widened to `scratch`. */
static const float *load_floats(const char *from, size_t n, int dtype, float *scratch) {
    const uint16_t *words = (const uint16_t *)from;
    uint16_t padded[LANES] = {0};
    if (dtype == F32) return (const float *)from;
    for (size_t i = 0; dtype == BF16 && i < n; i++) {
        uint32_t bits = (uint32_t)words[i] << 16; /* a bfloat16 is the upper half of a float32 */
        memcpy(scratch + i, &bits, sizeof bits);
    }
    for (size_t i = 0; dtype == F16 && i < n; i += LANES) {
        size_t some = smaller(LANES, n - i);
        const uint16_t *x = words + i;
        if (some < LANES) x = memcpy(padded, x, some * sizeof *x);
        vf values = half_to_float(LOAD(vh, x));
        memcpy(scratch + i, &values, some * sizeof *scratch);
    }
    return scratch;
}

/* n elements of any type as doubles. */
static const double *load_doubles(const void *from, size_t n, int dtype, double *scratch) {
    if (dtype == F64) return from;
    float narrow[BLOCK];
    const float *x = load_floats(from, n, dtype, narrow);
    for (size_t i = 0; i < n; i++) scratch[i] = x[i];
    return scratch;
}

/* -- moments: what floats and doubles have in common --
 *
 * Extremes and sums of one block, and central powers around a pivot near the mean. Raw power sums
 * would lose everything to cancellation where the mean is large beside the spread. */

typedef struct { double absolute, low, high; uint64_t zeros; } Sweep;

static inline double sweep_largest(const Sweep *s) { return fmax(fabs(s->low), fabs(s->high)); }

/* Sums of the powers of (x − pivot)·scale. */
typedef struct { double p1, p2, p3, p4; } Powers;

static inline void add_powers(Powers *p, double d) {
    double square = d * d;
    p->p1 += d, p->p2 += square, p->p3 += square * d, p->p4 += square * square;
}

/* Whether the pivot is so far from the mean that moving the powers there would cancel digits. */
static inline int is_far(const Powers *p, size_t n) {
    return p->p1 * p->p1 > 0.1 * (double)n * p->p2;
}

/* From powers around the pivot to powers around the true mean; they were in units of `unit`. */
static void settle(Sums *sums, const Sweep *s, const Powers *p, size_t n, double pivot,
                   double unit) {
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
    sums->zeros = s->zeros, sums->absolute = s->absolute;
    sums->low = s->low, sums->high = s->high;
}

/* The range in which fourth powers of doubles are harmless, and in which even floats that differ by
 * one in the last place have a scale that is a float. */
static inline int is_moderate(const Sweep *s) {
    double largest = sweep_largest(s);
    return s->absolute < 0x1p120 && (largest > 0x1p-100 || largest == 0.0);
}

/* Count a non-finite element, or say that it is finite. */
static inline int is_finite_counted(double x, Sums *sums) {
    if (__builtin_expect(isfinite(x), 1)) return 1;
    if (isnan(x)) sums->nan++;
    else if (x > 0) sums->pos_inf++;
    else sums->neg_inf++;
    return 0;
}

/* -- moments of doubles, and of floats that are not finite or not moderate -- */

static Powers powers_doubles(const double *x, size_t n, double pivot, double *absolute) {
    vd p1 = {0}, p2 = {0}, p3 = {0}, p4 = {0}, sum = {0};
    size_t i = 0;
    for (; i + WIDE <= n; i += WIDE) {
        vd a = LOAD(vd, x + i) - pivot, aa = a * a;
        p1 += a, p2 += aa, p3 += aa * a, p4 += aa * aa, sum += vd_abs(a);
    }
    Powers p = {SUM(double, p1), SUM(double, p2), SUM(double, p3), SUM(double, p4)};
    *absolute = SUM(double, sum);
    for (; i < n; i++) add_powers(&p, x[i] - pivot), *absolute += fabs(x[i] - pivot);
    return p;
}

/* The finite elements, scaled into the middle of the range where their powers could leave it. */
static void block_doubles(const double *x, size_t n, Sums *sums) {
    double kept[BLOCK], low = INFINITY, high = -INFINITY, pivot = 0.0, absolute, unused;
    size_t m = 0, zeros = 0;
    for (size_t i = 0; i < n; i++) {
        if (!is_finite_counted(x[i], sums)) continue;
        kept[m++] = x[i], zeros += x[i] == 0.0;
        low = x[i] < low ? x[i] : low, high = x[i] > high ? x[i] : high;
    }
    if (m == 0) return;
    int exponent = common_exponent(fmax(fabs(low), fabs(high)));
    for (size_t i = 0; exponent && i < m; i++) kept[i] = ldexp(kept[i], -exponent);
    Powers p = powers_doubles(kept, m, 0.0, &absolute);
    /* Around the mean, and around what is left of it where it was far away. */
    for (int tries = 0; tries < 2 && (tries == 0 || is_far(&p, m)); tries++) {
        pivot += p.p1 / (double)m;
        p = powers_doubles(kept, m, pivot, &unused);
    }
    settle(sums, &(Sweep){absolute, low, high, zeros}, &p, m, pivot, 1.0);
    sums->exponent = exponent;
}

/* -- moments of floats (and what is widened to them), in one pass around a guess --
 *
 * The guess is the mean and size of the block before. That leaves the processor time to fetch
 * memory meanwhile. Afterwards it is known whether the guess was good; where it was not, another
 * pass over the block, by now in the first-level cache, is. */

/* Float sums may take this many terms per lane before they move to double: with constant terms
 * every rounding goes the same way, and 32 of them stay well under one in a million. */
enum { TERMS = 32 };

/* A pivot, and a power of two that brings (x − pivot)·scale near 1, so that no power overflows a
 * float and none that matters underflows. The product with it is exact. */
typedef struct {
    float pivot, scale, unit; /* unit: 1 / scale */
} Guess;

/* Running sums of one stream of vectors: four powers, and the magnitudes. Two streams hide the
 * additions' latency, where there are registers for two. */
enum { STREAMS = WIDTH == 64 ? 2 : 1, SUMS = 5 };

typedef struct {
    vf sums[SUMS], low, high, least; /* least: of the magnitudes */
} Lane;

static inline void lane_add(Lane *lane, vf x, vf factor, vf shift) {
    vf d = x * factor - shift, square = d * d, magnitude = vf_abs(x);
    lane->sums[0] += d, lane->sums[1] += square;
    lane->sums[2] += square * d, lane->sums[3] += square * square;
    lane->sums[4] += magnitude;
    lane->least = vf_min(lane->least, magnitude);
    lane->low = vf_min(lane->low, x), lane->high = vf_max(lane->high, x);
}

/* Everything about a block, around the guess. */
static void sweep(const float *x, size_t n, Guess guess, Sweep *s, Powers *p) {
    size_t i = 0;
    vf factor = vf_all(guess.scale), shift = vf_all(guess.pivot * guess.scale);
    vf most = vf_all(INFINITY);
    Lane start = {.low = most, .high = -most, .least = most}, lanes[2] = {start, start};
    vd total[SUMS] = {{0}};
    while (i + 2 * LANES <= n) {
        size_t stop = smaller(n - 2 * LANES + 1, i + TERMS * STREAMS * LANES);
        for (; i < stop; i += 2 * LANES) {
            prefetch((const char *)(x + i), 2 * WIDTH);
            lane_add(&lanes[0], LOAD(vf, x + i), factor, shift);
            lane_add(&lanes[STREAMS - 1], LOAD(vf, x + i + LANES), factor, shift);
        }
        for (int k = 0; k < SUMS * STREAMS; k++) { /* before the floats grow inexact */
            vf *sum = &lanes[k / SUMS].sums[k % SUMS];
            total[k % SUMS] += vf_low(*sum) + vf_high(*sum);
            *sum = (vf){0};
        }
    }
    Lane *last = &lanes[STREAMS - 1];
    *p = (Powers){SUM(double, total[0]), SUM(double, total[1]), SUM(double, total[2]),
                  SUM(double, total[3])};
    *s = (Sweep){SUM(double, total[4]), vf_least(vf_min(lanes[0].low, last->low)),
                 -vf_least(-vf_max(lanes[0].high, last->high)), 0};
    /* One minimum tells whether there is a zero at all; only then they are counted. */
    if (vf_least(vf_min(lanes[0].least, last->least)) == 0.0f)
        for (size_t k = 0; k < i; k++) s->zeros += x[k] == 0.0f;
    for (; i < n; i++) { /* the last elements, in double */
        add_powers(p, ((double)x[i] - guess.pivot) * guess.scale);
        s->absolute += fabs(x[i]), s->zeros += x[i] == 0.0f;
        s->low = x[i] < s->low ? x[i] : s->low, s->high = x[i] > s->high ? x[i] : s->high;
    }
}

/* Whether powers around the guess have all the digits they should. */
static inline int is_good(Guess guess, const Sweep *s, const Powers *p, size_t n) {
    /* Squared distance from the pivot, scaled. */
    return p->p2 > 0x1p-40 * (double)n && p->p2 < 0x1p40 * (double)n && !is_far(p, n) &&
           sweep_largest(s) * guess.scale < 0x1p28;
}

/* A block whose elements are finite and moderate; 0 if they are not. */
static int regular_floats(const float *x, size_t n, Guess *guess, Sums *sums) {
    Sweep s;
    Powers p;
    int exponent;
    sweep(x, n, *guess, &s, &p);
    /* A NaN or Inf reaches the sum of magnitudes; a comparison with NaN is false. */
    if (!is_moderate(&s)) return 0;
    for (int tries = 0; tries < 2 && s.low < s.high && !is_good(*guess, &s, &p, n); tries++) {
        /* The pivot first, then a scale that suits the distance from it. */
        double mean = guess->pivot + p.p1 / (double)n * guess->unit;
        if (!(mean >= s.low && mean <= s.high)) mean = 0.5 * (s.low + s.high);
        guess->pivot = (float)mean;
        frexp(fmax(s.high - guess->pivot, guess->pivot - s.low), &exponent);
        guess->scale = ldexpf(1.0f, -exponent), guess->unit = ldexpf(1.0f, exponent);
        sweep(x, n, *guess, &s, &p);
    }
    if (s.low == s.high) { /* constant: nothing to round */
        guess->pivot = (float)s.low;
        p = (Powers){0};
    }
    settle(sums, &s, &p, n, guess->pivot, guess->unit);
    return 1;
}

/* -- the signed power-of-two histogram, exactly --
 *
 * Each element of a block becomes a byte: its sign, and its exponent over a base 127 octaves under
 * the largest. From the largest down, octave after octave is compared with all bytes, and the hits
 * are counted. A few octaves hold nearly everything; what is left goes one by one. */

enum { WORTH_CODES = 256, MOST_OCTAVES = 64 };

typedef struct {
    uint64_t *bins[2]; /* negative, positive */
    int lowest;
    double multiplier;
} Histogram;

static inline void count_one(const Histogram *h, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    int biased = (int)(bits >> 52) & 0x7ff, exponent = biased - 1023;
    uint64_t mantissa = bits & 0xfffffffffffff;
    if (biased == 0x7ff || (biased == 0 && mantissa == 0)) return;
    if (biased == 0) exponent = -1011 - __builtin_clzll(mantissa); /* subnormal: the leading bit */
    h->bins[!(bits >> 63)][exponent - h->lowest]++;
}

/* Four vectors of floats as one of bytes, in any order. */
static inline vb codes_of(vu a, vu b, vu c, vu d, vb base) {
    vu upper = (a & 0xffff0000u) | b >> 16, lower = (c & 0xffff0000u) | d >> 16;
    /* In 16 bits: 1 sign, 8 exponent, 7 mantissa. */
    vb exponents = (vb)((upper << 1 & 0xff00ff00u) | (lower >> 7 & 0x00ff00ffu));
    vb signs = (vb)((upper & 0x80008000u) | (lower >> 8 & 0x00800080u));
    return signs | ((exponents - base) & (vb)(exponents > base));
}

/* Codes of n elements, and zeros up to a whole vector; gives how many. */
static size_t write_codes(const float *x, size_t n, int base, uint8_t *codes) {
    size_t i = 0;
    vb bases = vb_all((uint8_t)base);
    float rest[4 * LANES] = {0};
    for (; i < n; i += WIDTH) {
        const float *from = x + i;
        if (n - i < WIDTH) from = memcpy(rest, from, (n - i) * sizeof *from);
        vb some = codes_of(LOAD(vu, from), LOAD(vu, from + LANES), LOAD(vu, from + 2 * LANES),
                           LOAD(vu, from + 3 * LANES), bases);
        memcpy(codes + i, &some, sizeof some);
    }
    return i;
}

/* How many bytes of one sign are `top`, `top` − 1 and so on: 16 counts. A table look-up turns a
 * byte into the increments of two counters of four bits, which are emptied before they overflow. */
static void count_codes(const uint8_t *codes, size_t size, int top, int sign, uint64_t found[16]) {
    vb from = vb_all((uint8_t)top), flip = vb_all((uint8_t)sign), tables[8];
    vq first = {0};
    for (int lane = 0; lane < WIDE; lane += 2) first[lane] = UINT64_MAX;
    for (int k = 0; k < 8; k++)
        tables[k] = (vb)(vq_all((uint64_t)0x1001 << 16 * (k % 4)) & (k < 4 ? first : ~first));
    memset(found, 0, 16 * sizeof *found);
    for (size_t i = 0, end; i < size;) {
        size_t stop = smaller(size, i + 16 * 15 * WIDTH);
        vb even[8] = {{0}}, odd[8] = {{0}};
        while (i < stop) {
            vb sums[8] = {{0}};
            for (end = smaller(stop, i + 15 * WIDTH); i < end; i += WIDTH) {
                vb place = from - (LOAD(vb, codes + i) ^ flip);
                place |= (vb)(place > 15); /* not one of these: looks up 0 */
#pragma GCC unroll 8
                for (int k = 0; k < 8; k++) sums[k] += look_up(tables[k], place);
            }
#pragma GCC unroll 8
            for (int k = 0; k < 8; k++)
                even[k] += sums[k] & 15, odd[k] += (vb)((vq)sums[k] >> 4) & 15;
        }
        for (int k = 0; k < 8; k++) {
            uint64_t both = SUM(uint64_t, vb_sums(even[k]) | vb_sums(odd[k]) << 32);
            found[2 * k] += both & UINT32_MAX, found[2 * k + 1] += both >> 32;
        }
    }
}

/* A block of floats. `largest`: of their magnitudes, NaN where some are not finite; `zeros`: how
 * many. */
static void count_floats(const Histogram *h, const float *x, size_t n, float largest,
                         size_t zeros) {
    uint8_t codes[BLOCK + WIDTH] __attribute__((aligned(64)));
    float scaled[BLOCK], multiplier = (float)h->multiplier;
    for (size_t i = 0; h->multiplier != 1.0 && i < n; i++) scaled[i] = x[i] * multiplier;
    if (h->multiplier != 1.0) x = scaled, largest *= multiplier;
    uint32_t bits;
    memcpy(&bits, &largest, sizeof bits);
    int top = (int)(bits >> 23 & 0xff), base = top > 127 ? top - 127 : 0, code = top - base;
    int shift = base - 127 - h->lowest, last = code - MOST_OCTAVES < 0 ? 0 : code - MOST_OCTAVES;
    uint64_t left = n - zeros, found[16];
    if (top < 255 && n >= WORTH_CODES) {
        size_t size = write_codes(x, n, base, codes);
        for (; code > last && left > 0; code -= 16)
            for (int sign = 0; sign < 2; sign++) {
                count_codes(codes, size, code, 0x80 * sign, found);
                for (int k = 0; k < 16 && k < code; k++)
                    h->bins[!sign][code - k + shift] += found[k], left -= found[k];
            }
    }
    /* Some are much smaller than the largest, or nothing is counted yet. */
    for (size_t i = 0; left > 0 && i < n; i++) {
        memcpy(&bits, x + i, sizeof bits);
        if ((int)(bits >> 23 & 0xff) - base <= (code > 0 ? code : 0)) count_one(h, x[i]);
    }
}

/* -- rows -- */

/* Whether some element is not zero; most rows are left at the first look. The mask has all bits but
 * the signs, so that −0 is zero too. */
static int is_touched(const char *row, size_t bytes, uint64_t mask) {
    for (size_t i = 0; i < bytes; i += sizeof mask) {
        uint64_t word = 0;
        memcpy(&word, row + i, smaller(bytes - i, sizeof word));
        if (word & mask) return 1;
    }
    return 0;
}

/* The number of rows that are all zero among those that begin in [first, first + n), of which
 * `zeros` elements are zero; marks the others where asked to. */
static uint64_t zero_rows(const Tensor *tensor, size_t first, size_t n, uint64_t zeros,
                          uint8_t *touched) {
    if (tensor->rows == 0 || tensor->count == 0) return 0;
    size_t length = tensor->count / tensor->rows, bytes = length * itemsize(tensor->dtype);
    size_t row = (first + length - 1) / length, stop = (first + n + length - 1) / length;
    if (zeros < length && (first + n) / length > row) {
        /* Too few zeros for a row: nothing to look for, but in a last one that ends elsewhere. */
        size_t whole = (first + n) / length - row;
        if (touched) memset(touched + row, 1, whole);
        row += whole;
    }
    uint64_t mask = tensor->dtype == F64   ? 0x7fffffffffffffff
                    : tensor->dtype == F32 ? 0x7fffffff7fffffff
                                           : 0x7fff7fff7fff7fff;
    uint64_t found = 0;
    for (; row < stop; row++) {
        int is_marked = is_touched(tensor->data + row * bytes, bytes, mask);
        found += !is_marked;
        if (touched) touched[row] |= (uint8_t)is_marked;
    }
    return found;
}

/* -- measuring: every block is measured and counted while it is in the cache -- */

typedef struct {
    Job job;
    const Outputs *out;
    Sums total;        /* of the pieces of a tensor joined so far */
    uint64_t *counted; /* two rows of bins: of each tensor, or where one thread works, of one */
    size_t written;    /* counts in the table of bins */
} MeasureJob;

/* Where a tensor's elements are counted. */
static uint64_t *counted_bins(const MeasureJob *measure, size_t tensor) {
    size_t slot = measure->job.is_shared ? tensor : 0;
    return measure->counted + slot * 2 * measure->out->bins->width;
}

static void measure_blocks(const char *x, size_t n, int dtype, const Histogram *h, Sums *total) {
    Guess guess = {0.0f, 1.0f, 1.0f};
    *total = (Sums){.low = INFINITY, .high = -INFINITY};
    for (size_t i = 0; i < n; i += BLOCK) {
        const char *from = x + i * itemsize(dtype);
        size_t some = smaller(BLOCK, n - i);
        Sums block = {.low = INFINITY, .high = -INFINITY};
        if (dtype == F64) {
            const double *values = (const double *)from;
            block_doubles(values, some, &block);
            for (size_t k = 0; h && k < some; k++) count_one(h, values[k] * h->multiplier);
        } else {
            float scratch[BLOCK], largest = NAN;
            double wide[BLOCK];
            const float *values = load_floats(from, some, dtype, scratch);
            if (regular_floats(values, some, &guess, &block))
                largest = (float)fmax(fabs(block.low), fabs(block.high));
            else block_doubles(load_doubles(from, some, dtype, wide), some, &block);
            if (h) count_floats(h, values, some, largest, block.zeros);
        }
        if (i == 0) *total = block;
        else sums_join(total, &block);
    }
}

static void measure_piece(const MeasureJob *measure, Piece *piece, uint64_t *own_bins) {
    const Bins *table = measure->out->bins;
    uint8_t *touched = measure->out->touched ? measure->out->touched[piece->tensor] : NULL;
    Tensor tensor = measure->job.batch->items[piece->tensor];
    const char *x = tensor.data + piece->first * itemsize(tensor.dtype);
    /* Where others work on the same tensor, in bins of our own first. */
    int is_shared = table && measure->job.is_shared && piece->n < tensor.count;
    size_t width = table ? table->width : 0;
    uint64_t *bins = table ? counted_bins(measure, piece->tensor) : NULL, *into = bins;
    if (is_shared) into = memset(own_bins, 0, 2 * width * sizeof *bins);
    Histogram h = {{into, into + width}, table ? table->lowest : 0, table ? table->multiplier : 1};
    measure_blocks(x, piece->n, tensor.dtype, table ? &h : NULL, &piece->sums);
    for (size_t i = 0; is_shared && i < 2 * width; i++)
        if (own_bins[i]) __atomic_fetch_add(bins + i, own_bins[i], __ATOMIC_RELAXED);
    piece->sums.zero_rows = zero_rows(&tensor, piece->first, piece->n, piece->sums.zeros, touched);
}

static void measure_share(Job *job) {
    uint64_t own_bins[2 * DOUBLE_BINS];
    for (Piece *piece; (piece = next_piece(job));)
        measure_piece((const MeasureJob *)job, piece, own_bins);
}

/* Move a tensor's bins into the table, from the first occupied one to the last. */
static void write_bins(MeasureJob *measure, size_t tensor) {
    const Bins *table = measure->out->bins;
    size_t row = table->width, first = 0, stop = row;
    uint64_t *negative = counted_bins(measure, tensor), *positive = negative + row;
    while (first < stop && !(negative[first] | positive[first])) first++;
    while (first < stop && !(negative[stop - 1] | positive[stop - 1])) stop--;
    size_t size = stop - first, bytes = size * sizeof *negative;
    uint64_t *to = table->counts + measure->written;
    memcpy(to, negative + first, bytes);
    memcpy(to + size, positive + first, bytes);
    memset(negative + first, 0, bytes);
    memset(positive + first, 0, bytes);
    measure->written += 2 * size;
    table->first_exponents[tensor] = size ? table->lowest + (int64_t)first : 0;
    table->sizes[tensor] = (int64_t)size;
}

static void measure_join(Job *job, const Piece *piece) {
    MeasureJob *measure = (MeasureJob *)job;
    if (piece->first == 0) measure->total = piece->sums;
    else sums_join(&measure->total, &piece->sums);
    if (!is_last(job, piece)) return;
    sums_finish(&measure->total, job->batch->items[piece->tensor].count,
                &measure->out->records[piece->tensor]);
    if (measure->out->bins) write_bins(measure, piece->tensor);
}

static void measure(const Batch *batch, const Outputs *out) {
    MeasureJob measure = {.job = {.batch = batch, .share = measure_share, .join = measure_join},
                          .out = out};
    int threads = useful_threads(batch);
    uint64_t one[2 * DOUBLE_BINS], *all = NULL;
    if (out->bins) {
        size_t size = 2 * out->bins->width * sizeof *one;
        if (threads > 1) all = calloc(batch->n, size);
        if (!all) threads = 1, memset(one, 0, size);
        measure.counted = all ? all : one;
    }
    run_job(&measure.job, threads);
    free(all);
}

/* -- hashes: a mark of every bit of a tensor, additive over shards, because the flat index in the
 * whole tensor is mixed in -- */

#define GOLDEN 0x9E3779B97F4A7C15u

INLINE uint64_t hash_some(const char *x, size_t n, size_t size, uint64_t at) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t word = word_at(x, i, size) + (at + i) * GOLDEN; /* bits and place */
        word = (word ^ (word >> 32)) * 0xBF58476D1CE4E5B9u;
        sum += word ^ (word >> 29);
    }
    return sum;
}

typedef struct {
    Job job;
    const int64_t *offsets;
    uint64_t *out;
} HashJob;

static void hash_share(Job *job) {
    for (Piece *piece; (piece = next_piece(job));) {
        Tensor tensor = job->batch->items[piece->tensor];
        const char *x = tensor.data + piece->first * itemsize(tensor.dtype);
        uint64_t at = (uint64_t)((const HashJob *)job)->offsets[piece->tensor] + piece->first;
        piece->mark = tensor.dtype == F32   ? hash_some(x, piece->n, 4, at)
                      : tensor.dtype == F64 ? hash_some(x, piece->n, 8, at)
                                            : hash_some(x, piece->n, 2, at);
    }
}

static void hash_join(Job *job, const Piece *piece) {
    uint64_t *out = ((HashJob *)job)->out + piece->tensor;
    *out = piece->mark + (piece->first == 0 ? 0 : *out);
}

static void hashes(const Batch *batch, const int64_t *offsets, uint64_t *out) {
    HashJob all = {.job = {.batch = batch, .share = hash_share, .join = hash_join},
                   .offsets = offsets, .out = out};
    run_job(&all.job, useful_threads(batch));
}

/* -- what an optimizer's step changed, and how Adam's ratio g/(√v̂+ε) is distributed --
 *
 * One pass over the weights before and after, the gradient and the second moment, or over those of
 * them there are. Ratios are taken in float where no stream is float64, everything is summed in
 * double; a block of which floats cannot tell the ratio goes through once more as doubles. */

enum { CHANGE = 1, GRADIENT = 2, RATIO = 4 };

/* One tensor's streams (before, after, gradient, second moment), which of them there are (`parts`),
 * and Adam's constants. */
typedef struct {
    Tensor streams[4];
    int parts, is_wide; /* wide: one of the streams is float64 */
    double correction, eps;
    float factor, divisor, below;
} Step;

/* What is known of a block: sums of squares of changes, weights and ratios, and counters. */
typedef struct { double squares[3]; uint64_t counts[COUNTERS]; } Found;

/* Put the finite lanes to a sum of squares; gives which they are. */
static inline vi add_square(vd *squares, vf x) {
    vi finite = (vi)(vf_abs(x) < vf_all(INFINITY));
    vf y = (vf)((vi)x & finite);
    vd low = vf_low(y), high = vf_high(y);
    *squares += low * low + high * high;
    return finite;
}

INLINE Found sweep_step(const Step *step, const float *const from[4], size_t n, int parts) {
    vd squares[3] = {{0}};
    vf zero = {0};
    vi counts[COUNTERS] = {{0}}; /* −1 per hit */
    float rest[4][LANES] = {{0}};
    Found found;
    memset(rest[3], 0xff, sizeof rest[3]); /* NaN: adds nothing, counts nothing */
    for (size_t i = 0; i < n; i += LANES) {
        vf x[4];
        for (int k = 0; k < 4; k++) {
            if (from[k]) prefetch((const char *)(from[k] + i), WIDTH);
            if (from[k] && n - i < LANES) memcpy(rest[k], from[k] + i, (n - i) * sizeof(float));
            x[k] = LOAD(vf, from[k] && n - i >= LANES ? from[k] + i : rest[k]);
        }
        vf before = x[0], after = x[1], grad = x[2], second = x[3];
        vi differs = (vi)((vu)before != (vu)after), has = (vi)(grad != zero);
        if (parts & CHANGE) {
            vi good = add_square(&squares[0], after - before);
            vi real = add_square(&squares[1], before);
            counts[STRANGE] += ~good & real & (vi)(vf_abs(after) < vf_all(INFINITY));
            counts[CHANGED] += differs;
        }
        if (parts & GRADIENT) counts[WITH] += has;
        if (parts & GRADIENT && parts & CHANGE) counts[LOST] += has & ~differs;
        if (!(parts & RATIO)) continue;
        vi real = (vi)(second >= zero);
        vi good = add_square(&squares[2], grad / (vf_sqrt(second) * step->factor + step->divisor));
        counts[FINITE] += good;
        counts[UNDER] += real & (vi)(second < vf_all(step->below));
        counts[STRANGE] += ~good & real & (vi)(vf_abs(grad) < vf_all(INFINITY));
    }
    for (int k = 0; k < 3; k++) found.squares[k] = SUM(double, squares[k]);
    for (int k = 0; k < COUNTERS; k++) found.counts[k] = (uint64_t)-SUM(int64_t, counts[k]);
    return found;
}

static Found sweep_floats(const Step *step, size_t first, size_t n) {
    float scratch[4][BLOCK];
    const float *x[4];
    for (int k = 0; k < 4; k++) {
        const Tensor *tensor = &step->streams[k];
        const char *data = tensor->data ? tensor->data + first * itemsize(tensor->dtype) : NULL;
        x[k] = data ? load_floats(data, n, tensor->dtype, scratch[k]) : NULL;
    }
    if (step->parts == CHANGE) return sweep_step(step, x, n, CHANGE);
    if (step->parts == (CHANGE | GRADIENT)) return sweep_step(step, x, n, CHANGE | GRADIENT);
    if (step->parts == (GRADIENT | RATIO)) return sweep_step(step, x, n, GRADIENT | RATIO);
    return sweep_step(step, x, n, CHANGE | GRADIENT | RATIO);
}

static inline int add_scaled(double *squares, double x, double scale) {
    if (isfinite(x)) *squares += x * scale * (x * scale);
    return isfinite(x) != 0;
}

/* Everything times `scale` before it is squared. */
static Found sweep_wide(const Step *step, size_t first, size_t n, double scale) {
    double scratch[4][BLOCK] = {{0}};
    const double *x[4];
    Found found = {{0}, {0}};
    for (int k = 0; k < 4; k++) {
        const Tensor *tensor = &step->streams[k];
        const char *data = tensor->data + first * itemsize(tensor->dtype);
        x[k] = tensor->data ? load_doubles(data, n, tensor->dtype, scratch[k]) : scratch[k];
    }
    for (size_t i = 0; i < n; i++) {
        int differs = memcmp(x[0] + i, x[1] + i, sizeof(double)) != 0, with = x[2][i] != 0.0;
        add_scaled(&found.squares[0], x[1][i] - x[0][i], scale);
        add_scaled(&found.squares[1], x[0][i], scale);
        found.counts[CHANGED] += (uint64_t)differs, found.counts[WITH] += (uint64_t)with;
        found.counts[LOST] += step->parts & CHANGE && with && !differs;
        if (!(step->parts & RATIO)) continue;
        double root = sqrt(x[3][i] / step->correction), ratio = x[2][i] / (root + step->eps);
        found.counts[FINITE] += (uint64_t)add_scaled(&found.squares[2], ratio, scale);
        found.counts[UNDER] += root < step->eps;
    }
    return found;
}

static void step_block(const Step *step, size_t first, size_t n, StepSums *sums) {
    Found found = {{0}, {[STRANGE] = 1}};
    if (!step->is_wide) found = sweep_floats(step, first, n);
    /* Something made of good numbers left the range of float, or lost digits at its lower end. */
    int wide = found.counts[STRANGE] || (step->parts & RATIO && found.squares[2] < 0x1p-180);
    if (wide) found = sweep_wide(step, first, n, 1.0);
    for (int k = 0; k < COUNTERS; k++) sums->counts[k] += found.counts[k];
    for (int k = 0; k < 3; k++) {
        double squares = found.squares[k];
        int exponent = !wide || (squares > 0x1p-900 && squares < 0x1p1000) ? 0
                       : squares > 1.0                                     ? 540
                                                                           : -600;
        /* Squares of such doubles are none: once more, scaled into the middle. */
        if (exponent) squares = sweep_wide(step, first, n, ldexp(1.0, -exponent)).squares[k];
        norm_add(&sums->norms[k], squares, exponent);
    }
}

static Step step_of(const Steps *all, size_t t) {
    Step step = {.parts = 0};
    const Batch *batches[] = {all->before, all->after, all->grads, all->second};
    const int parts[] = {CHANGE, CHANGE, GRADIENT, RATIO};
    for (int k = 0; k < 4; k++) {
        if (!batches[k] || batches[k]->items[t].count == 0) continue;
        if (parts[k] == RATIO && !(step.parts & GRADIENT)) continue;
        step.streams[k] = batches[k]->items[t];
        step.parts |= parts[k], step.is_wide |= step.streams[k].dtype == F64;
    }
    if (!(step.parts & RATIO)) return step;
    step.correction = all->correction[t], step.eps = all->eps[t];
    step.factor = (float)(1.0 / sqrt(step.correction)), step.divisor = (float)step.eps;
    /* v < below exactly where √(v / correction) < eps, for float v: the smallest float not
     * under. */
    double exact = step.eps * step.eps * step.correction;
    step.below = (float)exact;
    if (exact > 0.0 && step.below < exact) step.below = nextafterf(step.below, INFINITY);
    /* Beyond these the denominator or its reciprocal could leave the range of float. */
    step.is_wide |= !(step.factor < 0x1p40f && step.divisor < 0x1p100f);
    return step;
}

typedef struct {
    Job job;
    const Steps *steps;
    StepSums total; /* of the pieces of a tensor joined so far */
} StepJob;

static void step_share(Job *job) {
    for (Piece *piece; (piece = next_piece(job));) {
        Step step = step_of(((const StepJob *)job)->steps, piece->tensor);
        piece->step = (StepSums){0};
        for (size_t i = 0; i < piece->n; i += BLOCK)
            step_block(&step, piece->first + i, smaller(BLOCK, piece->n - i), &piece->step);
    }
}

static void step_join(Job *job, const Piece *piece) {
    StepJob *all = (StepJob *)job;
    size_t t = piece->tensor;
    StepSums *sums = &all->total;
    if (piece->first == 0) *sums = (StepSums){0};
    for (int k = 0; k < COUNTERS; k++) sums->counts[k] += piece->step.counts[k];
    for (int k = 0; k < 3; k++)
        norm_add(&sums->norms[k], piece->step.norms[k].squares, piece->step.norms[k].exponent);
    if (!is_last(job, piece)) return;
    const uint64_t *counts = sums->counts;
    if (all->steps->updates)
        all->steps->updates[t] =
            (UpdateRecord){norm_value(&sums->norms[0]), norm_value(&sums->norms[1]),
                           counts[CHANGED], counts[LOST], counts[WITH]};
    if (!all->steps->ratios) return;
    AdamRecord adam = {NAN, NAN};
    if (counts[FINITE]) adam.ratio_rms = norm_value(&sums->norms[2]) / sqrt((double)counts[FINITE]);
    if (step_of(all->steps, t).parts & RATIO)
        adam.eps_fraction = (double)counts[UNDER] / (double)job->batch->items[t].count;
    all->steps->ratios[t] = adam;
}

static void step(const Steps *steps) {
    StepJob all = {.job = {.batch = steps->before ? steps->before : steps->grads,
                           .share = step_share, .join = step_join},
                   .steps = steps};
    run_job(&all.job, useful_threads(all.job.batch));
}

/* -- how many elements are NaN or infinite -- */

/* Of n elements that lie `stride` apart. Integer work only, for exponents of nothing but ones say
 * it. */
INLINE size_t count_nonfinite(const char *x, size_t n, size_t size, size_t stride, uint64_t bits) {
    size_t total = 0;
    for (size_t i = 0; i < n; i++) total += (word_at(x, i * stride, size) & bits) == bits;
    return total;
}

static size_t nonfinite(const void *data, size_t n, int dtype, size_t stride) {
    if (dtype == F64) return count_nonfinite(data, n, 8, stride, 0x7ff0000000000000);
    if (dtype == F32) return count_nonfinite(data, n, 4, stride, 0x7f800000);
    return count_nonfinite(data, n, 2, stride, dtype == F16 ? 0x7c00 : 0x7f80);
}

/* -- the cosine of two samples -- */

static double cosine(const void *a, const void *b, size_t n, int dtype) {
    double room[2][BLOCK], dot = 0.0, aa = 0.0, bb = 0.0;
    const double *x = load_doubles(a, n, dtype, room[0]), *y = load_doubles(b, n, dtype, room[1]);
    vd dots = {0}, as = {0}, bs = {0};
    size_t i = 0;
    for (; i + WIDE <= n; i += WIDE) {
        vd one = LOAD(vd, x + i), other = LOAD(vd, y + i);
        dots += one * other, as += one * one, bs += other * other;
    }
    for (; i < n; i++) dot += x[i] * y[i], aa += x[i] * x[i], bb += y[i] * y[i];
    dot += SUM(double, dots), aa += SUM(double, as), bb += SUM(double, bs);
    double found = dot / sqrt(aa) / sqrt(bb);
    return isfinite(found) ? found : NAN;
}

#define JOINED(a, b) a##_##b
#define NAMED(set) JOINED(kernel, set)
const Kernel NAMED(SET) = {QUOTED(SET), measure, step, hashes, nonfinite, cosine, load_doubles};

#if defined(FEATURES) && defined(__clang__)
PRAGMA(clang attribute pop)
#endif
#endif
