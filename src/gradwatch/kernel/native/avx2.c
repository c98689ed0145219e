/* The passes with 32-byte vectors, fused multiply-add and float16 conversion. */
#define WIDTH 32
#if defined(__x86_64__)
#include "passes.h"
#endif
