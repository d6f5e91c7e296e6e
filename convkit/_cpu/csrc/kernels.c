#include "kernels.h"

#include <stddef.h>

extern const ck_dot_kernel ck_dot_f32_generic, ck_dot_f64_generic;
#ifdef CK_WITH_X86
extern const ck_dot_kernel ck_dot_f32_avx2, ck_dot_f64_avx2, ck_dot_f32_avx512, ck_dot_f64_avx512;
#ifndef CK_WITHOUT_AVX512BF16
extern const ck_dot_kernel ck_dot_bf16_avx512bf16;
#endif
#endif

const ck_dot_kernel *const ck_dot_kernels[] = {
    &ck_dot_f32_generic, &ck_dot_f64_generic,
#ifdef CK_WITH_X86
    &ck_dot_f32_avx2,    &ck_dot_f64_avx2,    &ck_dot_f32_avx512, &ck_dot_f64_avx512,
#ifndef CK_WITHOUT_AVX512BF16
    &ck_dot_bf16_avx512bf16,
#endif
#endif
    NULL,
};

const ck_dot_kernel *ck_dot_kernel_for(ck_type arithmetic, ck_isa isa)
{
    const ck_dot_kernel *best = NULL;
    for (int i = 0; ck_dot_kernels[i]; i++)
        if (ck_dot_kernels[i]->arithmetic == arithmetic && ck_isa_has(isa, ck_dot_kernels[i]->isa))
            best = ck_dot_kernels[i];
    return best;
}

ck_load_fn ck_loader_for(const ck_array *array, const ck_dot_kernel *kernel)
{
    bool half = array->type == CK_F16 && !array->swapped;
    return half && kernel->load_half ? kernel->load_half : ck_loader(array, kernel->arithmetic);
}

ck_store_fn ck_storer_for(const ck_array *array, const ck_dot_kernel *kernel)
{
    bool half = array->type == (kernel->arithmetic == CK_BF16 ? CK_BF16 : CK_F16) && !array->swapped;
    return half && kernel->store_half ? kernel->store_half : ck_storer(array, kernel->arithmetic);
}
