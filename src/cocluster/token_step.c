/* Tokens to ranks, within the balance: repair of what prices leave. */
#include "cocluster/solver.h"

#include <string.h>

enum { MAX_RANKS = COT_TRACE_MAX_RANKS };

/* Tokens of a rank that is too full, by what a unit of load loses by going elsewhere. */
typedef struct leaver {
    float loss;
    int32_t token;
} leaver;

static void sift(leaver *heap, int64_t n, int64_t i)
{
    const leaver moved = heap[i];
    for (int64_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && heap[child + 1].loss < heap[child].loss) child++;
        if (heap[child].loss >= moved.loss) break;
        heap[i] = heap[child];
    }
    heap[i] = moved;
}

/* Where token `i` loses least among the ranks with room for it; -1: nowhere. */
static int32_t way_out(float *loss, const cot_cocluster *p, const float *gain, const double *load, int64_t i,
                       int32_t from)
{
    int32_t to = -1;
    for (int32_t d = 0; d < p->D; d++)
        if (d != from && load[d] + (double)p->token_load[i] <= p->token_limit &&
            (to < 0 || gain[d * p->N + i] > gain[to * p->N + i]))
            to = d;
    if (to >= 0) *loss = (gain[from * p->N + i] - gain[to * p->N + i]) / (float)p->token_load[i];
    return to;
}

/* False: nobody can leave any more and rank `d` is still too full. */
static bool empty_rank(int32_t *token_rank, double *load, const cot_cocluster *p, const float *gain,
                       int32_t d, leaver *heap)
{
    int64_t n = 0;
    float loss;
    for (int64_t i = 0; i < p->N; i++)
        if (token_rank[i] == d && p->token_load[i] && way_out(&loss, p, gain, load, i, d) >= 0)
            heap[n++] = (leaver){loss, (int32_t)i};
    for (int64_t i = n / 2; i-- > 0;) sift(heap, n, i);
    while (load[d] > p->token_limit && n) {
        const int32_t token = heap[0].token, to = way_out(&loss, p, gain, load, token, d);
        if (to >= 0 && loss > heap[0].loss) { // its place has been taken
            heap[0].loss = loss;
            sift(heap, n, 0);
            continue;
        }
        if (to >= 0) {
            token_rank[token] = to;
            load[to] += (double)p->token_load[token];
            load[d] -= (double)p->token_load[token];
        }
        heap[0] = heap[--n];
        if (n) sift(heap, n, 0);
    }
    return load[d] <= p->token_limit;
}

/* Heaviest first to the best rank with room, or, `evenly`, to the emptiest, which token_limit always has room for. */
static bool pack_tokens(int32_t *token_rank, double *load, const cot_cocluster *p, const float *gain,
                        bool evenly)
{
    for (int32_t d = 0; d < p->D; d++) load[d] = 0;
    for (int64_t k = 0; k < p->N; k++) {
        const int64_t i = p->heavy_first[k];
        int32_t to = -1;
        for (int32_t d = 0; d < p->D; d++) {
            if (evenly ? to < 0 || load[d] < load[to]
                       : load[d] + (double)p->token_load[i] <= p->token_limit &&
                             (to < 0 || gain[d * p->N + i] > gain[to * p->N + i]))
                to = d;
        }
        if (to < 0) return false;
        token_rank[i] = to;
        load[to] += (double)p->token_load[i];
    }
    return true;
}

/* Tokens that gain where there is room go there, first those that gain most a unit of load. */
static void fill(int32_t *token_rank, double *load, const cot_cocluster *p, const float *gain)
{
    static const float least[] = {0.7f, 0.5f, 0.35f, 0.25f, 0.15f, 0.08f, 0, 0};
    bool moved = true;
    for (size_t round = 0; round < sizeof least / sizeof *least && (moved || least[round] > 0); round++) {
        moved = false;
        for (int64_t i = 0; i < p->N; i++) {
            const int32_t from = token_rank[i];
            const float enough = gain[from * p->N + i] + least[round] * (float)p->token_load[i];
            int32_t to = from;
            for (int32_t d = 0; d < p->D; d++)
                if (gain[d * p->N + i] > enough && gain[d * p->N + i] > gain[to * p->N + i] &&
                    load[d] + (double)p->token_load[i] <= p->token_limit)
                    to = d;
            if (to == from) continue;
            load[from] -= (double)p->token_load[i];
            load[to] += (double)p->token_load[i];
            token_rank[i] = to;
            moved = true;
        }
    }
}

double cot_cocluster_token_repair(int32_t *token_rank, const cot_cocluster *p, const float *gain)
{
    double load[MAX_RANKS] = {0}, sum = 0;
    bool good = true;
    for (int64_t i = 0; i < p->N; i++) load[token_rank[i]] += (double)p->token_load[i];
    for (int32_t d = 0; good && d < p->D; d++)
        if (load[d] > p->token_limit) good = empty_rank(token_rank, load, p, gain, d, p->scratch);
    if (!good && !pack_tokens(token_rank, load, p, gain, false)) pack_tokens(token_rank, load, p, gain, true);
    fill(token_rank, load, p, gain);
    for (int64_t i = 0; i < p->N; i++) sum += (double)gain[token_rank[i] * p->N + i];
    return sum;
}

double cot_cocluster_token_step(int32_t *token_rank, double *price, const cot_cocluster *p, const float *gain)
{
    cot_cocluster_token_prices(token_rank, price, 0, p, gain);
    return cot_cocluster_token_settle(token_rank, price, 1, 0, p, gain);
}
