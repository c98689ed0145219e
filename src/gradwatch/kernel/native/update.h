/* What an optimizer's step changed. */

typedef struct {
    const float *before, *after, *grad; /* grad may be NULL */
} FloatTriple;

static inline void add_change(vd old, vd new, vd *change, vd *weight) {
    vd difference = vd_finite(new - old);
    old = vd_finite(old);
    *change += difference * difference;
    *weight += old * old;
}

/* Lanes are compared by their bits; counters hold −1 per hit. */
static size_t update_floats_vectors(const FloatTriple *x, size_t n, UpdateRecord *record,
                                    double squares[2]) {
    vd change = {0}, weight = {0};
    vi same_count = {0}, with_count = {0}, lost_count = {0};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        vu before = load_vu(x->before + i), after = load_vu(x->after + i);
        vi same = (vi)(before == after);
        same_count += same;
        if (x->grad) {
            vi with = (vi)(load_vu(x->grad + i) << 1 != vu_all(0));
            with_count += with;
            lost_count += with & same;
        }
        add_change(vf_low((vf)before), vf_low((vf)after), &change, &weight);
        add_change(vf_high((vf)before), vf_high((vf)after), &change, &weight);
    }
    record->changed += i + vi_sum(same_count);
    record->with_gradient -= vi_sum(with_count);
    record->lost -= vi_sum(lost_count);
    squares[0] = vd_sum(change), squares[1] = vd_sum(weight);
    return i;
}

static inline double finite_or_zero(double x) { return isfinite(x) ? x : 0.0; }

static void update_floats(const FloatTriple *x, size_t n, UpdateRecord *record, Norm *change,
                          Norm *weight) {
    double squares[2];
    for (size_t i = update_floats_vectors(x, n, record, squares); i < n; i++) {
        int same = memcmp(x->before + i, x->after + i, sizeof(float)) == 0;
        int with = x->grad && x->grad[i] != 0.0f;
        record->changed += !same, record->with_gradient += with, record->lost += with && same;
        double old = x->before[i], difference = finite_or_zero(x->after[i] - old);
        old = finite_or_zero(old);
        squares[0] += difference * difference, squares[1] += old * old;
    }
    norm_add(change, squares[0], 0);
    norm_add(weight, squares[1], 0);
}

/* Σx² of the finite values, in the middle of the range of double. */
static void add_squares(const double *x, size_t n, Norm *norm) {
    double largest = 0.0, squares = 0.0;
    for (size_t i = 0; i < n; i++) largest = fmax(largest, fabs(finite_or_zero(x[i])));
    int exponent = common_exponent(largest);
    for (size_t i = 0; i < n; i++) {
        double y = finite_or_zero(x[i]);
        if (exponent) y = ldexp(y, -exponent);
        squares += y * y;
    }
    norm_add(norm, squares, exponent);
}

static void update_doubles(const double *before, const double *after, const double *grad, size_t n,
                           UpdateRecord *record, Norm *change, Norm *weight) {
    double differences[BLOCK];
    for (size_t i = 0; i < n; i++) {
        int same = memcmp(before + i, after + i, sizeof(double)) == 0;
        int with = grad && grad[i] != 0.0;
        record->changed += !same, record->with_gradient += with, record->lost += with && same;
        differences[i] = after[i] - before[i];
    }
    add_squares(differences, n, change);
    add_squares(before, n, weight);
}

static void update_tensor(const Tensor *before, const Tensor *after, const Tensor *grad,
                          UpdateRecord *record) {
    /* Of doubles, where one of the three is; else of floats. */
    union {
        float narrow[3][BLOCK];
        double wide[3][BLOCK];
    } scratch;
    int has_grad = grad->count > 0;
    int is_wide = before->dtype == F64 || (has_grad && grad->dtype == F64);
    Norm change = {0}, weight = {0};
    for (size_t i = 0; i < before->count; i += BLOCK) {
        size_t n = smaller(BLOCK, before->count - i);
        if (is_wide) {
            update_doubles(load_doubles(before, i, n, scratch.wide[0]),
                           load_doubles(after, i, n, scratch.wide[1]),
                           has_grad ? load_doubles(grad, i, n, scratch.wide[2]) : NULL, n, record,
                           &change, &weight);
        } else {
            FloatTriple x = {load_floats(before, i, n, scratch.narrow[0]),
                             load_floats(after, i, n, scratch.narrow[1]),
                             has_grad ? load_floats(grad, i, n, scratch.narrow[2]) : NULL};
            update_floats(&x, n, record, &change, &weight);
        }
    }
    record->update_norm = norm_value(&change);
    record->before_norm = norm_value(&weight);
}

static void update(const Batch *before, const Batch *after, const Batch *grads, UpdateRecord *out) {
    for (size_t t = 0; t < before->n; t++) {
        Tensor old = tensor_of(before, t), new = tensor_of(after, t), grad = {0};
        if (grads) grad = tensor_of(grads, t);
        out[t] = (UpdateRecord){0};
        update_tensor(&old, &new, &grad, &out[t]);
    }
}
