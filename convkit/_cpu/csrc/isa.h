/* The ISA levels: what each builds on, and which of them this CPU can run. */
#ifndef CK_ISA_H
#define CK_ISA_H

#include <stdbool.h>

/* A level comes after the one it builds on.  The order is partial: AVX2VNNI is no part of AVX512. */
typedef enum { CK_GENERIC, CK_AVX2, CK_AVX2VNNI, CK_AVX512, CK_AVX512VNNI, CK_AVX512BF16, CK_ISAS } ck_isa;

const char *ck_isa_name(ck_isa isa);

/* Whether code of level `part` runs wherever code of `isa` does. */
bool ck_isa_has(ck_isa isa, ck_isa part);

/* Whether the level is part of this build; what no compiler flag was there for is not. */
bool ck_isa_is_built(ck_isa isa);

/* Whether it is, and the CPU has the level and all that it builds on, and the operating system saves their registers. */
bool ck_isa_runs(ck_isa isa);

/* The last of the levels that run. */
ck_isa ck_best_isa(void);

#endif
