/* Where requests are at home and where experts sit, both at once: an arrangement that few tokens leave home under.
 *
 * What tokens will come is known by evidence: whole tokens of other texts, and of each request how much likelier than there it
 * calls each expert. A token then stands for what a request will do as much as the product of these ratios of its experts says.
 * So calls that go together do so in what is foreseen, whatever of a request is known of single experts alone. Pure. */
#ifndef COT_PREDICT_ARRANGEMENT_H
#define COT_PREDICT_ARRANGEMENT_H
#include "coterie/placement.h"
#include <stdbool.h>

/* What is known of requests' tokens to come. */
typedef struct cot_evidence {
    int32_t n_layers, n_experts, top_k; // L, E, K
    int32_t n_tokens, n_requests;
    const uint16_t *token; // [n_tokens][L][K]
    const float *ratio;    // [n_requests][L][E]; NULL: owner says
    const int32_t *owner;  // [n_tokens] the one request that a token stands for
} cot_evidence;

typedef struct cot_arrangement {
    cot_expert_map map; // all slots filled, no expert twice on a rank
    int32_t *home;      // [n_requests]
    int32_t n_requests;
} cot_arrangement;

/* Consecutive experts and requests that are dealt out in turn. Errors: INVALID_ARGUMENT (ranks that do not divide E),
 * OUT_OF_MEMORY. Free either way. */
cot_status cot_arrangement_open(cot_arrangement *arrangement, const cot_evidence *evidence, int32_t ranks,
                                cot_error *error);
void cot_arrangement_free(cot_arrangement *arrangement);

/* Exchanges requests' homes while fewer sends are foreseen: homes keep their numbers of requests. Errors: OUT_OF_MEMORY. */
cot_status cot_arrangement_choose_homes(cot_arrangement *arrangement, const cot_evidence *evidence,
                                        cot_error *error);
/* Exchanges the experts of two slots of a layer, or of two ranks, or gives the slot of a replica to another expert, while that saves foreseen sends
 * and what a rank is foreseen to serve beyond `peak` times the mean rank's, which counts much more. Errors: OUT_OF_MEMORY. */
cot_status cot_arrangement_choose_seats(cot_arrangement *arrangement, const cot_evidence *evidence,
                                        double peak, cot_error *error);
/* Every rank gets one slot more in every layer, and in it the expert that saves most there, by the same measure. Errors:
 * INVALID_ARGUMENT (ranks hold all experts), OUT_OF_MEMORY. */
cot_status cot_arrangement_add_slot(cot_arrangement *arrangement, const cot_evidence *evidence, double peak,
                                    cot_error *error);
/* Other ranks that a token is foreseen to need, the mean over requests and layers. Errors: OUT_OF_MEMORY. */
cot_status cot_arrangement_foresee(double *remote_ranks, const cot_arrangement *arrangement,
                                   const cot_evidence *evidence, cot_error *error);

#endif
