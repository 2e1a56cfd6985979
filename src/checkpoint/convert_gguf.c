/* A folder made of a GGUF file: what weights become that no option rounds, how config.json tells it, and what lies beside them. */
#include "base/error.h"
#include "checkpoint/convert.h"
#include "tokenizer/chat.h"
#include "tokenizer/parts.h"

#include <string.h>

cot_status cot_convert_keep_gguf(cot_format *format, const cot_stored *stored, const cot_config *config,
                                 cot_weight weight, cot_error *error)
{
    const cot_format own = cot_stored_format(stored), kind = own == COT_FORMATS ? own : cot_format_kind(own);
    const bool stacked = config->family->stacked,
               matrices = stacked && weight >= COT_WEIGHT_EXPERT_GATE && weight <= COT_WEIGHT_EXPERT_DOWN;
    const cot_tensor *tensor = stored->tensor->tensor;
    if (matrices && own != COT_FORMAT_MXFP4)
        return cot_fail(
            error, COT_UNSUPPORTED,
            "tensor '%s' is stored as %s, and %s has experts in mxfp4 alone: give --weights mxfp4",
            stored->name, cot_tensor_type_name(tensor), config->family->model_type);
    *format = COT_FORMAT_FP32;
    if (stored->storage == COT_STORAGE_PLAIN && tensor->dtype == COT_BF16) *format = COT_FORMAT_BF16;
    if (kind == COT_FORMAT_INT4 || kind == COT_FORMAT_INT8 || kind == COT_FORMAT_MXFP4)
        if (matrices || !stacked) *format = own;
    return COT_OK;
}

/* ---- quantization_config ---- */

enum { MOST_KINDS = 8 }; // int4 and int8 with either type of scales, mxfp4

typedef struct kinds {
    cot_format format[MOST_KINDS];
    size_t matrices[MOST_KINDS];
    int count;
} kinds;

static bool is_packed(const cot_convert_unit *unit)
{
    return unit->format != COT_FORMAT_FP32 && unit->format != COT_FORMAT_BF16;
}

static int kind_of(const kinds *k, cot_format format)
{
    int at = 0;
    while (at < k->count && k->format[at] != format) at++;
    return at;
}

static json_t *targets_of(const cot_convert_plan *plan, cot_format format)
{
    const size_t end = strlen(".weight_packed");
    json_t *list = json_array();
    int failed = !list;
    for (size_t i = 0; i < plan->count; i++) {
        const char *name = plan->units[i].tensors[0].name;
        if (plan->units[i].format == format)
            failed |= json_array_append_new(list, json_stringn(name, strlen(name) - end));
    }
    if (!failed) return list;
    json_decref(list);
    return NULL;
}

json_t *cot_convert_tell_gguf(const cot_convert_plan *plan, const cot_config *config)
{
    kinds k = {.count = 0};
    int most = 0;
    bool mixed = false;
    for (size_t i = 0; i < plan->count; i++) {
        if (!is_packed(&plan->units[i])) continue;
        const int at = kind_of(&k, plan->units[i].format);
        if (at == MOST_KINDS) return NULL;
        if (at == k.count) k.format[k.count++] = plan->units[i].format;
        if (++k.matrices[at] > k.matrices[most]) most = at;
        mixed |= strcmp(cot_convert_layout(k.format[at]), cot_convert_layout(k.format[0])) != 0;
    }
    if (!k.count) return json_null();
    if (config->family->stacked) return cot_convert_tell(plan, config);
    json_t *groups = json_object();
    int failed = !groups;
    for (int i = 0; i < k.count; i++)
        failed |= cot_convert_add_group(
            groups, i == most ? json_pack("[s]", "Linear") : targets_of(plan, k.format[i]), k.format[i]);
    json_t *told = failed ? NULL
                          : json_pack("{s:s, s:s, s:s, s:O, s:o, s:n}", "quant_method", "compressed-tensors",
                                      "format", mixed ? "mixed-precision" : cot_convert_layout(k.format[0]),
                                      "quantization_status", "compressed", "config_groups", groups, "ignore",
                                      cot_convert_ignored(plan, config), "kv_cache_scheme");
    json_decref(groups);
    return told;
}

/* ---- beside the weights ---- */

/* One template is a string, several are a list with names. */
static json_t *templates_of(json_t *named)
{
    const char *name;
    json_t *text, *list = json_array();
    if (json_object_size(named) == 1 && json_object_get(named, "default")) {
        json_decref(list);
        return json_incref(json_object_get(named, "default"));
    }
    json_object_foreach(named, name, text)
        json_array_append_new(list, json_pack("{s:s, s:O}", "name", name, "template", text));
    return list;
}

cot_status cot_convert_beside_gguf(json_t **tokenizer, json_t **settings, const char *path, cot_error *error)
{
    cot_status status = cot_tokenizer_tell_gguf(tokenizer, path, error);
    if (status == COT_OK) status = cot_chat_gguf_config(settings, path, error);
    if (status != COT_OK) return status;
    json_t *named = json_object_get(*settings, "chat_template");
    json_t *templates = json_object_size(named) ? templates_of(named) : NULL;
    if (templates)
        json_object_set_new(*settings, "chat_template", templates);
    else
        json_object_del(*settings, "chat_template");
    json_object_set_new(*settings, "tokenizer_class", json_string("PreTrainedTokenizerFast"));
    json_object_set_new(*settings, "clean_up_tokenization_spaces", json_false());
    return COT_OK;
}
