/* How much there is to do, of what, and where a request had best be. */
#include "base/integers.h"
#include "schedule/scheduler.h"

#include <string.h>

void cot_scheduler_get_load(const cot_scheduler *s, cot_engine_load *load)
{
    *load = (cot_engine_load){.waiting = s->waiting_count,
                              .running = s->active_count,
                              .kv_pages = s->pool.pages,
                              .kv_pages_free = s->pool.free_pages + s->pool.idle_pages,
                              .cached_blocks = s->prefix.nodes,
                              .queried_tokens = s->queried_tokens,
                              .hit_tokens = s->hit_tokens,
                              .preemptions = s->preemptions,
                              .evicted_blocks = s->prefix.evicted,
                              .waited_steps = s->waited_steps,
                              .tbt_ns = s->limits.target_ns,
                              .predicted_ns = s->cost.predicted_ns,
                              .observed_ns = s->cost.observed_ns,
                              .prediction_error = s->cost.error};
}

void cot_scheduler_get_homes(const cot_scheduler *s, cot_home_load *homes)
{
    const int count = s->limits.homes;
    for (int h = 0; h < count; h++)
        homes[h] = (cot_home_load){.free_pages = s->pool.free[h].count + s->pool.idle_at[h]};
    for (int64_t i = 0; i < s->active_count; i++) homes[s->active[i]->home % count].running++;
    for (const cot_request_state *r = s->waiting; r; r = r->next) {
        homes[r->home % count].waiting++;
        homes[r->home % count].waiting_prompt_tokens += r->prompt_tokens;
    }
}

/* How many pages two sequences begin with together. */
static int64_t pages_in_common(const cot_request_state *a, const cot_request_state *b)
{
    const int64_t most = cot_smaller(a->pages_held, b->pages_held);
    int64_t n = 0;
    while (n < most && a->pages[n] == b->pages[n]) n++;
    return n;
}

static cot_engine_sequence sequence_of(const cot_request_state *r, bool waiting)
{
    return (cot_engine_sequence){.id = r->id,
                                 .home = r->home,
                                 .waiting = waiting,
                                 .prompt_tokens = r->prompt_tokens,
                                 .tokens = r->known,
                                 .fed = r->fed,
                                 .pages = r->pages_held};
}

size_t cot_scheduler_sequences(const cot_scheduler *s, cot_engine_sequence *sequences, size_t room)
{
    size_t n = 0;
    for (int64_t i = 0; i < s->active_count && n < room; i++) {
        cot_engine_sequence *out = &sequences[n++];
        *out = sequence_of(s->active[i], false);
        for (int64_t j = 0; j < s->active_count; j++) {
            const int64_t common = j == i ? 0 : pages_in_common(s->active[i], s->active[j]);
            if (common <= out->shared_pages) continue;
            out->shared_pages = common;
            out->shared_with = s->active[j]->id;
        }
    }
    for (const cot_request_state *r = s->waiting; r && n < room; r = r->next)
        sequences[n++] = sequence_of(r, true);
    return (size_t)(s->active_count + s->waiting_count);
}

/* Blocks that the request will find where the one that it waits for is fed. */
static int64_t blocks_to_come(const cot_scheduler *s, const cot_request_state *first,
                              const cot_request *request)
{
    const size_t salt_bytes = first->salt ? first->salt->bytes : 0;
    const int64_t most = cot_smaller(first->prompt_tokens, request->prompt_tokens - 1);
    int64_t common = 0;
    if (!s->limits.block || request->all_logits || first->all_logits ||
        salt_bytes != request->cache_salt_bytes ||
        (salt_bytes && memcmp(first->salt->data, request->cache_salt, salt_bytes) != 0))
        return 0;
    while (common < most && first->tokens[common] == request->prompt[common]) common++;
    return common / s->limits.block;
}

int cot_scheduler_choose_home(const cot_scheduler *s, const cot_request *request, int homes)
{
    int64_t tokens[COT_PAGE_POOL_HOMES] = {0}, most = 0;
    for (int64_t i = 0; i < s->active_count; i++) tokens[s->active[i]->home] += s->active[i]->known;
    for (const cot_request_state *r = s->waiting; r; r = r->next) tokens[r->home] += r->known;
    const cot_request_state *first = request->after ? cot_scheduler_find(s, request->after) : NULL;
    int best = 0;
    for (int home = 0; home < homes; home++) {
        const cot_prefix_root root = {
            .home = home, .salt = request->cache_salt, .salt_bytes = request->cache_salt_bytes};
        int64_t blocks = 0; // the same everywhere where every rank has a part of each page
        if (s->limits.homes > 1 && !request->all_logits)
            cot_prefix_match(&s->prefix, &root, request->prompt, request->prompt_tokens - 1, &blocks);
        if (first && first->home == home) blocks = cot_larger(blocks, blocks_to_come(s, first, request));
        if (blocks > most || (blocks == most && tokens[home] < tokens[best])) best = home;
        most = blocks > most ? blocks : most;
    }
    return best;
}
