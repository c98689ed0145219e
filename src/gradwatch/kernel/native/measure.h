/* The one pass: every block is measured, counted and sketched while it is in the cache. */

/* One thread's means to work on a piece. */
typedef struct {
    Histogram histogram;
    Sketch sketch;
    Guess guess;
    int has_histogram, has_sketch;
    uint64_t offset;
    uint64_t own_bins[2 * MOST_BINS]; /* of the piece, where others work on the same tensor */
} Work;

typedef struct {
    Job job;
    const Outputs *out;
    Measured total; /* of the pieces of a tensor joined so far */
} MeasureJob;

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

static Sums measure_blocks(Work *work, const Tensor *tensor, size_t first, size_t stop) {
    Sums total = sums_empty();
    work->guess = (Guess){0.0f, 1.0f};
    for (size_t i = first; i < stop; i += BLOCK) {
        size_t n = smaller(BLOCK, stop - i);
        Sums block = sums_empty();
        if (tensor->dtype == F64) measure_doubles(work, tensor, i, n, &block);
        else measure_floats(work, tensor, i, n, &block);
        sums_join(&total, &block);
    }
    return total;
}

/* Begin a piece's histogram: in the tensor's own bins where nobody else counts in them. */
static void start_bins(Work *work, const MeasureJob *measure, const Piece *piece,
                       const Tensor *tensor) {
    const Outputs *out = measure->out;
    uint64_t *bins = out->bins + piece->tensor * 2 * out->width;
    if (measure->job.is_shared && piece->n < tensor->count) {
        bins = work->own_bins;
        memset(bins, 0, 2 * out->width * sizeof *bins);
    }
    histogram_start(&work->histogram, bins, out->width, out->lowest, tensor, piece->first,
                    piece->n);
}

static void finish_bins(Work *work, const Outputs *out, const Piece *piece) {
    uint64_t *bins = out->bins + piece->tensor * 2 * out->width;
    histogram_fold(&work->histogram);
    if (work->histogram.bins[0] == bins) return;
    for (size_t i = 0; i < 2 * out->width; i++)
        if (work->own_bins[i]) __atomic_fetch_add(bins + i, work->own_bins[i], __ATOMIC_RELAXED);
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
        found->sums = measure_blocks(work, &tensor, piece->first, piece->first + piece->n);
        found->zero_rows = zero_rows(&tensor, piece->first, piece->n, found->sums.zeros,
                                     out->touched ? out->touched[piece->tensor] : NULL);
    } else {
        sketch_block(&work->sketch, &tensor, piece->first, piece->n, work->offset + piece->first,
                     0);
    }
    if (work->has_histogram) finish_bins(work, out, piece);
    if (work->has_sketch) sketch_finish(&work->sketch, found->buckets);
}

static void measure_share(Job *job) {
    const MeasureJob *measure = (const MeasureJob *)job;
    Work work;
    work.has_histogram = measure->out->bins != NULL;
    work.has_sketch = measure->out->sketches != NULL;
    for (Piece *piece; (piece = next_piece(job));) measure_piece(&work, measure, piece);
}

static void measure_join(Job *job, const Piece *piece) {
    MeasureJob *measure = (MeasureJob *)job;
    const Outputs *out = measure->out;
    const Measured *found = &piece->measured;
    Measured *total = &measure->total;
    if (piece->first == 0) *total = (Measured){.sums = sums_empty()};
    if (out->records) {
        sums_join(&total->sums, &found->sums);
        total->zero_rows += found->zero_rows;
    }
    for (size_t i = 0; out->sketches && i < SKETCH_WIDTH; i++)
        total->buckets[i] += found->buckets[i];
    if (!is_last(job, piece)) return;
    if (out->records) {
        Record *record = &out->records[piece->tensor];
        sums_finish(&total->sums, (uint64_t)job->batch->counts[piece->tensor], record);
        record->zero_rows = total->zero_rows;
    }
    for (size_t i = 0; out->sketches && i < SKETCH_WIDTH; i++)
        out->sketches->out[piece->tensor * SKETCH_WIDTH + i] = (float)total->buckets[i];
}

static void measure(const Batch *batch, const Outputs *out) {
    MeasureJob measure = {.job = {.batch = batch, .share = measure_share, .join = measure_join},
                          .out = out};
    run_job(&measure.job);
}
