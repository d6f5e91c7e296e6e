/* Scratch memory that is reused between calls: a process-wide free list of 64-byte aligned blocks.
 *
 * Fresh memory costs a page fault per 4 KiB, more than packing into it; a block that was just given back is also
 * still in a cache.  At most CK_SCRATCH_KEEP bytes lie unused in the list, the least recently used ones go first.
 * Safe from any thread, and after a fork in the child.
 */
#ifndef CK_SCRATCH_H
#define CK_SCRATCH_H

#include <stdatomic.h>
#include <stddef.h>

enum { CK_SCRATCH_ALIGN = 64 };
#define CK_SCRATCH_KEEP ((size_t)64 << 20)

/* At least `bytes` bytes of undefined content, or NULL when there is no memory.  0 bytes give a valid block. */
void *ck_scratch_get(size_t bytes);

/* Gives a block back; NULL is ignored. */
void ck_scratch_put(void *block);

/* Frees every block that is not in use. */
void ck_scratch_clear(void);

/* Bytes in the free list, the headers of the blocks included. */
size_t ck_scratch_retained(void);

#ifdef CK_TEST_HOOKS
/* When set, a get for which it returns non-zero fails. */
extern int (*_Atomic ck_scratch_fail)(size_t bytes);
#endif

#endif
