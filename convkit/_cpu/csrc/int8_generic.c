/* The int8 kernels of level generic. */
#include "int8_portable.h"

#define LEVEL CK_GENERIC
#define LEVEL_NAME "generic"
#define SUFFIX generic
#define BYTES_ROWS 4
#define BYTES_DOT exact_dot
#define SATURATES false
#include "int8_body.inc"
