/* Values as text: Python's str and repr, and JSON as Python's json.dumps writes it. */
#ifndef COT_TOKENIZER_JINJA_PRINT_H
#define COT_TOKENIZER_JINJA_PRINT_H
#include "tokenizer/jinja/string.h"

/* Python's str(): a string as it is. */
const cot_jinja_string *cot_jinja_str(cot_jinja_run *run, cot_jinja_value value);
void cot_jinja_print(cot_jinja_builder *builder, cot_jinja_value value);
/* Python's repr(). */
void cot_jinja_repr(cot_jinja_builder *builder, cot_jinja_value value);

/* The filter `tojson` of transformers: tojson(value, ensure_ascii=False, indent=None, separators=None,
 * sort_keys=False). */
cot_jinja_value cot_jinja_tojson(cot_jinja_run *run, cot_jinja_value value,
                                 const cot_jinja_arguments *arguments);

/* Python's repr of a double: the fewest digits that read back as it. */
void cot_jinja_print_real(char out[32], double real);

#endif
