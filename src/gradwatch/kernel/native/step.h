/* What an optimizer's step changed, and how Adam's ratio g/(√v̂+ε) is distributed: one pass over the
 * weights before and after, the gradient and the second moment, or over those of them there are. */

enum { CHANGE = 1, GRADIENT = 2, RATIO = 4 };

/* One tensor's four streams, which of them there are (`parts`), and Adam's constants. */
typedef struct {
    Tensor before, after, grad, second;
    size_t count;
    int parts, is_wide; /* wide: one of the streams is float64 */
    double correction, eps;
    float factor, below;
    uint32_t heed; /* all ones where subnormal second moments matter; see set_constants */
} Step;

/* The smallest float not under eps²·correction: comparing floats with it is exact. */
static float threshold(double eps, double correction) {
    double exact = eps * eps * correction;
    float nearest = (float)exact;
    if (exact > 0.0 && nearest < exact) nearest = nextafterf(nearest, INFINITY);
    return nearest;
}

static void set_constants(Step *step) {
    step->factor = (float)(1.0 / sqrt(step->correction));
    /* v < below exactly where √(v / correction) < eps, for float v. */
    step->below = threshold(step->eps, step->correction);
    /* The root of subnormal numbers is taken for 0. Beside eps it is nothing, or else blocks with
     * such go the way of doubles. */
    step->heed = step->eps > 1e-11 * step->factor ? 0 : UINT32_MAX;
    /* Beyond these the denominator or its reciprocal could leave the range of float. */
    if (!(step->factor < 0x1p40f && step->eps < 0x1p100)) step->is_wide = 1;
}

static void step_add(StepSums *into, const StepSums *part) {
    into->changed += part->changed, into->lost += part->lost;
    into->with_gradient += part->with_gradient;
    into->finite += part->finite, into->under += part->under;
    norm_add(&into->change, part->change.squares, part->change.exponent);
    norm_add(&into->weight, part->weight.squares, part->weight.exponent);
    norm_add(&into->ratio, part->ratio.squares, part->ratio.exponent);
}

#include "stepfloats.h"
#include "stepdoubles.h"

static void step_block(const Step *step, size_t first, size_t n, StepSums *sums) {
    int todo = step->parts;
    if (step->is_wide) wide_counts(step, first, n, sums);
    else todo = step_floats(step, first, n, sums);
    if (todo & CHANGE) wide_change(step, first, n, sums);
    if (todo & RATIO) wide_ratio(step, first, n, sums);
}

static Step step_of(const Steps *all, size_t t) {
    Step step = {.count = (size_t)(all->before ? all->before : all->grads)->counts[t]};
    if (all->before) {
        step.before = tensor_of(all->before, t), step.after = tensor_of(all->after, t);
        step.parts |= CHANGE;
        step.is_wide |= step.before.dtype == F64;
    }
    if (all->grads && all->grads->counts[t] > 0) {
        step.grad = tensor_of(all->grads, t);
        step.parts |= GRADIENT;
        step.is_wide |= step.grad.dtype == F64;
    }
    if (step.parts & GRADIENT && all->second && all->second->counts[t] > 0) {
        step.second = tensor_of(all->second, t);
        step.parts |= RATIO;
        step.is_wide |= step.second.dtype == F64;
        step.correction = all->correction[t], step.eps = all->eps[t];
        set_constants(&step);
    }
    return step;
}

static void step_finish(const Step *step, const StepSums *sums, UpdateRecord *update,
                        AdamRecord *adam) {
    if (update)
        *update = (UpdateRecord){norm_value(&sums->change), norm_value(&sums->weight),
                                 sums->changed, sums->lost, sums->with_gradient};
    if (!adam) return;
    *adam = (AdamRecord){NAN, NAN};
    if (sums->finite) adam->ratio_rms = norm_value(&sums->ratio) / sqrt((double)sums->finite);
    if (step->parts & RATIO) adam->eps_fraction = (double)sums->under / (double)step->count;
}

typedef struct {
    Job job;
    const Steps *steps;
    StepSums total; /* of the pieces of a tensor joined so far */
} StepJob;

static void step_share(Job *job) {
    const Steps *steps = ((const StepJob *)job)->steps;
    for (Piece *piece; (piece = next_piece(job));) {
        Step step = step_of(steps, piece->tensor);
        size_t stop = piece->first + piece->n;
        piece->step = (StepSums){0};
        for (size_t i = piece->first; i < stop; i += BLOCK) {
            StepSums block = {0};
            step_block(&step, i, smaller(BLOCK, stop - i), &block);
            step_add(&piece->step, &block);
        }
    }
}

static void step_join(Job *job, const Piece *piece) {
    StepJob *all = (StepJob *)job;
    size_t t = piece->tensor;
    if (piece->first == 0) all->total = (StepSums){0};
    step_add(&all->total, &piece->step);
    if (!is_last(job, piece)) return;
    Step step = step_of(all->steps, t);
    step_finish(&step, &all->total, all->steps->updates ? all->steps->updates + t : NULL,
                all->steps->ratios ? all->steps->ratios + t : NULL);
}

static void step(const Steps *steps) {
    StepJob all = {.job = {.batch = steps->before ? steps->before : steps->grads,
                           .share = step_share, .join = step_join},
                   .steps = steps};
    run_job(&all.job, useful_threads(all.job.batch));
}
