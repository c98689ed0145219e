/* 64-byte vectors. */
#include "kernel.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "target.h"
TARGET_BEGIN("avx512f,avx512bw,avx512vl,avx512dq,fma,f16c,popcnt")
#define WIDTH 64
#define NAME(name) name##_avx512
#define SET "avx512"
#include "lanes.h"

static inline vf vf_min(vf a, vf b) { return (vf)_mm512_min_ps((__m512)a, (__m512)b); }
static inline vf vf_max(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }
static inline vd vd_min(vd a, vd b) { return (vd)_mm512_min_pd((__m512d)a, (__m512d)b); }
static inline vd vd_max(vd a, vd b) { return (vd)_mm512_max_pd((__m512d)a, (__m512d)b); }
static inline vf vf_floor(vf v) { return (vf)_mm512_floor_ps((__m512)v); }
static inline vd vd_floor(vd v) { return (vd)_mm512_floor_pd((__m512d)v); }
static inline vf half_to_float(vh half) { return (vf)_mm512_cvtph_ps((__m256i)half); }
static inline vd vf_low(vf v) { return (vd)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)v)); }
static inline vd vf_high(vf v) { return (vd)_mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)v, 1)); }

static inline int is_any(vq v) { return _mm512_test_epi64_mask((__m512i)v, (__m512i)v) != 0; }
static inline float vf_least(vf v) { return _mm512_reduce_min_ps((__m512)v); }

/* The lanes whose bit is set, with the other sign. */
static inline vf flip_signs(vf v, uint32_t bits) {
    return (vf)_mm512_mask_xor_epi32((__m512i)v, (__mmask16)bits, (__m512i)v,
                                     _mm512_set1_epi32(INT32_MIN));
}

/* The 32 lanes of a row, turned: lane i goes to i + turn. Of an index only the last 5 bits count. */
static inline void turn_row(const float row[32], int turn, vf turned[2]) {
    __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    __m512i from = _mm512_sub_epi32(lanes, _mm512_set1_epi32(turn));
    __m512 a = _mm512_loadu_ps(row), b = _mm512_loadu_ps(row + 16);
    turned[0] = (vf)_mm512_permutex2var_ps(a, from, b);
    turned[1] = (vf)_mm512_permutex2var_ps(b, from, a);
}

/* A masked subtraction: comparisons live in mask registers here, and widening one costs a step. */
static inline vi count_zero(vi counter, vf v) {
    __mmask16 zero = _mm512_cmp_ps_mask((__m512)v, _mm512_setzero_ps(), _CMP_EQ_OQ);
    return (vi)_mm512_mask_sub_epi32((__m512i)counter, zero, (__m512i)counter,
                                     _mm512_set1_epi32(-1));
}

/* g / (√v · factor + eps). Roots and quotients are slow; instead the processor's estimates of 1/√v
 * and 1/x (14 bits) are bettered by a step of Newton's method each (to about 23). The estimate is
 * infinite for 0, whose root is 0. */
static inline vf vf_ratio(vf g, vf v, vf factor, vf eps) {
    __mmask16 some = _mm512_cmp_ps_mask((__m512)v, _mm512_setzero_ps(), _CMP_NEQ_UQ);
    vf y = (vf)_mm512_maskz_rsqrt14_ps(some, (__m512)v);
    y *= 1.5f - 0.5f * v * y * y;
    vf below = v * y * factor + eps, inverse = (vf)_mm512_rcp14_ps((__m512)below);
    inverse *= 2.0f - below * inverse;
    return g * inverse;
}

/* Stores that go past the caches: see moving.h. */
static inline void store_past(char *to, vq v) { _mm512_stream_si512((__m512i *)to, (__m512i)v); }
static inline void stores_done(void) { _mm_sfence(); }

/* What the histogram's bytes need: see onehot.h. */
#define HAS_SHUFFLE
static inline vq bytes_minus(vq a, vq b) { return (vq)_mm512_subs_epu8((__m512i)a, (__m512i)b); }
static inline vq bytes_plus(vq a, vq b) { return (vq)_mm512_adds_epu8((__m512i)a, (__m512i)b); }
static inline vq signed_minus(vq a, vq b) { return (vq)_mm512_subs_epi8((__m512i)a, (__m512i)b); }
static inline vq majority(vq a, vq b, vq c) {
    return (vq)_mm512_ternarylogic_epi64((__m512i)a, (__m512i)b, (__m512i)c, 0xe8);
}
static inline vq parity(vq a, vq b, vq c) {
    return (vq)_mm512_ternarylogic_epi64((__m512i)a, (__m512i)b, (__m512i)c, 0x96);
}
static inline uint64_t top_bits(vq v) { return _mm512_movepi8_mask((__m512i)v); }
static inline vq shuffle(uint64_t low, uint64_t high, vq index) {
    __m512i table = _mm512_broadcast_i32x4(_mm_set_epi64x((int64_t)high, (int64_t)low));
    return (vq)_mm512_shuffle_epi8(table, (__m512i)index);
}

#include "body.h"
TARGET_END
#else
typedef int nothing_here;
#endif
