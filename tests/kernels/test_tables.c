/* Look-ups in tables: every table against plain words, on random sizes, guard pages around what is read and written. */
#include "harness/kernels/check.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct pair {
    uint16_t rank, confidence;
} pair;

static guarded random_pairs(check_draws *draws, int64_t rows, int32_t ranks)
{
    guarded g = guard(rows * 4);
    uint16_t *at = g.data;
    for (int64_t i = 0; i < rows; i++) {
        const bool nothing = random_between(draws, 0, 7) == 0;
        at[2 * i] = nothing ? UINT16_MAX : (uint16_t)random_between(draws, 0, ranks - 1);
        at[2 * i + 1] = nothing ? 0 : (uint16_t)random_between(draws, 0, 5); // ties are common
    }
    return g;
}

static pair expected(const cot_rank_tables *t, int64_t i)
{
    pair token = {UINT16_MAX, 0}, sequence = {UINT16_MAX, 0};
    if (t->token && t->row[i] >= 0 && t->row[i] < t->n_rows)
        token = (pair){t->token[2 * t->row_pairs * t->row[i]], t->token[2 * t->row_pairs * t->row[i] + 1]};
    if (t->sequence) {
        int32_t known = 0;
        while (known < t->order && t->before[known * t->before_stride + i] >= 0 &&
               t->before[known * t->before_stride + i] < t->ranks)
            known++;
        int64_t first = 0, power = 1, number = 0; // all shorter sequences, then its number in base `ranks`
        for (int32_t j = 0; j < known; j++, power *= t->ranks) {
            first += power;
            number += t->before[j * t->before_stride + i] * power;
        }
        sequence = (pair){t->sequence[2 * (first + number)], t->sequence[2 * (first + number) + 1]};
    }
    return sequence.confidence > token.confidence ? sequence : token;
}

static void ranks(check_draws *draws, const cot_isa_code *code)
{
    const int32_t D = (int32_t)random_between(draws, 1, 9), order = (int32_t)random_between(draws, 0, 4);
    const int64_t n = random_between(draws, 0, 400), rows = random_between(draws, 0, 50);
    int64_t sequences = 1, power = 1;
    for (int32_t j = 0; j < order; j++) sequences += power *= D;
    const int64_t row_pairs = random_between(draws, 1, 3);
    guarded token = random_pairs(draws, rows * row_pairs, D), sequence = random_pairs(draws, sequences, D),
            row = guard(n * 4), before = guard(n * order * 2), rank = guard(n * 2), confidence = guard(n * 2);
    for (int64_t i = 0; i < n; i++) ((int32_t *)row.data)[i] = (int32_t)random_between(draws, -2, rows + 1);
    for (int64_t i = 0; i < n * order; i++)
        ((int16_t *)before.data)[i] = (int16_t)random_between(draws, -1, D);
    const cot_rank_tables tables = {.token = random_between(draws, 0, 4) ? token.data : NULL,
                                    .n_rows = rows,
                                    .row_pairs = row_pairs,
                                    .row = row.data,
                                    .sequence = random_between(draws, 0, 4) ? sequence.data : NULL,
                                    .ranks = D,
                                    .order = order,
                                    .before = before.data,
                                    .before_stride = n};
    const bool confident = random_between(draws, 0, 3);
    code->lookup.look_up_ranks(rank.data, confident ? confidence.data : NULL, &tables, n);
    for (int64_t i = 0; i < n; i++) {
        const pair want = expected(&tables, i);
        const int found = ((int16_t *)rank.data)[i], sure = ((uint16_t *)confidence.data)[i];
        CHECK(found == (int16_t)want.rank, "%s look_up_ranks %lld of %lld: %d, expected %d",
              code->kernels.name, (long long)i, (long long)n, found, (int16_t)want.rank);
        CHECK(sure == (confident ? want.confidence : UINT16_MAX),
              "%s look_up_ranks %lld of %lld: confidence %d", code->kernels.name, (long long)i, (long long)n,
              sure);
    }
    guarded all[] = {token, sequence, row, before, rank, confidence};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) unguard(all[i]);
}

static void logistic(check_draws *draws, const cot_isa_code *code, int64_t n_rows, int64_t n, int extreme)
{
    guarded rows = guard((n_rows + 1) * n), bias = guard(n * 2), p = guard(n * 4);
    const int8_t **row = malloc(((size_t)n_rows + 1) * sizeof *row);
    const float scale = (float)random_between(draws, 0, 100) * 1e-3f;
    CHECK(row, "no memory");
    for (int64_t i = 0; i < (n_rows + 1) * n; i++)
        ((int8_t *)rows.data)[i] = (int8_t)(extreme ? extreme : random_between(draws, -127, 127));
    for (int64_t i = 0; i < n; i++) ((int16_t *)bias.data)[i] = (int16_t)random_between(draws, -300, 300);
    for (int64_t r = 0; r < n_rows; r++)
        row[r] = (const int8_t *)rows.data + random_between(draws, 0, n_rows) * n;
    code->lookup.logistic_rows(p.data, row, n_rows, bias.data, scale, n);
    for (int64_t i = 0; i < n; i++) {
        double sum = ((int16_t *)bias.data)[i];
        for (int64_t r = 0; r < n_rows; r++) sum += row[r][i];
        const double exact = 1 / (1 + exp(-(double)scale * sum)), found = ((float *)p.data)[i];
        CHECK(fabs(found - exact) < 1e-6, "%s logistic_rows %lld of %lld, %lld rows: %g, expected %g",
              code->kernels.name, (long long)i, (long long)n, (long long)n_rows, found, exact);
    }
    free(row);
    unguard(rows);
    unguard(bias);
    unguard(p);
}

int main(int argc, char **argv)
{
    check_draws drawn = check_start(argc, argv), *draws = &drawn;
    FOR_EACH_CODE(code)
    {
        for (int i = 0; i < 300; i++) ranks(draws, code);
        for (int64_t n = 0; n < 100; n++) logistic(draws, code, random_between(draws, 0, 20), n, 0);
        const int extremes[] = {-128, 127};
        for (int i = 0; i < 2; i++) { // sums that 16 bits do not hold
            logistic(draws, code, 256, 64, extremes[i]);
            logistic(draws, code, 700, 40, extremes[i]);
        }
    }
    printf("ok\n");
    return 0;
}
