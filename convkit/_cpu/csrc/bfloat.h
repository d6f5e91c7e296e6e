/* bfloat16 and float32, bit by bit. */
#ifndef CK_BFLOAT_H
#define CK_BFLOAT_H

#include <stdint.h>
#include <string.h>

static inline float ck_float_of_bfloat(uint16_t value)
{
    uint32_t bits = (uint32_t)value << 16;
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

/* Rounds half to even. */
static inline uint16_t ck_bfloat_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

#endif
