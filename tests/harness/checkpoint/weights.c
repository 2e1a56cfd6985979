#include "harness/checkpoint/weights.h"

#include "harness/cmocka.h"
#include "harness/seed.h"

#include "base/rng.h"
#include "checkpoint/stored.h"
#include "kernels/pack.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

cot_checkpoint *opened(const char *path)
{
    cot_checkpoint *checkpoint;
    char *notes;
    cot_error error = {0};
    if (cot_checkpoint_open(&checkpoint, path, &notes, &error) != COT_OK) fail_msg("%s", error.message);
    free(notes);
    return checkpoint;
}

float *whole(const cot_checkpoint *checkpoint, cot_weight weight, int64_t layer, int64_t expert,
             int64_t *rows, int64_t *columns)
{
    cot_error error = {0};
    cot_status status = cot_checkpoint_shape(checkpoint, weight, layer, expert, rows, columns, &error);
    if (status == COT_INVALID_ARGUMENT) return NULL;
    if (status != COT_OK) fail_msg("%s", error.message);
    float *out = malloc((size_t)(*rows * *columns) * sizeof *out);
    assert_non_null(out);
    memset(out, 0xff, (size_t)(*rows * *columns) * sizeof *out);
    status = cot_checkpoint_read(
        checkpoint, &(cot_weight_piece){weight, layer, expert, 0, *rows, 0, *columns}, out, &error);
    if (status != COT_OK) fail_msg("%s", error.message);
    for (int64_t i = 0; i < *rows * *columns; i++) assert_true(isfinite(out[i]));
    return out;
}

void *dirty(int64_t bytes)
{
    void *memory = aligned_alloc(64, (size_t)(bytes + 63) / 64 * 64);
    assert_non_null(memory);
    memset(memory, 0xa5, (size_t)bytes);
    return memory;
}

/* A random piece, read, packed in two parts and packed transposed, against the whole. */
static void check_piece(const cot_checkpoint *checkpoint, cot_weight weight, int64_t layer, int64_t expert,
                        uint64_t draw)
{
    int64_t rows, columns;
    float *all = whole(checkpoint, weight, layer, expert, &rows, &columns);
    if (!all) return;
    uint64_t at = draw * 8;
    int64_t row0 = (int64_t)(cot_random_bits(test_seed(), 5, at) % (uint64_t)rows), count = rows - row0;
    int64_t column0 = (int64_t)(cot_random_bits(test_seed(), 5, at + 1) % (uint64_t)columns),
            width = columns - column0;
    count -= (int64_t)(cot_random_bits(test_seed(), 5, at + 2) % (uint64_t)count);
    width -= (int64_t)(cot_random_bits(test_seed(), 5, at + 3) % (uint64_t)width);
    float *piece = dirty(count * width * 4);
    const cot_weight_piece wanted = {weight, layer, expert, row0, count, column0, width};
    assert_int_equal(cot_checkpoint_read(checkpoint, &wanted, piece, NULL), COT_OK);
    for (int64_t r = 0; r < count; r++)
        assert_memory_equal(piece + r * width, all + (row0 + r) * columns + column0, (size_t)width * 4);
    for (int t = 0; t < 2; t++) {
        const cot_format format = t ? COT_FORMAT_BF16 : COT_FORMAT_FP32;
        int64_t bytes = cot_packed_bytes(format, width, count), first = count / 64 * 32;
        void *expected = dirty(bytes), *found = dirty(bytes);
        cot_pack_columns(expected, format, width, count, 0, count, piece, COT_F32, width);
        cot_weight_piece part = wanted;
        part.rows = first;
        assert_int_equal(
            cot_checkpoint_pack(checkpoint, &part, &(cot_packed_part){found, format, count, 0}, NULL),
            COT_OK);
        part.row0 = row0 + first;
        part.rows = count - first;
        assert_int_equal(
            cot_checkpoint_pack(checkpoint, &part, &(cot_packed_part){found, format, count, first}, NULL),
            COT_OK);
        assert_memory_equal(found, expected, (size_t)bytes);
        free(expected);
        free(found);
        if (expert) continue; // the transposed form is for attention alone
        bytes = cot_packed_bytes(format, count, width);
        expected = dirty(bytes);
        found = dirty(bytes);
        cot_pack_rows(expected, format, count, width, 0, count, piece, COT_F32, width);
        assert_int_equal(cot_checkpoint_pack_transposed(checkpoint, &wanted, found, format, NULL), COT_OK);
        assert_memory_equal(found, expected, (size_t)bytes);
        free(expected);
        free(found);
    }
    free(piece);
    free(all);
}

void check_all_pieces(const cot_checkpoint *checkpoint)
{
    const cot_config *config = cot_checkpoint_config(checkpoint);
    uint64_t draw = 0;
    for (int w = 0; w < COT_WEIGHTS; w++)
        for (int64_t l = 0; l < config->layers; l++) {
            check_piece(checkpoint, (cot_weight)w, l, 0, draw++);
            check_piece(checkpoint, (cot_weight)w, l, config->gate.experts - 1, draw++);
        }
}

/* Where row r of a head of d rows lies in pairs: 2 i was i, 2 i + 1 was d / 2 + i. */
static int64_t row_in_pairs(int64_t r, int64_t d)
{
    const int64_t i = r % d;
    return r - i + i % (d / 2) * 2 + i / (d / 2);
}

static void expect_same_weight(const cot_checkpoint *folder, const cot_checkpoint *file, cot_weight weight,
                               int64_t layer, int64_t expert)
{
    const cot_config *c = cot_checkpoint_config(file);
    const bool turned = c->family->gguf.pairs && (weight == COT_WEIGHT_Q || weight == COT_WEIGHT_K);
    int64_t rows, columns, own_rows, own_columns;
    float *x = whole(file, weight, layer, expert, &rows, &columns),
          *y = whole(folder, weight, layer, expert, &own_rows, &own_columns);
    if (!x != !y) fail_msg("one has no %s of layer %d", cot_weight_name(weight), (int)layer);
    for (int64_t r = 0; x && r < rows; r++) {
        const float *from = x + (turned ? row_in_pairs(r, c->head_dim) : r) * columns;
        for (int64_t k = 0; k < columns; k++)
            if (from[k] != y[r * columns + k])
                fail_msg("%s of layer %d, expert %d: (%d, %d) is %g, was %g", cot_weight_name(weight),
                         (int)layer, (int)expert, (int)r, (int)k, (double)y[r * columns + k],
                         (double)from[k]);
    }
    free(x), free(y);
}

void expect_same_weights(const char *folder, const char *file)
{
    cot_checkpoint *a = opened(folder), *b = opened(file);
    const cot_config *c = cot_checkpoint_config(a);
    for (int w = 0; w < COT_WEIGHTS; w++) {
        const cot_weight weight = (cot_weight)w;
        if (weight == COT_WEIGHT_K_B || weight == COT_WEIGHT_V_B) continue; // KV_B once more
        const int64_t layers = cot_weight_is_layered(weight) ? c->layers : 1,
                      experts = cot_weight_is_expert(weight) ? c->gate.experts : 1;
        for (int64_t l = 0; l < layers; l++)
            for (int64_t e = 0; e < experts; e++) expect_same_weight(a, b, weight, l, e);
    }
    cot_checkpoint_close(a);
    cot_checkpoint_close(b);
}
