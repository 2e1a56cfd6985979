/* Events of a KV cache some of whose layers have a state in place of keys: whatever requests come, are preempted and cancelled, who reads
 * them as a router does finds of any text what the scheduler would go on from, by batches as by snapshots. */
#include "harness/cmocka.h"
#include "harness/engine/requests.h"
#include "harness/seed.h"

#include "gateway/reports.h"
#include "net/publisher.h"
#include "route/feed.h"
#include "schedule/scheduler.h"
#include "worker/kv_events.h"

#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROWS = 4,
    PAGES = 40,
    HOMES = 2,
    TEXTS = 3,
    LONGEST = 1500,
    HISTORIES = 30,
    STEPS = 120,
    MOST_BLOCKS = LONGEST / 4
};

/* Of one home, by what is published. */
struct router {
    cot_route_index *index;
    cot_route_feed *feed;
};

static struct world {
    cot_scheduler s;
    struct event_base *base;
    cot_kv_events *kv;
    struct router router[HOMES];
    uint64_t batches[HOMES];
    bool wakes; // the cache's thread is asked to come round
    int64_t snapshots, gone_on, cut;
    int32_t text[TEXTS][LONGEST];
    uint64_t seed;
} w;

static int64_t among(int64_t least, int64_t most)
{
    return least + (int64_t)(draw(&w.seed) % (uint64_t)(most - least + 1));
}

/* ---- publishers, which hand batches to the routers ---- */

struct cot_publisher {
    int home;
};
static cot_publisher publisher[HOMES];
static int publishers;

cot_status __wrap_cot_publisher_open(cot_publisher **out, void *context, struct event_base *base,
                                     const cot_publisher_options *options, cot_error *error);
uint64_t __wrap_cot_publisher_send(cot_publisher *to, const void *payload, size_t bytes);
int64_t __wrap_cot_publisher_last(const cot_publisher *of);
void __wrap_cot_publisher_close(cot_publisher *of);

cot_status __wrap_cot_publisher_open(cot_publisher **out, void *context, struct event_base *base,
                                     const cot_publisher_options *options, cot_error *error)
{
    (void)context, (void)base, (void)options, (void)error;
    publisher[publishers].home = publishers;
    *out = &publisher[publishers++];
    return COT_OK;
}

uint64_t __wrap_cot_publisher_send(cot_publisher *to, const void *payload, size_t bytes)
{
    cot_error error;
    if (cot_route_feed_live(w.router[to->home].feed, w.batches[to->home], payload, bytes, 0, &error) !=
        COT_OK)
        fail_msg("%s", error.message);
    return w.batches[to->home]++;
}

int64_t __wrap_cot_publisher_last(const cot_publisher *of)
{
    return (int64_t)w.batches[of->home] - 1;
}

void __wrap_cot_publisher_close(cot_publisher *of)
{
    (void)of;
}

/* ---- what routers know ---- */

static struct router open_router(void)
{
    struct router r;
    assert_int_equal(cot_route_index_open(&r.index, 1, NULL), COT_OK);
    assert_int_equal(cot_route_feed_open(&r.feed, r.index, 0, (size_t)w.s.limits.block, true, NULL), COT_OK);
    return r;
}

static void close_router(struct router *r)
{
    cot_route_feed_close(r->feed);
    cot_route_index_close(r->index);
}

static int64_t blocks_by(const struct router *r, const int32_t *ids, int64_t tokens)
{
    uint64_t keys[MOST_BLOCKS];
    const size_t block = (size_t)w.s.limits.block, blocks = (size_t)tokens / block;
    uint32_t depth = 0;
    for (size_t i = 0; i < blocks; i++) {
        const uint64_t own = cot_cache_local_hash(ids + i * block, block);
        keys[i] = i ? cot_cache_sequence_hash(keys[i - 1], own) : own;
    }
    if (blocks) cot_route_index_match(r->index, &depth, keys, blocks);
    return cot_route_feed_reusable(r->feed, keys, depth);
}

static void compare(const struct router *routers, const char *how)
{
    for (int home = 0; home < w.s.limits.homes; home++)
        for (int t = 0; t < TEXTS; t++) {
            const cot_prefix_root root = {.home = home};
            const int64_t tokens = among(1, LONGEST);
            int64_t expected, held;
            cot_prefix_resume(&w.s.prefix, &root, w.text[t], tokens, &expected);
            cot_prefix_match(&w.s.prefix, &root, w.text[t], tokens, &held);
            const int64_t found = blocks_by(&routers[home], w.text[t], tokens);
            if (found != expected)
                fail_msg("by %s %lld blocks can be gone on from, not %lld; %lld are held", how,
                         (long long)found, (long long)expected, (long long)held);
            w.gone_on += expected > 0;
            w.cut += held > expected;
        }
}

static void take_rank(void *context, int rank, uint64_t batches, const void *batch, size_t bytes)
{
    struct router *routers = context;
    assert_int_equal(batches, w.batches[rank]);
    assert_int_equal(cot_route_feed_snapshot(routers[rank].feed, batches, batch, bytes, NULL), COT_OK);
}

static void on_snapshot(void *follower, const void *bytes, size_t count)
{
    (void)follower;
    struct router late[HOMES];
    for (int h = 0; h < HOMES; h++) late[h] = open_router();
    assert_non_null(bytes);
    assert_true(cot_gateway_read_snapshot(bytes, count, take_rank, late));
    compare(late, "a snapshot");
    w.snapshots++;
    for (int h = 0; h < HOMES; h++) close_router(&late[h]);
}

/* ---- the cache's thread ---- */

static cot_status list(void *context, const cot_cache_events *events)
{
    (void)context;
    return cot_prefix_list(&w.s.prefix, events, NULL);
}

static void wake(void *context)
{
    (void)context;
    w.wakes = true;
}

/* Until all that came and went has been told, what was lost on the way, too. */
static void tell(void)
{
    do {
        w.wakes = false;
        cot_kv_events_flush(w.kv);
        event_base_loop(w.base, EVLOOP_NONBLOCK);
    } while (w.wakes);
}

static void submit(void)
{
    cot_request request;
    cot_request_init(&request);
    request.prompt = w.text[draw(&w.seed) % TEXTS];
    request.prompt_tokens = among(1, draw(&w.seed) % 4 ? 200 : 1200);
    assert_non_null(cot_scheduler_submit(&w.s, &request, request.prompt_tokens + among(1, 150),
                                         (int)(draw(&w.seed) % (uint64_t)w.s.limits.homes), 0));
}

static void step(void)
{
    while (cot_scheduler_admit(&w.s)) {}
    const cot_step step = cot_scheduler_plan(&w.s);
    for (int32_t i = 0; i < step.spans; i++) {
        cot_request_state *r = w.s.by_row[step.span[i].sequence];
        if (draw(&w.seed) % 200 == 0) {
            cot_scheduler_release(&w.s, r);
            continue;
        }
        cot_scheduler_fed(&w.s, r, step.span[i].tokens);
        if (r->fed < r->known) continue;
        if (r->known == r->limit || draw(&w.seed) % 100 == 0)
            cot_scheduler_release(&w.s, r);
        else
            r->tokens[r->known] = w.text[0][r->known], r->known++; // answers are alike, too
    }
    cot_scheduler_sweep(&w.s);
}

static void open_world(bool short_queue)
{
    const int64_t steps = among(1, 3) == 1 ? 1200 : among(4, 90);
    cot_scheduler_limits l = {.sequences = ROWS,
                              .pages = among(23, PAGES),
                              .step_tokens = steps,
                              .step_logits = steps,
                              .homes = (int)among(1, HOMES),
                              .block = 1 << among(2, 6),
                              .snapshots = among(1, 12),
                              .max_wait_steps = 8};
    l.step_maps = cot_scheduler_step_maps(steps, ROWS, l.pages * COT_KV_PAGE, l.block);
    l.step_states = cot_scheduler_step_states(steps, ROWS, l.snapshots);
    assert_int_equal(cot_scheduler_open(&w.s, &l, NULL), COT_OK);
    for (int t = 0; t < TEXTS; t++)
        for (int i = 0; i < LONGEST; i++)
            w.text[t][i] = t && i < 300 * t ? w.text[0][i] : (int32_t)(draw(&w.seed) % 50);
    char json[128];
    snprintf(json, sizeof json, "{\"enable_kv_cache_events\": true, \"max_queue_size\": %d}",
             short_queue ? (int)among(1, 4) : 10000); // events get lost on their way
    cot_kv_config config;
    const cot_kv_events_owner owner = {.homes = w.s.limits.homes,
                                       .block_tokens = w.s.limits.block,
                                       .list = list,
                                       .wake = wake,
                                       .on_snapshot = on_snapshot};
    publishers = 0;
    assert_int_equal(cot_kv_config_read(&config, json, NULL), COT_OK);
    assert_int_equal(cot_kv_events_open(&w.kv, &config, &owner, w.base, NULL), COT_OK);
    w.s.prefix.watch = cot_kv_events_watcher(w.kv);
    for (int h = 0; h < HOMES; h++) {
        w.router[h] = open_router();
        w.batches[h] = 0;
    }
}

static void close_world(void)
{
    for (int h = 0; h < HOMES; h++) close_router(&w.router[h]);
    w.s.prefix.watch = (cot_cache_events){0};
    cot_scheduler_close(&w.s);
    cot_kv_events_close(w.kv);
}

static void routers_know_what_can_be_gone_on_from(void **state)
{
    (void)state;
    uint64_t losses = 0;
    w = (struct world){.seed = test_seed(), .base = event_base_new()};
    for (int history = 0; history < HISTORIES; history++) {
        open_world(history % 3 == 0);
        for (int i = 0; i < STEPS; i++) {
            if (draw(&w.seed) % 3 == 0 || !(w.s.waiting_count + w.s.active_count)) submit();
            step();
            if (draw(&w.seed) % 20 == 0) cot_kv_events_ask(w.kv);
            if (draw(&w.seed) % 4) continue;
            tell();
            compare(w.router, "batches");
        }
        uint64_t batches, lost;
        cot_kv_events_count(w.kv, &batches, &lost);
        losses += lost;
        close_world();
    }
    event_base_free(w.base);
    if (!losses || !w.snapshots || !w.gone_on || !w.cut)
        fail_msg("%llu losses, %lld snapshots, %lld gone on from, %lld cut: drawn are too few",
                 (unsigned long long)losses, (long long)w.snapshots, (long long)w.gone_on, (long long)w.cut);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(routers_know_what_can_be_gone_on_from)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
