/* `x is ...`. */
#include "tokenizer/jinja/case.h"
#include "tokenizer/jinja/interpret.h"
#include "tokenizer/jinja/lexer.h"
#include "tokenizer/jinja/print.h"

#include <string.h>

typedef cot_jinja_value value;

#define TEST(name) static value name(cot_jinja_run *run, value self, const cot_jinja_arguments *given)

/* A test without arguments that looks at the type alone. */
#define TYPE_TEST(name, condition)                                                                           \
    TEST(is_##name)                                                                                          \
    {                                                                                                        \
        cot_jinja_bind(run, given, #name, "", 0, NULL);                                                      \
        return cot_jinja_bool(condition);                                                                    \
    }

TYPE_TEST(defined, !cot_jinja_is_undefined(self))
TYPE_TEST(undefined, cot_jinja_is_undefined(self))
TYPE_TEST(none, self.type == COT_JINJA_NONE)
TYPE_TEST(string, self.type == COT_JINJA_STRING)
TYPE_TEST(number, cot_jinja_is_number(self))
TYPE_TEST(integer, self.type == COT_JINJA_INTEGER)
TYPE_TEST(float, self.type == COT_JINJA_REAL)
TYPE_TEST(boolean, self.type == COT_JINJA_BOOL)
TYPE_TEST(true, self.type == COT_JINJA_BOOL && self.truth)
TYPE_TEST(false, self.type == COT_JINJA_BOOL && !self.truth)
TYPE_TEST(mapping, self.type == COT_JINJA_MAP)
TYPE_TEST(iterable, cot_jinja_is_iterable(self))
TYPE_TEST(sequence, self.type == COT_JINJA_STRING || self.type == COT_JINJA_MAP ||
                        cot_jinja_is_undefined(self) ||
                        (self.type == COT_JINJA_SEQUENCE && self.sequence->kind <= COT_JINJA_RANGE))
TYPE_TEST(callable, self.type == COT_JINJA_CALLABLE || self.type == COT_JINJA_LOOP)
TYPE_TEST(escaped, self.type == COT_JINJA_STRING && self.string->safe)
TYPE_TEST(lower, cot_jinja_is_case(cot_jinja_str(run, self), false))
TYPE_TEST(upper, cot_jinja_is_case(cot_jinja_str(run, self), true))

static value other(cot_jinja_run *run, const cot_jinja_arguments *given, const char *what)
{
    value out;
    cot_jinja_bind(run, given, what, "other", 1, &out);
    return out;
}

TEST(is_eq)
{
    return cot_jinja_bool(cot_jinja_equal(run, self, other(run, given, "eq")));
}

TEST(is_ne)
{
    return cot_jinja_bool(!cot_jinja_equal(run, self, other(run, given, "ne")));
}

TEST(is_lt)
{
    return cot_jinja_bool(cot_jinja_compare(run, self, other(run, given, "lt"), "<") < 0);
}

TEST(is_le)
{
    return cot_jinja_bool(cot_jinja_compare(run, self, other(run, given, "le"), "<=") <= 0);
}

TEST(is_gt)
{
    return cot_jinja_bool(cot_jinja_compare(run, self, other(run, given, "gt"), ">") > 0);
}

TEST(is_ge)
{
    return cot_jinja_bool(cot_jinja_compare(run, self, other(run, given, "ge"), ">=") >= 0);
}

TEST(is_in)
{
    return cot_jinja_bool(cot_jinja_contains(run, other(run, given, "in"), self));
}

/* The same object, which for values means the same value of the same type. */
TEST(is_sameas)
{
    value b = other(run, given, "sameas");
    if (self.type != b.type) return cot_jinja_bool(false);
    if (self.type == COT_JINJA_SEQUENCE) return cot_jinja_bool(self.sequence == b.sequence);
    if (self.type == COT_JINJA_MAP) return cot_jinja_bool(self.map == b.map);
    return cot_jinja_bool(cot_jinja_equal(run, self, b));
}

static value remainder_is(cot_jinja_run *run, value self, value by, int64_t rest)
{
    return cot_jinja_bool(
        cot_jinja_equal(run, cot_jinja_arithmetic(run, '%', self, by), cot_jinja_integer(rest)));
}

TEST(is_divisibleby)
{
    return remainder_is(run, self, other(run, given, "divisibleby"), 0);
}

TEST(is_even)
{
    cot_jinja_bind(run, given, "even", "", 0, NULL);
    return remainder_is(run, self, cot_jinja_integer(2), 0);
}

TEST(is_odd)
{
    cot_jinja_bind(run, given, "odd", "", 0, NULL);
    return remainder_is(run, self, cot_jinja_integer(2), 1);
}

static const struct {
    const char *name;
    cot_jinja_function *function;
} tests[] = {
    {"defined", is_defined},
    {"undefined", is_undefined},
    {"none", is_none},
    {"string", is_string},
    {"number", is_number},
    {"integer", is_integer},
    {"float", is_float},
    {"boolean", is_boolean},
    {"true", is_true},
    {"false", is_false},
    {"mapping", is_mapping},
    {"iterable", is_iterable},
    {"sequence", is_sequence},
    {"callable", is_callable},
    {"escaped", is_escaped},
    {"lower", is_lower},
    {"upper", is_upper},
    {"in", is_in},
    {"sameas", is_sameas},
    {"even", is_even},
    {"odd", is_odd},
    {"divisibleby", is_divisibleby},
    {"eq", is_eq},
    {"==", is_eq},
    {"equalto", is_eq},
    {"ne", is_ne},
    {"!=", is_ne},
    {"lt", is_lt},
    {"<", is_lt},
    {"lessthan", is_lt},
    {"le", is_le},
    {"<=", is_le},
    {"gt", is_gt},
    {">", is_gt},
    {"greaterthan", is_gt},
    {"ge", is_ge},
    {">=", is_ge},
};

cot_jinja_function *cot_jinja_test(const char *name)
{
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (!strcmp(tests[i].name, name)) return tests[i].function;
    return NULL;
}

bool cot_jinja_has_test(const char *name)
{
    return cot_jinja_test(name) != NULL;
}
