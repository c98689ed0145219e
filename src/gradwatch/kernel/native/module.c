/* The door to Python: takes buffers (numpy arrays), checks every address, count and type before a
 * byte is read, lets the interpreter go on (no GIL) while the kernel works.
 *
 * A batch arrives as a tuple of four buffers: pointers u64, counts i64, dtypes u8, rows i64. */
#include "filling.h"
#include "gathering.h"
#include "numbers.h"
#include "outputs.h"
#include "scanning.h"
#include "stepping.h"

#include "job.h"

#include <fenv.h>
#include <string.h>

static const Kernel *chosen;

/* torch.set_flush_denormal makes the processor treat small numbers as zero, which would make our
 * counts wrong: the kernel works in the default environment and puts the caller's back. */
#define WORK_BRIEFLY(call)    \
    do {                      \
        fenv_t callers;       \
        fegetenv(&callers);   \
        fesetenv(FE_DFL_ENV); \
        call;                 \
        fesetenv(&callers);   \
    } while (0)

#define WORK(call)          \
    Py_BEGIN_ALLOW_THREADS; \
    WORK_BRIEFLY(call);     \
    Py_END_ALLOW_THREADS

/* Elements that take less time than to let the interpreter go and to wait for it. */
enum { FEW = 1 << 16 };

static int has_few(const Batch *batch) {
    int64_t elements = 0;
    for (size_t i = 0; i < batch->n && elements <= FEW; i++) elements += batch->counts[i];
    return elements <= FEW;
}

static PyObject *done(Buffers *held) {
    release(held);
    Py_RETURN_NONE;
}

static PyObject *failed(Buffers *held) {
    release(held);
    return NULL;
}

static PyObject *py_measure(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *tuple, *records, *touched_rows, *bins, *sketches;
    if (!PyArg_ParseTuple(args, "OOOOO", &tuple, &records, &touched_rows, &bins, &sketches))
        return NULL;
    Buffers held = {.n = 0};
    Batch batch;
    Outputs out = {0};
    Bins table;
    Sketches sketch = {0};
    Touched touched = {0};
    if (take_batch(&held, tuple, &batch) < 0 ||
        !(out.records = take(&held, records, batch.n, sizeof(Record), 1)) ||
        (bins != Py_None && take_bins(&held, bins, &batch, &table) < 0) ||
        (sketches != Py_None && take_sketches(&held, sketches, &batch, &sketch) < 0) ||
        take_touched(&touched, touched_rows, &batch) < 0) {
        release_touched(&touched);
        return failed(&held);
    }
    out.touched = touched.marks;
    out.bins = bins == Py_None ? NULL : &table;
    out.sketches = sketches == Py_None ? NULL : &sketch;
    if (has_few(&batch)) WORK_BRIEFLY(chosen->measure(&batch, &out));
    else WORK(chosen->measure(&batch, &out));
    release_touched(&touched);
    return done(&held);
}

static PyObject *py_step(PyObject *self, PyObject *args) {
    (void)self;
    Buffers held = {.n = 0};
    StepInputs inputs;
    if (take_steps(&held, args, &inputs) < 0) return failed(&held);
    WORK(chosen->step(&inputs.steps));
    return done(&held);
}

static PyObject *py_fill_rows(PyObject *self, PyObject *args) {
    (void)self;
    Buffers held = {.n = 0};
    Filling filling;
    if (take_filling(&held, args, &filling) < 0) return failed(&held);
    size_t mirrored;
    WORK_BRIEFLY(mirrored = fill(&filling));
    release(&held);
    return PyLong_FromSize_t(mirrored);
}

static PyObject *py_sketch(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *tuple, *sketches;
    if (!PyArg_ParseTuple(args, "OO", &tuple, &sketches)) return NULL;
    Buffers held = {.n = 0};
    Batch batch;
    Sketches sketch;
    if (take_batch(&held, tuple, &batch) < 0 || take_sketches(&held, sketches, &batch, &sketch) < 0)
        return failed(&held);
    Outputs only = {.sketches = &sketch};
    WORK(chosen->measure(&batch, &only));
    return done(&held);
}

static PyObject *py_hashes(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *tuple, *starts, *marks;
    if (!PyArg_ParseTuple(args, "OOO", &tuple, &starts, &marks)) return NULL;
    Buffers held = {.n = 0};
    Batch batch;
    const int64_t *offsets;
    uint64_t *out;
    if (take_batch(&held, tuple, &batch) < 0 || !(offsets = take(&held, starts, batch.n, 8, 0)) ||
        !(out = take(&held, marks, batch.n, 8, 1)))
        return failed(&held);
    WORK(chosen->hashes(&batch, offsets, out));
    return done(&held);
}

static PyObject *py_row_spread(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *tuple, *spreads;
    if (!PyArg_ParseTuple(args, "OO", &tuple, &spreads)) return NULL;
    Buffers held = {.n = 0};
    Batch batch;
    float *out;
    if (take_batch(&held, tuple, &batch) < 0 || !(out = take(&held, spreads, batch.n, 4, 1)))
        return failed(&held);
    WORK(chosen->row_spread(&batch, out));
    return done(&held);
}

static PyObject *py_count_cells(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *tuple, *grids_tuple;
    Py_ssize_t cells;
    if (!PyArg_ParseTuple(args, "OO!n", &tuple, &PyTuple_Type, &grids_tuple, &cells)) return NULL;
    Buffers held = {.n = 0};
    Batch batch;
    Grids grids;
    if (take_batch(&held, tuple, &batch) < 0 ||
        take_grids(&held, grids_tuple, cells, &batch, &grids) < 0)
        return failed(&held);
    WORK(chosen->count_cells(&batch, &grids));
    return done(&held);
}

static PyObject *py_list_beyond(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *tuple, *limits_tuple;
    Py_ssize_t most;
    if (!PyArg_ParseTuple(args, "OO!n", &tuple, &PyTuple_Type, &limits_tuple, &most)) return NULL;
    Buffers held = {.n = 0};
    Batch batch;
    Limits limits;
    if (take_batch(&held, tuple, &batch) < 0 ||
        take_limits(&held, limits_tuple, most, &batch, &limits) < 0)
        return failed(&held);
    WORK(chosen->list_beyond(&batch, &limits));
    return done(&held);
}

static PyObject *py_copy(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *source_tuple, *target_tuple;
    if (!PyArg_ParseTuple(args, "OO", &source_tuple, &target_tuple)) return NULL;
    Buffers held = {.n = 0};
    Batch source, target;
    if (take_batch(&held, source_tuple, &source) < 0 ||
        take_batch(&held, target_tuple, &target) < 0 || check_match(&source, &target, 1, 0) < 0)
        return failed(&held);
    WORK(chosen->copy(&source, &target));
    return done(&held);
}

static PyObject *py_read(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *tuple;
    if (!PyArg_ParseTuple(args, "O", &tuple)) return NULL;
    Buffers held = {.n = 0};
    Batch batch;
    uint64_t sum = 0;
    if (take_batch(&held, tuple, &batch) < 0) return failed(&held);
    WORK(sum = chosen->read(&batch));
    release(&held);
    return PyFloat_FromDouble((double)sum);
}

/* Looked for in the midst of a forward pass, where all code is cold and every call counts: numbers
 * instead of buffers, and the interpreter is only let go where there is much to read. */
static PyObject *py_nonfinite(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    (void)self;
    Tensor tensor;
    uint64_t stride;
    if (take_stride(args, n, &tensor, &stride) < 0) return NULL;
    size_t looks = tensor.count ? (tensor.count - 1) / stride + 1 : 0, found;
    if (looks <= 1 << 20)
        return PyLong_FromSize_t(chosen->nonfinite(tensor.data, looks, tensor.dtype, stride));
    Py_BEGIN_ALLOW_THREADS;
    found = chosen->nonfinite(tensor.data, looks, tensor.dtype, stride);
    Py_END_ALLOW_THREADS;
    return PyLong_FromSize_t(found);
}

static PyObject *py_set_threads(PyObject *self, PyObject *args) {
    (void)self;
    int threads;
    if (!PyArg_ParseTuple(args, "i", &threads)) return NULL;
    if (threads < 1) {
        PyErr_Format(PyExc_ValueError, "expected at least one thread, got %d", threads);
        return NULL;
    }
    set_threads(threads);
    Py_RETURN_NONE;
}

static PyObject *py_instruction_sets(PyObject *self, PyObject *unused) {
    (void)self, (void)unused;
    PyObject *names = PyList_New(0);
    for (const Kernel *const *k = supported_kernels(); names && *k; k++) {
        PyObject *name = PyUnicode_FromString((*k)->name);
        if (!name || PyList_Append(names, name) < 0) Py_CLEAR(names);
        Py_XDECREF(name);
    }
    return names;
}

static PyObject *py_select(PyObject *self, PyObject *args) {
    (void)self;
    const char *name;
    if (!PyArg_ParseTuple(args, "s", &name)) return NULL;
    for (const Kernel *const *k = supported_kernels(); *k; k++) {
        if (strcmp((*k)->name, name) != 0) continue;
        chosen = *k;
        Py_RETURN_NONE;
    }
    PyErr_Format(PyExc_ValueError, "this processor has no instruction set '%s'", name);
    return NULL;
}

static PyMethodDef functions[] = {
    {"measure", py_measure, METH_VARARGS, 
     "measure(batch, records, touched, (firsts, sizes, counts), (seeds, offsets, wholes, out))"},
    {"step", py_step, METH_VARARGS,
     "step(before, after, grads, second_moments, correction, eps, updates, ratios)"},
    {"fill_rows", py_fill_rows, METH_VARARGS,
     "fill_rows(rows, empty, has_value, records, states, factor, memory, sketches)"},
    {"gather", py_gather, METH_VARARGS,
     "gather(tensors, types, dtypes, (pointers, counts, dtypes, rows))"},
    {"sample", py_sample, METH_VARARGS, "sample(tensor, types, dtypes, most)"},
    {"use_exchange", py_use_exchange, METH_O, "use_exchange(DLPack's exchange interface or None)"},
    {"sketch", py_sketch, METH_VARARGS, "sketch(batch, (seeds, offsets, wholes, sketches))"},
    {"hashes", py_hashes, METH_VARARGS, "hashes(batch, offsets, marks)"},
    {"row_spread", py_row_spread, METH_VARARGS, "row_spread(batch, spreads)"},
    {"count_cells", py_count_cells, METH_VARARGS,
     "count_cells(batch, (exponents, firsts, counts, outside), cells)"},
    {"list_beyond", py_list_beyond, METH_VARARGS,
     "list_beyond(batch, (lows, highs, totals, indices), most)"},
    {"copy", py_copy, METH_VARARGS, "copy(source, target)"},
    {"read", py_read, METH_VARARGS, "read(batch)"},
    {"nonfinite", (PyCFunction)(void (*)(void))py_nonfinite, METH_FASTCALL,
     "nonfinite(pointer, count, dtype, stride)"},
    {"set_threads", py_set_threads, METH_VARARGS, "set_threads(most)"},
    {"instruction_sets", py_instruction_sets, METH_NOARGS, "the sets of this processor"},
    {"select", py_select, METH_VARARGS, "select(instruction_set)"},
    {NULL, NULL, 0, NULL},
};

static int start(PyObject *module) {
    (void)module;
    chosen = supported_kernels()[0];
    return learn_words();
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, start}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_native", .m_doc = "The kernel in C.",
    .m_methods = functions, .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
