/* The default floating-point environment for a while, and the thread's own back afterwards.
 *
 * On x86-64 the whole environment includes the x87 unit, whose instructions for it cost more than all the rest of a
 * serial job.  It is nearly always in its default state already; then only MXCSR (rounding, DAZ, FTZ, traps and flags
 * of SSE and AVX) has to change.
 */
#ifndef CK_FPENV_H
#define CK_FPENV_H

#include <fenv.h>
#include <stdbool.h>
#include <stdint.h>

#if defined(__x86_64__)
#include <xmmintrin.h>

enum { CK_MXCSR_DEFAULT = 0x1f80 };

typedef struct {
    bool x87_default;
    unsigned mxcsr; /* if x87_default, else: */
    fenv_t whole;
} ck_fpenv;

static inline bool ck_x87_is_default(void)
{
    uint16_t control, status;
    __asm__ volatile("fnstcw %0" : "=m"(control));
    __asm__ volatile("fnstsw %0" : "=m"(status));
    return control == 0x037f && (status & 0x3f) == 0; /* no exception flag is set */
}

static inline void ck_fpenv_default(ck_fpenv *saved)
{
    saved->x87_default = ck_x87_is_default();
    if (saved->x87_default) {
        saved->mxcsr = _mm_getcsr();
        _mm_setcsr(CK_MXCSR_DEFAULT);
    } else {
        fegetenv(&saved->whole);
        fesetenv(FE_DFL_ENV);
    }
}

static inline void ck_fpenv_restore(const ck_fpenv *saved)
{
    if (!saved->x87_default) {
        fesetenv(&saved->whole);
        return;
    }
    if (!ck_x87_is_default()) /* long double arithmetic in between raised flags */
        fesetenv(FE_DFL_ENV);
    _mm_setcsr(saved->mxcsr);
}

#else

typedef fenv_t ck_fpenv;

static inline void ck_fpenv_default(ck_fpenv *saved)
{
    fegetenv(saved);
    fesetenv(FE_DFL_ENV);
}

static inline void ck_fpenv_restore(const ck_fpenv *saved) { fesetenv(saved); }

#endif
#endif
