#include "int8_kernels.h"

#include <stddef.h>

extern const ck_int8_kernel ck_int8_generic;
#ifdef CK_WITH_X86
extern const ck_int8_kernel ck_int8_avx2, ck_int8_avx512, ck_int8_avx512vnni;
#ifndef CK_WITHOUT_AVX2VNNI
extern const ck_int8_kernel ck_int8_avx2vnni;
#endif
#endif

const ck_int8_kernel *const ck_int8_kernels[] = {
    &ck_int8_generic,
#ifdef CK_WITH_X86
    &ck_int8_avx2,
#ifndef CK_WITHOUT_AVX2VNNI
    &ck_int8_avx2vnni,
#endif
    &ck_int8_avx512, &ck_int8_avx512vnni,
#endif
    NULL,
};

const ck_int8_kernel *ck_int8_kernel_for(ck_isa isa)
{
    const ck_int8_kernel *best = NULL;
    for (int i = 0; ck_int8_kernels[i]; i++)
        if (ck_isa_has(isa, ck_int8_kernels[i]->isa))
            best = ck_int8_kernels[i];
    return best;
}
