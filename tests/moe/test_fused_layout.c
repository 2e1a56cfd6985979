/* The fused operator's symmetric memory: blocks and cells lie apart, metadata fits, and the whole stays below its
 * bound. Prints the table of docs/FUSED.md. */
#include "harness/cmocka.h"
#include "harness/draw.h"
#include "harness/seed.h"

#include "moe/fused/layout.h"

#include <stdio.h>

static void cells_lie_apart_and_hold_their_metadata(void **state)
{
    (void)state;
    struct draw draw = {test_seed(), 1, 0};
    for (int i = 0; i < 10000; i++) {
        const int64_t ranks = 1 + draw_below(&draw, 64), tokens = 32 * (1 + draw_below(&draw, 300)),
                      top_k = 1 + draw_below(&draw, 64), row_bytes = 2 * (1 + draw_below(&draw, 9000));
        const cot_fused_layout l = cot_fused_layout_of(ranks, tokens, top_k, row_bytes, row_bytes, i % 2);
        const int64_t cells = (tokens + l.cell_tokens - 1) / l.cell_tokens,
                      entry = (int64_t)sizeof(cot_fused_entry);
        assert_true((l.cell_rows - l.cell_tokens) * row_bytes >=
                    l.cell_tokens * (COT_FUSED_HEAD_BYTES + top_k * entry));
        assert_true(l.block_rows >= tokens);
        assert_true(cells * l.cell_rows <= l.block_rows);
        for (int64_t s = 0; s < ranks; s++)
            assert_int_equal(cot_fused_cell(&l, s, cells), (s + 1) * l.block_rows);
        assert_int_equal(cot_fused_dispatch_bytes(&l), ranks * l.block_rows * row_bytes);
        assert_int_equal(cot_fused_reply_bytes(&l), (i % 2 ? ranks : top_k) * tokens * row_bytes);
    }
}

/* At E = 64 over 8 ranks: a quarter of 4 E S H elements, for K <= 8. */
static void memory_stays_below_its_bound(void **state)
{
    (void)state;
    struct draw draw = {test_seed(), 2, 0};
    for (int i = 0; i < 10000; i++) {
        const int64_t tokens = 32 * (1 + draw_below(&draw, 1000)), hidden = 64 + draw_below(&draw, 8192),
                      width = i % 4 ? 2 : 4;
        for (int64_t top_k = 1; top_k <= 8; top_k++) {
            const cot_fused_layout l =
                cot_fused_layout_of(8, tokens, top_k, hidden * width, hidden * width, i % 2);
            assert_true(cot_fused_dispatch_bytes(&l) + cot_fused_reply_bytes(&l) <=
                        64 * tokens * hidden * width);
        }
    }
}

static void table(void **state)
{
    (void)state;
    const struct {
        const char *name;
        int64_t thousands, experts, hidden, top_k; // S in Ki tokens, as the paper's Table 3 has it
    } models[] = {{"Moonlight-16B-A3B", 8, 64, 2048, 6}, {"Grok-1", 8, 8, 6144, 2},
                  {"Snowflake-Arctic", 4, 128, 7168, 2}, {"Qwen3-235B-A22B", 40, 128, 4096, 8},
                  {"Mixtral 8x7B", 32, 8, 4096, 2},      {"DeepSeek-V3", 160, 256, 7168, 8}};
    const double gib = 1 << 30;
    printf("| model | S | E | H | K | exact, GiB | reduced, GiB | 4 E S H, GiB | exact in passes of 4096, "
           "GiB |\n");
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        const int64_t tokens = models[i].thousands * 1024 / 8, row = models[i].hidden * 2,
                      k = models[i].top_k;
        double bytes[3];
        for (int j = 0; j < 3; j++) {
            const cot_fused_layout l =
                cot_fused_layout_of(8, j == 2 && tokens > 4096 ? 4096 : tokens, k, row, row, j == 1);
            bytes[j] = (double)(cot_fused_dispatch_bytes(&l) + cot_fused_reply_bytes(&l)) / gib;
        }
        const double paper = 4.0 * (double)(models[i].experts * tokens * row) / gib;
        printf("| %s | %lldK | %lld | %lld | %lld | %.3f | %.3f | %.2f | %.3f |\n", models[i].name,
               (long long)models[i].thousands, (long long)models[i].experts, (long long)models[i].hidden,
               (long long)k, bytes[0], bytes[1], paper, bytes[2]);
        assert_true(models[i].experts < 64 || bytes[0] <= paper / 4);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cells_lie_apart_and_hold_their_metadata),
        cmocka_unit_test(memory_stays_below_its_bound),
        cmocka_unit_test(table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
