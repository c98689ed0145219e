/* Vectors of WIDTH bytes on the compiler's vector extensions: the passes are the same source for
 * every instruction set, and what differs between the sets stands here. */
#include <string.h>

enum { LANES = WIDTH / 4, WIDE = WIDTH / 8 };

typedef float vf __attribute__((vector_size(WIDTH)));
typedef int32_t vi __attribute__((vector_size(WIDTH)));
typedef uint32_t vu __attribute__((vector_size(WIDTH)));
typedef double vd __attribute__((vector_size(WIDTH)));
typedef int64_t vl __attribute__((vector_size(WIDTH)));
typedef uint64_t vq __attribute__((vector_size(WIDTH)));
typedef uint8_t vb __attribute__((vector_size(WIDTH)));
/* Half as many bytes: words about to be widened to the types above. */
typedef uint32_t vu_half __attribute__((vector_size(WIDTH / 2)));
typedef uint16_t vh __attribute__((vector_size(WIDTH / 2)));
typedef uint16_t vh_half __attribute__((vector_size(WIDTH / 4)));

/* memcpy is how C says "unaligned load"; it compiles to one instruction. */
#define LOAD(type, from) ({ type v_; memcpy(&v_, from, sizeof v_); v_; })

/* A scalar in every lane (x − 0 keeps x as it is, −0 and NaN included). */
static inline vf vf_all(float x) { return x - (vf){0}; }
static inline vd vd_all(double x) { return x - (vd){0}; }
static inline vu vu_all(uint32_t x) { return x - (vu){0}; }
static inline vq vq_all(uint64_t x) { return x - (vq){0}; }
static inline vb vb_all(uint8_t x) { return x - (vb){0}; }

static inline vf vf_pick(vi mask, vf yes, vf no) {
    return (vf)(((vi)yes & mask) | ((vi)no & ~mask));
}

static inline vf vf_abs(vf v) { return (vf)((vu)v & vu_all(0x7fffffff)); }
static inline vd vd_abs(vd v) { return (vd)((vq)v & vq_all(INT64_MAX)); }

/* Lanes summed in a fixed order; integers modulo 2^64. */
static inline double vd_sum(vd v) {
    double total = 0.0;
    for (int i = 0; i < WIDE; i++) total += v[i];
    return total;
}

static inline uint64_t vi_sum(vi v) {
    int64_t total = 0;
    for (int i = 0; i < LANES; i++) total += v[i];
    return (uint64_t)total;
}

static inline uint64_t vq_sum(vq v) {
    uint64_t total = 0;
    for (int i = 0; i < WIDE; i++) total += v[i];
    return total;
}

/* -- what differs: see base.c, avx2.c and avx512.c -- */

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
static inline vf vf_min(vf a, vf b) { return vf_pick(a < b, a, b); }
static inline vf vf_max(vf a, vf b) { return vf_pick(a > b, a, b); }
static inline vf vf_sqrt(vf v) {
    for (int i = 0; i < LANES; i++) v[i] = sqrtf(v[i]);
    return v;
}
static inline vb look_up(vb table, vb index) {
    for (int i = 0; i < WIDTH; i++) index[i] = index[i] < 16 ? table[index[i]] : 0;
    return index;
}
static inline vq vb_sums(vb v) {
    vq sums = ((vq)v & 0x00ff00ff00ff00ff) + ((vq)v >> 8 & 0x00ff00ff00ff00ff);
    sums += sums >> 16;
    return (sums + (sums >> 32)) & 0xffff;
}
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

static inline int is_any(vq v) {
    uint64_t any = 0;
    for (int i = 0; i < WIDE; i++) any |= v[i];
    return any != 0;
}

#if WIDTH > 16
static inline vf half_to_float(vh half) {
    typedef long long Half __attribute__((vector_size(WIDTH / 2)));
    return (vf)X86(cvtph_ps)((Half)half);
}
#else
/* float16 by arithmetic: its exponent and mantissa moved into a float's place want 112 added to the
 * exponent. Subnormal ones get 113, which is 2^-14 too much in value, and that is taken off again:
 * a product with subnormal floats would be right too, and a hundred times as slow. Inf and NaN get
 * the largest exponent. */
static inline vf half_to_float(vh half) {
    vu bits = __builtin_convertvector(half, vu), top = vu_all(0x0f800000);
    vu magnitude = (bits & vu_all(0x7fff)) << 13, exponent = magnitude & top;
    vu normal = magnitude + vu_all(112u << 23);
    vf small = (vf)(magnitude + vu_all(113u << 23)) - vf_all(0x1p-14f);
    vu finite = (vu)vf_pick((vi)(exponent == vu_all(0)), small, (vf)normal);
    vu special = (vu)(exponent == top) & vu_all(0x7f800000);
    return (vf)(finite | special | ((bits & vu_all(0x8000)) << 16));
}
#endif
