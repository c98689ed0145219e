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
    size_t elements = 0;
    for (size_t i = 0; i < batch->n && elements <= FEW; i++) elements += batch->items[i].count;
    return elements <= FEW;
}

#define LET_GO(batch, call)                                                  \
    do {                                                                     \
        PyThreadState *thread = has_few(batch) ? NULL : PyEval_SaveThread(); \
        call;                                                                \
        if (thread) PyEval_RestoreThread(thread);                            \
    } while (0)

/* torch.set_flush_denormal makes the processor treat small numbers as zero, which would make our
 * counts wrong: the kernel works in the default environment and puts the caller's back. */
#define WORK(batch, call)                                                            \
    do {                                                                             \
        fenv_t callers;                                                              \
        LET_GO(batch, fegetenv(&callers); fesetenv(FE_DFL_ENV); call; fesetenv(&callers)); \
    } while (0)

/* -- buffers and batches, checked -- */

/* Buffers and memory of one call, released together. */
enum { USUAL = 20, MOST_MADE = 6 }; /* four batches of four, and what goes with them */
typedef struct {
    Py_buffer usual[USUAL], *more; /* more: in place of the usual, where there may be so many */
    void *made[MOST_MADE];
    size_t n, n_made, items; /* items: of the buffer taken last */
} Held;

static PyObject *release(Held *held, PyObject *result) {
    while (held->n-- > 0) PyBuffer_Release(&(held->more ? held->more : held->usual)[held->n]);
    while (held->n_made > 0) PyMem_Free(held->made[--held->n_made]);
    return result;
}

static int refuse(const char *reason) {
    PyErr_SetString(PyExc_ValueError, reason);
    return -1;
}

/* Put an item, whose reference is taken, to a list, which is made where there is none. */
static int append(PyObject **list, PyObject *item) {
    if (!*list) *list = PyList_New(0);
    int status = item && *list ? PyList_Append(*list, item) : -1;
    Py_XDECREF(item);
    return status;
}

static void *make(Held *held, size_t n, size_t size) {
    void *memory = PyMem_Calloc(n + 1, size);
    if (memory) held->made[held->n_made++] = memory;
    else PyErr_NoMemory();
    return memory;
}

/* The memory of `object`, which must hold so many items of `size` bytes (ANY: whatever it does);
 * NULL with an error. */
#define ANY SIZE_MAX
static void *take(Held *held, PyObject *object, size_t items, size_t size, int writable) {
    Py_buffer *view = &(held->more ? held->more : held->usual)[held->n];
    if (PyObject_GetBuffer(object, view, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0) return NULL;
    held->n++, held->items = (size_t)view->len / size;
    if ((size_t)view->len % size == 0 && (uintptr_t)view->buf % (size > 8 ? 8 : size) == 0 &&
        (items == ANY || items == held->items))
        return view->buf ? view->buf : (void *)held; /* NULL is kept for errors */
    PyErr_Format(PyExc_ValueError, "expected %zd aligned items of %zu bytes, got %zd bytes",
                 (Py_ssize_t)items, size, view->len);
    return NULL;
}

/* What is wrong with a tensor; NULL: nothing. */
static const char *fault_of(uint64_t pointer, uint64_t count, uint64_t dtype, int64_t rows) {
    if (dtype >= DTYPES) return "the dtype is none of the kernel's";
    if (count >> 56) return "the count is negative or larger than any memory";
    if (count > 0 && pointer == 0) return "the pointer is null";
    if (pointer % itemsize((int)dtype)) return "the pointer is not aligned to its elements";
    if (rows < 0 || (rows > 0 && count % (uint64_t)rows)) return "the rows do not divide the count";
    return NULL;
}

static int take_batch(Held *held, PyObject *tuple, Batch *batch) {
    PyObject *p, *c, *d, *r;
    const uint64_t *pointers, *counts;
    const int64_t *rows;
    const uint8_t *dtypes;
    if (!PyTuple_Check(tuple)) return refuse("a batch is a tuple of four buffers");
    if (!PyArg_ParseTuple(tuple, "OOOO", &p, &c, &d, &r) ||
        !(pointers = take(held, p, ANY, 8, 0)) || (batch->n = held->items, 0) ||
        !(counts = take(held, c, batch->n, 8, 0)) || !(dtypes = take(held, d, batch->n, 1, 0)) ||
        !(rows = take(held, r, batch->n, 8, 0)) ||
        !(batch->items = make(held, batch->n, sizeof *batch->items)))
        return -1;
    for (size_t i = 0; i < batch->n; i++) {
        const char *fault = fault_of(pointers[i], counts[i], dtypes[i], rows[i]);
        if (fault) return PyErr_Format(PyExc_ValueError, "tensor %zu: %s", i, fault), -1;
        batch->items[i] = (Tensor){(const char *)(uintptr_t)pointers[i], (size_t)counts[i],
                                   dtypes[i], (size_t)rows[i]};
    }
    return 0;
}

/* Two batches that are walked together; `may_lack`: the second may have empty tensors. */
static int check_match(const Batch *a, const Batch *b, int same_dtype, int may_lack) {
    int fits = a->n == b->n;
    for (size_t i = 0; fits && i < a->n; i++) {
        const Tensor *one = &a->items[i], *other = &b->items[i];
        fits = (one->count == other->count || (may_lack && other->count == 0)) &&
               (!same_dtype || one->dtype == other->dtype);
    }
    return fits ? 0 : refuse("the numbers, counts or dtypes of two batches differ");
}

/* -- measuring and the other passes -- */

/* (exponents, sizes, counts) and, where there may be `others`, those. Bins from 2^-149 to 2^127
 * hold every float; doubles need those from 2^-1074 to 2^1023. */
static int take_bins(Held *held, PyObject *tuple, Batch *batch, Bins *bins, uint64_t **others) {
    PyObject *exponents, *sizes, *counts, *more;
    size_t room;
    *bins = (Bins){.lowest = LOWEST_FLOAT, .width = FLOAT_BINS, .multiplier = 1.0};
    for (size_t i = 0; i < batch->n; i++)
        if (batch->items[i].dtype == F64) bins->lowest = LOWEST_DOUBLE, bins->width = DOUBLE_BINS;
    if (!PyTuple_Check(tuple)) return refuse("bins are a tuple of buffers");
    if (!PyArg_ParseTuple(tuple, others ? "OOOO" : "OOO", &exponents, &sizes, &counts, &more) ||
        !(bins->first_exponents = take(held, exponents, batch->n, 8, 1)) ||
        !(bins->sizes = take(held, sizes, batch->n, 8, 1)) ||
        !(bins->counts = take(held, counts, ANY, 8, 1)) || (room = held->items, 0) ||
        (others && !(*others = take(held, more, 4 * batch->n, 8, 1))))
        return -1;
    return room < batch->n * 2 * bins->width ? refuse("the bins may need more room") : 0;
}

/* The rows to mark: a sequence with None or a buffer of one byte per row for each tensor. */
static int take_touched(Held *held, PyObject *sequence, const Batch *batch, uint8_t **marks) {
    if (sequence == Py_None) return 0;
    if (PySequence_Size(sequence) != (Py_ssize_t)batch->n)
        return PyErr_Occurred() ? -1 : refuse("touched rows need one entry per tensor");
    for (size_t i = 0; i < batch->n; i++) {
        size_t rows = batch->items[i].rows;
        PyObject *item = PySequence_GetItem(sequence, (Py_ssize_t)i);
        if (item && item != Py_None) marks[i] = take(held, item, rows, 1, 1);
        Py_XDECREF(item);
        if (PyErr_Occurred()) return -1;
        if (rows == 0) marks[i] = NULL;
    }
    return 0;
}

static PyObject *py_measure(PyObject *self, PyObject *args) {
    PyObject *tuple, *records, *touched, *table;
    if (!PyArg_ParseTuple(args, "OOOO", &tuple, &records, &touched, &table)) return NULL;
    Held held = {.n = 0};
    Batch batch;
    Outputs out = {0};
    Bins bins;
    uint8_t **marks;
    Py_ssize_t n = touched == Py_None ? 0 : PySequence_Size(touched);
    if (n < 0 || (n > 0 && !(held.more = make(&held, USUAL + (size_t)n, sizeof(Py_buffer)))) ||
        take_batch(&held, tuple, &batch) < 0 || !(marks = make(&held, batch.n, sizeof *marks)) ||
        !(out.records = take(&held, records, batch.n, sizeof(Record), 1)) ||
        (table != Py_None && take_bins(&held, table, &batch, &bins, NULL) < 0) ||
        take_touched(&held, touched, &batch, marks) < 0)
        return release(&held, NULL);
    out.touched = marks;
    out.bins = table == Py_None ? NULL : &bins;
    WORK(&batch, chosen->measure(&batch, &out));
    return release(&held, Py_NewRef(Py_None));
}

static PyObject *py_step(PyObject *self, PyObject *args) {
    PyObject *given[4], *correction, *eps, *updates, *ratios;
    if (!PyArg_ParseTuple(args, "OOOOOOOO", &given[0], &given[1], &given[2], &given[3], &correction,
                          &eps, &updates, &ratios))
        return NULL;
    Held held = {.n = 0};
    Batch rooms[4];
    Steps steps = {0};
    const Batch **batches[] = {&steps.before, &steps.after, &steps.grads, &steps.second};
    for (int k = 0; k < 4; k++) {
        if (given[k] == Py_None) continue;
        if (take_batch(&held, given[k], &rooms[k]) < 0) return release(&held, NULL);
        *batches[k] = &rooms[k];
    }
    const Batch *lead = steps.before ? steps.before : steps.grads;
    size_t n = lead ? lead->n : 0;
    int is_whole = lead && !steps.before == !steps.after && (steps.grads || !steps.second) &&
                   (steps.before || steps.second);
    if ((!is_whole && refuse("weights before and after, or gradients and second moments") < 0) ||
        (steps.after && check_match(lead, steps.after, 1, 0) < 0) ||
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
    PyObject *tuple, *starts, *sums;
    if (!PyArg_ParseTuple(args, "OOO", &tuple, &starts, &sums)) return NULL;
    Held held = {.n = 0};
    Batch batch;
    const int64_t *offsets;
    uint64_t *out;
    if (take_batch(&held, tuple, &batch) < 0 || !(offsets = take(&held, starts, batch.n, 8, 0)) ||
        !(out = take(&held, sums, batch.n, 8, 1)))
        return release(&held, NULL);
    WORK(&batch, chosen->hashes(&batch, offsets, out));
    return release(&held, Py_NewRef(Py_None));
}

static void copy_all(const Batch *source, const Batch *target) {
    for (size_t i = 0; i < source->n; i++) {
        Tensor from = source->items[i], to = target->items[i];
        if (from.count) memmove((char *)to.data, from.data, from.count * itemsize(from.dtype));
    }
}

static PyObject *py_copy(PyObject *self, PyObject *args) {
    PyObject *from, *to;
    if (!PyArg_ParseTuple(args, "OO", &from, &to)) return NULL;
    Held held = {.n = 0};
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
    uint64_t numbers[4]; /* pointer, count, dtype, stride */
    if (n != 4) return PyErr_SetString(PyExc_TypeError, "expected four numbers"), NULL;
    for (int i = 0; i < 4; i++)
        if (take_number(args[i], &numbers[i]) < 0) return NULL;
    const char *fault = fault_of(numbers[0], numbers[1], numbers[2], 0);
    if (fault || numbers[3] < 1) return refuse(fault ? fault : "the stride is not positive"), NULL;
    size_t looks = numbers[1] ? (size_t)((numbers[1] - 1) / numbers[3] + 1) : 0, found;
    Tensor some = {(const char *)(uintptr_t)numbers[0], looks, (int)numbers[2], 0};
    Batch batch = {1, &some};
    LET_GO(&batch, found = chosen->nonfinite(some.data, looks, some.dtype, (size_t)numbers[3]));
    return PyLong_FromSize_t(found);
}

/* -- where torch's tensors lie, asked of the tensors themselves: torch is known by what is handed
 * in, so nothing is linked against it -- */

/* What tensors are asked for. */
static struct {
    PyObject *grad, *local, *dtype, *is_cpu, *shape, *stride, *data_ptr, *offset, *storage, *nbytes;
} words;

static int learn_words(void) {
    static const char *const names[] = {"grad",   "_local_tensor", "dtype", "is_cpu", "shape",
                                        "stride", "data_ptr", "storage_offset", "untyped_storage",
                                        "nbytes"};
    PyObject **word = (PyObject **)&words;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!(word[i] = PyUnicode_InternFromString(names[i]))) return -1;
    return 0;
}

/* torch's types of ordinary tensors, and its dtypes in the kernel's order. */
typedef struct { PyObject *types, *dtypes; } Torch;

static int check_torch(Torch *torch) {
    if (PyTuple_Check(torch->types) && PyTuple_Check(torch->dtypes) &&
        PyTuple_Size(torch->types) == 2 && PyTuple_Size(torch->dtypes) == DTYPES)
        return 0;
    return refuse("expected two types and the kernel's dtypes in order");
}

/* A number, or yes; 0 for any other answer, whose error the caller clears. */
static int ask(PyObject *object, PyObject *method, uint64_t *number) {
    PyObject *answer = PyObject_CallMethodObjArgs(object, method, NULL);
    *number = answer ? PyLong_AsUnsignedLongLong(answer) : 0;
    Py_XDECREF(answer);
    return answer && !PyErr_Occurred();
}

/* An attribute that lives for ever, like torch's dtypes and True. */
static PyObject *attribute(PyObject *object, PyObject *name) {
    PyObject *found = PyObject_GetAttr(object, name);
    Py_XDECREF(found);
    return found;
}

/* What DLPack's standard, version 1, says of a tensor; where torch offers it, in one call. */
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

enum { DL_CPU = 1, DL_FLOAT = 2, DL_BFLOAT = 4, MOST_DIMS = 64 };

static int (*describe)(void *object, DLTensor *out);

/* Whether the elements fill one stretch of memory, row after row; within a row in any order. */
static int lies_whole(const DLTensor *seen) {
    for (int32_t d = 0; seen->strides && d < seen->dims; d++) {
        int64_t inside = 1; /* elements from one place to the next: all of the dimensions inside */
        for (int32_t k = 1; k < seen->dims; k++)
            if (seen->shape[k] != 1 && k != d && (d == 0 || seen->strides[k] < seen->strides[d]))
                inside *= seen->shape[k];
        if (seen->shape[d] != 1 && seen->strides[d] != inside) return 0;
    }
    return 1;
}

/* Whole numbers of a tuple, whose reference is taken; how many, −1 for too many or none. */
static int32_t read_sizes(PyObject *tuple, int64_t sizes[MOST_DIMS]) {
    Py_ssize_t n = tuple ? PyTuple_Size(tuple) : -1;
    for (Py_ssize_t d = 0; d < n && n <= MOST_DIMS; d++)
        sizes[d] = PyLong_AsLongLong(PyTuple_GetItem(tuple, d));
    Py_XDECREF(tuple);
    return n > MOST_DIMS || PyErr_Occurred() ? -1 : (int32_t)n;
}

static int ask_all(PyObject *object, const Torch *torch, DLTensor *out, int64_t *room) {
    uint64_t address = 0;
    int dtype = 0;
    PyObject *own = attribute(object, words.dtype);
    while (dtype < DTYPES && PyTuple_GetItem(torch->dtypes, dtype) != own) dtype++;
    if (!own || dtype == DTYPES || attribute(object, words.is_cpu) != Py_True) return -1;
    *out = (DLTensor){.device = DL_CPU, .lanes = 1, .shape = room, .strides = room + MOST_DIMS};
    out->code = dtype == BF16 ? DL_BFLOAT : DL_FLOAT, out->bits = (uint8_t)(8 * itemsize(dtype));
    out->dims = read_sizes(PyObject_GetAttr(object, words.shape), out->shape);
    if (out->dims < 0 || !ask(object, words.data_ptr, &address)) return -1;
    out->data = (char *)(uintptr_t)address;
    PyObject *strides = PyObject_CallMethodObjArgs(object, words.stride, NULL);
    return read_sizes(strides, out->strides) == out->dims ? 0 : -1;
}

static int see(PyObject *object, const Torch *torch, Tensor *tensor) {
    DLTensor seen;
    int64_t room[2 * MOST_DIMS];
    if ((describe ? describe(object, &seen) : ask_all(object, torch, &seen, room)) != 0) return 0;
    if (seen.device != DL_CPU || seen.lanes != 1) return 0;
    int dtype = seen.code == DL_BFLOAT && seen.bits == 16 ? BF16 : DTYPES;
    if (seen.code == DL_FLOAT)
        dtype = seen.bits == 32 ? F32 : seen.bits == 64 ? F64 : seen.bits == 16 ? F16 : DTYPES;
    size_t count = 1;
    for (int32_t d = 0; d < seen.dims; d++) count *= (size_t)seen.shape[d];
    if (dtype == DTYPES || (count && !lies_whole(&seen))) return 0;
    size_t rows = count && seen.dims > 1 ? (size_t)seen.shape[0] : 0;
    *tensor = (Tensor){count ? seen.data + seen.byte_offset : NULL, count, dtype, rows};
    return 1;
}

/* use_exchange(capsule): from now on tensors are seen that way; None, or another version: not. */
static PyObject *py_use_exchange(PyObject *self, PyObject *capsule) {
    const char *name = "dlpack_exchange_api";
    const DLExchange *exchange =
        PyCapsule_IsValid(capsule, name) ? PyCapsule_GetPointer(capsule, name) : NULL;
    describe = exchange && exchange->major == 1 ? exchange->describe : NULL;
    return PyBool_FromLong(describe != NULL);
}

/* Memory that was found to be there. */
typedef struct { const char *data; size_t bytes; } Place;

/* Whether the storage holds the tensor: it may have been freed or cut since. */
static int lies_in_storage(PyObject *tensor, size_t bytes, size_t size) {
    uint64_t offset, all = 0;
    PyObject *storage = PyObject_CallMethodObjArgs(tensor, words.storage, NULL);
    int known = storage && ask(storage, words.nbytes, &all);
    Py_XDECREF(storage);
    return known && ask(tensor, words.offset, &offset) && offset * size + bytes <= all;
}

static int is_plain(PyObject *object, const Torch *torch) {
    PyObject *type = (PyObject *)Py_TYPE(object);
    return type == PyTuple_GetItem(torch->types, 0) || type == PyTuple_GetItem(torch->types, 1);
}

static const Tensor NOTHING = {NULL, 0, F32, 0};

/* An ordinary tensor (on the CPU, of one of the kernel's types, in memory that is there), or the
 * one in a distributed tensor, and where it lies; NULL for anything else. `last` saves the question
 * about its storage where nothing has changed. */
static PyObject *look_at(PyObject *object, const Torch *torch, Tensor *tensor, Place *last) {
    *tensor = NOTHING;
    if (!object || object == Py_None) return NULL;
    PyObject *plain = is_plain(object, torch) ? Py_NewRef(object)
                                              : PyObject_GetAttr(object, words.local);
    if (plain && is_plain(plain, torch) && see(plain, torch, tensor)) {
        size_t size = itemsize(tensor->dtype), bytes = tensor->count * size;
        uintptr_t address = (uintptr_t)tensor->data;
        if (!bytes || (tensor->data == last->data && bytes == last->bytes)) return plain;
        if (!fault_of(address, tensor->count, (uint64_t)tensor->dtype, (int64_t)tensor->rows) &&
            lies_in_storage(plain, bytes, size)) {
            *last = (Place){tensor->data, bytes};
            return plain;
        }
    }
    PyErr_Clear();
    Py_XDECREF(plain);
    *tensor = NOTHING;
    return NULL;
}

/* gather(tensors, types, dtypes, (pointers, counts, dtypes, rows)): fills the batch and gives the
 * indices of what it left empty: None, and tensors that are not ordinary. */
static PyObject *py_gather(PyObject *self, PyObject *args) {
    Torch torch;
    PyObject *list, *p, *c, *d, *r, *others = NULL;
    if (!PyArg_ParseTuple(args, "O!OO(OOOO)", &PyList_Type, &list, &torch.types, &torch.dtypes, &p,
                          &c, &d, &r) ||
        check_torch(&torch) < 0)
        return NULL;
    Held held = {.n = 0};
    size_t n = (size_t)PyList_Size(list);
    uint64_t *pointers, *counts, *rows;
    uint8_t *kinds;
    if (!(pointers = take(&held, p, n, 8, 1)) || !(counts = take(&held, c, n, 8, 1)) ||
        !(kinds = take(&held, d, n, 1, 1)) || !(rows = take(&held, r, n, 8, 1)) ||
        !(others = PyList_New(0)))
        return release(&held, NULL);
    for (size_t i = 0; others && i < n; i++) {
        Tensor tensor;
        Place unknown = {NULL, 0};
        /* Held: a tensor may answer by running somebody's code, which may change the list. */
        PyObject *object = Py_XNewRef(PyList_GetItem(list, (Py_ssize_t)i));
        PyObject *plain = look_at(object, &torch, &tensor, &unknown);
        PyErr_Clear();
        if (!plain && append(&others, PyLong_FromSize_t(i)) < 0) Py_CLEAR(others);
        Py_XDECREF(plain), Py_XDECREF(object);
        pointers[i] = (uintptr_t)tensor.data, counts[i] = tensor.count, rows[i] = tensor.rows;
        kinds[i] = (uint8_t)tensor.dtype;
    }
    return release(&held, others);
}

/* -- Gradients: all that a recorded step asks of an optimizer's gradients, in one call -- */

/* How many elements are kept of a gradient or weight to see whether it has changed, and of a
 * gradient for the cosine to the next. Such elements lie together in runs: what costs time is to
 * reach them. */
enum { KEPT = 64, KEPT_RUN = 4, COMPARED = 1024, COMPARED_RUN = 4 };

/* States of the catalogue of statistics. */
enum { MEASURED = 0, NO_GRADIENT = 2, UNSUPPORTED = 4, CLIPPED = 7 };

/* What happened to gradients since backward, by their samples. */
enum { NONE, SCALED, ALTERED, UNKNOWN };

typedef struct { int kind, exact; double factor; } Transform;

/* Elements of parameter `index`, to be compared later. */
typedef struct {
    size_t index, most, n;
    int dtype;
    char bits[KEPT * sizeof(double)] __attribute__((aligned(8)));
} Kept;

typedef struct { Kept *items; size_t n; } KeptList;

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

/* Of a row: in which of the last 64 recorded steps its gradient was not all zero, and whether
 * ever. */
typedef struct { uint64_t recent, ever; } Memory;

typedef struct {
    PyObject_HEAD
    PyObject *refs;
    Torch torch;
    int is_busy;
    size_t n, all_rows;
    Entry *entries;
    Batch batch;
    PyObject **tensors; /* held while they are measured */
    Record *records;
    uint8_t **touched;
    uint8_t *marks; /* of all rows, one after another: touched now */
    Memory *memory; /* and before */
    KeptList samples, weights;
    Transform transform;
    void *arrays[9]; /* all these */
    size_t n_arrays;
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

/* The same elements of a tensor now beside what they were. */
typedef struct {
    size_t n, equal; /* pairs of finite ones; those of all that are equal in value (NaN to NaN) */
    int same_bits;
    double was[KEPT], now[KEPT]; /* the finite ones */
    double aa, ab, bb, dd;       /* Σ was², was·now, now², (now − was)² */
} Pairs;

/* 0 where the tensor is of another type or size. */
static int compare(const Kept *was, const Tensor *tensor, Pairs *pairs) {
    Kept now;
    double rooms[2][KEPT];
    keep(&now, was->index, was->most, tensor);
    if (now.n != was->n || now.dtype != was->dtype) return 0;
    *pairs = (Pairs){.same_bits = !memcmp(was->bits, now.bits, was->n * itemsize(was->dtype))};
    const double *a = chosen->doubles(was->bits, was->n, was->dtype, rooms[0]);
    const double *b = chosen->doubles(now.bits, was->n, was->dtype, rooms[1]);
    for (size_t i = 0; i < was->n; i++) {
        pairs->equal += a[i] == b[i] || (isnan(a[i]) && isnan(b[i]));
        if (!isfinite(a[i]) || !isfinite(b[i])) continue;
        pairs->was[pairs->n] = a[i], pairs->now[pairs->n++] = b[i];
        pairs->aa += a[i] * a[i], pairs->ab += a[i] * b[i], pairs->bb += b[i] * b[i];
        pairs->dd += (b[i] - a[i]) * (b[i] - a[i]);
    }
    return 1;
}

/* Look at parameter i or its gradient, and whether there is one at all. */
static PyObject *look_up(Gradients *self, size_t i, int wants_gradient, Tensor *tensor, int *any) {
    Place *last = wants_gradient ? &self->entries[i].gradient : &self->entries[i].weight;
    PyObject *object = PyObject_CallNoArgs(PyTuple_GetItem(self->refs, (Py_ssize_t)i));
    if (object && object != Py_None && wants_gradient) {
        PyObject *parameter = object;
        object = PyObject_GetAttr(parameter, words.grad);
        Py_DECREF(parameter);
    }
    PyErr_Clear();
    PyObject *plain = look_at(object, &self->torch, tensor, last);
    if (any) *any = object && object != Py_None;
    Py_XDECREF(object);
    return plain;
}

/* Somebody's code may run while tensors are looked at, and other threads while they are
 * measured. */
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
    PyObject *plain = look_up(self, index, 1, &tensor, NULL);
    Kept *sample = self->samples.items, *stop = sample + self->samples.n;
    while (sample < stop && sample->index != index) sample++;
    if (plain) keep(sample, index, KEPT, &tensor);
    if (plain && sample == stop) self->samples.n++;
    Py_XDECREF(plain);
    return leave(self, PyBool_FromLong(plain != NULL));
}

static PyObject *gradients_forget(Gradients *self, PyObject *unused) {
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
        PyObject *plain = look_up(self, index, 0, &tensor, NULL);
        if (plain) keep(&self->weights.items[self->weights.n++], index, (size_t)most, &tensor);
        Py_XDECREF(plain);
    }
    return leave(self, Py_NewRef(Py_None));
}

/* A list of pairs, None where nothing was kept, NULL with an error. */
static PyObject *compare_weights(Gradients *self) {
    size_t n = self->weights.n;
    if (n == 0) return Py_NewRef(Py_None);
    PyObject *list = PyList_New(0);
    self->weights.n = 0;
    for (size_t i = 0; list && i < n; i++) {
        const Kept *was = &self->weights.items[i];
        Tensor tensor;
        Pairs pairs;
        PyObject *plain = look_up(self, was->index, 0, &tensor, NULL);
        if (plain && compare(was, &tensor, &pairs) && !pairs.same_bits) {
            /* Norm of the difference, in parts of the larger of the two norms: 0 to 2. */
            double distance = sqrt(pairs.dd) / sqrt(fmax(pairs.aa, pairs.bb));
            if (pairs.n < was->n || !isfinite(distance)) distance = 0.0;
            PyObject *pair = Py_BuildValue("nd", (Py_ssize_t)was->index, distance);
            if (append(&list, pair) < 0) Py_CLEAR(list);
        }
        Py_XDECREF(plain);
    }
    return list;
}

static PyObject *gradients_changed_weights(Gradients *self, PyObject *unused) {
    return enter(self) < 0 ? NULL : leave(self, compare_weights(self));
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* How the gradients differ from what backward left: not at all, by one factor, or otherwise. */
static Transform compare_samples(Gradients *self) {
    static const double epsilon[] = {0x1p-23, 0x1p-52, 0x1p-7, 0x1p-10};
    double *factors = (double *)self->records, tolerance = 0.0; /* not used for records yet */
    size_t seen = 0, equal = 0, n = 0;
    int unused, exact = 1, has_changed = 0;
    for (size_t i = 0; i < self->samples.n; i++) {
        const Kept *was = &self->samples.items[i];
        Pairs pairs;
        if (!self->tensors[was->index] || !compare(was, &self->batch.items[was->index], &pairs))
            continue;
        seen++, equal += pairs.equal == was->n;
        if (pairs.aa == 0.0 && pairs.bb == 0.0) continue; /* zeros: nothing to tell from */
        double factor = pairs.ab / pairs.aa, own = fmax(1e-5, 2 * epsilon[was->dtype]), rest = 0;
        for (size_t k = 0; k < pairs.n; k++) {
            double off = pairs.now[k] - factor * pairs.was[k];
            rest += off * off, exact &= off == 0.0;
        }
        has_changed |= !(pairs.aa > 0.0 && factor > 0.0 && sqrt(rest) <= own * sqrt(pairs.bb));
        exact &= frexp(factor, &unused) == 0.5;
        tolerance = fmax(tolerance, own);
        factors[n++] = factor;
    }
    if (equal == seen) return (Transform){self->samples.n && !seen ? UNKNOWN : NONE, 1, 1.0};
    if (n == 0) return (Transform){UNKNOWN, 1, 1.0};
    qsort(factors, n, sizeof *factors, by_size);
    if (has_changed || factors[n - 1] / factors[0] - 1.0 > tolerance)
        return (Transform){ALTERED, 0, 1.0};
    return (Transform){SCALED, exact, 0.5 * (factors[(n - 1) / 2] + factors[n / 2])};
}

/* One recorded step. */
typedef struct {
    Row *rows;
    uint8_t *states;
    Bins bins;
    uint64_t *others; /* per tensor: zeros, NaN, +Inf, -Inf; NULL without bins */
    double multiplier; /* NaN: to be found */
    double scale; /* of the loss, yet to be undone; 0: the caller judges any factor */
    int cosines;
    size_t mirrored;
} Step;

/* What the gradients are to be multiplied by to be what backward made; 0 where nobody here can
 * tell. */
static double find_multiplier(Gradients *self, const Step *step) {
    Transform *found = &self->transform;
    *found = compare_samples(self);
    if (found->kind == SCALED && (step->scale == 0.0 || found->factor < 0x1p-10 ||
                                  (found->exact && found->factor < 1.0)))
        return 0.0;
    return 1.0 / (found->factor * (step->scale > 0.0 ? step->scale : 1.0));
}

/* The cosine to the gradient recorded last, whose place this one takes. */
static float compare_last(Entry *entry, const Tensor *tensor) {
    char now[COMPARED * sizeof(double)] __attribute__((aligned(8)));
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
        Memory *row = &self->memory[r];
        row->recent = row->recent << 1 | self->marks[r], row->ever |= self->marks[r];
        silent[0] += !row->recent, silent[1] += !row->ever;
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
        is_cut = self->transform.kind == ALTERED;
        if (step->multiplier == 0.0) return 0;
    }
    Outputs out = {self->records, self->touched, step->others ? &step->bins : NULL};
    step->bins.multiplier = step->multiplier;
    memset(self->marks, 0, self->all_rows);
    for (size_t i = 0, first = 0; i < self->n; first += self->entries[i++].rows) {
        size_t rows = self->batch.items[i].rows;
        self->touched[i] = rows && rows == self->entries[i].rows ? self->marks + first : NULL;
    }
    chosen->measure(&self->batch, &out);
    for (size_t i = 0, first = 0; i < self->n; first += self->entries[i++].rows) {
        const Record *record = &self->records[i];
        uint64_t silent[2];
        remember(self, first, self->entries[i].rows, silent);
        if (step->others)
            memcpy(step->others + 4 * i, &record->zeros, 4 * sizeof *step->others);
        fill_row(&step->rows[i], &none, 1.0, nowhere);
        if (step->states[i] != MEASURED) continue;
        if (is_cut) step->states[i] = CLIPPED;
        fill_row(&step->rows[i], record, step->multiplier, silent);
        if (step->cosines)
            step->rows[i].cosine = compare_last(&self->entries[i], &self->batch.items[i]);
        step->mirrored += record->abs_max > 0.0 && record->max == record->abs_max &&
                          record->min == -record->abs_max;
    }
    return 1;
}

/* Look at every gradient, and at what is given in place of those that are not ordinary; those are
 * listed in `others`. */
static int look_at_all(Gradients *self, PyObject *given, uint8_t *states, PyObject **others) {
    for (size_t i = 0; i < self->n; i++) {
        Tensor *tensor = &self->batch.items[i];
        int is_there;
        self->tensors[i] = look_up(self, i, 1, tensor, &is_there);
        states[i] = is_there ? MEASURED : NO_GRADIENT;
        if (!is_there || self->tensors[i]) continue;
        PyObject *number = PyLong_FromSize_t(i), *other = NULL;
        if (append(others, Py_XNewRef(number)) < 0) return Py_XDECREF(number), -1;
        if (given != Py_None) other = Py_XNewRef(PyDict_GetItemWithError(given, number));
        self->tensors[i] = look_at(other, &self->torch, tensor, &self->entries[i].gradient);
        Py_XDECREF(other), Py_DECREF(number);
        PyErr_Clear();
        if (!self->tensors[i]) states[i] = UNSUPPORTED;
    }
    return 0;
}

static PyObject *gradients_record(Gradients *self, PyObject *args) {
    PyObject *rows, *states, *bins, *given, *multiplier, *others = NULL;
    PyObject *outside = NULL, *result = NULL;
    Step step = {.multiplier = NAN};
    Held held = {.n = 0};
    if (!PyArg_ParseTuple(args, "OOOOOdp", &rows, &states, &bins, &given, &multiplier, &step.scale,
                          &step.cosines))
        return NULL;
    if (given != Py_None && !PyDict_Check(given)) return refuse("given is no dict"), NULL;
    if (!(step.scale >= 0.0 && isfinite(step.scale))) return refuse("the scale is no scale"), NULL;
    if (multiplier != Py_None) step.multiplier = PyFloat_AsDouble(multiplier);
    if (PyErr_Occurred()) return NULL;
    if (multiplier != Py_None && !(step.multiplier > 0.0 && isfinite(step.multiplier)))
        return refuse("the multiplier is not positive and finite"), NULL;
    if (enter(self) < 0) return NULL;
    if (!(step.rows = take(&held, rows, self->n * sizeof(Row), 1, 1)) ||
        !(step.states = take(&held, states, self->n, 1, 1)) || !(outside = compare_weights(self)))
        return leave(self, release(&held, NULL));
    int status = look_at_all(self, given, step.states, &others), is_measured = 0;
    if (status == 0 && bins != Py_None)
        status = take_bins(&held, bins, &self->batch, &step.bins, &step.others);
    if (status == 0 && (!others || given != Py_None)) {
        WORK(&self->batch, is_measured = record_all(self, &step));
        Py_CLEAR(others);
    }
    if (status == 0)
        result = Py_BuildValue("OOidOnO", is_measured ? Py_True : Py_False,
                               others ? others : Py_None, self->transform.kind,
                               self->transform.factor, self->transform.exact ? Py_True : Py_False,
                               (Py_ssize_t)step.mirrored, outside);
    for (size_t i = 0; i < self->n; i++) Py_CLEAR(self->tensors[i]);
    Py_XDECREF(others), Py_DECREF(outside);
    return leave(self, release(&held, result));
}

/* -- making and freeing them -- */

static void gradients_free(Gradients *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    for (size_t i = 0; self->entries && i < self->n; i++) free(self->entries[i].last);
    while (self->n_arrays > 0) PyMem_Free(self->arrays[--self->n_arrays]);
    Py_XDECREF(self->refs), Py_XDECREF(self->torch.types), Py_XDECREF(self->torch.dtypes);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static void *grow(Gradients *self, size_t n, size_t size) {
    void *memory = PyMem_Calloc(n + 1, size);
    if (memory) self->arrays[self->n_arrays++] = memory;
    else PyErr_NoMemory();
    return memory;
}

static int take_rows(Gradients *self, PyObject *rows) {
    if (PySequence_Size(rows) != (Py_ssize_t)self->n)
        return PyErr_Occurred() ? -1 : refuse("expected a number of rows for each parameter");
    for (size_t i = 0; i < self->n; i++) {
        PyObject *item = PySequence_GetItem(rows, (Py_ssize_t)i);
        uint64_t number;
        int status = item ? take_number(item, &number) : -1;
        Py_XDECREF(item);
        if (status < 0) return -1;
        if (number >> 32) return refuse("the rows are too many");
        self->entries[i].rows = (size_t)number, self->all_rows += (size_t)number;
    }
    return 0;
}

static PyObject *gradients_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyObject *refs, *rows;
    Torch torch;
    if (!PyArg_ParseTuple(args, "OOOO", &refs, &rows, &torch.types, &torch.dtypes) ||
        check_torch(&torch) < 0)
        return NULL;
    Gradients *self = (Gradients *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!self) return NULL;
    self->torch = (Torch){Py_NewRef(torch.types), Py_NewRef(torch.dtypes)};
    self->transform = (Transform){NONE, 1, 1.0};
    if ((self->refs = PySequence_Tuple(refs))) self->n = (size_t)PyTuple_Size(self->refs);
    size_t n = self->batch.n = self->n;
    if (!self->refs || !(self->entries = grow(self, n, sizeof *self->entries)) ||
        !(self->batch.items = grow(self, n, sizeof *self->batch.items)) ||
        !(self->tensors = grow(self, n, sizeof *self->tensors)) ||
        !(self->records = grow(self, n, sizeof *self->records)) ||
        !(self->touched = grow(self, n, sizeof *self->touched)) ||
        !(self->samples.items = grow(self, n, sizeof(Kept))) ||
        !(self->weights.items = grow(self, n, sizeof(Kept))) || take_rows(self, rows) < 0 ||
        !(self->marks = grow(self, self->all_rows, sizeof *self->marks)) ||
        !(self->memory = grow(self, self->all_rows, sizeof *self->memory)))
        return Py_DECREF(self), NULL;
    return (PyObject *)self;
}

/* What they take and give is told in _native.pyi. */
static PyMethodDef gradients_methods[] = {
    {"sample", (PyCFunction)gradients_sample, METH_O, NULL},
    {"forget", (PyCFunction)gradients_forget, METH_NOARGS, NULL},
    {"keep_weights", (PyCFunction)gradients_keep_weights, METH_VARARGS, NULL},
    {"changed_weights", (PyCFunction)gradients_changed_weights, METH_NOARGS, NULL},
    {"record", (PyCFunction)gradients_record, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot gradients_slots[] = {
    {Py_tp_new, gradients_new}, {Py_tp_dealloc, gradients_free},
    {Py_tp_methods, gradients_methods}, {0, NULL},
};

static PyType_Spec gradients_spec = {
    "gradwatch.kernel._native.Gradients", sizeof(Gradients), 0, Py_TPFLAGS_DEFAULT, gradients_slots,
};

/* -- the module -- */

static PyObject *py_set_threads(PyObject *self, PyObject *number) {
    long threads = PyLong_AsLong(number);
    if (PyErr_Occurred()) return NULL;
    if (threads < 1) return refuse("expected at least one thread"), NULL;
    set_threads(threads > INT_MAX ? INT_MAX : (int)threads);
    Py_RETURN_NONE;
}

static PyObject *py_instruction_sets(PyObject *self, PyObject *unused) {
    PyObject *names = PyList_New(0);
    for (const Kernel *const *k = supported_kernels(); names && *k; k++)
        if (append(&names, PyUnicode_FromString((*k)->name)) < 0) Py_CLEAR(names);
    return names;
}

static PyObject *py_select(PyObject *self, PyObject *args) {
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
    {"measure", py_measure, METH_VARARGS, NULL},
    {"step", py_step, METH_VARARGS, NULL},
    {"hashes", py_hashes, METH_VARARGS, NULL},
    {"copy", py_copy, METH_VARARGS, NULL},
    {"nonfinite", (PyCFunction)(void (*)(void))py_nonfinite, METH_FASTCALL, NULL},
    {"gather", py_gather, METH_VARARGS, NULL},
    {"use_exchange", py_use_exchange, METH_O, NULL},
    {"set_threads", py_set_threads, METH_O, NULL},
    {"instruction_sets", py_instruction_sets, METH_NOARGS, NULL},
    {"select", py_select, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static int start(PyObject *module) {
    if (!(chosen = supported_kernels()[0]))
        return PyErr_SetString(PyExc_ImportError, "this processor is too old"), -1;
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
