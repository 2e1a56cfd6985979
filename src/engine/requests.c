/* What an engine is asked about requests: its loop answers. */
#include "engine/engine_state.h"

#include <string.h>

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
    memcpy(load->steps_of, e->loop.steps_of, sizeof load->steps_of);
    load->step_tokens = (uint64_t)(e->loop.prefill_tokens + e->loop.decode_tokens);
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

void cot_engine_watch_profiles(cot_engine *e, const cot_profile_events *events)
{
    e->loop.profiles.watch = events ? *events : (cot_profile_events){0};
}

void cot_engine_describe_popularity(cot_engine_popularity_info *info, const cot_engine *e)
{
    const cot_profiles *p = &e->loop.profiles;
    const cot_popularity_options *o = &p->popularity.options;
    *info = (cot_engine_popularity_info){.n_layers = o->n_layers,
                                         .n_experts = o->n_experts,
                                         .top_k = o->top_k,
                                         .n_homes = o->n_homes,
                                         .half_life_tokens = o->half_life_tokens * p->options.every,
                                         .half_life_seconds = o->half_life_seconds,
                                         .every = p->options.every,
                                         .cells = p->shape.cells,
                                         .layers_every = p->shape.every};
}

double cot_engine_popularity(double *counts, const cot_engine *e, int home)
{
    const int32_t of = home == COT_HOME_ANY ? COT_POPULARITY_ALL : home;
    cot_popularity_counts(counts, &e->loop.profiles.popularity, of);
    return cot_popularity_tokens(&e->loop.profiles.popularity, of);
}

int64_t cot_engine_popular_tokens(const uint16_t **experts, const int16_t **homes, const cot_engine *e)
{
    const cot_popularity *p = &e->loop.profiles.popularity;
    *experts = p->held_experts;
    *homes = p->held_home;
    return p->held;
}

void cot_engine_watch_cache(cot_engine *e, const cot_cache_events *events)
{
    e->loop.scheduler.prefix.watch = events ? *events : (cot_cache_events){0};
}

cot_status cot_engine_list_cache(const cot_engine *e, const cot_cache_events *events, cot_error *error)
{
    return cot_prefix_list(&e->loop.scheduler.prefix, events, error);
}
