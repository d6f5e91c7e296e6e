#include "isa.h"

#ifdef CK_WITH_X86
#include <cpuid.h>
#endif

static const struct {
    const char *name;
    ck_isa base;
} LEVELS[CK_ISAS] = {
    [CK_GENERIC] = {"generic", CK_GENERIC},      [CK_AVX2] = {"avx2", CK_GENERIC},
    [CK_AVX2VNNI] = {"avx2vnni", CK_AVX2},       [CK_AVX512] = {"avx512", CK_AVX2},
    [CK_AVX512VNNI] = {"avx512vnni", CK_AVX512}, [CK_AVX512BF16] = {"avx512bf16", CK_AVX512VNNI},
};

bool ck_isa_is_built(ck_isa isa)
{
    switch (isa) {
    case CK_GENERIC: return true;
#ifdef CK_WITH_X86
#ifdef CK_WITHOUT_AVX2VNNI
    case CK_AVX2VNNI: return false;
#endif
#ifdef CK_WITHOUT_AVX512BF16
    case CK_AVX512BF16: return false;
#endif
    default: return true;
#else
    default: return false;
#endif
    }
}

const char *ck_isa_name(ck_isa isa) { return LEVELS[isa].name; }

bool ck_isa_has(ck_isa isa, ck_isa part)
{
    while (isa > part)
        isa = LEVELS[isa].base;
    return isa == part;
}

#ifdef CK_WITH_X86

/* AVX-VNNI, which not every compiler's __builtin_cpu_supports knows; its registers are those of AVX2. */
static bool has_avx_vnni(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && a >> 4 & 1;
}

/* Whether the CPU has what the level adds.  The compiler's run-time library asks the operating system too (XGETBV). */
static bool has_addition(ck_isa isa)
{
    switch (isa) {
    case CK_AVX2: return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case CK_AVX2VNNI: return has_avx_vnni();
    case CK_AVX512:
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    case CK_AVX512VNNI: return __builtin_cpu_supports("avx512vnni");
    case CK_AVX512BF16: return __builtin_cpu_supports("avx512bf16");
    default: return false;
    }
}

bool ck_isa_runs(ck_isa isa)
{
    __builtin_cpu_init();
    bool runs = true;
    for (; isa != CK_GENERIC; isa = LEVELS[isa].base)
        runs = runs && ck_isa_is_built(isa) && has_addition(isa);
    return runs;
}

#else

bool ck_isa_runs(ck_isa isa) { return isa == CK_GENERIC; }

#endif

ck_isa ck_best_isa(void)
{
    ck_isa isa = CK_ISAS - 1;
    while (!ck_isa_runs(isa))
        isa--;
    return isa;
}
