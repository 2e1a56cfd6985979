/* The executor of an engine's loop: its group of ranks. Logits stay here: tokens are drawn from them, and those who listen to
 * them and to routing are told. */
#include "base/clock.h"
#include "base/error.h"
#include "constrain/constraint.h"
#include "engine/engine_state.h"
#include "engine/replay.h"
#include "checkpoint/stored.h"

#include <stdlib.h>
#include <string.h>

/* ---- what it accepts ---- */

static cot_status check_tokens(const cot_engine *e, const char *name, const int32_t *tokens, int64_t n,
                               cot_error *error)
{
    const int32_t least = e->runner.replay ? -1 : 0; // a trace has ids that nobody knows
    for (int64_t i = 0; i < n; i++)
        if (tokens[i] < least || tokens[i] >= e->config->vocab)
            return cot_fail(error, COT_INVALID_ARGUMENT, "%s %lld is %d, the vocabulary has %lld", name,
                            (long long)i, tokens[i], (long long)e->config->vocab);
    return COT_OK;
}

static cot_status check_sampling(const cot_engine *e, const cot_request *r, cot_error *error)
{
    const cot_sampling *s = &r->sampling;
    cot_status status = cot_sampler_check(s, error);
    if (status == COT_OK)
        status = check_tokens(e, "biased token", s->bias_tokens, (int64_t)s->bias_count, error);
    if (status == COT_OK && (r->logprobs < -1 || r->logprobs > COT_MAX_LOGPROBS))
        status = cot_fail(error, COT_INVALID_ARGUMENT, "logprobs %d is not in [-1, %d]", (int)r->logprobs,
                          COT_MAX_LOGPROBS);
    if (status == COT_OK && r->logprob_count > COT_MAX_LOGPROB_TOKENS)
        status =
            cot_fail(error, COT_INVALID_ARGUMENT, "chances of %zu tokens are asked for, at most %d may be",
                     r->logprob_count, COT_MAX_LOGPROB_TOKENS);
    if (status == COT_OK)
        status = check_tokens(e, "token of chances", r->logprob_tokens, (int64_t)r->logprob_count, error);
    return status;
}

static cot_status accepts(void *context, const cot_request *r, int64_t limit, cot_error *error)
{
    const cot_engine *e = context;
    cot_status status = r->forced ? COT_OK : check_sampling(e, r, error);
    if (status == COT_OK && r->constraint && r->constraint->words != (size_t)(e->config->vocab + 31) / 32)
        status =
            cot_fail(error, COT_INVALID_ARGUMENT, "the constraint is of another vocabulary than the model's");
    if (status == COT_OK && e->runner.replay)
        status = cot_engine_replay_check_request(e->runner.replay, r, limit, error);
    if (status == COT_OK) status = check_tokens(e, "token", r->prompt, r->prompt_tokens, error);
    if (status == COT_OK && r->forced) status = check_tokens(e, "token", r->forced, r->forced_tokens, error);
    return status;
}

/* ---- steps ---- */

static bool ends_text(const cot_config *c, int32_t token)
{
    for (size_t i = 0; i < c->eos_count; i++)
        if (c->eos[i] == token) return true;
    return false;
}

/* What comes behind all that the request knows; `logits`, the model's, are its last token's. `mask` NULL: any token may. */
static void draw(cot_ranks *ranks, const cot_config *c, const cot_request_state *r, const float *logits,
                 const uint32_t *mask, cot_executor_span *came, cot_logprob *top)
{
    const cot_loop_request *own = cot_loop_request_of(r);
    cot_sampler *s = &ranks->sampler;
    s->mask = mask;
    memcpy(s->logits, logits, (size_t)s->vocab * sizeof *logits);
    const cot_sampler_history history = {r->tokens, r->known, r->text_begin};
    const int32_t token = cot_sample(s, &history, &own->sampling, r->known);
    const bool eos = !own->sampling.ignore_eos && ends_text(c, token);
    came->sampled = (cot_sampled){.token = token};
    if (own->logprobs >= 0 && own->events.on_sampled)
        cot_logprobs_of(logits, s->vocab, token, own->logprob_tokens,
                        own->logprob_tokens ? own->logprob_count : (size_t)own->logprobs, &came->sampled,
                        top);
    came->sampled.ends = eos || cot_sampler_stops(&own->sampling, token);
    came->finish = eos ? COT_FINISH_EOS : COT_FINISH_STOP;
}

static void draw_all(cot_engine *e, const cot_step *step, cot_request_state *const *by_row)
{
    cot_ranks *ranks = &e->ranks;
    const float *logits = ranks->result.logits;
    for (int32_t i = 0; i < step->spans; i++) {
        const cot_span *span = &step->span[i];
        const cot_request_state *r = by_row[span->sequence];
        cot_executor_span *came = &ranks->came[i];
        const int64_t count = span->logits * e->config->vocab;
        *came = (cot_executor_span){.unsound =
                                        ranks->result.unsound[i] || !cot_all_finite(logits, COT_F32, count)};
        logits += count;
        if (came->unsound || !cot_request_draws(r, span)) continue;
        const uint32_t *mask;
        came->stuck = !cot_masks_get(&ranks->masks, i, &mask);
        if (!came->stuck)
            draw(ranks, e->config, r, logits - e->config->vocab, mask, came,
                 ranks->top + i * COT_MAX_LOGPROB_TOKENS);
    }
}

/* What each rank's experts had to do, if the operator counts that. */
static void take_served(cot_engine *e, cot_executor_answer *answer)
{
    cot_ranks *ranks = &e->ranks;
    for (int rank = 0; rank < e->info.ranks; rank++) {
        const cot_runner_served *s = &ranks->result.served[rank];
        ranks->served[rank] = (cot_cost_load){s->experts, (double)s->rows, s->received};
        ranks->served_since[rank].rows += s->rows;
        ranks->served_since[rank].experts += s->experts;
        ranks->served_since[rank].received += s->received;
        if (s->rows) answer->served = ranks->served;
    }
}

/* What was counted since this was last asked. */
static void report(cot_engine *e, cot_executor_answer *answer)
{
    cot_ranks *ranks = &e->ranks;
    const cot_step_counts *counts = ranks->result.counts;
    for (int rank = 0; rank < e->info.ranks; rank++) {
        const cot_step_counts *now = &counts[rank], *before = &ranks->told[rank];
        const cot_locality *a = &now->locality, *b = &before->locality;
        ranks->routing[rank] = (cot_rank_routing){.tokens = (uint64_t)(a->tokens - b->tokens),
                                                  .activations = (uint64_t)(a->activations - b->activations),
                                                  .local = (uint64_t)(a->local - b->local),
                                                  .sends = (uint64_t)(a->remote_ranks - b->remote_ranks),
                                                  .distinct_experts = now->distinct - before->distinct,
                                                  .served = ranks->served_since[rank].rows,
                                                  .served_experts = ranks->served_since[rank].experts,
                                                  .received = ranks->served_since[rank].received};
        for (int phase = 0; phase < COT_PHASES; phase++)
            answer->bytes[phase] += now->bytes[phase] - before->bytes[phase];
    }
    memcpy(ranks->told, counts, (size_t)e->info.ranks * sizeof *counts);
    memset(ranks->served_since, 0, sizeof ranks->served_since);
    answer->routing = ranks->routing;
}

static cot_status run_step(void *context, const cot_step *step, cot_request_state *const *by_row,
                           cot_executor_answer *answer, cot_error *error)
{
    cot_engine *e = context;
    cot_step_result *result = &e->ranks.result;
    const int64_t began_ns = cot_now_ns();
    cot_masks_begin(&e->ranks.masks, step, by_row);
    const cot_status status = cot_engine_group_step(e->group, step, result, error);
    cot_masks_wait(&e->ranks.masks);
    if (status != COT_OK) return cot_moving_explain(e, status, error);
    *answer = (cot_executor_answer){.ns = cot_now_ns() - began_ns,
                                    .span = e->ranks.came,
                                    .experts = result->own_experts,
                                    .layers = e->config->moe_layers,
                                    .stride = e->runner.step_tokens,
                                    .routed = result->own_rows,
                                    .popular = result->routed};
    answer->epoch = e->placing.epoch[e->placing.second].number;
    if (e->config->moe_layers) answer->layout = &e->placing.epoch[e->placing.second].layout;
    take_served(e, answer);
    if (result->counts) report(e, answer);
    if (result->experts) answer->read_bytes = cot_engine_read_bytes(e, step, result->experts);
    draw_all(e, step, by_row);
    cot_rebalancing_see(e, step, answer->ns);
    return COT_OK;
}

static cot_status look_at_ranks(void *context, cot_error *error)
{
    const cot_engine *e = context;
    return cot_moving_explain(e, cot_engine_group_check(e->group, error), error);
}

/* Experts move, and are found to have to. */
static cot_status between_steps(void *context, int64_t step_ns, cot_error *error)
{
    cot_engine *e = context;
    const cot_status status = step_ns ? cot_rebalancing_go_on(e, error) : COT_OK;
    return status == COT_OK ? cot_moving_go_on(e, step_ns, error) : status;
}

/* ---- what is told ---- */

static void tell_routing(void *context, const cot_step *step, cot_request_state *const *by_row)
{
    const cot_engine *e = context;
    const cot_ranks *ranks = &e->ranks;
    int64_t k = e->config->gate.top_k, token = 0;
    for (int32_t i = 0; ranks->result.experts && i < step->spans; token += step->span[i++].tokens) {
        const cot_span *span = &step->span[i];
        const cot_request_state *r = by_row[span->sequence];
        const cot_loop_request *own = cot_loop_request_of(r);
        for (int32_t t = 0; t < span->tokens && own->events.on_routing && !r->ended; t++) {
            if (span->position + t < r->told) continue;
            for (int64_t l = 0; l < e->config->moe_layers; l++) {
                int64_t from = (l * e->runner.step_tokens + token + t) * k;
                memcpy(ranks->token_experts + l * k, ranks->result.experts + from,
                       (size_t)k * sizeof *ranks->token_experts);
                memcpy(ranks->token_weights + l * k, ranks->result.weights + from,
                       (size_t)k * sizeof *ranks->token_weights);
            }
            own->events.on_routing(own->events.context, own->told_as, span->position + t,
                                   step->ids[token + t], ranks->token_experts, ranks->token_weights);
        }
    }
}

static void tell_logits(void *context, const cot_span *span, const cot_request_state *r, int64_t row)
{
    const cot_engine *e = context;
    const cot_loop_request *own = cot_loop_request_of(r);
    if (!r->all_logits || !own->events.on_logits) return;
    const float *logits = e->ranks.result.logits + row * e->config->vocab;
    for (int32_t t = 0; t < span->logits && !r->ended; t++, logits += e->config->vocab) {
        int64_t position = span->position + span->tokens - span->logits + t;
        if (position < r->told) continue;
        own->events.on_logits(own->events.context, own->told_as, position, logits);
    }
}

/* ---- open ---- */

cot_status cot_ranks_open(cot_executor *executor, cot_engine *e, cot_error *error)
{
    const cot_config *c = e->config;
    cot_ranks *ranks = &e->ranks;
    const size_t v = (size_t)c->vocab, routed = (size_t)(c->moe_layers * c->gate.top_k) + 1,
                 spans = (size_t)e->runner.sequences;
    cot_sampler *s = &ranks->sampler;
    *s = (cot_sampler){c->vocab,
                       calloc(v, sizeof *s->logits),
                       calloc(v, sizeof *s->candidates),
                       calloc(v, sizeof *s->counts),
                       c->eos,
                       c->eos_count,
                       NULL};
    ranks->came = calloc(spans, sizeof *ranks->came);
    ranks->top = calloc(spans * COT_MAX_LOGPROB_TOKENS, sizeof *ranks->top);
    ranks->token_experts = calloc(routed, sizeof *ranks->token_experts);
    ranks->token_weights = calloc(routed, sizeof *ranks->token_weights);
    ranks->touched = calloc((size_t)c->gate.experts + 1, sizeof *ranks->touched);
    *executor = (cot_executor){
        e, accepts, run_step, cot_engine_place, look_at_ranks, between_steps, tell_routing, tell_logits};
    if (cot_masks_open(&ranks->masks, spans) && s->logits && s->candidates && s->counts && ranks->came &&
        ranks->top && ranks->token_experts && ranks->token_weights && ranks->touched)
        return COT_OK;
    return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the engine's tables");
}

void cot_ranks_close(cot_ranks *ranks)
{
    cot_masks_close(&ranks->masks);
    void *owned[] = {
        ranks->sampler.logits, ranks->sampler.candidates, ranks->sampler.counts, ranks->came, ranks->top,
        ranks->token_experts,  ranks->token_weights,      ranks->touched};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
}
