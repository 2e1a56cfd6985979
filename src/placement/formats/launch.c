/* What an engine has to be started with so that it loads a map, as SGLang 01fec5c2, vLLM 63727bfc, TensorRT-LLM 76a646e9
 * and vllm-ascend's guide of EPLB say (docs/PLACEMENT_FORMATS.md). SGLang splits its ranks of tensor parallelism into those
 * of expert parallelism. Its static dispatch has each rank choose a replica by itself, which holds where a backend sends a
 * token to one rank; without one every rank computes all tokens, all have to choose alike, and newer versions refuse it. */
#include "placement/formats/formats.h"

#include "base/error.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

cot_status cot_expert_map_launch(char **text, const cot_expert_map *map, const char *path, const char *format,
                                 cot_error *error)
{
    const int32_t ranks = map->n_ranks, redundant = ranks * map->slots_per_rank - map->n_experts;
    size_t place;
    int written = 0;
    *text = NULL;
    if (!format) format = cot_expert_map_formats[0].name;
    if (cot_map_find_format(&place, format, error) != COT_OK) return COT_INVALID_ARGUMENT;
    if (ranks < 2 || redundant < 0) return COT_OK;
    if (!strcmp(format, "sglang"))
        written = asprintf(
            text,
            "start SGLang with --tp-size %" PRId32 " --ep-size %" PRId32
            " --ep-num-redundant-experts %" PRId32
            " --init-expert-location %s --moe-a2a-backend deepep --ep-dispatch-algorithm static"
            " (where DeepEP is not installed, --ep-dispatch-algorithm dynamic instead of the last two)",
            ranks, ranks, redundant, path);
    else if (!strcmp(format, "vllm"))
        written = asprintf(text,
                           "start vLLM on %" PRId32
                           " ranks (tensor times data parallel) with --enable-expert-parallel --enable-eplb "
                           "--eplb-config '{\"num_redundant_experts\": %" PRId32
                           ", \"initial_mapping_path\": \"%s\", \"disable_online_rebalancing\": true}'",
                           ranks, redundant, path);
    else if (!strcmp(format, "tensorrt-llm"))
        written = asprintf(text,
                           "start TensorRT-LLM with ep_size %" PRId32
                           " and, in its configuration, moe_config: {backend: WIDEEP, load_balancer: %s}",
                           ranks, path);
    else if (!strcmp(format, "vllm-ascend"))
        written = asprintf(
            text,
            "start vLLM on %" PRId32 " ranks with --enable-expert-parallel --additional-config "
            "'{\"eplb_config\": {\"expert_map_path\": \"%s\", \"num_redundant_experts\": %" PRId32 "}}'",
            ranks, path, redundant);
    if (written >= 0) return COT_OK;
    *text = NULL;
    return cot_map_no_memory(path, error);
}
