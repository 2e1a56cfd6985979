/* What the tests of the kernels share. Plain C with a main each, no test library: the same files run emulated
 * (AVX-512 through SIMDe) and under qemu (NEON), where only the compiler's own libraries are at hand. So it is a library
 * of its own, besides the harness. */
#ifndef COT_TESTS_HARNESS_KERNELS_CHECK_H
#define COT_TESTS_HARNESS_KERNELS_CHECK_H
#include "kernels/isa.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition, ...)                                                                                \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            printf("%s:%d: %s: ", __FILE__, __LINE__, #condition);                                           \
            printf(__VA_ARGS__);                                                                             \
            printf("\n");                                                                                    \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

typedef struct check_draws {
    uint64_t seed, position;
} check_draws;

/* Begins a test program: the seed is its first argument, else a fresh one, and is printed. Skips the test where what
 * it emulates does not run. */
check_draws check_start(int argc, char **argv);

/* Of low .. high, both included. */
int64_t random_between(check_draws *draws, int64_t low, int64_t high);

/* About normally distributed, `scale` its deviation. */
float random_value(check_draws *draws, float scale);

/* Memory whose last byte is the last before a page that may not be touched: reads and writes beyond it crash.
 */
typedef struct guarded {
    void *data;
    void *map;
    size_t map_bytes;
} guarded;

guarded guard(int64_t bytes);
void unguard(guarded g);

/* Of F32, BF16 or F16. */
void put_element(void *x, cot_dtype type, int64_t i, float value);
float get_element(const void *x, cot_dtype type, int64_t i);

guarded guarded_random(check_draws *draws, int64_t n, cot_dtype type, float scale);

/* Whether it is what guard() filled the memory with. */
bool is_poison(float value);

/* Error of `value` against `exact`, as a part of `scale`; infinite for a NaN where none should be. */
double error_of(double value, double exact, double scale);

/* What to test: the code of every instruction set that runs here, or of those that this program was built with. NULL: not
 * this one. */
const cot_isa_code *code_of(cot_isa isa);

#define FOR_EACH_CODE(code)                                                                                  \
    for (int isa_ = 0; isa_ < COT_ISA_COUNT; isa_++)                                                         \
        for (const cot_isa_code *code = code_of((cot_isa)isa_); code; code = NULL)
#define FOR_EACH_TABLE(table)                                                                                \
    FOR_EACH_CODE(code_)                                                                                     \
    for (const cot_kernels *table = &code_->kernels; table; table = NULL)

#endif
