/* The one pass: every block is measured, counted and sketched while it is in the cache. */

/* Bins as they are counted: a row of all negative and one of all positive ones, a little longer than
 * need be, so that vectors of them fit. */
enum { SPARE = 8, MOST_COUNTED = (MOST_BINS + SPARE) / SPARE * SPARE };

static inline size_t row_of_bins(const Bins *bins) { return (bins->width + SPARE) / SPARE * SPARE; }

/* One thread's means to work on a piece. */
typedef struct {
    Histogram histogram;
    Sketch sketch;
    Guess guess;
    int has_histogram, has_sketch;
    uint64_t offset;
    uint64_t own_bins[2 * MOST_COUNTED]; /* of the piece, where others work on the same tensor */
} Work;

typedef struct {
    Job job;
    const Outputs *out;
    Measured total;    /* of the pieces of a tensor joined so far */
    uint64_t *counted; /* two rows of bins: of each tensor, or where one thread works, of one */
    size_t written;    /* counts in the table of bins */
} MeasureJob;

/* Where a tensor's elements are counted. */
static uint64_t *counted_bins(const MeasureJob *measure, size_t tensor) {
    size_t slot = measure->job.is_shared ? tensor : 0;
    return measure->counted + slot * 2 * row_of_bins(measure->out->bins);
}

static void measure_floats(Work *work, const Tensor *tensor, size_t i, size_t n, Sums *block) {
    int regular = block_floats(tensor, i, n, &work->guess, block);
    if (work->has_histogram) histogram_block(&work->histogram, i, n, regular, block);
    if (work->has_sketch) sketch_block(&work->sketch, tensor, i, n, work->offset + i, regular);
}

static void measure_doubles(Work *work, const Tensor *tensor, size_t i, size_t n, Sums *block) {
    const double *x = (const double *)tensor->data + i;
    block_doubles(x, n, block);
    if (work->has_histogram) direct_doubles(&work->histogram, x, n);
    if (work->has_sketch) sketch_block(&work->sketch, tensor, i, n, work->offset + i, 0);
}

static void measure_blocks(Work *work, const Tensor *tensor, size_t first, size_t stop,
                           Sums *total) {
    Sums another, *block = total; /* the first one is the total so far */
    *total = sums_empty();
    work->guess = (Guess){0.0f, 1.0f, 1.0f};
    for (size_t i = first; i < stop; i += BLOCK) {
        size_t n = smaller(BLOCK, stop - i);
        if (i > first) another = sums_empty(), block = &another;
        if (tensor->dtype == F64) measure_doubles(work, tensor, i, n, block);
        else measure_floats(work, tensor, i, n, block);
        if (i > first) sums_join(total, block);
    }
}

/* Begin a piece's histogram: in the tensor's own bins where nobody else counts in them. */
static void start_bins(Work *work, const MeasureJob *measure, const Piece *piece,
                       const Tensor *tensor) {
    const Bins *table = measure->out->bins;
    size_t row = row_of_bins(table);
    uint64_t *bins = counted_bins(measure, piece->tensor);
    if (measure->job.is_shared && piece->n < tensor->count) {
        bins = work->own_bins;
        memset(bins, 0, 2 * row * sizeof *bins);
    }
    histogram_start(&work->histogram, bins, row, table->lowest, tensor, piece->first, piece->n);
}

static void finish_bins(Work *work, const MeasureJob *measure, const Piece *piece) {
    uint64_t *bins = counted_bins(measure, piece->tensor);
    histogram_fold(&work->histogram);
    if (work->histogram.bins[0] == bins) return;
    for (size_t i = 0; i < 2 * row_of_bins(measure->out->bins); i++)
        if (work->own_bins[i]) __atomic_fetch_add(bins + i, work->own_bins[i], __ATOMIC_RELAXED);
}

static inline int is_used(const uint64_t *negative, const uint64_t *positive) {
    return is_any(load_vq(negative) | load_vq(positive));
}

/* Move a tensor's bins into the table, from the first occupied one to the last. */
static void write_bins(MeasureJob *measure, size_t tensor) {
    const Bins *table = measure->out->bins;
    size_t row = row_of_bins(table), first = 0, stop = row;
    uint64_t *negative = counted_bins(measure, tensor), *positive = negative + row;
    while (first < stop && !is_used(negative + first, positive + first)) first += WIDE;
    while (first < stop && !is_used(negative + stop - WIDE, positive + stop - WIDE)) stop -= WIDE;
    while (first < stop && !(negative[first] | positive[first])) first++;
    while (first < stop && !(negative[stop - 1] | positive[stop - 1])) stop--;
    size_t size = stop - first, bytes = size * sizeof *negative;
    uint64_t *to = table->counts + measure->written;
    memcpy(to, negative + first, bytes);
    memcpy(to + size, positive + first, bytes);
    memset(negative + first, 0, bytes);
    memset(positive + first, 0, bytes);
    measure->written += 2 * size;
    table->first_exponents[tensor] = size ? table->lowest + (int64_t)first : 0;
    table->sizes[tensor] = (int64_t)size;
}

static void measure_piece(Work *work, const MeasureJob *measure, Piece *piece) {
    const Outputs *out = measure->out;
    const Sketches *sketches = out->sketches;
    Tensor tensor = tensor_of(measure->job.batch, piece->tensor);
    Measured *found = &piece->measured;
    if (work->has_histogram) start_bins(work, measure, piece, &tensor);
    if (work->has_sketch) {
        sketch_start(&work->sketch, sketches->seeds[piece->tensor],
                     sketches->wholes[piece->tensor]);
        work->offset = (uint64_t)sketches->offsets[piece->tensor];
    }
    if (out->records) {
        measure_blocks(work, &tensor, piece->first, piece->first + piece->n, &found->sums);
        found->zero_rows = zero_rows(&tensor, piece->first, piece->n, found->sums.zeros,
                                     out->touched ? out->touched[piece->tensor] : NULL);
    } else {
        sketch_block(&work->sketch, &tensor, piece->first, piece->n, work->offset + piece->first,
                     0);
    }
    if (work->has_histogram) finish_bins(work, measure, piece);
    if (work->has_sketch) sketch_finish(&work->sketch, found->buckets);
}

static void measure_share(Job *job) {
    const MeasureJob *measure = (const MeasureJob *)job;
    Work work;
    work.has_histogram = measure->out->bins != NULL;
    work.has_sketch = measure->out->sketches != NULL;
    if (work.has_histogram) counters_clear(&work.histogram.counters);
    if (work.has_sketch) sketch_clear(&work.sketch);
    for (Piece *piece; (piece = next_piece(job));) measure_piece(&work, measure, piece);
}

/* Put a piece of a tensor to those before it. */
static void join_measured(Measured *total, const Measured *found, const Outputs *out) {
    if (out->records) {
        sums_join(&total->sums, &found->sums);
        total->zero_rows += found->zero_rows;
    }
    for (size_t i = 0; out->sketches && i < SKETCH_WIDTH; i++)
        total->buckets[i] += found->buckets[i];
}

static void measure_join(Job *job, const Piece *piece) {
    MeasureJob *measure = (MeasureJob *)job;
    const Outputs *out = measure->out;
    const Measured *whole = &piece->measured;
    if (piece->first > 0) {
        join_measured(&measure->total, whole, out);
        whole = &measure->total;
    } else if (!is_last(job, piece)) {
        measure->total = *whole;
    }
    if (!is_last(job, piece)) return;
    if (out->records) {
        Record *record = &out->records[piece->tensor];
        sums_finish(&whole->sums, (uint64_t)job->batch->counts[piece->tensor], record);
        record->zero_rows = whole->zero_rows;
    }
    for (size_t i = 0; out->sketches && i < SKETCH_WIDTH; i++)
        out->sketches->out[piece->tensor * SKETCH_WIDTH + i] = (float)whole->buckets[i];
    if (out->bins) write_bins(measure, piece->tensor);
}

static void measure(const Batch *batch, const Outputs *out) {
    MeasureJob measure = {.job = {.batch = batch, .share = measure_share, .join = measure_join},
                          .out = out};
    int threads = useful_threads(batch);
    uint64_t one[2 * MOST_COUNTED], *all = NULL;
    if (out->bins) {
        size_t size = 2 * row_of_bins(out->bins) * sizeof *one;
        if (threads > 1) all = calloc(batch->n, size);
        if (!all) threads = 1, memset(one, 0, size);
        measure.counted = all ? all : one;
    }
    run_job(&measure.job, threads);
    free(all);
}
