/* What a hand-over costs: how long after ck_pool_run a sleeping helper starts on its chunk, and what a run that has
 * nothing to do costs its caller.  Build and run: make -C tests/c handover */
#include "pool.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 500, CHEAP_ROUNDS = 20000 };

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void spin_ns(int64_t ns)
{
    for (int64_t end = now_ns() + ns; now_ns() < end;)
        continue;
}

typedef struct {
    _Atomic int64_t started[2];
} meeting;

/* Ends only when both chunks have started, so each takes a participant of its own. */
static void meet(void *ctx, int64_t chunk, ck_worker *worker)
{
    meeting *m = ctx;
    atomic_store(&m->started[chunk], now_ns());
    while (!atomic_load(&m->started[1 - chunk]))
        if (ck_worker_stop(worker))
            return;
}

static void nothing(void *ctx, int64_t chunk, ck_worker *worker)
{
    (void)ctx;
    (void)chunk;
    (void)worker;
}

static int ascending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The yardstick: a thread on a condition variable, with nothing around it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
static bool called;
static _Atomic int64_t awake_at;
static atomic_bool seen;

static void *sleeper(void *arg)
{
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!called)
            pthread_cond_wait(&wake, &lock);
        called = false;
        atomic_store(&awake_at, now_ns());
        while (!atomic_exchange(&seen, false)) /* as in meet(): the two run side by side, not in turn on one core */
            continue;
    }
    return arg;
}

static int64_t bare_wake(void)
{
    atomic_store(&awake_at, 0);
    int64_t begin = now_ns();
    pthread_mutex_lock(&lock);
    called = true;
    pthread_mutex_unlock(&lock);
    pthread_cond_signal(&wake);
    while (!atomic_load(&awake_at))
        continue;
    int64_t end = awake_at;
    atomic_store(&seen, true);
    while (atomic_load(&seen))
        continue;
    return end - begin;
}

static int64_t pool_wake(void)
{
    meeting m = {{0, 0}};
    int64_t begin = now_ns();
    ck_pool_run(&(ck_job){.fn = meet, .ctx = &m, .chunks = 2, .threads = 2, .max_workers = 2});
    int64_t a = m.started[0] - begin, b = m.started[1] - begin;
    return a > b ? a : b;
}

/* Both in turn, so that what else runs on the machine meets both.  The caller is busy or asleep before each. */
static void hand_over(int64_t pause, bool sleep)
{
    static int64_t pool[ROUNDS], bare[ROUNDS];
    for (int i = 0; i < 2 * ROUNDS; i++) {
        if (sleep)
            nanosleep(&(struct timespec){.tv_nsec = pause}, NULL);
        else
            spin_ns(pause);
        *(i % 2 ? &bare[i / 2] : &pool[i / 2]) = i % 2 ? bare_wake() : pool_wake();
    }
    qsort(pool, ROUNDS, sizeof *pool, ascending);
    qsort(bare, ROUNDS, sizeof *bare, ascending);
    printf("  caller %s for %4d us: 10 %% %6.2f, median %6.2f, 90 %% %7.2f us;  bare thread: %6.2f, %6.2f, %7.2f us\n",
           sleep ? "asleep" : "busy  ", (int)(pause / 1000), (double)pool[ROUNDS / 10] / 1e3,
           (double)pool[ROUNDS / 2] / 1e3, (double)pool[ROUNDS * 9 / 10] / 1e3, (double)bare[ROUNDS / 10] / 1e3,
           (double)bare[ROUNDS / 2] / 1e3, (double)bare[ROUNDS * 9 / 10] / 1e3);
}

static void empty_run(const char *name, int threads, int chunks, size_t scratch, int64_t pause)
{
    static int64_t taken[CHEAP_ROUNDS];
    ck_job job = {.fn = nothing, .chunks = chunks, .threads = threads, .max_workers = threads,
                  .scratch_bytes = scratch};
    int64_t total = 0;
    for (int i = 0; i < CHEAP_ROUNDS; i++) {
        if (pause)
            spin_ns(pause);
        int64_t begin = now_ns();
        ck_pool_run(&job);
        taken[i] = now_ns() - begin;
        total += taken[i];
    }
    qsort(taken, CHEAP_ROUNDS, sizeof *taken, ascending);
    printf("  %-48s median %6.3f, mean %6.3f us\n", name, (double)taken[CHEAP_ROUNDS / 2] / 1e3,
           (double)total / CHEAP_ROUNDS / 1e3);
}

int main(void)
{
    pthread_t bare;
    pthread_create(&bare, NULL, sleeper, NULL);
    pool_wake();
    puts("a helper starts on its chunk after (beside it, how long a bare condition variable takes to wake a thread):");
    hand_over(1000, false);
    hand_over(10000, false);
    hand_over(100000, false);
    hand_over(1000000, false);
    hand_over(1000000, true);
    puts("an empty run costs its caller (clock reads included):");
    empty_run("1 thread, 1 chunk", 1, 1, 0, 0);
    empty_run("1 thread, 1 chunk, 1 MiB scratch", 1, 1, 1 << 20, 0);
    empty_run("2 threads, 2 chunks, back to back", 2, 2, 0, 0);
    empty_run("2 threads, 2 chunks, 50 us apart", 2, 2, 0, 50000);
    return 0;
}
