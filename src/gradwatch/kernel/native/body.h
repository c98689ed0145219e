/* The kernel itself, included once per instruction set after lanes.h and its few own operations. */
#include "job.h"

#include "load.h"
#include "moments.h"
#include "doubles.h"
#include "floats.h"
#include "histogram.h"
#include "sketch.h"
#include "hashes.h"
#include "rows.h"
#include "moving.h"
#include "squares.h"
#include "step.h"
#include "measure.h"
#include "grid.h"
#include "beyond.h"
#include "nonfinite.h"

const Kernel NAME(kernel) = {
    .name = SET,
    .measure = measure,
    .step = step,
    .hashes = hashes,
    .row_spread = row_spread,
    .count_cells = count_cells,
    .list_beyond = list_beyond,
    .copy = copy_all,
    .read = read_all,
    .nonfinite = nonfinite,
};
