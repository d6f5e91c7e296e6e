/* One process-wide pool of native threads.
 *
 * A job is a number of chunks.  The calling thread works on them too; helpers, asleep between jobs, join it.  All
 * callers of the process share the helpers: one joins a job only while the helpers at work and the callers inside
 * ck_pool_run are together fewer than the job's `threads`.  So a lone caller with threads = 4 gets three helpers, and
 * two callers with threads = 2 get none.  A helper leaves a job between two chunks when new callers came in.
 *
 * Every chunk runs under the default floating-point environment (round to nearest, subnormals kept, no traps); the
 * caller's own, exception flags included, is back when ck_pool_run returns.
 *
 * ck_pool_run inside a chunk runs serially, on the participant that called it.  After a fork the child starts with no
 * helpers and makes its own when it needs them.  A thread may fork inside its own ck_pool_run (a `poll` that runs user
 * code can), not inside a chunk on a helper; if helpers were in the job then, their chunks are lost to the child, and
 * there ck_pool_run returns CK_STOPPED.
 */
#ifndef CK_POOL_H
#define CK_POOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CK_OK = 0, CK_STOPPED = 1, CK_NO_MEMORY = 2 };

typedef struct ck_worker ck_worker; /* one participant of one job: the caller or a helper */
typedef void (*ck_chunk_fn)(void *ctx, int64_t chunk, ck_worker *worker);
typedef int (*ck_poll_fn)(void *poll_ctx);

typedef struct {
    ck_chunk_fn fn;
    void *ctx;
    int64_t chunks;       /* each of 0 .. chunks - 1 runs exactly once, unless the job is stopped */
    int threads;          /* limit of this call, the caller included, >= 1 */
    int max_workers;      /* >= 1: at most this many participants at once (workspace), the caller included */
    size_t scratch_bytes; /* 64-byte aligned scratch that every participant gets; may be 0 */
    ck_poll_fn poll;      /* may be NULL; called on the calling thread only, without any lock, not before 20 ms have */
    void *poll_ctx;       /* passed and at most every 20 ms; non-zero stops the job */
} ck_job;

/* Runs the job and returns when no chunk of it is running: CK_OK; CK_STOPPED (poll said so, or the job around a nested
 * one was stopped); CK_NO_MEMORY (no scratch for the caller); or the code of ck_worker_fail.  The first reason wins. */
int ck_pool_run(const ck_job *job);

/* The participant's scratch, NULL if scratch_bytes is 0.  It keeps its content from chunk to chunk of one job. */
void *ck_worker_scratch(const ck_worker *worker);

/* Whether to give up: for chunks longer than a few milliseconds, between their steps.  Polls when that is due. */
bool ck_worker_stop(ck_worker *worker);

/* Stops the job with an error: a code above CK_NO_MEMORY, or the result of a nested ck_pool_run to pass it on. */
void ck_worker_fail(ck_worker *worker, int code);

/* Helper threads alive. */
int ck_pool_helpers(void);

/* Ends and joins all helpers, those in a job after it; the next job starts new ones.  Does nothing inside a chunk. */
void ck_pool_shutdown(void);

#ifdef CK_TEST_HOOKS
extern atomic_int ck_pool_fail_starts; /* so many coming thread starts fail */
#endif

#endif
