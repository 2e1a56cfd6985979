/* Requests that come within a window are asked for together. */
#include "gateway/relay.h"

#include <event2/event.h>

static void send_all(evutil_socket_t descriptor, short what, void *context)
{
    cot_gateway *g = context;
    (void)descriptor, (void)what;
    event_del(g->on_window);
    cot_relay_ask_together(g, g->waiting, g->waiting_count);
    g->waiting_count = 0;
}

bool cot_relay_wait_for_others(cot_relay *r)
{
    cot_gateway *g = r->gateway;
    if (!g->options.batch_us || !g->book || !r->generates) return false;
    if (!g->on_window) g->on_window = evtimer_new(g->base, send_all, g);
    if (!g->on_window) return false;
    if (!g->waiting_count) event_add(g->on_window, &(struct timeval){.tv_usec = g->options.batch_us});
    g->waiting[g->waiting_count++] = r;
    if (g->waiting_count == COT_ROUTE_MOST_TOGETHER) send_all(-1, 0, g);
    return true;
}

void cot_relay_leave_others(cot_relay *r)
{
    cot_gateway *g = r->gateway;
    for (size_t i = 0; i < g->waiting_count; i++)
        if (g->waiting[i] == r) g->waiting[i] = NULL;
}
