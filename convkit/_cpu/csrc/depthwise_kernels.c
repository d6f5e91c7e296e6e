#include "depthwise_kernels.h"

#include <stddef.h>

extern const ck_depthwise_kernel ck_depthwise_f32_generic, ck_depthwise_f64_generic;
#ifdef CK_WITH_X86
extern const ck_depthwise_kernel ck_depthwise_f32_avx2, ck_depthwise_f64_avx2;
extern const ck_depthwise_kernel ck_depthwise_f32_avx512, ck_depthwise_f64_avx512;
#endif

const ck_depthwise_kernel *const ck_depthwise_kernels[] = {
    &ck_depthwise_f32_generic, &ck_depthwise_f64_generic,
#ifdef CK_WITH_X86
    &ck_depthwise_f32_avx2,    &ck_depthwise_f64_avx2,    &ck_depthwise_f32_avx512, &ck_depthwise_f64_avx512,
#endif
    NULL,
};

const ck_depthwise_kernel *ck_depthwise_kernel_for(ck_type arithmetic, ck_isa isa)
{
    const ck_depthwise_kernel *best = NULL;
    for (int i = 0; ck_depthwise_kernels[i]; i++)
        if (ck_depthwise_kernels[i]->arithmetic == arithmetic && ck_isa_has(isa, ck_depthwise_kernels[i]->isa))
            best = ck_depthwise_kernels[i];
    return best;
}
