/* Counting keys of 6 bits without byte shuffles: the keys of two elements together raise one of 4096
 * counters. Half the increments, and few of them wait for the same counter. */

enum { PAIR_KEYS = KEYS * KEYS };

/* Elements for which emptying the tables pays: a whole block. */
enum { WORTH_KEYS = BLOCK };

/* Two tables in turn, so that equal neighbours do not wait for one another's store. At most
 * STRETCH / 4 increments each: 16 bits suffice while STRETCH is under 2^18. */
typedef struct {
    uint16_t pairs[2][PAIR_KEYS] __attribute__((aligned(64)));
} Counters;

static void counters_clear(Counters *counters) { memset(counters, 0, sizeof *counters); }

static inline vu keys_of(vf v, vu base) {
    vu bits = (vu)v;
    vi place = (vi)((bits << 1 >> 24) - base);
    place &= ~(place >> 31); /* under the window: 0 */
    return (vu)place | (bits >> 31 << 5);
}

/* Raise the counters of a whole block. Whose keys make a pair does not matter: vectors do. */
static void counters_add(Counters *counters, const Tensor *tensor, size_t first, size_t n,
                         int lowest) {
    (void)n;
    float scratch[BLOCK];
    uint16_t pairs[BLOCK / 2] __attribute__((aligned(64)));
    const float *x = load_floats(tensor, first, BLOCK, scratch);
    vu base = vu_all((uint32_t)lowest);
    for (size_t i = 0; i < BLOCK; i += 4 * LANES) {
        vu a = keys_of(load_vf(x + i), base), b = keys_of(load_vf(x + i + LANES), base);
        vu c = keys_of(load_vf(x + i + 2 * LANES), base);
        vu d = keys_of(load_vf(x + i + 3 * LANES), base);
        vu both = (a | b << 6) | (c | d << 6) << 16;
        memcpy(pairs + i / 2, &both, sizeof both);
    }
    uint16_t *left = counters->pairs[0], *right = counters->pairs[1];
    for (size_t i = 0; i < BLOCK / 2; i += 4)
        left[pairs[i]]++, right[pairs[i + 1]]++, left[pairs[i + 2]]++, right[pairs[i + 3]]++;
}

/* Empty the tables into counts per key. */
static void counters_fold(Counters *counters, uint32_t keys[KEYS]) {
    memset(keys, 0, KEYS * sizeof *keys);
    for (int a = 0; a < KEYS; a++) {
        const uint16_t *left = counters->pairs[0] + a * KEYS, *right = counters->pairs[1] + a * KEYS;
        uint32_t row = 0;
        for (int b = 0; b < KEYS; b++) {
            uint32_t count = (uint32_t)left[b] + right[b];
            row += count;
            keys[b] += count;
        }
        keys[a] += row;
    }
    counters_clear(counters);
}
