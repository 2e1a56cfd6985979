#include "tokenizer/bpe.h"

#include "base/error.h"
#include "base/rng.h"
#include "tokenizer/utf8.h"

#include <stdio.h>

static cot_status load_vocab(cot_vocab *vocab, json_t *object, cot_error *error)
{
    if (!json_is_object(object)) return cot_fail(error, COT_MALFORMED, "the model has no 'vocab' object");
    cot_status status = cot_vocab_open(vocab, json_object_size(object), error);
    for (void *i = json_object_iter(object); i && status == COT_OK; i = json_object_iter_next(object, i)) {
        const char *text = json_object_iter_key(i);
        const json_t *id = json_object_iter_value(i);
        if (!json_is_integer(id))
            status = cot_fail(error, COT_MALFORMED, "the id of token '%s' is not an integer", text);
        else
            status =
                cot_vocab_put(vocab, json_integer_value(id), text, json_object_iter_key_len(i), false, error);
    }
    return status;
}

/* The two strings of a merge: ["a", "b"] or "a b". */
static bool merge_parts(const json_t *merge, cot_text parts[2])
{
    if (json_is_array(merge)) {
        if (json_array_size(merge) != 2) return false;
        for (size_t i = 0; i < 2; i++) {
            const json_t *part = json_array_get(merge, i);
            if (!json_is_string(part)) return false;
            parts[i] = (cot_text){json_string_value(part), json_string_length(part)};
        }
        return true;
    }
    if (!json_is_string(merge)) return false;
    const char *text = json_string_value(merge), *end = text + json_string_length(merge);
    const char *space = memchr(text, ' ', (size_t)(end - text));
    if (!space || memchr(space + 1, ' ', (size_t)(end - space - 1))) return false;
    parts[0] = (cot_text){text, (size_t)(space - text)};
    parts[1] = (cot_text){space + 1, (size_t)(end - space - 1)};
    return true;
}

cot_status cot_bpe_open(cot_bpe *bpe, size_t merges, cot_error *error)
{
    if (merges > UINT32_MAX / 2) return cot_fail(error, COT_MALFORMED, "the model has %zu merges", merges);
    for (bpe->mask = 63; bpe->mask / 2 < merges;) bpe->mask = bpe->mask * 2 + 1;
    bpe->merges = malloc((bpe->mask + 1) * sizeof *bpe->merges);
    if (!bpe->merges) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    for (size_t i = 0; i <= bpe->mask; i++) bpe->merges[i] = (cot_bpe_merge){.pair = UINT64_MAX};
    return COT_OK;
}

void cot_bpe_put(cot_bpe *bpe, int32_t left, int32_t right, uint32_t rank, int32_t id)
{
    const uint64_t pair = (uint64_t)left << 32 | (uint32_t)right;
    size_t slot = cot_mix64(pair) & bpe->mask;
    while (bpe->merges[slot].pair != UINT64_MAX && bpe->merges[slot].pair != pair)
        slot = (slot + 1) & bpe->mask;
    bpe->merges[slot] = (cot_bpe_merge){pair, rank, id};
}

static cot_status put_merge(cot_bpe *bpe, const cot_vocab *vocab, const cot_text parts[2], uint32_t rank,
                            cot_buffer *joined, cot_error *error)
{
    joined->bytes = 0;
    if (!cot_buffer_append(joined, parts[0].data, parts[0].bytes) ||
        !cot_buffer_append(joined, parts[1].data, parts[1].bytes))
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    int32_t left = cot_vocab_find(vocab, parts[0].data, parts[0].bytes);
    int32_t right = cot_vocab_find(vocab, parts[1].data, parts[1].bytes);
    int32_t id = cot_vocab_find(vocab, joined->data, joined->bytes);
    if (left < 0 || right < 0 || id < 0) {
        const cot_text absent = left < 0    ? parts[0]
                                : right < 0 ? parts[1]
                                            : (cot_text){joined->data, joined->bytes};
        return cot_fail(error, COT_MALFORMED, "merge %u names '%.*s', which is not in the vocabulary", rank,
                        (int)(absent.bytes < 64 ? absent.bytes : 64), absent.data);
    }
    cot_bpe_put(bpe, left, right, rank, id);
    return COT_OK;
}

static cot_bpe_edges edges_of(const char *text, size_t bytes)
{
    size_t first = 0, last = bytes;
    if (!bytes) return (cot_bpe_edges){-1, -1};
    return (cot_bpe_edges){cot_utf8_next(text, &first), cot_utf8_previous(text, &last)};
}

static cot_status load_seams(cot_bpe *bpe, const cot_vocab *vocab, cot_error *error)
{
    bpe->edges = malloc((vocab->size + 1) * sizeof *bpe->edges);
    if (!bpe->edges) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    for (size_t id = 0; id < vocab->size; id++) {
        const cot_vocab_entry *entry = vocab->entries + id;
        bpe->edges[id] = edges_of(entry->used ? vocab->strings.data + entry->offset : NULL, entry->bytes);
    }
    for (size_t i = 0; i <= bpe->mask; i++) {
        uint64_t pair = bpe->merges[i].pair;
        if (pair == UINT64_MAX) continue;
        size_t seam = cot_bpe_seam(bpe->edges[pair >> 32].last, bpe->edges[(uint32_t)pair].first);
        bpe->seams[seam / 64] |= UINT64_C(1) << seam % 64;
    }
    return COT_OK;
}

static cot_status load_merges(cot_bpe *bpe, const cot_vocab *vocab, const json_t *list, cot_error *error)
{
    if (!json_is_array(list)) return cot_fail(error, COT_MALFORMED, "the model has no 'merges' list");
    size_t count = json_array_size(list);
    cot_status status = cot_bpe_open(bpe, count, error);
    if (status != COT_OK) return status;
    cot_buffer joined = {0};
    uint32_t rank = 0;
    for (size_t i = 0; i < count && status == COT_OK; i++) {
        cot_text parts[2];
        const json_t *merge = json_array_get(list, i);
        if (json_is_string(merge) && !strncmp(json_string_value(merge), "#version", 8))
            continue; // merges.txt's head
        if (!merge_parts(merge, parts))
            status = cot_fail(error, COT_MALFORMED, "merge %zu is neither [\"a\", \"b\"] nor \"a b\"", i);
        else
            status = put_merge(bpe, vocab, parts, rank++, &joined, error);
    }
    cot_buffer_free(&joined);
    return status;
}

cot_status cot_bpe_finish(cot_bpe *bpe, const cot_vocab *vocab, cot_error *error)
{
    for (int i = 0; i < 256; i++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", i);
        bpe->byte_ids[i] = cot_vocab_find(vocab, name, 6);
    }
    for (int i = 0; i < 512; i++) {
        char text[4];
        bpe->short_ids[i] = cot_vocab_find(vocab, text, cot_utf8_write(text, i));
    }
    return load_seams(bpe, vocab, error);
}

static cot_status load_options(cot_bpe *bpe, const cot_vocab *vocab, const json_t *model, cot_error *error)
{
    cot_status status = COT_OK;
    cot_text unknown = {0}, affix;
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (int i = 0; i < 2 && status == COT_OK; i++) {
        status = cot_field_text(&affix, model, affixes[i], "model", error);
        if (status == COT_OK && affix.bytes)
            status = cot_fail(error, COT_UNSUPPORTED, "'%s' of the model, '%s', is not supported", affixes[i],
                              affix.data);
    }
    const json_t *dropout = json_object_get(model, "dropout");
    if (status == COT_OK && dropout && !json_is_null(dropout) && json_number_value(dropout) != 0)
        status = cot_fail(error, COT_UNSUPPORTED, "'dropout' of the model is not supported");
    if (status == COT_OK)
        status = cot_field_bool(&bpe->fuse_unknown, model, "fuse_unk", false, "model", error);
    if (status == COT_OK)
        status = cot_field_bool(&bpe->byte_fallback, model, "byte_fallback", false, "model", error);
    if (status == COT_OK)
        status = cot_field_bool(&bpe->ignore_merges, model, "ignore_merges", false, "model", error);
    if (status == COT_OK) status = cot_field_text(&unknown, model, "unk_token", "model", error);
    if (status != COT_OK) return status;
    bpe->unknown_id = -1;
    if (unknown.data) {
        bpe->unknown_id = cot_vocab_find(vocab, unknown.data, unknown.bytes);
        if (bpe->unknown_id < 0) bpe->unknown_id = -2;
    }
    return COT_OK;
}

cot_status cot_bpe_load(cot_bpe *bpe, cot_vocab *vocab, const json_t *model, cot_error *error)
{
    cot_text type;
    if (!json_is_object(model)) return cot_fail(error, COT_MALFORMED, "it has no 'model'");
    cot_status status = cot_field_text(&type, model, "type", "model", error);
    // Old files leave the type out; what has merges is BPE.
    if (status == COT_OK && (type.data ? !cot_text_is(type, "BPE") : !json_object_get(model, "merges")))
        status = cot_fail(error, COT_UNSUPPORTED, "model type '%s' is not supported, BPE alone",
                          type.data ? type.data : "none");
    if (status == COT_OK) status = load_vocab(vocab, json_object_get(model, "vocab"), error);
    if (status == COT_OK) status = load_merges(bpe, vocab, json_object_get(model, "merges"), error);
    if (status == COT_OK) status = load_options(bpe, vocab, model, error);
    if (status == COT_OK) status = cot_bpe_finish(bpe, vocab, error);
    return status;
}

void cot_bpe_close(cot_bpe *bpe)
{
    free(bpe->merges);
    free(bpe->edges);
    *bpe = (cot_bpe){0};
}
