#include "coterie/place.h"

#include "base/error.h"
#include "placement/methods.h"
#include "placement/verify.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef enum method {
    METHOD_RR,
    METHOD_GREEDY,
    METHOD_ILP,
    METHOD_ILPLOAD,
    METHOD_EPLB,
    METHOD_EPLB_SWAP,
    METHOD_REPLICATE,
    METHOD_BALANCE,
    METHODS
} method;

const cot_place_method cot_place_methods[] = {
    [METHOD_RR] = {"rr", "round robin around each layer's attention", false, false, false},
    [METHOD_GREEDY] = {"greedy", "experts in order, each on the cheapest rank with room", false, false,
                       false},
    [METHOD_ILP] = {"ilp", "exact where all experts are taken to be equally loaded", false, false, false},
    [METHOD_ILPLOAD] = {"ilpload", "exact: the least cost of all placements, with its proof", false, true,
                        false},
    [METHOD_EPLB] = {"eplb", "DeepSeek's EPLB, slot for slot: balance alone, replicas", true, false, false},
    [METHOD_EPLB_SWAP] = {"eplb-swap", "EPLB's replicas, swapped until ranks are balanced", true, false,
                          false},
    [METHOD_REPLICATE] = {"replicate", "balanced replicas, swapped towards the cheap ranks", true, true,
                          false},
    [METHOD_BALANCE] = {"balance", "the least peak found, then the least cost at most 2 % above it", true,
                        true, true},
    {0}};

/* The problem that the costs and options make, and what came of it. */
typedef struct cot_place_proof {
    const cot_costs *costs;
    const cot_place_options *options; // while placing
    method method;
    int32_t slots; // on all ranks
    cot_problem problem;
    int32_t *capacity; // [2][S] c_layer, c_exp
    double *even;      // of ilp: loads of 1 [L][E], then mean costs [L][S] where they differ by expert
    cot_assignment assignment;
    double dual; // of a load limit
} setting;

static int32_t ceil_div(int64_t a, int64_t b)
{
    return (int32_t)((a + b - 1) / b);
}

static cot_status choose_method(setting *s, cot_error *error)
{
    const cot_place_options *o = s->options;
    int32_t E = s->costs->n_experts, S = s->costs->n_ranks;
    const char *name = o->method ? o->method : o->slots > E ? "replicate" : "ilpload";
    for (s->method = 0; s->method < METHODS && strcmp(cot_place_methods[s->method].name, name); s->method++)
        ;
    if (s->method == METHODS)
        return cot_fail(error, COT_INVALID_ARGUMENT, "'%s' is no placement method", name);
    if (o->slots && o->slots < E)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%d slots are too few for %d experts, %d short",
                        o->slots, E, E - o->slots);
    s->slots = o->slots ? o->slots : s->method == METHOD_BALANCE ? ceil_div(E, S) * S : E;
    if (o->slots % S)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%d ranks do not divide %d slots", S, o->slots);
    if (cot_place_methods[s->method].replicas && s->slots % S)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "%s needs to know how many slots: %d ranks do not divide %d experts", name, S, E);
    if (!cot_place_methods[s->method].replicas && o->slots > E)
        return cot_fail(
            error, COT_INVALID_ARGUMENT,
            "%s places each expert once and cannot fill %d slots with %d experts: use replicate, eplb or "
            "eplb-swap",
            name, o->slots, E);
    const bool filled = o->slots || s->method == METHOD_BALANCE;
    for (int32_t i = 0; filled && i < S; i++) {
        int32_t each = s->slots / S;
        int64_t all = (int64_t)each * s->costs->n_layers;
        if (o->c_layer && o->c_layer[i] < each)
            return cot_fail(error, COT_INVALID_ARGUMENT,
                            "c_layer of rank %d is too small: %d, %d fewer than its %d slots of a layer", i,
                            o->c_layer[i], each - o->c_layer[i], each);
        if (o->c_exp && o->c_exp[i] < all)
            return cot_fail(error, COT_INVALID_ARGUMENT,
                            "c_exp of rank %d is too small: %d, %" PRId64
                            " fewer than its slots of %d layers",
                            i, o->c_exp[i], all - o->c_exp[i], s->costs->n_layers);
    }
    if (o->max_load > 0 && !cot_place_methods[s->method].limits)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "%s knows no load limit: use balance, ilpload or replicate", name);
    return COT_OK;
}

static cot_status open_setting(setting *s, cot_error *error)
{
    const cot_costs *c = s->costs;
    size_t L = (size_t)c->n_layers, E = (size_t)c->n_experts, S = (size_t)c->n_ranks;
    int32_t slots = s->options->slots;
    s->capacity = malloc(2 * S * sizeof *s->capacity);
    if (s->method == METHOD_ILP) s->even = calloc(L * E + L * S, sizeof *s->even);
    if (!s->capacity || (s->method == METHOD_ILP && !s->even))
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a placement");
    for (size_t i = 0; i < S; i++) {
        int32_t a_layer = slots ? slots / c->n_ranks : ceil_div(c->n_experts, c->n_ranks);
        int32_t all = slots ? c->n_layers * (slots / c->n_ranks)
                            : ceil_div((int64_t)c->n_layers * c->n_experts, c->n_ranks);
        s->capacity[i] =
            s->options->c_layer && !slots ? s->options->c_layer[i] : a_layer; // slots are all filled
        s->capacity[S + i] = s->options->c_exp ? s->options->c_exp[i] : all;
    }
    s->problem = (cot_problem){.L = c->n_layers,
                               .E = c->n_experts,
                               .S = c->n_ranks,
                               .load = c->load,
                               .cost = c->cost,
                               .pair_cost = c->pair,
                               .c_layer = s->capacity,
                               .c_exp = s->capacity + S};
    if (s->method != METHOD_ILP) return COT_OK;
    for (size_t i = 0; i < L * E; i++) s->even[i] = 1;
    for (size_t l = 0; !c->cost && l < L; l++) {
        double total = 0, *cost = s->even + L * E + l * S;
        for (size_t e = 0; e < E; e++) {
            total += c->load[l * E + e];
            for (size_t r = 0; r < S; r++) cost[r] += c->pair[(l * E + e) * S + r];
        }
        for (size_t r = 0; r < S; r++) cost[r] /= total;
    }
    s->problem.load = s->even;
    s->problem.pair_cost = NULL;
    if (!c->cost) s->problem.cost = s->even + L * E;
    return COT_OK;
}

/* The map of an assignment: experts of a rank in rising order, as many slots as the fullest rank has. */
static cot_status make_map(cot_expert_map *map, const setting *s, const int32_t *rank, cot_error *error)
{
    const cot_problem *p = &s->problem;
    int32_t *held = malloc((size_t)p->S * sizeof *held), most = s->options->slots / p->S;
    if (!held) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a map");
    for (int32_t l = 0; l < p->L; l++) {
        memset(held, 0, (size_t)p->S * sizeof *held);
        for (int32_t e = 0; e < p->E; e++) {
            int32_t n = ++held[rank[(size_t)l * (size_t)p->E + (size_t)e]];
            most = n > most ? n : most;
        }
    }
    cot_status status = cot_expert_map_new(map, p->L, p->E, p->S, most, error);
    for (int32_t l = 0; status == COT_OK && l < p->L; l++) {
        memset(held, 0, (size_t)p->S * sizeof *held);
        map->layers[l] = s->costs->layers[l];
        for (int32_t e = 0; e < p->E; e++) {
            int32_t r = rank[(size_t)l * (size_t)p->E + (size_t)e];
            map->expert[((size_t)l * (size_t)p->S + (size_t)r) * (size_t)most + (size_t)held[r]++] = e;
        }
    }
    free(held);
    return status;
}

static cot_status assign(cot_expert_map *map, setting *s, cot_error *error)
{
    const cot_problem *p = &s->problem;
    cot_assignment *a = &s->assignment;
    cot_status status = cot_assignment_open(a, p, error);
    cot_method *exact = p->cost ? cot_place_chain : cot_place_pairs;
    if (status != COT_OK) return status;
    if (s->method == METHOD_RR)
        status = cot_place_rr(a, p, s->costs->home, error);
    else if (s->method == METHOD_GREEDY)
        status = cot_place_greedy(a, p, error);
    else if (s->options->max_load > 0) // no rank has more than a layer's whole load
        status = cot_place_limited(a, &s->dual, p, s->costs->layers, fmin(s->options->max_load, p->S), error);
    else
        status = exact(a, p, error);
    return status == COT_OK ? make_map(map, s, a->rank, error) : status;
}

/* Whole ranks of EPLB's slots become the map's; then the layers are balanced, and drawn near, as the method asks. */
static cot_status refine(cot_expert_map *map, const setting *s, const int64_t *replicas, cot_error *error)
{
    const cot_costs *c = s->costs;
    size_t E = (size_t)c->n_experts, S = (size_t)c->n_ranks, n = S * (size_t)map->slots_per_rank;
    int32_t *count = malloc(E * sizeof *count);
    double *sum = malloc((S + n) * sizeof *sum);
    cot_status status =
        count && sum ? COT_OK : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a layer");
    for (int32_t l = 0; status == COT_OK && l < c->n_layers; l++) {
        double total = 0, peak = 0, was = 0;
        for (size_t e = 0; e < E; e++) {
            count[e] = (int32_t)replicas[(size_t)l * E + e];
            total += c->load[(size_t)l * E + e];
        }
        cot_slots layer = {c->n_ranks,
                           c->n_experts,
                           map->slots_per_rank,
                           map->expert + (size_t)l * n,
                           c->load + (size_t)l * E,
                           count};
        const double limit = s->options->max_load * total / (double)S;
        if (s->method == METHOD_BALANCE) {
            status = cot_slots_least(&layer, &was, &peak, error);
            const double most = limit > 0 ? fmax(limit, peak) : fmin(was, 1.02 * peak);
            if (status == COT_OK)
                status = s->options->dispatch == COT_DISPATCH_UNIFORM
                             ? cot_slots_draw(&layer, c, l, most, error)
                             : cot_slots_near(&layer, c, l, s->options->dispatch, most, error);
            continue;
        }
        cot_slots_balance(&layer, sum);
        if (s->method != METHOD_REPLICATE) continue;
        for (size_t r = 0; r < S; r++) peak = fmax(peak, sum[r]);
        if (s->options->max_load > 0 && peak > limit)
            status = cot_fail(error, COT_INVALID_ARGUMENT,
                              "max load %.6g cannot be met in layer %d: the smallest found is %.6g",
                              s->options->max_load, c->layers[l], peak / (total / (double)S));
        else
            status = cot_slots_near(&layer, c, l, s->options->dispatch, limit > 0 ? limit : peak, error);
    }
    free(count);
    free(sum);
    return status;
}

static cot_status fill_slots(cot_expert_map *map, const setting *s, cot_error *error)
{
    const cot_costs *c = s->costs;
    const cot_place_options *o = s->options;
    size_t L = (size_t)c->n_layers, E = (size_t)c->n_experts;
    int32_t slots = s->slots;
    int64_t *map64 = malloc(L * (size_t)slots * sizeof *map64), *replicas = malloc(L * E * sizeof *replicas);
    const cot_eplb_sizes sizes = {.layers = c->n_layers,
                                  .experts = c->n_experts,
                                  .slots = slots,
                                  .groups = o->groups > 0 ? o->groups : 1,
                                  .nodes = o->nodes > 0 ? o->nodes : 1,
                                  .gpus = c->n_ranks,
                                  .max_replicas = slots - c->n_experts + 1};
    cot_status status = map64 && replicas
                            ? cot_eplb_rebalance(map64, NULL, replicas, c->load, &sizes, error)
                            : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %d slots", slots);
    if (status == COT_OK)
        status = cot_expert_map_new(map, c->n_layers, c->n_experts, c->n_ranks, slots / c->n_ranks, error);
    for (size_t i = 0; status == COT_OK && i < L * (size_t)slots; i++) map->expert[i] = (int32_t)map64[i];
    for (size_t l = 0; status == COT_OK && l < L; l++) map->layers[l] = c->layers[l];
    if (status == COT_OK && s->method != METHOD_EPLB) status = refine(map, s, replicas, error);
    free(map64);
    free(replicas);
    return status;
}

/* No placement is below the mean, and none that fills so many slots below the hottest expert's share in its most
 * replicas. */
static void bound_peaks(cot_place_value *value, const setting *s)
{
    const cot_costs *c = s->costs;
    int32_t spare = cot_place_methods[s->method].replicas ? s->slots - c->n_experts + 1 : 1;
    for (int32_t l = 0; l < c->n_layers; l++) {
        double total = 0, most = 0;
        for (int32_t e = 0; e < c->n_experts; e++) {
            double load = c->load[(size_t)l * (size_t)c->n_experts + (size_t)e];
            total += load;
            most = fmax(most, load);
        }
        value->peak_bound[l] = fmax(1, most / spare / (total / c->n_ranks));
    }
}

cot_status cot_place_prove(cot_place_value *value, const cot_place_proof *proof, cot_error *error)
{
    cot_double_double objective, dual;
    bound_peaks(value, proof);
    value->dual = proof->dual;
    if (!proof->assignment.priced) return COT_OK;
    cot_status status = cot_assignment_verify(&objective, &dual, &proof->assignment, &proof->problem, error);
    if (status == COT_OK && proof->method == METHOD_ILPLOAD) value->dual = dual.high;
    if (status == COT_OK && proof->method == METHOD_ILP) {
        value->own_objective = objective.high;
        value->own_dual = dual.high;
    }
    return status;
}

void cot_place_proof_free(cot_place_proof *proof)
{
    if (!proof) return;
    cot_assignment_close(&proof->assignment);
    free(proof->capacity);
    free(proof->even);
    free(proof);
}

cot_status cot_place(cot_expert_map *map, cot_place_proof **proof, const cot_costs *costs,
                     const cot_place_options *options, cot_error *error)
{
    *map = (cot_expert_map){0};
    if (proof) *proof = NULL;
    if (options->size != sizeof *options)
        return cot_fail(error, COT_INVALID_ARGUMENT, "place options of %zu bytes, expected %zu",
                        options->size, sizeof *options);
    setting *s = calloc(1, sizeof *s);
    if (!s) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a placement");
    s->costs = costs;
    s->options = options;
    cot_status status = choose_method(s, error);
    if (status == COT_OK) status = open_setting(s, error);
    if (status == COT_OK)
        status = cot_place_methods[s->method].replicas ? fill_slots(map, s, error) : assign(map, s, error);
    s->options = NULL;
    if (status == COT_OK && proof)
        *proof = s;
    else
        cot_place_proof_free(s);
    if (status == COT_OK)
        map->model_hash = costs->model_hash;
    else
        cot_expert_map_free(map);
    return status;
}
