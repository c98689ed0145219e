/* 32-byte vectors with fused multiply-add and float16 conversion. */
#include "kernel.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "target.h"
TARGET_BEGIN("avx2,fma,f16c,popcnt")
#define WIDTH 32
#define NAME(name) name##_avx2
#define SET "avx2"
#include "lanes.h"

static inline vf vf_min(vf a, vf b) { return (vf)_mm256_min_ps((__m256)a, (__m256)b); }
static inline vf vf_max(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
static inline vd vd_min(vd a, vd b) { return (vd)_mm256_min_pd((__m256d)a, (__m256d)b); }
static inline vd vd_max(vd a, vd b) { return (vd)_mm256_max_pd((__m256d)a, (__m256d)b); }
static inline vf vf_floor(vf v) { return (vf)_mm256_floor_ps((__m256)v); }
static inline vd vd_floor(vd v) { return (vd)_mm256_floor_pd((__m256d)v); }
static inline vd vf_low(vf v) { return (vd)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)v)); }
static inline vd vf_high(vf v) { return (vd)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)v, 1)); }
static inline vi count_zero(vi counter, vf v) { return counter - (vi)(v == vf_all(0.0f)); }
static inline vf half_to_float(vh half) { return (vf)_mm256_cvtph_ps((__m128i)half); }
static inline int is_any(vq v) { return !_mm256_testz_si256((__m256i)v, (__m256i)v); }
static inline float vf_least(vf v) {
    __m128 four = _mm_min_ps(_mm256_castps256_ps128((__m256)v),
                             _mm256_extractf128_ps((__m256)v, 1));
    __m128 two = _mm_min_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_min_ss(two, _mm_movehdup_ps(two)));
}

/* g / (√v · factor + eps). Roots and quotients are slow; instead the processor's estimates of 1/√v
 * and 1/x (12 bits) are bettered by a step of Newton's method each (to about 22). The estimate is
 * infinite for 0, whose root is 0. There are no positive subnormal numbers here. */
static inline vf vf_ratio(vf g, vf v, vf factor, vf eps) {
    vf y = (vf)((vi)_mm256_rsqrt_ps((__m256)v) & (vi)(v != vf_all(0.0f)));
    y *= 1.5f - 0.5f * v * y * y;
    vf below = v * y * factor + eps, inverse = (vf)_mm256_rcp_ps((__m256)below);
    inverse *= 2.0f - below * inverse;
    return g * inverse;
}

/* Stores that go past the caches: see moving.h. */
static inline void store_past(char *to, vq v) { _mm256_stream_si256((__m256i *)to, (__m256i)v); }
static inline void stores_done(void) { _mm_sfence(); }

/* What the histogram's bytes need: see onehot.h. */
#define HAS_SHUFFLE
static inline vq bytes_minus(vq a, vq b) { return (vq)_mm256_subs_epu8((__m256i)a, (__m256i)b); }
static inline vq bytes_plus(vq a, vq b) { return (vq)_mm256_adds_epu8((__m256i)a, (__m256i)b); }
static inline vq signed_minus(vq a, vq b) { return (vq)_mm256_subs_epi8((__m256i)a, (__m256i)b); }
static inline vq majority(vq a, vq b, vq c) { return (a & b) | ((a ^ b) & c); }
static inline vq parity(vq a, vq b, vq c) { return a ^ b ^ c; }
static inline uint64_t top_bits(vq v) { return (uint32_t)_mm256_movemask_epi8((__m256i)v); }
static inline vq shuffle(uint64_t low, uint64_t high, vq index) {
    __m256i table = _mm256_broadcastsi128_si256(_mm_set_epi64x((int64_t)high, (int64_t)low));
    return (vq)_mm256_shuffle_epi8(table, (__m256i)index);
}

#include "body.h"
TARGET_END
#else
typedef int nothing_here;
#endif
