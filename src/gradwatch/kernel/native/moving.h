/* Copying, and the read floor. */

/* From this size on a copy goes past the caches. */
enum { LARGE_COPY = 1 << 18 };

typedef struct {
    Job job;
    const Batch *target;
} CopyJob;

/* Many bytes past the caches: an ordinary store first reads the line it is about to overwrite, and
 * pushes out what the training has there. These vectors wait until a line is full and go on. */
static void copy_past(char *to, const char *from, size_t bytes) {
    size_t head = smaller(bytes, (size_t)(-(uintptr_t)to % WIDTH)), i = head;
    memcpy(to, from, head);
    for (; i + WIDTH <= bytes; i += WIDTH) {
        prefetch(from + i, WIDTH);
        store_past(to + i, load_vq(from + i));
    }
    memcpy(to + i, from + i, bytes - i);
    stores_done();
}

static void copy_piece(const Batch *source, const Batch *target, const Piece *piece) {
    Tensor from = tensor_of(source, piece->tensor), to = tensor_of(target, piece->tensor);
    size_t size = itemsize(from.dtype), bytes = from.count * size;
    uintptr_t distance = (uintptr_t)from.data - (uintptr_t)to.data;
    if (bytes == 0) return;
    if (distance < bytes || -distance < bytes) { /* overlapping: one after another */
        if (piece->first == 0) memmove((char *)to.data, from.data, bytes);
        return;
    }
    char *begin = (char *)to.data + piece->first * size;
    if (bytes >= LARGE_COPY) copy_past(begin, from.data + piece->first * size, piece->n * size);
    else memcpy(begin, from.data, bytes);
}

static void copy_share(Job *job) {
    for (Piece *piece; (piece = next_piece(job));)
        copy_piece(job->batch, ((const CopyJob *)job)->target, piece);
}

static void copy_join(Job *job, const Piece *piece) { (void)job, (void)piece; }

static void copy_all(const Batch *source, const Batch *target) {
    CopyJob all = {.job = {.batch = source, .share = copy_share, .join = copy_join},
                   .target = target};
    run_job(&all.job, useful_threads(all.job.batch));
}

typedef struct {
    Job job;
    uint64_t sum;
} ReadJob;

/* Read every byte and add: eight sums, so that only the memory is waited for. */
static uint64_t read_some(const Tensor *tensor) {
    vq sums[8] = {{0}};
    size_t bytes = tensor->count * itemsize(tensor->dtype), i = 0;
    uint64_t rest = 0;
    for (; i + 8 * WIDTH <= bytes; i += 8 * WIDTH)
        for (size_t k = 0; k < 8; k++) sums[k] += load_vq(tensor->data + i + k * WIDTH);
    for (; i < bytes; i++) rest += (unsigned char)tensor->data[i];
    for (size_t k = 0; k < 8; k++) rest += vl_sum((vl)sums[k]);
    return rest;
}

static void read_share(Job *job) {
    for (Piece *piece; (piece = next_piece(job));) {
        Tensor some = stretch_of(job->batch, piece);
        piece->mark = read_some(&some);
    }
}

static void read_join(Job *job, const Piece *piece) { ((ReadJob *)job)->sum += piece->mark; }

static uint64_t read_all(const Batch *batch) {
    ReadJob all = {.job = {.batch = batch, .share = read_share, .join = read_join}};
    run_job(&all.job, useful_threads(all.job.batch));
    return all.sum;
}
