/* Which elements lie at or beyond two limits. Hardly any do: a block's smallest and largest element
 * tell whether to look closer. */

/* Whether a whole block of floats may hold one. `dtype` is a constant at every call. */
static inline __attribute__((always_inline)) int floats_reach(const char *x, int dtype, double low,
                                                              double high) {
    vf least = vf_all(INFINITY), most = -least;
    for (size_t i = 0; i < BLOCK; i += LANES) {
        prefetch(x + i * itemsize(dtype), LANES * itemsize(dtype));
        vf value = load_lanes(x + i * itemsize(dtype), dtype);
        least = vf_min(value, least), most = vf_max(value, most); /* NaN changes neither */
    }
    return vf_least(least) <= low || -vf_least(-most) >= high;
}

static int doubles_reach(const char *x, double low, double high) {
    vd least = vd_all(INFINITY), most = -least;
    for (size_t i = 0; i < BLOCK; i += WIDE) {
        prefetch(x + i * sizeof(double), WIDTH);
        vd value = load_vd(x + i * sizeof(double));
        least = vd_min(value, least), most = vd_max(value, most);
    }
    int any = 0;
    for (int lane = 0; lane < WIDE; lane++) any |= least[lane] <= low || most[lane] >= high;
    return any;
}

static int block_reaches(const Tensor *tensor, size_t i, double low, double high) {
    const char *x = tensor->data + i * itemsize(tensor->dtype);
    if (tensor->dtype == F64) return doubles_reach(x, low, high);
    if (tensor->dtype == F32) return floats_reach(x, F32, low, high);
    if (tensor->dtype == BF16) return floats_reach(x, BF16, low, high);
    return floats_reach(x, F16, low, high);
}

/* The places of a block's elements beyond, without a branch to guess wrong; gives their number. */
static size_t places_beyond(const double *x, size_t n, double low, double high, uint16_t *places) {
    uint8_t is_beyond[BLOCK];
    size_t found = 0;
    for (size_t k = 0; k < n; k++)
        is_beyond[k] = ((x[k] <= low) | (x[k] >= high)) & (fabs(x[k]) < INFINITY);
    for (size_t k = 0; k < n; k++) {
        places[found] = (uint16_t)k;
        found += is_beyond[k];
    }
    return found;
}

static uint64_t list_tensor(const Tensor *tensor, double low, double high, int64_t *indices,
                            size_t most) {
    double scratch[BLOCK];
    uint16_t places[BLOCK];
    uint64_t total = 0;
    for (size_t i = 0; i < tensor->count; i += BLOCK) {
        size_t n = smaller(BLOCK, tensor->count - i);
        if (n == BLOCK && !block_reaches(tensor, i, low, high)) continue;
        size_t found =
            places_beyond(load_doubles(tensor, i, n, scratch), n, low, high, places);
        for (size_t k = 0; k < found && total + k < most; k++)
            indices[total + k] = (int64_t)(i + places[k]);
        total += found;
    }
    return total;
}

static void list_beyond(const Batch *batch, const Limits *limits) {
    for (size_t t = 0; t < batch->n; t++) {
        Tensor tensor = tensor_of(batch, t);
        limits->totals[t] = list_tensor(&tensor, limits->lows[t], limits->highs[t],
                                        limits->indices + t * limits->most, limits->most);
    }
}
