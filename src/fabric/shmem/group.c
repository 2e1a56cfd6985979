/* A group of ranks in processes that were started from outside.
 *
 * Where this process sees another's heap (both are on one host), what it puts there it writes itself, as ranks that are
 * threads do; elsewhere OpenSHMEM carries it, and what others send from there lands while this rank looks at its
 * signals. Each heap begins with the words of the group itself:
 *
 *     heap:  failed | arrived, left, posts, beats [P] | turns of a host's ranks, in the heap of its first      allocations ...
 *
 * A rank writes what it posts into its own heap, where those that see it look; to the others its watch puts it now and then,
 * with a beat (watch.c). */
#include "fabric/shmem/state.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/error.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

static const uint64_t beside_heaps = 192 << 20, // that UCX and threads map as the heaps are made
    heap_extra = 8 << 20;                       // and Open MPI takes of each, as the module makes it
static const int64_t longest_period_ns = 1000000000, farewell_ns = 500000000, blink_ns = 1000000;

/* The heap, which is made once. */
static struct {
    unsigned char *at;
    size_t bytes, used; // used: by the group before
} heap;

static size_t round_up(size_t bytes, size_t multiple)
{
    return (bytes + multiple - 1) / multiple * multiple;
}

/* ---- messages ---- */

static cot_status alloc(cot_fabric *fabric, cot_sym *where, size_t bytes, cot_error *error)
{
    struct endpoint *self = cot_shmem_endpoint(fabric);
    return cot_alloc_from(fabric, self->bytes, &self->used, where, bytes, error);
}

static void *local(cot_fabric *fabric, cot_sym where)
{
    return cot_shmem_endpoint(fabric)->heap + where;
}

/* The module's calls may wait for room. What is made meanwhile by the watch is for other ranks. */
static void begin_call(struct endpoint *self, int to, cot_phase phase)
{
    pthread_mutex_lock(&self->calling);
    if (!self->calls++) {
        self->call = (cot_post){.awaits = (uint8_t)(to + 1), .phase = (uint8_t)phase};
        self->call_ns = cot_now_ns();
    }
    self->in_call[to] = true;
}

static void end_call(struct endpoint *self, int to)
{
    self->in_call[to] = false;
    if (!--self->calls) cot_shmem_watch_out_of_call(self);
    pthread_mutex_unlock(&self->calling);
}

static void send(struct endpoint *self, int to, cot_sym where, const void *data, size_t bytes,
                 cot_phase phase)
{
    begin_call(self, to, phase);
    self->world->calls->put(to, self->heap + where, data, bytes);
    end_call(self, to);
}

static void send_gathered(struct endpoint *self)
{
    struct gathered *g = &self->gathered;
    if (g->bytes) send(self, g->to, g->where, g->data, g->bytes, g->phase);
    g->bytes = 0;
}

/* A message of a network costs some fifty bytes more than it brings. So what is small waits for what lies next to it, until
 * something else is sent: a signal at the latest, before which nobody looks for it. */
static void gather(struct endpoint *self, int to, cot_sym where, const void *data, size_t bytes,
                   cot_phase phase)
{
    struct gathered *g = &self->gathered;
    const bool follows = g->to == to && g->where + g->bytes == where;
    if (!follows || bytes > sizeof g->data - g->bytes) send_gathered(self);
    if (!g->bytes && bytes > sizeof g->data / 2) {
        send(self, to, where, data, bytes, phase);
        return;
    }
    if (!g->bytes) g->to = to, g->where = where, g->phase = phase;
    memcpy(g->data + g->bytes, data, bytes);
    g->bytes += bytes;
}

static void copy(struct endpoint *self, int to, cot_sym where, const void *data, size_t bytes,
                 cot_phase phase)
{
    assert(to >= 0 && to < self->fabric.ranks && where <= self->bytes && bytes <= self->bytes - where);
    if (!bytes) return;
    if (self->seen[to])
        memcpy(self->seen[to] + where, data, bytes);
    else
        gather(self, to, where, data, bytes, phase);
}

void cot_shmem_raise(struct endpoint *self, int to, cot_sym where, uint64_t value, cot_phase phase)
{
    assert(where % sizeof(uint64_t) == 0 && where + sizeof(uint64_t) <= self->bytes);
    if (self->seen[to]) {
        atomic_store_explicit((_Atomic uint64_t *)(void *)(self->seen[to] + where), value,
                              memory_order_release);
        return;
    }
    begin_call(self, to, phase);
    self->world->calls->raise(to, (uint64_t *)(void *)(self->heap + where), value);
    end_call(self, to);
}

static void count(cot_fabric *fabric, int to, size_t bytes, cot_phase phase)
{
    if (to == fabric->rank) return;
    fabric->traffic[to][phase].bytes += bytes;
    fabric->traffic[to][phase].messages++;
}

static void put(cot_fabric *fabric, int to, cot_sym where, const void *data, size_t bytes, cot_phase phase)
{
    copy(cot_shmem_endpoint(fabric), to, where, data, bytes, phase);
    count(fabric, to, bytes, phase);
}

static void put_signal(cot_fabric *fabric, int to, cot_sym where, const void *data, size_t bytes,
                       cot_sym signal, uint64_t value, cot_phase phase)
{
    copy(cot_shmem_endpoint(fabric), to, where, data, bytes, phase);
    count(fabric, to, bytes, phase);
    send_gathered(cot_shmem_endpoint(fabric));
    cot_shmem_raise(cot_shmem_endpoint(fabric), to, signal, value, phase);
}

void cot_shmem_progress(struct endpoint *self)
{
    if (!self->far || pthread_mutex_trylock(&self->calling) != 0) return;
    self->world->calls->progress();
    pthread_mutex_unlock(&self->calling);
}

static uint64_t load(cot_fabric *fabric, cot_sym signal)
{
    struct endpoint *self = cot_shmem_endpoint(fabric);
    cot_shmem_progress(self);
    return atomic_load_explicit((_Atomic uint64_t *)(void *)(self->heap + signal), memory_order_acquire);
}

static int64_t now_ns(cot_fabric *fabric)
{
    (void)fabric;
    return cot_now_ns();
}

static const char *host(cot_fabric *fabric, int rank)
{
    struct endpoint *self = cot_shmem_endpoint(fabric);
    return self->one_host ? NULL : self->hosts[rank];
}

static void carriers(cot_fabric *fabric, char *words, size_t bytes)
{
    struct endpoint *self = cot_shmem_endpoint(fabric);
    int seen = 0;
    for (int r = 0; r < fabric->ranks; r++) seen += r != fabric->rank && self->seen[r];
    snprintf(words, bytes, "%s%s%s", seen ? "memory" : "", seen && self->far ? ", " : "",
             self->world->carriers);
}

static const cot_fabric_ops ops = {
    .alloc = alloc,
    .local = local,
    .put = put,
    .put_signal = put_signal,
    .load = load,
    .fail = cot_shmem_fail,
    .accuse = cot_shmem_accuse,
    .failed = cot_shmem_failed,
    .death = cot_shmem_death,
    .lost = cot_shmem_lost,
    .post = cot_shmem_post,
    .posted = cot_shmem_posted,
    .is_mute = cot_shmem_is_mute,
    .host = host,
    .carriers = carriers,
    .now_ns = now_ns,
};

/* ---- what ranks tell each other before they are a group ---- */

struct facts {
    uint64_t build;
    uint64_t heap_bytes,
        made_bytes; // made: what the first heap is to have, SHMEM_SYMMETRIC_HEAP_SIZE's if that is more
    uint64_t shared_bytes;   // what the host has for its ranks' heaps
    uint64_t mappable_bytes; // what the process may map of them
    int64_t timeout_ns, threads;
    int32_t process;
    cot_shmem_host host;
};

/* SHMEM_SYMMETRIC_HEAP_SIZE, or 0. */
static size_t bytes_asked_for(void)
{
    const char *text = getenv("SHMEM_SYMMETRIC_HEAP_SIZE");
    char *end;
    if (!text) return 0;
    const unsigned long long bytes = strtoull(text, &end, 10);
    const char *unit = *end ? strchr("kKmMgG", *end) : NULL;
    const int shift = unit ? 10 * (1 + (int)(unit - "kKmMgG") / 2) : 0;
    return bytes > (unsigned long long)PTRDIFF_MAX >> shift ? 0 : (size_t)bytes << shift;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Room in the memory that processes share; it is taken when it is touched, and a heap beyond it ends the process. */
static uint64_t shared_memory(void)
{
    struct statvfs room;
    return statvfs("/dev/shm", &room) == 0 ? (uint64_t)room.f_bavail * room.f_frsize : UINT64_MAX;
}

/* All ranks judge the same facts, so they say the same. */
static cot_status judge(const struct facts *facts, int ranks, cot_error *error)
{
    for (int r = 1; r < ranks; r++)
        if (facts[r].build != facts[0].build)
            return cot_fail(error, COT_INVALID_ARGUMENT, COT_SHMEM_UNLIKE, r, facts[r].host.name,
                            "another build of coterie", facts[0].host.name);
    for (int r = 1; r < ranks; r++)
        if (facts[r].heap_bytes != facts[0].heap_bytes || facts[r].timeout_ns != facts[0].timeout_ns ||
            facts[r].threads != facts[0].threads)
            return cot_fail(
                error, COT_INVALID_ARGUMENT,
                "rank %d (%s) was told otherwise than rank 0 (%s): heaps of %llu and %llu bytes, %lld "
                "and %lld threads",
                r, facts[r].host.name, facts[0].host.name, (unsigned long long)facts[r].heap_bytes,
                (unsigned long long)facts[0].heap_bytes, (long long)facts[r].threads,
                (long long)facts[0].threads);
    for (int r = 0; r < ranks && !heap.at; r++) {
        int here = 0;
        for (int s = 0; s < ranks; s++) here += facts[s].host.key == facts[r].host.key;
        const uint64_t each = facts[r].made_bytes + facts[r].made_bytes / 64 + heap_extra;
        if (facts[r].mappable_bytes < (uint64_t)here * each + beside_heaps)
            return cot_fail(error, COT_OUT_OF_MEMORY,
                            "%d symmetric heaps of %.2f GB on '%s' and %.2f GB beside them are more memory "
                            "than the %.2f GB "
                            "that rank %d may map there (ulimit -v)",
                            here, (double)each / 1e9, facts[r].host.name, (double)beside_heaps / 1e9,
                            (double)facts[r].mappable_bytes / 1e9, r);
        if (facts[r].made_bytes > facts[r].shared_bytes / (uint64_t)here)
            return cot_fail(
                error, COT_OUT_OF_MEMORY,
                "%d symmetric heaps of %.2f GB on '%s' are more than the %.2f GB of shared memory there "
                "(/dev/shm)",
                here, (double)facts[r].made_bytes / 1e9, facts[r].host.name,
                (double)facts[r].shared_bytes / 1e9);
    }
    return COT_OK;
}

static cot_status check(const cot_shmem_world *world, const cot_launch_options *o, size_t bytes,
                        cot_error *error)
{
    if (o->ranks != world->ranks)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "--ranks %d, but %d process%s started, each of which is a rank", o->ranks,
                        world->ranks, world->ranks == 1 ? " was" : "es were");
    if (bytes < o->heap_bytes || bytes > PTRDIFF_MAX / 2)
        return cot_fail(error, COT_OUT_OF_MEMORY, "cannot make a symmetric heap of %zu bytes", o->heap_bytes);
    if (heap.at && bytes > heap.bytes)
        return cot_fail(
            error, COT_OUT_OF_MEMORY,
            "a symmetric heap of %zu bytes after one of %zu: set SHMEM_SYMMETRIC_HEAP_SIZE to the greatest",
            bytes, heap.bytes);
    return COT_OK;
}

/* ---- opening ---- */

static int ranks_on(const struct facts *facts, int ranks, uint64_t key, int *first)
{
    int here = 0;
    for (int r = ranks; r-- > 0;)
        if (facts[r].host.key == key) here++, *first = r;
    return here;
}

/* Ranks that see each other take turns, as many at once as the host's share of the threads. */
static void open_turns(struct endpoint *self, const struct facts *facts, const cot_launch_options *o)
{
    int first = 0;
    const int here = ranks_on(facts, o->ranks, self->world->host.key, &first),
              share = (int)((int64_t)o->threads * here / o->ranks);
    if (!self->seen[first]) return;
    struct words *words = (struct words *)(void *)self->seen[first];
    self->fabric.turns = &words->turns;
    if (first == self->fabric.rank) cot_turns_open(&words->turns, here, share < 1 ? 1 : share);
}

static void watch_lives(struct endpoint *self, const struct facts *facts)
{
    self->one_host = true;
    for (int r = 0; r < self->fabric.ranks; r++) {
        self->processes[r] = facts[r].process;
        memcpy(self->hosts[r], facts[r].host.name, sizeof self->hosts[r]);
        self->one_host &= facts[r].host.key == self->world->host.key;
        self->lives[r] = r != self->fabric.rank && facts[r].host.key == self->world->host.key
                             ? (int)syscall(SYS_pidfd_open, facts[r].process, 0)
                             : -1;
    }
}

/* Waits until every rank has raised its word here. How long it waits for each is up to `patience_ns` of silence of all. */
static bool hear_all(struct endpoint *self, _Atomic uint64_t *raised, int64_t patience_ns, int *missing)
{
    const int64_t since_ns = cot_now_ns();
    for (int r = 0; r < self->fabric.ranks; r++)
        while (!atomic_load(&raised[r])) {
            const int64_t waited_ns = cot_now_ns() - since_ns;
            *missing = r;
            if (waited_ns > patience_ns || (waited_ns > farewell_ns && cot_shmem_failed(&self->fabric)))
                return false;
            cot_shmem_progress(self);
            cot_back_off(waited_ns);
        }
    return true;
}

/* Every rank to every other: what connects them does not do so in the midst of work. One that has not come to this may wait for
 * another that is lost, which who started them all names after the time-out: so this waits for longer. */
static cot_status greet(struct endpoint *self, cot_error *error)
{
    const int64_t patience_ns = 2 * self->fabric.timeout_ns;
    int missing;
    for (int to = 0; to < self->fabric.ranks; to++)
        cot_shmem_raise(self, to,
                        offsetof(struct words, arrived) + (size_t)self->fabric.rank * sizeof(uint64_t), 1,
                        COT_PHASE_CONTROL);
    if (hear_all(self, cot_shmem_words(self)->arrived, patience_ns, &missing)) return COT_OK;
    return cot_fail(error, COT_TIMED_OUT, "rank %d did not answer within %.1f s of the start", missing,
                    (double)patience_ns * 1e-9);
}

/* All zero, as nothing is under way any more. */
static cot_status clear_heap(cot_shmem_world *world, size_t bytes, cot_error *error)
{
    cot_status status = COT_OK;
    if (heap.at) {
        world->calls->settle();
        memset(heap.at, 0, heap.used);
        return COT_OK;
    }
    heap.bytes = larger(bytes, bytes_asked_for());
    heap.at = world->calls->open(heap.bytes);
    cot_shmem_leave_first();
    if (!heap.at)
        status = cot_fail(error, COT_OUT_OF_MEMORY, "cannot make a symmetric heap of %zu bytes", heap.bytes);
    else
        memset(heap.at, 0, sizeof(struct words));
    return cot_shmem_agree(world, COT_SHMEM_OPENS, status, error);
}

/* copied: this process was forked off the one that has the threads. */
static void close_endpoint(struct endpoint *self, bool copied)
{
    if (!self) return;
    if (!copied) cot_shmem_watch_end(self);
    for (int r = 0; r < self->fabric.ranks; r++)
        if (self->lives[r] >= 0) close(self->lives[r]);
    free(self->fabric.traffic);
    free(self);
}

/* NULL where there is no memory. */
static struct endpoint *new_endpoint(cot_shmem_world *world, const cot_launch_options *o, size_t bytes)
{
    struct endpoint *self = aligned_alloc(alignof(struct endpoint), sizeof *self);
    cot_traffic(*traffic)[COT_PHASES] = calloc((size_t)o->ranks, sizeof *traffic);
    if (!self || !traffic) {
        free(self);
        free(traffic);
        return NULL;
    }
    *self = (struct endpoint){.fabric = {.ops = &ops,
                                         .rank = world->rank,
                                         .ranks = o->ranks,
                                         .timeout_ns = o->timeout_ns,
                                         .traffic = traffic},
                              .world = world,
                              .bytes = bytes,
                              .used = sizeof(struct words)};
    for (int r = 0; r < o->ranks; r++) self->lives[r] = -1;
    self->period_ns = o->timeout_ns / 8 < longest_period_ns ? o->timeout_ns / 8 : longest_period_ns;
    if (cot_shmem_watch_begin(self)) return self;
    free(self);
    free(traffic);
    return NULL;
}

static cot_status connect_endpoint(struct endpoint *self, const struct facts *facts,
                                   const cot_launch_options *o, cot_error *error)
{
    const cot_shmem_world *world = self->world;
    self->heap = heap.at;
    for (int r = 0; r < o->ranks; r++) {
        self->seen[r] = r == world->rank ? heap.at : world->calls->reach(heap.at, r);
        self->far |= !self->seen[r];
    }
    self->fabric.sleep_ns = self->far ? blink_ns : self->period_ns;
    watch_lives(self, facts);
    open_turns(self, facts, o);
    world->calls->settle();
    cot_shmem_watch_meet(self);
    return greet(self, error);
}

/* Once all are connected. */
static void ask_carriers(struct endpoint *self)
{
    cot_shmem_world *world = self->world;
    *world->carriers = 0;
    if (!self->far) return;
    pthread_mutex_lock(&self->calling);
    world->calls->carriers(world->carriers, sizeof world->carriers);
    pthread_mutex_unlock(&self->calling);
    if (!*world->carriers) snprintf(world->carriers, sizeof world->carriers, "unknown");
}

/* All ranks have an endpoint: they become a group. */
static cot_status meet(struct endpoint *self, const cot_launch_options *o, cot_error *error)
{
    cot_shmem_world *world = self->world;
    struct facts facts[COT_MAX_RANKS], here = {.build = cot_shmem_build(),
                                               .heap_bytes = self->bytes,
                                               .made_bytes = larger(self->bytes, bytes_asked_for()),
                                               .shared_bytes = shared_memory(),
                                               .mappable_bytes = cot_arena_mappable_bytes(),
                                               .timeout_ns = o->timeout_ns,
                                               .threads = o->threads,
                                               .process = getpid(),
                                               .host = world->host};
    cot_shmem_exchange(world, facts, &here, sizeof here);
    cot_status status = judge(facts, world->ranks, error);
    if (status == COT_OK) status = clear_heap(world, self->bytes, error);
    if (status != COT_OK) return status;
    world->met = true;
    status = connect_endpoint(self, facts, o, error);
    world->torn |= status != COT_OK;
    if (status != COT_OK) return status;
    ask_carriers(self);
    cot_launch_tell("met", 0);
    return status;
}

static cot_status start(const cot_fabric_backend *backend, void **group, cot_fabric **own,
                        const cot_launch_options *o, cot_rank_begin *begin, void *context, cot_error *error)
{
    (void)backend, (void)begin,
        (void)context; // the other ranks run in processes that make this call themselves
    cot_shmem_world *world;
    cot_status status = cot_shmem_join(&world, error);
    if (status != COT_OK) return status;
    const size_t bytes = round_up(sizeof(struct words), COT_SHMEM_LINE) + o->heap_bytes;
    struct endpoint *self = NULL;
    status = check(world, o, bytes, error);
    if (status == COT_OK && !(self = new_endpoint(world, o, bytes)))
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %d ranks", o->ranks);
    status = cot_shmem_agree(world, COT_SHMEM_OPENS, status, error);
    if (status == COT_OK) status = meet(self, o, error);
    if (status != COT_OK) {
        close_endpoint(self, false);
        return status;
    }
    *group = self;
    *own = &self->fabric;
    return COT_OK;
}

/* Nobody leaves before all are done: what one puts to another is for it to read until then. Of a group that failed some may
 * be gone. */
static void finish(void *group, bool copied)
{
    struct endpoint *self = group;
    int missing;
    if (!copied) {
        if (!atomic_load(&cot_shmem_words(self)->failed)) send_gathered(self);
        for (int to = 0; to < self->fabric.ranks; to++)
            if (atomic_load(&cot_shmem_words(self)->failed) != ((uint64_t)(to + 1) | COT_SHMEM_MUTE))
                cot_shmem_raise(self, to,
                                offsetof(struct words, left) + (size_t)self->fabric.rank * sizeof(uint64_t),
                                1, COT_PHASE_CONTROL);
        self->world->torn =
            !hear_all(self, cot_shmem_words(self)->left, 2 * self->fabric.timeout_ns, &missing);
        heap.used = self->used;
    }
    close_endpoint(self, copied);
}

const cot_fabric_backend cot_fabric_shmem = {"shmem", false, start, finish, true};
