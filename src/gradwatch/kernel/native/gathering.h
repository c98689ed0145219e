/* Where torch's tensors lie, asked of the tensors themselves: torch is known by what is handed in,
 * so nothing is linked against it. */
#include "boundary.h"

#include <string.h>

enum { KNOWN_TYPES = 2 };

/* What a tensor is asked for, and what the answers may be. */
static struct {
    PyObject *is_cpu, *dtype, *is_contiguous, *shape, *data_ptr, *storage_offset, *storage, *nbytes;
} words;

static int learn_words(void) {
    return (words.is_cpu = PyUnicode_InternFromString("is_cpu")) &&
                   (words.dtype = PyUnicode_InternFromString("dtype")) &&
                   (words.is_contiguous = PyUnicode_InternFromString("is_contiguous")) &&
                   (words.shape = PyUnicode_InternFromString("shape")) &&
                   (words.data_ptr = PyUnicode_InternFromString("data_ptr")) &&
                   (words.storage_offset = PyUnicode_InternFromString("storage_offset")) &&
                   (words.storage = PyUnicode_InternFromString("untyped_storage")) &&
                   (words.nbytes = PyUnicode_InternFromString("nbytes"))
               ? 0
               : -1;
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

static int has_dtype(PyObject *tensor, PyObject *dtypes, uint8_t *dtype) {
    PyObject *own = PyObject_GetAttr(tensor, words.dtype);
    Py_XDECREF(own); /* torch keeps its dtypes for ever */
    for (*dtype = 0; own && *dtype < DTYPES; ++*dtype)
        if (PyTuple_GetItem(dtypes, *dtype) == own) return 1;
    return 0;
}

static int has_shape(PyObject *tensor, int64_t *count, int64_t *rows) {
    PyObject *shape = PyObject_GetAttr(tensor, words.shape);
    if (!shape) return 0;
    Py_ssize_t dims = PyTuple_Size(shape);
    int64_t size = 1, first = 0;
    for (Py_ssize_t d = 0; d < dims; d++) {
        int64_t length = PyLong_AsLongLong(PyTuple_GetItem(shape, d));
        if (d == 0) first = length;
        size *= length;
    }
    Py_DECREF(shape);
    *count = size;
    *rows = size && dims > 1 ? first : 0;
    return dims >= 0 && !PyErr_Occurred();
}

/* Whether the storage holds the tensor: it may have been freed or cut since. */
static int lies_in_storage(PyObject *tensor, uint64_t bytes, size_t size) {
    uint64_t offset, held = 0;
    PyObject *storage = ask(tensor, words.storage);
    int known = storage && is_number(ask(storage, words.nbytes), &held);
    Py_XDECREF(storage);
    return known && is_number(ask(tensor, words.storage_offset), &offset) &&
           offset * size + bytes <= held;
}

static int see_by_asking(PyObject *object, PyObject *dtypes, Tensor *tensor) {
    uint64_t address;
    int64_t count, rows;
    uint8_t dtype;
    if (!is_true(PyObject_GetAttr(object, words.is_cpu)) || !has_dtype(object, dtypes, &dtype) ||
        !is_true(ask(object, words.is_contiguous)) || !has_shape(object, &count, &rows) ||
        !is_number(ask(object, words.data_ptr), &address))
        return 0;
    *tensor = (Tensor){(const char *)(uintptr_t)address, (size_t)count, dtype, (size_t)rows};
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

static int is_contiguous(const DLTensor *seen) {
    int64_t expected = 1;
    for (int32_t d = seen->dims; seen->strides && d-- > 0; expected *= seen->shape[d])
        if (seen->shape[d] != 1 && seen->strides[d] != expected) return 0;
    return 1;
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
    if (dtype == DTYPES || (count && !is_contiguous(&seen))) return 0;
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

/* Where an ordinary tensor lies: contiguous, of one of the kernel's types, in memory that is there.
 * 0 for any other. */
static int look_at(PyObject *object, PyObject *types, PyObject *dtypes, Tensor *tensor) {
    PyObject *type = (PyObject *)Py_TYPE(object);
    if (type != PyTuple_GetItem(types, 0) && type != PyTuple_GetItem(types, 1)) return 0;
    if (!(describe ? see_by_exchange(object, tensor) : see_by_asking(object, dtypes, tensor)))
        return 0;
    size_t size = itemsize(tensor->dtype);
    return !tensor->count ||
           (tensor->data && lies_in_storage(object, (uint64_t)tensor->count * size, size));
}

static int check_known(PyObject *types, PyObject *dtypes) {
    if (PyTuple_Size(types) == KNOWN_TYPES && PyTuple_Size(dtypes) == DTYPES) return 0;
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "expected two types and the kernel's dtypes in order");
    return -1;
}

static int add_index(PyObject *list, Py_ssize_t i) {
    PyObject *number = PyLong_FromSsize_t(i);
    int status = number ? PyList_Append(list, number) : -1;
    Py_XDECREF(number);
    return status;
}

/* gather(tensors, types, dtypes, (pointers, counts, dtypes, rows)): fills the batch and gives the
 * indices of what it left empty: None, and tensors that are not ordinary. */
static PyObject *py_gather(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *list, *types, *dtypes, *p, *c, *d, *r;
    if (!PyArg_ParseTuple(args, "O!O!O!(OOOO)", &PyList_Type, &list, &PyTuple_Type, &types,
                          &PyTuple_Type, &dtypes, &p, &c, &d, &r) ||
        check_known(types, dtypes) < 0)
        return NULL;
    Buffers held = {.n = 0};
    size_t n = (size_t)PyList_Size(list);
    uint64_t *pointers;
    int64_t *counts, *rows;
    uint8_t *kinds;
    PyObject *others = NULL;
    if ((pointers = take(&held, p, n, 8, 1)) && (counts = take(&held, c, n, 8, 1)) &&
        (kinds = take(&held, d, n, 1, 1)) && (rows = take(&held, r, n, 8, 1)))
        others = PyList_New(0);
    for (size_t i = 0; others && i < n; i++) {
        Tensor tensor;
        PyObject *object = PyList_GetItem(list, (Py_ssize_t)i);
        /* Held: a tensor may answer by running somebody's code, which may change the list. */
        Py_XINCREF(object);
        int is_ordinary = object && look_at(object, types, dtypes, &tensor);
        Py_XDECREF(object);
        PyErr_Clear();
        if (!is_ordinary) {
            tensor = (Tensor){NULL, 0, F32, 0};
            if (add_index(others, (Py_ssize_t)i) < 0) Py_CLEAR(others);
        }
        pointers[i] = (uintptr_t)tensor.data, counts[i] = (int64_t)tensor.count;
        kinds[i] = (uint8_t)tensor.dtype, rows[i] = (int64_t)tensor.rows;
    }
    release(&held);
    return others;
}

/* Elements of a sample lie together by fours: what costs time is to reach them. */
enum { RUN = 4 };

/* Copy runs of elements, one from each of as many equal stretches, at a place in it that follows
 * the golden ratio: a plain stride would fall into step with the rows of a matrix. */
static void copy_sample(const Tensor *tensor, size_t wanted, char *to) {
    size_t bytes = RUN * itemsize(tensor->dtype), runs = wanted / RUN;
    double stretch = (double)(tensor->count / RUN) / (double)runs;
    for (size_t i = 0; i < runs; i++) {
        double place = (double)i + (double)(i * GOLDEN >> 11) * 0x1p-53;
        memcpy(to + i * bytes, tensor->data + (size_t)(place * stretch) * bytes, bytes);
    }
}

/* sample(tensor, types, dtypes, most): the bytes of at most so many elements (a multiple of four),
 * always the same ones; None where it is no ordinary tensor. */
static PyObject *py_sample(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *object, *types, *dtypes;
    Py_ssize_t most;
    Tensor tensor;
    if (!PyArg_ParseTuple(args, "OO!O!n", &object, &PyTuple_Type, &types, &PyTuple_Type, &dtypes,
                          &most) ||
        check_known(types, dtypes) < 0)
        return NULL;
    if (most < RUN || most % RUN) {
        PyErr_Format(PyExc_ValueError, "expected a multiple of %d elements, got %zd", RUN, most);
        return NULL;
    }
    if (!look_at(object, types, dtypes, &tensor)) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    size_t size = itemsize(tensor.dtype), wanted = (size_t)most;
    if (tensor.count <= wanted)
        return PyBytes_FromStringAndSize(tensor.data, (Py_ssize_t)(tensor.count * size));
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(wanted * size));
    if (bytes) copy_sample(&tensor, wanted, PyBytes_AsString(bytes));
    return bytes;
}
