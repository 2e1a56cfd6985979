/* What an engine is asked about requests: its loop answers. */
#include "engine/engine_state.h"

cot_status cot_engine_submit(cot_engine *e, uint64_t *id, const cot_request *request, int home,
                             const cot_events *events, cot_error *error)
{
    return cot_loop_submit(&e->loop, id, request, home, events, error);
}

cot_status cot_engine_cancel(cot_engine *e, uint64_t id, cot_error *error)
{
    return cot_loop_cancel(&e->loop, id, error);
}

cot_status cot_engine_step(cot_engine *e, size_t *left, cot_error *error)
{
    return cot_loop_step(&e->loop, left, error);
}

cot_status cot_engine_run(cot_engine *e, const cot_request *requests, size_t count, const cot_events *events,
                          size_t *failed, cot_error *error)
{
    return cot_loop_run(&e->loop, requests, count, events, failed, error);
}

void cot_engine_get_load(const cot_engine *e, cot_engine_load *load)
{
    cot_scheduler_get_load(&e->loop.scheduler, load);
    load->steps = e->loop.steps;
}

size_t cot_engine_sequences(const cot_engine *e, cot_engine_sequence *sequences, size_t room)
{
    return cot_scheduler_sequences(&e->loop.scheduler, sequences, room);
}

int cot_engine_choose_home(const cot_engine *e, const cot_request *request)
{
    return cot_scheduler_choose_home(&e->loop.scheduler, request, e->info.ranks);
}

void cot_engine_watch_steps(cot_engine *e, const cot_step_events *events)
{
    e->loop.watch = events ? *events : (cot_step_events){0};
}

void cot_engine_watch_cache(cot_engine *e, const cot_cache_events *events)
{
    e->loop.scheduler.prefix.watch = events ? *events : (cot_cache_events){0};
}

cot_status cot_engine_list_cache(const cot_engine *e, const cot_cache_events *events, cot_error *error)
{
    return cot_prefix_list(&e->loop.scheduler.prefix, events, error);
}
