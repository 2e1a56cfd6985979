/* What requests that come, run and wait would gain by more pages of the KV cache, or lose by fewer (page_worth.h). */
#include "schedule/page_worth.h"
#include "schedule/scheduler.h"

#include "base/integers.h"
#include "base/rng.h"

#include <math.h>

enum { EVERY = 8 }; // steps: what runs changes little from one to the next

/* A text's blocks are others at each home. */
static uint64_t block_at(uint64_t hash, int32_t home)
{
    return hash ^ cot_mix64((uint64_t)home);
}

void cot_scheduler_weigh_text(const cot_scheduler *s, const cot_request_state *r)
{
    cot_page_worth *w = s->worth;
    const int64_t block = s->limits.block;
    if (!w || !block || r->all_logits) return;
    const int64_t count = cot_smaller((r->known - 1) / block, w->blocks);
    const int32_t home = r->home % s->limits.homes;
    const bool salted = r->salt != NULL;
    const double used = (double)(s->pool.open - s->pool.free_pages), least = (double)block / COT_KV_PAGE;
    w->block_pages = s->prefix.nodes ? fmax(used / (double)s->prefix.nodes, least) : least;
    uint64_t hash = salted ? cot_cache_salt_hash(r->salt->data, r->salt->bytes) : 0;
    for (int64_t i = 0; i < count; i++) {
        hash = s->prefix.hash(i || salted ? &hash : NULL, r->tokens + i * block, (size_t)block);
        w->line[i] = block_at(hash, home);
    }
    cot_page_worth_look_up(w, count);
}

void cot_scheduler_weigh_blocks(const cot_scheduler *s, const cot_request_state *r)
{
    for (int32_t n = s->worth ? r->node : -1; n >= 0; n = s->prefix.node[n].parent)
        cot_page_worth_use(s->worth, block_at(s->prefix.node[n].hash, s->prefix.node[n].home));
}

/* What n sequences that decode together save a step by not being one fewer: they would take a step's part longer. */
static double shared_ns(const cot_cost *cost, int64_t n, int64_t positions)
{
    if (n < 2) return 0;
    const cot_cost_step fewer = {n - 1, (n - 1) * positions, (n - 1) * positions},
                        all = {n, n * positions, n * positions};
    const double alone = cot_cost_predict(cost, &fewer) / (double)(n - 1),
                 shared = cot_cost_predict(cost, &all) / (double)n;
    return fmax(alone - shared, 0);
}

/* Those that run hold pages in the order in which they were admitted: with fewer pages the last ones would not run. */
static double weigh_active(const cot_scheduler *s, int64_t positions)
{
    const double used = (double)(s->pool.open - s->pool.free_pages - s->pool.idle_pages),
                 n = (double)s->active_count;
    double held = 0, before = 0;
    for (int64_t i = 0; i < s->active_count; i++) held += (double)s->active[i]->pages_held;
    for (int64_t i = 0; i < s->active_count && held > 0; i++) {
        before += (double)s->active[i]->pages_held;
        cot_page_worth_add(s->worth, fmax(used * before / held - 1, 0),
                           EVERY * n * shared_ns(&s->cost, i + 1, positions));
    }
    return used;
}

/* Those that wait for pages, and for nothing else, would run behind them. */
static void weigh_waiting(const cot_scheduler *s, int64_t positions, double used)
{
    int64_t n = s->active_count;
    for (const cot_request_state *r = s->waiting; r && n < s->limits.sequences; r = r->next) {
        if (r->after) continue;
        used += (double)cot_page_count(r->known);
        n++;
        if (used <= (double)s->pool.open) continue; // it will be admitted, or is kept from it by time
        cot_page_worth_add(s->worth, used - 1, EVERY * (double)n * shared_ns(&s->cost, n, positions));
    }
}

void cot_scheduler_weigh_step(cot_scheduler *s)
{
    int64_t positions = 0;
    if (!s->worth || s->plans++ % EVERY || !s->active_count) return;
    const double tokens = (double)s->limits.step_tokens;
    const cot_cost_step prompts = {s->limits.step_tokens, s->limits.step_tokens,
                                   s->limits.step_tokens * (s->limits.step_tokens + 1) / 2};
    s->worth->token_ns = cot_cost_predict(&s->cost, &prompts) / tokens;
    for (int64_t i = 0; i < s->active_count; i++) positions += s->active[i]->known;
    positions /= s->active_count;
    weigh_waiting(s, positions, weigh_active(s, positions));
}
