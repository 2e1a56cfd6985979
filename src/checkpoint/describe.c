/* What a model's configuration says, read without its weights. */
#include "coterie/model.h"

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/gguf_config.h"
#include "checkpoint/stored.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_CONFIG_BYTES = 16 << 20 };

cot_status cot_model_check(const char *folder, cot_error *error)
{
    struct stat info;
    char unread[256], *config;
    if (stat(folder, &info))
        return cot_fail(error, errno == ENOENT ? COT_NOT_FOUND : COT_IO, "cannot open '%s': %s", folder,
                        strerror(errno));
    if (!S_ISDIR(info.st_mode) && cot_gguf_is_file(folder)) return COT_OK;
    if (!S_ISDIR(info.st_mode))
        return cot_fail(error, COT_MALFORMED, "'%s' is a file, expected a model folder or a GGUF file",
                        folder);
    if (!(config = cot_path_join(folder, "config.json")))
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    const bool there = !stat(config, &info);
    free(config);
    if (there) return COT_OK;
    const bool other = cot_shards_find_unread(unread, folder);
    return cot_fail(error, COT_NOT_FOUND, "'%s' is no model: there is no config.json in it%s%s%s", folder,
                    other ? ", but '" : "", other ? unread : "", other ? cot_shards_advice(unread) : "");
}

static cot_status read_gguf(cot_config *config, const char *path, cot_error *error)
{
    cot_shards shards;
    cot_status status = cot_shards_open_gguf(&shards, path, error);
    if (status == COT_OK) status = cot_config_of_gguf(config, &shards, path, error);
    cot_shards_close(&shards);
    return status;
}

cot_status cot_config_read(cot_config *config, const char *folder, cot_error *error)
{
    if (cot_gguf_is_file(folder)) return read_gguf(config, folder, error);
    char *path = cot_path_join(folder, "config.json"),
         *other = cot_path_join(folder, "generation_config.json");
    char *text = NULL, *generation = NULL;
    size_t bytes = 0, generation_bytes = 0;
    cot_status status = cot_model_check(folder, error);
    if (!path || !other) status = cot_fail(error, COT_OUT_OF_MEMORY, "'%s': out of memory", folder);
    if (status == COT_OK) status = cot_file_read(&text, &bytes, path, MAX_CONFIG_BYTES, error);
    if (status == COT_OK) {
        status = cot_file_read(&generation, &generation_bytes, other, MAX_CONFIG_BYTES, error);
        if (status == COT_NOT_FOUND) status = COT_OK;
    }
    if (status == COT_OK)
        status = cot_config_parse(config, text, bytes, generation, generation_bytes, path, error);
    free(path);
    free(other);
    free(text);
    free(generation);
    return status;
}

static cot_status quantise_by(cot_config *config, const char *folder, const char *name, const char *method,
                              cot_error *error)
{
    char *path = cot_path_join(folder, name), *text = NULL;
    size_t bytes = 0;
    cot_status status = path ? cot_file_read(&text, &bytes, path, MAX_CONFIG_BYTES, error)
                             : cot_fail(error, COT_OUT_OF_MEMORY, "'%s': out of memory", folder);
    if (status == COT_OK) status = cot_config_quantise(config, text, bytes, method, path, error);
    free(path);
    free(text);
    return status;
}

cot_status cot_config_read_beside(cot_config *config, const char *folder, cot_error *error)
{
    static const char gptq[] = "quantize_config.json", awq[] = "quant_config.json";
    cot_config other = {.family = config->family};
    const cot_quantisation *x = &config->quantisation, *y = &other.quantisation;
    cot_status status = quantise_by(config, folder, gptq, "gptq", error);
    const bool first = status == COT_OK;
    if (first || status == COT_NOT_FOUND)
        status = quantise_by(first ? &other : config, folder, awq, "awq", error);
    if (first && status == COT_OK && (x->method != y->method || x->bits != y->bits || x->group != y->group))
        status = cot_fail(error, COT_MALFORMED,
                          "'%s': %s and %s tell two kinds of weights: remove the one that is not theirs",
                          folder, gptq, awq);
    cot_quantisation_clear(&other.quantisation);
    return status == COT_NOT_FOUND ? COT_OK : status;
}

cot_status cot_config_read_modelopt(cot_config *config, const char *folder, cot_error *error)
{
    const cot_status status = quantise_by(config, folder, "hf_quant_config.json", "modelopt", error);
    return status == COT_NOT_FOUND ? COT_OK : status;
}

void cot_config_list_moe_layers(int32_t *layers, const cot_config *config)
{
    for (int64_t l = 0, m = 0; l < config->layers; l++)
        if (config->layer[l].moe) layers[m++] = (int32_t)l;
}

static cot_status describe(cot_model_info *info, const cot_config *c, cot_error *error)
{
    *info = (cot_model_info){.vocab = c->vocab,
                             .hidden = c->hidden,
                             .layers = c->layers,
                             .heads = c->heads,
                             .kv_heads = c->kv_heads,
                             .experts = c->gate.experts,
                             .top_k = c->gate.top_k,
                             .context_tokens = c->max_context,
                             .context_field = c->context_field,
                             .moe_layers = c->moe_layers,
                             .moe_layer = calloc((size_t)c->layers, sizeof *info->moe_layer)};
    if (!info->moe_layer) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a model's layers");
    cot_weight_count(c, &info->parameters, &info->active_parameters);
    memcpy(info->architecture, c->architecture, sizeof info->architecture);
    cot_config_list_moe_layers(info->moe_layer, c);
    return COT_OK;
}

cot_status cot_model_describe(cot_model_info *info, const char *folder, cot_error *error)
{
    cot_config config = {0};
    *info = (cot_model_info){0};
    cot_status status = cot_config_read(&config, folder, error);
    if (status == COT_OK) status = describe(info, &config, error);
    cot_config_clear(&config);
    return status;
}

cot_status cot_model_describe_config(cot_model_info *info, const char *config_json, size_t bytes,
                                     cot_error *error)
{
    cot_config config = {0};
    *info = (cot_model_info){0};
    cot_status status = cot_config_parse(&config, config_json, bytes, NULL, 0, "the configuration", error);
    if (status == COT_OK) status = describe(info, &config, error);
    cot_config_clear(&config);
    return status;
}

void cot_model_info_clear(cot_model_info *info)
{
    free(info->moe_layer);
    *info = (cot_model_info){0};
}
