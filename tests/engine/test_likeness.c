/* Ranks that were told anything else are told apart: every option that all must be told alike counts. */
#include "harness/cmocka.h"

#include "engine/likeness.h"

#include <stdio.h>

static void every_option_counts(void **state)
{
    (void)state;
    cot_engine_options o;
    cot_engine_options_init(&o);
    const uint64_t plain = cot_likeness_of_options(&o);
    assert_true(plain == cot_likeness_of_options(&o));
#define WORD(field)                                                                                          \
    {                                                                                                        \
#field, &o.field                                                                                     \
    }
    const struct {
        const char *name, **field;
    } words[] = {WORD(precision), WORD(weights),  WORD(attention), WORD(op),
                 WORD(combine),   WORD(a2a),      WORD(dedup),     WORD(payload),
                 WORD(isa),       WORD(pipeline), WORD(predict),   WORD(collective)};
#undef WORD
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const char *kept = *words[i].field;
        *words[i].field = "other";
        if (cot_likeness_of_options(&o) == plain) fail_msg("%s does not count", words[i].name);
        *words[i].field = kept;
    }
#define NUMBER(field)                                                                                        \
    o.field++;                                                                                               \
    if (cot_likeness_of_options(&o) == plain) fail_msg("%s does not count", #field);                         \
    o.field--;
    NUMBER(ranks)
    NUMBER(threads)
    NUMBER(expert_slots)
    NUMBER(expert_layers)
    NUMBER(step_tokens)
    NUMBER(kv_tokens)
    NUMBER(kv_bytes)
    NUMBER(block_tokens)
    NUMBER(sequences)
    NUMBER(timeout_ns)
    NUMBER(tbt_ns)
    NUMBER(max_wait_steps)
#undef NUMBER
    bool *const switches[] = {&o.capture_routing, &o.count_exchanges};
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++) {
        *switches[i] = !*switches[i];
        assert_true(cot_likeness_of_options(&o) != plain);
        *switches[i] = !*switches[i];
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_option_counts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
