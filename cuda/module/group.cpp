#include "cuda/module/group_parts.h"

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

cot_status cot_cuda_check_free(const cot_cuda_device *device, size_t bytes, const char *what,
                               cot_error *error)
{
    size_t free_bytes = 0, all_bytes = 0;
    const cot_status status = ask_free(device, &free_bytes, &all_bytes, error);
    if (status != COT_OK || bytes <= free_bytes) return status;
    return fail_memory(device, what, bytes, free_bytes, all_bytes, error);
}

cot_status cot_cuda_take_memory(const cot_cuda_device *device, uint64_t *at, size_t bytes, const char *what,
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
    t->status = cot_cuda_take_memory(g->device, &at, bytes, "rows in hand", t->error);
    if (t->status == COT_OK) g->taken[g->taken_count++] = at;
    return at;
}

template <typename T> static T *take(taking *t, int64_t count)
{
    return reinterpret_cast<T *>(take_bytes(t, static_cast<size_t>(count) * sizeof(T)));
}

/* What cot_cuda_make_ready clears. */
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

static int64_t parts(int64_t columns)
{
    const int64_t tile_columns = 64;
    return cot_divide_up(columns, tile_columns);
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

static void lay_out_rank(cot_cuda_group *g, taking *t, int r)
{
    const cot_moe_options *const o = &g->options;
    const int64_t s = g->call.layout.tokens, h = o->expert.hidden, k = o->top_k, slots = slots_of(o),
                  entries = s * g->ranks * cot_smaller(k, slots),
                  tiles = entries / cot::FUSED_TILE_ROWS + slots,
                  widest = cot_larger(o->expert.intermediate, o->shared.intermediate),
                  tasks = cot::fused_tasks_most(g->call.layout, static_cast<int32_t>(h),
                                                static_cast<int32_t>(o->experts), tiles,
                                                parts(2 * widest) + parts(h), g->call.reduced, g->blocks);
    /* Rows of all tiles of experts that there may be, full or not, and of `also` rows' in a row, in the form that has more. */
    const auto rows_of = [&](int64_t also) {
        const auto in_tiles_of = [&](int64_t most) {
            return (entries / most + slots + cot_divide_up(also, most)) * most;
        };
        return cot_larger(in_tiles_of(cot::FUSED_TILE_ROWS),
                          g->many_blocks ? in_tiles_of(1 << cot::BULK_MANY_SHIFT) : 0);
    };
    const int64_t rows = rows_of(0);
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
    d->slot_count = take<uint32_t>(t, slots);
    d->slot_row = take<int32_t>(t, 2 * slots);
    d->entry_number = take<int32_t>(t, g->ranks * s * k);
    d->entered = take<uint32_t>(t, g->ranks);
    const bool bulk = g->kind == cot_cuda_kind::bulk;
    if (!bulk && g->many_blocks) {
        d->ordered = take<int32_t>(t, tiles);
        d->ordered_counts = take<uint32_t>(t, slots);
    }
    const int64_t lanes = bulk ? tiles + cot_divide_up(s, cot::FUSED_TILE_ROWS)
                               : static_cast<int64_t>(cot::FUSED_LANES),
                  lane_rows = bulk ? rows_of(s)
                                   : lanes << (g->many_blocks ? cot::BULK_MANY_SHIFT : cot::FUSED_TILE_SHIFT);
    d->lane_tile = take<int32_t>(t, lanes);
    d->activations =
        take<unsigned char>(t, lane_rows * widest * static_cast<int64_t>(cot_dtype_bytes(o->expert.type)));
    d->shared_rows = take<float>(t, s * h);
    if (g->ranks == 1 && !g->call.reduced)
        d->columns_done = take_zeros<uint32_t>(t, cot::fused_done_words(s, static_cast<int32_t>(h)));
    if (g->call.reduced) {
        d->partial = take<float>(t, entries * h);
        d->row_left = take<int32_t>(t, s * g->ranks);
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
    if (g->many_blocks) {
        for (int r = 0; r <= g->ranks; r++)
            first[r] = static_cast<int32_t>(cot_share_begin(g->many_blocks, r, g->ranks));
        int32_t *const many = take<int32_t>(t, g->ranks + 1);
        upload<int32_t>(t, many, first, g->ranks + 1);
        g->many_first_block = many;
    }
    g->told = told_of(o, g->ranks);
    g->told_at = take_bytes(t, g->told.bytes);
    c->fabric.regions = table;
    c->fabric.counters = take<cot::traffic>(t, COT_PHASES * g->ranks * g->ranks);
    c->fabric.failure = reinterpret_cast<uint64_t *>(g->states + static_cast<size_t>(g->ranks) * STATE_BYTES);
    c->fabric.ranks = g->ranks;
    c->networks[0] = cot_cuda_network_of(&o->expert);
    c->slots = static_cast<int32_t>(slots_of(o));
    c->tile_shift = cot::FUSED_TILE_SHIFT;
    c->reply_bf16 = o->combine_type == COT_BF16;
    c->replica_rank = reinterpret_cast<const int32_t *>(g->told_at + g->told.placement[0]);
    c->replica_slot = reinterpret_cast<const int32_t *>(g->told_at + g->told.placement[1]);
    c->replica_begin = reinterpret_cast<const int32_t *>(g->told_at + g->told.placement[2]);
    c->ranks = reinterpret_cast<const cot::fused_rank *>(g->told_at);
    c->first_block = first_block;
}

static void size_up(cot_cuda_group *g, cot_cuda_kind kind, const cot_moe_options *options, int ranks,
                    int blocks, int many_blocks)
{
    g->kind = kind;
    g->options = *options;
    g->ranks = ranks;
    g->blocks = blocks;
    g->many_blocks = many_blocks;
    g->home_tokens = options->home_tokens ? options->home_tokens : options->tokens;
}

size_t cot_cuda_group_bytes(cot_cuda_kind kind, const cot_moe_options *options, int ranks, int blocks,
                            int many_blocks)
{
    cot_cuda_group *const g = static_cast<cot_cuda_group *>(calloc(1, sizeof *g));
    if (!g) return SIZE_MAX;
    taking t = {g, true, 0, COT_OK, nullptr};
    size_up(g, kind, options, ranks, blocks, many_blocks);
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
    bytes[COT_CUDA_GATE] = cot::BULK_GATE_BYTES;
    bytes[COT_CUDA_COUNT] = bytes[COT_CUDA_ENTER] = bytes[COT_CUDA_COMBINE] = sizeof(float);
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

/* Tiles of 128 rows are those of bf16, of the fused operator where they are multiplied by wgmma, where there is a block of them for each rank. */
static cot_status find_many_blocks(cot_cuda_group *g, cot_error *error)
{
    const cot_cuda_device *const d = g->device;
    int resident = 0;
    const bool bulk = g->kind == cot_cuda_kind::bulk;
    if (g->options.expert.type != COT_BF16 || (!bulk && d->no_wgmma)) return COT_OK;
    const cot_status status = cot_cuda_check(
        d->driver,
        bulk ? d->driver->occupancy(&resident, d->many[0], static_cast<int>(d->many_threads), d->many_bytes)
             : d->driver->occupancy(&resident, d->fused_many, cot::BULK_WGMMA_THREADS, cot::FUSED_MANY_BYTES),
        "say how many blocks fit", error);
    const int blocks = resident * (d->multiprocessors - g->options.sms_reserve);
    if (g->ranks <= blocks) g->many_blocks = blocks;
    return status;
}

cot_status cot_cuda_make_ready(cot_cuda_group *g, cot_error *error)
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
    size_up(g, kind, options, ranks, 0, 0);
    const cot_cuda_current current(device);
    cot_status status = current.check(error);
    if (status == COT_OK) status = find_blocks(g, error);
    if (status == COT_OK) status = find_many_blocks(g, error);
    if (status == COT_OK)
        status =
            cot_cuda_check_free(device, cot_cuda_group_bytes(kind, options, ranks, g->blocks, g->many_blocks),
                                "what ranks exchange and rows in hand", error);
    if (status == COT_OK) {
        taking t = {g, false, 0, COT_OK, error};
        lay_out(g, &t);
        status = t.status;
    }
    if (status == COT_OK) status = take_pinned(g, error);
    if (status == COT_OK) status = cot_cuda_make_ready(g, error);
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
