/* The server's inside: what a connection is, and who moves it.
 *
 *     HEAD --head--> BODY --body--> OWED --stream_begin--> STREAM
 *      ^               |             |                       |
 *      '---------------+--reply------'------- stream_end ----'        or, where the connection ends: LINGER
 *
 * One function, cot_http_advance, moves a connection as far as it goes. It is called when the socket, a timer or the handler
 * gave it something to do, and is the only one that calls the handler and that frees a connection. The functions of
 * http_server.h only change what it finds; they ask for it with cot_http_wake.
 *
 * The socket is watched edge-triggered, for bytes, room and the client's leaving alike, by one event that is registered
 * once: a client's leaving is seen whether or not its bytes are being read, and an event costs no call of epoll_ctl. */
#ifndef COT_NET_HTTP_CONNECTION_H
#define COT_NET_HTTP_CONNECTION_H
#include "net/http_buffer.h"
#include "net/http_head.h"
#include "net/http_server.h"
#include "net/tls.h"
#include <event2/event.h>
#include <event2/event_struct.h>

typedef enum cot_http_state {
    COT_HTTP_HEAD,   // a head is awaited or coming
    COT_HTTP_BODY,   // the head has been shown to `check`, the body is coming
    COT_HTTP_OWED,   // shown to `handle`, not answered
    COT_HTTP_STREAM, // the answer has begun
    COT_HTTP_LINGER, // the last answer leaves; what still comes is thrown away, so that no reset overtakes the answer
} cot_http_state;

struct cot_http_exchange {
    cot_http_server *server;
    cot_http_exchange *next, *previous; // all connections
    cot_http_exchange *next_woken;      // those to advance
    cot_http_exchange *before, *behind; // in the server's queue of those that owe it bytes
    int fd;
    cot_tls_link *link; // NULL: the bytes go as they are
    struct event socket, timer;
    int64_t timer_ns; // when the timer goes off; 0 while it is not set
    cot_http_state state;
    bool readable, writable; // as far as known: until a call says otherwise
    bool left;               // the client has sent a FIN
    bool suspect;            // ... or may have: bytes or an error were told since it was last looked at
    bool broken;             // to be cut
    bool woken;              // in one of the server's lists
    bool moving;             // cot_http_advance is at it
    bool skipped;            // the empty line that may stand before a head
    bool shown;              // the handler knows of it, and owes its end
    bool keep;               // the connection goes on after this answer
    bool only_head;          // the answer to HEAD
    bool chunked;            // the stream is sent in chunks
    bool pings;              // the stream is one of events
    bool shut;               // LINGER: our FIN is sent
    bool loopback;
    bool answered;                       // some request was answered before
    bool greeted;                        // of a link: its first byte is one of TLS
    bool reads_to_write, writes_to_read; // of a link: what it waits for to go on in the other direction
    bool has_head;                       // `head` is of a request that was understood
    bool queued;                         // `before` and `behind` are in force
    bool turned_away;                    // it has no place, and is only told so
    char peer[64];

    cot_http_buffer in, out;
    size_t scanned;   // of `in`, while looking for the head's end
    char *head_bytes; // the head that `head` points into
    cot_http_head head;
    cot_http_chunks chunks;
    char *body;
    size_t body_bytes, body_room;
    void *user;

    int status; // of the answer, 0 before it; its X-Request-Id and the bytes of its body
    char request_id[129];
    uint64_t answer_bytes;
    int64_t began_ns; // when the head was complete

    int64_t since_ns;    // when this state began
    int64_t progress_ns; // when the client last took bytes of `out`, or `out` began to fill
    int64_t sent_ns;     // when the stream last spoke
};

typedef struct cot_http_listener {
    int fd;
    struct event event;
} cot_http_listener;

enum { COT_HTTP_LISTENERS = 4 };

struct cot_http_server {
    struct event_base *base;
    cot_http_server_options options;
    cot_http_handler handler;
    void *context;
    cot_http_listener listeners[COT_HTTP_LISTENERS];
    size_t n_listeners;
    int reserve; // a descriptor to give up when there are no more, so that a client can be turned away
    struct event resume;
    uint16_t port;
    bool stopping, loopback_only;
    cot_http_exchange *connections;
    cot_http_exchange *longest,
        *latest; // those without a complete request, in the order in which they entered their state
    size_t n_connections, n_exchanges;
    size_t n_turned_away; // of the connections
    uint64_t dropped;     // connections that went to make room
    size_t bodies_bytes;  // held by all connections
    cot_http_exchange *woken, **woken_end;
    struct event wake; // this round of the loop
    cot_http_exchange *later;
    struct event again; // the next round, after the others have had their turn
    time_t date_second;
    char date[40];
    uint64_t names_drawn,
        names; // of what requests without a name are called: drawn once (0: not yet), and counted
};

/* The exchange is in this state from now on. Where it waits for its client, it is the last of those who do. */
void cot_http_enter(cot_http_exchange *exchange, cot_http_state state);
/* Cuts the connection that has waited for its client the longest. False: every connection has a request that is being
 * answered. */
bool cot_http_make_room(cot_http_server *server);
/* Takes a socket over. `turned_away`: it is only told that there are too many. */
void cot_http_connect(cot_http_server *server, int fd, const char *peer, bool loopback, bool turned_away);
void cot_http_advance(cot_http_exchange *exchange);
/* Has it advanced before the loop sleeps. */
void cot_http_wake(cot_http_exchange *exchange);
/* Cuts it at once: `gone`, if the handler owes an end. */
void cot_http_destroy(cot_http_exchange *exchange);
/* Answers in the server's own name and ends the connection. */
void cot_http_refuse(cot_http_exchange *exchange, int status, const char *message);
/* Tells the handler what became of the exchange; before it is forgotten. */
void cot_http_tell_over(cot_http_exchange *exchange, bool whole);
/* The exchange has its answer, or will never have it: its request is forgotten. */
void cot_http_forget(cot_http_exchange *exchange);

#endif
