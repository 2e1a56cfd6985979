/* The cross-entropy method (Speculative MoE, appendix B, algorithm 1), in both readings of it. A multinomial for each
 * expert (and token) says how likely each rank is; an iteration draws a population from them, and the few of it that
 * are worth most draw them nearer. A run that has settled is followed by another from the start. A draw that cannot be one
 * of those few any more is given up: it changes nothing. */
#include "cocluster/solver.h"

#include "base/error.h"
#include "base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Tuned on recordings of two models at 4, 8 and 16 ranks, for short and for long runs. 40 drawn, 8 kept, 0.9 are 2 to 5 % worse after a
 * short run and within half a percent of these or 5 % worse after one six times as long; 20 drawn, 2 kept are up to 8 % better after a
 * short run where experts are many, and 2 to 6 % worse everywhere after a long one. */
enum { MAX_RANKS = COT_TRACE_MAX_RANKS, POPULATION = 30, ELITES = 4 };
static const double smoothing = 0.8, settled = 0.02;

typedef struct cross_entropy {
    bool joint;        // tokens are drawn too
    bool whole;        // no draw is given up
    double *expert_p;  // [E][D]
    float *token_p;    // [N][D]
    int32_t *expert;   // [POPULATION][E]
    uint8_t *token;    // [POPULATION][N]
    int32_t *order;    // [E] experts as they are drawn
    int32_t *repaired; // [N] tokens' ranks as offered
    double price[MAX_RANKS];
    double worth[POPULATION];
    int by_worth[POPULATION]; // falling
} cross_entropy;

static cot_status no_memory(cot_error *error)
{
    return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the cross-entropy method");
}

static void forget(const cot_cocluster *p)
{
    cross_entropy *c = p->state;
    for (int64_t i = 0; i < (int64_t)p->E * p->D; i++) c->expert_p[i] = 1.0 / p->D;
    for (int64_t i = 0; c->joint && i < p->N * p->D; i++) c->token_p[i] = 1.0f / (float)p->D;
    memset(c->price, 0, sizeof c->price);
}

static cot_status begin_either(cot_cocluster *p, bool joint, cot_error *error)
{
    const size_t N = (size_t)p->N, E = (size_t)p->E, D = (size_t)p->D;
    cross_entropy *c = p->state = calloc(1, sizeof *c);
    if (!c) return no_memory(error);
    c->joint = joint;
    c->expert_p = malloc(E * D * sizeof *c->expert_p);
    c->expert = malloc(POPULATION * E * sizeof *c->expert);
    c->order = malloc(E * sizeof *c->order);
    c->repaired = malloc(N * sizeof *c->repaired);
    if (joint) {
        c->token_p = malloc(N * D * sizeof *c->token_p);
        c->token = malloc(POPULATION * N * sizeof *c->token);
    }
    if (!c->expert_p || !c->expert || !c->order || !c->repaired || (joint && !(c->token_p && c->token)))
        return no_memory(error);
    forget(p);
    return COT_OK;
}

static cot_status begin(cot_cocluster *p, cot_error *error)
{
    return begin_either(p, false, error);
}

static cot_status begin_joint(cot_cocluster *p, cot_error *error)
{
    return begin_either(p, true, error);
}

static void end(cot_cocluster *p)
{
    cross_entropy *c = p->state;
    free(c->expert_p);
    free(c->token_p);
    free(c->expert);
    free(c->token);
    free(c->order);
    free(c->repaired);
    free(c);
}

/* The next of a stream of draws in [0, 1). */
static double throw_dice(uint64_t *dice)
{
    *dice = cot_mix64(*dice);
    return (double)(*dice >> 11) * 0x1p-53;
}

/* Experts in random order, each by its multinomial among the ranks with places left. */
static void draw_experts(int32_t *rank, const cot_cocluster *p, uint64_t *dice)
{
    cross_entropy *c = p->state;
    int32_t left[MAX_RANKS];
    memcpy(left, p->size, (size_t)p->D * sizeof *left);
    for (int32_t e = 0; e < p->E; e++) {
        const int32_t at = (int32_t)(throw_dice(dice) * (e + 1));
        c->order[e] = c->order[at];
        c->order[at] = e;
    }
    for (int32_t k = 0; k < p->E; k++) {
        const double *row = c->expert_p + (int64_t)c->order[k] * p->D;
        double sum = 0;
        for (int32_t d = 0; d < p->D; d++) sum += left[d] ? row[d] : 0;
        double x = throw_dice(dice) * sum;
        int32_t to = -1;
        for (int32_t d = 0; d < p->D && (to < 0 || x >= 0); d++)
            if (left[d]) {
                to = d;
                x -= row[d];
            }
        rank[c->order[k]] = to;
        left[to]--;
    }
}

/* Tokens, the heaviest first, each by its multinomial among the ranks with room; what they gain is added up. */
static double draw_tokens(uint8_t *rank, const cot_cocluster *p, const int32_t *expert_rank, uint64_t *dice)
{
    const cross_entropy *c = p->state;
    const cot_affinity *a = &p->affinity;
    double load[MAX_RANKS] = {0}, worth = 0;
    for (int64_t k = 0; k < p->N; k++) {
        const int64_t i = p->heavy_first[k];
        const float *row = c->token_p + i * p->D;
        const double room = p->token_limit - (double)p->token_load[i];
        float x = (float)throw_dice(dice);
        int32_t to = 0;
        while (to < p->D - 1 && (x -= row[to]) >= 0) to++;
        if (load[to] > room) { // again, among those with room; or the emptiest
            float sum = 0;
            for (int32_t d = 0; d < p->D; d++) {
                sum += load[d] <= room ? row[d] : 0;
                to = load[d] < load[to] ? d : to;
            }
            x = (float)throw_dice(dice) * sum;
            for (int32_t d = 0; d < p->D && x >= 0; d++)
                if (load[d] <= room && row[d] > 0) {
                    to = d;
                    x -= row[d];
                }
        }
        rank[i] = (uint8_t)to;
        load[to] += (double)p->token_load[i];
        for (int64_t j = a->offsets[i]; j < a->offsets[i + 1]; j++)
            worth += expert_rank[a->expert[j]] == to ? a->count[j] : 0;
        if (p->options.bonus) worth += (double)p->options.bonus[i * p->D + to];
    }
    return worth;
}

/* The least worth that still makes a draw one of the elite after `k` draws: what is below may be given up. */
static double elite_from(const cross_entropy *c, int k)
{
    return c->whole || k < ELITES ? 0 : c->worth[c->by_worth[ELITES - 1]];
}

static void draw_all(const cot_cocluster *p, int64_t iteration)
{
    cross_entropy *c = p->state;
    double best_price[MAX_RANKS] = {0}, most = -1;
    for (int k = 0; k < POPULATION; k++) {
        uint64_t dice = cot_random_bits(p->options.seed, (uint64_t)iteration, (uint64_t)k);
        int32_t *expert = c->expert + (int64_t)k * p->E;
        draw_experts(expert, p, &dice);
        if (c->joint) {
            c->worth[k] = draw_tokens(c->token + k * p->N, p, expert, &dice);
        } else {
            memcpy(p->price, c->price, (size_t)p->D * sizeof *p->price);
            cot_cocluster_gains(p->gain, p, expert);
            c->worth[k] = cot_cocluster_token_prices(c->repaired, p->price, elite_from(c, k), p, p->gain);
            if (c->worth[k] > most) memcpy(best_price, p->price, (size_t)p->D * sizeof *p->price);
            most = fmax(most, c->worth[k]);
        }
        int at = k;
        for (; at && c->worth[c->by_worth[at - 1]] < c->worth[k]; at--) c->by_worth[at] = c->by_worth[at - 1];
        c->by_worth[at] = k;
    }
    if (!c->joint) memcpy(c->price, best_price, (size_t)p->D * sizeof *p->price);
}

/* The multinomials towards the elite's shares. True: there is no choice left. */
static bool learn(const cot_cocluster *p)
{
    cross_entropy *c = p->state;
    const double share = smoothing / ELITES;
    double doubt = 0;
    for (int64_t i = 0; i < (int64_t)p->E * p->D; i++) c->expert_p[i] *= 1 - smoothing;
    for (int64_t i = 0; c->joint && i < p->N * p->D; i++) c->token_p[i] *= (float)(1 - smoothing);
    for (int k = 0; k < ELITES; k++) {
        const int32_t *expert = c->expert + (int64_t)c->by_worth[k] * p->E;
        for (int32_t e = 0; e < p->E; e++) c->expert_p[(int64_t)e * p->D + expert[e]] += share;
        for (int64_t i = 0; c->joint && i < p->N; i++)
            c->token_p[i * p->D + c->token[c->by_worth[k] * p->N + i]] += (float)share;
    }
    for (int32_t e = 0; e < p->E; e++) {
        double most = 0;
        for (int32_t d = 0; d < p->D; d++) most = fmax(most, c->expert_p[(int64_t)e * p->D + d]);
        doubt = fmax(doubt, 1 - most);
    }
    for (int64_t i = 0; c->joint && doubt < settled && i < p->N; i++) {
        float most = 0;
        for (int32_t d = 0; d < p->D; d++) most = fmaxf(most, c->token_p[i * p->D + d]);
        doubt = fmax(doubt, 1 - (double)most);
    }
    return doubt < settled;
}

static cot_status iterate(cot_cocluster *p, int64_t iteration, cot_error *error)
{
    cross_entropy *c = p->state;
    (void)error;
    draw_all(p, iteration);
    const int best = c->by_worth[0];
    const int32_t *expert = c->expert + (int64_t)best * p->E;
    if (!p->best.expert_rank || c->worth[best] > (double)p->best.local + p->best.bonus) {
        for (int64_t i = 0; c->joint && i < p->N; i++) c->repaired[i] = c->token[best * p->N + i];
        cot_cocluster_offer(p, expert, c->joint ? c->repaired : NULL);
    }
    if (learn(p)) forget(p);
    return COT_OK;
}

static cot_status begin_whole(cot_cocluster *p, cot_error *error)
{
    const cot_status status = begin_either(p, false, error);
    if (status == COT_OK) ((cross_entropy *)p->state)->whole = true;
    return status;
}

const cot_cocluster_method cot_cocluster_ce_whole = {
    {"ce-whole", "cross-entropy method that gives no draw up"}, begin_whole, iterate, end};

const cot_cocluster_method cot_cocluster_ce = {
    {"ce", "cross-entropy method: experts drawn, tokens solved for them"},
    begin,
    iterate,
    end,
};

const cot_cocluster_method cot_cocluster_ce_joint = {
    {"ce-joint", "cross-entropy method: experts and tokens drawn together"},
    begin_joint,
    iterate,
    end,
};
