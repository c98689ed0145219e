/* Which instruction sets this processor has. */
#include "kernel.h"

const Kernel *const *supported_kernels(void) {
    static const Kernel *list[4];
    size_t n = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("popcnt"))
        list[n++] = &kernel_avx512;
    /* float16 conversion cannot be asked for before GCC 11; whatever has AVX2 has it. */
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("popcnt"))
        list[n++] = &kernel_avx2;
#endif
    list[n++] = &kernel_base;
    list[n] = NULL;
    return list;
}
