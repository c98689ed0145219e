/* The passes with 64-byte vectors. */
#define WIDTH 64
#if defined(__x86_64__)
#include "passes.h"
#endif
