/* Experts over nodes first, then over each node's ranks. */
#include "coterie/group_nodes.h"
#include "cocluster/solver.h"

#include "base/error.h"
#include "base/rng.h"
#include "cocluster/measure.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static cot_status check(const cot_nodes_options *o, cot_error *error)
{
    if (o->size != sizeof *o || o->group.bonus || o->group.start || o->iterations < 1)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "groups of nodes need iterations, no bonus or start, options of %zu bytes",
                        sizeof *o);
    if (o->group.ranks < 1 || o->group.ranks > COT_TRACE_MAX_RANKS || o->nodes < 1 ||
        o->group.ranks % o->nodes != 0)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%d ranks cannot be on %d nodes, as many on each",
                        o->group.ranks, o->nodes);
    if (o->cost_in >= 0 && o->cost_in <= o->cost_out && o->cost_out > 0 && isfinite(o->cost_out))
        return COT_OK;
    return cot_fail(error, COT_INVALID_ARGUMENT,
                    "bad costs %g within a node and %g between: expected 0 <= first <= second", o->cost_in,
                    o->cost_out);
}

cot_status cot_nodes_value_of(cot_nodes_value *value, const cot_affinity *a, const int32_t *expert_rank,
                              const int32_t *token_rank, const cot_nodes_options *options, cot_error *error)
{
    cot_status status = check(options, error);
    if (status != COT_OK) return status;
    const int32_t D = options->group.ranks, of_node = D / options->nodes;
    double calls[COT_TRACE_MAX_RANKS * COT_TRACE_MAX_RANKS] = {0}, near = 0;
    cot_group_calls(calls, a, expert_rank, token_rank, D);
    const cot_group_value all = cot_group_value_of(calls, D);
    for (int32_t i = 0; i < D * D; i++)
        if (i / D != i % D && i / D / of_node == i % D / of_node) near += calls[i];
    *value = (cot_nodes_value){.local = all.local,
                               .in_node = (uint64_t)near,
                               .total = all.total,
                               .token_peak = all.token_peak,
                               .expert_peak = all.expert_peak};
    if (value->total)
        value->cost = ((double)value->in_node * options->cost_in +
                       (double)(value->total - value->local - value->in_node) * options->cost_out) /
                      (double)value->total;
    return COT_OK;
}

void cot_nodes_grouping_free(cot_nodes_grouping *grouping)
{
    free(grouping->expert_rank);
    free(grouping->token_rank);
    *grouping = (cot_nodes_grouping){0};
}

/* The experts of one node and the tokens sent there, as a problem of its own. */
typedef struct part {
    cot_affinity affinity;
    int64_t *offsets;
    uint16_t *expert;
    uint32_t *count;
    int32_t *experts; // [E'] the layer's number of each
    int64_t *tokens;  // [N'] likewise
    int32_t *number;  // [E] of the node's experts in the part
} part;

static void close_part(part *p)
{
    free(p->offsets);
    free(p->expert);
    free(p->count);
    free(p->experts);
    free(p->tokens);
    free(p->number);
}

static bool open_part(part *p, const cot_affinity *a)
{
    size_t E = (size_t)a->n_experts, N = (size_t)a->n_tokens, entries = (size_t)a->offsets[N];
    *p = (part){.offsets = malloc((N + 1) * sizeof *p->offsets),
                .expert = malloc((entries + 1) * sizeof *p->expert),
                .count = malloc((entries + 1) * sizeof *p->count),
                .experts = malloc(E * sizeof *p->experts),
                .tokens = malloc(N * sizeof *p->tokens),
                .number = malloc(E * sizeof *p->number)};
    return p->offsets && p->expert && p->count && p->experts && p->tokens && p->number;
}

static void fill_part(part *p, const cot_affinity *a, const int32_t *expert_node, const int32_t *token_node,
                      int32_t node)
{
    int32_t E = 0;
    int64_t N = 0, n = 0;
    for (int32_t e = 0; e < a->n_experts; e++) {
        p->number[e] = expert_node[e] == node ? E : -1;
        if (p->number[e] >= 0) p->experts[E++] = e;
    }
    p->offsets[0] = 0;
    for (int64_t i = 0; i < a->n_tokens; i++) {
        if (token_node[i] != node) continue;
        for (int64_t k = a->offsets[i]; k < a->offsets[i + 1]; k++) {
            if (p->number[a->expert[k]] < 0) continue;
            p->expert[n] = (uint16_t)p->number[a->expert[k]];
            p->count[n++] = a->count[k];
        }
        p->tokens[N++] = i;
        p->offsets[N] = n;
    }
    p->affinity = (cot_affinity){
        .n_experts = E, .n_tokens = N, .offsets = p->offsets, .expert = p->expert, .count = p->count};
}

/* Over the ranks of one node. Where its tokens call none of its experts, any groups do. */
static cot_status split_node(int32_t *expert_rank, part *p, const cot_nodes_options *options, int32_t node,
                             cot_error *error)
{
    int32_t ranks = options->group.ranks / options->nodes, first = node * ranks;
    cot_group_options group = options->group;
    cot_grouper *grouper;
    cot_grouping found;
    for (int32_t e = 0; e < p->affinity.n_experts; e++) expert_rank[p->experts[e]] = first + e % ranks;
    if (p->offsets[p->affinity.n_tokens] == 0) return COT_OK;
    group.ranks = ranks;
    group.seed = cot_random_bits(group.seed, 1, (uint64_t)node);
    cot_status status = cot_grouper_open(&grouper, &p->affinity, &group, error);
    if (status == COT_OK) status = cot_grouper_iterate(grouper, options->iterations, error);
    if (status == COT_OK) {
        cot_grouper_best(&found, grouper);
        for (int32_t e = 0; e < p->affinity.n_experts; e++)
            expert_rank[p->experts[e]] = first + found.expert_rank[e];
    }
    cot_grouper_close(grouper);
    return status;
}

static cot_status split(int32_t *expert_rank, const cot_affinity *a, const cot_nodes_options *options,
                        cot_error *error)
{
    cot_group_options group = options->group;
    cot_grouper *grouper = NULL;
    cot_grouping found;
    part p;
    group.ranks = options->nodes;
    cot_status status = open_part(&p, a)
                            ? cot_grouper_open(&grouper, a, &group, error)
                            : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a node's experts");
    if (status == COT_OK) status = cot_grouper_iterate(grouper, options->iterations, error);
    if (status == COT_OK) cot_grouper_best(&found, grouper);
    for (int32_t node = 0; status == COT_OK && node < options->nodes; node++) {
        fill_part(&p, a, found.expert_rank, found.token_rank, node);
        status = split_node(expert_rank, &p, options, node, error);
    }
    cot_grouper_close(grouper);
    close_part(&p);
    return status;
}

/* What tokens save on each rank, in units of cost_out: gain [D][N]. */
static void token_gains(float *gain, const cot_cocluster *p, const int32_t *expert_rank, int32_t of_node,
                        float in_node)
{
    const cot_affinity *a = &p->affinity;
    const size_t N = (size_t)p->N;
    for (size_t i = 0; i < N; i++) {
        float own[COT_TRACE_MAX_RANKS] = {0}, near[COT_TRACE_MAX_RANKS] = {0};
        for (int64_t k = a->offsets[i]; k < a->offsets[i + 1]; k++) {
            int32_t rank = expert_rank[a->expert[k]];
            own[rank] += (1 - in_node) * (float)a->count[k];
            near[rank / of_node] += in_node * (float)a->count[k];
        }
        for (int32_t d = 0; d < p->D; d++) gain[(size_t)d * N + i] = own[d] + near[d / of_node];
    }
}

/* And experts: worth [E][D]. */
static void expert_gains(double *worth, const cot_cocluster *p, const int32_t *token_rank, int32_t of_node,
                         float in_node)
{
    cot_cocluster_worth(worth, p, token_rank);
    for (int32_t e = 0; e < p->E; e++, worth += p->D) {
        double near[COT_TRACE_MAX_RANKS] = {0};
        for (int32_t d = 0; d < p->D; d++) near[d / of_node] += worth[d];
        for (int32_t d = 0; d < p->D; d++) worth[d] = (1 - in_node) * worth[d] + in_node * near[d / of_node];
    }
}

/* Tokens to ranks, experts to ranks, by turns; the groups in `found` become the cheapest met. */
static cot_status descend(cot_nodes_grouping *found, cot_cocluster *p, int32_t *expert, int32_t *token,
                          const cot_nodes_options *options, cot_error *error)
{
    int32_t of_node = p->D / options->nodes;
    float in_node = (float)(1 - options->cost_in / options->cost_out);
    cot_status status = COT_OK;
    memset(p->size, 0, (size_t)p->D * sizeof *p->size); // a node's uneven ranks need not be the first of all
    for (int32_t e = 0; e < p->E; e++) p->size[expert[e]]++;
    for (bool first = true; status == COT_OK; first = false) {
        cot_nodes_value value;
        token_gains(p->gain, p, expert, of_node, in_node);
        memset(p->price, 0, (size_t)p->D * sizeof *p->price);
        cot_cocluster_token_step(token, p->price, p, p->gain);
        expert_gains(p->worth, p, token, of_node, in_node);
        if (!cot_cocluster_is_within(p, expert)) {
            cot_cocluster_mend(expert, p, p->worth);
            token_gains(p->gain, p, expert, of_node, in_node);
            cot_cocluster_token_step(token, p->price, p, p->gain);
            expert_gains(p->worth, p, token, of_node, in_node);
        }
        status = cot_nodes_value_of(&value, &p->affinity, expert, token, options, error);
        if (status != COT_OK || (!first && value.cost >= found->value.cost)) break;
        found->value = value;
        memcpy(found->expert_rank, expert, (size_t)p->E * sizeof *expert);
        memcpy(found->token_rank, token, (size_t)p->N * sizeof *token);
        status = cot_cocluster_assign(expert, p, p->worth, error);
    }
    return status;
}

cot_status cot_group_hierarchically(cot_nodes_grouping *grouping, const cot_affinity *affinity,
                                    const cot_nodes_options *options, cot_error *error)
{
    *grouping = (cot_nodes_grouping){0};
    cot_status status = check(options, error);
    if (status != COT_OK) return status;
    cot_group_options all = options->group;
    all.method = NULL; // the problem alone is needed
    cot_grouper *whole;
    status = cot_grouper_open(&whole, affinity, &all, error);
    if (status != COT_OK) return status;
    cot_cocluster *p = cot_grouper_problem(whole);
    size_t E = (size_t)p->E, N = (size_t)p->N;
    int32_t *expert = malloc(E * sizeof *expert), *token = malloc(N * sizeof *token);
    grouping->expert_rank = malloc(E * sizeof *expert);
    grouping->token_rank = malloc(N * sizeof *token);
    if (!expert || !token || !grouping->expert_rank || !grouping->token_rank)
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for groups of %zu tokens", N);
    if (status == COT_OK) status = split(expert, affinity, options, error);
    if (status == COT_OK) status = descend(grouping, p, expert, token, options, error);
    grouping->bound = p->best.bound;
    if (status == COT_OK) {
        cot_grouping found = p->best;
        found.expert_rank = grouping->expert_rank;
        found.token_rank = grouping->token_rank;
        cot_cocluster_measure(&found, p);
        grouping->feasible = found.feasible;
        grouping->proven = found.proven;
    }
    free(expert);
    free(token);
    cot_grouper_close(whole);
    if (status != COT_OK) cot_nodes_grouping_free(grouping);
    return status;
}
