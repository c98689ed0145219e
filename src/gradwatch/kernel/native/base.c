/* The passes with 16-byte vectors: what every processor of a 64-bit architecture has (but for a few
 * of the first x86). */
#define WIDTH 16
#include "passes.h"
