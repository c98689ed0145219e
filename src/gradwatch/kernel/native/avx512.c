/* The passes with 64-byte vectors. */
#define WIDTH 64
#include "passes.c"
