#include "harness/tokenizer/tokenizer_json.h"

#include <stdlib.h>
#include <string.h>

// clang-format off
static const char tokenizer_json_base[] =
    "{'version': '1.0', 'truncation': null, 'padding': null, 'added_tokens': [], 'normalizer': null,"
    " 'pre_tokenizer': null, 'post_processor': null, 'decoder': null,"
    " 'model': {'type': 'BPE', 'dropout': null, 'unk_token': null, 'continuing_subword_prefix': null,"
    "  'end_of_word_suffix': null, 'fuse_unk': false, 'byte_fallback': false, 'ignore_merges': false,"
    "  'vocab': {'<unk>': 0, 'a': 1, 'b': 2, ' ': 3, '1': 4, 'é': 5, '▁': 6, '\\n': 7, '_': 8, '²': 9, 'Ж': 10,"
    "   'aa': 11, 'ab': 12, 'a ': 13, 'a1': 14, 'ba': 15, 'bb': 16, 'b ': 17, 'b1': 18, ' a': 19, ' b': 20,"
    "   '  ': 21, ' 1': 22, '1a': 23, '1b': 24, '1 ': 25, '11': 26, '<0xC3>': 27, '<0xA8>': 28},"
    "  'merges': [['a', 'a'], ['a', 'b'], ['a', ' '], ['a', '1'], ['b', 'a'], ['b', 'b'], ['b', ' '], ['b', '1'],"
    "   [' ', 'a'], [' ', 'b'], [' ', ' '], [' ', '1'], ['1', 'a'], ['1', 'b'], ['1', ' '], ['1', '1']]}}";
// clang-format on

json_t *tokenizer_json_quoted(const char *text)
{
    char *copy = strdup(text);
    for (char *c = copy; *c; c++)
        if (*c == '\'') *c = '"';
    json_t *json = json_loads(copy, JSON_ALLOW_NUL, NULL);
    if (!json) abort(); // a test's own mistake
    free(copy);
    return json;
}

char *tokenizer_json_text(const char *changes)
{
    json_t *base = tokenizer_json_quoted(tokenizer_json_base), *change = tokenizer_json_quoted(changes);
    json_t *model = json_object_get(change, "model");
    if (json_is_object(model)) {
        json_object_update(json_object_get(base, "model"), model);
        json_object_del(change, "model");
    }
    json_object_update(base, change);
    char *text = json_dumps(base, JSON_SORT_KEYS);
    json_decref(base);
    json_decref(change);
    return text;
}

cot_status tokenizer_json_open(cot_tokenizer **tokenizer, const char *changes, cot_error *error)
{
    char *text = tokenizer_json_text(changes);
    cot_status status = cot_tokenizer_parse(tokenizer, text, strlen(text), "test.json", error);
    free(text);
    return status;
}
