/* The passes with 32-byte vectors, fused multiply-add and float16 conversion. */
#define WIDTH 32
#include "passes.c"
