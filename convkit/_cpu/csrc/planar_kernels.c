#include "planar_kernels.h"

#include <stddef.h>

extern const ck_planar_kernel ck_planar_f32_generic, ck_planar_f64_generic;
#ifdef CK_WITH_X86
extern const ck_planar_kernel ck_planar_f32_avx2, ck_planar_f64_avx2;
extern const ck_planar_kernel ck_planar_f32_avx512, ck_planar_f64_avx512;
#endif

const ck_planar_kernel *const ck_planar_kernels[] = {
    &ck_planar_f32_generic, &ck_planar_f64_generic,
#ifdef CK_WITH_X86
    &ck_planar_f32_avx2,    &ck_planar_f64_avx2,    &ck_planar_f32_avx512, &ck_planar_f64_avx512,
#endif
    NULL,
};

const ck_planar_kernel *ck_planar_kernel_for(ck_type arithmetic, ck_isa isa)
{
    const ck_planar_kernel *best = NULL;
    for (int i = 0; ck_planar_kernels[i]; i++)
        if (ck_planar_kernels[i]->arithmetic == arithmetic && ck_isa_has(isa, ck_planar_kernels[i]->isa))
            best = ck_planar_kernels[i];
    return best;
}
