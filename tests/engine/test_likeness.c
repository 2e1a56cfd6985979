/* Ranks that were told anything else are told apart: every option counts as its row of coterie/engine_options.def says. */
#include "harness/scratch.h"

#include "coterie/trace.h"
#include "engine/likeness.h"

#include <stdio.h>

static void must_differ(const cot_engine_options *o, uint64_t plain, const char *field)
{
    if (cot_likeness_of_options(o) == plain) fail_msg("%s does not count", field);
}

static void must_not_count(const cot_engine_options *o, uint64_t plain, const char *field)
{
    if (cot_likeness_of_options(o) != plain) fail_msg("%s counts", field);
}

/* A file counts as what it says, wherever it is. */
static void check_file(scratch_pad *pad, cot_engine_options *o, const char **field, uint64_t plain,
                       const char *name)
{
    put_text(pad, "one", "the same");
    put_text(pad, "two", "the same");
    put_text(pad, "three", "others");
    *field = in_scratch(pad, "one");
    must_differ(o, plain, name);
    const uint64_t one = cot_likeness_of_options(o);
    *field = in_scratch(pad, "two");
    assert_true(cot_likeness_of_options(o) == one);
    *field = in_scratch(pad, "three");
    must_differ(o, one, name);
    *field = NULL;
}

static void every_option_counts(void **state)
{
    scratch_pad *pad = *state;
    cot_engine_options o;
    cot_engine_options_init(&o);
    const uint64_t plain = cot_likeness_of_options(&o);
    assert_true(plain == cot_likeness_of_options(&o));
    static const char *const text[] = {"other", "others"}; // neither is a file
    int rows = 0;
    uint64_t three_quarters;
#define CHECK_VALUE(field, value)                                                                            \
    o.field = value;                                                                                         \
    must_differ(&o, plain, #field);
#define CHECK_NOTHING(field, value)                                                                          \
    o.field = value;                                                                                         \
    must_not_count(&o, plain, #field);
#define CHECK_CONTENT(field, value) check_file(pad, &o, &o.field, plain, #field);
#define ALIKE_VALUE false
#define ALIKE_NOTHING true
#define CHECK(agree, field, value)                                                                           \
    CHECK_##agree(field, value) o.field = 0;                                                                 \
    rows++;
#define COT_NUMBER(group, field, type, initial, said, least, most, agree, ...) CHECK(agree, group.field, 1)
#define COT_DURATION(group, field, initial, said, least, most, agree, ...) CHECK(agree, group.field, 1)
#define COT_CHOICE(group, field, said, words, agree, ...) CHECK(agree, group.field, text[0])
#define COT_TEXT(group, field, agree, ...) CHECK(agree, group.field, text[0])
#define COT_REAL(group, field, initial, said, least, most, agree, ...)                                       \
    o.group.field = 0.75;                                                                                    \
    three_quarters = cot_likeness_of_options(&o);                                                            \
    o.group.field = 0.25;                                                                                    \
    assert_true((cot_likeness_of_options(&o) == three_quarters) == ALIKE_##agree);                           \
    CHECK(agree, group.field, 0.25)
#define COT_SWITCH(group, field, agree, ...) CHECK(agree, group.field, true)
#include "coterie/engine_options.def"
    assert_true(rows > 30);
    assert_true(cot_likeness_of_options(&o) == plain);
    // the same word of two options, and two words of one
    o.attention.pipeline = o.experts.a2a = text[0];
    const uint64_t both = cot_likeness_of_options(&o);
    o.attention.pipeline = text[1];
    must_differ(&o, both, "pipeline");
}

static void routing_counts_by_what_it_holds(void **state)
{
    (void)state;
    cot_engine_options o;
    cot_engine_options_init(&o);
    const uint64_t plain = cot_likeness_of_options(&o);
    cot_engine_routing one = {.lar = 0.5}, two = {.lar = 0.5}, other = {.lar = 0.25},
                       later = {.first_layer = 1};
    o.experts.routing = &one;
    const uint64_t drawn = cot_likeness_of_options(&o);
    assert_true(drawn != plain);
    o.experts.routing = &two;
    assert_true(cot_likeness_of_options(&o) == drawn);
    o.experts.routing = &other;
    must_differ(&o, drawn, "lar");
    o.experts.routing = &later;
    must_differ(&o, drawn, "first layer");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_option_counts),
                                       cmocka_unit_test(routing_counts_by_what_it_holds)};
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
