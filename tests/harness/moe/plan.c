#include "harness/moe/plan.h"

struct plan plan_even(const struct world *w, int ranks)
{
    struct plan p = {.ranks = ranks, .running = 2, .passes = 1};
    int64_t experts = w->options.experts;
    for (int r = 0; r <= ranks; r++) p.begin[r] = cot_share_begin(w->tokens, r, ranks);
    for (int r = 0; r < ranks; r++) {
        const int64_t first = cot_share_begin(experts, r, ranks);
        for (int64_t e = first; e < cot_share_begin(experts, r + 1, ranks); e++) {
            p.rank[e] = r;
            p.slot[e] = (int32_t)(e - first);
            p.replica_begin[e + 1] = (int32_t)e + 1;
        }
    }
    p.slots = (int32_t)(experts / ranks + 1);
    for (int64_t t = 0; t < w->tokens; t++) p.order[t] = t;
    return p;
}

struct plan plan_replicated(const struct world *w, int ranks, struct draw *draw)
{
    struct plan p = plan_even(w, ranks);
    int32_t used[COT_MAX_RANKS] = {0}, n = 0;
    for (int64_t e = 0; e < w->options.experts; e++) {
        p.replica_begin[e] = n;
        const int64_t first = draw_below(draw, ranks), copies = 1 + draw_below(draw, ranks < 3 ? ranks : 3);
        for (int64_t c = 0; c < copies && n < 2 * WORLD_EXPERTS; c++, n++) {
            p.rank[n] = (int32_t)((first + c) % ranks);
            p.slot[n] = used[p.rank[n]]++;
        }
    }
    p.replica_begin[w->options.experts] = n;
    p.slots = (int32_t)w->options.experts;
    return p;
}

struct plan plan_drawn(const struct world *w, int ranks, struct draw *draw)
{
    struct plan p = plan_even(w, ranks);
    int64_t experts = w->options.experts;
    p.slots = (int32_t)experts + 1;
    for (int64_t e = 0; e < experts; e++) {
        p.rank[e] = (int32_t)draw_below(draw, ranks);
        p.slot[e] = (int32_t)e;
        int64_t other = draw_below(draw, e + 1);
        p.slot[e] = p.slot[other], p.slot[other] = (int32_t)e;
    }
    for (int r = 1; r < ranks; r++) {
        int64_t cut = draw_below(draw, w->tokens + 1);
        int at = r;
        for (; at > 1 && p.begin[at - 1] > cut; at--) p.begin[at] = p.begin[at - 1];
        p.begin[at] = cut;
    }
    for (int64_t t = w->tokens - 1; t > 0; t--) {
        int64_t other = draw_below(draw, t + 1), kept = p.order[t];
        p.order[t] = p.order[other], p.order[other] = kept;
    }
    return p;
}
