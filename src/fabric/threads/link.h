/* Shaped links: when what a rank sends reaches another, were there wires between them (cot_link in fabric.h). The bytes are
 * copied at once; what the model holds back is the signal, and whoever has not seen the signal does not look at the bytes.
 *
 *     rank 0 --way out--+                                                +--way in-- rank 2
 *                       +--uplink out-- group 0 ~~~ group 1 --uplink in--+
 *     rank 1 --way out--+                                                +--way in-- rank 3
 *
 * A message passes a row of lines: the way out of its source and the way in of its target; between ranks of two groups also,
 * in between, the uplink out of the one group and the uplink in of the other. A line is serial: it takes messages in the order
 * in which their first bytes come to it, and S bytes take it t = ceil(S 10^9 / B) ns, or none where B is 0. Bytes go on as they
 * come, so that a message is not delayed by its own length on every line anew. For a message whose first byte comes at `first`
 * and whose last byte at `last`:
 *
 *     begin = max(free, first)       the line has work until `free`
 *     free  = begin + t
 *     first = begin + L              at the next line
 *     last  = max(free, last) + L    it is through when its bytes are and the line has done its work on them
 *
 * On the way out first = last = the time of sending. L is the link's latency behind the way out, the uplink's behind the
 * uplink out, and 0 behind the others. Behind the way in `last` is when it arrives. So alone it takes S / (the least B) and
 * the latencies; what a rank sends never overtakes what it sent to the same rank before.
 *
 * The source works out its own way out as it sends. All other lines have several sources: whoever looks for signals serves
 * them up to the time of its look, line by line and in the order of time; since all that has come by then was sent before, it
 * does not matter who looks and when. */
#ifndef COT_FABRIC_THREADS_LINK_H
#define COT_FABRIC_THREADS_LINK_H
#include "fabric/fabric.h"
#include <stdalign.h>
#include <stdatomic.h>

/* Lines behind the way out. */
enum { COT_LINK_UPLINK_OUT, COT_LINK_UPLINK_IN, COT_LINK_IN, COT_LINK_LINES };

typedef struct cot_flight {
    int64_t first_ns, last_ns; // when its first and last bytes come to the next line
    size_t bytes;
    uint64_t value;
    _Atomic uint64_t *word; // to be raised to `value`; NULL: a message without a signal
} cot_flight;

/* Messages under way from one rank to one other, in the order in which they were sent, which is the order in which they come
 * to every line and arrive. The source adds them. All zero is empty. It is plain memory, so that it works between processes. */
enum { COT_FLIGHTS = 1024 };
typedef struct cot_flights {
    alignas(64) _Atomic uint64_t sent;           // so far, by the source
    alignas(64) uint64_t passed[COT_LINK_LINES]; // so far, each line
    _Atomic uint64_t raised;                     // so far
    cot_flight flight[COT_FLIGHTS];
} cot_flights;

/* What belongs to one rank, or, of uplinks, to the group of that number. */
typedef struct cot_link_end {
    alignas(128) cot_link link; // how the rank sends, and what its way in takes
    int64_t out_ns;             // when its way out is free
    int64_t line_ns[COT_LINK_LINES];
    _Atomic uint64_t sources; // bit s: there may be something under way from rank s
} cot_link_end;

/* The links of a group of ranks, in memory that all share. */
typedef struct cot_links {
    int ranks;
    atomic_int shaped;    // ranks whose link is shaped
    int grouped;          // those of them with groups
    atomic_flag busy;     // somebody serves the lines, and has what is no atomic here
    cot_flights *flights; // [target][source]
    cot_link_end end[COT_MAX_RANKS];
} cot_links;

/* All bytes of both are zero. */
void cot_links_open(cot_links *links, int ranks, cot_flights *flights);

/* How `rank` sends from now on, and what its way in takes; uplinks are worked out as the source of a message has them, so that
 * all ranks should be given the same. What it has under way arrives at once, and its lines are free. False, and nothing has
 * changed, while another serves the lines: to be called again. */
bool cot_links_set(cot_links *links, int rank, const cot_link *link);

static inline bool cot_link_shapes(const cot_link *link)
{
    return link->bytes_per_s > 0 || link->latency_ns > 0 || link->groups > 1;
}
/* Whether what `from` sends to `to` takes a wire. */
static inline bool cot_links_shape(const cot_links *links, int from, int to)
{
    return from != to && cot_link_shapes(&links->end[from].link);
}

/* A message of so many bytes is sent at now_ns; called by its source. `word`, where not NULL, is raised to `value` when it
 * arrives. False, and nothing was sent, when there is no room for it under way. */
bool cot_links_send(cot_links *links, int from, int to, int64_t now_ns, size_t bytes, _Atomic uint64_t *word,
                    uint64_t value);

/* Raises the words of all that has arrived at a rank by now_ns. Any thread may call it: while one is at it, it does nothing
 * for others. */
void cot_links_look(cot_links *links, int rank, int64_t now_ns);

#endif
