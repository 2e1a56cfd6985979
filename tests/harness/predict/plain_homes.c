#include "harness/predict/plain_homes.h"

#include "harness/memory.h"

#include <stdbool.h>
#include <stdlib.h>

static bool has_room(const int64_t *load, int64_t n, int ranks, int d)
{
    int64_t full = 0; // ranks that have one more than an even share
    for (int i = 0; i < ranks; i++) full += load[i] > n / ranks;
    return load[d] < n / ranks || (load[d] == n / ranks && full < n % ranks);
}

/* Whether token i comes before the one that would be next. */
static bool comes_first(int64_t i, int64_t next, const int16_t *rank, const uint16_t *confidence)
{
    if (next < 0) return true;
    if (rank[i] < 0) return false;
    return rank[next] < 0 || confidence[i] > confidence[next];
}

void plain_even_shares(int16_t *home, const int16_t *rank, const uint16_t *confidence, const float *score,
                       int64_t n, int ranks)
{
    int64_t load[64] = {0};
    bool *done = must_allocate((size_t)n + 1, sizeof *done);
    for (int64_t i = 0; i < n; i++) done[i] = false;
    for (int64_t turn = 0; turn < n; turn++) {
        int64_t next = -1;
        int to = -1;
        for (int64_t i = 0; i < n; i++)
            if (!done[i] && comes_first(i, next, rank, confidence)) next = i;
        for (int d = 0; d < ranks; d++) {
            if (!has_room(load, n, ranks, d)) continue;
            if (to < 0 ||
                (rank[next] < 0 ? load[d] < load[to] : score[next * ranks + d] > score[next * ranks + to]))
                to = d;
        }
        if (rank[next] >= 0 && has_room(load, n, ranks, rank[next])) to = rank[next];
        load[to]++;
        done[next] = true;
        home[next] = (int16_t)to;
    }
    free(done);
}

void plain_homes(int16_t *home, const cot_predictor *tables, cot_predict_method method, int l,
                 const int32_t *ids, const int16_t *before, int64_t n)
{
    cot_predictor_info info;
    cot_predictor_describe(&info, tables);
    const int E = info.n_experts, D = info.n_ranks;
    int16_t *rank = must_allocate((size_t)n + 1, sizeof *rank);
    uint16_t *confidence = must_allocate((size_t)n + 1, sizeof *confidence);
    float *score = must_allocate((size_t)(n * D) + 1, sizeof *score),
          *experts = must_allocate((size_t)E, sizeof *experts);
    for (int64_t i = 0; i < n; i++) {
        int32_t row;
        cot_predict_rows(&row, tables, &ids[i], 1);
        const cot_predict_batch one = {
            .layer = l, .n_tokens = 1, .row = &row, .ranks_before = before + i * COT_PREDICT_MAX_ORDER};
        cot_predict_ranks(&rank[i], &confidence[i], tables, method, &one);
        cot_predict_experts(experts, tables, method, &one);
        for (int d = 0; d < D; d++) score[i * D + d] = 0;
        for (int e = 0; e < E; e++) score[i * D + info.expert_rank[l * E + e]] += experts[e];
    }
    plain_even_shares(home, rank, confidence, score, n, D);
    free(rank);
    free(confidence);
    free(score);
    free(experts);
}

int16_t plain_rank_of_most(const cot_predictor *tables, int l, const uint16_t *experts)
{
    cot_predictor_info info;
    cot_predictor_describe(&info, tables);
    int on[64] = {0};
    int16_t most = 0;
    for (int k = 0; k < info.top_k; k++) on[info.expert_rank[l * info.n_experts + experts[k]]]++;
    for (int16_t d = 1; d < info.n_ranks; d++)
        if (on[d] > on[most]) most = d;
    return most;
}
