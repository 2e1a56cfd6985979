#include "base/buffer.h"
#include "base/error.h"
#include "checkpoint/convert.h"

#include <inttypes.h>
#include <stdio.h>

typedef struct planner {
    cot_convert_plan *plan;
    const cot_checkpoint *checkpoint;
    const cot_config *config; // of the folder that is written: of GGUF, with the names that folders have
    bool *copied;             // [tensor_count]
    cot_error *error;
} planner;

static cot_status fail_memory(cot_error *error)
{
    return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the list of tensors");
}

/* The next unit, with nothing in it; NULL when out of memory. */
static cot_convert_unit *new_unit(cot_convert_plan *plan)
{
    void *units = plan->units;
    if (!cot_grow(&units, &plan->capacity, plan->count + 1, sizeof *plan->units)) return NULL;
    plan->units = units;
    cot_convert_unit *unit = &plan->units[plan->count++];
    *unit = (cot_convert_unit){0};
    return unit;
}

/* Adds a tensor called `name` (as many of its characters) and `end` to the unit. */
static bool add_tensor(cot_convert_plan *plan, cot_convert_unit *unit, const char *name, size_t length,
                       const char *end, cot_dtype type, int dims, const int64_t *shape)
{
    cot_tensor *t = &unit->tensors[unit->count];
    char *text;
    if (asprintf(&text, "%.*s%s", (int)length, name, end) < 0) return false;
    *t = (cot_tensor){.name = text, .dtype = type, .dims = dims};
    memcpy(t->shape, shape, (size_t)dims * sizeof *shape);
    t->bytes = (size_t)cot_tensor_elements(t) * cot_dtype_bytes(type);
    unit->count++;
    unit->bytes += t->bytes;
    plan->bytes += t->bytes;
    return true;
}

static cot_status copy(planner *p, const cot_stored *stored, const char *name)
{
    const cot_tensor *t = stored->tensor->tensor;
    bool *copied = &p->copied[stored->tensor - p->checkpoint->shards.tensors];
    if (*copied) return COT_OK; // two weights are in one tensor
    *copied = true;
    cot_convert_unit *unit = new_unit(p->plan);
    if (!unit || !add_tensor(p->plan, unit, name, strlen(name), "", t->dtype, t->dims, t->shape))
        return fail_memory(p->error);
    unit->source = stored->tensor;
    return COT_OK;
}

/* What stands before ".weight", ".qweight" and the like. */
static size_t stem(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? (size_t)(dot - name) : strlen(name);
}

static bool add_matrix(planner *p, cot_convert_unit *u, const char *name)
{
    const size_t length = stem(name);
    const int64_t rows = u->rows, columns = u->columns, groups = cot_format_groups(u->format, columns),
                  codes = cot_convert_code_bytes(u->format, columns);
    const bool bytes = u->format == COT_FORMAT_MXFP4;
    if (u->format == COT_FORMAT_BF16 || u->format == COT_FORMAT_FP32)
        return add_tensor(p->plan, u, name, length, ".weight",
                          u->format == COT_FORMAT_BF16 ? COT_BF16 : COT_F32, 2, (int64_t[]){rows, columns});
    return add_tensor(p->plan, u, name, length, ".weight_packed", bytes ? COT_U8 : COT_I32, 2,
                      (int64_t[]){rows, bytes ? codes : codes / 4}) &&
           add_tensor(p->plan, u, name, length, ".weight_scale", bytes ? COT_U8 : cot_format_scale(u->format),
                      2, (int64_t[]){rows, groups}) &&
           (bytes || add_tensor(p->plan, u, name, length, ".weight_shape", COT_I64, 1, (int64_t[]){2}));
}

/* All experts of a layer in one tensor. */
static bool add_stacked(planner *p, cot_convert_unit *u, const char *name)
{
    const int64_t experts = u->matrices, rows = u->rows, groups = u->columns / 32;
    const size_t length = strlen(name);
    return add_tensor(p->plan, u, name, length, "_blocks", COT_U8, 4,
                      (int64_t[]){experts, rows, groups, 16}) &&
           add_tensor(p->plan, u, name, length, "_scales", COT_U8, 3, (int64_t[]){experts, rows, groups});
}

/* Of GGUF: a vector, or those of all experts of a layer, gate's and up's numbers by turns. */
static bool add_vector(planner *p, cot_convert_unit *u, const char *name, bool stacked)
{
    const int64_t shape[] = {u->matrices, u->across ? u->rows : u->columns};
    return add_tensor(p->plan, u, name, strlen(name), "", u->format == COT_FORMAT_BF16 ? COT_BF16 : COT_F32,
                      stacked ? 2 : 1, stacked ? shape : shape + 1);
}

static bool is_expert(cot_weight weight)
{
    return weight >= COT_WEIGHT_EXPERT_GATE && weight <= COT_WEIGHT_EXPERT_DOWN;
}

/* A shared expert's, or a dense layer's. */
static bool is_other_network(cot_weight weight)
{
    return (weight >= COT_WEIGHT_SHARED_GATE && weight <= COT_WEIGHT_SHARED_DOWN) ||
           (weight >= COT_WEIGHT_DENSE_GATE && weight <= COT_WEIGHT_DENSE_DOWN);
}

/* Those that stay packed as they are: kv_b is not among them. */
static bool is_attention(cot_weight weight)
{
    return (weight >= COT_WEIGHT_Q && weight <= COT_WEIGHT_O) || weight == COT_WEIGHT_Q_A ||
           weight == COT_WEIGHT_Q_B || weight == COT_WEIGHT_KV_A || weight == COT_WEIGHT_ATTENTION_GATE ||
           weight == COT_WEIGHT_DELTA_QKV || weight == COT_WEIGHT_DELTA_Z || weight == COT_WEIGHT_DELTA_O;
}

/* COT_FORMATS: not rounded. */
static cot_format format_of(const cot_convert_formats *formats, cot_weight weight)
{
    return is_expert(weight)             ? formats->experts
           : is_other_network(weight)    ? formats->others
           : is_attention(weight)        ? formats->attention
           : weight == COT_WEIGHT_OUTPUT ? formats->head
                                         : COT_FORMATS;
}

/* What becomes of a matrix that is in few bits and not rounded: F32 where `run` widens it to that. */
static cot_format widened_format(cot_weight weight)
{
    return is_attention(weight) || is_other_network(weight) || weight == COT_WEIGHT_OUTPUT ? COT_FORMAT_BF16
                                                                                           : COT_FORMAT_FP32;
}

static cot_status check_rounded(const planner *p, const cot_stored *stored, cot_weight weight)
{
    const cot_format format = format_of(&p->plan->formats, weight), own = cot_stored_format(stored);
    const int64_t group = cot_format_group(format);
    if ((is_expert(weight) || is_other_network(weight)) && own != COT_FORMATS &&
        cot_format_kind(own) == format)
        return cot_fail(p->error, COT_UNSUPPORTED, "tensor '%s' is in %s already", stored->name,
                        cot_formats[format].name);
    if (group && stored->columns % group)
        return cot_fail(p->error, COT_UNSUPPORTED,
                        "tensor '%s': its %" PRId64 " columns are no whole groups of %" PRId64
                        ", which %s has",
                        stored->name, stored->columns, group, cot_formats[format].name);
    return COT_OK;
}

/* What a weight that is not rounded becomes. */
static cot_status find_format(planner *p, cot_format *format, const cot_stored *stored, cot_weight weight)
{
    *format = widened_format(weight);
    if (!p->checkpoint->config.gguf) return COT_OK;
    cot_format kept = COT_FORMAT_FP32;
    const bool may = is_expert(weight) || *format == COT_FORMAT_BF16 || stored->storage == COT_STORAGE_PLAIN;
    const cot_status status =
        may ? cot_convert_keep_gguf(&kept, stored, p->config, weight, p->error) : COT_OK;
    *format = kept;
    if (kept != COT_FORMAT_FP32 || stored->storage == COT_STORAGE_PLAIN) return status;
    p->plan->widened++;
    p->plan->widened_bytes += (size_t)(stored->rows * stored->columns) * sizeof(float);
    return status;
}

static cot_status visit(void *context, cot_weight weight, int64_t layer, int64_t expert)
{
    planner *p = context;
    const cot_config *config = p->config;
    const bool stacked = config->family->stacked && cot_weight_is_expert(weight);
    cot_stored stored;
    char name[COT_STORED_NAME];
    const cot_format format = format_of(&p->plan->formats, weight);
    if (weight == COT_WEIGHT_OUTPUT && config->tied_embeddings) return COT_OK;
    cot_status status = cot_stored_find(&stored, p->checkpoint, weight, layer, expert, p->error);
    if (status == COT_OK && format != COT_FORMATS) status = check_rounded(p, &stored, weight);
    if (status != COT_OK) return status;
    cot_stored_name(name, config, weight, layer, expert, "");
    const bool gguf = p->checkpoint->config.gguf;
    if (format == COT_FORMATS && stored.storage == COT_STORAGE_PLAIN && !gguf) return copy(p, &stored, name);
    p->plan->widens_others |= format == COT_FORMATS && is_other_network(weight) && !gguf;
    cot_format own = format;
    if (format == COT_FORMATS) status = find_format(p, &own, &stored, weight);
    if (status != COT_OK) return status;
    if (stacked && (expert || weight == COT_WEIGHT_EXPERT_UP || weight == COT_WEIGHT_EXPERT_UP_BIAS))
        return COT_OK; // are with the first, and with gate
    cot_convert_unit *u = new_unit(p->plan);
    if (!u) return fail_memory(p->error);
    u->format = own;
    u->kept = format == COT_FORMATS && own != COT_FORMAT_FP32 && own != COT_FORMAT_BF16;
    u->weight = weight;
    u->layer = layer;
    u->expert = expert;
    u->matrices = stacked ? config->gate.experts : 1;
    u->paired = stacked && (weight == COT_WEIGHT_EXPERT_GATE || weight == COT_WEIGHT_EXPERT_GATE_BIAS);
    u->across = stored.rows == 1 && u->paired;
    u->rows = (u->across ? stored.columns : stored.rows) * (u->paired ? 2 : 1);
    u->columns = u->across ? 1 : stored.columns;
    const bool turned =
        gguf && config->family->gguf.pairs && (weight == COT_WEIGHT_Q || weight == COT_WEIGHT_K);
    u->turned = turned ? config->head_dim : 0;
    if (gguf && stored.rows == 1 && weight != COT_WEIGHT_SHARED_MIX)
        return add_vector(p, u, name, stacked) ? COT_OK : fail_memory(p->error);
    return (stacked ? add_stacked(p, u, name) : add_matrix(p, u, name)) ? COT_OK : fail_memory(p->error);
}

static int by_name(const void *a, const void *b)
{
    const cot_convert_unit *x = a, *y = b;
    return strcmp(x->tensors[0].name, y->tensors[0].name);
}

cot_status cot_convert_check(const cot_checkpoint *checkpoint, cot_convert_formats formats, cot_error *error)
{
    const cot_config *config = &checkpoint->config;
    const bool stacked = config->family->stacked;
    if (config->nested || cot_family_shares_tensors(config->family))
        return cot_fail(error, COT_UNSUPPORTED, "of %s no folder is written: %s", config->family->model_type,
                        config->nested ? "it is a part of a model that does more than texts"
                                       : "its matrices lie together in tensors");
    if (config->gguf && cot_shards_find(&checkpoint->shards, "rope_freqs.weight"))
        return cot_fail(
            error, COT_UNSUPPORTED,
            "of a GGUF file with 'rope_freqs.weight' no folder is written: config.json has no words "
            "for a divisor of each frequency");
    if (stacked && formats.experts != COT_FORMAT_MXFP4 && formats.experts != COT_FORMATS)
        return cot_fail(error, COT_UNSUPPORTED, "%s has no layout of experts in %s (mxfp4 is one)",
                        config->family->model_type, cot_formats[formats.experts].name);
    if (stacked && (formats.attention != COT_FORMATS || formats.head != COT_FORMATS))
        return cot_fail(error, COT_UNSUPPORTED, "%s has no layout of attention or head in few bits",
                        config->family->model_type);
    if (config->tied_embeddings && formats.head != COT_FORMATS)
        return cot_fail(error, COT_UNSUPPORTED, "the head is the embedding, which is not rounded");
    return COT_OK;
}

cot_status cot_convert_plan_make(cot_convert_plan *plan, const cot_checkpoint *checkpoint,
                                 cot_convert_formats formats, cot_error *error)
{
    const cot_config *config = &checkpoint->config;
    *plan = (cot_convert_plan){.formats = formats};
    cot_status status = cot_convert_check(checkpoint, formats, error);
    if (status != COT_OK) return status;
    cot_config written = *config;
    written.gguf = false;
    planner p = {plan, checkpoint, &written, calloc(checkpoint->shards.tensor_count + 1, 1), error};
    status = p.copied ? cot_weight_each(&written, &p, visit) : fail_memory(error);
    free(p.copied);
    if (status == COT_OK)
        qsort(plan->units, plan->count, sizeof *plan->units, by_name);
    else
        cot_convert_plan_clear(plan);
    return status;
}

void cot_convert_plan_clear(cot_convert_plan *plan)
{
    for (size_t i = 0; i < plan->count; i++)
        for (int t = 0; t < plan->units[i].count; t++)
            free((void *)(uintptr_t)plan->units[i].tensors[t].name);
    free(plan->units);
    *plan = (cot_convert_plan){0};
}

json_t *cot_convert_ignored(const cot_convert_plan *plan, const cot_config *config)
{
    json_t *list = json_array();
    int failed = !list;
    for (size_t i = 0; i < plan->count; i++) {
        const cot_tensor *t = &plan->units[i].tensors[0];
        const size_t length = strlen(t->name), end = strlen(".weight");
        if (t->dims != 2 || length < end || strcmp(t->name + length - end, ".weight") != 0 ||
            !strcmp(t->name, cot_weight_template(config->family, COT_WEIGHT_EMBEDDING)))
            continue;
        failed |= json_array_append_new(list, json_stringn(t->name, length - end));
    }
    if (config->tied_embeddings) failed |= json_array_append_new(list, json_string("lm_head"));
    if (!failed) return list;
    json_decref(list);
    return NULL;
}

const char *cot_convert_layout(cot_format format)
{
    return format == COT_FORMAT_MXFP4 ? "mxfp4-pack-quantized" : "pack-quantized";
}

int cot_convert_add_group(json_t *groups, json_t *targets, cot_format format)
{
    const bool mxfp4 = format == COT_FORMAT_MXFP4;
    const int64_t group = cot_format_group(format);
    char name[32];
    json_t *weights =
        json_pack("{s:i, s:s, s:b, s:s, s:o, s:b}", "num_bits", cot_format_row_of(format)->bits, "type",
                  mxfp4 ? "float" : "int", "symmetric", true, "strategy", group ? "group" : "channel",
                  "group_size", group ? json_integer(group) : json_null(), "dynamic", false);
    if (mxfp4) json_object_set_new(weights, "scale_dtype", json_string("torch.uint8"));
    snprintf(name, sizeof name, "group_%zu", json_object_size(groups));
    return json_object_set_new(groups, name,
                               json_pack("{s:o, s:o, s:n, s:n, s:s}", "targets", targets, "weights", weights,
                                         "input_activations", "output_activations", "format",
                                         cot_convert_layout(format)));
}

/* Experts by the modules' names of each implementation that has others. */
static json_t *experts_targets(const cot_config *config)
{
    const char *usual = "re:.*mlp.experts.*";
    return strstr(cot_weight_template(config->family, COT_WEIGHT_EXPERT_GATE), "block_sparse_moe")
               ? json_pack("[s,s]", usual, "re:.*block_sparse_moe.experts.*")
               : json_pack("[s]", usual);
}

/* Groups by what is said of them: first the scheme of all that is no expert's, by class where experts are of it too; transformers takes
 * the first group whose patterns name no experts for that. Experts are last, by patterns, which any reader prefers to a class. */
static int add_groups(json_t *groups, const cot_convert_formats *f, const cot_config *config)
{
    int failed = 0;
    if (f->scheme == f->experts) {
        failed |= cot_convert_add_group(groups, json_pack("[s]", "Linear"), f->scheme);
    } else {
        json_t *targets = json_array();
        if (f->attention == f->scheme) json_array_append_new(targets, json_string("re:.*self_attn.*"));
        if (f->attention == f->scheme && config->state_layers)
            json_array_append_new(targets, json_string("re:.*linear_attn.*"));
        if (f->head == f->scheme) json_array_append_new(targets, json_string("lm_head"));
        failed |= cot_convert_add_group(groups, targets, f->scheme);
    }
    if (f->head != COT_FORMATS && f->head != f->scheme)
        failed |= cot_convert_add_group(groups, json_pack("[s]", "lm_head"), f->head);
    if (f->scheme != f->experts) failed |= cot_convert_add_group(groups, experts_targets(config), f->experts);
    return failed;
}

json_t *cot_convert_tell(const cot_convert_plan *plan, const cot_config *config)
{
    if (config->family->stacked)
        return json_pack("{s:s, s:[s,s,s,s]}", "quant_method", "mxfp4", "modules_to_not_convert",
                         "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens",
                         "lm_head");
    const cot_convert_formats *f = &plan->formats;
    const char *layout = cot_convert_layout(f->experts);
    const bool mixed = strcmp(cot_convert_layout(f->scheme), layout) != 0 ||
                       (f->head != COT_FORMATS && strcmp(cot_convert_layout(f->head), layout) != 0);
    json_t *groups = json_object();
    if (add_groups(groups, f, config)) {
        json_decref(groups);
        return NULL;
    }
    return json_pack("{s:s, s:s, s:s, s:o, s:o, s:n}", "quant_method", "compressed-tensors", "format",
                     mixed ? "mixed-precision" : layout, "quantization_status", "compressed", "config_groups",
                     groups, "ignore", cot_convert_ignored(plan, config), "kv_cache_scheme");
}
