#include "net/wake.h"

#include <event2/event.h>
#include <sys/eventfd.h>
#include <unistd.h>

static void on_wake(evutil_socket_t fd, short what, void *context)
{
    const cot_wake *wake = context;
    uint64_t times;
    (void)what;
    if (read(fd, &times, sizeof times) == sizeof times) wake->heard(wake->context, times); // else dropped
}

struct event_base *cot_wake_base_open(void)
{
    enum { CALLBACKS_A_ROUND = 64 };
    struct event_config *config = event_config_new();
    struct event_base *base = NULL;
    if (config && event_config_set_max_dispatch_interval(config, NULL, CALLBACKS_A_ROUND, 0) == 0)
        base = event_base_new_with_config(config);
    if (config) event_config_free(config);
    return base;
}

bool cot_wake_open(cot_wake *wake, struct event_base *base, void (*heard)(void *context, uint64_t times),
                   void *context)
{
    *wake = (cot_wake){eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), NULL, heard, context};
    if (wake->fd >= 0) wake->event = event_new(base, wake->fd, EV_READ | EV_PERSIST, on_wake, wake);
    return wake->event && event_add(wake->event, NULL) == 0;
}

void cot_wake_up(const cot_wake *wake)
{
    const uint64_t one = 1;
    if (write(wake->fd, &one, sizeof one) < 0) return; // it can only be full, which wakes the loop as well
}

void cot_wake_drop(const cot_wake *wake)
{
    uint64_t times;
    if (read(wake->fd, &times, sizeof times) < 0) return; // there was nothing
}

void cot_wake_close(cot_wake *wake)
{
    if (wake->event) event_free(wake->event);
    if (wake->fd >= 0) close(wake->fd);
    *wake = (cot_wake){.fd = -1};
}
