/* A group of ranks in processes that were started from outside.
 *
 * Where this process sees another's heap (both are on one host), what it puts there it writes itself, as ranks that are
 * threads do; elsewhere OpenSHMEM carries it, and what others send from there lands while this rank looks at its
 * signals. Each heap begins with the words of the group itself:
 *
 *     heap:  failed | arrived, left, posts, beats [P] | turns of a host's ranks, in the heap of its first      allocations ...
 *
 * A rank writes what it posts into its own heap, where those that see it look, and puts it to the others now and then, with a
 * beat: of a rank out of sight a post alone may be long past, as when it was stopped while it waited. */
#include "base/clock.h"
#include "base/error.h"
#include "fabric/shmem/shmem.h"
#include "fabric/turns.h"

#include <assert.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LINE = 64, FAILED_MUTE = 1 << 16 };

static const int64_t longest_period_ns = 1000000000, farewell_ns = 500000000, blink_ns = 1000000;

/* Symmetric: on every rank at the same place. */
struct words {
    alignas(LINE) _Atomic uint64_t failed; // FAILED_MUTE | 1 + a rank that gave up or was found dead
    alignas(LINE) _Atomic uint64_t arrived[COT_MAX_RANKS], left[COT_MAX_RANKS], posts[COT_MAX_RANKS],
        beats[COT_MAX_RANKS]; // [r] by rank r
    alignas(LINE) cot_turns turns;
};

struct endpoint {
    cot_fabric fabric; // first: a cot_fabric * is a struct endpoint *
    cot_shmem_world *world;
    unsigned char *heap;
    size_t bytes, used;
    unsigned char *seen[COT_MAX_RANKS]; // other ranks' heaps; NULL: out of sight
    bool far;                           // some are out of sight
    pthread_mutex_t calling;            // for the module's calls
    int lives[COT_MAX_RANKS]; // of other ranks on this host: a descriptor that tells of the end; -1: none
    int processes[COT_MAX_RANKS];
    char hosts[COT_MAX_RANKS][sizeof((cot_shmem_host *)0)->name];
    bool one_host;
    int64_t period_ns;                       // it looks so often whether others live
    _Atomic int64_t looked_ns;               // when it last did
    int64_t stopped_ns[COT_MAX_RANKS];       // for how long others of this host were seen to be stopped
    _Atomic int64_t sent_ns;                 // when it last told those out of sight what it is at
    _Atomic uint64_t sent;                   // and what that was
    _Atomic uint64_t heard[COT_MAX_RANKS];   // the last beats of those out of sight
    _Atomic int64_t heard_ns[COT_MAX_RANKS]; // and when they came
};

/* The heap, which is made once. */
static struct {
    unsigned char *at;
    size_t bytes, used; // used: by the group before
} heap;

static struct endpoint *endpoint_of(cot_fabric *fabric)
{
    return (struct endpoint *)fabric;
}

static struct words *words_of(struct endpoint *self)
{
    return (struct words *)(void *)self->heap;
}

static size_t round_up(size_t bytes, size_t multiple)
{
    return (bytes + multiple - 1) / multiple * multiple;
}

/* ---- messages ---- */

static cot_status alloc(cot_fabric *fabric, cot_sym *where, size_t bytes, cot_error *error)
{
    struct endpoint *self = endpoint_of(fabric);
    return cot_alloc_from(fabric, self->bytes, &self->used, where, bytes, error);
}

static void *local(cot_fabric *fabric, cot_sym where)
{
    return endpoint_of(fabric)->heap + where;
}

static void copy(struct endpoint *self, int to, cot_sym where, const void *data, size_t bytes)
{
    assert(to >= 0 && to < self->fabric.ranks && where <= self->bytes && bytes <= self->bytes - where);
    if (!bytes) return;
    if (self->seen[to]) {
        memcpy(self->seen[to] + where, data, bytes);
        return;
    }
    pthread_mutex_lock(&self->calling);
    self->world->calls->put(to, self->heap + where, data, bytes);
    pthread_mutex_unlock(&self->calling);
}

static void raise_word(struct endpoint *self, int to, cot_sym where, uint64_t value)
{
    assert(where % sizeof(uint64_t) == 0 && where + sizeof(uint64_t) <= self->bytes);
    if (self->seen[to]) {
        atomic_store_explicit((_Atomic uint64_t *)(void *)(self->seen[to] + where), value,
                              memory_order_release);
        return;
    }
    pthread_mutex_lock(&self->calling);
    self->world->calls->raise(to, (uint64_t *)(void *)(self->heap + where), value);
    pthread_mutex_unlock(&self->calling);
}

static void count(cot_fabric *fabric, int to, size_t bytes, cot_phase phase)
{
    if (to == fabric->rank) return;
    fabric->traffic[to][phase].bytes += bytes;
    fabric->traffic[to][phase].messages++;
}

static void put(cot_fabric *fabric, int to, cot_sym where, const void *data, size_t bytes, cot_phase phase)
{
    copy(endpoint_of(fabric), to, where, data, bytes);
    count(fabric, to, bytes, phase);
}

static void put_signal(cot_fabric *fabric, int to, cot_sym where, const void *data, size_t bytes,
                       cot_sym signal, uint64_t value, cot_phase phase)
{
    copy(endpoint_of(fabric), to, where, data, bytes);
    count(fabric, to, bytes, phase);
    raise_word(endpoint_of(fabric), to, signal, value);
}

/* A thread that is calling makes progress itself. */
static void progress(struct endpoint *self)
{
    if (!self->far || pthread_mutex_trylock(&self->calling) != 0) return;
    self->world->calls->progress();
    pthread_mutex_unlock(&self->calling);
}

static uint64_t load(cot_fabric *fabric, cot_sym signal)
{
    struct endpoint *self = endpoint_of(fabric);
    progress(self);
    return atomic_load_explicit((_Atomic uint64_t *)(void *)(self->heap + signal), memory_order_acquire);
}

static int64_t now_ns(cot_fabric *fabric)
{
    (void)fabric;
    return cot_now_ns();
}

/* ---- failure ---- */

/* To all ranks, who is about last: nobody may be there. What the own rank has heard first stays so. */
static void tell_failed(struct endpoint *self, int rank, bool mute)
{
    struct words *own = words_of(self);
    const uint64_t found = (uint64_t)(rank + 1) | (mute ? FAILED_MUTE : 0);
    uint64_t nobody = 0;
    if (!atomic_compare_exchange_strong(&own->failed, &nobody, found)) return;
    for (int r = 0; r < self->fabric.ranks; r++) cot_rouse(&self->fabric, r);
    for (int i = 1; i <= self->fabric.ranks; i++) {
        const int to = (rank + i) % self->fabric.ranks;
        struct words *seen = (struct words *)(void *)self->seen[to];
        nobody = 0;
        if (seen)
            atomic_compare_exchange_strong(&seen->failed, &nobody, found);
        else if (to != rank)
            raise_word(self, to, offsetof(struct words, failed), found);
    }
}

static void fail(cot_fabric *fabric)
{
    tell_failed(endpoint_of(fabric), fabric->rank, false);
}

static void accuse(cot_fabric *fabric, int rank)
{
    tell_failed(endpoint_of(fabric), rank, true);
}

static bool has_died(const struct endpoint *self, int rank)
{
    struct pollfd life = {.fd = self->lives[rank], .events = POLLIN};
    return life.fd >= 0 && poll(&life, 1, 0) == 1;
}

/* Of a rank on this host the system tells whether it was stopped. */
static bool is_stopped(const struct endpoint *self, int rank)
{
    if (self->lives[rank] < 0) return false;
    char path[40], line[512];
    snprintf(path, sizeof path, "/proc/%d/stat", self->processes[rank]);
    FILE *file = fopen(path, "r");
    const bool told = file && fgets(line, sizeof line, file);
    if (file) fclose(file);
    const char *state = told ? strrchr(line, ')') : NULL; // "number (name) state ..."
    return !state || strchr("TtZX", state[2]);
}

/* Of one that is out of sight only its beats tell, which come while it waits. */
static int64_t silence_ns(struct endpoint *self, int rank)
{
    const uint64_t beat = atomic_load(&words_of(self)->beats[rank]);
    const int64_t now = cot_now_ns();
    if (atomic_exchange(&self->heard[rank], beat) != beat) atomic_store(&self->heard_ns[rank], now);
    return now - atomic_load(&self->heard_ns[rank]);
}

static bool is_mute(cot_fabric *fabric, int rank)
{
    struct endpoint *self = endpoint_of(fabric);
    if (rank == fabric->rank || self->seen[rank]) return is_stopped(self, rank);
    return silence_ns(self, rank) >= fabric->timeout_ns / 2;
}

/* Who has left may end or stop. One that was stopped is given up though nobody waits for it but patiently. Time in which this
 * process did not run does not count. */
static void look(struct endpoint *self)
{
    const int64_t now = cot_now_ns(), passed = now - atomic_load(&self->looked_ns),
                  most = 2 * self->period_ns;
    if (passed < self->period_ns) return;
    atomic_store(&self->looked_ns, now);
    for (int rank = 0; rank < self->fabric.ranks; rank++) {
        int64_t *stopped_ns = &self->stopped_ns[rank];
        if (atomic_load(&words_of(self)->left[rank])) continue;
        if (has_died(self, rank)) tell_failed(self, rank, false);
        if (!self->seen[rank]) silence_ns(self, rank);
        *stopped_ns = is_stopped(self, rank) ? *stopped_ns + (passed < most ? passed : most) : 0;
        if (*stopped_ns >= self->fabric.timeout_ns) tell_failed(self, rank, true);
    }
}

static int failed(cot_fabric *fabric)
{
    struct endpoint *self = endpoint_of(fabric);
    if (!atomic_load(&words_of(self)->failed)) look(self);
    return (int)(atomic_load(&words_of(self)->failed) & (FAILED_MUTE - 1));
}

static int death(cot_fabric *fabric, int rank)
{
    struct endpoint *self = endpoint_of(fabric);
    if (has_died(self, rank)) return COT_DEATH_OTHER;
    return atomic_load(&words_of(self)->failed) == (uint64_t)((rank + 1) | FAILED_MUTE) ? COT_DEATH_MUTE
                                                                                        : COT_DEATH_NONE;
}

static void post(cot_fabric *fabric, uint64_t post)
{
    struct endpoint *self = endpoint_of(fabric);
    atomic_store_explicit(&words_of(self)->posts[fabric->rank], post, memory_order_release);
    const int64_t now = self->far ? cot_now_ns() : 0;
    if (!self->far || now - atomic_load(&self->sent_ns) < fabric->timeout_ns / 8) return;
    atomic_store(&self->sent_ns, now);
    const bool changed = atomic_exchange(&self->sent, post) != post;
    const size_t own = (size_t)fabric->rank * sizeof(uint64_t);
    for (int to = 0; to < fabric->ranks; to++) {
        if (self->seen[to]) continue;
        if (changed) raise_word(self, to, offsetof(struct words, posts) + own, post);
        raise_word(self, to, offsetof(struct words, beats) + own, (uint64_t)now);
    }
}

static uint64_t posted(cot_fabric *fabric, int rank)
{
    struct endpoint *self = endpoint_of(fabric);
    struct words *words = self->seen[rank] ? (struct words *)(void *)self->seen[rank] : words_of(self);
    return atomic_load_explicit(&words->posts[rank], memory_order_acquire);
}

static const char *host(cot_fabric *fabric, int rank)
{
    struct endpoint *self = endpoint_of(fabric);
    return self->one_host ? NULL : self->hosts[rank];
}

static const cot_fabric_ops ops = {
    .alloc = alloc,
    .local = local,
    .put = put,
    .put_signal = put_signal,
    .load = load,
    .fail = fail,
    .accuse = accuse,
    .failed = failed,
    .death = death,
    .post = post,
    .posted = posted,
    .is_mute = is_mute,
    .host = host,
    .now_ns = now_ns,
};

/* ---- what ranks tell each other before they are a group ---- */

struct facts {
    uint64_t heap_bytes, shared_bytes; // shared: what the host has for its ranks' heaps
    int64_t timeout_ns, threads;
    int32_t process;
    cot_shmem_host host;
};

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
        if (facts[r].heap_bytes > facts[r].shared_bytes / (uint64_t)here)
            return cot_fail(
                error, COT_OUT_OF_MEMORY,
                "%d symmetric heaps of %.2f GB on '%s' are more than the %.2f GB of shared memory there "
                "(/dev/shm)",
                here, (double)facts[r].heap_bytes / 1e9, facts[r].host.name,
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
            if (waited_ns > patience_ns || (waited_ns > farewell_ns && failed(&self->fabric))) return false;
            progress(self);
            cot_back_off(waited_ns);
        }
    return true;
}

/* Every rank to every other: what connects them does not do so in the midst of work. */
static cot_status greet(struct endpoint *self, cot_error *error)
{
    int missing;
    for (int to = 0; to < self->fabric.ranks; to++)
        raise_word(self, to, offsetof(struct words, arrived) + (size_t)self->fabric.rank * sizeof(uint64_t),
                   1);
    if (hear_all(self, words_of(self)->arrived, self->fabric.timeout_ns, &missing)) return COT_OK;
    return cot_fail(error, COT_TIMED_OUT, "rank %d did not answer within %.1f s of the start", missing,
                    (double)self->fabric.timeout_ns * 1e-9);
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
    heap.bytes = bytes > bytes_asked_for() ? bytes : bytes_asked_for();
    heap.at = world->calls->open(heap.bytes);
    cot_shmem_leave_first();
    if (!heap.at)
        status = cot_fail(error, COT_OUT_OF_MEMORY, "cannot make a symmetric heap of %zu bytes", heap.bytes);
    else
        memset(heap.at, 0, sizeof(struct words));
    return cot_shmem_agree(world, COT_SHMEM_OPENS, status, error);
}

static void close_endpoint(struct endpoint *self)
{
    if (!self) return;
    for (int r = 0; r < self->fabric.ranks; r++)
        if (self->lives[r] >= 0) close(self->lives[r]);
    pthread_mutex_destroy(&self->calling);
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
    pthread_mutex_init(&self->calling, NULL);
    return self;
}

static cot_status connect_endpoint(struct endpoint *self, const struct facts *facts,
                                   const cot_launch_options *o, cot_error *error)
{
    const cot_shmem_world *world = self->world;
    self->heap = heap.at;
    for (int r = 0; r < o->ranks; r++) {
        self->seen[r] = r == world->rank ? heap.at : world->calls->reach(heap.at, r);
        self->far |= !self->seen[r];
        atomic_store(&self->heard_ns[r], cot_now_ns());
    }
    self->period_ns = o->timeout_ns / 8 < longest_period_ns ? o->timeout_ns / 8 : longest_period_ns;
    self->fabric.sleep_ns = self->far ? blink_ns : self->period_ns;
    watch_lives(self, facts);
    open_turns(self, facts, o);
    world->calls->settle();
    return greet(self, error);
}

/* All ranks have an endpoint: they become a group. */
static cot_status meet(struct endpoint *self, const cot_launch_options *o, cot_error *error)
{
    cot_shmem_world *world = self->world;
    struct facts facts[COT_MAX_RANKS], here = {.heap_bytes = self->bytes,
                                               .shared_bytes = shared_memory(),
                                               .timeout_ns = o->timeout_ns,
                                               .threads = o->threads,
                                               .process = getpid(),
                                               .host = world->host};
    world->calls->exchange(facts, &here, sizeof here);
    cot_status status = judge(facts, world->ranks, error);
    if (status == COT_OK) status = clear_heap(world, self->bytes, error);
    if (status != COT_OK) return status;
    world->met = true;
    status = connect_endpoint(self, facts, o, error);
    world->torn |= status != COT_OK;
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
    const size_t bytes = round_up(sizeof(struct words), LINE) + o->heap_bytes;
    struct endpoint *self = NULL;
    status = check(world, o, bytes, error);
    if (status == COT_OK && !(self = new_endpoint(world, o, bytes)))
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %d ranks", o->ranks);
    status = cot_shmem_agree(world, COT_SHMEM_OPENS, status, error);
    if (status == COT_OK) status = meet(self, o, error);
    if (status != COT_OK) {
        close_endpoint(self);
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
        for (int to = 0; to < self->fabric.ranks; to++)
            raise_word(self, to, offsetof(struct words, left) + (size_t)self->fabric.rank * sizeof(uint64_t),
                       1);
        self->world->torn = !hear_all(self, words_of(self)->left, 2 * self->fabric.timeout_ns, &missing);
        heap.used = self->used;
    }
    close_endpoint(self);
}

const cot_fabric_backend cot_fabric_shmem = {"shmem", false, start, finish, true};
