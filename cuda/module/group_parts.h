/* What the files of a group share among themselves: its memory (group.cpp), its weights (kept.cpp), a call (call.cpp). */
#ifndef COT_CUDA_MODULE_GROUP_PARTS_H
#define COT_CUDA_MODULE_GROUP_PARTS_H
#include "cuda/module/group.h"

inline int64_t slots_of(const cot_moe_options *o)
{
    return o->slots ? o->slots : o->experts;
}

/* A rank's words, which its blocks poll, share no line with another's. */
constexpr size_t STATE_BYTES = 256;
static_assert(sizeof(cot::fused_state) <= STATE_BYTES, "one state");

inline size_t states_bytes(int ranks)
{
    return static_cast<size_t>(ranks) * STATE_BYTES + sizeof(uint64_t); // and the failure
}

inline size_t counters_bytes(int ranks)
{
    return static_cast<size_t>(COT_PHASES * ranks * ranks) * sizeof(cot::traffic);
}

/* A slot's two maps of tiles, as a rank has them, lie behind the weights where the group has tiles of 128 rows by wgmma. */
constexpr size_t MAPS_BYTES = 2 * sizeof(cot::tile_map);
inline bool has_maps(const cot_cuda_group *group)
{
    return group->many_blocks && !group->device->no_wgmma;
}

/* Whether so much is free, and memory for what was weighed before, which may be gone by now, or in pieces; `what` needs it. Errors:
 * OUT_OF_MEMORY (with both sizes), IO. */
cot_status cot_cuda_check_free(const cot_cuda_device *device, size_t bytes, const char *what,
                               cot_error *error);
cot_status cot_cuda_take_memory(const cot_cuda_device *device, uint64_t *at, size_t bytes, const char *what,
                                cot_error *error);

/* Signals, tasks and what ranks know of themselves, as before the first launch; nothing runs. Errors: IO. */
cot_status cot_cuda_make_ready(cot_cuda_group *group, cot_error *error);

/* The copy of what `host` names, or of a rank's `slots`; NULL: none was given. */
const cot_cuda_kept *cot_cuda_find_kept(const cot_cuda_group *group, const void *host, cot_sym slots,
                                        int rank);

#endif
