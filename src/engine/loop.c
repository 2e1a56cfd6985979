#include "engine/loop.h"

#include "base/error.h"
#include "base/integers.h"
#include "coterie/constraint.h"

#include <stdlib.h>
#include <string.h>

cot_status cot_loop_open(cot_loop *l, const cot_loop_options *options, const cot_executor *executor,
                         cot_error *error)
{
    *l = (cot_loop){.options = *options, .executor = *executor};
    l->options.limits.target_ns = options->tbt_ns > 0 ? options->tbt_ns : 0;
    l->touched = calloc((size_t)options->experts + 1, sizeof *l->touched);
    if (!l->touched) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the engine's tables");
    const cot_status status = cot_scheduler_open(&l->scheduler, &l->options.limits, error);
    cot_cost_init(&l->scheduler.cost, options->prior, options->experts, options->chosen, options->at_once);
    return status == COT_OK ? cot_profiles_open(&l->profiles, &options->profiles, &l->scheduler, error)
                            : status;
}

void cot_loop_close(cot_loop *l)
{
    cot_scheduler_close(&l->scheduler);
    cot_profiles_close(&l->profiles);
    free(l->touched);
    l->touched = NULL;
}

/* The most tokens that a request can come to. The last token generated is not fed. */
static int64_t limit_of(const cot_loop *l, const cot_request *r)
{
    int64_t more = r->forced ? r->forced_tokens : r->sampling.max_tokens - r->output_tokens,
            context = l->options.context_tokens;
    if (more < 0) more = 0; // as much has been generated before
    return more > context - r->prompt_tokens ? context : r->prompt_tokens + more;
}

/* ---- coming and going ---- */

static cot_status check_request(const cot_loop *l, const cot_request *r, cot_error *error)
{
    int64_t forced = r->forced ? r->forced_tokens : 0, context = l->options.context_tokens,
            pages = l->options.limits.pages;
    if (r->prompt_tokens < 1) return cot_fail(error, COT_INVALID_ARGUMENT, "the prompt is empty");
    if (r->output_tokens < 0 || r->output_tokens >= r->prompt_tokens)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%lld of the prompt's %lld tokens are said to be output",
                        (long long)r->output_tokens, (long long)r->prompt_tokens);
    if (r->cache_salt_bytes && !r->cache_salt)
        return cot_fail(error, COT_INVALID_ARGUMENT, "a cache salt of %zu bytes is nowhere",
                        r->cache_salt_bytes);
    if (r->forced && r->constraint)
        return cot_fail(error, COT_INVALID_ARGUMENT, "forced tokens and a constraint exclude one another");
    if (forced < 0) return cot_fail(error, COT_INVALID_ARGUMENT, "%lld forced tokens", (long long)forced);
    if (r->prompt_tokens > context || forced > context - r->prompt_tokens)
        return cot_fail(error, COT_TOO_LONG, "%llu tokens, the context is %lld",
                        (unsigned long long)r->prompt_tokens + (unsigned long long)forced,
                        (long long)context);
    if (cot_page_count(limit_of(l, r)) > pages)
        return cot_fail(error, COT_OUT_OF_MEMORY, "up to %lld tokens, the KV cache holds %lld",
                        (long long)limit_of(l, r), (long long)cot_page_positions(pages));
    const cot_executor *x = &l->executor;
    return x->accepts ? x->accepts(x->context, r, limit_of(l, r), error) : COT_OK;
}

cot_status cot_loop_usable(const cot_loop *l, cot_error *error)
{
    if (!l->failed) return COT_OK;
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
static cot_request_state *enqueue(cot_loop *l, const cot_request *request, int home, const cot_events *events,
                                  cot_error *error)
{
    const cot_sampling *sampling = &request->sampling;
    const size_t biases = request->forced ? 0 : sampling->bias_count,
                 stops = request->forced ? 0 : sampling->stop_count,
                 told = request->forced || request->logprobs < 0 ? 0 : request->logprob_count;
    cot_request_state *r = cot_scheduler_submit(&l->scheduler, request, limit_of(l, request), home,
                                                sizeof(cot_loop_request) + (2 * biases + stops + told) * 4 +
                                                    cot_profile_bytes(&l->profiles));
    if (!r) {
        cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a request");
        return NULL;
    }
    cot_loop_request *own = r->beside;
    *own = (cot_loop_request){.told_as = r->id,
                              .events = *events,
                              .sampling = request->sampling,
                              .logprobs = request->logprobs,
                              .logprob_count = told,
                              .constraint = request->constraint};
    void *end = own + 1;
    own->sampling.bias_tokens = keep(&end, sampling->bias_tokens, biases);
    own->sampling.bias = keep(&end, sampling->bias, biases);
    own->sampling.stop_tokens = keep(&end, sampling->stop_tokens, stops);
    if (told) own->logprob_tokens = keep(&end, request->logprob_tokens, told);
    cot_profile_begin(&own->profile, &l->profiles, end);
    return r;
}

cot_status cot_loop_submit(cot_loop *l, uint64_t *id, const cot_request *request, int home,
                           const cot_events *events, cot_error *error)
{
    *id = 0;
    cot_status status = cot_loop_usable(l, error);
    if (status == COT_OK) status = check_request(l, request, error);
    if (status == COT_OK && home == COT_HOME_ANY)
        home = cot_scheduler_choose_home(&l->scheduler, request, l->options.ranks);
    if (status == COT_OK && (home < 0 || home >= l->options.ranks))
        status =
            cot_fail(error, COT_INVALID_ARGUMENT, "home %d is not in [0, %d]", home, l->options.ranks - 1);
    if (status != COT_OK) return status;
    cot_request_state *r = enqueue(l, request, home, events, error);
    if (!r) return COT_OUT_OF_MEMORY;
    *id = r->id;
    return COT_OK;
}

static void finish(cot_loop *l, cot_request_state *r, cot_finish reason)
{
    cot_profiles_finish(&l->profiles, &cot_loop_request_of(r)->profile, r, l->epoch);
    cot_scheduler_release(&l->scheduler, r);
    const bool failed = reason == COT_FINISH_OVERFLOW || reason == COT_FINISH_CONSTRAINT;
    if (failed && r->id >= l->run_first && r->id < l->run_failed) l->run_failed = r->id;
    const cot_loop_request *own = cot_loop_request_of(r);
    if (own->events.on_finish) own->events.on_finish(own->events.context, own->told_as, reason);
}

cot_status cot_loop_cancel(cot_loop *l, uint64_t id, cot_error *error)
{
    cot_status status = cot_loop_usable(l, error);
    if (status != COT_OK) return status;
    cot_request_state *r = cot_scheduler_find(&l->scheduler, id);
    if (!r)
        return cot_fail(error, COT_NOT_FOUND, "there is no request %llu, or it is over",
                        (unsigned long long)id);
    bool inside = l->inside;
    l->inside = true;
    finish(l, r, COT_FINISH_CANCELLED);
    l->inside = inside;
    if (!inside) cot_scheduler_sweep(&l->scheduler);
    return COT_OK;
}

/* ---- what comes out of a step ---- */

/* A generated sequence has come to its limit: max_tokens, or the context where that is less. */
static cot_finish why_full(const cot_request_state *r)
{
    const cot_loop_request *own = cot_loop_request_of(r);
    return own->sampling.max_tokens > r->limit - r->text_begin ? COT_FINISH_CONTEXT : COT_FINISH_LENGTH;
}

/* The request has been fed all it knows: what comes next, or is it over? */
static void advance(cot_loop *l, cot_request_state *r, const cot_executor_span *came)
{
    const cot_loop_request *own = cot_loop_request_of(r);
    const bool full = r->known >= r->limit;
    if (full || r->forced) {
        if (full)
            finish(l, r, r->forced ? COT_FINISH_LENGTH : why_full(r));
        else
            r->known++;
        return;
    }
    if (own->events.on_sampled) own->events.on_sampled(own->events.context, own->told_as, &came->sampled);
    if (r->ended) return; // cancelled meanwhile
    if (came->sampled.ends) {
        finish(l, r, came->finish);
        return;
    }
    r->tokens[r->known++] = came->sampled.token;
    const bool go_on =
        !own->events.on_token || own->events.on_token(own->events.context, own->told_as, came->sampled.token);
    if (r->ended) return; // cancelled meanwhile
    if (!go_on)
        finish(l, r, COT_FINISH_STOP);
    else if (r->known >= r->limit)
        finish(l, r, why_full(r));
}

/* Ends the sequences whose values are no longer finite, before anything of this step is told of them or kept for others:
 * the prefix cache knows only what was fed in steps that went well. And those that are stuck. */
static void end_failed(cot_loop *l, const cot_step *step, const cot_executor_answer *answer)
{
    for (int32_t i = 0; i < step->spans; i++) {
        cot_request_state *r = l->scheduler.by_row[step->span[i].sequence];
        const cot_executor_span *came = &answer->span[i];
        if ((came->unsound || came->stuck) && !r->ended)
            finish(l, r, came->unsound ? COT_FINISH_OVERFLOW : COT_FINISH_CONSTRAINT);
    }
}

static void take_results(cot_loop *l, const cot_step *step, const cot_executor_answer *answer)
{
    const cot_executor *x = &l->executor;
    int64_t row = 0, token = 0;
    for (int32_t i = 0; i < step->spans; row += step->span[i].logits, token += step->span[i++].tokens) {
        const cot_span *span = &step->span[i];
        cot_request_state *r = l->scheduler.by_row[span->sequence];
        if (!r->ended && x->tell_logits) x->tell_logits(x->context, span, r, row);
        if (!r->ended) {
            cot_scheduler_fed(&l->scheduler, r, span->tokens);
            cot_profile *profile = &((cot_loop_request *)r->beside)->profile;
            cot_profiles_feed(&l->profiles, profile, r, step, span, token, answer->popular, answer->stride);
            cot_profiles_go_on(&l->profiles, profile, r, span);
        }
        if (!r->ended && r->fed == r->known) advance(l, r, &answer->span[i]);
    }
}

/* ---- steps ---- */

static void admit(cot_loop *l)
{
    for (cot_request_state *r; (r = cot_scheduler_admit(&l->scheduler));) {
        const cot_loop_request *own = cot_loop_request_of(r);
        cot_profiles_admit(&l->profiles, &((cot_loop_request *)r->beside)->profile, r);
        if (!r->forced && r->known == r->limit && !r->all_logits) // nothing may be generated
            finish(l, r, why_full(r));
        else if (r->admissions == 1 && own->events.on_admit)
            own->events.on_admit(own->events.context, own->told_as, r->fed);
    }
}

/* With COT_TBT_AUTO: at the length that sequences have now. */
static void set_target(cot_loop *l)
{
    cot_scheduler *s = &l->scheduler;
    int64_t positions = 0;
    if (l->options.tbt_ns != COT_TBT_AUTO || !s->active_count) return;
    for (int64_t i = 0; i < s->active_count; i++) positions += s->active[i]->known;
    positions = positions / s->active_count * s->limits.sequences;
    const cot_cost_step decodes = {s->limits.sequences, positions, positions};
    s->limits.target_ns = (int64_t)(2 * cot_cost_predict(&s->cost, &decodes));
}

cot_cost_step cot_loop_cost_step(const cot_step *step)
{
    cot_cost_step held = {0};
    for (int32_t i = 0; i < step->spans; i++)
        cot_cost_add_span(&held, step->span[i].position, step->span[i].tokens);
    return held;
}

static void learn_cost(cot_loop *l, const cot_step *step, const cot_cost_step *held,
                       const cot_executor_answer *answer)
{
    cot_cost *cost = &l->scheduler.cost;
    if (answer->layout && (!l->layout || l->epoch != answer->epoch)) cot_cost_place(cost, answer->layout);
    l->layout = answer->layout;
    l->epoch = answer->epoch;
    cot_cost_load load = cot_cost_learn_routing(cost, answer->experts, answer->layers, answer->stride,
                                                answer->routed, answer->layout, l->touched);
    const bool sees_all = answer->routed == step->tokens;
    if (!sees_all && answer->served)
        load = cot_cost_learn_served(cost, held, answer->served, l->options.ranks, answer->layers);
    cot_cost_learn(cost, held, sees_all || answer->served ? &load : NULL,
                   (double)(l->last_step_ns ? l->last_step_ns : 1));
}

/* Tells the step that has just been run. */
static void tell_step(cot_loop *l, const cot_step *step, const cot_cost_step *held,
                      const cot_executor_answer *answer)
{
    cot_home_load homes[COT_PAGE_POOL_HOMES];
    cot_step_report report = {.step = l->steps,
                              .sequences = step->spans,
                              .tokens = step->tokens,
                              .positions = held->positions,
                              .pairs = held->pairs,
                              .epoch = answer->epoch,
                              .predicted_ns = l->scheduler.cost.predicted_ns,
                              .observed_ns = (double)l->last_step_ns,
                              .ranks = l->options.ranks,
                              .routing = answer->routing,
                              .homes = l->options.limits.homes,
                              .home = homes};
    cot_scheduler_get_homes(&l->scheduler, homes);
    for (int32_t i = 0; i < step->spans; i++) {
        const cot_span *span = &step->span[i];
        const int64_t left = l->scheduler.by_row[span->sequence]->prompt_tokens - span->position;
        report.prompt_tokens += left < 0 ? 0 : left < span->tokens ? left : span->tokens;
    }
    memcpy(report.bytes, answer->bytes, sizeof report.bytes);
    l->watch.on_step(l->watch.context, &report);
}

static cot_status run_step(cot_loop *l, cot_error *error)
{
    const cot_executor *x = &l->executor;
    cot_executor_answer answer = {0};
    cot_step step = cot_scheduler_plan(&l->scheduler);
    step.reports = l->watch.on_step;
    if (cot_profiles_count(&l->profiles)) cot_profiles_want(&l->profiles, &step, l->steps);
    const cot_cost_step held = cot_loop_cost_step(&step);
    cot_cost_expect(&l->scheduler.cost, &held);
    bool prefill = false;
    for (int32_t i = 0; i < step.spans; i++)
        prefill |= step.span[i].position < l->scheduler.by_row[step.span[i].sequence]->prompt_tokens;
    cot_status status = x->step(x->context, &step, l->scheduler.by_row, &answer, error);
    if (status != COT_OK) return status;
    l->last_step_ns = answer.ns;
    if (step.routed_every) cot_popularity_elapse(&l->profiles.popularity, (double)answer.ns / 1e9);
    l->steps++;
    l->steps_of[cot_smaller(cot_log2_up(step.tokens), COT_STEP_CLASSES - 1)]++;
    *(prefill ? &l->prefill_ns : &l->decode_ns) += answer.ns;
    *(prefill ? &l->prefill_tokens : &l->decode_tokens) += step.tokens;
    *(prefill ? &l->prefill_read_bytes : &l->decode_read_bytes) += answer.read_bytes;
    learn_cost(l, &step, &held, &answer);
    if (step.reports) tell_step(l, &step, &held, &answer);
    end_failed(l, &step, &answer);
    if (x->tell_routing) x->tell_routing(x->context, &step, l->scheduler.by_row);
    take_results(l, &step, &answer);
    return COT_OK;
}

cot_status cot_loop_outside(const cot_loop *l, cot_error *error)
{
    if (!l->inside) return cot_loop_usable(l, error);
    return cot_fail(error, COT_INVALID_ARGUMENT, "a callback may submit and cancel requests, not run them");
}

cot_status cot_loop_step(cot_loop *l, size_t *left, cot_error *error)
{
    cot_status status = cot_loop_outside(l, error);
    if (status != COT_OK) return status;
    l->inside = true;
    set_target(l);
    admit(l);
    const bool had_work = l->scheduler.active_count > 0;
    if (had_work)
        status = run_step(l, error);
    else if (l->executor.idle)
        status = l->executor.idle(l->executor.context, error);
    if (status == COT_OK && l->executor.between)
        status = l->executor.between(l->executor.context, had_work ? l->last_step_ns : 0, error);
    l->failed = status != COT_OK;
    cot_scheduler_sweep(&l->scheduler);
    l->inside = false;
    *left = (size_t)(l->scheduler.active_count + l->scheduler.waiting_count);
    return status;
}

cot_status cot_loop_survives(cot_loop *l, cot_status status)
{
    l->failed |= status == COT_PEER_FAILED || status == COT_TIMED_OUT;
    return status;
}

cot_status cot_loop_place(cot_loop *l, const int32_t *words, int64_t count, cot_error *error)
{
    const cot_executor *x = &l->executor;
    const cot_status status = cot_loop_outside(l, error);
    if (status != COT_OK) return status;
    if (!x->place) return cot_fail(error, COT_UNSUPPORTED, "there are no experts to place");
    return cot_loop_survives(l, x->place(x->context, words, count, error));
}

/* All or none, and nobody is told: *failed is the one that could not be had. Their ids are consecutive. */
static cot_status enqueue_all(cot_loop *l, const cot_request *requests, size_t count,
                              const cot_events *events, size_t *failed, cot_error *error)
{
    uint64_t first = l->scheduler.last_id + 1;
    for (size_t i = 0; i < count; i++) {
        cot_request_state *r = enqueue(l, &requests[i], (int)(i % (size_t)l->options.ranks), events, error);
        if (!r) {
            for (size_t j = 0; j < i; j++)
                cot_scheduler_release(&l->scheduler, cot_scheduler_find(&l->scheduler, first + j));
            cot_scheduler_sweep(&l->scheduler);
            *failed = i;
            return COT_OUT_OF_MEMORY;
        }
        ((cot_loop_request *)r->beside)->told_as = i;
    }
    return COT_OK;
}

cot_status cot_loop_run(cot_loop *l, const cot_request *requests, size_t count, const cot_events *events,
                        size_t *failed, cot_error *error)
{
    size_t nobody, left;
    if (!failed) failed = &nobody;
    *failed = count;
    cot_status status = cot_loop_outside(l, error);
    if (status != COT_OK) return status;
    for (size_t i = 0; i < count; i++) {
        status = check_request(l, &requests[i], error);
        if (status != COT_OK) {
            *failed = i;
            return status;
        }
    }
    const uint64_t first = l->run_first = l->scheduler.last_id + 1, end = first + count;
    l->run_failed = end;
    status = enqueue_all(l, requests, count, events, failed, error);
    if (status != COT_OK) return status;
    do status = cot_loop_step(l, &left, error);
    while (status == COT_OK && left);
    if (status != COT_OK || l->run_failed >= end) return status;
    *failed = (size_t)(l->run_failed - first);
    const uint32_t *mask;
    cot_constraint *constraint = requests[*failed].constraint;
    if (constraint && cot_constraint_mask(constraint, &mask, error) != COT_OK) return COT_INVALID_ARGUMENT;
    return cot_fail(error, COT_INVALID_ARGUMENT, "the logits are not finite: the model's values overflowed");
}
