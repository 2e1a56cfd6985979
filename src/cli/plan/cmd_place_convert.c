/* `coterie place convert`. */
#include "cli/commands.h"

#include "cli/frame/paths.h"
#include "cli/plan/cmd_place.h"
#include "coterie/placement.h"

#include <stddef.h>

struct settings {
    const char *input, *output, *from, *to;
    int64_t ranks, first_layer, layers;
    cli_list given;
};

static void say(void *context, const char *line)
{
    (void)context;
    cli_complain("note: %s", line);
}

static int convert(const void *context)
{
    const struct settings *s = context;
    cot_expert_map_options options = {.size = sizeof options,
                                      .format = s->from,
                                      .ranks = (int32_t)s->ranks,
                                      .first_layer = (int32_t)s->first_layer,
                                      .n_layers = (int32_t)s->layers,
                                      .say = say};
    cot_expert_map map;
    cot_error error = {0};
    if (!s->output) {
        cli_complain("no output given: -o OUT");
        return CLI_EXIT_USAGE;
    }
    if (!cli_check_output(s->output, NULL)) return CLI_EXIT_FAILURE;
    if (cli_options_has(&s->given, "first-layer"))
        options.n_layers = 0; // it is known which layers the rows are
    cot_status status = cot_expert_map_read(&map, s->input, &options, &error);
    options.format = s->to;
    options.n_layers = (int32_t)s->layers;
    if (status == COT_OK) status = cot_expert_map_write(&map, cli_output_path(s->output), &options, &error);
    if (status == COT_OK) status = cli_place_say_launch(s->to, s->output, &map, &error);
    cot_expert_map_free(&map);
    return status == COT_OK ? CLI_EXIT_OK : cli_complain_of(&error);
}

static const cli_option rows[] = {
    {"output", 'o', CLI_OPTION_TEXT, "OUT", NULL, "the map to write; - is standard output",
     offsetof(struct settings, output)},
    {"to", 0, CLI_OPTION_TEXT, "FORMAT", "coterie",
     "coterie, sglang, vllm, tensorrt-llm, vllm-ascend or omni-infer", offsetof(struct settings, to)},
    {"from", 0, CLI_OPTION_TEXT, "FORMAT", NULL, "format of IN, as --to; recognised by content unless given",
     offsetof(struct settings, from)},
    {"ranks", 0, CLI_OPTION_INTEGER, "S", NULL,
     "ranks the slots of IN are split over, where IN does not say it", offsetof(struct settings, ranks),
     .least = 1, .most = COT_MAP_MAX_RANKS},
    {"first-layer", 0, CLI_OPTION_INTEGER, "N", NULL,
     "the model's first MoE layer (3 for DeepSeek-R1), for formats that count MoE layers from 0",
     offsetof(struct settings, first_layer), .least = 0, .most = INT32_MAX},
    {"layers", 0, CLI_OPTION_INTEGER, "N", NULL,
     "layers of the model, for --to sglang, which has a row for each", offsetof(struct settings, layers),
     .least = 1, .most = COT_TRACE_MAX_LAYERS},
    {0}};

const cli_command cli_cmd_place_convert = {
    .name = "place convert",
    .summary = "convert a map of experts between Coterie and inference engines",
    .details =
        "IN is Coterie's own placement, SGLang's physical_to_logical_map (JSON, or a recording of single "
        "tokens), vLLM's eplb_initial_mapping, TensorRT-LLM's load balancer YAML, vllm-ascend's JSON or "
        "omni-infer's npy. What had to be assumed is said on standard error.",
    .examples =
        (const char *const[]){
            "coterie place convert placement.json --to sglang --layers 61 -o map.json",
            "coterie place convert mapping.jsonl --first-layer 3 --ranks 32 -o placement.json", NULL},
    .options = {.groups = (const cli_option_group[]){{"Options", rows, 0}, {0}},
                .positionals =
                    (const cli_positional[]){
                        {"IN", 1, 1, "the map to read", offsetof(struct settings, input)}, {0}},
                .given = offsetof(struct settings, given)},
    .settings_bytes = sizeof(struct settings),
    .run = convert};
