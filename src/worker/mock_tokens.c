/* Jobs of the mock: the tokens that they get, and how their owner is told. */
#include "worker/mock_worker.h"

#include "base/buffer.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"

#include <stdlib.h>
#include <xxhash.h>

void cot_mock_tell(const cot_mock_worker *b, const cot_mock_job *m, cot_job_event *event)
{
    event->at_ns = cot_now_ns();
    if (!event->text) event->text = "";
    if (!event->last) event->stopped_by = -1;
    b->owner.on_event(b->owner.context, m->job->number, event);
}

/* Tells the last event and forgets the job, which is in neither list any more. */
static void tell_last(cot_mock_worker *b, cot_mock_job *m, cot_job_event *event)
{
    b->state.load.ended[0]++; // nothing starts over here
    const uint64_t number = m->job->number;
    event->last = true;
    m->job->is_over = true;
    for (cot_mock_job *w = b->waiting; w; w = w->next)
        if (w->leader == m) w->leader = NULL;
    cot_mock_tell(b, m, event);
    event->kind = COT_JOB_OVER;
    event->text = "";
    event->bytes = 0;
    if (m->twice) b->owner.on_event(b->owner.context, number, event);
    free(m->told);
    free(m);
}

void cot_mock_tell_over(cot_mock_worker *b, cot_mock_job *m, cot_finish finish, const cot_error *error,
                        bool busy)
{
    cot_job_event event = {
        .kind = COT_JOB_OVER, .finish = finish, .stopped_by = -1, .error = error, .busy = busy};
    tell_last(b, m, &event);
}

/* ---- tokens ---- */

uint64_t cot_mock_key(const cot_mock_worker *b, const cot_request *r)
{
    const size_t prompt = (size_t)(r->prompt_tokens - r->output_tokens);
    const uint64_t text = XXH3_64bits(r->prompt, prompt * sizeof *r->prompt),
                   key = cot_random_bits((uint64_t)b->mock->seed, text, 0);
    return r->sampling.temperature > 0 ? cot_random_bits(key, r->sampling.seed, r->sampling.stream) : key;
}

static int32_t token_at(const cot_mock_worker *b, const cot_mock_job *m, int64_t place)
{
    const cot_request *r = &m->job->request;
    const int64_t ends_at = b->mock->tokens;
    if (ends_at && place >= ends_at && place >= r->sampling.min_tokens && !r->sampling.ignore_eos)
        return b->mock->eos;
    return b->mock->words[cot_random_bits(m->key, 1, (uint64_t)place) % b->mock->word_count];
}

static bool stops_at(const cot_request *r, int32_t token, int64_t place)
{
    for (size_t i = 0; i < r->sampling.stop_count && place >= r->sampling.min_tokens; i++)
        if (r->sampling.stop_tokens[i] == token) return true;
    return false;
}

/* Chances that sum to less than one; `top` has room for all that are asked for. */
static cot_sampled sampled_of(const cot_mock_worker *b, const cot_request *r, int32_t token, cot_logprob *top)
{
    cot_sampled sampled = {.token = token};
    if (r->logprobs < 0) return sampled;
    sampled.logprob = -1;
    sampled.rank = 1;
    sampled.top = top;
    for (; sampled.top_count < r->logprob_count; sampled.top_count++) {
        const int32_t asked = r->logprob_tokens[sampled.top_count];
        top[sampled.top_count] = (cot_logprob){asked, asked == token ? -1 : -2};
    }
    for (; !r->logprob_count && sampled.top_count < (size_t)r->logprobs; sampled.top_count++)
        top[sampled.top_count] = (cot_logprob){
            (int32_t)((token + (int64_t)sampled.top_count) % b->mock->vocab), -1 - (float)sampled.top_count};
    return sampled;
}

/* The text of a token, and the rest where it is the last; what is joined lives in `*all`. */
static void add_text(cot_buffer *all, cot_mock_job *m, const cot_job_event *e, bool is_last, cot_error *error)
{
    cot_job *job = m->job;
    const char *text;
    size_t bytes;
    bool stopped = false;
    cot_status status = COT_OK;
    if (!e->sampled.ends || job->show_ending) {
        status = cot_text_stream_push(job->text, e->sampled.token, &text, &bytes, &stopped, error);
        if (status == COT_OK && !cot_buffer_append(all, text, bytes)) status = COT_OUT_OF_MEMORY;
    }
    if (status == COT_OK && is_last && !stopped) {
        status = cot_text_stream_finish(job->text, &text, &bytes, error);
        if (status == COT_OK && !cot_buffer_append(all, text, bytes)) status = COT_OUT_OF_MEMORY;
    }
    if (status == COT_OUT_OF_MEMORY) cot_fail(error, status, "out of memory for the answer");
}

static void tell_prompt(const cot_mock_worker *b, const cot_mock_job *m)
{
    const cot_request *r = &m->job->request;
    cot_logprob top[COT_MAX_LOGPROB_TOKENS];
    for (int64_t i = 1; i < r->prompt_tokens && r->all_logits; i++) {
        cot_job_event event = {.kind = COT_JOB_PROMPT_TOKEN, .sampled = sampled_of(b, r, r->prompt[i], top)};
        cot_mock_tell(b, m, &event);
    }
}

/* Keeps the blocks that are whole by now. */
static void store(cot_mock_worker *b, cot_mock_job *m, int64_t tokens)
{
    const int64_t block = b->mock->block_tokens;
    if (tokens / block == m->stored / block) return;
    m->stored = tokens;
    cot_mock_cache_store(&b->cache[m->home], &m->job->request, m->told, tokens);
}

/* So many tokens more are as good as fed, behind a position. */
static void count_fed(cot_mock_worker *b, int64_t position, int64_t tokens)
{
    b->step.tokens += tokens;
    b->step.positions += position + tokens;
    b->step.pairs += tokens * position + tokens * (tokens + 1) / 2;
}

bool cot_mock_tell_token(cot_mock_worker *b, cot_mock_job *m)
{
    const cot_request *r = &m->job->request;
    const int64_t place = r->output_tokens + m->told_count;
    cot_logprob top[COT_MAX_LOGPROB_TOKENS];
    cot_error error = {0};
    cot_buffer text = {0};
    cot_job_event e = {.kind = COT_JOB_TOKEN, .stopped_by = -1};
    if (!m->told_count) {
        tell_prompt(b, m);
        store(b, m, r->prompt_tokens);
        b->step.prompt_tokens += r->prompt_tokens - m->cached_tokens;
        count_fed(b, m->cached_tokens, r->prompt_tokens - m->cached_tokens);
    } else
        count_fed(b, r->prompt_tokens + m->told_count - 1, 1);
    b->step.sequences++;
    if (place >= r->sampling.max_tokens) { // the prompt's chances were all that was asked for
        cot_mock_tell_over(b, m, COT_FINISH_LENGTH, NULL, false);
        return true;
    }
    e.sampled = sampled_of(b, r, token_at(b, m, place), top);
    const bool eos = e.sampled.token == b->mock->eos && !r->sampling.ignore_eos,
               stop = stops_at(r, e.sampled.token, place);
    e.sampled.ends = eos || stop;
    const bool full = place + 1 >= r->sampling.max_tokens,
               long_enough = r->prompt_tokens + m->told_count + 1 >= b->mock->context_tokens;
    e.finish = eos ? COT_FINISH_EOS : stop ? COT_FINISH_STOP : full ? COT_FINISH_LENGTH : COT_FINISH_CONTEXT;
    e.last = e.sampled.ends || full || long_enough;
    add_text(&text, m, &e, e.last, &error);
    if (cot_text_stream_stopped_by(m->job->text) >= 0) {
        e.last = true;
        e.finish = COT_FINISH_STOP;
        e.stopped_by = cot_text_stream_stopped_by(m->job->text);
    }
    e.text = text.bytes ? text.data : "";
    e.bytes = text.bytes;
    m->told[m->told_count++] = e.sampled.token;
    b->tokens++;
    const bool over = e.last || error.status != COT_OK;
    store(b, m, r->prompt_tokens + m->told_count - 1); // the newest token is not fed yet
    if (error.status != COT_OK)
        cot_mock_tell_over(b, m, COT_FINISH_CANCELLED, &error, false);
    else if (over)
        tell_last(b, m, &e);
    else
        cot_mock_tell(b, m, &e);
    cot_buffer_free(&text);
    return over;
}
