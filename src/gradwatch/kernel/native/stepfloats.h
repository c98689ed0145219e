/* A block of a step where no stream is float64: floats all the way, for two doubles cost four times
 * what a float does. Afterwards it is known whether the sums kept their digits. */

/* Changes and ratios are taken times this, so that squares of small ones do not become subnormal. */
#define LIFT 0x1p30f

/* Where a block's streams begin; unused ones are NULL. */
typedef struct {
    const float *before, *after, *grad, *second;
} Streams;

/* Float sums of squares, and counters that hold −1 per hit. */
typedef struct {
    vf change, weight, ratio;
    vi same, with, lost, under, odd, strange;
} StepLanes;

static inline __attribute__((always_inline)) void add_ratio(StepLanes *lanes, const Step *step,
                                                            vf grad, vf second) {
    vu exponent = vu_all(0x7f800000);
    /* Products of subnormal numbers cost the processor a hundred steps: positive ones become 0. */
    vu subnormal = (vu)((vu)second - 1 < vu_all(0x007fffff));
    vf kept = (vf)((vu)second & ~subnormal);
    vf ratio = vf_ratio(grad * LIFT, kept, vf_all(step->factor), vf_all((float)step->eps));
    vi odd = (vi)(((vu)ratio & exponent) == exponent), real = (vi)(second >= vf_all(0.0f));
    vi finite = (vi)(((vu)grad & exponent) != exponent);
    lanes->under += (vi)(second < vf_all(step->below)) & real;
    lanes->odd += odd;
    /* A ratio of good numbers left the range of float, or a root that matters was taken for 0. */
    lanes->strange |= (odd & finite & real) | ((vi)subnormal & (vi)vu_all(step->heed));
    ratio = (vf)((vi)ratio & ~odd);
    lanes->ratio += ratio * ratio;
}

/* `parts` is a constant at every call: each combination has its own loop. */
static inline __attribute__((always_inline)) void add_step(StepLanes *lanes, const Step *step,
                                                           const Streams *x, size_t i, int parts) {
    vi same = {0};
    if (parts & CHANGE) {
        vf before = load_vf(x->before + i), after = load_vf(x->after + i);
        vf change = (after - before) * LIFT;
        same = (vi)((vu)before == (vu)after);
        lanes->same += same;
        lanes->change += change * change;
        lanes->weight += before * before;
    }
    if (parts & GRADIENT) {
        vf grad = load_vf(x->grad + i);
        vi with = (vi)(grad != vf_all(0.0f));
        lanes->with += with;
        lanes->lost += with & same;
        if (parts & RATIO) add_ratio(lanes, step, grad, load_vf(x->second + i));
    }
}

/* The sums in double, before those in float grow inexact. */
typedef struct {
    vd change, weight, ratio;
} StepTotals;

static inline void fold_step(StepLanes *lanes, StepTotals *totals) {
    totals->change += vf_fold(lanes->change), totals->weight += vf_fold(lanes->weight);
    totals->ratio += vf_fold(lanes->ratio);
    lanes->change = lanes->weight = lanes->ratio = (vf){0};
}

static inline void prefetch_streams(const Streams *x, size_t i, int parts) {
    size_t bytes = LANES * sizeof(float);
    if (parts & CHANGE) prefetch((const char *)(x->before + i), bytes);
    if (parts & CHANGE) prefetch((const char *)(x->after + i), bytes);
    if (parts & GRADIENT) prefetch((const char *)(x->grad + i), bytes);
    if (parts & RATIO) prefetch((const char *)(x->second + i), bytes);
}

/* The last elements, filled up with such as count and add nothing. */
static inline void add_rest(StepLanes *lanes, const Step *step, const Streams *x, size_t i,
                            size_t n, int parts) {
    float before[LANES] = {0}, after[LANES] = {0}, grad[LANES] = {0}, second[LANES];
    for (size_t lane = 0; lane < LANES; lane++) second[lane] = NAN;
    if (parts & CHANGE) memcpy(before, x->before + i, (n - i) * sizeof(float));
    if (parts & CHANGE) memcpy(after, x->after + i, (n - i) * sizeof(float));
    if (parts & GRADIENT) memcpy(grad, x->grad + i, (n - i) * sizeof(float));
    if (parts & RATIO) memcpy(second, x->second + i, (n - i) * sizeof(float));
    Streams rest = {before, after, grad, second};
    add_step(lanes, step, &rest, 0, parts);
}

/* What is known of a block: sums of squares, and counters. */
typedef struct {
    double change, weight, ratio;
    uint64_t same, with, lost, under, odd, strange, lanes;
} Found;

static inline __attribute__((always_inline)) Found sweep_step(const Step *step, const Streams *x,
                                                              size_t n, int parts) {
    StepLanes lanes = {{0}, {0}, {0}, {0}, {0}, {0}, {0}, {0}, {0}};
    StepTotals totals = {{0}, {0}, {0}};
    size_t i = 0;
    while (i + LANES <= n) {
        size_t stop = smaller(n - LANES + 1, i + TERMS * LANES);
        for (; i < stop; i += LANES) {
            prefetch_streams(x, i, parts);
            add_step(&lanes, step, x, i, parts);
        }
        fold_step(&lanes, &totals);
    }
    if (i < n) add_rest(&lanes, step, x, i, n, parts), i += LANES;
    fold_step(&lanes, &totals);
    return (Found){vd_sum(totals.change) * 0x1p-60, vd_sum(totals.weight),
                   vd_sum(totals.ratio) * 0x1p-60,
                   -vi_sum(lanes.same), -vi_sum(lanes.with), -vi_sum(lanes.lost),
                   -vi_sum(lanes.under), -vi_sum(lanes.odd), -vi_sum(lanes.strange), i};
}

static Found sweep_parts(const Step *step, const Streams *x, size_t n) {
    switch (step->parts) {
    case CHANGE: return sweep_step(step, x, n, CHANGE);
    case CHANGE | GRADIENT: return sweep_step(step, x, n, CHANGE | GRADIENT);
    case GRADIENT | RATIO: return sweep_step(step, x, n, GRADIENT | RATIO);
    case CHANGE | GRADIENT | RATIO: return sweep_step(step, x, n, CHANGE | GRADIENT | RATIO);
    default: return (Found){0};
    }
}

/* Whether Σx², as floats added it up, has all the digits it should. */
static inline int is_sound(double squares, double lift) {
    return squares * lift > 0x1p-100 && squares * lift < 0x1p120;
}

/* Take over the sums of squares of change and weight, or say that they lost digits. */
static int keep_change(const Found *found, StepSums *sums) {
    int still = found->change == 0.0 && sums->changed == 0;
    if (!(is_sound(found->change, 0x1p60) || still) || !is_sound(found->weight, 1.0)) return 0;
    norm_add(&sums->change, found->change, 0);
    norm_add(&sums->weight, found->weight, 0);
    return 1;
}

static int keep_ratio(const Found *found, StepSums *sums) {
    uint64_t finite = found->lanes - found->odd;
    int idle = found->ratio == 0.0 && (found->with == 0 || finite == 0);
    if (found->strange || !(is_sound(found->ratio, 0x1p60) || idle)) return 0;
    norm_add(&sums->ratio, found->ratio, 0);
    sums->finite = finite, sums->under = found->under;
    return 1;
}

/* One block; gives the parts whose sums must be taken once more, in double. */
static int step_floats(const Step *step, size_t first, size_t n, StepSums *sums) {
    float scratch[4][BLOCK];
    Streams x = {0};
    int todo = 0;
    if (step->parts & CHANGE) x.before = load_floats(&step->before, first, n, scratch[0]);
    if (step->parts & CHANGE) x.after = load_floats(&step->after, first, n, scratch[1]);
    if (step->parts & GRADIENT) x.grad = load_floats(&step->grad, first, n, scratch[2]);
    if (step->parts & RATIO) x.second = load_floats(&step->second, first, n, scratch[3]);
    Found found = sweep_parts(step, &x, n);
    sums->with_gradient = found.with, sums->lost = found.lost;
    if (step->parts & CHANGE) sums->changed = found.lanes - found.same;
    if (step->parts & CHANGE && !keep_change(&found, sums)) todo |= CHANGE;
    if (step->parts & RATIO && !keep_ratio(&found, sums)) todo |= RATIO;
    return todo;
}
