#include "cli/run/model_shapes.h"

#include "cli/frame/command.h"

#include "coterie/roof.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* A config.json but for layers, experts, top_k and vocab, whose names differ. */
#define GPT_OSS(hidden, intermediate, heads, kv_heads, head)                                                 \
    "{\"architectures\": [\"GptOssForCausalLM\"], \"model_type\": \"gpt_oss\", \"hidden_act\": \"silu\", "   \
    "\"hidden_size\": " #hidden ", \"intermediate_size\": " #intermediate                                    \
    ", \"num_attention_heads\": " #heads ", \"num_key_value_heads\": " #kv_heads ", \"head_dim\": " #head    \
    ", \"sliding_window\": 128, \"swiglu_limit\": 7.0, "                                                     \
    "\"attention_bias\": true, \"initial_context_length\": 4096, \"max_position_embeddings\": 131072, "      \
    "\"rms_norm_eps\": 1e-05, \"rope_theta\": 150000, \"rope_scaling\": {\"beta_fast\": 32.0, "              \
    "\"beta_slow\": 1.0, \"factor\": 32.0, \"original_max_position_embeddings\": 4096, "                     \
    "\"rope_type\": \"yarn\", \"truncate\": false}, \"tie_word_embeddings\": false}"
static const struct shape {
    const char *name, *config, *experts_name;
    int64_t layers, experts, top_k, vocab, hidden, intermediate;
    bool alternates; // layers of a sliding window and of full attention, in turn
} shapes[] = {
    {"gpt-oss-20b", GPT_OSS(2880, 2880, 64, 8, 64), "num_local_experts", 24, 32, 4, 201088, 2880, 2880, true},
    {"olmoe",
     "{\"architectures\": [\"OlmoeForCausalLM\"], \"model_type\": \"olmoe\", \"hidden_size\": 2048, "
     "\"intermediate_size\": 1024, \"num_attention_heads\": 16, \"num_key_value_heads\": 16, "
     "\"norm_topk_prob\": false, \"hidden_act\": \"silu\", \"max_position_embeddings\": 4096, "
     "\"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0, \"tie_word_embeddings\": false}",
     "num_experts", 16, 64, 8, 50304, 2048, 1024, false},
    // gpt-oss but for its widths: which rows a trace sends where does not depend on them, and is counted soonest where rows are short
    {"narrow", GPT_OSS(64, 64, 8, 8, 16), "num_local_experts", 24, 32, 4, 1024, 64, 64, true},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static int64_t or_own(int64_t wanted, int64_t own)
{
    return wanted ? wanted : own;
}

static json_t *types_of_layers(int64_t layers)
{
    json_t *types = json_array();
    for (int64_t l = 0; l < layers; l++)
        json_array_append_new(types, json_string(l % 2 ? "full_attention" : "sliding_attention"));
    return types;
}

static const struct shape *find(const char *name)
{
    for (size_t i = 0; i < SHAPES; i++)
        if (!strcmp(shapes[i].name, name)) return &shapes[i];
    cli_complain("unknown shape '%s' (" CLI_MODEL_SHAPE_NAMES ")", name);
    return NULL;
}

bool cli_model_shape_exists(const char *name)
{
    return find(name);
}

bool cli_model_shape_make(cli_model_shape *shape, const char *name, const cli_model_shape_wanted *wanted)
{
    *shape = (cli_model_shape){0};
    const struct shape *own = find(name);
    if (!own) return false;
    *shape = (cli_model_shape){.name = own->name,
                               .layers = or_own(wanted->layers, own->layers),
                               .experts = or_own(wanted->experts, own->experts),
                               .top_k = or_own(wanted->top_k, own->top_k),
                               .hidden = own->hidden,
                               .intermediate = own->intermediate};
    json_t *config = json_loads(own->config, 0, NULL);
    bool good =
        config && !json_object_set_new(config, "num_hidden_layers", json_integer(shape->layers)) &&
        !json_object_set_new(config, own->experts_name, json_integer(shape->experts)) &&
        !json_object_set_new(config, "num_experts_per_tok", json_integer(shape->top_k)) &&
        !json_object_set_new(config, "vocab_size", json_integer(or_own(wanted->vocab, own->vocab))) &&
        (!own->alternates || !json_object_set_new(config, "layer_types", types_of_layers(shape->layers))) &&
        (shape->config = json_dumps(config, 0));
    json_decref(config);
    if (!good) cli_complain("out of memory");
    return good;
}

void cli_model_shape_free(cli_model_shape *shape)
{
    free(shape->config);
    *shape = (cli_model_shape){0};
}

int32_t cli_model_shape_expert_layers(const cli_model_shape *shape, int64_t element_bytes)
{
    const int64_t layer_bytes = shape->experts * 3 * shape->hidden * shape->intermediate * element_bytes,
                  least_bytes = 4 * (int64_t)cot_last_level_cache_bytes(),
                  layers = least_bytes / layer_bytes + 1;
    return (int32_t)(layers < shape->layers ? layers : shape->layers);
}
