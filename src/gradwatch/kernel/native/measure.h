/* The one pass: every block is measured, counted and sketched while it is in the cache. */

typedef struct {
    Histogram histogram;
    Sketch sketch;
    Guess guess;
    int has_histogram, has_sketch;
    uint64_t offset;
} Work;

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

static Sums measure_tensor(Work *work, const Tensor *tensor) {
    Sums total = sums_empty();
    work->guess = (Guess){0.0f, 1.0f};
    for (size_t i = 0; i < tensor->count; i += BLOCK) {
        size_t n = smaller(BLOCK, tensor->count - i);
        Sums block = sums_empty();
        if (tensor->dtype == F64) measure_doubles(work, tensor, i, n, &block);
        else measure_floats(work, tensor, i, n, &block);
        sums_join(&total, &block);
    }
    return total;
}

static void measure(const Batch *batch, const Outputs *out) {
    Work work = {.has_histogram = out->bins != NULL, .has_sketch = out->sketches != NULL};
    for (size_t t = 0; t < batch->n; t++) {
        Tensor tensor = tensor_of(batch, t);
        if (work.has_histogram)
            histogram_start(&work.histogram, out->bins + t * 2 * out->width, out->width,
                            out->lowest, &tensor);
        if (work.has_sketch) {
            sketch_start(&work.sketch, out->sketches->seeds[t], out->sketches->wholes[t]);
            work.offset = (uint64_t)out->sketches->offsets[t];
        }
        Sums total = measure_tensor(&work, &tensor);
        sums_finish(&total, tensor.count, &out->records[t]);
        out->records[t].zero_rows =
            zero_rows(&tensor, total.zeros, out->touched ? out->touched[t] : NULL);
        if (work.has_histogram) histogram_fold(&work.histogram);
        if (work.has_sketch) sketch_finish(&work.sketch, out->sketches->out + t * SKETCH_WIDTH);
    }
}
