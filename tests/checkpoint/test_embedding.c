/* The embedding's rows, read one at a time, against the whole weight read at once: in every form that it is stored in,
 * of a random model, and of a file that is cut off meanwhile. */
#include "harness/cmocka.h"
#include "harness/checkpoint/folder.h"
#include "harness/checkpoint/weights.h"
#include "harness/seed.h"

#include "base/error.h"
#include "checkpoint/embedding.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static cot_embedding open_embedding(const cot_checkpoint *checkpoint)
{
    cot_embedding embedding;
    cot_error error = {0};
    if (cot_embedding_open(&embedding, checkpoint, &error) != COT_OK) fail_msg("%s", error.message);
    return embedding;
}

static void check_rows(const cot_checkpoint *checkpoint)
{
    int64_t rows, columns;
    float *all = whole(checkpoint, COT_WEIGHT_EMBEDDING, 0, 0, &rows, &columns);
    cot_embedding embedding = open_embedding(checkpoint);
    float *out = dirty(columns * 4), *scratch = dirty(columns * 4);
    for (cot_isa isa = 0; isa < COT_ISA_COUNT; isa++)
        for (int64_t id = rows - 1; id >= 0 && cot_kernels_of(isa); id -= 1 + rows / 50) {
            cot_error error = {0};
            memset(out, 0xff, (size_t)columns * 4);
            if (cot_embedding_read(&embedding, cot_kernels_of(isa), out, scratch, id, &error) != COT_OK)
                fail_msg("%s", error.message);
            assert_memory_equal(out, all + id * columns, (size_t)columns * 4);
        }
    cot_embedding_close(&embedding);
    free(out);
    free(scratch);
    free(all);
}

static void plain(void **state)
{
    (void)state;
    static const cot_dtype types[] = {COT_F32, COT_BF16, COT_F16};
    for (int i = 0; i < 3; i++) {
        folder *f = tiny_mixtral(test_seed(), types[i]);
        write_all(f);
        cot_checkpoint *checkpoint = opened(f->path);
        check_rows(checkpoint);
        cot_checkpoint_close(checkpoint);
        folder_delete(f);
    }
}

/* FP8 is read whole: what happens to the file later does not matter. */
static void fp8(void **state)
{
    (void)state;
    folder *f = tiny_mixtral(test_seed(), COT_BF16);
    cot_tensor *embedding = tensor_of(f, "model.embed_tokens.weight");
    embedding->dtype = COT_F8_E4M3;
    embedding->bytes /= 2;
    for (size_t i = 0; i < embedding->bytes; i++)
        ((uint8_t *)(uintptr_t)embedding->data)[i] &= 0xbf; // no NaN
    add(f, "model.embed_tokens.weight_scale_inv", COT_F32, 1, 1, 0, 0);
    char config[1000];
    snprintf(config, sizeof config, "%.*s, \"quantization_config\": {\"quant_method\": \"fp8\"}}",
             (int)strlen(TINY_MIXTRAL) - 1, TINY_MIXTRAL);
    write_text(f, "config.json", config);
    write_all(f);
    cot_checkpoint *checkpoint = opened(f->path);
    check_rows(checkpoint);
    cot_checkpoint_close(checkpoint);
    folder_delete(f);
}

static void drawn(void **state)
{
    (void)state;
    cot_checkpoint *checkpoint;
    assert_int_equal(
        cot_checkpoint_random(&checkpoint, TINY_MIXTRAL, strlen(TINY_MIXTRAL), test_seed(), NULL), COT_OK);
    check_rows(checkpoint);
    cot_checkpoint_close(checkpoint);
}

static void spoilt_meanwhile(void **state)
{
    (void)state;
    folder *f = tiny_mixtral(test_seed(), COT_BF16);
    char path[128];
    snprintf(path, sizeof path, "%s/model.safetensors", f->path);
    write_all(f);
    cot_checkpoint *checkpoint = opened(f->path);
    cot_embedding embedding = open_embedding(checkpoint);
    const cot_kernels *kernels = cot_kernels_of(COT_ISA_REF);
    float out[24], scratch[24];
    cot_error error = {0};
    FILE *file = fopen(path, "r+");
    assert_non_null(file);
    fseek(file, (long)(embedding.at + 5 * embedding.row_bytes + 2), SEEK_SET);
    fwrite("\xc0\x7f", 1, 2, file); // a NaN in row 5
    fclose(file);
    assert_int_equal(cot_embedding_read(&embedding, kernels, out, scratch, 4, &error), COT_OK);
    assert_int_equal(cot_embedding_read(&embedding, kernels, out, scratch, 5, &error), COT_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "row 5"));
    assert_int_equal(truncate(path, (off_t)(embedding.at + 7 * embedding.row_bytes - 1)), 0);
    assert_int_equal(cot_embedding_read(&embedding, kernels, out, scratch, 4, &error), COT_OK);
    assert_int_equal(cot_embedding_read(&embedding, kernels, out, scratch, 6, &error), COT_IO);
    assert_non_null(strstr(error.message, "model.embed_tokens.weight"));
    assert_int_equal(cot_embedding_read(&embedding, kernels, out, scratch, 18, &error), COT_IO);
    cot_embedding_close(&embedding);
    cot_checkpoint_close(checkpoint);
    folder_delete(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(plain), cmocka_unit_test(fp8),
                                       cmocka_unit_test(drawn), cmocka_unit_test(spoilt_meanwhile)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
