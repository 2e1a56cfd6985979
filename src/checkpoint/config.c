#include "checkpoint/config.h"

#include "base/error.h"
#include "base/json_load.h"
#include "checkpoint/resolve.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What a number may be. The upper ends are far beyond any model, and keep every product of three within 63
 * bits. */
static const struct {
    int64_t least, most;
} ranges[COT_SIZES] = {
    [COT_SIZE_VOCAB] = {1, INT32_MAX},
    [COT_SIZE_HIDDEN] = {1, 1 << 24},
    [COT_SIZE_LAYERS] = {1, 1 << 16},
    [COT_SIZE_HEADS] = {1, 1 << 16},
    [COT_SIZE_KV_HEADS] = {1, 1 << 16},
    [COT_SIZE_HEAD_DIM] = {2, 1 << 16},
    [COT_SIZE_CONTEXT] = {1, INT32_MAX},
    [COT_SIZE_EXPERTS] = {1, UINT16_MAX}, // expert ids are 16 bits wide, one of them means none
    [COT_SIZE_TOP_K] = {1, 1 << 16},
    [COT_SIZE_MOE_INTERMEDIATE] = {1, 1 << 24},
    [COT_SIZE_DENSE_INTERMEDIATE] = {1, 1 << 24},
    [COT_SIZE_SHARED_INTERMEDIATE] = {0, 1 << 24},
    [COT_SIZE_SHARED_EXPERTS] = {0, 1 << 10},
    [COT_SIZE_FIRST_MOE_LAYER] = {0, INT32_MAX},
    [COT_SIZE_LAST_MOE_LAYER] = {-1, INT32_MAX},
    [COT_SIZE_SPARSE_STEP] = {1, INT32_MAX},
    [COT_SIZE_WINDOW] = {0, INT32_MAX},
    [COT_SIZE_WINDOW_LAYERS] = {0, INT32_MAX},
    [COT_SIZE_Q_LORA] = {1, 1 << 24},
    [COT_SIZE_KV_LORA] = {1, 1 << 24},
    [COT_SIZE_NOPE_DIM] = {1, 1 << 16},
    [COT_SIZE_ROPE_DIM] = {2, 1 << 16},
    [COT_SIZE_V_DIM] = {1, 1 << 16},
    [COT_SIZE_GROUPS] = {1, 1 << 16},
    [COT_SIZE_GROUP_LIMIT] = {1, 1 << 16},
    [COT_SIZE_DENSE_CONTEXT] = {1, INT32_MAX},
    [COT_SIZE_FULL_INTERVAL] = {1, INT32_MAX},
    [COT_SIZE_DELTA_KEYS] = {1, 1 << 16},
    [COT_SIZE_DELTA_VALUES] = {1, 1 << 16},
    [COT_SIZE_DELTA_KEY_DIM] = {1, 1 << 12},
    [COT_SIZE_DELTA_VALUE_DIM] = {1, 1 << 12},
    [COT_SIZE_DELTA_TAPS] = {1, 64},
};

/* Refuses a list that is not of so many entries as there are layers. */
static void expect_each_layer(cot_fields *fields, const char *key, const json_t *list)
{
    const int64_t layers = json_integer_value(cot_fields_get(fields, "num_hidden_layers"));
    if ((int64_t)json_array_size(list) != layers)
        cot_fields_refuse(fields, COT_MALFORMED,
                          "'%s' has %zu entries, expected one for each of %" PRId64 " layers", key,
                          json_array_size(list), layers);
}

/* A number that is told for each layer, and the same for all. */
static int64_t read_listed(cot_fields *fields, const char *key, const json_t *list, int64_t least,
                           int64_t most)
{
    expect_each_layer(fields, key, list);
    const json_t *first = json_array_get(list, 0);
    const int64_t value = json_integer_value(first);
    for (size_t i = 1; i < json_array_size(list); i++)
        if (!json_equal((json_t *)(uintptr_t)first, json_array_get(list, i)))
            cot_fields_refuse(fields, COT_UNSUPPORTED,
                              "'%s' is not the same in all layers, which is not supported", key);
    if (!json_is_integer(first) || value < least || value > most)
        cot_fields_refuse(fields, COT_MALFORMED,
                          "'%s' is a list of no whole numbers from %" PRId64 " to %" PRId64, key, least,
                          most);
    return value;
}

static int64_t read_size(cot_fields *fields, const cot_size_rule *rule, int64_t least, int64_t most)
{
    if (!rule->name) return rule->absent;
    const json_t *value = cot_fields_get(fields, rule->name), *other = NULL;
    if (rule->alias) other = cot_fields_get(fields, rule->alias);
    if (!value && rule->fallback) other = cot_fields_get(fields, rule->fallback);
    if (value && other && !json_equal((json_t *)(uintptr_t)value, (json_t *)(uintptr_t)other))
        cot_fields_refuse(fields, COT_MALFORMED, "'%s' and '%s' mean the same and differ", rule->name,
                          rule->alias);
    if (!value && !other) {
        if (rule->absent == COT_REQUIRED)
            cot_fields_refuse(fields, COT_MALFORMED, "'%s' is missing", rule->name);
        return rule->absent;
    }
    const char *key = value ? rule->name : rule->fallback ? rule->fallback : rule->alias;
    if (rule->nullable && !cot_fields_has(fields, key)) return 0;
    const json_t *told = cot_fields_get(fields, key);
    if (rule->listed && json_is_array(told)) return read_listed(fields, key, told, least, most);
    return cot_fields_integer(fields, key, rule->absent, least, most);
}

static bool read_switch(cot_fields *fields, const cot_switch_rule *rule)
{
    return rule->name ? cot_fields_switch(fields, rule->name, rule->absent) : rule->absent;
}

static void expect_even(cot_fields *fields, const char *key, int64_t value)
{
    if (value % 2)
        cot_fields_refuse(fields, COT_MALFORMED, "'%s' is %" PRId64 ", expected an even number", key, value);
}

static void resolve_gqa(cot_config *config, cot_fields *fields, const int64_t *sizes)
{
    config->kv_heads = sizes[COT_SIZE_KV_HEADS] ? sizes[COT_SIZE_KV_HEADS] : config->heads;
    config->head_dim = sizes[COT_SIZE_HEAD_DIM] ? sizes[COT_SIZE_HEAD_DIM] : config->hidden / config->heads;
    config->rope_width = config->head_dim;
    config->softmax_scale = (float)pow((double)config->head_dim, -0.5);
    if (config->heads % config->kv_heads)
        cot_fields_refuse(fields, COT_MALFORMED,
                          "'num_key_value_heads' is %" PRId64
                          ", expected a divisor of num_attention_heads, %" PRId64,
                          config->kv_heads, config->heads);
    if (config->head_dim < 2)
        cot_fields_refuse(fields, COT_MALFORMED,
                          "'hidden_size' is %" PRId64 ", expected 2 or more for each of %" PRId64 " heads",
                          config->hidden, config->heads);
    expect_even(fields, "head_dim", config->head_dim);
    if (config->family->width_is_hidden && config->heads * config->head_dim != config->hidden)
        cot_fields_refuse(fields, COT_MALFORMED,
                          "'hidden_size' is %" PRId64 ", expected num_attention_heads x head_dim, %" PRId64,
                          config->hidden, config->heads * config->head_dim);
}

static void resolve_mla(cot_config *config, cot_fields *fields, const int64_t *sizes)
{
    config->q_lora_rank = sizes[COT_SIZE_Q_LORA];
    config->kv_lora_rank = sizes[COT_SIZE_KV_LORA];
    config->nope_dim = sizes[COT_SIZE_NOPE_DIM];
    config->rope_dim = config->rope_width = sizes[COT_SIZE_ROPE_DIM];
    config->v_dim = sizes[COT_SIZE_V_DIM];
    config->kv_heads = 1;
    config->head_dim = config->kv_lora_rank + config->rope_dim;
    config->softmax_scale = (float)pow((double)(config->nope_dim + config->rope_dim), -0.5);
    config->mla_norm_eps = 1e-6f; // whatever rms_norm_eps says
    expect_even(fields, "qk_rope_head_dim", config->rope_dim);
}

/* The state of layers that have no keys. */
static void resolve_delta(cot_config *config, cot_fields *fields, const int64_t *sizes)
{
    config->delta.keys = sizes[COT_SIZE_DELTA_KEYS];
    config->delta.values = sizes[COT_SIZE_DELTA_VALUES];
    config->delta.key_dim = sizes[COT_SIZE_DELTA_KEY_DIM];
    config->delta.value_dim = sizes[COT_SIZE_DELTA_VALUE_DIM];
    config->delta.taps = sizes[COT_SIZE_DELTA_TAPS];
    config->delta.by_head = config->family->delta_by_head;
    if (config->delta.keys && config->delta.values % config->delta.keys)
        cot_fields_refuse(fields, COT_MALFORMED, "'%s' is %" PRId64 ", expected a multiple of %s, %" PRId64,
                          config->family->sizes[COT_SIZE_DELTA_VALUES].name, config->delta.values,
                          config->family->sizes[COT_SIZE_DELTA_KEYS].name, config->delta.keys);
}

void cot_resolve_attention(cot_config *config, cot_fields *fields, const int64_t *sizes)
{
    const cot_family *family = config->family;
    config->attention = family->attention;
    if (!family->qk_normed.name || read_switch(fields, &family->qk_normed)) config->qk_norm = family->qk_norm;
    config->sinks = family->sinks;
    config->qk_norm_late = family->qk_norm_late;
    config->attention_gated = family->attention_gated;
    config->gates_in_queries = family->gates_in_queries;
    resolve_delta(config, fields, sizes);
    config->heads = sizes[COT_SIZE_HEADS];
    config->qkv_bias = read_switch(fields, &family->qkv_bias);
    config->output_bias = read_switch(fields, &family->output_bias);
    config->rope_interleaved = read_switch(fields, &family->rope_interleaved);
    if (fields->status != COT_OK) return;
    if (config->attention == COT_ATTENTION_MLA)
        resolve_mla(config, fields, sizes);
    else
        resolve_gqa(config, fields, sizes);
    if (family->clips && cot_fields_has(fields, "clip_qkv")) {
        config->clip_qkv = (float)cot_fields_number(fields, "clip_qkv", 0);
        if (!(config->clip_qkv > 0) || !isfinite(config->clip_qkv))
            cot_fields_refuse(fields, COT_MALFORMED, "'clip_qkv' is %g, expected a number above 0 or null",
                              (double)config->clip_qkv);
    }
}

/* A multiplier that may be left out, which means 1. */
static float multiplier(cot_fields *fields, const char *key)
{
    const float value = (float)cot_fields_number(fields, key, 1);
    if (fields->status == COT_OK && !(isfinite(value) && value != 0))
        cot_fields_refuse(fields, COT_MALFORMED, "'%s' is %g, expected a number that is not 0", key,
                          (double)value);
    return value;
}

/* What is multiplied on the way, and how branches are normed. */
static void resolve_stream(cot_config *config, cot_fields *fields)
{
    const cot_family *family = config->family;
    config->norms = family->norms;
    config->layer_norm = family->layer_norm;
    config->zero_centred = family->zero_centred;
    config->head_bias = read_switch(fields, &family->head_bias);
    config->embedding_scale = config->branch_scale = config->logits_scale = 1;
    if (read_switch(fields, &family->embedding_rooted))
        config->embedding_scale = (float)sqrt((double)config->hidden);
    if (!family->multiplied) return;
    config->embedding_scale = multiplier(fields, "embedding_multiplier");
    config->branch_scale = multiplier(fields, "residual_multiplier");
    config->logits_scale = 1 / multiplier(fields, "logits_scaling");
    config->softmax_scale = multiplier(fields, "attention_multiplier");
}

/* Whether routing is limited to groups of experts: topk_method says so. */
static bool grouped(const cot_family *family, cot_fields *fields)
{
    if (!family->scoring_func) return false;
    const char *score = cot_fields_text(fields, "scoring_func", family->scoring_func);
    const char *absent = family->group_by_default ? family->group_method : family->plain_method;
    const char *method = cot_fields_text(fields, "topk_method", absent);
    bool plain = family->plain_method && !strcmp(method, family->plain_method);
    if (strcmp(score, family->scoring_func) != 0 &&
        !(family->scoring_alias && !strcmp(score, family->scoring_alias)))
        cot_fields_refuse(fields, COT_UNSUPPORTED, "scoring_func '%.40s' is not supported in %s (%s is)",
                          score, family->model_type, family->scoring_func);
    if (!plain && strcmp(method, family->group_method) != 0)
        cot_fields_refuse(fields, COT_UNSUPPORTED, "topk_method '%.40s' is not supported in %s (%s%s%s is)",
                          method, family->model_type, family->group_method,
                          family->plain_method ? " or " : "",
                          family->plain_method ? family->plain_method : "");
    return !plain;
}

static void resolve_groups(cot_gate *gate, const cot_family *family, cot_fields *fields, const int64_t *sizes)
{
    gate->groups = gate->group_limit = 1;
    gate->group_score = family->group_score;
    if (!grouped(family, fields) || sizes[COT_SIZE_GROUPS] <= 1) return;
    int64_t groups = sizes[COT_SIZE_GROUPS], limit = sizes[COT_SIZE_GROUP_LIMIT],
            size = gate->experts / groups;
    int64_t least = family->group_score == COT_GROUP_TOP2_SUM ? 2 : 1;
    if (gate->experts % groups || size < least)
        cot_fields_refuse(fields, COT_MALFORMED,
                          "'n_group' is %" PRId64 ", expected to cut %" PRId64
                          " experts into equal groups of %" PRId64 " or more",
                          groups, gate->experts, least);
    else if (limit < 1 || limit > groups)
        cot_fields_refuse(fields, COT_MALFORMED,
                          "'topk_group' is %" PRId64 ", expected 1 to n_group, %" PRId64, limit, groups);
    else if (gate->top_k > limit * size)
        cot_fields_refuse(fields, COT_MALFORMED,
                          "'num_experts_per_tok' is %" PRId64 ", expected at most the %" PRId64
                          " experts of %" PRId64 " groups",
                          gate->top_k, limit * size, limit);
    gate->groups = groups;
    gate->group_limit = limit;
}

static void resolve_gate(cot_config *config, cot_fields *fields, const int64_t *sizes)
{
    const cot_family *family = config->family;
    cot_gate *gate = &config->gate;
    config->gate_bias = family->gate_bias;
    config->gate_correction = family->gate_correction;
    gate->hidden = config->hidden;
    gate->experts = sizes[COT_SIZE_EXPERTS];
    gate->top_k = sizes[COT_SIZE_TOP_K];
    gate->score = family->score;
    if (gate->score == COT_GATE_SPARSE_MIXER) {
        gate->jitter = (float)cot_fields_number(fields, "router_jitter_noise", 0.01);
        if (!(gate->jitter >= 0) || !isfinite(gate->jitter))
            cot_fields_refuse(fields, COT_MALFORMED, "'router_jitter_noise' is %g, expected 0 or more",
                              (double)gate->jitter);
    }
    gate->normalise = read_switch(fields, &family->normalise);
    gate->epsilon = gate->normalise ? family->epsilon : 0;
    const char *scaling = family->scaling_field ? family->scaling_field : "routed_scaling_factor";
    gate->scaling = family->scaling != 0 ? (float)cot_fields_number(fields, scaling, family->scaling) : 1;
    if (gate->top_k > gate->experts)
        cot_fields_refuse(fields, COT_MALFORMED,
                          "'num_experts_per_tok' is %" PRId64
                          ", expected at most the number of experts, %" PRId64,
                          gate->top_k, gate->experts);
    if (!isfinite(gate->scaling))
        cot_fields_refuse(fields, COT_MALFORMED, "'%s' is beyond a 32-bit float", scaling);
    if (gate->normalise && family->normalise_refused) {
        if (gate->top_k > 1)
            cot_fields_refuse(fields, COT_UNSUPPORTED, "norm_topk_prob true is not supported in %s",
                              family->model_type);
        gate->normalise = false; // one expert's weight is its score
    }
    resolve_groups(gate, family, fields, sizes);
}

void cot_resolve_feed_forward(cot_config *config, cot_fields *fields, const int64_t *sizes)
{
    const cot_family *family = config->family;
    if (fields->status != COT_OK) return;
    config->moe_intermediate = sizes[COT_SIZE_MOE_INTERMEDIATE];
    config->dense_intermediate = config->moe_layers < config->layers ? sizes[COT_SIZE_DENSE_INTERMEDIATE] : 0;
    if (config->moe_layers < config->layers && !config->dense_intermediate) {
        if (family->sizes[COT_SIZE_DENSE_INTERMEDIATE].name)
            cot_fields_refuse(fields, COT_MALFORMED, "'intermediate_size' is missing, and layers are dense");
        else
            cot_fields_refuse(fields, COT_UNSUPPORTED, "dense layers are not supported in %s",
                              family->model_type);
    }
    config->shared_intermediate =
        sizes[COT_SIZE_SHARED_INTERMEDIATE] + sizes[COT_SIZE_SHARED_EXPERTS] * config->moe_intermediate;
    config->shared_gated = family->shared_gated && config->shared_intermediate;
    config->ffn_bias = read_switch(fields, &family->ffn_bias);
    config->expert_bias = family->expert_bias;
    if (family->clamped) {
        config->swiglu_limit = (float)cot_fields_number(fields, "swiglu_limit", 7);
        config->swiglu_alpha = (float)cot_fields_number(fields, "swiglu_alpha", 1.702);
        if (!(config->swiglu_limit > 0) || !isfinite(config->swiglu_limit) || !isfinite(config->swiglu_alpha))
            cot_fields_refuse(fields, COT_MALFORMED, "'swiglu_limit' is %g, expected a number above 0",
                              (double)config->swiglu_limit);
    } else {
        const char *act = cot_fields_text(fields, "hidden_act", "silu");
        if (strcmp(act, "silu") != 0)
            cot_fields_refuse(fields, COT_UNSUPPORTED, "hidden_act '%.40s' is not supported (silu is)", act);
    }
    resolve_gate(config, fields, sizes);
}

static bool has_eos(const cot_config *config, int32_t id)
{
    for (size_t i = 0; i < config->eos_count; i++)
        if (config->eos[i] == id) return true;
    return false;
}

/* Adds the ids of eos_token_id, a number or a list of them, and takes bos_token_id where none is known yet.
 */
static void add_special_tokens(cot_config *config, cot_fields *fields)
{
    const char *key = "eos_token_id";
    const json_t *eos = cot_fields_get(fields, key);
    size_t count = json_is_array(eos) ? json_array_size(eos) : cot_fields_has(fields, key);
    int32_t *grown = count ? realloc(config->eos, (config->eos_count + count) * sizeof *grown) : NULL;
    if (count && !grown) cot_fields_refuse(fields, COT_OUT_OF_MEMORY, "out of memory");
    if (grown) config->eos = grown;
    for (size_t i = 0; i < count && fields->status == COT_OK; i++) {
        const json_t *item = json_is_array(eos) ? json_array_get(eos, i) : eos;
        int64_t id = json_integer_value(item);
        if (!json_is_integer(item) || id < 0 || id > INT32_MAX)
            cot_fields_mistyped(fields, key, item, "token ids, whole numbers from 0 to 2147483647");
        else if (!has_eos(config, (int32_t)id))
            config->eos[config->eos_count++] = (int32_t)id;
    }
    if (config->bos < 0 && cot_fields_has(fields, "bos_token_id"))
        config->bos = (int32_t)cot_fields_integer(fields, "bos_token_id", -1, 0, INT32_MAX);
}

/* Fields that change what the model computes, in ways that nothing here knows. */
static void refuse_unknown_ways(cot_fields *fields)
{
    static const char *const keys[] = {"per_layer_config", "attention_chunk_size", "compression_config",
                                       "quantization"};
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
        if (cot_fields_has(fields, keys[k]))
            cot_fields_refuse(fields, COT_UNSUPPORTED, "'%s' is not supported", keys[k]);
    if (!cot_fields_switch(fields, "is_causal", true))
        cot_fields_refuse(fields, COT_UNSUPPORTED, "'is_causal' false is not supported");
    if (cot_fields_has(fields, "moe_layer_freq") &&
        cot_fields_integer(fields, "moe_layer_freq", 1, 0, INT32_MAX) != 1)
        cot_fields_refuse(fields, COT_UNSUPPORTED, "'moe_layer_freq' other than 1 is not supported");
}

/* Whether a field, or each item of a list, is what the family has alone. */
static bool is_fixed(const json_t *value, const json_t *expected)
{
    if (!json_is_array(value) || json_is_array(expected))
        return json_is_null(value) || json_equal((json_t *)(uintptr_t)value, (json_t *)(uintptr_t)expected);
    for (size_t i = 0; i < json_array_size(value); i++)
        if (!json_equal(json_array_get(value, i), (json_t *)(uintptr_t)expected)) return false;
    return true;
}

/* Fields that may have one value alone in this family. */
static void check_fixed(const cot_family *family, cot_fields *fields)
{
    const char *key;
    json_t *expected, *all = family->fixed ? json_loads(family->fixed, 0, NULL) : NULL;
    if (family->fixed && !all) cot_fields_refuse(fields, COT_OUT_OF_MEMORY, "out of memory");
    json_object_foreach(all, key, expected)
    {
        const json_t *value = cot_fields_get(fields, key);
        if (json_is_array(value) && !json_is_array(expected)) expect_each_layer(fields, key, value);
        if (!value || is_fixed(value, expected)) continue;
        char *told = json_dumps(expected, JSON_ENCODE_ANY);
        cot_fields_refuse(fields, COT_UNSUPPORTED, "'%s' other than %s is not supported in %s", key,
                          told ? told : "?", family->model_type);
        free(told);
    }
    json_decref(all);
}

/* Beyond it attention would be sparse. */
static void cut_context(cot_config *config, int64_t most)
{
    const char *field = config->family->sizes[COT_SIZE_DENSE_CONTEXT].name;
    if (!field || config->max_context <= most) return;
    config->max_context = most;
    config->context_field = field;
}

static const cot_family *find_family(cot_config *config, cot_fields *fields)
{
    const json_t *list = cot_fields_get(fields, "architectures");
    const char *name = json_string_value(json_is_array(list) ? json_array_get(list, 0) : list);
    const char *type = cot_fields_text(fields, "model_type", NULL);
    const cot_family *family = cot_family_of(name, type);
    if (!family && !name && !type)
        cot_fields_refuse(fields, COT_MALFORMED, "neither 'architectures' nor 'model_type' says what it is");
    else if (!family)
        cot_fields_refuse(fields, COT_UNSUPPORTED, "unknown architecture '%.80s' (see coterie models)",
                          name ? name : type);
    const char *known = family ? cot_family_architecture(family) : "";
    memcpy(config->architecture, known, strlen(known) + 1);
    return family;
}

static void resolve(cot_config *config, cot_fields *fields)
{
    const cot_family *family = config->family = find_family(config, fields);
    if (!family) return;
    refuse_unknown_ways(fields);
    check_fixed(family, fields);
    int64_t sizes[COT_SIZES];
    for (int s = 0; s < COT_SIZES; s++)
        sizes[s] = read_size(fields, &family->sizes[s], ranges[s].least, ranges[s].most);
    if (fields->status != COT_OK) return;
    config->vocab = sizes[COT_SIZE_VOCAB];
    config->hidden = sizes[COT_SIZE_HIDDEN];
    config->layers = sizes[COT_SIZE_LAYERS];
    config->max_context = sizes[COT_SIZE_CONTEXT];
    config->tied_embeddings = cot_fields_switch(fields, "tie_word_embeddings", family->tied);
    config->norm_eps = (float)cot_fields_number(fields, "rms_norm_eps", family->norm_eps);
    if (!(config->norm_eps >= 0) || !isfinite(config->norm_eps))
        cot_fields_refuse(fields, COT_MALFORMED, "'rms_norm_eps' is %g, expected 0 or more",
                          (double)config->norm_eps);
    cot_resolve_attention(config, fields, sizes);
    resolve_stream(config, fields);
    cot_resolve_layers(config, fields, sizes);
    cot_resolve_feed_forward(config, fields, sizes);
    cot_resolve_rope(config, fields);
    cut_context(config, sizes[COT_SIZE_DENSE_CONTEXT]);
    cot_resolve_quantisation(config, fields);
    config->bos = -1;
    add_special_tokens(config, fields);
}

/* What Python writes for numbers that JSON has not, if parsing failed at that; NULL: at something else. */
static const char *not_a_number(const char *text, size_t bytes, const json_error_t *detail)
{
    static const char *const words[] = {"-Infinity", "Infinity", "NaN"};
    const bool token = !strncmp(detail->text, "invalid token", strlen("invalid token"));
    for (size_t w = 0; token && w < sizeof words / sizeof *words;
         w++) { // a sign, or the word, is behind where parsing is
        const size_t length = strlen(words[w]), end = (size_t)(detail->position < 0 ? 0 : detail->position);
        for (size_t at = end > length ? end - length : 0; at <= end && at + length <= bytes; at++)
            if (!memcmp(text + at, words[w], length)) return words[w];
    }
    return NULL;
}

static json_t *load(const char *text, size_t bytes, cot_fields *fields, const char *what)
{
    static const char mark[] = "\xef\xbb\xbf";
    json_error_t detail;
    if (bytes >= strlen(mark) && !memcmp(text, mark, strlen(mark))) {
        cot_fields_refuse(fields, COT_MALFORMED,
                          "%snot valid JSON: it begins with a byte-order mark: save it as UTF-8 without one",
                          what);
        return NULL;
    }
    json_t *json = cot_json_load(text, bytes, JSON_REJECT_DUPLICATES, &detail);
    const char *word = json ? NULL : not_a_number(text, bytes, &detail);
    if (word)
        cot_fields_refuse(
            fields, COT_MALFORMED,
            "%snot valid JSON: line %d has %s, which is no number of JSON: put one there, or null", what,
            detail.line, word);
    else if (!json)
        cot_fields_refuse(fields, COT_MALFORMED, "%snot valid JSON: line %d: %.100s", what, detail.line,
                          detail.text);
    else if (!json_is_object(json))
        cot_fields_refuse(fields, COT_MALFORMED, "%snot a JSON object", what);
    return json;
}

/* The model of texts in one that sees more, with what is told of the whole alone; new. NULL: there is none. */
static json_t *text_model(const json_t *object)
{
    static const char *const of_all[] = {"tie_word_embeddings", "quantization_config", "eos_token_id",
                                         "bos_token_id"};
    const json_t *text = json_object_get(object, "text_config");
    if (!json_is_object(text)) return NULL;
    json_t *own = json_copy((json_t *)(uintptr_t)text);
    for (size_t i = 0; own && i < sizeof of_all / sizeof *of_all; i++)
        if (!json_object_get(own, of_all[i]) && json_object_get(object, of_all[i]))
            json_object_set(own, of_all[i], json_object_get(object, of_all[i]));
    return own;
}

cot_status cot_config_resolve(cot_config *config, const json_t *object, const json_t *generation,
                              const char *name, cot_error *error)
{
    *config = (cot_config){0};
    json_t *text = text_model(object);
    cot_fields fields = {text ? text : object, name, COT_OK, error};
    resolve(config, &fields);
    config->nested = text;
    if (fields.status == COT_OK && generation) {
        fields.object = generation;
        add_special_tokens(config, &fields);
    }
    cot_error detail = {0};
    if (fields.status == COT_OK && config->moe_layers && cot_gate_check(&config->gate, &detail) != COT_OK)
        fields.status = cot_fail(error, detail.status, "'%s': %s", name, detail.message);
    if (fields.status != COT_OK) cot_config_clear(config);
    json_decref(text);
    return fields.status;
}

cot_status cot_config_parse(cot_config *config, const char *text, size_t bytes, const char *generation,
                            size_t generation_bytes, const char *name, cot_error *error)
{
    *config = (cot_config){0};
    cot_fields fields = {NULL, name, COT_OK, error};
    json_t *json = load(text, bytes, &fields, ""), *extra = NULL;
    if (fields.status == COT_OK && generation)
        extra = load(generation, generation_bytes, &fields, "its generation_config.json is ");
    if (fields.status == COT_OK) fields.status = cot_config_resolve(config, json, extra, name, error);
    json_decref(json);
    json_decref(extra);
    return fields.status;
}

cot_status cot_config_quantise(cot_config *config, const char *text, size_t bytes, const char *method,
                               const char *name, cot_error *error)
{
    cot_fields fields = {NULL, name, COT_OK, error};
    json_t *json = load(text, bytes, &fields, "");
    fields.object = json;
    if (fields.status == COT_OK) cot_resolve_quantisation_beside(config, &fields, method);
    json_decref(json);
    return fields.status;
}

void cot_config_clear(cot_config *config)
{
    free(config->layer);
    free(config->inverse_frequency);
    free(config->eos);
    cot_quantisation_clear(&config->quantisation);
    *config = (cot_config){0};
}
