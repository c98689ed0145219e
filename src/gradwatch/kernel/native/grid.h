/* Counting on a uniform grid: cell i holds [(first + i)·2^exponent, (first + i + 1)·2^exponent).
 *
 * A product with a power of two, a floor and the difference of two whole numbers are all exact where
 * the result is a cell, so every element is in its own. Elements outside are counted in the first or
 * the last cell; where a block has any it is read again to take them back out. */

enum { MOST_CELLS = 256, TABLES = 8 };

/* So many elements may be counted before a counter could overflow: a table gets one in TABLES, and
 * at the end of a tensor the odd ones. */
enum { TALLY = 1 << 18 };
_Static_assert((TALLY + BLOCK) / TABLES + WIDTH <= UINT16_MAX, "the tables hold a tally");

typedef struct {
    double scale, first, last;
    int is_narrow; /* the same three are exact as floats */
    uint64_t *counts, *outside;
    size_t tallied;
    uint16_t tables[TABLES][MOST_CELLS];
} Grid;

static void grid_start(Grid *grid, const Grids *grids, size_t t) {
    int exponent = (int)grids->exponents[t];
    grid->scale = ldexp(1.0, -exponent), grid->first = grids->firsts[t];
    grid->last = (double)(grids->cells - 1);
    grid->is_narrow = exponent >= -126 && exponent <= 126 && fabs(grid->first) <= 0x1p126 &&
                      (double)(float)grid->first == grid->first;
    grid->counts = grids->counts + t * grids->cells, grid->outside = grids->outside + 3 * t;
    memset(grid->counts, 0, grids->cells * sizeof *grid->counts);
    memset(grid->outside, 0, 3 * sizeof *grid->outside);
    grid->tallied = 0;
    memset(grid->tables, 0, sizeof grid->tables);
}

static void grid_fold(Grid *grid) {
    for (size_t cell = 0; cell <= (size_t)grid->last; cell++)
        for (int table = 0; table < TABLES; table++)
            grid->counts[cell] += grid->tables[table][cell];
    memset(grid->tables, 0, sizeof grid->tables);
    grid->tallied = 0;
}

/* Several tables in turn: raising one counter twice in a row would wait for the first store. There
 * is time here to fetch what comes `next`, elements of `size` bytes. */
static inline void tally(Grid *grid, const uint8_t *cells, size_t n, const char *next,
                         size_t size) {
    for (size_t i = 0; i < n; i += 16) {
        __builtin_prefetch(next + i * size);
        if (size > 4) __builtin_prefetch(next + i * size + 64);
        for (int k = 0; k < 16; k++) grid->tables[k % TABLES][cells[i + k]]++;
    }
}

/* The cell, if it is one. A negative element so small that the product is zero lies under 0: the
 * smallest normal number taken away keeps it there and is lost in every product that matters. */
static inline double cell_of(const Grid *grid, double x) {
    return floor(x * grid->scale + (x < 0.0 ? -0x1p-1022 : 0.0)) - grid->first;
}

/* These three count elements and say whether some lie outside. */
static int count_rest(Grid *grid, const double *x, size_t n) {
    int odd = 0;
    for (size_t i = 0; i < n; i++) {
        double cell = cell_of(grid, x[i]);
        double kept = cell > 0.0 ? cell : 0.0; /* also of NaN */
        kept = kept < grid->last ? kept : grid->last;
        odd |= !(kept == cell);
        grid->tables[0][(size_t)kept]++;
    }
    return odd;
}

/* WIDTH elements at a time: four vectors of floats side by side make one of bytes, in an order that
 * does not matter. `cells` has room for n. `dtype` is a constant at every call. */
static inline __attribute__((always_inline)) int count_floats(Grid *grid, const char *x, size_t n,
                                                              int dtype, uint8_t *cells) {
    size_t size = itemsize(dtype);
    vf scale = vf_all((float)grid->scale), first = vf_all((float)grid->first);
    vf last = vf_all((float)grid->last), zero = {0};
    vi least = (vi)vf_all(-0x1p-126f), odd = {0};
    for (size_t i = 0; i < n; i += WIDTH) {
        vi bytes = {0};
        for (size_t part = 0; part < 4; part++) {
            vf value = load_lanes(x + (i + part * LANES) * size, dtype);
            vf under = (vf)((vi)(value < zero) & least);
            vf cell = vf_floor(value * scale + under) - first;
            vf kept = vf_min(vf_max(cell, zero), last); /* of NaN: the second argument */
            odd |= (vi)kept ^ (vi)cell;
            bytes |= __builtin_convertvector(kept, vi) << (8 * (int)part);
        }
        memcpy(cells + i, &bytes, sizeof bytes);
    }
    tally(grid, cells, n, x + n * size, size);
    uint32_t any = 0;
    for (int lane = 0; lane < LANES; lane++) any |= (uint32_t)odd[lane];
    return any << 1 != 0; /* −0 is cell 0 and differs from it in its sign alone */
}

static inline vd cells_of(const Grid *grid, vd value) {
    vd under = (vd)((vl)(value < (vd){0}) & (vl)vd_all(-0x1p-1022));
    return vd_floor(value * vd_all(grid->scale) + under) - vd_all(grid->first);
}

/* Eight vectors of doubles likewise. 2^52 added, the cell is in the lowest bits. */
static int count_doubles(Grid *grid, const double *x, size_t n, uint8_t *cells) {
    vd last = vd_all(grid->last), zero = {0};
    vq odd = {0};
    for (size_t i = 0; i < n; i += WIDTH) {
        vq bytes = {0};
        for (size_t part = 0; part < 8; part++) {
            vd cell = cells_of(grid, load_vd(x + i + part * WIDE));
            vd kept = vd_min(vd_max(cell, zero), last);
            odd |= (vq)kept ^ (vq)cell;
            bytes |= ((vq)(kept + 0x1p52) & 0xff) << (8 * (int)part);
        }
        memcpy(cells + i, &bytes, sizeof bytes);
    }
    tally(grid, cells, n, (const char *)(x + n), sizeof *x);
    uint64_t any = 0;
    for (int lane = 0; lane < WIDE; lane++) any |= odd[lane];
    return any << 1 != 0;
}

/* What was counted in the first and in the last cell but lies outside; the finite ones among it. */
typedef struct {
    uint64_t lows, highs, below, above;
} Outside;

/* Of whole vectors, in counters that hold −1 per hit; gives how many elements those were. */
static size_t outside_vectors(const Grid *grid, const double *x, size_t n, Outside *out) {
    vl lows = {0}, highs = {0}, below = {0}, above = {0};
    vq exponent = vq_all(0x7ff0000000000000);
    size_t i = 0;
    for (; i + WIDE <= n; i += WIDE) {
        vd value = load_vd(x + i), cell = cells_of(grid, value);
        vl finite = (vl)(((vq)value & exponent) != exponent);
        vl low = ~(vl)(cell >= (vd){0}), high = (vl)(cell > vd_all(grid->last));
        lows += low, highs += high, below += low & finite, above += high & finite;
    }
    *out = (Outside){-vl_sum(lows), -vl_sum(highs), -vl_sum(below), -vl_sum(above)};
    return i;
}

/* Take them back out, and count them apart. */
static void grid_mend(Grid *grid, const double *x, size_t n) {
    Outside out;
    for (size_t i = outside_vectors(grid, x, n, &out); i < n; i++) {
        double cell = cell_of(grid, x[i]);
        int is_low = !(cell >= 0.0), is_high = cell > grid->last, finite = isfinite(x[i]) != 0;
        out.lows += (uint64_t)is_low, out.highs += (uint64_t)is_high;
        out.below += (uint64_t)(is_low & finite), out.above += (uint64_t)(is_high & finite);
    }
    /* Their tables may not have been folded yet: modulo 2^64 it comes out right. */
    grid->counts[0] -= out.lows, grid->counts[(size_t)grid->last] -= out.highs;
    grid->outside[0] += out.below, grid->outside[1] += out.above;
    grid->outside[2] += out.lows - out.below + out.highs - out.above;
}

static void grid_block(Grid *grid, const Tensor *tensor, size_t i, size_t n) {
    double scratch[BLOCK];
    uint8_t cells[BLOCK] __attribute__((aligned(64)));
    size_t size = itemsize(tensor->dtype), whole = n - n % WIDTH;
    const char *x = tensor->data + i * size;
    int odd = 0;
    if (tensor->dtype == F64 || !grid->is_narrow)
        odd = count_doubles(grid, load_doubles(tensor, i, whole, scratch), whole, cells);
    else if (tensor->dtype == F32) odd = count_floats(grid, x, whole, F32, cells);
    else if (tensor->dtype == BF16) odd = count_floats(grid, x, whole, BF16, cells);
    else odd = count_floats(grid, x, whole, F16, cells);
    if (whole < n)
        odd |= count_rest(grid, load_doubles(tensor, i + whole, n - whole, scratch), n - whole);
    if (odd) grid_mend(grid, load_doubles(tensor, i, n, scratch), n);
    grid->tallied += n;
    if (grid->tallied >= TALLY) grid_fold(grid);
}

static void count_cells(const Batch *batch, const Grids *grids) {
    Grid grid;
    for (size_t t = 0; t < batch->n; t++) {
        Tensor tensor = tensor_of(batch, t);
        grid_start(&grid, grids, t);
        for (size_t i = 0; i < tensor.count; i += BLOCK)
            grid_block(&grid, &tensor, i, smaller(BLOCK, tensor.count - i));
        grid_fold(&grid);
    }
}
