/* Moments of a block of doubles, in two passes. */

static Sweep sweep_doubles(const double *x, size_t n) {
    vd sum = {0}, absolute = {0}, low = vd_all(INFINITY), high = vd_all(-INFINITY);
    vl zeros = {0};
    size_t i = 0;
    for (; i + WIDE <= n; i += WIDE) {
        vd a = load_vd(x + i);
        sum += a, absolute += vd_abs(a), zeros -= (vl)(a == vd_all(0.0));
        low = vd_min(low, a), high = vd_max(high, a);
    }
    Sweep s = {vd_sum(sum), vd_sum(absolute), INFINITY, -INFINITY, vl_sum(zeros)};
    for (int lane = 0; lane < WIDE; lane++) {
        if (low[lane] < s.low) s.low = low[lane];
        if (high[lane] > s.high) s.high = high[lane];
    }
    for (; i < n; i++) {
        s.sum += x[i], s.absolute += fabs(x[i]), s.zeros += x[i] == 0.0;
        if (x[i] < s.low) s.low = x[i];
        if (x[i] > s.high) s.high = x[i];
    }
    return s;
}

static Powers powers_doubles(const double *x, size_t n, double pivot) {
    vd p1 = {0}, p2 = {0}, p3 = {0}, p4 = {0}, shift = vd_all(pivot);
    size_t i = 0;
    for (; i + WIDE <= n; i += WIDE) {
        vd a = load_vd(x + i) - shift, aa = a * a;
        p1 += a, p2 += aa, p3 += aa * a, p4 += aa * aa;
    }
    Powers p = {vd_sum(p1), vd_sum(p2), vd_sum(p3), vd_sum(p4)};
    for (; i < n; i++) add_powers(&p, x[i] - pivot);
    return p;
}

static void regular_doubles(const double *x, size_t n, const Sweep *s, int exponent, Sums *sums) {
    double pivot = s->sum / (double)n;
    Powers p = powers_doubles(x, n, pivot);
    if (is_far(&p, n)) {
        pivot += p.p1 / (double)n;
        p = powers_doubles(x, n, pivot);
    }
    note_sweep(sums, s, exponent);
    settle(sums, &p, n, pivot, 1.0);
}

/* Doubles that are not finite or not moderate: the finite ones scaled into the middle. */
static void irregular_doubles(const double *x, size_t n, Sums *sums) {
    double kept[BLOCK], low = INFINITY, high = -INFINITY;
    size_t m = 0;
    for (size_t i = 0; i < n; i++) {
        if (!is_finite_counted(x[i], sums)) continue;
        kept[m++] = x[i];
        low = fmin(low, x[i]), high = fmax(high, x[i]);
    }
    if (m == 0) return;
    int exponent = common_exponent(fmax(fabs(low), fabs(high)));
    uint64_t zeros = 0;
    for (size_t i = 0; i < m; i++) {
        zeros += kept[i] == 0.0;
        kept[i] = ldexp(kept[i], -exponent);
    }
    Sweep s = sweep_doubles(kept, m);
    regular_doubles(kept, m, &s, exponent, sums);
    /* Scaling may have rounded the smallest ones to zero. */
    sums->zeros = zeros, sums->low = low, sums->high = high;
}

static void block_doubles(const double *x, size_t n, Sums *sums) {
    Sweep s = sweep_doubles(x, n);
    if (is_moderate(&s)) regular_doubles(x, n, &s, 0, sums);
    else irregular_doubles(x, n, sums);
}
