/* The whole group is one mapping, so that processes forked later share all of it:
 *
 *     group: failed | gate | endpoints [P] | traffic [P][P][phases] | flights [P][P]      heap 0      heap 1  ...
 *     ^ page                                                                              ^ 2 MiB     ^ 2 MiB
 */
#include "fabric/threads/threads.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/wait.h"
#include "fabric/threads/gate.h"
#include "fabric/threads/link.h"

#include <assert.h>
#include <stdalign.h>
#include <string.h>
#include <sys/mman.h>

enum { LINE = 64, HUGE_PAGE = 2 << 20, SPINS = 20 };

struct endpoint {
    alignas(2 * LINE) cot_fabric fabric; // first: a cot_fabric * is a struct endpoint *
    cot_fabric_group *group;
    unsigned char *heap;
    size_t used;
    bool inside, holding; // between enter and leave; a permit of the gate
    bool overdue;         // has waited for a permit long enough
    int64_t line_free_ns; // when all that it has sent so far will have left
    atomic_int awaits;    // 1 + the rank that a long wait is for; stays when that wait fails
};

struct cot_fabric_group {
    size_t mapped_bytes, heap_bytes, stride; // stride: from one rank's heap to the next
    unsigned char *heaps;
    int ranks;
    bool gated;
    int64_t timeout_ns;
    cot_link link;
    cot_flights *flights;                // [P][P], target by source
    alignas(2 * LINE) atomic_int failed; // 1 + the first rank that called fail
    alignas(2 * LINE) cot_gate gate;
    struct endpoint endpoints[];
};

static inline struct endpoint *endpoint_of(cot_fabric *fabric)
{
    return (struct endpoint *)fabric;
}

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
    return cot_link_shapes(&self->group->link) && to != self->fabric.rank;
}

static void put(cot_fabric *fabric, int to, cot_sym where, const void *data, size_t bytes, cot_phase phase)
{
    struct endpoint *self = endpoint_of(fabric);
    if (is_shaped(self, to)) cot_link_send(&self->group->link, &self->line_free_ns, cot_now_ns(), bytes);
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

/* Where too many signals are under way the source waits until the first of them has arrived, which is for the
 * link alone to say, and raises it itself. In a group that has failed, or where the target holds on to the
 * queue for ever because its process is gone, the signal is lost. */
static void send_signal(struct endpoint *self, int to, const cot_flight *flight)
{
    cot_fabric_group *group = self->group;
    cot_flights *flights = flights_to(group, to, self->fabric.rank);
    const int64_t since_ns = cot_now_ns();
    while (!cot_flights_add(flights, flight)) {
        const int64_t now_ns = cot_now_ns();
        if (atomic_load(&group->failed) || now_ns - since_ns >= group->timeout_ns) return;
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
    if (shaped)
        flight.arrival_ns = cot_link_send(&self->group->link, &self->line_free_ns, cot_now_ns(), bytes);
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
    if (cot_link_shapes(&self->group->link)) raise_arrived(self);
    return atomic_load_explicit(word(self->group, fabric->rank, signal), memory_order_acquire);
}

static void let_go(struct endpoint *self)
{
    if (self->holding) cot_gate_leave(&self->group->gate);
    self->holding = false;
}

static void take_again(struct endpoint *self)
{
    cot_fabric_group *group = self->group;
    if (!self->inside || !group->gated) return;
    const int64_t since_ns = cot_now_ns();
    self->holding =
        cot_gate_enter(&group->gate, self->fabric.rank, since_ns + group->timeout_ns, &group->failed);
    self->fabric.queued_ns += cot_now_ns() - since_ns;
}

/* The rank at the end of the chain of waits: it waits for nobody, so it is the one that all wait for. */
static int culprit(cot_fabric_group *group, int from)
{
    for (int hops = 0, next; hops < group->ranks && (next = atomic_load(&group->endpoints[from].awaits));
         hops++)
        from = next - 1;
    return from;
}

static cot_status idle(cot_fabric *fabric, int64_t since_ns, int64_t silent_ns, int from, cot_phase phase,
                       cot_error *error)
{
    struct endpoint *self = endpoint_of(fabric);
    cot_fabric_group *group = self->group;
    const int64_t begin_ns = cot_now_ns();
    const int failed = atomic_load(&group->failed);
    let_go(self);
    atomic_store(&self->awaits, from + 1);
    if (failed)
        return cot_fail(error, COT_PEER_FAILED, "rank %d failed while rank %d waited in '%s'", failed - 1,
                        fabric->rank, cot_phase_name(phase));
    self->overdue = begin_ns - silent_ns >= group->timeout_ns;
    if (self->overdue && from != fabric->rank)
        return cot_fail(error, COT_TIMED_OUT, "rank %d did not answer in '%s' within %.1f s",
                        culprit(group, from), cot_phase_name(phase), (double)group->timeout_ns * 1e-9);
    cot_back_off(begin_ns - since_ns);
    fabric->waited_ns[phase] += cot_now_ns() - begin_ns;
    return COT_OK;
}

static bool resume(cot_fabric *fabric, bool wait)
{
    struct endpoint *self = endpoint_of(fabric);
    cot_fabric_group *group = self->group;
    if (wait) atomic_store(&self->awaits, 0);
    if (!self->inside || !group->gated || self->holding || (self->overdue && !wait)) return true;
    if (wait)
        take_again(self);
    else
        self->holding = cot_gate_try(&group->gate);
    return self->holding;
}

static void pass_turn(cot_fabric *fabric)
{
    struct endpoint *self = endpoint_of(fabric);
    if (!self->holding || !cot_gate_is_asked(&self->group->gate)) return;
    let_go(self);
    take_again(self);
}

static cot_status wait(cot_fabric *fabric, cot_sym signal, uint64_t value, int from, cot_phase phase,
                       cot_error *error)
{
    for (int spins = 0; spins < SPINS; spins++) {
        if (load(fabric, signal) >= value) return COT_OK;
        cot_pause();
    }
    const int64_t since_ns = cot_now_ns();
    fabric->waits++;
    while (load(fabric, signal) < value) {
        cot_status status = idle(fabric, since_ns, since_ns, from, phase, error);
        if (status != COT_OK) return status;
    }
    resume(fabric, true);
    return COT_OK;
}

static void fail(cot_fabric *fabric)
{
    int nobody = 0;
    atomic_compare_exchange_strong(&endpoint_of(fabric)->group->failed, &nobody, fabric->rank + 1);
}

static void enter(cot_fabric *fabric)
{
    assert(!endpoint_of(fabric)->inside);
    endpoint_of(fabric)->inside = true;
    take_again(endpoint_of(fabric));
}

static void leave(cot_fabric *fabric)
{
    endpoint_of(fabric)->inside = false;
    let_go(endpoint_of(fabric));
}

static int64_t now_ns(cot_fabric *fabric)
{
    (void)fabric;
    return cot_now_ns();
}

static const cot_fabric_ops ops = {
    .alloc = alloc,
    .local = local,
    .put = put,
    .put_signal = put_signal,
    .load = load,
    .wait = wait,
    .idle = idle,
    .resume = resume,
    .pass_turn = pass_turn,
    .fail = fail,
    .enter = enter,
    .leave = leave,
    .now_ns = now_ns,
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
    if (!(options->link_bytes_per_s >= 0) || options->link_latency_ns < 0)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "a link of %g bytes/s and %lld ns: neither may be less than 0",
                        options->link_bytes_per_s, (long long)options->link_latency_ns);
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
    group->gated = options->running < options->ranks;
    group->timeout_ns = options->timeout_ns;
    group->link = (cot_link){options->link_bytes_per_s, options->link_latency_ns};
    group->flights = (void *)((unsigned char *)mapping + flights_at);
    cot_gate_open(&group->gate, options->ranks, options->running);
    if (stride) madvise(group->heaps, ranks * stride, MADV_HUGEPAGE); // a wish: small pages do as well
    for (size_t r = 0; r < ranks; r++) {
        struct endpoint *self = &group->endpoints[r];
        self->fabric.ops = &ops;
        self->fabric.rank = (int)r;
        self->fabric.ranks = options->ranks;
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

void cot_fabric_group_set_link(cot_fabric_group *group, double link_bytes_per_s, int64_t link_latency_ns)
{
    for (int i = 0; i < group->ranks * group->ranks; i++)
        if (!cot_flights_empty(&group->flights[i])) cot_flights_raise(&group->flights[i], INT64_MAX);
    for (int r = 0; r < group->ranks; r++) group->endpoints[r].line_free_ns = 0;
    group->link = (cot_link){link_bytes_per_s, link_latency_ns};
}

void cot_fabric_group_close(cot_fabric_group *group)
{
    if (group) munmap(group, group->mapped_bytes);
}
