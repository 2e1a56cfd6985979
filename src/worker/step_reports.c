#include "worker/step_reports.h"

#include "base/error.h"
#include "net/publisher.h"
#include "net/wake.h"
#include "worker/payload.h"
#include "worker/ring.h"

#include <event2/event.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

enum {
    MOST_RANKS = 64,
    KEPT = 4096,         // reports that the loop may be behind
    MOST_UNREAD = 10000, // messages that a subscriber may be behind
    LATER_MS = 100 // a report is sent so much later at most: those of many steps wake who follows them once
};

/* What goes through the ring; the ranks' counters and what homes hold stand behind it. */
typedef struct entry {
    double seconds; // when the step was over
    cot_backend_report report;
} entry;

struct cot_step_reports {
    void *context; // of the publisher
    cot_publisher *publisher;
    struct event *later; // sends what is in the ring
    cot_ring ring;
    cot_wake news;       // there is something in the ring
    atomic_bool is_told; // that there is; the loop has not looked since
    /* The loop's thread alone. */
    cot_buffer payload;
    entry entry; // the one that is read
    cot_backend_rank ranks[MOST_RANKS];
    cot_home_load homes[MOST_RANKS];
};

/* ---- the computing thread ---- */

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

void cot_step_reports_put(cot_step_reports *r, const cot_backend_report *report)
{
    const entry head = {seconds_now(), *report};
    const cot_ring_part parts[] = {{&head, sizeof head},
                                   {report->rank, (size_t)report->ranks * sizeof *report->rank},
                                   {report->home, (size_t)report->homes * sizeof *report->home}};
    if (cot_ring_put(&r->ring, parts, 3, 0) && !atomic_exchange(&r->is_told, true)) cot_wake_up(&r->news);
}

/* ---- the loop's thread ---- */

static int pack_whole(msgpack_packer *to, const char *name, uint64_t number)
{
    return cot_payload_text(to, name) | msgpack_pack_uint64(to, number);
}

static int pack_real(msgpack_packer *to, const char *name, double number)
{
    return cot_payload_text(to, name) | msgpack_pack_double(to, number);
}

static int pack_rank(msgpack_packer *to, const cot_backend_rank *rank)
{
    return msgpack_pack_map(to, 8) | pack_whole(to, "tokens", rank->tokens) |
           pack_whole(to, "activations", rank->activations) | pack_whole(to, "local", rank->local) |
           pack_whole(to, "sends", rank->sends) | pack_whole(to, "distinct_experts", rank->distinct_experts) |
           pack_whole(to, "served", rank->served) | pack_whole(to, "served_experts", rank->served_experts) |
           pack_whole(to, "received", rank->received);
}

static int pack_home(msgpack_packer *to, const cot_home_load *home)
{
    return msgpack_pack_map(to, 4) | pack_whole(to, "waiting", (uint64_t)home->waiting) |
           pack_whole(to, "waiting_prompt_tokens", (uint64_t)home->waiting_prompt_tokens) |
           pack_whole(to, "running", (uint64_t)home->running) |
           pack_whole(to, "free_pages", (uint64_t)home->free_pages);
}

static int pack(msgpack_packer *to, const entry *e)
{
    const cot_backend_report *s = &e->report;
    int failed = msgpack_pack_map(to, 13) | pack_whole(to, "step", (uint64_t)s->step) |
                 pack_real(to, "seconds", e->seconds) | pack_whole(to, "sequences", (uint64_t)s->sequences) |
                 pack_whole(to, "tokens", (uint64_t)s->tokens) |
                 pack_whole(to, "prompt_tokens", (uint64_t)s->prompt_tokens) |
                 pack_whole(to, "positions", (uint64_t)s->positions) |
                 pack_whole(to, "pairs", (uint64_t)s->pairs) | pack_whole(to, "epoch", s->epoch) |
                 pack_real(to, "predicted_ns", s->predicted_ns) |
                 pack_real(to, "observed_ns", s->observed_ns);
    failed |= cot_payload_text(to, "bytes") | msgpack_pack_map(to, (size_t)s->phases);
    for (int p = 0; p < s->phases; p++) failed |= pack_whole(to, s->phase[p], s->bytes[p]);
    failed |= cot_payload_text(to, "ranks") | msgpack_pack_array(to, (size_t)s->ranks);
    for (int rank = 0; rank < s->ranks; rank++) failed |= pack_rank(to, &s->rank[rank]);
    failed |= cot_payload_text(to, "homes") | msgpack_pack_array(to, (size_t)s->homes);
    for (int home = 0; home < s->homes; home++) failed |= pack_home(to, &s->home[home]);
    return failed;
}

/* The next report, its counters beside it. */
static bool take(cot_step_reports *r)
{
    uint8_t bytes[sizeof r->entry + sizeof r->ranks + sizeof r->homes];
    if (!cot_ring_take(&r->ring, bytes, sizeof bytes)) return false;
    memcpy(&r->entry, bytes, sizeof r->entry);
    memcpy(r->ranks, bytes + sizeof r->entry, (size_t)r->entry.report.ranks * sizeof *r->ranks);
    const size_t ranks = (size_t)r->entry.report.ranks * sizeof *r->ranks;
    memcpy(r->homes, bytes + sizeof r->entry + ranks, (size_t)r->entry.report.homes * sizeof *r->homes);
    r->entry.report.rank = r->ranks;
    r->entry.report.home = r->homes;
    return true;
}

/* A report has come: it goes together with those that come soon. */
static void hear_news(void *context, uint64_t times)
{
    const cot_step_reports *r = context;
    (void)times;
    event_add(r->later, &(struct timeval){.tv_usec = LATER_MS * 1000});
}

/* Publishes what has come; what memory is missing for is lost. */
static void publish(evutil_socket_t descriptor, short what, void *context)
{
    cot_step_reports *r = context;
    (void)descriptor, (void)what;
    atomic_store(&r->is_told, false); // what comes from here on is told anew
    while (take(r)) {
        r->payload.bytes = 0;
        msgpack_packer to = cot_payload_packer(&r->payload);
        if (!pack(&to, &r->entry)) cot_publisher_send(r->publisher, r->payload.data, r->payload.bytes);
    }
}

/* ---- opening ---- */

cot_status cot_step_reports_open(cot_step_reports **out, const cot_endpoint *endpoint, int ranks,
                                 struct event_base *base, cot_error *error)
{
    const size_t entry_bytes =
        sizeof(entry) + (size_t)ranks * (sizeof(cot_backend_rank) + sizeof(cot_home_load)) + 4;
    cot_step_reports *r = *out = calloc(1, sizeof *r);
    if (!r) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for reports of steps");
    r->news.fd = -1;
    r->context = cot_publisher_context_open();
    cot_status status = COT_OK;
    if (!r->context || !cot_ring_open(&r->ring, KEPT * entry_bytes) ||
        !cot_wake_open(&r->news, base, hear_news, r) || !(r->later = evtimer_new(base, publish, r)))
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for reports of steps");
    if (status == COT_OK) {
        char address[96];
        cot_endpoint_write(address, endpoint, 0);
        const cot_publisher_options options = {
            .endpoint = address, .topic = "steps", .keep = 1, .most_unread = MOST_UNREAD};
        status = cot_publisher_open(&r->publisher, r->context, base, &options, error);
    }
    if (status == COT_OK) return COT_OK;
    cot_step_reports_close(r);
    *out = NULL;
    return status;
}

void cot_step_reports_close(cot_step_reports *r)
{
    if (!r) return;
    cot_wake_close(&r->news);
    if (r->later) event_free(r->later);
    cot_publisher_close(r->publisher);
    cot_publisher_context_close(r->context);
    cot_ring_close(&r->ring);
    cot_buffer_free(&r->payload);
    free(r);
}
