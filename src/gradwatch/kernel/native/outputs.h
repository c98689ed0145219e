/* What measuring fills besides the records: histograms, sketches, marks of touched rows. */
#include "boundary.h"

static int has_doubles(const Batch *batch) {
    for (size_t i = 0; i < batch->n; i++)
        if (batch->dtypes[i] == F64) return 1;
    return 0;
}

/* Bins from 2^-149 to 2^127 hold every float; doubles need those from 2^-1074 to 2^1023. */
static int take_bins(Buffers *held, PyObject *tuple, const Batch *batch, Bins *bins) {
    PyObject *exponents, *sizes, *counts;
    bins->lowest = has_doubles(batch) ? -1074 : -149;
    bins->width = has_doubles(batch) ? MOST_BINS : 277;
    if (!PyTuple_Check(tuple)) {
        PyErr_SetString(PyExc_TypeError, "bins are a tuple of three buffers");
        return -1;
    }
    if (!PyArg_ParseTuple(tuple, "OOO", &exponents, &sizes, &counts) ||
        !(bins->first_exponents = take(held, exponents, batch->n, 8, 1)) ||
        !(bins->sizes = take(held, sizes, batch->n, 8, 1)) ||
        !(bins->counts = take(held, counts, batch->n * 2 * bins->width, 8, 1)))
        return -1;
    return 0;
}

static int take_sketches(Buffers *held, PyObject *tuple, const Batch *batch, Sketches *sketches) {
    PyObject *seeds, *offsets, *wholes, *out;
    if (!PyArg_ParseTuple(tuple, "OOOO", &seeds, &offsets, &wholes, &out)) return -1;
    if (!(sketches->seeds = take(held, seeds, batch->n, 8, 0)) ||
        !(sketches->offsets = take(held, offsets, batch->n, 8, 0)) ||
        !(sketches->wholes = take(held, wholes, batch->n, 8, 0)) ||
        !(sketches->out = take(held, out, batch->n * SKETCH_WIDTH, 4, 1)))
        return -1;
    return 0;
}

/* The rows to mark: a sequence with None or a buffer of one byte per row for each tensor. */
typedef struct {
    Py_buffer *views;
    uint8_t **marks;
    size_t n;
} Touched;

static void release_touched(Touched *touched) {
    for (size_t i = 0; touched->views && i < touched->n; i++)
        if (touched->marks[i]) PyBuffer_Release(&touched->views[i]);
    PyMem_Free(touched->views);
    PyMem_Free(touched->marks);
}

static int take_marks(Touched *touched, size_t i, PyObject *object, const Batch *batch) {
    if (object == Py_None) return 0;
    if (PyObject_GetBuffer(object, &touched->views[i], PyBUF_WRITABLE) < 0) return -1;
    if (touched->views[i].len != batch->rows[i]) {
        PyBuffer_Release(&touched->views[i]);
        return refuse(i, "touched rows need one byte per row");
    }
    if (batch->rows[i] == 0) PyBuffer_Release(&touched->views[i]);
    else touched->marks[i] = touched->views[i].buf;
    return 0;
}

static int take_touched(Touched *touched, PyObject *sequence, const Batch *batch) {
    if (sequence == Py_None) return 0;
    if (PySequence_Size(sequence) != (Py_ssize_t)batch->n) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "touched rows need one entry per tensor");
        return -1;
    }
    touched->n = batch->n;
    touched->views = PyMem_Calloc(batch->n + 1, sizeof *touched->views);
    touched->marks = PyMem_Calloc(batch->n + 1, sizeof *touched->marks);
    if (!touched->views || !touched->marks) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; i < batch->n; i++) {
        PyObject *item = PySequence_GetItem(sequence, (Py_ssize_t)i);
        int status = item ? take_marks(touched, i, item, batch) : -1;
        Py_XDECREF(item);
        if (status < 0) return -1;
    }
    return 0;
}
