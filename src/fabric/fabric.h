/* What one rank can do to the others: symmetric memory, one-sided puts, signals, waits with time-outs.
 *
 * A group of P ranks; each holds a heap of the same size in which the same sequence of allocations gives the
 * same offsets, so that an offset (cot_sym) names the same thing on every rank. A rank writes to another
 * rank's heap with put and put_signal and reads only its own. Signals are 64-bit words of symmetric memory
 * that one source at a time raises and never lowers. A backend (threads/, later shmem/) fills in the table of
 * functions; how a rank waits is the same code on all of them (turns.c), how a group begins is launch.h.
 *
 * An endpoint (cot_fabric) belongs to one thread; but other threads may put for it, one at a time, and load,
 * one at a time. Nothing allocates after alloc.
 */
#ifndef COT_FABRIC_FABRIC_H
#define COT_FABRIC_FABRIC_H
#include "coterie/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What traffic is for; bytes and messages are counted for each. X(NAME, "name") */
#define COT_PHASE_LIST(X)                                                                                    \
    X(DISPATCH, "dispatch")                                                                                  \
    X(COMBINE, "combine") X(ATTENTION, "attention") X(METADATA, "metadata") X(CONTROL, "control")

typedef enum cot_phase {
#define COT_PHASE_ENUM(name, text) COT_PHASE_##name,
    COT_PHASE_LIST(COT_PHASE_ENUM)
#undef COT_PHASE_ENUM
        COT_PHASES
} cot_phase;

const char *cot_phase_name(cot_phase phase);

enum { COT_MAX_RANKS = 64 };
typedef uint64_t cot_rank_set; // bit r: rank r
_Static_assert(COT_MAX_RANKS <= 8 * sizeof(cot_rank_set), "a set of ranks has a bit for each");

/* Payload bytes and messages (a put or put_signal is one message, whatever its size) from this rank to
 * another. What a rank puts to itself is copied and not counted; signal words are not counted as bytes. */
typedef struct cot_traffic {
    uint64_t bytes, messages;
} cot_traffic;

typedef uint64_t cot_sym; // offset into every rank's heap

typedef struct cot_fabric cot_fabric;

typedef struct cot_fabric_ops {
    /* Reserves `bytes` (at least 1) of symmetric memory, zeroed, at a multiple of 64 (2 MiB for 2 MiB or
     * more). Every rank makes the same calls in the same order; does not communicate. Errors: OUT_OF_MEMORY
     * (the heap is full). */
    cot_status (*alloc)(cot_fabric *fabric, cot_sym *where, size_t bytes, cot_error *error);
    /* This rank's own memory there. */
    void *(*local)(cot_fabric *fabric, cot_sym where);
    /* Copies into rank `to`'s heap. `data` may be reused on return; the bytes are there for the target once
     * it has seen a later put_signal from this rank. Never blocks on the target. to == own rank copies. */
    void (*put)(cot_fabric *fabric, int to, cot_sym where, const void *data, size_t bytes, cot_phase phase);
    /* put (bytes may be 0), then raises the target's signal word to `value`: whoever sees it sees this rank's
     * earlier puts to that target as well. */
    void (*put_signal)(cot_fabric *fabric, int to, cot_sym where, const void *data, size_t bytes,
                       cot_sym signal, uint64_t value, cot_phase phase);
    /* The own signal word (acquire). Never blocks; makes progress where a backend needs it. */
    uint64_t (*load)(cot_fabric *fabric, cot_sym signal);
    /* Tells every rank that this one gives up: their waits return PEER_FAILED. */
    void (*fail)(cot_fabric *fabric);
    /* 1 + the first rank that called fail or was found dead: its process ended before its main did. 0: none,
     * as far as is known here. A backend with processes looks, at most once a second. */
    int (*failed)(cot_fabric *fabric);
    /* How the process of a rank that failed ended: the signal that killed it; -1: in another way, or none that
     * is known here; 0: it did not. */
    int (*death)(cot_fabric *fabric, int rank);
    int64_t (*now_ns)(cot_fabric *fabric);
    /* What this rank sends from now on leaves at so many bytes a second (0: at once), one message after the
     * other, and is seen so many ns after its last byte left; what is under way arrives at once. Neither may
     * be less than 0. NULL where messages take a real wire. */
    void (*set_link)(cot_fabric *fabric, double bytes_per_s, int64_t latency_ns);
} cot_fabric_ops;

struct cot_turns;

struct cot_fabric {
    const cot_fabric_ops *ops;
    int rank, ranks;
    int64_t timeout_ns;      // of every wait
    struct cot_turns *turns; // words that the ranks of this host share (turns.h), or NULL: no turns
    int turn;                // the state of this rank's turn, which turns.c alone reads and writes
    cot_traffic (*traffic)[COT_PHASES]; // [ranks]: what this rank has sent to each; its own row stays zero
    int64_t waited_ns[COT_PHASES];      // time spent waiting, in wait or idle
    uint64_t roused;                    // how often cot_rouse woke it from its sleep
    uint64_t waits;    // how often it had to wait (callers of cot_turns_idle count theirs themselves)
    int64_t queued_ns; // time spent until it was its turn to compute
};

/* The calls of the table, written as functions. */
static inline cot_status cot_alloc(cot_fabric *f, cot_sym *where, size_t bytes, cot_error *error)
{
    return f->ops->alloc(f, where, bytes, error);
}
static inline void *cot_local(cot_fabric *f, cot_sym where)
{
    return f->ops->local(f, where);
}
static inline void cot_put(cot_fabric *f, int to, cot_sym where, const void *data, size_t bytes,
                           cot_phase phase)
{
    f->ops->put(f, to, where, data, bytes, phase);
}
static inline void cot_put_signal(cot_fabric *f, int to, cot_sym where, const void *data, size_t bytes,
                                  cot_sym signal, uint64_t value, cot_phase phase)
{
    f->ops->put_signal(f, to, where, data, bytes, signal, value, phase);
}
static inline uint64_t cot_signal_load(cot_fabric *f, cot_sym signal)
{
    return f->ops->load(f, signal);
}
/* Counts `bytes` of what was put to `to` as traffic of `phase`, not of the phase that the put named. */
static inline void cot_count_as(cot_fabric *f, int to, cot_phase called, cot_phase phase, size_t bytes)
{
    if (to == f->rank) return;
    f->traffic[to][called].bytes -= bytes;
    f->traffic[to][phase].bytes += bytes;
}

/* Waits until the own signal word is `value`. Errors: TIMED_OUT, after the group's time-out, naming the phase
 * and rank `from`, or the rank that this one in turn waits for; PEER_FAILED soon after any rank has called fail
 * or has died. After an error the group is of no more use. */
cot_status cot_wait(cot_fabric *fabric, cot_sym signal, uint64_t value, int from, cot_phase phase,
                    cot_error *error);
/* cot_wait for as long as it takes, without TIMED_OUT. It sleeps longer and longer, up to a tenth of a second: whoever raised
 * the signal rouses it. */
cot_status cot_wait_patiently(cot_fabric *fabric, cot_sym signal, uint64_t value, int from, cot_phase phase,
                              cot_error *error);

/* PEER_FAILED, naming the first rank that failed or is found dead; COT_OK while none is known of. Does not wait. */
cot_status cot_fabric_check(cot_fabric *fabric, cot_error *error);

/* Wakes a rank that sleeps in cot_wait_patiently, so that it looks at its signal at once; after put_signal, which need not
 * have arrived. Costs little where nobody sleeps. */
void cot_rouse(cot_fabric *fabric, int rank);

/* Computing may begin / is over: at most as many ranks compute at once as the group allows (wait lets go
 * meanwhile). A rank that gets no turn within the group's time-out goes on without: the limit spares the
 * machine, no more. */
void cot_turns_enter(cot_fabric *fabric);
void cot_turns_leave(cot_fabric *fabric);
/* Lets ranks that wait for a turn to compute have theirs first. Returns at once where none does. */
void cot_turns_pass(cot_fabric *fabric);
/* For a rank that polls with load: there was nothing to do since `since_ns`, nothing was heard since `silent_ns`,
 * first of all rank `from` is waited for. Gives the turn to compute and the core away for a moment, a longer
 * one the longer there was nothing to do. Errors: as wait, by how long it was silent. With the own rank as
 * `from` only a turn is waited for: not having got one in time is no error, resume goes on without. */
cot_status cot_turns_idle(cot_fabric *fabric, int64_t since_ns, int64_t silent_ns, int from, cot_phase phase,
                          cot_error *error);
/* There may be something to compute after idle: takes a turn again if one is free. Or, with `wait`, what was
 * waited for is there: takes a turn when it comes, as in enter. Returns whether this rank may compute. */
bool cot_turns_resume(cot_fabric *fabric, bool wait);

/* At most what alloc takes from the heap for `bytes`, alignment included: heaps are sized by adding these up.
 */
static inline size_t cot_alloc_bytes(size_t bytes)
{
    const size_t align = bytes >= (size_t)2 << 20 ? (size_t)2 << 20 : 64;
    return bytes + (align - 1);
}

/* The part of n things that rank r of P holds: floor(r n / P) <= i < floor((r + 1) n / P). */
static inline int64_t cot_share_begin(int64_t n, int rank, int ranks)
{
    return n * rank / ranks;
}

#endif
