/* A template, read: a tree that any number of renderings walk at a time. */
#ifndef COT_TOKENIZER_JINJA_SYNTAX_H
#define COT_TOKENIZER_JINJA_SYNTAX_H
#include "tokenizer/jinja/value.h"

typedef enum cot_jinja_node_kind {
    // statements
    COT_JINJA_TEXT,         // value
    COT_JINJA_PRINT,        // left
    COT_JINJA_SET,          // left = right
    COT_JINJA_SET_BLOCK,    // left = body, through the filters of right
    COT_JINJA_FOR,          // left in right if third: body, else other; recursive: flag
    COT_JINJA_IF,           // left: body, or the first of items (elif) whose left holds, or other
    COT_JINJA_MACRO_NODE,   // name(items: names, with right as default): body; token: COT_JINJA_USES_...
    COT_JINJA_CALL_BLOCK,   // left is the call, right the macro that becomes its caller
    COT_JINJA_FILTER_BLOCK, // body through the filters of left
    COT_JINJA_WITH,         // items: pairs of target and value; body in a scope of its own
    COT_JINJA_BREAK,
    COT_JINJA_CONTINUE,
    COT_JINJA_INCLUDE, // always fails: a template has no others
    // expressions
    COT_JINJA_CONSTANT,            // value
    COT_JINJA_NAME,                // name
    COT_JINJA_NAMESPACE_ATTRIBUTE, // name.value, to be set
    COT_JINJA_LIST_NODE,           // items
    COT_JINJA_TUPLE_NODE,          // items
    COT_JINJA_DICT,                // items: key, value, key, value
    COT_JINJA_ATTRIBUTE,           // left.name
    COT_JINJA_ITEM,                // left[right]
    COT_JINJA_SLICE,               // items: three, NULL where left out
    COT_JINJA_CALL,                // left(call)
    COT_JINJA_FILTER,              // left | name(call); left is NULL where a block is filtered
    COT_JINJA_TEST,                // left is name(call)
    COT_JINJA_NOT,                 // not left
    COT_JINJA_NEGATIVE,
    COT_JINJA_POSITIVE,
    COT_JINJA_AND,
    COT_JINJA_OR,
    COT_JINJA_CONDITION,  // left if right else third
    COT_JINJA_CONCAT,     // items
    COT_JINJA_COMPARE,    // left, then operator and operand of each of items (their `token` and `left`)
    COT_JINJA_ARITHMETIC, // left token right
} cot_jinja_node_kind;

typedef struct cot_jinja_nodes {
    struct cot_jinja_node **items;
    size_t count, capacity;
} cot_jinja_nodes;

/* What a macro's body mentions, and gets from the call then. */
enum { COT_JINJA_USES_CALLER = 1, COT_JINJA_USES_KWARGS = 2, COT_JINJA_USES_VARARGS = 4 };

/* The arguments of a call as written. */
typedef struct cot_jinja_call_node {
    cot_jinja_nodes items, named;
    struct cot_jinja_node *star, *stars; // *list and **dict, or NULL
} cot_jinja_call_node;

typedef struct cot_jinja_node {
    cot_jinja_node_kind kind;
    int line, token; // `token` is a cot_jinja_token_kind
    bool flag;
    const char *name; // one pointer for each name of the template
    cot_jinja_value value;
    struct cot_jinja_node *left, *right, *third;
    cot_jinja_nodes items, body, other;
    cot_jinja_call_node *call;
} cot_jinja_node;

typedef struct cot_jinja_template {
    cot_jinja_nodes body;
    const char **names; // every name that occurs
    size_t name_count, name_capacity;
    const char *loop, *caller, *kwargs, *varargs; // of these, the special ones
} cot_jinja_template;

/* Reads a template, valid UTF-8, into the run's memory; fails with COT_JINJA_SYNTAX. */
void cot_jinja_parse(cot_jinja_run *run, cot_jinja_template *out, const char *text, size_t bytes);

/* Whether there is a filter, a test of this name. */
bool cot_jinja_has_filter(const char *name);
bool cot_jinja_has_test(const char *name);

#endif
