/* What is asked of whole rows. */

/* All bits but the signs, so that −0 is zero too. */
static inline uint64_t magnitude_bits(int dtype) {
    return dtype == F64   ? 0x7fffffffffffffff
           : dtype == F32 ? 0x7fffffff7fffffff
                          : 0x7fff7fff7fff7fff;
}

/* Whether some element is not zero; most rows are left at the first look. */
static int is_touched(const char *row, size_t bytes, vq mask) {
    size_t i = 0;
    for (; i + 4 * WIDTH <= bytes; i += 4 * WIDTH) {
        vq any = load_vq(row + i) | load_vq(row + i + WIDTH) | load_vq(row + i + 2 * WIDTH) |
                 load_vq(row + i + 3 * WIDTH);
        if (is_any(any & mask)) return 1;
    }
    for (; i + WIDTH <= bytes; i += WIDTH)
        if (is_any(load_vq(row + i) & mask)) return 1;
    char padded[WIDTH] = {0};
    memcpy(padded, row + i, bytes - i);
    return is_any(load_vq(padded) & mask);
}

/* The number of rows that are all zero among those that begin in [first, first + n), of which
 * `zeros` elements are zero; marks the others where asked to. */
static uint64_t zero_rows(const Tensor *tensor, size_t first, size_t n, uint64_t zeros,
                          uint8_t *touched) {
    if (tensor->rows == 0 || tensor->count == 0) return 0;
    size_t length = tensor->count / tensor->rows, bytes = length * itemsize(tensor->dtype);
    size_t row = (first + length - 1) / length, stop = (first + n + length - 1) / length;
    if (zeros < length && (first + n) / length > row) {
        /* Too few zeros for a row: nothing to look for, but in the last one if it ends elsewhere. */
        size_t whole = (first + n) / length - row;
        if (touched) memset(touched + row, 1, whole);
        row += whole;
    }
    vq mask = vq_all(magnitude_bits(tensor->dtype));
    uint64_t found = 0;
    for (; row < stop; row++) {
        int is_marked = is_touched(tensor->data + row * bytes, bytes, mask);
        found += !is_marked;
        if (touched) touched[row] |= (uint8_t)is_marked;
    }
    return found;
}

/* Σ x² and Σ (x − first row)² of one row, in units of 4^exponent. */
typedef struct {
    double norm, distance;
} RowSums;

static RowSums row_sums(const Tensor *tensor, size_t row, size_t length, int exponent) {
    double mine[BLOCK], first[BLOCK];
    RowSums sums = {0.0, 0.0};
    for (size_t i = 0; i < length; i += BLOCK) {
        size_t n = smaller(BLOCK, length - i);
        const double *x = load_doubles(tensor, row * length + i, n, mine);
        const double *y = load_doubles(tensor, i, n, first);
        for (size_t k = 0; k < n; k++) {
            double a = exponent ? ldexp(x[k], -exponent) : x[k];
            double b = exponent ? ldexp(y[k], -exponent) : y[k];
            sums.norm += a * a;
            sums.distance += (a - b) * (a - b);
        }
    }
    return sums;
}

static double row_largest(const Tensor *tensor, size_t row, size_t length) {
    double scratch[BLOCK], largest = 0.0;
    for (size_t i = 0; i < length; i += BLOCK) {
        size_t n = smaller(BLOCK, length - i);
        const double *x = load_doubles(tensor, row * length + i, n, scratch);
        for (size_t k = 0; k < n; k++) {
            if (!isfinite(x[k])) return INFINITY;
            largest = fmax(largest, fabs(x[k]));
        }
    }
    return largest;
}

/* The k-th row compared with row 0: at most 16, evenly spread. */
static inline size_t spread_row(size_t k, size_t others, size_t rows) {
    return 1 + k * (rows - 1) / others;
}

static double tensor_spread(const Tensor *tensor) {
    if (tensor->rows < 2 || tensor->count == 0) return NAN;
    size_t rows = tensor->rows, length = tensor->count / rows;
    size_t others = smaller(SPREAD_ROWS, rows - 1);
    double largest = row_largest(tensor, 0, length);
    for (size_t k = 0; k < others; k++)
        largest = fmax(largest, row_largest(tensor, spread_row(k, others, rows), length));
    if (!isfinite(largest)) return NAN;
    if (largest == 0.0) return 0.0;
    int exponent = common_exponent(largest);
    double norm = row_sums(tensor, 0, length, exponent).norm, distance = 0.0;
    for (size_t k = 0; k < others; k++) {
        RowSums sums = row_sums(tensor, spread_row(k, others, rows), length, exponent);
        norm = fmax(norm, sums.norm);
        distance = fmax(distance, sums.distance);
    }
    return sqrt(distance / norm);
}

static void row_spread(const Batch *batch, float *out) {
    for (size_t t = 0; t < batch->n; t++) {
        Tensor tensor = tensor_of(batch, t);
        out[t] = (float)tensor_spread(&tensor);
    }
}
