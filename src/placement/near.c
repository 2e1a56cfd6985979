/* Exchanges of slots that lower the cost of a layer with replicas. */
#include "placement/methods.h"

#include "base/error.h"
#include "placement/vectors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct near {
    cot_slots *s;
    const cot_costs *c;
    int32_t l;
    cot_dispatch dispatch;
    double limit;
    double *sum;    // [S] loads of the ranks
    double *change; // [S] of an exchange that is tried
    double *saved;  // [S * slots][S] what the slot's expert saves where that slot is on another rank
    double *brings; // [S * slots][S] load that the slot has there; nearest by source alone
    double *serves; // [S * slots] load that its rank has from the expert where the slot is now
    double *sent;   // [S] activations of an expert at hand, by source rank
    double *other;  // [S] distances to the nearest replica but one
    double *equals; // [S] how many replicas but that one are as near
    int32_t *rank;  // [S * slots] ranks of an expert at hand
    int32_t *head;  // [E] a slot of each expert
    int32_t *next;  // [S * slots] another slot of the same, -1
} near;

/* Ranks of an expert, with slot `but` (-1: none) counted as on rank `instead`. */
static int32_t ranks_of(const near *n, int32_t e, int32_t but, int32_t instead)
{
    int32_t found = 0;
    for (int32_t i = n->head[e]; i >= 0; i = n->next[i])
        n->rank[found++] = i == but ? instead : i / n->s->slots;
    return found;
}

/* Cost of expert e on rank[0..k), and `sign` times its load there added to `load`. */
static double serve(const near *n, int32_t e, int32_t k, double sign, double *load)
{
    const cot_costs *c = n->c;
    size_t S = (size_t)c->n_ranks, E = (size_t)c->n_experts, at = (size_t)n->l * E + (size_t)e;
    double sum = 0;
    if (n->dispatch == COT_DISPATCH_NEAREST && c->round_trip) {
        for (size_t r = 0; r < S; r++) {
            const double *way = c->round_trip + r * S;
            double sent = c->sent ? c->sent[((size_t)n->l * S + r) * E + (size_t)e] : c->load[at] / (double)S;
            double least = INFINITY;
            int32_t equals = 0;
            for (int32_t i = 0; i < k; i++) {
                double w = way[n->rank[i]];
                equals = w < least ? 1 : equals + (w == least);
                least = w < least ? w : least;
            }
            sum += sent * least;
            for (int32_t i = 0; i < k; i++)
                if (way[n->rank[i]] == least) load[n->rank[i]] += sign * sent / equals;
        }
        return sum;
    }
    const double *cost = c->pair ? c->pair + at * S : c->cost + (size_t)n->l * S;
    double scale = c->pair ? 1 : c->load[at], least = INFINITY;
    int32_t equals = k;
    if (n->dispatch == COT_DISPATCH_NEAREST) {
        for (int32_t i = 0; i < k; i++) least = fmin(least, cost[n->rank[i]]);
        equals = 0;
        for (int32_t i = 0; i < k; i++) equals += cost[n->rank[i]] == least;
    }
    for (int32_t i = 0; i < k; i++) {
        if (n->dispatch == COT_DISPATCH_NEAREST && cost[n->rank[i]] != least) continue;
        sum += scale * cost[n->rank[i]] / equals;
        load[n->rank[i]] += sign * c->load[at] / equals;
    }
    return sum;
}

/* Adds `sign` times what rank[0..k) serve of expert e to `load`. Mostly there is one replica, which serves it all. */
static void carry(const near *n, int32_t e, int32_t k, double sign, double *load)
{
    if (k == 1)
        load[n->rank[0]] += sign * n->c->load[(size_t)n->l * (size_t)n->c->n_experts + (size_t)e];
    else
        serve(n, e, k, sign, load);
}

static bool on_rank(const cot_slots *s, int32_t rank, int32_t e)
{
    for (int32_t i = 0; i < s->slots; i++)
        if (s->expert[(size_t)rank * (size_t)s->slots + (size_t)i] == e) return true;
    return false;
}

/* The nearest replicas of expert e but slot `but`, seen from every source; returns how many share its rank. */
static int32_t find_others(near *n, int32_t e, int32_t but)
{
    size_t S = (size_t)n->s->S;
    int32_t beside = 0;
    for (size_t r = 0; r < S; r++) {
        n->other[r] = INFINITY;
        n->equals[r] = 0;
    }
    for (int32_t i = n->head[e]; i >= 0; i = n->next[i]) {
        const double *way = n->c->round_trip + (size_t)(i / n->s->slots) * S; // as far there as back
        if (i == but) continue;
        beside += i / n->s->slots == but / n->s->slots;
        for (size_t r = 0; r < S; r++) {
            n->equals[r] = way[r] < n->other[r] ? 1 : n->equals[r] + (way[r] == n->other[r]);
            n->other[r] = way[r] < n->other[r] ? way[r] : n->other[r];
        }
    }
    return beside;
}

/* What every slot of expert e saves and brings on every rank where each source sends to the nearest replica: the
 * distance to all replicas but one is the same wherever that one goes. */
COT_VECTORS static void find_savings_by_source(near *n, int32_t e)
{
    const cot_costs *c = n->c;
    size_t S = (size_t)c->n_ranks, E = (size_t)c->n_experts;
    for (size_t r = 0; r < S; r++)
        n->sent[r] = c->sent ? c->sent[((size_t)n->l * S + r) * E + (size_t)e]
                             : c->load[(size_t)n->l * E + (size_t)e] / (double)S;
    for (int32_t i = n->head[e]; i >= 0; i = n->next[i]) {
        size_t home = (size_t)(i / n->s->slots);
        double *saved = n->saved + (size_t)i * S, *brings = n->brings + (size_t)i * S, serves = 0;
        int32_t here = 1 + find_others(n, e, i);
        for (size_t to = 0; to < S; to++) saved[to] = brings[to] = 0;
        for (size_t r = 0; r < S; r++) {
            const double *way = c->round_trip + r * S, sent = n->sent[r], other = n->other[r],
                         shared = sent / (n->equals[r] + 1);
            for (size_t to = 0; to < S; to++) {
                saved[to] += sent * (way[to] < other ? way[to] : other);
                brings[to] += way[to] < other ? sent : way[to] == other ? shared : 0;
            }
            serves += way[home] < other ? sent : way[home] == other ? here * shared : 0;
        }
        n->serves[i] = serves;
        double now = saved[home];
        for (size_t to = 0; to < S; to++) saved[to] = now - saved[to];
    }
}

/* Fills in what every slot of expert e saves on every rank. */
static void find_savings(near *n, int32_t e)
{
    size_t S = (size_t)n->s->S;
    if (n->brings) {
        find_savings_by_source(n, e);
        return;
    }
    double here = serve(n, e, ranks_of(n, e, -1, 0), 0, n->change);
    for (int32_t i = n->head[e]; i >= 0; i = n->next[i])
        for (int32_t r = 0; r < n->s->S; r++)
            n->saved[(size_t)i * S + (size_t)r] =
                r == i / n->s->slots ? 0 : here - serve(n, e, ranks_of(n, e, i, r), 0, n->change);
}

static void place_slot(near *n, int32_t slot, int32_t e)
{
    n->s->expert[slot] = e;
    n->next[slot] = n->head[e];
    n->head[e] = slot;
}

static void lift_slot(near *n, int32_t slot)
{
    int32_t *at = &n->head[n->s->expert[slot]];
    while (*at != slot) at = &n->next[*at];
    *at = n->next[slot];
}

/* Whether a rank is sure to go beyond the limit when slot `in` comes to it for its slot `out`: it has at least what the
 * one brings more, and at most what its rank has from the other's expert less. Nearly all exchanges that fail end here. */
static bool too_much(const near *n, int32_t rank, int32_t in, int32_t out)
{
    if (!n->brings) return false;
    double more = n->brings[(size_t)in * (size_t)n->s->S + (size_t)rank] - n->serves[out];
    return more > 1e-9 * n->limit && n->sum[rank] + more > n->limit * (1 + 1e-9);
}

/* Exchanges slots x and y if no rank goes beyond the limit by it. */
static bool exchange(near *n, int32_t x, int32_t y)
{
    cot_slots *s = n->s;
    int32_t a = x / s->slots, b = y / s->slots, e = s->expert[x], f = s->expert[y];
    if (too_much(n, b, x, y) || too_much(n, a, y, x)) return false;
    if (on_rank(s, b, e) || on_rank(s, a, f)) return false;
    memset(n->change, 0, (size_t)s->S * sizeof *n->change);
    carry(n, e, ranks_of(n, e, -1, 0), -1, n->change);
    carry(n, f, ranks_of(n, f, -1, 0), -1, n->change);
    carry(n, e, ranks_of(n, e, x, b), 1, n->change);
    carry(n, f, ranks_of(n, f, y, a), 1, n->change);
    for (int32_t r = 0; r < s->S; r++)
        if (n->change[r] > 1e-12 * n->limit && n->sum[r] + n->change[r] > n->limit) return false;
    for (int32_t r = 0; r < s->S; r++) n->sum[r] += n->change[r];
    lift_slot(n, x);
    lift_slot(n, y);
    place_slot(n, x, f);
    place_slot(n, y, e);
    find_savings(n, e);
    find_savings(n, f);
    return true;
}

/* Tries all pairs of slots on different ranks whose exchange saves more than `least`; whether any was exchanged. */
static bool sweep(near *n, double least)
{
    const cot_slots *s = n->s;
    const size_t S = (size_t)s->S;
    bool changed = false;
    for (int32_t x = 0; x < s->S * s->slots; x++)
        for (int32_t a = x / s->slots, b = a + 1; b < s->S && s->expert[x] >= 0; b++)
            for (int32_t y = b * s->slots; y < (b + 1) * s->slots; y++) {
                if (s->expert[y] < 0 || s->expert[x] == s->expert[y]) continue;
                double saved = n->saved[(size_t)x * S + (size_t)b] + n->saved[(size_t)y * S + (size_t)a];
                if (saved > least) changed = exchange(n, x, y) || changed;
            }
    return changed;
}

cot_status cot_slots_near(cot_slots *slots, const cot_costs *costs, int32_t l, cot_dispatch dispatch,
                          double limit, cot_error *error)
{
    enum { MOST_SWEEPS = 32 }; // each lowers the cost; the last ones hardly
    size_t S = (size_t)slots->S, E = (size_t)slots->E, all = S * (size_t)slots->slots;
    near n = {.s = slots, .c = costs, .l = l, .dispatch = dispatch, .limit = limit};
    if (costs->indifferent && !costs->round_trip) return COT_OK;
    const bool by_source = dispatch == COT_DISPATCH_NEAREST && costs->round_trip;
    n.sum = calloc(5 * S + all, sizeof *n.sum);
    n.saved = malloc((by_source ? 2 : 1) * all * S * sizeof *n.saved);
    n.rank = malloc((2 * all + E) * sizeof *n.rank);
    bool good = n.sum && n.saved && n.rank;
    if (good) {
        double cost = 0;
        n.change = n.sum + S;
        n.sent = n.change + S;
        n.other = n.sent + S;
        n.equals = n.other + S;
        n.serves = n.equals + S;
        n.brings = by_source ? n.saved + all * S : NULL;
        n.next = n.rank + all;
        n.head = n.next + all;
        for (size_t e = 0; e < E; e++) n.head[e] = -1;
        for (size_t i = 0; i < all; i++)
            if (slots->expert[i] >= 0) place_slot(&n, (int32_t)i, slots->expert[i]);
        for (int32_t e = 0; e < slots->E; e++) {
            cost += serve(&n, e, ranks_of(&n, e, -1, 0), 1, n.sum);
            find_savings(&n, e);
        }
        for (int i = 0; i < MOST_SWEEPS && sweep(&n, 1e-9 * cost / (double)all); i++)
            ;
    }
    free(n.sum);
    free(n.saved);
    free(n.rank);
    return good ? COT_OK : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the slots of a layer");
}
