/* Two-stage k-means as a baseline: experts by what tokens they get, every cluster as large as its rank, then the tokens
 * to the clusters they call most. */
#include "cocluster/gram.h"

#include "base/error.h"

#include <stdlib.h>

/* Iterations take turns between profiles: tokens by their load or all alike, experts by their direction or as they
 * are. */
enum { PROFILES = 4 };

typedef struct state {
    double *gram; // [PROFILES][E][E]
    int32_t *expert_rank;
} state;

static void end(cot_cocluster *p)
{
    state *s = p->state;
    if (!s) return;
    free(s->gram);
    free(s->expert_rank);
    free(s);
    p->state = NULL;
}

static cot_status begin(cot_cocluster *p, cot_error *error)
{
    size_t E = (size_t)p->E;
    cot_status status = cot_gram_check(p, error);
    if (status != COT_OK) return status;
    state *s = p->state = calloc(1, sizeof *s);
    if (s) {
        s->gram = malloc(PROFILES * E * E * sizeof *s->gram);
        s->expert_rank = malloc(E * sizeof *s->expert_rank);
    }
    if (!s || !s->gram || !s->expert_rank) {
        end(p);
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for profiles of %zu experts", E);
    }
    for (int i = 0; i < PROFILES; i++) {
        cot_gram_of_tokens(s->gram + (size_t)i * E * E, p, i % 2 ? -2 : -1);
        if (i < 2) cot_gram_normalise(s->gram + (size_t)i * E * E, E);
    }
    return COT_OK;
}

static cot_status iterate(cot_cocluster *p, int64_t iteration, cot_error *error)
{
    state *s = p->state;
    const double *gram = s->gram + (size_t)(iteration % PROFILES) * (size_t)p->E * (size_t)p->E;
    cot_status status = cot_gram_kmeans(s->expert_rank, p, gram, p->options.seed, (uint64_t)iteration, error);
    if (status == COT_OK) cot_cocluster_offer(p, s->expert_rank, NULL);
    return status;
}

const cot_cocluster_method cot_cocluster_kmeans = {
    {"kmeans", "balanced k-means of experts by their tokens, then the tokens"}, begin, iterate, end};
