/* Upper, lower and title case as Python's str has them. */
#ifndef COT_TOKENIZER_JINJA_CASE_H
#define COT_TOKENIZER_JINJA_CASE_H
#include "tokenizer/jinja/string.h"

cot_jinja_value cot_jinja_upper(cot_jinja_run *run, const cot_jinja_string *string);
cot_jinja_value cot_jinja_lower(cot_jinja_run *run, const cot_jinja_string *string);
/* The first character in title case (`upper`: in upper case), the others in lower case. */
cot_jinja_value cot_jinja_capitalize(cot_jinja_run *run, const cot_jinja_string *string, bool upper);
/* Every run of letters capitalised. */
cot_jinja_value cot_jinja_title(cot_jinja_run *run, const cot_jinja_string *string);
/* Whether all letters are in lower (upper) case, and there is one. */
bool cot_jinja_is_case(const cot_jinja_string *string, bool upper);
bool cot_jinja_is_letter(int32_t character);

#endif
