/* Strings that know of each byte whether it is the template's own, and the making of them. */
#ifndef COT_TOKENIZER_JINJA_STRING_H
#define COT_TOKENIZER_JINJA_STRING_H
#include "tokenizer/jinja/value.h"

/* A string in the making. */
typedef struct cot_jinja_builder {
    cot_jinja_run *run;
    char *data;
    uint8_t *own;
    size_t bytes, capacity;
} cot_jinja_builder;

/* Adds `bytes` of text that is the template's own, or not. */
void cot_jinja_add(cot_jinja_builder *builder, const char *text, size_t bytes, bool own);
/* Text of our own, NUL-terminated. */
void cot_jinja_add_text(cot_jinja_builder *builder, const char *text);
/* A piece of a string, [from, to). */
void cot_jinja_add_part(cot_jinja_builder *builder, const cot_jinja_string *string, size_t from, size_t to);
void cot_jinja_add_string(cot_jinja_builder *builder, const cot_jinja_string *string);
/* A character. */
void cot_jinja_add_character(cot_jinja_builder *builder, int32_t character, bool own);
cot_jinja_value cot_jinja_built(cot_jinja_builder *builder, bool safe);

cot_jinja_value cot_jinja_string_new(cot_jinja_run *run, const char *text, size_t bytes, bool own);
cot_jinja_value cot_jinja_text(cot_jinja_run *run, const char *text); // our own
/* [from, to) of a string, in its memory. */
cot_jinja_value cot_jinja_part(cot_jinja_run *run, const cot_jinja_string *string, size_t from, size_t to);
/* The same text, with or without Markup's behaviour. */
cot_jinja_value cot_jinja_marked_safe(cot_jinja_run *run, const cot_jinja_string *string, bool safe);
/* One after the other; what grows at its end again and again is not copied again and again. */
cot_jinja_value cot_jinja_joined(cot_jinja_run *run, const cot_jinja_string *a, const cot_jinja_string *b);

bool cot_jinja_string_is(const cot_jinja_string *string, const char *text);
bool cot_jinja_strings_equal(const cot_jinja_string *a, const cot_jinja_string *b);
int cot_jinja_strings_compare(const cot_jinja_string *a, const cot_jinja_string *b);
/* Where `needle` begins in [from, to), SIZE_MAX where it does not. */
size_t cot_jinja_find(const cot_jinja_string *string, const cot_jinja_string *needle, size_t from, size_t to);
size_t cot_jinja_find_last(const cot_jinja_string *string, const cot_jinja_string *needle, size_t from,
                           size_t to);
size_t cot_jinja_characters(const cot_jinja_string *string);
/* The offset of the character at `index`, at most the end. */
size_t cot_jinja_offset(const cot_jinja_string *string, size_t index);

/* What Python's str.isspace takes for white space. */
bool cot_jinja_is_space(int32_t character);
/* Without white space, or without the characters of `set`, at the start and the end as asked. */
cot_jinja_value cot_jinja_strip(cot_jinja_run *run, const cot_jinja_string *string,
                                const cot_jinja_string *set, bool start, bool end);
/* `string` with up to `most` (negative: all) of `old` replaced. */
cot_jinja_value cot_jinja_replace(cot_jinja_run *run, const cot_jinja_string *string,
                                  const cot_jinja_string *old, const cot_jinja_string *fresh, int64_t most);
/* markupsafe's escape. */
cot_jinja_value cot_jinja_escape(cot_jinja_run *run, const cot_jinja_string *string);

#endif
