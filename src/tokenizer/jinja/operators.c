/* Arithmetic and `in`. */
#include "tokenizer/jinja/interpret.h"
#include "tokenizer/jinja/lexer.h"

#include <math.h>
#include <string.h>

typedef cot_jinja_value value;

_Noreturn static void fail_types(cot_jinja_run *run, const char *sign, value a, value b)
{
    if (cot_jinja_is_undefined(a)) cot_jinja_fail_undefined(run, a);
    if (cot_jinja_is_undefined(b)) cot_jinja_fail_undefined(run, b);
    if (*sign == '+' && (a.type == COT_JINJA_STRING || a.type == COT_JINJA_SEQUENCE))
        cot_jinja_fail(run, COT_JINJA_PYTHON, "can only concatenate %s (not \"%s\") to %s",
                       cot_jinja_type_name(a), cot_jinja_type_name(b), cot_jinja_type_name(a));
    cot_jinja_fail(run, COT_JINJA_PYTHON, "unsupported operand type(s) for %s: '%s' and '%s'", sign,
                   cot_jinja_type_name(a), cot_jinja_type_name(b));
}

_Noreturn static void fail_overflow(cot_jinja_run *run)
{
    cot_jinja_fail(run, COT_JINJA_LIMIT, "an integer beyond 64 bits");
}

static value add_strings(cot_jinja_run *run, const cot_jinja_string *a, const cot_jinja_string *b)
{
    bool safe = a->safe || b->safe;
    if (safe && !a->safe) a = cot_jinja_escape(run, a).string;
    if (safe && !b->safe) b = cot_jinja_escape(run, b).string;
    return cot_jinja_joined(run, a, b);
}

static value add_sequences(cot_jinja_run *run, const cot_jinja_sequence *a, const cot_jinja_sequence *b)
{
    value out = cot_jinja_sequence_new(run, a->kind, a->count + b->count);
    if (a->count) memcpy(out.sequence->items, a->items, a->count * sizeof(value));
    if (b->count) memcpy(out.sequence->items + a->count, b->items, b->count * sizeof(value));
    return out;
}

static value repeat(cot_jinja_run *run, value what, int64_t times)
{
    if (times < 0) times = 0;
    if (what.type == COT_JINJA_STRING) {
        cot_jinja_builder b = {.run = run};
        for (; times && what.string->bytes; times--) cot_jinja_add_string(&b, what.string);
        return cot_jinja_built(&b, what.string->safe);
    }
    value out = cot_jinja_sequence_new(run, what.sequence->kind, 0);
    size_t capacity = 0;
    for (; times && what.sequence->count; times--)
        for (size_t i = 0; i < what.sequence->count; i++)
            cot_jinja_sequence_add(run, out.sequence, &capacity, what.sequence->items[i]);
    return out;
}

static bool is_repeatable(value v)
{
    return v.type == COT_JINJA_STRING ||
           (v.type == COT_JINJA_SEQUENCE && v.sequence->kind <= COT_JINJA_TUPLE);
}

static int64_t floor_divide(int64_t a, int64_t b)
{
    return a / b - ((a % b != 0) && ((a < 0) != (b < 0)));
}

static value power_of_integers(cot_jinja_run *run, int64_t base, int64_t exponent)
{
    int64_t out = 1;
    if (exponent < 0) return cot_jinja_real(pow((double)base, (double)exponent));
    while (exponent) {
        if (exponent & 1 && __builtin_mul_overflow(out, base, &out)) fail_overflow(run);
        exponent >>= 1;
        if (exponent && __builtin_mul_overflow(base, base, &base)) fail_overflow(run);
    }
    return cot_jinja_integer(out);
}

static value with_integers(cot_jinja_run *run, int token, int64_t a, int64_t b)
{
    int64_t out = 0;
    bool overflows = false;
    if (!b && (token == COT_JINJA_T_FLOOR_DIVIDE || token == '/' || token == '%'))
        cot_jinja_fail(run, COT_JINJA_PYTHON, "division by zero");
    switch (token) {
    case '+':
        overflows = __builtin_add_overflow(a, b, &out);
        break;
    case '-':
        overflows = __builtin_sub_overflow(a, b, &out);
        break;
    case '*':
        overflows = __builtin_mul_overflow(a, b, &out);
        break;
    case '/':
        return cot_jinja_real((double)a / (double)b);
    case COT_JINJA_T_POWER:
        if (!a && b < 0) cot_jinja_fail(run, COT_JINJA_PYTHON, "0 cannot be raised to a negative power");
        return power_of_integers(run, a, b);
    case COT_JINJA_T_FLOOR_DIVIDE:
        if (b == -1)
            overflows = __builtin_sub_overflow(0, a, &out);
        else
            out = floor_divide(a, b);
        break;
    default:
        out = b == -1 ? 0 : a - b * floor_divide(a, b);
    }
    if (overflows) fail_overflow(run);
    return cot_jinja_integer(out);
}

static value with_reals(cot_jinja_run *run, int token, double a, double b)
{
    if (b == 0 && (token == COT_JINJA_T_FLOOR_DIVIDE || token == '/' || token == '%'))
        cot_jinja_fail(run, COT_JINJA_PYTHON, "float division by zero");
    double rest;
    switch (token) {
    case '+':
        return cot_jinja_real(a + b);
    case '-':
        return cot_jinja_real(a - b);
    case '*':
        return cot_jinja_real(a * b);
    case '/':
        return cot_jinja_real(a / b);
    case COT_JINJA_T_POWER:
        if ((a == 0 && b < 0) || (a < 0 && b != floor(b)))
            cot_jinja_fail(run, COT_JINJA_PYTHON, "a power that is no real number");
        return cot_jinja_real(pow(a, b));
    default:
        rest = fmod(a, b);
        if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
        if (token == '%') return cot_jinja_real(rest == 0 ? copysign(0, b) : rest);
        return cot_jinja_real(round((a - rest) / b));
    }
}

value cot_jinja_arithmetic(cot_jinja_run *run, int token, value a, value b)
{
    if (cot_jinja_is_integer(a) && cot_jinja_is_integer(b))
        return with_integers(run, token, cot_jinja_as_integer(a), cot_jinja_as_integer(b));
    if (cot_jinja_is_number(a) && cot_jinja_is_number(b))
        return with_reals(run, token, cot_jinja_as_real(a), cot_jinja_as_real(b));
    if (token == '+' && a.type == COT_JINJA_STRING && b.type == COT_JINJA_STRING)
        return add_strings(run, a.string, b.string);
    if (token == '+' && a.type == COT_JINJA_SEQUENCE && b.type == COT_JINJA_SEQUENCE &&
        a.sequence->kind == b.sequence->kind && a.sequence->kind <= COT_JINJA_TUPLE)
        return add_sequences(run, a.sequence, b.sequence);
    if (token == '*' && is_repeatable(a) && cot_jinja_is_integer(b))
        return repeat(run, a, cot_jinja_as_integer(b));
    if (token == '*' && is_repeatable(b) && cot_jinja_is_integer(a))
        return repeat(run, b, cot_jinja_as_integer(a));
    if (token == '%' && a.type == COT_JINJA_STRING)
        cot_jinja_fail(run, COT_JINJA_PYTHON, "'%%' on a string is not supported");
    char sign[2] = {(char)token, 0};
    fail_types(run,
               token == COT_JINJA_T_FLOOR_DIVIDE ? "//"
               : token == COT_JINJA_T_POWER      ? "**"
                                                 : sign,
               a, b);
}

value cot_jinja_negative(cot_jinja_run *run, value v)
{
    if (v.type == COT_JINJA_REAL) return cot_jinja_real(-v.real);
    if (cot_jinja_is_undefined(v)) cot_jinja_fail_undefined(run, v);
    if (!cot_jinja_is_integer(v))
        cot_jinja_fail(run, COT_JINJA_PYTHON, "bad operand type for unary -: '%s'", cot_jinja_type_name(v));
    return with_integers(run, '-', 0, cot_jinja_as_integer(v));
}

bool cot_jinja_contains(cot_jinja_run *run, value container, value item)
{
    if (container.type == COT_JINJA_STRING) {
        if (item.type != COT_JINJA_STRING)
            cot_jinja_fail(run, COT_JINJA_PYTHON, "'in <string>' requires string as left operand, not %s",
                           cot_jinja_type_name(item));
        cot_jinja_step(run, container.string->bytes / 64);
        return cot_jinja_find(container.string, item.string, 0, container.string->bytes) != SIZE_MAX;
    }
    if (container.type == COT_JINJA_MAP) {
        cot_jinja_check_key(run, item);
        return cot_jinja_map_get(run, container.map, item).type != COT_JINJA_ABSENT;
    }
    if (!cot_jinja_is_iterable(container))
        cot_jinja_fail(run, COT_JINJA_PYTHON, "argument of type '%s' is not iterable",
                       cot_jinja_type_name(container));
    const cot_jinja_sequence *items = cot_jinja_items_of(run, container);
    for (size_t i = 0; i < items->count; i++)
        if (cot_jinja_equal(run, items->items[i], item)) return true;
    return false;
}
