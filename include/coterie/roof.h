/* What this machine can do at best: the instruction sets it runs and the measured roofs that results are held
 * against. */
#ifndef COTERIE_ROOF_H
#define COTERIE_ROOF_H
#include "coterie/status.h"
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Names of the kernel tables this build and CPU can run, best first, NULL at the end. Constant; thread-safe.
 */
const char *const *cot_isa_names(void);
/* The CPU's model name, constant after the first call; "unknown" where the system does not tell. */
const char *cot_cpu_name(void);
/* Cores that the calling thread may use, 1 to 1024: those that it is bound to (taskset, cpusets of containers), and no more
 * than its control group's share of time (cpu.max, version 2), rounded up. Thread-safe. */
int cot_cores(void);
/* Bytes of the last-level cache, summed over its instances in this machine; 0 where the system does not tell.
 */
size_t cot_last_level_cache_bytes(void);

typedef struct cot_roof {
    double f32_flops;  // multiply-adds count as two; registers only, the best instruction the isa has
    double bf16_flops; // bf16 inputs, fp32 sums: VDPBF16PS where there is one, else fp32 FMA
    double int8_ops;   // int8 inputs, exact int32 sums: VPDPBUSD where there is one, else pairs of int16
    double read_bytes_per_second; // streaming reads of the buffer below
    size_t buffer_bytes;
} cot_roof;

/* Bytes that reads stream over where nobody says: four times the last-level cache, but no more than a quarter of this machine's
 * memory, and at least 512 MiB. */
size_t cot_roof_buffer_bytes(void);

/* Measures the roofs with `threads` threads (1 to 256), each the best of several short runs; reads stream
 * over `buffer_bytes` in all (0: cot_roof_buffer_bytes), touched before timing.
 * `isa` caps the instruction set (NULL: the best). Takes about two seconds. `look` is called with `context` after each run, by
 * a thread of its own; what it returns other than OK ends the measurement (NULL: nobody looks). Errors: OUT_OF_MEMORY,
 * UNSUPPORTED (isa), and look's. */
typedef cot_status cot_roof_look(void *context, cot_error *error);
cot_status cot_roof_measure(cot_roof *roof, int threads, const char *isa, size_t buffer_bytes,
                            cot_roof_look *look, void *context, cot_error *error);

#ifdef __cplusplus
}
#endif
#endif
