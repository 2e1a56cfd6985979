/* Requests: taken, stepped and told what comes out of it. */
#include "base/clock.h"
#include "base/error.h"
#include "engine/engine_state.h"
#include "engine/replay.h"
#include "model/stored.h"

#include <string.h>

/* The most tokens that a request can come to. The last token generated is not fed. */
static int64_t limit_of(const cot_engine *e, const cot_request *r)
{
    int64_t more = r->forced ? r->forced_tokens : r->sampling.max_tokens - r->output_tokens,
            context = e->config->max_context;
    if (more < 0) more = 0; // as much has been generated before
    return more > context - r->prompt_tokens ? context : r->prompt_tokens + more;
}

/* ---- coming and going ---- */

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
    return status;
}

static cot_status check_request(const cot_engine *e, const cot_request *r, cot_error *error)
{
    int64_t forced = r->forced ? r->forced_tokens : 0, context = e->config->max_context;
    if (r->prompt_tokens < 1) return cot_fail(error, COT_INVALID_ARGUMENT, "the prompt is empty");
    if (r->output_tokens < 0 || r->output_tokens >= r->prompt_tokens)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%lld of the prompt's %lld tokens are said to be output",
                        (long long)r->output_tokens, (long long)r->prompt_tokens);
    if (r->cache_salt_bytes && !r->cache_salt)
        return cot_fail(error, COT_INVALID_ARGUMENT, "a cache salt of %zu bytes is nowhere",
                        r->cache_salt_bytes);
    if (forced < 0) return cot_fail(error, COT_INVALID_ARGUMENT, "%lld forced tokens", (long long)forced);
    if (r->prompt_tokens > context || forced > context - r->prompt_tokens)
        return cot_fail(error, COT_TOO_LONG, "%llu tokens, the context is %lld",
                        (unsigned long long)r->prompt_tokens + (unsigned long long)forced,
                        (long long)context);
    if (cot_page_count(limit_of(e, r)) > e->runner.pages)
        return cot_fail(error, COT_OUT_OF_MEMORY, "up to %lld tokens, the KV cache holds %lld",
                        (long long)limit_of(e, r), (long long)cot_page_positions(e->runner.pages));
    cot_status status = r->forced ? COT_OK : check_sampling(e, r, error);
    if (status == COT_OK && e->runner.replay)
        status = cot_engine_replay_check_request(e->runner.replay, r, limit_of(e, r), error);
    if (status == COT_OK) status = check_tokens(e, "token", r->prompt, r->prompt_tokens, error);
    if (status == COT_OK && r->forced) status = check_tokens(e, "token", r->forced, r->forced_tokens, error);
    return status;
}

static cot_status check_usable(const cot_engine *e, cot_error *error)
{
    if (!e->failed) return COT_OK;
    return cot_fail(error, COT_PEER_FAILED, "an earlier step failed: the engine must be closed");
}

/* Copies n numbers of 4 bytes to *end and moves that behind them; returns where they are. */
static void *keep(void **end, const void *numbers, size_t n)
{
    void *at = *end;
    if (n) memcpy(at, numbers, n * 4);
    *end = (uint8_t *)at + n * 4;
    return at;
}

/* A request that was checked waits for its turn; callbacks call it by its id. NULL: memory ran out. */
static cot_request_state *enqueue(cot_engine *e, const cot_request *request, int home,
                                  const cot_events *events, cot_error *error)
{
    const cot_sampling *sampling = &request->sampling;
    const size_t biases = request->forced ? 0 : sampling->bias_count,
                 stops = request->forced ? 0 : sampling->stop_count;
    cot_request_state *r = cot_scheduler_submit(&e->scheduler, request, limit_of(e, request), home,
                                                sizeof(cot_engine_request) + (2 * biases + stops) * 4);
    if (!r) {
        cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a request");
        return NULL;
    }
    cot_engine_request *own = r->beside;
    *own = (cot_engine_request){r->id, *events, request->sampling, request->logprobs};
    void *end = own + 1;
    own->sampling.bias_tokens = keep(&end, sampling->bias_tokens, biases);
    own->sampling.bias = keep(&end, sampling->bias, biases);
    own->sampling.stop_tokens = keep(&end, sampling->stop_tokens, stops);
    return r;
}

cot_status cot_engine_submit(cot_engine *e, uint64_t *id, const cot_request *request, int home,
                             const cot_events *events, cot_error *error)
{
    *id = 0;
    cot_status status = check_usable(e, error);
    if (status == COT_OK) status = check_request(e, request, error);
    if (status == COT_OK && home == COT_HOME_ANY) home = cot_engine_choose_home(e, request);
    if (status == COT_OK && (home < 0 || home >= e->info.ranks))
        status = cot_fail(error, COT_INVALID_ARGUMENT, "home %d is not in [0, %d]", home, e->info.ranks - 1);
    if (status != COT_OK) return status;
    cot_request_state *r = enqueue(e, request, home, events, error);
    if (!r) return COT_OUT_OF_MEMORY;
    *id = r->id;
    return COT_OK;
}

static void finish(cot_engine *e, cot_request_state *r, cot_finish reason)
{
    cot_scheduler_release(&e->scheduler, r);
    if (reason == COT_FINISH_OVERFLOW && r->id >= e->run_first && r->id < e->run_overflowed)
        e->run_overflowed = r->id;
    const cot_engine_request *own = r->beside;
    if (own->events.on_finish) own->events.on_finish(own->events.context, own->told_as, reason);
}

cot_status cot_engine_cancel(cot_engine *e, uint64_t id, cot_error *error)
{
    cot_status status = check_usable(e, error);
    if (status != COT_OK) return status;
    cot_request_state *r = cot_scheduler_find(&e->scheduler, id);
    if (!r)
        return cot_fail(error, COT_NOT_FOUND, "there is no request %llu, or it is over",
                        (unsigned long long)id);
    bool inside = e->inside;
    e->inside = true;
    finish(e, r, COT_FINISH_CANCELLED);
    e->inside = inside;
    if (!inside) cot_scheduler_sweep(&e->scheduler);
    return COT_OK;
}

/* ---- what comes out of a step ---- */

/* A generated sequence has come to its limit: max_tokens, or the context where that is less. */
static cot_finish why_full(const cot_request_state *r)
{
    const cot_engine_request *own = r->beside;
    return own->sampling.max_tokens > r->limit - r->text_begin ? COT_FINISH_CONTEXT : COT_FINISH_LENGTH;
}

static bool ends_text(const cot_config *c, int32_t token)
{
    for (size_t i = 0; i < c->eos_count; i++)
        if (c->eos[i] == token) return true;
    return false;
}

/* on_sampled; `logits` are the model's. */
static void tell_sampled(cot_engine *e, const cot_request_state *r, int32_t token, bool ends,
                         const float *logits)
{
    const cot_engine_request *own = r->beside;
    cot_sampled sampled = {.token = token};
    if (!own->events.on_sampled) return;
    if (own->logprobs >= 0)
        cot_logprobs_of(logits, e->config->vocab, token, (size_t)own->logprobs, &sampled, e->top);
    sampled.ends = ends;
    own->events.on_sampled(own->events.context, own->told_as, &sampled);
}

/* The request has been fed all it knows: what comes next, or is it over? `logits` is the last token's. */
static void advance(cot_engine *e, cot_request_state *r, const float *logits)
{
    const cot_engine_request *own = r->beside;
    bool full = r->known >= r->limit;
    if (full || r->forced) {
        if (full)
            finish(e, r, r->forced ? COT_FINISH_LENGTH : why_full(r));
        else
            r->known++;
        return;
    }
    memcpy(e->sampler.logits, logits, (size_t)e->sampler.vocab * sizeof *logits);
    const cot_sampler_history history = {r->tokens, r->known, r->text_begin};
    const int32_t token = cot_sample(&e->sampler, &history, &own->sampling, r->known);
    const bool eos = !own->sampling.ignore_eos && ends_text(e->config, token),
               ends = eos || cot_sampler_stops(&own->sampling, token);
    tell_sampled(e, r, token, ends, logits);
    if (r->ended) return; // cancelled meanwhile
    if (ends) {
        finish(e, r, eos ? COT_FINISH_EOS : COT_FINISH_STOP);
        return;
    }
    r->tokens[r->known++] = token;
    bool go_on = !own->events.on_token || own->events.on_token(own->events.context, own->told_as, token);
    if (r->ended) return; // cancelled meanwhile
    if (!go_on)
        finish(e, r, COT_FINISH_STOP);
    else if (r->known >= r->limit)
        finish(e, r, why_full(r));
}

/* Ends the sequences whose values are no longer finite, before anything of this step is told of them or kept for others:
 * the prefix cache knows only what was fed in steps that went well. */
static void end_overflowed(cot_engine *e, const cot_step *step, const cot_step_result *result)
{
    const float *logits = result->logits;
    for (int32_t i = 0; i < step->spans; i++) {
        const int64_t count = step->span[i].logits * e->config->vocab;
        cot_request_state *r = e->scheduler.by_row[step->span[i].sequence];
        if (!r->ended && (result->unsound[i] || !cot_all_finite(logits, COT_F32, count)))
            finish(e, r, COT_FINISH_OVERFLOW);
        logits += count;
    }
}

static void tell_routing(cot_engine *e, const cot_step *step, const uint16_t *experts, const float *weights)
{
    int64_t k = e->config->gate.top_k, token = 0;
    for (int32_t i = 0; i < step->spans; token += step->span[i++].tokens) {
        const cot_span *span = &step->span[i];
        const cot_request_state *r = e->scheduler.by_row[span->sequence];
        const cot_engine_request *own = r->beside;
        for (int32_t t = 0; t < span->tokens && own->events.on_routing && !r->ended; t++) {
            if (span->position + t < r->told) continue;
            for (int64_t l = 0; l < e->config->moe_layers; l++) {
                int64_t from = (l * e->runner.step_tokens + token + t) * k;
                memcpy(e->token_experts + l * k, experts + from, (size_t)k * sizeof *experts);
                memcpy(e->token_weights + l * k, weights + from, (size_t)k * sizeof *weights);
            }
            own->events.on_routing(own->events.context, own->told_as, span->position + t,
                                   step->ids[token + t], e->token_experts, e->token_weights);
        }
    }
}

static void tell_logits(const cot_engine *e, const cot_request_state *r, const cot_span *span,
                        const float *logits)
{
    const cot_engine_request *own = r->beside;
    int64_t vocab = e->config->vocab;
    for (int32_t t = 0; t < span->logits && !r->ended; t++, logits += vocab) {
        int64_t position = span->position + span->tokens - span->logits + t;
        if (position < r->told) continue;
        own->events.on_logits(own->events.context, own->told_as, position, logits);
    }
}

static void take_results(cot_engine *e, const cot_step *step, const float *logits)
{
    for (int32_t i = 0; i < step->spans; i++) {
        const cot_span *span = &step->span[i];
        cot_request_state *r = e->scheduler.by_row[span->sequence];
        const cot_engine_request *own = r->beside;
        if (!r->ended && r->all_logits && own->events.on_logits) tell_logits(e, r, span, logits);
        if (!r->ended) cot_scheduler_fed(&e->scheduler, r, span->tokens);
        logits += (int64_t)span->logits * e->config->vocab;
        if (!r->ended && r->fed == r->known) advance(e, r, logits - e->config->vocab);
    }
}

/* ---- steps ---- */

static void admit(cot_engine *e)
{
    for (cot_request_state *r; (r = cot_scheduler_admit(&e->scheduler));) {
        const cot_engine_request *own = r->beside;
        if (!r->forced && r->known == r->limit && !r->all_logits) // nothing may be generated
            finish(e, r, why_full(r));
        else if (r->admissions == 1 && own->events.on_admit)
            own->events.on_admit(own->events.context, own->told_as, r->fed);
    }
}

/* With COT_TBT_AUTO: at the length that sequences have now. */
static void set_target(cot_engine *e)
{
    cot_scheduler *s = &e->scheduler;
    int64_t positions = 0;
    if (e->tbt_ns != COT_TBT_AUTO || !s->active_count) return;
    for (int64_t i = 0; i < s->active_count; i++) positions += s->active[i]->known;
    positions = positions / s->active_count * s->limits.sequences;
    const cot_cost_step decodes = {s->limits.sequences, positions, positions};
    s->limits.target_ns = (int64_t)(2 * cot_cost_predict(&s->cost, &decodes));
}

static cot_cost_step cost_step_of(const cot_step *step)
{
    cot_cost_step held = {0};
    for (int32_t i = 0; i < step->spans; i++)
        cot_cost_add_span(&held, step->span[i].position, step->span[i].tokens);
    return held;
}

static void learn_cost(cot_engine *e, const cot_step *step, const cot_cost_step *held,
                       const cot_step_result *result)
{
    cot_cost *cost = &e->scheduler.cost;
    const double distinct = cot_cost_learn_routing(cost, result->own_experts, e->config->moe_layers,
                                                   e->runner.step_tokens, result->own_rows, e->touched);
    cot_cost_learn(cost, held, result->own_rows == step->tokens ? distinct : -1,
                   (double)(e->last_step_ns ? e->last_step_ns : 1));
}

/* Tells the step that has just been run. */
static void tell_step(cot_engine *e, const cot_step *step, const cot_step_counts *counts)
{
    const cot_cost *cost = &e->scheduler.cost;
    cot_rank_routing routing[COT_MAX_RANKS];
    cot_step_report report = {.step = e->steps,
                              .sequences = step->spans,
                              .tokens = step->tokens,
                              .predicted_ns = cost->predicted_ns,
                              .observed_ns = (double)e->last_step_ns,
                              .ranks = e->info.ranks,
                              .routing = routing};
    for (int32_t i = 0; i < step->spans; i++) {
        const cot_span *span = &step->span[i];
        const int64_t left = e->scheduler.by_row[span->sequence]->prompt_tokens - span->position;
        report.prompt_tokens += left < 0 ? 0 : left < span->tokens ? left : span->tokens;
    }
    for (int rank = 0; rank < e->info.ranks; rank++) {
        const cot_step_counts *now = &counts[rank], *before = &e->told[rank];
        const cot_locality *a = &now->locality, *b = &before->locality;
        routing[rank] = (cot_rank_routing){.tokens = (uint64_t)(a->tokens - b->tokens),
                                           .activations = (uint64_t)(a->activations - b->activations),
                                           .local = (uint64_t)(a->local - b->local),
                                           .sends = (uint64_t)(a->remote_ranks - b->remote_ranks),
                                           .distinct_experts = now->distinct - before->distinct};
        for (int phase = 0; phase < COT_PHASES; phase++)
            report.bytes[phase] += now->bytes[phase] - before->bytes[phase];
    }
    memcpy(e->told, counts, (size_t)e->info.ranks * sizeof *counts);
    e->watch.on_step(e->watch.context, &report);
}

void cot_engine_watch_steps(cot_engine *e, const cot_step_events *events)
{
    e->watch = events ? *events : (cot_step_events){0};
}

static cot_status run_step(cot_engine *e, cot_error *error)
{
    cot_step_result result;
    cot_step step = cot_scheduler_plan(&e->scheduler);
    step.reports = e->watch.on_step;
    const cot_cost_step held = cost_step_of(&step);
    cot_cost_expect(&e->scheduler.cost, &held);
    bool prefill = false;
    for (int32_t i = 0; i < step.spans; i++)
        prefill |= step.span[i].position < e->scheduler.by_row[step.span[i].sequence]->prompt_tokens;
    int64_t began_ns = cot_now_ns();
    cot_status status = cot_engine_group_step(e->group, &step, &result, error);
    if (status != COT_OK) return status;
    e->last_step_ns = cot_now_ns() - began_ns;
    e->steps++;
    *(prefill ? &e->prefill_ns : &e->decode_ns) += e->last_step_ns;
    learn_cost(e, &step, &held, &result);
    if (result.counts) tell_step(e, &step, result.counts);
    *(prefill ? &e->prefill_tokens : &e->decode_tokens) += step.tokens;
    end_overflowed(e, &step, &result);
    if (result.experts) {
        *(prefill ? &e->prefill_read_bytes : &e->decode_read_bytes) +=
            cot_engine_read_bytes(e, &step, result.experts);
        tell_routing(e, &step, result.experts, result.weights);
    }
    take_results(e, &step, result.logits);
    return COT_OK;
}

static cot_status check_outside(const cot_engine *e, cot_error *error)
{
    if (!e->inside) return check_usable(e, error);
    return cot_fail(error, COT_INVALID_ARGUMENT, "a callback may submit and cancel requests, not run them");
}

cot_status cot_engine_step(cot_engine *e, size_t *left, cot_error *error)
{
    cot_status status = check_outside(e, error);
    if (status != COT_OK) return status;
    e->inside = true;
    set_target(e);
    admit(e);
    status = e->scheduler.active_count ? run_step(e, error) : cot_engine_group_check(e->group, error);
    e->failed = status != COT_OK;
    cot_scheduler_sweep(&e->scheduler);
    e->inside = false;
    *left = (size_t)(e->scheduler.active_count + e->scheduler.waiting_count);
    return status;
}

/* All or none, and nobody is told: *failed is the one that could not be had. Their ids are consecutive. */
static cot_status enqueue_all(cot_engine *e, const cot_request *requests, size_t count,
                              const cot_events *events, size_t *failed, cot_error *error)
{
    uint64_t first = e->scheduler.last_id + 1;
    for (size_t i = 0; i < count; i++) {
        cot_request_state *r = enqueue(e, &requests[i], (int)(i % (size_t)e->info.ranks), events, error);
        if (!r) {
            for (size_t j = 0; j < i; j++)
                cot_scheduler_release(&e->scheduler, cot_scheduler_find(&e->scheduler, first + j));
            cot_scheduler_sweep(&e->scheduler);
            *failed = i;
            return COT_OUT_OF_MEMORY;
        }
        ((cot_engine_request *)r->beside)->told_as = i;
    }
    return COT_OK;
}

cot_status cot_engine_run(cot_engine *e, const cot_request *requests, size_t count, const cot_events *events,
                          size_t *failed, cot_error *error)
{
    size_t nobody, left;
    if (!failed) failed = &nobody;
    *failed = count;
    cot_status status = check_outside(e, error);
    if (status != COT_OK) return status;
    for (size_t i = 0; i < count; i++) {
        status = check_request(e, &requests[i], error);
        if (status != COT_OK) {
            *failed = i;
            return status;
        }
    }
    const uint64_t first = e->run_first = e->scheduler.last_id + 1, end = first + count;
    e->run_overflowed = end;
    status = enqueue_all(e, requests, count, events, failed, error);
    if (status != COT_OK) return status;
    do status = cot_engine_step(e, &left, error);
    while (status == COT_OK && left);
    if (status != COT_OK || e->run_overflowed >= end) return status;
    *failed = (size_t)(e->run_overflowed - first);
    return cot_fail(error, COT_INVALID_ARGUMENT, "the logits are not finite: the model's values overflowed");
}
