#include "tokenizer/jinja/parser.h"

#include "tokenizer/jinja/string.h"

#include <string.h>

typedef cot_jinja_node node;

node *cot_jinja_node_new(cot_jinja_parser *p, cot_jinja_node_kind kind)
{
    node *out = cot_jinja_take(p->run, 1, sizeof *out);
    cot_jinja_step(p->run, 1);
    out->kind = kind;
    out->line = p->run->line = p->at->line;
    return out;
}

void cot_jinja_nodes_add(cot_jinja_parser *p, cot_jinja_nodes *nodes, node *item)
{
    if (nodes->count == nodes->capacity) {
        nodes->capacity = nodes->capacity ? nodes->capacity * 2 : 4;
        node **items = cot_jinja_take(p->run, nodes->capacity, sizeof(node *));
        if (nodes->count) memcpy(items, nodes->items, nodes->count * sizeof(node *));
        nodes->items = items;
    }
    nodes->items[nodes->count++] = item;
}

const char *cot_jinja_name(cot_jinja_parser *p, const char *text, size_t bytes)
{
    cot_jinja_template *t = p->out;
    cot_jinja_step(p->run, 1 + t->name_count / 16);
    for (size_t i = 0; i < t->name_count; i++)
        if (strlen(t->names[i]) == bytes && !memcmp(t->names[i], text, bytes)) return t->names[i];
    if (t->name_count == t->name_capacity) {
        t->name_capacity = t->name_capacity ? t->name_capacity * 2 : 64;
        const char **names = cot_jinja_take(p->run, t->name_capacity, sizeof *names);
        if (t->name_count) memcpy(names, t->names, t->name_count * sizeof *names);
        t->names = names;
    }
    char *copy = cot_jinja_take(p->run, bytes + 1, 1);
    memcpy(copy, text, bytes);
    return t->names[t->name_count++] = copy;
}

bool cot_jinja_at_name(const cot_jinja_parser *p, const char *name)
{
    return p->at->kind == COT_JINJA_T_NAME && p->at->bytes == strlen(name) &&
           !memcmp(p->at->text, name, p->at->bytes);
}

bool cot_jinja_skip_name(cot_jinja_parser *p, const char *name)
{
    bool found = cot_jinja_at_name(p, name);
    p->at += found;
    return found;
}

bool cot_jinja_skip(cot_jinja_parser *p, int kind)
{
    bool found = p->at->kind == kind;
    p->at += found;
    return found;
}

void cot_jinja_fail_token(cot_jinja_parser *p)
{
    p->run->line = p->at->line;
    int bytes = p->at->bytes > 40 ? 40 : (int)p->at->bytes;
    if (p->at->kind == COT_JINJA_T_END)
        cot_jinja_fail(p->run, COT_JINJA_SYNTAX, "unexpected end of template");
    if (p->at->kind == COT_JINJA_T_PRINT_END || p->at->kind == COT_JINJA_T_BLOCK_END)
        cot_jinja_fail(p->run, COT_JINJA_SYNTAX, "unexpected end of a tag");
    cot_jinja_fail(p->run, COT_JINJA_SYNTAX, "unexpected '%.*s'", bytes, p->at->text);
}

void cot_jinja_expect(cot_jinja_parser *p, int kind, const char *what)
{
    if (cot_jinja_skip(p, kind)) return;
    p->run->line = p->at->line;
    int bytes = p->at->bytes > 40 ? 40 : (int)p->at->bytes;
    cot_jinja_fail(p->run, COT_JINJA_SYNTAX, "expected %s, got '%.*s'", what, bytes, p->at->text);
}

const char *cot_jinja_expect_name(cot_jinja_parser *p, const char *what)
{
    const cot_jinja_token *token = p->at;
    p->run->line = token->line;
    if (token->kind != COT_JINJA_T_NAME)
        cot_jinja_fail(p->run, COT_JINJA_SYNTAX, "expected the name of %s", what);
    p->at++;
    return cot_jinja_name(p, token->text, token->bytes);
}

/* Statements up to a block that begins with one of `ends` (NULL ends; no list: the template's end), which is not
 * skipped. */
static void body(cot_jinja_parser *p, cot_jinja_nodes *out, const char *const *ends);

/* From a tag's end through a body to behind the name that ends it; returns which. */
static int block(cot_jinja_parser *p, cot_jinja_nodes *out, const char *const *ends)
{
    cot_jinja_skip(p, ':');
    cot_jinja_expect(p, COT_JINJA_T_BLOCK_END, "the end of the tag");
    body(p, out, ends);
    for (int i = 0; ends[i]; i++)
        if (cot_jinja_skip_name(p, ends[i])) return i;
    cot_jinja_fail(p->run, COT_JINJA_SYNTAX, "unexpected end of template, '%s' is missing", ends[0]);
}

static node *parse_set(cot_jinja_parser *p)
{
    node *out = cot_jinja_node_new(p, COT_JINJA_SET);
    out->left = cot_jinja_parse_target(p, true);
    if (cot_jinja_skip(p, '=')) {
        out->right = cot_jinja_parse_tuple(p, true);
        return out;
    }
    out->kind = COT_JINJA_SET_BLOCK;
    out->right = cot_jinja_parse_filters(p, NULL, false);
    block(p, &out->body, (const char *const[]){"endset", NULL});
    return out;
}

static node *parse_for(cot_jinja_parser *p)
{
    node *out = cot_jinja_node_new(p, COT_JINJA_FOR);
    out->left = cot_jinja_parse_target(p, false);
    if (!cot_jinja_skip_name(p, "in")) cot_jinja_expect(p, COT_JINJA_T_END, "'in'");
    out->right = cot_jinja_parse_tuple(p, false);
    if (cot_jinja_skip_name(p, "if")) out->third = cot_jinja_parse_expression(p);
    out->flag = cot_jinja_skip_name(p, "recursive");
    p->loops++;
    int end = block(p, &out->body, (const char *const[]){"endfor", "else", NULL});
    p->loops--;
    if (end == 1) block(p, &out->other, (const char *const[]){"endfor", NULL});
    return out;
}

static node *parse_if(cot_jinja_parser *p)
{
    node *first = cot_jinja_node_new(p, COT_JINJA_IF), *out = first;
    for (;;) {
        out->left = cot_jinja_parse_tuple(p, false);
        int end = block(p, &out->body, (const char *const[]){"endif", "else", "elif", NULL});
        if (end == 1) block(p, &first->other, (const char *const[]){"endif", NULL});
        if (end != 2) return first;
        node *next = cot_jinja_node_new(p, COT_JINJA_IF);
        cot_jinja_nodes_add(p, &first->items, next); // the elif branches are the first if's
        out = next;
    }
}

static void signature(cot_jinja_parser *p, node *macro)
{
    bool optional = false;
    cot_jinja_expect(p, '(', "'('");
    while (p->at->kind != ')') {
        if (macro->items.count) cot_jinja_expect(p, ',', "','");
        node *parameter = cot_jinja_node_new(p, COT_JINJA_NAME);
        parameter->name = cot_jinja_expect_name(p, "a parameter");
        if (cot_jinja_skip(p, '='))
            parameter->right = cot_jinja_parse_expression(p);
        else if (optional)
            cot_jinja_fail(p->run, COT_JINJA_SYNTAX,
                           "a parameter without a default follows one with a default");
        optional = parameter->right != NULL;
        cot_jinja_nodes_add(p, &macro->items, parameter);
    }
    p->at++;
}

static void macro_body(cot_jinja_parser *p, node *macro, const char *end)
{
    int uses = p->uses, loops = p->loops;
    p->uses = p->loops = 0;
    block(p, &macro->body, (const char *const[]){end, NULL});
    macro->token = p->uses;
    p->uses |= uses;
    p->loops = loops;
}

static node *parse_macro(cot_jinja_parser *p)
{
    node *out = cot_jinja_node_new(p, COT_JINJA_MACRO_NODE);
    out->name = cot_jinja_expect_name(p, "a macro");
    signature(p, out);
    macro_body(p, out, "endmacro");
    return out;
}

static node *parse_call(cot_jinja_parser *p)
{
    node *out = cot_jinja_node_new(p, COT_JINJA_CALL_BLOCK);
    out->right = cot_jinja_node_new(p, COT_JINJA_MACRO_NODE);
    out->right->name = p->out->caller;
    if (p->at->kind == '(') signature(p, out->right);
    out->left = cot_jinja_parse_expression(p);
    if (out->left->kind != COT_JINJA_CALL) cot_jinja_fail(p->run, COT_JINJA_SYNTAX, "expected a call");
    macro_body(p, out->right, "endcall");
    return out;
}

static node *parse_filter(cot_jinja_parser *p)
{
    node *out = cot_jinja_node_new(p, COT_JINJA_FILTER_BLOCK);
    out->left = cot_jinja_parse_filters(p, NULL, true);
    block(p, &out->body, (const char *const[]){"endfilter", NULL});
    return out;
}

static node *parse_with(cot_jinja_parser *p)
{
    node *out = cot_jinja_node_new(p, COT_JINJA_WITH);
    while (p->at->kind != COT_JINJA_T_BLOCK_END) {
        if (out->items.count) cot_jinja_expect(p, ',', "','");
        cot_jinja_nodes_add(p, &out->items, cot_jinja_parse_target(p, false));
        cot_jinja_expect(p, '=', "'='");
        cot_jinja_nodes_add(p, &out->items, cot_jinja_parse_expression(p));
    }
    block(p, &out->body, (const char *const[]){"endwith", NULL});
    return out;
}

/* The part that a model would have generated; a scope of its own, and no loop is left from within it. */
static node *parse_generation(cot_jinja_parser *p)
{
    node *out = cot_jinja_node_new(p, COT_JINJA_WITH);
    int loops = p->loops;
    p->loops = 0;
    block(p, &out->body, (const char *const[]){"endgeneration", NULL});
    p->loops = loops;
    return out;
}

static node *parse_jump(cot_jinja_parser *p, cot_jinja_node_kind kind)
{
    if (!p->loops) cot_jinja_fail(p->run, COT_JINJA_SYNTAX, "'break' or 'continue' outside of a loop");
    return cot_jinja_node_new(p, kind);
}

static node *parse_include(cot_jinja_parser *p)
{
    node *out = cot_jinja_node_new(p, COT_JINJA_INCLUDE);
    while (p->at->kind != COT_JINJA_T_BLOCK_END && p->at->kind != COT_JINJA_T_END) p->at++;
    return out;
}

static node *statement(cot_jinja_parser *p)
{
    const cot_jinja_token *tag = p->at;
    p->run->line = tag->line;
    if (cot_jinja_skip_name(p, "set")) return parse_set(p);
    if (cot_jinja_skip_name(p, "for")) return parse_for(p);
    if (cot_jinja_skip_name(p, "if")) return parse_if(p);
    if (cot_jinja_skip_name(p, "macro")) return parse_macro(p);
    if (cot_jinja_skip_name(p, "call")) return parse_call(p);
    if (cot_jinja_skip_name(p, "filter")) return parse_filter(p);
    if (cot_jinja_skip_name(p, "with")) return parse_with(p);
    if (cot_jinja_skip_name(p, "generation")) return parse_generation(p);
    if (cot_jinja_skip_name(p, "break")) return parse_jump(p, COT_JINJA_BREAK);
    if (cot_jinja_skip_name(p, "continue")) return parse_jump(p, COT_JINJA_CONTINUE);
    if (cot_jinja_skip_name(p, "include") || cot_jinja_skip_name(p, "import") ||
        cot_jinja_skip_name(p, "from"))
        return parse_include(p);
    if (tag->kind != COT_JINJA_T_NAME) cot_jinja_fail_token(p);
    cot_jinja_fail(p->run, COT_JINJA_SYNTAX, "unknown tag '%.*s'", tag->bytes > 40 ? 40 : (int)tag->bytes,
                   tag->text);
}

static void body(cot_jinja_parser *p, cot_jinja_nodes *out, const char *const *ends)
{
    cot_jinja_enter(p->run);
    for (; p->at->kind != COT_JINJA_T_END;) {
        if (p->at->kind == COT_JINJA_T_DATA) {
            node *text = cot_jinja_node_new(p, COT_JINJA_TEXT);
            text->value = cot_jinja_string_new(p->run, p->at->text, p->at->bytes, true);
            cot_jinja_nodes_add(p, out, text);
            p->at++;
        } else if (cot_jinja_skip(p, COT_JINJA_T_PRINT_BEGIN)) {
            node *print = cot_jinja_node_new(p, COT_JINJA_PRINT);
            print->left = cot_jinja_parse_tuple(p, true);
            cot_jinja_expect(p, COT_JINJA_T_PRINT_END, "the end of the tag");
            cot_jinja_nodes_add(p, out, print);
        } else {
            cot_jinja_expect(p, COT_JINJA_T_BLOCK_BEGIN, "a tag");
            bool ended = false;
            for (int i = 0; ends && ends[i]; i++) ended |= cot_jinja_at_name(p, ends[i]);
            if (ended) break;
            cot_jinja_nodes_add(p, out, statement(p));
            cot_jinja_expect(p, COT_JINJA_T_BLOCK_END, "the end of the tag");
        }
    }
    cot_jinja_leave(p->run);
}

static void check_names(cot_jinja_run *run, const node *n, bool soft);

static void check_all(cot_jinja_run *run, const cot_jinja_nodes *nodes, bool soft)
{
    for (size_t i = 0; i < nodes->count; i++) check_names(run, nodes->items[i], soft);
}

/* Filters and tests that do not exist: as in Jinja an error at once, except (`soft`) within an `if` that no loop or
 * macro separates them from, where they fail once they are reached. */
static void check_names(cot_jinja_run *run, const node *n, bool soft)
{
    if (!n) return;
    cot_jinja_enter(run);
    run->line = n->line;
    if (n->kind == COT_JINJA_FILTER && !soft && !cot_jinja_has_filter(n->name))
        cot_jinja_fail(run, COT_JINJA_SYNTAX, "no filter named '%.100s'", n->name);
    if (n->kind == COT_JINJA_TEST && !soft && !cot_jinja_has_test(n->name))
        cot_jinja_fail(run, COT_JINJA_SYNTAX, "no test named '%.100s'", n->name);
    if (n->kind == COT_JINJA_IF || n->kind == COT_JINJA_CONDITION) soft = true;
    bool scope = n->kind == COT_JINJA_FOR || n->kind == COT_JINJA_MACRO_NODE ||
                 n->kind == COT_JINJA_SET_BLOCK || n->kind == COT_JINJA_FILTER_BLOCK ||
                 n->kind == COT_JINJA_WITH;
    check_names(run, n->left, soft && n->kind != COT_JINJA_FILTER_BLOCK);
    check_names(run, n->right, soft && n->kind != COT_JINJA_SET_BLOCK);
    check_names(run, n->third, soft && !scope);
    check_all(run, &n->items, soft && !scope);
    check_all(run, &n->body, soft && !scope);
    check_all(run, &n->other, soft && !scope);
    if (n->call) {
        check_all(run, &n->call->items, soft);
        check_all(run, &n->call->named, soft);
        check_names(run, n->call->star, soft);
        check_names(run, n->call->stars, soft);
    }
    cot_jinja_leave(run);
}

void cot_jinja_parse(cot_jinja_run *run, cot_jinja_template *out, const char *text, size_t bytes)
{
    cot_jinja_parser p = {.run = run, .out = out, .at = cot_jinja_tokens(run, text, bytes)};
    out->loop = cot_jinja_name(&p, "loop", 4);
    out->caller = cot_jinja_name(&p, "caller", 6);
    out->kwargs = cot_jinja_name(&p, "kwargs", 6);
    out->varargs = cot_jinja_name(&p, "varargs", 7);
    body(&p, &out->body, NULL);
    check_all(run, &out->body, false);
}
