/* Vectors of WIDTH bytes on the compiler's vector extensions: the same source for every set. */
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { LANES = WIDTH / 4, WIDE = WIDTH / 8 };

typedef float vf __attribute__((vector_size(WIDTH)));
typedef int32_t vi __attribute__((vector_size(WIDTH)));
typedef uint32_t vu __attribute__((vector_size(WIDTH)));
typedef double vd __attribute__((vector_size(WIDTH)));
typedef int64_t vl __attribute__((vector_size(WIDTH)));
typedef uint64_t vq __attribute__((vector_size(WIDTH)));
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
DEFINE_LOAD(vu_half)
DEFINE_LOAD(vh)
DEFINE_LOAD(vh_half)
#undef DEFINE_LOAD

/* A scalar in every lane (x − 0 keeps x as it is, −0 and NaN included). */
static inline vf vf_all(float x) { return x - (vf){0}; }
static inline vd vd_all(double x) { return x - (vd){0}; }
static inline vu vu_all(uint32_t x) { return x - (vu){0}; }
static inline vq vq_all(uint64_t x) { return x - (vq){0}; }

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
static inline uint64_t vl_sum(vl v) {
    uint64_t total = 0;
    for (int i = 0; i < WIDE; i++) total += (uint64_t)v[i];
    return total;
}

#if WIDTH < 64
/* The lanes whose bit is set, with the other sign. */
static inline vf flip_signs(vf v, uint32_t bits) {
    vu bit;
    for (int lane = 0; lane < LANES; lane++) bit[lane] = 1u << lane;
    return (vf)((vu)v ^ ((vu)((vu_all(bits) & bit) != vu_all(0)) & vu_all(0x80000000)));
}

/* The 32 lanes of a row, turned: lane i goes to i + turn. Twice in a row, a turned row is a stretch. */
static inline void turn_row(const float row[32], int turn, vf turned[32 / LANES]) {
    float twice[64];
    memcpy(twice, row, 32 * sizeof *row);
    memcpy(twice + 32, row, 32 * sizeof *row);
    memcpy(turned, twice + 32 - turn, 32 * sizeof *row);
}
#endif

/* The finite lanes; zero in place of the others. */
static inline vd vd_finite(vd v) {
    vq exponent = vq_all(0x7ff0000000000000);
    return (vd)((vq)v & (vq)(((vq)v & exponent) != exponent));
}

static inline vf vf_finite(vf v) {
    vu exponent = vu_all(0x7f800000);
    return (vf)((vu)v & (vu)(((vu)v & exponent) != exponent));
}
