/* How many elements are NaN or infinite, of all or of every stride-th: integer work only, for
 * exponents of nothing but ones say it. */

/* Neighbours are compared a block at a time: a block's count fits into any element type, so that
 * the compiler adds lanes as wide as the elements. */
#define DEFINE_NONFINITE(name, type, exponent)                                          \
    static size_t name(const type *x, size_t n, size_t stride) {                        \
        size_t total = 0;                                                               \
        for (size_t i = 0; stride == 1 && i < n; i += BLOCK) {                          \
            size_t stop = smaller(n, i + BLOCK);                                        \
            type hits = 0;                                                              \
            for (size_t k = i; k < stop; k++) hits += (x[k] & (exponent)) == (exponent); \
            total += hits;                                                              \
        }                                                                               \
        for (size_t i = 0; stride > 1 && i < n; i++, x += stride)                       \
            total += (*x & (exponent)) == (exponent);                                   \
        return total;                                                                   \
    }
DEFINE_NONFINITE(nonfinite_f32, uint32_t, 0x7f800000u)
DEFINE_NONFINITE(nonfinite_f64, uint64_t, 0x7ff0000000000000u)
DEFINE_NONFINITE(nonfinite_bf16, uint16_t, 0x7f80u)
DEFINE_NONFINITE(nonfinite_f16, uint16_t, 0x7c00u)
#undef DEFINE_NONFINITE

/* Of the `n` elements that lie `stride` apart. */
static size_t nonfinite(const void *data, size_t n, int dtype, size_t stride) {
    if (dtype == F32) return nonfinite_f32(data, n, stride);
    if (dtype == F64) return nonfinite_f64(data, n, stride);
    return dtype == BF16 ? nonfinite_bf16(data, n, stride) : nonfinite_f16(data, n, stride);
}
