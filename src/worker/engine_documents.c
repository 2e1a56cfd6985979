#include "worker/engine_documents.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

cot_backend_info cot_worker_info_of(const cot_engine *engine)
{
    const cot_engine_info *info = cot_engine_describe(engine);
    cot_engine_load load;
    cot_engine_get_load(engine, &load);
    const int64_t cached = load.kv_pages * 64; // a sequence is no longer than what the cache holds
    return (cot_backend_info){.architecture = info->architecture,
                              .precision = info->precision,
                              .payload = info->payload,
                              .op = info->op,
                              .combine = info->combine,
                              .attention = info->attention,
                              .isa = info->isa,
                              .ranks = info->ranks,
                              .threads = info->threads,
                              .homes = info->kv_homes,
                              .block_tokens = info->block_tokens,
                              .sequences = info->sequences,
                              .vocab = info->vocab,
                              .context_tokens = cached < info->context_tokens ? cached : info->context_tokens,
                              .constrains = true,
                              .eos = info->eos,
                              .eos_count = info->eos_count,
                              .model_hash = info->model_hash};
}

static cot_backend_rank rank_of(const cot_rank_routing *r)
{
    return (cot_backend_rank){.tokens = r->tokens,
                              .activations = r->activations,
                              .local = r->local,
                              .sends = r->sends,
                              .distinct_experts = r->distinct_experts,
                              .served = r->served,
                              .served_experts = r->served_experts,
                              .received = r->received};
}

/* ---- metrics ---- */

bool cot_worker_metrics_of(cot_backend_metrics *m, cot_stats *s)
{
    const size_t ranks = (size_t)s->ranks;
    *m = (cot_backend_metrics){.steps = s->steps,
                               .prefill_tokens = s->prefill_tokens,
                               .decode_tokens = s->decode_tokens,
                               .prefill_ns = s->prefill_ns,
                               .decode_ns = s->decode_ns,
                               .lar = s->lar,
                               .remote_ranks = s->remote_ranks,
                               .phases = COT_STATS_PHASES,
                               .phase = cot_engine_phases(),
                               .ranks = s->ranks};
    m->bytes = calloc(2 * COT_STATS_PHASES, sizeof *m->bytes);
    m->rank = calloc(ranks, sizeof *m->rank);
    const bool good = m->bytes && m->rank;
    if (good) {
        m->messages = m->bytes + COT_STATS_PHASES;
        for (size_t p = 0; p < COT_STATS_PHASES; p++)
            for (size_t pair = 0; pair < ranks * ranks; pair++) {
                m->bytes[p] += s->bytes[p][pair];
                m->messages[p] += s->messages[p][pair];
            }
        for (size_t rank = 0; rank < ranks; rank++) m->rank[rank] = rank_of(&s->routing[rank]);
        m->calls = s->calls;
        s->calls = NULL;
    } else
        cot_worker_metrics_clear(m);
    cot_stats_clear(s);
    return good;
}

void cot_worker_metrics_clear(cot_backend_metrics *m)
{
    free(m->bytes); // and messages behind them
    free(m->rank);
    free(m->calls);
    *m = (cot_backend_metrics){0};
}

/* ---- the placement ---- */

cot_status cot_worker_placement_of(cot_backend_placement *out, cot_engine *engine, cot_error *error)
{
    cot_expert_layout layout;
    uint64_t epoch;
    *out = (cot_backend_placement){0};
    const cot_status status = cot_engine_layout(engine, &layout, &epoch, error);
    if (status != COT_OK) return status;
    *out = (cot_backend_placement){.layers = layout.n_layers,
                                   .experts = layout.n_experts,
                                   .top_k = cot_engine_describe(engine)->top_k,
                                   .epoch = epoch,
                                   .ranks = layout.n_ranks,
                                   .slots = layout.slots_per_rank,
                                   .own_slots = cot_engine_describe(engine)->expert_slots,
                                   .transit = cot_engine_describe(engine)->transit_places,
                                   .layer = layout.layers,
                                   .begin = layout.begin,
                                   .first = layout.first,
                                   .rank = layout.rank,
                                   .slot = layout.slot};
    layout.layers = layout.begin = layout.rank = layout.slot = NULL; // taken over
    layout.first = NULL;
    cot_expert_layout_free(&layout);
    return COT_OK;
}

void cot_backend_placement_free(cot_backend_placement *p)
{
    free(p->layer);
    free(p->begin);
    free(p->first);
    free(p->rank);
    free(p->slot);
    *p = (cot_backend_placement){0};
}

/* ---- popularity ---- */

static cot_status new_popularity(cot_backend_popularity *p, cot_error *error)
{
    const size_t homes = (size_t)p->homes, cells = (size_t)p->layers * (size_t)p->experts;
    p->tokens = calloc(homes + 1, sizeof *p->tokens);
    p->counts = calloc(homes * cells + 1, sizeof *p->counts);
    if (p->tokens && p->counts) return COT_OK;
    cot_backend_popularity_free(p);
    return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the popularity of %zu experts", cells);
}

cot_status cot_worker_popularity_of(cot_backend_popularity *out, const cot_engine *engine, cot_error *error)
{
    cot_engine_popularity_info info;
    cot_engine_describe_popularity(&info, engine);
    *out = (cot_backend_popularity){.layers = info.n_layers,
                                    .experts = info.n_experts,
                                    .homes = info.n_homes,
                                    .top_k = info.top_k,
                                    .half_life_tokens = info.half_life_tokens,
                                    .half_life_seconds = info.half_life_seconds,
                                    .every = info.every,
                                    .cells = info.cells,
                                    .layers_every = info.layers_every,
                                    .layer = cot_engine_describe(engine)->moe_layer};
    const cot_status status = new_popularity(out, error);
    const size_t cells = (size_t)out->layers * (size_t)out->experts;
    for (int home = 0; home < out->homes; home++)
        out->tokens[home] = cot_engine_popularity(out->counts + (size_t)home * cells, engine, home);
    return status;
}

cot_status cot_backend_popularity_copy(cot_backend_popularity *copy, const cot_backend_popularity *p,
                                       cot_error *error)
{
    *copy = *p;
    copy->tokens = copy->counts = NULL;
    if (!p->layers) return COT_OK;
    const cot_status status = new_popularity(copy, error);
    if (status != COT_OK) return status;
    const size_t homes = (size_t)p->homes, cells = (size_t)p->layers * (size_t)p->experts;
    memcpy(copy->tokens, p->tokens, homes * sizeof *p->tokens);
    memcpy(copy->counts, p->counts, homes * cells * sizeof *p->counts);
    return COT_OK;
}

void cot_backend_popularity_free(cot_backend_popularity *p)
{
    free(p->tokens);
    free(p->counts);
    *p = (cot_backend_popularity){0};
}

/* ---- a step ---- */

_Static_assert((int)COT_STATS_PHASES <= (int)COT_REPORT_PHASES, "a report has room for an engine's phases");

cot_backend_report cot_worker_report_of(const cot_step_report *s, cot_backend_rank *ranks)
{
    cot_backend_report r = {.step = s->step,
                            .sequences = s->sequences,
                            .tokens = s->tokens,
                            .prompt_tokens = s->prompt_tokens,
                            .positions = s->positions,
                            .pairs = s->pairs,
                            .epoch = s->epoch,
                            .predicted_ns = s->predicted_ns,
                            .observed_ns = s->observed_ns,
                            .phases = COT_STATS_PHASES,
                            .phase = cot_engine_phases(),
                            .ranks = s->ranks,
                            .rank = ranks,
                            .homes = s->homes,
                            .home = s->home};
    memcpy(r.bytes, s->bytes, sizeof s->bytes);
    for (int rank = 0; rank < s->ranks; rank++) ranks[rank] = rank_of(&s->routing[rank]);
    return r;
}
