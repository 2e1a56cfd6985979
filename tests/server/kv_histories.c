/* A program of test_kv_events.py: random histories of small engines, whose KV events go all the way that a server's go, and
 * what their caches truly hold. The engine's thread and the loop's take turns in one thread here, in a random order.
 *
 *   kv_histories SEED HISTORIES PORT > records
 *
 * A record is a kind (a byte), its bytes' count (4, little-endian) and those bytes:
 *   'B'  a batch: its number (8), then the payload as it was published
 *   'T'  what the cache holds at the moment when it is listed, for a snapshot (or after a loss): of each block the text up to its end, as
 *        home (4), bytes of the salt (4), ids (4), whether its state is kept (4), the salt, the ids
 *   'S'  a snapshot of the last such moment, as GET /kv_events/snapshot answers it
 *   'E'  the engine is closed: the next batch begins another cache and other numbers */
#include "harness/engine/requests.h"
#include "harness/engine/small_models.h"

#include "base/buffer.h"
#include "engine/engine_state.h"
#include "net/publisher.h"
#include "worker/kv_events.h"

#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REQUESTS = 6, LONGEST = 150, TEXTS = 3, HISTORIES_AN_ENGINE = 40 };

uint64_t __real_cot_publisher_send(cot_publisher *publisher, const void *payload, size_t bytes);
uint64_t __wrap_cot_publisher_send(cot_publisher *publisher, const void *payload, size_t bytes);

cot_status __real_cot_engine_list_cache(const cot_engine *engine, const cot_cache_events *events,
                                        cot_error *error);
cot_status __wrap_cot_engine_list_cache(const cot_engine *engine, const cot_cache_events *events,
                                        cot_error *error);

static void write_bytes(const void *bytes, size_t count)
{
    if (count && fwrite(bytes, 1, count, stdout) != count) exit(3);
}

static void begin_record(char kind, size_t bytes)
{
    const uint32_t count = (uint32_t)bytes;
    write_bytes(&kind, 1);
    write_bytes(&count, 4);
}

uint64_t __wrap_cot_publisher_send(cot_publisher *publisher, const void *payload, size_t bytes)
{
    const uint64_t number = __real_cot_publisher_send(publisher, payload, bytes);
    begin_record('B', 8 + bytes);
    write_bytes(&number, 8);
    write_bytes(payload, bytes);
    return number;
}

static bool looks_now; // the engine's thread is asked to come round

static cot_status list(void *engine, const cot_cache_events *events)
{
    return cot_engine_list_cache(engine, events, NULL);
}

static void on_snapshot(void *context, const void *bytes, size_t count)
{
    (void)context;
    if (!bytes) exit(4);
    begin_record('S', count);
    write_bytes(bytes, count);
}

static void wake(void *context)
{
    (void)context;
    looks_now = true;
}

/* What the cache's tables say, read without the functions that list them. */
static void write_truth(const cot_prefix_cache *c)
{
    cot_buffer all = {0};
    for (uint64_t b = 0; b <= c->bucket_mask; b++)
        for (int32_t at = c->bucket[b]; at >= 0; at = c->node[at].next) {
            int32_t line[LONGEST * 2], blocks = 0, root = at;
            for (int32_t n = at; n >= 0; n = c->node[n].parent) line[blocks++] = root = n;
            const cot_prefix_salt *salt = c->node[root].salt;
            const int32_t head[] = {c->node[at].home, salt ? (int32_t)salt->bytes : 0,
                                    (int32_t)(blocks * c->block), c->node[at].snapshot >= 0};
            cot_buffer_append(&all, head, sizeof head);
            if (salt) cot_buffer_append(&all, salt->data, salt->bytes);
            while (blocks) cot_buffer_append(&all, c->ids + line[--blocks] * c->block, (size_t)c->block * 4);
        }
    begin_record('T', all.bytes);
    write_bytes(all.data, all.bytes);
    cot_buffer_free(&all);
}

cot_status __wrap_cot_engine_list_cache(const cot_engine *engine, const cot_cache_events *events,
                                        cot_error *error)
{
    write_truth(&engine->loop.scheduler.prefix);
    return __real_cot_engine_list_cache(engine, events, error);
}

static cot_engine *open_engine(uint64_t *seed)
{
    static const int64_t blocks[] = {1, 4, 16, 64, 8};
    cot_engine_options o;
    cot_engine *engine;
    cot_error error;
    cot_engine_options_init(&o);
    o.group.ranks = 1 + (int)(draw(seed) % 2);
    o.group.threads = 1;
    o.attention.mode = draw(seed) % 2 ? "dp" : "tp";
    o.batch.sequences = 3;
    o.batch.step_tokens = 16 + (int64_t)(draw(seed) % 100);
    o.memory.block_tokens = blocks[draw(seed) % 5];
    o.memory.kv_tokens = 64 * (3 + (int64_t)(draw(seed) % 6));
    const char *model = draw(seed) % 2 ? small_qwen : small_states;
    const int64_t snapshots = 1 + (int64_t)(draw(seed) % 12);
    if (model == small_states) o.memory.snapshots = snapshots;
    if (cot_engine_open_random(&engine, model, strlen(model), 1, &o, &error) != COT_OK) {
        fprintf(stderr, "%s\n", error.message);
        exit(5);
    }
    return engine;
}

static void submit(cot_engine *engine, const int32_t texts[TEXTS][LONGEST], uint64_t *seed)
{
    static const char long_salt[] = "a salt with \xc3\xa4 in it";
    cot_request request;
    cot_error error;
    uint64_t id;
    const cot_events nobody = {0};
    cot_request_init(&request);
    request.prompt = texts[draw(seed) % TEXTS];
    request.prompt_tokens = 1 + (int64_t)(draw(seed) % (LONGEST - 20));
    request.sampling.max_tokens = (int64_t)(draw(seed) % 20);
    request.sampling.ignore_eos = true;
    request.sampling.temperature = 1;
    request.sampling.seed = draw(seed);
    if (draw(seed) % 3 == 0) {
        request.cache_salt = long_salt;
        request.cache_salt_bytes = 1 + draw(seed) % 2 * (sizeof long_salt - 2);
    }
    if (cot_engine_submit(engine, &id, &request, COT_HOME_ANY, &nobody, &error) != COT_OK) exit(6);
    if (draw(seed) % 5 == 0) cot_engine_cancel(engine, id, NULL);
}

/* One turn of the engine's thread: work, and then what is to be seen to. */
static void turn(cot_kv_events *kv, cot_engine *engine, uint64_t *seed, size_t *left)
{
    const bool asks = draw(seed) % 8 == 0;
    if (cot_engine_step(engine, left, NULL) != COT_OK) exit(7);
    if (asks) cot_kv_events_ask(kv);
    looks_now = false;
    cot_kv_events_flush(kv);
}

/* short_queue: events get lost on their way. */
static void live(uint64_t seed, int histories, bool short_queue, int port)
{
    cot_engine *engine = open_engine(&seed);
    struct event_base *base = event_base_new();
    cot_kv_config config;
    cot_kv_events *kv;
    cot_error error;
    char json[256];
    snprintf(
        json, sizeof json,
        "{\"enable_kv_cache_events\": true, \"endpoint\": \"tcp://127.0.0.1:%d\", \"max_queue_size\": %d, "
        "\"buffer_steps\": 3}",
        port, short_queue ? 1 + (int)(draw(&seed) % 40) : 10000);
    const cot_engine_info *info = cot_engine_describe(engine);
    const cot_kv_events_owner owner = {.context = engine,
                                       .homes = info->kv_homes,
                                       .block_tokens = info->block_tokens,
                                       .list = list,
                                       .wake = wake,
                                       .on_snapshot = on_snapshot};
    if (cot_kv_config_read(&config, json, &error) != COT_OK ||
        cot_kv_events_open(&kv, &config, &owner, base, &error) != COT_OK) {
        fprintf(stderr, "%s\n", error.message);
        exit(8);
    }
    const cot_cache_events events = cot_kv_events_watcher(kv);
    cot_engine_watch_cache(engine, &events);
    for (int h = 0; h < histories; h++) {
        int32_t texts[TEXTS][LONGEST];
        size_t left = 1;
        for (int t = 0; t < TEXTS; t++)
            for (int i = 0; i < LONGEST; i++)
                texts[t][i] = t && i < 70 ? texts[0][i] : 3 + (int32_t)(draw(&seed) % 60);
        for (int r = 0; r < REQUESTS || left;) {
            if (r < REQUESTS && draw(&seed) % 2) {
                submit(engine, (const int32_t(*)[LONGEST])texts, &seed);
                r++;
            }
            turn(kv, engine, &seed, &left);
            if (draw(&seed) % 3 == 0 || r == REQUESTS) event_base_loop(base, EVLOOP_NONBLOCK);
        }
    }
    // at rest: what was lost is made good, and a last snapshot has it all
    size_t left;
    do {
        event_base_loop(base, EVLOOP_NONBLOCK);
        looks_now = false;
        cot_engine_step(engine, &left, NULL);
        cot_kv_events_flush(kv);
        event_base_loop(base, EVLOOP_NONBLOCK);
    } while (looks_now);
    cot_kv_events_ask(kv);
    cot_kv_events_flush(kv);
    event_base_loop(base, EVLOOP_NONBLOCK);
    cot_engine_watch_cache(engine, NULL);
    begin_record('E', 0);
    cot_kv_events_close(kv);
    event_base_free(base);
    cot_engine_close(engine);
}

int main(int argc, char **argv)
{
    if (argc != 4) return 2;
    const uint64_t seed = strtoull(argv[1], NULL, 10);
    const int histories = atoi(argv[2]);
    for (int h = 0; h < histories; h += HISTORIES_AN_ENGINE) {
        const int left = histories - h;
        live(seed + (uint64_t)h * 1000003, left < HISTORIES_AN_ENGINE ? left : HISTORIES_AN_ENGINE,
             h / HISTORIES_AN_ENGINE % 2 == 0, atoi(argv[3]));
    }
    return 0;
}
