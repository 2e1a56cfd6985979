/* The texts of mocks: what they are made of, and a tokenizer for those who have no model. */
#include "base/buffer.h"
#include "base/error.h"
#include "worker/mock.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

/* Whether the id is one that texts may have: of printable characters. */
static bool is_word(const cot_tokenizer *tokenizer, int32_t id)
{
    char *text;
    size_t bytes;
    const char *spelled = cot_tokenizer_token(tokenizer, id);
    if (!spelled || *spelled == '<' || *spelled == '[' ||
        cot_tokenizer_token_bytes(tokenizer, &text, &bytes, id, NULL) != COT_OK)
        return false;
    bool good = bytes;
    for (size_t i = 0; i < bytes; i++) good &= text[i] >= ' ' && text[i] <= '~';
    free(text);
    return good;
}

static cot_status list_words(cot_mock *m, const cot_tokenizer *tokenizer, cot_error *error)
{
    const size_t size = cot_tokenizer_size(tokenizer);
    m->vocab = (int64_t)size;
    m->eos = (int32_t)size - 1;
    m->words = calloc(size + 1, sizeof *m->words);
    if (!m->words) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a mock");
    for (int32_t id = 0; id < m->eos; id++)
        if (is_word(tokenizer, id)) m->words[m->word_count++] = id;
    return m->word_count ? COT_OK
                         : cot_fail(error, COT_UNSUPPORTED, "the tokenizer has no token that is text");
}

cot_status cot_mock_open(cot_mock **mock, const char *spec, size_t bytes, const char *name,
                         const cot_tokenizer *tokenizer, cot_error *error)
{
    cot_mock *m = *mock = calloc(1, sizeof *m);
    if (!m) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a mock");
    cot_status status = cot_mock_read_spec(m, spec, bytes, name, error);
    if (status == COT_OK) status = list_words(m, tokenizer, error);
    snprintf(m->fingerprint, sizeof m->fingerprint, "fp_%016" PRIx64, (uint64_t)XXH3_64bits(spec, bytes));
    if (status == COT_OK) return COT_OK;
    cot_mock_close(m);
    *mock = NULL;
    return status;
}

void cot_mock_close(cot_mock *m)
{
    if (m) free(m->words);
    free(m);
}

int cot_mock_workers(const cot_mock *m)
{
    return (int)m->workers;
}

int cot_mock_ranks(const cot_mock *m)
{
    return (int)m->homes;
}

/* Byte-level vocabularies spell a byte that is no printable character of Latin-1 by one from U+0100 on. */
static bool add_byte(cot_buffer *to, int byte, int *moved)
{
    const bool printable = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
    const int code = printable ? byte : 0x100 + (*moved)++;
    char row[32], spelled[8];
    if (byte == '"' || byte == '\\')
        snprintf(spelled, sizeof spelled, "\\%c", byte);
    else if (code < 0x80)
        snprintf(spelled, sizeof spelled, "%c", code);
    else
        snprintf(spelled, sizeof spelled, "%c%c", 0xc0 | code >> 6, 0x80 | (code & 0x3f));
    snprintf(row, sizeof row, "%s\"%s\": %d", byte ? ", " : "", spelled, byte);
    return cot_buffer_text(to, row);
}

cot_status cot_mock_tokenizer_open(cot_tokenizer **tokenizer, cot_error *error)
{
    cot_buffer json = {0};
    int moved = 0;
    bool good = cot_buffer_text(
        &json,
        "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"added_tokens\": [{\"id\": 256, "
        "\"content\": \"<end>\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, "
        "\"normalized\": "
        "false, \"special\": true}], \"normalizer\": null, \"pre_tokenizer\": {\"type\": \"ByteLevel\", "
        "\"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": false}, \"post_processor\": "
        "null, "
        "\"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": true, "
        "\"use_regex\": true}, \"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
        "\"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, \"fuse_unk\": false, "
        "\"byte_fallback\": false, \"merges\": [], \"vocab\": {");
    for (int byte = 0; byte < 256; byte++) good = good && add_byte(&json, byte, &moved);
    good = good && cot_buffer_text(&json, "}}}");
    *tokenizer = NULL;
    const cot_status status =
        good ? cot_tokenizer_parse(tokenizer, json.data, json.bytes, "the mock's tokenizer", error)
             : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a tokenizer");
    cot_buffer_free(&json);
    return status;
}
