#include "winograd_kernels.h"

#include <stddef.h>

/* One table for each level and dtype. */
#ifdef CK_WITH_X86
#define TABLES(with)                                                                                                     \
    with(f32_generic) with(f64_generic) with(f32_avx2) with(f64_avx2) with(f32_avx512) with(f64_avx512)
#else
#define TABLES(with) with(f32_generic) with(f64_generic)
#endif

#define DECLARED(name) extern const ck_winograd_kernel ck_winograd_##name[CK_TILE_SIZES];
TABLES(DECLARED)

#define LISTED(name) &ck_winograd_##name[0], &ck_winograd_##name[1],
const ck_winograd_kernel *const ck_winograd_kernels[] = {TABLES(LISTED) NULL};

const ck_winograd_kernel *ck_winograd_kernel_for(ck_type arithmetic, ck_isa isa, int64_t tile)
{
    const ck_winograd_kernel *best = NULL;
    for (int i = 0; ck_winograd_kernels[i]; i++) {
        const ck_winograd_kernel *kernel = ck_winograd_kernels[i];
        if (kernel->arithmetic == arithmetic && kernel->tile == tile && ck_isa_has(isa, kernel->isa))
            best = kernel;
    }
    return best;
}
