#include "scratch.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

/* Stands before every block, on a cache line of its own so that the block keeps its alignment. */
typedef struct header header;
struct header {
    _Alignas(CK_SCRATCH_ALIGN) size_t size; /* of header and block together */
    header *newer, *older;                  /* neighbours in the free list */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static header *newest, *oldest; /* the free list, in order of giving back */
static size_t retained;         /* sum of the sizes in the list */

#ifdef CK_TEST_HOOKS
int (*_Atomic ck_scratch_fail)(size_t bytes);
#endif

/* The list is whole whenever the lock is free, and the memory in it is the child's own after a fork: holding the
 * lock across the fork is all it takes. */
static void fork_prepare(void) { pthread_mutex_lock(&lock); }
static void fork_done(void) { pthread_mutex_unlock(&lock); }
static void start(void) { pthread_atfork(fork_prepare, fork_done, fork_done); }

/* Sizes come in steps of an eighth of their power of two (4 KiB at least), so that calls of nearly equal needs share
 * their blocks and the list stays short.  Returns 0 for a size beyond all memory. */
static size_t rounded(size_t bytes)
{
    if (bytes > (size_t)PTRDIFF_MAX / 2)
        return 0;
    size_t size = bytes + sizeof(header), step = 4096;
    while (size / step >= 16)
        step *= 2;
    return (size + step - 1) / step * step;
}

static void unlink_block(header *h)
{
    *(h->newer ? &h->newer->older : &newest) = h->older;
    *(h->older ? &h->older->newer : &oldest) = h->newer;
    retained -= h->size;
}

/* Takes blocks off the old end until no more than `keep` bytes are left; they are returned chained by `older`,
 * because freeing large blocks is a system call that nobody should wait for with the lock held. */
static header *take_surplus(size_t keep)
{
    header *surplus = NULL;
    while (retained > keep) {
        header *h = oldest;
        unlink_block(h);
        h->older = surplus;
        surplus = h;
    }
    return surplus;
}

static void free_chain(header *h)
{
    while (h) {
        header *next = h->older;
        free(h);
        h = next;
    }
}

void *ck_scratch_get(size_t bytes)
{
#ifdef CK_TEST_HOOKS
    int (*fail)(size_t) = atomic_load(&ck_scratch_fail);
    if (fail && fail(bytes))
        return NULL;
#endif
    pthread_once(&once, start);
    size_t size = rounded(bytes);
    if (size == 0)
        return NULL;
    pthread_mutex_lock(&lock);
    header *h = newest;
    while (h && (h->size < size || h->size / 2 > size)) /* no large block is spent on a small need */
        h = h->older;
    if (h)
        unlink_block(h);
    pthread_mutex_unlock(&lock);
    if (!h) {
        h = aligned_alloc(CK_SCRATCH_ALIGN, size);
        if (!h)
            return NULL;
        h->size = size;
    }
    return h + 1;
}

void ck_scratch_put(void *block)
{
    if (!block)
        return;
    header *h = (header *)block - 1;
    if (h->size > CK_SCRATCH_KEEP) {
        free(h);
        return;
    }
    pthread_mutex_lock(&lock);
    h->newer = NULL;
    h->older = newest;
    *(newest ? &newest->newer : &oldest) = h;
    newest = h;
    retained += h->size;
    header *surplus = take_surplus(CK_SCRATCH_KEEP);
    pthread_mutex_unlock(&lock);
    free_chain(surplus);
}

void ck_scratch_clear(void)
{
    pthread_mutex_lock(&lock);
    header *surplus = take_surplus(0);
    pthread_mutex_unlock(&lock);
    free_chain(surplus);
}

size_t ck_scratch_retained(void)
{
    pthread_mutex_lock(&lock);
    size_t bytes = retained;
    pthread_mutex_unlock(&lock);
    return bytes;
}
