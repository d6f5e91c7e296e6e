/* The filter in panels as wide as the register tile: one row of `columns` numbers per term. */
#ifndef CK_PANELS_H
#define CK_PANELS_H

#include "direct.h"

/* The distance of two prefetches: nothing goes wrong where lines are longer. */
enum { CACHE_LINE = 64 };

static inline int64_t ck_panels_of(const ck_direct *d) { return ck_ceil_div(d->out_channels, d->kernel->columns); }

/* Packs the terms k0 .. k1 - 1 of the phase's patch for neighbouring panels of a group, `panel_step` elements from one
 * panel to the next; columns beyond the group's last channel become zeros. */
void ck_pack_panels(const ck_direct *direct, const ck_direct_phase *phase, int64_t group, int64_t panel0, int64_t panels,
                    int64_t k0, int64_t k1, char *to, int64_t panel_step);

#endif
