/* Who is admitted, over drawn histories of a scheduler that submits, steps, preempts and cancels: by the order in which requests
 * came, or by their experts; against a queue of the test's own. */
#include "harness/cmocka.h"
#include "harness/engine/requests.h"
#include "harness/seed.h"

#include "schedule/scheduler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CELLS = 6, KINDS = 40, MOST = 80, STEP = 48, CONTEXT = 320, BLOCK = 16 };

/* A text's experts are those of its first token's kind; of every eighth nothing is known. */
static bool expect(const void *context, uint8_t *share, const cot_request *request)
{
    const uint8_t *const shares = context; // [KINDS][CELLS]
    const int kind = request->prompt[0];
    assert_true(request->prompt_tokens > 0);
    if (kind % 8 == 7) return false;
    memcpy(share, shares + kind * CELLS, CELLS);
    return true;
}

struct known {
    uint64_t id, after;
    int kind, overtaken;
    bool running, preempted;
    int64_t admitted; // number of its last admission
};

struct history {
    cot_scheduler s;
    uint8_t shares[KINDS][CELLS];
    struct known queue[MOST], running[MOST]; // those that wait, the oldest first; those that run, in order
    int waiting, runs;
    int64_t admissions, overtakings, chosen, most_overtaken, preemptions, ended;
};

static double added(const struct history *h, int kind)
{
    double sum = 0;
    for (int c = 0; c < CELLS; c++) {
        double none = 1;
        for (int i = 0; i < h->runs; i++)
            if (h->running[i].kind % 8 != 7) none *= 1 - h->shares[h->running[i].kind][c] / 255.0;
        sum += none * h->shares[kind][c] / 255.0;
    }
    return sum;
}

static void submit(struct history *h, uint64_t *seed)
{
    int32_t prompt[CONTEXT];
    const int64_t tokens = 1 + (int64_t)(draw(seed) % 60), limit = tokens + (int64_t)(draw(seed) % 200);
    const int kind = (int)(draw(seed) % KINDS);
    prompt[0] = kind;
    for (int64_t t = 1; t < tokens; t++) prompt[t] = (int32_t)(draw(seed) % 2);
    cot_request r;
    cot_request_init(&r);
    r.prompt = prompt;
    r.prompt_tokens = tokens;
    struct known *const k = &h->queue[h->waiting];
    *k = (struct known){.kind = kind};
    if (draw(seed) % 4 == 0 && h->waiting + h->runs) {
        const int other = (int)(draw(seed) % (uint64_t)(h->waiting + h->runs));
        r.after = other < h->waiting ? h->queue[other].id : h->running[other - h->waiting].id;
    }
    const cot_request_state *state = cot_scheduler_submit(&h->s, &r, limit, 0, 0);
    assert_non_null(state);
    k->id = state->id;
    k->after = state->after;
    h->waiting++;
}

/* Its prompt is fed, or it is over. */
static void let_follow(struct history *h, uint64_t id)
{
    for (int i = 0; i < h->waiting; i++)
        if (h->queue[i].after == id) h->queue[i].after = 0;
}

static void check_admitted(struct history *h, const cot_request_state *r, bool by_experts)
{
    int oldest[COT_OVERLAP_WINDOW], n = 0, at = -1;
    for (int i = 0; i < h->waiting && n < COT_OVERLAP_WINDOW; i++) {
        if (h->queue[i].after) continue;
        if (h->queue[i].id == r->id) at = n;
        oldest[n++] = i;
    }
    if (at < 0) fail_msg("request %d stands behind the oldest, or waits for another", (int)r->id);
    if (!by_experts) assert_int_equal(at, 0);
    const struct known *const taken = &h->queue[oldest[at]];
    for (int i = 0; i < at; i++) {
        struct known *const passed = &h->queue[oldest[i]];
        assert_false(passed->preempted);
        assert_true(passed->kind % 8 != 7 && taken->kind % 8 != 7);
        assert_true(++passed->overtaken <= COT_OVERLAP_OVERTAKEN);
        if (passed->overtaken > h->most_overtaken) h->most_overtaken = passed->overtaken;
        assert_true(added(h, taken->kind) < added(h, passed->kind) + 1e-4);
        h->overtakings++;
    }
    if (at) // it was chosen, and is not the first for want of pages
        for (int i = 0; i < n; i++) {
            const struct known *const other = &h->queue[oldest[i]];
            const bool known = other->kind % 8 != 7;
            if (known) assert_true(added(h, taken->kind) < added(h, other->kind) + 1e-4);
            if (!known || other->preempted || other->overtaken - (i < at) >= COT_OVERLAP_OVERTAKEN)
                break; // whom nobody passes who came later
        }
    h->chosen += at > 0;
    h->running[h->runs] = *taken;
    h->running[h->runs].admitted = ++h->admissions;
    h->runs++;
    memmove(h->queue + oldest[at], h->queue + oldest[at] + 1,
            (size_t)(h->waiting - oldest[at] - 1) * sizeof *h->queue);
    h->waiting--;
}

static void end(struct history *h, struct known *list, int *count, int i)
{
    const uint64_t id = list[i].id;
    cot_scheduler_release(&h->s, cot_scheduler_find(&h->s, id));
    memmove(list + i, list + i + 1, (size_t)(*count - i - 1) * sizeof *list);
    --*count;
    h->ended++;
    let_follow(h, id);
}

static void step(struct history *h)
{
    const cot_step step = cot_scheduler_plan(&h->s);
    for (int i = h->runs - 1; i >= 0;
         i--) { // who was preempted is the first of all now; of several who ran longest
        const cot_request_state *r = cot_scheduler_find(&h->s, h->running[i].id);
        if (r->row >= 0) continue;
        memmove(h->queue + 1, h->queue, (size_t)h->waiting * sizeof *h->queue);
        h->queue[0] = h->running[i];
        h->queue[0].preempted = true;
        h->waiting++;
        memmove(h->running + i, h->running + i + 1, (size_t)(h->runs - i - 1) * sizeof *h->running);
        h->runs--;
        h->preemptions++;
    }
    assert_true(step.spans > 0);
    for (int32_t i = 0; i < step.spans; i++) {
        cot_request_state *r = h->s.by_row[step.span[i].sequence];
        cot_scheduler_fed(&h->s, r, step.span[i].tokens);
        if (r->fed >= r->prompt_tokens) let_follow(h, r->id);
        if (r->fed < r->known) continue;
        if (r->known < r->limit) {
            r->tokens[r->known++] = 5;
            continue;
        }
        int at = 0;
        while (h->running[at].id != r->id) at++;
        end(h, h->running, &h->runs, at);
    }
}

static void run(struct history *h, bool by_experts, int steps, uint64_t *seed)
{
    const cot_scheduler_limits limits = {
        .sequences = 1 + (int64_t)(draw(seed) % 5),
        .pages = 5 + (int64_t)(draw(seed) % 6),
        .step_tokens = STEP,
        .step_logits = STEP,
        .step_maps = cot_scheduler_step_maps(STEP, 5, CONTEXT, BLOCK),
        .homes = 1,
        .block = draw(seed) % 2 ? BLOCK : 0,
        .max_wait_steps = 8,
        .foresight = {.cells = CELLS, .admits = by_experts, .expect = expect, .context = h->shares}};
    assert_int_equal(cot_scheduler_open(&h->s, &limits, NULL), COT_OK);
    h->waiting = h->runs = 0;
    for (int k = 0; k < KINDS; k++)
        for (int c = 0; c < CELLS; c++) h->shares[k][c] = (uint8_t)(draw(seed) % 256);
    for (int i = 0; i < steps || h->waiting + h->runs; i++) {
        for (int n = (int)(draw(seed) % 4); n && i < steps && h->waiting + h->runs < MOST - 8; n--)
            submit(h, seed);
        if (draw(seed) % 16 == 0 && h->waiting)
            end(h, h->queue, &h->waiting, (int)(draw(seed) % (uint64_t)h->waiting));
        if (draw(seed) % 4 == 0 && h->runs)
            end(h, h->running, &h->runs, (int)(draw(seed) % (uint64_t)h->runs));
        for (const cot_request_state *r; (r = cot_scheduler_admit(&h->s));) check_admitted(h, r, by_experts);
        bool any = false; // could be admitted
        for (int w = 0; w < h->waiting; w++) any |= !h->queue[w].after;
        assert_true(h->runs || !any);
        if (h->runs) step(h);
        cot_scheduler_sweep(&h->s);
        assert_int_equal(h->s.waiting_count, h->waiting);
        assert_int_equal(h->s.active_count, h->runs);
    }
    cot_scheduler_close(&h->s);
}

/* Nobody is overtaken more often than the bound, none that was preempted or of whom nothing is known, `after` holds, who is taken
 * adds least, and all come to their end. */
static void bounds_hold_in_drawn_histories(void **state)
{
    (void)state;
    enum { HISTORIES = 10000 };
    static struct history h;
    uint64_t seed = test_seed();
    for (int i = 0; i < HISTORIES; i++) run(&h, true, 12, &seed);
    for (int i = 0; i < HISTORIES / 100; i++) run(&h, true, 200, &seed);
    assert_true(h.chosen > HISTORIES && h.preemptions > 100);
    assert_int_equal(h.most_overtaken, COT_OVERLAP_OVERTAKEN);
}

static void without_foresight_all_keep_their_order(void **state)
{
    (void)state;
    static struct history h;
    uint64_t seed = test_seed();
    for (int i = 0; i < 500; i++) run(&h, false, 30, &seed);
    assert_true(h.chosen == 0 && h.admissions > 1000 && h.preemptions > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bounds_hold_in_drawn_histories),
                                       cmocka_unit_test(without_foresight_all_keep_their_order)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
