/* Experts that the engine moves by itself: what is counted, and what things take, is handed to the controller (placement/rebalance.h), and what
 * that says is moved as if it had been asked for. */
#include "base/clock.h"
#include "base/error.h"
#include "engine/engine_state.h"
#include "engine/rebalancing.h"

#include <stdlib.h>
#include <string.h>

_Static_assert((int)COT_ENGINE_REASONS == (int)COT_REBALANCE_REASONS, "reasons are told as they are found");

enum { COOL_DOWN = 4 }; // intervals
static const double margin = 2;

const char *const *cot_engine_rebalance_reasons(void)
{
    return cot_rebalance_reason_names;
}

/* ---- opening ---- */

cot_status cot_rebalancing_check(const cot_engine *e, const cot_engine_resolved *options, cot_error *error)
{
    const cot_engine_options *o = &options->given;
    const char *mode = cot_rebalance_mode_names[options->choice.experts_rebalance];
    if (options->choice.experts_rebalance == COT_REBALANCE_OFF) return COT_OK;
    if (!e->config->moe_layers)
        return cot_fail(error, COT_INVALID_ARGUMENT, "rebalance '%s': the model has no experts", mode);
    if (e->runner.pipeline.s_moe)
        return cot_fail(
            error, COT_INVALID_ARGUMENT,
            "rebalance '%s' does not go with pipeline s-moe, whose homes are those of experts that stay",
            mode);
    if (o->experts.tables)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "rebalance '%s' does not go with tables: experts are where '%s' has them", mode,
                        o->experts.tables);
    if (o->experts.routing && !o->experts.routing->trace)
        return cot_fail(error, COT_INVALID_ARGUMENT, "rebalance '%s' does not go with drawn routing", mode);
    if (cot_runner_expert_layers(&e->runner) < e->config->moe_layers)
        return cot_fail(error, COT_UNSUPPORTED,
                        "rebalance '%s': layers that share experts keep them where they are", mode);
    return COT_OK;
}

/* Distances of ranks over their mean, as what a send takes is learnt of all sends; NULL: all are as far from each other. The caller's. Errors:
 * OUT_OF_MEMORY. */
static cot_status scale_distances(double **scaled, const double *distance, int ranks, cot_error *error)
{
    double sum = 0;
    *scaled = NULL;
    for (int a = 0; distance && a < ranks; a++)
        for (int b = 0; b < ranks; b++) sum += a == b ? 0 : distance[a * ranks + b];
    if (!(sum > 0)) return COT_OK;
    *scaled = malloc((size_t)ranks * (size_t)ranks * sizeof **scaled);
    if (!*scaled) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory to rebalance");
    for (int i = 0; i < ranks * ranks; i++) (*scaled)[i] = distance[i] * ranks * (ranks - 1) / sum;
    return COT_OK;
}

static cot_rebalance_clock clock_of(const cot_engine *e)
{
    return (cot_rebalance_clock){e->loop.steps, cot_now_ns()};
}

cot_status cot_rebalancing_open(cot_engine *e, const cot_engine_resolved *options, cot_error *error)
{
    cot_rebalancing *r = &e->rebalancing;
    const cot_rebalance_clock now = clock_of(e);
    const size_t L = (size_t)e->config->moe_layers, E = (size_t)e->config->gate.experts;
    *r = (cot_rebalancing){.mode = (cot_rebalance_mode)options->choice.experts_rebalance, .last_ns = now.ns};
    r->told.mode = cot_rebalance_mode_names[r->mode];
    if (r->mode == COT_REBALANCE_OFF) return COT_OK;
    r->calls = calloc(L * E, sizeof *r->calls);
    r->copy_ns = calloc(L, sizeof *r->copy_ns);
    if (!r->calls || !r->copy_ns) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory to rebalance");
    double *distance;
    cot_status status = scale_distances(&distance, options->given.experts.distances, e->info.ranks, error);
    if (status != COT_OK) return status;
    const cot_rebalance_options controller = {.mode = r->mode,
                                              .layers = (int32_t)L,
                                              .experts = (int32_t)E,
                                              .ranks = e->info.ranks,
                                              .top_k = (int32_t)e->config->gate.top_k,
                                              .slots = e->layout.slots_per_rank - e->moving.movable,
                                              .base = e->layout.slots_per_rank - e->moving.movable -
                                                      options->given.experts.spare_slots,
                                              .slot_bytes = e->networks.slot_bytes,
                                              .interval_steps = options->rebalance_steps,
                                              .interval_ns = options->rebalance_ns,
                                              .cool_down = COOL_DOWN,
                                              .margin = margin,
                                              .moves_a_cycle = options->given.experts.moves_a_cycle,
                                              .row_ns = 1, // until a cycle learns what things take
                                              .expert_ns = 1,
                                              .copy_ns = r->copy_ns,
                                              .distance = distance};
    status = cot_rebalance_open(&r->controller, &controller, now, error);
    free(distance);
    return status;
}

void cot_rebalancing_close(cot_rebalancing *r)
{
    cot_rebalance_close(&r->controller);
    free(r->calls);
    free(r->copy_ns);
    *r = (cot_rebalancing){0};
}

/* ---- what things take ---- */

/* Copies of the last moves count, once they are over. */
static void count_copies(cot_engine *e)
{
    cot_rebalancing *r = &e->rebalancing;
    const cot_engine_moves *last = &e->moving.told;
    if (!last->over || last->id == r->counted_id) return;
    r->counted_id = last->id;
    r->copied_ns += (double)last->copy_ns;
    r->copied_bytes += (double)last->bytes;
}

/* As steps were seen to take (schedule/cost.h), whose terms are of all layers together. */
static cot_status learn_costs(cot_engine *e, cot_error *error)
{
    const double least_ns_a_byte =
        1e-4; // no memory is read faster: experts that seem to be had for nothing take that
    const double copies_reads = 4; // a copy is read, sent, written and compared: until one was timed
    cot_rebalancing *r = &e->rebalancing;
    const double *weight = e->loop.scheduler.cost.weight;
    const int64_t L = e->config->moe_layers;
    double bytes = 0;
    count_copies(e);
    for (int64_t l = 0; l < L; l++) bytes += (double)e->networks.slot_bytes[l] / (double)L;
    const double least_ns = least_ns_a_byte * bytes, learnt_ns = weight[COT_COST_EXPERTS] / (double)L,
                 expert_ns = learnt_ns > least_ns ? learnt_ns : least_ns;
    const double ns_a_byte =
        r->copied_bytes > 0 ? r->copied_ns / r->copied_bytes : copies_reads * expert_ns / bytes;
    for (int64_t l = 0; l < L; l++) r->copy_ns[l] = ns_a_byte * (double)e->networks.slot_bytes[l];
    const cot_rebalance_costs costs = {.row_ns = weight[COT_COST_ROWS] / (double)L,
                                       .expert_ns = expert_ns,
                                       .send_ns = weight[COT_COST_SENDS] / (double)L,
                                       .copy_ns = r->copy_ns};
    return cot_rebalance_learn(&r->controller, &costs, error);
}

/* ---- a cycle ---- */

static int64_t tokens_fed(const cot_engine *e)
{
    return e->loop.prefill_tokens + e->loop.decode_tokens;
}

/* Calls of the tokens that were counted, as if those had come in steps like the ones since the last cycle. */
static cot_rebalance_seen seen_by(cot_engine *e)
{
    const cot_rebalancing *r = &e->rebalancing;
    const bool since = e->loop.steps > r->steps;
    const cot_popularity *p = &e->loop.profiles.popularity;
    cot_rebalance_seen seen = {
        .calls = r->calls, .tokens = p->held, .experts = p->held_experts, .home = p->held_home};
    const double steps = (double)(e->loop.steps - (since ? r->steps : 0)),
                 fed = (double)(tokens_fed(e) - (since ? r->tokens : 0)),
                 counted = cot_popularity_lately(r->calls, p);
    seen.steps = fed > 0 ? counted * steps / fed : 0;
    return seen;
}

bool cot_rebalancing_look(cot_rebalance *controller, cot_popularity *p)
{
    const double least = (double)COT_REBALANCE_LEAST_CALLS * p->options.n_experts / p->options.top_k;
    double chance;
    if (cot_popularity_since(p) < least) return false;
    const double change = cot_popularity_change(&chance, p);
    const bool turns = cot_rebalance_turns(controller, change, chance);
    if (turns) cot_popularity_leave(p);
    cot_popularity_mark(p);
    return turns;
}

static void look_for_change(cot_engine *e)
{
    if (!cot_rebalancing_look(&e->rebalancing.controller, &e->loop.profiles.popularity)) return;
    pthread_mutex_lock(&e->placing.mutex);
    e->rebalancing.told.turns++;
    pthread_mutex_unlock(&e->placing.mutex);
}

static cot_status plan_cycle(cot_rebalance_plan *plan, cot_engine *e, const cot_rebalance_seen *seen,
                             cot_rebalance_clock now, cot_error *error)
{
    const cot_rebalance *r = &e->rebalancing.controller;
    const cot_expert_layout *layout = &e->placing.epoch[e->placing.second].layout;
    if (cot_rebalance_spare_bytes(r, layout, NULL) > r->spare_bytes)
        return cot_rebalance_plan_emptying(plan, r, layout, seen, now, error);
    return cot_rebalance_plan_open(plan, r, layout, seen, now, error);
}

/* Its moves begin, if there are any, and it counts as made. */
static cot_status make_cycle(cot_engine *e, cot_rebalance_plan *plan, cot_rebalance_clock now, uint64_t *id,
                             cot_error *error)
{
    cot_rebalancing *r = &e->rebalancing;
    const int64_t changes = plan->copies + plan->drops;
    const cot_status status = changes ? cot_moving_begin(e, &plan->to, "the plan", NULL, id, error) : COT_OK;
    if (status != COT_OK) // experts stay, and need not cool down
        memset(plan->changes, 0, (size_t)plan->layers * (size_t)plan->experts * sizeof *plan->changes);
    cot_rebalance_adopt(&r->controller, plan, now);
    r->steps = e->loop.steps;
    r->tokens = tokens_fed(e);
    if (status == COT_OK && changes) {
        e->moving.bounded = true;
        cot_saving_begin(&r->saving, plan->saving_ns);
    }
    pthread_mutex_lock(&e->placing.mutex);
    cot_engine_rebalancing *told = &r->told;
    ++*(status != COT_OK ? &told->refused : changes ? &told->moved : &told->stayed);
    memset(told->last, 0, sizeof told->last);
    for (int32_t l = 0; l < plan->layers; l++) told->last[plan->layer[l].reason]++;
    for (int i = 0; i < COT_ENGINE_REASONS; i++) told->layers[i] += told->last[i];
    if (status == COT_OK) {
        told->copies += plan->copies;
        told->drops += plan->drops;
    }
    told->before_ns = plan->before_ns;
    told->saving_ns = status == COT_OK ? plan->saving_ns : 0;
    told->plan_ns += cot_now_ns() - now.ns;
    r->last_ns = now.ns;
    pthread_mutex_unlock(&e->placing.mutex);
    return status;
}

cot_status cot_rebalancing_go_on(cot_engine *e, cot_error *error)
{
    cot_rebalancing *r = &e->rebalancing;
    if (r->mode == COT_REBALANCE_OFF || e->moving.under_way) return COT_OK;
    cot_status status = cot_budgeting_go_on(e, error);
    const cot_rebalance_clock now = clock_of(e);
    if (status != COT_OK || !cot_rebalance_due(&r->controller, now)) return status;
    cot_rebalance_plan plan = {0};
    uint64_t id;
    status = learn_costs(e, error);
    look_for_change(e);
    const cot_rebalance_seen seen = seen_by(e);
    if (status == COT_OK && e->budgeting.moves) status = cot_budgeting_look(e, &seen, now, error);
    if (status == COT_OK) status = plan_cycle(&plan, e, &seen, now, error);
    if (status == COT_OK)
        make_cycle(e, &plan, now, &id, NULL); // what cannot begin is told as refused
    else {                                    // memory has run out: another time
        r->controller.last = now;
        pthread_mutex_lock(&e->placing.mutex);
        r->told.refused++;
        pthread_mutex_unlock(&e->placing.mutex);
    }
    cot_rebalance_plan_close(&plan);
    return status == COT_PEER_FAILED || status == COT_TIMED_OUT ? status : COT_OK;
}

void cot_rebalancing_see(cot_engine *e, const cot_step *step, int64_t ns)
{
    cot_rebalancing *r = &e->rebalancing;
    double realised_ns;
    if (r->mode == COT_REBALANCE_OFF) return;
    if (!e->moving.under_way) cot_saving_end(&r->saving);
    const cot_cost_step held = cot_loop_cost_step(step);
    if (!cot_saving_add(&realised_ns, &r->saving, &held, (double)ns, e->loop.scheduler.cost.weight)) return;
    pthread_mutex_lock(&e->placing.mutex);
    r->told.compared++;
    r->told.realised_ns = realised_ns;
    r->told.foreseen_ns = r->saving.foreseen_ns;
    pthread_mutex_unlock(&e->placing.mutex);
}

void cot_rebalancing_give_up(cot_engine *e)
{
    pthread_mutex_lock(&e->placing.mutex);
    e->rebalancing.told.given_up++;
    pthread_mutex_unlock(&e->placing.mutex);
}

/* ---- what is told ---- */

static bool rank_has(const cot_expert_replicas *r, int32_t expert, int32_t rank)
{
    for (int32_t i = r->begin[expert]; i < r->begin[expert + 1]; i++)
        if (r->rank[i] == rank) return true;
    return false;
}

static bool map_has(const cot_expert_map *map, int32_t l, int32_t rank, int32_t expert)
{
    const int32_t *slot =
        map->expert + ((size_t)l * (size_t)map->n_ranks + (size_t)rank) * (size_t)map->slots_per_rank;
    for (int32_t s = 0; s < map->slots_per_rank; s++)
        if (slot[s] == expert) return true;
    return false;
}

static void list_changes(struct cot_engine_cycle_change *change, const cot_rebalance_plan *plan,
                         const cot_expert_layout *now)
{
    for (int32_t l = 0; l < plan->layers; l++) {
        const cot_expert_replicas replicas = cot_expert_layout_layer(now, l);
        for (int32_t e = 0; e < plan->experts; e++)
            for (int32_t rank = 0; plan->changes[l * plan->experts + e] && rank < now->n_ranks; rank++) {
                const bool comes = map_has(&plan->to, l, rank, e);
                if (comes != rank_has(&replicas, e, rank))
                    *change++ = (struct cot_engine_cycle_change){now->layers[l], e, rank, comes};
            }
    }
}

static cot_status tell_cycle(cot_engine_cycle *cycle, const cot_rebalance_plan *plan,
                             const cot_expert_layout *now, cot_error *error)
{
    *cycle =
        (cot_engine_cycle){.copies = plan->copies,
                           .drops = plan->drops,
                           .before_ns = plan->before_ns,
                           .saving_ns = plan->saving_ns,
                           .n_layers = plan->layers,
                           .layer = calloc((size_t)plan->layers, sizeof *cycle->layer),
                           .change = calloc((size_t)(plan->copies + plan->drops) + 1, sizeof *cycle->change)};
    if (!cycle->layer || !cycle->change)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory to rebalance");
    for (int32_t l = 0; l < plan->layers; l++)
        cycle->layer[l] =
            (struct cot_engine_cycle_layer){now->layers[l], (int)plan->layer[l].reason, plan->layer[l].moves,
                                            plan->layer[l].before_ns, plan->layer[l].after_ns};
    list_changes(cycle->change, plan, now);
    return COT_OK;
}

void cot_engine_cycle_free(cot_engine_cycle *cycle)
{
    free(cycle->layer);
    free(cycle->change);
    *cycle = (cot_engine_cycle){0};
}

cot_status cot_engine_rebalance(cot_engine_cycle *cycle, cot_engine *e, bool dry, cot_error *error)
{
    cot_status status = cot_loop_outside(&e->loop, error);
    *cycle = (cot_engine_cycle){0};
    if (status != COT_OK) return status;
    if (!e->config->moe_layers) return cot_fail(error, COT_NOT_FOUND, "the model has no experts");
    if (e->rebalancing.mode == COT_REBALANCE_OFF)
        return cot_fail(error, COT_UNSUPPORTED, "rebalancing is off (--rebalance load or joint turns it on)");
    if (e->moving.under_way)
        return cot_fail(error, COT_INVALID_ARGUMENT, "experts are moving (%llu): cancel that first",
                        (unsigned long long)e->moving.told.id);
    const cot_rebalance_clock now = clock_of(e);
    cot_rebalance_plan plan = {0};
    status = learn_costs(e, error);
    if (!dry) look_for_change(e);
    const cot_rebalance_seen seen = seen_by(e);
    if (status == COT_OK) status = plan_cycle(&plan, e, &seen, now, error);
    if (status == COT_OK)
        status = tell_cycle(cycle, &plan, &e->placing.epoch[e->placing.second].layout, error);
    if (status == COT_OK && !dry) status = make_cycle(e, &plan, now, &cycle->id, error);
    cot_rebalance_plan_close(&plan);
    if (status != COT_OK) cot_engine_cycle_free(cycle);
    return status;
}

void cot_engine_get_rebalancing(cot_engine *e, cot_engine_rebalancing *rebalancing)
{
    pthread_mutex_lock(&e->placing.mutex);
    *rebalancing = e->rebalancing.told;
    rebalancing->budget = e->budgeting.told;
    rebalancing->since_ns = cot_now_ns() - e->rebalancing.last_ns;
    pthread_mutex_unlock(&e->placing.mutex);
}
