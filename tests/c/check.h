/* The least that a C test driver needs: CHECK in a test, RUN for each test, `return summary();` at the end of main. */
#ifndef CHECK_H
#define CHECK_H

#include <stdatomic.h>
#include <stdio.h>

#if defined(__SANITIZE_THREAD__)
#define UNDER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define UNDER_TSAN 1
#endif
#endif
#ifndef UNDER_TSAN
#define UNDER_TSAN 0
#endif

static atomic_int check_faults; /* in the running test; any thread may add */
static int check_passed, check_failed;

#define CHECK(condition)                                                                                              \
    ((condition) ? (void)0                                                                                            \
                 : (atomic_fetch_add(&check_faults, 1),                                                               \
                    (void)fprintf(stderr, "%s:%d: %s: not so: %s\n", __FILE__, __LINE__, __func__, #condition)))

#define RUN(test) check_run(test, #test)

static void check_run(void (*test)(void), const char *name)
{
    atomic_store(&check_faults, 0);
    test();
    int ok = atomic_load(&check_faults) == 0;
    *(ok ? &check_passed : &check_failed) += 1;
    printf("%s %s\n", ok ? "ok    " : "FAILED", name);
    fflush(stdout);
}

static int summary(void)
{
    printf("%d passed, %d failed\n", check_passed, check_failed);
    return check_failed != 0;
}

#endif
