#include "cuda/module/group.h"

#include "cuda/module/weights.h"

#include "cuda/c_begin.h"
#include "base/rng.h"
#include "moe/fused/fused.h"
#include "cuda/c_end.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- memory ---- */

/* Takes device memory, or only adds up what it would take. */
struct taking {
    cot_cuda_group *group;
    bool measures;
    size_t bytes;
    cot_status status;
    cot_error *error;
};

static cot_status ask_free(const cot_cuda_device *device, size_t *free_bytes, size_t *all_bytes,
                           cot_error *error)
{
    return cot_cuda_check(device->driver, device->driver->memory_info(free_bytes, all_bytes),
                          "say how much memory it has", error);
}

static cot_status fail_memory(const cot_cuda_device *device, const char *what, size_t bytes,
                              size_t free_bytes, size_t all_bytes, cot_error *error)
{
    return cot_fail(error, COT_OUT_OF_MEMORY,
                    "%s need %.3f GB of device memory, %.3f GB of %.3f GB are free on '%s'", what,
                    static_cast<double>(bytes) / 1e9, static_cast<double>(free_bytes) / 1e9,
                    static_cast<double>(all_bytes) / 1e9, device->name);
}

static cot_status check_free(const cot_cuda_device *device, size_t bytes, const char *what, cot_error *error)
{
    size_t free_bytes = 0, all_bytes = 0;
    const cot_status status = ask_free(device, &free_bytes, &all_bytes, error);
    if (status != COT_OK || bytes <= free_bytes) return status;
    return fail_memory(device, what, bytes, free_bytes, all_bytes, error);
}

/* Memory for what was weighed before; it may be gone by now, or in pieces. */
static cot_status take_memory(const cot_cuda_device *device, uint64_t *at, size_t bytes, const char *what,
                              cot_error *error)
{
    size_t free_bytes = 0, all_bytes = 0;
    const int result = device->driver->take(at, bytes);
    if (result != COT_CUDA_NO_MEMORY) return cot_cuda_check(device->driver, result, "give memory", error);
    const cot_status status = ask_free(device, &free_bytes, &all_bytes, error);
    return status == COT_OK ? fail_memory(device, what, bytes, free_bytes, all_bytes, error) : status;
}

static uint64_t take_bytes(taking *t, size_t bytes)
{
    const size_t granule = 256; // of the driver's memory
    uint64_t at = 0;
    if (!bytes) bytes = 1;
    t->bytes += (bytes + granule - 1) / granule * granule;
    if (t->measures || t->status != COT_OK) return 0;
    cot_cuda_group *const g = t->group;
    if (g->taken_count == g->taken_room) {
        const size_t room = g->taken_room ? 2 * g->taken_room : 64;
        void *const more = realloc(g->taken, room * sizeof *g->taken);
        if (!more) {
            t->status = cot_fail(t->error, COT_OUT_OF_MEMORY, "out of memory for an operator");
            return 0;
        }
        g->taken = static_cast<uint64_t *>(more);
        g->taken_room = room;
    }
    t->status = take_memory(g->device, &at, bytes, "rows in hand", t->error);
    if (t->status == COT_OK) g->taken[g->taken_count++] = at;
    return at;
}

template <typename T> static T *take(taking *t, int64_t count)
{
    return reinterpret_cast<T *>(take_bytes(t, static_cast<size_t>(count) * sizeof(T)));
}

/* What make_ready clears. */
static void note_zeros(taking *t, const void *at, size_t bytes)
{
    cot_cuda_group *const g = t->group;
    assert(static_cast<size_t>(g->zero_count) < sizeof g->zeros / sizeof *g->zeros);
    g->zeros[g->zero_count++] = {reinterpret_cast<uint64_t>(at), bytes};
}

template <typename T> static T *take_zeros(taking *t, int64_t count)
{
    T *const at = take<T>(t, count);
    note_zeros(t, at, static_cast<size_t>(count) * sizeof(T));
    return at;
}

template <typename T> static void upload(taking *t, const T *to, const T *from, int64_t count)
{
    const cot_cuda_driver *const driver = t->group->device->driver;
    if (t->measures || t->status != COT_OK || !count) return;
    t->status = cot_cuda_check(
        driver,
        driver->to_device(reinterpret_cast<uint64_t>(to), from, static_cast<size_t>(count) * sizeof(T)),
        "take data", t->error);
}

static int64_t slots_of(const cot_moe_options *o)
{
    return o->slots ? o->slots : o->experts;
}

static int64_t parts(int64_t columns)
{
    const int64_t tile_columns = 64;
    return cot_divide_up(columns, tile_columns);
}

/* A rank's words, which its blocks poll, share no line with another's. */
constexpr size_t STATE_BYTES = 256;
static_assert(sizeof(cot::fused_state) <= STATE_BYTES, "one state");

static size_t states_bytes(int ranks)
{
    return static_cast<size_t>(ranks) * STATE_BYTES + sizeof(uint64_t); // and the failure
}

static size_t round_up_64(int64_t bytes)
{
    return (static_cast<size_t>(bytes) + 63) / 64 * 64;
}

static cot_cuda_told told_of(const cot_moe_options *o, int ranks)
{
    const size_t replicas = static_cast<size_t>(ranks * slots_of(o)) * sizeof(int32_t);
    cot_cuda_told told;
    told.tokens = static_cast<size_t>(ranks) * sizeof(cot::fused_rank);
    told.placement[0] = told.tokens + static_cast<size_t>(ranks) * 2 * sizeof(int32_t);
    told.placement[1] = told.placement[0] + replicas;
    told.placement[2] = told.placement[1] + replicas;
    told.bytes = told.placement[2] + static_cast<size_t>(o->experts + 1) * sizeof(int32_t);
    return told;
}

static size_t counters_bytes(int ranks)
{
    return static_cast<size_t>(COT_PHASES * ranks * ranks) * sizeof(cot::traffic);
}

static void lay_out_rank(cot_cuda_group *g, taking *t, int r)
{
    const cot_moe_options *const o = &g->options;
    const int64_t s = g->call.layout.tokens, h = o->expert.hidden, k = o->top_k, slots = slots_of(o),
                  entries = s * g->ranks * cot_smaller(k, slots),
                  tiles = entries / cot::FUSED_TILE_ROWS + slots, rows = tiles * cot::FUSED_TILE_ROWS,
                  widest = cot_larger(o->expert.intermediate, o->shared.intermediate),
                  tasks = cot::fused_tasks_most(g->call.layout, static_cast<int32_t>(h),
                                                static_cast<int32_t>(o->experts), tiles,
                                                parts(2 * widest) + parts(h), g->call.reduced, g->blocks);
    cot::fused_rank *const d = &g->rank[r];
    g->x[r] = take_bytes(t, static_cast<size_t>(g->home_tokens * h) * sizeof(float));
    g->y[r] = take_bytes(t, static_cast<size_t>(g->home_tokens * h) * sizeof(float));
    g->experts[r] = take_bytes(t, static_cast<size_t>(g->home_tokens * k) * sizeof(uint16_t));
    g->weights[r] = take_bytes(t, static_cast<size_t>(g->home_tokens * k) * sizeof(float));
    d->state = reinterpret_cast<cot::fused_state *>(g->states + static_cast<size_t>(r) * STATE_BYTES);
    d->routed = take<uint16_t>(t, s * k);
    d->routed_weights = take<float>(t, s * k);
    d->replica = take<int32_t>(t, s * k);
    d->logits = take<float>(t, s * o->experts);
    d->chunk_left = take<uint32_t>(t, cot::gate_chunks_most(s));
    d->ready = take_zeros<uint64_t>(t, tasks);
    d->finished = take_zeros<uint64_t>(t, tasks);
    d->released = take<int32_t>(t, tiles);
    d->tile_slot = take<int32_t>(t, tiles);
    d->tile_rows = take<int32_t>(t, tiles);
    d->tile_row = take<int32_t>(t, rows);
    d->tile_weight = take<float>(t, rows);
    d->tile_home = take<int32_t>(t, rows);
    d->tile_at = take<int32_t>(t, rows);
    const int64_t lanes = g->kind == cot_cuda_kind::bulk ? tiles + cot_divide_up(s, cot::FUSED_TILE_ROWS)
                                                         : static_cast<int64_t>(cot::FUSED_LANES);
    d->lane_tile = take<int32_t>(t, lanes);
    d->activations = take<unsigned char>(t, lanes * cot::FUSED_TILE_ROWS * widest *
                                                static_cast<int64_t>(cot_dtype_bytes(o->expert.type)));
    d->shared_rows = take<float>(t, s * h);
    if (g->call.reduced) {
        d->partial = take<float>(t, entries * h);
        d->row_left = take<int32_t>(t, s * g->ranks);
        d->row_entry = take<int32_t>(t, s * g->ranks);
        d->row_entries = take<int32_t>(t, s * g->ranks);
        d->complete = take<int32_t>(t, s * g->ranks);
        d->sent_row = take<int32_t>(t, s * g->ranks);
    }
}

static void lay_out(cot_cuda_group *g, taking *t)
{
    const cot_moe_options *const o = &g->options;
    cot_cuda_fused *const c = &g->call;
    const int64_t value = static_cast<int64_t>(cot_dtype_bytes(o->expert.type)), h = o->expert.hidden;
    unsigned char *regions[COT_MAX_RANKS];
    int32_t first[COT_MAX_RANKS + 1];
    c->reduced = o->combine == COT_COMBINE_REDUCED;
    c->layout = cot_fused_layout_of(g->ranks, cot_fused_pass_tokens(o, g->ranks), o->top_k, h * value,
                                    h * static_cast<int64_t>(cot_dtype_bytes(o->combine_type)), c->reduced);
    const size_t dispatch = round_up_64(cot_fused_dispatch_bytes(&c->layout)),
                 replies = round_up_64(cot_fused_reply_bytes(&c->layout)),
                 signals = static_cast<size_t>(g->ranks) * COT_FUSED_LINE;
    c->dispatch_at = 0;
    c->replies_at = dispatch;
    c->dispatch_signals = dispatch + replies;
    c->reply_signals = dispatch + replies + signals;
    g->zero_count = 0;
    g->states = take_bytes(t, states_bytes(g->ranks));
    for (int r = 0; r < g->ranks; r++) {
        regions[r] = take<unsigned char>(t, static_cast<int64_t>(c->reply_signals + signals));
        note_zeros(t, regions[r] + c->dispatch_signals, 2 * signals);
        first[r] = static_cast<int32_t>(cot_share_begin(g->blocks, r, g->ranks));
        lay_out_rank(g, t, r);
    }
    first[g->ranks] = g->blocks;
    unsigned char **const table = take<unsigned char *>(t, g->ranks);
    upload(t, table, regions, g->ranks);
    int32_t *const first_block = take<int32_t>(t, g->ranks + 1);
    upload<int32_t>(t, first_block, first, g->ranks + 1);
    g->told = told_of(o, g->ranks);
    g->told_at = take_bytes(t, g->told.bytes);
    c->fabric.regions = table;
    c->fabric.counters = take<cot::traffic>(t, COT_PHASES * g->ranks * g->ranks);
    c->fabric.failure = reinterpret_cast<uint64_t *>(g->states + static_cast<size_t>(g->ranks) * STATE_BYTES);
    c->fabric.ranks = g->ranks;
    c->networks[0] = cot_cuda_network_of(&o->expert);
    c->slots = static_cast<int32_t>(slots_of(o));
    c->reply_bf16 = o->combine_type == COT_BF16;
    c->replica_rank = reinterpret_cast<const int32_t *>(g->told_at + g->told.placement[0]);
    c->replica_slot = reinterpret_cast<const int32_t *>(g->told_at + g->told.placement[1]);
    c->replica_begin = reinterpret_cast<const int32_t *>(g->told_at + g->told.placement[2]);
    c->ranks = reinterpret_cast<const cot::fused_rank *>(g->told_at);
    c->first_block = first_block;
}

static void size_up(cot_cuda_group *g, cot_cuda_kind kind, const cot_moe_options *options, int ranks,
                    int blocks)
{
    g->kind = kind;
    g->options = *options;
    g->ranks = ranks;
    g->blocks = blocks;
    g->home_tokens = options->home_tokens ? options->home_tokens : options->tokens;
}

size_t cot_cuda_group_bytes(cot_cuda_kind kind, const cot_moe_options *options, int ranks, int blocks)
{
    cot_cuda_group *const g = static_cast<cot_cuda_group *>(calloc(1, sizeof *g));
    if (!g) return SIZE_MAX;
    taking t = {g, true, 0, COT_OK, nullptr};
    size_up(g, kind, options, ranks, blocks);
    lay_out(g, &t);
    free(g);
    return t.bytes;
}

/* ---- open and close ---- */

/* Dynamic shared memory of a block of each phase. */
static void size_shared(cot_cuda_group *g)
{
    const int experts = static_cast<int>(g->options.experts),
              stages = g->options.expert.type == COT_BF16 ? cot::FUSED_BF16_STAGES : cot::FUSED_F32_STAGES;
    size_t *const bytes = g->shared_bytes;
    if (g->kind == cot_cuda_kind::fused) {
        bytes[0] = cot::fused_shared_bytes(stages, experts);
        return;
    }
    bytes[COT_CUDA_GATE] = bytes[COT_CUDA_COMBINE] = sizeof(float);
    bytes[COT_CUDA_ROUTE] = 4 * sizeof(float) * static_cast<size_t>(cot::gate_scratch_floats(experts));
    bytes[COT_CUDA_DISPATCH] = bytes[COT_CUDA_RECEIVE] = sizeof(cot::fused_shared);
    bytes[COT_CUDA_UP] = bytes[COT_CUDA_DOWN] = static_cast<size_t>(stages);
}

static cot_status find_blocks(cot_cuda_group *g, cot_error *error)
{
    const cot_cuda_device *const d = g->device;
    const int type = g->options.expert.type == COT_BF16 ? 0 : 1;
    const bool bulk = g->kind == cot_cuda_kind::bulk;
    void *const *const kernels = bulk ? d->bulk[type] : &d->fused[type];
    const int main = bulk ? COT_CUDA_UP : 0; // the one that most of the work is in
    int resident = 0;
    size_shared(g);
    for (int i = 0; i < (bulk ? COT_CUDA_PHASES : 1); i++)
        if (g->shared_bytes[i] > d->shared_bytes_most)
            return cot_fail(error, COT_INVALID_ARGUMENT,
                            "%lld experts need %zu bytes of shared memory a block, '%s' has %zu",
                            static_cast<long long>(g->options.experts), g->shared_bytes[i], d->name,
                            d->shared_bytes_most);
    const cot_status status = cot_cuda_check(d->driver,
                                             d->driver->occupancy(&resident, kernels[main],
                                                                  bulk ? cot::FUSED_TEAM : cot::FUSED_THREADS,
                                                                  g->shared_bytes[main]),
                                             "say how many blocks fit", error);
    const int reserve = g->options.sms_reserve;
    if (status == COT_OK && reserve >= d->multiprocessors)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "%d multiprocessors in reserve leave none of the %d that '%s' has", reserve,
                        d->multiprocessors, d->name);
    g->blocks = resident * (d->multiprocessors - reserve);
    if (status == COT_OK && g->ranks > g->blocks)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "%d ranks are more than the %d blocks that '%s' runs at once%s", g->ranks, g->blocks,
                        d->name, reserve ? " but for its reserve" : "");
    return status;
}

/* Signals, tasks and what ranks know of themselves, as before the first launch; nothing runs. */
static cot_status make_ready(cot_cuda_group *g, cot_error *error)
{
    const cot_cuda_driver *const driver = g->device->driver;
    unsigned char states[COT_MAX_RANKS * STATE_BYTES + sizeof(uint64_t)] = {};
    cot::fused_state fresh = {};
    fresh.unsound = ~0u;
    for (int r = 0; r < g->ranks; r++)
        memcpy(states + static_cast<size_t>(r) * STATE_BYTES, &fresh, sizeof fresh);
    cot_status status = cot_cuda_check(driver, driver->to_device(g->states, states, states_bytes(g->ranks)),
                                       "take data", error);
    for (int i = 0; i < g->zero_count && status == COT_OK; i++)
        status =
            cot_cuda_check(driver, driver->fill(g->zeros[i].at, 0, g->zeros[i].bytes), "clear memory", error);
    g->epoch = 0;
    g->spoilt = status != COT_OK;
    return status;
}

/* Where states and counters begin in pinned memory, and its end: pages of its own. */
struct pinned_parts {
    size_t states, counters, page, bytes;
};

static pinned_parts pinned_parts_of(const cot_moe_options *o, int ranks)
{
    pinned_parts p;
    p.page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    p.states = round_up_64(static_cast<int64_t>(told_of(o, ranks).bytes));
    p.counters = p.states + round_up_64(static_cast<int64_t>(states_bytes(ranks)));
    p.bytes = (p.counters + counters_bytes(ranks) + p.page - 1) / p.page * p.page;
    return p;
}

size_t cot_cuda_group_pinned_bytes(const cot_moe_options *options, int ranks)
{
    return pinned_parts_of(options, ranks).bytes;
}

static cot_status take_pinned(cot_cuda_group *g, cot_error *error)
{
    const pinned_parts parts = pinned_parts_of(&g->options, g->ranks);
    g->pinned_bytes = parts.bytes;
    unsigned char *const at = static_cast<unsigned char *>(aligned_alloc(parts.page, parts.bytes));
    if (!at) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for an operator");
    const cot_status status = cot_cuda_pin(g->device, at, g->pinned_bytes, error);
    if (status != COT_OK) {
        free(at);
        return status;
    }
    memset(at, 0, g->pinned_bytes);
    g->pinned = at;
    g->left = at + parts.states;
    g->traffic = reinterpret_cast<cot::traffic *>(at + parts.counters);
    return COT_OK;
}

cot_status cot_cuda_group_open(cot_cuda_group **group, const cot_cuda_device *device, cot_cuda_kind kind,
                               const cot_moe_options *options, int ranks, cot_error *error)
{
    *group = nullptr;
    cot_cuda_group *const g = static_cast<cot_cuda_group *>(calloc(1, sizeof *g));
    if (!g) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for an operator");
    g->device = device;
    size_up(g, kind, options, ranks, 0);
    const cot_cuda_current current(device);
    cot_status status = current.check(error);
    if (status == COT_OK) status = find_blocks(g, error);
    if (status == COT_OK)
        status = check_free(device, cot_cuda_group_bytes(kind, options, ranks, g->blocks),
                            "what ranks exchange and rows in hand", error);
    if (status == COT_OK) {
        taking t = {g, false, 0, COT_OK, error};
        lay_out(g, &t);
        status = t.status;
    }
    if (status == COT_OK) status = take_pinned(g, error);
    if (status == COT_OK) status = make_ready(g, error);
    if (status == COT_OK)
        *group = g;
    else
        cot_cuda_group_close(g);
    return status;
}

void cot_cuda_group_close(cot_cuda_group *g)
{
    if (!g) return;
    const cot_cuda_driver *const driver = g->device->driver;
    const cot_cuda_current current(g->device);
    for (size_t i = 0; i < g->taken_count; i++) driver->give_back(g->taken[i]);
    for (size_t i = 0; i < g->kept_room; i++)
        if (g->kept[i].bytes) driver->give_back(g->kept[i].at);
    if (g->pinned) cot_cuda_unpin(g->device, g->pinned, g->pinned_bytes);
    free(g->pinned);
    free(g->taken);
    free(g->kept);
    free(g);
}

/* ---- weights ---- */

/* The place of the table where that is kept, or would be. */
static cot_cuda_kept *place_of(cot_cuda_kept *table, size_t room, const void *host, cot_sym slots, int rank)
{
    const uint64_t key =
        host ? reinterpret_cast<uint64_t>(host) : slots * COT_MAX_RANKS + static_cast<uint64_t>(rank);
    for (size_t i = cot_mix64(key);; i++) {
        cot_cuda_kept *const k = &table[i % room];
        if (!k->bytes || (k->host == host && (host || (k->slots == slots && k->rank == rank)))) return k;
    }
}

static const cot_cuda_kept *find_kept(const cot_cuda_group *g, const void *host, cot_sym slots, int rank)
{
    const cot_cuda_kept *const found =
        g->kept_room ? place_of(g->kept, g->kept_room, host, slots, rank) : nullptr;
    return found && found->bytes ? found : nullptr;
}

/* Room for one more. */
static cot_status grow_kept(cot_cuda_group *g, cot_error *error)
{
    const size_t room = g->kept_room ? 2 * g->kept_room : 128;
    if (2 * (g->kept_count + 1) <= g->kept_room) return COT_OK;
    cot_cuda_kept *const table = static_cast<cot_cuda_kept *>(calloc(room, sizeof *table));
    if (!table) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a list of weights");
    for (size_t i = 0; i < g->kept_room; i++) {
        const cot_cuda_kept *const k = &g->kept[i];
        if (k->bytes) *place_of(table, room, k->host, k->slots, k->rank) = *k;
    }
    free(g->kept);
    g->kept = table;
    g->kept_room = room;
    return COT_OK;
}

static cot_status keep(cot_cuda_group *g, const void *host, cot_sym slots, int rank, const void *from,
                       size_t bytes, cot_error *error)
{
    const cot_cuda_driver *const driver = g->device->driver;
    const cot_cuda_kept *found = find_kept(g, host, slots, rank);
    if (!found) {
        cot_cuda_kept fresh = {host, slots, rank, 0, bytes};
        cot_status status = grow_kept(g, error);
        if (status == COT_OK) status = check_free(g->device, bytes, "weights of a layer", error);
        if (status == COT_OK) status = take_memory(g->device, &fresh.at, bytes, "weights of a layer", error);
        if (status != COT_OK) return status;
        cot_cuda_kept *const place = place_of(g->kept, g->kept_room, host, slots, rank);
        *place = fresh;
        g->kept_count++;
        found = place;
    }
    assert(found->bytes == bytes);
    return cot_cuda_check(driver, driver->to_device(found->at, from, bytes), "take weights", error);
}

cot_status cot_cuda_group_keep(cot_cuda_group *g, const cot_moe_layer *layer, int rank, const void *local,
                               cot_error *error)
{
    const cot_moe_options *const o = &g->options;
    const size_t experts = static_cast<size_t>(o->experts), h = static_cast<size_t>(o->expert.hidden),
                 slots = static_cast<size_t>(slots_of(o)) * g->call.networks[0].bytes;
    const cot_cuda_current current(g->device);
    cot_status status = current.check(error);
    if (status == COT_OK) status = keep(g, nullptr, layer->slots, rank, local, slots, error);
    const auto keep_whole = [&](const void *host, size_t bytes) {
        if (host && status == COT_OK) status = keep(g, host, 0, 0, host, bytes, error);
    };
    if (rank) return status;
    if (layer->gate) {
        keep_whole(layer->gate->weight, experts * h * sizeof(float));
        keep_whole(layer->gate->bias, experts * sizeof(float));
        keep_whole(layer->gate->correction, experts * sizeof(float));
    }
    if (layer->shared) keep_whole(layer->shared, cot_cuda_network_of(&o->shared).bytes);
    keep_whole(layer->shared_gate, h * sizeof(float));
    return status;
}

/* ---- a call ---- */

/* What is copied, one thing behind the other and nothing waited for, and the first that goes wrong. */
struct calling {
    cot_cuda_group *g;
    cot_status status;
};

static void check(calling *c, int result, const char *what)
{
    if (c->status == COT_OK) c->status = cot_cuda_check(c->g->device->driver, result, what, &c->g->error);
}
static void to_device(calling *c, uint64_t to, const void *from, size_t bytes)
{
    if (c->status == COT_OK && bytes)
        check(c, c->g->device->driver->to_device_async(to, from, bytes, nullptr), "take data");
}
static void to_host(calling *c, void *to, uint64_t from, size_t bytes)
{
    if (c->status == COT_OK && bytes)
        check(c, c->g->device->driver->to_host_async(to, from, bytes, nullptr), "give data");
}

template <typename T> static const T *kept_at(calling *c, const T *host)
{
    if (!host || c->status != COT_OK) return nullptr;
    const cot_cuda_kept *const found = find_kept(c->g, host, 0, 0);
    if (!found)
        c->status =
            cot_fail(&c->g->error, COT_INVALID_ARGUMENT, "the device was not given a layer's weights");
    return found ? reinterpret_cast<const T *>(found->at) : nullptr;
}

/* Replicas on ranks and in slots that are there, and one at least of each expert. */
static void take_placement(calling *c, const cot_expert_replicas *p)
{
    cot_cuda_group *const g = c->g;
    const int64_t experts = g->options.experts, most = g->ranks * slots_of(&g->options);
    bool sound = p->begin[0] == 0 && p->begin[experts] <= most;
    for (int64_t e = 0; e < experts && sound; e++) sound = p->begin[e] < p->begin[e + 1];
    for (int64_t i = 0; sound && i < p->begin[experts]; i++)
        sound =
            p->rank[i] >= 0 && p->rank[i] < g->ranks && p->slot[i] >= 0 && p->slot[i] < slots_of(&g->options);
    if (!sound && c->status == COT_OK)
        c->status =
            cot_fail(&g->error, COT_INVALID_ARGUMENT, "a placement has experts in slots that are not there");
    if (c->status != COT_OK) return;
    const size_t replicas = static_cast<size_t>(p->begin[experts]);
    memcpy(g->pinned + g->told.placement[0], p->rank, replicas * sizeof(int32_t));
    memcpy(g->pinned + g->told.placement[1], p->slot, replicas * sizeof(int32_t));
    memcpy(g->pinned + g->told.placement[2], p->begin, static_cast<size_t>(experts + 1) * sizeof(int32_t));
}

static void take_layer(calling *c, const cot_moe_layer *layer)
{
    cot_cuda_group *const g = c->g;
    const cot_gate *const gate = layer->gate;
    cot_cuda_fused *const call = &g->call;
    call->routing = !gate                     ? cot::routing::given
                    : layer->replayed_experts ? cot::routing::replayed
                                              : cot::routing::gated;
    call->unsound_pass = layer->unsound_pass;
    call->gate = {};
    if (gate) {
        call->gate.score = static_cast<cot::gate_score>(gate->score);
        call->gate.groups = static_cast<int32_t>(gate->groups);
        call->gate.group_limit = static_cast<int32_t>(gate->group_limit);
        call->gate.group_score = static_cast<cot::gate_group_score>(gate->group_score);
        call->gate.normalise = gate->normalise;
        call->gate.epsilon = gate->epsilon;
        call->gate.scaling = gate->scaling;
        call->gate.weight = kept_at(c, gate->weight);
        call->gate.bias = kept_at(c, gate->bias);
        call->gate.correction = kept_at(c, gate->correction);
    }
    call->gate.hidden = static_cast<int32_t>(g->options.expert.hidden);
    call->gate.experts = static_cast<int32_t>(g->options.experts);
    call->gate.top_k = static_cast<int32_t>(g->options.top_k);
    call->networks[1] = {};
    if (layer->shared) call->networks[1] = cot_cuda_network_of(&g->options.shared);
    call->shared_weights = kept_at(c, layer->shared);
    call->shared_gate = layer->shared ? kept_at(c, layer->shared_gate) : nullptr;
    take_placement(c, &layer->placement);
    for (int r = 0; r < g->ranks && c->status == COT_OK; r++) {
        const cot_cuda_kept *const slots = find_kept(g, nullptr, g->arrived[r].layer->slots, r);
        if (slots)
            g->rank[r].slots = reinterpret_cast<const unsigned char *>(slots->at);
        else
            c->status =
                cot_fail(&g->error, COT_INVALID_ARGUMENT, "the device was not given rank %d's experts", r);
    }
}

/* Rows and routings that are inputs, where they come from the host. */
static void take_rows(calling *c, int r)
{
    cot_cuda_group *const g = c->g;
    const cot_cuda_arrival *const a = &g->arrived[r];
    const cot_moe_layer *const layer = a->layer;
    const size_t rows = static_cast<size_t>(a->tokens), h = static_cast<size_t>(g->options.expert.hidden),
                 choices = rows * static_cast<size_t>(g->options.top_k);
    if (!a->on_device) to_device(c, g->x[r], a->x, rows * h * sizeof(float));
    if (layer->gate && layer->replayed_experts) {
        to_device(c, g->experts[r], layer->replayed_experts, choices * sizeof(uint16_t));
        to_device(c, g->weights[r], layer->replayed_weights, choices * sizeof(float));
    } else if (!layer->gate && !a->on_device) {
        to_device(c, g->experts[r], a->experts, choices * sizeof(uint16_t));
        to_device(c, g->weights[r], a->weights, choices * sizeof(float));
    }
}

/* Where a pass that begins with token `first` of each rank finds and leaves its rows. */
static void point_ranks(calling *c, int64_t first)
{
    cot_cuda_group *const g = c->g;
    for (int r = 0; r < g->ranks; r++) {
        const cot_cuda_arrival *const a = &g->arrived[r];
        const int64_t left = a->tokens - first, h = g->options.expert.hidden, k = g->options.top_k;
        const bool own_routing = a->on_device && g->call.routing != cot::routing::replayed;
        cot::fused_rank *const d = &g->rank[r];
        const int32_t words[2] = {
            static_cast<int32_t>(left < 0 ? 0 : cot_smaller(left, g->call.layout.tokens)),
            static_cast<int32_t>(first)};
        const size_t tokens = g->told.tokens + static_cast<size_t>(r) * sizeof words;
        memcpy(g->pinned + tokens, words, sizeof words);
        d->tokens = reinterpret_cast<const int32_t *>(g->told_at + tokens);
        d->x = (a->on_device ? a->x : reinterpret_cast<const float *>(g->x[r])) + first * h;
        d->y = (a->on_device ? a->y : reinterpret_cast<float *>(g->y[r])) + first * h;
        d->experts = (own_routing ? a->experts : reinterpret_cast<uint16_t *>(g->experts[r])) + first * k;
        d->weights = (own_routing ? a->weights : reinterpret_cast<float *>(g->weights[r])) + first * k;
    }
    memcpy(g->pinned, g->rank, static_cast<size_t>(g->ranks) * sizeof g->rank[0]);
    to_device(c, g->told_at, g->pinned, g->told.bytes);
}

static cot_status explain_failure(cot_cuda_group *g, uint64_t failure)
{
    const int rank = static_cast<int>(failure >> 56 & 0x7f), peer = static_cast<int>(failure >> 48 & 0xff),
              phase = static_cast<int>(failure >> 40 & 0xff);
    return cot_fail(&g->error, COT_TIMED_OUT,
                    "on the device rank %d did not answer rank %d in '%s' (call %llu) within %.1f s", peer,
                    rank, phase < COT_PHASES ? cot_phase_name(static_cast<cot_phase>(phase)) : "?",
                    static_cast<unsigned long long>(failure & 0xffffffffff),
                    static_cast<double>(g->call.fabric.timeout_ns) / 1e9);
}

/* What the launches have left. All ranks say the same, but which of their own tokens it was. A rank that has not come to the last
 * launch's epoch did not run, whatever it says. */
static void judge(calling *c)
{
    cot_cuda_group *const g = c->g;
    cot::fused_state state[COT_MAX_RANKS];
    uint64_t failure = 0;
    if (c->status != COT_OK) return;
    memcpy(&failure, g->left + static_cast<size_t>(g->ranks) * STATE_BYTES, sizeof failure);
    for (int r = 0; r < g->ranks; r++)
        memcpy(&state[r], g->left + static_cast<size_t>(r) * STATE_BYTES, sizeof state[r]);
    if (failure) c->status = explain_failure(g, failure);
    for (int r = 0; r < g->ranks && c->status == COT_OK; r++)
        if (state[r].epoch != g->epoch)
            c->status = cot_fail(&g->error, COT_IO,
                                 "'%s' ran %llu of %llu launches for rank %d, and told of no error",
                                 g->device->name, static_cast<unsigned long long>(state[r].epoch),
                                 static_cast<unsigned long long>(g->epoch), r);
    if (c->status != COT_OK) return;
    for (int r = g->ranks - 1; r >= 0; r--) {
        if (state[r].outcome == static_cast<int32_t>(cot::outcome::empty))
            c->status = cot_moe_fail_empty(&g->error);
        else if (state[r].outcome == static_cast<int32_t>(cot::outcome::unsound) &&
                 state[r].unsound_token != -1)
            c->status = cot_moe_fail_with(r, &g->error); // the lowest such rank
        else if (state[r].outcome == static_cast<int32_t>(cot::outcome::unsound) && c->status == COT_OK)
            c->status = COT_INVALID_ARGUMENT;
    }
}

/* One pass: a launch, or one of each phase. */
static void launch(calling *c)
{
    cot_cuda_group *const g = c->g;
    const cot_cuda_driver *const driver = g->device->driver;
    const int type = g->options.expert.type == COT_BF16 ? 0 : 1;
    const unsigned blocks = static_cast<unsigned>(g->blocks);
    void *parameters[] = {&g->call};
    g->epoch++;
    if (c->status == COT_OK && g->kind == cot_cuda_kind::fused) {
        check(c,
              driver->launch_cooperative(g->device->fused[type], blocks, 1, 1, cot::FUSED_THREADS, 1, 1,
                                         static_cast<unsigned>(g->shared_bytes[0]), nullptr, parameters),
              "launch");
        g->launches++;
    }
    for (int i = 0; i < COT_CUDA_PHASES && c->status == COT_OK && g->kind == cot_cuda_kind::bulk; i++) {
        const bool receive = i == COT_CUDA_RECEIVE; // a warp for each rank
        check(c,
              driver->launch(g->device->bulk[type][i], receive ? static_cast<unsigned>(g->ranks) : blocks, 1,
                             1, receive ? 32 : cot::FUSED_TEAM, 1, 1,
                             static_cast<unsigned>(g->shared_bytes[i]), nullptr, parameters, nullptr),
              "launch");
        g->launches++;
    }
}

static void wait_for_all(calling *c)
{
    if (c->status == COT_OK) check(c, c->g->device->driver->synchronise(), "run");
}

/* Waits for what is launched, and judges it. */
static void end_launches(calling *c)
{
    cot_cuda_group *const g = c->g;
    to_host(c, g->left, g->states, states_bytes(g->ranks));
    wait_for_all(c);
    judge(c);
    g->spoilt = g->spoilt || (c->status != COT_OK && c->status != COT_INVALID_ARGUMENT);
}

static void give_rows(calling *c, int r)
{
    cot_cuda_group *const g = c->g;
    const cot_cuda_arrival *const a = &g->arrived[r];
    const size_t rows = static_cast<size_t>(a->tokens), h = static_cast<size_t>(g->options.expert.hidden),
                 choices = rows * static_cast<size_t>(g->options.top_k);
    if (a->on_device) return;
    to_host(c, a->y, g->y[r], rows * h * sizeof(float));
    if (!a->layer->gate) return;
    to_host(c, a->experts, g->experts[r], choices * sizeof(uint16_t));
    to_host(c, a->weights, g->weights[r], choices * sizeof(float));
}

/* Of rows that are in the device's memory: kernels read and write them where they are. */
static void check_alignment(calling *c, int r)
{
    cot_cuda_group *const g = c->g;
    const cot_cuda_arrival *const a = &g->arrived[r];
    const struct {
        const char *name;
        const void *at;
        size_t bytes;
    } all[] = {{"rows of x", a->x, g->options.expert.hidden % 4 ? sizeof(float) : 16},
               {"rows of y", a->y, sizeof(float)},
               {"experts", a->experts, sizeof(uint16_t)},
               {"weights", a->weights, sizeof(float)}};
    if (!a->on_device || !a->tokens) return;
    for (const auto &one : all)
        if (c->status == COT_OK && reinterpret_cast<uint64_t>(one.at) % one.bytes)
            c->status = cot_fail(&g->error, COT_INVALID_ARGUMENT,
                                 "rank %d's %s are at an address of the device's that %zu does not divide", r,
                                 one.name, one.bytes);
}

void cot_cuda_group_run(cot_cuda_group *g)
{
    calling c = {g, COT_OK};
    const cot_cuda_driver *const driver = g->device->driver;
    const cot_moe_layer *const layer = g->arrived[0].layer;
    const uint64_t counters_at = reinterpret_cast<uint64_t>(g->call.fabric.counters);
    const auto give_all = [&] {
        for (int r = 0; r < g->ranks; r++) give_rows(&c, r);
    };
    int64_t most = 0;
    for (int r = 0; r < g->ranks; r++) most = cot_larger(most, g->arrived[r].tokens);
    g->launches = 0;
    g->passes = cot_larger(cot_divide_up(most, g->call.layout.tokens), 1);
    const cot_cuda_current current(g->device);
    c.status = current.check(&g->error);
    for (int r = 0; r < g->ranks; r++) check_alignment(&c, r);
    if (c.status == COT_OK && g->spoilt) c.status = make_ready(g, &g->error);
    if (c.status == COT_OK) check(&c, driver->fill(counters_at, 0, counters_bytes(g->ranks)), "clear memory");
    take_layer(&c, layer);
    for (int r = 0; r < g->ranks; r++) take_rows(&c, r);
    for (int64_t pass = 0; pass < g->passes && c.status == COT_OK; pass++) {
        const bool last = pass == g->passes - 1;
        point_ranks(&c, pass * g->call.layout.tokens);
        launch(&c);
        if (last) to_host(&c, g->traffic, counters_at, counters_bytes(g->ranks));
        if (last && layer->unsound_pass) give_all(); // no such call is refused
        end_launches(&c);
    }
    if (c.status == COT_OK && !layer->unsound_pass) { // what is refused leaves the caller's as they were
        give_all();
        wait_for_all(&c);
    }
    if (c.status != COT_OK)
        driver->synchronise(); // what is on its way to or from memory that is the caller's again
    g->status = c.status;
}

cot_status cot_cuda_group_replay(cot_cuda_group *g, int count, double *ns, cot_error *error)
{
    calling c = {g, COT_OK};
    const cot_cuda_driver *const driver = g->device->driver;
    void *events[2] = {};
    float ms = 0;
    const cot_cuda_current current(g->device);
    c.status = current.check(&g->error);
    for (void *&event : events)
        if (c.status == COT_OK) check(&c, driver->event_create(&event, 0), "make an event");
    if (c.status == COT_OK) check(&c, driver->event_record(events[0], nullptr), "record an event");
    for (int i = 0; i < count && c.status == COT_OK; i++) launch(&c);
    if (c.status == COT_OK) check(&c, driver->event_record(events[1], nullptr), "record an event");
    end_launches(&c);
    if (c.status == COT_OK) check(&c, driver->event_elapsed(&ms, events[0], events[1]), "tell a time");
    for (void *event : events)
        if (event) driver->event_destroy(event);
    *ns = static_cast<double>(ms) * 1e6;
    if (c.status != COT_OK) cot_fail(error, c.status, "%s", g->error.message);
    return c.status;
}
