#include "checkpoint/gguf_config.h"

#include "base/error.h"
#include "checkpoint/family.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { KEY = 160 };

/* Metadata on their way to config.json's words. The first thing that is wrong stays in `status`. */
typedef struct translation {
    const cot_gguf *file;
    const char *name, *architecture;
    const cot_family *family;
    json_t *config;
    cot_status status;
    cot_error *error;
} translation;

static void refuse(translation *t, cot_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4), cold));

static void refuse(translation *t, cot_status status, const char *format, ...)
{
    char text[220];
    va_list args;
    if (t->status != COT_OK) return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    t->status = cot_fail(t->error, status, "'%s': %s", t->name, text);
}

static void put(translation *t, const char *field, json_t *value)
{
    if (t->status != COT_OK)
        json_decref(value);
    else if (json_object_set_new(t->config, field, value))
        refuse(t, COT_OUT_OF_MEMORY, "out of memory");
}

/* ---- values ---- */

static const cot_gguf_pair *find(const translation *t, const char *suffix, char key[KEY])
{
    snprintf(key, KEY, "%s.%s", t->architecture, suffix);
    return cot_gguf_find(t->file, key);
}

static bool is_whole(cot_gguf_type type)
{
    return type <= COT_GGUF_I32 || type == COT_GGUF_U64 || type == COT_GGUF_I64;
}

/* A whole number, or one for each layer, which must be the same: others cannot be said in config.json. */
static int64_t whole(translation *t, const char *suffix, int64_t absent)
{
    char key[KEY], layers[KEY];
    const cot_gguf_pair *pair = find(t, suffix, key), *blocks = find(t, "block_count", layers);
    if (!pair && absent == COT_REQUIRED) refuse(t, COT_MALFORMED, "its metadata lack '%s'", key);
    if (!pair) return absent;
    const double first = pair->count ? cot_gguf_number(pair, 0) : -1;
    if (!is_whole(pair->type)) {
        refuse(t, COT_MALFORMED, "'%s' is no whole number", key);
        return 0;
    }
    if (pair->array && (!blocks || blocks->array || (double)pair->count != cot_gguf_number(blocks, 0)))
        refuse(t, COT_MALFORMED, "'%s' is a list of %zu, expected a number, or one for each layer", key,
               pair->count);
    for (size_t i = 1; i < pair->count; i++)
        if (cot_gguf_number(pair, i) != first)
            refuse(t, COT_UNSUPPORTED, "'%s' is not the same in all layers, which is not supported", key);
    if (first < 0 || first > INT32_MAX)
        refuse(t, COT_MALFORMED, "'%s' is %.0f, expected a whole number from 0 to %d", key, first, INT32_MAX);
    return t->status == COT_OK ? (int64_t)first : 0;
}

/* COT_REQUIRED where it may not be left out. */
static double number(translation *t, const char *suffix, double absent)
{
    char key[KEY];
    const cot_gguf_pair *pair = find(t, suffix, key);
    if (!pair && absent == (double)COT_REQUIRED) refuse(t, COT_MALFORMED, "its metadata lack '%s'", key);
    if (!pair) return absent;
    const double value = pair->count ? cot_gguf_number(pair, 0) : NAN;
    if (pair->array || pair->type == COT_GGUF_STRING || pair->type == COT_GGUF_BOOL || !isfinite(value)) {
        refuse(t, COT_MALFORMED, "'%s' is no number", key);
        return absent;
    }
    return value;
}

static bool yes(translation *t, const char *suffix, bool absent)
{
    char key[KEY];
    const cot_gguf_pair *pair = find(t, suffix, key);
    if (!pair) return absent;
    if (pair->array || pair->type != COT_GGUF_BOOL)
        refuse(t, COT_MALFORMED, "'%s' is neither true nor false", key);
    return cot_gguf_number(pair, 0) != 0;
}

/* A string by its whole key, into `out`; false where there is none. */
static bool text(translation *t, char *out, size_t room, const char *key)
{
    const cot_gguf_pair *pair = cot_gguf_find(t->file, key);
    const uint8_t *at = NULL;
    if (!pair) return false;
    if (pair->array || pair->type != COT_GGUF_STRING) {
        refuse(t, COT_MALFORMED, "'%s' is no string", key);
        return false;
    }
    const cot_gguf_string s = cot_gguf_next_string(pair, &at);
    snprintf(out, room, "%.*s", (int)(s.bytes < room ? s.bytes : room), s.data);
    return true;
}

/* ---- which model it is ---- */

static void refuse_other_kinds(translation *t)
{
    static const struct {
        const char *type, *what;
    } kinds[] = {{"mmproj", "a vision projector"}, {"imatrix", "an importance matrix"},
                 {"adapter", "an adapter (LoRA)"}, {"clip-vision", "a vision projector"},
                 {"vocab", "a vocabulary"},        {"controlvector", "a control vector"}};
    char type[KEY] = "";
    text(t, type, sizeof type, "general.type");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(type, kinds[i].type))
            refuse(t, COT_UNSUPPORTED, "it is %s, not a model that is run", kinds[i].what);
}

static void find_family(translation *t, char architecture[KEY])
{
    refuse_other_kinds(t);
    if (!text(t, architecture, KEY, "general.architecture"))
        refuse(t, COT_MALFORMED, "its metadata lack 'general.architecture'");
    if (t->status != COT_OK) return;
    t->architecture = architecture;
    if (!strcmp(architecture, "clip"))
        refuse(t, COT_UNSUPPORTED, "it is a vision projector, not a model that is run");
    const int64_t gate = whole(t, "expert_gating_func", 0);
    t->family = cot_family_of_gguf(architecture, gate == 2 ? COT_GATE_SIGMOID : COT_GATE_SOFTMAX);
    if (!t->family)
        refuse(t, COT_UNSUPPORTED, "unknown architecture '%.80s' (see coterie models)", architecture);
    else if (!whole(t, "expert_count", 0))
        refuse(t, COT_UNSUPPORTED, "it is a dense model ('%.80s' without experts), which is not run",
               architecture);
    else if (gate < 0 || gate > 2 || (gate == 2 && t->family->score != COT_GATE_SIGMOID))
        refuse(t, COT_UNSUPPORTED, "expert_gating_func %" PRId64 " of '%.80s' is not supported", gate,
               architecture);
}

/* ---- its numbers ---- */

/* What a number is where no key tells it. */
static int64_t absent_size(translation *t, cot_size_field size)
{
    switch (size) {
    case COT_SIZE_KV_HEADS:
        return whole(t, cot_family_gguf_key(COT_SIZE_HEADS), COT_REQUIRED);
    case COT_SIZE_HEAD_DIM: {
        const int64_t heads = whole(t, cot_family_gguf_key(COT_SIZE_HEADS), COT_REQUIRED);
        return heads ? whole(t, cot_family_gguf_key(COT_SIZE_HIDDEN), COT_REQUIRED) / heads : 0;
    }
    case COT_SIZE_MOE_INTERMEDIATE:
        return whole(t, cot_family_gguf_key(COT_SIZE_DENSE_INTERMEDIATE), COT_REQUIRED);
    case COT_SIZE_SHARED_EXPERTS:
    case COT_SIZE_FIRST_MOE_LAYER:
    case COT_SIZE_WINDOW:
    case COT_SIZE_Q_LORA:
        return 0;
    case COT_SIZE_GROUPS:
    case COT_SIZE_GROUP_LIMIT:
        return 1;
    default:
        return COT_REQUIRED;
    }
}

static void put_sizes(translation *t)
{
    for (int s = 0; s < COT_SIZES && t->status == COT_OK; s++) {
        const cot_size_field size = (cot_size_field)s;
        const char *field = t->family->sizes[s].name, *key = cot_family_gguf_key(size);
        char whole_key[KEY];
        if (!field || !key) continue;
        int64_t value = find(t, key, whole_key) ? 0 : absent_size(t, size);
        if (find(t, key, whole_key) || value == COT_REQUIRED) value = whole(t, key, COT_REQUIRED);
        const bool none =
            !value && t->family->sizes[s].nullable && size != COT_SIZE_KV_HEADS && size != COT_SIZE_HEAD_DIM;
        if (size == COT_SIZE_LAYERS)
            value -= whole(t, "nextn_predict_layers", 0); // these foretell tokens, and are not run
        if (!value && (size == COT_SIZE_KV_HEADS || size == COT_SIZE_HEAD_DIM))
            refuse(t, COT_MALFORMED, "'%s' is 0", whole_key);
        put(t, field, none ? json_null() : json_integer(value));
    }
}

/* Rows of the embedding must be the vocabulary's tokens. */
static void put_vocabulary(translation *t)
{
    const cot_gguf_pair *tokens = cot_gguf_find(t->file, "tokenizer.ggml.tokens");
    if (!tokens)
        refuse(t, COT_MALFORMED, "its metadata lack 'tokenizer.ggml.tokens'");
    else if (!tokens->array || tokens->type != COT_GGUF_STRING)
        refuse(t, COT_MALFORMED, "'tokenizer.ggml.tokens' is no list of strings");
    else
        put(t, t->family->sizes[COT_SIZE_VOCAB].name, json_integer((json_int_t)tokens->count));
}

static int64_t token(translation *t, const char *key)
{
    const cot_gguf_pair *pair = cot_gguf_find(t->file, key);
    if (!pair) return -1;
    if (pair->array || !is_whole(pair->type)) {
        refuse(t, COT_MALFORMED, "'%s' is no whole number", key);
        return -1;
    }
    const double id = cot_gguf_number(pair, 0);
    return id >= 0 && id < (double)INT32_MAX ? (int64_t)id : -1; // -1 stands for none
}

/* What ends an answer: the end of a text, of a turn, of a message. */
static void put_tokens(translation *t)
{
    static const char *const ends[] = {"eos", "eot", "eom"};
    json_t *list = json_array();
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        char key[KEY];
        snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", ends[i]);
        const int64_t id = token(t, key);
        if (id >= 0) json_array_append_new(list, json_integer(id));
    }
    const int64_t begin = token(t, "tokenizer.ggml.bos_token_id");
    put(t, "eos_token_id", list);
    if (begin >= 0) put(t, "bos_token_id", json_integer(begin));
}

/* MLA's widths: of a head with its nope part whole, or, in older files, without the keys that end in _mla. */
static void put_mla(translation *t)
{
    const int64_t rope = whole(t, "rope.dimension_count", COT_REQUIRED),
                  old_key = whole(t, "attention.key_length", COT_REQUIRED),
                  old_value = whole(t, "attention.value_length", COT_REQUIRED);
    const int64_t key = whole(t, "attention.key_length_mla", old_key),
                  value = whole(t, "attention.value_length_mla", old_value);
    put(t, "qk_nope_head_dim", json_integer(key - rope));
    put(t, "v_head_dim", json_integer(value));
}

static void put_gqa(translation *t)
{
    const int64_t width = json_integer_value(json_object_get(t->config, "head_dim"));
    const int64_t value = whole(t, "attention.value_length", width),
                  turned = whole(t, "rope.dimension_count", width);
    if (value != width)
        refuse(t, COT_UNSUPPORTED,
               "values of %" PRId64 " numbers beside keys of %" PRId64 " are not supported", value, width);
    if (t->family->rotary_dim)
        put(t, "rotary_dim", json_integer(turned));
    else if (t->family->rotary != 0)
        put(t, "partial_rotary_factor", json_real((double)turned / (double)width));
    else if (turned != width)
        refuse(t, COT_UNSUPPORTED, "RoPE over %" PRId64 " of a head's %" PRId64 " numbers is not supported",
               turned, width);
}

static void put_gate(translation *t)
{
    const cot_family *family = t->family;
    const double scale = number(t, "expert_weights_scale", 1);
    if (family->scaling != 0) put(t, "routed_scaling_factor", json_real(scale != 0 ? scale : 1)); // 0: none
    if (family->scoring_func) {
        put(t, "norm_topk_prob", json_boolean(yes(t, "expert_weights_norm", false)));
        const bool groups = whole(t, "expert_group_count", 1) > 1 || !family->plain_method;
        put(t, "topk_method", json_string(groups ? family->group_method : family->plain_method));
    }
}

static void put_rope(translation *t)
{
    char key[KEY], type[40] = "none";
    snprintf(key, sizeof key, "%s.rope.scaling.type", t->architecture);
    const double factor = number(t, "rope.scaling.factor", 0);
    if (!text(t, type, sizeof type, key) && factor != 0) snprintf(type, sizeof type, "linear");
    put(t, "rope_theta", json_real(number(t, "rope.freq_base", 10000)));
    if (!strcmp(type, "none")) {
        if (t->family->default_rope) put(t, "rope_scaling", json_pack("{s:s}", "rope_type", "default"));
        return;
    }
    json_t *rope = json_pack("{s:s, s:f}", "rope_type", type, "factor", factor);
    if (!strcmp(type, "yarn")) {
        const double log_factor = number(t, "rope.scaling.yarn_log_multiplier", 0),
                     own = number(t, "rope.scaling.attn_factor", 1);
        const int64_t original = whole(t, "rope.scaling.original_context_length", 0);
        if (original) json_object_set_new(rope, "original_max_position_embeddings", json_integer(original));
        json_object_set_new(rope, "beta_fast", json_real(number(t, "rope.scaling.yarn_beta_fast", 32)));
        json_object_set_new(rope, "beta_slow", json_real(number(t, "rope.scaling.yarn_beta_slow", 1)));
        if (!strcmp(t->architecture, "gpt-oss")) json_object_set_new(rope, "truncate", json_false());
        if (log_factor != 0) { // 0.1 times mscale_all_dim, which mscale is taken to be, too
            json_object_set_new(rope, "mscale", json_real(10 * log_factor));
            json_object_set_new(rope, "mscale_all_dim", json_real(10 * log_factor));
        }
        if (own != 1) json_object_set_new(rope, "attention_factor", json_real(own * (1 + 0.1 * log(factor))));
    }
    put(t, "rope_scaling", rope);
}

/* Whether a layer has a tensor of one of the names that stand between spaces. */
static bool has_in_a_layer(const cot_shards *shards, const char *names)
{
    for (size_t i = 0; i < shards->tensor_count; i++) {
        int at = 0;
        char name[64];
        if (sscanf(shards->tensors[i].tensor->name, "blk.%*d.%n", &at) != 0 || !at) continue;
        const int n = snprintf(name, sizeof name, " %s ", shards->tensors[i].tensor->name + at);
        if (n < (int)sizeof name && strstr(names, name)) return true;
    }
    return false;
}

/* Attention has biases, and norms of q and k, where any layer has one: what other layers, or q, k or v, lack of them is missing then. */
static void put_parts(translation *t, const cot_shards *shards)
{
    const bool biased = has_in_a_layer(shards, " attn_q.bias attn_k.bias attn_v.bias attn_qkv.bias ");
    if (t->family->qkv_bias.name) put(t, t->family->qkv_bias.name, json_boolean(biased));
    if (t->family->qk_normed.name)
        put(t, t->family->qk_normed.name,
            json_boolean(has_in_a_layer(shards, " attn_q_norm.weight attn_k_norm.weight ")));
}

/* Each frequency is divided by a number of its own. */
static void divide_frequencies(translation *t, cot_config *config, const cot_shards *shards)
{
    const cot_shard_tensor *found = cot_shards_find(shards, "rope_freqs.weight");
    if (!found) return;
    const cot_tensor *divisors = found->tensor;
    const int64_t half = config->rope_width / 2;
    if (divisors->blocks || divisors->dtype != COT_F32 || cot_tensor_elements(divisors) != half)
        refuse(t, COT_MALFORMED, "tensor 'rope_freqs.weight' is not of %" PRId64 " numbers in F32", half);
    for (int64_t i = 0; i < half && t->status == COT_OK; i++) {
        float divisor;
        memcpy(&divisor, (const uint8_t *)divisors->data + 4 * i, 4);
        config->inverse_frequency[i] /= divisor;
        if (!(divisor > 0) || !isfinite(config->inverse_frequency[i]))
            refuse(t, COT_MALFORMED, "tensor 'rope_freqs.weight' holds %g", (double)divisor);
    }
}

/* `architecture` is what t->architecture points to. */
static void translate(translation *t, char architecture[KEY], const cot_shards *shards)
{
    find_family(t, architecture);
    if (t->status == COT_OK && !(t->config = json_loads(t->family->gguf.config, 0, NULL)))
        refuse(t, COT_OUT_OF_MEMORY, "out of memory");
    if (t->status != COT_OK) return;
    put(t, "architectures", json_pack("[s]", cot_family_architecture(t->family)));
    put_sizes(t);
    put_vocabulary(t);
    put_tokens(t);
    if (t->family->attention == COT_ATTENTION_MLA)
        put_mla(t);
    else
        put_gqa(t);
    put_gate(t);
    put_rope(t);
    put_parts(t, shards);
    put(t, "rms_norm_eps", json_real(number(t, "attention.layer_norm_rms_epsilon", (double)COT_REQUIRED)));
    put(t, "tie_word_embeddings", json_boolean(!cot_shards_find(shards, "output.weight")));
}

cot_status cot_config_tell_gguf(json_t **told, const cot_shards *shards, const char *name, cot_error *error)
{
    char architecture[KEY] = "";
    translation t = {.file = &shards->parts[0], .name = name, .error = error};
    translate(&t, architecture, shards);
    if (t.status == COT_OK) put(&t, "model_type", json_string(t.family->model_type));
    *told = t.status == COT_OK ? t.config : NULL;
    if (!*told) json_decref(t.config);
    return t.status;
}

cot_status cot_config_of_gguf(cot_config *config, const cot_shards *shards, const char *name,
                              cot_error *error)
{
    char architecture[KEY] = "";
    translation t = {.file = &shards->parts[0], .name = name, .error = error};
    *config = (cot_config){0};
    translate(&t, architecture, shards);
    if (t.status == COT_OK) t.status = cot_config_resolve(config, t.config, NULL, name, error);
    if (t.status == COT_OK) {
        config->gguf = true;
        config->rope_interleaved |= t.family->gguf.pairs;
        divide_frequencies(&t, config, shards);
    }
    json_decref(t.config);
    if (t.status != COT_OK) cot_config_clear(config);
    return t.status;
}
