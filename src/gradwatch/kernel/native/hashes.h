/* Hashes: a mark of every bit of a tensor, additive over shards, because the flat index in the whole
 * tensor is mixed in. */

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

static uint64_t hash_some(const Tensor *tensor, uint64_t offset) {
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
    run_job(&all.job);
}
