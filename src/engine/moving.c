/* Experts that move while an engine serves: the protocol's commands (migrate.h) are given to the group, between steps. */
#include "base/clock.h"
#include "base/error.h"
#include "engine/engine_state.h"
#include "engine/tables.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { TRIES = 3 }; // of a chunk

void cot_engine_moves_options_init(cot_engine_moves_options *options)
{
    *options = (cot_engine_moves_options){.share = 0.02};
}

/* ---- what is told ---- */

/* Copies that have begun and are not whole. */
static int list_copies(cot_engine_copying *copy, const cot_engine *e)
{
    const cot_migrate *m = &e->moving.migrate;
    int n = 0;
    for (int64_t i = 0; i < m->moves && n < COT_ENGINE_COPIES; i++) {
        const cot_runner_chunk *c = &m->move[i].chunk;
        if (m->move[i].state == COT_MIGRATE_COPYING)
            copy[n++] = (cot_engine_copying){.layer = e->layout.layers[c->layer],
                                             .expert = c->expert,
                                             .from = c->from,
                                             .to = c->to,
                                             .bytes = c->begin,
                                             .of_bytes = m->o.slot_bytes[c->layer]};
    }
    return n;
}

static void tell(cot_engine *e, int64_t copy_ns, int64_t place_ns, bool over)
{
    cot_moving *moving = &e->moving;
    const cot_migrate *m = &moving->migrate;
    cot_engine_moves *told = &moving->told;
    pthread_mutex_lock(&e->placing.mutex);
    *told = (cot_engine_moves){.id = told->id,
                               .over = over,
                               .copies = m->copies,
                               .copied = m->copied,
                               .drops = m->drops,
                               .dropped = m->dropped,
                               .bytes = m->bytes,
                               .chunks = m->chunks,
                               .epochs = m->epochs,
                               .copy_ns = told->copy_ns + copy_ns,
                               .place_ns = told->place_ns + place_ns};
    if (!over) told->copying = list_copies(told->copy, e);
    memcpy(told->given_up, m->gone, sizeof told->given_up);
    pthread_mutex_unlock(&e->placing.mutex);
    if (!over) return;
    cot_migrate_close(&moving->migrate);
    moving->under_way = false;
}

void cot_engine_get_moves(cot_engine *e, cot_engine_moves *moves)
{
    pthread_mutex_lock(&e->placing.mutex);
    *moves = e->moving.told;
    pthread_mutex_unlock(&e->placing.mutex);
}

cot_status cot_moving_explain(const cot_engine *e, cot_status status, cot_error *error)
{
    const cot_migrate_move *move =
        e->moving.under_way && status != COT_OK ? cot_migrate_at_work(&e->moving.migrate) : NULL;
    if (!move || !error) return status;
    const size_t used = strlen(error->message);
    snprintf(error->message + used, sizeof error->message - used,
             "; expert %d of layer %d was being copied from rank %d to rank %d", (int)move->chunk.expert,
             (int)e->layout.layers[move->chunk.layer], (int)move->chunk.from, (int)move->chunk.to);
    return status;
}

/* ---- the way ---- */

static cot_status check_options(const cot_engine_moves_options *o, cot_error *error)
{
    if (!(o->share > 0 && o->share <= 1))
        return cot_fail(error, COT_INVALID_ARGUMENT, "a share of %g of a step for moves is not in (0, 1]",
                        o->share);
    if (!(o->bytes_per_s >= 0 && isfinite(o->bytes_per_s)))
        return cot_fail(error, COT_INVALID_ARGUMENT, "%g bytes a second for moves, expected 0 or more",
                        o->bytes_per_s);
    return COT_OK;
}

static bool is_among(const int32_t *slot, int32_t n, int32_t expert)
{
    for (int32_t i = 0; i < n; i++)
        if (slot[i] == expert) return true;
    return false;
}

/* The same placement with each rank's experts in its first slots, each once. */
static cot_status close_up(cot_expert_map *out, const cot_expert_map *map, cot_error *error)
{
    const int32_t slots = map->slots_per_rank;
    const size_t rows = (size_t)map->n_layers * (size_t)map->n_ranks;
    const cot_status status =
        cot_expert_map_new(out, map->n_layers, map->n_experts, map->n_ranks, slots, error);
    if (status != COT_OK) return status;
    memcpy(out->layers, map->layers, (size_t)map->n_layers * sizeof *map->layers);
    memcpy(out->dense, map->dense, (size_t)map->n_layers * sizeof *map->dense);
    for (size_t row = 0; row < rows; row++) {
        const int32_t *from = map->expert + row * (size_t)slots;
        int32_t *to = out->expert + row * (size_t)slots, n = 0;
        for (int32_t s = 0; s < slots; s++)
            if (from[s] >= 0 && !is_among(to, n, from[s])) to[n++] = from[s];
    }
    return COT_OK;
}

/* Where the placement has experts, as a layout of this engine, which leaves the slot free that copies come into. */
static cot_status target_of(cot_expert_layout *target, const cot_engine *e, const cot_expert_map *to,
                            const char *name, cot_error *error)
{
    const cot_expert_layout *now = &e->placing.epoch[e->placing.second].layout;
    const cot_expert_layout_shape shape = {now->n_layers, now->n_experts, now->n_ranks, now->layers,
                                           e->info.expert_slots};
    const cot_engine_known known = {"the model", e->info.model_hash};
    cot_expert_map closed = {0};
    cot_status status = cot_engine_placement_check(to, name, &known, error);
    if (status == COT_OK) status = close_up(&closed, to, error);
    if (status == COT_OK) status = cot_expert_layout_of_map(target, &shape, &closed, name, error);
    target->slots_per_rank = now->slots_per_rank;
    if (status == COT_OK) status = cot_placing_check(e, target, error);
    cot_expert_map_free(&closed);
    return status;
}

cot_status cot_engine_move_experts(cot_engine *e, const cot_expert_map *to, const char *name,
                                   const cot_engine_moves_options *options, uint64_t *id, cot_error *error)
{
    cot_status status = cot_loop_outside(&e->loop, error);
    if (status == COT_OK) status = cot_moving_begin(e, to, name, options, id, error);
    if (status == COT_OK) cot_saving_forget(&e->rebalancing.saving);
    return status;
}

cot_status cot_moving_begin(cot_engine *e, const cot_expert_map *to, const char *name,
                            const cot_engine_moves_options *options, uint64_t *id, cot_error *error)
{
    cot_moving *moving = &e->moving;
    cot_expert_layout target = {0};
    if (!options) options = &moving->usual;
    cot_status status = check_options(options, error);
    if (status != COT_OK) return status;
    if (moving->under_way)
        return cot_fail(error, COT_INVALID_ARGUMENT, "experts are moving (%llu): cancel that first",
                        (unsigned long long)moving->told.id);
    if (cot_runner_expert_layers(&e->runner) < e->config->moe_layers)
        return cot_fail(error, COT_UNSUPPORTED, "layers that share experts keep them where they are");
    status = target_of(&target, e, to, name, error);
    const cot_expert_layout *now = &e->placing.epoch[e->placing.second].layout;
    if (status == COT_OK && e->budgeting.moves) status = cot_budgeting_check_moves(e, now, &target, error);
    const cot_migrate_options protocol = {.slot_bytes = e->networks.slot_bytes,
                                          .timeout_ns = moving->timeout_ns,
                                          .tries = TRIES,
                                          .transit = moving->movable,
                                          .own = e->budgeting.moves ? e->budgeting.own : NULL,
                                          .place = e->placing.place};
    if (status == COT_OK) status = cot_migrate_open(&moving->migrate, &protocol, now, &target, error);
    cot_expert_layout_free(&target);
    if (status != COT_OK) {
        cot_migrate_close(&moving->migrate);
        return status;
    }
    moving->under_way = true;
    e->budgeting.has_moved = true;
    moving->bounded = false;
    moving->began_ns = cot_now_ns();
    moving->all_bytes = 0;
    for (int64_t i = 0; i < moving->migrate.moves; i++)
        moving->all_bytes += e->networks.slot_bytes[moving->migrate.move[i].chunk.layer];
    moving->budget = (cot_migrate_budget){.share = options->share, .bytes_per_s = options->bytes_per_s};
    pthread_mutex_lock(&e->placing.mutex);
    moving->told = (cot_engine_moves){.id = moving->told.id + 1};
    pthread_mutex_unlock(&e->placing.mutex);
    *id = moving->told.id;
    tell(e, 0, 0, false);
    return COT_OK;
}

static bool ends_group(cot_status status)
{
    return status == COT_PEER_FAILED || status == COT_TIMED_OUT;
}

/* Errors: those that end the group; what else goes wrong is a chunk's. */
static cot_status copy(cot_engine *e, const cot_migrate_command *command, cot_error *error)
{
    cot_runner_verdict verdict[COT_MAX_RANKS / 2];
    const cot_status status = cot_engine_copy(e, command->chunk, command->chunks, verdict, error);
    if (ends_group(status)) return cot_moving_explain(e, status, error);
    for (int32_t i = 0; i < command->chunks; i++)
        cot_migrate_copied(&e->moving.migrate, command->chunk[i].move, verdict[i]);
    return COT_OK;
}

static cot_status place(cot_engine *e, const cot_migrate_command *command, cot_error *error)
{
    const cot_status status = cot_engine_place(e, command->words, command->count, error);
    if (ends_group(status)) return status;
    cot_migrate_placed(&e->moving.migrate, status == COT_OK);
    return COT_OK;
}

/* Whether moves of a cycle are not over when all their bytes should have gone, and one time-out more is. */
static bool takes_too_long(const cot_moving *moving, int64_t now_ns)
{
    return moving->bounded &&
           now_ns - moving->began_ns >
               cot_migrate_longest_ns(&moving->budget, moving->all_bytes, moving->timeout_ns);
}

cot_status cot_moving_go_on(cot_engine *e, int64_t step_ns, cot_error *error)
{
    cot_moving *moving = &e->moving;
    cot_migrate *m = &moving->migrate;
    if (!moving->under_way) return COT_OK;
    const int64_t began_ns = cot_now_ns(), bytes = cot_migrate_allow(&moving->budget, step_ns, began_ns);
    if (takes_too_long(moving, began_ns)) {
        cot_migrate_time_out(m); // between two steps nothing is under way
        tell(e, 0, 0, true);
        cot_rebalancing_give_up(e);
        return COT_OK;
    }
    cot_migrate_tick(m, began_ns);
    if (!bytes) return COT_OK;
    cot_migrate_command command;
    cot_error unused;
    cot_status status = COT_OK;
    if (cot_migrate_next(m, &command, bytes, began_ns, &unused) != COT_OK) return COT_OK; // it is given up
    if (command.kind == COT_MIGRATE_COPY) status = copy(e, &command, error);
    if (command.kind == COT_MIGRATE_PLACE) status = place(e, &command, error);
    if (status != COT_OK) return status;
    const int64_t ns = cot_now_ns() - began_ns;
    int64_t longest = 0; // of chunks that go at the same time
    for (int32_t i = 0; i < command.chunks; i++)
        longest = command.chunk[i].bytes > longest ? command.chunk[i].bytes : longest;
    if (step_ns || moving->budget.bytes_per_s > 0) cot_migrate_pay(&moving->budget, longest, ns);
    const bool copied = command.kind == COT_MIGRATE_COPY;
    tell(e, copied ? ns : 0, copied ? 0 : ns, command.kind == COT_MIGRATE_OVER);
    return COT_OK;
}

cot_status cot_engine_cancel_moves(cot_engine *e, uint64_t id, cot_error *error)
{
    cot_moving *moving = &e->moving;
    cot_status status = cot_loop_outside(&e->loop, error);
    if (status != COT_OK) return status;
    if (!moving->under_way || moving->told.id != id)
        return cot_fail(error, COT_NOT_FOUND, "there are no moves %llu, or they are over",
                        (unsigned long long)id);
    cot_migrate_cancel(&moving->migrate); // between two steps nothing is under way
    tell(e, 0, 0, true);
    return COT_OK;
}

void cot_moving_close(cot_moving *moving)
{
    if (moving->under_way) cot_migrate_close(&moving->migrate);
    moving->under_way = false;
}
