/* Models made here in GGUF, every matrix of a type drawn for it: each weight is what its blocks say, wherever it lies and however it was cut
 * or turned; and what is no model that is run is told so. */
#include "harness/cmocka.h"

#include "base/gguf.h"
#include "base/rng.h"
#include "coterie/model.h"
#include "kernels/blocks.h"
#include "harness/checkpoint/weights.h"
#include "harness/engine/golden.h"
#include "harness/gguf.h"
#include "harness/refused.h"
#include "harness/scratch.h"
#include "harness/seed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TOKENS = 11,
    H = 32,
    HEADS = 2,
    NOPE = 32,
    ROPE = 4,
    RANK = 64,
    V = 32,
    EXPERTS = 3,
    I = 64,
    LAYERS = 2,
    MOST = 64
};

/* Their numbers in the container, and bytes of 32 elements. */
static const struct {
    uint32_t number;
    cot_tensor_blocks blocks;
    cot_dtype dtype;
    int bytes;
} types[] = {{0, COT_BLOCKS_NONE, COT_F32, 128},  {1, COT_BLOCKS_NONE, COT_F16, 64},
             {30, COT_BLOCKS_NONE, COT_BF16, 64}, {8, COT_BLOCKS_Q8_0, COT_U8, 34},
             {2, COT_BLOCKS_Q4_0, COT_U8, 18},    {3, COT_BLOCKS_Q4_1, COT_U8, 20},
             {6, COT_BLOCKS_Q5_0, COT_U8, 22},    {7, COT_BLOCKS_Q5_1, COT_U8, 24},
             {20, COT_BLOCKS_IQ4_NL, COT_U8, 18}, {39, COT_BLOCKS_MXFP4, COT_U8, 17}};

struct made {
    char name[64];
    int64_t columns;
    float *values; // row-major
};

struct model {
    gguf_file file;
    struct made made[MOST];
    int count;
    uint64_t seed, draws;
};

static uint64_t draw(struct model *m)
{
    return cot_random_bits(m->seed, 1, m->draws++);
}

/* 32 elements: finite numbers, whatever the rest of the bits. */
static void draw_block(struct model *m, uint8_t *to, float *values, int t)
{
    for (int i = 0; i < types[t].bytes; i++) to[i] = (uint8_t)draw(m);
    if (!types[t].blocks) {
        for (int i = 0; i < 32; i++) {
            values[i] = (float)((int)(draw(m) % 255) - 127) / 64;
            const uint16_t half =
                types[t].dtype == COT_BF16 ? cot_f32_to_bf16(values[i]) : cot_f32_to_f16(values[i]);
            if (types[t].dtype == COT_F32)
                memcpy(to + 4 * i, &values[i], 4);
            else
                memcpy(to + 2 * i, &half, 2);
        }
        return;
    }
    to[1] = (uint8_t)((to[1] & 0x83) | 0x2c); // halves of about a sixteenth
    if (draw(m) % 16 == 0) to[0] = to[1] = 0; // all elements are zero, or a minimum
    to[3] = types[t].number == 3 || types[t].number == 7 ? (uint8_t)((to[3] & 0x83) | 0x2c) : to[3];
    if (types[t].blocks == COT_BLOCKS_MXFP4) to[0] = (uint8_t)(118 + to[0] % 8);
    cot_blocks_decode(values, to, types[t].blocks, 32);
}

static void add(struct model *m, const char *name, bool plain, int64_t a, int64_t b, int64_t c)
{
    const int64_t shape[] = {a, b, c}, dims = c ? 3 : b ? 2 : 1;
    int64_t elements = a * (b ? b : 1) * (c ? c : 1);
    const int t = plain ? 0 : (int)(draw(m) % (sizeof types / sizeof *types));
    struct made *made = &m->made[m->count++];
    const int64_t blocks = (elements + 31) / 32;
    uint8_t *bytes = malloc((size_t)(blocks * types[t].bytes));
    made->values = malloc((size_t)(blocks * 32) * sizeof *made->values);
    assert_true(bytes && made->values && m->count < MOST);
    snprintf(made->name, sizeof made->name, "%s", name);
    made->columns = shape[dims - 1];
    for (int64_t i = 0; i < blocks; i++) draw_block(m, bytes + i * types[t].bytes, made->values + 32 * i, t);
    gguf_tensor(&m->file, name, types[t].number, shape, (int)dims, bytes,
                (size_t)(elements * types[t].bytes / 32));
    free(bytes);
}

static void add_to_layer(struct model *m, int layer, const char *name, bool plain, int64_t a, int64_t b,
                         int64_t c)
{
    char full[64];
    snprintf(full, sizeof full, "blk.%d.%s.weight", layer, name);
    add(m, full, plain, a, b, c);
}

static const float *values_of(const struct model *m, int64_t layer, const char *name)
{
    char full[64];
    if (layer < 0)
        snprintf(full, sizeof full, "%s.weight", name);
    else
        snprintf(full, sizeof full, "blk.%d.%s.weight", (int)layer, name);
    for (int i = 0; i < m->count; i++)
        if (!strcmp(m->made[i].name, full)) return m->made[i].values;
    fail_msg("no '%s'", full);
    return NULL;
}

static void put_metadata(gguf_file *f)
{
    static const char *const words[TOKENS] = {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"};
    gguf_string(f, "general.architecture", "deepseek2");
    gguf_strings(f, "tokenizer.ggml.tokens", words, TOKENS);
    gguf_string(f, "tokenizer.ggml.model", "llama");
    gguf_array(f, "tokenizer.ggml.scores", COT_GGUF_F32, TOKENS);
    for (int i = 0; i < TOKENS; i++) gguf_number(&f->pairs, 0, 4);
    static const struct {
        const char *key;
        uint32_t value;
    } numbers[] = {{"block_count", LAYERS},
                   {"context_length", 64},
                   {"embedding_length", H},
                   {"feed_forward_length", 96},
                   {"attention.head_count", HEADS},
                   {"attention.head_count_kv", 1},
                   {"attention.key_length", RANK + ROPE},
                   {"attention.value_length", RANK},
                   {"attention.key_length_mla", NOPE + ROPE},
                   {"attention.value_length_mla", V},
                   {"attention.kv_lora_rank", RANK},
                   {"rope.dimension_count", ROPE},
                   {"expert_count", EXPERTS},
                   {"expert_used_count", 2},
                   {"expert_feed_forward_length", I},
                   {"expert_shared_count", 1},
                   {"leading_dense_block_count", 1}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        char key[64];
        snprintf(key, sizeof key, "deepseek2.%s", numbers[i].key);
        gguf_u32(f, key, numbers[i].value);
    }
    gguf_f32(f, "deepseek2.attention.layer_norm_rms_epsilon", 1e-6f);
}

static void fill(struct model *m, bool halves, bool fused)
{
    put_metadata(&m->file);
    add(m, "token_embd.weight", false, TOKENS, H, 0);
    add(m, "output_norm.weight", true, H, 0, 0);
    for (int l = 0; l < LAYERS; l++) {
        add_to_layer(m, l, "attn_norm", true, H, 0, 0);
        add_to_layer(m, l, "ffn_norm", true, H, 0, 0);
        add_to_layer(m, l, "attn_q", false, HEADS * (NOPE + ROPE), H, 0);
        add_to_layer(m, l, "attn_kv_a_mqa", false, RANK + ROPE, H, 0);
        add_to_layer(m, l, "attn_kv_a_norm", true, RANK, 0, 0);
        add_to_layer(m, l, "attn_output", false, H, HEADS * V, 0);
        if (halves) {
            add_to_layer(m, l, "attn_k_b", false, HEADS, RANK, NOPE);
            add_to_layer(m, l, "attn_v_b", false, HEADS, V, RANK);
        } else {
            add_to_layer(m, l, "attn_kv_b", false, HEADS * (NOPE + V), RANK, 0);
        }
    }
    add_to_layer(m, 0, "ffn_gate", false, 96, H, 0);
    add_to_layer(m, 0, "ffn_up", false, 96, H, 0);
    add_to_layer(m, 0, "ffn_down", false, H, 96, 0);
    add_to_layer(m, 1, "ffn_gate_inp", true, EXPERTS, H, 0);
    add_to_layer(m, 1, "ffn_gate_shexp", false, I, H, 0);
    add_to_layer(m, 1, "ffn_up_shexp", false, I, H, 0);
    add_to_layer(m, 1, "ffn_down_shexp", false, H, I, 0);
    add_to_layer(m, 1, "ffn_down_exps", false, EXPERTS, H, I);
    if (fused) add_to_layer(m, 1, "ffn_gate_up_exps", false, EXPERTS, 2 * I, H);
    if (!fused) add_to_layer(m, 1, "ffn_gate_exps", false, EXPERTS, I, H);
    for (int e = 0; e < EXPERTS && !fused; e++) { // and up in a tensor each
        char name[32];
        snprintf(name, sizeof name, "ffn_up.%d", e);
        add_to_layer(m, 1, name, false, I, H, 0);
    }
}

static void expect(const cot_checkpoint *c, cot_weight weight, int64_t layer, int64_t expert,
                   const float *wanted)
{
    int64_t rows, columns;
    float *found = whole(c, weight, layer, expert, &rows, &columns);
    for (int64_t i = 0; i < rows * columns; i++)
        if (found[i] != wanted[i])
            fail_msg("weight %d, layer %d, expert %d: element %d is %g, expected %g", (int)weight, (int)layer,
                     (int)expert, (int)i, (double)found[i], (double)wanted[i]);
    free(found);
}

static void expect_kv_b(const cot_checkpoint *c, const struct model *m, int64_t layer, bool halves)
{
    static float wanted[HEADS * (NOPE + V) * RANK];
    if (!halves) {
        expect(c, COT_WEIGHT_KV_B, layer, 0, values_of(m, layer, "attn_kv_b"));
        return;
    }
    const float *k = values_of(m, layer, "attn_k_b"), *v = values_of(m, layer, "attn_v_b");
    for (int h = 0; h < HEADS; h++)
        for (int r = 0; r < RANK; r++) {
            for (int i = 0; i < NOPE; i++)
                wanted[(h * (NOPE + V) + i) * RANK + r] = k[(h * RANK + r) * NOPE + i];
            for (int i = 0; i < V; i++)
                wanted[(h * (NOPE + V) + NOPE + i) * RANK + r] = v[(h * V + i) * RANK + r];
        }
    expect(c, COT_WEIGHT_KV_B, layer, 0, wanted);
}

static void expect_all(const cot_checkpoint *c, const struct model *m, bool halves, bool fused)
{
    expect(c, COT_WEIGHT_EMBEDDING, 0, 0, values_of(m, -1, "token_embd"));
    expect(c, COT_WEIGHT_OUTPUT, 0, 0, values_of(m, -1, "token_embd"));
    for (int64_t l = 0; l < LAYERS; l++) {
        expect(c, COT_WEIGHT_Q, l, 0, values_of(m, l, "attn_q"));
        expect(c, COT_WEIGHT_KV_A, l, 0, values_of(m, l, "attn_kv_a_mqa"));
        expect(c, COT_WEIGHT_O, l, 0, values_of(m, l, "attn_output"));
        expect(c, COT_WEIGHT_FFN_NORM, l, 0, values_of(m, l, "ffn_norm"));
        expect_kv_b(c, m, l, halves);
    }
    expect(c, COT_WEIGHT_DENSE_DOWN, 0, 0, values_of(m, 0, "ffn_down"));
    expect(c, COT_WEIGHT_SHARED_UP, 1, 0, values_of(m, 1, "ffn_up_shexp"));
    for (int64_t e = 0; e < EXPERTS; e++) {
        char up[32];
        snprintf(up, sizeof up, "ffn_up.%d", (int)e);
        const float *both = fused ? values_of(m, 1, "ffn_gate_up_exps") + e * 2 * I * H : NULL;
        expect(c, COT_WEIGHT_EXPERT_GATE, 1, e, fused ? both : values_of(m, 1, "ffn_gate_exps") + e * I * H);
        expect(c, COT_WEIGHT_EXPERT_UP, 1, e, fused ? both + I * H : values_of(m, 1, up));
        expect(c, COT_WEIGHT_EXPERT_DOWN, 1, e, values_of(m, 1, "ffn_down_exps") + e * H * I);
    }
}

/* What `convert` makes of the file, whose matrices are in whatever types were drawn. */
static void expect_folder(scratch_pad *pad)
{
    const char *file = in_scratch(pad, "model.gguf"), *folder = in_scratch(pad, "folder");
    cot_model_convert_options options;
    cot_error error;
    cot_model_convert_options_init(&options);
    options.file_bytes = 20000; // several files
    if (cot_model_convert(file, folder, &options, NULL, &error) != COT_OK) fail_msg("%s", error.message);
    expect_same_weights(folder, file);
    remove_tree(folder);
}

static void every_weight(void **state)
{
    scratch_pad *pad = *state;
    for (int round = 0; round < 8; round++) {
        const bool halves = round & 1, fused = round & 2;
        struct model m = {.seed = pad->seed + (uint64_t)round, .file.alignment = round & 4 ? 64 : 0};
        size_t bytes;
        if (m.file.alignment) gguf_u32(&m.file, "general.alignment", m.file.alignment);
        fill(&m, halves, fused);
        uint8_t *data = gguf_bytes(&m.file, &bytes);
        put_file(pad, "model.gguf", data, bytes);
        cot_checkpoint *c = opened(in_scratch(pad, "model.gguf"));
        expect_all(c, &m, halves, fused);
        check_all_pieces(c);
        cot_checkpoint_close(c);
        expect_folder(pad);
        free(data);
        gguf_free(&m.file);
        for (int i = 0; i < m.count; i++) free(m.made[i].values);
    }
}

/* ---- what is told of files that are no such model ---- */

static void refuse(scratch_pad *pad, gguf_file *f, const char *words)
{
    cot_checkpoint *c;
    cot_error error;
    char *notes;
    size_t bytes;
    uint8_t *data = gguf_bytes(f, &bytes);
    put_file(pad, "model.gguf", data, bytes);
    assert_refused(cot_checkpoint_open(&c, in_scratch(pad, "model.gguf"), &notes, &error), &error, words);
    free(data);
    gguf_free(f);
}

/* A matrix that has a scale beside it, by its name but for the last word. */
static void multiplied(void **state)
{
    scratch_pad *pad = *state;
    static const int64_t one = 1;
    const float two = 2;
    struct model m = {.seed = pad->seed};
    fill(&m, false, false);
    gguf_tensor(&m.file, "blk.0.attn_q.scale", 0, &one, 1, &two, sizeof two);
    refuse(pad, &m.file,
           "tensor 'blk.0.attn_q.weight' is multiplied by 'blk.0.attn_q.scale', which is not supported");
    for (int i = 0; i < m.count; i++) free(m.made[i].values);
}

static void other_files(void **state)
{
    static const struct {
        const char *type, *architecture, *words;
    } cases[] = {{"mmproj", "clip", "it is a vision projector, not a model that is run"},
                 {NULL, "clip", "it is a vision projector, not a model that is run"},
                 {"imatrix", NULL, "it is an importance matrix, not a model that is run"},
                 {"adapter", "llama", "it is an adapter (LoRA), not a model that is run"},
                 {"model", "llama", "it is a dense model ('llama' without experts), which is not run"},
                 {NULL, "gemma3", "unknown architecture 'gemma3'"},
                 {NULL, NULL, "its metadata lack 'general.architecture'"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gguf_file f = {0};
        if (cases[i].type) gguf_string(&f, "general.type", cases[i].type);
        if (cases[i].architecture) gguf_string(&f, "general.architecture", cases[i].architecture);
        gguf_u32(&f, "llama.block_count", 2);
        refuse(*state, &f, cases[i].words);
    }
    gguf_file f = {0};
    put_metadata(&f);
    gguf_u32(&f, "deepseek2.expert_gating_func", 3);
    refuse(*state, &f, "expert_gating_func 3 of 'deepseek2' is not supported");
}

/* A model is known again whatever its container. */
static void hashes(void **state)
{
    (void)state;
    static const char *const models[][2] = {{"olmoe", "olmoe"},
                                            {"gpt-oss", "gpt-oss"},
                                            {"mixtral", "mixtral"},
                                            {"deepseek-v3", "deepseek-v3"},
                                            {"qwen3moe", "qwen3-moe"}};
    if (!folder_exists(COT_SHARED "/golden/gguf")) {
        printf("SKIPPED: there is no '%s'\n", COT_SHARED "/golden/gguf");
        skip();
    }
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char file[600], folder[600];
        uint64_t a, b;
        snprintf(file, sizeof file, COT_SHARED "/golden/gguf/arch/%s.gguf", models[i][0]);
        snprintf(folder, sizeof folder, COT_SHARED "/golden/%s", models[i][1]);
        cot_checkpoint *x = opened(file), *y = opened(folder);
        assert_int_equal(cot_checkpoint_hash(&a, x, NULL), COT_OK);
        assert_int_equal(cot_checkpoint_hash(&b, y, NULL), COT_OK);
        assert_true(a == b && a);
        cot_checkpoint_close(x), cot_checkpoint_close(y);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_weight), cmocka_unit_test(multiplied),
                                       cmocka_unit_test(other_files), cmocka_unit_test(hashes)};
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
