/* The whole group is one mapping, so that processes forked later share all of it:
 *
 *     group: failed | turns | endpoints [P] | traffic [P][P][phases] | flights [P][P]      heap 0      heap 1  ...
 *     ^ page                                                                              ^ 2 MiB     ^ 2 MiB
 */
#include "base/clock.h"
#include "base/error.h"
#include "base/wait.h"
#include "fabric/threads/state.h"

#include <assert.h>
#include <string.h>
#include <sys/mman.h>

enum { LINE = 64, HUGE_PAGE = 2 << 20 };

static size_t round_up(size_t bytes, size_t multiple)
{
    return (bytes + multiple - 1) / multiple * multiple;
}

static cot_status alloc(cot_fabric *fabric, cot_sym *where, size_t bytes, cot_error *error)
{
    struct endpoint *self = endpoint_of(fabric);
    const size_t heap_bytes = self->group->heap_bytes;
    const size_t at = round_up(self->used, bytes >= HUGE_PAGE ? HUGE_PAGE : LINE);
    assert(bytes > 0);
    if (at > heap_bytes || bytes > heap_bytes - at)
        return cot_fail(error, COT_OUT_OF_MEMORY,
                        "rank %d's symmetric heap of %zu bytes is full: %zu more bytes asked for, %zu in use",
                        fabric->rank, heap_bytes, bytes, self->used);
    self->used = at + bytes;
    *where = at;
    return COT_OK;
}

static void *local(cot_fabric *fabric, cot_sym where)
{
    return endpoint_of(fabric)->heap + where;
}

/* Copies and counts. */
static void copy(cot_fabric *fabric, int to, cot_sym where, const void *data, size_t bytes, cot_phase phase)
{
    const cot_fabric_group *group = endpoint_of(fabric)->group;
    assert(to >= 0 && to < fabric->ranks && where <= group->heap_bytes && bytes <= group->heap_bytes - where);
    if (bytes) memcpy(group->heaps + (size_t)to * group->stride + where, data, bytes);
    if (to == fabric->rank) return;
    cot_traffic *row = &fabric->traffic[to][phase];
    row->bytes += bytes;
    row->messages++;
}

static bool is_shaped(const struct endpoint *self, int to)
{
    return cot_link_shapes(&self->link) && to != self->fabric.rank;
}

static void put(cot_fabric *fabric, int to, cot_sym where, const void *data, size_t bytes, cot_phase phase)
{
    struct endpoint *self = endpoint_of(fabric);
    if (is_shaped(self, to)) cot_link_send(&self->link, &self->line_free_ns, cot_now_ns(), bytes);
    copy(fabric, to, where, data, bytes, phase);
}

static _Atomic uint64_t *word(const cot_fabric_group *group, int rank, cot_sym signal)
{
    assert(signal % sizeof(uint64_t) == 0 && signal + sizeof(uint64_t) <= group->heap_bytes);
    return (_Atomic uint64_t *)(void *)(group->heaps + (size_t)rank * group->stride + signal);
}

static cot_flights *flights_to(const cot_fabric_group *group, int to, int from)
{
    return &group->flights[to * group->ranks + from];
}

static void fail(cot_fabric *fabric)
{
    int nobody = 0;
    atomic_compare_exchange_strong(&endpoint_of(fabric)->group->failed, &nobody, fabric->rank + 1);
}

static int failed(cot_fabric *fabric)
{
    cot_fabric_group *group = endpoint_of(fabric)->group;
    if (group->lives >= 0) cot_fabric_group_look(fabric);
    return atomic_load(&group->failed);
}

/* Where too many signals are under way the source waits until the first of them has arrived, which is for the
 * link alone to say, and raises it itself. In a group that has failed, or where the target holds on to the
 * queue for ever, the signal is lost. */
static void send_signal(struct endpoint *self, int to, const cot_flight *flight)
{
    cot_flights *flights = flights_to(self->group, to, self->fabric.rank);
    const int64_t since_ns = cot_now_ns();
    while (!cot_flights_add(flights, flight)) {
        const int64_t now_ns = cot_now_ns();
        if (failed(&self->fabric) || now_ns - since_ns >= self->fabric.timeout_ns) return;
        cot_flights_raise(flights, now_ns);
        cot_back_off(now_ns - since_ns);
    }
}

static void put_signal(cot_fabric *fabric, int to, cot_sym where, const void *data, size_t bytes,
                       cot_sym signal, uint64_t value, cot_phase phase)
{
    struct endpoint *self = endpoint_of(fabric);
    cot_flight flight = {.value = value, .word = word(self->group, to, signal)};
    const bool shaped = is_shaped(self, to);
    if (shaped) flight.arrival_ns = cot_link_send(&self->link, &self->line_free_ns, cot_now_ns(), bytes);
    copy(fabric, to, where, data, bytes, phase);
    if (shaped)
        send_signal(self, to, &flight);
    else
        atomic_store_explicit(flight.word, value, memory_order_release);
}

static void raise_arrived(struct endpoint *self)
{
    int64_t now_ns = 0;
    for (int from = 0; from < self->fabric.ranks; from++) {
        cot_flights *flights = flights_to(self->group, self->fabric.rank, from);
        if (cot_flights_empty(flights)) continue;
        if (!now_ns) now_ns = cot_now_ns();
        cot_flights_raise(flights, now_ns);
    }
}

static uint64_t load(cot_fabric *fabric, cot_sym signal)
{
    struct endpoint *self = endpoint_of(fabric);
    if (atomic_load_explicit(&self->group->shaped, memory_order_relaxed)) raise_arrived(self);
    return atomic_load_explicit(word(self->group, fabric->rank, signal), memory_order_acquire);
}

static int64_t now_ns(cot_fabric *fabric)
{
    (void)fabric;
    return cot_now_ns();
}

/* Raises at once what is still under way, also where the target is just raising some of it itself. */
static void arrive_now(struct endpoint *self, cot_flights *flights)
{
    const int64_t since_ns = cot_now_ns();
    while (!cot_flights_empty(flights) && cot_now_ns() - since_ns < self->fabric.timeout_ns) {
        cot_flights_raise(flights, INT64_MAX);
        cot_pause();
    }
}

static void set_link(cot_fabric *fabric, double bytes_per_s, int64_t latency_ns)
{
    struct endpoint *self = endpoint_of(fabric);
    const cot_link link = {bytes_per_s, latency_ns};
    assert(bytes_per_s >= 0 && latency_ns >= 0);
    for (int to = 0; to < fabric->ranks; to++) arrive_now(self, flights_to(self->group, to, fabric->rank));
    atomic_fetch_add(&self->group->shaped, cot_link_shapes(&link) - cot_link_shapes(&self->link));
    self->link = link;
    self->line_free_ns = 0;
}

static const cot_fabric_ops ops = {
    .alloc = alloc,
    .local = local,
    .put = put,
    .put_signal = put_signal,
    .load = load,
    .fail = fail,
    .failed = failed,
    .death = cot_fabric_group_death,
    .now_ns = now_ns,
    .set_link = set_link,
};

static cot_status check(const cot_fabric_group_options *options, cot_error *error)
{
    if (options->ranks < 1 || options->ranks > COT_MAX_RANKS)
        return cot_fail(error, COT_INVALID_ARGUMENT, "cannot open a group of %d ranks: 1 to %d expected",
                        options->ranks, COT_MAX_RANKS);
    if (options->running < 1)
        return cot_fail(error, COT_INVALID_ARGUMENT, "cannot let %d ranks run at once: at least 1 expected",
                        options->running);
    if (options->timeout_ns <= 0)
        return cot_fail(error, COT_INVALID_ARGUMENT, "a group's time-out must be more than 0 ns, found %lld",
                        (long long)options->timeout_ns);
    return COT_OK;
}

cot_status cot_fabric_group_open(cot_fabric_group **out, const cot_fabric_group_options *options,
                                 cot_error *error)
{
    *out = NULL;
    const cot_status status = check(options, error);
    if (status) return status;

    const size_t ranks = (size_t)options->ranks;
    const size_t endpoints_bytes = sizeof(cot_fabric_group) + ranks * sizeof(struct endpoint);
    const size_t row_bytes = round_up(ranks * sizeof(cot_traffic[COT_PHASES]), 2 * LINE); // one writer a line
    const size_t flights_at = endpoints_bytes + ranks * row_bytes;
    const size_t head_bytes = flights_at + ranks * ranks * sizeof(cot_flights);
    const size_t most_bytes = ((size_t)PTRDIFF_MAX - head_bytes - HUGE_PAGE) / ranks - HUGE_PAGE;
    const size_t stride = round_up(options->heap_bytes <= most_bytes ? options->heap_bytes : 0, HUGE_PAGE);
    const size_t mapped_bytes = head_bytes + HUGE_PAGE + ranks * stride;
    void *mapping = MAP_FAILED;
    if (options->heap_bytes <= most_bytes)
        mapping = mmap(NULL, mapped_bytes, PROT_READ | PROT_WRITE,
                       MAP_ANONYMOUS | MAP_NORESERVE | (options->forked ? MAP_SHARED : MAP_PRIVATE), -1, 0);
    if (mapping == MAP_FAILED)
        return cot_fail(error, COT_OUT_OF_MEMORY, "cannot map symmetric heaps of %zu bytes for %d ranks",
                        options->heap_bytes, options->ranks);

    cot_fabric_group *group = *out = mapping;
    group->mapped_bytes = mapped_bytes;
    group->heap_bytes = options->heap_bytes;
    group->stride = stride;
    group->heaps = (unsigned char *)round_up((uintptr_t)mapping + head_bytes, HUGE_PAGE);
    group->ranks = options->ranks;
    group->lives = -1;
    group->flights = (void *)((unsigned char *)mapping + flights_at);
    cot_turns_open(&group->turns, options->ranks, options->running);
    if (stride)
        madvise(group->heaps, ranks * stride, MADV_HUGEPAGE); // only a wish: with small pages all works, too
    for (size_t r = 0; r < ranks; r++) {
        struct endpoint *self = &group->endpoints[r];
        self->fabric.ops = &ops;
        self->fabric.rank = (int)r;
        self->fabric.ranks = options->ranks;
        self->fabric.timeout_ns = options->timeout_ns;
        self->fabric.turns = &group->turns;
        self->fabric.traffic = (void *)((unsigned char *)mapping + endpoints_bytes + r * row_bytes);
        self->group = group;
        self->heap = group->heaps + r * stride;
    }
    return COT_OK;
}

cot_fabric *cot_fabric_group_rank(cot_fabric_group *group, int rank)
{
    assert(rank >= 0 && rank < group->ranks);
    return &group->endpoints[rank].fabric;
}

void cot_fabric_group_close(cot_fabric_group *group)
{
    if (group) munmap(group, group->mapped_bytes);
}
