/* The filters' functions, which filters.c lists by name. */
#ifndef COT_TOKENIZER_JINJA_FILTERS_H
#define COT_TOKENIZER_JINJA_FILTERS_H
#include "tokenizer/jinja/interpret.h"

#define COT_JINJA_FILTER_FUNCTION(name)                                                                      \
    cot_jinja_value cot_jinja_filter_##name(cot_jinja_run *run, cot_jinja_value self,                        \
                                            const cot_jinja_arguments *given)

// of text and numbers
COT_JINJA_FILTER_FUNCTION(abs);
COT_JINJA_FILTER_FUNCTION(capitalize);
COT_JINJA_FILTER_FUNCTION(default);
COT_JINJA_FILTER_FUNCTION(escape);
COT_JINJA_FILTER_FUNCTION(float);
COT_JINJA_FILTER_FUNCTION(indent);
COT_JINJA_FILTER_FUNCTION(int);
COT_JINJA_FILTER_FUNCTION(length);
COT_JINJA_FILTER_FUNCTION(lower);
COT_JINJA_FILTER_FUNCTION(replace);
COT_JINJA_FILTER_FUNCTION(round);
COT_JINJA_FILTER_FUNCTION(safe);
COT_JINJA_FILTER_FUNCTION(string);
COT_JINJA_FILTER_FUNCTION(title);
COT_JINJA_FILTER_FUNCTION(trim);
COT_JINJA_FILTER_FUNCTION(upper);
// of sequences and dicts
COT_JINJA_FILTER_FUNCTION(attr);
COT_JINJA_FILTER_FUNCTION(dictsort);
COT_JINJA_FILTER_FUNCTION(first);
COT_JINJA_FILTER_FUNCTION(items);
COT_JINJA_FILTER_FUNCTION(join);
COT_JINJA_FILTER_FUNCTION(last);
COT_JINJA_FILTER_FUNCTION(list);
COT_JINJA_FILTER_FUNCTION(map);
COT_JINJA_FILTER_FUNCTION(max);
COT_JINJA_FILTER_FUNCTION(min);
COT_JINJA_FILTER_FUNCTION(reject);
COT_JINJA_FILTER_FUNCTION(rejectattr);
COT_JINJA_FILTER_FUNCTION(reverse);
COT_JINJA_FILTER_FUNCTION(select);
COT_JINJA_FILTER_FUNCTION(selectattr);
COT_JINJA_FILTER_FUNCTION(sort);
COT_JINJA_FILTER_FUNCTION(sum);
COT_JINJA_FILTER_FUNCTION(unique);

/* item.a.b for the attribute "a.b"; an integer is an index. */
cot_jinja_value cot_jinja_path_value(cot_jinja_run *run, cot_jinja_value item, cot_jinja_value attribute);

#endif
