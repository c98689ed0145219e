/* What scanning takes besides the batch: grids to count on, limits to list what lies beyond. */
#include "boundary.h"

#include <math.h>

static int take_grids(Buffers *held, PyObject *tuple, Py_ssize_t cells, const Batch *batch,
                      Grids *grids) {
    PyObject *exponents, *firsts, *counts, *outside;
    if (!PyArg_ParseTuple(tuple, "OOOO", &exponents, &firsts, &counts, &outside)) return -1;
    if (cells < 1 || cells > 256) {
        PyErr_SetString(PyExc_ValueError, "a grid has 1 to 256 cells");
        return -1;
    }
    grids->cells = (size_t)cells;
    if (!(grids->exponents = take(held, exponents, batch->n, 8, 0)) ||
        !(grids->firsts = take(held, firsts, batch->n, 8, 0)) ||
        !(grids->counts = take(held, counts, batch->n * grids->cells, 8, 1)) ||
        !(grids->outside = take(held, outside, batch->n * 3, 8, 1)))
        return -1;
    for (size_t i = 0; i < batch->n; i++) {
        if (grids->exponents[i] < -1023 || grids->exponents[i] > 1023)
            return refuse(i, "the cells are too narrow or too wide for float64");
        double first = grids->firsts[i];
        if (!isfinite(first) || floor(first) != first)
            return refuse(i, "the first cell is not a whole number");
    }
    return 0;
}

static int take_limits(Buffers *held, PyObject *tuple, Py_ssize_t most, const Batch *batch,
                       Limits *limits) {
    PyObject *lows, *highs, *totals, *indices;
    if (!PyArg_ParseTuple(tuple, "OOOO", &lows, &highs, &totals, &indices)) return -1;
    if (most < 0 || (batch->n > 0 && (size_t)most > ((size_t)1 << 56) / batch->n)) {
        PyErr_SetString(PyExc_ValueError, "the length of the lists is negative or too large");
        return -1;
    }
    limits->most = (size_t)most;
    if (!(limits->lows = take(held, lows, batch->n, 8, 0)) ||
        !(limits->highs = take(held, highs, batch->n, 8, 0)) ||
        !(limits->totals = take(held, totals, batch->n, 8, 1)) ||
        !(limits->indices = take(held, indices, batch->n * limits->most, 8, 1)))
        return -1;
    for (size_t i = 0; i < batch->n; i++)
        if (limits->lows[i] != limits->lows[i] || limits->highs[i] != limits->highs[i])
            return refuse(i, "a limit is NaN");
    return 0;
}
