/* Pages and composition against plain models. */
#include "harness/cmocka.h"
#include "harness/engine/requests.h"
#include "harness/memory.h"
#include "harness/seed.h"

#include "schedule/compose.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- pages ---- */

static void pages_are_counted(void **state)
{
    (void)state;
    enum { PAGES = 23, MOVES = 20000, HOMES = 3 };
    uint64_t seed = test_seed();
    cot_page_pool pool;
    assert_int_equal(cot_page_pool_open(&pool, PAGES, HOMES, NULL), COT_OK);
    int references[PAGES] = {0}, home[PAGES], most = 0;
    for (int p = 0; p < PAGES; p++) home[p] = p * HOMES / PAGES;
    for (int i = 0; i < MOVES; i++) {
        int32_t page = (int32_t)(draw(&seed) % PAGES);
        bool filling = i / 500 % 2;
        int used = 0;
        if (draw(&seed) % 4 < (filling ? 3 : 1) && pool.free_pages) {
            const int want = (int)(draw(&seed) % HOMES);
            int most_free = 0;
            bool own = false;
            int free_of[HOMES] = {0};
            for (int p = 0; p < PAGES; p++)
                if (!references[p]) free_of[home[p]]++;
            for (int h = 0; h < HOMES; h++) most_free = free_of[h] > most_free ? free_of[h] : most_free;
            own = free_of[want] > 0;
            page = cot_page_pool_take(&pool, want);
            assert_true(own ? home[page] == want : free_of[home[page]] == most_free);
            home[page] = want;
            assert_in_range(page, 0, PAGES - 1);
            assert_int_equal(references[page]++, 0);
        } else if (references[page] && draw(&seed) % 3 == 0) {
            cot_page_pool_share(&pool, page);
            references[page]++;
        } else if (references[page]) {
            cot_page_pool_release(&pool, page);
            references[page]--;
        }
        for (int p = 0; p < PAGES; p++) {
            assert_int_equal(pool.references[p], references[p]);
            used += references[p] > 0;
        }
        assert_int_equal(pool.free_pages, PAGES - used);
        if (used > most) most = used;
    }
    assert_int_equal(most, PAGES);
    for (int32_t p = 0; p < PAGES; p++)
        while (references[p]--) cot_page_pool_release(&pool, p);
    assert_int_equal(pool.free_pages, PAGES);
    cot_page_pool_close(&pool);
}

/* ---- composition ---- */

static void compose(cot_span *spans, int32_t expected, cot_request_state *states, int64_t count,
                    int64_t step_tokens, int64_t step_logits)
{
    cot_request_state *active[16];
    cot_scheduler_limits limits = {
        .step_tokens = step_tokens, .step_logits = step_logits, .max_wait_steps = 8};
    for (int64_t i = 0; i < count; i++) active[i] = &states[i];
    assert_int_equal(cot_compose(spans, active, count, &limits, NULL, NULL), expected);
}

static void assert_span(const cot_span *s, int row, int position, int tokens, int logits)
{
    assert_int_equal(s->sequence, row);
    assert_int_equal(s->home, row % 3);
    assert_int_equal(s->position, position);
    assert_int_equal(s->tokens, tokens);
    assert_int_equal(s->logits, logits);
}

static void steps_by_example(void **state)
{
    (void)state;
    cot_request_state states[] = {
        {.row = 4, .home = 1, .prompt_tokens = 30, .known = 30},            // a prompt
        {.row = 2, .home = 2, .prompt_tokens = 5, .fed = 9, .known = 10},   // decodes
        {.row = 0, .home = 0, .prompt_tokens = 40, .fed = 32, .known = 40}, // the rest of a prompt
        {.row = 7, .home = 1, .prompt_tokens = 1, .fed = 1, .known = 2},    // decodes
        {.row = 5, .home = 2, .prompt_tokens = 6, .known = 6, .all_logits = true},
    };
    cot_span spans[16];
    compose(spans, 5, states, 5, 100, 100);
    assert_span(&spans[0], 2, 9, 1, 1);
    assert_span(&spans[1], 7, 1, 1, 1);
    assert_span(&spans[2], 4, 0, 30, 1);
    assert_span(&spans[3], 0, 32, 8, 1);
    assert_span(&spans[4], 5, 0, 6, 6);
    compose(spans, 3, states, 5, 20, 100); // a prompt is cut, and then wants no logits
    assert_span(&spans[2], 4, 0, 18, 0);
    compose(spans, 4, states, 5, 36, 100);
    assert_span(&spans[3], 0, 32, 4, 0);
    compose(spans, 5, states, 5, 100, 7); // logits run out first
    assert_span(&spans[4], 5, 0, 3, 3);
    compose(spans, 4, states, 5, 100, 4); // none are left for the last
    compose(spans, 1, states, 5, 1, 100);
    assert_span(&spans[0], 2, 9, 1, 1);
    compose(spans, 0, states, 0, 100, 100);
    states[3].sat_out = 1; // the one that waited
    compose(spans, 1, states, 5, 1, 100);
    assert_span(&spans[0], 7, 1, 1, 1);
    states[2].sat_out = 8; // long enough for a prompt as well
    compose(spans, 1, states, 5, 1, 100);
    assert_span(&spans[0], 0, 32, 1, 0);
    compose(spans, 3, states, 5, 4, 100); // half of a step is the first prompt's
    assert_span(&spans[0], 7, 1, 1, 1);
    assert_span(&spans[1], 4, 0, 2, 0);
    assert_span(&spans[2], 0, 32, 1, 0);
}

/* A step of n tokens and p positions takes 1000 + 10 n + p / 100. */
static cot_cost some_cost(void)
{
    static const double prior[COT_COST_TERMS] = {1, 1, 1, 1, 1, 1, 1};
    cot_cost cost;
    cot_cost_init(&cost, prior, 8, 2, 1);
    cost.steps = 1000;
    cost.weight[COT_COST_FIXED] = 1000;
    cost.weight[COT_COST_TOKENS] = 10;
    cost.weight[COT_COST_POSITIONS] = 0.01;
    return cost;
}

static void targets_by_example(void **state)
{
    (void)state;
    const cot_cost cost = some_cost();
    cot_request_state states[] = {
        {.row = 0, .prompt_tokens = 5, .fed = 9, .known = 10},
        {.row = 1, .prompt_tokens = 500, .fed = 100, .known = 500},
        {.row = 2, .prompt_tokens = 500, .known = 500},
        {.row = 3, .prompt_tokens = 5, .fed = 19, .known = 20},
    };
    cot_request_state *active[] = {&states[0], &states[1], &states[2], &states[3]};
    cot_scheduler_limits limits = {
        .step_tokens = 800, .step_logits = 800, .max_wait_steps = 8, .target_ns = 3000};
    cot_span spans[4];
    assert_int_equal(cot_compose(spans, active, 4, &limits, &cost, NULL), 3);
    // 2 decode over 30 positions, c tokens of 100 + c: 1000 + 10 (2 + c) + (130 + c) / 100 <= 3000
    assert_int_equal(spans[2].tokens, 197);
    // of which steps usually differ by 5 %: 3000 / 1.1; never more than a third of it is left
    cot_cost uncertain = cost;
    uncertain.error = 0.05;
    assert_int_equal(cot_compose(spans, active, 4, &limits, &uncertain, NULL), 3);
    assert_int_equal(spans[2].tokens, 170);
    uncertain.error = 0.9;
    assert_int_equal(cot_compose(spans, active, 4, &limits, &uncertain, NULL), 3);
    assert_int_equal(spans[2].tokens, 97);
    limits.target_ns = 10; // not even the least is in time
    assert_int_equal(cot_compose(spans, active, 4, &limits, &cost, NULL), 3);
    assert_int_equal(spans[2].tokens, 64);
    limits.target_ns = 6000;
    assert_int_equal(cot_compose(spans, active, 4, &limits, &cost, NULL), 4);
    assert_int_equal(spans[2].tokens, 400);
    assert_int_equal(spans[2].logits, 1);
    assert_true(spans[3].tokens > 90 && spans[3].tokens < 98);
    // 3 decode over 510: 1035.1; at most 1034 admits no fourth... unless one alone takes longer
    for (int64_t target = 900; target < 1100; target++) {
        limits.target_ns = target;
        const double one = 1000 + 10 + 257 / 100.0, five = 1000 + 50 + 5 * 257 / 100.0; // of a mean of 257
        assert_int_equal(cot_compose_admits(active, 4, &limits, &cost),
                         one > (double)target || five <= (double)target);
        assert_true(cot_compose_admits(active, 0, &limits, &cost));
    }
    limits.target_ns = 0;
    assert_true(cot_compose_admits(active, 4, &limits, &cost));
    limits.target_ns = 10; // one token is too late, and half a step is none: it is fed all the same
    limits.step_tokens = 1;
    assert_int_equal(cot_compose(spans, active + 1, 2, &limits, &cost, NULL), 1);
    assert_int_equal(spans[0].tokens, 1);
    assert_int_equal(spans[0].sequence, 1);
}

/* Who decodes with whom, where there is no room or time for all: the experts that they are expected to call decide. */
static void choices_by_example(void **state)
{
    (void)state;
    enum { DECODE = 4, CELLS = 4 };
    static const uint8_t share[DECODE][CELLS] = {
        {255, 255, 0, 0}, {0, 0, 255, 255}, {255, 0, 0, 255}, {255, 255, 0, 0}};
    const cot_cost cost = some_cost(); // n that decode over 10 each take 1000 + 10.1 n
    cot_request_state states[DECODE];
    cot_request_state *active[DECODE];
    float missing[CELLS];
    cot_span spans[DECODE];
    cot_scheduler_limits limits = {.step_tokens = 2,
                                   .step_logits = 9,
                                   .max_wait_steps = 8,
                                   .foresight = {.cells = CELLS, .admits = true}};
    for (int i = 0; i < DECODE; i++) {
        states[i] =
            (cot_request_state){.row = i, .prompt_tokens = 5, .fed = 9, .known = 10, .share = share[i]};
        active[i] = &states[i];
    }
    assert_int_equal(cot_compose(spans, active, DECODE, &limits, &cost, missing), 2);
    assert_true(spans[0].sequence == 0 && spans[1].sequence == 3); // the same experts
    states[1].sat_out = 1;                                         // is taken first, then who adds one
    assert_int_equal(cot_compose(spans, active, DECODE, &limits, &cost, missing), 2);
    assert_true(spans[0].sequence == 1 && spans[1].sequence == 2);
    states[0].sat_out = 8; // sat out too long: whatever it calls
    assert_int_equal(cot_compose(spans, active, DECODE, &limits, &cost, missing), 2);
    assert_true(spans[0].sequence == 0 && spans[1].sequence == 3);
    limits.foresight.admits = false; // nobody chooses: who sat out longest
    assert_int_equal(cot_compose(spans, active, DECODE, &limits, &cost, NULL), 2);
    assert_true(spans[0].sequence == 0 && spans[1].sequence == 1);
    states[0].sat_out = states[1].sat_out = 0;
    limits.step_tokens = 9;
    for (int64_t target = 1001; target < 1060;
         target++) { // as many as are in time, if these are half or more
        const int64_t fit = (int64_t)((double)(target - 1000) / 10.1 + 1e-9);
        limits.target_ns = target;
        assert_int_equal(cot_compose(spans, active, DECODE, &limits, &cost, NULL),
                         fit >= DECODE / 2 && fit < DECODE ? fit : DECODE);
    }
    limits.foresight.admits = true;
    limits.target_ns = 1035;
    assert_int_equal(cot_compose(spans, active, DECODE, &limits, &cost, missing), 3);
    assert_true(spans[0].sequence == 0 && spans[1].sequence == 2 && spans[2].sequence == 3);
}

/* What must hold of any step, by words: see compose.h. */
static void check_step(const cot_span *spans, int32_t count, const cot_request_state *states, int64_t active,
                       const cot_scheduler_limits *limits, const cot_cost *cost)
{
    int64_t tokens = 0, logits = 0, order = -1, given[16] = {0}, positions = 0, wanting = 0;
    bool awaited = false;
    cot_cost_step decoding = {0};
    int64_t all_decode = 0, longest = -1; // of those left out, the one that knows most
    bool chosen = false;                  // one that decodes was taken that was not overdue
    const int64_t patience = limits->max_wait_steps > 1 ? limits->max_wait_steps : 1;
    for (int32_t i = 0; i < count; i++) {
        const cot_span *span = &spans[i];
        const cot_request_state *r = &states[span->sequence]; // here a row is the place among the active
        bool prompt = r->known - r->fed > 1 || r->fed < r->prompt_tokens;
        assert_true(order < (prompt ? active : 0) + span->sequence);
        order = (prompt ? active : 0) + span->sequence;
        assert_int_equal(span->home, r->home);
        assert_int_equal(span->position, r->fed);
        assert_in_range(span->tokens, 1, r->known - r->fed);
        bool all = span->position + span->tokens == r->known;
        assert_int_equal(span->logits, r->all_logits ? span->tokens : all);
        tokens += span->tokens;
        logits += span->logits;
        positions += span->position + span->tokens;
        given[span->sequence] = span->tokens;
    }
    assert_true(tokens <= limits->step_tokens && logits <= limits->step_logits);
    const bool full = tokens == limits->step_tokens || logits == limits->step_logits;
    int64_t first = -1, beyond = 0; // tokens that nobody was promised
    for (int64_t s = 0; s < active; s++) {
        const cot_request_state *r = &states[s];
        const bool decodes = r->known - r->fed == 1 && r->fed >= r->prompt_tokens;
        awaited |= decodes;
        all_decode += decodes;
        if (decodes && given[s]) cot_cost_add_span(&decoding, r->fed, 1);
        if (decodes && given[s]) chosen |= r->sat_out < patience;
        if (decodes && !given[s] && r->fed > longest) longest = r->fed;
        wanting += r->known - r->fed - given[s];
        if (!given[s] && r->sat_out >= patience) assert_true(full);
        for (int64_t other = 0; other < active; other++) // longer first; rows may be had by some alone
            if (!given[s] && r->sat_out >= patience && given[other] && logits < limits->step_logits)
                assert_true(states[other].sat_out >= r->sat_out);
        if (decodes) continue;
        int64_t promised = r->sat_out >= patience;
        if (first < 0) {
            first = s;
            promised = limits->step_tokens / 2 < 64 ? limits->step_tokens / 2 : 64;
            if (r->all_logits && promised > limits->step_logits / 2) promised = limits->step_logits / 2;
            if (promised > r->known - r->fed) promised = r->known - r->fed;
            if (given[s] < promised) assert_true(full);
            if (promised < 1) promised = r->sat_out >= patience;
        }
        if (given[s] > promised) beyond += given[s] - promised;
    }
    if (longest >= 0 && !full) { // somebody sits out who would have had room: for the target's sake
        cot_cost_step more = decoding;
        cot_cost_add_span(&more, longest, 1);
        assert_true(limits->target_ns && 2 * decoding.tokens >= all_decode);
        assert_true(!chosen || cot_cost_predict(cost, &decoding) <= (double)limits->target_ns);
        assert_true(cot_cost_predict(cost, &more) > (double)limits->target_ns);
    }
    if (!limits->target_ns || !awaited) {
        if (wanting) assert_true(full);
        return;
    }
    const double target = (double)limits->target_ns;
    const cot_cost_step step = {tokens, positions, 0}, longer = {tokens + 1, positions + 310, 0};
    if (beyond) assert_true(cot_cost_predict(cost, &step) <= target + 1e4 / 100); // others' positions
    if (wanting && !full) assert_true(cot_cost_predict(cost, &longer) > target);
}

static void draw_state(cot_request_state *r, int row, uint64_t *seed)
{
    int64_t prompt = 1 + (int64_t)(draw(seed) % (draw(seed) % 4 ? 20 : 300)),
            said = 1 + (int64_t)(draw(seed) % 9);
    bool is_told = draw(seed) % 2;
    *r = (cot_request_state){.row = row,
                             .home = (int32_t)(draw(seed) % 4),
                             .prompt_tokens = prompt,
                             .known = is_told ? prompt + said : prompt,
                             .all_logits = draw(seed) % 4 == 0,
                             .sat_out = draw(seed) % 2 ? 0 : (int64_t)(draw(seed) % 12)};
    // some were preempted, and are fed again what they said
    r->fed = is_told && draw(seed) % 4 ? prompt + said - 1 : (int64_t)(draw(seed) % (uint64_t)prompt);
}

static void steps_at_random(void **state)
{
    (void)state;
    enum { MOST = 16 };
    uint64_t seed = test_seed();
    const cot_cost cost = some_cost();
    for (int i = 0; i < 20000; i++) {
        cot_request_state states[MOST] = {0}, before[MOST];
        cot_request_state *active[MOST];
        cot_span spans[MOST], again[MOST];
        int64_t count = (int64_t)(draw(&seed) % (MOST + 1));
        cot_scheduler_limits limits = {.step_tokens = 1 + (int64_t)(draw(&seed) % (i % 2 ? 60 : 400)),
                                       .step_logits = 1 + (int64_t)(draw(&seed) % 40),
                                       .max_wait_steps = (int64_t)(draw(&seed) % 10),
                                       .target_ns = i % 3 ? 0 : 900 + (int64_t)(draw(&seed) % 4000)};
        for (int s = 0; s < count; s++) {
            draw_state(&states[s], s, &seed);
            active[s] = &states[s];
        }
        memcpy(before, states, sizeof before);
        int32_t written = cot_compose(spans, active, count, &limits, &cost, NULL);
        check_step(spans, written, states, count, &limits, &cost);
        assert_memory_equal(before, states, sizeof before);
        assert_int_equal(cot_compose(again, active, count, &limits, &cost, NULL), written);
        assert_memory_equal(again, spans, (size_t)written * sizeof *spans);
    }
}

/* However little there is room and time for, and whatever anybody is expected to call, nobody sits out more than W steps and those
 * that it takes to serve all: 10,000 drawn histories. */
static void nobody_starves(void **state)
{
    (void)state;
    enum { HISTORIES = 10000, STEPS = 60, MOST = 12, CELLS = 6 };
    uint64_t seed = test_seed();
    const cot_cost cost = some_cost();
    int64_t overdue = 0, waits = 0;
    for (int i = 0; i < HISTORIES; i++) {
        cot_request_state states[MOST] = {0};
        cot_request_state *active[MOST];
        uint8_t share[MOST][CELLS];
        float missing[CELLS];
        cot_span spans[MOST];
        const int64_t count = 1 + (int64_t)(draw(&seed) % MOST);
        const cot_scheduler_limits limits = {.step_tokens = 1 + (int64_t)(draw(&seed) % (i % 2 ? 6 : 150)),
                                             .step_logits = 1 + (int64_t)(draw(&seed) % MOST),
                                             .max_wait_steps = (int64_t)(draw(&seed) % 10),
                                             .target_ns = i % 3 ? 0 : 1000 + (int64_t)(draw(&seed) % 200),
                                             .foresight = {.cells = CELLS, .admits = i % 5}};
        const int64_t batch =
                          limits.step_tokens < limits.step_logits ? limits.step_tokens : limits.step_logits,
                      patience = limits.max_wait_steps ? limits.max_wait_steps : 1,
                      most = patience + (count + batch - 1) / batch - 1;
        for (int s = 0; s < count; s++) {
            draw_state(&states[s], s, &seed);
            for (int c = 0; c < CELLS; c++) share[s][c] = (uint8_t)(draw(&seed) % 3 ? 0 : draw(&seed) % 256);
            states[s].share = draw(&seed) % 16 ? share[s] : NULL;
            states[s].sat_out = 0;
            active[s] = &states[s];
        }
        for (int step = 0; step < STEPS; step++) {
            const int32_t written = cot_compose(spans, active, count, &limits, &cost, missing);
            for (int s = 0; s < count; s++) states[s].sat_out++;
            for (int32_t w = 0; w < written; w++) {
                cot_request_state *r = &states[spans[w].sequence];
                r->sat_out = 0;
                r->fed += spans[w].tokens;
                if (r->fed == r->known) r->known++;
                if (r->fed > 600 || draw(&seed) % 40 == 0) { // another takes its place
                    const uint8_t *const same = r->share;
                    draw_state(r, r->row, &seed);
                    r->sat_out = 0;
                    r->share = same;
                }
            }
            for (int s = 0; s < count; s++) {
                if (states[s].sat_out > most)
                    fail_msg("%lld steps, of %lld", (long long)states[s].sat_out, (long long)most);
                overdue += states[s].sat_out > patience;
                waits += states[s].sat_out == most;
            }
        }
    }
    assert_true(overdue > HISTORIES / 10 && waits > HISTORIES / 10); // the bound is no idle one
}

/* ---- who runs ---- */

static void must_open_scheduler(cot_scheduler *s, int64_t sequences, int64_t pages, int64_t step_tokens,
                                int64_t block)
{
    cot_scheduler_limits limits = {.sequences = sequences,
                                   .pages = pages,
                                   .step_tokens = step_tokens,
                                   .step_logits = step_tokens,
                                   .homes = 1,
                                   .block = block,
                                   .max_wait_steps = 8};
    limits.step_maps = cot_scheduler_step_maps(step_tokens, sequences, pages * COT_KV_PAGE, block);
    assert_int_equal(cot_scheduler_open(s, &limits, NULL), COT_OK);
}

/* Its number: what it was is freed with its end. */
static uint64_t submit(cot_scheduler *s, const int32_t *prompt, int64_t tokens, int64_t more)
{
    cot_request request;
    cot_request_init(&request);
    request.prompt = prompt;
    request.prompt_tokens = tokens;
    const cot_request_state *r = cot_scheduler_submit(s, &request, tokens + more, 0, 0);
    assert_non_null(r);
    return r->id;
}

/* Admits whom there is room for and runs a step, in which each that is fed all it knows says 7 or is over. */
static cot_step step_of(cot_scheduler *s)
{
    while (cot_scheduler_admit(s)) {}
    const cot_step step = cot_scheduler_plan(s);
    assert_true(step.spans > 0);
    for (int32_t i = 0; i < step.spans; i++) {
        cot_request_state *r = s->by_row[step.span[i].sequence];
        cot_scheduler_fed(s, r, step.span[i].tokens);
        if (r->fed < r->known) continue;
        if (r->known == r->limit)
            cot_scheduler_release(s, r);
        else
            r->tokens[r->known++] = 7;
    }
    cot_scheduler_sweep(s);
    return step;
}

/* A step in which that request does not end. */
static const cot_request_state *step_before_end_of(cot_scheduler *s, uint64_t id)
{
    step_of(s);
    const cot_request_state *r = cot_scheduler_find(s, id);
    assert_non_null(r);
    return r;
}

/* Steps that active sequences had no part in: none of one that runs alone, however long, and of others each that they waited. */
static void who_sits_out_is_counted(void **state)
{
    (void)state;
    static const int32_t prompt[40] = {0};
    for (int64_t active = 1; active <= 3; active++) {
        cot_scheduler s;
        must_open_scheduler(&s, 3, 6, 1, 0);
        for (int64_t i = 0; i < active; i++) submit(&s, prompt, 40, 10);
        for (int step = 1; step <= 30; step++) {
            assert_int_equal(step_of(&s).spans, 1); // a token of one of them
            assert_int_equal(s.active_count, active);
            assert_int_equal(s.waited_steps, step * (active - 1));
        }
        cot_scheduler_close(&s);
    }
}

/* What a request was found in the cache is told, also of one that goes back before it is fed anything and finds none of it later:
 * its first tokens are computed then, and nobody is told of them. */
static void what_was_found_is_told_for_good(void **state)
{
    (void)state;
    enum { PAGE = COT_KV_PAGE };
    int32_t prompt[PAGE + 1], other[PAGE - 2];
    for (int t = 0; t <= PAGE; t++) prompt[t] = t;
    for (int t = 0; t < PAGE - 2; t++) other[t] = t + 1000;
    cot_scheduler s;
    must_open_scheduler(&s, 2, 3, PAGE + 1, PAGE);
    submit(&s, prompt, PAGE + 1, 1);
    while (s.waiting_count + s.active_count) step_of(&s); // leaves a page's block
    assert_int_equal(s.prefix.nodes, 1);
    s.limits.step_tokens = 1; // who came first is fed, the other waits
    const uint64_t grows = submit(&s, other, PAGE - 2, PAGE + 6);
    while (step_before_end_of(&s, grows)->fed < PAGE - 3) {}
    const uint64_t id = submit(&s, prompt, PAGE + 1, 1);
    const cot_request_state *r = step_before_end_of(&s, id);
    assert_true(r->row >= 0 && r->fed == PAGE && r->told == PAGE);
    while (r->row >= 0) r = step_before_end_of(&s, id);
    assert_int_equal(s.preemptions, 1);
    assert_true(r->fed == 0 && r->told == PAGE);
    while (r->row < 0) r = step_before_end_of(&s, id);
    assert_true(s.prefix.evicted > 0 && r->admissions == 2 && r->fed < 2);
    assert_int_equal(r->told, PAGE);
    assert_int_equal(s.queried_tokens, PAGE + 1 + PAGE - 2 + PAGE + 1);
    assert_int_equal(s.hit_tokens, PAGE);
    cot_scheduler_close(&s);
}

/* One that goes back waits before all others, whether there are any, and those that come later behind these: none is lost. */
static void who_goes_back_comes_next(void **state)
{
    (void)state;
    static const int32_t prompt[COT_KV_PAGE] = {0};
    for (int waits = 0; waits < 2; waits++) {
        cot_scheduler s;
        uint64_t id[4], back;
        must_open_scheduler(&s, 2, 3, COT_KV_PAGE, 0);
        for (int i = 0; i < 2 + waits; i++) id[i] = submit(&s, prompt, COT_KV_PAGE - 2, 10);
        while (!s.preemptions) step_of(&s);
        back = s.waiting->id;
        assert_int_equal(back, id[1]); // who came last of those that ran
        assert_int_equal(s.waiting_count, 1 + waits);
        id[2 + waits] = submit(&s, prompt, COT_KV_PAGE - 2, 10);
        const cot_request_state *r = s.waiting;
        for (int i = 1; i < 3 + waits; i++, r = r->next) {
            assert_non_null(r);
            assert_int_equal(r->id, id[i]);
        }
        assert_null(r);
        while (s.waiting_count + s.active_count) step_of(&s);
        cot_scheduler_close(&s);
    }
}

/* Requests that end are counted by how often they went back, however often that was, also those that wait or never began. */
static void who_ends_is_counted(void **state)
{
    (void)state;
    enum { MOST = 40 };
    static const int32_t prompt[2] = {0};
    cot_scheduler s;
    must_open_scheduler(&s, 1, 3, 2, 0);
    uint64_t sum = 0;
    for (int times = 0; times < MOST; times++)
        for (int waits = 0; waits < 2; waits++) {
            const uint64_t id = submit(&s, prompt, 2, 10);
            if (!waits) assert_non_null(cot_scheduler_admit(&s));
            cot_request_state *r = cot_scheduler_find(&s, id);
            r->admissions = times + !waits; // one that waits went back as often as it was admitted
            cot_scheduler_release(&s, r);
            sum += (uint64_t)times;
            const int class = times < COT_RESTART_CLASSES - 1 ? times : COT_RESTART_CLASSES - 1;
            assert_int_equal(s.ended_after[class], 2 * (times - class) + 1 + waits);
            assert_int_equal(s.ended_restarts, sum);
        }
    cot_scheduler_close(&s);
}

/* Two of each token, and the pages of each sequence that a step may begin with: no more than it has tokens. */
static void maps_are_as_many_as_a_step_needs(void **state)
{
    (void)state;
    const int64_t pages = cot_page_count(100);
    assert_int_equal(cot_scheduler_step_maps(10, 4, 100, 0), 20);
    assert_int_equal(cot_scheduler_step_maps(10, 4, 100, 16), 20 + 4 * pages);
    assert_int_equal(cot_scheduler_step_maps(3, 4, 100, 16), 6 + 3 * pages);
    assert_int_equal(cot_scheduler_step_states(10, 4, 0), 0);
    assert_int_equal(cot_scheduler_step_states(10, 4, 1), 5 * 4);
    assert_int_equal(cot_scheduler_step_states(3, 4, 1), 5 * 3);
    assert_int_equal(cot_scheduler_step_states(5 * COT_SNAPSHOT_TOKENS, 4, 1), 5 * 4 + 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_are_counted),        cmocka_unit_test(steps_by_example),
        cmocka_unit_test(steps_at_random),          cmocka_unit_test(targets_by_example),
        cmocka_unit_test(choices_by_example),       cmocka_unit_test(nobody_starves),
        cmocka_unit_test(who_sits_out_is_counted),  cmocka_unit_test(what_was_found_is_told_for_good),
        cmocka_unit_test(who_goes_back_comes_next), cmocka_unit_test(maps_are_as_many_as_a_step_needs),
        cmocka_unit_test(who_ends_is_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
