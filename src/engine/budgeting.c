/* Memory that pages of the KV cache and replicas of experts share: what either is worth is weighed in each cycle of rebalancing, and the split
 * moves while the engine serves.
 *
 * What is open is never more than the budget: pages close before slots that get their room are filled, and open when replicas that made
 * room are gone and their places empty. */
#include "base/error.h"
#include "base/integers.h"
#include "engine/engine_state.h"

#include <stdlib.h>
#include <string.h>

enum { HALF_LIFE = 4 }; // looks after which what was weighed counts half

_Static_assert((int)COT_ENGINE_BUDGET_REASONS == (int)COT_BUDGET_REASONS,
               "reasons are told as they are found");

const char *const *cot_engine_budget_reasons(void)
{
    return cot_budget_reason_names;
}

static const cot_expert_layout *layout_of(const cot_engine *e)
{
    return &e->placing.epoch[e->placing.second].layout;
}

static double bin_bytes(const cot_budgeting *b)
{
    return (double)b->bytes / COT_BUDGET_BINS;
}

/* Bytes that open pages leave for slots. */
static int64_t left_by(const cot_budgeting *b, int64_t pages)
{
    return (int64_t)b->bytes - pages * (int64_t)b->page_bytes;
}

static void tell(cot_engine *e)
{
    const cot_budgeting *b = &e->budgeting;
    const cot_rebalance *controller = &e->rebalancing.controller;
    cot_engine_budget told = {.bytes = (int64_t)(b->bytes + b->states_bytes),
                              .states_bytes = (int64_t)b->states_bytes,
                              .pages_bytes = e->loop.scheduler.pool.open * (int64_t)b->page_bytes,
                              .slots_bytes = controller->spare_bytes,
                              .replicas_bytes = cot_rebalance_spare_bytes(controller, layout_of(e), NULL),
                              .turns = b->split.turns,
                              .last = b->split.looks ? (int)b->split.reason : -1,
                              .gain_ns = b->split.gain_ns};
    memcpy(told.looks, b->split.by_reason, sizeof told.looks);
    pthread_mutex_lock(&e->placing.mutex);
    e->budgeting.told = told;
    pthread_mutex_unlock(&e->placing.mutex);
}

cot_status cot_budgeting_open(cot_engine *e, cot_error *error)
{
    cot_budgeting *b = &e->budgeting;
    const size_t layers = (size_t)e->config->moe_layers, ranks = (size_t)e->info.ranks;
    if (!b->moves) return COT_OK;
    b->pages = e->runner.pages;
    b->least = cot_page_count(e->runner.context_tokens);
    const double least = (double)b->least * (double)b->page_bytes / bin_bytes(b);
    b->split = (cot_budget){.least = (int)cot_smaller((int64_t)least + 1, COT_BUDGET_BINS),
                            .pages = COT_BUDGET_BINS};
    b->moved = calloc(2 * (size_t)b->pages, sizeof *b->moved);
    b->own = calloc(layers * ranks, sizeof *b->own);
    const cot_status status = cot_page_worth_open(&b->worth, b->pages, e->block_tokens, error);
    if (status != COT_OK) return status;
    if (!b->moved || !b->own) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a table of pages");
    e->loop.scheduler.worth = &b->worth;
    cot_rebalance_allow(&e->rebalancing.controller, left_by(b, b->pages));
    tell(e);
    return COT_OK;
}

void cot_budgeting_close(cot_budgeting *b)
{
    cot_page_worth_close(&b->worth);
    free(b->moved);
    free(b->own);
    b->moved = b->own = NULL;
}

/* ---- moves of experts ---- */

cot_status cot_budgeting_check_moves(cot_engine *e, const cot_expert_layout *from,
                                     const cot_expert_layout *to, cot_error *error)
{
    const cot_rebalance *r = &e->rebalancing.controller;
    const int64_t need = cot_rebalance_spare_bytes(r, from, to),
                  open = left_by(&e->budgeting, e->loop.scheduler.pool.open);
    if (need > open &&
        need > cot_rebalance_spare_bytes(r, from, NULL)) // moves that were cut off may have left more
        return cot_fail(
            error, COT_INVALID_ARGUMENT,
            "moves fill %lld bytes of spare slots, KV pages leave %lld of the %zu that they share",
            (long long)need, (long long)open, e->budgeting.bytes);
    const cot_expert_layout *const both[] = {from, to};
    int32_t *own = e->budgeting.own;
    for (int32_t i = 0; i < from->n_layers * from->n_ranks; i++) own[i] = r->o.base;
    for (int32_t l = 0; l < from->n_layers; l++)
        for (int k = 0; k < 2; k++) {
            const cot_expert_replicas replicas = cot_expert_layout_layer(both[k], l);
            int32_t used[COT_MAX_RANKS] = {0};
            for (int32_t i = 0; i < replicas.begin[from->n_experts]; i++) {
                int32_t *most = &own[l * from->n_ranks + replicas.rank[i]];
                if (++used[replicas.rank[i]] > *most) *most = used[replicas.rank[i]];
            }
        }
    return COT_OK;
}

/* ---- pages ---- */

/* So many pages are open from now on, or as few more as sequences have; and places that no expert has are empty. */
static cot_status resize(cot_engine *e, int64_t pages, cot_error *error)
{
    cot_scheduler *s = &e->loop.scheduler;
    const int64_t moves = cot_scheduler_resize(s, pages, e->budgeting.moved);
    e->budgeting.has_moved = false;
    const cot_status status =
        cot_engine_group_resize(e->group, e->budgeting.moved, moves, s->pool.open, error);
    tell(e);
    return status;
}

cot_status cot_budgeting_go_on(cot_engine *e, cot_error *error)
{
    cot_budgeting *b = &e->budgeting;
    const int64_t open = e->loop.scheduler.pool.open;
    if (!b->moves || (b->pages <= open && !b->has_moved)) return COT_OK;
    const int64_t replicas = cot_rebalance_spare_bytes(&e->rebalancing.controller, layout_of(e), NULL),
                  room = ((int64_t)b->bytes - replicas) / (int64_t)b->page_bytes,
                  pages = cot_larger(cot_smaller(b->pages, room), open);
    return pages > open || b->has_moved ? resize(e, pages, error) : COT_OK;
}

/* ---- looks ---- */

static int64_t time_of_steps(const cot_engine *e)
{
    return e->loop.prefill_ns + e->loop.decode_ns;
}

cot_status cot_budgeting_look(cot_engine *e, const cot_rebalance_seen *seen, cot_rebalance_clock now,
                              cot_error *error)
{
    cot_budgeting *b = &e->budgeting;
    cot_rebalance *controller = &e->rebalancing.controller;
    double pages_ns[COT_BUDGET_BINS + 1], slots_ns[COT_BUDGET_BINS + 1];
    const double steps = (double)(e->loop.steps - b->steps), ns = (double)(time_of_steps(e) - b->ns);
    if (steps <= 0) return COT_OK;
    b->steps = e->loop.steps;
    b->ns = time_of_steps(e);
    cot_page_worth_elapse(&b->worth, steps, HALF_LIFE * steps);
    cot_page_worth_of(&b->worth, pages_ns);
    cot_status status = cot_rebalance_worth(slots_ns, COT_BUDGET_BINS, bin_bytes(b), controller, layout_of(e),
                                            seen, now, error);
    if (status != COT_OK) return status;
    cot_budget_look(&b->split, pages_ns, slots_ns, ns / steps);
    const bool all = b->split.pages == COT_BUDGET_BINS;
    const int64_t pages = (int64_t)(b->split.pages * bin_bytes(b) / (double)b->page_bytes);
    b->pages = all ? e->runner.pages : cot_larger(pages, b->least);
    if (b->pages < e->loop.scheduler.pool.open) status = resize(e, b->pages, error);
    cot_rebalance_allow(controller, left_by(b, cot_larger(b->pages, e->loop.scheduler.pool.open)));
    tell(e);
    return status;
}
