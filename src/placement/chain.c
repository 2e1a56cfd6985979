#include "placement/chain.h"

#include "base/arena.h"
#include "base/error.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Hashes of all columns, row by row as they lie in memory. */
static void hash_columns(uint64_t *hash, const cot_problem *p)
{
    for (int32_t s = 0; s < p->S; s++)
        hash[s] = (uint64_t)(uint32_t)p->c_layer[s] << 32 | (uint32_t)p->c_exp[s];
    for (int32_t l = 0; l < p->L; l++) {
        const double *row = p->cost + (size_t)l * (size_t)p->S;
        for (int32_t s = 0; s < p->S; s++) {
            uint64_t bits;
            double x = row[s] + 0.0;
            memcpy(&bits, &x, sizeof bits);
            hash[s] = (hash[s] ^ bits) * 0x9e3779b97f4a7c15u;
            hash[s] ^= hash[s] >> 29;
        }
    }
}

static bool same_column(const cot_problem *p, int32_t a, int32_t b)
{
    if (p->c_layer[a] != p->c_layer[b] || p->c_exp[a] != p->c_exp[b]) return false;
    for (int32_t l = 0; l < p->L; l++) {
        const double *row = p->cost + (size_t)l * (size_t)p->S;
        if (row[a] != row[b]) return false;
    }
    return true;
}

/* Groups are numbered by their first rank; table [size] holds groups + 1, size a power of two above 2 S. */
static int32_t find_groups(int32_t *group_of, int32_t *example, const uint64_t *hash, const cot_problem *p,
                           int32_t *table, size_t size)
{
    int32_t n = 0;
    for (int32_t s = 0; s < p->S; s++) {
        size_t at = (size_t)(hash[s] >> 20) & (size - 1);
        for (; table[at]; at = (at + 1) & (size - 1)) {
            int32_t other = example[table[at] - 1];
            if (hash[other] == hash[s] && same_column(p, other, s)) break;
        }
        if (!table[at]) {
            example[n] = s;
            table[at] = ++n;
        }
        group_of[s] = table[at] - 1;
    }
    return n;
}

static cot_status merge(cot_chain *chain, int32_t *group_of, cot_error *error)
{
    const cot_problem *p = chain->problem;
    size_t S = (size_t)p->S, size = 4;
    while (size <= 2 * S) size *= 2;
    int32_t *table = calloc(size + S, sizeof *table);
    uint64_t *hashes = malloc(S * sizeof *hashes);
    if (table && hashes) {
        hash_columns(hashes, p);
        chain->G = find_groups(group_of, table + size, hashes, p, table, size);
    }
    bool good = table && hashes;
    free(table);
    free(hashes);
    return good ? COT_OK : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the groups of %zu ranks", S);
}

/* The arrays, from an arena that measures first. */
static void take(cot_chain *c, cot_arena *arena)
{
    size_t L = (size_t)c->L, E = (size_t)c->E, S = (size_t)c->S, G = (size_t)c->G;
    c->member = cot_arena_take(arena, S, sizeof *c->member);
    c->first = cot_arena_take(arena, G + 1, sizeof *c->first);
    c->cap_layer = cot_arena_take(arena, G, sizeof *c->cap_layer);
    c->cap = cot_arena_take(arena, G, sizeof *c->cap);
    c->used = cot_arena_take(arena, G, sizeof *c->used);
    c->expert = cot_arena_take(arena, L * E, sizeof *c->expert);
    c->load = cot_arena_take(arena, L * E, sizeof *c->load);
    c->group = cot_arena_take(arena, L * G, sizeof *c->group);
    c->class_first = cot_arena_take(arena, L + 1, sizeof *c->class_first);
    c->layer = cot_arena_take(arena, L * G, sizeof *c->layer);
    c->group_first = cot_arena_take(arena, L * G + 1, sizeof *c->group_first);
    c->step = cot_arena_take(arena, L * G, sizeof *c->step);
    c->below = cot_arena_take(arena, L * G, sizeof *c->below);
    c->count = cot_arena_take(arena, G * L, sizeof *c->count);
    c->class_of = cot_arena_take(arena, G * L, sizeof *c->class_of);
    c->potential = cot_arena_take(arena, G + L * G, sizeof *c->potential);
}

static void fill_groups(cot_chain *c, const int32_t *group_of)
{
    const cot_problem *p = c->problem;
    for (int32_t s = 0; s < c->S; s++) c->first[group_of[s] + 1]++;
    for (int32_t g = 0; g < c->G; g++) c->first[g + 1] += c->first[g];
    for (int32_t s = 0; s < c->S; s++) {
        int32_t g = group_of[s];
        c->member[c->first[g] + (int32_t)c->used[g]++] = s;
    }
    for (int32_t g = 0; g < c->G; g++) {
        int32_t n = c->first[g + 1] - c->first[g], s = c->member[c->first[g]];
        int64_t of_layer = (int64_t)n * p->c_layer[s];
        c->used[g] = 0;
        c->cap_layer[g] = of_layer < c->E ? (int32_t)of_layer : c->E;
        c->cap[g] = (int64_t)n * p->c_exp[s];
    }
}

/* Experts by load, groups by cost, classes where the cost changes; steps are multiples of 2^grid. `row` holds max(E, G)
 * numbers. */
static void fill_layers(cot_chain *c, double *row, cot_sort_item *scratch)
{
    const cot_problem *p = c->problem;
    size_t E = (size_t)c->E, G = (size_t)c->G;
    for (int32_t l = 0; l < c->L; l++) {
        int32_t *expert = c->expert + (size_t)l * E, *group = c->group + (size_t)l * G;
        const double *load = p->load + (size_t)l * E, *cost = p->cost + (size_t)l * (size_t)c->S;
        cot_units before = 0;
        cot_sort_indices(expert, load, c->E, true, scratch);
        for (size_t i = 0; i < E; i++) c->load[(size_t)l * E + i] = load[expert[i]];
        for (size_t g = 0; g < G; g++) row[g] = cost[c->member[c->first[g]]];
        cot_sort_indices(group, row, c->G, false, scratch);
        c->class_first[l] = c->C;
        for (int32_t i = 0; i < c->G; i++) {
            bool opens = !i || row[group[i]] != row[group[i - 1]];
            if (opens) {
                const cot_units_factor f = cot_units_split(row[group[i]]);
                cot_units here = cot_units_times(1, f.mantissa, f.exponent - c->grid);
                if (i) c->step[c->C - 1] = (cot_units_magnitude)(here - before);
                before = here;
                c->layer[c->C] = l;
                c->group_first[c->C++] = (int32_t)((size_t)l * G) + i;
            }
            c->class_of[(size_t)group[i] * (size_t)c->L + (size_t)l] = c->C - 1;
        }
    }
    c->class_first[c->L] = c->C;
    c->group_first[c->C] = (int32_t)((size_t)c->L * G);
}

/* A path goes through no layer twice at no gain, so its cost is at most that of all layers' widest ways. Potentials are 0
 * at groups with room and no further below it than a path there and another back: a few times that are below 2^127.
 * Costs keep 126 bits below the largest one. */
static cot_status choose_unit(cot_chain *c, cot_error *error)
{
    const cot_problem *p = c->problem;
    const size_t E = (size_t)c->E;
    double bound = 0, highest = 0;
    int32_t last_load = INT32_MAX, last_cost = INT32_MAX;
    for (size_t l = 0; l < (size_t)c->L; l++) {
        double least = INFINITY, most = 0, load = 0;
        for (int32_t g = 0; g < c->G; g++) {
            const double cost = p->cost[l * (size_t)c->S + (size_t)c->member[c->first[g]]];
            least = cost < least ? cost : least;
            most = cost > most ? cost : most;
            last_cost = cot_units_last_bit(cost, last_cost);
        }
        for (size_t e = 0; e < E; e++) {
            load = p->load[l * E + e] > load ? p->load[l * E + e] : load;
            last_load = cot_units_last_bit(p->load[l * E + e], last_load);
        }
        bound += (most - least) * load;
        highest = most > highest ? most : highest;
    }
    if (!(bound < COT_UNITS_MOST))
        return cot_fail(error, COT_INVALID_ARGUMENT, "loads or costs are too large: they add up to %g",
                        bound);
    int exponent;
    frexp(highest, &exponent);
    c->grid = last_cost == INT32_MAX || last_cost < exponent - 126 ? exponent - 126 : last_cost;
    c->unit = cot_units_choose(bound, last_load, last_cost);
    return COT_OK;
}

cot_status cot_chain_open(cot_chain *chain, const cot_problem *problem, cot_error *error)
{
    *chain = (cot_chain){.problem = problem, .L = problem->L, .E = problem->E, .S = problem->S};
    size_t wide = (size_t)(problem->E > problem->S ? problem->E : problem->S);
    int32_t *group_of = malloc((size_t)problem->S * sizeof *group_of);
    double *row = malloc(wide * sizeof *row);
    cot_sort_item *scratch = malloc(2 * wide * sizeof *scratch);
    cot_arena arena = {0}, *kept = malloc(sizeof *kept);
    cot_status status = COT_OK;
    if (!group_of || !row || !scratch || !kept)
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a placement on %d ranks", problem->S);
    if (status == COT_OK) status = merge(chain, group_of, error);
    if (status == COT_OK && (int64_t)chain->L * chain->G > INT32_MAX / 2)
        status = cot_fail(error, COT_UNSUPPORTED, "%d layers on %d kinds of rank are too many", chain->L,
                          chain->G);
    if (status == COT_OK) {
        take(chain, &arena);
        *kept = (cot_arena){aligned_alloc(64, arena.used + 64), arena.used, 0};
        if (!kept->memory)
            status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %zu bytes", arena.used);
    }
    if (status == COT_OK) {
        memset(kept->memory, 0, arena.used);
        take(chain, chain->memory = kept);
        fill_groups(chain, group_of);
        status = choose_unit(chain, error);
        if (status == COT_OK) fill_layers(chain, row, scratch);
    } else
        free(kept);
    free(group_of);
    free(row);
    free(scratch);
    return status;
}

void cot_chain_close(cot_chain *chain)
{
    if (chain->memory) {
        free(((cot_arena *)chain->memory)->memory);
        free(chain->memory);
    }
    chain->memory = NULL;
}
