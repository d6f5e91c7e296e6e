#include "kernels.h"

#include <stddef.h>

extern const ck_dot_kernel ck_dot_f32_generic, ck_dot_f64_generic;
#ifdef CK_WITH_X86
extern const ck_dot_kernel ck_dot_f32_avx2, ck_dot_f64_avx2, ck_dot_f32_avx512, ck_dot_f64_avx512;
#endif

const ck_dot_kernel *const ck_dot_kernels[] = {
    &ck_dot_f32_generic, &ck_dot_f64_generic,
#ifdef CK_WITH_X86
    &ck_dot_f32_avx2,    &ck_dot_f64_avx2,    &ck_dot_f32_avx512, &ck_dot_f64_avx512,
#endif
    NULL,
};

const ck_dot_kernel *ck_dot_kernel_for(ck_type arithmetic, ck_isa isa)
{
    const ck_dot_kernel *best = NULL;
    for (int i = 0; ck_dot_kernels[i]; i++)
        if (ck_dot_kernels[i]->arithmetic == arithmetic && ck_dot_kernels[i]->isa <= isa)
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
    bool half = array->type == CK_F16 && !array->swapped;
    return half && kernel->store_half ? kernel->store_half : ck_storer(array, kernel->arithmetic);
}

ck_isa ck_best_isa(void)
{
#ifdef CK_WITH_X86
    /* The compiler's run-time library asks the operating system too (XGETBV).  Every CPU with AVX2 has F16C. */
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return CK_GENERIC;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
        return CK_AVX2;
    return CK_AVX512;
#else
    return CK_GENERIC;
#endif
}

const char *ck_isa_name(ck_isa isa)
{
    static const char *const names[CK_ISAS] = {"generic", "avx2", "avx512"};
    return isa >= 0 && isa < CK_ISAS ? names[isa] : "unknown";
}
