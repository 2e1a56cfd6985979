/* Homes that are chosen by what a request would send from there, against a model that lists every way in which a token may be served:
 * drawn placements with replicas, requests and blocks that homes have, and experts. */
#include "harness/cmocka.h"
#include "harness/engine/requests.h"
#include "harness/seed.h"

#include "schedule/scheduler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_HOMES = 4,
    LAYERS = 2,
    EXPERTS = 4,
    CELLS = LAYERS * EXPERTS,
    MOST_REPLICAS = 3,
    KINDS = 5, // of texts; nothing is known of the last
    BLOCK = 4,
    PROMPT = 3 * BLOCK,
    MOST = 12 // requests
};

struct placement {
    int32_t begin[LAYERS][EXPERTS + 1], rank[CELLS * MOST_REPLICAS], slot[CELLS * MOST_REPLICAS];
    int64_t first[LAYERS + 1];
};

static struct {
    cot_scheduler s;
    int homes;
    uint8_t share[KINDS][CELLS];
    struct placement placement[2];
    cot_expert_layout layout[2], *now;
    bool cached[KINDS][MOST_HOMES];
    cot_request_state *request[MOST];
    int64_t known[MOST];
    int home[MOST], count;
} w;

static bool expect(const void *context, uint8_t *share, const cot_request *request)
{
    assert_ptr_equal(context, &w);
    if (request->prompt[0] == KINDS - 1) return false;
    memcpy(share, w.share[request->prompt[0]], CELLS);
    return true;
}

static const cot_expert_layout *layout_now(const void *context)
{
    assert_ptr_equal(context, &w);
    return w.now;
}

static int compare(const void *a, const void *b)
{
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static void draw_placement(struct placement *p, cot_expert_layout *layout, uint64_t *seed)
{
    int64_t count = 0;
    for (int l = 0; l < LAYERS; l++) {
        p->first[l] = count;
        p->begin[l][0] = 0;
        for (int e = 0; e < EXPERTS; e++) {
            const int replicas = 1 + (draw(seed) % 3 ? 0 : (int)(draw(seed) % MOST_REPLICAS));
            for (int i = 0; i < replicas; i++) p->rank[count + i] = (int32_t)(draw(seed) % (uint64_t)w.homes);
            qsort(p->rank + count, (size_t)replicas, sizeof *p->rank, compare);
            count += replicas;
            p->begin[l][e + 1] = p->begin[l][e] + replicas;
        }
    }
    p->first[LAYERS] = count;
    *layout = (cot_expert_layout){.n_layers = LAYERS,
                                  .n_experts = EXPERTS,
                                  .n_ranks = w.homes,
                                  .begin = p->begin[0],
                                  .first = p->first,
                                  .rank = p->rank,
                                  .slot = p->slot};
}

/* The other ranks that a token asks, expected over the experts [e, EXPERTS) of a layer and the replicas that serve them, where those
 * before asked `asked`. */
static double sends(const uint8_t *share, int layer, int e, int home, unsigned asked)
{
    if (e == EXPERTS) return __builtin_popcount(asked);
    const double p = share[e] / 255.;
    const double without = (1 - p) * sends(share, layer, e + 1, home, asked);
    const int32_t *rank = w.now->rank + w.now->first[layer], begin = w.now->begin[layer * (EXPERTS + 1) + e],
                  end = w.now->begin[layer * (EXPERTS + 1) + e + 1];
    for (int32_t i = begin; i < end; i++)
        if (rank[i] == home) return without + p * sends(share, layer, e + 1, home, asked);
    double with = 0;
    for (int32_t i = begin; i < end; i++)
        with += sends(share, layer, e + 1, home, asked | 1u << rank[i]) / (end - begin);
    return without + p * with;
}

static int model_chooses(int kind, bool by_experts, int64_t *fewest, int64_t requests[MOST_HOMES])
{
    int64_t tokens[MOST_HOMES] = {0};
    double sent[MOST_HOMES] = {0};
    bool any_cached = false;
    memset(requests, 0, MOST_HOMES * sizeof *requests);
    for (int i = 0; i < w.count; i++) {
        requests[w.home[i]]++;
        tokens[w.home[i]] += w.known[i];
    }
    for (int h = 0; h < w.homes; h++) any_cached |= w.cached[kind][h];
    *fewest = INT64_MAX;
    for (int h = 0; h < w.homes; h++) {
        for (int l = 0; l < LAYERS; l++) sent[h] += sends(w.share[kind] + l * EXPERTS, l, 0, h, 0);
        if (w.cached[kind][h] == any_cached && requests[h] < *fewest) *fewest = requests[h];
    }
    by_experts &= kind < KINDS - 1;
    int best = -1;
    for (int h = 0; h < w.homes; h++) {
        if (w.cached[kind][h] != any_cached || (by_experts && requests[h] > *fewest + 1)) continue;
        const double more = best < 0 || !by_experts ? 0 : sent[h] - sent[best];
        if (best < 0 || more < -1e-7 || (fabs(more) < 1e-7 && tokens[h] < tokens[best])) best = h;
    }
    return best;
}

static cot_request text_of(int32_t ids[PROMPT + 1], int kind)
{
    cot_request r;
    cot_request_init(&r);
    for (int i = 0; i <= PROMPT; i++) ids[i] = kind;
    r.prompt = ids;
    r.prompt_tokens = PROMPT + 1;
    return r;
}

static void open_world(bool by_experts, uint64_t *seed)
{
    memset(&w, 0, sizeof w);
    w.homes = 1 + (int)(draw(seed) % MOST_HOMES);
    cot_scheduler_limits limits = {
        .sequences = 1,
        .pages = 200,
        .step_tokens = 64,
        .step_logits = 64,
        .step_maps = cot_scheduler_step_maps(64, 1, 64, BLOCK),
        .homes = w.homes,
        .block = BLOCK,
        .max_wait_steps = 8,
        .foresight = {
            .cells = CELLS, .expect = expect, .layout = by_experts ? layout_now : NULL, .context = &w}};
    assert_int_equal(cot_scheduler_open(&w.s, &limits, NULL), COT_OK);
    for (int p = 0; p < 2; p++) draw_placement(&w.placement[p], &w.layout[p], seed);
    for (int k = 0; k < KINDS; k++)
        for (int c = 0; c < CELLS; c++) { // few values: some homes are equal
            const uint64_t value = draw(seed) % 4;
            w.share[k][c] = (uint8_t)(value == 3 ? draw(seed) % 256 : value == 2 ? 255 : value * 128);
        }
    for (int k = 0; k < KINDS; k++)
        for (int h = 0; h < w.homes; h++) { // fed there, and over
            int32_t ids[PROMPT + 1];
            if (draw(seed) % 2) continue;
            const cot_request r = text_of(ids, k);
            cot_request_state *state = cot_scheduler_submit(&w.s, &r, PROMPT + 2, h, 0);
            assert_ptr_equal(cot_scheduler_admit(&w.s), state);
            const cot_step step = cot_scheduler_plan(&w.s);
            cot_scheduler_fed(&w.s, state, step.tokens);
            cot_scheduler_release(&w.s, state);
            cot_scheduler_sweep(&w.s);
            w.cached[k][h] = true;
        }
}

static void submit(uint64_t *seed)
{
    int32_t ids[PROMPT + 1];
    cot_request r = text_of(ids, KINDS);
    r.prompt_tokens = 1 + (int64_t)(draw(seed) % 3); // some homes know equally many tokens
    w.home[w.count] = (int)(draw(seed) % (uint64_t)w.homes);
    w.known[w.count] = r.prompt_tokens;
    w.request[w.count] = cot_scheduler_submit(&w.s, &r, 20, w.home[w.count], 0);
    assert_non_null(w.request[w.count++]);
}

static void end_one(uint64_t *seed)
{
    const int i = (int)(draw(seed) % (uint64_t)w.count), last = --w.count;
    cot_scheduler_release(&w.s, w.request[i]);
    cot_scheduler_sweep(&w.s);
    w.request[i] = w.request[last];
    w.home[i] = w.home[last];
    w.known[i] = w.known[last];
}

static void homes_are_those_of_the_model(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    int other_than_load = 0, other_placement = 0, beside_the_least = 0;
    for (int world = 0; world < 400; world++) {
        const bool by_experts = world % 4;
        open_world(by_experts, &seed);
        for (int i = 0; i < 40; i++) {
            if (w.count < MOST && draw(&seed) % 5 < 3) submit(&seed);
            if (w.count && draw(&seed) % 3 == 0) end_one(&seed);
            if (draw(&seed) % 8 == 0) cot_scheduler_admit(&w.s); // one that runs counts as one that waits
            int32_t ids[PROMPT + 1];
            int64_t fewest, requests[MOST_HOMES];
            const int kind = (int)(draw(&seed) % KINDS);
            const cot_request r = text_of(ids, kind);
            int chosen[2];
            for (int p = 0; p < 2; p++) { // under either placement
                w.now = &w.layout[p];
                chosen[p] = cot_scheduler_choose_home(&w.s, &r, w.homes);
                assert_int_equal(chosen[p], model_chooses(kind, by_experts, &fewest, requests));
                if (by_experts && kind < KINDS - 1) assert_true(requests[chosen[p]] <= fewest + 1);
                beside_the_least += by_experts && requests[chosen[p]] == fewest + 1;
            }
            other_placement += chosen[0] != chosen[1];
            other_than_load += chosen[1] != model_chooses(kind, false, &fewest, requests);
        }
        cot_scheduler_close(&w.s);
    }
    assert_true(other_than_load > 200 && other_placement > 200 && beside_the_least > 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(homes_are_those_of_the_model)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
