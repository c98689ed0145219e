/* What comes in from Python: buffers (numpy arrays) and batches of tensors, checked. */
#ifndef GRADWATCH_BOUNDARY_H
#define GRADWATCH_BOUNDARY_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "kernel.h"

/* Buffers of one call, released together. */
enum { MOST_BUFFERS = 24 }; /* four batches of four, and what goes with them */
typedef struct {
    Py_buffer views[MOST_BUFFERS];
    int n;
} Buffers;

static void release(Buffers *held) {
    while (held->n > 0) PyBuffer_Release(&held->views[--held->n]);
}

/* The memory of `object`, which must hold exactly `items` of `size` bytes; NULL with an error. */
static void *take(Buffers *held, PyObject *object, size_t items, size_t size, int writable) {
    if (held->n == MOST_BUFFERS) {
        PyErr_SetString(PyExc_ValueError, "too many buffers in one call");
        return NULL;
    }
    Py_buffer *view = &held->views[held->n];
    if (PyObject_GetBuffer(object, view, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0) return NULL;
    held->n++;
    if ((size_t)view->len != items * size || (uintptr_t)view->buf % (size > 8 ? 8 : size) != 0) {
        PyErr_Format(PyExc_ValueError, "expected %zu aligned items of %zu bytes, got %zd bytes",
                     items, size, view->len);
        return NULL;
    }
    /* An empty buffer may have no memory; NULL is kept for errors. */
    return view->buf ? view->buf : (void *)held;
}

static int refuse(size_t index, const char *reason) {
    PyErr_Format(PyExc_ValueError, "tensor %zu: %s", index, reason);
    return -1;
}

static int check_tensor(const Batch *batch, size_t i) {
    int64_t count = batch->counts[i], rows = batch->rows[i];
    if (batch->dtypes[i] >= DTYPES) return refuse(i, "the dtype is none of the kernel's");
    if (count < 0) return refuse(i, "the count is negative");
    if (count >> 56) return refuse(i, "the count is larger than any memory");
    if (count > 0 && batch->pointers[i] == 0) return refuse(i, "the pointer is null");
    if (batch->pointers[i] & (itemsize(batch->dtypes[i]) - 1))
        return refuse(i, "the pointer is not aligned to its elements");
    if (rows < 0 || (rows > 0 && count % rows != 0))
        return refuse(i, "the rows do not divide the count");
    return 0;
}

static int take_batch(Buffers *held, PyObject *tuple, Batch *batch) {
    PyObject *pointers, *counts, *dtypes, *rows;
    if (!PyTuple_Check(tuple)) {
        PyErr_SetString(PyExc_ValueError, "a batch is a tuple of four buffers");
        return -1;
    }
    if (!PyArg_ParseTuple(tuple, "OOOO", &pointers, &counts, &dtypes, &rows)) return -1;
    Py_ssize_t n = PyObject_Size(pointers);
    if (n < 0) return -1;
    batch->n = (size_t)n;
    if (!(batch->pointers = take(held, pointers, batch->n, 8, 0)) ||
        !(batch->counts = take(held, counts, batch->n, 8, 0)) ||
        !(batch->dtypes = take(held, dtypes, batch->n, 1, 0)) ||
        !(batch->rows = take(held, rows, batch->n, 8, 0)))
        return -1;
    for (size_t i = 0; i < batch->n; i++)
        if (check_tensor(batch, i) < 0) return -1;
    return 0;
}

/* Two batches that are walked together; `may_lack`: the second may have empty tensors. */
static int check_match(const Batch *a, const Batch *b, int same_dtype, int may_lack) {
    if (a->n != b->n) {
        PyErr_Format(PyExc_ValueError, "batches of %zu and %zu tensors", a->n, b->n);
        return -1;
    }
    for (size_t i = 0; i < a->n; i++) {
        if (a->counts[i] != b->counts[i] && !(may_lack && b->counts[i] == 0))
            return refuse(i, "the counts of the two batches differ");
        if (same_dtype && a->dtypes[i] != b->dtypes[i])
            return refuse(i, "the dtypes of the two batches differ");
    }
    return 0;
}

#endif
