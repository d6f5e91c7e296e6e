#include "kernels.h"

#include <stddef.h>

#ifdef CK_WITH_X86
#include <cpuid.h>
#endif

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
    bool half = array->type == CK_F16 && !array->swapped;
    return half && kernel->store_half ? kernel->store_half : ck_storer(array, kernel->arithmetic);
}

bool ck_isa_has(ck_isa isa, ck_isa part)
{
#define LEVEL(isa) (1u << (isa))
    static const unsigned parts[CK_ISAS] = {
        [CK_GENERIC] = LEVEL(CK_GENERIC),
        [CK_AVX2] = LEVEL(CK_GENERIC) | LEVEL(CK_AVX2),
        [CK_AVX2VNNI] = LEVEL(CK_GENERIC) | LEVEL(CK_AVX2) | LEVEL(CK_AVX2VNNI),
        [CK_AVX512] = LEVEL(CK_GENERIC) | LEVEL(CK_AVX2) | LEVEL(CK_AVX512),
        [CK_AVX512VNNI] = LEVEL(CK_GENERIC) | LEVEL(CK_AVX2) | LEVEL(CK_AVX512) | LEVEL(CK_AVX512VNNI),
    };
    return parts[isa] & LEVEL(part);
#undef LEVEL
}

#ifdef CK_WITH_X86
/* Asked of the CPU itself, since not every compiler's __builtin_cpu_supports knows the name. */
static bool has_avx_vnni(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4);
}
#endif

bool ck_isa_runs(ck_isa isa)
{
#ifdef CK_WITH_X86
    /* The compiler's run-time library asks the operating system too (XGETBV).  Every CPU with AVX2 has F16C. */
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    switch (isa) {
    case CK_GENERIC:
        return true;
    case CK_AVX2:
        return avx2;
    case CK_AVX2VNNI:
        return avx2 && has_avx_vnni();
    case CK_AVX512:
        return avx512;
    case CK_AVX512VNNI:
        return avx512 && __builtin_cpu_supports("avx512vnni");
    default:
        return false;
    }
#else
    return isa == CK_GENERIC;
#endif
}

ck_isa ck_best_isa(void)
{
    ck_isa best = CK_GENERIC;
    for (int isa = CK_GENERIC; isa < CK_ISAS; isa++)
        if (ck_isa_runs((ck_isa)isa))
            best = (ck_isa)isa;
    return best;
}

const char *ck_isa_name(ck_isa isa)
{
    static const char *const names[CK_ISAS] = {"generic", "avx2", "avx2vnni", "avx512", "avx512vnni"};
    return isa >= 0 && isa < CK_ISAS ? names[isa] : "unknown";
}
