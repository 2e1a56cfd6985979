/* The last decisions: where requests went, and what each would have cost elsewhere. */
#ifndef COT_GATEWAY_DECISIONS_H
#define COT_GATEWAY_DECISIONS_H
#include "coterie/route.h"

#include <jansson.h>
#include <time.h>

enum {
    COT_DECISIONS_KEPT = 32,
    COT_DECISIONS_SHOWN = 8
}; // decisions; targets of each: the one that was taken, and the next best

struct cot_gateway;

typedef enum cot_decision_reason {
    COT_DECISION_FIRST,
    COT_DECISION_REFUSED,
    COT_DECISION_DIED,
    COT_DECISION_RESUMED
} cot_decision_reason;

typedef struct cot_decision {
    uint64_t number;                   // 0: none was
    double seconds;                    // of Unix time
    uint64_t prompt_tokens, delivered; // delivered: tokens of the answer that the client had already
    cot_decision_reason reason;        // this target was asked
    size_t targets, count;             // targets that might have been asked; of them in `weighed`
    struct cot_decision_target {
        char worker[132];
        int rank;
        uint64_t cached;
        cot_route_terms terms;
    } weighed[COT_DECISIONS_SHOWN]; // [count] the first was taken, the others by their sums
} cot_decision;

/* All zero is empty. */
typedef struct cot_decisions {
    cot_decision kept[COT_DECISIONS_KEPT];
    uint64_t count;
} cot_decisions;

/* Keeps a decision that was taken just now, by what the book says of all targets that may be used. `reason`: why this one is asked. */
void cot_decisions_keep(struct cot_gateway *gateway, const cot_route_request *request,
                        const cot_route_decision *decision, cot_decision_reason reason, uint64_t delivered,
                        int64_t now_ns);
/* A list, the last one first; NULL when memory runs out. */
json_t *cot_decisions_json(const cot_decisions *decisions);

#endif
