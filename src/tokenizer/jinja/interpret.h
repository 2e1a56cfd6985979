/* A rendering: statements and expressions of a template, walked. */
#ifndef COT_TOKENIZER_JINJA_INTERPRET_H
#define COT_TOKENIZER_JINJA_INTERPRET_H
#include "tokenizer/jinja/string.h"
#include "tokenizer/jinja/syntax.h"

typedef struct cot_jinja_cell {
    const char *name; // one of the template's, by its pointer
    cot_jinja_value value;
} cot_jinja_cell;

/* Variables; who looks for one goes on in the parent. */
typedef struct cot_jinja_scope {
    struct cot_jinja_scope *parent;
    cot_jinja_cell *cells;
    size_t count, capacity;
    bool held; // a macro looks into it later
} cot_jinja_scope;

cot_jinja_scope *cot_jinja_scope_new(cot_jinja_run *run, cot_jinja_scope *parent);
void cot_jinja_set(cot_jinja_run *run, cot_jinja_scope *scope, const char *name, cot_jinja_value value);
/* Assigns to what cot_jinja_parse_target read. */
void cot_jinja_assign(cot_jinja_run *run, cot_jinja_scope *scope, const cot_jinja_node *target,
                      cot_jinja_value value);
/* Absent where no scope has it. */
cot_jinja_value cot_jinja_get(cot_jinja_run *run, const cot_jinja_scope *scope, const char *name);

cot_jinja_value cot_jinja_evaluate(cot_jinja_run *run, cot_jinja_scope *scope, const cot_jinja_node *node);
/* The filters of a block, which have no input of their own; NULL: none. */
cot_jinja_value cot_jinja_filtered(cot_jinja_run *run, cot_jinja_scope *scope, const cot_jinja_node *filters,
                                   cot_jinja_value input);
/* The arguments of a call; with room for `more` named ones behind those written. */
cot_jinja_arguments cot_jinja_arguments_of(cot_jinja_run *run, cot_jinja_scope *scope,
                                           const cot_jinja_call_node *call, size_t more);
/* Calls a function, a method, a macro or a recursive loop. */
cot_jinja_value cot_jinja_call(cot_jinja_run *run, cot_jinja_value callee,
                               const cot_jinja_arguments *arguments);
cot_jinja_value cot_jinja_call_macro(cot_jinja_run *run, const cot_jinja_callable *macro,
                                     const cot_jinja_arguments *arguments);

typedef enum cot_jinja_signal {
    COT_JINJA_GO_ON,
    COT_JINJA_BREAK_LOOP,
    COT_JINJA_NEXT_ROUND
} cot_jinja_signal;

cot_jinja_signal cot_jinja_execute(cot_jinja_run *run, cot_jinja_scope *scope, const cot_jinja_nodes *body);
/* What the body prints. */
cot_jinja_value cot_jinja_captured(cot_jinja_run *run, cot_jinja_scope *scope, const cot_jinja_nodes *body);

/* A `for` statement's loop over what `over` gives, as `loop` in its body. */
typedef struct cot_jinja_loop {
    const cot_jinja_node *statement;
    cot_jinja_scope *outside;
    const cot_jinja_sequence *items;
    size_t at;                              // the next item to look at
    bool filtered;                          // items that the statement's `if` refuses are skipped
    cot_jinja_value before, current, after; // absent where not (yet) known
    int64_t index0, length, depth;          // the length is -1 before somebody asks
    cot_jinja_value changed;
} cot_jinja_loop;

void cot_jinja_execute_loop(cot_jinja_run *run, cot_jinja_scope *scope, const cot_jinja_node *statement,
                            cot_jinja_value over, int64_t depth);
/* loop.index and its kind; absent where it has none of this name. */
cot_jinja_value cot_jinja_loop_attribute(cot_jinja_run *run, cot_jinja_value loop, const char *name);

/* object.name and object[key], as Jinja's sandbox looks for them. */
cot_jinja_value cot_jinja_attribute(cot_jinja_run *run, cot_jinja_value object, const char *name);
cot_jinja_value cot_jinja_item(cot_jinja_run *run, cot_jinja_value object, cot_jinja_value key);
/* object[start:stop:stride]; `bounds` [3], absent where left out. */
cot_jinja_value cot_jinja_slice(cot_jinja_run *run, cot_jinja_value object, const cot_jinja_value *bounds);

/* left `token` right. */
cot_jinja_value cot_jinja_arithmetic(cot_jinja_run *run, int token, cot_jinja_value left,
                                     cot_jinja_value right);
cot_jinja_value cot_jinja_negative(cot_jinja_run *run, cot_jinja_value value);
/* Python's `in`. */
bool cot_jinja_contains(cot_jinja_run *run, cot_jinja_value container, cot_jinja_value item);

/* A filter by its name, a test by its name; NULL for none. A test gives a bool. */
cot_jinja_function *cot_jinja_filter(const char *name);
cot_jinja_function *cot_jinja_test(const char *name);
/* A method of a string, list or dict; NULL for none. */
cot_jinja_function *cot_jinja_method(cot_jinja_value object, const char *name);
/* A global function; NULL for none. */
cot_jinja_function *cot_jinja_global(const char *name);

/* Renders the template with `variables`, a map whose keys are strings; run->source is set here. */
void cot_jinja_render(cot_jinja_run *run, const cot_jinja_template *source, const cot_jinja_map *variables,
                      cot_jinja_builder *out);

cot_jinja_value cot_jinja_function_value(cot_jinja_run *run, const char *name, cot_jinja_function *function,
                                         cot_jinja_value self);

#endif
