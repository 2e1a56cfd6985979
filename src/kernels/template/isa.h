/* An instruction set's table out of gemm.h, rows.h and state.h, and the loops its roofs are measured with. */
#include "kernels/isa.h"
#include "kernels/template/gemm.h"
#include "kernels/template/rows.h"
#include "kernels/template/state.h"
#include "kernels/template/tables.h"

enum { CHAINS = 12 }; // more than latency times width of any multiply-add unit yet (4 to 5 cycles, 2 a cycle)

static double f32_loop(int64_t rounds)
{
    volatile float seed = 0.999f;
    vec x[CHAINS], factor = v_set(seed), offset = v_set(1 - seed);
    for (int i = 0; i < CHAINS; i++) x[i] = v_set(seed);
    for (int64_t r = 0; r < rounds; r++)
#pragma GCC unroll 16
        for (int i = 0; i < CHAINS; i++) x[i] = v_fma(x[i], factor, offset);
    for (int i = 1; i < CHAINS; i++) x[0] = v_add(x[0], x[i]);
    float lanes[LANES];
    v_store(lanes, x[0]);
    seed = lanes[0];
    return 2.0 * CHAINS * LANES * (double)rounds;
}

#ifdef V_DOT
#define BF16_LOOP bf16_loop
static double bf16_loop(int64_t rounds)
{
    volatile float seed = 0x1.02p0f; // as a pair of bf16: 1 and something small
    vec x[CHAINS], a = v_set(seed), b = v_set(-seed);
    for (int i = 0; i < CHAINS; i++) x[i] = v_zero();
    for (int64_t r = 0; r < rounds; r++)
#pragma GCC unroll 16
        for (int i = 0; i < CHAINS; i++) x[i] = v_dot(a, b, x[i]);
    for (int i = 1; i < CHAINS; i++) x[0] = v_add(x[0], x[i]);
    float lanes[LANES];
    v_store(lanes, x[0]);
    seed = lanes[0];
    return 4.0 * CHAINS * LANES * (double)rounds;
}
#else
#define BF16_LOOP f32_loop
#endif

#ifdef I_DOT
static double int8_loop(int64_t rounds)
{
    volatile int32_t seed = 0x01030207;
    ivec x[CHAINS], b = i_set(seed + 1);
    for (int i = 0; i < CHAINS; i++) x[i] = i_set(seed);
    for (int64_t r = 0; r < rounds; r++)
#pragma GCC unroll 16
        for (int i = 0; i < CHAINS; i++) x[i] = i_dot(x[i], b, x[i]);
    vec sum = i_to_f32(x[0]);
    for (int i = 1; i < CHAINS; i++) sum = v_add(sum, i_to_f32(x[i]));
    float lanes[LANES];
    v_store(lanes, sum);
    seed = (int32_t)lanes[0];
    return 8.0 * CHAINS * LANES * (double)rounds;
}
#else
/* Only the addition is a chain. Factors that change, and pairs of them that differ, or the compiler would multiply
 * once: two instructions in 34 are spent on that. */
static double int8_loop(int64_t rounds)
{
    enum { A = 2, B = 8, SUMS = 3 };
    volatile int32_t seed = 0x01030207;
    ivec a[A], b[B], x[SUMS], step = i_set(seed);
    for (int i = 0; i < A; i++) a[i] = i_set(seed + i);
    for (int i = 0; i < B; i++) b[i] = i_set(seed - i);
    for (int i = 0; i < SUMS; i++) x[i] = i_zero();
    for (int64_t r = 0; r < rounds; r++)
#pragma GCC unroll 16
        for (int i = 0; i < A; i++) {
            a[i] = i_add(a[i], step);
#pragma GCC unroll 16
            for (int j = 0; j < B; j++) x[(i * B + j) % SUMS] = i_pair_dot(a[i], b[j], x[(i * B + j) % SUMS]);
        }
    vec sum = v_add(i_to_f32(x[0]), v_add(i_to_f32(x[1]), i_to_f32(x[2])));
    float lanes[LANES];
    v_store(lanes, sum);
    seed = (int32_t)lanes[0];
    return 4.0 * A * B * LANES * (double)rounds;
}
#endif

/* Four streams: with one alone a core's prefetchers leave a third of the bandwidth unused (Zen 3, 17 against
 * 22 GB/s). */
static float read_loop(const void *data, size_t bytes)
{
    const float *x = data;
    const size_t quarter = bytes / 16;
    vec sums[8];
    for (int s = 0; s < 8; s++) sums[s] = v_zero();
    for (size_t i = 0; i < quarter; i += 2 * LANES)
#pragma GCC unroll 16
        for (size_t s = 0; s < 8; s++)
            sums[s] = v_add(sums[s], v_load(x + s / 2 * quarter + i + s % 2 * LANES));
    for (int s = 1; s < 8; s++) sums[0] = v_add(sums[0], sums[s]);
    float lanes[LANES];
    v_store(lanes, sums[0]);
    return lanes[0];
}

#define COT_ISA_CODE(isa_name)                                                                               \
    {                                                                                                        \
        .kernels = {.name = isa_name,                                                                        \
                    .gemm = gemm,                                                                            \
                    .sum_squares = sum_squares,                                                              \
                    .scale = scale,                                                                          \
                    .scale_by = scale_by,                                                                    \
                    .add = add,                                                                              \
                    .add_scaled = add_scaled,                                                                \
                    .swiglu = swiglu,                                                                        \
                    .swiglu_clamped = swiglu_clamped,                                                        \
                    .gelu = gelu,                                                                            \
                    .relu = relu,                                                                            \
                    .softmax = softmax,                                                                      \
                    .rope = rope,                                                                            \
                    .to_f32 = to_f32,                                                                        \
                    .delta = delta},                                                                         \
        .lookup = {.look_up_ranks = look_up_ranks, .logistic_rows = logistic_rows}, .f32_loop = f32_loop,    \
        .bf16_loop = BF16_LOOP, .int8_loop = int8_loop, .read_loop = read_loop                               \
    }
