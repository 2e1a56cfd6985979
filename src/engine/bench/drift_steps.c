/* The engine's loop over an executor that notes which tokens a step has: sequences come and go as they do with ranks. */
#include "engine/bench/drift.h"

#include "base/error.h"
#include "base/rng.h"
#include "engine/loop.h"

#include <stdlib.h>
#include <string.h>

enum { STREAM_ORDER = 41, STREAM_BEGIN = 42, STEP_WAIT = 8 };

/* A sequence that runs. */
typedef struct play {
    uint64_t id;
    bool over;
    int32_t half;
    int64_t first; // the token of the trace that its first one is
} play;

typedef struct player {
    const cot_bench_drift_options *o;
    cot_bench_drift_steps *out;
    play *play; // [width], at home on rank i % P
    cot_executor_span *span;
    int32_t *order; // of the half's sequences
    int32_t half, next;
    uint64_t draws;
} player;

static double uniform(player *p, uint64_t stream)
{
    return cot_random_uniform(p->o->seed, stream, p->draws++);
}

/* ---- the executor ---- */

static cot_status note_step(void *context, const cot_step *step, cot_request_state *const *by_row,
                            cot_executor_answer *answer, cot_error *error)
{
    player *p = context;
    cot_bench_drift_steps *out = p->out;
    const int64_t begin = out->begin[out->steps];
    if (begin + step->tokens > out->room)
        return cot_fail(error, COT_OUT_OF_MEMORY, "more than %lld tokens in %lld steps", (long long)out->room,
                        (long long)out->steps);
    cot_bench_drift_token *token = out->token + begin;
    for (int32_t i = 0; i < step->spans; i++) {
        const cot_span *span = &step->span[i];
        const play *from = &p->play[by_row[span->sequence]->recorded];
        for (int32_t k = 0; k < span->tokens; k++)
            *token++ = (cot_bench_drift_token){from->half, span->home, from->first + span->position + k};
        p->span[i] = (cot_executor_span){0};
    }
    out->begin[++out->steps] = begin + step->tokens;
    *answer = (cot_executor_answer){.ns = 1, .span = p->span};
    return COT_OK;
}

static void on_finish(void *context, uint64_t request, cot_finish finish)
{
    (void)request;
    (void)finish;
    ((play *)context)->over = true;
}

/* ---- sequences ---- */

static void shuffle(player *p)
{
    const cot_bench_drift_half *h = &p->o->half[p->half];
    memcpy(p->order, h->sequence, (size_t)h->sequences * sizeof *p->order);
    for (int32_t i = h->sequences - 1; i > 0; i--) {
        const int32_t j = (int32_t)(uniform(p, STREAM_ORDER) * (i + 1)), old = p->order[i];
        p->order[i] = p->order[j];
        p->order[j] = old;
    }
    p->next = 0;
}

/* The next sequence of the list runs as the i-th. When a half begins each has come to some place of its text, as where a server has run
 * for long: else all would begin alike. */
static cot_status begin_play(cot_loop *loop, player *p, int32_t i, bool anywhere, cot_error *error)
{
    const cot_bench_drift_half *h = &p->o->half[p->half];
    if (p->next == h->sequences) shuffle(p);
    const int64_t *offset = h->trace->sequence_offsets + p->order[p->next++];
    const int64_t skip = anywhere ? (int64_t)(uniform(p, STREAM_BEGIN) * (double)(offset[1] - offset[0])) : 0;
    const int32_t prompt = 0;
    cot_request request;
    cot_request_init(&request);
    request.prompt = &prompt;
    request.prompt_tokens = 1;
    request.recorded = i;
    request.sampling.max_tokens = offset[1] - offset[0] - skip; // the last one is not fed
    play *now = &p->play[i];
    now->over = false;
    now->half = p->half;
    now->first = offset[0] + skip;
    const cot_events events = {.context = now, .on_finish = on_finish};
    return cot_loop_submit(loop, &now->id, &request, i % p->o->ranks, &events, error);
}

static cot_status play_half(cot_loop *loop, player *p, cot_error *error)
{
    const int32_t width = p->o->half[p->half].width;
    cot_status status = COT_OK;
    size_t left;
    shuffle(p);
    for (int32_t i = 0; status == COT_OK && i < width; i++) status = begin_play(loop, p, i, true, error);
    for (int64_t step = 0; status == COT_OK && step < p->o->steps; step++) {
        for (int32_t i = 0; status == COT_OK && i < width; i++)
            if (p->play[i].over) status = begin_play(loop, p, i, false, error);
        if (status == COT_OK) status = cot_loop_step(loop, &left, error);
    }
    for (int32_t i = 0; status == COT_OK && i < width; i++)
        if (!p->play[i].over) status = cot_loop_cancel(loop, p->play[i].id, error);
    return status;
}

static int64_t longest(const cot_bench_drift_options *o)
{
    int64_t most = 0;
    for (int half = 0; half < 2; half++)
        for (int32_t i = 0; i < o->half[half].sequences; i++) {
            const int64_t *offset = o->half[half].trace->sequence_offsets + o->half[half].sequence[i];
            most = offset[1] - offset[0] > most ? offset[1] - offset[0] : most;
        }
    return most;
}

static cot_status play_all(player *p, int32_t width, cot_error *error)
{
    const int64_t context = longest(p->o) + 1;
    const cot_loop_options options = {
        .limits = {.sequences = width,
                   .pages = width * cot_page_count(context),
                   .step_tokens = width,
                   .step_logits = width,
                   .step_maps = cot_scheduler_step_maps(width, width, context, 0),
                   .homes = 1,
                   .max_wait_steps = STEP_WAIT},
        .context_tokens = context,
        .ranks = p->o->ranks,
        .prior = {1, 1, 1, 1, 1},
        .experts = p->o->half[0].trace->n_experts,
        .chosen = p->o->half[0].trace->top_k};
    const cot_executor executor = {.context = p, .step = note_step};
    cot_loop loop;
    cot_status status = cot_loop_open(&loop, &options, &executor, error);
    for (p->half = 0; status == COT_OK && p->half < 2; p->half++) status = play_half(&loop, p, error);
    cot_loop_close(&loop);
    return status;
}

cot_status cot_bench_drift_steps_make(cot_bench_drift_steps *steps, const cot_bench_drift_options *o,
                                      cot_error *error)
{
    const int32_t width = o->half[0].width > o->half[1].width ? o->half[0].width : o->half[1].width,
                  most = o->half[0].sequences > o->half[1].sequences ? o->half[0].sequences
                                                                     : o->half[1].sequences;
    *steps = (cot_bench_drift_steps){.room = 2 * o->steps * width};
    steps->begin = calloc((size_t)(2 * o->steps) + 1, sizeof *steps->begin);
    steps->token = malloc((size_t)steps->room * sizeof *steps->token);
    player p = {.o = o,
                .out = steps,
                .play = calloc((size_t)width, sizeof *p.play),
                .span = malloc((size_t)width * sizeof *p.span),
                .order = malloc((size_t)most * sizeof *p.order)};
    const cot_status status =
        steps->begin && steps->token && p.play && p.span && p.order
            ? play_all(&p, width, error)
            : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %lld steps", (long long)(2 * o->steps));
    free(p.play);
    free(p.span);
    free(p.order);
    return status;
}

void cot_bench_drift_steps_free(cot_bench_drift_steps *steps)
{
    free(steps->begin);
    free(steps->token);
    *steps = (cot_bench_drift_steps){0};
}
