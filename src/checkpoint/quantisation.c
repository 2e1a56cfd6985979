#include "checkpoint/quantisation.h"

#include "checkpoint/resolve.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MOST_GROUPS = 1 << 12 };

void cot_quantisation_clear(cot_quantisation *q)
{
    for (size_t g = 0; g < q->group_count; g++) cot_quantised_clear(&q->groups[g].targets);
    free(q->groups);
    cot_quantised_clear(&q->ignored);
    *q = (cot_quantisation){0};
}

/* ---- FP8 ---- */

static void set_blocks(cot_config *config, cot_fields *in, const char *key, int64_t rows, int64_t columns)
{
    enum { MOST = 1 << 24 };
    if (rows < 1 || columns < 1 || rows > MOST || columns > MOST)
        cot_fields_mistyped(in, key, cot_fields_get(in, key), "two whole numbers from 1 to 16777216");
    else if (config->fp8_block_rows &&
             (config->fp8_block_rows != rows || config->fp8_block_columns != columns))
        cot_fields_refuse(in, COT_UNSUPPORTED, "'%s' of two sizes is not supported", key);
    config->fp8_block_rows = rows;
    config->fp8_block_columns = columns;
}

/* [128, 128], or, as it was written once, "128x128". */
static void read_blocks(cot_config *config, cot_fields *in, const char *key)
{
    const json_t *size = cot_fields_get(in, key);
    int64_t rows = json_integer_value(json_array_get(size, 0)),
            columns = json_integer_value(json_array_get(size, 1));
    if (!cot_fields_has(in, key) || in->status != COT_OK) return;
    if (json_is_string(size) &&
        sscanf(json_string_value(size), "%9" SCNd64 "x%9" SCNd64, &rows, &columns) != 2)
        rows = 0;
    if (json_is_array(size) && json_array_size(size) != 2) rows = 0;
    set_blocks(config, in, key, rows, columns);
}

static void resolve_fp8(cot_config *config, cot_fields *in)
{
    const char *format = cot_fields_text(in, "fmt", "e4m3"),
               *scheme = cot_fields_text(in, "activation_scheme", "dynamic");
    if (strcmp(format, "e4m3") != 0)
        cot_fields_refuse(in, COT_UNSUPPORTED, "fp8 format '%.40s' is not supported (e4m3 is)", format);
    if (strcmp(scheme, "dynamic") != 0 && strcmp(scheme, "static") != 0)
        cot_fields_refuse(in, COT_UNSUPPORTED,
                          "fp8 activation_scheme '%.40s' is not supported (dynamic and static are)", scheme);
    read_blocks(config, in, "weight_block_size");
}

/* ---- GPTQ and AWQ ---- */

static void resolve_bits_and_group(cot_config *config, cot_fields *in)
{
    cot_quantisation *q = &config->quantisation;
    q->bits = (int)cot_fields_integer(in, cot_fields_has(in, "w_bit") ? "w_bit" : "bits", 4, 1, 32);
    if (q->bits != 4 && q->bits != 8)
        cot_fields_refuse(in, COT_UNSUPPORTED, "weights of %d bits are not supported (4 and 8 are)", q->bits);
    q->group = cot_fields_integer(in, cot_fields_has(in, "q_group_size") ? "q_group_size" : "group_size", 128,
                                  -1, 1 << 24);
    if (q->group < 0) q->group = 0;
}

/* null says nothing. */
static bool read_switch(cot_fields *in, const char *key, bool absent)
{
    return cot_fields_has(in, key) ? cot_fields_switch(in, key, absent) : absent;
}

/* A key by which a rule of `dynamic` makes its modules other than the rest, or NULL. */
static const char *overridden(const cot_quantisation *q, cot_fields *rule)
{
    if (cot_fields_integer(rule, "bits", q->bits, 1, 32) != q->bits) return "bits";
    const int64_t group = cot_fields_integer(rule, "group_size", q->group, -1, 1 << 24);
    if ((group < 0 ? 0 : group) != q->group) return "group_size";
    return read_switch(rule, "sym", q->symmetric) != q->symmetric ? "sym" : NULL;
}

/* GPTQModel's rules by patterns of modules' names; one that begins with "-:" names what is not quantised, which tensors tell. */
static void check_dynamic(cot_quantisation *q, cot_fields *in)
{
    const json_t *rules = cot_fields_get(in, "dynamic");
    const char *pattern;
    json_t *object;
    if (!cot_fields_has(in, "dynamic")) return;
    if (!json_is_object(rules)) cot_fields_mistyped(in, "dynamic", rules, "an object");
    json_object_foreach((json_t *)(uintptr_t)rules, pattern, object)
    {
        cot_fields rule = {object, in->name, in->status, in->error};
        const bool of_some = strncmp(pattern, "-:", 2) != 0;
        const char *key = of_some ? overridden(q, &rule) : NULL;
        if (of_some) q->reordered |= read_switch(&rule, "desc_act", false);
        in->status = rule.status;
        if (key)
            cot_fields_refuse(in, COT_UNSUPPORTED,
                              "gptq with %s of its own for some modules ('dynamic' says '%.60s') is not "
                              "supported",
                              key, pattern);
    }
}

static void resolve_gptq(cot_config *config, cot_fields *in)
{
    cot_quantisation *q = &config->quantisation;
    const char *key =
                   cot_fields_has(in, "checkpoint_format") ? "checkpoint_format" : "format", // of other years
        *format = cot_fields_text(in, key, "gptq");
    q->method = COT_QUANTISED_GPTQ;
    resolve_bits_and_group(config, in);
    q->symmetric = read_switch(in, "sym", true);
    q->ones_less = !strcmp(format, "gptq");
    if (!q->ones_less && strcmp(format, "gptq_v2") != 0)
        cot_fields_refuse(in, COT_UNSUPPORTED, "gptq %s '%.40s' is not supported (gptq and gptq_v2 are)", key,
                          format);
    if (read_switch(in, "is_marlin_format", false))
        cot_fields_refuse(in, COT_UNSUPPORTED, "gptq in marlin's format is not supported");
    q->reordered = read_switch(in, "desc_act", false);
    check_dynamic(q, in);
}

/* auto-round's list of modules that are other than the rest: what it leaves in 16 bits tensors tell. */
static void check_extra(const cot_quantisation *q, cot_fields *in)
{
    const json_t *modules = cot_fields_get(in, "extra_config");
    const char *name;
    json_t *object;
    if (!cot_fields_has(in, "extra_config")) return;
    if (!json_is_object(modules)) cot_fields_mistyped(in, "extra_config", modules, "an object");
    json_object_foreach((json_t *)(uintptr_t)modules, name, object)
    {
        cot_fields module = {object, in->name, in->status, in->error};
        const bool whole = cot_fields_integer(&module, "bits", q->bits, 1, 32) >= 16;
        const char *key = whole ? NULL : overridden(q, &module);
        in->status = module.status;
        if (key)
            cot_fields_refuse(
                in, COT_UNSUPPORTED,
                "auto-round with %s of its own for some modules ('extra_config' says '%.60s') is "
                "not supported",
                key, name);
    }
}

/* auto-round in GPTQ's packing, zero points less one. */
static void resolve_auto_round(cot_config *config, cot_fields *in)
{
    static const char own[] = "auto_round:auto_gptq";
    cot_quantisation *q = &config->quantisation;
    const char *packing = cot_fields_text(in, "packing_format", own),
               *type = cot_fields_text(in, "data_type", "int");
    q->method = COT_QUANTISED_GPTQ;
    resolve_bits_and_group(config, in);
    q->symmetric = read_switch(in, "sym", true);
    q->ones_less = true;
    if (strcmp(packing, own) != 0)
        cot_fields_refuse(in, COT_UNSUPPORTED, "auto-round packing_format '%.40s' is not supported (%s is)",
                          packing, own);
    if (strcmp(type, "int") != 0)
        cot_fields_refuse(in, COT_UNSUPPORTED, "auto-round data_type '%.40s' is not supported (int is)",
                          type);
    check_extra(q, in);
}

static void resolve_awq(cot_config *config, cot_fields *in)
{
    static const char *const keys[] = {"version", "format", "checkpoint_format"}; // of other years
    config->quantisation.method = COT_QUANTISED_AWQ;
    resolve_bits_and_group(config, in);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *version = cot_fields_text(in, keys[i], "gemm");
        if (strcasecmp(version, "gemm") != 0)
            cot_fields_refuse(in, COT_UNSUPPORTED, "awq %s '%.40s' is not supported (gemm is)", keys[i],
                              version);
    }
    if (config->quantisation.bits != 4)
        cot_fields_refuse(in, COT_UNSUPPORTED, "awq with %d bits is not supported (4 is)",
                          config->quantisation.bits);
    if (!read_switch(in, "zero_point", true))
        cot_fields_refuse(in, COT_UNSUPPORTED, "awq without zero points is not supported");
}

/* ---- compressed-tensors ---- */

static void check_compressed_format(cot_fields *in, const char *format)
{
    static const char *const known[] = {"pack-quantized",  "int-quantized",        "float-quantized",
                                        "naive-quantized", "mxfp4-pack-quantized", "nvfp4-pack-quantized",
                                        "dense",           "mixed-precision"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(format, known[i])) return;
    cot_fields_refuse(in, COT_UNSUPPORTED,
                      "compressed-tensors format '%.40s' is not supported (pack-quantized, int-quantized, "
                      "float-quantized, naive-quantized, mxfp4-pack-quantized and nvfp4-pack-quantized are)",
                      format);
}

static void read_type(cot_quantised_group *group, cot_fields *in)
{
    const char *type = cot_fields_text(in, "type", "");
    group->whole = !strcasecmp(type, "int");
    group->floats = !strcasecmp(type, "float");
    if (*type && !group->whole && !group->floats)
        cot_fields_refuse(in, COT_UNSUPPORTED,
                          "compressed-tensors type '%.40s' is not supported (int and float are)", type);
}

static void read_strategy(cot_config *config, cot_quantised_group *group, cot_fields *in)
{
    static const char *const names[] = {[COT_QUANTISED_TENSOR] = "tensor",
                                        [COT_QUANTISED_CHANNEL] = "channel",
                                        [COT_QUANTISED_GROUP] = "group",
                                        [COT_QUANTISED_BLOCK] = "block"};
    enum { NAMES = sizeof names / sizeof *names };
    int64_t columns =
        cot_fields_has(in, "group_size") ? cot_fields_integer(in, "group_size", 0, -1, 1 << 24) : 0;
    const char *told = cot_fields_text(in, "strategy",
                                       columns > 0   ? "group"
                                       : columns < 0 ? "channel"
                                                     : NULL);
    if (!told) return;
    if (!strcasecmp(told, "tensor_group")) told = "group"; // and a scale of all elements
    int s = COT_QUANTISED_TENSOR;
    while (s < NAMES && strcasecmp(told, names[s]) != 0) s++;
    if (s == NAMES) {
        cot_fields_refuse(in, COT_UNSUPPORTED,
                          "compressed-tensors strategy '%.40s' is not supported (tensor, channel, group, "
                          "tensor_group and block are)",
                          told);
        return;
    }
    group->strategy = (cot_quantised_strategy)s;
    if (s == COT_QUANTISED_GROUP) {
        if (columns < 1)
            cot_fields_refuse(in, COT_MALFORMED, "compressed-tensors strategy 'group' lacks 'group_size'");
        group->columns = columns;
    } else if (s == COT_QUANTISED_BLOCK) {
        read_blocks(config, in, "block_structure");
        group->rows = config->fp8_block_rows;
        group->columns = config->fp8_block_columns;
    }
}

/* A member of config_groups that says nothing of weights is of activations and caches alone. */
static void read_group(cot_config *config, const json_t *object, cot_fields *of)
{
    cot_quantisation *q = &config->quantisation;
    const json_t *weights = json_object_get(object, "weights"), *order = json_object_get(weights, "actorder");
    const char *ordered = json_string_value(order);
    check_compressed_format(of, cot_fields_text(of, "format", "pack-quantized"));
    if (!json_is_object(weights) || of->status != COT_OK) return;
    cot_quantised_group *group = &q->groups[q->group_count++];
    cot_fields in = {weights, of->name, of->status, of->error};
    if (cot_fields_has(&in, "num_bits")) group->bits = (int)cot_fields_integer(&in, "num_bits", 0, 1, 64);
    if (group->bits && group->bits != 4 && group->bits != 8)
        cot_fields_refuse(&in, COT_UNSUPPORTED, "weights of %d bits are not supported (4 and 8 are)",
                          group->bits);
    read_type(group, &in);
    read_strategy(config, group, &in);
    group->zeros = cot_fields_has(&in, "symmetric") && !cot_fields_switch(&in, "symmetric", true);
    group->symmetric = cot_fields_has(&in, "symmetric") && !group->zeros;
    group->reordered = json_is_true(order) ||
                       (ordered && strcasecmp(ordered, "weight") != 0 && strcasecmp(ordered, "static") != 0);
    q->symmetric &= group->symmetric;
    of->status = in.status;
    cot_quantised_read(&group->targets, of, "targets", false);
}

static void check_sparsity(cot_fields *in)
{
    const json_t *sparsity = cot_fields_get(in, "sparsity_config");
    const char *format = json_string_value(json_object_get(sparsity, "format"));
    if (format && strcmp(format, "dense") != 0)
        cot_fields_refuse(in, COT_UNSUPPORTED,
                          "compressed-tensors sparsity '%.40s' is not supported (dense is)", format);
}

/* Which matrices are quantised their tensors tell, and these are held against the rest (cot_stored_hold). */
static void resolve_compressed(cot_config *config, cot_fields *in)
{
    cot_quantisation *q = &config->quantisation;
    const json_t *groups = cot_fields_get(in, "config_groups");
    const size_t count = json_object_size(groups);
    const char *name;
    json_t *group;
    q->method = COT_QUANTISED_COMPRESSED;
    check_compressed_format(in, cot_fields_text(in, "format", "pack-quantized"));
    check_sparsity(in);
    if (cot_fields_has(in, "config_groups") && (!json_is_object(groups) || count > MOST_GROUPS))
        cot_fields_mistyped(in, "config_groups", groups, "an object");
    if (count && in->status == COT_OK && !(q->groups = calloc(count, sizeof *q->groups)))
        cot_fields_refuse(in, COT_OUT_OF_MEMORY, "out of memory");
    q->symmetric = count > 0;
    json_object_foreach((json_t *)(uintptr_t)groups, name, group)
    {
        if (in->status != COT_OK) break;
        cot_fields of = {group, in->name, in->status, in->error};
        read_group(config, group, &of);
        in->status = of.status;
    }
    q->symmetric &= q->group_count > 0;
    cot_quantised_read(&q->ignored, in, "ignore", false);
    const json_t *transform = cot_fields_get(in, "transform_config");
    if (json_object_size(transform))
        cot_fields_refuse(in, COT_UNSUPPORTED, "compressed-tensors with transforms is not supported");
}

/* ---- ModelOpt ---- */

/* What `quant_algo` says of weights; of activations and caches it says more, which is passed over. Those that multiply rows before
 * they are multiplied (..._AWQ, W4A8_...) are not read. */
static void read_algorithm(cot_quantised_group *group, cot_fields *in)
{
    static const struct {
        const char *name;
        int bits; // 0: each module has its own
    } algorithms[] = {{"NVFP4", 4},
                      {"W4A16_NVFP4", 4},
                      {"FP8", 8},
                      {"FP8_PER_CHANNEL_PER_TOKEN", 8},
                      {"MIXED_PRECISION", 0}};
    enum { ALGORITHMS = sizeof algorithms / sizeof *algorithms, NVFP4_GROUP = 16 };
    const char *told = cot_fields_text(in, "quant_algo", NULL);
    size_t a = 0;
    if (!told) {
        cot_fields_refuse(in, COT_MALFORMED, "modelopt without 'quant_algo'");
        return;
    }
    while (a < ALGORITHMS && strcasecmp(told, algorithms[a].name) != 0) a++;
    if (a == ALGORITHMS) {
        cot_fields_refuse(in, COT_UNSUPPORTED,
                          "modelopt quant_algo '%.40s' is not supported (NVFP4, W4A16_NVFP4, FP8, "
                          "FP8_PER_CHANNEL_PER_TOKEN and MIXED_PRECISION are)",
                          told);
        return;
    }
    group->bits = algorithms[a].bits;
    group->floats = true;
    if (group->bits != 4 || !cot_fields_has(in, "group_size")) return;
    const int64_t columns = cot_fields_integer(in, "group_size", NVFP4_GROUP, 0, 1 << 24);
    if (columns != NVFP4_GROUP)
        cot_fields_refuse(in, COT_UNSUPPORTED,
                          "NVFP4 in groups of %" PRId64 " ('group_size') is not supported (16 is)", columns);
}

/* hf_quant_config.json has what it says in a member of its own, config.json has not, and calls `exclude_modules` `ignore`. */
static void resolve_modelopt(cot_config *config, cot_fields *in)
{
    cot_quantisation *q = &config->quantisation;
    const json_t *inside = cot_fields_get(in, "quantization");
    const bool own = cot_fields_has(in, "quantization");
    if (own && !json_is_object(inside)) cot_fields_mistyped(in, "quantization", inside, "an object");
    cot_fields of = {own ? inside : in->object, in->name, in->status, in->error};
    q->method = COT_QUANTISED_MODELOPT;
    q->beside = own;
    if (of.status == COT_OK && !(q->groups = calloc(1, sizeof *q->groups)))
        cot_fields_refuse(&of, COT_OUT_OF_MEMORY, "out of memory");
    if (of.status == COT_OK) read_algorithm(q->groups, &of);
    q->group_count = of.status == COT_OK && q->groups->bits;
    cot_quantised_read(&q->ignored, &of, own ? "exclude_modules" : "ignore", true);
    in->status = of.status;
}

static void resolve_mxfp4(cot_config *config, cot_fields *in)
{
    if (!config->family->stacked)
        cot_fields_refuse(in, COT_UNSUPPORTED, "quantisation 'mxfp4' is not supported in %s",
                          config->family->model_type);
    config->mxfp4 = true;
}

/* By the method that `in` names, else by `method`. */
static void resolve_method(cot_config *config, cot_fields *in, const char *method)
{
    static const struct {
        const char *method;
        void (*resolve)(cot_config *config, cot_fields *in);
    } methods[] = {{"fp8", resolve_fp8},
                   {"mxfp4", resolve_mxfp4},
                   {"gptq", resolve_gptq},
                   {"awq", resolve_awq},
                   {"auto-round", resolve_auto_round},
                   {"compressed-tensors", resolve_compressed},
                   {"modelopt", resolve_modelopt}};
    enum { METHODS = sizeof methods / sizeof *methods };
    method = cot_fields_text(in, "quant_method", method);
    size_t m = 0;
    while (m < METHODS && strcmp(method, methods[m].method) != 0) m++;
    if (m == METHODS)
        cot_fields_refuse(in, COT_UNSUPPORTED,
                          "quantisation '%.40s' is not supported (fp8, mxfp4, gptq, awq, auto-round, "
                          "compressed-tensors and modelopt are)",
                          method);
    else if (config->family->stacked && strcmp(method, "fp8") != 0 && strcmp(method, "mxfp4") != 0)
        cot_fields_refuse(in, COT_UNSUPPORTED, "quantisation '%s' is not supported in %s (fp8 and mxfp4 are)",
                          method, config->family->model_type);
    else
        methods[m].resolve(config, in);
}

void cot_resolve_quantisation(cot_config *config, cot_fields *fields)
{
    const char *key = "quantization_config";
    if (!cot_fields_has(fields, key)) return;
    const json_t *object = cot_fields_get(fields, key);
    if (!json_is_object(object)) {
        cot_fields_mistyped(fields, key, object, "an object or null");
        return;
    }
    cot_fields in = {object, fields->name, fields->status, fields->error};
    config->quantisation.told = true;
    resolve_method(config, &in, cot_fields_has(&in, "quant_algo") ? "modelopt" : "none");
    if (fields->status == COT_OK) fields->status = in.status;
}

void cot_resolve_quantisation_beside(cot_config *config, cot_fields *in, const char *method)
{
    config->quantisation.told = true;
    resolve_method(config, in, method);
}
