/* What a step takes: two to four batches that match one another. */
#include "boundary.h"

/* The batches live here; `steps` points at those that were given. */
typedef struct {
    Batch before, after, grads, second;
    Steps steps;
} StepInputs;

static int take_optional(Buffers *held, PyObject *tuple, Batch *room, const Batch **batch) {
    *batch = NULL;
    if (tuple == Py_None) return 0;
    if (take_batch(held, tuple, room) < 0) return -1;
    *batch = room;
    return 0;
}

static int check_steps(const Steps *steps) {
    const Batch *lead = steps->before ? steps->before : steps->grads;
    if (!lead || !steps->before != !steps->after || (steps->second && !steps->grads)) {
        PyErr_SetString(PyExc_ValueError,
                        "a step needs weights before and after, or gradients and second moments");
        return -1;
    }
    if ((steps->after && check_match(lead, steps->after, 1, 0) < 0) ||
        (steps->grads && check_match(lead, steps->grads, 0, 1) < 0) ||
        (steps->second && check_match(lead, steps->second, 0, steps->before != NULL) < 0))
        return -1;
    return 0;
}

/* (before, after, grads, second, correction, eps, updates, ratios), each of them or None. */
static int take_steps(Buffers *held, PyObject *args, StepInputs *inputs) {
    PyObject *before, *after, *grads, *second, *correction, *eps, *updates, *ratios;
    Steps *steps = &inputs->steps;
    *steps = (Steps){0};
    if (!PyArg_ParseTuple(args, "OOOOOOOO", &before, &after, &grads, &second, &correction, &eps,
                          &updates, &ratios))
        return -1;
    if (take_optional(held, before, &inputs->before, &steps->before) < 0 ||
        take_optional(held, after, &inputs->after, &steps->after) < 0 ||
        take_optional(held, grads, &inputs->grads, &steps->grads) < 0 ||
        take_optional(held, second, &inputs->second, &steps->second) < 0 || check_steps(steps) < 0)
        return -1;
    size_t n = steps->n = steps->before ? steps->before->n : steps->grads->n;
    if (steps->before && !(steps->updates = take(held, updates, n, sizeof(UpdateRecord), 1)))
        return -1;
    if (steps->second && (!(steps->correction = take(held, correction, n, 8, 0)) ||
                          !(steps->eps = take(held, eps, n, 8, 0)) ||
                          !(steps->ratios = take(held, ratios, n, sizeof(AdamRecord), 1))))
        return -1;
    return 0;
}
