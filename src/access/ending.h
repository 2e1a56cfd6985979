/* How whoever serves ends. Asked to once, it takes no new requests and lets those under way end, for a while; asked again, or after
 * that while, it cuts them; and when nothing is under way any more the last bytes leave, and the loop ends. */
#ifndef COT_ACCESS_ENDING_H
#define COT_ACCESS_ENDING_H
#include "access/access.h"
#include "net/wake.h"

struct event;
struct event_base;

/* All zero is closed. `heard` and `is_over` may be read. */
typedef struct cot_access_ending {
    int heard;    // 0: it serves; 1: it lets what is under way end; 2: it cuts that
    bool is_over; // nothing is under way any more
    const cot_access *access;
    struct event_base *base;
    int64_t shutdown_ms;
    void (*rests)(void *context); // it was asked: cot_access_ending_finish is called, now or later
    void (*cut)(void *context);
    void *context;
    cot_wake stop;
    struct event *on_deadline, *on_over;
    cot_http_server *http; // whose last bytes leave
    int checks;
} cot_access_ending;

/* `rests` and `cut` are called from the loop. False: memory or descriptors ran out; cot_access_ending_close is called either way. The
 * ending stays where it is. */
bool cot_access_ending_open(cot_access_ending *ending, const cot_access *access, struct event_base *base,
                            int64_t shutdown_ms, void (*rests)(void *context), void (*cut)(void *context),
                            void *context);
/* Any thread, or a signal's handler: asks it to end. */
void cot_access_ending_ask(const cot_access_ending *ending);
/* It ends by itself, and says why itself. */
void cot_access_ending_begin(cot_access_ending *ending);
/* Nothing is under way any more: once the last bytes are taken, or after two seconds, the loop ends. */
void cot_access_ending_finish(cot_access_ending *ending, cot_http_server *http);
void cot_access_ending_close(cot_access_ending *ending);

#endif
