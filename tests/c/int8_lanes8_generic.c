/* The register tile of level avx2vnni, with what vpdpbusd does in plain C, for machines that lack the instruction. */
#define VECTOR_LANES 8
#include "int8_portable.h"

#define LEVEL CK_GENERIC
#define LEVEL_NAME "generic"
#define SUFFIX lanes8
#define BYTES_ROWS 6
#define BYTES_DOT exact_dot
#define SATURATES false
#include "int8_body.inc"
