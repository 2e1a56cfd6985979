#include "worker/popularity_topic.h"

#include "base/error.h"
#include "net/publisher.h"
#include "net/wake.h"
#include "routing/signature.h"
#include "worker/payload.h"
#include "worker/ring.h"

#include <stdlib.h>
#include <string.h>

enum {
    CELL_BYTES = 3, // of a signature: u16 cell, u8 count
    REQUEST_BYTES = 2 * CELL_BYTES * COT_SIGNATURE_LARGEST + 64,
    KEPT_REQUESTS = 2048, // that the loop may be behind
    KEPT_SECONDS = 2,     // of homes
    MOST_UNREAD = 10000   // messages that a subscriber may be behind
};

struct cot_popularity_topic {
    void *context; // of the publisher
    cot_publisher *publisher;
    cot_ring ring;
    cot_wake news; // there is something in the ring
    cot_engine_popularity_info info;
    /* The engine's thread alone. */
    cot_buffer payload;
    uint8_t *numbers; // [n_layers][n_experts] float32, little-endian
    /* The loop's thread alone. */
    uint8_t *message;
    size_t message_bytes;
};

/* ---- the engine's thread ---- */

static void write_little(uint8_t *to, uint32_t bits, int bytes)
{
    for (int i = 0; i < bytes; i++) to[i] = (uint8_t)(bits >> 8 * i);
}

static int pack_bytes(msgpack_packer *to, const void *bytes, size_t count)
{
    return msgpack_pack_bin_with_body(to, bytes, count);
}

static int pack_signature(msgpack_packer *to, const uint8_t *cells, int32_t count)
{
    const cot_signature_shape shape = {.cells = count};
    uint16_t number[COT_SIGNATURE_LARGEST];
    uint8_t calls[COT_SIGNATURE_LARGEST], bytes[CELL_BYTES * COT_SIGNATURE_LARGEST];
    const int32_t n = cot_signature_largest(number, calls, cells, &shape);
    for (int32_t i = 0; i < n; i++) {
        write_little(bytes + CELL_BYTES * i, number[i], 2);
        bytes[CELL_BYTES * i + 2] = calls[i];
    }
    return pack_bytes(to, bytes, (size_t)n * CELL_BYTES);
}

/* What memory is missing for is lost. */
static void put(cot_popularity_topic *t, int failed)
{
    const cot_ring_part part = {t->payload.data, t->payload.bytes};
    if (!failed && cot_ring_put(&t->ring, &part, 1, 0)) cot_wake_up(&t->news);
}

void cot_popularity_topic_put_request(cot_popularity_topic *t, const cot_profile_told *p)
{
    t->payload.bytes = 0;
    msgpack_packer to = cot_payload_packer(&t->payload);
    int failed = msgpack_pack_map(&to, 1) | cot_payload_text(&to, "request") | msgpack_pack_array(&to, 5) |
                 msgpack_pack_int(&to, p->home) | msgpack_pack_uint64(&to, p->epoch);
    failed |= p->has_block ? msgpack_pack_uint64(&to, p->block_hash) : msgpack_pack_nil(&to);
    failed |= pack_signature(&to, p->prompt, p->cells) | pack_signature(&to, p->answer, p->cells);
    put(t, failed);
}

void cot_popularity_topic_put_home(cot_popularity_topic *t, int home, double tokens, const double *counts)
{
    const size_t cells = (size_t)t->info.n_layers * (size_t)t->info.n_experts;
    for (size_t i = 0; i < cells; i++) {
        const float count = (float)counts[i];
        uint32_t bits;
        memcpy(&bits, &count, sizeof bits);
        write_little(t->numbers + 4 * i, bits, 4);
    }
    t->payload.bytes = 0;
    msgpack_packer to = cot_payload_packer(&t->payload);
    put(t, msgpack_pack_map(&to, 1) | cot_payload_text(&to, "home") | msgpack_pack_array(&to, 3) |
               msgpack_pack_int(&to, home) | msgpack_pack_double(&to, tokens) |
               pack_bytes(&to, t->numbers, 4 * cells));
}

void cot_popularity_topic_put_evicted(cot_popularity_topic *t, int home, uint64_t block_hash)
{
    t->payload.bytes = 0;
    msgpack_packer to = cot_payload_packer(&t->payload);
    put(t, msgpack_pack_map(&to, 1) | cot_payload_text(&to, "evicted") | msgpack_pack_array(&to, 2) |
               msgpack_pack_int(&to, home) | msgpack_pack_uint64(&to, block_hash));
}

/* ---- the loop's thread ---- */

static void take_news(void *context, uint64_t times)
{
    cot_popularity_topic *t = context;
    (void)times;
    for (size_t bytes; (bytes = cot_ring_take(&t->ring, t->message, t->message_bytes));)
        cot_publisher_send(t->publisher, t->message, bytes);
}

cot_status cot_popularity_topic_open(cot_popularity_topic **out, const cot_endpoint *endpoint,
                                     const cot_engine_popularity_info *info, struct event_base *base,
                                     cot_error *error)
{
    *out = NULL;
    if (!info->n_layers)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "--popularity-endpoint: the model has no experts, or they are not counted");
    const size_t numbers = 4 * (size_t)info->n_layers * (size_t)info->n_experts, home_bytes = numbers + 64;
    cot_popularity_topic *t = *out = calloc(1, sizeof *t);
    if (!t) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for popularity");
    t->info = *info;
    t->news.fd = -1;
    t->message_bytes = home_bytes > REQUEST_BYTES ? home_bytes : REQUEST_BYTES;
    t->numbers = calloc(1, numbers);
    t->message = calloc(1, t->message_bytes);
    t->context = cot_publisher_context_open();
    cot_status status = COT_OK;
    if (!t->numbers || !t->message || !t->context ||
        !cot_ring_open(&t->ring, KEPT_REQUESTS * (size_t)REQUEST_BYTES +
                                     KEPT_SECONDS * (size_t)info->n_homes * (home_bytes + 8)) ||
        !cot_wake_open(&t->news, base, take_news, t))
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for popularity");
    if (status == COT_OK) {
        char address[96];
        cot_endpoint_write(address, endpoint, 0);
        const cot_publisher_options options = {
            .endpoint = address, .topic = "popularity", .keep = 1, .most_unread = MOST_UNREAD};
        status = cot_publisher_open(&t->publisher, t->context, base, &options, error);
    }
    if (status == COT_OK) return COT_OK;
    cot_popularity_topic_close(t);
    *out = NULL;
    return status;
}

void cot_popularity_topic_close(cot_popularity_topic *t)
{
    if (!t) return;
    cot_wake_close(&t->news);
    cot_publisher_close(t->publisher);
    cot_publisher_context_close(t->context);
    cot_ring_close(&t->ring);
    cot_buffer_free(&t->payload);
    free(t->numbers);
    free(t->message);
    free(t);
}
