#include "schedule/compose.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static const double most_late = 0.5; // part of the foreseen time that is left for what is foreseen wrongly

/* What is handed out. */
struct step {
    cot_request_state *const *active;
    int64_t count, room, rows; // room: tokens
    int32_t given[COT_COMPOSE_MOST_ACTIVE];
    cot_overlap_sequence sequence[COT_COMPOSE_MOST_ACTIVE]; // of each, what choosing asks
    int32_t order[COT_COMPOSE_MOST_ACTIVE];                 // who sat out longest first
};

static bool decodes(const cot_request_state *r)
{
    return r->known - r->fed == 1 && r->fed >= r->prompt_tokens;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Up to `most` more tokens for sequence i; its last one has a row of logits. Returns how many. */
static int64_t give(struct step *s, int64_t i, int64_t most)
{
    const cot_request_state *r = s->active[i];
    const int64_t left = r->known - r->fed - s->given[i];
    int64_t tokens = smaller(smaller(most, left), s->room);
    if (r->all_logits)
        tokens = smaller(tokens, s->rows);
    else if (tokens == left && tokens && !s->rows)
        tokens--;
    if (tokens <= 0) return 0;
    s->rows -= r->all_logits ? tokens : tokens == left;
    s->room -= tokens;
    s->given[i] += (int32_t)tokens;
    return tokens;
}

/* A token for those that sat out `least` steps or more, the longest first. */
static void serve_overdue(struct step *s, int64_t least)
{
    for (int64_t n = 0; n < s->count && s->room > 0 && s->sequence[s->order[n]].waited >= least; n++)
        give(s, s->order[n], 1);
}

static void serve_first_chunk(struct step *s, const cot_scheduler_limits *limits)
{
    int64_t i = 0;
    while (i < s->count && decodes(s->active[i])) i++;
    if (i == s->count) return;
    int64_t least = smaller(COT_COMPOSE_LEAST, limits->step_tokens / 2);
    if (s->active[i]->all_logits) least = smaller(least, limits->step_logits / 2);
    give(s, i, least - s->given[i]);
}

/* Whether the first `count` of those in `order`, which decode, take longer than they should. */
static bool are_late(const struct step *s, const int32_t *order, int64_t count,
                     const cot_scheduler_limits *limits, const cot_cost *cost)
{
    cot_cost_step step = {0};
    if (!limits->target_ns) return false;
    for (int64_t n = 0; n < count; n++) cot_cost_add_span(&step, s->active[order[n]]->fed, 1);
    return cot_cost_predict(cost, &step) > (double)limits->target_ns;
}

/* How many of them are in time, `least` or more; `most` are late. */
static int64_t in_time(const struct step *s, const int32_t *order, int64_t least, int64_t most,
                       const cot_scheduler_limits *limits, const cot_cost *cost)
{
    for (int64_t late = most; late - least > 1;) {
        const int64_t middle = least + (late - least) / 2;
        if (are_late(s, order, middle, limits, cost))
            late = middle;
        else
            least = middle;
    }
    return least;
}

/* Some of those that decode have their token: they waited longest. */
static void serve_decodes(struct step *s, const cot_scheduler_limits *limits, int64_t patience,
                          const cot_cost *cost, float *missing)
{
    int32_t order[COT_COMPOSE_MOST_ACTIVE];
    const int64_t cells = limits->foresight.admits ? limits->foresight.cells : 0;
    int64_t count = 0, had = 0;
    for (int64_t n = 0; n < s->count; n++) {
        if (!decodes(s->active[s->order[n]])) continue;
        had += s->given[s->order[n]];
        order[count++] = s->order[n];
    }
    int64_t serves = had + smaller(count - had, smaller(s->room, s->rows));
    if (serves == had) return;
    if (serves < count || are_late(s, order, count, limits, cost)) {
        cot_overlap_choose(order, s->sequence, count, smaller(serves, count - 1), patience, missing, cells);
        if (are_late(s, order, serves, limits, cost)) {
            const int64_t served = in_time(s, order, had, serves, limits, cost);
            if (2 * served >= count) serves = served;
        }
    }
    for (int64_t n = had; n < serves; n++) give(s, order[n], 1);
}

/* The step as it would be with so many more tokens of chunks, in order. */
static cot_cost_step step_with(const struct step *s, int64_t more)
{
    cot_cost_step step = {0};
    for (int64_t i = 0; i < s->count; i++) {
        const cot_request_state *r = s->active[i];
        const int64_t left = decodes(r) ? 0 : smaller(r->known - r->fed - s->given[i], more);
        cot_cost_add_span(&step, r->fed, s->given[i] + left);
        more -= left;
    }
    return step;
}

/* Tokens of chunks that may still be added before the step is expected to miss the target. Where nobody decodes, nobody
 * waits for the next token of a text: there is nothing to miss. */
static int64_t tokens_in_time(const struct step *s, const cot_scheduler_limits *limits, const cot_cost *cost)
{
    int64_t low = 0, high = s->room;
    bool awaited = false;
    for (int64_t i = 0; i < s->count && !awaited; i++) awaited = decodes(s->active[i]);
    if (!limits->target_ns || !awaited) return high;
    const double target = (double)limits->target_ns / (1 + fmin(2 * cost->error, most_late));
    while (low < high) { // the most that are in time
        const int64_t more = low + (high - low + 1) / 2;
        const cot_cost_step step = step_with(s, more);
        if (cot_cost_predict(cost, &step) <= target)
            low = more;
        else
            high = more - 1;
    }
    return low;
}

static int32_t write_spans(cot_span *spans, const struct step *s)
{
    int32_t written = 0;
    for (int chunks = 0; chunks < 2; chunks++)
        for (int64_t i = 0; i < s->count; i++) {
            const cot_request_state *r = s->active[i];
            const int32_t tokens = s->given[i];
            if (!tokens || chunks == decodes(r)) continue;
            const int32_t logits = r->all_logits ? tokens : r->fed + tokens == r->known;
            spans[written++] = (cot_span){r->row, r->home, (int32_t)r->fed, tokens, logits, r->recorded};
        }
    return written;
}

int32_t cot_compose(cot_span *spans, cot_request_state *const *active, int64_t count,
                    const cot_scheduler_limits *limits, const cot_cost *cost, float *missing)
{
    const int64_t patience = limits->max_wait_steps > 1 ? limits->max_wait_steps : 1;
    struct step s;
    assert(count <= COT_COMPOSE_MOST_ACTIVE);
    s.active = active;
    s.count = count;
    s.room = limits->step_tokens;
    s.rows = limits->step_logits;
    memset(s.given, 0, (size_t)count * sizeof *s.given);
    for (int64_t i = 0; i < count; i++)
        s.sequence[i] = (cot_overlap_sequence){active[i]->share, active[i]->sat_out};
    cot_overlap_order(s.order, s.sequence, count);
    serve_overdue(&s, patience);
    serve_first_chunk(&s, limits);
    serve_decodes(&s, limits, patience, cost, missing);
    int64_t chunks = tokens_in_time(&s, limits, cost);
    for (int64_t i = 0; i < count; i++)
        if (!decodes(active[i])) chunks -= give(&s, i, chunks);
    // a target that one token alone misses is no reason to stand still
    for (int64_t i = 0; i < count && s.room == limits->step_tokens; i++) give(&s, i, 1);
    return write_spans(spans, &s);
}

bool cot_compose_admits(cot_request_state *const *active, int64_t count, const cot_scheduler_limits *limits,
                        const cot_cost *cost)
{
    int64_t positions = 0;
    if (!limits->target_ns || !count) return true;
    for (int64_t i = 0; i < count; i++) positions += active[i]->known;
    const double target = (double)limits->target_ns;
    const int64_t mean = positions / count, all = mean * (count + 1);
    return cot_cost_predict(cost, &(cot_cost_step){1, mean, mean}) > target ||
           cot_cost_predict(cost, &(cot_cost_step){count + 1, all, all}) <= target;
}
