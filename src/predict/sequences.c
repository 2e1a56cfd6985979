/* Device sequences (Speculative MoE, appendix B.1): what follows the ranks of a token's experts in the layers before. */
#include "predict/predictor.h"

#include "base/error.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

void cot_predict_home(int16_t *rank, const cot_predictor *p, int32_t layer, const uint16_t *experts,
                      int64_t n)
{
    const int32_t *expert_rank = p->expert_rank + (int64_t)layer * p->n_experts;
    for (int64_t t = 0; t < n; t++) {
        int32_t sum[COT_TRACE_MAX_RANKS] = {0}, best = 0;
        for (int32_t k = 0; k < p->top_k; k++) {
            const uint16_t e = experts[t * p->top_k + k];
            if (e < p->n_experts) sum[expert_rank[e]]++;
        }
        for (int32_t d = 1; d < p->n_ranks; d++)
            if (sum[d] > sum[best]) best = d;
        rank[t] = sum[best] ? (int16_t)best : -1;
    }
}

typedef struct following {
    const cot_training *training;
    int16_t *home; // [L][n] of the training tokens
    uint16_t *ranks;
    uint8_t *shares;
    atomic_bool failed;
} following;

static void find_homes(void *context, int64_t l)
{
    following *f = context;
    const cot_training *t = f->training;
    const int32_t K = t->trace->top_k;
    uint16_t *experts = malloc((size_t)K * sizeof *experts);
    if (!experts) atomic_store(&f->failed, true);
    for (int64_t i = 0; experts && i < t->n; i++) {
        for (int32_t k = 0; k < K; k++)
            experts[k] = (uint16_t)cot_trace_expert(t->trace, (int32_t)l, t->token[i], k);
        cot_predict_home(f->home + l * t->n + i, t->predictor, (int32_t)l, experts, 1);
    }
    free(experts);
}

/* The table's row says what `count` does, or, where that is nothing, what the row without the earliest rank says. */
static void fill(following *f, const cot_predictor *p, int64_t l, int64_t row, int64_t shorter,
                 const uint32_t *count)
{
    const int32_t E = p->n_experts;
    const int64_t at = p->sequence_first[l] + row, from = p->sequence_first[l] + shorter;
    uint64_t total = 0;
    for (int32_t e = 0; e < E; e++) total += count[e];
    if (!total && row != shorter) {
        memcpy(f->ranks + 2 * at, f->ranks + 2 * from, 2 * sizeof *f->ranks);
        memcpy(f->shares + at * E, f->shares + from * E, (size_t)E);
        return;
    }
    for (int32_t e = 0; e < E && total; e++) {
        const double share = 255 * (double)count[e] * p->top_k / (double)total;
        f->shares[at * E + e] = share >= 255 ? 255 : (uint8_t)(share + 0.5);
    }
    if (row)
        cot_pair_of_counts(f->ranks + 2 * at, count, p->expert_rank + l * E, E, p->n_ranks, -1);
    else // nothing is known of the token: its experts are the layer's, but a rank would be everybody's
        f->ranks[2 * at] = COT_NO_RANK;
}

static void follow_layer(void *context, int64_t l)
{
    following *f = context;
    const cot_training *t = f->training;
    const cot_predictor *p = t->predictor;
    const int32_t E = p->n_experts, D = p->n_ranks, order = cot_sequence_order(p, (int32_t)l);
    const int64_t rows = cot_sequence_rows(D, order);
    uint32_t *count = calloc((size_t)(rows * E), sizeof *count);
    if (!count) {
        atomic_store(&f->failed, true);
        return;
    }
    for (int64_t i = 0; i < t->n; i++)
        for (int64_t j = 0, row = 0, power = 1; j <= order; j++, power *= D) {
            for (int32_t k = 0; k < p->top_k; k++)
                count[row * E + cot_trace_expert(t->trace, (int32_t)l, t->token[i], k)]++;
            if (j < order) row += (f->home[(l - 1 - j) * t->n + i] + 1) * power;
        }
    fill(f, p, l, 0, 0, count);
    for (int64_t j = 1, first = 1, power = D; j <= order; first += power, power *= D, j++) {
        const int64_t shorter_rows = power / D, shorter_first = first - shorter_rows;
        for (int64_t i = 0; i < power; i++)
            fill(f, p, l, first + i, shorter_first + i % shorter_rows, count + (first + i) * E);
    }
    free(count);
}

cot_status cot_train_sequences(cot_training *t, cot_error *error)
{
    cot_predictor *p = t->predictor;
    const int64_t L = p->n_layers, rows = p->sequence_first[L];
    following f = {.training = t};
    f.home = calloc((size_t)(L * t->n) + 1, sizeof *f.home);
    f.ranks = cot_predictor_alloc(p, rows * 2, sizeof *f.ranks);
    f.shares = cot_predictor_alloc(p, rows * p->n_experts, sizeof *f.shares);
    bool fine = f.home && f.ranks && f.shares;
    if (fine) {
        cot_pool_run(t->pool, L, find_homes, &f);
        if (!atomic_load(&f.failed)) cot_pool_run(t->pool, L, follow_layer, &f);
        fine = !atomic_load(&f.failed);
    }
    free(f.home);
    p->sequence_ranks = f.ranks;
    p->sequence_shares = f.shares;
    return fine ? COT_OK
                : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %lld sequences of ranks",
                           (long long)rows);
}
