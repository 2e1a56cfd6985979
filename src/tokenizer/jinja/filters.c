#include "tokenizer/jinja/filters.h"

#include "tokenizer/jinja/print.h"

#include <string.h>

#define ROW(name)                                                                                            \
    {                                                                                                        \
#name, cot_jinja_filter_##name                                                                       \
    }

static const struct {
    const char *name;
    cot_jinja_function *function;
} filters[] = {
    ROW(abs),
    ROW(attr),
    ROW(capitalize),
    {"count", cot_jinja_filter_length},
    ROW(default),
    {"d", cot_jinja_filter_default},
    ROW(dictsort),
    {"e", cot_jinja_filter_escape},
    ROW(escape),
    ROW(first),
    ROW(float),
    ROW(indent),
    ROW(int),
    ROW(items),
    ROW(join),
    ROW(last),
    ROW(length),
    ROW(list),
    ROW(lower),
    ROW(map),
    ROW(max),
    ROW(min),
    ROW(reject),
    ROW(rejectattr),
    ROW(replace),
    ROW(reverse),
    ROW(round),
    ROW(safe),
    ROW(select),
    ROW(selectattr),
    ROW(sort),
    ROW(string),
    ROW(sum),
    ROW(title),
    {"tojson", cot_jinja_tojson},
    ROW(trim),
    ROW(unique),
    ROW(upper),
};

cot_jinja_function *cot_jinja_filter(const char *name)
{
    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++)
        if (!strcmp(filters[i].name, name)) return filters[i].function;
    return NULL;
}

bool cot_jinja_has_filter(const char *name)
{
    return cot_jinja_filter(name) != NULL;
}
