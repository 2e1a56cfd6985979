#include "routing/popularity.h"

#include "base/error.h"
#include "base/rng.h"
#include "coterie/trace.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double most_worth = 1e100; // before counts are brought back to what a token is worth now

static size_t cells_of(const cot_popularity *p)
{
    return (size_t)p->options.n_layers * (size_t)p->options.n_experts;
}

static size_t calls_of(const cot_popularity *p)
{
    return (size_t)p->options.n_layers * (size_t)p->options.top_k;
}

static cot_status check(const cot_popularity_options *o, cot_error *error)
{
    if (o->n_layers < 1 || o->n_layers > COT_TRACE_MAX_LAYERS || o->n_experts < 1 ||
        o->n_experts > COT_TRACE_MAX_EXPERTS || o->top_k < 1 || o->top_k > o->n_experts || o->n_homes < 1 ||
        o->n_homes > COT_TRACE_MAX_RANKS || o->reservoir < 0)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "no popularity can be of %" PRId32 " layers, %" PRId32 " of %" PRId32
                        " experts and %" PRId32 " homes",
                        o->n_layers, o->top_k, o->n_experts, o->n_homes);
    const double life = o->half_life_tokens != 0 ? o->half_life_tokens : o->half_life_seconds;
    if (!(life > 0) || isinf(life)) // nan is not
        return cot_fail(error, COT_INVALID_ARGUMENT, "the half-life of popularity is %g, not above 0", life);
    return COT_OK;
}

cot_status cot_popularity_open(cot_popularity *p, const cot_popularity_options *o, cot_error *error)
{
    *p = (cot_popularity){.worth = 1, .growth = 1};
    const cot_status status = check(o, error);
    if (status != COT_OK) return status;
    p->options = *o;
    if (o->half_life_tokens != 0) p->growth = exp2(1 / fmax(o->half_life_tokens, 1));
    p->count = calloc((size_t)o->n_homes * cells_of(p), sizeof *p->count);
    p->tokens = calloc((size_t)o->n_homes, sizeof *p->tokens);
    p->held_experts = calloc((size_t)o->reservoir * calls_of(p) + 1, sizeof *p->held_experts);
    p->held_home = calloc((size_t)o->reservoir + 1, sizeof *p->held_home);
    p->held_position = calloc((size_t)o->reservoir + 1, sizeof *p->held_position);
    p->marked.count = calloc(cells_of(p), sizeof *p->marked.count);
    p->left.count = calloc(cells_of(p), sizeof *p->left.count);
    if (p->count && p->tokens && p->held_experts && p->held_home && p->held_position && p->marked.count &&
        p->left.count)
        return COT_OK;
    return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the popularity of %zu experts", cells_of(p));
}

void cot_popularity_close(cot_popularity *p)
{
    free(p->count);
    free(p->tokens);
    free(p->held_experts);
    free(p->held_home);
    free(p->held_position);
    free(p->marked.count);
    free(p->left.count);
    *p = (cot_popularity){0};
}

static void multiply(double *numbers, size_t n, double by)
{
    for (size_t i = 0; i < n; i++) numbers[i] *= by;
}

/* A token is worth so many times more than before. */
static void grow(cot_popularity *p, double by)
{
    p->worth *= by;
    if (p->worth <= most_worth) return;
    const double back =
        1 / p->worth; // 0 where worth has left all numbers behind: nothing that came is worth anything
    const size_t homes = (size_t)p->options.n_homes;
    multiply(p->count, homes * cells_of(p), back);
    multiply(p->tokens, homes, back);
    multiply(p->marked.count, cells_of(p), back);
    multiply(p->left.count, cells_of(p), back);
    p->all_tokens *= back;
    p->marked.tokens *= back;
    p->left.tokens *= back;
    p->worth = 1;
}

/* The token is kept where the reservoir has room, else in place of another, with the chance that as many go in a half-life as
 * counts lose: a reservoir of n among what all tokens are worth that are not left out. */
static void hold(cot_popularity *p, int32_t home, const uint16_t *experts, int64_t layer_stride)
{
    const int64_t n = p->options.reservoir;
    const uint64_t position = (uint64_t)p->seen;
    int64_t at = p->held;
    if (p->held < n)
        p->held++;
    else if (cot_random_uniform(p->options.seed, 0, position) *
                 ((p->all_tokens - p->left.tokens) / p->worth) <
             (double)n)
        at = (int64_t)(cot_random_uniform(p->options.seed, 1, position) * (double)n);
    else
        return;
    const size_t K = (size_t)p->options.top_k;
    uint16_t *to = p->held_experts + (size_t)at * calls_of(p);
    for (int32_t l = 0; l < p->options.n_layers; l++)
        memcpy(to + (size_t)l * K, experts + l * layer_stride, K * sizeof *to);
    p->held_home[at] = (int16_t)home;
    p->held_position[at] = p->seen;
}

void cot_popularity_add(cot_popularity *p, int32_t home, const uint16_t *experts, int64_t layer_stride)
{
    const int32_t L = p->options.n_layers, E = p->options.n_experts, K = p->options.top_k;
    grow(p, p->growth);
    double *count = p->count + (size_t)home * cells_of(p);
    for (int32_t l = 0; l < L; l++, count += E)
        for (int32_t k = 0; k < K; k++) count[experts[l * layer_stride + k]] += p->worth;
    p->tokens[home] += p->worth;
    p->all_tokens += p->worth;
    if (p->options.reservoir) hold(p, home, experts, layer_stride);
    p->seen++;
}

void cot_popularity_elapse(cot_popularity *p, double seconds)
{
    if (p->options.half_life_tokens == 0) grow(p, exp2(seconds / p->options.half_life_seconds));
}

void cot_popularity_counts(double *counts, const cot_popularity *p, int32_t home)
{
    const size_t cells = cells_of(p);
    const int32_t first = home == COT_POPULARITY_ALL ? 0 : home,
                  last = home == COT_POPULARITY_ALL ? p->options.n_homes - 1 : home;
    memset(counts, 0, cells * sizeof *counts);
    for (int32_t h = first; h <= last; h++)
        for (size_t i = 0; i < cells; i++) counts[i] += p->count[(size_t)h * cells + i] / p->worth;
}

double cot_popularity_tokens(const cot_popularity *p, int32_t home)
{
    return (home == COT_POPULARITY_ALL ? p->all_tokens : p->tokens[home]) / p->worth;
}

/* ---- what is called lately ---- */

static double count_of_all(const cot_popularity *p, size_t cell)
{
    double sum = 0;
    for (size_t h = 0; h < (size_t)p->options.n_homes; h++) sum += p->count[h * cells_of(p) + cell];
    return sum;
}

void cot_popularity_mark(cot_popularity *p)
{
    for (size_t i = 0; i < cells_of(p); i++) p->marked.count[i] = count_of_all(p, i);
    p->marked.tokens = p->all_tokens;
    p->marked.seen = p->seen;
}

double cot_popularity_since(const cot_popularity *p)
{
    return (p->all_tokens - p->marked.tokens) / p->worth;
}

double cot_popularity_change(double *chance, const cot_popularity *p)
{
    const double calls = p->options.top_k, since = (p->all_tokens - p->marked.tokens) * calls,
                 before = (p->marked.tokens - p->left.tokens) * calls;
    double apart = 0;
    *chance = 0;
    if (!(since > 0 && before > 0)) return 0;
    for (size_t i = 0; i < cells_of(p); i++)
        apart += fabs((count_of_all(p, i) - p->marked.count[i]) / since -
                      (p->marked.count[i] - p->left.count[i]) / before);
    // normal errors of variance share * (1 / n + 1 / m) of n calls and m: the sum over E shares is greatest where all are equal
    *chance = sqrt(p->options.n_experts * p->worth * (1 / since + 1 / before) / (2 * acos(-1)));
    return apart / 2 / p->options.n_layers;
}

/* Those that came before the mark give up their places. */
static void drop_held(cot_popularity *p)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < p->held; i++) {
        if (p->held_position[i] < p->marked.seen) continue;
        memmove(p->held_experts + (size_t)kept * calls_of(p), p->held_experts + (size_t)i * calls_of(p),
                calls_of(p) * sizeof *p->held_experts);
        p->held_home[kept] = p->held_home[i];
        p->held_position[kept++] = p->held_position[i];
    }
    p->held = kept;
}

void cot_popularity_leave(cot_popularity *p)
{
    memcpy(p->left.count, p->marked.count, cells_of(p) * sizeof *p->left.count);
    p->left.tokens = p->marked.tokens;
    p->left.seen = p->marked.seen;
    drop_held(p);
}

double cot_popularity_lately(double *counts, const cot_popularity *p)
{
    for (size_t i = 0; i < cells_of(p); i++)
        counts[i] = fmax(0, count_of_all(p, i) - p->left.count[i]) / p->worth;
    return fmax(0, p->all_tokens - p->left.tokens) / p->worth;
}
