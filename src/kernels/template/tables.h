/* Look-ups in tables, for one instruction set; included after rows.h. Loads from tables are a loop of their own: what is
 * around them becomes vectors, and a gather is no faster than its loads (Zen 3). */
#include "kernels/kernels.h"

#include <stdint.h>
#include <string.h>

enum { LOOK_UP_BLOCK = 128, NOTHING = UINT16_MAX }; // the pair (65535, 0), its rank in the low half

/* pair[i] is the first of row at[i]; where outside [0, n_rows), nothing. */
static inline void load_pairs(uint32_t *pair, const uint16_t *table, int64_t row_pairs, const int32_t *at,
                              int64_t n_rows, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const bool known = (uint64_t)(int64_t)at[i] < (uint64_t)n_rows;
        const uint16_t *entry = table + 2 * row_pairs * (known ? (int64_t)at[i] : 0);
        const uint32_t found = (uint32_t)entry[0] | (uint32_t)entry[1] << 16;
        pair[i] = known ? found : NOTHING;
    }
}

static inline void sequence_rows(int32_t *at, const cot_rank_tables *t, int64_t first, int64_t n)
{
    uint16_t known[LOOK_UP_BLOCK];
    const uint16_t ranks = (uint16_t)t->ranks;
    for (int64_t i = 0; i < n; i++) {
        at[i] = 0;
        known[i] = 1;
    }
    int32_t power = 1;
    for (int32_t j = 0; j < t->order; j++, power *= t->ranks) {
        const int16_t *before = t->before + j * t->before_stride + first;
        for (int64_t i = 0; i < n; i++) {
            const uint16_t r = (uint16_t)before[i];
            known[i] = (uint16_t)(known[i] & (r < ranks));
            at[i] += known[i] ? (r + 1) * power : 0;
        }
    }
}

static void look_up_ranks(int16_t *rank, uint16_t *confidence, const cot_rank_tables *t, int64_t n)
{
    uint32_t pair[LOOK_UP_BLOCK], other[LOOK_UP_BLOCK];
    int32_t at[LOOK_UP_BLOCK];
    int64_t rows = 1, power = 1;
    for (int32_t j = 0; j < t->order; j++) rows += power *= t->ranks;
    for (int64_t first = 0; first < n; first += LOOK_UP_BLOCK) {
        const int64_t m = n - first < LOOK_UP_BLOCK ? n - first : LOOK_UP_BLOCK;
        if (t->token && t->n_rows)
            load_pairs(pair, t->token, t->row_pairs, t->row + first, t->n_rows, m);
        else
            for (int64_t i = 0; i < m; i++) pair[i] = NOTHING;
        if (t->sequence) {
            sequence_rows(at, t, first, m);
            load_pairs(other, t->sequence, 1, at, rows, m);
            for (int64_t i = 0; i < m; i++) pair[i] = other[i] >> 16 > pair[i] >> 16 ? other[i] : pair[i];
        }
        for (int64_t i = 0; i < m; i++) rank[first + i] = (int16_t)(uint16_t)pair[i];
        for (int64_t i = 0; confidence && i < m; i++) confidence[first + i] = (uint16_t)(pair[i] >> 16);
    }
}

enum { SUM_COLUMNS = 32, SUM_ROWS = 256 }; // that many bytes cannot overflow 16 bits

typedef int8_t few_bytes __attribute__((vector_size(16)));
typedef int16_t few_shorts __attribute__((vector_size(32)));

/* sum [32] += columns c .. c + 31 of the rows. Sums of their own live in registers (as arrays they would not). */
static inline void sum_bytes(int32_t *sum, const int8_t *const *row, int64_t n_rows, int64_t c)
{
    few_shorts low = {0}, high = {0};
    int16_t part[SUM_COLUMNS];
    for (int64_t r = 0; r < n_rows; r++) {
        few_bytes a, b;
        memcpy(&a, row[r] + c, sizeof a);
        memcpy(&b, row[r] + c + sizeof a, sizeof b);
        low += __builtin_convertvector(a, few_shorts);
        high += __builtin_convertvector(b, few_shorts);
    }
    memcpy(part, &low, sizeof low);
    memcpy(part + SUM_COLUMNS / 2, &high, sizeof high);
    for (int i = 0; i < SUM_COLUMNS; i++) sum[i] += part[i];
}

static void logistic_rows(float *p, const int8_t *const *row, int64_t n_rows, const int16_t *bias,
                          float factor, int64_t n)
{
    const vec one = v_set(1), minus = v_set(-factor);
    for (int64_t c = 0; c < n; c += SUM_COLUMNS) {
        const int64_t columns = n - c < SUM_COLUMNS ? n - c : SUM_COLUMNS;
        int32_t sum[SUM_COLUMNS];
        float z[SUM_COLUMNS];
        if (columns == SUM_COLUMNS) {
            for (int i = 0; i < SUM_COLUMNS; i++) sum[i] = bias[c + i];
            for (int64_t r = 0; r < n_rows; r += SUM_ROWS)
                sum_bytes(sum, row + r, n_rows - r < SUM_ROWS ? n_rows - r : SUM_ROWS, c);
        } else {
            for (int64_t i = 0; i < SUM_COLUMNS; i++) sum[i] = i < columns ? bias[c + i] : 0;
            for (int64_t r = 0; r < n_rows; r++)
                for (int64_t i = 0; i < columns; i++) sum[i] += row[r][c + i];
        }
        for (int i = 0; i < SUM_COLUMNS; i++) z[i] = (float)sum[i];
        FOR_VECTORS(i, left, columns)
        put(p + c, COT_F32, i, left, v_div(one, v_add(one, v_exp(v_mul(minus, v_load(z + i))))));
    }
}
