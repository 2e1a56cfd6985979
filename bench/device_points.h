/* What bench/device measures of the operators, a line of JSON for each point. */
#ifndef COT_BENCH_DEVICE_POINTS_H
#define COT_BENCH_DEVICE_POINTS_H
#include "cuda/module/device.h"

#include <stdio.h>

/* One command of these, on the device, which was opened with `image`; points go to `out`, each as it ends. Exit status: 0; 1 where something failed, with a line on
 * standard error; 2 for other words.
 *   about                                          what the device is
 *   probe OP TYPE RANKS                            small layers against the CPU
 *   self-test OP TYPE RANKS                        those that an operator is opened with
 *   bits OP                                        layers in bf16 that have the emulator's bits, on compute capability 9.x
 *   faults OP                                      tokens that cannot be routed, and a rank that is silent
 *   time OP TYPE H I E K RANKS TOKENS[,...]        a layer, tokens over all ranks
 *   phases cuda-bulk TYPE H I E K RANKS TOKENS[,...]        the same, each of its kernels
 *   timeline cuda TYPE H I E K RANKS TOKENS[,...] KERNELS   the same, each of its tasks, by kernels of a file that are built for it
 *   routing E K TOKENS                             the experts that tokens call in these layers
 * OP is cuda or cuda-bulk, TYPE bf16 or fp32. */
int cot_cuda_points(const cot_cuda_device *device, const cot_cuda_image *image, FILE *out, int words,
                    char **word);

#endif
