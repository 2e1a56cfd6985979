#include "harness/kernels/check.h"

#include "base/rng.h"

#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

check_draws check_start(int argc, char **argv)
{
    const uint64_t seed =
        argc > 1 ? strtoull(argv[1], NULL, 0) : (uint64_t)time(NULL) * 1000003 + (uint64_t)getpid();
    printf("seed %llu\n", (unsigned long long)seed);
    fflush(stdout);
#ifdef COT_TEST_EMULATED // the emulation itself is compiled for AVX2
    if (!cot_kernels_of(COT_ISA_AVX2)) {
        printf("SKIPPED: this CPU has no AVX2 to emulate AVX-512 with\n");
        exit(77);
    }
#endif
    return (check_draws){.seed = seed};
}

int64_t random_between(check_draws *draws, int64_t low, int64_t high)
{
    return low + (int64_t)(cot_random_bits(draws->seed, 1, draws->position++) % (uint64_t)(high - low + 1));
}

float random_value(check_draws *draws, float scale)
{
    double sum = -2;
    for (int i = 0; i < 4; i++) sum += cot_random_uniform(draws->seed, 2, draws->position++);
    return (float)sum * 2 * scale;
}

guarded guard(int64_t bytes)
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

void unguard(guarded g)
{
    munmap(g.map, g.map_bytes);
}

void put_element(void *x, cot_dtype type, int64_t i, float value)
{
    if (type == COT_F32) {
        ((float *)x)[i] = value;
    } else {
        uint16_t bits = type == COT_BF16 ? cot_f32_to_bf16(value) : cot_f32_to_f16(value);
        memcpy((char *)x + 2 * i, &bits, 2);
    }
}

float get_element(const void *x, cot_dtype type, int64_t i)
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

guarded guarded_random(check_draws *draws, int64_t n, cot_dtype type, float scale)
{
    guarded g = guard(n * (int64_t)cot_dtype_bytes(type));
    for (int64_t i = 0; i < n; i++) put_element(g.data, type, i, random_value(draws, scale));
    return g;
}

bool is_poison(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits == 0xffffffffu;
}

double error_of(double value, double exact, double scale)
{
    if (isnan(exact) || isinf(exact)) return (isnan(exact) ? isnan(value) : value == exact) ? 0 : INFINITY;
    double error = fabs(value - exact);
    return isnan(error) ? INFINITY : error == 0 ? 0 : error / scale;
}

#ifdef COT_TEST_EMULATED
const cot_isa_code *code_of(cot_isa isa)
{
    return isa == COT_ISA_AVX512        ? &cot_isa_avx512
           : isa == COT_ISA_AVX512_VNNI ? &cot_isa_avx512_vnni
           : isa == COT_ISA_AVX512_BF16 ? &cot_isa_avx512_bf16
                                        : NULL;
}
#else
const cot_isa_code *code_of(cot_isa isa)
{
    return cot_isa_code_of(isa);
}
#endif
