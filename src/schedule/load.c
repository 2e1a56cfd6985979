/* How much there is to do, of what, and where a request had best be. */
#include "base/integers.h"
#include "schedule/scheduler.h"

#include <string.h>

void cot_scheduler_get_load(const cot_scheduler *s, cot_engine_load *load)
{
    *load = (cot_engine_load){.waiting = s->waiting_count,
                              .running = s->active_count,
                              .kv_pages = s->pool.open,
                              .kv_pages_free = s->pool.free_pages + s->pool.idle_pages,
                              .cached_blocks = s->prefix.nodes,
                              .cached_states = s->prefix.snapshots.kept,
                              .queried_tokens = s->queried_tokens,
                              .hit_tokens = s->hit_tokens,
                              .preemptions = s->preemptions,
                              .evicted_blocks = s->prefix.evicted,
                              .evicted_states = s->prefix.snapshots.evicted,
                              .waited_steps = s->waited_steps,
                              .tbt_ns = s->limits.target_ns,
                              .predicted_ns = s->cost.predicted_ns,
                              .observed_ns = s->cost.observed_ns,
                              .prediction_error = s->cost.error,
                              .ended_restarts = s->ended_restarts};
    memcpy(load->ended, s->ended_after, sizeof load->ended);
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

/* ---- homes ---- */

/* What a home has, and what a request would have there. */
struct home {
    int64_t requests, tokens; // that wait or run, and what they know
    int64_t blocks;           // of the request's prompt
    double sends; // other ranks that its next token is expected to ask; 0 where nothing is foretold
};

static void add_request(struct home *homes, const cot_request_state *r)
{
    homes[r->home].requests++;
    homes[r->home].tokens += r->known;
}

static int64_t blocks_at(const cot_scheduler *s, const cot_request *request, int home)
{
    const cot_request_state *first = request->after ? cot_scheduler_find(s, request->after) : NULL;
    const cot_prefix_root root = {
        .home = home, .salt = request->cache_salt, .salt_bytes = request->cache_salt_bytes};
    int64_t blocks = 0; // the same everywhere where every rank has a part of each page
    if (s->limits.homes > 1 && !request->all_logits)
        cot_prefix_resume(&s->prefix, &root, request->prompt, request->prompt_tokens - 1, &blocks);
    return first && first->home == home ? cot_larger(blocks, blocks_to_come(s, first, request)) : blocks;
}

/* How many other ranks a token at home there is expected to ask in a layer. An expert with a replica at home is asked there, else
 * each of its replicas as often (cot_expert_replica). */
static double sends_of_layer(const cot_expert_layout *layout, int32_t layer, const uint8_t *share, int home)
{
    const cot_expert_replicas r = cot_expert_layout_layer(layout, layer);
    double spared[COT_PAGE_POOL_HOMES], sends = 0; // how likely the token asks nothing of a rank
    for (int32_t rank = 0; rank < layout->n_ranks; rank++) spared[rank] = 1;
    for (int32_t e = 0; e < layout->n_experts; e++) {
        const int32_t begin = r.begin[e], end = r.begin[e + 1];
        int32_t i = begin, next;
        while (i < end && r.rank[i] != home) i++;
        if (!share[e] || i < end) continue;
        for (i = begin; i < end; i = next) { // one rank's
            for (next = i + 1; next < end && r.rank[next] == r.rank[i];) next++;
            spared[r.rank[i]] *= 1 - (double)share[e] / UINT8_MAX * (next - i) / (end - begin);
        }
    }
    for (int32_t rank = 0; rank < layout->n_ranks; rank++) sends += 1 - spared[rank];
    return sends;
}

/* False: nothing is known of the request, or homes are chosen by load alone. */
static bool foretell_sends(const cot_scheduler *s, const cot_request *request, struct home *homes, int count)
{
    const cot_scheduler_foresight *f = &s->limits.foresight;
    if (!f->cells || !f->layout || !f->expect(f->context, s->share, request)) return false;
    const cot_expert_layout *layout = f->layout(f->context);
    for (int h = 0; h < count; h++)
        for (int32_t l = 0; l < layout->n_layers; l++)
            homes[h].sends += sends_of_layer(layout, l, s->share + (int64_t)l * layout->n_experts, h);
    return true;
}

int cot_scheduler_choose_home(const cot_scheduler *s, const cot_request *request, int count)
{
    const double rounding = 1e-9; // of sums that are equal
    struct home homes[COT_PAGE_POOL_HOMES] = {0};
    for (int64_t i = 0; i < s->active_count; i++) add_request(homes, s->active[i]);
    for (const cot_request_state *r = s->waiting; r; r = r->next) add_request(homes, r);
    int64_t most_blocks = 0, fewest = INT64_MAX;
    for (int h = 0; h < count; h++) {
        homes[h].blocks = blocks_at(s, request, h);
        most_blocks = cot_larger(most_blocks, homes[h].blocks);
    }
    for (int h = 0; h < count; h++)
        if (homes[h].blocks == most_blocks) fewest = cot_smaller(fewest, homes[h].requests);
    const bool foretold = foretell_sends(s, request, homes, count);
    int best = -1;
    for (int h = 0; h < count; h++) {
        if (homes[h].blocks < most_blocks || (foretold && homes[h].requests > fewest + 1)) continue;
        const double more = best < 0 ? 0 : homes[h].sends - homes[best].sends;
        if (best < 0 || more < -rounding || (more <= rounding && homes[h].tokens < homes[best].tokens))
            best = h;
    }
    return best;
}
