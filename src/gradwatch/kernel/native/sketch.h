/* Sketches: additive over shards, because the flat index in the whole tensor decides everything.
 *
 * 32 consecutive elements are a group. A sketch adds every element of the groups it takes, with a
 * random sign, to one of 32 buckets. Of a large tensor it takes one group of every bunch of eight,
 * chosen at random, and multiplies by √8: the inner products stay unbiased, and seven eighths of
 * the memory need not be read. Of a small one it takes every group (bunches of one).
 *
 * Each bunch has one scrambled word: 32 sign bits, 5 bits by which the lanes are turned, so that a
 * column of a matrix does not always meet the same bucket, and 3 bits of choice. Turning lanes is
 * dear; instead each turn has its own row of sums, and the rows are turned once, at the end. */

enum { EVERY_GROUP_UP_TO = 65536, BUNCH = 8 };

typedef struct {
    uint64_t seed, bunch; /* bunch: of how many groups one is taken, 1 or BUNCH */
    double buckets[SKETCH_WIDTH];
    float rows[SKETCH_WIDTH][SKETCH_WIDTH] __attribute__((aligned(64))); /* [turn][lane] */
    size_t groups; /* added to the rows since they were emptied */
} Sketch;

static void sketch_start(Sketch *s, uint64_t seed, int64_t whole) {
    s->seed = seed;
    s->bunch = whole > EVERY_GROUP_UP_TO ? BUNCH : 1;
    s->groups = 0;
    memset(s->buckets, 0, sizeof s->buckets);
    memset(s->rows, 0, sizeof s->rows);
}

static void sketch_empty_rows(Sketch *s) {
    if (s->groups == 0) return;
    /* Each row twice in a row: then a turned row is a stretch of it, read without going round. */
    float twice[SKETCH_WIDTH][2 * SKETCH_WIDTH];
    for (size_t turn = 0; turn < SKETCH_WIDTH; turn++) {
        memcpy(twice[turn], s->rows[turn], sizeof s->rows[turn]);
        memcpy(twice[turn] + SKETCH_WIDTH, s->rows[turn], sizeof s->rows[turn]);
    }
    for (size_t turn = 0; turn < SKETCH_WIDTH; turn++)
        for (size_t bucket = 0; bucket < SKETCH_WIDTH; bucket++)
            s->buckets[bucket] += twice[turn][bucket + SKETCH_WIDTH - turn];
    memset(s->rows, 0, sizeof s->rows);
    s->groups = 0;
}

/* Some elements of one group, of any type, in double; `position` is the first one's index. */
static void sketch_some(Sketch *s, const char *x, size_t n, uint64_t position, uint64_t word,
                        int dtype) {
    Tensor some = {x, n, dtype, 0};
    double scratch[SKETCH_WIDTH];
    const double *values = load_doubles(&some, 0, n, scratch);
    for (size_t i = 0; i < n; i++) {
        uint64_t lane = (position + i) % SKETCH_WIDTH;
        double value = isfinite(values[i]) ? values[i] : 0.0;
        s->buckets[(lane + (word >> 32)) % SKETCH_WIDTH] += word >> lane & 1 ? -value : value;
    }
}

/* The sign bits of LANES neighbours, moved to where floats have their sign. */
static inline vu sign_bits(uint32_t word, vu bit) {
    return (vu)((vu_all(word) & bit) != vu_all(0)) & vu_all(0x80000000);
}

/* A whole group of any type but float64. */
static inline void sketch_group(Sketch *s, const char *x, uint64_t word, int dtype, int finite) {
    vu bit;
    for (int lane = 0; lane < LANES; lane++) bit[lane] = 1u << lane;
    float *row = s->rows[word >> 32 & (SKETCH_WIDTH - 1)];
    for (size_t lane = 0; lane < SKETCH_WIDTH; lane += LANES) {
        vf value = load_lanes(x + lane * itemsize(dtype), dtype);
        if (!finite) value = vf_finite(value);
        vf sum = load_vf(row + lane) + (vf)((vu)value ^ sign_bits((uint32_t)word >> lane, bit));
        memcpy(row + lane, &sum, sizeof sum);
    }
    /* About 32 groups per row: then the float sums must be emptied. */
    if (++s->groups == 32 * SKETCH_WIDTH) sketch_empty_rows(s);
}

/* The elements whose indices in the whole tensor are [position, stop). `dtype` and `finite` are
 * constants at every call: each type has its own loop, and where all elements are finite none needs
 * to be masked. */
static inline __attribute__((always_inline)) void sketch_range(Sketch *s, const char *x,
                                                               uint64_t position, uint64_t stop,
                                                               int dtype, int finite) {
    uint64_t span = s->bunch * SKETCH_WIDTH;
    for (uint64_t bunch = position / span; bunch * span < stop; bunch++) {
        uint64_t word = scramble(s->seed + bunch * GOLDEN);
        uint64_t first = bunch * span + (word >> 37 & (s->bunch - 1)) * SKETCH_WIDTH;
        uint64_t last = first + SKETCH_WIDTH;
        if (dtype != F64 && first >= position && last <= stop) {
            sketch_group(s, x + (first - position) * itemsize(dtype), word, dtype, finite);
            continue;
        }
        if (first < position) first = position;
        if (last > stop) last = stop;
        if (first < last)
            sketch_some(s, x + (first - position) * itemsize(dtype), last - first, first, word,
                        dtype);
    }
}

/* Elements [first, first + n) of a tensor; `position` is the first one's index in the whole, of
 * which the tensor may be a shard. */
static void sketch_block(Sketch *s, const Tensor *tensor, size_t first, size_t n,
                         uint64_t position, int finite) {
    const char *x = tensor->data + first * itemsize(tensor->dtype);
    uint64_t stop = position + n;
    if (tensor->dtype == F64) sketch_range(s, x, position, stop, F64, 0);
    else if (tensor->dtype == F16) sketch_range(s, x, position, stop, F16, 0);
    else if (tensor->dtype == F32 && finite) sketch_range(s, x, position, stop, F32, 1);
    else if (tensor->dtype == F32) sketch_range(s, x, position, stop, F32, 0);
    else if (finite) sketch_range(s, x, position, stop, BF16, 1);
    else sketch_range(s, x, position, stop, BF16, 0);
}

static void sketch_finish(Sketch *s, double *buckets) {
    sketch_empty_rows(s);
    double unit = sqrt((double)s->bunch);
    for (size_t i = 0; i < SKETCH_WIDTH; i++) buckets[i] = s->buckets[i] * unit;
}
