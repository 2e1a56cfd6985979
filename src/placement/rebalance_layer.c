#include "placement/rebalance_layer.h"

#include "base/error.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double least = 1e-9; // part of a step below which two times are one

static inline uint64_t bit(int rank)
{
    return (uint64_t)1 << rank;
}

static inline int count(uint64_t ranks)
{
    return __builtin_popcountll(ranks);
}

cot_status cot_rebalance_search_open(cot_rebalance_search *s, const cot_rebalance_options *o,
                                     const double *distance, int64_t sample, cot_error *error)
{
    const size_t E = (size_t)o->experts, P = (size_t)o->ranks;
    const size_t tokens = (size_t)sample, calls = tokens * (size_t)o->top_k;
    *s = (cot_rebalance_search){.o = o,
                                .distance = distance,
                                .was = malloc(E * sizeof *s->was),
                                .now = malloc(E * sizeof *s->now),
                                .used = malloc(P * sizeof *s->used),
                                .most = malloc(P * sizeof *s->most),
                                .share_ns = malloc(E * (P + 1) * sizeof *s->share_ns),
                                .rank_ns = malloc(P * sizeof *s->rank_ns),
                                .begin = malloc((E + 1) * sizeof *s->begin),
                                .token = malloc((calls + 1) * sizeof *s->token),
                                .token_sends = malloc((tokens + 1) * sizeof *s->token_sends),
                                .expert_sends = malloc(E * sizeof *s->expert_sends)};
    if (s->was && s->now && s->used && s->most && s->share_ns && s->rank_ns && s->begin && s->token &&
        s->token_sends && s->expert_sends)
        return COT_OK;
    return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a layer of %d experts", (int)o->experts);
}

void cot_rebalance_search_close(cot_rebalance_search *s)
{
    free(s->was);
    free(s->now);
    free(s->used);
    free(s->most);
    free(s->share_ns);
    free(s->rank_ns);
    free(s->begin);
    free(s->token);
    free(s->token_sends);
    free(s->expert_sends);
    free(s->mark);
    *s = (cot_rebalance_search){0};
}

/* ---- what a step takes ---- */

/* The n-th of a set of ranks, ascending. */
static int nth(uint64_t ranks, int n)
{
    while (n-- > 0) ranks &= ranks - 1;
    return __builtin_ctzll(ranks);
}

/* Sends of a token, with experts where `now` has them. */
static double sends_of(const cot_rebalance_search *s, int32_t token)
{
    const uint16_t *experts = s->experts + token * s->stride;
    const int home = s->home[token];
    uint64_t reached = 0;
    for (int32_t k = 0; k < s->o->top_k; k++) {
        const uint64_t ranks = s->now[experts[k]];
        if (ranks & bit(home)) continue;
        reached |= ranks & (ranks - 1) ? bit(nth(ranks, (home + token) % count(ranks))) : ranks;
    }
    if (!s->distance) return count(reached);
    double sends = 0;
    for (; reached; reached &= reached - 1)
        sends += s->distance[home * s->o->ranks + __builtin_ctzll(reached)];
    return sends;
}

static bool calls(const cot_rebalance_search *s, int32_t token, int32_t expert)
{
    const uint16_t *experts = s->experts + token * s->stride;
    for (int32_t k = 0; k < s->o->top_k; k++)
        if (experts[k] == expert) return true;
    return false;
}

/* Adds what the experts' replicas take to their ranks, `sign` times. */
static void charge(cot_rebalance_search *s, const int32_t *expert, int n, double sign)
{
    for (int i = 0; i < n; i++) {
        uint64_t ranks = s->now[expert[i]];
        const double ns =
            sign * s->share_ns[(size_t)expert[i] * ((size_t)s->o->ranks + 1) + (size_t)count(ranks)];
        for (; ranks; ranks &= ranks - 1) s->rank_ns[__builtin_ctzll(ranks)] += ns;
    }
}

static double busiest_ns(const cot_rebalance_search *s)
{
    double most = 0;
    for (int r = 0; r < s->o->ranks; r++) most = fmax(most, s->rank_ns[r]);
    return most;
}

static double spread_of(const cot_rebalance_search *s)
{
    double sum = 0;
    for (int r = 0; r < s->o->ranks; r++) sum += s->rank_ns[r] * s->rank_ns[r];
    return sum;
}

/* A replica that goes may have to be copied again: it counts as one that comes, and is free where another one does. */
static int32_t moves_of(int32_t come, int32_t go)
{
    return come > go ? come : go;
}

/* Everything from `now` alone, so that no rounding adds up. */
static void reckon(cot_rebalance_search *s)
{
    memset(s->rank_ns, 0, (size_t)s->o->ranks * sizeof *s->rank_ns);
    memset(s->used, 0, (size_t)s->o->ranks * sizeof *s->used);
    s->come = s->go = 0;
    for (int32_t e = 0; e < s->o->experts; e++) {
        charge(s, &e, 1, 1);
        for (uint64_t ranks = s->now[e]; ranks; ranks &= ranks - 1) s->used[__builtin_ctzll(ranks)]++;
        s->come += count(s->now[e] & ~s->was[e]);
        s->go += count(s->was[e] & ~s->now[e]);
    }
    s->spare = 0;
    for (int r = 0; r < s->o->ranks; r++) s->spare += s->used[r] > s->o->base ? s->used[r] - s->o->base : 0;
    s->sends = 0;
    for (int32_t t = 0; t < s->tokens; t++) s->sends += s->token_sends[t] = sends_of(s, t);
    for (int32_t e = 0; s->tokens && e < s->o->experts; e++) {
        s->expert_sends[e] = 0;
        for (int32_t at = s->begin[e]; at < s->begin[e + 1]; at++)
            s->expert_sends[e] += s->token_sends[s->token[at]];
    }
    s->ns = busiest_ns(s) + s->send_ns * s->sends;
    s->spread = spread_of(s);
}

/* The tokens of the sample by the experts that they call. */
static void list_tokens(cot_rebalance_search *s)
{
    const int32_t E = s->o->experts, K = s->o->top_k;
    memset(s->begin, 0, (size_t)(E + 1) * sizeof *s->begin);
    for (int32_t t = 0; t < s->tokens; t++)
        for (int32_t k = 0; k < K; k++) s->begin[s->experts[t * s->stride + k] + 1]++;
    for (int32_t e = 0; e < E; e++) s->begin[e + 1] += s->begin[e];
    for (int32_t t = 0; t < s->tokens; t++)
        for (int32_t k = 0; k < K; k++) s->token[s->begin[s->experts[t * s->stride + k]]++] = t;
    for (int32_t e = E; e > 0; e--) s->begin[e] = s->begin[e - 1];
    s->begin[0] = 0;
}

void cot_rebalance_search_begin(cot_rebalance_search *s, const double *rate, const cot_rebalance_seen *seen,
                                int32_t l, const bool *fixed)
{
    const cot_rebalance_options *o = s->o;
    double all = 0;
    for (int32_t e = 0; e < o->experts; e++) {
        double *ns = s->share_ns + (size_t)e * ((size_t)o->ranks + 1);
        ns[0] = 0;
        for (int32_t n = 1; n <= o->ranks; n++)
            ns[n] = -o->expert_ns * expm1(-rate[e] / n) + o->row_ns * rate[e] / n;
        all += rate[e];
    }
    s->tokens = o->mode == COT_REBALANCE_JOINT ? (int32_t)seen->tokens : 0;
    s->stride = (int64_t)o->layers * o->top_k;
    s->experts = s->tokens ? seen->experts + (int64_t)l * o->top_k : NULL;
    s->home = seen->home;
    s->send_ns = s->tokens ? o->send_ns * all / o->top_k / s->tokens / o->ranks : 0;
    s->fixed = fixed;
    s->marks = 0;
    if (s->tokens) list_tokens(s);
    memcpy(s->now, s->was, (size_t)o->experts * sizeof *s->now);
    for (int r = 0; r < o->ranks; r++) s->most[r] = o->slots;
    reckon(s);
}

void cot_rebalance_search_keep_slots(cot_rebalance_search *s)
{
    for (int r = 0; r < s->o->ranks; r++) s->most[r] = s->used[r] > s->o->base ? s->used[r] : s->o->base;
}

/* ---- changes ---- */

static void put(cot_rebalance_search *s, const cot_rebalance_change *c)
{
    for (int i = 0; i < c->n; i++) s->now[c->expert[i]] = c->ranks[i];
}

/* How many sends more, with experts where `now` has them, in tokens that call one that has changed. */
static double more_sends(const cot_rebalance_search *s, const cot_rebalance_change *c)
{
    double more = 0;
    for (int i = 0; s->tokens && i < c->n; i++)
        for (int32_t at = s->begin[c->expert[i]]; at < s->begin[c->expert[i] + 1]; at++) {
            const int32_t token = s->token[at];
            bool counted = false;
            for (int j = 0; j < i && !counted; j++) counted = calls(s, token, c->expert[j]);
            if (!counted) more += sends_of(s, token) - s->token_sends[token];
        }
    return more;
}

/* The best so far. */
typedef struct choice {
    cot_rebalance_change change;
    double rate, even; // time saved, and spread lowered, for a move
    bool any;
} choice;

/* What a change saves at the busiest rank; *even is how much lower the spread is. */
static double saved_at_ranks(cot_rebalance_search *s, double *even, const cot_rebalance_change *c,
                             const cot_rebalance_change *old)
{
    const double before = busiest_ns(s);
    charge(s, c->expert, c->n, -1);
    put(s, c);
    charge(s, c->expert, c->n, 1);
    const double after = busiest_ns(s);
    *even = s->spread - spread_of(s);
    charge(s, c->expert, c->n, -1);
    put(s, old);
    charge(s, c->expert, c->n, 1);
    return before - after;
}

static double saved_in_sends(cot_rebalance_search *s, const cot_rebalance_change *c,
                             const cot_rebalance_change *old)
{
    put(s, c);
    const double more = more_sends(s, c);
    put(s, old);
    return -s->send_ns * more;
}

/* A change is better when it saves more for a move, or as much and leaves ranks more even. One that saves nothing may still make ranks
 * more even, where several are the busiest. */
static void consider(cot_rebalance_search *s, choice *best, const cot_rebalance_change *c)
{
    cot_rebalance_change old = *c;
    int32_t come = s->come, go = s->go;
    double most = 0, even; // that sends may save
    for (int i = 0; i < c->n; i++) {
        const int32_t e = c->expert[i];
        if (s->fixed && s->fixed[e]) return;
        old.ranks[i] = s->now[e];
        come += count(c->ranks[i] & ~s->was[e]) - count(old.ranks[i] & ~s->was[e]);
        go += count(s->was[e] & ~c->ranks[i]) - count(s->was[e] & ~old.ranks[i]);
        if (s->tokens) most += s->send_ns * s->expert_sends[e];
    }
    const int32_t moves = moves_of(come, go) - moves_of(s->come, s->go);
    const double per = moves > 0 ? moves : 0.01, close = 1e-6 * best->rate; // what takes no more comes first
    double saved = saved_at_ranks(s, &even, c, &old);
    if (best->any && (saved + most) / per < best->rate - close) return;
    if (s->tokens) saved += saved_in_sends(s, c, &old);
    if (saved < least * s->ns) saved = saved > -least * s->ns && even > least * s->spread ? 0 : -1;
    const double rate = saved / per;
    if (saved < 0 || (best->any && (rate < best->rate - close ||
                                    (rate <= best->rate + close && even / per <= best->even))))
        return;
    *best = (choice){*c, rate, even / per, true};
}

/* Expert e of rank a changes places with experts of rank b. */
static void consider_exchanges(cot_rebalance_search *s, choice *best, int32_t e, int a, int b)
{
    for (int32_t f = 0; f < s->o->experts; f++)
        if ((s->now[f] & bit(b)) && !(s->now[f] & bit(a)))
            consider(s, best,
                     &(cot_rebalance_change){
                         .n = 2,
                         .expert = {e, f},
                         .ranks = {(s->now[e] | bit(b)) & ~bit(a), (s->now[f] | bit(a)) & ~bit(b)}});
}

/* Expert e of rank a comes to rank b, too, or in place of a: into a free slot, or into that of an expert which has another. */
static void consider_copies(cot_rebalance_search *s, choice *best, int32_t e, int a, int b)
{
    const uint64_t too = s->now[e] | bit(b), instead = too & ~bit(a);
    if (s->used[b] < s->most[b]) {
        consider(s, best, &(cot_rebalance_change){.n = 1, .expert = {e}, .ranks = {too}});
        consider(s, best, &(cot_rebalance_change){.n = 1, .expert = {e}, .ranks = {instead}});
        return;
    }
    for (int32_t g = 0; g < s->o->experts; g++) {
        if (!(s->now[g] & bit(b)) || count(s->now[g]) < 2) continue;
        const uint64_t less = s->now[g] & ~bit(b);
        consider(s, best, &(cot_rebalance_change){.n = 2, .expert = {e, g}, .ranks = {too, less}});
        consider(s, best, &(cot_rebalance_change){.n = 2, .expert = {e, g}, .ranks = {instead, less}});
    }
}

/* Changes of what rank a has. */
static void consider_rank(cot_rebalance_search *s, choice *best, int a)
{
    for (int32_t e = 0; e < s->o->experts; e++) {
        if (!(s->now[e] & bit(a)) || (s->fixed && s->fixed[e])) continue;
        if (count(s->now[e]) > 1)
            consider(s, best, &(cot_rebalance_change){.n = 1, .expert = {e}, .ranks = {s->now[e] & ~bit(a)}});
        for (int b = 0; b < s->o->ranks; b++) {
            if (s->now[e] & bit(b)) continue;
            consider_copies(s, best, e, a, b);
            consider_exchanges(s, best, e, a, b);
        }
    }
}

/* What makes the busiest rank faster begins there; what saves sends may begin anywhere. */
static choice choose(cot_rebalance_search *s)
{
    choice best = {0};
    int busiest = 0;
    for (int r = 1; r < s->o->ranks; r++)
        if (s->rank_ns[r] > s->rank_ns[busiest]) busiest = r;
    consider_rank(s, &best, busiest);
    for (int r = 0; s->tokens && r < s->o->ranks; r++)
        if (r != busiest) consider_rank(s, &best, r);
    return best;
}

static cot_status add_mark(cot_rebalance_search *s, const cot_rebalance_change *change, cot_error *error)
{
    if (s->marks == s->room) {
        const int32_t room = s->room ? 2 * s->room : 32;
        cot_rebalance_mark *mark = realloc(s->mark, (size_t)room * sizeof *mark);
        if (!mark) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for changes of a layer");
        s->mark = mark;
        s->room = room;
    }
    s->mark[s->marks++] = (cot_rebalance_mark){*change, s->ns, moves_of(s->come, s->go), s->spare};
    return COT_OK;
}

cot_status cot_rebalance_search_run(cot_rebalance_search *s, cot_error *error)
{
    const int32_t longest = 4 * s->o->ranks * s->o->slots;
    cot_status status = COT_OK;
    while (status == COT_OK && s->marks < longest) {
        const choice best = choose(s);
        if (!best.any) return COT_OK;
        put(s, &best.change);
        reckon(s);
        status = add_mark(s, &best.change, error);
    }
    return status;
}

/* What empties a spare slot of a rank at the least cost, so far. */
typedef struct emptying {
    cot_rebalance_change change; // n 0: there is none
    double ns, even;
} emptying;

static void consider_emptying(cot_rebalance_search *s, emptying *best, const cot_rebalance_change *c)
{
    cot_rebalance_change old = *c;
    for (int i = 0; i < c->n; i++) old.ranks[i] = s->now[c->expert[i]];
    double even, ns = -saved_at_ranks(s, &even, c, &old);
    const double close = least * s->ns;
    if (s->tokens) ns -= saved_in_sends(s, c, &old);
    if (best->change.n && (ns > best->ns + close || (ns >= best->ns - close && even <= best->even))) return;
    *best = (emptying){*c, ns, even};
}

/* Expert e, which is nowhere else, comes to a slot of rank b that is there anyhow: an empty one, or that of a replica; where spare slots stay that may be
 * one of those. */
static void consider_return(cot_rebalance_search *s, emptying *best, int32_t e, int b, int32_t most)
{
    const int32_t base = s->o->base, used = s->used[b];
    if (used < base)
        consider_emptying(s, best, &(cot_rebalance_change){.n = 1, .expert = {e}, .ranks = {bit(b)}});
    for (int32_t g = 0; used >= base && used <= most && g < s->o->experts; g++)
        if ((s->now[g] & bit(b)) && count(s->now[g]) > 1)
            consider_emptying(
                s, best,
                &(cot_rebalance_change){.n = 2, .expert = {e, g}, .ranks = {bit(b), s->now[g] & ~bit(b)}});
}

/* A replica goes from a rank that has more than `most`, or an expert that has no other. */
static cot_rebalance_change choose_emptying(cot_rebalance_search *s, int32_t most)
{
    emptying best = {0};
    for (int32_t e = 0; e < s->o->experts; e++)
        for (uint64_t left = s->now[e]; left; left &= left - 1) {
            const int rank = __builtin_ctzll(left);
            if (s->used[rank] <= most) continue;
            if (count(s->now[e]) > 1)
                consider_emptying(
                    s, &best,
                    &(cot_rebalance_change){.n = 1, .expert = {e}, .ranks = {s->now[e] & ~bit(rank)}});
            for (int b = 0; b < s->o->ranks && count(s->now[e]) == 1; b++)
                consider_return(s, &best, e, b, most);
        }
    return best.change;
}

cot_status cot_rebalance_search_emptying(cot_rebalance_search *s, int32_t most, cot_error *error)
{
    cot_status status = COT_OK;
    while (status == COT_OK) {
        const cot_rebalance_change change = choose_emptying(s, most);
        if (!change.n) break;
        put(s, &change);
        reckon(s);
        status = add_mark(s, &change, error);
    }
    return status;
}
