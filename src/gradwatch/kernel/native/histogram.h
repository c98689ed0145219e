/* The signed power-of-two histogram, exactly, in one of two ways.
 *
 * Direct: an element's sign and exponent say which counter to raise. Right for everything, slow.
 *
 * Keys: 31 octaves from the largest element down are a window; sign and place in the window are a
 * key of 6 bits, and keys are counted many at a time (onehot.h, pairs.h). What lies under the window
 * has key 0, like the zeros. How many zeros there are is known: where the other keys do not make up
 * the rest, the stretch is read again and what lies under goes the direct way. So the result is the
 * same, bit for bit. */

enum { KEYS = 64, OCTAVES = 32, STRETCH = 32 * BLOCK };

#ifdef HAS_SHUFFLE
#include "onehot.h"
#else
#include "pairs.h"
#endif

typedef struct {
    uint64_t *bins[2]; /* negative, positive */
    int lowest;
    const Tensor *tensor;
    int base;               /* biased float exponent that has key 0; -1 = no window yet */
    int misfits;            /* stretches of which much lay under the window */
    int always_direct;      /* the window does not suit this tensor */
    size_t first, last;     /* the stretch that is in the counters and not in the bins yet */
    uint64_t stretch_zeros; /* zeros in it */
    Counters counters;
} Histogram;

/* Begin with elements [first, first + n) of a tensor; the counters are clear. */
static void histogram_start(Histogram *h, uint64_t *bins, size_t row, int lowest,
                            const Tensor *tensor, size_t first, size_t n) {
    h->bins[0] = bins, h->bins[1] = bins + row;
    h->lowest = lowest, h->tensor = tensor;
    h->base = -1, h->misfits = 0, h->always_direct = n < WORTH_KEYS;
    h->first = h->last = first, h->stretch_zeros = 0;
}

static inline void direct_double(Histogram *h, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    int biased = (int)(bits >> 52) & 0x7ff, exponent = biased - 1023;
    uint64_t mantissa = bits & 0xfffffffffffff;
    if (biased == 0x7ff || (biased == 0 && mantissa == 0)) return;
    if (biased == 0) exponent = -1011 - __builtin_clzll(mantissa); /* subnormal: the leading bit */
    h->bins[!(bits >> 63)][exponent - h->lowest]++;
}

static inline void direct_float(Histogram *h, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    int biased = (int)(bits >> 23) & 0xff, exponent = biased - 127;
    uint32_t mantissa = bits & 0x7fffff;
    if (biased == 0xff || (biased == 0 && mantissa == 0)) return;
    if (biased == 0) exponent = -118 - __builtin_clz(mantissa);
    h->bins[!(bits >> 31)][exponent - h->lowest]++;
}

static void direct_doubles(Histogram *h, const double *x, size_t n) {
    for (size_t i = 0; i < n; i++) direct_double(h, x[i]);
}

static void direct_floats(Histogram *h, const float *x, size_t n) {
    for (size_t i = 0; i < n; i++) direct_float(h, x[i]);
}

/* Count again, directly, what the window could not hold in the stretch. */
static void histogram_mend(Histogram *h) {
    float scratch[BLOCK];
    for (size_t i = h->first; i < h->last; i += BLOCK) {
        size_t n = smaller(BLOCK, h->last - i);
        const float *x = load_floats(h->tensor, i, n, scratch);
        for (size_t k = 0; k < n; k++) {
            uint32_t bits;
            memcpy(&bits, x + k, sizeof bits);
            if ((int)(bits >> 23 & 0xff) <= h->base) direct_float(h, x[k]);
        }
    }
}

/* Move the stretch from the counters into the bins. */
static void histogram_fold(Histogram *h) {
    if (h->first == h->last) return;
    uint32_t keys[KEYS];
    uint64_t under = h->last - h->first - h->stretch_zeros;
    counters_fold(&h->counters, keys);
    uint64_t *bins[2] = {h->bins[0] + h->base - 127 - h->lowest,
                         h->bins[1] + h->base - 127 - h->lowest};
    for (int key = 1; key < OCTAVES; key++) {
        bins[1][key] += keys[key];
        bins[0][key] += keys[key + OCTAVES];
        under -= (uint64_t)keys[key] + keys[key + OCTAVES];
    }
    if (under > 0) histogram_mend(h);
    if (under > (h->last - h->first) / 16) {
        h->base = -1; /* look for a better place; not for ever */
        h->always_direct = ++h->misfits == 4;
    }
    h->first = h->last;
    h->stretch_zeros = 0;
}

/* Put the top of the window where this block fits. Larger blocks to come will move it again. */
static void place_window(Histogram *h, double largest) {
    int exponent;
    if (largest == 0.0) {
        if (h->base < 0) h->base = 0; /* nothing to see yet: the lowest window */
        return;
    }
    frexp(largest, &exponent);
    int biased = exponent - 1 + 127; /* of the largest element */
    if (h->base >= 0 && biased < h->base + OCTAVES) return;
    histogram_fold(h);
    int base = biased + 1 - OCTAVES;
    h->base = base < 0 ? 0 : base;
}

/* One block; `regular` and `sums` are what measuring it gave. */
static void histogram_block(Histogram *h, size_t first, size_t n, int regular, const Sums *sums) {
    if (!regular || n < WORTH_KEYS || h->always_direct) {
        float scratch[BLOCK];
        histogram_fold(h);
        direct_floats(h, load_floats(h->tensor, first, n, scratch), n);
        h->first = h->last = first + n;
        return;
    }
    place_window(h, fmax(fabs(sums->low), fabs(sums->high)));
    counters_add(&h->counters, h->tensor, first, n, h->base);
    h->last = first + n;
    h->stretch_zeros += sums->zeros;
    if (h->last - h->first >= STRETCH) histogram_fold(h);
}
