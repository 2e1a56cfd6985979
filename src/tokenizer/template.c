#include "tokenizer/template.h"

#include "base/error.h"

#include <inttypes.h>

typedef struct loading {
    cot_template *out;
    const cot_vocab *vocab;
} loading;

static cot_status append_ids(cot_buffer *ids, const cot_vocab *vocab, cot_text name, const json_t *specials,
                             cot_error *error)
{
    const json_t *list = json_object_get(json_object_getn(specials, name.data, name.bytes), "ids");
    if (!json_is_array(list))
        return cot_fail(error, COT_MALFORMED, "the template has no ids for special token '%s'", name.data);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        if (!json_is_integer(item) || !cot_vocab_entry_of(vocab, json_integer_value(item)))
            return cot_fail(error, COT_MALFORMED,
                            "the template's id %" PRId64 " of '%s' is not in the vocabulary",
                            (int64_t)json_integer_value(item), name.data);
        int32_t id = (int32_t)json_integer_value(item);
        if (!cot_buffer_append(ids, &id, sizeof id))
            return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    }
    return COT_OK;
}

/* One entry of "single": the text, or a special token before or after it. */
static cot_status load_entry(loading *l, const json_t *entry, const json_t *specials, cot_buffer parts[2],
                             int *sequences, cot_error *error)
{
    const json_t *special = json_object_get(entry, "SpecialToken"),
                 *sequence = json_object_get(entry, "Sequence");
    cot_text name;
    if (!special == !sequence)
        return cot_fail(error, COT_MALFORMED,
                        "an entry of the template is neither a SpecialToken nor a Sequence");
    cot_status status = cot_field_text_needed(&name, special ? special : sequence, "id", "template", error);
    if (status != COT_OK) return status;
    if (special) return append_ids(parts + (*sequences > 0), l->vocab, name, specials, error);
    if (!cot_text_is(name, "A") || ++*sequences > 1)
        return cot_fail(error, COT_UNSUPPORTED,
                        "a template for one text that has sequence '%s' or has it twice", name.data);
    return COT_OK;
}

static cot_status load_template(loading *l, const json_t *json, cot_error *error)
{
    const json_t *single = json_object_get(json, "single"),
                 *specials = json_object_get(json, "special_tokens");
    cot_buffer parts[2] = {{0}, {0}}; // before and after the text
    int sequences = 0;
    cot_status status = COT_OK;
    if (!json_is_array(single))
        return cot_fail(error, COT_MALFORMED, "'single' of the template is not a list");
    for (size_t i = 0; i < json_array_size(single) && status == COT_OK; i++)
        status = load_entry(l, json_array_get(single, i), specials, parts, &sequences, error);
    if (status == COT_OK && !sequences)
        status = cot_fail(error, COT_UNSUPPORTED, "a template without the text");
    // The templates of a Sequence wrap one another, the first innermost.
    if (status == COT_OK && (!cot_buffer_append(parts, l->out->before.data, l->out->before.bytes) ||
                             !cot_buffer_append(&l->out->after, parts[1].data, parts[1].bytes)))
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    if (status == COT_OK) {
        cot_buffer swapped = l->out->before;
        l->out->before = parts[0];
        parts[0] = swapped;
    }
    cot_buffer_free(parts);
    cot_buffer_free(parts + 1);
    return status;
}

static cot_status load_step(void *context, const json_t *json, const char *type, cot_error *error)
{
    if (!strcmp(type, "ByteLevel")) return COT_OK; // it moves offsets alone, which we do not give
    if (!strcmp(type, "TemplateProcessing")) return load_template(context, json, error);
    return cot_fail(error, COT_UNSUPPORTED, "post-processor type '%s' is not supported", type);
}

cot_status cot_template_load(cot_template *out, const cot_vocab *vocab, const json_t *json, cot_error *error)
{
    *out = (cot_template){0};
    return cot_field_steps(json, "post-processor", "processors", load_step, &(loading){out, vocab}, error);
}

void cot_template_close(cot_template *out)
{
    cot_buffer_free(&out->before);
    cot_buffer_free(&out->after);
}
