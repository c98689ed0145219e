/* Σx² of the finite values of a block of doubles, whatever their range. */

static double largest_finite(const double *x, size_t n) {
    vd most = {0};
    size_t i = 0;
    for (; i + WIDE <= n; i += WIDE) most = vd_max(most, vd_abs(vd_finite(load_vd(x + i))));
    double largest = 0.0;
    for (int lane = 0; lane < WIDE; lane++) largest = fmax(largest, most[lane]);
    for (; i < n; i++)
        if (isfinite(x[i])) largest = fmax(largest, fabs(x[i]));
    return largest;
}

static void add_squares(const double *x, size_t n, Norm *norm) {
    int exponent = common_exponent(largest_finite(x, n));
    /* The power of two that brings them to the middle of the range may be no double: its root is. */
    double root = ldexp(1.0, -exponent / 2), rest = 0.0;
    vd total = {0};
    size_t i = 0;
    for (; i + WIDE <= n; i += WIDE) {
        vd y = vd_finite(load_vd(x + i)) * root * root;
        total += y * y;
    }
    for (; i < n; i++) {
        double y = isfinite(x[i]) ? x[i] * root * root : 0.0;
        rest += y * y;
    }
    norm_add(norm, vd_sum(total) + rest, exponent);
}
