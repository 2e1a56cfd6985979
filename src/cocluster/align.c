/* Groups of all layers, what moves between them, and names that keep most in place. */
#include "coterie/group_layers.h"

#include "base/error.h"
#include "cocluster/measure.h"
#include "placement/rounds.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

cot_status cot_layer_groups_new(cot_layer_groups *groups, const cot_affinities *affinities, int32_t ranks,
                                cot_error *error)
{
    int32_t most = affinities->n_experts < COT_TRACE_MAX_RANKS ? affinities->n_experts : COT_TRACE_MAX_RANKS;
    *groups = (cot_layer_groups){0};
    if (ranks < 1 || ranks > most)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%d ranks for %d experts, 1 .. %d can be", ranks,
                        affinities->n_experts, most);
    *groups = (cot_layer_groups){.n_layers = affinities->n_layers,
                                 .n_experts = affinities->n_experts,
                                 .n_ranks = ranks,
                                 .n_tokens = affinities->n_tokens};
    groups->expert_rank =
        calloc((size_t)groups->n_layers * (size_t)groups->n_experts, sizeof *groups->expert_rank);
    groups->token_rank =
        calloc((size_t)groups->n_layers * (size_t)groups->n_tokens, sizeof *groups->token_rank);
    if (groups->expert_rank && groups->token_rank) return COT_OK;
    cot_layer_groups_free(groups);
    return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for groups of %d layers", affinities->n_layers);
}

void cot_layer_groups_free(cot_layer_groups *groups)
{
    free(groups->expert_rank);
    free(groups->token_rank);
    *groups = (cot_layer_groups){0};
}

void cot_layer_groups_set(cot_layer_groups *groups, int32_t l, const int32_t *expert_rank,
                          const int32_t *token_rank)
{
    size_t E = (size_t)groups->n_experts, N = (size_t)groups->n_tokens;
    memcpy(groups->expert_rank + (size_t)l * E, expert_rank, E * sizeof *expert_rank);
    memcpy(groups->token_rank + (size_t)l * N, token_rank, N * sizeof *token_rank);
}

void cot_layer_groups_rename(cot_layer_groups *groups, const int32_t *names)
{
    size_t E = (size_t)groups->n_experts, N = (size_t)groups->n_tokens;
    for (size_t l = 0; l < (size_t)groups->n_layers; l++) {
        const int32_t *name = names + l * (size_t)groups->n_ranks;
        int32_t *expert = groups->expert_rank + l * E, *token = groups->token_rank + l * N;
        for (size_t e = 0; e < E; e++) expert[e] = name[expert[e]];
        for (size_t i = 0; i < N; i++) token[i] = name[token[i]];
    }
}

static cot_status new_traffic(cot_layer_traffic *traffic, const cot_layer_groups *groups, cot_error *error)
{
    size_t L = (size_t)groups->n_layers, D = (size_t)groups->n_ranks;
    *traffic = (cot_layer_traffic){.n_layers = groups->n_layers, .n_ranks = groups->n_ranks};
    traffic->calls = calloc(L * D * D, sizeof *traffic->calls);
    traffic->moves = calloc(L * D * D, sizeof *traffic->moves);
    if (traffic->calls && traffic->moves) return COT_OK;
    cot_layer_traffic_free(traffic);
    return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the traffic of %d ranks", groups->n_ranks);
}

static double row_load(const cot_affinity *affinity, size_t i)
{
    double sum = 0;
    for (int64_t j = affinity->offsets[i]; j < affinity->offsets[i + 1]; j++) sum += affinity->count[j];
    return sum;
}

cot_status cot_layer_traffic_count(cot_layer_traffic *traffic, const cot_layer_groups *groups,
                                   const cot_affinities *affinities, cot_error *error)
{
    size_t L = (size_t)groups->n_layers, D = (size_t)groups->n_ranks, E = (size_t)groups->n_experts,
           N = (size_t)groups->n_tokens;
    *traffic = (cot_layer_traffic){0};
    if (affinities->n_layers != groups->n_layers || affinities->n_experts != groups->n_experts ||
        affinities->n_tokens != groups->n_tokens)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "groups of %zu layers, %zu experts and %zu tokens, affinities of %d, %d and %lld", L,
                        E, N, affinities->n_layers, affinities->n_experts, (long long)affinities->n_tokens);
    cot_status status = new_traffic(traffic, groups, error);
    for (size_t l = 0; status == COT_OK && l < L; l++) {
        const cot_affinity *a = affinities->layer + l;
        const int32_t *token = groups->token_rank + l * N;
        double *moves = traffic->moves + l * D * D;
        cot_group_calls(traffic->calls + l * D * D, a, groups->expert_rank + l * E, token, groups->n_ranks);
        for (size_t i = 0; i < N && l + 1 < L; i++)
            moves[(size_t)token[i] * D + (size_t)token[N + i]] += (row_load(a, i) + row_load(a + 1, i)) / 2;
    }
    return status;
}

cot_status cot_layer_traffic_count_trace(cot_layer_traffic *traffic, const cot_layer_groups *groups,
                                         const cot_trace *trace, const uint8_t *chosen, cot_error *error)
{
    size_t D = (size_t)groups->n_ranks, E = (size_t)groups->n_experts;
    *traffic = (cot_layer_traffic){0};
    if (trace->kind != COT_TRACE_TOKENS)
        return cot_fail(error, COT_INVALID_ARGUMENT, "a trace of counts has no transitions between layers");
    if (trace->n_layers != groups->n_layers || trace->n_experts != groups->n_experts)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "groups of %d layers and %d experts, a trace of %d and %d", groups->n_layers,
                        groups->n_experts, trace->n_layers, trace->n_experts);
    cot_status status = new_traffic(traffic, groups, error);
    for (int32_t l = 0; status == COT_OK && l + 1 < trace->n_layers; l++) {
        const int32_t *rank = groups->expert_rank + (size_t)l * E;
        double *moves = traffic->moves + (size_t)l * D * D;
        for (int64_t s = 0; s < trace->n_sequences; s++)
            for (int64_t t = trace->sequence_offsets[s];
                 (!chosen || chosen[s]) && t < trace->sequence_offsets[s + 1]; t++)
                for (int32_t j = 0; j < trace->top_k; j++)
                    for (int32_t k = 0; k < trace->top_k; k++) {
                        size_t from = (size_t)rank[cot_trace_expert(trace, l, t, j)];
                        size_t to = (size_t)rank[E + (size_t)cot_trace_expert(trace, l + 1, t, k)];
                        moves[from * D + to] += 1;
                    }
    }
    return status;
}

void cot_layer_traffic_free(cot_layer_traffic *traffic)
{
    free(traffic->calls);
    free(traffic->moves);
    *traffic = (cot_layer_traffic){0};
}

double cot_layer_traffic_stay(const cot_layer_traffic *traffic, const int32_t *names)
{
    size_t L = (size_t)traffic->n_layers, D = (size_t)traffic->n_ranks;
    double stays = 0, all = 0;
    for (size_t l = 0; l + 1 < L; l++)
        for (size_t a = 0; a < D; a++)
            for (size_t b = 0; b < D; b++) {
                double here = traffic->moves[(l * D + a) * D + b];
                all += here;
                if (names ? names[l * D + a] == names[(l + 1) * D + b] : a == b) stays += here;
            }
    return all > 0 ? stays / all : 1;
}

cot_status cot_layer_traffic_align(int32_t *names, const cot_layer_traffic *traffic, const int32_t *size,
                                   cot_error *error)
{
    size_t L = (size_t)traffic->n_layers, D = (size_t)traffic->n_ranks;
    int32_t *match = malloc(D * sizeof *match);
    double *cost = malloc(D * D * sizeof *cost);
    cot_status status = match && cost
                            ? COT_OK
                            : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for names of %zu ranks", D);
    for (size_t d = 0; d < D; d++) names[d] = (int32_t)d;
    for (size_t l = 0; status == COT_OK && l + 1 < L; l++) {
        const double *moves = traffic->moves + l * D * D;
        double all = 1;
        for (size_t i = 0; i < D * D; i++) all += moves[i];
        for (size_t a = 0; a < D; a++)
            for (size_t b = 0; b < D; b++) { // a pair of unequal sizes costs more than all others can gain
                bool unequal = size && size[l * D + a] != size[(l + 1) * D + b];
                cost[a * D + b] = unequal ? all : -moves[a * D + b];
            }
        status = cot_match(match, cost, traffic->n_ranks, error);
        for (size_t a = 0; status == COT_OK && a < D; a++)
            names[(l + 1) * D + (size_t)match[a]] = names[l * D + a];
    }
    free(match);
    free(cost);
    return status;
}
