#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* pthread_setname_np, sched_getcpu */
#endif
#include "pool.h"

#include "fpenv.h"
#include "scratch.h"

#include <pthread.h>
#include <signal.h>
#ifdef __linux__
#include <sched.h>
#include <unistd.h>
#endif
#include <time.h>

enum {
    MAX_HELPERS = 1023,
    POLL_MS = 20,            /* least time between two polls */
    WAIT_MS = 50,            /* longest sleep of a caller that has to poll */
    RETRY_MS = 100,          /* no thread start is tried for so long after a failed one */
    STACK_BYTES = 2 << 20,   /* BLAS runs on it */
};

/* A ck_pool_run in progress.  It lives on its caller's stack, and helpers hold it only while counted in `helpers`. */
typedef struct run run;
struct run {
    const ck_job *job;
    int most_helpers;
    int cpu;           /* where the caller began */
    atomic_int code;   /* CK_OK while the run goes on */
    /* Under pool.lock: */
    int helpers;       /* working on it */
    bool linked;       /* in pool.runs */
    bool closed;       /* to new helpers: one of them found no memory */
    run *prev, *next;  /* neighbours in pool.runs */
    pthread_cond_t helpers_gone;
    /* Written by every participant for every chunk, so apart from what they only read. */
    _Alignas(64) atomic_int_fast64_t next_chunk;
};

struct ck_worker {
    run *run;
    void *scratch;
    ck_worker *outer;  /* the participant in whose chunk this nested run was started */
    bool helper;       /* runs on a helper thread */
    bool detached;     /* was started inside a poll, by a signal handler say: goes on when the run around it is stopped */
    bool polling;      /* what in_poll was before */
    int64_t polled_at; /* milliseconds */
    ck_fpenv fpenv;    /* the thread's own */
};

/* Where a helper may run.  Under pool.lock. */
typedef struct {
#ifdef __linux__
    pid_t tid;
    int waker, caller;        /* the CPUs it was last kept away from */
    cpu_set_t allowed, given; /* what it may use, and what was made of that */
#else
    char none;
#endif
} cpus;

typedef struct helper helper;
struct helper {
    pthread_t thread;
    cpus cpus;
    pthread_cond_t wake; /* initialised once and never destroyed: a late signal may come from outside the lock */
    bool wake_ready;
    bool called;         /* to work: set by who wakes it */
    helper *next_idle;
};

static struct {
    pthread_mutex_t lock;
    atomic_int callers; /* threads inside ck_pool_run; the serial path changes it without the lock */
    atomic_int working; /* helpers that joined a run; written under the lock */
    atomic_int open;    /* runs in the list; written under the lock */
    /* Under the lock: */
    int coming;         /* helpers called that have not looked for a run yet */
    run *runs, *last_run;
    helper *idle;       /* last in, first out: the one with the warmest cache */
    int helpers;        /* alive */
    int idle_helpers;
    bool stopping;      /* ck_pool_shutdown is at work */
    int64_t retry_at;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER};

static helper helper_slots[MAX_HELPERS];
static pthread_mutex_t shutdown_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_condattr_t monotonic;
static _Thread_local ck_worker *current; /* innermost participant on this thread */
static _Thread_local bool in_poll;       /* of that participant's run */

#ifdef CK_TEST_HOOKS
atomic_int ck_pool_fail_starts;
#endif

/* ---- time ---- */

/* A read of the kernel's last tick: a few nanoseconds, a few milliseconds fine. */
static int64_t now_ms(void)
{
    struct timespec t;
#ifdef CLOCK_MONOTONIC_COARSE
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
#else
    clock_gettime(CLOCK_MONOTONIC, &t);
#endif
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void wait_for_ms(pthread_cond_t *cond, int ms)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_nsec += ms * 1000000L;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    pthread_cond_timedwait(cond, &pool.lock, &t);
}

/* ---- participants ---- */

static void stop_run(run *r, int code)
{
    int going_on = CK_OK;
    atomic_compare_exchange_strong(&r->code, &going_on, code);
}

/* Whether the run of this participant, or one around it, is stopped; polls those that are due. */
static bool stopped(ck_worker *worker)
{
    for (ck_worker *w = worker; w; w = w->detached ? NULL : w->outer) {
        const ck_job *job = w->run->job;
        if (atomic_load(&w->run->code) == CK_OK) {
            if (!job->poll || w->helper)
                continue;
            int64_t now = now_ms();
            if (now - w->polled_at < POLL_MS)
                continue;
            w->polled_at = INT64_MAX; /* not again from a run inside the poll */
            bool before = in_poll;
            in_poll = true;
            int stop = job->poll(job->poll_ctx);
            in_poll = before;
            w->polled_at = now_ms();
            if (!stop)
                continue;
            stop_run(w->run, CK_STOPPED);
        }
        stop_run(worker->run, CK_STOPPED); /* a nested run ends with the run around it */
        return true;
    }
    return false;
}

static bool enter(ck_worker *w, run *r, bool helper)
{
    const ck_job *job = r->job;
    w->run = r;
    w->outer = current;
    w->helper = helper;
    w->detached = in_poll;
    w->polled_at = job->poll ? now_ms() : 0;
    w->scratch = job->scratch_bytes ? ck_scratch_get(job->scratch_bytes) : NULL;
    if (job->scratch_bytes && !w->scratch)
        return false;
    ck_fpenv_default(&w->fpenv);
    w->polling = in_poll;
    in_poll = false;
    current = w;
    return true;
}

static void leave(ck_worker *w)
{
    current = w->outer;
    in_poll = w->polling;
    ck_fpenv_restore(&w->fpenv);
    ck_scratch_put(w->scratch);
}

/* Runs chunks until none is left, the run is stopped, or a helper's place is needed by a caller that came later. */
static void work(ck_worker *w)
{
    run *r = w->run;
    const ck_job *job = r->job;
    bool joined = w->helper && !w->outer;
    while (!stopped(w)) {
        if (joined && atomic_load(&pool.working) + atomic_load(&pool.callers) > job->threads)
            return;
        int64_t chunk = atomic_fetch_add(&r->next_chunk, 1);
        if (chunk >= job->chunks)
            return;
        job->fn(job->ctx, chunk, w);
    }
}

void *ck_worker_scratch(const ck_worker *worker) { return worker->scratch; }

bool ck_worker_stop(ck_worker *worker) { return stopped(worker); }

void ck_worker_fail(ck_worker *worker, int code) { stop_run(worker->run, code); }

/* ---- who may join what; all of it under pool.lock ---- */

/* Whether the run has a place for one helper more, after `coming` others have taken theirs. */
static bool admits(run *r, int coming)
{
    return !r->closed && r->helpers + coming < r->most_helpers &&
           atomic_load(&pool.working) + coming + atomic_load(&pool.callers) < r->job->threads &&
           atomic_load(&r->next_chunk) + coming < r->job->chunks && atomic_load(&r->code) == CK_OK;
}

static run *find_run(int coming)
{
    run *r = pool.runs;
    while (r && !admits(r, coming))
        r = r->next;
    return r;
}

static void link_run(run *r)
{
    r->prev = pool.last_run;
    r->next = NULL;
    *(r->prev ? &r->prev->next : &pool.runs) = r;
    pool.last_run = r;
    r->linked = true;
    atomic_fetch_add(&pool.open, 1);
}

static void unlink_run(run *r)
{
    *(r->prev ? &r->prev->next : &pool.runs) = r->next;
    *(r->next ? &r->next->prev : &pool.last_run) = r->prev;
    r->linked = false;
    atomic_fetch_sub(&pool.open, 1);
}

/* ---- where helpers run ----
 *
 * In a virtual machine, a CPU that has slept for a while looks to the kernel as if the host had taken it away.  The kernel
 * then wakes a helper on the CPU of whoever wakes it, where it waits for the end of the work that it was to share, and it
 * does so again and again.  So a helper is kept away from the CPU of its waker and of the caller whose work it joins. */

#ifdef __linux__
static int this_cpu(void) { return sched_getcpu(); }

static void know_cpus(cpus *c)
{
    c->tid = gettid();
    c->waker = c->caller = -1;
    if (sched_getaffinity(0, sizeof c->allowed, &c->allowed))
        CPU_ZERO(&c->allowed); /* more CPUs than fit: left alone */
    c->given = c->allowed;
}

static void keep_apart(cpus *c, int caller)
{
    int waker = this_cpu();
    if (waker < 0 || waker >= CPU_SETSIZE || caller < 0 || caller >= CPU_SETSIZE || !CPU_COUNT(&c->allowed) ||
        (c->waker == waker && c->caller == caller))
        return;
    cpu_set_t now, others;
    if (sched_getaffinity(c->tid, sizeof now, &now))
        return;
    if (!CPU_EQUAL(&now, &c->given))
        c->allowed = now; /* somebody else has restricted it meanwhile */
    others = c->allowed;
    CPU_CLR(waker, &others);
    CPU_CLR(caller, &others);
    if (!CPU_COUNT(&others))
        others = c->allowed;
    if (CPU_EQUAL(&others, &now) || !sched_setaffinity(c->tid, sizeof others, &others)) {
        c->given = others;
        c->waker = waker;
        c->caller = caller;
    }
}
#else
static int this_cpu(void) { return -1; }
static void know_cpus(cpus *c) { c->none = 0; }
static void keep_apart(cpus *c, int caller) { (void)c, (void)caller; }
#endif

/* Takes a sleeping helper off the list if there is work for it.  The caller gives it to wake() after unlocking: a
 * thread that wakes up under a lock that is still held goes back to sleep. */
static helper *call_helper(void)
{
    helper *h = pool.idle;
    run *r = h && !pool.stopping ? find_run(pool.coming) : NULL;
    if (!r)
        return NULL;
    keep_apart(&h->cpus, r->cpu);
    pool.idle = h->next_idle;
    pool.idle_helpers--;
    h->called = true;
    pool.coming++;
    return h;
}

static void wake(helper *h)
{
    if (h)
        pthread_cond_signal(&h->wake);
}

/* ---- helpers ---- */

static void help(run *r)
{
    ck_worker w;
    bool ok = enter(&w, r, true);
    if (ok) {
        work(&w);
        leave(&w);
    }
    pthread_mutex_lock(&pool.lock);
    r->closed |= !ok;
}

static void *helper_main(void *arg)
{
    helper *self = arg;
#ifdef __linux__
    pthread_setname_np(pthread_self(), "convkit");
#endif
    pthread_mutex_lock(&pool.lock);
    know_cpus(&self->cpus);
    for (;;) {
        while (!self->called && !pool.stopping)
            pthread_cond_wait(&self->wake, &pool.lock);
        if (!self->called)
            break;
        self->called = false;
        pool.coming--;
        for (run *r; !pool.stopping && (r = find_run(0));) {
            r->helpers++;
            atomic_fetch_add(&pool.working, 1);
            /* Helpers wake each other as a tree: the caller pays for one, and n are awake after log2(n) steps. */
            helper *a = call_helper(), *b = call_helper();
            pthread_mutex_unlock(&pool.lock);
            wake(a);
            wake(b);
            help(r); /* returns with the lock held */
            atomic_fetch_sub(&pool.working, 1);
            if (--r->helpers == 0)
                pthread_cond_signal(&r->helpers_gone);
        }
        self->next_idle = pool.idle;
        pool.idle = self;
        pool.idle_helpers++;
    }
    pthread_mutex_unlock(&pool.lock);
    return NULL;
}

/* Signals are the application's business, and its threads'.  Faults stay open: a blocked one could not be reported. */
static void block_signals(sigset_t *old)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};
    sigset_t set;
    sigfillset(&set);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&set, faults[i]);
    pthread_sigmask(SIG_BLOCK, &set, old);
}

static bool start_helper(const pthread_attr_t *attr)
{
    helper *h = &helper_slots[pool.helpers];
    if (!h->wake_ready) {
        pthread_cond_init(&h->wake, NULL);
        h->wake_ready = true;
    }
    h->called = true;
#ifdef CK_TEST_HOOKS
    if (atomic_load(&ck_pool_fail_starts) > 0) {
        atomic_fetch_sub(&ck_pool_fail_starts, 1);
        return false;
    }
#endif
    if (pthread_create(&h->thread, attr, helper_main, h))
        return false;
    pool.helpers++;
    pool.coming++;
    return true;
}

/* Starts the helpers that the run could use now and that nobody can wake.  A failure means fewer helpers. */
static void start_missing(const run *r)
{
    int places = r->job->threads - atomic_load(&pool.callers) - atomic_load(&pool.working);
    int missing = (places < r->most_helpers ? places : r->most_helpers) - pool.coming - pool.idle_helpers;
    if (missing <= 0 || pool.stopping || (pool.retry_at && now_ms() < pool.retry_at))
        return;
    sigset_t old;
    block_signals(&old);
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    pool.retry_at = 0;
    for (; missing > 0 && pool.helpers < MAX_HELPERS; missing--) {
        if (!start_helper(&attr)) {
            pool.retry_at = now_ms() + RETRY_MS;
            break;
        }
    }
    pthread_attr_destroy(&attr);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

int ck_pool_helpers(void)
{
    pthread_mutex_lock(&pool.lock);
    int n = pool.helpers;
    pthread_mutex_unlock(&pool.lock);
    return n;
}

void ck_pool_shutdown(void)
{
    if (current)
        return;
    pthread_mutex_lock(&shutdown_lock);
    pthread_mutex_lock(&pool.lock);
    int n = pool.helpers;
    pool.stopping = true;
    for (int i = 0; i < n; i++)
        pthread_cond_signal(&helper_slots[i].wake);
    pthread_mutex_unlock(&pool.lock);
    for (int i = 0; i < n; i++)
        pthread_join(helper_slots[i].thread, NULL);
    pthread_mutex_lock(&pool.lock);
    pool.idle = NULL;
    pool.helpers = pool.idle_helpers = 0;
    pool.retry_at = 0;
    pool.stopping = false;
    pthread_mutex_unlock(&pool.lock);
    pthread_mutex_unlock(&shutdown_lock);
}

/* ---- fork ---- */

static void fork_prepare(void) { pthread_mutex_lock(&pool.lock); }

static void fork_parent(void) { pthread_mutex_unlock(&pool.lock); }

/* Of all threads only the forking one is left, possibly inside a run of its own. */
static void fork_child(void)
{
    ck_worker *outermost = current;
    while (outermost && outermost->outer)
        outermost = outermost->outer;
    atomic_store(&pool.callers, outermost ? 1 : 0);
    atomic_store(&pool.working, 0);
    atomic_store(&pool.open, 0);
    pool.runs = pool.last_run = NULL;
    run *own = outermost ? outermost->run : NULL;
    if (own && own->helpers) {
        own->helpers = 0;
        stop_run(own, CK_STOPPED); /* their chunks will never be finished here */
    }
    if (own && own->linked)
        link_run(own);
    pool.idle = NULL;
    pool.coming = pool.helpers = pool.idle_helpers = 0;
    pool.stopping = false;
    pool.retry_at = 0;
    for (int i = 0; i < MAX_HELPERS && helper_slots[i].wake_ready; i++)
        helper_slots[i].wake_ready = false;
    pthread_mutex_init(&shutdown_lock, NULL);
    pthread_mutex_unlock(&pool.lock);
}

static void start(void)
{
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_atfork(fork_prepare, fork_parent, fork_child);
}

/* ---- running a job ---- */

static int run_serial(run *r)
{
    ck_worker w;
    if (!enter(&w, r, current && current->helper))
        return CK_NO_MEMORY;
    /* Nobody else takes chunks, so that counting them takes no atomic step. */
    for (int64_t chunk = 0; chunk < r->job->chunks && !stopped(&w); chunk++)
        r->job->fn(r->job->ctx, chunk, &w);
    leave(&w);
    return atomic_load(&r->code);
}

/* A caller went: its place may be a helper's, if any run is open. */
static void caller_left(void)
{
    atomic_fetch_sub(&pool.callers, 1);
    if (!atomic_load(&pool.open))
        return;
    pthread_mutex_lock(&pool.lock);
    helper *h = call_helper();
    pthread_mutex_unlock(&pool.lock);
    wake(h);
}

/* Takes the run off the list, so that nobody joins any more, and waits for the chunks already taken. */
static void withdraw(run *r, ck_worker *w)
{
    pthread_mutex_lock(&pool.lock);
    unlink_run(r);
    while (r->helpers) {
        if (!r->job->poll) {
            pthread_cond_wait(&r->helpers_gone, &pool.lock);
            continue;
        }
        wait_for_ms(&r->helpers_gone, WAIT_MS);
        if (r->helpers) {
            pthread_mutex_unlock(&pool.lock);
            stopped(w);
            pthread_mutex_lock(&pool.lock);
        }
    }
    pthread_mutex_unlock(&pool.lock);
}

static int run_parallel(run *r)
{
    ck_worker w;
    if (!enter(&w, r, false))
        return CK_NO_MEMORY;
    pthread_cond_init(&r->helpers_gone, &monotonic);
    pthread_mutex_lock(&pool.lock);
    link_run(r);
    start_missing(r);
    helper *h = call_helper();
    pthread_mutex_unlock(&pool.lock);
    wake(h);
    work(&w);
    withdraw(r, &w);
    pthread_cond_destroy(&r->helpers_gone);
    leave(&w);
    return atomic_load(&r->code);
}

int ck_pool_run(const ck_job *job)
{
    if (job->chunks <= 0)
        return CK_OK;
    int most = job->threads < job->max_workers ? job->threads : job->max_workers;
    if (most > job->chunks)
        most = (int)job->chunks;
    run r = {.job = job, .most_helpers = most - 1, .cpu = most > 1 ? this_cpu() : -1};
    if (current)
        return run_serial(&r); /* this thread is counted already */
    pthread_once(&once, start);
    atomic_fetch_add(&pool.callers, 1);
    int code = most <= 1 ? run_serial(&r) : run_parallel(&r);
    caller_left();
    return code;
}
