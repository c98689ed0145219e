/* Counting keys of 6 bits with byte shuffles and carry-save adders.
 *
 * A shuffle turns the byte of each element into a byte with one bit set (or none), eight keys to a
 * table. The bytes are then added bitwise: a full adder takes three vectors of weight 1 and gives
 * one of weight 1 and one of weight 2, so 16 vectors become one of weight 16 with 15 adders of two
 * operations each, and only what leaves the top is counted bit by bit, once per block. */

enum { VECTORS = BLOCK / WIDTH, UPPER = VECTORS == 64 ? 2 : 3, LEVELS = 4 + UPPER };
enum { ROUND = 16 * WIDTH }; /* keys added at a time */
enum { WORTH_KEYS = 128 };  /* elements for which emptying the adders pays */
_Static_assert(16 << UPPER == VECTORS, "the adders hold exactly one block before they overflow");

/* Two vectors of one-hot bytes: the keys 0–7 and 8–15 of a half window. */
typedef struct {
    vq a, b;
} Two;

/* Of each sign and half of the window: partial sums of weight 1, 2, 4 …, and the counts so far. */
typedef struct {
    Two sums[2][2][LEVELS];
    uint32_t counts[KEYS];
    size_t rounds; /* since they were emptied */
    int low;       /* there was something in the lower half */
} Counters;

static void counters_clear(Counters *counters) { memset(counters, 0, sizeof *counters); }

/* The upper halves of 2·LANES elements as floats, in any order. */
static inline vq load_tops(const char *x, int dtype) {
    if (dtype == BF16) return load_vq(x);
    vu a = (vu)load_lanes(x, dtype), b = (vu)load_lanes(x + LANES * itemsize(dtype), dtype);
    return (vq)((a & 0xffff0000u) | b >> 16);
}

/* Sign (bit 7) and place in the window (0–31) of 4·LANES elements, one byte each, in any order. */
static inline vq keys_of(const char *x, int dtype, vq base, vq *low) {
    vu a = (vu)load_tops(x, dtype), b = (vu)load_tops(x + 2 * LANES * itemsize(dtype), dtype);
    /* In 16 bits: 1 sign, 8 exponent, 7 mantissa. a gives the upper, b the lower byte. */
    vu exponents = (a << 1 & 0xff00ff00u) | (b >> 7 & 0x00ff00ffu);
    vu signs = (a & 0x80008000u) | (b >> 8 & 0x00800080u);
    vq places = bytes_minus((vq)exponents, base);
    *low |= bytes_minus(vq_all(0x1010101010101010), places); /* 1–15 for the places 15–1 */
    return places | (vq)signs;
}

/* Write the keys of at most a block, and zeros up to a whole round; says whether one of them is in the
 * lower half of the window. */
static inline __attribute__((always_inline)) int write_keys(const char *x, size_t n, int dtype,
                                                            int lowest, uint8_t *keys) {
    vq base = vq_all((uint64_t)lowest * 0x0101010101010101), low = {0};
    size_t size = itemsize(dtype), i = 0;
    for (; i + WIDTH <= n; i += WIDTH) {
        vq bytes = keys_of(x + i * size, dtype, base, &low);
        memcpy(keys + i, &bytes, sizeof bytes);
    }
    if (i < n) {
        char rest[WIDTH * sizeof(float)] = {0};
        memcpy(rest, x + i * size, (n - i) * size);
        vq bytes = keys_of(rest, dtype, base, &low);
        memcpy(keys + i, &bytes, sizeof bytes);
        i += WIDTH;
    }
    memset(keys + i, 0, -i % ROUND);
    uint64_t any = 0;
    for (int lane = 0; lane < WIDE; lane++) any |= low[lane];
    return (any & 0x0f0f0f0f0f0f0f0f) != 0;
}

/* The full adder; gives the carry. */
static inline Two add2(Two *sum, Two x, Two y) {
    Two carry = {majority(sum->a, x.a, y.a), majority(sum->b, x.b, y.b)};
    *sum = (Two){parity(sum->a, x.a, y.a), parity(sum->b, x.b, y.b)};
    return carry;
}

static inline Two add1(Two *sum, Two x) {
    Two carry = {sum->a & x.a, sum->b & x.b};
    *sum = (Two){sum->a ^ x.a, sum->b ^ x.b};
    return carry;
}

/* One vector of keys as one-hot bytes. A shuffle gives 0 where bit 7 of the index is set, so the
 * index of a key of the other sign or half must have it: saturating arithmetic sees to that.
 * Lower half: k + 0x70 reaches 0x80 from 16 on. Upper half: k − 16 is negative under 16. */
static inline Two take1(const uint8_t *keys, int upper, int negative) {
    vq key = load_vq(keys);
    if (negative) key ^= vq_all(0x8080808080808080);
    vq index = upper ? signed_minus(key, vq_all(0x1010101010101010))
                     : bytes_plus(key, vq_all(0x7070707070707070));
    return (Two){shuffle(0x8040201008040201, 0, index), shuffle(0, 0x8040201008040201, index)};
}

static inline Two take2(Two *sums, const uint8_t *keys, int upper, int negative) {
    return add2(sums, take1(keys, upper, negative), take1(keys + WIDTH, upper, negative));
}
static inline Two take4(Two *sums, const uint8_t *keys, int upper, int negative) {
    Two first = take2(sums, keys, upper, negative);
    return add2(sums + 1, first, take2(sums, keys + 2 * WIDTH, upper, negative));
}
static inline Two take8(Two *sums, const uint8_t *keys, int upper, int negative) {
    Two first = take4(sums, keys, upper, negative);
    return add2(sums + 2, first, take4(sums, keys + 4 * WIDTH, upper, negative));
}
static inline Two take16(Two *sums, const uint8_t *keys, int upper, int negative) {
    Two first = take8(sums, keys, upper, negative);
    return add2(sums + 3, first, take8(sums, keys + 8 * WIDTH, upper, negative));
}

/* Add the set bits of one-hot bytes to eight counts. They are the sums of weight 1, 2, 4 …, each
 * `apart` vectors behind the one before. */
static inline void count_bits(const vq *sums, int levels, size_t apart, uint32_t counts[8]) {
    for (int bit = 0; bit < 8; bit++) {
        uint32_t found = 0;
        for (int level = levels; level-- > 0;)
            found = 2 * found +
                    (uint32_t)__builtin_popcountll(top_bits(sums[level * apart] << (7 - bit)));
        counts[bit] += found;
    }
}

static inline __attribute__((always_inline)) void add_half(Counters *counters, const uint8_t *keys,
                                                           size_t rounds, int upper,
                                                           int negative) {
    Two sums[LEVELS], out = {{0}, {0}};
    memcpy(sums, counters->sums[negative][upper], sizeof sums);
    for (size_t round = 0; round < rounds; round++) {
        Two carry = take16(sums, keys + round * ROUND, upper, negative);
        for (int level = 4; level < LEVELS; level++) carry = add1(sums + level, carry);
        out.a |= carry.a, out.b |= carry.b; /* at most once per block and bit */
    }
    memcpy(counters->sums[negative][upper], sums, sizeof sums);
    uint32_t *counts = counters->counts + 32 * negative + 16 * upper;
    if (!is_any(out.a | out.b)) return;
    uint32_t carried[16] = {0};
    count_bits(&out.a, 1, 0, carried);
    count_bits(&out.b, 1, 0, carried + 8);
    for (int key = 0; key < 16; key++) counts[key] += VECTORS * carried[key];
}

static void counters_add(Counters *counters, const Tensor *tensor, size_t first, size_t n,
                         int lowest) {
    uint8_t keys[BLOCK] __attribute__((aligned(64)));
    const char *x = tensor->data + first * itemsize(tensor->dtype);
    int low = tensor->dtype == F32    ? write_keys(x, n, F32, lowest, keys)
              : tensor->dtype == BF16 ? write_keys(x, n, BF16, lowest, keys)
                                      : write_keys(x, n, F16, lowest, keys);
    size_t rounds = (n + ROUND - 1) / ROUND;
    counters->rounds += rounds;
    add_half(counters, keys, rounds, 1, 0);
    add_half(counters, keys, rounds, 1, 1);
    if (!low) return; /* most blocks have nothing 16 octaves under their largest element */
    counters->low = 1;
    add_half(counters, keys, rounds, 0, 0);
    add_half(counters, keys, rounds, 0, 1);
}

/* The levels that can hold something after so many rounds. */
static inline int used_levels(size_t rounds) {
    int levels = 4;
    for (; rounds && levels < LEVELS; rounds /= 2) levels++;
    return levels;
}

/* Empty the counters into counts per key. */
static void counters_fold(Counters *counters, uint32_t keys[KEYS]) {
    int levels = used_levels(counters->rounds);
    for (int negative = 0; negative < 2; negative++)
        for (int upper = !counters->low; upper < 2; upper++) {
            Two *sums = counters->sums[negative][upper];
            uint32_t *counts = counters->counts + 32 * negative + 16 * upper;
            count_bits(&sums->a, levels, 2, counts);
            count_bits(&sums->b, levels, 2, counts + 8);
            memset(sums, 0, (size_t)levels * sizeof *sums);
        }
    memcpy(keys, counters->counts, sizeof counters->counts);
    memset(counters->counts, 0, sizeof counters->counts);
    counters->rounds = 0, counters->low = 0;
}
