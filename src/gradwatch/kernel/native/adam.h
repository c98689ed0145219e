/* Adam's ratio g/(√v̂+ε), and where ε decides it. */

/* Adam's numbers of one tensor so far. */
typedef struct {
    double correction, eps;
    float below; /* v < below exactly where √(v / correction) < eps, for float v */
    Norm ratio;
    uint64_t finite, under;
} AdamSums;

/* The smallest float not under eps²·correction: comparing floats with it is exact. */
static float threshold(double eps, double correction) {
    double exact = eps * eps * correction;
    float nearest = (float)exact;
    if (exact > 0.0 && nearest < exact) nearest = nextafterf(nearest, INFINITY);
    return nearest;
}

static inline void adam_one(AdamSums *sums, double g, double v, double *squares) {
    double root = sqrt(v / sums->correction), ratio = g / (root + sums->eps);
    sums->under += root < sums->eps;
    if (!isfinite(ratio)) return;
    sums->finite++;
    *squares += ratio * ratio;
}

static void adam_floats(AdamSums *sums, const float *g, const float *v, size_t n) {
    vf factor = vf_all((float)(1.0 / sqrt(sums->correction))), eps = vf_all((float)sums->eps);
    vf below = vf_all(sums->below);
    vd total = {0};
    vi under = {0}, odd = {0}, strange = {0};
    vu exponent = vu_all(0x7f800000);
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        vf first = load_vf(g + i), second = load_vf(v + i);
        vf ratio = first / (vf_sqrt(second) * factor + eps);
        vi is_odd = (vi)(((vu)ratio & exponent) == exponent);
        under += (vi)(second < below) & (vi)(second >= vf_all(0));
        odd += is_odd;
        strange |= is_odd & (vi)(((vu)first & exponent) != exponent) & (vi)(second >= vf_all(0));
        ratio = vf_finite(ratio);
        vd a = vf_low(ratio), b = vf_high(ratio);
        total += a * a + b * b;
    }
    /* A ratio of finite numbers left the range of float: once more, in double. */
    if (vi_sum(strange) != 0) i = 0, total = (vd){0}, under = odd = (vi){0};
    sums->under -= vi_sum(under);
    sums->finite += i + vi_sum(odd);
    double squares = vd_sum(total);
    for (; i < n; i++) adam_one(sums, g[i], v[i], &squares);
    norm_add(&sums->ratio, squares, 0);
}

static void adam_doubles(AdamSums *sums, const double *g, const double *v, size_t n) {
    double ratios[BLOCK];
    for (size_t i = 0; i < n; i++) {
        double unused = 0.0, root = sqrt(v[i] / sums->correction);
        ratios[i] = g[i] / (root + sums->eps);
        adam_one(sums, g[i], v[i], &unused);
    }
    add_squares(ratios, n, &sums->ratio);
}

static void adam_tensor(const Tensor *grad, const Tensor *second, AdamSums *sums) {
    union {
        float narrow[2][BLOCK];
        double wide[2][BLOCK];
    } scratch;
    int is_wide = grad->dtype == F64 || second->dtype == F64;
    for (size_t i = 0; i < grad->count; i += BLOCK) {
        size_t n = smaller(BLOCK, grad->count - i);
        if (is_wide)
            adam_doubles(sums, load_doubles(grad, i, n, scratch.wide[0]),
                         load_doubles(second, i, n, scratch.wide[1]), n);
        else
            adam_floats(sums, load_floats(grad, i, n, scratch.narrow[0]),
                        load_floats(second, i, n, scratch.narrow[1]), n);
    }
}

static void adam(const Batch *grads, const Batch *second, const double *correction,
                 const double *eps, AdamRecord *out) {
    for (size_t t = 0; t < grads->n; t++) {
        Tensor g = tensor_of(grads, t), v = tensor_of(second, t);
        AdamSums sums = {.correction = correction[t], .eps = eps[t],
                         .below = threshold(eps[t], correction[t])};
        adam_tensor(&g, &v, &sums);
        out[t].ratio_rms =
            sums.finite ? norm_value(&sums.ratio) / sqrt((double)sums.finite) : NAN;
        out[t].eps_fraction = g.count ? (double)sums.under / (double)g.count : NAN;
    }
}
