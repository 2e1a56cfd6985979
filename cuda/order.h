/* Tiles in the order of their slots. */
#ifndef COT_CUDA_ORDER_H
#define COT_CUDA_ORDER_H
#include "cuda/fused.h"

namespace cot {

/* Writes the numbers of `count` released tiles in the order of their slots, so that those of one slot are multiplied beside each other and its
 * weights come from memory once. `counts` is room for [slots], whatever it holds. By all lanes; each knows what it wrote itself. */
template <scope S>
COT_DEVICE void order_by_slots(const fused_warp<S> &w, const int32_t *released, int count, int32_t *ordered,
                               uint32_t *counts)
{
    const int lane = lane_of_warp(), slots = w.call.slots;
    for (int slot = lane; slot < slots; slot += 32) store_relaxed<scope::cta>(counts + slot, 0u);
    COT_UNLESS(order_zeros_before_tiles) __syncwarp();
    for (int i = lane; i < count; i += 32)
        add_relaxed<scope::cta>(counts + w.rank.tile_slot[released[i] >> 8], 1u);
    COT_UNLESS(order_tiles_before_sums) __syncwarp();
    uint32_t before = 0; // tiles of the slots below
    for (int first = 0; first < slots; first += 32) {
        const int slot = first + lane;
        const uint32_t tiles = slot < slots ? load_relaxed<scope::cta>(counts + slot) : 0;
        uint32_t sum = tiles;
        for (int by = 1; by < 32; by *= 2) {
            const uint32_t other = __shfl_up_sync(ALL_LANES, sum, static_cast<unsigned>(by));
            if (lane >= by) sum += other;
        }
        if (slot < slots) store_relaxed<scope::cta>(counts + slot, before + sum - tiles);
        before += __shfl_sync(ALL_LANES, sum, 31);
    }
    COT_UNLESS(order_sums_before_tiles) __syncwarp();
    for (int i = lane; i < count; i += 32) {
        const int tile = released[i] >> 8;
        ordered[add_relaxed<scope::cta>(counts + w.rank.tile_slot[tile], 1u)] = tile;
    }
}

} // namespace cot

#endif
