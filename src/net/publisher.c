#include "net/publisher.h"

#include "base/clock.h"
#include "base/error.h"

#include <errno.h>
#include <event2/event.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

enum {
    REPLAYS = 16,          // that are under way at once; further requests wait in the socket
    NAME_BYTES = 255,      // of a client, at most: ZeroMQ's own limit
    FRAMES = 8,            // of a request, that are looked at
    REQUEST_BYTES = 256,   // of a frame that clients may send: more ends their connection
    RETRY_US = 10000,      // until a replay whose reader is slow goes on
    PATIENCE_S = 10,       // that a reader may read nothing of its replay
    MESSAGES_A_ROUND = 256 // of replays that are sent before the loop's others have their turn
};

typedef struct kept_message {
    void *payload;
    size_t bytes, room;
    bool there;
} kept_message;

typedef struct replay {
    uint8_t name[NAME_BYTES];
    size_t name_bytes; // 0: this place is free
    uint64_t next;     // the message to be sent next
    int64_t since_ns;  // when its reader last took one
} replay;

struct cot_publisher {
    void *pub, *router; // sockets; router NULL: no replays
    struct event *asked, *retry;
    char *topic;
    size_t topic_bytes, keep;
    uint64_t count;     // messages so far
    kept_message *kept; // [keep] message n at n % keep
    replay replays[REPLAYS];
};

void *cot_publisher_context_open(void)
{
    return zmq_ctx_new();
}

void cot_publisher_context_close(void *context)
{
    if (context) zmq_ctx_term(context);
}

/* ---- sending ---- */

static void write_number(uint8_t bytes[8], uint64_t number)
{
    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)(number >> (56 - 8 * i));
}

static void keep(cot_publisher *p, uint64_t number, const void *payload, size_t bytes)
{
    kept_message *at = &p->kept[number % p->keep];
    at->there = false;
    if (!at->payload || bytes > at->room ||
        bytes < at->room / 4) { // a large one's room is not kept for small ones
        free(at->payload);
        at->payload = malloc(bytes ? bytes : 1);
        at->room = at->payload ? bytes : 0;
    }
    if (!at->payload) return;
    if (bytes) memcpy(at->payload, payload, bytes);
    at->bytes = bytes;
    at->there = true;
}

uint64_t cot_publisher_send(cot_publisher *p, const void *payload, size_t bytes)
{
    const uint64_t number = p->count++;
    uint8_t frame[8];
    write_number(frame, number);
    keep(p, number, payload, bytes);
    // a PUB socket drops what a subscriber has no room for, and never waits
    if (zmq_send(p->pub, p->topic, p->topic_bytes, ZMQ_DONTWAIT | ZMQ_SNDMORE) >= 0 &&
        zmq_send(p->pub, frame, sizeof frame, ZMQ_DONTWAIT | ZMQ_SNDMORE) >= 0)
        zmq_send(p->pub, payload, bytes, ZMQ_DONTWAIT);
    return number;
}

int64_t cot_publisher_last(const cot_publisher *p)
{
    return (int64_t)p->count - 1;
}

/* ---- replays ---- */

/* Sends a message on the ROUTER. 0, EAGAIN where its reader has no room yet, or another error: it is gone. */
static int answer(cot_publisher *p, const replay *r, const void *topic, size_t topic_bytes, uint64_t number,
                  const void *payload, size_t bytes)
{
    uint8_t frame[8];
    write_number(frame, number);
    if (zmq_send(p->router, r->name, r->name_bytes, ZMQ_DONTWAIT | ZMQ_SNDMORE) < 0) return errno;
    const bool sent = zmq_send(p->router, "", 0, ZMQ_DONTWAIT | ZMQ_SNDMORE) >= 0 &&
                      zmq_send(p->router, topic, topic_bytes, ZMQ_DONTWAIT | ZMQ_SNDMORE) >= 0 &&
                      zmq_send(p->router, frame, sizeof frame, ZMQ_DONTWAIT | ZMQ_SNDMORE) >= 0 &&
                      zmq_send(p->router, payload, bytes, ZMQ_DONTWAIT) >= 0;
    return sent ? 0 : EHOSTUNREACH;
}

/* Sends what there is room for, of `*budget` messages at most. True when there is more to send. */
static bool go_on(cot_publisher *p, replay *r, int *budget)
{
    while (r->name_bytes && *budget > 0) {
        const uint64_t oldest = p->count > p->keep ? p->count - p->keep : 0;
        if (r->next < oldest) r->next = oldest;
        const bool over = r->next >= p->count;
        const kept_message *m = over ? NULL : &p->kept[r->next % p->keep];
        int failed = 0;
        if (over)
            failed = answer(p, r, "", 0, UINT64_MAX, "", 0);
        else if (m->there)
            failed = answer(p, r, p->topic, p->topic_bytes, r->next, m->payload, m->bytes);
        if (failed == EAGAIN && cot_now_ns() - r->since_ns < PATIENCE_S * INT64_C(1000000000)) return true;
        if (over || failed) {
            r->name_bytes = 0;
            break;
        }
        r->next++;
        r->since_ns = cot_now_ns();
        --*budget;
    }
    return r->name_bytes;
}

bool cot_publisher_read_request(const void *const *frames, const size_t *bytes, size_t count,
                                uint64_t *number)
{
    if (count != 2 || bytes[0] || bytes[1] != 8) return false;
    const uint8_t *digits = frames[1];
    *number = 0;
    for (int i = 0; i < 8; i++) *number = *number << 8 | digits[i];
    return true;
}

/* A place for a replay: the one that this client has, or a free one; NULL: there is none. */
static replay *place_of(cot_publisher *p, const void *name, size_t bytes)
{
    replay *free_one = NULL;
    for (int i = 0; i < REPLAYS; i++) {
        replay *r = &p->replays[i];
        if (r->name_bytes == bytes && memcmp(r->name, name, bytes) == 0) return r;
        if (!r->name_bytes && !free_one) free_one = r;
    }
    return free_one;
}

/* Takes one message from the ROUTER. False when there is none. */
static bool take_request(cot_publisher *p)
{
    zmq_msg_t message[FRAMES];
    const void *frames[FRAMES];
    size_t bytes[FRAMES], count = 0;
    bool more = true, any = false;
    while (more) {
        zmq_msg_t one;
        zmq_msg_init(&one);
        if (zmq_msg_recv(&one, p->router, ZMQ_DONTWAIT) < 0) break;
        any = true;
        more = zmq_msg_more(&one);
        if (count < FRAMES) { // one that is moved keeps its bytes where they are only as this message
            zmq_msg_init(&message[count]);
            zmq_msg_move(&message[count++], &one);
        }
        zmq_msg_close(&one);
    }
    for (size_t i = 0; i < count; i++) {
        frames[i] = zmq_msg_data(&message[i]);
        bytes[i] = zmq_msg_size(&message[i]);
    }
    uint64_t number;
    if (count && bytes[0] && bytes[0] <= NAME_BYTES &&
        cot_publisher_read_request(frames + 1, bytes + 1, count - 1, &number)) {
        replay *r = place_of(p, frames[0], bytes[0]);
        if (r) {
            memcpy(r->name, frames[0], bytes[0]);
            r->name_bytes = bytes[0];
            r->next = number;
            r->since_ns = cot_now_ns();
        }
    }
    for (size_t i = 0; i < count; i++) zmq_msg_close(&message[i]);
    return any;
}

static bool has_place(const cot_publisher *p)
{
    for (int i = 0; i < REPLAYS; i++)
        if (!p->replays[i].name_bytes) return true;
    return false;
}

/* Sends what can be sent, and takes requests as there are places for them. ZeroMQ's descriptor tells of changes, not of a
 * state: what is left must be looked for again, by the timer. */
static void serve_replays(cot_publisher *p)
{
    int budget = MESSAGES_A_ROUND;
    bool more, any;
    do {
        more = false;
        for (int i = 0; i < REPLAYS; i++) more |= go_on(p, &p->replays[i], &budget);
        any = has_place(p) && take_request(p);
    } while (any && budget > 0);
    if (more || any) event_add(p->retry, &(struct timeval){.tv_usec = budget > 0 ? RETRY_US : 0});
}

static void on_asked(evutil_socket_t descriptor, short what, void *context)
{
    (void)descriptor;
    (void)what;
    serve_replays(context);
}

/* ---- opening ---- */

static bool set(void *socket, int option, int value)
{
    return zmq_setsockopt(socket, option, &value, sizeof value) == 0;
}

static cot_status bind_socket(void **socket, void *context, int type, const char *endpoint, int most_unread,
                              cot_error *error)
{
    *socket = zmq_socket(context, type);
    const bool good =
        *socket && set(*socket, ZMQ_LINGER, 0) && set(*socket, ZMQ_IPV6, 1) &&
        set(*socket, ZMQ_SNDHWM, most_unread) &&
        zmq_setsockopt(*socket, ZMQ_MAXMSGSIZE, &(int64_t){REQUEST_BYTES}, sizeof(int64_t)) == 0 &&
        (type != ZMQ_ROUTER || set(*socket, ZMQ_ROUTER_MANDATORY, 1));
    if (!good) return cot_fail(error, COT_IO, "cannot make a socket: %s", zmq_strerror(errno));
    if (zmq_bind(*socket, endpoint) == 0) return COT_OK;
    const int why = errno;
    return cot_fail(error, why == EADDRINUSE || why == EACCES ? COT_IO : COT_INVALID_ARGUMENT,
                    "cannot listen on '%s': %s", endpoint, zmq_strerror(why));
}

static cot_status listen_for_requests(cot_publisher *p, struct event_base *base, cot_error *error)
{
    int descriptor = -1;
    size_t bytes = sizeof descriptor;
    if (zmq_getsockopt(p->router, ZMQ_FD, &descriptor, &bytes) == 0) {
        p->asked = event_new(base, descriptor, EV_READ | EV_PERSIST, on_asked, p);
        p->retry = evtimer_new(base, on_asked, p);
    }
    if (!p->asked || !p->retry || event_add(p->asked, NULL))
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a publisher");
    event_active(p->asked, EV_READ, 0); // what came before anybody listened
    return COT_OK;
}

cot_status cot_publisher_open(cot_publisher **out, void *context, struct event_base *base,
                              const cot_publisher_options *o, cot_error *error)
{
    cot_publisher *p = *out = calloc(1, sizeof *p);
    if (p) {
        p->keep = (size_t)o->keep;
        p->kept = calloc(p->keep, sizeof *p->kept);
        p->topic = strdup(o->topic);
    }
    cot_status status = p && p->kept && p->topic
                            ? COT_OK
                            : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a publisher");
    if (status == COT_OK) {
        p->topic_bytes = strlen(p->topic);
        status = bind_socket(&p->pub, context, ZMQ_PUB, o->endpoint, (int)o->most_unread, error);
    }
    if (status == COT_OK && o->replay_endpoint) {
        status = bind_socket(&p->router, context, ZMQ_ROUTER, o->replay_endpoint, 1000, error);
        if (status == COT_OK) status = listen_for_requests(p, base, error);
    }
    if (status == COT_OK) return COT_OK;
    cot_publisher_close(p);
    *out = NULL;
    return status;
}

void cot_publisher_close(cot_publisher *p)
{
    if (!p) return;
    if (p->asked) event_free(p->asked);
    if (p->retry) event_free(p->retry);
    if (p->pub) zmq_close(p->pub);
    if (p->router) zmq_close(p->router);
    for (size_t i = 0; p->kept && i < p->keep; i++) free(p->kept[i].payload);
    free(p->kept);
    free(p->topic);
    free(p);
}
