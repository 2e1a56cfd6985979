/* What the tests of the kernels share. Plain C with a main each, no test library: the same files run emulated
 * (AVX-512 through SIMDe) and under qemu (NEON), where only the compiler's own libraries are at hand. */
#ifndef COT_TESTS_KERNELS_CHECK_H
#define COT_TESTS_KERNELS_CHECK_H
#include "base/rng.h"
#include "kernels/isa.h"
#include "kernels/pack.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition, ...)                                                                                \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            printf("%s:%d: %s: ", __FILE__, __LINE__, #condition);                                           \
            printf(__VA_ARGS__);                                                                             \
            printf("\n");                                                                                    \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

static uint64_t check_seed, check_position;

static inline void check_start(int argc, char **argv)
{
    check_seed = argc > 1 ? strtoull(argv[1], NULL, 0) : (uint64_t)time(NULL) * 1000003 + (uint64_t)getpid();
    printf("seed %llu\n", (unsigned long long)check_seed);
    fflush(stdout);
#ifdef COT_TEST_EMULATED // the emulation itself is compiled for AVX2
    if (!cot_kernels_of(COT_ISA_AVX2)) {
        printf("SKIPPED: this CPU has no AVX2 to emulate AVX-512 with\n");
        exit(77);
    }
#endif
}

static inline int64_t random_between(int64_t low, int64_t high)
{ // inclusive
    return low + (int64_t)(cot_random_bits(check_seed, 1, check_position++) % (uint64_t)(high - low + 1));
}

static inline float random_value(float scale)
{ // roughly normal
    double sum = -2;
    for (int i = 0; i < 4; i++) sum += cot_random_uniform(check_seed, 2, check_position++);
    return (float)sum * 2 * scale;
}

/* Memory whose last byte is the last before a page that may not be touched: reads and writes beyond it crash.
 */
typedef struct guarded {
    void *data;
    void *map;
    size_t map_bytes;
} guarded;

static inline guarded guard(int64_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), inner = ((size_t)bytes + page - 1) / page * page;
    guarded g = {.map_bytes = inner + 2 * page};
    g.map = mmap(NULL, g.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(g.map != MAP_FAILED, "no memory");
    CHECK(mprotect(g.map, page, PROT_NONE) == 0, "no guard");
    CHECK(mprotect((char *)g.map + page + inner, page, PROT_NONE) == 0, "no guard");
    memset((char *)g.map + page, 0xff, inner); // NaN in every type
    g.data = (char *)g.map + page + inner - bytes;
    return g;
}

static inline void unguard(guarded g)
{
    munmap(g.map, g.map_bytes);
}

static inline void put_element(void *x, cot_dtype type, int64_t i, float value)
{
    if (type == COT_F32) {
        ((float *)x)[i] = value;
    } else {
        uint16_t bits = type == COT_BF16 ? cot_f32_to_bf16(value) : cot_f32_to_f16(value);
        memcpy((char *)x + 2 * i, &bits, 2);
    }
}

static inline float get_element(const void *x, cot_dtype type, int64_t i)
{
    if (type == COT_F32) {
        float value;
        memcpy(&value, (const char *)x + 4 * i, 4);
        return value;
    }
    uint16_t bits;
    memcpy(&bits, (const char *)x + 2 * i, 2);
    return type == COT_BF16 ? cot_bf16_to_f32(bits) : cot_f16_to_f32(bits);
}

static inline guarded guarded_random(int64_t n, cot_dtype type, float scale)
{
    guarded g = guard(n * (int64_t)cot_dtype_bytes(type));
    for (int64_t i = 0; i < n; i++) put_element(g.data, type, i, random_value(scale));
    return g;
}

static inline bool is_poison(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits == 0xffffffffu;
}

/* Error of `value` against `exact`, as a part of `scale`; infinite for a NaN where none should be. */
static inline double error_of(double value, double exact, double scale)
{
    if (isnan(exact) || isinf(exact)) return (isnan(exact) ? isnan(value) : value == exact) ? 0 : INFINITY;
    double error = fabs(value - exact);
    return isnan(error) ? INFINITY : error == 0 ? 0 : error / scale;
}

/* What to test: the code of every instruction set that runs here, or of those that this program was built with. */
#ifdef COT_TEST_EMULATED
static inline const cot_isa_code *code_of(cot_isa isa)
{
    return isa == COT_ISA_AVX512        ? &cot_isa_avx512
           : isa == COT_ISA_AVX512_VNNI ? &cot_isa_avx512_vnni
           : isa == COT_ISA_AVX512_BF16 ? &cot_isa_avx512_bf16
                                        : NULL;
}
#else
static inline const cot_isa_code *code_of(cot_isa isa)
{
    return cot_isa_code_of(isa);
}
#endif

#define FOR_EACH_CODE(code)                                                                                  \
    for (int isa_ = 0; isa_ < COT_ISA_COUNT; isa_++)                                                         \
        for (const cot_isa_code *code = code_of((cot_isa)isa_); code; code = NULL)
#define FOR_EACH_TABLE(table)                                                                                \
    FOR_EACH_CODE(code_)                                                                                     \
    for (const cot_kernels *table = &code_->kernels; table; table = NULL)

#endif
