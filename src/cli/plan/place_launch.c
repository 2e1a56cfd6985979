/* What an engine has to be started with so that it loads a map, as SGLang 01fec5c2, vLLM 63727bfc, TensorRT-LLM 76a646e9
 * and vllm-ascend's guide of EPLB say (docs/PLACEMENT_FORMATS.md). SGLang splits its ranks of tensor parallelism into those
 * of expert parallelism. Its static dispatch has each rank choose a replica by itself, which holds where a backend sends a
 * token to one rank; without one every rank computes all tokens, all have to choose alike, and newer versions refuse it. */
#include "cli/plan/cmd_place.h"

#include <inttypes.h>
#include <string.h>

void cli_place_say_launch(const char *format, const char *path, const cot_expert_map *map)
{
    const int32_t ranks = map->n_ranks, slots = ranks * map->slots_per_rank;
    const int32_t redundant = slots - map->n_experts;
    if (ranks < 2 || redundant < 0) return; // whose number of ranks nobody said
    if (!strcmp(format, "sglang"))
        cli_complain(
            "note: start SGLang with --tp-size %" PRId32 " --ep-size %" PRId32
            " --ep-num-redundant-experts %" PRId32
            " --init-expert-location %s --moe-a2a-backend deepep --ep-dispatch-algorithm static"
            " (where DeepEP is not installed, --ep-dispatch-algorithm dynamic instead of the last two)",
            ranks, ranks, redundant, path);
    else if (!strcmp(format, "vllm"))
        cli_complain("note: start vLLM on %" PRId32
                     " ranks (tensor times data parallel) with --enable-expert-parallel --enable-eplb "
                     "--eplb-config '{\"num_redundant_experts\": %" PRId32
                     ", \"initial_mapping_path\": \"%s\", \"disable_online_rebalancing\": true}'",
                     ranks, redundant, path);
    else if (!strcmp(format, "tensorrt-llm"))
        cli_complain("note: start TensorRT-LLM with ep_size %" PRId32
                     " and, in its configuration, moe_config: {backend: WIDEEP, load_balancer: %s}",
                     ranks, path);
    else if (!strcmp(format, "vllm-ascend"))
        cli_complain(
            "note: start vLLM on %" PRId32 " ranks with --enable-expert-parallel --additional-config "
            "'{\"eplb_config\": {\"expert_map_path\": \"%s\", \"num_redundant_experts\": %" PRId32 "}}'",
            ranks, path, redundant);
}
