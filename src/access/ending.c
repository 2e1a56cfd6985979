#include "access/ending.h"

#include <event2/event.h>

enum { CHECK_MS = 10, MOST_CHECKS = 200 };

static void on_deadline(evutil_socket_t descriptor, short what, void *context)
{
    const cot_access_ending *e = context;
    (void)descriptor, (void)what;
    e->cut(e->context);
}

static void on_over(evutil_socket_t descriptor, short what, void *context)
{
    cot_access_ending *e = context;
    (void)descriptor, (void)what;
    if (cot_http_server_connections(e->http) && ++e->checks < MOST_CHECKS) return;
    event_base_loopbreak(e->base);
}

static void hear_stop(void *context, uint64_t calls)
{
    cot_access_ending *e = context;
    const bool first = !e->heard;
    if (first) {
        cot_access_tell(e->access, COT_LOG_INFO,
                        "shutting down: no new requests; those under way have %lld s",
                        (long long)e->shutdown_ms / 1000);
        cot_access_ending_begin(e);
    }
    if (first && calls == 1) return;
    e->heard = 2;
    e->cut(e->context);
}

bool cot_access_ending_open(cot_access_ending *e, const cot_access *access, struct event_base *base,
                            int64_t shutdown_ms, void (*rests)(void *context), void (*cut)(void *context),
                            void *context)
{
    *e = (cot_access_ending){.access = access,
                             .base = base,
                             .shutdown_ms = shutdown_ms,
                             .rests = rests,
                             .cut = cut,
                             .context = context};
    if (!cot_wake_open(&e->stop, base, hear_stop, e)) return false;
    e->on_deadline = event_new(base, -1, 0, on_deadline, e);
    e->on_over = event_new(base, -1, EV_PERSIST, on_over, e);
    return e->on_deadline && e->on_over;
}

void cot_access_ending_ask(const cot_access_ending *e)
{
    cot_wake_up(&e->stop);
}

void cot_access_ending_begin(cot_access_ending *e)
{
    e->heard = 1;
    event_add(e->on_deadline,
              &(struct timeval){.tv_sec = e->shutdown_ms / 1000, .tv_usec = e->shutdown_ms % 1000 * 1000});
    e->rests(e->context);
}

void cot_access_ending_finish(cot_access_ending *e, cot_http_server *http)
{
    e->is_over = true;
    e->http = http;
    event_add(e->on_over, &(struct timeval){.tv_usec = CHECK_MS * 1000});
}

void cot_access_ending_close(cot_access_ending *e)
{
    if (!e->access) return;
    if (e->on_deadline) event_free(e->on_deadline);
    if (e->on_over) event_free(e->on_over);
    cot_wake_close(&e->stop);
}
