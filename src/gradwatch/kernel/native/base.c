/* The passes with 16-byte vectors: what every processor of a 64-bit architecture has (SSE2, NEON). */
#define WIDTH 16
#include "passes.h"
