#include "tokenizer/pretokenize.h"

#include "base/error.h"
#include "tokenizer/bytelevel.h"
#include "tokenizer/utf8.h"

static cot_status fail_memory(cot_error *error)
{
    return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
}

static bool add_piece(cot_text_pieces *pieces, size_t start, size_t end, bool first)
{
    if (start == end) return true;
    void *items = pieces->items;
    bool grown = cot_grow(&items, &pieces->capacity, pieces->count + 1, sizeof *pieces->items);
    pieces->items = items;
    if (grown) pieces->items[pieces->count++] = (cot_text_piece){start, end, first};
    return grown;
}

/* Whether span i goes into one piece with the span before it. */
static bool joins(const cot_pretokenizer_step *step, const cot_text_spans *spans, size_t i)
{
    if (!i) return false;
    bool here = spans->items[i].matched != step->invert, before = spans->items[i - 1].matched != step->invert;
    switch (step->behavior) {
    case COT_SPLIT_CONTIGUOUS:
        return here == before;
    case COT_SPLIT_MERGED_WITH_PREVIOUS:
        return here && !before;
    case COT_SPLIT_MERGED_WITH_NEXT:
        return !here && before;
    case COT_SPLIT_ISOLATED:
    case COT_SPLIT_REMOVED:
        break;
    }
    return false;
}

static bool add_spans(const cot_pretokenizer_step *step, const cot_text_spans *spans, cot_text_piece piece,
                      cot_text_pieces *out)
{
    bool added = true;
    for (size_t i = 0, end; i < spans->count && added; i = end) {
        for (end = i + 1; end < spans->count && joins(step, spans, end);) end++;
        if (step->behavior == COT_SPLIT_REMOVED && spans->items[i].matched != step->invert) continue;
        size_t start = spans->items[i].start;
        added = add_piece(out, piece.start + start, piece.start + spans->items[end - 1].end,
                          piece.first && !start);
    }
    return added;
}

static bool append_bytes(cot_buffer *out, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        char utf8[4];
        if (!cot_buffer_append(out, utf8, cot_utf8_write(utf8, cot_byte_character((uint8_t)text[i]))))
            return false;
    }
    return true;
}

/* One piece, written anew to the end of out->text. */
static cot_status rewrite(const cot_pretokenizer_step *step, cot_regex_scratch *scratch, const char *text,
                          cot_text_piece piece, cot_text_pieces *out, cot_error *error)
{
    size_t bytes = piece.end - piece.start, start = out->text.bytes, prefix = strlen(step->content);
    cot_status status = COT_OK;
    bool done = true;
    text += piece.start;
    if (step->kind == COT_PRETOKENIZER_REPLACE) {
        status = cot_regex_replace(step->pattern, scratch, text, bytes, (cot_text){step->content, prefix},
                                   &out->text, error);
    } else if (step->kind == COT_PRETOKENIZER_BYTES) {
        done = append_bytes(&out->text, text, bytes);
    } else {
        bool has = bytes >= prefix && !memcmp(text, step->content, prefix);
        if (!has && (piece.first || !step->first_only))
            done = cot_buffer_append(&out->text, step->content, prefix);
        done = done && cot_buffer_append(&out->text, text, bytes);
    }
    if (status == COT_OK && (!done || !add_piece(out, start, out->text.bytes, piece.first)))
        return fail_memory(error);
    if (out->text.bytes > COT_TOKENIZER_LONGEST_TEXT)
        return cot_fail(error, COT_INVALID_ARGUMENT, "a pre-tokenizer makes more than %d bytes of the text",
                        COT_TOKENIZER_LONGEST_TEXT);
    return status;
}

/* The spans of which more than `most` pieces become, whatever follows. */
static size_t most_spans(const cot_pretokenizer_step *step, size_t most)
{
    if (step->behavior == COT_SPLIT_ISOLATED) return most;
    return step->behavior == COT_SPLIT_CONTIGUOUS || most > SIZE_MAX / 2 - 1 ? SIZE_MAX : 2 * most + 1;
}

static cot_status run_step(const cot_pretokenizer_step *step, cot_regex_scratch *scratch,
                           cot_text_pieces *pieces, cot_text_pieces *out, size_t most, cot_error *error)
{
    cot_status status = COT_OK;
    bool split = step->kind == COT_PRETOKENIZER_SPLIT;
    out->count = out->text.bytes = 0;
    for (size_t i = 0; i < pieces->count && out->count <= most && status == COT_OK; i++) {
        cot_text_piece piece = pieces->items[i];
        if (!split) {
            status = rewrite(step, scratch, pieces->text.data, piece, out, error);
            continue;
        }
        status = cot_regex_split(step->pattern, scratch, pieces->text.data + piece.start,
                                 piece.end - piece.start, most_spans(step, most), error);
        if (status == COT_OK && !add_spans(step, &scratch->spans, piece, out)) status = fail_memory(error);
    }
    cot_text_pieces swapped = *pieces;
    *pieces = *out;
    *out = swapped;
    if (split) { // the text is as it was
        cot_buffer text = pieces->text;
        pieces->text = out->text;
        out->text = text;
    }
    return status;
}

cot_status cot_pretokenizer_run(const cot_pretokenizer *pretokenizer, cot_regex_scratch *scratch,
                                cot_text_pieces *pieces, cot_text_pieces *spare, bool first, size_t most,
                                cot_error *error)
{
    pieces->count = 0;
    for (size_t i = 0; i < pretokenizer->count; i++) // no step joins pieces, but one may take them away again
        if (pretokenizer->steps[i].kind == COT_PRETOKENIZER_SPLIT &&
            pretokenizer->steps[i].behavior == COT_SPLIT_REMOVED)
            most = SIZE_MAX;
    if (!add_piece(pieces, 0, pieces->text.bytes, first)) return fail_memory(error);
    cot_status status = COT_OK;
    for (size_t i = 0; i < pretokenizer->count && status == COT_OK; i++)
        status = run_step(pretokenizer->steps + i, scratch, pieces, spare, most, error);
    return status;
}

void cot_text_pieces_free(cot_text_pieces *pieces)
{
    cot_buffer_free(&pieces->text);
    free(pieces->items);
    *pieces = (cot_text_pieces){0};
}
