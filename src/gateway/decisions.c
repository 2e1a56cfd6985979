#include "gateway/decisions.h"

#include "gateway/gateway_state.h"

#include <stdio.h>

static double sum_of(const cot_route_terms *t)
{
    return t->queue + t->prefill + t->decode + t->pages + t->experts;
}

/* Puts a target where it belongs among those that were weighed, behind the first; the dearest goes where there is no room. */
static void insert(cot_decision *d, const cot_gateway_target *t, const cot_route_decision *weighed,
                   bool is_taken)
{
    size_t at = d->count;
    if (is_taken)
        at = 0;
    else
        while (at > 1 && sum_of(&d->weighed[at - 1].terms) > sum_of(&weighed->terms)) at--;
    if (at == COT_DECISIONS_SHOWN) return;
    if (d->count < COT_DECISIONS_SHOWN) d->count++;
    for (size_t i = d->count - 1; i > at; i--) d->weighed[i] = d->weighed[i - 1];
    struct cot_decision_target *const out = &d->weighed[at];
    out->rank = t->rank;
    out->cached = weighed->cached;
    out->terms = weighed->terms;
    snprintf(out->worker, sizeof out->worker, "%s", t->worker->entry.name);
}

void cot_decisions_keep(cot_gateway *g, const cot_route_request *request, const cot_route_decision *decision,
                        cot_decision_reason reason, uint64_t delivered, int64_t now_ns)
{
    struct timespec now;
    cot_decision *const d = &g->decisions.kept[g->decisions.count++ % COT_DECISIONS_KEPT];
    clock_gettime(CLOCK_REALTIME, &now);
    d->number = g->decisions.count;
    d->seconds = (double)now.tv_sec + (double)now.tv_nsec / 1e9;
    d->delivered = delivered;
    d->prompt_tokens = request->tokens - delivered;
    d->reason = reason;
    d->targets = 1;
    d->count = 0;
    insert(d, &g->target[decision->target], decision, true);
    for (const cot_gateway_worker *w = g->workers; w; w = w->next) {
        if (!cot_gateway_is_usable(w)) continue;
        for (size_t t = w->first_target; t < w->first_target + w->targets; t++) {
            cot_route_decision other;
            if (t == decision->target || cot_route_is_open(g->book, t, now_ns)) continue;
            d->targets++;
            cot_route_weigh(g->book, request, t, now_ns, &other);
            insert(d, &g->target[t], &other, false);
        }
    }
}

static json_t *decision_json(const cot_decision *d)
{
    static const char *const reasons[] = {"first", "refused", "died", "resumed"};
    json_t *targets = json_array();
    for (size_t i = 0; i < d->count; i++) {
        const struct cot_decision_target *const t = &d->weighed[i];
        json_array_append_new(targets, json_pack("{s:s, s:i, s:I, s:f, s:f, s:f, s:f, s:f}", "worker",
                                                 t->worker, "rank", t->rank, "cached_tokens",
                                                 (json_int_t)t->cached, "queue_ns", t->terms.queue,
                                                 "prefill_ns", t->terms.prefill, "decode_ns", t->terms.decode,
                                                 "pages_ns", t->terms.pages, "experts_ns", t->terms.experts));
    }
    return json_pack("{s:I, s:f, s:s, s:I, s:I, s:I, s:o}", "number", (json_int_t)d->number, "time",
                     d->seconds, "reason", reasons[d->reason], "prompt_tokens", (json_int_t)d->prompt_tokens,
                     "delivered_tokens", (json_int_t)d->delivered, "targets_usable", (json_int_t)d->targets,
                     "targets", targets);
}

json_t *cot_decisions_json(const cot_decisions *all)
{
    json_t *list = json_array();
    const uint64_t oldest = all->count > COT_DECISIONS_KEPT ? all->count - COT_DECISIONS_KEPT : 0;
    for (uint64_t i = all->count; list && i > oldest; i--)
        if (json_array_append_new(list, decision_json(&all->kept[(i - 1) % COT_DECISIONS_KEPT]))) {
            json_decref(list);
            list = NULL;
        }
    return list;
}
