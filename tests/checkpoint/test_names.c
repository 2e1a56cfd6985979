/* Names and layouts in which other programs write the tensors of a family: each says what the family's own say, to the bit. */
#include "harness/cmocka.h"
#include "harness/checkpoint/folder.h"
#include "harness/checkpoint/weights.h"
#include "harness/seed.h"

#include "checkpoint/stored.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { H = 40, I = 24, E = 3, V = 11, LAYERS = 2 };

static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"}, *const old_parts[] = {"w1", "w3",
                                                                                                "w2"};

static const char config[] =
    "{\"architectures\": [\"%s\"], \"vocab_size\": 11, \"hidden_size\": 40, \"num_hidden_layers\": 2, "
    "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 20, \"num_experts\": 3, "
    "\"num_local_experts\": 3, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, "
    "\"intermediate_size\": "
    "24%s}";

static void configure(const folder *f, const char *architecture, const char *more)
{
    char text[1024];
    snprintf(text, sizeof text, config, architecture, more);
    write_text(f, "config.json", text);
}

/* A model as its family has it: of Qwen3 ("mlp", gate_proj), or of Mixtral ("block_sparse_moe", w1). */
static folder *make(bool mixtral, cot_dtype type)
{
    folder *f = folder_new(test_seed());
    char name[128];
    add_ends(f, type, V, H);
    for (int l = 0; l < LAYERS; l++) {
        add_attention(f, l, type, H, H, H / 2);
        for (int n = 0; n < 2 && !mixtral; n++) {
            snprintf(name, sizeof name, "model.layers.%d.self_attn.%c_norm.weight", l, "qk"[n]);
            add(f, name, type, H / 2, 0, 0, 0);
        }
        const char *block = mixtral ? "block_sparse_moe" : "mlp";
        snprintf(name, sizeof name, "model.layers.%d.%s.gate.weight", l, block);
        add(f, name, type, E, H, 0, 0);
        for (int e = 0; e < E; e++)
            for (int w = 0; w < 3; w++) {
                snprintf(name, sizeof name, "model.layers.%d.%s.experts.%d.%s.weight", l, block, e,
                         mixtral ? old_parts[w] : parts[w]);
                add(f, name, type, w == 2 ? H : I, w == 2 ? I : H, 0, 0);
            }
    }
    configure(f, mixtral ? "MixtralForCausalLM" : "Qwen3MoeForCausalLM", "");
    write_all(f);
    return f;
}

/* Puts `to` where `from` stands in every name; in layer `layer` alone unless that is -1. */
static void rename_in(folder *f, const char *from, const char *to, int layer)
{
    char of_layer[32];
    snprintf(of_layer, sizeof of_layer, "layers.%d.", layer);
    for (size_t t = 0; t < f->count; t++) {
        const char *name = f->tensors[t].name, *at = strstr(name, from);
        char *other;
        if (!at || (layer >= 0 && !strstr(name, of_layer))) continue;
        assert_true(asprintf(&other, "%.*s%s%s", (int)(at - name), name, to, at + strlen(from)) > 0);
        free((void *)(uintptr_t)name);
        f->tensors[t].name = other;
    }
}

static void remove_tensor(folder *f, size_t t)
{
    free((void *)(uintptr_t)f->tensors[t].name), free((void *)(uintptr_t)f->tensors[t].data);
    f->tensors[t] = f->tensors[--f->count];
}

/* Moves experts' matrices of a layer to the tensors that transformers 5 keeps them in: gate's rows, then up's, of each. */
static void fuse(folder *f, int layer, const char *block, const char *const names[3])
{
    for (int pair = 0; pair < 2; pair++) {
        char name[128];
        snprintf(name, sizeof name, "model.layers.%d.%s.experts.%s", layer, block,
                 pair ? "gate_up_proj" : "down_proj");
        cot_tensor all = {0};
        uint8_t *data = NULL;
        for (int e = 0; e < E; e++)
            for (int w = pair ? 0 : 2; w < (pair ? 2 : 3); w++) {
                char one[128];
                snprintf(one, sizeof one, "model.layers.%d.%s.experts.%d.%s.weight", layer, block, e,
                         names[w]);
                const cot_tensor *t = tensor_of(f, one);
                if (!data) {
                    all = (cot_tensor){.name = strdup(name),
                                       .dtype = t->dtype,
                                       .dims = 3,
                                       .shape = {E, pair ? 2 * I : H, pair ? H : I}};
                    data = malloc(t->bytes * E * 2);
                }
                memcpy(data + all.bytes, t->data, t->bytes);
                all.bytes += t->bytes;
                remove_tensor(f, (size_t)(t - f->tensors));
            }
        all.data = data;
        f->tensors[f->count++] = all;
    }
}

static void expect_alike(const char *from, const folder *f)
{
    write_all(f);
    cot_checkpoint *a = opened(from), *b = opened(f->path);
    for (int w = 0; w < COT_WEIGHTS; w++)
        for (int64_t l = 0; l < LAYERS; l++)
            for (int64_t e = 0; e < E; e++) {
                int64_t rows, columns;
                float *x = whole(a, (cot_weight)w, l, e, &rows, &columns);
                if (!x) continue;
                float *y = whole(b, (cot_weight)w, l, e, &rows, &columns);
                assert_non_null(y);
                assert_memory_equal(x, y, (size_t)(rows * columns) * sizeof *x);
                free(x), free(y);
            }
    check_all_pieces(b);
    cot_checkpoint_close(a), cot_checkpoint_close(b);
}

static void experts_of_a_layer_in_a_tensor(void **state)
{
    (void)state;
    static const cot_dtype types[] = {COT_F32, COT_BF16, COT_F16};
    for (int t = 0; t < 6; t++) {
        const bool mixtral = t % 2;
        folder *own = make(mixtral, types[t / 2]), *f = make(mixtral, types[t / 2]);
        if (mixtral) rename_in(f, "block_sparse_moe", "mlp", -1); // so transformers 5 calls it
        for (int l = 0; l < LAYERS; l++) {
            fuse(f, l, "mlp", mixtral ? old_parts : parts);
            expect_alike(own->path, f); // one layer each way, then both
        }
        rename_in(f, "model.", "", -1);
        expect_alike(own->path, f);
        folder_delete(own), folder_delete(f);
    }
}

static void other_names(void **state)
{
    (void)state;
    static const struct {
        bool mixtral;
        struct {
            const char *from, *to;
            int layer;
        } changes[4];
    } cases[] = {
        {true, {{".w1.", ".gate_proj.", -1}, {".w2.", ".down_proj.", -1}, {".w3.", ".up_proj.", -1}}},
        {true, {{".w1.", ".gate_proj.", 1}, {".w2.", ".down_proj.", 1}, {".w3.", ".up_proj.", 1}}},
        {true, {{"block_sparse_moe.", "mlp.", -1}}},
        {true, {{"block_sparse_moe.gate.", "mlp.gate.", 0}, {".w2.", ".down_proj.", -1}}},
        {true,
         {{"block_sparse_moe.", "mlp.", -1},
          {".w1.", ".gate_proj.", -1},
          {".w2.", ".down_proj.", -1},
          {".w3.", ".up_proj.", -1}}},
        {true, {{"block_sparse_moe.gate.", "mlp.router.", -1}}},
        {true, {{"model.", "", -1}}},
        {true,
         {{"model.", "", -1}, {"block_sparse_moe.experts", "mlp.experts", -1}, {".w3.", ".up_proj.", -1}}},
        {false, {{"model.", "", -1}}},
        {false, {{"lm_head.", "model.lm_head.", -1}}},
        {true, {{"model.", "", 1}, {"lm_head.", "model.lm_head.", -1}}},
        {false, {{"mlp.", "block_sparse_moe.", -1}}},
        {false, {{".up_proj.", ".w3.", -1}, {".gate_proj.", ".w1.", 0}}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        folder *own = make(cases[i].mixtral, COT_BF16), *f = make(cases[i].mixtral, COT_BF16);
        for (int c = 0; c < 4 && cases[i].changes[c].from; c++)
            rename_in(f, cases[i].changes[c].from, cases[i].changes[c].to, cases[i].changes[c].layer);
        configure(f, cases[i].mixtral ? "MixtralModel" : "Qwen3MoeModel", ""); // as that of a base model
        expect_alike(own->path, f);
        folder_delete(own), folder_delete(f);
    }
}

static void other_shapes(void **state)
{
    (void)state;
    folder *f = make(false, COT_BF16);
    for (int l = 0; l < LAYERS; l++) fuse(f, l, "mlp", parts);
    cot_tensor *t = tensor_of(f, "model.layers.1.mlp.experts.gate_up_proj");
    t->shape[1] = H, t->shape[2] = 2 * I; // input-major, which only gpt-oss has
    folder_refused(f, "gate_up_proj' has shape [3][40][48], expected [3][48][40]");
    t->shape[1] = 2 * I, t->shape[2] = H;
    t->dtype = COT_I16;
    folder_refused(f, "gate_up_proj' is stored as I16, expected F32, BF16, F16 or F8_E4M3");
    folder_delete(f);
}

/* In FP8: experts' blocks of 8 x 16 lie one after the other, gate's before up's; or each matrix has one scale. */
static void in_fp8(void **state)
{
    (void)state;
    for (int way = 0; way < 3; way++) {
        const bool blocks = way == 1, flat = way == 2; // scales of matrices without a third dimension
        folder *f = make(false, COT_F8_E4M3);
        const int64_t rows = blocks ? 8 : I, columns = blocks ? 16 : H;
        for (size_t t = 0; t < f->count; t++) // what is no expert's is plain
            if (!strstr(f->tensors[t].name, ".experts.")) {
                cot_tensor *plain = &f->tensors[t];
                free((void *)(uintptr_t)plain->data);
                plain->dtype = COT_BF16;
                plain->data = calloc(1, plain->bytes *= 2);
            }
        for (int l = 0; l < LAYERS; l++) {
            fuse(f, l, "mlp", parts);
            char name[128];
            snprintf(name, sizeof name, "model.layers.%d.mlp.experts.gate_up_proj_scale_inv", l);
            add(f, name, COT_F32, E, blocks ? 2 * I / 8 : 2, blocks ? (H + 15) / 16 : !flat, 0);
            snprintf(name, sizeof name, "model.layers.%d.mlp.experts.down_proj_scale_inv", l);
            add(f, name, COT_F32, E, blocks ? H / 8 : 1, blocks ? (I + 15) / 16 : !flat, 0);
        }
        const char *told =
            blocks ? ", \"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [8, 16]}"
                   : ", \"quantization_config\": {\"quant_method\": \"fp8\"}";
        configure(f, "Qwen3MoeForCausalLM", told);
        write_all(f);
        cot_checkpoint *checkpoint = opened(f->path);
        for (int64_t l = 0; l < LAYERS; l++)
            for (int64_t e = 0; e < E; e++)
                for (int w = 0; w < 3; w++) {
                    char name[128];
                    snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%s", (int)l,
                             w == 2 ? "down_proj" : "gate_up_proj");
                    const uint8_t *codes = tensor_of(f, name)->data;
                    strcat(name, "_scale_inv");
                    const cot_tensor *s = tensor_of(f, name);
                    int64_t n, k;
                    float *x = whole(checkpoint, COT_WEIGHT_EXPERT_GATE + (cot_weight)w, l, e, &n, &k);
                    const int64_t first = w == 2 ? e * H : (2 * e + w) * I,
                                  down = w == 2 && !blocks ? H : rows,
                                  across = w == 2 && !blocks ? I : columns;
                    for (int64_t r = 0; r < n; r++)
                        for (int64_t c = 0; c < k; c++) {
                            const int64_t at = (first + r) / down * (flat ? 1 : s->shape[2]) + c / across;
                            const float expected =
                                cot_f8_e4m3_to_f32(codes[(first + r) * k + c]) * ((const float *)s->data)[at];
                            assert_true(x[r * k + c] == expected);
                        }
                    free(x);
                }
        check_all_pieces(checkpoint);
        cot_checkpoint_close(checkpoint);
        if (blocks) {
            configure(
                f, "Qwen3MoeForCausalLM",
                ", \"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [16, 16]}");
            folder_refused(f, "has blocks of 16 rows, which 24 rows of gate and of up are not divided by");
        }
        folder_delete(f);
    }
}

static void expect_rows(const cot_checkpoint *checkpoint, cot_weight weight, int64_t layer, int64_t expert,
                        const float *rows)
{
    int64_t n, k;
    float *found = whole(checkpoint, weight, layer, expert, &n, &k);
    assert_memory_equal(found, rows, (size_t)(n * k) * sizeof *rows);
    free(found);
}

/* Gate's rows before up's in one tensor, of all experts or of the shared one: as Granite has them. */
static void gate_and_up_in_one(void **state)
{
    (void)state;
    enum { S = 10, TENSORS = 5 };
    static const struct {
        const char *name;
        int64_t shape[3];
    } list[TENSORS] = {{"block_sparse_moe.router.layer", {E, H}},
                       {"block_sparse_moe.input_linear", {E, 2 * I, H}},
                       {"block_sparse_moe.output_linear", {E, H, I}},
                       {"shared_mlp.input_linear", {2 * S, H}},
                       {"shared_mlp.output_linear", {H, S}}};
    const float *data[LAYERS][TENSORS];
    folder *f = folder_new(test_seed());
    add_ends(f, COT_F32, V, H);
    for (int l = 0; l < LAYERS; l++) {
        add_attention(f, l, COT_F32, H, H, H / 2);
        for (int t = 0; t < TENSORS; t++) {
            const int64_t *shape = list[t].shape;
            char name[128];
            snprintf(name, sizeof name, "model.layers.%d.%s.weight", l, list[t].name);
            data[l][t] = add(f, name, COT_F32, shape[0], shape[1], shape[2], 0)->data;
        }
    }
    configure(f, "GraniteMoeSharedForCausalLM",
              ", \"max_position_embeddings\": 64, \"shared_intermediate_size\": 10");
    write_all(f);
    cot_checkpoint *checkpoint = opened(f->path);
    for (int l = 0; l < LAYERS; l++) {
        for (int64_t e = 0; e < E; e++) {
            expect_rows(checkpoint, COT_WEIGHT_EXPERT_GATE, l, e, data[l][1] + 2 * e * I * H);
            expect_rows(checkpoint, COT_WEIGHT_EXPERT_UP, l, e, data[l][1] + (2 * e + 1) * I * H);
            expect_rows(checkpoint, COT_WEIGHT_EXPERT_DOWN, l, e, data[l][2] + e * H * I);
        }
        expect_rows(checkpoint, COT_WEIGHT_SHARED_GATE, l, 0, data[l][3]);
        expect_rows(checkpoint, COT_WEIGHT_SHARED_UP, l, 0, data[l][3] + S * H);
        expect_rows(checkpoint, COT_WEIGHT_SHARED_DOWN, l, 0, data[l][4]);
    }
    check_all_pieces(checkpoint);
    cot_checkpoint_close(checkpoint);
    folder_delete(f);
}

/* Norms of q and k are stored, and config.json says that there are none. */
static void norms_without_a_field(void **state)
{
    (void)state;
    static const char glm[] = ", \"max_position_embeddings\": 64, \"first_k_dense_replace\": 0, "
                              "\"n_shared_experts\": 0";
    static const char words[] = "tensor 'model.layers.0.self_attn.q_norm.weight' is stored, but "
                                "'use_qk_norm' is not true";
    folder *f = make(false, COT_BF16);
    char text[256];
    for (int l = 0; l < LAYERS; l++) {
        snprintf(text, sizeof text, "model.layers.%d.mlp.gate.e_score_correction_bias", l);
        add(f, text, COT_F32, E, 0, 0, 0);
    }
    configure(f, "Glm4MoeForCausalLM", glm);
    folder_refused(f, words);
    snprintf(text, sizeof text, "%s, \"use_qk_norm\": false", glm);
    configure(f, "Glm4MoeForCausalLM", text);
    folder_refused(f, words);
    snprintf(text, sizeof text, "%s, \"use_qk_norm\": true", glm);
    configure(f, "Glm4MoeForCausalLM", text);
    cot_checkpoint_close(opened(f->path));
    rename_in(f, "_norm.", "_norm_of_others.", -1); // of nobody
    configure(f, "Glm4MoeForCausalLM", glm);
    for (size_t i = 0; i < f->count; i++) assert_null(strstr(f->tensors[i].name, ".q_norm."));
    write_all(f);
    cot_checkpoint_close(opened(f->path));
    folder_delete(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(experts_of_a_layer_in_a_tensor),
                                       cmocka_unit_test(other_names),
                                       cmocka_unit_test(other_shapes),
                                       cmocka_unit_test(in_fp8),
                                       cmocka_unit_test(gate_and_up_in_one),
                                       cmocka_unit_test(norms_without_a_field)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
