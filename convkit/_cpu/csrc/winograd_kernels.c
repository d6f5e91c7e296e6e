#include "winograd_kernels.h"

#include <stddef.h>

extern const ck_winograd_kernel ck_winograd_f32_generic, ck_winograd_f64_generic;
#ifdef CK_WITH_X86
extern const ck_winograd_kernel ck_winograd_f32_avx2, ck_winograd_f64_avx2;
extern const ck_winograd_kernel ck_winograd_f32_avx512, ck_winograd_f64_avx512;
#endif

const ck_winograd_kernel *const ck_winograd_kernels[] = {
    &ck_winograd_f32_generic, &ck_winograd_f64_generic,
#ifdef CK_WITH_X86
    &ck_winograd_f32_avx2,    &ck_winograd_f64_avx2,    &ck_winograd_f32_avx512, &ck_winograd_f64_avx512,
#endif
    NULL,
};

const ck_winograd_kernel *ck_winograd_kernel_for(ck_type arithmetic, ck_isa isa)
{
    const ck_winograd_kernel *best = NULL;
    for (int i = 0; ck_winograd_kernels[i]; i++)
        if (ck_winograd_kernels[i]->arithmetic == arithmetic && ck_isa_has(isa, ck_winograd_kernels[i]->isa))
            best = ck_winograd_kernels[i];
    return best;
}
