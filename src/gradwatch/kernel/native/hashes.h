/* Hashes: a mark of every bit of a tensor, additive over shards, because the flat index in the
 * whole tensor is mixed in. */

/* The mark of one element: its bits and its place, multiplied apart. */
static inline vq mark(vq bits, vq place) {
    vq word = bits + place;
    word = (word ^ (word >> 32)) * FIRST;
    return word ^ (word >> 29);
}

static inline vq load_bits(const char *x, int dtype) {
    if (dtype == F64) return load_vq(x);
    if (dtype == F32) return __builtin_convertvector(load_vu_half(x), vq);
    /* By two steps: the compiler takes one such conversion lane by lane. */
    return __builtin_convertvector(__builtin_convertvector(load_vh_half(x), vu_half), vq);
}

/* `dtype` is a constant at every call. Four vectors at a time: one prefetch serves them all. */
static inline __attribute__((always_inline)) uint64_t hash_floats(const char *x, size_t n,
                                                                  int dtype, uint64_t offset) {
    size_t i = 0, size = itemsize(dtype);
    vq total = {0}, place = {0}, step = vq_all(WIDE * GOLDEN);
    for (int lane = 0; lane < WIDE; lane++) place[lane] = (offset + (uint64_t)lane) * GOLDEN;
    for (; i + 4 * WIDE <= n; i += 4 * WIDE) {
        prefetch(x + i * size, 4 * WIDE * size);
        for (size_t k = 0; k < 4; k++, place += step)
            total += mark(load_bits(x + (i + k * WIDE) * size, dtype), place);
    }
    uint64_t sum = vl_sum((vl)total);
    for (; i < n; i += WIDE, place += step) {
        char padded[WIDTH] = {0};
        size_t rest = smaller(WIDE, n - i);
        memcpy(padded, x + i * size, rest * size);
        vq marks = mark(load_bits(padded, dtype), place);
        for (size_t lane = 0; lane < rest; lane++) sum += marks[lane];
    }
    return sum;
}

static uint64_t hash_some(const Tensor *tensor, uint64_t offset) {
    if (tensor->dtype == F32) return hash_floats(tensor->data, tensor->count, F32, offset);
    if (tensor->dtype == F64) return hash_floats(tensor->data, tensor->count, F64, offset);
    return hash_floats(tensor->data, tensor->count, BF16, offset);
}

typedef struct {
    Job job;
    const int64_t *offsets;
    uint64_t *out;
} HashJob;

static void hash_share(Job *job) {
    for (Piece *piece; (piece = next_piece(job));) {
        Tensor some = stretch_of(job->batch, piece);
        uint64_t offset = (uint64_t)((const HashJob *)job)->offsets[piece->tensor];
        piece->mark = hash_some(&some, offset + piece->first);
    }
}

static void hash_join(Job *job, const Piece *piece) {
    uint64_t *out = ((HashJob *)job)->out + piece->tensor;
    *out = piece->mark + (piece->first == 0 ? 0 : *out);
}

static void hashes(const Batch *batch, const int64_t *offsets, uint64_t *out) {
    HashJob all = {.job = {.batch = batch, .share = hash_share, .join = hash_join},
                   .offsets = offsets, .out = out};
    run_job(&all.job, useful_threads(all.job.batch));
}
