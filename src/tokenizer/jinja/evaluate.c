#include "tokenizer/jinja/interpret.h"
#include "tokenizer/jinja/lexer.h"
#include "tokenizer/jinja/print.h"

#include <string.h>

typedef cot_jinja_value value;
typedef cot_jinja_node node;
typedef cot_jinja_scope scope;

value cot_jinja_function_value(cot_jinja_run *run, const char *name, cot_jinja_function *function, value self)
{
    cot_jinja_callable *callable = cot_jinja_take(run, 1, sizeof *callable);
    const size_t bytes = strlen(name) + 1;
    callable->name =
        memcpy(cot_jinja_take(run, bytes, 1), name, bytes); // the caller's may be gone when it is printed
    callable->function = function;
    callable->self = self;
    return (value){.type = COT_JINJA_CALLABLE, .callable = callable};
}

value cot_jinja_call(cot_jinja_run *run, value callee, const cot_jinja_arguments *arguments)
{
    if (cot_jinja_is_undefined(callee)) cot_jinja_fail_undefined(run, callee);
    if (callee.type == COT_JINJA_LOOP && callee.loop->statement->flag && arguments->count == 1 &&
        !arguments->named) {
        const cot_jinja_loop *loop = callee.loop;
        cot_jinja_builder inner = {.run = run}, *outer = run->text;
        cot_jinja_enter(run);
        run->text = &inner;
        cot_jinja_execute_loop(run, loop->outside, loop->statement, arguments->items[0], loop->depth + 1);
        run->text = outer;
        cot_jinja_leave(run);
        return cot_jinja_built(&inner, false);
    }
    if (callee.type != COT_JINJA_CALLABLE)
        cot_jinja_fail(run, COT_JINJA_PYTHON, "'%s' object is not callable", cot_jinja_type_name(callee));
    if (callee.callable->function) return callee.callable->function(run, callee.callable->self, arguments);
    return cot_jinja_call_macro(run, callee.callable, arguments);
}

static char *name_of(cot_jinja_run *run, value key)
{
    if (key.type != COT_JINJA_STRING) cot_jinja_fail(run, COT_JINJA_PYTHON, "keywords must be strings");
    char *name = cot_jinja_take(run, key.string->bytes + 1, 1);
    if (key.string->bytes) memcpy(name, key.string->data, key.string->bytes);
    return name;
}

cot_jinja_arguments cot_jinja_arguments_of(cot_jinja_run *run, scope *s, const cot_jinja_call_node *call,
                                           size_t more)
{
    value star = call->star ? cot_jinja_evaluate(run, s, call->star) : (value){0};
    const cot_jinja_sequence *list = call->star ? cot_jinja_items_of(run, star) : NULL;
    value stars = call->stars ? cot_jinja_evaluate(run, s, call->stars) : (value){0};
    if (call->stars && stars.type != COT_JINJA_MAP)
        cot_jinja_fail(run, COT_JINJA_PYTHON, "what follows ** is no mapping");
    size_t count = call->items.count + (list ? list->count : 0);
    size_t named = call->named.count + (call->stars ? stars.map->count : 0) + more;
    cot_jinja_arguments out = {.items = cot_jinja_take(run, count, sizeof(value)),
                               .names = cot_jinja_take(run, named, sizeof(char *)),
                               .named_items = cot_jinja_take(run, named, sizeof(value))};
    for (size_t i = 0; i < call->items.count; i++)
        out.items[out.count++] = cot_jinja_evaluate(run, s, call->items.items[i]);
    for (size_t i = 0; list && i < list->count; i++) out.items[out.count++] = list->items[i];
    for (size_t i = 0; i < call->named.count; i++) {
        out.names[out.named] = call->named.items[i]->name;
        out.named_items[out.named++] = cot_jinja_evaluate(run, s, call->named.items[i]->left);
    }
    for (size_t i = 0; call->stars && i < stars.map->count; i++) {
        out.names[out.named] = name_of(run, stars.map->entries[i].key);
        out.named_items[out.named++] = stars.map->entries[i].value;
    }
    return out;
}

static value apply_filter(cot_jinja_run *run, scope *s, const node *n, value input)
{
    cot_jinja_function *filter = cot_jinja_filter(n->name);
    cot_jinja_arguments arguments = cot_jinja_arguments_of(run, s, n->call, 0);
    run->line = n->line;
    if (!filter) cot_jinja_fail(run, COT_JINJA_PYTHON, "no filter named '%.100s'", n->name);
    return filter(run, input, &arguments);
}

value cot_jinja_filtered(cot_jinja_run *run, scope *s, const node *filters, value input)
{
    if (!filters) return input;
    cot_jinja_enter(run);
    value out = apply_filter(run, s, filters, cot_jinja_filtered(run, s, filters->left, input));
    cot_jinja_leave(run);
    return out;
}

static value apply_test(cot_jinja_run *run, scope *s, const node *n)
{
    cot_jinja_function *test = cot_jinja_test(n->name);
    value input = cot_jinja_evaluate(run, s, n->left);
    cot_jinja_arguments arguments = cot_jinja_arguments_of(run, s, n->call, 0);
    run->line = n->line;
    if (!test) cot_jinja_fail(run, COT_JINJA_PYTHON, "no test named '%.100s'", n->name);
    return test(run, input, &arguments);
}

static value list_of(cot_jinja_run *run, scope *s, const node *n, cot_jinja_sequence_kind kind)
{
    value out = cot_jinja_sequence_new(run, kind, n->items.count);
    for (size_t i = 0; i < n->items.count; i++)
        out.sequence->items[i] = cot_jinja_evaluate(run, s, n->items.items[i]);
    return out;
}

static value dict_of(cot_jinja_run *run, scope *s, const node *n)
{
    value out = cot_jinja_map_new(run, n->items.count / 2);
    for (size_t i = 0; i < n->items.count; i += 2) {
        value key = cot_jinja_evaluate(run, s, n->items.items[i]);
        cot_jinja_check_key(run, key);
        cot_jinja_map_put(run, out.map, key, cot_jinja_evaluate(run, s, n->items.items[i + 1]));
    }
    return out;
}

static value item_of(cot_jinja_run *run, scope *s, const node *n)
{
    value object = cot_jinja_evaluate(run, s, n->left), bounds[3] = {{0}, {0}, {0}};
    if (n->right->kind != COT_JINJA_SLICE)
        return cot_jinja_item(run, object, cot_jinja_evaluate(run, s, n->right));
    for (int i = 0; i < 3; i++)
        if (n->right->items.items[i]) bounds[i] = cot_jinja_evaluate(run, s, n->right->items.items[i]);
    return cot_jinja_slice(run, object, bounds);
}

static value concat(cot_jinja_run *run, scope *s, const node *n)
{
    const cot_jinja_string *out = cot_jinja_str(run, cot_jinja_evaluate(run, s, n->items.items[0]));
    for (size_t i = 1; i < n->items.count; i++)
        out = cot_jinja_joined(run, out, cot_jinja_str(run, cot_jinja_evaluate(run, s, n->items.items[i])))
                  .string;
    return cot_jinja_marked_safe(run, out, false);
}

static bool holds(cot_jinja_run *run, value a, int token, value b)
{
    switch (token) {
    case COT_JINJA_T_EQUAL:
        return cot_jinja_equal(run, a, b);
    case COT_JINJA_T_NOT_EQUAL:
        return !cot_jinja_equal(run, a, b);
    case COT_JINJA_T_IN:
        return cot_jinja_contains(run, b, a);
    case COT_JINJA_T_NOT_IN:
        return !cot_jinja_contains(run, b, a);
    default:
        break;
    }
    const char *sign = token == '<' ? "<" : token == '>' ? ">" : token == COT_JINJA_T_AT_MOST ? "<=" : ">=";
    int order = cot_jinja_compare(run, a, b, sign);
    return token == '<'                   ? order < 0
           : token == '>'                 ? order > 0
           : token == COT_JINJA_T_AT_MOST ? order <= 0
                                          : order >= 0;
}

static value comparison(cot_jinja_run *run, scope *s, const node *n)
{
    value left = cot_jinja_evaluate(run, s, n->left);
    for (size_t i = 0; i < n->items.count; i++) {
        value right = cot_jinja_evaluate(run, s, n->items.items[i]->left);
        run->line = n->line;
        if (!holds(run, left, n->items.items[i]->token, right)) return cot_jinja_bool(false);
        left = right;
    }
    return cot_jinja_bool(true);
}

static value condition(cot_jinja_run *run, scope *s, const node *n)
{
    if (cot_jinja_truth(cot_jinja_evaluate(run, s, n->right))) return cot_jinja_evaluate(run, s, n->left);
    if (n->third) return cot_jinja_evaluate(run, s, n->third);
    return cot_jinja_undefined(
        run, "the inline if-expression on line %d evaluated to false and no else section was defined.",
        n->line);
}

static value variable(cot_jinja_run *run, scope *s, const node *n)
{
    value found = cot_jinja_get(run, s, n->name);
    return found.type != COT_JINJA_ABSENT ? found
                                          : cot_jinja_undefined(run, "'%.100s' is undefined", n->name);
}

static value call(cot_jinja_run *run, scope *s, const node *n)
{
    value callee = cot_jinja_evaluate(run, s, n->left);
    cot_jinja_arguments arguments = cot_jinja_arguments_of(run, s, n->call, 0);
    run->line = n->line;
    return cot_jinja_call(run, callee, &arguments);
}

static value evaluate(cot_jinja_run *run, scope *s, const node *n)
{
    value left, right;
    switch (n->kind) {
    case COT_JINJA_CONSTANT:
        return n->value;
    case COT_JINJA_NAME:
        return variable(run, s, n);
    case COT_JINJA_LIST_NODE:
        return list_of(run, s, n, COT_JINJA_LIST);
    case COT_JINJA_TUPLE_NODE:
        return list_of(run, s, n, COT_JINJA_TUPLE);
    case COT_JINJA_DICT:
        return dict_of(run, s, n);
    case COT_JINJA_ATTRIBUTE:
        return cot_jinja_attribute(run, cot_jinja_evaluate(run, s, n->left), n->name);
    case COT_JINJA_ITEM:
        return item_of(run, s, n);
    case COT_JINJA_CALL:
        return call(run, s, n);
    case COT_JINJA_FILTER:
        return apply_filter(run, s, n, cot_jinja_evaluate(run, s, n->left));
    case COT_JINJA_TEST:
        return apply_test(run, s, n);
    case COT_JINJA_NOT:
        return cot_jinja_bool(!cot_jinja_truth(cot_jinja_evaluate(run, s, n->left)));
    case COT_JINJA_NEGATIVE:
        return cot_jinja_negative(run, cot_jinja_evaluate(run, s, n->left));
    case COT_JINJA_POSITIVE: // 0 - -x refuses what has no sign
        return cot_jinja_negative(run, cot_jinja_negative(run, cot_jinja_evaluate(run, s, n->left)));
    case COT_JINJA_AND:
        left = cot_jinja_evaluate(run, s, n->left);
        return cot_jinja_truth(left) ? cot_jinja_evaluate(run, s, n->right) : left;
    case COT_JINJA_OR:
        left = cot_jinja_evaluate(run, s, n->left);
        return cot_jinja_truth(left) ? left : cot_jinja_evaluate(run, s, n->right);
    case COT_JINJA_CONDITION:
        return condition(run, s, n);
    case COT_JINJA_CONCAT:
        return concat(run, s, n);
    case COT_JINJA_COMPARE:
        return comparison(run, s, n);
    case COT_JINJA_ARITHMETIC:
        left = cot_jinja_evaluate(run, s, n->left);
        right = cot_jinja_evaluate(run, s, n->right);
        run->line = n->line;
        return cot_jinja_arithmetic(run, n->token, left, right);
    default:
        cot_jinja_fail(run, COT_JINJA_PYTHON, "a slice stands alone");
    }
}

value cot_jinja_evaluate(cot_jinja_run *run, scope *s, const node *n)
{
    cot_jinja_enter(run);
    cot_jinja_step(run, 1);
    value out = evaluate(run, s, n);
    cot_jinja_leave(run);
    return out;
}
