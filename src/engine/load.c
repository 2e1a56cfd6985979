/* How much there is to do, and where a request had best be. */
#include "engine/engine_state.h"

void cot_engine_get_load(const cot_engine *e, cot_engine_load *load)
{
    const cot_scheduler *s = &e->scheduler;
    *load = (cot_engine_load){.waiting = s->waiting_count,
                              .running = s->active_count,
                              .kv_pages = s->pool.pages,
                              .kv_pages_free = s->pool.free_pages + s->pool.idle_pages,
                              .cached_blocks = s->prefix.nodes,
                              .queried_tokens = s->queried_tokens,
                              .hit_tokens = s->hit_tokens,
                              .preemptions = s->preemptions,
                              .evicted_blocks = s->prefix.evicted,
                              .tbt_ns = s->limits.target_ns,
                              .predicted_ns = s->cost.predicted_ns,
                              .observed_ns = s->cost.observed_ns,
                              .prediction_error = s->cost.error};
}

int cot_engine_choose_home(const cot_engine *e, const cot_request *request)
{
    const cot_scheduler *s = &e->scheduler;
    int64_t tokens[COT_MAX_RANKS] = {0}, most = 0;
    for (int64_t i = 0; i < s->active_count; i++) tokens[s->active[i]->home] += s->active[i]->known;
    for (const cot_request_state *r = s->waiting; r; r = r->next) tokens[r->home] += r->known;
    int best = 0;
    for (int home = 0; home < e->info.ranks; home++) {
        const cot_prefix_root root = {
            .home = home, .salt = request->cache_salt, .salt_bytes = request->cache_salt_bytes};
        int64_t blocks = 0; // the same everywhere where every rank has a part of each page
        if (s->limits.homes > 1 && !request->all_logits)
            cot_prefix_match(&s->prefix, &root, request->prompt, request->prompt_tokens - 1, &blocks);
        if (blocks > most || (blocks == most && tokens[home] < tokens[best])) best = home;
        most = blocks > most ? blocks : most;
    }
    return best;
}
