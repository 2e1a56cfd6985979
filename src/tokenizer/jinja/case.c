#include "tokenizer/jinja/case.h"

#include "tokenizer/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* Characters whose upper or title case is several (Unicode's SpecialCasing.txt, without conditions). */
static const struct special {
    int32_t character;
    const char *upper, *title;
} specials[] = {
    // clang-format off
    {0x00df, "\x53\x53", "\x53\x73"},
    {0x0149, "\xca\xbc\x4e", "\xca\xbc\x4e"},
    {0x01f0, "\x4a\xcc\x8c", "\x4a\xcc\x8c"},
    {0x0390, "\xce\x99\xcc\x88\xcc\x81", "\xce\x99\xcc\x88\xcc\x81"},
    {0x03b0, "\xce\xa5\xcc\x88\xcc\x81", "\xce\xa5\xcc\x88\xcc\x81"},
    {0x0587, "\xd4\xb5\xd5\x92", "\xd4\xb5\xd6\x82"},
    {0x1e96, "\x48\xcc\xb1", "\x48\xcc\xb1"},
    {0x1e97, "\x54\xcc\x88", "\x54\xcc\x88"},
    {0x1e98, "\x57\xcc\x8a", "\x57\xcc\x8a"},
    {0x1e99, "\x59\xcc\x8a", "\x59\xcc\x8a"},
    {0x1e9a, "\x41\xca\xbe", "\x41\xca\xbe"},
    {0x1f50, "\xce\xa5\xcc\x93", "\xce\xa5\xcc\x93"},
    {0x1f52, "\xce\xa5\xcc\x93\xcc\x80", "\xce\xa5\xcc\x93\xcc\x80"},
    {0x1f54, "\xce\xa5\xcc\x93\xcc\x81", "\xce\xa5\xcc\x93\xcc\x81"},
    {0x1f56, "\xce\xa5\xcc\x93\xcd\x82", "\xce\xa5\xcc\x93\xcd\x82"},
    {0x1f80, "\xe1\xbc\x88\xce\x99", "\xe1\xbe\x88"},
    {0x1f81, "\xe1\xbc\x89\xce\x99", "\xe1\xbe\x89"},
    {0x1f82, "\xe1\xbc\x8a\xce\x99", "\xe1\xbe\x8a"},
    {0x1f83, "\xe1\xbc\x8b\xce\x99", "\xe1\xbe\x8b"},
    {0x1f84, "\xe1\xbc\x8c\xce\x99", "\xe1\xbe\x8c"},
    {0x1f85, "\xe1\xbc\x8d\xce\x99", "\xe1\xbe\x8d"},
    {0x1f86, "\xe1\xbc\x8e\xce\x99", "\xe1\xbe\x8e"},
    {0x1f87, "\xe1\xbc\x8f\xce\x99", "\xe1\xbe\x8f"},
    {0x1f88, "\xe1\xbc\x88\xce\x99", "\xe1\xbe\x88"},
    {0x1f89, "\xe1\xbc\x89\xce\x99", "\xe1\xbe\x89"},
    {0x1f8a, "\xe1\xbc\x8a\xce\x99", "\xe1\xbe\x8a"},
    {0x1f8b, "\xe1\xbc\x8b\xce\x99", "\xe1\xbe\x8b"},
    {0x1f8c, "\xe1\xbc\x8c\xce\x99", "\xe1\xbe\x8c"},
    {0x1f8d, "\xe1\xbc\x8d\xce\x99", "\xe1\xbe\x8d"},
    {0x1f8e, "\xe1\xbc\x8e\xce\x99", "\xe1\xbe\x8e"},
    {0x1f8f, "\xe1\xbc\x8f\xce\x99", "\xe1\xbe\x8f"},
    {0x1f90, "\xe1\xbc\xa8\xce\x99", "\xe1\xbe\x98"},
    {0x1f91, "\xe1\xbc\xa9\xce\x99", "\xe1\xbe\x99"},
    {0x1f92, "\xe1\xbc\xaa\xce\x99", "\xe1\xbe\x9a"},
    {0x1f93, "\xe1\xbc\xab\xce\x99", "\xe1\xbe\x9b"},
    {0x1f94, "\xe1\xbc\xac\xce\x99", "\xe1\xbe\x9c"},
    {0x1f95, "\xe1\xbc\xad\xce\x99", "\xe1\xbe\x9d"},
    {0x1f96, "\xe1\xbc\xae\xce\x99", "\xe1\xbe\x9e"},
    {0x1f97, "\xe1\xbc\xaf\xce\x99", "\xe1\xbe\x9f"},
    {0x1f98, "\xe1\xbc\xa8\xce\x99", "\xe1\xbe\x98"},
    {0x1f99, "\xe1\xbc\xa9\xce\x99", "\xe1\xbe\x99"},
    {0x1f9a, "\xe1\xbc\xaa\xce\x99", "\xe1\xbe\x9a"},
    {0x1f9b, "\xe1\xbc\xab\xce\x99", "\xe1\xbe\x9b"},
    {0x1f9c, "\xe1\xbc\xac\xce\x99", "\xe1\xbe\x9c"},
    {0x1f9d, "\xe1\xbc\xad\xce\x99", "\xe1\xbe\x9d"},
    {0x1f9e, "\xe1\xbc\xae\xce\x99", "\xe1\xbe\x9e"},
    {0x1f9f, "\xe1\xbc\xaf\xce\x99", "\xe1\xbe\x9f"},
    {0x1fa0, "\xe1\xbd\xa8\xce\x99", "\xe1\xbe\xa8"},
    {0x1fa1, "\xe1\xbd\xa9\xce\x99", "\xe1\xbe\xa9"},
    {0x1fa2, "\xe1\xbd\xaa\xce\x99", "\xe1\xbe\xaa"},
    {0x1fa3, "\xe1\xbd\xab\xce\x99", "\xe1\xbe\xab"},
    {0x1fa4, "\xe1\xbd\xac\xce\x99", "\xe1\xbe\xac"},
    {0x1fa5, "\xe1\xbd\xad\xce\x99", "\xe1\xbe\xad"},
    {0x1fa6, "\xe1\xbd\xae\xce\x99", "\xe1\xbe\xae"},
    {0x1fa7, "\xe1\xbd\xaf\xce\x99", "\xe1\xbe\xaf"},
    {0x1fa8, "\xe1\xbd\xa8\xce\x99", "\xe1\xbe\xa8"},
    {0x1fa9, "\xe1\xbd\xa9\xce\x99", "\xe1\xbe\xa9"},
    {0x1faa, "\xe1\xbd\xaa\xce\x99", "\xe1\xbe\xaa"},
    {0x1fab, "\xe1\xbd\xab\xce\x99", "\xe1\xbe\xab"},
    {0x1fac, "\xe1\xbd\xac\xce\x99", "\xe1\xbe\xac"},
    {0x1fad, "\xe1\xbd\xad\xce\x99", "\xe1\xbe\xad"},
    {0x1fae, "\xe1\xbd\xae\xce\x99", "\xe1\xbe\xae"},
    {0x1faf, "\xe1\xbd\xaf\xce\x99", "\xe1\xbe\xaf"},
    {0x1fb2, "\xe1\xbe\xba\xce\x99", "\xe1\xbe\xba\xcd\x85"},
    {0x1fb3, "\xce\x91\xce\x99", "\xe1\xbe\xbc"},
    {0x1fb4, "\xce\x86\xce\x99", "\xce\x86\xcd\x85"},
    {0x1fb6, "\xce\x91\xcd\x82", "\xce\x91\xcd\x82"},
    {0x1fb7, "\xce\x91\xcd\x82\xce\x99", "\xce\x91\xcd\x82\xcd\x85"},
    {0x1fbc, "\xce\x91\xce\x99", "\xe1\xbe\xbc"},
    {0x1fc2, "\xe1\xbf\x8a\xce\x99", "\xe1\xbf\x8a\xcd\x85"},
    {0x1fc3, "\xce\x97\xce\x99", "\xe1\xbf\x8c"},
    {0x1fc4, "\xce\x89\xce\x99", "\xce\x89\xcd\x85"},
    {0x1fc6, "\xce\x97\xcd\x82", "\xce\x97\xcd\x82"},
    {0x1fc7, "\xce\x97\xcd\x82\xce\x99", "\xce\x97\xcd\x82\xcd\x85"},
    {0x1fcc, "\xce\x97\xce\x99", "\xe1\xbf\x8c"},
    {0x1fd2, "\xce\x99\xcc\x88\xcc\x80", "\xce\x99\xcc\x88\xcc\x80"},
    {0x1fd3, "\xce\x99\xcc\x88\xcc\x81", "\xce\x99\xcc\x88\xcc\x81"},
    {0x1fd6, "\xce\x99\xcd\x82", "\xce\x99\xcd\x82"},
    {0x1fd7, "\xce\x99\xcc\x88\xcd\x82", "\xce\x99\xcc\x88\xcd\x82"},
    {0x1fe2, "\xce\xa5\xcc\x88\xcc\x80", "\xce\xa5\xcc\x88\xcc\x80"},
    {0x1fe3, "\xce\xa5\xcc\x88\xcc\x81", "\xce\xa5\xcc\x88\xcc\x81"},
    {0x1fe4, "\xce\xa1\xcc\x93", "\xce\xa1\xcc\x93"},
    {0x1fe6, "\xce\xa5\xcd\x82", "\xce\xa5\xcd\x82"},
    {0x1fe7, "\xce\xa5\xcc\x88\xcd\x82", "\xce\xa5\xcc\x88\xcd\x82"},
    {0x1ff2, "\xe1\xbf\xba\xce\x99", "\xe1\xbf\xba\xcd\x85"},
    {0x1ff3, "\xce\xa9\xce\x99", "\xe1\xbf\xbc"},
    {0x1ff4, "\xce\x8f\xce\x99", "\xce\x8f\xcd\x85"},
    {0x1ff6, "\xce\xa9\xcd\x82", "\xce\xa9\xcd\x82"},
    {0x1ff7, "\xce\xa9\xcd\x82\xce\x99", "\xce\xa9\xcd\x82\xcd\x85"},
    {0x1ffc, "\xce\xa9\xce\x99", "\xe1\xbf\xbc"},
    {0xfb00, "\x46\x46", "\x46\x66"},
    {0xfb01, "\x46\x49", "\x46\x69"},
    {0xfb02, "\x46\x4c", "\x46\x6c"},
    {0xfb03, "\x46\x46\x49", "\x46\x66\x69"},
    {0xfb04, "\x46\x46\x4c", "\x46\x66\x6c"},
    {0xfb05, "\x53\x54", "\x53\x74"},
    {0xfb06, "\x53\x54", "\x53\x74"},
    {0xfb13, "\xd5\x84\xd5\x86", "\xd5\x84\xd5\xb6"},
    {0xfb14, "\xd5\x84\xd4\xb5", "\xd5\x84\xd5\xa5"},
    {0xfb15, "\xd5\x84\xd4\xbb", "\xd5\x84\xd5\xab"},
    {0xfb16, "\xd5\x8e\xd5\x86", "\xd5\x8e\xd5\xb6"},
    {0xfb17, "\xd5\x84\xd4\xbd", "\xd5\x84\xd5\xad"}, // clang-format on
};

static int by_character(const void *a, const void *b)
{
    const struct special *x = a, *y = b;
    return (x->character > y->character) - (x->character < y->character);
}

static void add_raised(cot_jinja_builder *b, int32_t c, bool own, bool title)
{
    const struct special *found =
        c < 0x80 ? NULL
                 : bsearch(&(struct special){c, NULL, NULL}, specials, sizeof specials / sizeof *specials,
                           sizeof *specials, by_character);
    if (found)
        cot_jinja_add(b, title ? found->title : found->upper, strlen(title ? found->title : found->upper),
                      own);
    else
        cot_jinja_add_character(b, title ? utf8proc_totitle(c) : utf8proc_toupper(c), own);
}

bool cot_jinja_is_letter(int32_t c)
{
    utf8proc_category_t category = utf8proc_category(c);
    return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

/* A letter that has a case. */
static bool is_cased(int32_t c)
{
    utf8proc_category_t category = utf8proc_category(c);
    return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LT;
}

static bool is_case_ignorable(int32_t c)
{
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
        return true;
    default:
        return c == '\'' || c == '.' || c == ':' || c == 0xb7 || c == 0x2019;
    }
}

/* A capital sigma at [at, after) ends a word: a letter comes before it and none behind it. */
static bool is_final_sigma(const cot_jinja_string *s, size_t at, size_t after)
{
    int32_t c = 0;
    while (at && is_case_ignorable(c = cot_utf8_previous(s->data, &at))) c = 0;
    if (!c || !is_cased(c)) return false;
    for (c = 0; after < s->bytes && is_case_ignorable(c = cot_utf8_next(s->data, &after));) c = 0;
    return !c || !is_cased(c);
}

/* The character at `*at`, lowered; moves behind it. */
static void add_lowered(cot_jinja_builder *b, const cot_jinja_string *s, size_t *at)
{
    size_t start = *at;
    int32_t c = cot_utf8_next(s->data, at);
    bool own = s->own[start];
    if (c == 0x130)
        cot_jinja_add(b, "i\xcc\x87", 3, own);
    else if (c == 0x3a3)
        cot_jinja_add_character(b, is_final_sigma(s, start, *at) ? 0x3c2 : 0x3c3, own);
    else
        cot_jinja_add_character(b, utf8proc_tolower(c), own);
}

cot_jinja_value cot_jinja_upper(cot_jinja_run *run, const cot_jinja_string *s)
{
    cot_jinja_builder b = {.run = run};
    for (size_t at = 0, start = 0; at < s->bytes; start = at)
        add_raised(&b, cot_utf8_next(s->data, &at), s->own[start], false);
    return cot_jinja_built(&b, s->safe);
}

cot_jinja_value cot_jinja_lower(cot_jinja_run *run, const cot_jinja_string *s)
{
    cot_jinja_builder b = {.run = run};
    for (size_t at = 0; at < s->bytes;) add_lowered(&b, s, &at);
    return cot_jinja_built(&b, s->safe);
}

cot_jinja_value cot_jinja_capitalize(cot_jinja_run *run, const cot_jinja_string *s, bool upper)
{
    cot_jinja_builder b = {.run = run};
    size_t at = 0;
    if (s->bytes) add_raised(&b, cot_utf8_next(s->data, &at), s->own[0], !upper);
    while (at < s->bytes) add_lowered(&b, s, &at);
    return cot_jinja_built(&b, s->safe);
}

cot_jinja_value cot_jinja_title(cot_jinja_run *run, const cot_jinja_string *s)
{
    cot_jinja_builder b = {.run = run};
    bool within = false;
    for (size_t at = 0; at < s->bytes;) {
        size_t start = at;
        int32_t c = cot_utf8_next(s->data, &at);
        if (within) {
            at = start;
            add_lowered(&b, s, &at);
        } else {
            add_raised(&b, c, s->own[start], true);
        }
        within = is_cased(c);
    }
    return cot_jinja_built(&b, s->safe);
}

bool cot_jinja_is_case(const cot_jinja_string *s, bool upper)
{
    bool any = false;
    for (size_t at = 0; at < s->bytes;) {
        int32_t c = cot_utf8_next(s->data, &at);
        if (!is_cased(c)) continue;
        utf8proc_category_t category = utf8proc_category(c);
        if (category != (upper ? UTF8PROC_CATEGORY_LU : UTF8PROC_CATEGORY_LL)) return false;
        any = true;
    }
    return any;
}
