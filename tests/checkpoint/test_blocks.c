/* Blocks of GGUF to the bit: against what others made of them, and each form that keeps them against the numbers. */
#include "harness/cmocka.h"

#include "base/gguf.h"
#include "base/rng.h"
#include "kernels/blocks.h"
#include "harness/engine/golden.h"
#include "harness/seed.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    cot_tensor_blocks kind;
} kinds[] = {
    {"Q8_0", COT_BLOCKS_Q8_0},   {"Q4_0", COT_BLOCKS_Q4_0},       {"Q4_1", COT_BLOCKS_Q4_1},
    {"Q5_0", COT_BLOCKS_Q5_0},   {"Q5_1", COT_BLOCKS_Q5_1},       {"Q2_K", COT_BLOCKS_Q2_K},
    {"Q3_K", COT_BLOCKS_Q3_K},   {"Q4_K", COT_BLOCKS_Q4_K},       {"Q5_K", COT_BLOCKS_Q5_K},
    {"Q6_K", COT_BLOCKS_Q6_K},   {"IQ4_NL", COT_BLOCKS_IQ4_NL},   {"IQ4_XS", COT_BLOCKS_IQ4_XS},
    {"MXFP4", COT_BLOCKS_MXFP4}, {"IQ2_XXS", COT_BLOCKS_IQ2_XXS}, {"IQ3_XXS", COT_BLOCKS_IQ3_XXS},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* Zero of either sign is the same number. */
static bool same(float a, float b)
{
    return a == b || (isnan(a) && isnan(b));
}

static void golden_blocks(void **state)
{
    (void)state;
    if (!folder_exists(COT_SHARED "/golden/gguf")) {
        printf("SKIPPED: there is no '%s'\n", COT_SHARED "/golden/gguf");
        skip();
    }
    for (int k = 0; k < KINDS; k++) {
        char path[600];
        cot_gguf file;
        static float found[20 * 256], wanted[20 * 256];
        snprintf(path, sizeof path, COT_SHARED "/golden/gguf/blocks/%s.gguf", kinds[k].name);
        assert_int_equal(cot_gguf_open(&file, path, NULL), COT_OK);
        assert_int_equal(file.count, 1);
        assert_int_equal(file.tensors[0].blocks, kinds[k].kind);
        assert_int_equal(cot_tensor_elements(&file.tensors[0]), 20 * 256);
        assert_int_equal(cot_blocks_bytes(kinds[k].kind, 20 * 256), file.tensors[0].bytes);
        snprintf(path, sizeof path, COT_SHARED "/golden/gguf/blocks/%s.f32", kinds[k].name);
        FILE *values = fopen(path, "rb");
        assert_non_null(values);
        assert_int_equal(fread(wanted, sizeof *wanted, 20 * 256, values), 20 * 256);
        fclose(values);
        cot_blocks_decode(found, file.tensors[0].data, kinds[k].kind, 20 * 256);
        for (int i = 0; i < 20 * 256; i++)
            if (!same(found[i], wanted[i]))
                fail_msg("%s: element %d is %.9g, expected %.9g", kinds[k].name, i, (double)found[i],
                         (double)wanted[i]);
        cot_gguf_close(&file);
    }
}

/* A block is called finite where all its numbers are. */
static void expect_finite_or_not(const uint8_t *blocks, cot_tensor_blocks kind, const float *numbers, int n)
{
    const int elements = cot_tensor_block_elements(kind);
    for (int at = 0; at < n; at += elements) {
        bool finite = true;
        for (int i = 0; i < elements; i++) finite &= isfinite(numbers[at + i]) != 0;
        assert_int_equal(cot_blocks_are_finite(blocks + cot_blocks_bytes(kind, at), kind, elements), finite);
    }
}

/* Whatever the bits: codes times scales, and MXFP4 in the order of its format, are what is decoded. */
static void forms_hold_the_numbers(void **state)
{
    (void)state;
    enum { N = 24 * 256 };
    for (int k = 0; k < KINDS; k++) {
        const cot_tensor_blocks kind = kinds[k].kind;
        const cot_format format = cot_blocks_format(kind);
        uint8_t blocks[N * 2];
        float numbers[N];
        for (size_t i = 0; i < sizeof blocks; i++)
            blocks[i] = (uint8_t)cot_random_bits(test_seed(), (uint64_t)k, i);
        cot_blocks_decode(numbers, blocks, kind, N);
        assert_int_not_equal(format, COT_FORMATS);
        if (cot_format_blocks(format)) {
            assert_int_equal(cot_format_blocks(format), kind); // as they are
            expect_finite_or_not(blocks, kind, numbers, N);
            continue;
        }
        for (int at = 0; at < N; at += COT_BLOCKS_GROUP) {
            int8_t codes[COT_BLOCKS_GROUP];
            uint8_t pairs[COT_BLOCKS_GROUP / 2], scale;
            if (format == COT_FORMAT_MXFP4) {
                cot_blocks_turn(pairs, &scale, blocks, at);
                for (int i = 0; i < 32; i++)
                    assert_true(same(numbers[at + i], cot_f4_e2m1_to_f32(pairs[i / 2] >> i % 2 * 4 & 15) *
                                                          cot_f8_e8m0_to_f32(scale)));
                continue;
            }
            const float by = cot_blocks_codes(codes, blocks, kind, at);
            for (int i = 0; i < 32; i++) assert_true(same(numbers[at + i], by * (float)codes[i]));
            if (format == cot_format_with(COT_FORMAT_INT4, 32, COT_F16, false))
                for (int i = 0; i < 32; i++) assert_in_range(codes[i] + 8, 0, 15);
            if (cot_format_scale(format) == COT_F16 && isfinite(by))
                assert_true(cot_f16_to_f32(cot_f32_to_f16(by)) == by);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(golden_blocks),
                                       cmocka_unit_test(forms_hold_the_numbers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
