/* A block of a step in double: where a stream is float64, and where floats lost digits. */

static void wide_counts(const Step *step, size_t first, size_t n, StepSums *sums) {
    double scratch[3][BLOCK];
    const double *before = NULL, *after = NULL, *grad = NULL;
    if (step->parts & CHANGE) {
        before = load_doubles(&step->before, first, n, scratch[0]);
        after = load_doubles(&step->after, first, n, scratch[1]);
    }
    if (step->parts & GRADIENT) grad = load_doubles(&step->grad, first, n, scratch[2]);
    for (size_t i = 0; i < n; i++) {
        int same = before && memcmp(before + i, after + i, sizeof(double)) == 0;
        int with = grad && grad[i] != 0.0;
        sums->changed += before && !same;
        sums->with_gradient += (uint64_t)with, sums->lost += (uint64_t)(with && same);
    }
}

static void wide_change(const Step *step, size_t first, size_t n, StepSums *sums) {
    double scratch[2][BLOCK], differences[BLOCK];
    const double *before = load_doubles(&step->before, first, n, scratch[0]);
    const double *after = load_doubles(&step->after, first, n, scratch[1]);
    for (size_t i = 0; i < n; i++) differences[i] = after[i] - before[i];
    add_squares(differences, n, &sums->change);
    add_squares(before, n, &sums->weight);
}

static void wide_ratio(const Step *step, size_t first, size_t n, StepSums *sums) {
    double scratch[2][BLOCK], ratios[BLOCK], roots[BLOCK];
    const double *g = load_doubles(&step->grad, first, n, scratch[0]);
    const double *v = load_doubles(&step->second, first, n, scratch[1]);
    for (size_t i = 0; i < n; i++) {
        roots[i] = sqrt(v[i] / step->correction);
        ratios[i] = g[i] / (roots[i] + step->eps);
    }
    for (size_t i = 0; i < n; i++) {
        sums->under += roots[i] < step->eps;
        sums->finite += isfinite(ratios[i]) != 0;
    }
    add_squares(ratios, n, &sums->ratio);
}
