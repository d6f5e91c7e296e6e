/* In place of the file of this name in csrc/: level avx512bf16 on any CPU. */
#define ISA_NAME "avx512bf16"
#define ISA_LEVEL CK_AVX512BF16
#define ISA_SUFFIX avx512bf16
#include "emulated.h"
