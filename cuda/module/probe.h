/* A small layer, with weights and rows of its own, that the device computes and the CPU's own functions do, and whether both find
 * the same. */
#ifndef COT_CUDA_MODULE_PROBE_H
#define COT_CUDA_MODULE_PROBE_H
#include "cuda/module/group.h"

/* Weights are drawn, and so are biases and corrections; experts are placed evenly, and tokens over ranks likewise. */
struct cot_cuda_probe {
    cot_ffn_shape expert, shared; // shared.intermediate 0: there is none
    cot_gate gate;                // its rules; without weights
    bool gate_bias, correction, shared_gated;
    int64_t tokens;
    uint64_t seed;
    /* NULL, or [E]: how many tokens call each expert, T K in all and T at most of one. Rows and gate are such that they do, by a softmax
     * without bias and correction, of no more experts than H. */
    const int64_t *calls;
    cot_cuda_form form; // of its tiles
    uint64_t *bits;     // NULL, or gets a sum of the bits that the device found
};

/* Runs it on a group of the device, opened for `ranks` with `options`, of which sizes are the probe's; nothing where its tiles are of 128
 * rows and the group has none. Errors: IO (the answers
 * differ, and where; the device fails), and those of cot_cuda_group_open. */
cot_status cot_cuda_probe_run(const cot_cuda_device *device, cot_cuda_kind kind, const cot_cuda_probe *probe,
                              const cot_moe_options *options, int ranks, cot_error *error);

/* The layers that an operator is opened with, in which every form of main loop runs: 129, 65, 33, 17, 13 and 1 rows an expert, the first product
 * over more k than a tile has under way at once; and 65, 33, 17 and 14 rows, the second product over more, with a shared expert of 129
 * rows, on two ranks of 65 and 64: full tiles and one of 1 row either way. And 8 tokens, few
 * enough that one rank adds them up with their last experts. And by tiles of 128 rows, which have one form of main loop, 129 and 1 rows an expert, the first product
 * over more k; and 65 and 64, the second over more, with a shared expert of 129 rows. */
constexpr int COT_CUDA_SELF_TESTS = 3, COT_CUDA_MANY_SELF_TESTS = 2;
cot_cuda_probe cot_cuda_self_test_layer(cot_dtype type, int number);

/* Those layers in the arithmetic of an operator, on two ranks where it has more than one. Errors: the same as of one, each of which names
 * the device and says that it is the self-test's. */
cot_status cot_cuda_self_test(const cot_cuda_device *device, cot_cuda_kind kind,
                              const cot_moe_options *options, int ranks, cot_error *error);

#endif
