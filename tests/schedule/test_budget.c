/* Pages that open and close, what more of them would save, and how memory is split, each against a plain model. */
#include "harness/cmocka.h"
#include "harness/engine/requests.h"
#include "harness/seed.h"

#include "schedule/budget.h"
#include "schedule/scheduler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- pages ---- */

/* Who holds what is known by a mark in each page, which moves along. */
static void what_is_in_pages_comes_along(void **state)
{
    (void)state;
    enum { PAGES = 40, TURNS = 3000, HOMES = 3 };
    uint64_t seed = test_seed();
    cot_page_pool pool;
    int32_t moved[2 * PAGES];
    int mark[PAGES] = {0}, marks = 0, closed = 0, came = 0; // 0: free
    assert_int_equal(cot_page_pool_open(&pool, PAGES, HOMES, NULL), COT_OK);
    for (int turn = 0; turn < TURNS; turn++) {
        const int32_t page = (int32_t)(draw(&seed) % PAGES);
        if (draw(&seed) % 3 && pool.free_pages) {
            const int32_t taken = cot_page_pool_take(&pool, (int)(draw(&seed) % HOMES));
            assert_true(taken < pool.open && !mark[taken]);
            mark[taken] = ++marks;
        } else if (mark[page]) {
            cot_page_pool_release(&pool, page);
            mark[page] = 0;
        }
        if (draw(&seed) % 5) continue;
        int64_t used = 0;
        for (int p = 0; p < PAGES; p++) used += mark[p] > 0;
        const int64_t open = used + (int64_t)(draw(&seed) % (uint64_t)(PAGES - used + 1)), before = pool.open;
        const int64_t moves = cot_page_pool_resize(&pool, open, moved);
        for (int64_t i = 0; i < moves; i++) {
            const int32_t from = moved[2 * i], to = moved[2 * i + 1];
            assert_true(from >= open && to < open && mark[from] && !mark[to] &&
                        (!i || from > moved[2 * i - 2]));
            mark[to] = mark[from];
            mark[from] = 0;
        }
        came += moves > 0;
        closed += open < before;
        int64_t left = 0, in_lists = 0;
        for (int p = 0; p < PAGES; p++) {
            assert_int_equal(pool.references[p] > 0, mark[p] > 0);
            left += p < open && !mark[p];
            assert_true(p < open || !mark[p]);
        }
        for (int h = 0; h < HOMES; h++) in_lists += pool.free[h].count;
        assert_int_equal(pool.free_pages, left);
        assert_int_equal(in_lists, left);
        assert_int_equal(pool.open, open);
    }
    assert_true(closed > TURNS / 50 && came > TURNS / 100);
    cot_page_pool_close(&pool);
}

/* ---- what pages are worth ---- */

/* The order of use as a list: the newest last. */
struct list {
    uint64_t hash[4096];
    int64_t count, most;
};

static void use(struct list *l, uint64_t hash)
{
    int64_t i = 0;
    while (i < l->count && l->hash[i] != hash) i++;
    if (i < l->count || l->count == l->most) {
        const int64_t from = i < l->count ? i : 0;
        memmove(l->hash + from, l->hash + from + 1, (size_t)(l->count - from - 1) * sizeof *l->hash);
        l->count--;
    }
    l->hash[l->count++] = hash;
}

/* What a cache of so many pages would have found of the texts, by looking. */
static void blocks_are_worth_what_a_cache_would_find(void **state)
{
    (void)state;
    enum { TEXTS = 1500, TREES = 30, LONGEST = 12 };
    static const int64_t shapes[][2] = {
        {32, 16}, {50, 64}, {33, 4}, {1, 32}, {7, 16}}; // pages, tokens of a block
    uint64_t seed = test_seed();
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        const int64_t pages = shapes[s][0], block = shapes[s][1];
        static struct list list;
        cot_page_worth w;
        double wanted[COT_PAGE_WORTH_BINS] = {0}, found[COT_PAGE_WORTH_BINS + 1];
        assert_int_equal(cot_page_worth_open(&w, pages, block, NULL), COT_OK);
        list = (struct list){.most = w.blocks};
        w.token_ns = 3;
        w.block_pages = (double)block / COT_KV_PAGE * (1 + (double)(draw(&seed) % 3) / 2);
        for (int t = 0; t < TEXTS; t++) {
            const uint64_t tree = draw(&seed) % TREES + (draw(&seed) % 8 ? 0 : 1000 + (uint64_t)t);
            const int64_t n =
                (int64_t)(draw(&seed) % (LONGEST + 1)) < w.blocks
                    ? (int64_t)(draw(&seed) % (uint64_t)(w.blocks < LONGEST ? w.blocks : LONGEST))
                    : w.blocks;
            int64_t deepest = 0;
            bool all = true;
            for (int64_t i = 0; i < n; i++) {
                w.line[i] = tree * 100 + (uint64_t)i;
                int64_t at = list.count - 1;
                while (at >= 0 && list.hash[at] != w.line[i]) at--;
                all &= at >= 0;
                if (!all) continue;
                if (list.count - 1 - at > deepest) deepest = list.count - 1 - at;
                const int64_t bin =
                    (int64_t)((double)deepest * w.block_pages * COT_PAGE_WORTH_BINS / (double)pages);
                if (bin < COT_PAGE_WORTH_BINS) wanted[bin] += (double)block * w.token_ns;
            }
            cot_page_worth_look_up(&w, n);
            for (int64_t i = n - 1; i >= 0; i--) use(&list, tree * 100 + (uint64_t)i);
        }
        cot_page_worth_elapse(&w, 50, 1e12);
        cot_page_worth_of(&w, found);
        double sum = 0;
        for (int i = 0; i < COT_PAGE_WORTH_BINS; i++) {
            sum += wanted[i];
            if (fabs(found[i + 1] - sum / 50) > 1e-9 * sum)
                fail_msg("%lld pages: %d bins save %g, not %g", (long long)pages, i + 1, found[i + 1],
                         sum / 50);
        }
        assert_true(pages == 1 || sum > 0);
        cot_page_worth_elapse(&w, 10,
                              10); // as many steps again count twice what was before, which is nothing
        assert_true(fabs(w.steps - 30) < 1e-6);
        cot_page_worth_close(&w);
    }
}

/* Who waits for pages alone would run with more of them; who waits for another request would not, however many there are. */
static void who_waits_for_another_wants_no_pages(void **state)
{
    (void)state;
    enum { PAGES = 16, OPEN = 2, STEP = 16 };
    enum { NOBODY, FOR_PAGES, FOR_ANOTHER, WAYS };
    static const int32_t ids[4 * COT_KV_PAGE];
    static const double prior[COT_COST_TERMS] = {1};
    double saved[WAYS] = {0};
    for (int way = 0; way < WAYS; way++) {
        const cot_scheduler_limits limits = {.sequences = 4,
                                             .pages = PAGES,
                                             .step_tokens = STEP,
                                             .step_logits = STEP,
                                             .step_maps =
                                                 cot_scheduler_step_maps(STEP, 4, PAGES * COT_KV_PAGE, 0),
                                             .homes = 1,
                                             .max_wait_steps = 8};
        cot_scheduler s;
        cot_page_worth worth;
        int32_t moved[2 * PAGES];
        assert_int_equal(cot_scheduler_open(&s, &limits, NULL), COT_OK);
        assert_int_equal(cot_page_worth_open(&worth, PAGES, 16, NULL), COT_OK);
        cot_scheduler_resize(&s, OPEN, moved);
        s.worth = &worth;
        cot_cost_init(&s.cost, prior, 1, 0, 1);
        s.cost.steps = 1000;
        s.cost.weight[COT_COST_FIXED] = 1e6; // which those that run share
        cot_request first = generating_from(ids, COT_KV_PAGE, 9);
        const cot_request_state *runs = cot_scheduler_submit(&s, &first, COT_KV_PAGE + 9, 0, 0);
        assert_ptr_equal(cot_scheduler_admit(&s), runs);
        cot_request second = generating_from(ids, (OPEN + 1) * COT_KV_PAGE, 9); // more pages than are open
        second.after = way == FOR_ANOTHER ? runs->id : 0;
        if (way) assert_non_null(cot_scheduler_submit(&s, &second, (OPEN + 1) * COT_KV_PAGE + 9, 0, 0));
        cot_scheduler_weigh_step(&s);
        for (int i = 0; i < COT_PAGE_WORTH_BINS; i++) saved[way] += worth.saved_ns[i];
        cot_page_worth_close(&worth);
        cot_scheduler_close(&s);
    }
    assert_true(saved[FOR_PAGES] > saved[NOBODY]);
    assert_true(saved[FOR_ANOTHER] == saved[NOBODY]);
}

/* ---- splits ---- */

/* Rising curves, some with cliffs. */
static void draw_curve(double *ns, uint64_t *seed)
{
    const bool cliff = draw(seed) % 2;
    const int at = (int)(draw(seed) % COT_BUDGET_BINS);
    ns[0] = 0;
    for (int i = 0; i < COT_BUDGET_BINS; i++)
        ns[i + 1] = ns[i] + (cliff ? i == at ? 500 : 0 : (double)(draw(seed) % 100) / (1 + i));
}

/* Under a load that stays the split comes to one that saves as much as the best but for what is not worth a move, and stays there; on the way it
 * turns once at most. Then another load; some stay for a few looks only. */
static void a_split_comes_to_the_best_and_stays(void **state)
{
    (void)state;
    enum { LOADS = 400, LOOKS = 40 };
    const double step_ns = 1000, close = 1e-4 * step_ns, // splits that are as good
        little = 0.02 * step_ns + close;                 // as it is where memory goes back
    uint64_t seed = test_seed();
    cot_budget b = {.least = 3, .pages = 17};
    int moved = 0, all = 0;
    for (int load = 0; load < LOADS; load++) {
        double pages[COT_BUDGET_BINS + 1], slots[COT_BUDGET_BINS + 1], most = 0;
        draw_curve(pages, &seed);
        draw_curve(slots, &seed);
        if (draw(&seed) % 4 == 0)
            for (int i = 0; i < (int)(draw(&seed) % 8); i++) slots[i] = -INFINITY;
        for (int i = b.least; i <= COT_BUDGET_BINS; i++)
            most = fmax(most, pages[i] + slots[COT_BUDGET_BINS - i]);
        const int64_t turns = b.turns;
        const int stays = draw(&seed) % 2 ? LOOKS : 1 + (int)(draw(&seed) % 6);
        for (int look = 0; look < stays; look++, all++) {
            const int before = b.pages;
            cot_budget_look(&b, pages, slots, step_ns);
            assert_in_range(b.pages, b.least, COT_BUDGET_BINS);
            assert_true(abs(b.pages - before) <= COT_BUDGET_BINS / 4);
            assert_int_equal(b.pages > before, b.reason == COT_BUDGET_PAGES);
            assert_int_equal(b.pages < before, b.reason == COT_BUDGET_SLOTS);
            assert_true(look < 20 || b.pages == before);
            moved += b.pages != before;
        }
        assert_in_range(b.turns - turns, 0, 1);
        if (stays < LOOKS) continue;
        const double saved = pages[b.pages] + slots[COT_BUDGET_BINS - b.pages];
        if (saved < most - little * 1.0001)
            fail_msg("load %d: the split saves %g, the best %g", load, saved, most);
    }
    assert_true(moved > LOADS / 2);
    int64_t looks = 0;
    for (int i = 0; i < COT_BUDGET_REASONS; i++) {
        looks += b.by_reason[i];
        assert_true(b.by_reason[i] > 0);
    }
    assert_int_equal(looks, all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_in_pages_comes_along),
                                       cmocka_unit_test(blocks_are_worth_what_a_cache_would_find),
                                       cmocka_unit_test(who_waits_for_another_wants_no_pages),
                                       cmocka_unit_test(a_split_comes_to_the_best_and_stays)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
