/* In place of the file of this name in csrc/: a CPU of level avx512bf16, which has nothing else but the generic level. */
#include "isa.h"

const char *ck_isa_name(ck_isa isa)
{
    static const char *const names[CK_ISAS] = {"generic", "avx2", "avx2vnni", "avx512", "avx512vnni", "avx512bf16"};
    return names[isa];
}

bool ck_isa_has(ck_isa isa, ck_isa part) { return part == isa || part == CK_GENERIC; }

bool ck_isa_runs(ck_isa isa) { return isa == CK_GENERIC || isa == CK_AVX512BF16; }

ck_isa ck_best_isa(void) { return CK_AVX512BF16; }

bool ck_isa_is_built(ck_isa isa) { return ck_isa_runs(isa); }
