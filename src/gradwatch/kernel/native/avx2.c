/* 32-byte vectors with fused multiply-add and float16 conversion. */
#include "kernel.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "target.h"
TARGET_BEGIN("avx2,fma,f16c")
#define WIDTH 32
#define NAME(name) name##_avx2
#define SET "avx2"
#include "lanes.h"

static inline vf vf_min(vf a, vf b) { return (vf)_mm256_min_ps((__m256)a, (__m256)b); }
static inline vf vf_max(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
static inline vd vd_min(vd a, vd b) { return (vd)_mm256_min_pd((__m256d)a, (__m256d)b); }
static inline vd vd_max(vd a, vd b) { return (vd)_mm256_max_pd((__m256d)a, (__m256d)b); }
static inline vf vf_sqrt(vf v) { return (vf)_mm256_sqrt_ps((__m256)v); }
static inline vi count_zero(vi counter, vf v) { return counter - (vi)(v == vf_all(0.0f)); }
static inline vf half_to_float(vh half) { return (vf)_mm256_cvtph_ps((__m128i)half); }

#include "body.h"
TARGET_END
#else
typedef int nothing_here;
#endif
