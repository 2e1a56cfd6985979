#include "predict/arrangement.h"

#include "base/error.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Replicas take turns (cot_expert_replica); tokens are taken to come at these. */
enum { TURNS = 4 };

static const double enough = 1e-7;   // sends of a token that a change must save
static const double over_weight = 4; // sends that an activation beyond the peak counts as
static const float unknown_share = 1e-9f;

/* One layer of an arrangement, as evidence sees it. */
typedef struct layer {
    const cot_evidence *evidence;
    const cot_arrangement *arrangement;
    int32_t l, ranks, slots;
    int32_t *expert;       // [ranks][slots] of the map
    bool *holds;           // [ranks][E]
    uint8_t *serves;       // [ranks][TURNS][E] the rank that serves a token at home on a rank
    float *worth;          // [ranks][tokens] share of all requests' tokens that one at home there stands for
    float *of_request;     // [tokens] scratch
    int32_t *with, *begin; // begin [E + 1]: tokens that call an expert are with[begin[e]] and behind
    int32_t *stamp, stamped; // [tokens] of the last sum that looked at a token
    double most;             // activations that a rank should serve, of a token
    double load[COT_TRACE_MAX_RANKS];
} layer;

static const uint16_t *token_of(const layer *s, int32_t i)
{
    return s->evidence->token + ((int64_t)i * s->evidence->n_layers + s->l) * s->evidence->top_k;
}

/* What each token stands for of one request's: shares [tokens] that add up to 1. */
static void weigh_request(const layer *s, float *share, int32_t request)
{
    const cot_evidence *e = s->evidence;
    const float *ratio = e->ratio ? e->ratio + ((int64_t)request * e->n_layers + s->l) * e->n_experts : NULL;
    float sum = unknown_share;
    for (int32_t i = 0; i < e->n_tokens; i++) {
        const uint16_t *token = token_of(s, i);
        float product = ratio || e->owner[i] == request;
        for (int32_t k = 0; ratio && k < e->top_k; k++) product *= ratio[token[k]];
        share[i] = product;
        sum += product;
    }
    for (int32_t i = 0; i < e->n_tokens; i++) share[i] /= sum;
}

static void weigh_homes(layer *s)
{
    const int32_t n = s->evidence->n_tokens, requests = s->evidence->n_requests;
    memset(s->worth, 0, (size_t)s->ranks * (size_t)n * sizeof *s->worth);
    for (int32_t r = 0; r < requests; r++) {
        float *worth = s->worth + (int64_t)s->arrangement->home[r] * n;
        weigh_request(s, s->of_request, r);
        for (int32_t i = 0; i < n; i++) worth[i] += s->of_request[i] / (float)requests;
    }
}

/* Whom tokens go to that call the expert: the home where it holds it, else all who do in turn, as cot_expert_replica has it. */
static void find_servers(layer *s, int32_t expert)
{
    const int32_t E = s->evidence->n_experts;
    uint8_t holder[COT_TRACE_MAX_RANKS];
    int32_t holders = 0;
    for (int32_t r = 0; r < s->ranks; r++)
        if (s->holds[r * E + expert]) holder[holders++] = (uint8_t)r;
    for (int32_t home = 0; holders && home < s->ranks; home++)
        for (int32_t turn = 0; turn < TURNS; turn++)
            s->serves[(home * TURNS + turn) * E + expert] =
                s->holds[home * E + expert] ? (uint8_t)home : holder[(home + turn) % holders];
}

/* Other ranks that a token needs at home on a rank. */
static int remote_ranks(const layer *s, int32_t i, int32_t home)
{
    const uint16_t *token = token_of(s, i);
    const uint8_t *serves = s->serves + (home * TURNS + i % TURNS) * s->evidence->n_experts;
    uint64_t reached = 0;
    for (int32_t k = 0; k < s->evidence->top_k; k++) reached |= (uint64_t)1 << serves[token[k]];
    return __builtin_popcountll(reached & ~((uint64_t)1 << home));
}

/* Foreseen sends of the tokens that call any of `count` experts; what ranks serve of these experts is added to load [ranks]. */
static double sends_with(layer *s, const int32_t *expert, int count, double *load)
{
    const cot_evidence *e = s->evidence;
    double sum = 0;
    s->stamped++;
    for (int x = 0; x < count; x++)
        for (int32_t at = s->begin[expert[x]]; at < s->begin[expert[x] + 1]; at++) {
            const int32_t i = s->with[at];
            const bool seen = s->stamp[i] == s->stamped;
            s->stamp[i] = s->stamped;
            for (int32_t home = 0; home < s->ranks; home++) {
                const float worth = s->worth[(int64_t)home * e->n_tokens + i];
                load[s->serves[(home * TURNS + i % TURNS) * e->n_experts + expert[x]]] += worth;
                if (!seen) sum += worth * (float)remote_ranks(s, i, home);
            }
        }
    return sum;
}

static double excess(const layer *s, const double *load)
{
    double sum = 0;
    for (int32_t r = 0; r < s->ranks; r++) sum += fmax(0, load[r] - s->most);
    return over_weight * sum;
}

/* ---- changes ---- */

/* On each rank that is named, -1 for none, `out` makes room for `in`, or the other way round; -1: there is none. */
typedef struct change {
    int32_t rank, out, in;    // the first
    int32_t other, expert[2]; // the second gives `in` and takes `out`; the experts concerned
    int experts;
} change;

static void apply(layer *s, const change *c, bool back)
{
    const int32_t E = s->evidence->n_experts;
    bool *first = s->holds + c->rank * E, *second = c->other < 0 ? NULL : s->holds + c->other * E;
    if (c->out >= 0) first[c->out] = back;
    first[c->in] = !back;
    if (second) {
        second[c->in] = back;
        second[c->out] = !back;
    }
    for (int i = 0; i < c->experts; i++) find_servers(s, c->expert[i]);
}

/* What a change would save, less than 0 where it costs; load [ranks] as it would be. The layer is as it was before. */
static double saving(layer *s, const change *c, double *load)
{
    double before[COT_TRACE_MAX_RANKS] = {0}, after[COT_TRACE_MAX_RANKS] = {0};
    const double sends = sends_with(s, c->expert, c->experts, before);
    apply(s, c, false);
    const double then = sends_with(s, c->expert, c->experts, after);
    apply(s, c, true);
    for (int32_t r = 0; r < s->ranks; r++) load[r] = s->load[r] - before[r] + after[r];
    return sends + excess(s, s->load) - then - excess(s, load);
}

static bool take_if_better(layer *s, const change *c)
{
    double load[COT_TRACE_MAX_RANKS];
    if (saving(s, c, load) <= enough) return false;
    apply(s, c, false);
    memcpy(s->load, load, sizeof load);
    return true;
}

static bool exchange(layer *s, int32_t p, int32_t i, int32_t q, int32_t j)
{
    const int32_t E = s->evidence->n_experts;
    int32_t *a = &s->expert[p * s->slots + i], *b = &s->expert[q * s->slots + j];
    if (s->holds[q * E + *a] || s->holds[p * E + *b]) return false;
    const change c = {p, *a, *b, q, {*a, *b}, 2};
    if (!take_if_better(s, &c)) return false;
    *a = c.in;
    *b = c.out;
    return true;
}

static bool held_elsewhere(const layer *s, int32_t expert, int32_t rank)
{
    for (int32_t r = 0; r < s->ranks; r++)
        if (r != rank && s->holds[r * s->evidence->n_experts + expert]) return true;
    return false;
}

static bool replace(layer *s, int32_t p, int32_t i, int32_t in)
{
    int32_t *out = &s->expert[p * s->slots + i];
    if (s->holds[p * s->evidence->n_experts + in] || !held_elsewhere(s, *out, p)) return false;
    const change c = {p, *out, in, -1, {*out, in}, 2};
    if (!take_if_better(s, &c)) return false;
    *out = in;
    return true;
}

static void swap_bytes(void *a, void *b, size_t bytes)
{
    uint8_t *x = a, *y = b;
    for (size_t i = 0; i < bytes; i++) {
        const uint8_t kept = x[i];
        x[i] = y[i];
        y[i] = kept;
    }
}

static void change_places(layer *s, int32_t p, int32_t q)
{
    const int32_t E = s->evidence->n_experts;
    swap_bytes(s->expert + p * s->slots, s->expert + q * s->slots, (size_t)s->slots * sizeof *s->expert);
    swap_bytes(s->holds + p * E, s->holds + q * E, (size_t)E * sizeof *s->holds);
    for (int32_t x = 0; x < E; x++) find_servers(s, x);
}

/* Foreseen sends of all tokens, and what ranks serve: load [ranks]. */
static double all_sends(const layer *s, double *load)
{
    const cot_evidence *e = s->evidence;
    double sum = 0;
    memset(load, 0, sizeof s->load);
    for (int32_t home = 0; home < s->ranks; home++)
        for (int32_t i = 0; i < e->n_tokens; i++) {
            const uint16_t *token = token_of(s, i);
            const uint8_t *serves = s->serves + (home * TURNS + i % TURNS) * e->n_experts;
            const float worth = s->worth[(int64_t)home * e->n_tokens + i];
            for (int32_t k = 0; k < e->top_k; k++) load[serves[token[k]]] += worth;
            sum += worth * (float)remote_ranks(s, i, home);
        }
    return sum;
}

/* Two ranks change places with all that they hold: experts that belong together come to a better home together, where one by
 * one they would have to part. */
static bool exchange_all(layer *s, int32_t p, int32_t q)
{
    double load[COT_TRACE_MAX_RANKS];
    const double before = all_sends(s, load) + excess(s, load);
    change_places(s, p, q);
    const double then = all_sends(s, load) + excess(s, load);
    const bool better = before - then > enough;
    if (better)
        memcpy(s->load, load, sizeof load);
    else
        change_places(s, p, q);
    return better;
}

/* One after the other of the exchanges and replacements that are better. Whether there was one. */
static bool pass_over_slots(layer *s)
{
    const int32_t P = s->ranks, C = s->slots, E = s->evidence->n_experts;
    bool better = false;
    for (int32_t p = 0; p < P; p++)
        for (int32_t q = p + 1; q < P; q++)
            for (int32_t i = 0; i < C; i++)
                for (int32_t j = 0; j < C; j++) better |= exchange(s, p, i, q, j);
    for (int32_t p = 0; p < P && P * C > E; p++)
        for (int32_t i = 0; i < C; i++)
            for (int32_t in = 0; in < E; in++) better |= replace(s, p, i, in);
    return better;
}

static void improve(layer *s)
{
    for (bool better = true; better;) { // every change lowers one sum by more than `enough`
        while (pass_over_slots(s)) {}
        better = false;
        for (int32_t p = 0; p < s->ranks; p++)
            for (int32_t q = p + 1; q < s->ranks; q++) better |= exchange_all(s, p, q);
    }
}

/* The last slot of each rank, which is empty, in turn. */
static void fill_last(layer *s)
{
    const int32_t E = s->evidence->n_experts;
    for (int32_t p = 0; p < s->ranks; p++) {
        double most = -INFINITY, load[COT_TRACE_MAX_RANKS], best_load[COT_TRACE_MAX_RANKS] = {0};
        change best = {0};
        for (int32_t in = 0; in < E; in++) {
            const change c = {p, -1, in, -1, {in}, 1};
            const double saved = s->holds[p * E + in] ? -INFINITY : saving(s, &c, load);
            if (saved <= most) continue;
            most = saved;
            best = c;
            memcpy(best_load, load, sizeof load);
        }
        apply(s, &best, false);
        memcpy(s->load, best_load, sizeof best_load);
        s->expert[p * s->slots + s->slots - 1] = best.in;
    }
}

/* ---- layers ---- */

static void close_layer(layer *s)
{
    void *owned[] = {s->holds, s->serves, s->worth, s->of_request, s->with, s->begin, s->stamp};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
}

static cot_status open_layer(layer *s, cot_arrangement *a, const cot_evidence *e, cot_error *error)
{
    const size_t P = (size_t)a->map.n_ranks, E = (size_t)e->n_experts, n = (size_t)e->n_tokens + 1;
    *s = (layer){.evidence = e, .arrangement = a, .ranks = a->map.n_ranks, .slots = a->map.slots_per_rank};
    s->holds = calloc(P * E, sizeof *s->holds);
    s->serves = calloc(P * TURNS * E, sizeof *s->serves);
    s->worth = calloc(P * n, sizeof *s->worth);
    s->of_request = calloc(n, sizeof *s->of_request);
    s->with = calloc(n * (size_t)e->top_k, sizeof *s->with);
    s->begin = calloc(E + 1, sizeof *s->begin);
    s->stamp = calloc(n, sizeof *s->stamp);
    if (s->holds && s->serves && s->worth && s->of_request && s->with && s->begin && s->stamp) return COT_OK;
    close_layer(s);
    return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %d tokens", (int)e->n_tokens);
}

/* Which tokens call which expert, by a counting sort. */
static void index_tokens(layer *s)
{
    const cot_evidence *e = s->evidence;
    memset(s->begin, 0, (size_t)(e->n_experts + 1) * sizeof *s->begin);
    for (int32_t i = 0; i < e->n_tokens; i++)
        for (int32_t k = 0; k < e->top_k; k++) s->begin[token_of(s, i)[k]]++;
    for (int32_t x = 0; x < e->n_experts; x++) s->begin[x + 1] += s->begin[x];
    for (int32_t i = e->n_tokens - 1; i >= 0; i--)
        for (int32_t k = 0; k < e->top_k; k++) s->with[--s->begin[token_of(s, i)[k]]] = i;
}

/* The l-th layer is looked at from now on; without its tokens' worth and what ranks serve. */
static void enter(layer *s, int32_t l)
{
    const int32_t E = s->evidence->n_experts;
    s->l = l;
    s->expert = s->arrangement->map.expert + (int64_t)l * s->ranks * s->slots;
    memset(s->holds, 0, (size_t)s->ranks * (size_t)E * sizeof *s->holds);
    for (int32_t i = 0; i < s->ranks * s->slots; i++)
        if (s->expert[i] >= 0) s->holds[i / s->slots * E + s->expert[i]] = true;
    for (int32_t x = 0; x < E; x++) find_servers(s, x);
}

/* The same with these. Returns the foreseen sends. */
static double enter_and_weigh(layer *s, int32_t l)
{
    enter(s, l);
    weigh_homes(s);
    index_tokens(s);
    return all_sends(s, s->load);
}

static cot_status each_layer(cot_arrangement *a, const cot_evidence *e, double peak,
                             void (*improve_one)(layer *), cot_error *error)
{
    layer s;
    const cot_status status = open_layer(&s, a, e, error);
    if (status != COT_OK) return status;
    s.most = peak * e->top_k / s.ranks;
    for (int32_t l = 0; l < e->n_layers; l++) {
        enter_and_weigh(&s, l);
        improve_one(&s);
    }
    close_layer(&s);
    return COT_OK;
}

cot_status cot_arrangement_choose_seats(cot_arrangement *a, const cot_evidence *e, double peak,
                                        cot_error *error)
{
    return each_layer(a, e, peak, improve, error);
}

cot_status cot_arrangement_add_slot(cot_arrangement *a, const cot_evidence *e, double peak, cot_error *error)
{
    cot_expert_map wider;
    const int32_t C = a->map.slots_per_rank;
    if (C == e->n_experts)
        return cot_fail(error, COT_INVALID_ARGUMENT, "every rank holds all of the %d experts already",
                        (int)C);
    cot_status status = cot_expert_map_new(&wider, e->n_layers, e->n_experts, a->map.n_ranks, C + 1, error);
    if (status != COT_OK) return status;
    for (int64_t i = 0; i < (int64_t)e->n_layers * a->map.n_ranks; i++)
        memcpy(wider.expert + i * (C + 1), a->map.expert + i * C, (size_t)C * sizeof *wider.expert);
    memcpy(wider.layers, a->map.layers, (size_t)e->n_layers * sizeof *wider.layers);
    cot_expert_map_free(&a->map);
    a->map = wider;
    return each_layer(a, e, peak, fill_last, error);
}

cot_status cot_arrangement_foresee(double *remote, const cot_arrangement *a, const cot_evidence *e,
                                   cot_error *error)
{
    layer s;
    cot_arrangement same = *a;
    const cot_status status = open_layer(&s, &same, e, error);
    if (status != COT_OK) return status;
    *remote = 0;
    for (int32_t l = 0; l < e->n_layers; l++) *remote += enter_and_weigh(&s, l) / e->n_layers;
    close_layer(&s);
    return COT_OK;
}

/* ---- homes ---- */

/* sends [requests][ranks]: what each request is foreseen to send at home on each rank, summed over layers. */
static void foresee_homes(layer *s, double *sends)
{
    const cot_evidence *e = s->evidence;
    for (int32_t l = 0; l < e->n_layers; l++) {
        enter(s, l);
        for (int32_t home = 0; home < s->ranks; home++) // worth is free to hold numbers of ranks
            for (int32_t i = 0; i < e->n_tokens; i++)
                s->worth[(int64_t)home * e->n_tokens + i] = (float)remote_ranks(s, i, home);
        for (int32_t r = 0; r < e->n_requests; r++) {
            weigh_request(s, s->of_request, r);
            for (int32_t home = 0; home < s->ranks; home++) {
                const float *remote = s->worth + (int64_t)home * e->n_tokens;
                double sum = 0;
                for (int32_t i = 0; i < e->n_tokens; i++) sum += s->of_request[i] * remote[i];
                sends[(int64_t)r * s->ranks + home] += sum;
            }
        }
    }
}

cot_status cot_arrangement_choose_homes(cot_arrangement *a, const cot_evidence *e, cot_error *error)
{
    layer s;
    const int32_t P = a->map.n_ranks;
    double *sends = calloc((size_t)e->n_requests * (size_t)P + 1, sizeof *sends);
    if (!sends)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %d requests", (int)e->n_requests);
    const cot_status status = open_layer(&s, a, e, error);
    if (status == COT_OK) {
        foresee_homes(&s, sends);
        close_layer(&s);
    }
    for (bool better = status == COT_OK; better;) {
        better = false;
        for (int32_t i = 0; i < e->n_requests; i++)
            for (int32_t j = i + 1; j < e->n_requests; j++) {
                const double *si = sends + (int64_t)i * P, *sj = sends + (int64_t)j * P;
                const int32_t hi = a->home[i], hj = a->home[j];
                if (si[hi] + sj[hj] - si[hj] - sj[hi] <= enough) continue;
                a->home[i] = hj;
                a->home[j] = hi;
                better = true;
            }
    }
    free(sends);
    return status;
}

/* ---- opening ---- */

cot_status cot_arrangement_open(cot_arrangement *a, const cot_evidence *e, int32_t ranks, cot_error *error)
{
    *a = (cot_arrangement){.n_requests = e->n_requests};
    if (ranks < 1 || ranks > COT_TRACE_MAX_RANKS || e->n_experts % ranks)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%d ranks cannot hold equally many of %d experts",
                        (int)ranks, (int)e->n_experts);
    const int32_t C = e->n_experts / ranks;
    const cot_status status = cot_expert_map_new(&a->map, e->n_layers, e->n_experts, ranks, C, error);
    if (status != COT_OK) return status;
    for (int64_t i = 0; i < (int64_t)e->n_layers * e->n_experts; i++)
        a->map.expert[i] = (int32_t)(i % e->n_experts);
    a->home = calloc((size_t)e->n_requests + 1, sizeof *a->home);
    if (!a->home) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %d homes", (int)e->n_requests);
    for (int32_t r = 0; r < e->n_requests; r++) a->home[r] = r % ranks;
    return COT_OK;
}

void cot_arrangement_free(cot_arrangement *a)
{
    cot_expert_map_free(&a->map);
    free(a->home);
    *a = (cot_arrangement){0};
}
