/* The interface to Python: takes buffers (numpy arrays) and torch's tensors, checks every address,
 * count and type before a byte is read, and lets the interpreter go on (no GIL) while large tensors
 * are measured. A batch arrives as a tuple of four buffers: pointers u64, counts i64, dtypes u8,
 * rows i64. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "kernel.h"

#include <fenv.h>
#include <stdlib.h>
#include <string.h>

static const Kernel *chosen;

/* -- working -- */

/* Elements that take less time than to let the interpreter go and to wait for it. */
enum { FEW = 1 << 16 };

static int has_few(const Batch *batch) {
    int64_t elements = 0;
    for (size_t i = 0; i < batch->n && elements <= FEW; i++) elements += batch->counts[i];
    return elements <= FEW;
}

/* torch.set_flush_denormal makes the processor treat small numbers as zero, which would make our
 * counts wrong: the kernel works in the default environment and puts the caller's back. */
#define WORK(batch, call)                                                   \
    do {                                                                    \
        PyThreadState *thread = has_few(batch) ? NULL : PyEval_SaveThread(); \
        fenv_t callers;                                                     \
        fegetenv(&callers);                                                 \
        fesetenv(FE_DFL_ENV);                                               \
        call;                                                               \
        fesetenv(&callers);                                                 \
        if (thread) PyEval_RestoreThread(thread);                           \
    } while (0)

/* -- buffers and batches, checked -- */

/* Buffers of one call, released together. */
enum { MOST_BUFFERS = 24 }; /* four batches of four, and what goes with them */
typedef struct {
    Py_buffer views[MOST_BUFFERS];
    int n;
} Buffers;

static PyObject *release(Buffers *held, PyObject *result) {
    while (held->n > 0) PyBuffer_Release(&held->views[--held->n]);
    return result;
}

static int refuse(const char *reason) {
    PyErr_SetString(PyExc_ValueError, reason);
    return -1;
}

static int refuse_tensor(size_t index, const char *reason) {
    PyErr_Format(PyExc_ValueError, "tensor %zu: %s", index, reason);
    return -1;
}

/* The memory of `object`, and how many items of `size` bytes it holds; NULL with an error. */
static void *take_any(Buffers *held, PyObject *object, size_t *items, size_t size, int writable) {
    Py_buffer *view = &held->views[held->n];
    if (PyObject_GetBuffer(object, view, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0) return NULL;
    held->n++;
    *items = (size_t)view->len / size;
    if ((size_t)view->len % size == 0 && (uintptr_t)view->buf % (size > 8 ? 8 : size) == 0)
        /* An empty buffer may have no memory; NULL is kept for errors. */
        return view->buf ? view->buf : (void *)held;
    PyErr_Format(PyExc_ValueError, "expected aligned items of %zu bytes, got %zd bytes", size,
                 view->len);
    return NULL;
}

/* The same where it must hold exactly `items`. */
static void *take(Buffers *held, PyObject *object, size_t items, size_t size, int writable) {
    size_t found;
    void *memory = take_any(held, object, &found, size, writable);
    if (!memory || found == items) return memory;
    PyErr_Format(PyExc_ValueError, "expected %zu items of %zu bytes, got %zu", items, size, found);
    return NULL;
}

static int check_tensor(const Batch *batch, size_t i) {
    int64_t count = batch->counts[i], rows = batch->rows[i];
    const char *wrong = batch->dtypes[i] >= DTYPES ? "the dtype is none of the kernel's"
                        : count < 0                ? "the count is negative"
                        : count >> 56              ? "the count is larger than any memory"
                        : count > 0 && !batch->pointers[i]
                            ? "the pointer is null"
                        : batch->pointers[i] % itemsize(batch->dtypes[i])
                            ? "the pointer is not aligned to its elements"
                        : rows < 0 || (rows > 0 && count % rows)
                            ? "the rows do not divide the count"
                            : NULL;
    return wrong ? refuse_tensor(i, wrong) : 0;
}

static int take_batch(Buffers *held, PyObject *tuple, Batch *batch) {
    PyObject *pointers, *counts, *dtypes, *rows;
    if (!PyTuple_Check(tuple)) return refuse("a batch is a tuple of four buffers");
    if (!PyArg_ParseTuple(tuple, "OOOO", &pointers, &counts, &dtypes, &rows) ||
        !(batch->pointers = take_any(held, pointers, &batch->n, 8, 0)) ||
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
    if (a->n != b->n) return refuse("the batches have not as many tensors");
    for (size_t i = 0; i < a->n; i++) {
        if (a->counts[i] != b->counts[i] && !(may_lack && b->counts[i] == 0))
            return refuse_tensor(i, "the counts of the two batches differ");
        if (same_dtype && a->dtypes[i] != b->dtypes[i])
            return refuse_tensor(i, "the dtypes of the two batches differ");
    }
    return 0;
}

/* -- measuring -- */

/* Bins from 2^-149 to 2^127 hold every float; doubles need those from 2^-1074 to 2^1023. */
static void set_range(const Batch *batch, Bins *bins) {
    bins->lowest = LOWEST_FLOAT, bins->width = FLOAT_BINS;
    for (size_t i = 0; i < batch->n; i++)
        if (batch->dtypes[i] == F64) bins->lowest = LOWEST_DOUBLE, bins->width = DOUBLE_BINS;
}

/* The rows to mark: a sequence with None or a buffer of one byte per row for each tensor. */
static int take_touched(PyObject *sequence, const Batch *batch, Py_buffer *views, uint8_t **marks) {
    if (!views || !marks) return PyErr_NoMemory(), -1;
    if (sequence == Py_None) return 0;
    if (PySequence_Size(sequence) != (Py_ssize_t)batch->n)
        return PyErr_Occurred() ? -1 : refuse("touched rows need one entry per tensor");
    for (size_t i = 0; i < batch->n; i++) {
        PyObject *item = PySequence_GetItem(sequence, (Py_ssize_t)i);
        int status = !item ? -1 : item == Py_None ? 0 : PyObject_GetBuffer(item, views + i, PyBUF_WRITABLE);
        int is_buffer = item && item != Py_None && status == 0;
        Py_XDECREF(item);
        if (status < 0) return -1;
        if (is_buffer && views[i].len != batch->rows[i])
            return refuse_tensor(i, "touched rows need one byte per row");
        if (is_buffer && views[i].len > 0) marks[i] = views[i].buf;
    }
    return 0;
}

static PyObject *py_measure(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *tuple, *records, *rows, *table, *exponents, *sizes, *counts, *result = NULL;
    if (!PyArg_ParseTuple(args, "OOOO", &tuple, &records, &rows, &table)) return NULL;
    Buffers held = {.n = 0};
    Batch batch;
    Outputs out = {0};
    Bins bins = {.multiplier = 1.0};
    if (take_batch(&held, tuple, &batch) < 0 ||
        !(out.records = take(&held, records, batch.n, sizeof(Record), 1)))
        return release(&held, NULL);
    if (table != Py_None) {
        set_range(&batch, &bins);
        out.bins = &bins;
        if (!PyTuple_Check(table)) refuse("bins are a tuple of three buffers");
        if (PyErr_Occurred() || !PyArg_ParseTuple(table, "OOO", &exponents, &sizes, &counts) ||
            !(bins.first_exponents = take(&held, exponents, batch.n, 8, 1)) ||
            !(bins.sizes = take(&held, sizes, batch.n, 8, 1)) ||
            !(bins.counts = take(&held, counts, batch.n * 2 * bins.width, 8, 1)))
            return release(&held, NULL);
    }
    Py_buffer *views = PyMem_Calloc(batch.n + 1, sizeof *views);
    uint8_t **marks = PyMem_Calloc(batch.n + 1, sizeof *marks);
    if (take_touched(rows, &batch, views, marks) == 0) {
        out.touched = marks;
        WORK(&batch, chosen->measure(&batch, &out));
        result = Py_NewRef(Py_None);
    }
    for (size_t i = 0; views && i < batch.n; i++)
        if (views[i].obj) PyBuffer_Release(&views[i]);
    PyMem_Free(views), PyMem_Free(marks);
    return release(&held, result);
}

/* -- the other passes -- */

static int take_optional(Buffers *held, PyObject *tuple, Batch *room, const Batch **batch) {
    *batch = tuple == Py_None ? NULL : room;
    return *batch ? take_batch(held, tuple, room) : 0;
}

static PyObject *py_step(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *before, *after, *grads, *second, *correction, *eps, *updates, *ratios;
    if (!PyArg_ParseTuple(args, "OOOOOOOO", &before, &after, &grads, &second, &correction, &eps,
                          &updates, &ratios))
        return NULL;
    Buffers held = {.n = 0};
    Batch rooms[4];
    Steps steps = {0};
    if (take_optional(&held, before, &rooms[0], &steps.before) < 0 ||
        take_optional(&held, after, &rooms[1], &steps.after) < 0 ||
        take_optional(&held, grads, &rooms[2], &steps.grads) < 0 ||
        take_optional(&held, second, &rooms[3], &steps.second) < 0)
        return release(&held, NULL);
    const Batch *lead = steps.before ? steps.before : steps.grads;
    if (!lead || !steps.before != !steps.after || (steps.second && !steps.grads) ||
        (!steps.before && !steps.second)) {
        refuse("a step needs weights before and after, or gradients and second moments");
        return release(&held, NULL);
    }
    size_t n = lead->n;
    if ((steps.after && check_match(lead, steps.after, 1, 0) < 0) ||
        (steps.grads && check_match(lead, steps.grads, 0, 1) < 0) ||
        (steps.second && check_match(lead, steps.second, 0, steps.before != NULL) < 0) ||
        (steps.before && !(steps.updates = take(&held, updates, n, sizeof(UpdateRecord), 1))) ||
        (steps.second && (!(steps.correction = take(&held, correction, n, 8, 0)) ||
                          !(steps.eps = take(&held, eps, n, 8, 0)) ||
                          !(steps.ratios = take(&held, ratios, n, sizeof(AdamRecord), 1)))))
        return release(&held, NULL);
    WORK(lead, chosen->step(&steps));
    return release(&held, Py_NewRef(Py_None));
}

static PyObject *py_hashes(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *tuple, *starts, *sums;
    if (!PyArg_ParseTuple(args, "OOO", &tuple, &starts, &sums)) return NULL;
    Buffers held = {.n = 0};
    Batch batch;
    const int64_t *offsets;
    uint64_t *out;
    if (take_batch(&held, tuple, &batch) < 0 || !(offsets = take(&held, starts, batch.n, 8, 0)) ||
        !(out = take(&held, sums, batch.n, 8, 1)))
        return release(&held, NULL);
    WORK(&batch, chosen->hashes(&batch, offsets, out));
    return release(&held, Py_NewRef(Py_None));
}

static PyObject *py_copy(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *from, *to;
    if (!PyArg_ParseTuple(args, "OO", &from, &to)) return NULL;
    Buffers held = {.n = 0};
    Batch source, target;
    if (take_batch(&held, from, &source) < 0 || take_batch(&held, to, &target) < 0 ||
        check_match(&source, &target, 1, 0) < 0)
        return release(&held, NULL);
    WORK(&source, copy_all(&source, &target));
    return release(&held, Py_NewRef(Py_None));
}

/* A whole number from 0 to 2^64 − 1. */
static int take_number(PyObject *object, uint64_t *number) {
    *number = PyLong_AsUnsignedLongLong(object);
    if (*number != UINT64_MAX || !PyErr_Occurred()) return 0;
    if (!PyErr_ExceptionMatches(PyExc_OverflowError)) return -1;
    PyErr_Clear();
    return refuse("a number is negative or has more than 64 bits");
}

/* Looked for in the midst of a forward pass, where all code is cold and every call counts: numbers
 * instead of buffers. */
static PyObject *py_nonfinite(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    (void)self;
    uint64_t pointer, count, dtype, stride;
    if (n != 4) {
        PyErr_Format(PyExc_TypeError, "expected pointer, count, dtype, stride; got %zd numbers", n);
        return NULL;
    }
    if (take_number(args[0], &pointer) < 0 || take_number(args[1], &count) < 0 ||
        take_number(args[2], &dtype) < 0 || take_number(args[3], &stride) < 0)
        return NULL;
    int64_t signed_count = (int64_t)count, rows = 0;
    uint8_t kind = dtype < DTYPES ? (uint8_t)dtype : DTYPES;
    Batch one = {1, &pointer, &signed_count, &kind, &rows};
    if (check_tensor(&one, 0) < 0) return NULL;
    if (stride < 1) return refuse("the stride is not positive"), NULL;
    signed_count = count ? (int64_t)((count - 1) / stride + 1) : 0;
    PyThreadState *thread = has_few(&one) ? NULL : PyEval_SaveThread();
    size_t found = chosen->nonfinite((const void *)(uintptr_t)pointer, (size_t)signed_count, kind,
                                     (size_t)stride);
    if (thread) PyEval_RestoreThread(thread);
    return PyLong_FromSize_t(found);
}

/* -- where torch's tensors lie, asked of the tensors themselves: torch is known by what is handed in,
 * so nothing is linked against it -- */

/* What tensors are asked for. */
static struct {
    PyObject *grad, *local, *is_cpu, *dtype, *is_contiguous, *shape, *data_ptr, *storage_offset;
    PyObject *storage, *nbytes;
} words;

static int learn_words(void) {
    static const char *const names[] = {
        "grad",  "_local_tensor", "is_cpu",         "dtype",           "is_contiguous",
        "shape", "data_ptr",      "storage_offset", "untyped_storage", "nbytes"};
    PyObject **word = (PyObject **)&words;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!(word[i] = PyUnicode_InternFromString(names[i]))) return -1;
    return 0;
}

/* torch's types of ordinary tensors, and its dtypes in the kernel's order. */
typedef struct {
    PyObject *types, *dtypes;
} Torch;

static int check_torch(Torch *torch) {
    if (PyTuple_Check(torch->types) && PyTuple_Check(torch->dtypes) &&
        PyTuple_Size(torch->types) == 2 && PyTuple_Size(torch->dtypes) == DTYPES)
        return 0;
    return refuse("expected two types and the kernel's dtypes in order");
}

/* Answers: 1 for yes, 0 for no and for an error, which the caller clears. */
static int is_true(PyObject *answer) {
    Py_XDECREF(answer); /* True is never freed */
    return answer == Py_True;
}

static int is_number(PyObject *answer, uint64_t *number) {
    if (!answer) return 0;
    *number = PyLong_AsUnsignedLongLong(answer);
    Py_DECREF(answer);
    return !PyErr_Occurred();
}

static PyObject *ask(PyObject *object, PyObject *method) {
    return PyObject_CallMethodObjArgs(object, method, NULL);
}

static int has_shape(PyObject *tensor, Tensor *seen) {
    PyObject *shape = PyObject_GetAttr(tensor, words.shape);
    if (!shape) return 0;
    Py_ssize_t dims = PyTuple_Size(shape);
    uint64_t count = 1, length;
    for (Py_ssize_t d = 0; d < dims; d++) {
        PyObject *item = PyTuple_GetItem(shape, d); /* borrowed */
        if (!is_number(Py_XNewRef(item), &length)) break;
        if (d == 0) seen->rows = (size_t)length;
        count *= length;
    }
    Py_DECREF(shape);
    seen->count = (size_t)count;
    if (!count || dims < 2) seen->rows = 0;
    return dims >= 0 && !PyErr_Occurred();
}

static int see_by_asking(PyObject *object, PyObject *dtypes, Tensor *tensor) {
    uint64_t address;
    PyObject *own = PyObject_GetAttr(object, words.dtype);
    Py_XDECREF(own); /* torch keeps its dtypes for ever */
    tensor->dtype = 0;
    while (tensor->dtype < DTYPES && PyTuple_GetItem(dtypes, tensor->dtype) != own) tensor->dtype++;
    if (!own || tensor->dtype == DTYPES || !is_true(PyObject_GetAttr(object, words.is_cpu)) ||
        !is_true(ask(object, words.is_contiguous)) || !has_shape(object, tensor) ||
        !is_number(ask(object, words.data_ptr), &address))
        return 0;
    tensor->data = (const char *)(uintptr_t)address;
    return 1;
}

/* DLPack's way to see all that in one call, where torch offers it; version 1 of the standard. */
typedef struct {
    char *data;
    int32_t device, device_id, dims;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} DLTensor;

typedef struct {
    uint32_t major, minor;
    void *older, *allocate, *to_managed, *from_managed;
    int (*describe)(void *object, DLTensor *out);
} DLExchange;

enum { DL_CPU = 1, DL_FLOAT = 2, DL_BFLOAT = 4 };

static int (*describe)(void *object, DLTensor *out);

/* Whether the elements fill one stretch of memory, row after row; within a row in any order. */
static int lies_whole(const DLTensor *seen) {
    int64_t expected = 1, d = seen->dims - 1;
    while (seen->strides && d >= 0 && (seen->shape[d] == 1 || seen->strides[d] == expected))
        expected *= seen->shape[d--];
    if (d < 0 || !seen->strides) return 1; /* contiguous, as nearly all are */
    for (expected = 1, d = 1; d < seen->dims;) {
        for (d = 1; d < seen->dims; d++) /* the dimension whose neighbours lie that far apart */
            if (seen->shape[d] != 1 && seen->strides[d] == expected) break;
        if (d < seen->dims) expected *= seen->shape[d];
    }
    int64_t row = 1;
    for (d = 1; d < seen->dims; d++) row *= seen->shape[d];
    return row == expected && (seen->shape[0] == 1 || seen->strides[0] == row);
}

static int see_by_exchange(PyObject *object, Tensor *tensor) {
    DLTensor seen;
    if (describe(object, &seen) != 0 || seen.device != DL_CPU || seen.lanes != 1) return 0;
    int dtype = seen.code == DL_BFLOAT && seen.bits == 16  ? BF16
                : seen.code != DL_FLOAT                    ? DTYPES
                : seen.bits == 32                          ? F32
                : seen.bits == 64                          ? F64
                : seen.bits == 16                          ? F16
                                                           : DTYPES;
    size_t count = 1;
    for (int32_t d = 0; d < seen.dims; d++) count *= (size_t)seen.shape[d];
    if (dtype == DTYPES || (count && !lies_whole(&seen))) return 0;
    size_t rows = count && seen.dims > 1 ? (size_t)seen.shape[0] : 0;
    *tensor = (Tensor){count ? seen.data + seen.byte_offset : NULL, count, dtype, rows};
    return 1;
}

/* use_exchange(capsule): from now on tensors are seen that way; None, or another version: not. */
static PyObject *py_use_exchange(PyObject *self, PyObject *capsule) {
    (void)self;
    const char *name = "dlpack_exchange_api";
    const DLExchange *exchange =
        PyCapsule_IsValid(capsule, name) ? PyCapsule_GetPointer(capsule, name) : NULL;
    describe = exchange && exchange->major == 1 ? exchange->describe : NULL;
    return PyBool_FromLong(describe != NULL);
}

/* Memory that was found to be there. */
typedef struct {
    const char *data;
    size_t bytes;
} Place;

/* Whether the storage holds the tensor: it may have been freed or cut since. */
static int lies_in_storage(PyObject *tensor, size_t bytes, size_t size) {
    uint64_t offset, all = 0;
    PyObject *storage = ask(tensor, words.storage);
    int known = storage && is_number(ask(storage, words.nbytes), &all);
    Py_XDECREF(storage);
    return known && is_number(ask(tensor, words.storage_offset), &offset) &&
           offset * size + bytes <= all;
}

static int is_plain(PyObject *object, const Torch *torch) {
    PyObject *type = (PyObject *)Py_TYPE(object);
    return type == PyTuple_GetItem(torch->types, 0) || type == PyTuple_GetItem(torch->types, 1);
}

/* An ordinary tensor (on the CPU, of one of the kernel's types, in memory that is there), or the one
 * in a distributed tensor, and where it lies; NULL for anything else. `last` saves the question about
 * its storage where nothing has changed. */
static PyObject *look_at(PyObject *object, const Torch *torch, Tensor *tensor, Place *last) {
    if (!object || object == Py_None) return NULL;
    PyObject *plain = is_plain(object, torch) ? Py_NewRef(object)
                                              : PyObject_GetAttr(object, words.local);
    *tensor = (Tensor){NULL, 0, F32, 0};
    if (plain && is_plain(plain, torch) &&
        (describe ? see_by_exchange(plain, tensor) : see_by_asking(plain, torch->dtypes, tensor))) {
        size_t size = itemsize(tensor->dtype), bytes = tensor->count * size;
        if (!bytes || (tensor->data == last->data && bytes == last->bytes)) return plain;
        if (tensor->data && (uintptr_t)tensor->data % size == 0 &&
            lies_in_storage(plain, bytes, size)) {
            *last = (Place){tensor->data, bytes};
            return plain;
        }
    }
    PyErr_Clear();
    Py_XDECREF(plain);
    *tensor = (Tensor){NULL, 0, F32, 0};
    return NULL;
}

static int add_index(PyObject **list, size_t i) {
    PyObject *number = PyLong_FromSize_t(i);
    if (!*list) *list = PyList_New(0);
    int status = number && *list ? PyList_Append(*list, number) : -1;
    Py_XDECREF(number);
    return status;
}

/* gather(tensors, types, dtypes, (pointers, counts, dtypes, rows)): fills the batch and gives the
 * indices of what it left empty: None, and tensors that are not ordinary. */
static PyObject *py_gather(PyObject *self, PyObject *args) {
    (void)self;
    Torch torch;
    PyObject *list, *p, *c, *d, *r, *others = NULL;
    if (!PyArg_ParseTuple(args, "O!OO(OOOO)", &PyList_Type, &list, &torch.types, &torch.dtypes, &p,
                          &c, &d, &r) ||
        check_torch(&torch) < 0)
        return NULL;
    Buffers held = {.n = 0};
    size_t n = (size_t)PyList_Size(list);
    uint64_t *pointers;
    int64_t *counts, *rows;
    uint8_t *kinds;
    if ((pointers = take(&held, p, n, 8, 1)) && (counts = take(&held, c, n, 8, 1)) &&
        (kinds = take(&held, d, n, 1, 1)) && (rows = take(&held, r, n, 8, 1)))
        others = PyList_New(0);
    for (size_t i = 0; others && i < n; i++) {
        Tensor tensor = {NULL, 0, F32, 0};
        Place unknown = {NULL, 0};
        /* Held: a tensor may answer by running somebody's code, which may change the list. */
        PyObject *object = Py_XNewRef(PyList_GetItem(list, (Py_ssize_t)i));
        PyObject *plain = look_at(object, &torch, &tensor, &unknown);
        PyErr_Clear();
        if (!plain && add_index(&others, i) < 0) Py_CLEAR(others);
        Py_XDECREF(plain), Py_XDECREF(object);
        pointers[i] = (uintptr_t)tensor.data, counts[i] = (int64_t)tensor.count;
        kinds[i] = (uint8_t)tensor.dtype, rows[i] = (int64_t)tensor.rows;
    }
    return release(&held, others);
}

/* -- Gradients: all that a recorded step asks of an optimizer's gradients, in one call -- */

/* How many elements are kept of a gradient or weight to see whether it has changed, and of a gradient
 * for the cosine to the next. Such elements lie together in runs: what costs time is to reach them. */
enum { KEPT = 64, KEPT_RUN = 4, COMPARED = 1024, COMPARED_RUN = 4 };

/* States of the catalogue of statistics. */
enum { MEASURED = 0, NO_GRADIENT = 2, UNSUPPORTED = 4, CLIPPED = 7 };

/* What happened to gradients since backward, by their samples. */
enum { NONE, SCALED, CHANGED, UNKNOWN };

typedef struct {
    int kind, exact;
    double factor;
} Transform;

/* Elements of parameter `index`, to be compared later. */
typedef struct {
    size_t index, most, n;
    int dtype;
    char bits[KEPT * sizeof(double)];
} Kept;

typedef struct {
    Kept *items;
    size_t n;
} KeptList;

typedef struct {
    size_t rows; /* of the parameter; where there are others, they are not remembered */
    Place gradient, weight;
    char *last; /* elements of the last recorded gradient */
    size_t last_n;
    int last_dtype;
} Entry;

/* Rows as they lie in the ring and on disk: GRAD of the catalogue of statistics. */
typedef struct __attribute__((packed)) {
    uint64_t count;
    double norm, mean, std;
    float skewness, kurtosis;
    double abs_mean, abs_max, min, max;
    float zero_fraction;
    uint64_t nan, inf, zero_rows, dead_rows, untouched_rows;
    float cosine;
} Row;

typedef struct {
    PyObject_HEAD
    PyObject *refs;
    Torch torch;
    int is_busy;
    size_t n, all_rows;
    Entry *entries;
    Batch batch; /* its arrays, but writable: */
    uint64_t *pointers;
    int64_t *counts, *rows;
    uint8_t *dtypes;
    PyObject **tensors; /* held while they are measured */
    Record *records;
    uint8_t **touched;
    uint8_t *marks, *ever; /* of all rows, one after another: touched now; ever */
    uint64_t *recent;      /* in which of the last 64 recorded steps */
    KeptList samples, weights;
    Transform transform;
    void *memory[16]; /* all these arrays */
    int arrays;
} Gradients;

/* Copies at most `most` elements, always the same ones, and gives how many: one run from each of as
 * many equal stretches, at a place in it that follows the golden ratio. A plain stride would fall
 * into step with the rows of a matrix. */
static size_t take_elements(const Tensor *tensor, size_t most, size_t run, char *to) {
    size_t size = itemsize(tensor->dtype), bytes = run * size, runs = most / run;
    double stretch = (double)(tensor->count / run) / (double)runs;
    if (tensor->count <= most) {
        if (tensor->count) memcpy(to, tensor->data, tensor->count * size);
        return tensor->count;
    }
    for (size_t i = 0; i < runs; i++) {
        double place = (double)i + (double)(i * 0x9E3779B97F4A7C15u >> 11) * 0x1p-53;
        memcpy(to + i * bytes, tensor->data + (size_t)(place * stretch) * bytes, bytes);
    }
    return most;
}

static void keep(Kept *kept, size_t index, size_t most, const Tensor *tensor) {
    kept->index = index, kept->most = most, kept->dtype = tensor->dtype;
    kept->n = take_elements(tensor, most, KEPT_RUN, kept->bits);
}

/* The same elements now; 0 where the tensor is of another type or size. */
static int keep_again(const Kept *was, const Tensor *tensor, Kept *now) {
    keep(now, was->index, was->most, tensor);
    return now->n == was->n && now->dtype == was->dtype;
}

static int are_equal(const Kept *was, const Kept *now) {
    return memcmp(was->bits, now->bits, was->n * itemsize(was->dtype)) == 0;
}

/* Parameter i, or its gradient; NULL where there is none (any more). */
static PyObject *deref(const Gradients *self, size_t i, int wants_gradient) {
    PyObject *parameter = PyObject_CallNoArgs(PyTuple_GetItem(self->refs, (Py_ssize_t)i));
    PyObject *found = !parameter || parameter == Py_None ? NULL
                      : wants_gradient ? PyObject_GetAttr(parameter, words.grad)
                                       : Py_NewRef(parameter);
    Py_XDECREF(parameter);
    if (found == Py_None) Py_CLEAR(found);
    PyErr_Clear();
    return found;
}

static PyObject *look_up(Gradients *self, size_t i, int wants_gradient, Tensor *tensor) {
    Entry *entry = &self->entries[i];
    PyObject *object = deref(self, i, wants_gradient);
    PyObject *plain = look_at(object, &self->torch, tensor,
                              wants_gradient ? &entry->gradient : &entry->weight);
    Py_XDECREF(object);
    return plain;
}

/* Somebody's code may run while tensors are looked at, and other threads while they are measured. */
static int enter(Gradients *self) {
    if (!__atomic_exchange_n(&self->is_busy, 1, __ATOMIC_ACQUIRE)) return 0;
    PyErr_SetString(PyExc_RuntimeError, "these gradients are being looked at already");
    return -1;
}

static PyObject *leave(Gradients *self, PyObject *result) {
    __atomic_store_n(&self->is_busy, 0, __ATOMIC_RELEASE);
    return result;
}

static PyObject *gradients_sample(Gradients *self, PyObject *number) {
    uint64_t index;
    if (take_number(number, &index) < 0 || enter(self) < 0) return NULL;
    if (index >= self->n) return refuse("there is no such parameter"), leave(self, NULL);
    Tensor tensor;
    PyObject *plain = look_up(self, index, 1, &tensor);
    Kept *sample = self->samples.items, *stop = sample + self->samples.n;
    while (sample < stop && sample->index != index) sample++;
    if (plain) keep(sample, index, KEPT, &tensor);
    if (plain && sample == stop) self->samples.n++;
    Py_XDECREF(plain);
    return leave(self, PyBool_FromLong(plain != NULL));
}

static PyObject *gradients_forget(Gradients *self, PyObject *unused) {
    (void)unused;
    if (enter(self) < 0) return NULL;
    self->samples.n = 0;
    self->transform = (Transform){NONE, 1, 1.0};
    return leave(self, Py_NewRef(Py_None));
}

static PyObject *gradients_keep_weights(Gradients *self, PyObject *args) {
    Py_ssize_t first, count, most;
    if (!PyArg_ParseTuple(args, "nnn", &first, &count, &most)) return NULL;
    if (first < 0 || count < 0 || most < KEPT_RUN || most > KEPT || most % KEPT_RUN)
        return refuse("expected a place, a number, and at most 64 elements in fours"), NULL;
    if (enter(self) < 0) return NULL;
    self->weights.n = 0;
    for (size_t i = 0; i < smaller((size_t)count, self->n); i++) {
        Tensor tensor;
        size_t index = ((size_t)first + i) % self->n;
        PyObject *plain = look_up(self, index, 0, &tensor);
        if (plain) keep(&self->weights.items[self->weights.n++], index, (size_t)most, &tensor);
        Py_XDECREF(plain);
    }
    return leave(self, Py_NewRef(Py_None));
}

/* Norm of the difference, in parts of the larger of the two norms: 0 to 2. */
static double distance(const Kept *was, const Kept *now) {
    double a[KEPT], b[KEPT], aa = 0.0, bb = 0.0, dd = 0.0;
    chosen->widen(was->bits, was->n, was->dtype, a);
    chosen->widen(now->bits, now->n, now->dtype, b);
    for (size_t i = 0; i < was->n; i++)
        aa += a[i] * a[i], bb += b[i] * b[i], dd += (b[i] - a[i]) * (b[i] - a[i]);
    double found = sqrt(dd) / sqrt(fmax(aa, bb));
    return isfinite(found) ? found : 0.0;
}

/* A list of pairs, None where nothing was kept, NULL with an error. */
static PyObject *compare_weights(Gradients *self) {
    size_t n = self->weights.n;
    if (n == 0) return Py_NewRef(Py_None);
    PyObject *list = PyList_New(0);
    self->weights.n = 0;
    for (size_t i = 0; list && i < n; i++) {
        Kept *was = &self->weights.items[i], now;
        Tensor tensor;
        PyObject *plain = look_up(self, was->index, 0, &tensor);
        if (plain && keep_again(was, &tensor, &now) && !are_equal(was, &now)) {
            double found;
            Batch none = {.n = 0};
            WORK(&none, found = distance(was, &now));
            PyObject *pair = Py_BuildValue("nd", (Py_ssize_t)was->index, found);
            if (!pair || PyList_Append(list, pair) < 0) Py_CLEAR(list);
            Py_XDECREF(pair);
        }
        Py_XDECREF(plain);
    }
    return list;
}

static PyObject *gradients_changed_weights(Gradients *self, PyObject *unused) {
    (void)unused;
    return enter(self) < 0 ? NULL : leave(self, compare_weights(self));
}

/* Whether two samples are equal in value (NaN to NaN). Takes the factor between them into `all`, which
 * becomes CHANGED where there is none, and puts it to the others. */
static int compare_sample(const Kept *was, const Kept *now, Transform *all, double *tolerance,
                          double *factors, size_t *found) {
    static const double epsilon[] = {0x1p-23, 0x1p-52, 0x1p-7, 0x1p-10};
    double a[KEPT], b[KEPT], aa = 0.0, ab = 0.0, bb = 0.0, rest = 0.0;
    size_t n = 0, equal = 0;
    int unused, exact = 1;
    chosen->widen(was->bits, was->n, was->dtype, a);
    chosen->widen(now->bits, now->n, now->dtype, b);
    for (size_t i = 0; i < was->n; i++) {
        equal += a[i] == b[i] || (isnan(a[i]) && isnan(b[i]));
        if (isfinite(a[i]) && isfinite(b[i])) a[n] = a[i], b[n++] = b[i];
    }
    for (size_t i = 0; i < n; i++) aa += a[i] * a[i], ab += a[i] * b[i], bb += b[i] * b[i];
    double factor = ab / aa, own = fmax(1e-5, 2.0 * epsilon[was->dtype]);
    for (size_t i = 0; i < n; i++) {
        double off = b[i] - factor * a[i];
        rest += off * off, exact &= off == 0.0;
    }
    if (aa == 0.0 && bb == 0.0) return equal == was->n; /* zeros: nothing to tell from */
    if (!(aa > 0.0 && factor > 0.0 && sqrt(rest) <= own * sqrt(bb))) all->kind = CHANGED;
    factors[(*found)++] = factor;
    *tolerance = fmax(*tolerance, own);
    all->exact &= exact && frexp(factor, &unused) == 0.5;
    return equal == was->n;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* How the gradients differ from what backward left: not at all, by one factor, or otherwise. */
static Transform compare_samples(Gradients *self) {
    double *factors = (double *)self->records, tolerance = 0.0; /* not used for records yet */
    size_t pairs = 0, equal = 0, n = 0;
    Transform all = {SCALED, 1, 1.0};
    for (size_t i = 0; i < self->samples.n; i++) {
        Kept *was = &self->samples.items[i], now;
        Tensor tensor = tensor_of(&self->batch, was->index);
        if (!self->tensors[was->index] || !keep_again(was, &tensor, &now)) continue;
        pairs++, equal += (size_t)compare_sample(was, &now, &all, &tolerance, factors, &n);
    }
    if (equal == pairs) return (Transform){self->samples.n && !pairs ? UNKNOWN : NONE, 1, 1.0};
    if (all.kind == SCALED && n == 0) return (Transform){UNKNOWN, 1, 1.0};
    if (all.kind == SCALED) qsort(factors, n, sizeof *factors, by_size);
    if (all.kind == CHANGED || factors[n - 1] / factors[0] - 1.0 > tolerance)
        return (Transform){CHANGED, 0, 1.0};
    all.factor = 0.5 * (factors[(n - 1) / 2] + factors[n / 2]);
    return all;
}

/* One recorded step. */
typedef struct {
    Row *rows;
    uint8_t *states;
    Bins bins;
    uint64_t *others; /* per tensor: zeros, NaN, +Inf, -Inf; NULL without bins */
    double multiplier; /* NaN: to be found */
    double scale;      /* of the loss, yet to be undone; 0: the caller judges any factor */
    int cosines;
    size_t mirrored;
} Step;

/* What the gradients are to be multiplied by to be what backward made; 0 where nobody here can tell. */
static double find_multiplier(Gradients *self, const Step *step) {
    Transform *found = &self->transform;
    *found = compare_samples(self);
    double scale = step->scale > 0.0 ? step->scale : 1.0;
    if (found->kind != SCALED) return 1.0 / scale;
    return step->scale > 0.0 && found->factor >= 0x1p-10 && !(found->exact && found->factor < 1.0)
               ? 1.0 / (scale * found->factor)
               : 0.0;
}

/* The cosine to the gradient recorded last, whose place this one takes. */
static float compare_last(Entry *entry, const Tensor *tensor) {
    char now[COMPARED * sizeof(double)];
    size_t n = take_elements(tensor, COMPARED, COMPARED_RUN, now), size = itemsize(tensor->dtype);
    double found = NAN;
    if (n == 0) return NAN;
    if (n == entry->last_n && tensor->dtype == entry->last_dtype) {
        found = chosen->cosine(now, entry->last, n, tensor->dtype);
    } else {
        free(entry->last);
        entry->last = malloc(n * size);
        entry->last_n = entry->last ? n : 0, entry->last_dtype = tensor->dtype;
    }
    if (entry->last) memcpy(entry->last, now, n * size);
    return (float)found;
}

/* Take the marks of one tensor's rows in; how many are untouched in the window, and ever. */
static void remember(Gradients *self, size_t first, size_t n, uint64_t silent[2]) {
    silent[0] = silent[1] = 0;
    for (size_t r = first; r < first + n; r++) {
        self->recent[r] = self->recent[r] << 1 | self->marks[r];
        self->ever[r] |= self->marks[r];
        silent[0] += !self->recent[r], silent[1] += !self->ever[r];
    }
}

static void fill_row(Row *row, const Record *record, double by, const uint64_t silent[2]) {
    *row = (Row){record->count, record->norm * by, record->mean * by, record->std * by,
                 (float)record->skewness, (float)record->kurtosis, record->abs_mean * by,
                 record->abs_max * by, record->min * by, record->max * by,
                 (float)((double)record->zeros / (double)record->count), record->nan,
                 record->pos_inf + record->neg_inf, record->zero_rows, silent[0], silent[1], NAN};
}

/* Everything that needs no Python; 0 where the caller has to give the multiplier. */
static int record_all(Gradients *self, Step *step) {
    static const Record none = {0, 0, 0, 0, 0, 0, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN};
    static const uint64_t nowhere[2] = {0, 0};
    int is_cut = 0;
    if (isnan(step->multiplier)) {
        step->multiplier = find_multiplier(self, step);
        is_cut = self->transform.kind == CHANGED;
        if (step->multiplier == 0.0) return 0;
    }
    Outputs out = {self->records, self->touched, step->others ? &step->bins : NULL};
    step->bins.multiplier = step->multiplier;
    memset(self->marks, 0, self->all_rows);
    for (size_t i = 0, first = 0; i < self->n; first += self->entries[i++].rows)
        self->touched[i] = self->rows[i] && (size_t)self->rows[i] == self->entries[i].rows
                               ? self->marks + first
                               : NULL;
    chosen->measure(&self->batch, &out);
    for (size_t i = 0, first = 0; i < self->n; first += self->entries[i++].rows) {
        const Record *record = &self->records[i];
        uint64_t silent[2];
        remember(self, first, self->entries[i].rows, silent);
        if (step->others)
            memcpy(step->others + 4 * i, &record->zeros, 4 * sizeof *step->others);
        if (step->states[i] != MEASURED) {
            fill_row(&step->rows[i], &none, 1.0, nowhere);
            step->rows[i].zero_fraction = NAN;
            continue;
        }
        if (is_cut) step->states[i] = CLIPPED;
        fill_row(&step->rows[i], record, step->multiplier, silent);
        Tensor tensor = tensor_of(&self->batch, i);
        if (step->cosines) step->rows[i].cosine = compare_last(&self->entries[i], &tensor);
        step->mirrored += record->abs_max > 0.0 && record->max == record->abs_max &&
                          record->min == -record->abs_max;
    }
    return 1;
}

/* Look at every gradient, and at what is given in place of those that are not ordinary; those are
 * listed in `others`. */
static int look_at_all(Gradients *self, PyObject *given, uint8_t *states, PyObject **others) {
    for (size_t i = 0; i < self->n; i++) {
        Tensor tensor = {NULL, 0, F32, 0};
        PyObject *gradient = deref(self, i, 1);
        self->tensors[i] = look_at(gradient, &self->torch, &tensor, &self->entries[i].gradient);
        states[i] = gradient ? MEASURED : NO_GRADIENT;
        if (gradient && !self->tensors[i]) {
            if (add_index(others, i) < 0) return Py_DECREF(gradient), -1;
            PyObject *number = PyLong_FromSize_t(i);
            PyObject *other = given == Py_None || !number ? NULL : PyDict_GetItemWithError(given, number);
            Py_XINCREF(other), Py_XDECREF(number);
            self->tensors[i] = look_at(other, &self->torch, &tensor, &self->entries[i].gradient);
            Py_XDECREF(other);
            if (!self->tensors[i]) states[i] = UNSUPPORTED;
        }
        Py_XDECREF(gradient);
        PyErr_Clear();
        self->pointers[i] = (uintptr_t)tensor.data, self->counts[i] = (int64_t)tensor.count;
        self->dtypes[i] = (uint8_t)tensor.dtype, self->rows[i] = (int64_t)tensor.rows;
    }
    return 0;
}

/* (exponents, sizes, counts, others) */
static int take_found(Buffers *held, PyObject *tuple, size_t n, Step *step, size_t *room) {
    PyObject *exponents, *sizes, *counts, *others;
    if (tuple == Py_None) return 0;
    if (!PyTuple_Check(tuple)) return refuse("bins are a tuple of four buffers");
    return PyArg_ParseTuple(tuple, "OOOO", &exponents, &sizes, &counts, &others) &&
                   (step->bins.first_exponents = take(held, exponents, n, 8, 1)) &&
                   (step->bins.sizes = take(held, sizes, n, 8, 1)) &&
                   (step->bins.counts = take_any(held, counts, room, 8, 1)) &&
                   (step->others = take(held, others, 4 * n, 8, 1))
               ? 0
               : -1;
}

static PyObject *gradients_record(Gradients *self, PyObject *args) {
    PyObject *rows, *states, *bins, *given, *multiplier, *others = NULL;
    PyObject *outside = NULL, *result = NULL;
    Step step = {.multiplier = NAN};
    Buffers held = {.n = 0};
    size_t n = self->n, room = 0;
    if (!PyArg_ParseTuple(args, "OOOOOdp", &rows, &states, &bins, &given, &multiplier, &step.scale,
                          &step.cosines))
        return NULL;
    if (given != Py_None && !PyDict_Check(given)) return refuse("given is no dict"), NULL;
    if (multiplier != Py_None) {
        step.multiplier = PyFloat_AsDouble(multiplier);
        if (PyErr_Occurred()) return NULL;
        if (!(step.multiplier > 0.0 && isfinite(step.multiplier)))
            return refuse("the multiplier is not positive and finite"), NULL;
    }
    if (enter(self) < 0) return NULL;
    if (!(step.rows = take(&held, rows, n * sizeof(Row), 1, 1)) ||
        !(step.states = take(&held, states, n, 1, 1)) ||
        take_found(&held, bins, n, &step, &room) < 0 || !(outside = compare_weights(self)))
        return leave(self, release(&held, NULL));
    int status = look_at_all(self, given, step.states, &others), is_measured = 0;
    set_range(&self->batch, &step.bins);
    if (status == 0 && step.others && room < 2 * n * step.bins.width)
        status = refuse("the bins may need more room");
    if (status == 0 && (!others || given != Py_None)) {
        WORK(&self->batch, is_measured = record_all(self, &step));
        Py_CLEAR(others);
    }
    if (status == 0)
        result = Py_BuildValue("OOidOnO", is_measured ? Py_True : Py_False,
                               others ? others : Py_None, self->transform.kind,
                               self->transform.factor, self->transform.exact ? Py_True : Py_False,
                               (Py_ssize_t)step.mirrored, outside);
    for (size_t i = 0; i < n; i++) Py_CLEAR(self->tensors[i]);
    Py_XDECREF(others), Py_DECREF(outside);
    return leave(self, release(&held, result));
}

/* -- making and freeing them -- */

static int gradients_traverse(Gradients *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->refs);
    Py_VISIT(self->torch.types);
    Py_VISIT(self->torch.dtypes);
    return 0;
}

static int gradients_clear(Gradients *self) {
    for (size_t i = 0; self->entries && i < self->n; i++) free(self->entries[i].last);
    self->n = self->batch.n = self->samples.n = self->weights.n = 0;
    Py_CLEAR(self->refs);
    Py_CLEAR(self->torch.types);
    Py_CLEAR(self->torch.dtypes);
    return 0;
}

static void gradients_free(Gradients *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    gradients_clear(self);
    while (self->arrays > 0) PyMem_Free(self->memory[--self->arrays]);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static void *make(Gradients *self, size_t n, size_t size) {
    void *memory = n < (size_t)1 << 48 ? PyMem_Calloc(n + 1, size) : NULL;
    if (memory) self->memory[self->arrays++] = memory;
    else PyErr_NoMemory();
    return memory;
}

static int fill_entries(Gradients *self, PyObject *rows) {
    if (PySequence_Size(rows) != (Py_ssize_t)self->n)
        return PyErr_Occurred() ? -1 : refuse("expected a number of rows for each parameter");
    if (!(self->entries = make(self, self->n, sizeof(Entry)))) return -1;
    for (size_t i = 0; i < self->n; i++) {
        PyObject *item = PySequence_GetItem(rows, (Py_ssize_t)i);
        uint64_t number;
        int status = item ? take_number(item, &number) : -1;
        Py_XDECREF(item);
        if (status < 0) return -1;
        if (number >> 40) return refuse_tensor(i, "the rows are more than any memory holds");
        self->entries[i].rows = (size_t)number, self->all_rows += (size_t)number;
    }
    return 0;
}

static PyObject *gradients_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyObject *refs, *rows;
    Torch torch;
    (void)keywords;
    if (!PyArg_ParseTuple(args, "OOOO", &refs, &rows, &torch.types, &torch.dtypes) ||
        check_torch(&torch) < 0)
        return NULL;
    Gradients *self = (Gradients *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!self) return NULL;
    self->torch = (Torch){Py_NewRef(torch.types), Py_NewRef(torch.dtypes)};
    self->transform = (Transform){NONE, 1, 1.0};
    if ((self->refs = PySequence_Tuple(refs))) self->n = (size_t)PyTuple_Size(self->refs);
    size_t n = self->n;
    if (!self->refs || fill_entries(self, rows) < 0 ||
        !(self->pointers = make(self, n, sizeof *self->pointers)) ||
        !(self->counts = make(self, n, sizeof *self->counts)) ||
        !(self->rows = make(self, n, sizeof *self->rows)) ||
        !(self->dtypes = make(self, n, sizeof *self->dtypes)) ||
        !(self->tensors = make(self, n, sizeof *self->tensors)) ||
        !(self->records = make(self, n, sizeof *self->records)) ||
        !(self->touched = make(self, n, sizeof *self->touched)) ||
        !(self->samples.items = make(self, n, sizeof(Kept))) ||
        !(self->weights.items = make(self, n, sizeof(Kept))) ||
        !(self->marks = make(self, self->all_rows, sizeof *self->marks)) ||
        !(self->ever = make(self, self->all_rows, sizeof *self->ever)) ||
        !(self->recent = make(self, self->all_rows, sizeof *self->recent)))
        return Py_DECREF(self), NULL;
    self->batch = (Batch){n, self->pointers, self->counts, self->dtypes, self->rows};
    return (PyObject *)self;
}

static PyMethodDef gradients_methods[] = {
    {"sample", (PyCFunction)gradients_sample, METH_O, "sample(index): keep what backward has left"},
    {"forget", (PyCFunction)gradients_forget, METH_NOARGS, "drop the samples"},
    {"keep_weights", (PyCFunction)gradients_keep_weights, METH_VARARGS,
     "keep_weights(first, count, most)"},
    {"changed_weights", (PyCFunction)gradients_changed_weights, METH_NOARGS,
     "[(index, distance)] of the kept weights that have changed; None without any"},
    {"record", (PyCFunction)gradients_record, METH_VARARGS,
     "record(rows, states, bins, given, multiplier, scale, cosines)"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot gradients_slots[] = {
    {Py_tp_new, gradients_new},           {Py_tp_dealloc, gradients_free},
    {Py_tp_traverse, gradients_traverse}, {Py_tp_clear, gradients_clear},
    {Py_tp_methods, gradients_methods},   {0, NULL},
};

static PyType_Spec gradients_spec = {
    "gradwatch.kernel._native.Gradients", sizeof(Gradients), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, gradients_slots,
};

/* -- the module -- */

static PyObject *py_set_threads(PyObject *self, PyObject *args) {
    (void)self;
    int threads;
    if (!PyArg_ParseTuple(args, "i", &threads)) return NULL;
    if (threads < 1) return refuse("expected at least one thread"), NULL;
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
    {"measure", py_measure, METH_VARARGS, "measure(batch, records, touched, (firsts, sizes, counts))"},
    {"step", py_step, METH_VARARGS,
     "step(before, after, grads, second_moments, correction, eps, updates, ratios)"},
    {"hashes", py_hashes, METH_VARARGS, "hashes(batch, offsets, sums)"},
    {"copy", py_copy, METH_VARARGS, "copy(source, target)"},
    {"nonfinite", (PyCFunction)(void (*)(void))py_nonfinite, METH_FASTCALL,
     "nonfinite(pointer, count, dtype, stride)"},
    {"gather", py_gather, METH_VARARGS,
     "gather(tensors, types, dtypes, (pointers, counts, dtypes, rows))"},
    {"use_exchange", py_use_exchange, METH_O, "use_exchange(DLPack's exchange interface or None)"},
    {"set_threads", py_set_threads, METH_VARARGS, "set_threads(most)"},
    {"instruction_sets", py_instruction_sets, METH_NOARGS, "the sets of this processor"},
    {"select", py_select, METH_VARARGS, "select(instruction_set)"},
    {NULL, NULL, 0, NULL},
};

static int start(PyObject *module) {
    chosen = supported_kernels()[0];
    PyObject *type = PyType_FromSpec(&gradients_spec);
    int status = type ? PyModule_AddObjectRef(module, "Gradients", type) : -1;
    Py_XDECREF(type);
    return status < 0 ? -1 : learn_words();
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, start}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_native", .m_doc = "The kernel in C.",
    .m_methods = functions, .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
