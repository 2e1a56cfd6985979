/* Shared by the parser of statements and that of expressions. */
#ifndef COT_TOKENIZER_JINJA_PARSER_H
#define COT_TOKENIZER_JINJA_PARSER_H
#include "tokenizer/jinja/lexer.h"
#include "tokenizer/jinja/syntax.h"

typedef struct cot_jinja_parser {
    cot_jinja_run *run;
    cot_jinja_template *out;
    const cot_jinja_token *at;
    int uses;  // COT_JINJA_USES_... of the macro that is being read
    int loops; // around the statement, within its macro
} cot_jinja_parser;

cot_jinja_node *cot_jinja_node_new(cot_jinja_parser *p, cot_jinja_node_kind kind);
void cot_jinja_nodes_add(cot_jinja_parser *p, cot_jinja_nodes *nodes, cot_jinja_node *node);
/* The one pointer for a name. */
const char *cot_jinja_name(cot_jinja_parser *p, const char *text, size_t bytes);

bool cot_jinja_at_name(const cot_jinja_parser *p, const char *name);
bool cot_jinja_skip_name(cot_jinja_parser *p, const char *name);
bool cot_jinja_skip(cot_jinja_parser *p, int kind);
void cot_jinja_expect(cot_jinja_parser *p, int kind, const char *what);
/* Reads a name; `what` it is of. */
const char *cot_jinja_expect_name(cot_jinja_parser *p, const char *what);
_Noreturn void cot_jinja_fail_token(cot_jinja_parser *p);

cot_jinja_node *cot_jinja_parse_expression(cot_jinja_parser *p);
/* Expressions with commas between them make a tuple. Without `conditions` an `if` ends the expression. */
cot_jinja_node *cot_jinja_parse_tuple(cot_jinja_parser *p, bool conditions);
/* What can be assigned to: a name, an attribute of a namespace (`attributes`), a tuple of such. */
cot_jinja_node *cot_jinja_parse_target(cot_jinja_parser *p, bool attributes);
/* `name(...) | name ...` behind an expression; `node` may be NULL. With `inline_start` the first has no '|'. */
cot_jinja_node *cot_jinja_parse_filters(cot_jinja_parser *p, cot_jinja_node *node, bool inline_start);

#endif
