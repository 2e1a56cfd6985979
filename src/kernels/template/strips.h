/* Formats of blocks: some rows of a panel at a time become a strip of floats, by which all rows of A are multiplied as by any
 * panel of FP32. A is widened to floats where it is not, so that nothing is rounded. The floor is not met here: a column's blocks
 * are decoded one after the other. Included by gemm.h. */
enum { BLOCKS_K = BLOCK_K, WIDENED_ROWS = 32 }; // of a strip, and of rows of A that are widened at a time

/* Rows [m0, m1) of A, from element k0 on, times the strip. */
static void run_blocks_strip(const cot_gemm *g, cot_gemm *part, int64_t m0, int64_t m1, int64_t k0)
{
    float wide[WIDENED_ROWS * BLOCKS_K];
    float *const c = part->c;
    if (g->type == COT_F32) {
        part->a = (const float *)g->a + k0;
        part->a_stride = g->a_stride;
        part->a_rows = g->a_rows;
        run_words(part, m0, m1, 0, 1);
        return;
    }
    part->a = wide;
    part->a_stride = part->k;
    for (int64_t m = m0; m < m1; m += WIDENED_ROWS) {
        const int64_t rows = m1 - m < WIDENED_ROWS ? m1 - m : WIDENED_ROWS;
        for (int64_t r = 0; r < rows; r++) {
            const int64_t row = g->a_rows ? g->a_rows[m + r] : m + r;
            const uint16_t *in = (const uint16_t *)g->a + row * g->a_stride + k0;
            for (int64_t i = 0; i < part->k; i++) wide[r * part->k + i] = cot_bf16_to_f32(in[i]);
        }
        part->c = c + m * g->c_stride;
        run_words(part, 0, rows, 0, 1);
    }
    part->c = c;
}

static void run_strips(const cot_gemm *g, int64_t m0, int64_t m1, int64_t p0, int64_t p1)
{
    alignas(64) float strip[BLOCKS_K * COT_PANEL];
    for (int64_t p = p0; p < p1; p++) {
        const int64_t columns = g->n - p * COT_PANEL;
        cot_gemm part = {.type = COT_F32,
                         .format = COT_FORMAT_FP32,
                         .m = g->m,
                         .n = columns < COT_PANEL ? columns : COT_PANEL,
                         .b = strip,
                         .c = g->c + p * COT_PANEL,
                         .c_stride = g->c_stride};
        for (int64_t k0 = 0; k0 < g->k || !k0; k0 += BLOCKS_K) {
            part.k = g->k - k0 < BLOCKS_K ? g->k - k0 : BLOCKS_K;
            part.b_panel_bytes = cot_panel_bytes(COT_FORMAT_FP32, part.k);
            part.accumulate = g->accumulate || k0;
            cot_blocks_strip(strip, g, p, k0, part.k);
            run_blocks_strip(g, &part, m0, m1, k0);
        }
    }
}
