/* Any bytes are an answer: what a parser of any family says of them does not depend on how they are cut, and arguments follow a call. The
 * input is the family, what is asked for, how often the text is cut, and the text. */
#include "harness/dialect/heard.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static const char tools[] =
    "[{\"function\": {\"name\": \"f\", \"parameters\": {\"properties\": {\"s\": {\"type\": \"string\"}, "
    "\"n\": {\"type\": "
    "\"number\"}, \"u\": {\"type\": [\"integer\", \"string\"]}, \"o\": {\"type\": \"object\"}, \"r\": "
    "{\"$ref\": "
    "\"#/$defs/r\"}}, \"$defs\": {\"r\": {\"anyOf\": [{\"$ref\": \"#/$defs/r\"}, {\"$ref\": \"#/$defs/r\"}, "
    "{\"$ref\": "
    "\"#/$defs/r\"}]}}}}}]";

static bool is_token(void *context, const char *marker)
{
    return *(const uint8_t *)context & 4 ? *marker != '<' || !strchr(marker, '=') : false;
}

/* Text streams never have a byte of a mark but in a whole one. */
static void mend_marks(char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if ((unsigned char)text[i] < COT_DIALECT_END) continue;
        size_t end = i + 1;
        while (end < bytes && (unsigned char)text[end] < COT_DIALECT_END) end++;
        if ((unsigned char)text[i] != COT_DIALECT_END && end < bytes &&
            (unsigned char)text[end] == COT_DIALECT_END)
            i = end;
        else
            text[i] = '?';
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    size_t families = 0, cuts[256], n = 0;
    if (bytes < 3) return 0;
    while (cot_dialects[families].name) families++;
    const size_t which = data[0] % (families + 2);
    const cot_dialect *d = which < families    ? &cot_dialects[which]
                           : which == families ? &cot_dialect_list
                                               : &cot_dialect_forced;
    uint8_t flags = data[1];
    json_t *list = json_loads(tools, 0, NULL);
    const cot_dialect_options options = {.calls = d,
                                         .reasoning = flags & 1 ? d : NULL,
                                         .is_opened = flags & 2,
                                         .is_held = flags & 16,
                                         .shows_special = flags & 8,
                                         .forced_name = "f",
                                         .tools = list,
                                         .is_token = is_token,
                                         .context = &flags};
    bytes -= 3;
    char *text = malloc(bytes + 1);
    if (!text) abort();
    memcpy(text, data + 3, bytes);
    mend_marks(text, bytes);
    const size_t step = data[2] % 16u + 1;
    for (size_t at = step; at < bytes && n < 256; at += step) cuts[n++] = at;
    heard whole = heard_parse(&options, text, bytes, NULL, 0, flags & 16),
          streamed = heard_parse(&options, text, bytes, cuts, n, flags & 16);
    if (!heard_equal(&whole, &streamed)) abort();
    heard_free(&whole);
    heard_free(&streamed);
    json_decref(list);
    free(text);
    return 0;
}
