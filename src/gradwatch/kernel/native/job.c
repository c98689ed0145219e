/* What is the same for every instruction set: joining sums, sharing work among threads, and which
 * sets this processor has. */
#define _POSIX_C_SOURCE 200809L /* for masks of signals */
#include "kernel.h"

#include <fenv.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

/* -- sums -- */

int common_exponent(double largest) {
    int exponent;
    frexp(largest, &exponent);
    int away = exponent < 0 ? -64 : 64;
    return largest == 0.0 ? 0 : (exponent + away) / 128 * 128;
}

/* Express the sums in units of a larger power of two; what vanishes is too small to matter. */
static void rescale(Sums *sums, int exponent) {
    int shift = sums->exponent - exponent;
    sums->mean = ldexp(sums->mean, shift);
    sums->absolute = ldexp(sums->absolute, shift);
    sums->m2 = ldexp(sums->m2, 2 * shift);
    sums->m3 = ldexp(sums->m3, 3 * shift);
    sums->m4 = ldexp(sums->m4, 4 * shift);
    sums->exponent = exponent;
}

static void join_moments(Sums *a, const Sums *b) {
    double total = a->n + b->n, delta = b->mean - a->mean;
    double step = delta / total, joint = delta * step * a->n * b->n;
    double an = a->n, bn = b->n;
    a->m4 += b->m4 + joint * step * step * (an * an - an * bn + bn * bn) +
             6.0 * step * step * (an * an * b->m2 + bn * bn * a->m2) +
             4.0 * step * (an * b->m3 - bn * a->m3);
    a->m3 += b->m3 + joint * step * (an - bn) + 3.0 * step * (an * b->m2 - bn * a->m2);
    a->m2 += b->m2 + joint;
    a->mean += step * bn;
    a->absolute += b->absolute;
    a->n = total;
}

void sums_join(Sums *into, const Sums *part) {
    Sums before = *into, other = *part;
    /* The first part with elements is taken as it is: joining it to nothing would round. */
    if (into->n == 0.0) *into = other;
    into->zeros = before.zeros + other.zeros;
    into->nan = before.nan + other.nan;
    into->pos_inf = before.pos_inf + other.pos_inf;
    into->neg_inf = before.neg_inf + other.neg_inf;
    into->zero_rows = before.zero_rows + other.zero_rows;
    if (before.n == 0.0 || other.n == 0.0) return;
    if (other.low < into->low) into->low = other.low;
    if (other.high > into->high) into->high = other.high;
    if (into->exponent < other.exponent) rescale(into, other.exponent);
    if (into->exponent > other.exponent) rescale(&other, into->exponent);
    join_moments(into, &other);
}

/* ldexp, which is hardly ever needed and as slow as all the rest. */
static double shifted(double x, int exponent) { return exponent ? ldexp(x, exponent) : x; }

void sums_finish(const Sums *sums, uint64_t count, Record *record) {
    *record = (Record){count, sums->zeros, sums->nan, sums->pos_inf, sums->neg_inf,
                       sums->zero_rows, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN};
    if (sums->n == 0.0) return;
    double variance = sums->m2 / sums->n, std = sqrt(variance);
    /* All equal: what is left of the powers is rounding, and its shape means nothing. */
    int flat = sums->low == sums->high || !(variance > 0.0);
    record->mean = sums->low == sums->high ? sums->low : shifted(sums->mean, sums->exponent);
    record->std = flat ? 0.0 : shifted(std, sums->exponent);
    record->skewness = flat ? NAN : sums->m3 / sums->n / (variance * std);
    record->kurtosis = flat ? NAN : sums->m4 / sums->n / (variance * variance) - 3.0;
    record->norm = shifted(sqrt(sums->m2 + sums->n * sums->mean * sums->mean), sums->exponent);
    record->abs_mean = shifted(sums->absolute / sums->n, sums->exponent);
    record->abs_max = fmax(fabs(sums->low), fabs(sums->high));
    record->min = sums->low, record->max = sums->high;
}

void norm_add(Norm *norm, double squares, int exponent) {
    if (squares == 0.0) return;
    if (norm->squares == 0.0) norm->exponent = exponent;
    int larger = norm->exponent > exponent ? norm->exponent : exponent;
    norm->squares = shifted(norm->squares, 2 * (norm->exponent - larger)) +
                    shifted(squares, 2 * (exponent - larger));
    norm->exponent = larger;
}

double norm_value(const Norm *norm) { return shifted(sqrt(norm->squares), norm->exponent); }

/* -- threads -- */

/* A thread must have this many elements to look at, or creating it costs more than it saves. */
enum { WORTH_A_THREAD = 1 << 20 };

static int most_threads = 1;

void set_threads(int threads) { __atomic_store_n(&most_threads, threads, __ATOMIC_RELAXED); }

int useful_threads(const Batch *batch) {
    int most = __atomic_load_n(&most_threads, __ATOMIC_RELAXED);
    size_t elements = 0;
    if (most < 2) return 1;
    for (size_t t = 0; t < batch->n; t++) elements += batch->items[t].count;
    size_t useful = elements / WORTH_A_THREAD;
    return useful < 2 ? 1 : (int)smaller((size_t)most, useful);
}

/* The next piece of the batch; 0 where there is none. An empty tensor has an empty one, so that it
 * is joined like the others. */
static int plan(Job *job, Piece *piece) {
    if (job->tensor == job->batch->n) return 0;
    size_t left = job->batch->items[job->tensor].count - job->first;
    piece->tensor = job->tensor, piece->first = job->first, piece->n = smaller(left, PIECE);
    job->first += PIECE;
    if (left <= PIECE) job->tensor++, job->first = 0;
    return 1;
}

Piece *next_piece(Job *job) {
    if (job->is_shared) {
        size_t next = __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED);
        return next < job->n ? &job->pieces[next] : NULL;
    }
    /* One thread joins each piece before it takes the next one, in the same place. */
    if (job->n) job->join(job, job->pieces);
    job->n = (size_t)plan(job, job->pieces);
    return job->n ? job->pieces : NULL;
}

enum { MOST_THREADS = 64, STACK = 1 << 20 };

static void *work(void *job) {
    fesetenv(FE_DFL_ENV); /* as the caller has set it for itself */
    ((Job *)job)->share(job);
    return NULL;
}

/* Threads that live as long as the call: none is there to be lost in a fork. Where one cannot be
 * created the others do its work. */
static void work_together(Job *job, int threads) {
    pthread_t others[MOST_THREADS];
    pthread_attr_t attributes;
    sigset_t every, before;
    int n = 0, wanted = threads > MOST_THREADS ? MOST_THREADS : threads;
    if (wanted > 1 && pthread_attr_init(&attributes) == 0) {
        pthread_attr_setstacksize(&attributes, STACK);
        /* Signals are for the threads that Python knows. */
        sigfillset(&every);
        pthread_sigmask(SIG_SETMASK, &every, &before);
        while (n < wanted - 1 && pthread_create(&others[n], &attributes, work, job) == 0) n++;
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        pthread_attr_destroy(&attributes);
    }
    job->share(job);
    while (n > 0) pthread_join(others[--n], NULL);
}

void run_job(Job *job, int threads) {
    Piece alone;
    size_t room = 0;
    for (size_t t = 0; threads > 1 && t < job->batch->n; t++)
        room += job->batch->items[t].count / PIECE + 1;
    job->pieces = room ? malloc(room * sizeof *job->pieces) : NULL;
    if (!job->pieces) {
        job->pieces = &alone;
        job->share(job);
        return;
    }
    job->is_shared = 1;
    while (plan(job, job->pieces + job->n)) job->n++;
    work_together(job, threads);
    for (size_t i = 0; i < job->n; i++) job->join(job, &job->pieces[i]);
    free(job->pieces);
}

/* -- instruction sets -- */

const Kernel *const *supported_kernels(void) {
    static const Kernel *list[4];
    size_t n = 0;
    int has_base = 1;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        list[n++] = &kernel_avx512;
    /* float16 conversion cannot be asked for before GCC 11; whatever has AVX2 has it. */
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) list[n++] = &kernel_avx2;
    has_base = __builtin_cpu_supports("ssse3");
#endif
    if (has_base) list[n] = &kernel_base;
    return list;
}
