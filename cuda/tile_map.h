/* Rows of bf16 in global memory as the device's copies of whole tiles see them, [slots][rows][k]: one copy takes 64 values of k of as many
 * rows as the map was made for, of one slot; what is beyond k, rows or slots is zeros. The driver makes it, and what it holds is the
 * driver's. */
#ifndef COT_CUDA_TILE_MAP_H
#define COT_CUDA_TILE_MAP_H
#include <stdint.h>

namespace cot {

struct alignas(64) tile_map {
    uint64_t words[16];
};

} // namespace cot

#endif
