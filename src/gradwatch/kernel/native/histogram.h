/* The signed power-of-two histogram, exactly, in one of two ways.
 *
 * Direct: an element's sign and exponent say which counter to raise. Right for everything, slow.
 *
 * Pairs: 31 octaves below a top are a window; sign and place in the window are a key of 6 bits, the
 * keys of two elements together raise one of 4096 counters, and every so often the table is folded.
 * Half the increments, and few collisions. What lies under the window shares key 0 with the zeros.
 * Their number is known: if the fold finds more in key 0, the stretch is read again and those
 * elements go the direct way. So the result is the same, bit for bit. */

enum { KEYS = 64, OCTAVES = 32, STRETCH = 64 * BLOCK };

typedef struct {
    uint64_t *bins[2]; /* negative, positive */
    int lowest;
    const Tensor *tensor;
    int base;               /* biased float exponent that has key 0; -1 = no window yet */
    int misfits;            /* stretches of which much lay under the window */
    int always_direct;      /* the window does not suit this tensor */
    size_t first, last;     /* the stretch counted in the tables but not folded yet */
    uint64_t stretch_zeros; /* zeros in it */
    /* Two tables in turn, so that equal neighbours do not wait for one another's store. At most
     * STRETCH / 4 increments each: 16 bits suffice. */
    uint16_t pairs[2][KEYS * KEYS] __attribute__((aligned(64)));
} Histogram;

static void histogram_start(Histogram *h, uint64_t *bins, size_t width, int lowest,
                            const Tensor *tensor) {
    h->bins[0] = bins, h->bins[1] = bins + width;
    h->lowest = lowest, h->tensor = tensor;
    h->base = -1, h->misfits = 0, h->always_direct = tensor->count < 4 * BLOCK;
    h->first = h->last = 0, h->stretch_zeros = 0;
    if (!h->always_direct) memset(h->pairs, 0, sizeof h->pairs);
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

/* Empty the tables into counts per key. */
static void fold_pairs(Histogram *h, uint32_t keys[KEYS]) {
    memset(keys, 0, KEYS * sizeof *keys);
    for (int a = 0; a < KEYS; a++) {
        const uint16_t *left = h->pairs[0] + a * KEYS, *right = h->pairs[1] + a * KEYS;
        uint32_t row = 0;
        for (int b = 0; b < KEYS; b++) {
            uint32_t count = (uint32_t)left[b] + right[b];
            row += count;
            keys[b] += count;
        }
        keys[a] += row;
    }
    memset(h->pairs, 0, sizeof h->pairs);
}

/* Move the stretch from the tables into the bins. */
static void histogram_fold(Histogram *h) {
    if (h->first == h->last) return;
    uint32_t keys[KEYS];
    fold_pairs(h, keys);
    for (int key = 1; key < OCTAVES; key++) {
        size_t bin = (size_t)(h->base + key - 127 - h->lowest);
        /* Keys beyond the largest exponent are never counted, and have no bin. */
        if (keys[key]) h->bins[1][bin] += keys[key];
        if (keys[key + OCTAVES]) h->bins[0][bin] += keys[key + OCTAVES];
    }
    uint64_t under = (uint64_t)keys[0] + keys[OCTAVES] - h->stretch_zeros;
    if (under > 0) histogram_mend(h);
    if (under > (h->last - h->first) / 16) {
        h->base = -1; /* look for a better place; not for ever */
        h->always_direct = ++h->misfits == 4;
    }
    h->first = h->last;
    h->stretch_zeros = 0;
}

static inline vu keys_of(vf v, vu base) {
    vu bits = (vu)v;
    vi place = (vi)((bits << 1 >> 24) - base);
    place &= ~(place >> 31); /* under the window: 0 */
    return (vu)place | (bits >> 31 << 5);
}

/* Raise the counters of a whole block. Whose keys make a pair does not matter: vectors do. */
static void count_pairs(Histogram *h, const float *x) {
    vu base = vu_all((uint32_t)h->base);
    uint16_t pairs[BLOCK / 2] __attribute__((aligned(64)));
    for (size_t i = 0; i < BLOCK; i += 4 * LANES) {
        vu a = keys_of(load_vf(x + i), base), b = keys_of(load_vf(x + i + LANES), base);
        vu c = keys_of(load_vf(x + i + 2 * LANES), base);
        vu d = keys_of(load_vf(x + i + 3 * LANES), base);
        vu both = (a | b << 6) | (c | d << 6) << 16;
        memcpy(pairs + i / 2, &both, sizeof both);
    }
    uint16_t *left = h->pairs[0], *right = h->pairs[1];
    for (size_t i = 0; i < BLOCK / 2; i += 8) {
        left[pairs[i]]++, right[pairs[i + 1]]++, left[pairs[i + 2]]++, right[pairs[i + 3]]++;
        left[pairs[i + 4]]++, right[pairs[i + 5]]++, left[pairs[i + 6]]++, right[pairs[i + 7]]++;
    }
}

/* Put the top of the window where this block fits, with room for a few larger blocks to come. */
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
    int base = biased + 4 - OCTAVES;
    h->base = base < 0 ? 0 : base;
}

/* One block; `regular` and `sums` are what measuring it gave. */
static void histogram_floats(Histogram *h, const float *x, size_t first, size_t n, int regular,
                             const Sums *sums) {
    if (!regular || n < BLOCK || h->always_direct) {
        histogram_fold(h);
        direct_floats(h, x, n);
        h->first = h->last = first + n;
        return;
    }
    place_window(h, fmax(fabs(sums->low), fabs(sums->high)));
    count_pairs(h, x);
    h->last = first + n;
    h->stretch_zeros += sums->zeros;
    if (h->last - h->first >= STRETCH) histogram_fold(h);
}
