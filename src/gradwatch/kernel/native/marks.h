/* Sketches and hashes: additive over shards, because the flat index in the whole tensor is mixed in.
 *
 * A sketch adds every element, with a random sign, to one of 32 buckets. 32 consecutive elements
 * (a group) share one scrambled word: 32 sign bits, and 5 bits by which the lanes are turned, so
 * that a column of a matrix does not always meet the same bucket. Turning lanes is dear; instead
 * each turn has its own row of sums, and the rows are turned once, when the sketch is finished. */

typedef struct {
    uint64_t seed;
    double buckets[SKETCH_WIDTH];
    float rows[SKETCH_WIDTH][SKETCH_WIDTH] __attribute__((aligned(64))); /* [turn][lane] */
    size_t groups; /* added to the rows since they were emptied */
} Sketch;

static void sketch_start(Sketch *s, uint64_t seed) {
    s->seed = seed;
    s->groups = 0;
    memset(s->buckets, 0, sizeof s->buckets);
    memset(s->rows, 0, sizeof s->rows);
}

static inline uint64_t group_word(const Sketch *s, uint64_t group) {
    return scramble(s->seed + group * GOLDEN);
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

/* A few elements of one group, in double. */
static void sketch_some(Sketch *s, const float *x, size_t n, uint64_t position) {
    uint64_t word = group_word(s, position / SKETCH_WIDTH);
    for (size_t i = 0; i < n; i++) {
        uint64_t lane = (position + i) % SKETCH_WIDTH;
        double value = isfinite(x[i]) ? x[i] : 0.0;
        s->buckets[(lane + (word >> 32)) % SKETCH_WIDTH] += word >> lane & 1 ? -value : value;
    }
}

/* The sign bits of LANES neighbours, moved to where floats have their sign. */
static inline vu sign_bits(uint32_t word, vu bit) {
    return (vu)((vu_all(word) & bit) != vu_all(0)) & vu_all(0x80000000);
}

/* `dtype` and `finite` are constants at every call: each type has its own loop, and where all
 * elements are finite none needs to be masked. */
static inline __attribute__((always_inline)) void sketch_groups(Sketch *s, const char *x,
                                                                size_t groups, uint64_t group,
                                                                int dtype, int finite) {
    vu bit;
    for (int lane = 0; lane < LANES; lane++) bit[lane] = 1u << lane;
    for (size_t g = 0; g < groups; g++, x += SKETCH_WIDTH * itemsize(dtype)) {
        uint64_t word = group_word(s, group + g);
        float *row = s->rows[word >> 32 & (SKETCH_WIDTH - 1)];
        for (size_t lane = 0; lane < SKETCH_WIDTH; lane += LANES) {
            vf value = load_lanes(x + lane * itemsize(dtype), dtype);
            if (!finite) value = vf_finite(value);
            vu sign = sign_bits((uint32_t)word >> lane, bit);
            vf sum = load_vf(row + lane) + (vf)((vu)value ^ sign);
            memcpy(row + lane, &sum, sizeof sum);
        }
    }
}

static void sketch_any(Sketch *s, const char *x, size_t groups, uint64_t group, int dtype,
                       int finite) {
    if (dtype == F32 && finite) sketch_groups(s, x, groups, group, F32, 1);
    else if (dtype == F32) sketch_groups(s, x, groups, group, F32, 0);
    else if (dtype == BF16 && finite) sketch_groups(s, x, groups, group, BF16, 1);
    else if (dtype == BF16) sketch_groups(s, x, groups, group, BF16, 0);
    else sketch_groups(s, x, groups, group, F16, 0);
    s->groups += groups;
    /* About 32 groups per row: then the float sums must be emptied. */
    if (s->groups >= 32 * SKETCH_WIDTH) sketch_empty_rows(s);
}

/* Elements [first, first + n) of a tensor that is not float64; `position` is the first one's index
 * in the whole tensor, of which this may be a shard. */
static void sketch_floats(Sketch *s, const Tensor *tensor, size_t first, size_t n,
                          uint64_t position, int finite) {
    float some[SKETCH_WIDTH];
    size_t head = smaller(n, (SKETCH_WIDTH - position % SKETCH_WIDTH) % SKETCH_WIDTH);
    size_t groups = (n - head) / SKETCH_WIDTH, done = head + groups * SKETCH_WIDTH;
    if (head) sketch_some(s, load_floats(tensor, first, head, some), head, position);
    sketch_any(s, tensor->data + (first + head) * itemsize(tensor->dtype), groups,
               (position + head) / SKETCH_WIDTH, tensor->dtype, finite);
    if (done < n)
        sketch_some(s, load_floats(tensor, first + done, n - done, some), n - done,
                    position + done);
}

static void sketch_doubles(Sketch *s, const double *x, size_t n, uint64_t position) {
    for (size_t i = 0; i < n; i++, position++) {
        uint64_t word = group_word(s, position / SKETCH_WIDTH), lane = position % SKETCH_WIDTH;
        double value = isfinite(x[i]) ? x[i] : 0.0;
        s->buckets[(lane + (word >> 32)) % SKETCH_WIDTH] += word >> lane & 1 ? -value : value;
    }
}

static void sketch_finish(Sketch *s, float *out) {
    sketch_empty_rows(s);
    for (size_t i = 0; i < SKETCH_WIDTH; i++) out[i] = (float)s->buckets[i];
}

static void sketch(const Batch *batch, const uint64_t *seeds, const int64_t *offsets, float *out) {
    Sketch s;
    for (size_t t = 0; t < batch->n; t++) {
        Tensor tensor = tensor_of(batch, t);
        sketch_start(&s, seeds[t]);
        for (size_t i = 0; i < tensor.count; i += BLOCK) {
            size_t n = smaller(BLOCK, tensor.count - i);
            uint64_t position = (uint64_t)offsets[t] + i;
            if (tensor.dtype == F64)
                sketch_doubles(&s, (const double *)tensor.data + i, n, position);
            else
                sketch_floats(&s, &tensor, i, n, position, 0);
        }
        sketch_finish(&s, out + t * SKETCH_WIDTH);
    }
}

/* The mark of one element: its bits and its place, multiplied apart. */
static inline vq mark(vq bits, vq place) {
    vq word = bits + place;
    word = (word ^ (word >> 32)) * FIRST;
    return word ^ (word >> 29);
}

static inline vq load_bits(const Tensor *tensor, size_t i) {
    if (tensor->dtype == F64) return load_vq(tensor->data + 8 * i);
    if (tensor->dtype == F32)
        return __builtin_convertvector(load_vu_half(tensor->data + 4 * i), vq);
    return __builtin_convertvector(load_vh_half(tensor->data + 2 * i), vq);
}

static uint64_t hash_tensor(const Tensor *tensor, uint64_t offset) {
    vq total = {0}, place, step = vq_all(WIDE * GOLDEN);
    for (int lane = 0; lane < WIDE; lane++) place[lane] = (offset + (uint64_t)lane) * GOLDEN;
    size_t i = 0;
    for (; i + WIDE <= tensor->count; i += WIDE, place += step)
        total += mark(load_bits(tensor, i), place);
    uint64_t sum = vl_sum((vl)total);
    if (i < tensor->count) {
        char padded[WIDTH] = {0};
        size_t rest = tensor->count - i, size = itemsize(tensor->dtype);
        memcpy(padded, tensor->data + i * size, rest * size);
        Tensor tail = {padded, WIDE, tensor->dtype, 0};
        vq marks = mark(load_bits(&tail, 0), place);
        for (size_t lane = 0; lane < rest; lane++) sum += marks[lane];
    }
    return sum;
}

static void hashes(const Batch *batch, const int64_t *offsets, uint64_t *out) {
    for (size_t t = 0; t < batch->n; t++) {
        Tensor tensor = tensor_of(batch, t);
        out[t] = hash_tensor(&tensor, (uint64_t)offsets[t]);
    }
}
