/* What this machine can do: fused multiply-adds in registers, and copying memory.  Reads one request a line,

       fma float32|float64 THREADS SECONDS      answers GFLOP/s, a fused multiply-add counted as two
       copy BYTES THREADS SECONDS               answers GB/s, bytes read and written, both counted in BYTES

   and sleeps in between, so that a benchmark can take the machine's measure in the same breath as its own.  BYTES is the
   footprint of all threads together: what fits a cache is measured in that cache.  gcc -O2 -pthread peak.c; the widest
   instructions that the CPU has are chosen at run time. */
#define _GNU_SOURCE
#include <immintrin.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_THREADS = 256, CHAINS = 10, REPEATS = 2000 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Ten independent chains hide the latency of 4 cycles at two a cycle.  They are ten variables and no array, which gcc
   would keep in memory; the empty asm keeps it from seeing that nobody reads them. */
#define FMA_LOOP(NAME, TARGET, VECTOR, SET1, FMADD)                                        \
    __attribute__((target(TARGET))) static void NAME(void)                                 \
    {                                                                                      \
        VECTOR x = SET1(0.999), y = SET1(1e-3), a0 = x, a1 = x, a2 = x, a3 = x, a4 = x;    \
        VECTOR a5 = x, a6 = x, a7 = x, a8 = x, a9 = x;                                     \
        for (int r = 0; r < REPEATS; r++) {                                                \
            a0 = FMADD(a0, x, y), a1 = FMADD(a1, x, y), a2 = FMADD(a2, x, y);              \
            a3 = FMADD(a3, x, y), a4 = FMADD(a4, x, y), a5 = FMADD(a5, x, y);              \
            a6 = FMADD(a6, x, y), a7 = FMADD(a7, x, y), a8 = FMADD(a8, x, y);              \
            a9 = FMADD(a9, x, y);                                                          \
            __asm__ volatile("" : "+v"(a0), "+v"(a1), "+v"(a2), "+v"(a3), "+v"(a4));       \
            __asm__ volatile("" : "+v"(a5), "+v"(a6), "+v"(a7), "+v"(a8), "+v"(a9));       \
        }                                                                                  \
    }

FMA_LOOP(avx512_f32, "avx512f", __m512, _mm512_set1_ps, _mm512_fmadd_ps)
FMA_LOOP(avx512_f64, "avx512f", __m512d, _mm512_set1_pd, _mm512_fmadd_pd)
FMA_LOOP(avx2_f32, "avx2,fma", __m256, _mm256_set1_ps, _mm256_fmadd_ps)
FMA_LOOP(avx2_f64, "avx2,fma", __m256d, _mm256_set1_pd, _mm256_fmadd_pd)

typedef struct {
    void (*loop)(void); /* of REPEATS * CHAINS fused multiply-adds; NULL: copy */
    char *from, *to;
    size_t bytes; /* to copy */
    double seconds, done, taken;
    pthread_barrier_t *start;
} Work;

static void *run(void *argument)
{
    Work *w = argument;
    pthread_barrier_wait(w->start);
    double begin = now();
    do {
        if (w->loop) {
            w->loop();
            w->done += (double)REPEATS * CHAINS;
        } else {
            memcpy(w->to, w->from, w->bytes);
            __asm__ volatile("" : : "r"(w->to) : "memory");
            w->done += 2.0 * (double)w->bytes;
        }
        w->taken = now() - begin;
    } while (w->taken < w->seconds);
    return NULL;
}

/* As the contestants are, kept to as many processors as there are threads: the last ones. */
static void pin(const cpu_set_t *all, int threads)
{
    cpu_set_t some;
    CPU_ZERO(&some);
    for (int i = CPU_SETSIZE - 1; i >= 0 && threads > 0; i--)
        if (CPU_ISSET(i, all)) {
            CPU_SET(i, &some);
            threads--;
        }
    sched_setaffinity(0, sizeof some, &some);
}

/* The sum of the threads' own rates. */
static double measure(Work like, int threads)
{
    static Work work[MAX_THREADS];
    static pthread_t ids[MAX_THREADS];
    pthread_barrier_t start;
    double rate = 0;
    pthread_barrier_init(&start, NULL, (unsigned)threads);
    for (int i = 0; i < threads; i++) {
        work[i] = like;
        work[i].start = &start;
        if (!like.loop) {
            work[i].from = malloc(like.bytes);
            work[i].to = malloc(like.bytes);
            if (!work[i].from || !work[i].to)
                exit(1);
            memset(work[i].from, 1, like.bytes);
            memset(work[i].to, 1, like.bytes);
        }
        if (i && pthread_create(&ids[i], NULL, run, &work[i]))
            exit(1);
    }
    run(&work[0]);
    for (int i = 0; i < threads; i++) {
        if (i)
            pthread_join(ids[i], NULL);
        rate += work[i].done / work[i].taken;
        if (!like.loop) {
            free(work[i].from);
            free(work[i].to);
        }
    }
    pthread_barrier_destroy(&start);
    return rate;
}

int main(void)
{
    char line[128], what[32];
    cpu_set_t all;
    sched_getaffinity(0, sizeof all, &all);
    int wide = __builtin_cpu_supports("avx512f");
    if (!wide && !(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))) {
        fputs("this CPU has neither AVX-512 nor AVX2 with FMA\n", stderr);
        return 1;
    }
    while (fgets(line, sizeof line, stdin)) {
        int threads;
        size_t bytes;
        double seconds, rate;
        if (sscanf(line, "fma %31s %d %lf", what, &threads, &seconds) == 3 && threads > 0 && threads <= MAX_THREADS) {
            pin(&all, threads);
            int f64 = !strcmp(what, "float64"), lanes = (wide ? 16 : 8) >> f64;
            void (*loop)(void) = wide ? (f64 ? avx512_f64 : avx512_f32) : (f64 ? avx2_f64 : avx2_f32);
            rate = 2e-9 * lanes * measure((Work){.loop = loop, .seconds = seconds}, threads);
        } else if (sscanf(line, "copy %zu %d %lf", &bytes, &threads, &seconds) == 3 && threads > 0 &&
                   threads <= MAX_THREADS) {
            pin(&all, threads);
            size_t each = bytes / 2 / (size_t)threads;
            rate = 1e-9 * measure((Work){.bytes = each ? each : 1, .seconds = seconds}, threads);
        } else {
            fprintf(stderr, "not a request: %s", line);
            return 1;
        }
        printf("%.3f\n", rate);
        fflush(stdout);
    }
    return 0;
}
