/* Which head a model has: its own, the embedding, or none. */
#include "harness/cmocka.h"
#include "harness/checkpoint/folder.h"
#include "harness/checkpoint/weights.h"
#include "harness/seed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { V = 19, H = 24 };

static void tie(const folder *f, const char *value)
{
    char text[sizeof TINY_MIXTRAL + 64];
    snprintf(text, sizeof text, "%.*s, \"tie_word_embeddings\": %s}", (int)strlen(TINY_MIXTRAL) - 1,
             TINY_MIXTRAL, value);
    write_text(f, "config.json", text);
}

/* The head that is read is that tensor's numbers; `words` NULL: no notes. */
static void expect_head(const folder *f, const cot_tensor *of, bool tied, const char *words)
{
    cot_checkpoint *checkpoint;
    char *notes;
    cot_error error = {0};
    int64_t rows, columns;
    write_all(f);
    if (cot_checkpoint_open(&checkpoint, f->path, &notes, &error) != COT_OK) fail_msg("%s", error.message);
    if (words ? !notes || !strstr(notes, words) : !!notes) fail_msg("%s", notes);
    assert_int_equal(cot_checkpoint_config(checkpoint)->tied_embeddings, tied);
    float *head = whole(checkpoint, COT_WEIGHT_OUTPUT, 0, 0, &rows, &columns);
    assert_true(rows == V && columns == H);
    for (int64_t i = 0; i < V * H; i++) {
        float wide;
        uint16_t half;
        memcpy(&wide, (const uint8_t *)of->data + 4 * i, 4 * (of->dtype == COT_F32));
        memcpy(&half, (const uint8_t *)of->data + 2 * i, 2);
        assert_true(head[i] == (of->dtype == COT_F32 ? wide : cot_bf16_to_f32(half)));
    }
    free(head), free(notes);
    cot_checkpoint_close(checkpoint);
}

static void stored_though_tied(void **state)
{
    (void)state;
    folder *f = tiny_mixtral(test_seed(), COT_BF16);
    static const char warning[] = "warning: config.json ties the head to the embedding, but a head is stored";
    const cot_tensor *embedding = tensor_of(f, "model.embed_tokens.weight");
    cot_tensor *head = tensor_of(f, "lm_head.weight");
    uint8_t *data = (uint8_t *)(uintptr_t)head->data;
    tie(f, "true");
    expect_head(f, head, false, warning);
    const char *const own = head->name;
    head->name = "model.lm_head.weight"; // as transformers reads it, too
    expect_head(f, head, false, warning);
    head->name = own;
    memcpy(data, embedding->data, head->bytes);
    expect_head(f, embedding, true, NULL); // equal ones are nothing to tell of
    data[head->bytes - 2] ^= 1;            // the lowest bit of the last number
    expect_head(f, head, false, warning);
    data[head->bytes - 2] ^= 1;
    uint16_t minus = 0x8000, plus = 0; // equal numbers
    memcpy(data, &minus, 2), memcpy((uint8_t *)(uintptr_t)embedding->data, &plus, 2);
    expect_head(f, embedding, true, NULL);
    free(data); // the same numbers in another type, then one of them other
    float *wide = malloc(V * H * sizeof *wide);
    for (int64_t i = 0; i < V * H; i++) {
        uint16_t half;
        memcpy(&half, (const uint8_t *)embedding->data + 2 * i, 2);
        wide[i] = cot_bf16_to_f32(half);
    }
    head->dtype = COT_F32, head->data = wide, head->bytes *= 2;
    expect_head(f, embedding, true, NULL);
    wide[V * H / 2] += 1e-3f;
    expect_head(f, head, false, warning);
    add(f, "other", COT_F32, 3, 0, 0, 0);
    expect_head(f, tensor_of(f, "lm_head.weight"), false, "false)\n1 tensor is not used: 1 unknown, 'other'");
    tie(f, "false");
    expect_head(f, tensor_of(f, "lm_head.weight"), false, "1 tensor is not used");
    add(f, "model.layers.2.other", COT_F32, 3, 0, 0, 0); // beyond the last layer
    expect_head(f, tensor_of(f, "lm_head.weight"), false, "2 tensors are not used");
    add(f, "model.layers.1.self_attn.other", COT_F32, 3, 0, 0, 0); // of a layer that runs
    expect_head(f, tensor_of(f, "lm_head.weight"), false,
                "warning: 3 tensors are not used: 1 of layer 2 and beyond, 2 unknown, the first '");
    folder_delete(f);
}

/* Blocks of rows are compared; the last one, of one row, counts too. */
static void long_vocabulary(void **state)
{
    (void)state;
    enum { ROWS = (256 << 10) / H + 1 };
    char text[sizeof TINY_MIXTRAL + 64], *at;
    folder *f = tiny_mixtral(test_seed(), COT_BF16);
    for (int t = 0; t < 2; t++) {
        cot_tensor *m = tensor_of(f, t ? "lm_head.weight" : "model.embed_tokens.weight");
        free((void *)(uintptr_t)m->data);
        m->shape[0] = ROWS;
        m->data = calloc(1, m->bytes = ROWS * H * 2);
    }
    strcpy(text, TINY_MIXTRAL);
    at = strstr(text, "\"vocab_size\": 19");
    snprintf(at, sizeof text - (size_t)(at - text), "\"vocab_size\": %d, \"tie_word_embeddings\": true%s",
             ROWS, strstr(TINY_MIXTRAL, "\"vocab_size\": 19") + strlen("\"vocab_size\": 19"));
    write_text(f, "config.json", text);
    for (int differs = 0; differs < 2; differs++) {
        cot_tensor *m = tensor_of(f, "lm_head.weight");
        ((uint8_t *)(uintptr_t)m->data)[m->bytes - 1] = differs ? 0x40 : 0;
        write_all(f);
        cot_checkpoint *checkpoint;
        char *notes;
        assert_int_equal(cot_checkpoint_open(&checkpoint, f->path, &notes, NULL), COT_OK);
        assert_int_equal(cot_checkpoint_config(checkpoint)->tied_embeddings, !differs);
        assert_int_equal(!notes, !differs);
        free(notes);
        cot_checkpoint_close(checkpoint);
    }
    folder_delete(f);
}

/* Rows of more numbers than are compared at a time are compared one by one. */
static void wide_rows(void **state)
{
    (void)state;
    enum { WIDE = (256 << 10) + 2, ROWS = 2 };
    static const char config[] =
        "{\"architectures\": [\"MixtralForCausalLM\"], \"vocab_size\": 2, \"hidden_size\": 262146, "
        "\"intermediate_size\": 1, \"num_hidden_layers\": 1, \"num_attention_heads\": 1, "
        "\"num_key_value_heads\": 1, \"head_dim\": 2, \"num_local_experts\": 1, \"num_experts_per_tok\": 1, "
        "\"tie_word_embeddings\": true}";
    folder *f = folder_new(test_seed());
    add_ends(f, COT_BF16, ROWS, WIDE);
    add_attention(f, 0, COT_BF16, WIDE, 2, 2);
    add(f, "model.layers.0.block_sparse_moe.gate.weight", COT_BF16, 1, WIDE, 0, 0);
    add(f, "model.layers.0.block_sparse_moe.experts.0.w1.weight", COT_BF16, 1, WIDE, 0, 0);
    add(f, "model.layers.0.block_sparse_moe.experts.0.w2.weight", COT_BF16, WIDE, 1, 0, 0);
    add(f, "model.layers.0.block_sparse_moe.experts.0.w3.weight", COT_BF16, 1, WIDE, 0, 0);
    write_text(f, "config.json", config);
    const cot_tensor *head = tensor_of(f, "lm_head.weight");
    uint8_t *last = (uint8_t *)(uintptr_t)head->data + head->bytes - 1;
    memcpy((uint8_t *)(uintptr_t)head->data, tensor_of(f, "model.embed_tokens.weight")->data, head->bytes);
    for (int differs = 0; differs < 2; differs++) {
        cot_checkpoint *checkpoint;
        char *notes;
        *last ^= (uint8_t)differs;
        write_all(f);
        assert_int_equal(cot_checkpoint_open(&checkpoint, f->path, &notes, NULL), COT_OK);
        assert_int_equal(cot_checkpoint_config(checkpoint)->tied_embeddings, !differs);
        free(notes);
        cot_checkpoint_close(checkpoint);
    }
    folder_delete(f);
}

static void none(void **state)
{
    (void)state;
    folder *f = tiny_mixtral(test_seed(), COT_F32);
    cot_tensor *head = tensor_of(f, "lm_head.weight"), *last = &f->tensors[f->count - 1];
    const cot_tensor kept = *head;
    *head = *last, *last = kept;
    f->count--;
    folder_refused(
        f, "no head in it, and its config does not tie it: tensor 'lm_head.weight' is missing (a base "
           "model's files)");
    add(f, "model.layers.0.self_attn.rotary_emb.inv_freq", COT_F32, 4, 0, 0, 0); // no head, though unused
    add(f, "model.layers.2.shared_head.head.weight", COT_F32, V, H, 0, 0);
    folder_refused(f, "'lm_head.weight' is missing (a base model's files)");
    add(f, "output.weight", COT_F32, V, H, 0, 0);
    folder_refused(
        f, "no head in it, and its config does not tie it: tensor 'lm_head.weight' is missing; there is "
           "'output.weight' F32 [19][24] instead");
    add(f, "lm_head.qweight", COT_I32, 3, V, 0, 0);
    folder_refused(f,
                   "; there is 'lm_head.qweight' I32 [3][19] instead, and 1 more unknown: config.json has no "
                   "quantization_config");
    for (int i = 0; i < 4; i++, f->count--) {
        free((void *)(uintptr_t)f->tensors[f->count - 1].name);
        free((void *)(uintptr_t)f->tensors[f->count - 1].data);
    }
    *last = kept;
    tie(f, "true");
    expect_head(f, tensor_of(f, "model.embed_tokens.weight"), true, NULL);
    tie(f, "false");
    f->count--; // and something else
    folder_refused(f, "tensor 'lm_head.weight' is missing, and 1 more");
    f->count += 2;
    tie(f, "true");
    last->shape[0]--, last->bytes -= H * 4;
    folder_refused(f, "tensor 'lm_head.weight' has shape [18][24], expected [19][24]");
    last->shape[0]++, last->bytes += H * 4;
    memset((uint8_t *)(uintptr_t)last->data + 40, 0xff, 4);
    folder_refused(f, "tensor 'lm_head.weight' holds a NaN");
    folder_delete(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(stored_though_tied),
                                       cmocka_unit_test(long_vocabulary), cmocka_unit_test(wide_rows),
                                       cmocka_unit_test(none)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
