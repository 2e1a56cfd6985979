/* The whole group is one mapping, so that processes forked later share all of it:
 *
 *     group: failed | posts | turns | endpoints [P] | traffic [P][P][phases] | flights [P][P]      heap 0      heap 1  ...
 *     ^ page                                                                              ^ 2 MiB     ^ 2 MiB
 */
#include "base/clock.h"
#include "base/error.h"
#include "base/wait.h"
#include "fabric/threads/state.h"
#include "fabric/threads/watch.h"

#include <assert.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LINE = 64, HUGE_PAGE = 2 << 20 };

static size_t round_up(size_t bytes, size_t multiple)
{
    return (bytes + multiple - 1) / multiple * multiple;
}

static cot_status alloc(cot_fabric *fabric, cot_sym *where, size_t bytes, cot_error *error)
{
    struct endpoint *self = endpoint_of(fabric);
    return cot_alloc_from(fabric, self->group->heap_bytes, &self->used, where, bytes, error);
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

static _Atomic uint64_t *word(const cot_fabric_group *group, int rank, cot_sym signal)
{
    assert(signal % sizeof(uint64_t) == 0 && signal + sizeof(uint64_t) <= group->heap_bytes);
    return (_Atomic uint64_t *)(void *)(group->heaps + (size_t)rank * group->stride + signal);
}

void cot_fabric_group_failed(cot_fabric_group *group, int rank, bool mute)
{
    int nobody = 0;
    atomic_compare_exchange_strong(&group->failed, &nobody, (rank + 1) | (mute ? COT_FAILED_MUTE : 0));
    for (int r = 0; r < group->ranks; r++) cot_rouse(&group->endpoints[rank].fabric, r);
}

static void fail(cot_fabric *fabric)
{
    cot_fabric_group_failed(endpoint_of(fabric)->group, fabric->rank, false);
}

static void accuse(cot_fabric *fabric, int rank)
{
    cot_fabric_group_failed(endpoint_of(fabric)->group, rank, true);
}

static int failed(cot_fabric *fabric)
{
    return atomic_load(&endpoint_of(fabric)->group->failed) & COT_FAILED_RANK;
}

static int death(cot_fabric *fabric, int rank)
{
    const cot_fabric_group *group = endpoint_of(fabric)->group;
    const int ended = atomic_load(&group->endpoints[rank].ended);
    const bool mute = atomic_load(&group->failed) == ((rank + 1) | COT_FAILED_MUTE);
    return ended ? ended : mute ? COT_DEATH_MUTE : COT_DEATH_NONE;
}

static int lost(cot_fabric *fabric)
{
    return cot_watch_lost(endpoint_of(fabric)->group);
}

static void post(cot_fabric *fabric, uint64_t post)
{
    atomic_store_explicit(&endpoint_of(fabric)->group->posts[fabric->rank], post, memory_order_release);
}

static uint64_t posted(cot_fabric *fabric, int rank)
{
    return atomic_load_explicit(&endpoint_of(fabric)->group->posts[rank], memory_order_acquire);
}

static bool is_mute(cot_fabric *fabric, int rank)
{
    return atomic_load(&endpoint_of(fabric)->group->endpoints[rank].quiet_ns) >= fabric->timeout_ns / 4;
}

/* Where too many messages are under way the source waits until the first of them has arrived, which is for the link alone
 * to say, and raises its signal itself. In a group that has failed, or where the target's signals cannot be raised for long,
 * it is lost. */
static void send(struct endpoint *self, int to, int64_t now_ns, size_t bytes, _Atomic uint64_t *word,
                 uint64_t value)
{
    cot_links *links = &self->group->links;
    const int64_t since_ns = now_ns;
    while (!cot_links_send(links, self->fabric.rank, to, now_ns, bytes, word, value)) {
        now_ns = cot_now_ns();
        if (failed(&self->fabric) || now_ns - since_ns >= self->fabric.timeout_ns) return;
        cot_links_look(links, to, now_ns);
        cot_back_off(now_ns - since_ns);
    }
}

static void put(cot_fabric *fabric, int to, cot_sym where, const void *data, size_t bytes, cot_phase phase)
{
    struct endpoint *self = endpoint_of(fabric);
    const bool shaped = cot_links_shape(&self->group->links, fabric->rank, to);
    const int64_t sent_ns = shaped ? cot_now_ns() : 0;
    copy(fabric, to, where, data, bytes, phase);
    if (shaped) send(self, to, sent_ns, bytes, NULL, 0);
}

static void put_signal(cot_fabric *fabric, int to, cot_sym where, const void *data, size_t bytes,
                       cot_sym signal, uint64_t value, cot_phase phase)
{
    struct endpoint *self = endpoint_of(fabric);
    const bool shaped = cot_links_shape(&self->group->links, fabric->rank, to);
    const int64_t sent_ns = shaped ? cot_now_ns() : 0;
    copy(fabric, to, where, data, bytes, phase);
    if (shaped)
        send(self, to, sent_ns, bytes, word(self->group, to, signal), value);
    else
        atomic_store_explicit(word(self->group, to, signal), value, memory_order_release);
}

static uint64_t load(cot_fabric *fabric, cot_sym signal)
{
    struct endpoint *self = endpoint_of(fabric);
    cot_links *links = &self->group->links;
    if (atomic_load_explicit(&links->shaped, memory_order_relaxed))
        cot_links_look(links, fabric->rank, cot_now_ns());
    return atomic_load_explicit(word(self->group, fabric->rank, signal), memory_order_acquire);
}

static int64_t now_ns(cot_fabric *fabric)
{
    (void)fabric;
    return cot_now_ns();
}

/* Also while the target is just looking; but not for ever, as somebody may have died at it. */
static void set_link(cot_fabric *fabric, const cot_link *link)
{
    struct endpoint *self = endpoint_of(fabric);
    const int64_t since_ns = cot_now_ns();
    assert(link->bytes_per_s >= 0 && link->latency_ns >= 0 && link->groups >= 0 &&
           link->groups <= fabric->ranks && link->uplink_bytes_per_s >= 0 && link->uplink_latency_ns >= 0);
    while (!cot_links_set(&self->group->links, fabric->rank, link) &&
           cot_now_ns() - since_ns < fabric->timeout_ns)
        cot_pause();
}

/* Shared memory is a file's, of which a range is cut out; the rest is the process's own. */
static void give_back(cot_fabric *fabric, cot_sym where, size_t bytes)
{
    const struct endpoint *self = endpoint_of(fabric);
    const uintptr_t small = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)(self->heap + where),
                    begin = round_up(at, small), end = (at + bytes) / small * small;
    if (begin < end) madvise((void *)begin, end - begin, self->group->forked ? MADV_REMOVE : MADV_DONTNEED);
}

static const cot_fabric_ops ops = {
    .alloc = alloc,
    .local = local,
    .give_back = give_back,
    .put = put,
    .put_signal = put_signal,
    .load = load,
    .fail = fail,
    .accuse = accuse,
    .failed = failed,
    .death = death,
    .lost = lost,
    .post = post,
    .posted = posted,
    .is_mute = is_mute,
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
    group->forked = options->forked;
    cot_links_open(&group->links, options->ranks, (void *)((unsigned char *)mapping + flights_at));
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
