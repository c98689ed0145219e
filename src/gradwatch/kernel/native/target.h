/* Compile what stands between TARGET_BEGIN and TARGET_END for an instruction set of its own. */
#define QUOTED(words) #words
#define PRAGMA(words) _Pragma(QUOTED(words))
#if defined(__clang__)
#define TARGET_BEGIN(set) \
    PRAGMA(clang attribute push(__attribute__((target(set))), apply_to = function))
#define TARGET_END PRAGMA(clang attribute pop)
#else
#define TARGET_BEGIN(set) PRAGMA(GCC push_options) PRAGMA(GCC target(set))
#define TARGET_END PRAGMA(GCC pop_options)
#endif
