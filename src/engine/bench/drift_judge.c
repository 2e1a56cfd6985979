/* What a step takes, by the model of coterie/bench_drift.h. */
#include "engine/bench/drift.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

cot_status cot_bench_drift_judge_open(cot_bench_drift_judge *j, const cot_bench_drift_options *o,
                                      const cot_bench_drift_steps *steps, cot_error *error)
{
    const size_t P = (size_t)o->ranks, E = (size_t)o->half[0].trace->n_experts;
    *j = (cot_bench_drift_judge){.o = o,
                                 .steps = steps,
                                 .rows = malloc(P * sizeof *j->rows),
                                 .experts = malloc(P * sizeof *j->experts),
                                 .token = malloc(P * sizeof *j->token),
                                 .called = malloc(P * E * sizeof *j->called)};
    if (j->rows && j->experts && j->token && j->called) return COT_OK;
    return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory to judge steps");
}

void cot_bench_drift_judge_close(cot_bench_drift_judge *j)
{
    free(j->rows);
    free(j->experts);
    free(j->token);
    free(j->called);
    *j = (cot_bench_drift_judge){0};
}

/* Tokens go to the replicas that the engine would choose. Returns how many sends there are. */
static int64_t serve(cot_bench_drift_judge *j, int64_t step, const cot_expert_replicas *replicas, int32_t l)
{
    const cot_bench_drift_options *o = j->o;
    const int32_t P = o->ranks, E = o->half[0].trace->n_experts, K = o->half[0].trace->top_k;
    int64_t sends = 0;
    memset(j->rows, 0, (size_t)P * sizeof *j->rows);
    memset(j->experts, 0, (size_t)P * sizeof *j->experts);
    memset(j->token, 0, (size_t)P * sizeof *j->token);
    memset(j->called, 0, (size_t)P * (size_t)E * sizeof *j->called);
    for (int64_t i = j->steps->begin[step]; i < j->steps->begin[step + 1]; i++) {
        const cot_bench_drift_token *t = &j->steps->token[i];
        const int64_t number = j->token[t->home]++;
        uint64_t reached = 0;
        for (int32_t k = 0; k < K; k++) {
            const int32_t e = cot_bench_drift_expert(o, t, l, k);
            const int32_t r = replicas->rank[cot_expert_replica(replicas, e, t->home, number)];
            bool *called = &j->called[r * E + e];
            j->rows[r]++;
            j->experts[r] += !*called;
            *called = true;
            if (r != t->home) reached |= (uint64_t)1 << r;
        }
        sends += __builtin_popcountll(reached);
    }
    return sends;
}

void cot_bench_drift_judge_step(cot_bench_drift_interval *sum, cot_bench_drift_judge *j, int64_t step,
                                const cot_expert_layout *layout)
{
    const cot_bench_drift_costs *c = &j->o->costs;
    const int64_t tokens = j->steps->begin[step + 1] - j->steps->begin[step];
    const int32_t P = j->o->ranks, K = j->o->half[0].trace->top_k;
    for (int32_t l = 0; l < layout->n_layers; l++) {
        const cot_expert_replicas replicas = cot_expert_layout_layer(layout, l);
        const int64_t sends = serve(j, step, &replicas, l);
        double busiest = 0;
        int64_t most = 0;
        for (int32_t r = 0; r < P; r++) {
            const double ns = c->expert_ns * (double)j->experts[r] + c->row_ns * (double)j->rows[r];
            busiest = ns > busiest ? ns : busiest;
            most = j->rows[r] > most ? j->rows[r] : most;
        }
        sum->ns += c->layer_ns + busiest + c->send_ns * (double)sends / P;
        sum->sends += sends;
        sum->peak += (double)most * P / (double)(tokens * K) / layout->n_layers;
    }
    sum->tokens += tokens;
}
