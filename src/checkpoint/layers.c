/* Which layers are dense and which see a window. */
#include "checkpoint/resolve.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static void find_dense_layers(cot_config *config, cot_fields *fields, const int64_t *sizes)
{
    int64_t first = sizes[COT_SIZE_FIRST_MOE_LAYER], last = sizes[COT_SIZE_LAST_MOE_LAYER],
            step = sizes[COT_SIZE_SPARSE_STEP];
    if (!config->family->sizes[COT_SIZE_LAST_MOE_LAYER].name || last < 0) last = config->layers - 1;
    for (int64_t l = first; l < config->layers; l++) config->layer[l].moe = l <= last && (l + 1) % step == 0;
    const json_t *list = cot_fields_get(fields, "mlp_only_layers");
    if (!config->family->sizes[COT_SIZE_SPARSE_STEP].name || !list || json_is_null(list)) return;
    if (!json_is_array(list)) cot_fields_mistyped(fields, "mlp_only_layers", list, "a list or null");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        int64_t l = json_integer_value(item);
        if (!json_is_integer(item))
            cot_fields_mistyped(fields, "mlp_only_layers", item, "layer numbers");
        else if (l >= 0 && l < config->layers)
            config->layer[l].moe = false;
    }
}

/* A list of a word for each layer, or NULL. */
static const json_t *words_of_layers(const cot_config *config, cot_fields *fields, const char *key)
{
    const json_t *types = cot_fields_get(fields, key);
    if (!types || json_is_null(types)) return NULL;
    if (!json_is_array(types))
        cot_fields_mistyped(fields, key, types, "a list or null");
    else if ((int64_t)json_array_size(types) != config->layers)
        cot_fields_refuse(fields, COT_MALFORMED,
                          "'%s' has %zu entries, expected one for each of %" PRId64 " layers", key,
                          json_array_size(types), config->layers);
    return types;
}

/* layer_types where the family reads it and it is given, else NULL. */
static const json_t *layer_types(const cot_config *config, cot_fields *fields)
{
    const cot_window_rule rule = config->family->window;
    const bool read = rule == COT_WINDOW_TYPES || rule == COT_WINDOW_SWITCHED_TYPES ||
                      rule == COT_WINDOW_ABOVE || rule == COT_WINDOW_BETWEEN;
    return read ? words_of_layers(config, fields, "layer_types") : NULL;
}

/* mlp_layer_types, as transformers 5 writes it in place of numbers. */
static void name_dense_layers(cot_config *config, cot_fields *fields)
{
    const json_t *types = words_of_layers(config, fields, "mlp_layer_types");
    for (int64_t l = 0; types && fields->status == COT_OK && l < config->layers; l++) {
        const char *type = json_string_value(json_array_get(types, (size_t)l));
        config->layer[l].moe = type && !strcmp(type, "sparse");
        if (!type || (strcmp(type, "sparse") != 0 && strcmp(type, "dense") != 0))
            cot_fields_refuse(fields, COT_UNSUPPORTED,
                              "'mlp_layer_types' has '%.40s', which is not supported (dense and sparse are)",
                              type ? type : "?");
    }
}

static bool type_slides(cot_fields *fields, const json_t *types, int64_t layer)
{
    const char *type = json_string_value(json_array_get(types, (size_t)layer));
    bool slides = type && !strcmp(type, "sliding_attention");
    if (!slides && (!type || strcmp(type, "full_attention") != 0))
        cot_fields_refuse(fields, COT_UNSUPPORTED,
                          "layer type '%.40s' is not supported (full_attention and sliding_attention are)",
                          type ? type : "?");
    return slides;
}

static void find_windows(cot_config *config, cot_fields *fields, int64_t window, int64_t below)
{
    cot_window_rule rule = config->family->window;
    bool switched = rule == COT_WINDOW_SWITCHED || rule == COT_WINDOW_SWITCHED_TYPES;
    bool null = cot_fields_get(fields, "sliding_window") && !cot_fields_has(fields, "sliding_window");
    bool on = rule != COT_WINDOW_NEVER;
    if (switched) on = cot_fields_switch(fields, "use_sliding_window", false);
    if (rule == COT_WINDOW_SWITCHED) on = on && !null;
    if (rule == COT_WINDOW_ALL || rule == COT_WINDOW_ABOVE) on = cot_fields_has(fields, "sliding_window");
    const json_t *types = layer_types(config, fields);
    for (int64_t l = 0; l < config->layers && fields->status == COT_OK; l++) {
        bool slides = on;
        if (types)
            slides = type_slides(fields, types, l);
        else if (rule == COT_WINDOW_TYPES)
            slides = l % 2 == 0;
        else if (rule == COT_WINDOW_SWITCHED_TYPES)
            slides = on && l % 2 == 0 && l < below;
        else if (rule == COT_WINDOW_BETWEEN)
            slides = !below || (l + 1) % below != 0;
        else if (rule == COT_WINDOW_ABOVE)
            slides = on && l >= below;
        if (slides && !on && switched)
            cot_fields_refuse(fields, COT_MALFORMED,
                              "'layer_types' lets layer %" PRId64 " slide, use_sliding_window does not", l);
        if (slides && window < 1)
            cot_fields_refuse(fields, COT_MALFORMED,
                              "'sliding_window' is %s, expected 1 token or more, since layer %" PRId64
                              " slides",
                              null                                       ? "null"
                              : cot_fields_get(fields, "sliding_window") ? "0"
                                                                         : "missing",
                              l);
        config->layer[l].mixer = config->attention == COT_ATTENTION_MLA ? COT_MIXER_MLA
                                 : slides                               ? COT_MIXER_SLIDING
                                                                        : COT_MIXER_FULL;
        config->layer[l].window = slides ? window : 0;
        config->layer[l].unrotated = config->family->unrotated && !slides;
    }
}

/* Those of type linear_attention have a state, else all but every so many-th. */
static void find_states(cot_config *config, cot_fields *fields, int64_t interval)
{
    const json_t *types = words_of_layers(config, fields, "layer_types");
    for (int64_t l = 0; l < config->layers && fields->status == COT_OK; l++) {
        const char *type = types ? json_string_value(json_array_get(types, (size_t)l)) : NULL;
        const bool state = types ? type && !strcmp(type, "linear_attention") : (l + 1) % interval != 0;
        if (types && !state && (!type || strcmp(type, "full_attention") != 0))
            cot_fields_refuse(fields, COT_UNSUPPORTED,
                              "layer type '%.40s' is not supported (full_attention and linear_attention are)",
                              type ? type : "?");
        if (state) config->layer[l].mixer = COT_MIXER_DELTA;
    }
}

/* Layers are numbered by what they keep. */
static void number_layers(cot_config *config, cot_fields *fields)
{
    for (int64_t l = 0; l < config->layers; l++) {
        cot_layer_config *layer = &config->layer[l];
        layer->kept = layer->mixer == COT_MIXER_DELTA ? config->state_layers++ : config->key_layers++;
    }
    if (!config->key_layers)
        cot_fields_refuse(fields, COT_UNSUPPORTED,
                          "none of %" PRId64 " layers is of type full_attention, which is not supported",
                          config->layers);
}

void cot_resolve_layers(cot_config *config, cot_fields *fields, const int64_t *sizes)
{
    if (fields->status != COT_OK) return;
    config->layer = calloc((size_t)config->layers, sizeof *config->layer);
    if (!config->layer) {
        cot_fields_refuse(fields, COT_OUT_OF_MEMORY, "out of memory");
        return;
    }
    find_dense_layers(config, fields, sizes);
    name_dense_layers(config, fields);
    find_windows(config, fields, sizes[COT_SIZE_WINDOW], sizes[COT_SIZE_WINDOW_LAYERS]);
    if (config->delta.values) find_states(config, fields, sizes[COT_SIZE_FULL_INTERVAL]);
    number_layers(config, fields);
    for (int64_t l = 0; l < config->layers; l++) config->moe_layers += config->layer[l].moe;
}
