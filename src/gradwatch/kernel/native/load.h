/* Elements of any type as floats or doubles, a block at a time. */

static void widen_bf16(const uint16_t *from, size_t n, float *to) {
    size_t i = 0;
    /* A bfloat16 is the upper half of a float32. */
    for (; i + LANES <= n; i += LANES) {
        vu bits = __builtin_convertvector(load_vh(from + i), vu) << 16;
        memcpy(to + i, &bits, sizeof bits);
    }
    for (; i < n; i++) {
        uint32_t bits = (uint32_t)from[i] << 16;
        memcpy(to + i, &bits, sizeof bits);
    }
}

static void widen_f16(const uint16_t *from, size_t n, float *to) {
    for (size_t i = 0; i < n; i += LANES) {
        uint16_t padded[LANES] = {0};
        size_t here = smaller(LANES, n - i);
        const uint16_t *source = from + i;
        if (here < LANES) source = memcpy(padded, from + i, here * sizeof *from);
        vf values = half_to_float(load_vh(source));
        memcpy(to + i, &values, here * sizeof *to);
    }
}

/* Elements [first, first + n) of a tensor that is not float64: in place, or widened to `scratch`. */
static const float *load_floats(const Tensor *tensor, size_t first, size_t n, float *scratch) {
    const char *from = tensor->data + first * itemsize(tensor->dtype);
    if (tensor->dtype == F32) return (const float *)from;
    if (tensor->dtype == BF16) widen_bf16((const uint16_t *)from, n, scratch);
    if (tensor->dtype == F16) widen_f16((const uint16_t *)from, n, scratch);
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
