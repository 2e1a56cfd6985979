/* Experts that move, of the worker that is an engine: asked for on the loop's thread, begun and followed on the engine's. */
#include "worker/engine_backend.h"

#include "base/error.h"

/* ---- on the engine's thread ---- */

/* Moves of that number have begun. By the lock. */
static void begin_moves(cot_worker_moves *m, uint64_t id)
{
    cot_worker_moves_add(&m->before, cot_worker_moves_last(m));
    m->last = id;
    cot_worker_moves_of(cot_worker_moves_last(m), &(cot_engine_moves){.id = id});
}

/* What has come of it, the caller's; NULL: an error, or memory ran out. */
static json_t *make_cycle(cot_engine *engine, bool dry, uint64_t *id, cot_error *error)
{
    cot_engine_cycle cycle;
    cot_engine_rebalancing now;
    if (cot_engine_rebalance(&cycle, engine, dry, error) != COT_OK) return NULL;
    cot_engine_get_rebalancing(engine, &now);
    json_t *told = cot_worker_cycle_json(&cycle, dry, now.mode);
    *id = cycle.id;
    cot_engine_cycle_free(&cycle);
    return told;
}

void cot_worker_order_moves(cot_worker_engine *b)
{
    cot_worker_moves *m = &b->moves;
    cot_error error = {0};
    uint64_t id = 0;
    json_t *told = NULL;
    pthread_mutex_lock(&b->lock);
    const bool asked = m->asked && !m->answered, cycle = m->cycle, dry = m->dry;
    const uint64_t cancelled = m->cancelled;
    m->cancelled = 0;
    pthread_mutex_unlock(&b->lock);
    if (cancelled && !b->state.failed)
        cot_engine_cancel_moves(b->engine, cancelled, NULL); // or they are over
    if (!asked) return;
    if (b->state.failed)
        error = b->state.error;
    else if (cycle)
        told = make_cycle(b->engine, dry, &id, &error);
    else
        cot_engine_move_experts(b->engine, &m->to, "the placement", NULL, &id, &error);
    if (id) m->go_on = m->advanced = true; // else others go on that are under way
    cot_expert_map_free(&m->to);
    pthread_mutex_lock(&b->lock);
    m->answered = true;
    m->told = told;
    m->answer = error;
    m->id = id;
    if (id) begin_moves(m, id);
    pthread_mutex_unlock(&b->lock);
    cot_wake_up(&b->news);
}

void cot_worker_follow_moves(cot_worker_engine *b)
{
    cot_worker_moves *m = &b->moves;
    cot_engine_moves now;
    cot_engine_get_moves(b->engine, &now);
    if (now.id != m->last) {
        pthread_mutex_lock(&b->lock);
        begin_moves(m, now.id);
        pthread_mutex_unlock(&b->lock);
        m->go_on = true;
    }
    if (!m->go_on) return;
    m->go_on = !now.over && !b->state.failed;
    cot_backend_moves *last = cot_worker_moves_last(m);
    m->advanced = now.chunks != last->chunks || now.epochs != last->epochs;
    if (m->advanced) b->gathered_steps = -1; // there are bytes that no step has sent
    pthread_mutex_lock(&b->lock);
    cot_worker_moves_of(last, &now);
    pthread_mutex_unlock(&b->lock);
}

/* ---- on the loop's thread ---- */

void cot_worker_tell_moves(cot_worker_engine *b)
{
    cot_worker_moves *m = &b->moves;
    pthread_mutex_lock(&b->lock);
    const bool answered = m->answered;
    const uint64_t id = m->id;
    const cot_error answer = m->answer;
    json_t *told = m->told;
    const bool cycle = m->cycle;
    if (answered) {
        m->asked = m->answered = m->cycle = false;
        m->told = NULL;
    }
    pthread_mutex_unlock(&b->lock);
    if (answered && cycle)
        b->owner.on_cycle(b->owner.context, told, answer.status == COT_OK ? NULL : &answer);
    else if (answered)
        b->owner.on_moves(b->owner.context, id, id ? NULL : &answer);
}

/* Has the engine's thread see to moves, if nobody else has just asked for some: to a map, which is taken over then, or (NULL) a cycle.
 * Errors: INVALID_ARGUMENT. */
static cot_status ask(cot_worker_engine *b, const cot_expert_map *to, bool dry, cot_error *error)
{
    cot_worker_moves *m = &b->moves;
    pthread_mutex_lock(&b->lock);
    const bool busy = m->asked;
    if (!busy) {
        m->asked = true;
        m->cycle = !to;
        m->dry = dry;
        if (to) m->to = *to;
        pthread_cond_signal(&b->changed);
    }
    pthread_mutex_unlock(&b->lock);
    return busy ? cot_fail(error, COT_INVALID_ARGUMENT, "moves of experts are about to begin") : COT_OK;
}

cot_status cot_worker_move_experts(cot_backend *backend, const char *text, size_t bytes, cot_error *error)
{
    cot_worker_engine *b = (cot_worker_engine *)backend;
    cot_expert_map to;
    cot_status status = cot_worker_moves_read(&to, b->engine, text, bytes, error);
    if (status != COT_OK) return status;
    status = ask(b, &to, false, error);
    if (status != COT_OK) cot_expert_map_free(&to);
    return status;
}

cot_status cot_worker_rebalance(cot_backend *backend, bool dry, cot_error *error)
{
    cot_worker_engine *b = (cot_worker_engine *)backend;
    const cot_status status = cot_worker_rebalances(b->engine, error);
    return status == COT_OK ? ask(b, NULL, dry, error) : status;
}

bool cot_worker_moves_told(cot_backend *backend, cot_backend_moves *last, cot_backend_moves *all)
{
    cot_worker_engine *b = (cot_worker_engine *)backend;
    pthread_mutex_lock(&b->lock);
    const bool asked = b->moves.asked;
    *last = *cot_worker_moves_last(&b->moves);
    *all = b->moves.before;
    pthread_mutex_unlock(&b->lock);
    cot_worker_moves_add(all, last);
    return asked || (last->id && !last->over);
}

bool cot_worker_find_moves(cot_backend *backend, uint64_t id, cot_backend_moves *found)
{
    cot_worker_engine *b = (cot_worker_engine *)backend;
    pthread_mutex_lock(&b->lock);
    *found = b->moves.kept[id % COT_BACKEND_MOVES];
    pthread_mutex_unlock(&b->lock);
    return id && found->id == id;
}

void cot_worker_cancel_moves(cot_backend *backend, uint64_t id)
{
    cot_worker_engine *b = (cot_worker_engine *)backend;
    pthread_mutex_lock(&b->lock);
    b->moves.cancelled = id;
    pthread_cond_signal(&b->changed);
    pthread_mutex_unlock(&b->lock);
}
