/* Plain whole numbers from Python, for a function that must not cost more than it does. */
#include "boundary.h"

static int refuse_number(const char *reason) {
    PyErr_SetString(PyExc_ValueError, reason);
    return -1;
}

/* A whole number from 0 to 2^64 − 1. */
static int take_number(PyObject *object, uint64_t *number) {
    *number = PyLong_AsUnsignedLongLong(object);
    if (*number != UINT64_MAX || !PyErr_Occurred()) return 0;
    if (!PyErr_ExceptionMatches(PyExc_OverflowError)) return -1;
    PyErr_Clear();
    return refuse_number("a number is negative or has more than 64 bits");
}

/* (pointer, count, dtype, stride): where to look, and how far apart. */
static int take_stride(PyObject *const *args, Py_ssize_t n, Tensor *tensor, uint64_t *stride) {
    uint64_t pointer, count, dtype;
    if (n != 4) {
        PyErr_Format(PyExc_TypeError, "expected pointer, count, dtype, stride; got %zd numbers", n);
        return -1;
    }
    if (take_number(args[0], &pointer) < 0 || take_number(args[1], &count) < 0 ||
        take_number(args[2], &dtype) < 0 || take_number(args[3], stride) < 0)
        return -1;
    if (dtype >= DTYPES) return refuse_number("the dtype is none of the kernel's");
    if (count >> 56) return refuse_number("the count is larger than any memory");
    if (count > 0 && pointer == 0) return refuse_number("the pointer is null");
    if (pointer % itemsize((int)dtype)) return refuse_number("the pointer is not aligned");
    if (*stride < 1) return refuse_number("the stride is not positive");
    *tensor = (Tensor){(const char *)(uintptr_t)pointer, (size_t)count, (int)dtype, 0};
    return 0;
}
