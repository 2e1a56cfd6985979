/* How up and down of the baseline (bulk.h) have tiles of 128 rows and 256 columns computed by what compute capability 9.0 alone has (many.h), in bf16. */
#ifndef COT_CUDA_BULK_MANY_H
#define COT_CUDA_BULK_MANY_H
#include "cuda/bulk.h"
#include "cuda/many.h"

namespace cot {

struct bulk_by_wgmma {
    using engine = many_engine<256>;
    static constexpr bool BY_TILES = true;
    static_assert(engine::ROWS == 1 << BULK_MANY_SHIFT && engine::N == BULK_MAP_COLUMNS &&
                      engine::THREADS == BULK_WGMMA_THREADS && engine::SHARED_BYTES == BULK_WGMMA_BYTES,
                  "what the host asks for");

    /* A tile as tile.h has it, whose columns are rows of a slot's or the shared expert's matrix. */
    static __device__ __forceinline__ many_job job_of(const bulk_warp &w, int lane, int product,
                                                      const tile_job<uint16_t> &rows)
    {
        const int tile = w.rank.lane_tile[lane];
        const bool shared = tile < 0;
        return {rows.a, rows.pick, (shared ? w.call.shared_maps : w.rank.maps) + product,
                shared ? 0 : w.rank.tile_slot[tile], rows.n};
    }

    template <typename Next, typename Job, typename Put>
    static __device__ __forceinline__ void compute(const bulk_warp &w, int product, int first, Next next,
                                                   Job job, Put put)
    {
        engine::know(w.rank.maps + product);
        if (w.call.networks[1].intermediate) engine::know(w.call.shared_maps + product);
        engine::compute_all(w.stages, first, next, job, put);
    }
};

} // namespace cot

#endif
