/* The rows of a family from the kernel's records, as they lie in the ring and on disk. */
#include "boundary.h"

#include <math.h>
#include <string.h>

/* The columns that gradients and weights begin with, and those of a gradient, in the order of the
 * catalogue of statistics. */
typedef struct __attribute__((packed)) {
    uint64_t count;
    double norm, mean, std;
    float skewness, kurtosis;
    double abs_mean, abs_max, min, max;
    float zero_fraction;
    uint64_t nan, inf, zero_rows;
} MomentRow;

typedef struct __attribute__((packed)) {
    MomentRow moments;
    uint64_t dead_rows, untouched_rows;
    float cosine, sketch[SKETCH_WIDTH];
} GradientRow;

/* The rows of all tensors one after another: touched now, in which of the last 64 steps, ever. */
typedef struct {
    const int64_t *lengths;
    const uint8_t *marks;
    uint64_t *recent;
    uint8_t *ever;
} RowMemory;

typedef struct {
    float *now, *last; /* [n][SKETCH_WIDTH] */
    const int64_t *counts;
    int with_cosines;
} SketchMemory;

typedef struct {
    size_t n, width;
    char *rows;
    const char *empty;
    const uint8_t *has_value, *states;
    const Record *records;
    double factor;
    RowMemory memory;
    SketchMemory sketches;
} Filling;

static void fill_moments(MomentRow *row, const Record *record, double factor) {
    row->count = record->count;
    row->norm = record->norm * factor, row->mean = record->mean * factor;
    row->std = record->std * factor;
    row->skewness = (float)record->skewness, row->kurtosis = (float)record->kurtosis;
    row->abs_mean = record->abs_mean * factor, row->abs_max = record->abs_max * factor;
    row->min = record->min * factor, row->max = record->max * factor;
    row->zero_fraction = (float)((double)record->zeros / (double)record->count);
    row->nan = record->nan, row->inf = record->pos_inf + record->neg_inf;
    row->zero_rows = record->zero_rows;
}

/* Take the marks of one tensor in; how many of its rows are untouched in the window, and ever. */
static void remember(const RowMemory *memory, size_t first, size_t n, uint64_t silent[2]) {
    silent[0] = silent[1] = 0;
    for (size_t r = first; r < first + n; r++) {
        uint8_t mark = memory->marks[r] != 0;
        memory->recent[r] = memory->recent[r] << 1 | mark;
        memory->ever[r] |= mark;
        silent[0] += !memory->recent[r], silent[1] += !memory->ever[r];
    }
}

static double cosine(const float *a, const float *b) {
    double dot = 0.0, aa = 0.0, bb = 0.0;
    for (int i = 0; i < SKETCH_WIDTH; i++) {
        dot += (double)a[i] * b[i];
        aa += (double)a[i] * a[i];
        bb += (double)b[i] * b[i];
    }
    double size = sqrt(aa * bb);
    return size > 0.0 ? dot / size : NAN;
}

static void fill_sketch(const Filling *fill, size_t i, GradientRow *row, int has_value) {
    const SketchMemory *sketches = &fill->sketches;
    float *now = sketches->now + i * SKETCH_WIDTH, *last = sketches->last + i * SKETCH_WIDTH;
    if (sketches->counts[i] <= 0) return;
    for (int j = 0; j < SKETCH_WIDTH; j++) now[j] *= (float)fill->factor;
    if (has_value && sketches->with_cosines) row->cosine = (float)cosine(now, last);
    if (has_value) memcpy(row->sketch, now, sizeof row->sketch);
    memcpy(last, now, sizeof row->sketch);
}

/* Whether the largest and the smallest element differ in their sign alone. */
static int is_mirrored(const Record *record) {
    return record->abs_max > 0.0 && record->max == record->abs_max &&
           record->min == -record->abs_max;
}

/* Fills all rows; how many tensors are mirrored. */
static size_t fill(const Filling *fill) {
    size_t first = 0, mirrored = 0;
    for (size_t i = 0; i < fill->n; i++) {
        char *row = fill->rows + i * fill->width;
        int has_value = fill->has_value[fill->states[i]];
        memcpy(row, fill->empty, fill->width);
        if (has_value) {
            fill_moments((MomentRow *)row, &fill->records[i], fill->factor);
            mirrored += (size_t)is_mirrored(&fill->records[i]);
        }
        if (fill->memory.lengths) {
            uint64_t silent[2];
            remember(&fill->memory, first, (size_t)fill->memory.lengths[i], silent);
            first += (size_t)fill->memory.lengths[i];
            if (has_value) {
                ((GradientRow *)row)->dead_rows = silent[0];
                ((GradientRow *)row)->untouched_rows = silent[1];
            }
        }
        if (fill->sketches.now) fill_sketch(fill, i, (GradientRow *)row, has_value);
    }
    return mirrored;
}

static int take_memory(Buffers *held, PyObject *tuple, Filling *fill) {
    PyObject *lengths, *marks, *recent, *ever;
    RowMemory *memory = &fill->memory;
    if (tuple == Py_None) return 0;
    if (!PyArg_ParseTuple(tuple, "OOOO", &lengths, &marks, &recent, &ever)) return -1;
    if (!(memory->lengths = take(held, lengths, fill->n, 8, 0))) return -1;
    size_t rows = 0;
    for (size_t i = 0; i < fill->n; i++) {
        if (memory->lengths[i] < 0) return refuse(i, "the number of rows is negative");
        rows += (size_t)memory->lengths[i];
    }
    return (memory->marks = take(held, marks, rows, 1, 0)) &&
                   (memory->recent = take(held, recent, rows, 8, 1)) &&
                   (memory->ever = take(held, ever, rows, 1, 1))
               ? 0
               : -1;
}

static int take_sketch_memory(Buffers *held, PyObject *tuple, Filling *fill) {
    PyObject *now, *last, *counts;
    SketchMemory *sketches = &fill->sketches;
    if (tuple == Py_None) return 0;
    if (!PyArg_ParseTuple(tuple, "OOOp", &now, &last, &counts, &sketches->with_cosines)) return -1;
    return (sketches->now = take(held, now, fill->n * SKETCH_WIDTH, 4, 1)) &&
                   (sketches->last = take(held, last, fill->n * SKETCH_WIDTH, 4, 1)) &&
                   (sketches->counts = take(held, counts, fill->n, 8, 0))
               ? 0
               : -1;
}

/* One row of any length. */
static const char *take_row(Buffers *held, PyObject *object, size_t *width) {
    Py_buffer *view = &held->views[held->n];
    if (PyObject_GetBuffer(object, view, PyBUF_SIMPLE) < 0) return NULL;
    held->n++;
    *width = (size_t)view->len;
    return view->buf ? view->buf : "";
}

/* (rows, empty, has_value, records, states, factor, memory, sketches); the last two may be None. */
static int take_filling(Buffers *held, PyObject *args, Filling *fill) {
    PyObject *rows, *empty, *has_value, *records, *states, *memory, *sketches;
    *fill = (Filling){.n = 0};
    if (!PyArg_ParseTuple(args, "OOOOOdOO", &rows, &empty, &has_value, &records, &states,
                          &fill->factor, &memory, &sketches))
        return -1;
    Py_ssize_t n = PyObject_Size(states);
    if (n < 0) return -1;
    fill->n = (size_t)n;
    int is_gradient = memory != Py_None || sketches != Py_None;
    if (!(fill->empty = take_row(held, empty, &fill->width))) return -1;
    if (fill->width < sizeof(MomentRow) || (is_gradient && fill->width != sizeof(GradientRow))) {
        PyErr_SetString(PyExc_ValueError, "rows of a family that is not filled here");
        return -1;
    }
    return (fill->rows = take(held, rows, fill->n * fill->width, 1, 1)) &&
                   (fill->has_value = take(held, has_value, 256, 1, 0)) &&
                   (fill->records = take(held, records, fill->n, sizeof(Record), 0)) &&
                   (fill->states = take(held, states, fill->n, 1, 0)) &&
                   take_memory(held, memory, fill) == 0 &&
                   take_sketch_memory(held, sketches, fill) == 0
               ? 0
               : -1;
}
