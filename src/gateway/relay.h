/* Inside a relay: what its parts share.
 *
 *     relay.c         it comes, ends, and is looked after
 *     relay_ids.c     ids of its prompt
 *     relay_together.c  it waits for others, to be assigned with them
 *     relay_ask.c     who is asked, and who goes on when that one dies
 *     relay_answer.c  what the one who was asked answers, and what of it the client is sent */
#ifndef COT_GATEWAY_RELAY_H
#define COT_GATEWAY_RELAY_H
#include "gateway/delivery.h"
#include "gateway/gateway_state.h"
#include "gateway/request.h"
#include "net/sse.h"

enum {
    COT_RELAY_MOST_TRIED = 16,
    COT_RELAY_MOST_ANSWER_BYTES = 64 << 20 // of an answer that is no stream
};

struct cot_relay {
    cot_gateway *gateway;
    cot_http_exchange *exchange; // NULL: the client has left, or has its answer
    cot_relay *before, *behind;
    /* What was asked. */
    char *method, *target, *body; // target: path and query
    size_t body_bytes;
    bool generates; // a completion or a chat
    json_t *json;   // its body, until ids are there
    cot_relay_request request;
    uint64_t seed;  // for a request without one
    uint64_t *keys; // [blocks]
    size_t blocks;
    cot_route_calls *foretold; // of its answer, by tables; NULL: nothing
    uint64_t tokens;           // of the prompt, or as many as its bytes make presume
    int64_t began_ns;
    cot_ask tokenize;
    cot_gateway_worker *tokenizes; // who is asked that; NULL: nobody
    /* Who answers. */
    cot_gateway_worker *worker; // NULL: nobody is asked now
    cot_http_call *call;
    size_t of_target;
    uint64_t booked, cached;
    uint64_t told_id;                   // by which other routers know it there; 0: they do not
    int64_t sent_ns, first_ns, last_ns; // asked; first and last bytes came; 0: none yet
    int64_t part_ns;                    // a part of an event waits for its rest; 0: none does
    const cot_gateway_worker *tried[COT_RELAY_MOST_TRIED]; // who is not asked again
    size_t tried_count, refusals, deaths;
    long retry_after; // the smallest that was said; 0: nobody refused
    bool all_down;    // nobody that refused was just busy
    /* The answer. */
    int status;
    bool is_events;
    char type[128], request_id[160], should_retry[16];
    cot_buffer answer; // that is no stream; of another engine's stream, an event that is not whole
    cot_sse sse;
    cot_delivery delivery;
    cot_buffer event;
    cot_delivery_kind verdict; // of the last event
    bool begun;                // something was sent to the client
    bool ended;                // the stream's own end was seen
    char *fingerprint;         // of who began it
    uint64_t tokens_before;    // delivered when its last worker took it on
    int64_t until_ns;          // that somebody is looked for to go on with it; 0: it goes on
    struct event *timer;
};

/* ---- relay.c ---- */

/* Nobody is asked any more. */
void cot_relay_drop_call(cot_relay *r);
/* Frees it; whoever was to have its answer has it. */
void cot_relay_release(cot_relay *r);
/* An error ends it: as a reply where nothing has been sent yet, else as the stream's last event. `retry_after` NULL: not said. */
void cot_relay_fail(cot_relay *r, const cot_api_error *error, const char *retry_after);
void cot_relay_fail_with(cot_relay *r, int status, const char *code, const char *message);

/* ---- relay_ids.c ---- */

/* Reads the body, finds the ids of its prompt, now or later, and then asks. */
void cot_relay_find_ids(cot_relay *r, bool chat);
/* They are no longer waited for. */
void cot_relay_drop_ids(cot_relay *r);
/* Goes without them where nobody has told them for long. */
void cot_relay_watch_ids(cot_relay *r, int64_t now_ns);

/* ---- relay_together.c ---- */

/* Whether it is asked for later, with those that come meanwhile: by then it may be gone. */
bool cot_relay_wait_for_others(cot_relay *r);
void cot_relay_leave_others(cot_relay *r); // whether it waits or not

/* ---- relay_ask.c ---- */

/* Asks the best target that is left. */
void cot_relay_ask(cot_relay *r);
/* Asks the best targets for requests [count] that have not been sent anywhere yet; those that are NULL, or leave meanwhile (they become
 * NULL), are left out. */
void cot_relay_ask_together(cot_gateway *g, cot_relay **relays, size_t count);
/* It would rather not, now: the next one is asked. `retry_after` NULL: not said. */
void cot_relay_refused(cot_relay *r, const char *retry_after);
/* Whether another can go on where the stream is. */
bool cot_relay_can_resume(const cot_relay *r);
/* Who answered does so no longer: another one is looked for. `message`: what the client is told if nobody can. */
void cot_relay_recover(cot_relay *r, const char *message);
/* The same, where what the worker sends cannot be right: that is a failure of its, so that one which does so again and again is
 * not asked for long, however many tokens come before. */
void cot_relay_leave_broken(cot_relay *r, const char *message);

/* ---- relay_answer.c ---- */

extern const cot_http_answer cot_relay_answer;
/* An answer of this worker's is waited for. False: memory ran out. */
bool cot_relay_expect(cot_relay *r, const cot_gateway_worker *worker);

#endif
