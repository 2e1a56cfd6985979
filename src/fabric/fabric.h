/* What one rank can do to the others: symmetric memory, one-sided puts, signals, waits with time-outs.
 *
 * A group of P ranks; each holds a heap of the same size in which the same sequence of allocations gives the
 * same offsets, so that an offset (cot_sym) names the same thing on every rank. A rank writes to another
 * rank's heap with put and put_signal and reads only its own. Signals are 64-bit words of symmetric memory
 * that one source at a time raises and never lowers. A backend (threads/, shmem/) fills in the table of
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
    X(COMBINE, "combine")                                                                                    \
    X(ATTENTION, "attention") X(METADATA, "metadata") X(CONTROL, "control") X(MIGRATION, "migration")

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

/* What part of a program a rank is at, for messages. X(NAME, "name") */
#define COT_STAGE_LIST(X)                                                                                    \
    X(NONE, "")                                                                                              \
    X(LOADING, "loading")                                                                                    \
    X(IDLE, "between steps") X(LAYER, "layer") X(LOGITS, "logits") X(MOVING, "moving experts")

typedef enum cot_stage {
#define COT_STAGE_ENUM(name, text) COT_STAGE_##name,
    COT_STAGE_LIST(COT_STAGE_ENUM)
#undef COT_STAGE_ENUM
        COT_STAGES
} cot_stage;

/* What a rank tells of itself. */
enum { COT_TURN_NONE, COT_TURN_ASKED_FOR, COT_TURN_HELD };
typedef struct cot_post {
    uint8_t awaits; // 1 + the rank that it waits for, 0: none; stays when that wait fails
    uint8_t phase;  // of that wait
    uint8_t turn;   // COT_TURN_...
    uint8_t stage;
    uint32_t layer; // of COT_STAGE_LAYER
} cot_post;
_Static_assert(sizeof(cot_post) == sizeof(uint64_t), "a post is one word");

/* How a rank failed where no signal ended its process. */
enum { COT_DEATH_NONE = 0, COT_DEATH_OTHER = -1, COT_DEATH_MUTE = -2 };

typedef struct cot_fabric cot_fabric;

/* The shape of links where messages take no real wire: a rank's way out, and its way in, let pass so many bytes a second, one
 * message after the other, and its messages arrive so much later. Ranks may be in groups, each of which has one uplink, out and
 * in, that messages between groups take as well. All 0: no shape. threads/link.h has the arithmetic. */
typedef struct cot_link {
    double bytes_per_s; // 0: bytes take no time
    int64_t latency_ns;
    int groups; // so many groups of consecutive ranks, group g of ranks cot_share_begin(P, g, groups) on; below 2: none
    double uplink_bytes_per_s;
    int64_t uplink_latency_ns;
} cot_link;

typedef struct cot_fabric_ops {
    /* Reserves `bytes` (at least 1) of symmetric memory, zeroed, at a multiple of 64 (2 MiB for 2 MiB or
     * more). Every rank makes the same calls in the same order; does not communicate. Errors: OUT_OF_MEMORY
     * (the heap is full). */
    cot_status (*alloc)(cot_fabric *fabric, cot_sym *where, size_t bytes, cot_error *error);
    /* This rank's own memory there. */
    void *(*local)(cot_fabric *fabric, cot_sym where);
    /* What these bytes of the own memory take goes back to the system, but for its pages that they share with others: they are zero
     * then. Nobody reads them or writes there meanwhile. NULL: the system gets nothing back before the end. */
    void (*give_back)(cot_fabric *fabric, cot_sym where, size_t bytes);
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
    /* Tells every rank that `rank` does not answer: all waits return TIMED_OUT, its own too. Who has failed first stays so. */
    void (*accuse)(cot_fabric *fabric, int rank);
    /* 1 + the first rank that called fail, was accused, or was found dead: its process ended before its main did. 0:
     * none, as far as is known here. Any thread may call it. */
    int (*failed)(cot_fabric *fabric);
    /* How a rank that failed did so: the signal that killed its process; COT_DEATH_OTHER: its process ended in another way,
     * or one that is not known here; COT_DEATH_MUTE: it was accused; COT_DEATH_NONE: it called fail, or has not failed. */
    int (*death)(cot_fabric *fabric, int rank);
    /* 1 + a rank of this host whose process is seen to have ended before its time, though nobody may have told yet; 0: none, as
     * far as this rank may see. Changes nothing and waits for nobody; any thread may call it. NULL: ranks have no processes. */
    int (*lost)(cot_fabric *fabric);
    /* Tells the others what this rank is at (a cot_post, packed), and that it lives; called all through a wait. Those that
     * share memory with it know at once; others after a quarter of the time-out at the latest, while it waits. */
    void (*post)(cot_fabric *fabric, uint64_t post);
    /* What a rank last posted, as far as is known here. */
    uint64_t (*posted)(cot_fabric *fabric, int rank);
    /* Whether nothing at all has been heard of a rank for a quarter of the time-out or longer, though it would have told that
     * it lives if it did. NULL: that cannot be known. */
    bool (*is_mute)(cot_fabric *fabric, int rank);
    /* The name of a rank's host; NULL, the function too: all are on one. */
    const char *(*host)(cot_fabric *fabric, int rank);
    /* Names what carries this rank's messages to others, as in "memory, tcp/eth0". NULL: memory alone. */
    void (*carriers)(cot_fabric *fabric, char *words, size_t bytes);
    int64_t (*now_ns)(cot_fabric *fabric);
    /* The shape of this rank's links from now on, which all ranks should have alike; what it has under way arrives at once. No
     * member may be less than 0, nor `groups` more than the ranks. NULL where messages take a real wire. */
    void (*set_link)(cot_fabric *fabric, const cot_link *link);
} cot_fabric_ops;

struct cot_turns;

struct cot_fabric {
    const cot_fabric_ops *ops;
    int rank, ranks;
    int64_t timeout_ns;      // of every wait
    struct cot_turns *turns; // words that the ranks of this host share (turns.h), or NULL: no turns
    int64_t
        sleep_ns; // it looks at least so often while it waits patiently; 0: it is roused for all there is to see
    int turn;     // the state of this rank's turn, which turns.c alone reads and writes
    int64_t silent_ns, looked_ns, missed_ns; // of the wait in hand, for turns.c alone
    cot_post post;                           // what this rank last told of itself
    cot_traffic (*traffic)[COT_PHASES]; // [ranks]: what this rank has sent to each; its own row stays zero
    int64_t waited_ns[COT_PHASES];      // time spent waiting, in wait or idle
    uint64_t slept, roused;             // how often it slept in a patient wait, and was woken by cot_rouse
    uint64_t waits; // how often it had to wait (callers of cot_turns_idle count theirs themselves)
    uint64_t rounds
        [COT_PHASES];  // dependent steps of the network that it took part in, as whoever took them counts
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

/* So many steps of the network, each of which begins with what the one before has brought; none among less than two ranks. */
static inline void cot_count_rounds(cot_fabric *f, cot_phase phase, int rounds)
{
    if (f->ranks > 1) f->rounds[phase] += (uint64_t)rounds;
}

/* Waits until the own signal word is `value`. Errors: TIMED_OUT where that takes longer than the group's time-out and a quarter
 * of it, naming phase, stage and the rank to blame, `from` or one that it waits for in turn, which all others are told;
 * TIMED_OUT as well once another has blamed somebody; PEER_FAILED soon after any rank has called fail or has died. Time in
 * which the own process was stopped does not count. After an error the group is of no more use. */
cot_status cot_wait(cot_fabric *fabric, cot_sym signal, uint64_t value, int from, cot_phase phase,
                    cot_error *error);
/* cot_wait for as long as it takes: it blames nobody. It sleeps longer and longer, up to ten seconds: whoever raises the
 * signal rouses it. */
cot_status cot_wait_patiently(cot_fabric *fabric, cot_sym signal, uint64_t value, int from, cot_phase phase,
                              cot_error *error);

/* PEER_FAILED, naming the first rank that failed or is found dead, or TIMED_OUT for one that does not answer; COT_OK while
 * none is known of. Does not wait; any thread may call it. */
cot_status cot_fabric_check(cot_fabric *fabric, cot_error *error);

/* Whether no rank has failed, nor has just been lost. Waits for nobody; any thread may call it. */
bool cot_fabric_lives(cot_fabric *fabric);

/* Wakes a rank that sleeps in cot_wait_patiently, so that it looks at its signal at once; after put_signal, which need not
 * have arrived. Costs little where nobody sleeps. */
void cot_rouse(cot_fabric *fabric, int rank);

/* From now on this rank is at that part of the program; `layer` counts for COT_STAGE_LAYER. */
void cot_stage_enter(cot_fabric *fabric, cot_stage stage, int64_t layer);

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

/* A multiple of which `bytes` begin at. */
static inline size_t cot_alloc_align(size_t bytes)
{
    return bytes >= (size_t)2 << 20 ? (size_t)2 << 20 : 64;
}
/* At most what alloc takes from the heap for `bytes`, alignment included: heaps are sized by adding these up.
 */
static inline size_t cot_alloc_bytes(size_t bytes)
{
    return bytes + (cot_alloc_align(bytes) - 1);
}
/* For backends: the ops' alloc on a heap of so many bytes, of which `*used` are taken. */
cot_status cot_alloc_from(cot_fabric *fabric, size_t heap_bytes, size_t *used, cot_sym *where, size_t bytes,
                          cot_error *error);

/* The part of n things that rank r of P holds: floor(r n / P) <= i < floor((r + 1) n / P). */
static inline int64_t cot_share_begin(int64_t n, int rank, int ranks)
{
    return n * rank / ranks;
}

#endif
