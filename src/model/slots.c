/* Slots: filled from the checkpoint, found by an epoch's layout, copied from rank to rank a chunk at a time. */
#include "base/error.h"
#include "model/runner_state.h"

#include "base/error.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include <string.h>
#include <xxhash.h>

/* ---- places ---- */

/* The first of the layers that share the layer's pool. */
static int32_t first_alike(const cot_runner_options *o, int32_t layer)
{
    const int64_t *bytes = o->networks->slot_bytes;
    int32_t first = 0;
    while (bytes[first] != bytes[layer]) first++;
    return first;
}

cot_runner_pool cot_runner_pool_of(const cot_runner_options *o, int32_t layer)
{
    const int32_t head = first_alike(o, layer), own = o->layout->slots_per_rank - o->movable;
    cot_runner_pool pool = {.own = own, .places = o->movable};
    for (int32_t l = 0; l < cot_runner_expert_layers(o); l++) {
        const int32_t other = first_alike(o, l), shared = o->movable && other == l;
        if (other < head) pool.at += (size_t)(own + shared) * (size_t)o->networks->slot_bytes[l];
        if (other != head) continue;
        if (l < layer) pool.first += own;
        pool.places += own;
    }
    return pool;
}

int32_t cot_runner_transit_places(const cot_runner_options *o)
{
    int32_t pools = 0;
    for (int32_t l = 0; l < cot_runner_expert_layers(o); l++) pools += first_alike(o, l) == l;
    return o->movable ? pools : 0;
}

size_t cot_runner_pools_bytes(const cot_runner_options *o)
{
    size_t bytes = 0;
    for (int32_t l = 0; l < cot_runner_expert_layers(o); l++)
        if (first_alike(o, l) == l)
            bytes += (size_t)cot_runner_pool_of(o, l).places * (size_t)o->networks->slot_bytes[l];
    return bytes;
}

int32_t cot_runner_first_place(const cot_runner_options *o, int32_t layer, int32_t slot)
{
    const cot_runner_pool pool = cot_runner_pool_of(o, layer);
    if (slot < pool.own) return pool.first + slot;
    return first_alike(o, layer) == layer ? pool.places - 1
                                          : -1; // what layers share is the first one's at first
}

cot_status cot_runner_open_slots(cot_runner *r, cot_error *error)
{
    const int32_t layers = (int32_t)cot_runner_expert_layers(&r->o), slots = r->o.layout->slots_per_rank;
    r->slots.pool = calloc((size_t)layers + 1, sizeof *r->slots.pool);
    r->slots.place = calloc((size_t)layers * (size_t)slots + 1, sizeof *r->slots.place);
    r->slots.used = calloc((size_t)layers * (size_t)slots + 1, sizeof *r->slots.used); // and no pool has more
    if (!r->slots.pool || !r->slots.place || !r->slots.used)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a table of slots");
    for (int32_t l = 0; l < layers; l++) {
        r->slots.pool[l] = cot_runner_pool_of(&r->o, l);
        for (int32_t s = 0; s < slots; s++) {
            const int32_t place = cot_runner_first_place(&r->o, l, s);
            if (place >= 0) cot_runner_places_of(r, l)[s] = place - r->slots.pool[l].first;
        }
    }
    return COT_OK;
}

/* ---- slots ---- */

void cot_runner_fill_slots(cot_runner *r, cot_loader *load)
{
    for (int32_t m = 0; m < cot_runner_expert_layers(&r->o); m++) {
        const cot_expert_replicas replicas = cot_expert_layout_layer(r->slots.layout, m);
        for (int32_t e = 0; e < r->slots.layout->n_experts; e++)
            for (int32_t i = replicas.begin[e]; i < replicas.begin[e + 1]; i++)
                if (replicas.rank[i] == r->fabric->rank)
                    cot_expert_walk(r->o.networks, r->o.op->weights, r->slots.layout->layers[m], e,
                                    cot_runner_slot(r, m, replicas.slot[i]), load);
    }
}

/* What places took that slots had in the layout before, and have not in the one in force, goes back to the system. */
static void empty_left(const cot_runner *r, const cot_expert_layout *before)
{
    const int32_t rank = r->fabric->rank, E = before->n_experts;
    for (int32_t l = 0; l < cot_runner_expert_layers(&r->o); l++) {
        const cot_expert_replicas was = cot_expert_layout_layer(before, l),
                                  now = cot_expert_layout_layer(r->slots.layout, l);
        bool *const used = r->slots.used; // by slot
        memset(used, 0, (size_t)before->slots_per_rank * sizeof *used);
        for (int32_t i = 0; i < now.begin[E]; i++)
            if (now.rank[i] == rank) used[now.slot[i]] = true;
        for (int32_t i = 0; i < was.begin[E]; i++)
            if (was.rank[i] == rank && !used[was.slot[i]])
                r->fabric->ops->give_back(
                    r->fabric,
                    cot_runner_place_at(r, l,
                                        r->slots.pool[l].first + cot_runner_places_of(r, l)[was.slot[i]]),
                    (size_t)r->o.networks->slot_bytes[l]);
    }
}

void cot_runner_place(cot_runner *r, const int32_t *words, int64_t count)
{
    const bool second = r->slots.layout == &r->slots.epoch[1].layout;
    cot_expert_epoch *now = &r->slots.epoch[second], *next = &r->slots.epoch[!second];
    cot_expert_epoch_follow(next, now, words, count);
    r->slots.layout = &next->layout;
    if (r->o.gives_back) empty_left(r, &now->layout);
}

void cot_runner_use_small_pages(const cot_runner *r)
{
    const size_t small = (size_t)sysconf(_SC_PAGESIZE);
    cot_kv_use_small_pages(&r->heads.kv);
    cot_state_use_small_pages(&r->heads.state);
    for (int32_t l = 0; l < cot_runner_expert_layers(&r->o); l++) {
        const cot_runner_pool *pool = &r->slots.pool[l];
        const int32_t end = pool->first + pool->own, behind = end == pool->places - 1 ? pool->places : end;
        uint8_t *first = cot_local(r->fabric, cot_runner_place_at(r, l, end - r->o.spare));
        const size_t bytes = (size_t)(behind - end + r->o.spare) * (size_t)r->o.networks->slot_bytes[l],
                     before = (uintptr_t)first % small;
        madvise(first - before, bytes + before, MADV_NOHUGEPAGE);
    }
}

void cot_runner_resize(cot_runner *r, const int32_t *moved, int64_t moves, int64_t open)
{
    cot_kv_resize(&r->heads.kv, moved, moves, open);
}

/* Places of a pool that slots of the epoch in force have are marked. */
static void mark_places(const cot_runner *r, int32_t head, bool *used)
{
    for (int32_t l = head; l < cot_runner_expert_layers(&r->o); l++) {
        if (first_alike(&r->o, l) != head) continue;
        const cot_expert_replicas replicas = cot_expert_layout_layer(r->slots.layout, l);
        for (int32_t i = 0; i < replicas.begin[r->slots.layout->n_experts]; i++)
            if (replicas.rank[i] == r->fabric->rank)
                used[r->slots.pool[l].first + cot_runner_places_of(r, l)[replicas.slot[i]]] = true;
    }
}

static void empty_pool(const cot_runner *r, int32_t head)
{
    const int32_t places = r->slots.pool[head].places;
    bool *const used = r->slots.used;
    memset(used, 0, (size_t)places * sizeof *used);
    mark_places(r, head, used);
    for (int32_t begin = 0, end; begin < places; begin = end) {
        end = begin + 1;
        if (used[begin]) continue;
        while (end < places && !used[end]) end++;
        r->fabric->ops->give_back(r->fabric, cot_runner_place_at(r, head, begin),
                                  (size_t)(end - begin) * (size_t)r->o.networks->slot_bytes[head]);
    }
}

void cot_runner_empty_places(cot_runner *r)
{
    if (!r->o.gives_back) return;
    for (int32_t l = 0; l < cot_runner_expert_layers(&r->o); l++)
        if (first_alike(&r->o, l) == l) empty_pool(r, l);
}

cot_status cot_runner_keep_layers(cot_runner *r, cot_error *error)
{
    cot_status status = COT_OK;
    if (r->o.op->keep && r->c->gate.score == COT_GATE_SPARSE_MIXER)
        return cot_fail(error, COT_UNSUPPORTED, "operator '%s' does not route as %s does: choose another",
                        r->o.op->name, r->c->architecture);
    for (int64_t l = 0, m = 0; l < r->c->layers && r->o.op->keep && status == COT_OK; l++) {
        if (!r->c->layer[l].moe) continue;
        const cot_moe_layer layer = cot_runner_moe_layer(r, l, m++);
        status = r->o.op->keep(r->network.moe, &layer, COT_MOE_ALL_SLOTS, error);
    }
    return status;
}

/* ---- copies ---- */

/* The chunk, then its checksum with the signal that all of it is there. */
static void send(cot_runner *r, const cot_runner_chunk *c)
{
    cot_fabric *fabric = r->fabric;
    const uint8_t *own = cot_runner_slot(r, c->layer, c->from_slot) + c->begin;
    const uint64_t sum = XXH3_64bits(own, (size_t)c->bytes);
    const cot_sym word = (cot_sym)fabric->rank * sizeof sum;
    cot_put(fabric, c->to, cot_runner_place_at(r, c->layer, c->place) + (cot_sym)c->begin, own,
            (size_t)c->bytes, COT_PHASE_MIGRATION);
    cot_put_signal(fabric, c->to, r->slots.sums_at + word, &sum, sizeof sum, r->slots.sums_signals + word,
                   r->slots.copies, COT_PHASE_MIGRATION);
}

/* The slot is whole: the operator has it, too. */
static cot_status keep(cot_runner *r, const cot_runner_chunk *c, cot_error *error)
{
    if (!r->o.op->keep) return COT_OK;
    const cot_moe_layer layer = cot_runner_moe_layer(r, r->slots.layout->layers[c->layer], c->layer);
    return r->o.op->keep(r->network.moe, &layer, c->to_slot, error);
}

static cot_status receive(cot_runner *r, const cot_runner_chunk *c, cot_runner_verdict *verdict,
                          cot_error *error)
{
    cot_fabric *fabric = r->fabric;
    const cot_sym word = (cot_sym)c->from * sizeof(uint64_t);
    cot_runner_places_of(r, c->layer)[c->to_slot] = c->place - r->slots.pool[c->layer].first;
    cot_status status =
        cot_wait(fabric, r->slots.sums_signals + word, r->slots.copies, c->from, COT_PHASE_MIGRATION, error);
    if (status != COT_OK) return status;
    const uint8_t *own = cot_runner_slot(r, c->layer, c->to_slot) + c->begin;
    const uint64_t *sum = cot_local(fabric, r->slots.sums_at + word);
    *verdict = XXH3_64bits(own, (size_t)c->bytes) == *sum ? COT_RUNNER_SAME : COT_RUNNER_DIFFERS;
    if (*verdict != COT_RUNNER_SAME || !c->last) return COT_OK;
    status = keep(r, c, error);
    if (status != COT_OK) *verdict = COT_RUNNER_FAILED;
    return status;
}

static cot_status take_part(cot_runner *r, const cot_runner_chunk *c, cot_runner_verdict *verdict,
                            cot_error *error)
{
    cot_status status = COT_OK;
    cot_stage_enter(r->fabric, COT_STAGE_MOVING, 0);
    cot_turns_enter(r->fabric);
    if (c->from == r->fabric->rank) send(r, c);
    if (c->to == r->fabric->rank) status = receive(r, c, verdict, error);
    cot_turns_leave(r->fabric);
    return status;
}

cot_status cot_runner_copy(cot_runner *r, const cot_runner_chunk *chunk, int64_t count,
                           cot_runner_verdict *verdict, cot_error *error)
{
    r->slots.copies++;
    for (int64_t i = 0; i < count; i++)
        if (chunk[i].from == r->fabric->rank || chunk[i].to == r->fabric->rank)
            return take_part(r, &chunk[i], verdict, error);
    return COT_OK;
}
