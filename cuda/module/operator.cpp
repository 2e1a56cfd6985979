#include "cuda/module/operator.h"

#include "cuda/module/group_parts.h"
#include "cuda/module/probe.h"
#include "cuda/module/weights.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const cot_cuda_device *device_in_use;

void cot_cuda_operator_use(const cot_cuda_device *device)
{
    device_in_use = device;
}

/* What the ranks of an operator share, in the memory of the one process that they are threads of. */
struct meeting {
    cot_cuda_group *group;
    cot_status status; // of opening it
    cot_error error;
    pthread_mutex_t mutex;           // for weights, and for launches
    bool given_up;                   // a rank waits no more: its rows may be gone
    uint64_t arrivals;               // of all ranks
    uint64_t arrived[COT_MAX_RANKS]; // calls that a rank has arrived for
    int runner;                      // the rank that launches for all
    int holders;                     // ranks that have not closed it
};

struct cuda_moe {
    cot_moe moe;
    cot_fabric *fabric;
    meeting *place;
    cot_sym begun, done; // calls that all ranks have arrived for; that are over
    uint64_t calls;
    cot_moe_times times;
};

static size_t lines(int ranks)
{
    return static_cast<size_t>(ranks) * COT_FUSED_LINE;
}

static size_t heap_bytes(const cot_moe_options *, int ranks)
{
    return cot_alloc_bytes(lines(ranks)) + 3 * cot_alloc_bytes(COT_FUSED_LINE);
}

static size_t touched_bytes(const cot_moe_options *options, int ranks, int64_t)
{
    return heap_bytes(options, ranks) + sizeof(cuda_moe) + sizeof(meeting) + sizeof(cot_cuda_group) +
           cot_cuda_group_pinned_bytes(options, ranks);
}

static cot_status check_shape(const char *op, const cot_ffn_shape *s, const char *what, cot_error *error)
{
    const long long h = s->hidden, i = s->intermediate;
    if (!i) return COT_OK;
    if (s->rounded || s->gate != cot_format_of(s->type) || s->up != cot_format_of(s->type) ||
        s->down != cot_format_of(s->type))
        return cot_fail(error, COT_UNSUPPORTED,
                        "'%s' multiplies weights in bf16 and fp32: %s in few bits are of 'fused' and 'bulk'",
                        op, what);
    if (s->type == COT_BF16 && (h % 8 || i % 8))
        return cot_fail(error, COT_UNSUPPORTED,
                        "'%s' needs H and I that 8 divides in bf16: %s are %lld by %lld", op, what, h, i);
    return COT_OK;
}

static cot_status settle_as(const char *op, cot_moe_options *o, cot_error *error)
{
    cot_status status = check_shape(op, &o->expert, "experts", error);
    if (status == COT_OK) status = check_shape(op, &o->shared, "shared experts", error);
    if (status != COT_OK) return status;
    if (o->experts > cot::FUSED_EXPERTS_MOST)
        return cot_fail(error, COT_UNSUPPORTED, "'%s' has at most %d experts a layer, not %lld", op,
                        cot::FUSED_EXPERTS_MOST, static_cast<long long>(o->experts));
    if (slots_of(o) > cot::FUSED_EXPERTS_MOST)
        return cot_fail(error, COT_UNSUPPORTED, "'%s' has at most %d slots a rank, not %lld", op,
                        cot::FUSED_EXPERTS_MOST, static_cast<long long>(slots_of(o)));
    if (o->a2a != COT_A2A_AUTO && o->a2a != COT_A2A_ONE_SHOT)
        return cot_fail(error, COT_UNSUPPORTED,
                        "'%s' sends rows and all there is to know of them at once: a2a '%s' is of 'bulk'", op,
                        cot_moe_a2a_name(o->a2a));
    if (o->dedup == COT_DEDUP_OFF)
        return cot_fail(error, COT_UNSUPPORTED, "'%s' sends a token once to a rank: dedup off is of 'bulk'",
                        op);
    o->a2a = COT_A2A_ONE_SHOT;
    o->dedup = COT_DEDUP_ON;
    return COT_OK;
}

static cot_status settle_fused(cot_moe_options *o, cot_error *error)
{
    return settle_as(COT_CUDA_OPERATOR, o, error);
}

static cot_status settle_bulk(cot_moe_options *o, cot_error *error)
{
    if (o->combine != COT_COMBINE_EXACT)
        return cot_fail(error, COT_UNSUPPORTED, "'cuda-bulk' combines exactly: 'reduced' is of 'cuda'");
    return settle_as(COT_CUDA_BULK_OPERATOR, o, error);
}

static cot_status pin(void *at, size_t bytes, cot_error *error)
{
    return cot_cuda_pin(device_in_use, at, bytes, error);
}

static void unpin(void *at, size_t bytes)
{
    cot_cuda_unpin(device_in_use, at, bytes);
}

static const cot_moe_memory pinned = {pin, unpin};

static const cot_moe_operator *operator_of(cot_cuda_kind kind)
{
    return kind == cot_cuda_kind::bulk ? &cot_cuda_bulk_operator : &cot_cuda_operator;
}

/* The last to leave frees what all had. */
static void leave(meeting *place)
{
    if (__atomic_sub_fetch(&place->holders, 1, __ATOMIC_ACQ_REL)) return;
    cot_cuda_group_close(place->group);
    pthread_mutex_destroy(&place->mutex);
    free(place);
}

/* Rank 0's; its error is told to all. What the self-test takes is given back before the group takes its own. */
static meeting *open_meeting(cot_cuda_kind kind, const cot_moe_options *options)
{
    meeting *const place = static_cast<meeting *>(calloc(1, sizeof *place));
    if (!place) return nullptr;
    place->holders = options->fabric->ranks;
    pthread_mutex_init(&place->mutex, nullptr);
    if (!device_in_use) {
        place->status = cot_fail(&place->error, COT_NOT_FOUND, "'%s' has no device", operator_of(kind)->name);
        return place;
    }
    const int ranks = options->fabric->ranks;
    place->status = cot_cuda_self_test(device_in_use, kind, options, ranks, &place->error);
    if (place->status == COT_OK)
        place->status =
            cot_cuda_group_open(&place->group, device_in_use, kind, options, ranks, &place->error);
    return place;
}

/* All ranks learn that they are of one process, by words of signals, which are no traffic. Nothing is asked of the driver before, which
 * does not outlive a fork. */
static cot_status check_process(const char *op, cot_fabric *f, cot_sym processes, cot_error *error)
{
    const uint64_t process = static_cast<uint64_t>(getpid());
    const cot_sym own = processes + static_cast<cot_sym>(f->rank) * COT_FUSED_LINE;
    for (int r = 0; r < f->ranks; r++) cot_put_signal(f, r, 0, nullptr, 0, own, process, COT_PHASE_CONTROL);
    for (int r = 0; r < f->ranks; r++) {
        const cot_sym word = processes + static_cast<cot_sym>(r) * COT_FUSED_LINE;
        const cot_status status = cot_wait(f, word, 1, r, COT_PHASE_CONTROL, error);
        if (status != COT_OK) return status;
        if (cot_signal_load(f, word) != process)
            return cot_fail(error, COT_UNSUPPORTED,
                            "'%s' runs ranks that are threads of one process: --fabric threads", op);
    }
    return COT_OK;
}

/* And where they meet: rank 0 gives its place, if it has one, to all. */
static cot_status meet(meeting **place, cot_fabric *f, cot_sym place_at, cot_error *error)
{
    const uint64_t nowhere = 1;
    for (int r = 0; r < f->ranks && !f->rank; r++)
        cot_put_signal(f, r, 0, nullptr, 0, place_at, *place ? reinterpret_cast<uint64_t>(*place) : nowhere,
                       COT_PHASE_CONTROL);
    const cot_status status = cot_wait(f, place_at, 1, 0, COT_PHASE_CONTROL, error);
    if (status != COT_OK) return status;
    const uint64_t found = cot_signal_load(f, place_at);
    *place = found == nowhere ? nullptr : reinterpret_cast<meeting *>(found);
    return *place ? COT_OK : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for an operator");
}

static cot_status open_kind(cot_moe **out, cot_cuda_kind kind, const cot_moe_options *options,
                            cot_error *error)
{
    *out = nullptr;
    cot_moe_options settled = *options;
    cot_fabric *const f = options->fabric;
    cot_sym processes = 0, place_at = 0, begun = 0, done = 0;
    cot_status status = cot_moe_check(options, error);
    const cot_moe_operator *const op = operator_of(kind);
    if (status == COT_OK) status = op->settle(&settled, error);
    if (status == COT_OK) status = cot_alloc(f, &processes, lines(f->ranks), error);
    if (status == COT_OK) status = cot_alloc(f, &place_at, COT_FUSED_LINE, error);
    if (status == COT_OK) status = cot_alloc(f, &begun, COT_FUSED_LINE, error);
    if (status == COT_OK) status = cot_alloc(f, &done, COT_FUSED_LINE, error);
    if (status == COT_OK) status = check_process(op->name, f, processes, error);
    if (status != COT_OK) return status; // the same on all ranks, unless one has died
    meeting *const own = f->rank ? nullptr : open_meeting(kind, &settled), *place = own;
    status = meet(&place, f, place_at, error);
    if (status != COT_OK) {
        if (own) leave(own);
        return status;
    }
    cuda_moe *const m = static_cast<cuda_moe *>(calloc(1, sizeof *m));
    status = place->status;
    if (status != COT_OK)
        cot_fail(error, status, "%s", place->error.message);
    else if (!m)
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for an operator");
    if (status != COT_OK) {
        free(m);
        leave(place);
        return status;
    }
    m->moe.op = op;
    m->fabric = f;
    m->place = place;
    m->begun = begun;
    m->done = done;
    *out = &m->moe;
    return COT_OK;
}

static cot_status open_fused(cot_moe **moe, const cot_moe_options *options, cot_error *error)
{
    return open_kind(moe, cot_cuda_kind::fused, options, error);
}

static cot_status open_bulk(cot_moe **moe, const cot_moe_options *options, cot_error *error)
{
    return open_kind(moe, cot_cuda_kind::bulk, options, error);
}

static void cuda_close(cot_moe *moe)
{
    if (!moe) return;
    leave(reinterpret_cast<cuda_moe *>(moe)->place);
    free(moe);
}

static cot_status cuda_keep(cot_moe *moe, const cot_moe_layer *layer, int64_t slot, cot_error *error)
{
    const cuda_moe *const m = reinterpret_cast<cuda_moe *>(moe);
    pthread_mutex_lock(&m->place->mutex);
    const cot_status status = cot_cuda_group_keep(m->place->group, layer, slot, m->fabric->rank,
                                                  cot_local(m->fabric, layer->slots), error);
    pthread_mutex_unlock(&m->place->mutex);
    return status;
}

/* A rank to blame if the call does not come to its end: the first that has not arrived. */
static int missing_rank(const meeting *place, int ranks, uint64_t call)
{
    for (int r = 0; r < ranks; r++)
        if (__atomic_load_n(&place->arrived[r], __ATOMIC_ACQUIRE) < call) return r;
    return 0;
}

/* Counts what the own rank has put on the device as what it has put. */
static void count(cuda_moe *m)
{
    const cot_cuda_group *const g = m->place->group;
    cot_fabric *const f = m->fabric;
    for (int phase = 0; phase < COT_PHASES; phase++)
        for (int to = 0; to < f->ranks; to++) {
            const cot::traffic *const t = &g->traffic[(phase * f->ranks + f->rank) * f->ranks + to];
            f->traffic[to][phase].bytes += t->bytes;
            f->traffic[to][phase].messages += t->messages;
        }
    cot_count_rounds(f, COT_PHASE_DISPATCH, static_cast<int>(g->passes));
    cot_count_rounds(f, COT_PHASE_COMBINE, static_cast<int>(g->passes));
    m->times.passes += static_cast<uint64_t>(g->passes);
    m->times.launches += static_cast<uint64_t>(g->launches);
}

static void tell_others(const cuda_moe *m, cot_sym signal, uint64_t call)
{
    cot_fabric *const f = m->fabric;
    for (int r = 0; r < f->ranks; r++)
        if (r != f->rank) cot_put_signal(f, r, 0, nullptr, 0, signal, call, COT_PHASE_CONTROL);
}

static cot_status arrive(cuda_moe *m, const cot_cuda_arrival *arrival, cot_error *error)
{
    cot_fabric *const f = m->fabric;
    meeting *const place = m->place;
    cot_cuda_group *const g = place->group;
    const uint64_t call = ++m->calls;
    assert(arrival->tokens >= 0 && arrival->tokens <= g->home_tokens);
    g->arrived[f->rank] = *arrival;
    __atomic_store_n(&place->arrived[f->rank], call, __ATOMIC_RELEASE);
    bool runs = false;
    if (__atomic_add_fetch(&place->arrivals, 1, __ATOMIC_ACQ_REL) == static_cast<uint64_t>(f->ranks) * call) {
        pthread_mutex_lock(&place->mutex);
        runs = !place->given_up;
        place->runner = f->rank;
        g->call.fabric.timeout_ns = static_cast<uint64_t>(f->timeout_ns);
        if (runs) {
            tell_others(m, m->begun, call);
            cot_cuda_group_run(g);
        }
        pthread_mutex_unlock(&place->mutex);
    }
    if (runs) {
        tell_others(m, m->done, call);
    } else {
        /* Two waits: what the device waits for takes as long again as the last rank. */
        cot_status status =
            cot_wait(f, m->begun, call, missing_rank(place, f->ranks, call), COT_PHASE_DISPATCH, error);
        if (status == COT_OK) status = cot_wait(f, m->done, call, place->runner, COT_PHASE_DISPATCH, error);
        if (status != COT_OK) {
            pthread_mutex_lock(&place->mutex); // what is launched ends first
            place->given_up = true;
            pthread_mutex_unlock(&place->mutex);
            return status;
        }
    }
    const cot_status status = g->status;
    if (status == COT_OK)
        count(m);
    else
        cot_fail(error, status, "%s", g->error.message);
    /* The ranks are well where the device's part of one was silent: the next call finds it as it was opened. */
    if (status != COT_OK && status != COT_INVALID_ARGUMENT && status != COT_TIMED_OUT) f->ops->fail(f);
    return status;
}

static cot_status cuda_forward(cot_moe *moe, const cot_moe_layer *layer, float *y, uint16_t *experts,
                               float *weights, const float *x, int64_t tokens, cot_error *error)
{
    const cot_cuda_arrival arrival = {layer, y, experts, weights, x, tokens, false};
    return arrive(reinterpret_cast<cuda_moe *>(moe), &arrival, error);
}

cot_status cot_cuda_forward_device(cot_moe *moe, const cot_moe_layer *layer, float *y, uint16_t *experts,
                                   float *weights, const float *x, int64_t tokens, cot_error *error)
{
    const cot_cuda_arrival arrival = {layer, y, experts, weights, x, tokens, true};
    return arrive(reinterpret_cast<cuda_moe *>(moe), &arrival, error);
}

static const cot_moe_times *cuda_times(const cot_moe *moe)
{
    return &reinterpret_cast<const cuda_moe *>(moe)->times;
}

const cot_moe_operator cot_cuda_operator = {COT_CUDA_OPERATOR, true,         &cot_cuda_weights, &pinned,
                                            settle_fused,      heap_bytes,   touched_bytes,     open_fused,
                                            cuda_keep,         cuda_forward, cuda_close,        cuda_times};
const cot_moe_operator cot_cuda_bulk_operator = {
    COT_CUDA_BULK_OPERATOR, true,      &cot_cuda_weights, &pinned,      settle_bulk, heap_bytes,
    touched_bytes,          open_bulk, cuda_keep,         cuda_forward, cuda_close,  cuda_times};
