/* Weights that stay on the device from call to call. */
#include "cuda/module/group_parts.h"

#include "cuda/module/weights.h"

#include "cuda/c_begin.h"
#include "base/rng.h"
#include "cuda/c_end.h"

#include <stdlib.h>

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

const cot_cuda_kept *cot_cuda_find_kept(const cot_cuda_group *g, const void *host, cot_sym slots, int rank)
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

/* `*at` has room for it. */
static cot_status find_room(cot_cuda_group *g, uint64_t *at, const void *host, cot_sym slots, int rank,
                            size_t bytes, cot_error *error)
{
    const cot_cuda_driver *const driver = g->device->driver;
    const cot_cuda_kept *found = cot_cuda_find_kept(g, host, slots, rank);
    if (!found || found->bytes != bytes) { // or something else is at that address now
        cot_cuda_kept fresh = {host, slots, rank, 0, bytes};
        cot_status status = grow_kept(g, error);
        if (status == COT_OK) status = cot_cuda_check_free(g->device, bytes, "weights of a layer", error);
        if (status == COT_OK)
            status = cot_cuda_take_memory(g->device, &fresh.at, bytes, "weights of a layer", error);
        if (status != COT_OK) return status;
        cot_cuda_kept *const place = place_of(g->kept, g->kept_room, host, slots, rank);
        if (found)
            driver->give_back(place->at);
        else
            g->kept_count++;
        *place = fresh;
        found = place;
    }
    *at = found->at;
    return COT_OK;
}

static cot_status send_weights(const cot_cuda_group *g, uint64_t at, const void *from, size_t bytes,
                               cot_error *error)
{
    const cot_cuda_driver *const driver = g->device->driver;
    return cot_cuda_check(driver, driver->to_device(at, from, bytes), "take weights", error);
}

/* Writes behind `slots` slots of a network, which are at `at`, how the device copies tiles of their two matrices. */
static cot_status send_maps(const cot_cuda_group *g, uint64_t at, const cot::network &n, size_t slots,
                            cot_error *error)
{
    const cot_cuda_driver *const driver = g->device->driver;
    const struct {
        size_t at;
        int32_t k, rows;
    } matrices[2] = {{n.up, n.hidden, cot::up_columns(n)}, {n.down, n.intermediate, n.hidden}};
    cot::tile_map maps[2] = {};
    for (int i = 0; i < 2; i++) {
        const auto &m = matrices[i];
        const uint64_t sizes[3] = {static_cast<uint64_t>(m.k), static_cast<uint64_t>(m.rows), slots},
                       strides[2] = {2 * static_cast<uint64_t>(m.k), n.bytes};
        const uint32_t box[3] = {64, cot::BULK_MAP_COLUMNS, 1}, steps[3] = {1, 1, 1};
        const cot_status status = cot_cuda_check(
            driver,
            driver->map_tiles(&maps[i], COT_CUDA_MAP_BF16, 3, reinterpret_cast<void *>(at + m.at), sizes,
                              strides, box, steps, 0, COT_CUDA_MAP_SWIZZLE_128, COT_CUDA_MAP_FETCH_256, 0),
            "make a map of weights", error);
        if (status != COT_OK) return status;
    }
    return send_weights(g, at + slots * n.bytes, maps, sizeof maps, error);
}

static size_t maps_bytes(const cot_cuda_group *g)
{
    return has_maps(g) ? MAPS_BYTES : 0;
}

/* A layer's slots, side by side on the device wherever they lie on the host. */
static cot_status keep_slots(cot_cuda_group *g, const cot_moe_layer *layer, int rank, const void *local,
                             cot_error *error)
{
    const size_t bytes = g->call.networks[0].bytes, slots = static_cast<size_t>(slots_of(&g->options));
    const uint8_t *const from = static_cast<const uint8_t *>(local);
    uint64_t at;
    cot_status status = find_room(g, &at, nullptr, layer->slots, rank, slots * bytes + maps_bytes(g), error);
    if (status == COT_OK && has_maps(g)) status = send_maps(g, at, g->call.networks[0], slots, error);
    if (status == COT_OK && !layer->place) return send_weights(g, at, from, slots * bytes, error);
    for (size_t s = 0; s < slots && status == COT_OK; s++)
        status =
            send_weights(g, at + s * bytes, cot_moe_slot(layer, from, static_cast<int64_t>(s)), bytes, error);
    return status;
}

/* A slot of a layer that was kept is stored anew. */
static cot_status keep_slot(cot_cuda_group *g, const cot_moe_layer *layer, int64_t slot, int rank,
                            const void *local, cot_error *error)
{
    const size_t bytes = g->call.networks[0].bytes, from = static_cast<size_t>(slot) * bytes;
    const cot_cuda_kept *const found = cot_cuda_find_kept(g, nullptr, layer->slots, rank);
    if (!found || from + bytes > found->bytes - maps_bytes(g))
        return cot_fail(error, COT_INVALID_ARGUMENT, "a slot's layer was not kept");
    return send_weights(g, found->at + from, cot_moe_slot(layer, static_cast<const uint8_t *>(local), slot),
                        bytes, error);
}

cot_status cot_cuda_group_keep(cot_cuda_group *g, const cot_moe_layer *layer, int64_t slot, int rank,
                               const void *local, cot_error *error)
{
    const cot_moe_options *const o = &g->options;
    const size_t experts = static_cast<size_t>(o->experts), h = static_cast<size_t>(o->expert.hidden);
    const cot_cuda_current current(g->device);
    cot_status status = current.check(error);
    if (status == COT_OK && slot != COT_MOE_ALL_SLOTS) return keep_slot(g, layer, slot, rank, local, error);
    if (status == COT_OK) status = keep_slots(g, layer, rank, local, error);
    const auto keep_whole = [&](const void *host, size_t bytes, const cot::network *mapped = nullptr) {
        uint64_t at;
        if (host && status == COT_OK)
            status = find_room(g, &at, host, 0, 0, bytes + (mapped ? maps_bytes(g) : 0), error);
        if (host && status == COT_OK && mapped && has_maps(g)) status = send_maps(g, at, *mapped, 1, error);
        if (host && status == COT_OK) status = send_weights(g, at, host, bytes, error);
    };
    if (rank) return status;
    if (layer->gate) {
        keep_whole(layer->gate->weight, experts * h * sizeof(float));
        keep_whole(layer->gate->bias, experts * sizeof(float));
        keep_whole(layer->gate->correction, experts * sizeof(float));
    }
    const cot::network shared = cot_cuda_network_of(&o->shared);
    if (layer->shared) keep_whole(layer->shared, shared.bytes, &shared);
    keep_whole(layer->shared_gate, h * sizeof(float));
    return status;
}
