/* Every row of coterie/engine_options.def: what it takes is taken, what it does not is refused by name, and 0 and NULL are its
 * default. */
#include "harness/cmocka.h"
#include "harness/engine/golden.h"

#include "engine/options.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static cot_engine_options plain(void)
{
    cot_engine_options o;
    cot_engine_options_init(&o);
    o.experts.rebalance = "load"; // or options of moves are refused
    o.memory.block_tokens = 16;   // or snapshots are
    return o;
}

static void must_resolve(const cot_engine_options *o, const char *what)
{
    cot_engine_resolved resolved;
    cot_error error;
    if (cot_engine_resolve(&resolved, o, &error) != COT_OK) fail_msg("%s: %s", what, error.message);
}

/* By opening, which comes to nothing before it begins. */
static void must_refuse(const cot_engine_options *o, const char *what, const char *text)
{
    cot_engine *engine;
    cot_error error = {0};
    if (cot_engine_open(&engine, TINY, o, NULL, &error) == COT_OK) fail_msg("%s: '%s' is taken", what, text);
    assert_null(engine);
    if (!strstr(error.message, text)) fail_msg("%s: '%s', expected '%s'", what, error.message, text);
}

static void numbers_out_of_range_are_named(void **state)
{
    (void)state;
    cot_engine_options o = plain();
    char text[128];
    int rows = 0;
#define TRY(field, value, said, least, most)                                                                 \
    o.field = value;                                                                                         \
    snprintf(text, sizeof text, "%s %lld is not in [%lld, %lld]", said, (long long)(value),                  \
             (long long)(least), (long long)(most));                                                         \
    must_refuse(&o, #field, text);                                                                           \
    o = plain();
#define COT_NUMBER(group, field, type, initial, said, least, most, ...)                                      \
    {                                                                                                        \
        const int64_t below = (least) > 0 ? -1 : (least)-1, above = (int64_t)((uint64_t)(most) + 1);         \
        TRY(group.field, (type)below, said, least, most)                                                     \
        if (above > (most) && (int64_t)(type)above == above) {                                               \
            TRY(group.field, (type)above, said, least, most)                                                 \
        }                                                                                                    \
        o.group.field = (type)(most);                                                                        \
        must_resolve(&o, #field);                                                                            \
        o = plain();                                                                                         \
        rows++;                                                                                              \
    }
#define COT_DURATION(group, field, ...) COT_NUMBER(group, field, int64_t, __VA_ARGS__)
#include "coterie/engine_options.def"
    assert_true(rows > 10);
}

static void reals_out_of_range_are_named(void **state)
{
    (void)state;
    cot_engine_options o = plain();
    char text[128];
    int rows = 0;
#define COT_REAL(group, field, initial, said, least, most, ...)                                              \
    {                                                                                                        \
        const double wrong[] = {(least) / 2, (most)*1.001, -(most), (double)NAN, (double)INFINITY};          \
        for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {                                          \
            o.group.field = wrong[i];                                                                        \
            snprintf(text, sizeof text, "%s %g is not in [%g, %g]", said, wrong[i], (double)(least),         \
                     (double)(most));                                                                        \
            must_refuse(&o, #field, text);                                                                   \
        }                                                                                                    \
        o.group.field = most;                                                                                \
        must_resolve(&o, #field);                                                                            \
        o.group.field = least;                                                                               \
        must_resolve(&o, #field);                                                                            \
        o = plain();                                                                                         \
        rows++;                                                                                              \
    }
#include "coterie/engine_options.def"
    assert_true(rows > 0);
}

/* Two options that both say how many slots there are. */
static void spare_slots_stand_in_place_of_slots(void **state)
{
    (void)state;
    cot_engine_options o = plain();
    o.experts.spare_slots = 1;
    o.experts.rebalance = NULL;
    must_refuse(&o, "spare slots alone", "spare slots: experts do not move (movable, or rebalance)");
    o.experts.rebalance = "load";
    must_resolve(&o, "spare slots that rebalancing fills");
    o.experts.rebalance = NULL;
    o.experts.movable = true;
    must_resolve(&o, "spare slots that others fill");
    o.experts.slots = 40;
    must_refuse(&o, "both", "expert slots 40 and spare slots 1");
}

/* And two that say how much memory the KV cache has. */
static void all_memory_stands_in_place_of_the_cache_s(void **state)
{
    (void)state;
    cot_engine_options o = plain();
    o.memory.total_bytes = 7;
    must_resolve(&o, "all memory alone");
    o.memory.kv_bytes = 5;
    must_refuse(&o, "both", "5 bytes of KV cache, and 7 bytes of memory that it shares with spare slots");
}

static void unknown_words_are_named(void **state)
{
    (void)state;
    static const char *const wrong[] = {"no-such", "", "AUTO", "bf16 "};
    cot_engine_options o = plain();
    char text[64];
    int rows = 0;
#define COT_WORD(text, value) text,
#define COT_NO_WORD COT_WORD
#define COT_REPLAYED_WORD COT_WORD
#define COT_CHOICE(group, field, said, words, ...)                                                           \
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {                                              \
        o.group.field = wrong[i];                                                                            \
        snprintf(text, sizeof text, "unknown %s '%s' (", said, wrong[i]);                                    \
        must_refuse(&o, #field, text);                                                                       \
    }                                                                                                        \
    for (const char *const *word = (const char *const[]){words NULL}; *word; word++) {                       \
        o.group.field = *word;                                                                               \
        must_resolve(&o, *word);                                                                             \
    }                                                                                                        \
    o = plain();                                                                                             \
    rows++;
#include "coterie/engine_options.def"
    assert_true(rows > 10);
}

static void unknown_names_are_named(void **state)
{
    (void)state;
    cot_engine_options o = plain();
    int rows = 0;
#define IN_NOWHERE(field)
#define IN_RANKS(field)                                                                                      \
    o.field = "/nowhere/no-such";                                                                            \
    must_refuse(&o, #field, "'/nowhere/no-such'");                                                           \
    o = plain();                                                                                             \
    rows++;
#define IN_SCHEDULING IN_RANKS
#define COT_TEXT(group, field, agree, table, ...) IN_##table(group.field)
#include "coterie/engine_options.def"
    assert_true(rows > 3);
}

static void nothing_is_the_default(void **state)
{
    (void)state;
    cot_engine_options o;
    cot_engine_options_init(&o);
    const cot_engine_options none = {.size = sizeof none, .version = COT_ENGINE_OPTIONS_VERSION};
    cot_engine_resolved r;
    cot_error error;
    assert_int_equal(cot_engine_resolve(&r, &none, &error), COT_OK);
    assert_int_equal(cot_engine_resolve(&r, &o, &error), COT_OK);
#define COT_NUMBER(group, field, type, initial, ...) assert_true(r.given.group.field == (initial));
#define COT_DURATION(group, field, initial, ...) assert_true(r.given.group.field == (initial));
#define COT_REAL(group, field, initial, ...) assert_true(r.given.group.field == (initial));
#include "coterie/engine_options.def"
    assert_int_equal(r.given.group.ranks, 1);
    assert_int_equal(r.given.batch.step_tokens, 512);
    assert_int_equal(r.given.batch.sequences, 16);
    assert_int_equal(r.given.batch.max_wait_steps, 8);
    assert_true(r.given.group.timeout_ns == 300000000000);
    assert_int_equal(r.choice.weights_precision, COT_BF16);
    assert_int_equal(r.choice.weights_networks, COT_FORMATS);
    assert_int_equal(r.choice.weights_head, COT_WEIGHTS_OF_NETWORKS);
    assert_false(r.choice.attention_mode);
    assert_int_equal(r.choice.experts_combine, COT_COMBINE_EXACT);
    assert_int_equal(r.choice.attention_predict, COT_UNSAID);
    assert_string_equal(r.op->name, cot_engine_operators()[0]);
    assert_string_equal(r.fabric->name, cot_engine_fabrics()[0]);
    o.version++;
    must_refuse(&o, "version", "version 2, expected");
    o = plain();
    o.size--;
    must_refuse(&o, "size", "engine options of ");
}

static void options_that_would_do_nothing_are_refused(void **state)
{
    static const struct {
        const char *rebalance;
        bool movable;
        double share;
        int64_t bandwidth;
        const char *interval;
        int64_t moves;
        const char *why; // NULL: they are taken
    } rows[] = {
        {"off", false, 0, 0, NULL, 0, NULL},
        {"off", false, 0.02, 0, NULL, 0, "migration share: experts do not move (movable, or rebalance)"},
        {NULL, false, 0.5, 0, NULL, 0, "migration share: experts do not move (movable, or rebalance)"},
        {NULL, false, 0, 1, NULL, 0, "migration bandwidth: experts do not move (movable, or rebalance)"},
        {NULL, true, 0.5, 0, NULL, 0, NULL},
        {NULL, true, 0, 1, NULL, 0, NULL},
        {"joint", false, 0.5, 0, NULL, 0, NULL},
        {"load", false, 0, 1, "1steps", 1, NULL},
        {NULL, true, 0.02, 1, NULL, 0, "migration share and migration bandwidth: one of them says how fast"},
        {NULL, true, 0, 0, "4096steps,60s", 0, "rebalance interval: rebalance is off"},
        {"off", true, 0, 0, "0s", 0, "'0s' is no interval to rebalance"},
        {NULL, true, 0, 0, NULL, 64, "moves a cycle: rebalance is off"}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cot_engine_options o = plain();
        char row[16];
        snprintf(row, sizeof row, "row %zu", i);
        o.experts.rebalance = rows[i].rebalance;
        o.experts.movable = rows[i].movable;
        o.experts.migration_share = rows[i].share;
        o.experts.migration_bandwidth = rows[i].bandwidth;
        o.experts.rebalance_interval = rows[i].interval;
        o.experts.moves_a_cycle = rows[i].moves;
        if (rows[i].why)
            must_refuse(&o, row, rows[i].why);
        else
            must_resolve(&o, row);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(numbers_out_of_range_are_named),
                                       cmocka_unit_test(reals_out_of_range_are_named),
                                       cmocka_unit_test(spare_slots_stand_in_place_of_slots),
                                       cmocka_unit_test(all_memory_stands_in_place_of_the_cache_s),
                                       cmocka_unit_test(options_that_would_do_nothing_are_refused),
                                       cmocka_unit_test(unknown_words_are_named),
                                       cmocka_unit_test(unknown_names_are_named),
                                       cmocka_unit_test(nothing_is_the_default)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
