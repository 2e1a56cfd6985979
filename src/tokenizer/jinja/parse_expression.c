/* Expressions, as Jinja's own parser orders them: if, or, and, not, comparison, + -, ~, * / // %, **, sign, operand with
 * its subscripts and calls, filters and tests. */
#include "tokenizer/jinja/parser.h"

#include "tokenizer/jinja/string.h"

#include <string.h>

typedef cot_jinja_node node;

static node *unary(cot_jinja_parser *p, bool filters);

static node *pair(cot_jinja_parser *p, cot_jinja_node_kind kind, node *left, node *right)
{
    node *out = cot_jinja_node_new(p, kind);
    out->left = left;
    out->right = right;
    return out;
}

static node *arithmetic(cot_jinja_parser *p, node *left, int token, node *right)
{
    node *out = pair(p, COT_JINJA_ARITHMETIC, left, right);
    out->token = token;
    return out;
}

static node *constant(cot_jinja_parser *p, cot_jinja_value value)
{
    node *out = cot_jinja_node_new(p, COT_JINJA_CONSTANT);
    out->value = value;
    return out;
}

static node *power(cot_jinja_parser *p)
{
    node *left = unary(p, true);
    while (cot_jinja_skip(p, COT_JINJA_T_POWER))
        left = arithmetic(p, left, COT_JINJA_T_POWER, unary(p, true));
    return left;
}

static node *product(cot_jinja_parser *p)
{
    node *left = power(p);
    for (int token; token = p->at->kind,
                    token == '*' || token == '/' || token == '%' || token == COT_JINJA_T_FLOOR_DIVIDE;) {
        p->at++;
        left = arithmetic(p, left, token, power(p));
    }
    return left;
}

static node *concat(cot_jinja_parser *p)
{
    node *first = product(p);
    if (p->at->kind != '~') return first;
    node *out = cot_jinja_node_new(p, COT_JINJA_CONCAT);
    cot_jinja_nodes_add(p, &out->items, first);
    while (cot_jinja_skip(p, '~')) cot_jinja_nodes_add(p, &out->items, product(p));
    return out;
}

static node *sum(cot_jinja_parser *p)
{
    node *left = concat(p);
    for (int token; token = p->at->kind, token == '+' || token == '-';) {
        p->at++;
        left = arithmetic(p, left, token, concat(p));
    }
    return left;
}

/* The operator of a comparison, 0 where there is none. */
static int comparison(cot_jinja_parser *p)
{
    int token = p->at->kind;
    if (token == COT_JINJA_T_EQUAL || token == COT_JINJA_T_NOT_EQUAL || token == COT_JINJA_T_AT_LEAST ||
        token == COT_JINJA_T_AT_MOST || token == '<' || token == '>') {
        p->at++;
        return token;
    }
    if (cot_jinja_skip_name(p, "in")) return COT_JINJA_T_IN;
    if (!cot_jinja_at_name(p, "not")) return 0;
    p->at++;
    if (cot_jinja_skip_name(p, "in")) return COT_JINJA_T_NOT_IN;
    p->at--;
    return 0;
}

static node *compare(cot_jinja_parser *p)
{
    node *first = sum(p), *out = NULL;
    for (int token; (token = comparison(p));) {
        if (!out) {
            out = cot_jinja_node_new(p, COT_JINJA_COMPARE);
            out->left = first;
        }
        node *operand = cot_jinja_node_new(p, COT_JINJA_COMPARE);
        operand->token = token;
        operand->left = sum(p);
        cot_jinja_nodes_add(p, &out->items, operand);
    }
    return out ? out : first;
}

static node *negation(cot_jinja_parser *p)
{
    if (!cot_jinja_skip_name(p, "not")) return compare(p);
    cot_jinja_enter(p->run);
    node *out = pair(p, COT_JINJA_NOT, negation(p), NULL);
    cot_jinja_leave(p->run);
    return out;
}

static node *conjunction(cot_jinja_parser *p)
{
    node *left = negation(p);
    while (cot_jinja_skip_name(p, "and")) left = pair(p, COT_JINJA_AND, left, negation(p));
    return left;
}

static node *disjunction(cot_jinja_parser *p)
{
    node *left = conjunction(p);
    while (cot_jinja_skip_name(p, "or")) left = pair(p, COT_JINJA_OR, left, conjunction(p));
    return left;
}

node *cot_jinja_parse_expression(cot_jinja_parser *p)
{
    cot_jinja_enter(p->run);
    node *out = disjunction(p);
    while (cot_jinja_skip_name(p, "if")) {
        out = pair(p, COT_JINJA_CONDITION, out, disjunction(p));
        if (cot_jinja_skip_name(p, "else")) out->third = cot_jinja_parse_expression(p);
    }
    cot_jinja_leave(p->run);
    return out;
}

static bool ends_tuple(const cot_jinja_parser *p)
{
    int kind = p->at->kind;
    return kind == COT_JINJA_T_PRINT_END || kind == COT_JINJA_T_BLOCK_END || kind == ')';
}

/* `parenthesised`: there may be nothing. */
static node *tuple(cot_jinja_parser *p, bool conditions, bool parenthesised)
{
    node *out = NULL, *first = NULL;
    while (!ends_tuple(p)) {
        node *item = conditions ? cot_jinja_parse_expression(p) : disjunction(p);
        if (out) cot_jinja_nodes_add(p, &out->items, item);
        if (!first) first = item;
        if (p->at->kind != ',') break;
        if (!out) {
            out = cot_jinja_node_new(p, COT_JINJA_TUPLE_NODE);
            cot_jinja_nodes_add(p, &out->items, first);
        }
        p->at++;
        if (cot_jinja_at_name(p, "recursive") && !conditions) break;
    }
    if (!first && !parenthesised) cot_jinja_fail_token(p);
    return out ? out : first ? first : cot_jinja_node_new(p, COT_JINJA_TUPLE_NODE);
}

node *cot_jinja_parse_tuple(cot_jinja_parser *p, bool conditions)
{
    return tuple(p, conditions, false);
}

/* Items up to `end`, a comma after the last allowed; of a dict pairs with colons. */
static node *display(cot_jinja_parser *p, cot_jinja_node_kind kind, int end)
{
    node *out = cot_jinja_node_new(p, kind);
    p->at++;
    while (p->at->kind != end) {
        cot_jinja_nodes_add(p, &out->items, cot_jinja_parse_expression(p));
        if (kind == COT_JINJA_DICT) {
            cot_jinja_expect(p, ':', "':'");
            cot_jinja_nodes_add(p, &out->items, cot_jinja_parse_expression(p));
        }
        if (p->at->kind != end) cot_jinja_expect(p, ',', "','");
    }
    p->at++;
    return out;
}

static node *strings(cot_jinja_parser *p)
{
    cot_jinja_builder joined = {.run = p->run};
    for (; p->at->kind == COT_JINJA_T_STRING; p->at++) cot_jinja_add_string(&joined, p->at->value.string);
    return constant(p, cot_jinja_built(&joined, false));
}

static node *name(cot_jinja_parser *p, bool attributes)
{
    static const char *const words[] = {"true", "True", "false", "False", "none", "None"};
    for (int i = 0; i < 6; i++)
        if (cot_jinja_skip_name(p, words[i]))
            return constant(p, i < 4 ? cot_jinja_bool(i < 2) : cot_jinja_none());
    p->uses |= cot_jinja_at_name(p, "caller")    ? COT_JINJA_USES_CALLER
               : cot_jinja_at_name(p, "kwargs")  ? COT_JINJA_USES_KWARGS
               : cot_jinja_at_name(p, "varargs") ? COT_JINJA_USES_VARARGS
                                                 : 0;
    node *out = cot_jinja_node_new(p, COT_JINJA_NAME);
    out->name = cot_jinja_expect_name(p, "a variable");
    if (attributes && cot_jinja_skip(p, '.')) {
        out->kind = COT_JINJA_NAMESPACE_ATTRIBUTE;
        out->value = cot_jinja_text(p->run, cot_jinja_expect_name(p, "an attribute"));
    }
    return out;
}

static node *primary(cot_jinja_parser *p, bool attributes)
{
    node *out;
    switch (p->at->kind) {
    case COT_JINJA_T_NAME:
        return name(p, attributes);
    case COT_JINJA_T_STRING:
        return strings(p);
    case COT_JINJA_T_INTEGER:
    case COT_JINJA_T_REAL:
        return constant(p, p->at++->value);
    case '(':
        p->at++;
        out = tuple(p, true, true);
        cot_jinja_expect(p, ')', "')'");
        return out;
    case '[':
        return display(p, COT_JINJA_LIST_NODE, ']');
    case '{':
        return display(p, COT_JINJA_DICT, '}');
    default:
        cot_jinja_fail_token(p);
    }
}

static void check_target(cot_jinja_parser *p, const node *target)
{
    if (target->kind == COT_JINJA_TUPLE_NODE)
        for (size_t i = 0; i < target->items.count; i++) check_target(p, target->items.items[i]);
    else if (target->kind != COT_JINJA_NAME && target->kind != COT_JINJA_NAMESPACE_ATTRIBUTE)
        cot_jinja_fail(p->run, COT_JINJA_SYNTAX, "cannot assign to what is no name");
}

node *cot_jinja_parse_target(cot_jinja_parser *p, bool attributes)
{
    node *first = primary(p, attributes), *out = first;
    if (p->at->kind == ',') {
        out = cot_jinja_node_new(p, COT_JINJA_TUPLE_NODE);
        cot_jinja_nodes_add(p, &out->items, first);
        while (cot_jinja_skip(p, ',') && !ends_tuple(p) && !cot_jinja_at_name(p, "in"))
            cot_jinja_nodes_add(p, &out->items, primary(p, attributes));
    }
    check_target(p, out);
    return out;
}

static void argument(cot_jinja_parser *p, cot_jinja_call_node *call)
{
    bool starred = call->star || call->stars;
    if (p->at->kind == '*' && !starred) {
        p->at++;
        call->star = cot_jinja_parse_expression(p);
    } else if (p->at->kind == COT_JINJA_T_POWER && !call->stars) {
        p->at++;
        call->stars = cot_jinja_parse_expression(p);
    } else if (p->at->kind == COT_JINJA_T_NAME && p->at[1].kind == '=' && !call->stars) {
        node *named = cot_jinja_node_new(p, COT_JINJA_NAME);
        named->name = cot_jinja_expect_name(p, "an argument");
        p->at++;
        named->left = cot_jinja_parse_expression(p);
        cot_jinja_nodes_add(p, &call->named, named);
    } else if (!starred && !call->named.count) {
        cot_jinja_nodes_add(p, &call->items, cot_jinja_parse_expression(p));
    } else {
        cot_jinja_fail(p->run, COT_JINJA_SYNTAX, "arguments of a call are out of order");
    }
}

static cot_jinja_call_node *arguments(cot_jinja_parser *p)
{
    cot_jinja_call_node *call = cot_jinja_take(p->run, 1, sizeof *call);
    cot_jinja_expect(p, '(', "'('");
    while (p->at->kind != ')') {
        argument(p, call);
        if (p->at->kind != ')') cot_jinja_expect(p, ',', "','");
    }
    p->at++;
    return call;
}

static node *call(cot_jinja_parser *p, node *callee)
{
    node *out = pair(p, COT_JINJA_CALL, callee, NULL);
    out->call = arguments(p);
    return out;
}

/* One subscript: an expression or a slice. */
static node *subscript(cot_jinja_parser *p)
{
    node *parts[3] = {NULL, NULL, NULL};
    int n = 0;
    while (p->at->kind != ']' && p->at->kind != ',') {
        if (p->at->kind != ':') {
            if (parts[n]) cot_jinja_fail_token(p);
            parts[n] = cot_jinja_parse_expression(p);
        } else if (n == 2) {
            cot_jinja_fail_token(p);
        } else {
            p->at++;
            n++;
        }
    }
    if (!n && parts[0]) return parts[0];
    if (!n) cot_jinja_fail_token(p);
    node *slice = cot_jinja_node_new(p, COT_JINJA_SLICE);
    for (int i = 0; i < 3; i++) cot_jinja_nodes_add(p, &slice->items, parts[i]);
    return slice;
}

static node *item(cot_jinja_parser *p, node *left)
{
    p->at++;
    node *out = pair(p, COT_JINJA_ITEM, left, subscript(p));
    if (p->at->kind == ',') { // x[1, 2]: no value of a template has such items
        node *several = cot_jinja_node_new(p, COT_JINJA_TUPLE_NODE);
        cot_jinja_nodes_add(p, &several->items, out->right);
        while (cot_jinja_skip(p, ',')) cot_jinja_nodes_add(p, &several->items, subscript(p));
        out->right = several;
    }
    cot_jinja_expect(p, ']', "']'");
    return out;
}

static node *attribute(cot_jinja_parser *p, node *left)
{
    p->at++;
    if (p->at->kind == COT_JINJA_T_INTEGER) return pair(p, COT_JINJA_ITEM, left, constant(p, p->at++->value));
    node *out = pair(p, COT_JINJA_ATTRIBUTE, left, NULL);
    out->name = cot_jinja_expect_name(p, "an attribute");
    return out;
}

static node *postfix(cot_jinja_parser *p, node *left)
{
    for (;;) {
        if (p->at->kind == '.')
            left = attribute(p, left);
        else if (p->at->kind == '[')
            left = item(p, left);
        else if (p->at->kind == '(')
            left = call(p, left);
        else
            return left;
    }
}

node *cot_jinja_parse_filters(cot_jinja_parser *p, node *left, bool inline_start)
{
    while (inline_start || cot_jinja_skip(p, '|')) {
        inline_start = false;
        left = pair(p, COT_JINJA_FILTER, left, NULL);
        left->name = cot_jinja_expect_name(p, "a filter");
        left->call = p->at->kind == '(' ? arguments(p) : cot_jinja_take(p->run, 1, sizeof *left->call);
    }
    return left;
}

static bool is_test_argument(const cot_jinja_parser *p)
{
    switch (p->at->kind) {
    case COT_JINJA_T_NAME:
        return !cot_jinja_at_name(p, "else") && !cot_jinja_at_name(p, "or") && !cot_jinja_at_name(p, "and");
    case COT_JINJA_T_STRING:
    case COT_JINJA_T_INTEGER:
    case COT_JINJA_T_REAL:
    case '[':
    case '{':
        return true;
    default:
        return false;
    }
}

static node *test(cot_jinja_parser *p, node *left)
{
    bool negated = cot_jinja_skip_name(p, "not");
    node *out = pair(p, COT_JINJA_TEST, left, NULL);
    out->name = cot_jinja_expect_name(p, "a test");
    if (p->at->kind == '(') {
        out->call = arguments(p);
    } else {
        out->call = cot_jinja_take(p->run, 1, sizeof *out->call);
        if (cot_jinja_at_name(p, "is"))
            cot_jinja_fail(p->run, COT_JINJA_SYNTAX, "tests with 'is' cannot be chained");
        if (is_test_argument(p)) cot_jinja_nodes_add(p, &out->call->items, postfix(p, primary(p, false)));
    }
    return negated ? pair(p, COT_JINJA_NOT, out, NULL) : out;
}

/* `filters`: what follows a sign binds to the sign first, filters come after it. */
static node *unary(cot_jinja_parser *p, bool filters)
{
    node *out;
    cot_jinja_enter(p->run);
    if (cot_jinja_skip(p, '-'))
        out = pair(p, COT_JINJA_NEGATIVE, unary(p, false), NULL);
    else if (cot_jinja_skip(p, '+'))
        out = pair(p, COT_JINJA_POSITIVE, unary(p, false), NULL);
    else
        out = primary(p, false);
    out = postfix(p, out);
    while (filters) {
        if (p->at->kind == '|')
            out = cot_jinja_parse_filters(p, out, false);
        else if (cot_jinja_skip_name(p, "is"))
            out = test(p, out);
        else if (p->at->kind == '(')
            out = call(p, out);
        else
            break;
    }
    cot_jinja_leave(p->run);
    return out;
}
