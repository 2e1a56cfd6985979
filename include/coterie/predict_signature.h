/* What a request's first tokens are worth to those that follow: homes and placements chosen by signatures, judged on what comes. */
#ifndef COTERIE_PREDICT_SIGNATURE_H
#define COTERIE_PREDICT_SIGNATURE_H

#include "coterie/status.h"
#include "coterie/trace.h"
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { COT_SIGNATURE_MOST_REPLICAS = 8 };

typedef struct cot_predict_signature_options {
    size_t size;              // sizeof(cot_predict_signature_options)
    int32_t ranks;            // P, divides E; 0: 8
    int64_t signature_tokens; // a request's first tokens, of which its signature is; 0: 64
    int64_t judged_tokens;    // those behind them; 0: 192
    int32_t reservoir;        // tokens of other texts that are known whole; 0: 4096
    int32_t replica_slots;    // of each rank and layer, at most, up to COT_SIGNATURE_MOST_REPLICAS
    double peak; // a rank may be foreseen to serve so many times the mean rank's activations; 0: 1.35
} cot_predict_signature_options;

/* What an arrangement is worth over all judged tokens and layers. */
typedef struct cot_predict_signature_figures {
    double remote_ranks; // other ranks that a token needs
    double peak;         // activations of the rank that serves most over the mean's; the mean over layers
} cot_predict_signature_figures;

/* A way to arrange requests and experts. */
typedef struct cot_predict_signature_row {
    bool homes, swaps;     // requests' homes, experts' places are chosen; else they are dealt out in turn
    int32_t replica_slots; // of each rank and layer
    cot_predict_signature_figures judged,
        oracle;      // oracle: chosen by tokens of what is judged, in place of signatures
    double foreseen; // remote_ranks, as the choice goes by them
} cot_predict_signature_row;

typedef struct cot_predict_signature_study {
    int64_t requests;                      // sequences that are judged: long enough
    int64_t other_sequences, other_tokens; // the shorter ones, which the reservoir is of
    int32_t every;                         // signatures keep every so manieth layer
    int32_t rows;
    cot_predict_signature_row row[3 + 1 + COT_SIGNATURE_MOST_REPLICAS];
} cot_predict_signature_study;

/* Each sequence of `trace` that has signature_tokens + judged_tokens is a request; the others are texts from before. Homes get equally
 * many requests, to one. Rows are: neither homes nor seats chosen, homes, swaps, both, and both with 1, 2 ... replica slots. A
 * token goes to the replica that an engine would send it to (cot_expert_replica), its place in the sequence being its number.
 * Errors: INVALID_ARGUMENT (options; kind counts; no request, no other text), UNSUPPORTED (too many experts), OUT_OF_MEMORY.
 * Thread-safe. */
cot_status cot_predict_signatures(cot_predict_signature_study *study, const cot_trace *trace,
                                  const cot_predict_signature_options *options, cot_error *error);

#ifdef __cplusplus
}
#endif
#endif
