/* What workers answer and clients send, as the router reads it. The first byte says what it is: events of a stream, a report of a
 * step, a snapshot, or a body whose members are set. */
#include "access/api_json.h"
#include "gateway/body.h"
#include "gateway/delivery.h"
#include "gateway/reports.h"
#include "gateway/request.h"
#include "net/sse.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

typedef struct reader {
    cot_delivery delivery;
    cot_buffer out;
} reader;

static bool on_event(void *context, const char *type, const char *data, size_t bytes)
{
    reader *r = context;
    (void)type;
    const cot_delivery_kind kind = cot_delivery_take(&r->delivery, data, bytes, &r->out);
    if (kind == COT_DELIVERY_EVENT && (r->delivery.hides_ids || r->delivery.resumed)) {
        json_t *json = json_loadb(r->out.data, r->out.bytes, JSON_ALLOW_NUL, NULL);
        if (!json) abort();
        json_decref(json);
    }
    return kind == COT_DELIVERY_EVENT || kind == COT_DELIVERY_NOTHING;
}

static void read_events(uint8_t how, const char *text, size_t bytes)
{
    reader r = {0};
    cot_sse sse = {.on_event = on_event, .context = &r};
    if (!cot_delivery_open(&r.delivery, 1 + (how & 3))) abort();
    r.delivery.hides_ids = how & 4;
    r.delivery.resumed = how & 8;
    r.delivery.most = how & 16 ? 4 : UINT64_MAX;
    cot_sse_feed(&sse, text, bytes);
    r.out.bytes = 0;
    if (!cot_delivery_write(&r.delivery, &r.out)) abort();
    json_t *ids = json_loadb(r.out.data, r.out.bytes, 0, NULL);
    if (json_array_size(ids) != r.delivery.choices) abort();
    json_decref(ids);
    cot_sse_free(&sse);
    cot_delivery_free(&r.delivery);
    cot_buffer_free(&r.out);
}

static void take_rank(void *context, int rank, uint64_t batches, const void *batch, size_t bytes)
{
    (void)batches;
    *(size_t *)context += bytes + (size_t)rank + (batch != NULL);
}

/* A body that is read where it stands says what it says as JSON. */
static void compare_skimmed(const char *text, size_t bytes, const json_t *json)
{
    cot_relay_request skimmed, read;
    int32_t *ids, *expected;
    size_t count, expected_count;
    if (!cot_relay_skim(&skimmed, &ids, &count, text, bytes)) return;
    cot_relay_read(&read, json, false);
    cot_relay_read_ids(&expected, &expected_count, json);
    if (count != expected_count || (count && memcmp(ids, expected, count * sizeof *ids) != 0) ||
        skimmed.choices != read.choices || skimmed.max_tokens != read.max_tokens ||
        skimmed.stream != read.stream || skimmed.seeded != read.seeded ||
        skimmed.wants_ids != read.wants_ids || skimmed.echo != read.echo ||
        skimmed.salt_bytes != read.salt_bytes)
        abort();
    free(expected);
    free(ids);
}

static void set_members(const char *text, size_t bytes)
{
    const cot_body_member members[] = {{"seed", "5"}, {"continue_token_ids", NULL}};
    cot_api_error error;
    cot_buffer out = {0};
    json_t *json = cot_api_read_json(text, bytes, 64 << 20, &error);
    if (!json) return;
    compare_skimmed(text, bytes, json);
    if (!cot_body_set(&out, text, bytes, members, 2)) abort();
    json_t *read = cot_api_read_json(out.data, out.bytes, 64 << 20, &error);
    json_object_del(json, "continue_token_ids");
    json_object_set_new(json, "seed", json_integer(5));
    if (!read || !json_equal(read, json)) abort();
    for (int chat = 0; chat < 2; chat++) {
        cot_relay_request request;
        int32_t *ids;
        size_t count, blocks;
        cot_relay_read(&request, json, chat);
        if (!request.choices || request.choices > COT_RELAY_MOST_CHOICES) abort();
        free(cot_relay_tokenize_body(json, chat));
        cot_relay_read_ids(&ids, &count, json);
        free(cot_relay_keys(&blocks, ids, count, 4, &request));
        if (blocks > count / 4) abort();
        free(ids);
    }
    json_decref(read);
    json_decref(json);
    cot_buffer_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    cot_route_work work;
    uint64_t epoch;
    size_t sum = 0;
    if (!bytes) return 0;
    const uint8_t how = *data++;
    bytes--;
    switch (how >> 6) {
    case 0:
        read_events(how, (const char *)data, bytes);
        break;
    case 1:
        if (cot_gateway_read_step(&work, &epoch, data, bytes) && !(work.requests >= 0 && work.ns >= 0))
            abort();
        break;
    case 2:
        cot_gateway_read_snapshot(data, bytes, take_rank, &sum);
        cot_route_calls calls;
        uint64_t block;
        cot_gateway_home home;
        if (cot_gateway_read_popularity(&calls, &block, &home, data, bytes, 100) == COT_GATEWAY_TOLD_REQUEST)
            for (uint32_t i = 0; i < calls.count; i++)
                if (calls.cell[i] >= 100 || (i && calls.cell[i] <= calls.cell[i - 1]) ||
                    !(calls.share[i] > 0 && calls.share[i] < 1))
                    abort();
        break;
    default:
        set_members((const char *)data, bytes);
    }
    return 0;
}
