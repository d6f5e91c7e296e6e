/* The register tile of level avx512vnni, with what vpdpbusd does in plain C, for machines that lack the instruction. */
#define VECTOR_LANES 16
#include "int8_portable.h"

#define LEVEL CK_GENERIC
#define LEVEL_NAME "generic"
#define SUFFIX lanes16
#define BYTES_ROWS 14
#define BYTES_DOT exact_dot
#define SATURATES false
#include "int8_body.inc"
