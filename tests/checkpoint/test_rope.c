/* RoPE's frequencies in every spelling. */
#include "base/rng.h"
#include "harness/cmocka.h"
#include "harness/checkpoint/config_text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Frequencies that transformers 5.23 computes for head_dim 16, theta 10000, 128 positions. */
static void rope(void **state)
{
    (void)state;
    static const struct {
        const char *scaling;
        float factor, inverse[8];
        int64_t context;
    } cases[] = {
        {"{'rope_type': 'linear', 'factor': 2.5}",
         1,
         {0.400000006f, 0.1264911f, 0.0399999991f, 0.0126491114f, 0.00399999972f, 0.00126491114f,
          0.000400000019f, 0.000126491112f},
         128},
        {"{'type': 'linear', 'factor': 4}",
         1,
         {0.25f, 0.079056941f, 0.0250000004f, 0.00790569466f, 0.00249999994f, 0.000790569466f,
          0.000250000012f, 7.90569466e-05f},
         128},
        {"{'rope_type': 'llama3', 'factor': 8.0, 'low_freq_factor': 1, 'high_freq_factor': 4.0, "
         "'original_max_position_embeddings': 32}",
         1,
         {1, 0.0958399773f, 0.0125000002f, 0.00395284733f, 0.00124999997f, 0.000395284733f, 0.000125000006f,
          3.95284733e-05f},
         256},
        {"{" YARN "}",
         1.13862944f,
         {1, 0.197642356f, 0.0250000004f, 0.00790569466f, 0.00249999994f, 0.000790569466f, 0.000250000012f,
          7.90569466e-05f},
         128},
        {"{" YARN ", 'beta_fast': 6.0, 'beta_slow': 0.5, 'truncate': false}",
         1.13862944f,
         {1, 0.198583528f, 0.0255952496f, 0.00790569466f, 0.00249999994f, 0.000790569466f, 0.000250000012f,
          7.90569466e-05f},
         128},
        {"{'rope_type': 'yarn', 'factor': null, 'original_max_position_embeddings': 32, 'beta_fast': 0, "
         "'beta_slow': null}",
         1.13862944f,
         {1, 0.197642356f, 0.0250000004f, 0.00790569466f, 0.00249999994f, 0.000790569466f, 0.000250000012f,
          7.90569466e-05f},
         128},
        {"{" YARN ", 'mscale': 2.0, 'mscale_all_dim': 0.5}",
         1.19446488f,
         {1, 0.197642356f, 0.0250000004f, 0.00790569466f, 0.00249999994f, 0.000790569466f, 0.000250000012f,
          7.90569466e-05f},
         128},
        {"{" YARN ", 'mscale': 2.0, 'type': 'linear'}",
         1.13862944f, // rope_type wins; a lone mscale counts as none
         {1, 0.197642356f, 0.0250000004f, 0.00790569466f, 0.00249999994f, 0.000790569466f, 0.000250000012f,
          7.90569466e-05f},
         128},
        {"{" YARN ", 'attention_factor': 0.8, 'mscale': 1.0, 'mscale_all_dim': 2.0}",
         0.8f,
         {1, 0.197642356f, 0.0250000004f, 0.00790569466f, 0.00249999994f, 0.000790569466f, 0.000250000012f,
          7.90569466e-05f},
         128},
        {"{'type': 'yarn', 'factor': 4.0, 'original_max_position_embeddings': 4}",
         1.13862944f, // a ramp of no width
         {1, 0.079056941f, 0.0250000004f, 0.00790569466f, 0.00249999994f, 0.000790569466f, 0.000250000012f,
          7.90569466e-05f},
         128},
        {"{'type': 'yarn', 'factor': 16, 'original_max_position_embeddings': 32, 'rope_theta': 100}",
         1.27725887f,
         {1, 0.386609644f, 0.118585408f, 0.0111142462f, 0.00625000009f, 0.00351463305f, 0.00197642366f,
          0.00111142464f},
         512},
        {"{'type': 'yarn', 'factor': 16, 'original_max_position_embeddings': 65536, 'rope_theta': 100, "
         "'beta_fast': 20000}",
         1.27725887f, // a ramp that would end behind the width
         {1, 0.527195036f, 0.276699305f, 0.144485205f, 0.075000003f, 0.0386609621f, 0.0197642371f,
          0.0100028208f},
         1048576},
        {"{'factor': 4.0}",
         1, // no type: plain
         {1, 0.316227764f, 0.100000001f, 0.0316227786f, 0.00999999978f, 0.00316227786f, 0.00100000005f,
          0.000316227786f},
         128},
        {"{'type': 'yarn', 'factor': 4.0}",
         1.13862944f, // original: max_position_embeddings
         {1, 0.237170815f, 0.049999997f, 0.00790569466f, 0.00249999994f, 0.000790569466f, 0.000250000012f,
          7.90569466e-05f},
         128},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int spelling = 0; spelling < 2; spelling++) {
            char edit[600];
            snprintf(edit, sizeof edit, "{'%s': %s}", spelling ? "rope_parameters" : "rope_scaling",
                     cases[i].scaling);
            cot_config c = config_accept(qwen3, edit);
            assert_int_equal(c.rope_width, 16);
            for (int f = 0; f < 8; f++)
                if (fabsf(c.inverse_frequency[f] - cases[i].inverse[f]) > 2e-7f * cases[i].inverse[f])
                    fail_msg("%s: frequency %d is %.9g, expected %.9g", edit, f,
                             (double)c.inverse_frequency[f], (double)cases[i].inverse[f]);
            assert_true(fabsf(c.rope_factor - cases[i].factor) < 2e-7f);
            assert_int_equal(c.max_context, cases[i].context);
            cot_config_clear(&c);
        }
    }
}

static void rope_spellings(void **state)
{
    (void)state;
    /* rope_scaling wins entirely over rope_parameters, and takes theta from beside it. */
    cot_config c =
        config_accept(qwen3, "{'rope_theta': 100, 'rope_scaling': {'type': 'linear', 'factor': 2},"
                             "'rope_parameters': {'rope_type': 'linear', 'factor': 8, 'rope_theta': 7}}");
    assert_true(fabsf(c.inverse_frequency[4] - 0.05f) < 1e-8f);
    cot_config_clear(&c);
    c = config_accept(qwen3,
                      "{'rope_theta': 100, 'rope_scaling': {}, 'rope_parameters': {'rope_theta': 10000}}");
    assert_true(fabsf(c.inverse_frequency[4] - 0.01f) < 1e-8f);
    cot_config_clear(&c);
    c = config_accept(qwen3,
                      "{'rope_scaling': {" YARN
                      "}, 'original_max_position_embeddings': 64}"); // the outer one wins
    assert_int_equal(c.max_context, 256);
    cot_config_clear(&c);
    c = config_accept(oss, "{'rope_scaling': null}"); // gpt-oss is YaRN x 32 of 4096 where nothing is said
    assert_int_equal(c.max_context, 131072);
    assert_true(fabs(c.rope_factor - (0.1 * log(32) + 1)) < 1e-6);
    assert_true(fabs(c.inverse_frequency[31] * pow(150000, 62.0 / 64) * 32 - 1) < 1e-6);
    cot_config_clear(&c);
    c = config_accept(oss, "{'rope_parameters': {}}"); // ... and plain where it is said to be nothing
    assert_true(c.rope_factor == 1 && c.max_context == 128);
    cot_config_clear(&c);
    c = config_accept(qwen3, "{'partial_rotary_factor': 1.0, 'rope_scaling': {'type': 'linear', 'factor': 2, "
                             "'partial_rotary_factor': null}}");
    cot_config_clear(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rope),
        cmocka_unit_test(rope_spellings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
