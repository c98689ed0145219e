/* 64-byte vectors. */
#include "kernel.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "target.h"
TARGET_BEGIN("avx512f,avx512bw,avx512vl,avx512dq,fma,f16c")
#define WIDTH 64
#define NAME(name) name##_avx512
#define SET "avx512"
#include "lanes.h"

static inline vf vf_min(vf a, vf b) { return (vf)_mm512_min_ps((__m512)a, (__m512)b); }
static inline vf vf_max(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }
static inline vd vd_min(vd a, vd b) { return (vd)_mm512_min_pd((__m512d)a, (__m512d)b); }
static inline vd vd_max(vd a, vd b) { return (vd)_mm512_max_pd((__m512d)a, (__m512d)b); }
static inline vf vf_sqrt(vf v) { return (vf)_mm512_sqrt_ps((__m512)v); }
static inline vf half_to_float(vh half) { return (vf)_mm512_cvtph_ps((__m256i)half); }

/* A masked subtraction: comparisons live in mask registers here, and widening one costs a step. */
static inline vi count_zero(vi counter, vf v) {
    __mmask16 zero = _mm512_cmp_ps_mask((__m512)v, _mm512_setzero_ps(), _CMP_EQ_OQ);
    return (vi)_mm512_mask_sub_epi32((__m512i)counter, zero, (__m512i)counter,
                                     _mm512_set1_epi32(-1));
}

#include "body.h"
TARGET_END
#else
typedef int nothing_here;
#endif
