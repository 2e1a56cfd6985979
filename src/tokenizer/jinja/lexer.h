/* A template cut into tokens, with white space around tags dropped as trim_blocks and lstrip_blocks do. */
#ifndef COT_TOKENIZER_JINJA_LEXER_H
#define COT_TOKENIZER_JINJA_LEXER_H
#include "tokenizer/jinja/value.h"

typedef enum cot_jinja_token_kind {
    COT_JINJA_T_END,
    COT_JINJA_T_DATA, // text between tags
    COT_JINJA_T_PRINT_BEGIN,
    COT_JINJA_T_PRINT_END,
    COT_JINJA_T_BLOCK_BEGIN,
    COT_JINJA_T_BLOCK_END,
    COT_JINJA_T_NAME,
    COT_JINJA_T_STRING,
    COT_JINJA_T_INTEGER,
    COT_JINJA_T_REAL,
    COT_JINJA_T_FLOOR_DIVIDE,
    COT_JINJA_T_POWER,
    COT_JINJA_T_EQUAL,
    COT_JINJA_T_NOT_EQUAL,
    COT_JINJA_T_AT_LEAST,
    COT_JINJA_T_AT_MOST,
    COT_JINJA_T_IN, // of comparisons, made by the parser
    COT_JINJA_T_NOT_IN,
    // the others are their own character: '+', '(', ...
} cot_jinja_token_kind;

typedef struct cot_jinja_token {
    int kind, line;
    const char *text; // [bytes]: the name, the data
    size_t bytes;
    cot_jinja_value value; // of strings and numbers
} cot_jinja_token;

/* All tokens, the last one T_END, in the run's memory. */
cot_jinja_token *cot_jinja_tokens(cot_jinja_run *run, const char *text, size_t bytes);

#endif
