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
#define DEFINE_LOAD(type)                              \
    static inline type load_##type(const void *from) { \
        type v;                                        \
        memcpy(&v, from, sizeof v);                    \
        return v;                                      \
    }
DEFINE_LOAD(vf)
DEFINE_LOAD(vu)
DEFINE_LOAD(vd)
DEFINE_LOAD(vq)
DEFINE_LOAD(vb)
DEFINE_LOAD(vu_half)
DEFINE_LOAD(vh)
DEFINE_LOAD(vh_half)
#undef DEFINE_LOAD

/* A scalar in every lane (x − 0 keeps x as it is, −0 and NaN included). */
static inline vf vf_all(float x) { return x - (vf){0}; }
static inline vd vd_all(double x) { return x - (vd){0}; }
static inline vu vu_all(uint32_t x) { return x - (vu){0}; }
static inline vq vq_all(uint64_t x) { return x - (vq){0}; }
static inline vb vb_all(uint8_t x) { return x - (vb){0}; }

static inline vf vf_abs(vf v) { return (vf)((vu)v & vu_all(0x7fffffff)); }
static inline vd vd_abs(vd v) { return (vd)((vq)v & vq_all(INT64_MAX)); }

/* Lanes summed in a fixed order. */
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

/* Of any 64-bit integers, modulo 2^64. */
static inline uint64_t vq_sum(vq v) {
    uint64_t total = 0;
#if WIDTH == 64
    total = (uint64_t)_mm512_reduce_add_epi64((__m512i)v);
#else
    for (int i = 0; i < WIDE; i++) total += v[i];
#endif
    return total;
}

/* The finite lanes; zero in place of the others. */
static inline vd vd_finite(vd v) {
    vq exponent = vq_all(0x7ff0000000000000);
    return (vd)((vq)v & (vq)(((vq)v & exponent) != exponent));
}

/* -- what differs: see base.c, avx2.c and avx512.c -- */

#if WIDTH == 64
#define NAME(name) name##_avx512
#define SET "avx512"
static inline vf vf_min(vf a, vf b) { return (vf)_mm512_min_ps((__m512)a, (__m512)b); }
static inline vf vf_max(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }
static inline vd vd_min(vd a, vd b) { return (vd)_mm512_min_pd((__m512d)a, (__m512d)b); }
static inline vd vd_max(vd a, vd b) { return (vd)_mm512_max_pd((__m512d)a, (__m512d)b); }
static inline vf vf_sqrt(vf v) { return (vf)_mm512_sqrt_ps((__m512)v); }
static inline float vf_least(vf v) { return _mm512_reduce_min_ps((__m512)v); }
static inline vd vf_low(vf v) { return (vd)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)v)); }
static inline vd vf_high(vf v) { return (vd)_mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)v, 1)); }
static inline vf half_to_float(vh half) { return (vf)_mm512_cvtph_ps((__m256i)half); }
static inline vb look_up(vb table, vb i) { return (vb)_mm512_shuffle_epi8((__m512i)table, (__m512i)i); }
static inline int is_any(vq v) { return _mm512_test_epi64_mask((__m512i)v, (__m512i)v) != 0; }
static inline vq vb_sums(vb v) { return (vq)_mm512_sad_epu8((__m512i)v, _mm512_setzero_si512()); }
/* A masked subtraction: comparisons live in mask registers here, and widening one costs a step. */
static inline vi count_zero(vi counter, vf v) {
    __mmask16 zero = _mm512_cmp_ps_mask((__m512)v, _mm512_setzero_ps(), _CMP_EQ_OQ);
    return (vi)_mm512_mask_sub_epi32((__m512i)counter, zero, (__m512i)counter,
                                     _mm512_set1_epi32(-1));
}
#else
static inline vi count_zero(vi counter, vf v) { return counter - (vi)(v == vf_all(0.0f)); }
#endif

#if WIDTH == 32
#define NAME(name) name##_avx2
#define SET "avx2"
static inline vf vf_min(vf a, vf b) { return (vf)_mm256_min_ps((__m256)a, (__m256)b); }
static inline vf vf_max(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
static inline vd vd_min(vd a, vd b) { return (vd)_mm256_min_pd((__m256d)a, (__m256d)b); }
static inline vd vd_max(vd a, vd b) { return (vd)_mm256_max_pd((__m256d)a, (__m256d)b); }
static inline vf vf_sqrt(vf v) { return (vf)_mm256_sqrt_ps((__m256)v); }
static inline vd vf_low(vf v) { return (vd)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)v)); }
static inline vd vf_high(vf v) { return (vd)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)v, 1)); }
static inline vf half_to_float(vh half) { return (vf)_mm256_cvtph_ps((__m128i)half); }
static inline vb look_up(vb table, vb i) { return (vb)_mm256_shuffle_epi8((__m256i)table, (__m256i)i); }
static inline int is_any(vq v) { return !_mm256_testz_si256((__m256i)v, (__m256i)v); }
static inline vq vb_sums(vb v) { return (vq)_mm256_sad_epu8((__m256i)v, _mm256_setzero_si256()); }
#endif

#if WIDTH == 16
#define NAME(name) name##_base
#define SET "base"
static inline vf vf_pick(vi mask, vf yes, vf no) {
    return (vf)(((vi)yes & mask) | ((vi)no & ~mask));
}
#if defined(__x86_64__)
static inline vf vf_min(vf a, vf b) { return (vf)_mm_min_ps((__m128)a, (__m128)b); }
static inline vf vf_max(vf a, vf b) { return (vf)_mm_max_ps((__m128)a, (__m128)b); }
static inline vd vd_min(vd a, vd b) { return (vd)_mm_min_pd((__m128d)a, (__m128d)b); }
static inline vd vd_max(vd a, vd b) { return (vd)_mm_max_pd((__m128d)a, (__m128d)b); }
static inline vf vf_sqrt(vf v) { return (vf)_mm_sqrt_ps((__m128)v); }
static inline vb look_up(vb table, vb i) { return (vb)_mm_shuffle_epi8((__m128i)table, (__m128i)i); }
static inline vq vb_sums(vb v) { return (vq)_mm_sad_epu8((__m128i)v, _mm_setzero_si128()); }
#else
static inline vd vd_pick(vl mask, vd yes, vd no) {
    return (vd)(((vl)yes & mask) | ((vl)no & ~mask));
}
static inline vf vf_min(vf a, vf b) { return vf_pick(a < b, a, b); }
static inline vf vf_max(vf a, vf b) { return vf_pick(a > b, a, b); }
static inline vd vd_min(vd a, vd b) { return vd_pick(a < b, a, b); }
static inline vd vd_max(vd a, vd b) { return vd_pick(a > b, a, b); }
static inline vf vf_sqrt(vf v) {
    return (vf){sqrtf(v[0]), sqrtf(v[1]), sqrtf(v[2]), sqrtf(v[3])};
}
static inline vb look_up(vb table, vb i) {
    vb found;
    for (int lane = 0; lane < WIDTH; lane++) found[lane] = i[lane] < 16 ? table[i[lane]] : 0;
    return found;
}
static inline vq vb_sums(vb v) {
    vq sums = ((vq)v & 0x00ff00ff00ff00ff) + ((vq)v >> 8 & 0x00ff00ff00ff00ff);
    sums += sums >> 16;
    return (sums + (sums >> 32)) & 0xffff;
}
#endif
static inline vd vf_low(vf v) { return (vd){v[0], v[1]}; }
static inline vd vf_high(vf v) { return (vd){v[2], v[3]}; }
static inline int is_any(vq v) { return (v[0] | v[1]) != 0; }
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

#if WIDTH < 64
static inline float vf_least(vf v) {
    float least = v[0];
    for (int i = 1; i < LANES; i++) least = v[i] < least ? v[i] : least;
    return least;
}
#endif
