/* Snapshots of states: whatever requests come, are preempted and cancelled, a span goes on from what its own text leaves. A state is
 * played by a hash of all tokens so far, at each home its own. */
#include "harness/cmocka.h"
#include "harness/engine/requests.h"
#include "harness/seed.h"

#include "schedule/scheduler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROWS = 4,
    PAGES = 40,
    MOST_SNAPSHOTS = 12,
    HOMES = 2,
    TEXTS = 2,
    LONGEST = 1500,
    HISTORIES = 60,
    STEPS = 150
};

struct world {
    cot_scheduler s;
    uint64_t state[HOMES][ROWS], snapshot[HOMES][MOST_SNAPSHOTS];
    int32_t text[TEXTS][LONGEST];
    int64_t resumed, copied;
    uint64_t seed;
};

static int64_t among(uint64_t *seed, int64_t least, int64_t most)
{
    return least + (int64_t)(draw(seed) % (uint64_t)(most - least + 1));
}

static uint64_t behind(uint64_t state, const int32_t *ids, int64_t tokens)
{
    for (int64_t t = 0; t < tokens; t++) state = (state ^ (uint64_t)(uint32_t)ids[t]) * 0x100000001b3u + 1;
    return state;
}

static cot_scheduler_limits limits_of(int64_t step_tokens, int64_t pages, int64_t block, int64_t snapshots,
                                      int homes)
{
    cot_scheduler_limits l = {.sequences = ROWS,
                              .pages = pages,
                              .step_tokens = step_tokens,
                              .step_logits = step_tokens,
                              .homes = homes,
                              .block = block,
                              .snapshots = snapshots,
                              .max_wait_steps = 8};
    l.step_maps = cot_scheduler_step_maps(step_tokens, ROWS, pages * COT_KV_PAGE, block);
    l.step_states = cot_scheduler_step_states(step_tokens, ROWS, snapshots);
    return l;
}

/* What a step does to states: those that go on are read, then spans are taken in, then snapshots that the step writes change, at their
 * homes; each span's state has to be what its text leaves. */
static void run(struct world *w, const cot_step *step)
{
    int32_t at = 0;
    assert_true(step->states <= w->s.limits.step_states);
    for (int32_t i = 0; i < step->states; i++) {
        const cot_state_copy *c = &step->state[i];
        if (c->from) w->state[c->home][c->sequence] = w->snapshot[c->home][c->snapshot];
        w->resumed += c->from;
    }
    for (int32_t i = 0; i < step->spans; i++) {
        const cot_span *span = &step->span[i];
        const cot_request_state *r = w->s.by_row[span->sequence];
        uint64_t *state = &w->state[span->home][span->sequence];
        if (!span->position) *state = 0;
        if (*state != behind(0, r->tokens, span->position))
            fail_msg("row %d goes on at %d from another text", span->sequence, span->position);
        int64_t last = span->position;
        for (; at < step->states && step->state[at].sequence == span->sequence; at++) {
            const cot_state_copy *c = &step->state[at];
            assert_int_equal(c->home, span->home);
            if (c->from) {
                assert_int_equal(c->position, span->position);
                continue;
            }
            assert_true(c->position > last && c->position <= span->position + span->tokens);
            assert_int_equal(c->position % w->s.limits.block, 0);
            last = c->position;
            w->snapshot[c->home][c->snapshot] = behind(0, r->tokens, last);
            for (int h = 0; h < HOMES; h++) // it has a place on one rank
                if (h != c->home) w->snapshot[h][c->snapshot] = 1;
            w->copied++;
        }
        *state = behind(*state, r->tokens + span->position, span->tokens);
    }
    assert_int_equal(at, step->states); // in the order of spans
}

/* Places are kept, will be written by the last plan, or are free: each is one of them. */
static void count_places(const cot_scheduler *s)
{
    const cot_prefix_snapshots *p = &s->prefix.snapshots;
    int64_t found = 0;
    for (int32_t i = p->free; i >= 0; i = p->of[i].older) found++;
    for (int32_t i = p->probation.oldest; i >= 0; i = p->of[i].newer, found++)
        assert_true(s->prefix.node[p->of[i].node].snapshot == i && !p->of[i].is_protected);
    for (int32_t i = p->protected.oldest; i >= 0; i = p->of[i].newer, found++)
        assert_true(s->prefix.node[p->of[i].node].snapshot == i && p->of[i].is_protected);
    for (int32_t i = 0; i < s->state_count; i++) found += !s->states[i].from && s->states[i].snapshot >= 0;
    for (int64_t i = 0; i < p->count; i++) found += p->of[i].node < 0 && p->of[i].holders;
    assert_int_equal(found, p->count);
}

static void submit(struct world *w)
{
    cot_request request;
    int32_t ids[LONGEST];
    cot_request_init(&request);
    const int64_t tokens = among(&w->seed, 1, draw(&w->seed) % 4 ? 200 : 1200), own = among(&w->seed, 0, 20);
    memcpy(ids, w->text[draw(&w->seed) % TEXTS], sizeof ids);
    for (int64_t t = own < tokens ? tokens - own : 0; t < tokens; t++) ids[t] = (int32_t)(draw(&w->seed) % 3);
    request.prompt = ids;
    request.prompt_tokens = tokens;
    request.all_logits = draw(&w->seed) % 10 == 0;
    assert_non_null(cot_scheduler_submit(&w->s, &request, tokens + among(&w->seed, 1, 150),
                                         (int)(draw(&w->seed) % (uint64_t)w->s.limits.homes), 0));
}

static void step(struct world *w)
{
    while (cot_scheduler_admit(&w->s)) {}
    const cot_step step = cot_scheduler_plan(&w->s);
    run(w, &step);
    for (int32_t i = 0; i < step.spans; i++) {
        cot_request_state *r = w->s.by_row[step.span[i].sequence];
        if (draw(&w->seed) % 200 == 0) { // before anything of it is kept
            cot_scheduler_release(&w->s, r);
            continue;
        }
        cot_scheduler_fed(&w->s, r, step.span[i].tokens);
        if (r->fed < r->known) continue;
        if (r->known == r->limit || draw(&w->seed) % 100 == 0)
            cot_scheduler_release(&w->s, r);
        else
            r->tokens[r->known] = w->text[0][r->known], r->known++; // answers are alike, too
    }
    cot_scheduler_sweep(&w->s);
    count_places(&w->s);
}

static void texts_go_on_from_their_own(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    int64_t resumed = 0, copied = 0, preempted = 0, evicted = 0;
    struct world *w = malloc(sizeof *w);
    assert_non_null(w);
    for (int history = 0; history < HISTORIES; history++) {
        const cot_scheduler_limits limits =
            limits_of(among(&seed, 1, 3) == 1 ? 1200 : among(&seed, 4, 90), among(&seed, 23, PAGES),
                      1 << among(&seed, 2, 6), among(&seed, 1, MOST_SNAPSHOTS), (int)among(&seed, 1, HOMES));
        memset(w, 0, sizeof *w);
        w->seed = draw(&seed);
        for (int t = 0; t < TEXTS; t++)
            for (int i = 0; i < LONGEST; i++) w->text[t][i] = (int32_t)(draw(&seed) % 50);
        assert_int_equal(cot_scheduler_open(&w->s, &limits, NULL), COT_OK);
        for (int i = 0; i < STEPS; i++) {
            if (draw(&w->seed) % 3 == 0 || !(w->s.waiting_count + w->s.active_count)) submit(w);
            step(w);
        }
        resumed += w->resumed;
        copied += w->copied;
        preempted += (int64_t)w->s.preemptions;
        evicted += (int64_t)w->s.prefix.snapshots.evicted;
        cot_scheduler_close(&w->s);
    }
    free(w);
    if (!resumed || !copied || !preempted || !evicted)
        fail_msg("%lld resumed, %lld copied, %lld preempted, %lld evicted: drawn are too few",
                 (long long)resumed, (long long)copied, (long long)preempted, (long long)evicted);
}

/* ---- one conversation ---- */

/* Feeds a prompt and so many tokens behind it; how many of the prompt were found. */
static int64_t say(struct world *w, const int32_t *ids, int64_t prompt, int64_t more)
{
    cot_request request;
    cot_request_init(&request);
    request.prompt = ids;
    request.prompt_tokens = prompt;
    const uint64_t hit = w->s.hit_tokens;
    assert_non_null(cot_scheduler_submit(&w->s, &request, prompt + more, 0, 0));
    while (w->s.waiting_count + w->s.active_count) {
        while (cot_scheduler_admit(&w->s)) {}
        const cot_step step = cot_scheduler_plan(&w->s);
        run(w, &step);
        cot_request_state *r = w->s.by_row[step.span[0].sequence];
        cot_scheduler_fed(&w->s, r, step.span[0].tokens);
        if (r->fed == r->known && r->known == r->limit)
            cot_scheduler_release(&w->s, r);
        else if (r->fed == r->known)
            r->tokens[r->known] = ids[r->known], r->known++;
        cot_scheduler_sweep(&w->s);
    }
    return (int64_t)(w->s.hit_tokens - hit);
}

static void turns_compute_what_is_new(void **state)
{
    (void)state;
    struct world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    uint64_t seed = test_seed();
    const cot_scheduler_limits limits = limits_of(512, PAGES, 16, 8, 1);
    assert_int_equal(cot_scheduler_open(&w->s, &limits, NULL), COT_OK);
    int32_t *ids = w->text[0];
    for (int i = 0; i < LONGEST; i++) ids[i] = (int32_t)(draw(&seed) % 50);
    assert_int_equal(say(w, ids, 100, 20), 0);
    assert_int_equal(w->s.prefix.snapshots.kept, 2); // behind 80 and 112 tokens, not 16, 32 ...
    assert_int_equal(say(w, ids, 100, 20), 80);      // the same again
    assert_int_equal(w->s.prefix.snapshots.kept, 2);
    assert_int_equal(say(w, ids, 150, 5), 112); // of 119 that were fed
    assert_int_equal(say(w, ids, 1300, 1), 128);
    assert_int_equal(say(w, ids, 1298, 1), 1280); // the prompt's last whole block but its tail
    assert_int_equal(say(w, ids, 1270, 1), 1024); // no snapshot between
    ids[1100] = -1;
    assert_int_equal(say(w, ids, 1200, 1), 1024);
    ids[1020] = -1;
    assert_int_equal(say(w, ids, 1200, 1), 144); // where 1,300 left 150
    cot_scheduler_close(&w->s);
    free(w);
}

/* A scheduler of one text at a time, whose steps take a prompt of up to `step_tokens` whole. */
static struct world *open_long(int64_t step_tokens, int64_t pages, int64_t snapshots)
{
    struct world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    const cot_scheduler_limits limits = limits_of(step_tokens, pages, 16, snapshots, 1);
    assert_int_equal(cot_scheduler_open(&w->s, &limits, NULL), COT_OK);
    return w;
}

static void close_long(struct world *w)
{
    cot_scheduler_close(&w->s);
    free(w);
}

static int32_t *random_ids(int64_t count, uint64_t *seed)
{
    int32_t *ids = malloc((size_t)count * sizeof *ids);
    assert_non_null(ids);
    for (int64_t i = 0; i < count; i++) ids[i] = (int32_t)(draw(seed) % 1000);
    return ids;
}

/* Whether there is a snapshot behind the first `tokens` of a text, which are whole blocks. */
static bool is_kept(const struct world *w, const int32_t *ids, int64_t tokens)
{
    const cot_prefix_root root = {0};
    int64_t blocks;
    cot_prefix_resume(&w->s.prefix, &root, ids, tokens, &blocks);
    return blocks * w->s.limits.block == tokens;
}

/* One step passes more places than there are: those farthest behind are kept. */
static void an_end_has_first_call(void **state)
{
    (void)state;
    enum { LONG = 4100, PROMPT = 4090, END = 4080, MARKS = 3 };
    uint64_t seed = test_seed();
    int32_t *ids = random_ids(LONG, &seed);
    for (int64_t snapshots = 1; snapshots <= MARKS + 2; snapshots++) {
        struct world *w = open_long(LONG, LONG / COT_KV_PAGE + 2, snapshots);
        assert_int_equal(say(w, ids, PROMPT, 0), 0);
        assert_true(is_kept(w, ids, END));
        for (int mark = 1; mark <= MARKS; mark++)
            assert_int_equal(is_kept(w, ids, mark * COT_SNAPSHOT_TOKENS), MARKS - mark + 1 < snapshots);
        assert_int_equal(say(w, ids, PROMPT, 0), END);
        close_long(w);
    }
    free(ids);
}

/* ---- which stay ---- */

/* One long prompt takes one of the places that ends of other texts have, whatever chunks it is taken in. */
static void a_long_prompt_takes_one_place(void **state)
{
    (void)state;
    enum { LONG = 8090, MARKS = 7, OTHER = 90 };
    uint64_t seed = test_seed();
    int32_t *ids = random_ids(LONG, &seed), *other = random_ids(OTHER + 20, &seed);
    for (int whole = 0; whole < 2; whole++)
        for (int64_t snapshots = 2; snapshots <= 5; snapshots++) {
            struct world *w = open_long(whole ? LONG : 512, 200, snapshots);
            say(w, other, OTHER, 20);
            assert_true(is_kept(w, other, 80) && is_kept(w, other, 96)); // the prompt's end, the answer's
            say(w, ids, LONG, 0);
            assert_int_equal(w->s.prefix.snapshots.kept, snapshots);
            assert_int_equal(is_kept(w, other, 80), snapshots > 2);
            assert_true(is_kept(w, other, 96) && is_kept(w, ids, 8080));
            for (int mark = 1; mark <= MARKS; mark++) // the last ones have what places there are
                assert_int_equal(is_kept(w, ids, mark * COT_SNAPSHOT_TOKENS), MARKS - mark + 3 < snapshots);
            assert_int_equal(say(w, other, OTHER + 20, 0), 96);
            close_long(w);
        }
    free(ids);
    free(other);
}

/* Turns of a conversation take the places of the turns before, not those of another one. */
static void turns_take_the_places_of_older_ones(void **state)
{
    (void)state;
    enum { TURNS = 16, TURN = 48, OTHER = 90, ANSWER = 20 };
    uint64_t seed = test_seed();
    int32_t *ids = random_ids(OTHER + TURNS * TURN, &seed), *other = random_ids(OTHER + ANSWER, &seed);
    struct world *w = open_long(512, PAGES, 6);
    say(w, other, OTHER, ANSWER);
    for (int turn = 0; turn < TURNS; turn++) {
        const int64_t prompt = OTHER + turn * TURN; // ends 10 tokens behind a block
        assert_int_equal(say(w, ids, prompt, ANSWER), turn ? prompt - TURN + 6 : 0);
        assert_true(is_kept(w, ids, prompt - 10) && is_kept(w, ids, prompt + 6));
    }
    assert_true(is_kept(w, other, 80) && is_kept(w, other, 96));
    const int64_t before = OTHER + (TURNS - 2) * TURN; // the turn before has the other two
    assert_true(is_kept(w, ids, before - 10) && is_kept(w, ids, before + 6));
    assert_false(is_kept(w, ids, before - TURN - 10) || is_kept(w, ids, before - TURN + 6));
    close_long(w);
    free(ids);
    free(other);
}

/* One that is given up in its prompt has left a mark, though every place was an end's. */
static void a_prompt_has_a_mark_on_its_way(void **state)
{
    (void)state;
    enum { LONG = 3000, OTHER = 90, FED = 2200 };
    uint64_t seed = test_seed();
    int32_t *ids = random_ids(LONG, &seed), *other = random_ids(OTHER, &seed);
    struct world *w = open_long(512, 200, 1);
    say(w, other, OTHER, 0);
    cot_request request;
    cot_request_init(&request);
    request.prompt = ids;
    request.prompt_tokens = LONG;
    cot_request_state *r = cot_scheduler_submit(&w->s, &request, LONG + 1, 0, 0);
    assert_non_null(r);
    assert_ptr_equal(cot_scheduler_admit(&w->s), r);
    while (r->fed < FED) {
        const cot_step step = cot_scheduler_plan(&w->s);
        run(w, &step);
        cot_scheduler_fed(&w->s, r, step.tokens);
    }
    cot_scheduler_release(&w->s, r);
    cot_scheduler_sweep(&w->s);
    assert_int_equal(say(w, ids, LONG, 0), 2 * COT_SNAPSHOT_TOKENS);
    close_long(w);
    free(ids);
    free(other);
}

/* What one text went on from is on probation, and goes for a mark of another; what two did stays. */
static void shared_beginnings_stay(void **state)
{
    (void)state;
    enum { LONG = 5000, SHARED = 80, TEXT = 170, MOST = 3 };
    uint64_t seed = test_seed();
    int32_t *ids = random_ids(LONG, &seed), *texts[MOST];
    for (int i = 0; i < MOST; i++) {
        texts[i] = random_ids(TEXT, &seed);
        memcpy(texts[i], texts[0], SHARED * sizeof(int32_t));
    }
    for (int shared_by = 1; shared_by <= MOST; shared_by++) {
        struct world *w = open_long(512, 200, shared_by + 2); // one is free when the long text comes
        say(w, texts[0], SHARED + 10, 0);
        for (int i = 0; i < shared_by; i++) assert_int_equal(say(w, texts[i], TEXT, 0), SHARED);
        assert_int_equal(w->s.prefix.snapshots.evicted, 0);
        say(w, ids, LONG, 0);
        for (int i = 0; i < shared_by; i++) assert_true(is_kept(w, texts[i], 160));
        assert_int_equal(is_kept(w, texts[0], SHARED), shared_by > 1);
        close_long(w);
    }
    for (int i = 0; i < MOST; i++) free(texts[i]);
    free(ids);
}

/* A mark that another text went on from is a beginning that two share. */
static void a_mark_that_was_hit_stays(void **state)
{
    (void)state;
    enum { LONG = 2090, SHARED = 1500, MARK = COT_SNAPSHOT_TOKENS };
    uint64_t seed = test_seed();
    int32_t *ids = random_ids(LONG, &seed), *turned = random_ids(LONG, &seed),
            *third = random_ids(LONG, &seed);
    memcpy(turned, ids, SHARED * sizeof *ids);
    struct world *w = open_long(512, 200, 5);
    say(w, ids, LONG, 0);
    assert_int_equal(say(w, turned, LONG, 0), MARK);
    say(w, third, LONG, 0);
    assert_true(is_kept(w, ids, MARK) && is_kept(w, ids, 2080) && is_kept(w, turned, 2080));
    assert_true(is_kept(w, turned, 1488) && is_kept(w, third, 2080)); // where it turned
    close_long(w);
    free(ids);
    free(turned);
    free(third);
}

/* Texts that begin alike, less than a mark's distance long: the second leaves a snapshot where it leaves the first, from which the
 * third goes on. It stays where a third did, and goes for a mark where it is an older turn of the second alone. */
static void forks_are_found(void **state)
{
    (void)state;
    enum { LONG = 5000, SHARED = 506, FORK = 496, TEXT = 586, MOST = 4 };
    uint64_t seed = test_seed();
    int32_t *ids = random_ids(LONG, &seed), *texts[MOST];
    for (int i = 0; i < MOST; i++) {
        texts[i] = random_ids(TEXT + 96, &seed);
        memcpy(texts[i], texts[0], SHARED * sizeof(int32_t));
    }
    for (int count = 2; count <= MOST; count++)
        for (int turns = 1; turns <= 2; turns++) {
            struct world *w = open_long(200, 250, count + turns + 1); // one is free when the long text comes
            for (int i = 0; i < count; i++) assert_int_equal(say(w, texts[i], TEXT, 0), i < 2 ? 0 : FORK);
            if (turns > 1) assert_int_equal(say(w, texts[1], TEXT + 96, 0), 576);
            assert_int_equal(w->s.prefix.snapshots.kept, count + turns);
            assert_int_equal(w->s.prefix.snapshots.evicted, 0);
            say(w, ids, LONG, 0);
            assert_int_equal(is_kept(w, texts[1], FORK), turns == 1 || count > 2);
            for (int i = 2; i < count; i++) assert_true(is_kept(w, texts[i], 576));
            close_long(w);
        }
    for (int i = 0; i < MOST; i++) free(texts[i]);
    free(ids);
}

/* One that is preempted in its prompt, shorter than a mark's distance, leaves a snapshot where that was when it comes there again. */
static void where_it_was_preempted_is_a_fork(void **state)
{
    (void)state;
    enum { FIRST = 1500, FIRST_LIMIT = 1560, LATER = 908, FULL = 39 }; // pages: both prompts'
    uint64_t seed = test_seed();
    int32_t *ids = random_ids(LATER, &seed), *others = random_ids(FIRST, &seed);
    struct world *w = open_long(20, FULL, 8);
    cot_request request;
    cot_request_init(&request);
    request.prompt = others;
    request.prompt_tokens = FIRST;
    cot_request_state *first = cot_scheduler_submit(&w->s, &request, FIRST_LIMIT, 0, 0);
    request.prompt = ids;
    request.prompt_tokens = LATER;
    cot_request_state *later = cot_scheduler_submit(&w->s, &request, LATER + 1, 0, 0);
    assert_true(first && later);
    while (later->fed < LATER) {
        while (cot_scheduler_admit(&w->s)) {}
        const cot_step step = cot_scheduler_plan(&w->s);
        run(w, &step);
        for (int32_t i = 0; i < step.spans; i++) {
            cot_request_state *r = w->s.by_row[step.span[i].sequence];
            cot_scheduler_fed(&w->s, r, step.span[i].tokens);
            if (r == first && r->fed == r->known && r->known < r->limit) r->tokens[r->known++] = 1;
            if (r == first && r->fed == r->limit) cot_scheduler_release(&w->s, r);
        }
    }
    assert_int_equal(w->s.preemptions, 1);
    assert_true(later->fork > LATER / 2 && later->fork < LATER - 16);
    assert_true(is_kept(w, ids, later->fork));
    close_long(w);
    free(ids);
    free(others);
}

/* A next turn that has not the last tokens of the prompt before goes on from its last block but those. */
static void ends_leave_the_tail_out(void **state)
{
    (void)state;
    enum { TURN = 300 };
    uint64_t seed = test_seed();
    for (int64_t prompt = 96; prompt < 96 + 16; prompt++) {
        int32_t *ids = random_ids(prompt + 21, &seed), *next = random_ids(TURN, &seed);
        struct world *w = open_long(512, PAGES, 6);
        say(w, ids, prompt, 20);
        memcpy(next, ids, (size_t)(prompt - COT_SNAPSHOT_TAIL) * sizeof *ids);
        next[prompt - COT_SNAPSHOT_TAIL] = -1;
        assert_int_equal(say(w, next, TURN, 0), prompt < 96 + COT_SNAPSHOT_TAIL ? 80 : 96);
        assert_int_equal(say(w, ids, prompt + 21, 0), (prompt + 20) / 16 * 16); // behind the answer
        close_long(w);
        free(ids);
        free(next);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(texts_go_on_from_their_own),
                                       cmocka_unit_test(turns_compute_what_is_new),
                                       cmocka_unit_test(an_end_has_first_call),
                                       cmocka_unit_test(a_long_prompt_takes_one_place),
                                       cmocka_unit_test(turns_take_the_places_of_older_ones),
                                       cmocka_unit_test(a_prompt_has_a_mark_on_its_way),
                                       cmocka_unit_test(shared_beginnings_stay),
                                       cmocka_unit_test(a_mark_that_was_hit_stays),
                                       cmocka_unit_test(forks_are_found),
                                       cmocka_unit_test(where_it_was_preempted_is_a_fork),
                                       cmocka_unit_test(ends_leave_the_tail_out)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
