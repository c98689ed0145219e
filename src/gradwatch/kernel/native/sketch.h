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

enum { EVERY_GROUP_UP_TO = 65536, BUNCH = 8, WORDS = 16 };

typedef struct {
    uint64_t seed, choice; /* choice: of how many groups beside itself one is taken, 0 or 7 */
    int shift;             /* 2^shift elements are a bunch */
    double buckets[SKETCH_WIDTH] __attribute__((aligned(64)));
    float rows[SKETCH_WIDTH][SKETCH_WIDTH] __attribute__((aligned(64))); /* [turn][lane] */
    uint32_t used; /* a bit for each row that is not empty */
    size_t groups; /* added to the rows since they were emptied */
} Sketch;

static void sketch_clear(Sketch *s) { memset(s, 0, sizeof *s); }

/* Begin with a tensor; the rows are empty. */
static void sketch_start(Sketch *s, uint64_t seed, int64_t whole) {
    s->seed = seed;
    s->choice = whole > EVERY_GROUP_UP_TO ? BUNCH - 1 : 0;
    s->shift = whole > EVERY_GROUP_UP_TO ? 8 : 5;
    memset(s->buckets, 0, sizeof s->buckets);
}

/* By how much a word turns the lanes. */
static inline size_t turn_of(uint64_t word) { return word >> 32 & (SKETCH_WIDTH - 1); }

static void sketch_empty_rows(Sketch *s) {
    vd sums[SKETCH_WIDTH / WIDE];
    memcpy(sums, s->buckets, sizeof sums);
    for (uint32_t left = s->used; left; left &= left - 1) {
        int turn = __builtin_ctz(left);
        vf turned[SKETCH_WIDTH / LANES];
        turn_row(s->rows[turn], turn, turned);
        memset(s->rows[turn], 0, sizeof s->rows[turn]);
#pragma GCC unroll 8 /* so that the sums stay in registers */
        for (size_t i = 0; i < SKETCH_WIDTH / LANES; i++)
            sums[2 * i] += vf_low(turned[i]), sums[2 * i + 1] += vf_high(turned[i]);
    }
    memcpy(s->buckets, sums, sizeof sums);
    s->used = 0, s->groups = 0;
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

/* A whole group of any type but float64. */
static inline void sketch_group(Sketch *s, const char *x, uint64_t word, int dtype, int finite) {
    float *row = s->rows[turn_of(word)];
    for (size_t lane = 0; lane < SKETCH_WIDTH; lane += LANES) {
        vf value = load_lanes(x + lane * itemsize(dtype), dtype);
        if (!finite) value = vf_finite(value);
        vf sum = load_vf(row + lane) + flip_signs(value, (uint32_t)word >> lane);
        memcpy(row + lane, &sum, sizeof sum);
    }
}

/* The elements whose indices in the whole tensor are [position, stop). `dtype` and `finite` are
 * constants at every call: each type has its own loop, and where all elements are finite none needs
 * to be masked. */
static inline __attribute__((always_inline)) void sketch_range(Sketch *s, const char *x,
                                                               uint64_t position, uint64_t stop,
                                                               int dtype, int finite) {
    uint64_t words[WORDS] __attribute__((aligned(64))), bunch = position >> s->shift, first, last;
    uint32_t used = 0;
    for (size_t i = WORDS; bunch << s->shift < stop; bunch++, i++) {
        if (i == WORDS) {
            if (s->groups >= 32 * SKETCH_WIDTH) s->used |= used, sketch_empty_rows(s);
            for (i = 0; i < WORDS; i++) words[i] = scramble(s->seed + (bunch + i) * GOLDEN);
            i = 0;
        }
        first = (bunch << s->shift) + (words[i] >> 37 & s->choice) * SKETCH_WIDTH;
        last = first + SKETCH_WIDTH;
        if (dtype != F64 && first >= position && last <= stop) {
            sketch_group(s, x + (first - position) * itemsize(dtype), words[i], dtype, finite);
            used |= 1u << turn_of(words[i]), s->groups++;
            continue;
        }
        if (first < position) first = position;
        if (last > stop) last = stop;
        if (first < last)
            sketch_some(s, x + (first - position) * itemsize(dtype), last - first, first, words[i],
                        dtype);
    }
    s->used |= used;
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
    double unit = sqrt((double)(s->choice + 1));
    for (size_t i = 0; i < SKETCH_WIDTH; i++) buckets[i] = s->buckets[i] * unit;
}
