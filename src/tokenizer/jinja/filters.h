/* The filters' functions, which filters.c lists by name. */
#ifndef COT_TOKENIZER_JINJA_FILTERS_H
#define COT_TOKENIZER_JINJA_FILTERS_H
#include "tokenizer/jinja/interpret.h"

#define COT_JINJA_FILTER(name)                                                                               \
    cot_jinja_value cot_jinja_filter_##name(cot_jinja_run *run, cot_jinja_value self,                        \
                                            const cot_jinja_arguments *given)

// of text and numbers
COT_JINJA_FILTER(abs);
COT_JINJA_FILTER(capitalize);
COT_JINJA_FILTER(default);
COT_JINJA_FILTER(escape);
COT_JINJA_FILTER(float);
COT_JINJA_FILTER(indent);
COT_JINJA_FILTER(int);
COT_JINJA_FILTER(length);
COT_JINJA_FILTER(lower);
COT_JINJA_FILTER(replace);
COT_JINJA_FILTER(round);
COT_JINJA_FILTER(safe);
COT_JINJA_FILTER(string);
COT_JINJA_FILTER(title);
COT_JINJA_FILTER(trim);
COT_JINJA_FILTER(upper);
// of sequences and dicts
COT_JINJA_FILTER(attr);
COT_JINJA_FILTER(dictsort);
COT_JINJA_FILTER(first);
COT_JINJA_FILTER(items);
COT_JINJA_FILTER(join);
COT_JINJA_FILTER(last);
COT_JINJA_FILTER(list);
COT_JINJA_FILTER(map);
COT_JINJA_FILTER(max);
COT_JINJA_FILTER(min);
COT_JINJA_FILTER(reject);
COT_JINJA_FILTER(rejectattr);
COT_JINJA_FILTER(reverse);
COT_JINJA_FILTER(select);
COT_JINJA_FILTER(selectattr);
COT_JINJA_FILTER(sort);
COT_JINJA_FILTER(sum);
COT_JINJA_FILTER(unique);

/* item.a.b for the attribute "a.b"; an integer is an index. */
cot_jinja_value cot_jinja_path_value(cot_jinja_run *run, cot_jinja_value item, cot_jinja_value attribute);

#endif
