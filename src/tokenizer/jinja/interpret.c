#include "tokenizer/jinja/interpret.h"
#include "tokenizer/jinja/print.h"

#include <string.h>

typedef cot_jinja_value value;
typedef cot_jinja_node node;

cot_jinja_scope *cot_jinja_scope_new(cot_jinja_run *run, cot_jinja_scope *parent)
{
    cot_jinja_scope *scope = cot_jinja_take(run, 1, sizeof *scope);
    scope->parent = parent;
    return scope;
}

void cot_jinja_set(cot_jinja_run *run, cot_jinja_scope *scope, const char *name, value v)
{
    for (size_t i = 0; i < scope->count; i++)
        if (scope->cells[i].name == name) {
            scope->cells[i].value = v;
            return;
        }
    if (scope->count == scope->capacity) {
        scope->capacity = scope->capacity ? scope->capacity * 2 : 4;
        cot_jinja_cell *cells = cot_jinja_take(run, scope->capacity, sizeof *cells);
        if (scope->count) memcpy(cells, scope->cells, scope->count * sizeof *cells);
        scope->cells = cells;
    }
    scope->cells[scope->count++] = (cot_jinja_cell){name, v};
}

value cot_jinja_get(cot_jinja_run *run, const cot_jinja_scope *scope, const char *name)
{
    for (; scope; scope = scope->parent) {
        cot_jinja_step(run, 1 + scope->count / 16);
        for (size_t i = 0; i < scope->count; i++)
            if (scope->cells[i].name == name) return scope->cells[i].value;
    }
    return (value){0};
}

static void assign_attribute(cot_jinja_run *run, const cot_jinja_scope *scope, const node *target, value v)
{
    value object = cot_jinja_get(run, scope, target->name);
    if (object.type != COT_JINJA_NAMESPACE)
        cot_jinja_fail(run, COT_JINJA_PYTHON, "cannot assign attribute on non-namespace object");
    if (target->value.string->data[0] == '_')
        cot_jinja_fail(run, COT_JINJA_SECURITY, "a namespace cannot store the name '%.*s'",
                       target->value.string->bytes > 100 ? 100 : (int)target->value.string->bytes,
                       target->value.string->data);
    cot_jinja_map_put(run, object.map, target->value, v);
}

void cot_jinja_assign(cot_jinja_run *run, cot_jinja_scope *scope, const node *target, value v)
{
    if (target->kind == COT_JINJA_NAME) {
        cot_jinja_set(run, scope, target->name, v);
    } else if (target->kind == COT_JINJA_NAMESPACE_ATTRIBUTE) {
        assign_attribute(run, scope, target, v);
    } else {
        const cot_jinja_sequence *items = cot_jinja_items_of(run, v);
        if (items->count != target->items.count)
            cot_jinja_fail(run, COT_JINJA_PYTHON, "%zu values to unpack into %zu names", items->count,
                           target->items.count);
        for (size_t i = 0; i < items->count; i++)
            cot_jinja_assign(run, scope, target->items.items[i], items->items[i]);
    }
}

value cot_jinja_captured(cot_jinja_run *run, cot_jinja_scope *scope, const cot_jinja_nodes *body)
{
    cot_jinja_builder inner = {.run = run}, *outer = run->text;
    run->text = &inner;
    cot_jinja_execute(run, scope, body);
    run->text = outer;
    return cot_jinja_built(&inner, false);
}

static value new_macro(cot_jinja_run *run, cot_jinja_scope *scope, const node *macro)
{
    cot_jinja_callable *callable = cot_jinja_take(run, 1, sizeof *callable);
    callable->name = macro->name;
    callable->macro = macro;
    callable->scope = scope;
    for (; scope && !scope->held; scope = scope->parent) scope->held = true;
    return (value){.type = COT_JINJA_CALLABLE, .callable = callable};
}

/* Takes a named argument out of those given; absent where it is not among them. */
static value take_named(cot_jinja_arguments *arguments, const char *name)
{
    for (size_t i = 0; i < arguments->named; i++)
        if (arguments->names[i] && !strcmp(arguments->names[i], name)) {
            arguments->names[i] = NULL;
            return arguments->named_items[i];
        }
    return (value){0};
}

/* What is left of named arguments, as a dict. */
static value rest_named(cot_jinja_run *run, const cot_jinja_arguments *arguments)
{
    value out = cot_jinja_map_new(run, arguments->named);
    for (size_t i = 0; i < arguments->named; i++)
        if (arguments->names[i])
            cot_jinja_map_append(run, out.map, cot_jinja_text(run, arguments->names[i]),
                                 arguments->named_items[i]);
    return out;
}

static void bind_parameters(cot_jinja_run *run, cot_jinja_scope *scope, const node *macro,
                            cot_jinja_arguments *given)
{
    bool own_caller = false;
    for (size_t i = 0; i < macro->items.count; i++) {
        const node *parameter = macro->items.items[i];
        value v = i < given->count ? given->items[i] : take_named(given, parameter->name);
        if (v.type == COT_JINJA_ABSENT && parameter->right)
            v = cot_jinja_evaluate(run, scope, parameter->right);
        if (v.type == COT_JINJA_ABSENT)
            v = cot_jinja_undefined(run, "parameter '%.100s' was not provided", parameter->name);
        cot_jinja_set(run, scope, parameter->name, v);
        own_caller |= parameter->name == run->source->caller;
    }
    if (macro->token & COT_JINJA_USES_CALLER && !own_caller) {
        value caller = take_named(given, "caller");
        cot_jinja_set(run, scope, run->source->caller,
                      caller.type == COT_JINJA_ABSENT ? cot_jinja_undefined(run, "No caller defined")
                                                      : caller);
    }
    if (macro->token & COT_JINJA_USES_KWARGS) {
        cot_jinja_set(run, scope, run->source->kwargs, rest_named(run, given));
        given->named = 0;
    }
    size_t taken = given->count < macro->items.count ? given->count : macro->items.count;
    if (macro->token & COT_JINJA_USES_VARARGS) {
        value rest = cot_jinja_sequence_new(run, COT_JINJA_TUPLE, given->count - taken);
        for (size_t i = taken; i < given->count; i++) rest.sequence->items[i - taken] = given->items[i];
        cot_jinja_set(run, scope, run->source->varargs, rest);
        given->count = taken;
    }
    if (given->count > taken)
        cot_jinja_fail(run, COT_JINJA_PYTHON, "macro '%.100s' takes not more than %zu argument(s)",
                       macro->name, macro->items.count);
    for (size_t i = 0; i < given->named; i++)
        if (given->names[i])
            cot_jinja_fail(run, COT_JINJA_PYTHON, "macro '%.100s' takes no keyword argument '%.100s'",
                           macro->name, given->names[i]);
}

value cot_jinja_call_macro(cot_jinja_run *run, const cot_jinja_callable *callable,
                           const cot_jinja_arguments *arguments)
{
    cot_jinja_arguments given = *arguments;
    given.names = cot_jinja_take(run, given.named, sizeof *given.names);
    for (size_t i = 0; i < given.named; i++) given.names[i] = arguments->names[i];
    cot_jinja_scope *scope = cot_jinja_scope_new(run, callable->scope);
    bind_parameters(run, scope, callable->macro, &given);
    return cot_jinja_captured(run, scope, &callable->macro->body);
}

static void call_block(cot_jinja_run *run, cot_jinja_scope *scope, const node *n)
{
    const node *call = n->left;
    value callee = cot_jinja_evaluate(run, scope, call->left);
    cot_jinja_arguments arguments = cot_jinja_arguments_of(run, scope, call->call, 1);
    arguments.names[arguments.named] = run->source->caller;
    arguments.named_items[arguments.named++] = new_macro(run, scope, n->right);
    cot_jinja_print(run->text, cot_jinja_call(run, callee, &arguments));
}

static const cot_jinja_nodes *branch(cot_jinja_run *run, cot_jinja_scope *scope, const node *n)
{
    if (cot_jinja_truth(cot_jinja_evaluate(run, scope, n->left))) return &n->body;
    for (size_t i = 0; i < n->items.count; i++)
        if (cot_jinja_truth(cot_jinja_evaluate(run, scope, n->items.items[i]->left)))
            return &n->items.items[i]->body;
    return &n->other;
}

static cot_jinja_signal execute_with(cot_jinja_run *run, cot_jinja_scope *scope, const node *n)
{
    cot_jinja_scope *inner = cot_jinja_scope_new(run, scope);
    for (size_t i = 0; i < n->items.count; i += 2)
        cot_jinja_assign(run, inner, n->items.items[i],
                         cot_jinja_evaluate(run, scope, n->items.items[i + 1]));
    return cot_jinja_execute(run, inner, &n->body);
}

static cot_jinja_signal execute_one(cot_jinja_run *run, cot_jinja_scope *scope, const node *n)
{
    value v;
    switch (n->kind) {
    case COT_JINJA_TEXT:
        cot_jinja_add_string(run->text, n->value.string);
        return COT_JINJA_GO_ON;
    case COT_JINJA_PRINT:
        cot_jinja_print(run->text, cot_jinja_evaluate(run, scope, n->left));
        return COT_JINJA_GO_ON;
    case COT_JINJA_SET:
        cot_jinja_assign(run, scope, n->left, cot_jinja_evaluate(run, scope, n->right));
        return COT_JINJA_GO_ON;
    case COT_JINJA_SET_BLOCK:
        v = cot_jinja_captured(run, cot_jinja_scope_new(run, scope), &n->body);
        cot_jinja_assign(run, scope, n->left, cot_jinja_filtered(run, scope, n->right, v));
        return COT_JINJA_GO_ON;
    case COT_JINJA_FILTER_BLOCK:
        v = cot_jinja_captured(run, cot_jinja_scope_new(run, scope), &n->body);
        cot_jinja_print(run->text, cot_jinja_filtered(run, scope, n->left, v));
        return COT_JINJA_GO_ON;
    case COT_JINJA_FOR:
        cot_jinja_execute_loop(run, scope, n, cot_jinja_evaluate(run, scope, n->right), 0);
        return COT_JINJA_GO_ON;
    case COT_JINJA_IF:
        return cot_jinja_execute(run, scope, branch(run, scope, n));
    case COT_JINJA_MACRO_NODE:
        cot_jinja_set(run, scope, n->name, new_macro(run, scope, n));
        return COT_JINJA_GO_ON;
    case COT_JINJA_CALL_BLOCK:
        call_block(run, scope, n);
        return COT_JINJA_GO_ON;
    case COT_JINJA_WITH:
        return execute_with(run, scope, n);
    case COT_JINJA_BREAK:
        return COT_JINJA_BREAK_LOOP;
    case COT_JINJA_CONTINUE:
        return COT_JINJA_NEXT_ROUND;
    default: // COT_JINJA_INCLUDE
        cot_jinja_fail(run, COT_JINJA_PYTHON, "a chat template cannot include another");
    }
}

cot_jinja_signal cot_jinja_execute(cot_jinja_run *run, cot_jinja_scope *scope, const cot_jinja_nodes *body)
{
    cot_jinja_signal signal = COT_JINJA_GO_ON;
    cot_jinja_enter(run);
    for (size_t i = 0; i < body->count && signal == COT_JINJA_GO_ON; i++) {
        cot_jinja_step(run, 1);
        run->line = body->items[i]->line;
        signal = execute_one(run, scope, body->items[i]);
    }
    cot_jinja_leave(run);
    return signal;
}

void cot_jinja_render(cot_jinja_run *run, const cot_jinja_template *source, const cot_jinja_map *variables,
                      cot_jinja_builder *out)
{
    cot_jinja_scope *globals = cot_jinja_scope_new(run, NULL), *top = cot_jinja_scope_new(run, globals);
    run->source = source;
    run->text = out;
    for (size_t i = 0; i < source->name_count; i++) {
        const char *name = source->names[i];
        value v = cot_jinja_map_find(run, variables, name);
        cot_jinja_function *function = cot_jinja_global(name);
        if (v.type != COT_JINJA_ABSENT)
            cot_jinja_set(run, globals, name, v);
        else if (function)
            cot_jinja_set(run, globals, name, cot_jinja_function_value(run, name, function, (value){0}));
    }
    cot_jinja_execute(run, top, &source->body);
}
