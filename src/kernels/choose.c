#include "base/error.h"
#include "coterie/roof.h"
#include "kernels/isa.h"

#include <stddef.h>
#include <string.h>

const cot_isa_code *cot_isa_code_of(cot_isa isa)
{
    switch (isa) {
    case COT_ISA_REF:
        return &cot_isa_ref;
#if defined(COT_REF_ALONE) // the others are not in this build
#elif defined(__x86_64__)
    /* These ask the system too, whether it saves the registers that the instructions use. */
    case COT_ISA_AVX2: // and F16C, which no CPU with AVX2 lacks (clang 14 cannot ask for it)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &cot_isa_avx2 : NULL;
    case COT_ISA_AVX512:
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                       __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")
                   ? &cot_isa_avx512
                   : NULL;
    case COT_ISA_AVX512_VNNI:
        return cot_isa_code_of(COT_ISA_AVX512) && __builtin_cpu_supports("avx512vnni") ? &cot_isa_avx512_vnni
                                                                                       : NULL;
    case COT_ISA_AVX512_BF16:
        return cot_isa_code_of(COT_ISA_AVX512_VNNI) && __builtin_cpu_supports("avx512bf16")
                   ? &cot_isa_avx512_bf16
                   : NULL;
#elif defined(__aarch64__)
    case COT_ISA_NEON:
        return &cot_isa_neon;
#endif
    default:
        return NULL;
    }
}

const cot_kernels *cot_kernels_of(cot_isa isa)
{
    const cot_isa_code *code = cot_isa_code_of(isa);
    return code ? &code->kernels : NULL;
}

static const cot_isa best_first[] = {COT_ISA_NEON,   COT_ISA_AVX512_BF16, COT_ISA_AVX512_VNNI,
                                     COT_ISA_AVX512, COT_ISA_AVX2,        COT_ISA_REF};
enum { ISAS = sizeof best_first / sizeof *best_first };

static cot_status choose(const cot_isa_code **chosen, const char *cap, cot_error *error)
{
    char names[128] = "";
    for (int i = 0; i < ISAS; i++) {
        const cot_isa_code *code = cot_isa_code_of(best_first[i]);
        if (!code) continue;
        if (!cap || strcmp(cap, code->kernels.name) == 0) {
            *chosen = code;
            return COT_OK;
        }
        strncat(names, *names ? ", " : "", sizeof names - strlen(names) - 1);
        strncat(names, code->kernels.name, sizeof names - strlen(names) - 1);
    }
    return cot_fail(error, COT_UNSUPPORTED, "no instruction set '%s' here, expected one of: %s", cap, names);
}

cot_status cot_kernels_choose(const cot_kernels **kernels, const char *cap, cot_error *error)
{
    const cot_isa_code *code;
    const cot_status status = choose(&code, cap, error);
    if (status == COT_OK) *kernels = &code->kernels;
    return status;
}

cot_status cot_lookup_kernels_choose(const cot_lookup_kernels **kernels, const char *cap, cot_error *error)
{
    const cot_isa_code *code;
    const cot_status status = choose(&code, cap, error);
    if (status == COT_OK) *kernels = &code->lookup;
    return status;
}

/* Every table that runs implies those below it, so that the names are one of a few constant lists. */
const char *const *cot_isa_names(void)
{
    static const char *const names[] = {"neon", "avx512_bf16", "avx512_vnni", "avx512", "avx2", "ref", NULL};
    static const char *const neon[] = {"neon", "ref", NULL};
    if (cot_kernels_of(COT_ISA_NEON)) return neon;
    return names + (cot_kernels_of(COT_ISA_AVX512_BF16)   ? 1
                    : cot_kernels_of(COT_ISA_AVX512_VNNI) ? 2
                    : cot_kernels_of(COT_ISA_AVX512)      ? 3
                    : cot_kernels_of(COT_ISA_AVX2)        ? 4
                                                          : 5);
}
