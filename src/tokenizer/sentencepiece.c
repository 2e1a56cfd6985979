/* SentencePiece's tokenizer.model, a ModelProto in protobuf's wire format, of which these fields count:
 *
 *     1  pieces      1 text, 2 score (float), 3 type (1 where there is none)
 *     2  trainer     3 model type (2: BPE), 24 whitespace as a suffix, 40, 41, 42 unknown, begin, end (0, 1, 2)
 *     3  normaliser  2 a table of characters, 3 dummy prefix, 4 extra whitespace removed, 5 whitespace escaped (1 where there is none) */
#include "tokenizer/listed.h"

#include "base/error.h"
#include "base/file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- the wire format ---- */

struct message {
    const uint8_t *at, *end;
    bool broken;
};

struct field {
    uint64_t number, value; // of a varint
    struct message inside;  // of bytes
};

static uint64_t varint(struct message *m)
{
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && m->at < m->end; shift += 7) {
        const uint8_t byte = *m->at++;
        value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return value;
    }
    m->broken = true;
    return 0;
}

/* The next field; false at the end, and where the message is broken. */
static bool next_field(struct message *m, struct field *f)
{
    if (m->broken || m->at == m->end) return false;
    const uint64_t key = varint(m);
    *f = (struct field){.number = key >> 3};
    uint64_t bytes = key % 8 == 1 ? 8 : 4;
    if (key % 8 == 0) {
        f->value = varint(m);
        return !m->broken;
    }
    if (key % 8 == 2) bytes = varint(m);
    m->broken |= (key % 8 != 1 && key % 8 != 2 && key % 8 != 5) || bytes > (uint64_t)(m->end - m->at);
    if (m->broken) return false;
    f->inside = (struct message){.at = m->at, .end = m->at + bytes};
    m->at += bytes;
    return true;
}

/* ---- the model ---- */

struct model {
    cot_vocab_list list;
    uint64_t kind, suffix, prefix, trims, escapes;
    int64_t unknown, begin, end;
    size_t table_bytes;
};

static bool read_piece(struct model *model, struct message m)
{
    cot_vocab_token token = {.text = "", .type = COT_TOKEN_NORMAL};
    for (struct field f; next_field(&m, &f);) {
        float score;
        if (f.number == 1 && f.inside.at) { // else of another kind: no text
            token.text = (const char *)f.inside.at;
            token.bytes = (size_t)(f.inside.end - f.inside.at);
        }
        if (f.number == 2 && f.inside.end - f.inside.at == 4) {
            memcpy(&score, f.inside.at, 4);
            token.score = (double)score;
        }
        if (f.number == 3) token.type = f.value < 7 ? (int)f.value : COT_TOKEN_NORMAL;
    }
    return !m.broken && cot_vocab_list_put(&model->list, token);
}

static bool read_trainer(struct model *model, struct message m)
{
    for (struct field f; next_field(&m, &f);) {
        if (f.number == 3) model->kind = f.value;
        if (f.number == 24) model->suffix = f.value;
        if (f.number == 40) model->unknown = (int32_t)f.value;
        if (f.number == 41) model->begin = (int32_t)f.value;
        if (f.number == 42) model->end = (int32_t)f.value;
    }
    return !m.broken;
}

static bool read_normaliser(struct model *model, struct message m)
{
    for (struct field f; next_field(&m, &f);) {
        if (f.number == 2) model->table_bytes = (size_t)(f.inside.end - f.inside.at);
        if (f.number == 3) model->prefix = f.value;
        if (f.number == 4) model->trims = f.value;
        if (f.number == 5) model->escapes = f.value;
    }
    return !m.broken;
}

static cot_status read_model(struct model *model, const cot_file_map *map, cot_error *error)
{
    struct message m = {.at = map->data, .end = map->data + map->bytes};
    bool good = true;
    *model = (struct model){.kind = 1, .prefix = 1, .trims = 1, .escapes = 1, .begin = 1, .end = 2};
    for (struct field f; good && next_field(&m, &f);)
        good = f.number == 1   ? read_piece(model, f.inside)
               : f.number == 2 ? read_trainer(model, f.inside)
               : f.number == 3 ? read_normaliser(model, f.inside)
                               : true;
    if (!good || m.broken || !model->list.count)
        return cot_fail(error, COT_MALFORMED, "it is no model of SentencePiece, or is cut off");
    if (model->kind != 2)
        return cot_fail(error, COT_UNSUPPORTED, "SentencePiece's %s is not supported, its BPE alone",
                        model->kind == 1 ? "unigram model" : "model of words or characters");
    if (model->table_bytes || model->trims || !model->escapes || model->suffix)
        return cot_fail(error, COT_UNSUPPORTED,
                        "SentencePiece's normalisation is supported where it is 'identity' alone");
    return COT_OK;
}

static int64_t token_at(const struct model *model, int64_t id)
{
    return id >= 0 && id < (int64_t)model->list.count ? id : -1;
}

static cot_status load(cot_tokenizer *t, const cot_file_map *map, const char *folder, cot_error *error)
{
    struct model model;
    json_t *told = NULL;
    cot_status status = read_model(&model, map, error);
    if (status == COT_OK) status = cot_vocab_list_told(&model.list, &told, folder, NULL, error);
    if (status == COT_OK) {
        const json_t *begins = json_object_get(told, "add_bos_token");
        const bool ends = json_is_true(json_object_get(told, "add_eos_token"));
        status = cot_tokenizer_load_pieces(
            t, model.list.tokens, model.list.count,
            &(cot_tokenizer_pieces){.unknown = token_at(&model, model.unknown),
                                    .begin = json_is_false(begins) ? -1 : token_at(&model, model.begin),
                                    .end = ends ? token_at(&model, model.end) : -1,
                                    .prefix = model.prefix != 0,
                                    .of_text_alone = true},
            error);
    }
    cot_vocab_list_free(&model.list);
    json_decref(told);
    return status;
}

cot_status cot_tokenizer_open_sentencepiece(cot_tokenizer **out, const char *folder, cot_error *error)
{
    return cot_tokenizer_open_listed(out, folder, "tokenizer.model", load, error);
}
