#include "fabric/threads/link.h"

#include <math.h>

void cot_links_open(cot_links *links, int ranks, cot_flights *flights)
{
    links->ranks = ranks;
    links->flights = flights;
}

/* ---- lines ---- */

static cot_flights *flights_of(const cot_links *links, int to, int from)
{
    return &links->flights[to * links->ranks + from];
}

static int group_of(const cot_links *links, int groups, int rank)
{
    int group = groups - 1;
    while (group > 0 && rank < cot_share_begin(links->ranks, group, groups)) group--;
    return group;
}

static bool crosses(const cot_links *links, int to, int from)
{
    const int groups = links->end[from].link.groups;
    return groups > 1 && group_of(links, groups, from) != group_of(links, groups, to);
}

static int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* The header's four lines. */
static void serve(cot_flight *flight, int64_t *free_ns, double bytes_per_s, int64_t latency_ns)
{
    const int64_t begin_ns = later(*free_ns, flight->first_ns);
    *free_ns = begin_ns;
    if (bytes_per_s > 0) *free_ns += (int64_t)ceil((double)flight->bytes * 1e9 / bytes_per_s);
    flight->first_ns = begin_ns + latency_ns;
    flight->last_ns = later(*free_ns, flight->last_ns) + latency_ns;
}

static void serve_line(cot_links *links, int line, int to, int from, cot_flight *flight)
{
    const cot_link *link = &links->end[from].link;
    if (line == COT_LINK_IN)
        serve(flight, &links->end[to].line_ns[line], links->end[to].link.bytes_per_s, 0);
    else
        serve(
            flight,
            &links->end[group_of(links, link->groups, line == COT_LINK_UPLINK_OUT ? from : to)].line_ns[line],
            link->uplink_bytes_per_s, line == COT_LINK_UPLINK_OUT ? link->uplink_latency_ns : 0);
}

/* How many messages have come as far as to that line, or will. */
static uint64_t reached(const cot_flights *flights, int line)
{
    return line ? flights->passed[line - 1] : atomic_load_explicit(&flights->sent, memory_order_acquire);
}

/* Of what has come to that line by now_ns, on its way to ranks begin <= to < end, the message whose first byte came first.
 * NULL: none. What takes no such line has passed it. */
static cot_flight *next_at(cot_links *links, int line, int begin, int end, int64_t now_ns, int *to_next,
                           int *from_next)
{
    cot_flight *next = NULL;
    for (int to = begin; to < end; to++)
        for (uint64_t left = atomic_load(&links->end[to].sources); left; left &= left - 1) {
            const int from = __builtin_ctzll(left);
            cot_flights *flights = flights_of(links, to, from);
            const uint64_t here = reached(flights, line);
            if (line != COT_LINK_IN && !crosses(links, to, from)) flights->passed[line] = here;
            cot_flight *head = &flights->flight[flights->passed[line] % COT_FLIGHTS];
            if (flights->passed[line] == here || head->first_ns > now_ns ||
                (next && next->first_ns <= head->first_ns))
                continue;
            next = head;
            *to_next = to;
            *from_next = from;
        }
    return next;
}

static void serve_all(cot_links *links, int line, int begin, int end, int64_t now_ns)
{
    int to, from;
    for (cot_flight *flight; (flight = next_at(links, line, begin, end, now_ns, &to, &from));) {
        serve_line(links, line, to, from, flight);
        flights_of(links, to, from)->passed[line]++;
    }
}

/* ---- arrivals ---- */

static void raise_word(const cot_flight *flight)
{
    if (flight->word) atomic_store_explicit(flight->word, flight->value, memory_order_release);
}

/* Of the first `count` messages those that have arrived. */
static void raise_arrived(cot_flights *flights, uint64_t count, int64_t now_ns)
{
    uint64_t raised = atomic_load_explicit(&flights->raised, memory_order_relaxed);
    for (; raised < count && flights->flight[raised % COT_FLIGHTS].last_ns <= now_ns; raised++)
        raise_word(&flights->flight[raised % COT_FLIGHTS]);
    atomic_store_explicit(&flights->raised, raised, memory_order_release);
}

static bool is_empty(const cot_flights *flights)
{
    return atomic_load(&flights->sent) == atomic_load(&flights->raised);
}

/* The source may add one meanwhile, and then marks itself again. */
static void unmark_if_empty(cot_links *links, int to, int from)
{
    const cot_flights *flights = flights_of(links, to, from);
    if (!is_empty(flights)) return;
    atomic_fetch_and(&links->end[to].sources, ~((uint64_t)1 << from));
    if (!is_empty(flights)) atomic_fetch_or(&links->end[to].sources, (uint64_t)1 << from);
}

void cot_links_look(cot_links *links, int rank, int64_t now_ns)
{
    if (!atomic_load_explicit(&links->end[rank].sources, memory_order_acquire)) return;
    if (atomic_flag_test_and_set_explicit(&links->busy, memory_order_acquire)) return;
    const int begin = links->grouped ? 0 : rank, end = links->grouped ? links->ranks : rank + 1;
    for (int line = 0; line < COT_LINK_IN; line++) serve_all(links, line, begin, end, now_ns);
    serve_all(links, COT_LINK_IN, rank, rank + 1, now_ns);
    for (uint64_t left = atomic_load(&links->end[rank].sources); left; left &= left - 1) {
        cot_flights *flights = flights_of(links, rank, __builtin_ctzll(left));
        raise_arrived(flights, flights->passed[COT_LINK_IN], now_ns);
        unmark_if_empty(links, rank, __builtin_ctzll(left));
    }
    atomic_flag_clear_explicit(&links->busy, memory_order_release);
}

bool cot_links_send(cot_links *links, int from, int to, int64_t now_ns, size_t bytes, _Atomic uint64_t *word,
                    uint64_t value)
{
    cot_flights *flights = flights_of(links, to, from);
    cot_link_end *end = &links->end[from];
    const uint64_t sent = atomic_load_explicit(&flights->sent, memory_order_relaxed);
    if (sent - atomic_load_explicit(&flights->raised, memory_order_acquire) == COT_FLIGHTS) return false;
    cot_flight flight = {now_ns, now_ns, bytes, value, word};
    serve(&flight, &end->out_ns, end->link.bytes_per_s, end->link.latency_ns);
    flights->flight[sent % COT_FLIGHTS] = flight;
    atomic_store(&flights->sent, sent + 1);
    atomic_fetch_or(&links->end[to].sources, (uint64_t)1 << from);
    return true;
}

/* ---- shapes ---- */

bool cot_links_set(cot_links *links, int rank, const cot_link *link)
{
    if (atomic_flag_test_and_set_explicit(&links->busy, memory_order_acquire)) return false;
    cot_link_end *end = &links->end[rank];
    for (int to = 0; to < links->ranks; to++) {
        cot_flights *flights = flights_of(links, to, rank);
        const uint64_t sent = atomic_load(&flights->sent);
        for (uint64_t i = atomic_load(&flights->raised); i < sent; i++)
            raise_word(&flights->flight[i % COT_FLIGHTS]);
        for (int line = 0; line < COT_LINK_LINES; line++) flights->passed[line] = sent;
        atomic_store(&flights->raised, sent);
    }
    atomic_fetch_add(&links->shaped, cot_link_shapes(link) - cot_link_shapes(&end->link));
    links->grouped += (link->groups > 1) - (end->link.groups > 1);
    end->link = *link;
    end->out_ns = 0;
    for (int line = 0; line < COT_LINK_LINES; line++) end->line_ns[line] = 0;
    atomic_flag_clear_explicit(&links->busy, memory_order_release);
    return true;
}
