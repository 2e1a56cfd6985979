#include "server/choice.h"

#include <stdlib.h>
#include <string.h>

/* ---- beginning ---- */

static bool open_text(cot_choice *c, const cot_api_request *r, const cot_served_model *model,
                      cot_api_error *error)
{
    cot_error reason;
    cot_text_options options;
    cot_text_options_init(&options);
    options.stops = r->stops;
    options.stop_count = r->stop_count;
    options.include_stop = r->include_stop_str;
    options.keep_special_tokens = !r->skip_special_tokens;
    options.mark_added_tokens = cot_said_reads(r, model);
    options.stop_after_tokens = r->sampling.min_tokens;
    return cot_text_stream_open(&c->job.text, model->tokenizer, &options, &reason) == COT_OK ||
           cot_api_fail_of(error, 400, "stop", &reason);
}

static bool ends_text(const cot_choice *c, const cot_api_request *r, const cot_served_model *model,
                      int32_t token)
{
    if (c->generated < r->sampling.min_tokens) return false;
    for (size_t i = 0; i < model->eos_count && !r->sampling.ignore_eos; i++)
        if (model->eos[i] == token) return true;
    for (size_t i = 0; i < r->stop_tokens.count; i++)
        if (r->stop_tokens.ids[i] == token) return true;
    return false;
}

static void end(cot_choice *c, cot_finish finish)
{
    c->is_over = true;
    c->finish = finish;
    c->stopped_by = cot_text_stream_stopped_by(c->job.text);
}

/* Whether the text ended, or will, by itself. */
static bool is_cut(const cot_choice *c)
{
    return c->stopped_by < 0 && c->finish != COT_FINISH_EOS && c->finish != COT_FINISH_STOP;
}

/* Feeds what was delivered before to the text, silently; `c->generated` counts on. */
static bool replay(cot_choice *c, const cot_api_request *r, const cot_served_model *model,
                   const cot_api_ids *before, cot_api_error *error)
{
    const char *text;
    size_t bytes;
    bool stopped = false;
    cot_error reason;
    for (size_t i = 0; i < before->count && !c->is_over; i++) {
        const int32_t token = before->ids[i];
        const bool ends = ends_text(c, r, model, token);
        c->last_token = token;
        c->last_ends = ends;
        if (!ends || c->job.show_ending) {
            if (cot_text_stream_push(c->job.text, token, &text, &bytes, &stopped, &reason) != COT_OK)
                return cot_api_fail_of(error, 400, "continue_token_ids", &reason);
            if (c->said.parser && !cot_said_take(&c->said, text, bytes))
                return cot_api_fail(error, 503, NULL, NULL, "out of memory");
        }
        c->generated++;
        if (r->logprobs >= 0 && !cot_wire_skip_logprob(&c->logprobs, model, token))
            return cot_api_fail(error, 503, NULL, NULL, "out of memory");
        if (stopped || ends) end(c, stopped ? COT_FINISH_STOP : COT_FINISH_EOS);
        if (c->is_over && i + 1 < before->count)
            return cot_api_fail(error, 400, "invalid_value", "continue_token_ids",
                                "'continue_token_ids' goes on after token %zu, which ends the text", i);
    }
    cot_said_forget(&c->said);
    const bool computes = r->echo && r->logprobs >= 0; // chances of the prompt, if nothing else
    if (!c->is_over && c->generated >= r->max_tokens && !computes) end(c, COT_FINISH_LENGTH);
    bool good = true;
    if (c->is_over && !stopped && cot_text_stream_finish(c->job.text, &text, &bytes, &reason) == COT_OK)
        good = cot_said_take(&c->said, text, bytes);
    if (c->is_over) good = good && cot_said_end(&c->said, is_cut(c));
    return good || cot_api_fail(error, 503, NULL, NULL, "out of memory");
}

/* The prompt before the output, as text and, of its first token, as chances: nothing is known of that one. */
static bool echo_prompt(cot_choice *c, const cot_api_request *r, const cot_served_model *model,
                        cot_api_error *error)
{
    const cot_api_prompt *p = &r->prompts[c->prompt];
    char *decoded = NULL;
    size_t bytes = p->bytes;
    const size_t added = r->add_special_tokens ? cot_tokenizer_added_before(model->tokenizer) : 0;
    cot_error reason;
    if ((!p->text || r->truncate_prompt_tokens) &&
        cot_tokenizer_decode(model->tokenizer, &decoded, &bytes, p->tokens.ids, p->tokens.count,
                             r->skip_special_tokens, &reason) != COT_OK)
        return cot_api_fail_of(error, 400, "echo", &reason);
    bool good = cot_said_take(&c->said, decoded ? decoded : p->text, bytes);
    if (good) cot_wire_echo(&c->logprobs, c->said.content.data, bytes, decoded ? NULL : p->text, added);
    free(decoded);
    if (good && r->logprobs >= 0)
        good = cot_wire_add_logprob(&c->logprobs, model, &(cot_sampled){.token = *p->tokens.ids}, false);
    return good || cot_api_fail(error, 503, NULL, NULL, "out of memory");
}

/* Reasoning comes before what the text has to be, and has a bound. */
static bool let_reason(cot_constraint **constraint, const cot_api_request *r, const cot_served_model *model,
                       cot_api_error *error)
{
    const cot_constraint_reasoning how = {.vocab = model->vocab,
                                          .begin = model->dialects.begin,
                                          .end = model->dialects.end,
                                          .is_opened = r->opens_reasoning,
                                          .budget = r->thinking_token_budget,
                                          .without = model->dialects.openings,
                                          .without_count =
                                              r->constraint.is_of_calls ? model->dialects.opening_count : 0};
    cot_error reason;
    if (r->kind != COT_API_CHAT || model->dialects.end < 0 || (!*constraint && how.budget < 0)) return true;
    return cot_constraint_behind_reasoning(constraint, &how, *constraint, &reason) == COT_OK ||
           cot_api_fail_of(error, 503, NULL, &reason);
}

bool cot_choice_open(cot_choice *c, const cot_api_request *r, const cot_served_model *model, size_t index,
                     uint64_t seed, cot_api_error *error)
{
    static const cot_api_ids nothing = {0};
    const size_t of_prompt = index % (size_t)r->n;
    *c = (cot_choice){.index = index, .prompt = index / (size_t)r->n, .stopped_by = -1, .last_token = -1};
    const cot_api_ids *prompt = &r->prompts[c->prompt].tokens,
                      *before = r->continued ? &r->continued[index] : &nothing;
    c->logprobs.chat = r->kind == COT_API_CHAT;
    c->logprobs.names_ids = r->names_ids;
    c->logprobs.skip_special = r->skip_special_tokens;
    c->prompt_tokens = (int64_t)prompt->count;
    c->job.show_ending = r->include_stop_str;
    c->tokens = malloc((prompt->count + before->count) * sizeof *c->tokens);
    if (r->return_token_ids) c->new_ids = json_array();
    if (!c->tokens || (r->return_token_ids && !c->new_ids))
        return cot_api_fail(error, 503, NULL, NULL, "out of memory");
    memcpy(c->tokens, prompt->ids, prompt->count * sizeof *c->tokens);
    if (before->count) memcpy(c->tokens + prompt->count, before->ids, before->count * sizeof *c->tokens);
    if (!cot_said_open(&c->said, r, model)) return cot_api_fail(error, 503, NULL, NULL, "out of memory");
    if (!open_text(c, r, model, error) || !replay(c, r, model, before, error) ||
        (r->echo && !echo_prompt(c, r, model, error)))
        return false;

    cot_request *q = &c->job.request;
    cot_request_init(q);
    q->prompt = c->tokens;
    q->prompt_tokens = (int64_t)(prompt->count + before->count);
    q->output_tokens = (int64_t)before->count;
    q->sampling = r->sampling;
    q->sampling.seed = seed;
    q->sampling.stream = (uint32_t)of_prompt;
    q->logprobs = (int32_t)r->logprobs;
    q->logprob_tokens = r->logprob_tokens.ids;
    q->logprob_count = r->logprob_tokens.count;
    cot_error reason;
    if (r->constraint.compiled &&
        cot_constraint_copy(&q->constraint, r->constraint.compiled, &reason) != COT_OK)
        return cot_api_fail_of(error, 503, r->constraint.name, &reason);
    if (!let_reason(&q->constraint, r, model, error)) return false;
    q->all_logits = r->echo && r->logprobs >= 0;
    q->cache_salt = r->cache_salt;
    q->cache_salt_bytes = r->cache_salt_bytes;
    return true;
}

void cot_choice_close(cot_choice *c)
{
    cot_constraint_close(c->job.request.constraint);
    cot_text_stream_close(c->job.text);
    cot_wire_logprobs_clear(&c->logprobs);
    json_decref(c->new_ids);
    free(c->tokens);
    cot_said_close(&c->said);
}

size_t cot_choice_bytes(const cot_api_request *r, size_t prompt)
{
    // ids twice, here and in the engine; text, of calls as it came and as it is told; chances as JSON, of which a token has some 200 bytes each
    const size_t output = (size_t)r->max_tokens, in = r->prompts[prompt].tokens.count;
    const size_t told = r->logprob_tokens.count ? r->logprob_tokens.count : (size_t)r->logprobs;
    const size_t chances = r->logprobs < 0 ? 0 : 200 * (told + 1);
    return 2 * sizeof(int32_t) * (in + output) + (r->stream ? 0 : (16 + chances) * output) +
           (r->echo ? (8 + chances) * in : 0) + (r->tools.list ? 32 * output : 0) + 4096;
}

/* ---- going on ---- */

bool cot_choice_take(cot_choice *c, const cot_api_request *r, const cot_served_model *model,
                     const cot_job_event *event)
{
    const int64_t now_ns = event->at_ns;
    bool good = true;
    switch (event->kind) {
    case COT_JOB_ADMITTED:
        c->cached_tokens = event->cached_tokens;
        c->admitted_ns = now_ns;
        break;
    case COT_JOB_PROMPT_TOKEN:
        good = cot_wire_add_logprob(&c->logprobs, model, &event->sampled, true);
        break;
    case COT_JOB_TOKEN:
        if (!c->first_ns) {
            c->first_ns = now_ns;
            if (!c->job.request.output_tokens) cot_wire_end_prompt(&c->logprobs);
        }
        c->last_ns = now_ns;
        c->generated++;
        c->last_token = event->sampled.token;
        c->last_ends = event->sampled.ends;
        if (c->new_ids) good = !json_array_append_new(c->new_ids, json_integer(c->last_token));
        if (r->logprobs >= 0) good = cot_wire_add_logprob(&c->logprobs, model, &event->sampled, true) && good;
        break;
    case COT_JOB_OVER:
        break;
    }
    if (event->bytes) good = cot_said_take(&c->said, event->text, event->bytes) && good;
    if (event->last) {
        c->is_over = true;
        c->finish = event->finish;
        c->stopped_by = event->stopped_by;
        if (event->error) c->error = *event->error;
        c->was_busy = event->busy;
        good = cot_said_end(&c->said, is_cut(c)) && good;
    }
    return good;
}

const char *cot_choice_finish_reason(const cot_choice *c)
{
    if (!c->is_over) return NULL;
    if (is_cut(c)) return "length";
    return !c->said.call_count ? "stop" : c->said.legacy ? "function_call" : "tool_calls";
}

/* The string or the id that ended the text; an end-of-sequence token is no news. */
static json_t *stop_reason(const cot_choice *c, const cot_api_request *r)
{
    if (!c->is_over) return NULL;
    if (c->stopped_by >= 0) return json_string(r->stops[c->stopped_by]);
    for (size_t i = 0; c->last_ends && i < r->stop_tokens.count; i++)
        if (r->stop_tokens.ids[i] == c->last_token) return json_integer(c->last_token);
    return NULL;
}

json_t *cot_choice_json(cot_choice *c, const cot_api_request *r, const cot_wire_head *head)
{
    cot_wire_choice wire = {.index = c->index,
                            .text = c->said.content.data,
                            .bytes = c->said.content.bytes,
                            .message = !head->chat    ? NULL
                                       : head->stream ? cot_said_delta(&c->said, !c->told)
                                                      : cot_said_whole(&c->said),
                            .logprobs = r->logprobs >= 0 ? cot_wire_take_logprobs(&c->logprobs) : NULL,
                            .finish_reason = cot_choice_finish_reason(c),
                            .stop_reason = stop_reason(c, r),
                            .token_ids = c->new_ids,
                            .prompt_token_ids = c->new_ids && !c->told
                                                    ? cot_wire_ids(c->tokens, (size_t)c->prompt_tokens)
                                                    : NULL};
    json_t *json = cot_wire_choice_json(head, &wire); // it takes the ids and chances over
    c->new_ids = r->return_token_ids ? json_array() : NULL;
    if (!head->chat) c->said.content.bytes = 0;
    c->told = true;
    return json;
}
