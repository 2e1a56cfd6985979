/* How tokens and experts, and the experts of neighbouring layers, go together in a trace (Speculative MoE, appendix A). */
#ifndef COTERIE_PREDICT_STUDY_H
#define COTERIE_PREDICT_STUDY_H

#include "coterie/group.h"
#include "coterie/status.h"
#include "coterie/trace.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Kurtosis of each token's activations over the E experts, fourth moment over the squared second (a normal distribution
 * has 3): high where a token favours few experts. `kurtosis` [N]; NaN for a token that is not in this layer or calls all
 * experts alike. Thread-safe. */
void cot_affinity_kurtosis(double *kurtosis, const cot_affinity *affinity);

/* Of the tokens that call expert a at the l-th recorded layer, the share that call expert b at the next: `share` [E][E],
 * rows of 0 for experts that nobody calls. Errors: INVALID_ARGUMENT (kind counts, no next layer), OUT_OF_MEMORY.
 * Thread-safe. */
cot_status cot_trace_transitions(double *share, const cot_trace *trace, int32_t l, cot_error *error);

#ifdef __cplusplus
}
#endif
#endif
