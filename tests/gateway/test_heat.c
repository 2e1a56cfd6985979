/* What workers tell of calls, as people are shown it. */
#include "harness/cmocka.h"

#include "gateway/gateway_state.h"

#include <string.h>

static void shares_are_of_all_homes(void **state)
{
    (void)state;
    static cot_gateway g;
    cot_gateway_worker w = {.gateway = &g, .entry = {.name = (char[]){"w"}}, .listed = true, .targets = 2};
    g.workers = &w;
    json_t *said = json_pack("{s:i, s:i}", "layers", 2, "experts", 3);
    cot_gateway_open_heat(&w, said);
    json_decref(said);
    const float one[] = {1, 0, 2, 0, 4, 0}, two[] = {1, 4, 0, 0, 0, 100};
    assert_true(cot_gateway_take_heat(&w, 0, 2, one, sizeof one));
    assert_true(cot_gateway_take_heat(&w, 1, 2, two, sizeof two));
    assert_false(cot_gateway_take_heat(&w, 2, 2, two, sizeof two)); // a home that it has not
    assert_false(cot_gateway_take_heat(&w, 0, 2, two, sizeof two - 4));
    json_t *told = cot_gateway_heat_json(&g);
    const json_t *rows = json_object_get(json_array_get(json_object_get(told, "workers"), 0), "shares");
    assert_int_equal(json_array_size(rows), 2);
    assert_string_equal(json_string_value(json_array_get(rows, 0)), "80ff80"); // 2, 4 and 2 of 4
    assert_string_equal(json_string_value(json_array_get(rows, 1)), "00ffff"); // never more than all
    json_decref(told);
    assert_true(cot_gateway_take_heat(&w, 0, 0, one, sizeof one)); // of no tokens
    assert_true(cot_gateway_take_heat(&w, 1, 0, two, sizeof two));
    told = cot_gateway_heat_json(&g);
    rows = json_object_get(json_array_get(json_object_get(told, "workers"), 0), "shares");
    assert_string_equal(json_string_value(json_array_get(rows, 0)), "000000");
    json_decref(told);
    cot_gateway_close_heat(&w);
    json_t *large = json_pack("{s:i, s:i}", "layers", 1 << 15, "experts", 3);
    cot_gateway_open_heat(&w, large);
    json_decref(large);
    assert_null(w.heat.counts);
    assert_false(cot_gateway_take_heat(&w, 0, 1, one, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_are_of_all_homes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
