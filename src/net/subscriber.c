#include "net/subscriber.h"

#include "base/error.h"

#include <errno.h>
#include <event2/event.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

enum {
    FRAMES = 4,            // of a message
    MESSAGES_A_ROUND = 64, // before the loop's others have their turn
    MESSAGES_A_TAKE = 1024,
    MOST_UNREAD = 10000
};

/* A socket, and what tells that something has come on it. */
typedef struct inlet {
    void *socket; // NULL: none
    struct event *ready;
} inlet;

struct cot_subscriber {
    cot_subscriber_options options; // its texts are owned copies
    void *zmq;
    struct event_base *base;
    inlet live, replay;
};

bool cot_subscriber_read(uint64_t *number, const void **payload, size_t *payload_bytes,
                         const void *const *frames, const size_t *bytes, size_t count, size_t first)
{
    if (count < first + 2 || count > FRAMES || bytes[count - 2] != 8) return false;
    const uint8_t *digits = frames[count - 2];
    *number = 0;
    for (int i = 0; i < 8; i++) *number = *number << 8 | digits[i];
    *payload = frames[count - 1];
    *payload_bytes = bytes[count - 1];
    return true;
}

/* ---- what comes ---- */

static void take(cot_subscriber *s, bool replayed, const void *const *frames, const size_t *bytes,
                 size_t count)
{
    uint64_t number;
    const void *payload;
    size_t n;
    // live: topic, number, payload; a replay's: '', number, payload, or with the topic between
    if (!cot_subscriber_read(&number, &payload, &n, frames, bytes, count, 1)) return;
    if (!replayed || number != UINT64_MAX)
        s->options.on_message(s->options.context, replayed, number, payload, n);
    else if (s->options.on_replay_end)
        s->options.on_replay_end(s->options.context);
}

/* Takes one message. False when there is none. */
static bool take_one(cot_subscriber *s, bool replayed)
{
    void *const socket = replayed ? s->replay.socket : s->live.socket;
    zmq_msg_t parts[FRAMES];
    const void *frames[FRAMES];
    size_t bytes[FRAMES], count = 0, kept = 0;
    bool more = true;
    while (more) {
        zmq_msg_t one;
        zmq_msg_init(&one);
        if (zmq_msg_recv(&one, socket, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(&one);
            break;
        }
        more = zmq_msg_more(&one);
        if (kept < FRAMES) {
            zmq_msg_init(&parts[kept]);
            zmq_msg_move(&parts[kept++], &one);
        }
        zmq_msg_close(&one);
        count++;
    }
    for (size_t i = 0; i < kept; i++) {
        frames[i] = zmq_msg_data(&parts[i]);
        bytes[i] = zmq_msg_size(&parts[i]);
    }
    if (count && !more && count == kept) take(s, replayed, frames, bytes, count);
    for (size_t i = 0; i < kept; i++) zmq_msg_close(&parts[i]);
    return count;
}

void cot_subscriber_take(cot_subscriber *s)
{
    for (int i = 0; i < MESSAGES_A_TAKE && take_one(s, false); i++) {}
}

/* ZeroMQ's descriptor tells of changes, not of a state: what is left is looked for in the next round. */
static void take_all(cot_subscriber *s, bool replayed)
{
    for (int i = 0; i < MESSAGES_A_ROUND; i++)
        if (!take_one(s, replayed)) return;
    event_active(replayed ? s->replay.ready : s->live.ready, EV_READ, 0);
}

static void on_live(evutil_socket_t descriptor, short what, void *context)
{
    (void)descriptor, (void)what;
    take_all(context, false);
}

static void on_replay(evutil_socket_t descriptor, short what, void *context)
{
    (void)descriptor, (void)what;
    take_all(context, true);
}

/* ---- opening ---- */

static void close_inlet(inlet *i)
{
    if (i->ready) event_free(i->ready);
    if (i->socket) zmq_close(i->socket);
    *i = (inlet){0};
}

static bool set(void *socket, int option, int value)
{
    return zmq_setsockopt(socket, option, &value, sizeof value) == 0;
}

static cot_status open_inlet(inlet *i, cot_subscriber *s, int type, const char *endpoint,
                             event_callback_fn ready, cot_error *error)
{
    const int64_t most = s->options.max_bytes ? (int64_t)s->options.max_bytes : -1;
    int descriptor = -1;
    size_t bytes = sizeof descriptor;
    i->socket = zmq_socket(s->zmq, type);
    if (!i->socket || !set(i->socket, ZMQ_LINGER, 0) || !set(i->socket, ZMQ_IPV6, 1) ||
        !set(i->socket, ZMQ_RCVHWM, MOST_UNREAD) || !set(i->socket, ZMQ_RECONNECT_IVL_MAX, 1000) ||
        zmq_setsockopt(i->socket, ZMQ_MAXMSGSIZE, &most, sizeof most) != 0 ||
        (type == ZMQ_SUB &&
         zmq_setsockopt(i->socket, ZMQ_SUBSCRIBE, s->options.topic, strlen(s->options.topic)) != 0) ||
        zmq_getsockopt(i->socket, ZMQ_FD, &descriptor, &bytes) != 0)
        return cot_fail(error, COT_IO, "cannot make a socket: %s", zmq_strerror(errno));
    if (zmq_connect(i->socket, endpoint) != 0)
        return cot_fail(error, COT_INVALID_ARGUMENT, "cannot follow '%s': %s", endpoint, zmq_strerror(errno));
    if (!s->base) return COT_OK;
    i->ready = event_new(s->base, descriptor, EV_READ | EV_PERSIST, ready, s);
    if (!i->ready || event_add(i->ready, NULL))
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a subscriber");
    event_active(i->ready, EV_READ, 0); // what came before anybody listened
    return COT_OK;
}

bool cot_subscriber_ask(cot_subscriber *s, uint64_t from)
{
    uint8_t frame[8];
    if (!s->options.replay_endpoint || !s->base) return false;
    for (int i = 0; i < 8; i++) frame[i] = (uint8_t)(from >> (56 - 8 * i));
    if (!s->replay.socket &&
        open_inlet(&s->replay, s, ZMQ_DEALER, s->options.replay_endpoint, on_replay, NULL) != COT_OK) {
        close_inlet(&s->replay);
        return false;
    }
    const bool sent = zmq_send(s->replay.socket, "", 0, ZMQ_DONTWAIT | ZMQ_SNDMORE) >= 0 &&
                      zmq_send(s->replay.socket, frame, sizeof frame, ZMQ_DONTWAIT) >= 0;
    event_active(s->replay.ready, EV_READ, 0); // sending may take the descriptor's news
    return sent;
}

static char *copied(const char *text)
{
    return text ? strdup(text) : NULL;
}

cot_status cot_subscriber_open(cot_subscriber **out, void *zmq, struct event_base *base,
                               const cot_subscriber_options *o, cot_error *error)
{
    cot_subscriber *s = *out = calloc(1, sizeof *s);
    cot_status status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a subscriber");
    if (s) {
        s->options = *o;
        s->zmq = zmq;
        s->base = base;
        s->options.endpoint = copied(o->endpoint);
        s->options.replay_endpoint = copied(o->replay_endpoint);
        s->options.topic = copied(o->topic);
        if (s->options.endpoint && s->options.topic && (s->options.replay_endpoint || !o->replay_endpoint))
            status = open_inlet(&s->live, s, ZMQ_SUB, s->options.endpoint, on_live, error);
    }
    if (status == COT_OK) return COT_OK;
    cot_subscriber_close(s);
    *out = NULL;
    return status;
}

void cot_subscriber_close(cot_subscriber *s)
{
    if (!s) return;
    close_inlet(&s->live);
    close_inlet(&s->replay);
    free((char *)s->options.endpoint);
    free((char *)s->options.replay_endpoint);
    free((char *)s->options.topic);
    free(s);
}
