/* Vectors of WIDTH bytes on the compiler's vector extensions: the passes are the same source for
 * every instruction set, and what differs between the sets stands here. */
#include <string.h>

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
/* Of each 16 bytes of the table those whose places are said; 0 where a place is over 15. */
static inline vb index_of(vb v) { return (vb)X86(adds_epu8)(BITS(v), X86(set1_epi8)(0x70)); }
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
static inline vb index_of(vb v) { return v; }
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
