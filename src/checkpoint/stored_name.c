/* How files may spell the names of tensors: the family's own (family.h), that of a base model, which lacks "model.", or of a head put
 * into it, those that one family's packers took over from another, and those of a model of texts in one that sees more. */
#include "checkpoint/stored.h"

#include <inttypes.h>
#include <stdio.h>

void cot_stored_name(char out[COT_STORED_NAME], const cot_config *config, cot_weight weight, int64_t layer,
                     int64_t expert, const char *suffix)
{
    const char *template = config->gguf ? cot_weight_gguf_template(config->family, weight)
                                        : cot_weight_template(config->family, weight);
    size_t at = 0;
    while (*template && at + 24 < COT_STORED_NAME) {
        bool is_layer = !strncmp(template, "{layer}", 7), is_expert = !strncmp(template, "{expert}", 8);
        if (is_layer || is_expert) {
            at += (size_t)snprintf(out + at, COT_STORED_NAME - at, "%" PRId64, is_layer ? layer : expert);
            template += is_layer ? 7 : 8;
        } else {
            out[at++] = *template ++;
        }
    }
    snprintf(out + at, COT_STORED_NAME - at, "%s", suffix);
}

/* Puts `to` in place of the first `from`, if there is one. */
static bool replace(char name[COT_STORED_NAME], const char *from, const char *to)
{
    char rest[COT_STORED_NAME];
    char *at = strstr(name, from);
    if (!at) return false;
    strcpy(rest, at + strlen(from));
    snprintf(at, COT_STORED_NAME - (size_t)(at - name), "%s%s", to, rest);
    return true;
}

static bool exchange(char name[COT_STORED_NAME], const char *one, const char *other)
{
    return replace(name, one, other) || replace(name, other, one);
}

/* transformers 5's names in place of a family's own. */
static bool rename_part(char name[COT_STORED_NAME])
{
    static const char *const parts[][2] = {
        {".mlp.router.gate.", ".mlp.gate."}, // Hunyuan 3
        {".mlp.expert_bias", ".mlp.e_score_correction_bias"},
        {".mlp.shared_mlp.", ".mlp.shared_experts."},
        {".mlp.moe_statics.", ".mlp.gate.moe_statics."},                  // ERNIE 4.5
        {".block_sparse_moe.router.layer.", ".block_sparse_moe.router."}, // Granite
        {".block_sparse_moe.input_linear.weight", ".block_sparse_moe.experts.gate_up_proj"},
        {".block_sparse_moe.output_linear.weight", ".block_sparse_moe.experts.down_proj"},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (replace(name, parts[i][0], parts[i][1])) return true;
    return false;
}

/* A model of texts in a wider one: "language_model." before all, or (`inside`) behind "model." of all but the head. */
static void nest(char name[COT_STORED_NAME], bool inside)
{
    const size_t model = strlen("model.");
    char rest[COT_STORED_NAME];
    if (inside && strncmp(name, "model.", model) != 0) return;
    strcpy(rest, name + (inside ? model : 0));
    snprintf(name, COT_STORED_NAME, "%slanguage_model.%.*s", inside ? "model." : "", COT_STORED_NAME - 24,
             rest);
}

bool cot_stored_spelling(char out[COT_STORED_NAME], const char *name, int way)
{
    const bool other_prefix = way & 1, other_block = way & 2, other_parts = way & 4;
    const size_t prefix = strlen("model.");
    const bool inside = !strncmp(name, "model.", prefix);
    snprintf(out, COT_STORED_NAME, "%s%s", other_prefix && !inside ? "model." : "",
             other_prefix && inside ? name + prefix : name);
    if (other_block && !exchange(out, ".mlp.", ".block_sparse_moe.")) return false;
    if (other_parts && !rename_part(out) && !exchange(out, ".mlp.gate.", ".mlp.router.") &&
        !(strstr(out, ".experts.") &&
          (exchange(out, ".gate_proj.", ".w1.") || exchange(out, ".up_proj.", ".w3.") ||
           exchange(out, ".down_proj.", ".w2."))))
        return false;
    if (way >= COT_STORED_NESTED) nest(out, way >= 2 * COT_STORED_NESTED);
    return true;
}
