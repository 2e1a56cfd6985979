/* What bench/device measures of the operators, a line of JSON for each point. */
#ifndef COT_BENCH_DEVICE_POINTS_H
#define COT_BENCH_DEVICE_POINTS_H
#include "cuda/module/device.h"

#include <stdio.h>

/* One command of these, on the device; points go to `out`, each as it ends. Exit status: 0; 1 where something failed, with a line on
 * standard error; 2 for other words.
 *   about                                      what the device is
 *   probe OP TYPE RANKS                        small layers against the CPU
 *   faults OP                                  tokens that cannot be routed, and a rank that is silent
 *   time OP TYPE H I E K RANKS TOKENS[,...]    a layer with random routing, tokens over all ranks
 * OP is cuda or cuda-bulk, TYPE bf16 or fp32. */
int cot_cuda_points(const cot_cuda_device *device, FILE *out, int words, char **word);

#endif
