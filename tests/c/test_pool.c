/* Tests of the thread pool and of the scratch memory.  Nothing here depends on how fast a helper wakes up: a test that
 * needs one waits for it, and the alarm in main ends a wait that never ends. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* pthread_getname_np */
#endif
#include "check.h"
#include "pool.h"
#include "scratch.h"

#include <fenv.h>
#include <float.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

static _Thread_local bool is_caller; /* set on every thread that calls ck_pool_run */

static int64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void sleep_us(long us) { nanosleep(&(struct timespec){us / 1000000, us % 1000000 * 1000}, NULL); }

static void wait_until(atomic_int *value, int least)
{
    while (atomic_load(value) < least)
        sched_yield();
}

static void raise_to(atomic_int *most, int value)
{
    int seen = atomic_load(most);
    while (seen < value && !atomic_compare_exchange_weak(most, &seen, value))
        continue;
}

static void run_callers(int n, void *(*body)(void *), void *arg)
{
    pthread_t threads[16];
    for (int i = 0; i < n; i++)
        pthread_create(&threads[i], NULL, body, arg);
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
}

/* ---- chunks ---- */

static void count_chunk(void *ctx, int64_t chunk, ck_worker *worker)
{
    (void)worker;
    atomic_fetch_add((atomic_int *)ctx + chunk, 1);
}

static int run_counting(int chunks, int threads, int max_workers)
{
    static _Thread_local atomic_int counts[1000];
    memset((void *)counts, 0, sizeof counts);
    ck_job job = {.fn = count_chunk, .ctx = counts, .chunks = chunks, .threads = threads, .max_workers = max_workers};
    int code = ck_pool_run(&job), once = 0;
    for (int i = 0; i < 1000; i++)
        once += atomic_load(&counts[i]) == (i < chunks);
    return code == CK_OK && once == 1000;
}

static void every_chunk_runs_once(void)
{
    static const int chunks[] = {0, 1, 2, 3, 7, 64, 999, 1000}, limits[] = {1, 2, 3, 4, 8};
    for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++)
        for (size_t t = 0; t < sizeof limits / sizeof *limits; t++)
            for (size_t w = 0; w < sizeof limits / sizeof *limits; w++)
                for (int again = 0; again < 5; again++)
                    CHECK(run_counting(chunks[c], limits[t], limits[w]));
}

/* ---- who takes part ---- */

typedef struct {
    atomic_int inside, most_inside, arrived, helpers, most_helpers;
    int meet; /* every chunk waits until so many have arrived */
} attendance;

static void attend(void *ctx, int64_t chunk, ck_worker *worker)
{
    (void)chunk;
    (void)worker;
    attendance *a = ctx;
    raise_to(&a->most_inside, atomic_fetch_add(&a->inside, 1) + 1);
    if (!is_caller)
        raise_to(&a->most_helpers, atomic_fetch_add(&a->helpers, 1) + 1);
    atomic_fetch_add(&a->arrived, 1);
    wait_until(&a->arrived, a->meet);
    for (int i = 0; i < 200; i++)
        atomic_load(&a->inside);
    if (!is_caller)
        atomic_fetch_sub(&a->helpers, 1);
    atomic_fetch_sub(&a->inside, 1);
}

static void lone_caller_gets_all_helpers_of_its_limit(void)
{
    ck_pool_shutdown();
    for (int again = 0; again < 100; again++) {
        attendance a = {.meet = 4};
        ck_job job = {.fn = attend, .ctx = &a, .chunks = 4, .threads = 4, .max_workers = 64};
        CHECK(ck_pool_run(&job) == CK_OK);
        CHECK(a.most_inside == 4 && a.most_helpers == 3);
        CHECK(ck_pool_helpers() == 3);
    }
}

static void limits_hold(void)
{
    static const struct { int threads, max_workers, chunks, most; } cases[] = {
        {2, 8, 500, 2}, {8, 2, 500, 2}, {3, 3, 500, 3}, {1, 8, 50, 1}, {8, 1, 50, 1}, {8, 8, 2, 2}};
    ck_pool_shutdown();
    run_counting(64, 8, 8);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        attendance a = {.meet = cases[i].most};
        ck_job job = {.fn = attend, .ctx = &a, .chunks = cases[i].chunks, .threads = cases[i].threads,
                      .max_workers = cases[i].max_workers};
        CHECK(ck_pool_run(&job) == CK_OK);
        CHECK(a.most_inside == cases[i].most);
    }
}

static void no_more_helpers_start_than_a_job_can_use(void)
{
    ck_pool_shutdown();
    run_counting(1, 8, 8);
    run_counting(100, 8, 1);
    CHECK(ck_pool_helpers() == 0);
    run_counting(3, 8, 8);
    CHECK(ck_pool_helpers() == 2);
    run_counting(100, 8, 2);
    CHECK(ck_pool_helpers() == 2);
}

static void *attend_as_caller(void *arg)
{
    is_caller = true;
    for (int again = 0; again < 200; again++) {
        ck_job job = {.fn = attend, .ctx = arg, .chunks = 8, .threads = 4, .max_workers = 4};
        CHECK(ck_pool_run(&job) == CK_OK);
    }
    return NULL;
}

static void helpers_of_many_callers_stay_within_the_limit(void)
{
    ck_pool_shutdown();
    for (int callers = 2; callers <= 8; callers++) {
        attendance a = {.meet = 0};
        run_callers(callers, attend_as_caller, &a);
        CHECK(a.most_helpers <= 3);
        CHECK(a.arrived == callers * 200 * 8);
        CHECK(ck_pool_helpers() <= 3);
    }
}

/* Two jobs at once, whose first chunks wait for each other's caller. */
typedef struct {
    atomic_int turn, started[2], progress[2], by_helpers;
} pair;

typedef struct {
    pair *pair;
    int which;
} side;

enum { PAIR_CHUNKS = 400, PAIR_SURE = 300 }; /* both callers are inside while neither is past PAIR_SURE */

static void pair_chunk(void *ctx, int64_t chunk, ck_worker *worker)
{
    (void)chunk;
    (void)worker;
    side *s = ctx;
    pair *p = s->pair;
    int both = atomic_load(&p->started[0]) && atomic_load(&p->started[1]);
    atomic_store(&p->started[s->which], 1);
    wait_until(&p->started[1 - s->which], 1);
    if (both && !is_caller && atomic_load(&p->progress[0]) < PAIR_SURE && atomic_load(&p->progress[1]) < PAIR_SURE)
        atomic_fetch_add(&p->by_helpers, 1);
    atomic_fetch_add(&p->progress[s->which], 1);
}

static void *run_side(void *arg)
{
    is_caller = true;
    pair *p = arg;
    side s = {p, atomic_fetch_add(&p->turn, 1)};
    ck_job job = {.fn = pair_chunk, .ctx = &s, .chunks = PAIR_CHUNKS, .threads = 2, .max_workers = 2};
    CHECK(ck_pool_run(&job) == CK_OK);
    return NULL;
}

static void two_callers_with_two_threads_get_no_helper(void)
{
    for (int again = 0; again < 20; again++) {
        pair p = {.turn = 0};
        run_callers(2, run_side, &p);
        CHECK(p.by_helpers <= 1); /* one that joined the first caller alone may be on its way into a chunk */
        CHECK(p.progress[0] == PAIR_CHUNKS && p.progress[1] == PAIR_CHUNKS);
    }
}

/* A caller that sits in a one-thread job until it is told to leave. */
typedef struct {
    atomic_int sits, leave;
    pthread_t thread;
} sitter;

static void sit(void *ctx, int64_t chunk, ck_worker *worker)
{
    (void)chunk;
    (void)worker;
    sitter *s = ctx;
    atomic_store(&s->sits, 1);
    wait_until(&s->leave, 1);
}

static void *run_sitter(void *arg)
{
    ck_pool_run(&(ck_job){.fn = sit, .ctx = arg, .chunks = 1, .threads = 1, .max_workers = 1});
    return NULL;
}

static void sitter_enters(sitter *s)
{
    pthread_create(&s->thread, NULL, run_sitter, s);
    wait_until(&s->sits, 1);
}

static void sitter_leaves(sitter *s)
{
    atomic_store(&s->leave, 1);
    pthread_join(s->thread, NULL);
}

typedef struct {
    sitter other;
    int own_chunks;
    atomic_int by_helper, by_helper_with_other;
} changing;

enum { SEEN = 7 }; /* an error code of these tests */

static void free_place_chunk(void *ctx, int64_t chunk, ck_worker *worker)
{
    (void)chunk;
    changing *c = ctx;
    sleep_us(20);
    if (!is_caller)
        ck_worker_fail(worker, SEEN);
    else if (++c->own_chunks == 100)
        sitter_leaves(&c->other);
}

static void a_caller_that_leaves_makes_room_for_a_helper(void)
{
    run_counting(64, 2, 2);
    changing c = {.own_chunks = 0};
    sitter_enters(&c.other);
    ck_job job = {.fn = free_place_chunk, .ctx = &c, .chunks = INT64_MAX - 1000, .threads = 2, .max_workers = 2};
    CHECK(ck_pool_run(&job) == SEEN);
    CHECK(c.own_chunks >= 100);
}

static void lost_place_chunk(void *ctx, int64_t chunk, ck_worker *worker)
{
    (void)chunk;
    changing *c = ctx;
    if (!is_caller) {
        atomic_fetch_add(&c->by_helper, 1);
        if (atomic_load(&c->other.sits))
            atomic_fetch_add(&c->by_helper_with_other, 1);
    } else if (c->own_chunks > 0) {
        if (++c->own_chunks == 100)
            ck_worker_fail(worker, SEEN);
    } else if (atomic_load(&c->by_helper)) {
        sitter_enters(&c->other);
        c->own_chunks = 1;
    }
    sleep_us(20);
}

static void a_caller_that_enters_takes_a_helper_s_place(void)
{
    changing c = {.own_chunks = 0};
    ck_job job = {.fn = lost_place_chunk, .ctx = &c, .chunks = INT64_MAX - 1000, .threads = 2, .max_workers = 2};
    CHECK(ck_pool_run(&job) == SEEN);
    CHECK(c.by_helper_with_other <= 2); /* the chunk it was in, and one it was about to take */
    sitter_leaves(&c.other);
}

static void *hammer(void *arg)
{
    is_caller = true;
    int rounds = UNDER_TSAN ? 1000 : 5000;
    for (int i = 0; i < rounds; i++)
        CHECK(run_counting(i % 9, 1 + i % 4, 1 + i % 3));
    (void)arg;
    return NULL;
}

static void many_callers_with_tiny_jobs(void)
{
    ck_pool_shutdown();
    run_callers(8, hammer, NULL);
    CHECK(ck_pool_helpers() <= 3);
}

/* ---- nested ---- */

typedef struct {
    atomic_int inner_chunks, strangers;
} nest;

typedef struct {
    nest *nest;
    pthread_t thread;
} inner;

static void inner_chunk(void *ctx, int64_t chunk, ck_worker *worker)
{
    (void)chunk;
    (void)worker;
    inner *in = ctx;
    atomic_fetch_add(&in->nest->inner_chunks, 1);
    if (!pthread_equal(in->thread, pthread_self()))
        atomic_fetch_add(&in->nest->strangers, 1);
}

static void outer_chunk(void *ctx, int64_t chunk, ck_worker *worker)
{
    (void)chunk;
    inner in = {ctx, pthread_self()};
    char *scratch = ck_worker_scratch(worker);
    scratch[0] = 1;
    ck_job job = {.fn = inner_chunk, .ctx = &in, .chunks = 10, .threads = 4, .max_workers = 4, .scratch_bytes = 64};
    CHECK(ck_pool_run(&job) == CK_OK);
    CHECK(ck_worker_scratch(worker) == scratch);
}

static void nested_runs_are_serial(void)
{
    nest n = {0, 0};
    ck_job job = {.fn = outer_chunk, .ctx = &n, .chunks = 50, .threads = 3, .max_workers = 3, .scratch_bytes = 64};
    CHECK(ck_pool_run(&job) == CK_OK);
    CHECK(n.inner_chunks == 500 && n.strangers == 0);
}

/* ---- stopping ---- */

typedef struct {
    pthread_t caller;
    int polls, stop_at;
    int64_t last;
    bool stranger, too_soon;
    atomic_int chunks, helper_in;
    int nested_code;
} stopping;

static int poll(void *ctx)
{
    stopping *s = ctx;
    int64_t now = now_us();
    s->stranger |= !pthread_equal(pthread_self(), s->caller);
    s->too_soon |= now - s->last < 9000; /* 20 ms, less the coarsest tick of a kernel */
    s->last = now;
    return ++s->polls >= s->stop_at;
}

static ck_job stopping_job(stopping *s, ck_chunk_fn fn, int64_t chunks, int threads)
{
    s->caller = pthread_self();
    s->last = now_us();
    s->stop_at = s->stop_at ? s->stop_at : 1;
    return (ck_job){.fn = fn, .ctx = s, .chunks = chunks, .threads = threads, .max_workers = threads, .poll = poll,
                    .poll_ctx = s};
}

static void nap_chunk(void *ctx, int64_t chunk, ck_worker *worker)
{
    (void)chunk;
    (void)worker;
    atomic_fetch_add(&((stopping *)ctx)->chunks, 1);
    sleep_us(500);
}

static void poll_stops_between_chunks(void)
{
    for (int threads = 1; threads <= 3; threads++) {
        stopping s = {.stop_at = 3};
        ck_job job = stopping_job(&s, nap_chunk, 1000000, threads);
        CHECK(ck_pool_run(&job) == CK_STOPPED);
        CHECK(s.polls == 3 && !s.stranger && !s.too_soon);
        CHECK(s.chunks > 0 && s.chunks < 100000);
    }
}

static void endless_chunk(void *ctx, int64_t chunk, ck_worker *worker)
{
    (void)ctx;
    (void)chunk;
    while (!ck_worker_stop(worker))
        sleep_us(100);
}

static void poll_stops_inside_long_chunks(void)
{
    for (int threads = 1; threads <= 3; threads++) {
        stopping s = {.stop_at = 2};
        ck_job job = stopping_job(&s, endless_chunk, threads, threads);
        CHECK(ck_pool_run(&job) == CK_STOPPED);
        CHECK(s.polls == 2 && !s.stranger && !s.too_soon);
    }
}

static void only_the_helper_stays(void *ctx, int64_t chunk, ck_worker *worker)
{
    stopping *s = ctx;
    if (is_caller) {
        wait_until(&s->helper_in, 1);
    } else {
        atomic_store(&s->helper_in, 1);
        endless_chunk(ctx, chunk, worker);
    }
}

static void poll_stops_while_the_caller_waits(void)
{
    stopping s = {.stop_at = 2};
    ck_job job = stopping_job(&s, only_the_helper_stays, 2, 2);
    CHECK(ck_pool_run(&job) == CK_STOPPED);
    CHECK(s.polls == 2 && !s.stranger && !s.too_soon);
}

static void run_endless_inside(void *ctx, int64_t chunk, ck_worker *worker)
{
    (void)chunk;
    (void)worker;
    stopping *s = ctx;
    ck_job job = {.fn = endless_chunk, .chunks = 2, .threads = 1, .max_workers = 1};
    s->nested_code = ck_pool_run(&job);
}

static void poll_of_the_outer_run_stops_the_inner_one(void)
{
    stopping s = {.stop_at = 2};
    ck_job job = stopping_job(&s, run_endless_inside, 1, 1);
    CHECK(ck_pool_run(&job) == CK_STOPPED);
    CHECK(s.nested_code == CK_STOPPED && s.polls == 2);
}

static int poll_that_runs_a_job(void *ctx)
{
    stopping *s = ctx;
    ++s->polls;
    ck_job job = {.fn = nap_chunk, .ctx = s, .chunks = 100, .threads = 2, .max_workers = 2};
    s->nested_code = ck_pool_run(&job);
    return 1;
}

static void a_poll_may_run_a_job_itself(void)
{
    stopping s = {.nested_code = -1};
    ck_job job = stopping_job(&s, nap_chunk, 1000000, 2);
    job.poll = poll_that_runs_a_job;
    CHECK(ck_pool_run(&job) == CK_STOPPED);
    CHECK(s.polls == 1 && s.nested_code == CK_OK);
}

static void fail_chunk(void *ctx, int64_t chunk, ck_worker *worker)
{
    atomic_fetch_add(&((stopping *)ctx)->chunks, 1);
    if (chunk == 10) {
        ck_worker_fail(worker, 42);
        ck_worker_fail(worker, 43);
        CHECK(ck_worker_stop(worker));
    }
    sleep_us(50);
}

static void a_failed_chunk_stops_the_job(void)
{
    for (int threads = 1; threads <= 3; threads++) {
        stopping s = {.polls = 0};
        ck_job job = {.fn = fail_chunk, .ctx = &s, .chunks = 100000, .threads = threads, .max_workers = threads};
        CHECK(ck_pool_run(&job) == 42);
        CHECK(s.chunks >= 11 && s.chunks < 100000);
    }
}

/* ---- starting and ending helpers ---- */

static void failed_starts_mean_fewer_helpers(void)
{
    ck_pool_shutdown();
    atomic_store(&ck_pool_fail_starts, 1);
    CHECK(run_counting(1000, 4, 4));
    CHECK(ck_pool_helpers() == 0 && ck_pool_fail_starts == 0);
    sleep_us(150000); /* it does not try again at once */
    CHECK(run_counting(1000, 4, 4));
    CHECK(ck_pool_helpers() == 3);
}

static void shut_down_inside(void *ctx, int64_t chunk, ck_worker *worker)
{
    (void)ctx;
    (void)chunk;
    (void)worker;
    ck_pool_shutdown();
}

static void shutdown_and_restart(void)
{
    ck_pool_shutdown();
    for (int i = 0; i < 20; i++) {
        CHECK(run_counting(100, 3, 3));
        CHECK(ck_pool_helpers() == 2);
        ck_pool_shutdown();
        CHECK(ck_pool_helpers() == 0);
    }
    ck_job job = {.fn = shut_down_inside, .chunks = 4, .threads = 2, .max_workers = 2};
    CHECK(ck_pool_run(&job) == CK_OK);
    CHECK(ck_pool_helpers() == 1);
}

static void *hammer_and_shut_down(void *arg)
{
    is_caller = true;
    for (int i = 0; i < 200; i++) {
        CHECK(run_counting(20, 3, 3));
        if (i % 10 == 0)
            ck_pool_shutdown();
    }
    (void)arg;
    return NULL;
}

static void shutdown_while_jobs_run(void) { run_callers(4, hammer_and_shut_down, NULL); }

typedef struct {
    attendance attendance;
    atomic_int signals_open;
    char name[16];
} identity;

static void identify(void *ctx, int64_t chunk, ck_worker *worker)
{
    identity *id = ctx;
    if (!is_caller) {
        sigset_t set;
        pthread_sigmask(SIG_BLOCK, NULL, &set);
        atomic_fetch_add(&id->signals_open, !sigismember(&set, SIGINT) + !sigismember(&set, SIGALRM));
        CHECK(!sigismember(&set, SIGSEGV));
#ifdef __linux__
        pthread_getname_np(pthread_self(), id->name, sizeof id->name);
#else
        strcpy(id->name, "convkit");
#endif
    }
    attend(&id->attendance, chunk, worker);
}

static void helpers_have_a_name_and_block_signals(void)
{
    identity id = {.attendance = {.meet = 2}};
    ck_job job = {.fn = identify, .ctx = &id, .chunks = 2, .threads = 2, .max_workers = 2};
    CHECK(ck_pool_run(&job) == CK_OK);
    CHECK(id.signals_open == 0);
    CHECK(strcmp(id.name, "convkit") == 0);
    sigset_t set;
    pthread_sigmask(SIG_BLOCK, NULL, &set);
    CHECK(!sigismember(&set, SIGINT));
}

/* ---- scratch ---- */

static void scratch_is_aligned_and_reused(void)
{
    ck_scratch_clear();
    CHECK(ck_scratch_retained() == 0);
    for (size_t bytes = 0; bytes < 3000000; bytes = bytes * 3 + 1) {
        char *p = ck_scratch_get(bytes);
        CHECK(p && (uintptr_t)p % CK_SCRATCH_ALIGN == 0);
        memset(p, 1, bytes);
        ck_scratch_put(p);
        CHECK(ck_scratch_retained() >= bytes);
        char *q = ck_scratch_get(bytes);
        CHECK(p == q);
        ck_scratch_put(q);
    }
    char *big = ck_scratch_get(10 << 20);
    ck_scratch_put(big);
    char *small = ck_scratch_get(3 << 20);
    CHECK(small != big);
    ck_scratch_put(small);
    ck_scratch_put(NULL);
    ck_scratch_clear();
    CHECK(ck_scratch_retained() == 0);
}

static void scratch_keeps_no_more_than_its_bound(void)
{
    enum { BLOCKS = 20 };
    void *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++)
        blocks[i] = ck_scratch_get(5 << 20);
    CHECK(ck_scratch_retained() == 0);
    for (int i = 0; i < BLOCKS; i++) {
        ck_scratch_put(blocks[i]);
        CHECK(ck_scratch_retained() <= CK_SCRATCH_KEEP);
    }
    size_t before = ck_scratch_retained();
    CHECK(before > CK_SCRATCH_KEEP - (6 << 20));
    ck_scratch_put(ck_scratch_get(CK_SCRATCH_KEEP + 1)); /* is not kept, and drives nothing out */
    CHECK(ck_scratch_retained() == before);
    ck_scratch_clear();
}

static void impossible_scratch_is_refused(void)
{
    CHECK(ck_scratch_get(SIZE_MAX) == NULL);
    CHECK(ck_scratch_get(SIZE_MAX / 2) == NULL);
    ck_job job = {.fn = endless_chunk, .chunks = 5, .threads = 2, .max_workers = 2, .scratch_bytes = SIZE_MAX};
    CHECK(ck_pool_run(&job) == CK_NO_MEMORY);
    job.threads = 1;
    CHECK(ck_pool_run(&job) == CK_NO_MEMORY);
}

static int fail_on_helpers(size_t bytes)
{
    (void)bytes;
    return !is_caller;
}

static int fail_always(size_t bytes)
{
    (void)bytes;
    return 1;
}

static void callers_only(void *ctx, int64_t chunk, ck_worker *worker)
{
    (void)chunk;
    (void)worker;
    atomic_fetch_add((atomic_int *)ctx, is_caller);
    sleep_us(100);
}

static void a_helper_without_scratch_stays_away(void)
{
    atomic_int chunks = 0;
    ck_job job = {.fn = callers_only, .ctx = &chunks, .chunks = 50, .threads = 4, .max_workers = 4,
                  .scratch_bytes = 1000};
    atomic_store(&ck_scratch_fail, fail_on_helpers);
    CHECK(ck_pool_run(&job) == CK_OK);
    CHECK(chunks == 50);
    atomic_store(&ck_scratch_fail, fail_always);
    CHECK(ck_pool_run(&job) == CK_NO_MEMORY);
    CHECK(chunks == 50);
    atomic_store(&ck_scratch_fail, NULL);
}

static void fill_scratch(void *ctx, int64_t chunk, ck_worker *worker)
{
    attendance *a = ctx;
    unsigned char *scratch = ck_worker_scratch(worker);
    CHECK((uintptr_t)scratch % CK_SCRATCH_ALIGN == 0);
    memset(scratch, (int)chunk, 5000);
    atomic_fetch_add(&a->arrived, 1);
    wait_until(&a->arrived, a->meet);
    for (int i = 0; i < 5000; i++)
        CHECK(scratch[i] == (unsigned char)chunk);
}

static void every_participant_has_its_own_scratch(void)
{
    for (int again = 0; again < 20; again++) {
        attendance a = {.meet = 4};
        ck_job job = {.fn = fill_scratch, .ctx = &a, .chunks = 40, .threads = 4, .max_workers = 4,
                      .scratch_bytes = 5000};
        CHECK(ck_pool_run(&job) == CK_OK);
    }
    CHECK(ck_scratch_retained() > 0);
    ck_job job = {.fn = attend, .ctx = &(attendance){.meet = 0}, .chunks = 1, .threads = 1, .max_workers = 1};
    CHECK(ck_pool_run(&job) == CK_OK);
}

/* ---- floating-point environment ---- */

static void expect_default_fenv(void *ctx, int64_t chunk, ck_worker *worker)
{
    volatile double tiny = DBL_MIN, zero = 0, one = 1;
    CHECK(fegetround() == FE_TONEAREST);
    CHECK(fetestexcept(FE_ALL_EXCEPT) == 0);
    CHECK(tiny / 2 > 0);
#if defined(__x86_64__)
    CHECK(_mm_getcsr() >> 6 == 0x1f80 >> 6); /* all but the flags */
#endif
    attend(ctx, chunk, worker);
    one = one / zero; /* raises a flag that must stay in here */
    volatile long double wide = 1, none = 0;
    wide = wide / none;
}

static void run_expecting_default_fenv(int threads)
{
    attendance a = {.meet = threads};
    ck_job job = {.fn = expect_default_fenv, .ctx = &a, .chunks = threads, .threads = threads,
                  .max_workers = threads};
    CHECK(ck_pool_run(&job) == CK_OK);
}

static void fenv_is_the_default_inside_and_restored_outside(void)
{
    fenv_t own;
    fegetenv(&own);
    ck_pool_shutdown(); /* new helpers inherit the environment of the thread that starts them */
    for (int threads = 1; threads <= 2; threads++) {
        fesetenv(FE_DFL_ENV);
        run_expecting_default_fenv(threads);
        CHECK(fetestexcept(FE_ALL_EXCEPT) == 0);
        feraiseexcept(FE_UNDERFLOW);
        run_expecting_default_fenv(threads);
        CHECK(fetestexcept(FE_ALL_EXCEPT) == FE_UNDERFLOW);
        feclearexcept(FE_ALL_EXCEPT);
        fesetround(FE_UPWARD);
        feraiseexcept(FE_INEXACT);
#if defined(__x86_64__)
        unsigned odd = _mm_getcsr() | 0x8040; /* flush to zero, subnormals are zero */
        _mm_setcsr(odd);
#endif
        run_expecting_default_fenv(threads);
        CHECK(fegetround() == FE_UPWARD);
        CHECK(fetestexcept(FE_ALL_EXCEPT) == FE_INEXACT);
#if defined(__x86_64__)
        CHECK(_mm_getcsr() == odd);
#endif
    }
    fesetenv(&own);
}

/* ---- fork ---- */

#if !UNDER_TSAN /* which does not support threads started in the child of a process that has threads */

static int child_computes(void)
{
    return run_counting(1000, 3, 3) && ck_pool_helpers() == 2 && run_counting(10, 1, 1);
}

/* In the child the test's own way of failing is the exit status. */
static bool fork_works(int (*child)(void))
{
    pid_t pid = fork();
    if (pid == 0) {
        alarm(60);
        _exit(child() ? 0 : 1);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    return pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void a_forked_child_starts_its_own_helpers(void)
{
    CHECK(run_counting(100, 3, 3));
    for (int i = 0; i < 10; i++)
        CHECK(fork_works(child_computes));
    CHECK(run_counting(100, 3, 3));
    ck_pool_shutdown();
    CHECK(fork_works(child_computes));
}

static int child_forks_again(void) { return child_computes() && fork_works(child_computes); }

static void a_child_may_fork_again(void) { CHECK(fork_works(child_forks_again)); }

static atomic_int hammering;

static void *hammer_until_told(void *arg)
{
    is_caller = true;
    for (int i = 0; atomic_load(&hammering); i++) {
        CHECK(run_counting(50, 1 + i % 3, 3));
        ck_scratch_put(ck_scratch_get(10000));
    }
    (void)arg;
    return NULL;
}

static void fork_while_other_threads_run_jobs(void)
{
    pthread_t threads[3];
    atomic_store(&hammering, 1);
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, hammer_until_told, NULL);
    for (int i = 0; i < 50; i++)
        CHECK(fork_works(child_computes));
    atomic_store(&hammering, 0);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
}

typedef struct {
    stopping stopping; /* whose chunks the job runs */
    pid_t child;
    bool in_child;
} forking;

static int poll_that_forks(void *ctx)
{
    forking *f = ctx;
    if (f->child || f->in_child)
        return 0;
    f->child = fork();
    f->in_child = f->child == 0;
    if (f->in_child)
        alarm(60);
    return 0;
}

/* Both processes go on with the job; in the child, whatever it says, it ends, and the pool is in order after it. */
static void fork_inside(ck_chunk_fn fn, int chunks, int threads)
{
    forking f = {.child = 0};
    ck_job job = stopping_job(&f.stopping, fn, chunks, threads);
    job.poll = poll_that_forks;
    job.poll_ctx = &f;
    int code = ck_pool_run(&job);
    if (f.in_child)
        _exit((code == CK_OK || (code == CK_STOPPED && threads > 1)) && child_computes() ? 0 : 1);
    CHECK(code == CK_OK);
    int status = -1;
    CHECK(f.child > 0 && waitpid(f.child, &status, 0) == f.child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void caller_leaves_helper_naps(void *ctx, int64_t chunk, ck_worker *worker)
{
    (void)chunk;
    (void)worker;
    stopping *s = ctx;
    if (is_caller)
        wait_until(&s->helper_in, 1);
    atomic_store(&s->helper_in, 1);
    if (!is_caller)
        sleep_us(200000);
}

static void fork_inside_a_poll(void)
{
    fork_inside(nap_chunk, 100, 1);
    fork_inside(nap_chunk, 200, 3);
    fork_inside(caller_leaves_helper_naps, 2, 2); /* the poll comes while the caller waits for the helper */
}

#endif

int main(void)
{
    is_caller = true;
    alarm(300);
    RUN(every_chunk_runs_once);
    RUN(lone_caller_gets_all_helpers_of_its_limit);
    RUN(limits_hold);
    RUN(no_more_helpers_start_than_a_job_can_use);
    RUN(helpers_of_many_callers_stay_within_the_limit);
    RUN(two_callers_with_two_threads_get_no_helper);
    RUN(a_caller_that_leaves_makes_room_for_a_helper);
    RUN(a_caller_that_enters_takes_a_helper_s_place);
    RUN(many_callers_with_tiny_jobs);
    RUN(nested_runs_are_serial);
    RUN(poll_stops_between_chunks);
    RUN(poll_stops_inside_long_chunks);
    RUN(poll_stops_while_the_caller_waits);
    RUN(poll_of_the_outer_run_stops_the_inner_one);
    RUN(a_poll_may_run_a_job_itself);
    RUN(a_failed_chunk_stops_the_job);
    RUN(failed_starts_mean_fewer_helpers);
    RUN(shutdown_and_restart);
    RUN(shutdown_while_jobs_run);
    RUN(helpers_have_a_name_and_block_signals);
    RUN(scratch_is_aligned_and_reused);
    RUN(scratch_keeps_no_more_than_its_bound);
    RUN(impossible_scratch_is_refused);
    RUN(a_helper_without_scratch_stays_away);
    RUN(every_participant_has_its_own_scratch);
    RUN(fenv_is_the_default_inside_and_restored_outside);
#if !UNDER_TSAN
    RUN(a_forked_child_starts_its_own_helpers);
    RUN(a_child_may_fork_again);
    RUN(fork_while_other_threads_run_jobs);
    RUN(fork_inside_a_poll);
#endif
    ck_pool_shutdown();
    ck_scratch_clear();
    return summary();
}
