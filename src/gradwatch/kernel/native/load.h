/* Elements of any type as floats or doubles, a block at a time. */

/* LANES elements of any type but float64. */
static inline vf load_lanes(const char *from, int dtype) {
    if (dtype == F32) return load_vf(from);
    if (dtype == F16) return half_to_float(load_vh(from));
    /* A bfloat16 is the upper half of a float32. */
    return (vf)(__builtin_convertvector(load_vh(from), vu) << 16);
}

/* 2·LANES elements, in any order. */
static inline void load_twice(const char *from, int dtype, vf *a, vf *b) {
    if (dtype == BF16) { /* the odd ones are in place, the even ones are shifted there */
        vu both = load_vu(from);
        *a = (vf)(both << 16), *b = (vf)(both & 0xffff0000u);
        return;
    }
    *a = load_lanes(from, dtype), *b = load_lanes(from + LANES * itemsize(dtype), dtype);
}

static void widen(const uint16_t *from, size_t n, int dtype, float *to) {
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        vf values = load_lanes((const char *)(from + i), dtype);
        memcpy(to + i, &values, sizeof values);
    }
    if (i == n) return;
    uint16_t padded[LANES] = {0};
    memcpy(padded, from + i, (n - i) * sizeof *from);
    vf values = load_lanes((const char *)padded, dtype);
    memcpy(to + i, &values, (n - i) * sizeof *to);
}

/* Elements [first, first + n) of a tensor that is not float64: in place, or widened to `scratch`. */
static const float *load_floats(const Tensor *tensor, size_t first, size_t n, float *scratch) {
    const char *from = tensor->data + first * itemsize(tensor->dtype);
    if (tensor->dtype == F32) return (const float *)from;
    if (tensor->dtype == BF16) widen((const uint16_t *)from, n, BF16, scratch);
    else widen((const uint16_t *)from, n, F16, scratch);
    return scratch;
}

/* Elements [first, first + n) of any tensor as doubles. */
static const double *load_doubles(const Tensor *tensor, size_t first, size_t n, double *scratch) {
    if (tensor->dtype == F64) return (const double *)tensor->data + first;
    float narrow[BLOCK];
    const float *x = load_floats(tensor, first, n, narrow);
    for (size_t i = 0; i < n; i++) scratch[i] = x[i];
    return scratch;
}
