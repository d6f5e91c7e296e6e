// Runs simple CUDA kernels on the CPU, for tests: what a kernel's source needs from CUDA, and how a grid is executed.
//
// Blocks run one after the other.  The threads of a block are fibers that take turns at __syncthreads(); a kernel
// without barriers runs its threads in a plain loop.  Every second block runs its threads in reverse order, and shared
// memory holds rubbish at the start of each block, so that a missing barrier or initialisation shows in the results.
// There are no warps, no races between blocks, and nothing can be said of speed.
#pragma once

#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <type_traits>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#define SHIM_ASAN 1
#include <sanitizer/common_interface_defs.h>
#else
#define SHIM_ASAN 0
#endif

#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
// The sanitizer does not watch variables in sections of their own.
#if SHIM_ASAN
#define __shared__ static
#else
#define __shared__ static __attribute__((section("shim_shared")))
#endif

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
};
struct __align__(8) int2 {
    int x, y;
};
struct __align__(8) uint2 {
    unsigned x, y;
};
struct __align__(16) int4 {
    int x, y, z, w;
};
struct __align__(16) uint4 {
    unsigned x, y, z, w;
};
struct __align__(8) float2 {
    float x, y;
};
struct __align__(16) float4 {
    float x, y, z, w;
};

static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;

// The compiler is told not to contract and not to reorder; these say it once more where it matters.
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline float __int2float_rn(int a) { return (float)a; }

template <class To, class From> static inline To shim_bits(From value)
{
    static_assert(sizeof(To) == sizeof(From), "of one size");
    To to;
    memcpy(&to, &value, sizeof to);
    return to;
}
static inline float __uint_as_float(unsigned a) { return shim_bits<float>(a); }
static inline float __int_as_float(int a) { return shim_bits<float>(a); }
static inline unsigned __float_as_uint(float a) { return shim_bits<unsigned>(a); }
static inline int __float_as_int(float a) { return shim_bits<int>(a); }
static inline long long __double_as_longlong(double a) { return shim_bits<long long>(a); }
static inline double __longlong_as_double(long long a) { return shim_bits<double>(a); }
template <class T> static inline T __ldg(const T *at) { return *at; }

static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}

// Blocks and threads run in turns, so that these are atomic by themselves.
template <class T> static inline T atomicAdd(T *at, T value)
{
    T old = *at;
    *at = (T)(old + value);
    return old;
}
template <class T> static inline T atomicOr(T *at, T value)
{
    T old = *at;
    *at = (T)(old | value);
    return old;
}
template <class T> static inline T atomicMax(T *at, T value)
{
    T old = *at;
    *at = old < value ? value : old;
    return old;
}

namespace shim {

enum Error { FINE, DIVERGENT, HIDDEN_BARRIER, NO_MEMORY };
enum { STACK_BYTES = 1 << 17, MOST_THREADS = 1024 };

struct Fiber {
    ucontext_t context;
    jmp_buf place;
    char *stack;
    bool made, started, done;
    unsigned thread;
};

struct HiddenBarrier {};

static Fiber fibers[MOST_THREADS];
static Fiber *current;
static jmp_buf scheduler_place;
static ucontext_t scheduler_context;
static void (*body)(void *);
static void *body_arguments;

#if SHIM_ASAN
static void *scheduler_fake;
static const void *scheduler_stack;
static size_t scheduler_size;

static void to_scheduler()
{
    Fiber *self = current;
    void *fake;
    __sanitizer_start_switch_fiber(&fake, scheduler_stack, scheduler_size);
    swapcontext(&self->context, &scheduler_context);
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
}

static void to_fiber(Fiber *fiber)
{
    __sanitizer_start_switch_fiber(&scheduler_fake, fiber->stack, STACK_BYTES);
    swapcontext(&scheduler_context, &fiber->context);
    __sanitizer_finish_switch_fiber(scheduler_fake, nullptr, nullptr);
}
#else
// Past the first switch, which changes stacks, jumps are enough; they need no system call.
static void to_scheduler()
{
    if (!_setjmp(current->place))
        _longjmp(scheduler_place, 1);
}

static void to_fiber(Fiber *fiber)
{
    if (_setjmp(scheduler_place))
        return;
    if (fiber->started)
        _longjmp(fiber->place, 1);
    fiber->started = true;
    setcontext(&fiber->context);
}
#endif

// A fiber lives on from block to block.
static void fiber_main()
{
#if SHIM_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_size);
#endif
    for (;;) {
        body(body_arguments);
        current->done = true;
        to_scheduler();
    }
}

static bool make_fiber(Fiber *fiber)
{
    if (fiber->stack == nullptr)
        fiber->stack = static_cast<char *>(malloc(STACK_BYTES));
    if (fiber->stack == nullptr)
        return false;
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack;
    fiber->context.uc_stack.ss_size = STACK_BYTES;
    fiber->context.uc_link = nullptr;
    makecontext(&fiber->context, fiber_main, 0);
    fiber->made = true, fiber->started = false;
    return true;
}

static void take_thread(unsigned thread)
{
    threadIdx.x = thread % blockDim.x;
    threadIdx.y = thread / blockDim.x % blockDim.y;
    threadIdx.z = thread / blockDim.x / blockDim.y;
}

static Error run_in_turns(unsigned threads, bool reverse)
{
    for (unsigned t = 0; t < threads; ++t) {
        fibers[t].done = false;
        if (!fibers[t].made && !make_fiber(&fibers[t]))
            return NO_MEMORY;
    }
    for (;;) {
        unsigned finished = 0;
        for (unsigned i = 0; i < threads; ++i) {
            const unsigned t = reverse ? threads - 1 - i : i;
            current = &fibers[t];
            if (!current->done) {
                take_thread(t);
                to_fiber(current);
            }
            finished += current->done;
        }
        if (finished == threads)
            return FINE;
        if (finished != 0) {
            for (unsigned t = 0; t < threads; ++t)
                fibers[t].made = fibers[t].made && fibers[t].done;
            return DIVERGENT;
        }
    }
}

static Error run_straight(unsigned threads, bool reverse)
{
    current = nullptr;
    try {
        for (unsigned i = 0; i < threads; ++i) {
            take_thread(reverse ? threads - 1 - i : i);
            body(body_arguments);
        }
    } catch (const HiddenBarrier &) {
        return HIDDEN_BARRIER;
    }
    return FINE;
}

#if !SHIM_ASAN
extern "C" char __start_shim_shared __attribute__((weak)), __stop_shim_shared __attribute__((weak));
#endif

static void spoil_shared_memory()
{
#if !SHIM_ASAN
    if (&__start_shim_shared != nullptr)
        memset(&__start_shim_shared, 0xA5, static_cast<size_t>(&__stop_shim_shared - &__start_shim_shared));
#endif
}

static Error run_grid(const unsigned *grid, const unsigned *block, bool barriers)
{
    gridDim = {grid[0], grid[1], grid[2]}, blockDim = {block[0], block[1], block[2]};
    const unsigned threads = block[0] * block[1] * block[2];
    bool reverse = false;
    for (unsigned z = 0; z < grid[2]; ++z)
        for (unsigned y = 0; y < grid[1]; ++y)
            for (unsigned x = 0; x < grid[0]; ++x, reverse = !reverse) {
                blockIdx = {x, y, z};
                spoil_shared_memory();
                const Error error = barriers ? run_in_turns(threads, reverse) : run_straight(threads, reverse);
                if (error != FINE)
                    return error;
            }
    return FINE;
}

template <class Kernel> struct Launcher;

template <class... A> struct Launcher<void (*)(A...)> {
    struct Call {
        void (*kernel)(A...);
        void **arguments;
    };

    template <size_t... I> static void enter(const Call &call, std::index_sequence<I...>)
    {
        call.kernel(*static_cast<std::remove_cv_t<A> *>(call.arguments[I])...);
    }

    static void thread(void *call) { enter(*static_cast<Call *>(call), std::index_sequence_for<A...>{}); }

    static int run(void (*kernel)(A...), void **arguments, const unsigned *grid, const unsigned *block, int barriers)
    {
        Call call = {kernel, arguments};
        body = thread, body_arguments = &call;
        return run_grid(grid, block, barriers != 0);
    }

    // A letter for each parameter, p, f or i, and its bytes; ends with 0.
    static const char *describe()
    {
        static char text[] = {
            ((std::is_pointer<A>::value ? 'p' : std::is_floating_point<A>::value ? 'f' : 'i'))..., 0};
        return text;
    }
    static const int *sizes()
    {
        static const int bytes[] = {static_cast<int>(sizeof(A))..., 0};
        return bytes;
    }
};

}  // namespace shim

static inline void __syncthreads()
{
    if (shim::current == nullptr)
        throw shim::HiddenBarrier();
    shim::to_scheduler();
}

#define SHIM_EXPORT(name)                                                                                              \
    extern "C" __attribute__((visibility("default"))) int shim_run_##name(void **arguments, const unsigned *grid,      \
                                                                         const unsigned *block, int barriers)          \
    {                                                                                                                  \
        return shim::Launcher<decltype(&name)>::run(&name, arguments, grid, block, barriers);                          \
    }                                                                                                                  \
    extern "C" __attribute__((visibility("default"))) const char *shim_kinds_##name()                                  \
    {                                                                                                                  \
        return shim::Launcher<decltype(&name)>::describe();                                                            \
    }                                                                                                                  \
    extern "C" __attribute__((visibility("default"))) const int *shim_sizes_##name()                                   \
    {                                                                                                                  \
        return shim::Launcher<decltype(&name)>::sizes();                                                               \
    }
