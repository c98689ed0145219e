/* Cutting a job into pieces, and sharing them among threads. */
#define _POSIX_C_SOURCE 200809L /* for masks of signals */
#include "job.h"

#include <stdlib.h>

/* A thread must have this many elements to look at, or creating it costs more than it saves. */
enum { WORTH_A_THREAD = 1 << 20 };

static int most_threads = 1;

void set_threads(int threads) { __atomic_store_n(&most_threads, threads, __ATOMIC_RELAXED); }

/* An empty tensor has one empty piece, so that it is joined like the others. */
static size_t pieces_of(size_t count) { return count ? (count - 1) / PIECE + 1 : 1; }

static size_t plan(const Batch *batch, Cursor *at, Piece *pieces, size_t room) {
    size_t n = 0;
    for (; n < room && at->tensor < batch->n; n++) {
        size_t left = (size_t)batch->counts[at->tensor] - at->first;
        pieces[n].tensor = at->tensor, pieces[n].first = at->first;
        pieces[n].n = smaller(left, PIECE);
        at->first += PIECE;
        if (left <= PIECE) at->tensor++, at->first = 0;
    }
    return n;
}

int useful_threads(const Batch *batch) {
    int most = __atomic_load_n(&most_threads, __ATOMIC_RELAXED);
    size_t elements = 0;
    if (most < 2) return 1;
    for (size_t t = 0; t < batch->n; t++) elements += (size_t)batch->counts[t];
    size_t useful = elements / WORTH_A_THREAD;
    return useful < 2 ? 1 : (int)smaller((size_t)most, useful);
}

#if defined(_WIN32)
static void work_together(Job *job, int threads) {
    (void)threads;
    job->share(job);
}
#else
#include <fenv.h>
#include <pthread.h>
#include <signal.h>

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
#endif

static size_t count_pieces(const Batch *batch) {
    size_t n = 0;
    for (size_t t = 0; t < batch->n; t++) n += pieces_of((size_t)batch->counts[t]);
    return n;
}

Piece *next_piece(Job *job) {
    if (job->is_shared) {
        size_t next = __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED);
        return next < job->n ? &job->pieces[next] : NULL;
    }
    /* One thread joins each piece before it takes the next one, in the same place. */
    if (job->n) job->join(job, job->pieces);
    job->n = plan(job->batch, &job->at, job->pieces, 1);
    return job->n ? job->pieces : NULL;
}

void run_job(Job *job, int threads) {
    Piece alone;
    size_t room = threads > 1 ? count_pieces(job->batch) : 0;
    job->pieces = room ? malloc(room * sizeof *job->pieces) : NULL;
    if (!job->pieces) {
        job->pieces = &alone;
        job->share(job);
        return;
    }
    job->is_shared = 1;
    job->n = plan(job->batch, &job->at, job->pieces, room);
    work_together(job, threads);
    for (size_t i = 0; i < job->n; i++) job->join(job, &job->pieces[i]);
    free(job->pieces);
}
