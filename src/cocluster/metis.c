/* METIS as a baseline. Iterations take turns between two graphs: tokens and experts, where a part has its share of experts
 * and of the tokens' load, and experts alone, joined by the tokens that call both; and between METIS's two ways. Of real
 * traces recursive bisection of tokens and experts is best (gpt-oss-20b in 8: 0.430 of activations local, 0.427 by direct
 * k-way, which takes thrice as long, 0.407 from experts alone, a tenth of the time); of clear blocks the others are. Sizes
 * are repaired, and the best counts. */
#include "cocluster/solver.h"

#include "cocluster/gram.h"
#include "base/error.h"
#include "base/rng.h"

#include <math.h>
#include <metis.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(idx_t) == sizeof(int32_t), "METIS's parts are read as ranks");

/* METIS draws from the C library's one stream of random numbers and sets handlers of signals while it runs. */
static pthread_mutex_t metis_lock = PTHREAD_MUTEX_INITIALIZER;

/* Its handlers of SIGTERM and SIGABRT, those of the whole process, jump back to where METIS was entered, which its own thread
 * alone can. So both wait, in this thread and in those that work with it, until METIS has returned and what handled them
 * before does so again. METIS itself raises SIGABRT where memory is short: that one is let through to its thread. */
void cot_cocluster_hold_signals(sigset_t *before)
{
    sigset_t held;
    sigemptyset(&held);
    sigaddset(&held, SIGTERM);
    sigaddset(&held, SIGABRT);
    pthread_sigmask(SIG_BLOCK, &held, before);
}

/* METIS adds up weights of edges, both ways, and of vertices as int32. */
static const double most_weight = 1 << 29;

typedef struct graph {
    idx_t n, constraints;
    idx_t *first;         // [n+1]
    idx_t *next, *weight; // [first[n]] the other end of each edge, once each way
    idx_t *size;          // [n][constraints]
} graph;

typedef struct state {
    graph both, experts;  // of tokens and experts; of experts alone
    idx_t *part;          // [E+N]
    int32_t *expert_rank; // [E]
    double *worth;        // [E][D]
    double *together;     // [E][E] what the edges of `experts` are
} state;

static void free_graph(graph *g)
{
    free(g->first);
    free(g->next);
    free(g->weight);
    free(g->size);
}

static bool allocate(graph *g, size_t n, size_t ends, int constraints)
{
    *g = (graph){.n = (idx_t)n, .constraints = constraints};
    g->first = calloc(n + 1, sizeof *g->first);
    g->next = malloc((ends + 1) * sizeof *g->next);
    g->weight = malloc((ends + 1) * sizeof *g->weight);
    g->size = calloc(n * (size_t)constraints, sizeof *g->size);
    return g->first && g->next && g->weight && g->size;
}

/* As int32, in proportion to what all of them are; what is there stays there. */
static idx_t scaled(double weight, double all)
{
    double at = all > most_weight ? weight * (most_weight / all) : weight;
    return at < 1 ? 1 : (idx_t)at;
}

/* Vertices 0 .. E-1 are experts, E .. the tokens. */
static bool join_both(graph *g, const cot_cocluster *p)
{
    const cot_affinity *a = &p->affinity;
    size_t E = (size_t)p->E, N = (size_t)p->N, entries = (size_t)a->offsets[N];
    if (!allocate(g, E + N, 2 * entries, 2)) return false;
    for (size_t j = 0; j < entries; j++) g->first[a->expert[j] + 1]++;
    for (size_t e = 0; e < E; e++) {
        g->first[e + 1] += g->first[e];
        g->size[2 * e] = 1;
    }
    for (size_t i = 0; i < N; i++) {
        g->first[E + i + 1] = (idx_t)(entries + (size_t)a->offsets[i + 1]);
        if (p->token_load[i]) g->size[2 * (E + i) + 1] = scaled((double)p->token_load[i], (double)p->total);
        for (int64_t j = a->offsets[i]; j < a->offsets[i + 1]; j++) {
            size_t e = a->expert[j], at = (size_t)g->first[e]++, back = entries + (size_t)j;
            g->next[at] = (idx_t)(E + i);
            g->next[back] = (idx_t)e;
            g->weight[at] = g->weight[back] = scaled(a->count[j], (double)p->total);
        }
    }
    for (size_t e = E; e > 0; e--) g->first[e] = g->first[e - 1];
    g->first[0] = 0;
    return true;
}

static bool join_experts(graph *g, const cot_cocluster *p, const double *together)
{
    size_t E = (size_t)p->E, ends = 0;
    double all = 0, load = (double)p->total;
    for (size_t e = 0; e < E; e++)
        for (size_t f = 0; f < E; f++)
            if (e != f && together[e * E + f] > 0) {
                ends++;
                all += together[e * E + f];
            }
    if (!allocate(g, E, ends, 2)) return false;
    /* Weights are fractions where tokens are few: all of them are scaled, down or up. */
    double scale = all > 0 ? most_weight / all : 0;
    for (size_t e = 0, at = 0; e < E; e++) {
        g->size[2 * e] = 1;
        g->size[2 * e + 1] = p->expert_load[e] ? scaled((double)p->expert_load[e], load) : 0;
        for (size_t f = 0; f < E; f++)
            if (e != f && together[e * E + f] > 0) {
                g->next[at] = (idx_t)f;
                g->weight[at++] = scaled(together[e * E + f] * scale, most_weight);
            }
        g->first[e + 1] = (idx_t)at;
    }
    return true;
}

static void end(cot_cocluster *p)
{
    state *s = p->state;
    if (!s) return;
    free_graph(&s->both);
    free_graph(&s->experts);
    free(s->part);
    free(s->expert_rank);
    free(s->worth);
    free(s->together);
    free(s);
    p->state = NULL;
}

static cot_status begin(cot_cocluster *p, cot_error *error)
{
    size_t E = (size_t)p->E, N = (size_t)p->N, entries = (size_t)p->affinity.offsets[N];
    if (entries > INT32_MAX / 2 || N + E > INT32_MAX / 2)
        return cot_fail(error, COT_UNSUPPORTED, "METIS takes %d activations that differ at most, not %zu",
                        INT32_MAX / 2, entries > N ? entries : N);
    if (p->N < p->D) // METIS would bisect graphs without vertices, and print that
        return cot_fail(error, COT_UNSUPPORTED,
                        "METIS needs as many tokens as ranks, not %d tokens for %d ranks", (int)p->N, p->D);
    cot_status status = cot_gram_check(p, error);
    if (status != COT_OK) return status;
    state *s = p->state = calloc(1, sizeof *s);
    if (s) {
        s->part = malloc((E + N) * sizeof *s->part);
        s->expert_rank = malloc(E * sizeof *s->expert_rank);
        s->worth = malloc(E * (size_t)p->D * sizeof *s->worth);
        s->together = malloc(E * E * sizeof *s->together);
    }
    bool good = s && s->part && s->expert_rank && s->worth && s->together;
    if (good) cot_gram_of_tokens(s->together, p, -1);
    if (!good || !join_both(&s->both, p) || !join_experts(&s->experts, p, s->together)) {
        end(p);
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for graphs of %zu activations", entries);
    }
    return COT_OK;
}

typedef int partitioner(idx_t *n, idx_t *constraints, idx_t *first, idx_t *next, idx_t *sizes, idx_t *volumes,
                        idx_t *weights, idx_t *parts, real_t *shares, real_t *excess, idx_t *options,
                        idx_t *cut, idx_t *part);

/* A rank's share of each constraint, as the sizes say; METIS asks for fractions that sum to 1. */
static cot_status partition(idx_t *part, const graph *g, partitioner *way, const cot_cocluster *p,
                            uint64_t seed, cot_error *error)
{
    idx_t n = g->n, constraints = g->constraints, parts = p->D, cut, options[METIS_NOPTIONS];
    real_t share[2 * COT_TRACE_MAX_RANKS];
    real_t excess[2] = {1.001f, (real_t)(1 + fmin(fmax(p->options.token_balance, 0.001), 10))};
    for (int32_t d = 0; d < p->D; d++) {
        share[2 * d] = (real_t)p->size[d] / (real_t)p->E;
        share[2 * d + 1] = 1 / (real_t)p->D;
    }
    METIS_SetDefaultOptions(options);
    options[METIS_OPTION_SEED] = (idx_t)(seed % INT32_MAX);
    sigset_t before, of_memory;
    struct sigaction on_end, on_abort;
    sigemptyset(&of_memory);
    sigaddset(&of_memory, SIGABRT);
    cot_cocluster_hold_signals(&before);
    pthread_mutex_lock(&metis_lock);
    sigaction(SIGTERM, NULL, &on_end);
    sigaction(SIGABRT, NULL, &on_abort);
    pthread_sigmask(SIG_UNBLOCK, &of_memory, NULL);
    int found = way(&n, &constraints, g->first, g->next, g->size, NULL, g->weight, &parts, share, excess,
                    options, &cut, part);
    pthread_sigmask(SIG_BLOCK, &of_memory, NULL);
    sigaction(SIGTERM, &on_end, NULL);
    sigaction(SIGABRT, &on_abort, NULL);
    pthread_mutex_unlock(&metis_lock);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (found == METIS_OK) return COT_OK;
    if (found == METIS_ERROR_MEMORY)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory in METIS for a graph of %d vertices",
                        (int)n);
    return cot_fail(error, COT_UNSUPPORTED, "METIS cannot part a graph of %d vertices in %d", (int)n,
                    (int)parts);
}

/* What experts gain on each rank from the tokens that METIS put there, or from each other. */
static void value_experts(state *s, const cot_cocluster *p, bool alone)
{
    size_t E = (size_t)p->E, D = (size_t)p->D;
    if (!alone) {
        cot_cocluster_worth(s->worth, p, s->part + E);
        return;
    }
    for (size_t i = 0; i < E * D; i++) s->worth[i] = 0;
    for (size_t e = 0; e < E; e++)
        for (size_t f = 0; f < E; f++)
            if (e != f) s->worth[e * D + (size_t)s->part[f]] += s->together[e * E + f];
}

static cot_status iterate(cot_cocluster *p, int64_t iteration, cot_error *error)
{
    state *s = p->state;
    bool alone = iteration % 4 == 0;
    partitioner *way = iteration % 4 == 2 ? METIS_PartGraphKway : METIS_PartGraphRecursive;
    uint64_t seed = cot_random_bits(p->options.seed, 0, (uint64_t)iteration);
    cot_status status = COT_OK;
    if (p->D == 1) { // METIS divides by log D
        memset(s->part, 0, (size_t)(p->E + p->N) * sizeof *s->part);
        p->done = true;
    } else
        status = partition(s->part, alone ? &s->experts : &s->both, way, p, seed, error);
    if (status != COT_OK) return status;
    memcpy(s->expert_rank, s->part, (size_t)p->E * sizeof *s->part);
    value_experts(s, p, alone);
    cot_cocluster_repair_sizes(s->expert_rank, p, s->worth);
    cot_cocluster_offer(p, s->expert_rank, NULL);
    return COT_OK;
}

const cot_cocluster_method cot_cocluster_metis = {
    {"metis", "METIS on tokens and experts, and on experts alone; sizes repaired"}, begin, iterate, end};
