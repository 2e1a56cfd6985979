/* Up and down of the baseline (bulk.h) by tiles of 128 rows and 256 columns, for compute capability 9.0 alone (many.h), in bf16. */
#ifndef COT_CUDA_BULK_MANY_H
#define COT_CUDA_BULK_MANY_H
#include "cuda/bulk.h"
#include "cuda/many.h"

namespace cot {

using bulk_many_engine = many_engine<256>;
static_assert(bulk_many_engine::ROWS == 1 << BULK_MANY_SHIFT && bulk_many_engine::N == BULK_MANY_COLUMNS &&
                  bulk_many_engine::THREADS == BULK_MANY_THREADS &&
                  bulk_many_engine::SHARED_BYTES == BULK_MANY_BYTES,
              "what the host asks for");

enum { BULK_MAP_UP, BULK_MAP_DOWN }; // which of a slot's two maps

/* A tile as tile.h has it, whose columns are rows of a slot's or the shared expert's matrix. */
COT_DEVICE many_job bulk_many_job(const bulk_warp &w, int lane, int map, const tile_job<uint16_t> &rows)
{
    const int tile = w.rank.lane_tile[lane];
    const bool shared = tile < 0;
    return {rows.a, rows.pick, (shared ? w.call.shared_maps : w.rank.maps) + map,
            shared ? 0 : w.rank.tile_slot[tile], rows.n};
}

/* Multiplies all columns of a few slots' tiles at once, so that the second cache holds their weights. */
template <int MAP> struct bulk_many {
    static constexpr bool BY_TILES = true;

    template <typename Next, typename Job, typename Put>
    __device__ __forceinline__ void operator()(const bulk_warp &w, int first, Next next, Job job,
                                               Put put) const
    {
        bulk_many_engine::know(w.rank.maps + MAP);
        if (w.call.networks[1].intermediate) bulk_many_engine::know(w.call.shared_maps + MAP);
        bulk_many_engine::compute_all(w.stages, first, next, job, put);
    }
};

COT_DEVICE void bulk_up_many(const cot_cuda_fused &c)
{
    bulk_tiles<bulk_many_engine>(
        c, parts_of_tiles<bulk_many_engine>(c).up, up_columns,
        [](const bulk_warp &w, int tile, int part) {
            return bulk_many_job(w, tile, BULK_MAP_UP, job_of_up<bulk_many_engine>(w, tile, part));
        },
        [](const bulk_warp &w, int tile, int first) { return end_up<uint16_t>(w, tile, first); },
        bulk_many<BULK_MAP_UP>());
}

COT_DEVICE void bulk_down_many(const cot_cuda_fused &c)
{
    bulk_tiles<bulk_many_engine>(
        c, parts_of_tiles<bulk_many_engine>(c).down, columns_of_down,
        [](const bulk_warp &w, int tile, int part) {
            return bulk_many_job(w, tile, BULK_MAP_DOWN, job_of_down<bulk_many_engine>(w, tile, part));
        },
        [](const bulk_warp &w, int tile, int first) { return end_down<uint16_t>(w, tile, first); },
        bulk_many<BULK_MAP_DOWN>());
}

} // namespace cot

#endif
