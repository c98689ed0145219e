/* 16-byte vectors: what every processor of a 64-bit architecture has (SSE2, NEON). */
#include "kernel.h"

#define WIDTH 16
#define NAME(name) name##_base
#define SET "base"
#include "lanes.h"

static inline vf vf_pick(vi mask, vf yes, vf no) {
    return (vf)(((vi)yes & mask) | ((vi)no & ~mask));
}
static inline vd vd_pick(vl mask, vd yes, vd no) {
    return (vd)(((vl)yes & mask) | ((vl)no & ~mask));
}
#if defined(__SSE2__)
#include <emmintrin.h>
static inline vf vf_min(vf a, vf b) { return (vf)_mm_min_ps((__m128)a, (__m128)b); }
static inline vf vf_max(vf a, vf b) { return (vf)_mm_max_ps((__m128)a, (__m128)b); }
static inline vd vd_min(vd a, vd b) { return (vd)_mm_min_pd((__m128d)a, (__m128d)b); }
static inline vd vd_max(vd a, vd b) { return (vd)_mm_max_pd((__m128d)a, (__m128d)b); }
/* Stores that go past the caches: see moving.h. */
static inline void store_past(char *to, vq v) { _mm_stream_si128((__m128i *)to, (__m128i)v); }
static inline void stores_done(void) { _mm_sfence(); }
#else
static inline vf vf_min(vf a, vf b) { return vf_pick(a < b, a, b); }
static inline vf vf_max(vf a, vf b) { return vf_pick(a > b, a, b); }
static inline vd vd_min(vd a, vd b) { return vd_pick(a < b, a, b); }
static inline vd vd_max(vd a, vd b) { return vd_pick(a > b, a, b); }
static inline void store_past(char *to, vq v) { memcpy(to, &v, sizeof v); }
static inline void stores_done(void) {}
#endif

static inline int is_any(vq v) { return (v[0] | v[1]) != 0; }

static inline float vf_least(vf v) {
    float one = v[0] < v[1] ? v[0] : v[1], other = v[2] < v[3] ? v[2] : v[3];
    return one < other ? one : other;
}

/* g / (√v · factor + eps) */
static inline vf vf_ratio(vf g, vf v, vf factor, vf eps) {
#if defined(__SSE2__)
    v = (vf)_mm_sqrt_ps((__m128)v);
#else
    for (int i = 0; i < LANES; i++) v[i] = sqrtf(v[i]);
#endif
    return g / (v * factor + eps);
}

static inline vf vf_floor(vf v) {
    for (int i = 0; i < LANES; i++) v[i] = floorf(v[i]);
    return v;
}

static inline vd vd_floor(vd v) { return (vd){floor(v[0]), floor(v[1])}; }

static inline vd vf_low(vf v) { return (vd){v[0], v[1]}; }
static inline vd vf_high(vf v) { return (vd){v[2], v[3]}; }

static inline vi count_zero(vi counter, vf v) { return counter - (vi)(v == vf_all(0.0f)); }

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

#include "body.h"
