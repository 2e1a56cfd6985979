#include "tokenizer/jinja/interpret.h"

#include <string.h>

typedef cot_jinja_value value;
typedef cot_jinja_loop loop;

/* The next item that the `if` lets through; absent at the end. It is asked no sooner than the item is needed, since the
 * body may change what it looks at. */
static value pull(cot_jinja_run *run, loop *l)
{
    const cot_jinja_node *n = l->statement;
    while (l->at < l->items->count) {
        value item = l->items->items[l->at++];
        cot_jinja_step(run, 1);
        if (!l->filtered) return item;
        cot_jinja_scope *scope = cot_jinja_scope_new(run, l->outside);
        cot_jinja_assign(run, scope, n->left, item);
        if (cot_jinja_truth(cot_jinja_evaluate(run, scope, n->third))) return item;
    }
    return (value){0};
}

static bool advance(cot_jinja_run *run, loop *l)
{
    value item = l->after.type != COT_JINJA_ABSENT ? l->after : pull(run, l);
    l->after = (value){0};
    if (item.type == COT_JINJA_ABSENT) return false;
    l->index0++;
    l->before = l->current;
    l->current = item;
    return true;
}

static value peek(cot_jinja_run *run, loop *l)
{
    if (l->after.type == COT_JINJA_ABSENT) l->after = pull(run, l);
    return l->after;
}

/* Asking for the length filters all that is left. */
static int64_t length(cot_jinja_run *run, loop *l)
{
    if (l->length >= 0) return l->length;
    if (!l->filtered) return l->length = (int64_t)l->items->count;
    value rest = cot_jinja_sequence_new(run, COT_JINJA_LIST, 0);
    size_t capacity = 0;
    for (value item; (item = pull(run, l)).type != COT_JINJA_ABSENT;)
        cot_jinja_sequence_add(run, rest.sequence, &capacity, item);
    l->items = rest.sequence;
    l->at = 0;
    l->filtered = false;
    return l->length = (int64_t)rest.sequence->count + l->index0 + 1 + (l->after.type != COT_JINJA_ABSENT);
}

static value cycle(cot_jinja_run *run, value self, const cot_jinja_arguments *arguments)
{
    if (!arguments->count) cot_jinja_fail(run, COT_JINJA_PYTHON, "no items for cycling given");
    return arguments->items[(uint64_t)self.loop->index0 % arguments->count];
}

static value changed(cot_jinja_run *run, value self, const cot_jinja_arguments *arguments)
{
    value now = cot_jinja_sequence_new(run, COT_JINJA_TUPLE, arguments->count);
    for (size_t i = 0; i < arguments->count; i++) now.sequence->items[i] = arguments->items[i];
    if (self.loop->changed.type != COT_JINJA_ABSENT && cot_jinja_equal(run, self.loop->changed, now))
        return cot_jinja_bool(false);
    self.loop->changed = now;
    return cot_jinja_bool(true);
}

value cot_jinja_loop_attribute(cot_jinja_run *run, value self, const char *name)
{
    loop *l = self.loop;
    if (!strcmp(name, "index0")) return cot_jinja_integer(l->index0);
    if (!strcmp(name, "index")) return cot_jinja_integer(l->index0 + 1);
    if (!strcmp(name, "first")) return cot_jinja_bool(l->index0 == 0);
    if (!strcmp(name, "last")) return cot_jinja_bool(peek(run, l).type == COT_JINJA_ABSENT);
    if (!strcmp(name, "length")) return cot_jinja_integer(length(run, l));
    if (!strcmp(name, "revindex")) return cot_jinja_integer(length(run, l) - l->index0);
    if (!strcmp(name, "revindex0")) return cot_jinja_integer(length(run, l) - l->index0 - 1);
    if (!strcmp(name, "depth")) return cot_jinja_integer(l->depth + 1);
    if (!strcmp(name, "depth0")) return cot_jinja_integer(l->depth);
    if (!strcmp(name, "cycle")) return cot_jinja_function_value(run, "cycle", cycle, self);
    if (!strcmp(name, "changed")) return cot_jinja_function_value(run, "changed", changed, self);
    if (!strcmp(name, "previtem"))
        return l->index0 ? l->before : cot_jinja_undefined(run, "there is no previous item");
    if (!strcmp(name, "nextitem")) {
        value next = peek(run, l);
        return next.type != COT_JINJA_ABSENT ? next : cot_jinja_undefined(run, "there is no next item");
    }
    return (value){0};
}

void cot_jinja_execute_loop(cot_jinja_run *run, cot_jinja_scope *scope, const cot_jinja_node *n, value over,
                            int64_t depth)
{
    loop *l = cot_jinja_take(run, 1, sizeof *l);
    *l = (loop){.statement = n,
                .outside = scope,
                .items = cot_jinja_items_of(run, over),
                .filtered = n->third != NULL,
                .index0 = -1,
                .length = -1,
                .depth = depth};
    cot_jinja_scope *inner = NULL;
    cot_jinja_signal signal = COT_JINJA_GO_ON;
    while (signal != COT_JINJA_BREAK_LOOP && advance(run, l)) {
        if (!inner || inner->held) inner = cot_jinja_scope_new(run, scope);
        inner->count = 0; // what the body set is gone at the next round
        cot_jinja_set(run, inner, run->source->loop, (value){.type = COT_JINJA_LOOP, .loop = l});
        cot_jinja_assign(run, inner, n->left, l->current);
        signal = cot_jinja_execute(run, inner, &n->body);
    }
    if (l->index0 < 0) cot_jinja_execute(run, cot_jinja_scope_new(run, scope), &n->other);
}
