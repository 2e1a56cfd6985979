/* A checkpoint written again in few bits: its experts pack as rounding at load packs them, to the bit, all else is what it was,
 * and nothing is left of a folder that could not be written. */
#include "harness/cmocka.h"
#include "harness/engine/golden.h"
#include "harness/checkpoint/formats.h"
#include "harness/checkpoint/folder.h"
#include "harness/checkpoint/weights.h"
#include "harness/scratch.h"
#include "harness/seed.h"

#include "base/file.h"
#include "coterie/model.h"
#include "checkpoint/stored.h"
#include "model/weights.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { E = 3 };

static const char qwen[] =
    "{\"architectures\": [\"Qwen2MoeForCausalLM\"], \"vocab_size\": 19, \"hidden_size\": %d, "
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"num_experts\": 3, "
    "\"num_experts_per_tok\": 2, \"moe_intermediate_size\": %d, \"shared_expert_intermediate_size\": 64, "
    "\"intermediate_size\": 96, \"mlp_only_layers\": [0], \"qkv_bias\": false, \"max_position_embeddings\": "
    "64, "
    "\"rms_norm_eps\": 1e-06%s}";

static const char oss[] =
    "{\"architectures\": [\"GptOssForCausalLM\"], \"vocab_size\": 19, \"hidden_size\": 64, "
    "\"num_hidden_layers\": 1, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 16, "
    "\"num_local_experts\": 3, \"num_experts_per_tok\": 2, \"intermediate_size\": 96, \"sliding_window\": "
    "16, "
    "\"attention_bias\": false, \"max_position_embeddings\": 64}";

static void add_network(folder *f, const char *path, cot_dtype type, int64_t h, int64_t i)
{
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
    for (int w = 0; w < 3; w++) {
        char name[128];
        snprintf(name, sizeof name, "%s.%s.weight", path, names[w]);
        add(f, name, type, w == 2 ? h : i, w == 2 ? i : h, 0, 0);
    }
}

/* A dense layer and one of experts, with a shared expert; also a tensor that nothing uses. */
static folder *make_qwen(uint64_t seed, cot_dtype type, int64_t h, int64_t i)
{
    folder *f = folder_new(seed);
    char text[1024], path[64];
    add_ends(f, type, 19, h);
    for (int l = 0; l < 2; l++) add_attention(f, l, type, h, h, h / 2);
    add_network(f, "model.layers.0.mlp", type, h, 96);
    add(f, "model.layers.1.mlp.gate.weight", type, E, h, 0, 0);
    add(f, "model.layers.1.mlp.shared_expert_gate.weight", type, 1, h, 0, 0);
    add_network(f, "model.layers.1.mlp.shared_expert", type, h, 64);
    for (int e = 0; e < E; e++) {
        snprintf(path, sizeof path, "model.layers.1.mlp.experts.%d", e);
        add_network(f, path, type, h, i);
    }
    add(f, "model.layers.1.self_attn.rotary_emb.inv_freq", COT_F32, 8, 0, 0, 0);
    write_all(f);
    snprintf(text, sizeof text, qwen, (int)h, (int)i, "");
    write_text(f, "config.json", text);
    write_text(f, "tokenizer.json", "{\"version\": \"1.0\"}");
    write_text(f, "notes.bin", "not for the copy");
    write_text(f, "quantize_config.json", "{\"bits\": 3}");
    write_text(f, "quant_config.json", "{\"w_bit\": 3}");
    write_text(f, "hf_quant_config.json", "{}");
    return f;
}

static folder *make_oss(uint64_t seed, cot_dtype type)
{
    enum { H = 64, I = 96 };
    folder *f = folder_new(seed);
    add_ends(f, type, 19, H);
    add_attention(f, 0, type, H, 64, 32);
    add(f, "model.layers.0.self_attn.sinks", type, 4, 0, 0, 0);
    add(f, "model.layers.0.mlp.router.weight", type, E, H, 0, 0);
    add(f, "model.layers.0.mlp.router.bias", type, E, 0, 0, 0);
    add(f, "model.layers.0.mlp.experts.gate_up_proj", type, E, H, 2 * I, 0);
    add(f, "model.layers.0.mlp.experts.gate_up_proj_bias", type, E, 2 * I, 0, 0);
    add(f, "model.layers.0.mlp.experts.down_proj", type, E, I, H, 0);
    add(f, "model.layers.0.mlp.experts.down_proj_bias", type, E, H, 0, 0);
    write_all(f);
    write_text(f, "config.json", oss);
    return f;
}

/* An output's name beside the model, which the model's removal takes with it. */
static void output_of(char out[96], const folder *f, const char *name)
{
    snprintf(out, 96, "%s/%s", f->path, name);
}

/* What a folder's matrices are in. Others than experts' networks are rounded where that is the one kind of all that is no expert's. */
struct formats {
    cot_format experts, attention, head; // COT_FORMATS: not rounded
};

static cot_format others_of(struct formats f)
{
    const cot_format first = f.attention != COT_FORMATS ? f.attention : f.head;
    return first == COT_FORMATS || first == f.experts ? f.experts : COT_FORMATS;
}

static cot_format format_of(struct formats f, cot_weight w)
{
    switch (w) {
    case COT_WEIGHT_EXPERT_GATE:
    case COT_WEIGHT_EXPERT_UP:
    case COT_WEIGHT_EXPERT_DOWN:
        return f.experts;
    case COT_WEIGHT_SHARED_GATE:
    case COT_WEIGHT_SHARED_UP:
    case COT_WEIGHT_SHARED_DOWN:
    case COT_WEIGHT_DENSE_GATE:
    case COT_WEIGHT_DENSE_UP:
    case COT_WEIGHT_DENSE_DOWN:
        return others_of(f);
    case COT_WEIGHT_Q:
    case COT_WEIGHT_K:
    case COT_WEIGHT_V:
    case COT_WEIGHT_O:
    case COT_WEIGHT_Q_A:
    case COT_WEIGHT_Q_B:
    case COT_WEIGHT_KV_A:
    case COT_WEIGHT_ATTENTION_GATE:
        return f.attention;
    case COT_WEIGHT_OUTPUT:
        return f.head;
    default:
        return COT_FORMATS;
    }
}

/* What is in few bits and not rounded anew is widened: to bf16 if it could have been rounded, but for experts. */
static void widen(float *x, int64_t n, const cot_checkpoint *checkpoint, cot_weight weight, int64_t layer)
{
    const struct formats all = {COT_FORMATS, COT_FORMAT_INT8, COT_FORMAT_INT8};
    const bool rounded = format_of(all, weight) != COT_FORMATS ||
                         (weight >= COT_WEIGHT_SHARED_GATE && weight <= COT_WEIGHT_SHARED_DOWN) ||
                         (weight >= COT_WEIGHT_DENSE_GATE && weight <= COT_WEIGHT_DENSE_DOWN);
    cot_stored stored;
    assert_int_equal(cot_stored_find(&stored, checkpoint, weight, layer, 0, NULL), COT_OK);
    for (int64_t i = 0; rounded && stored.storage != COT_STORAGE_PLAIN && i < n; i++)
        x[i] = cot_bf16_to_f32(cot_f32_to_bf16(x[i]));
}

static void expect_same_packed(const cot_checkpoint *a, const cot_checkpoint *b, const cot_weight_piece *p,
                               cot_format format)
{
    const int64_t bytes = cot_packed_bytes(format, p->columns, p->rows);
    uint8_t *packed[2] = {dirty(bytes), dirty(bytes)};
    for (int i = 0; i < 2; i++)
        assert_int_equal(
            cot_checkpoint_pack(i ? b : a, p, &(cot_packed_part){packed[i], format, p->rows, 0}, NULL),
            COT_OK);
    if (memcmp(packed[0], packed[1], (size_t)bytes) != 0)
        fail_msg("%s of layer %d, expert %d: other bits", cot_weight_name(p->weight), (int)p->layer,
                 (int)p->expert);
    free(packed[0]), free(packed[1]);
}

/* Every weight of both, packed or read. */
static void expect_alike(const char *from, const char *to, struct formats formats)
{
    cot_checkpoint *a = opened(from), *b = opened(to);
    const cot_config *config = cot_checkpoint_config(a);
    assert_int_equal(experts_format(b), formats.experts);
    if (config->shared_intermediate) assert_int_equal(shared_format(b), others_of(formats));
    if (config->moe_layers < config->layers) assert_int_equal(dense_format(b), others_of(formats));
    for (int w = 0; w < COT_WEIGHTS; w++)
        for (int64_t l = 0; l < config->layers; l++)
            for (int64_t e = 0; e < E; e++) {
                const cot_weight weight = (cot_weight)w;
                int64_t rows, columns;
                float *x = whole(a, weight, l, e, &rows, &columns);
                if (!x) continue;
                float *y = whole(b, weight, l, e, &rows, &columns);
                const cot_weight_piece all = {weight, l, e, 0, rows, 0, columns};
                const cot_format format = format_of(formats, weight);
                if (format != COT_FORMATS) {
                    expect_same_packed(a, b, &all, format);
                    if (stored_format(b, &weight, 1, l) != format)
                        fail_msg("%s of layer %d: %d", cot_weight_name(weight), (int)l,
                                 (int)stored_format(b, &weight, 1, l));
                }
                if (format == COT_FORMATS) widen(x, rows * columns, a, weight, l);
                if (format == COT_FORMATS) assert_memory_equal(x, y, (size_t)(rows * columns) * sizeof *x);
                free(x), free(y);
            }
    cot_checkpoint_close(a);
    cot_checkpoint_close(b);
}

struct seen {
    size_t done, total, calls, most, step; // step: most bytes between two calls
};

static bool see(void *context, size_t done, size_t total)
{
    struct seen *s = context;
    assert_true(done >= s->done && done <= total);
    assert_true(s->calls <= s->most); // it was not asked to end
    if (s->step < done - s->done) s->step = done - s->done;
    s->done = done;
    s->total = total;
    return ++s->calls <= s->most;
}

static const char *attention, *head; // what becomes of them
static char **told;                  // where notes go, or NULL

static cot_status convert(const char *from, const char *to, const char *weights, int64_t file_bytes,
                          struct seen *seen, cot_error *error)
{
    cot_model_convert_options options;
    cot_model_convert_options_init(&options);
    options.weights = weights;
    options.weights_attention = attention;
    options.weights_head = head;
    options.threads = 3;
    options.file_bytes = file_bytes;
    options.progress = see;
    options.progress_context = seen;
    return cot_model_convert(from, to, &options, told, error);
}

static void must_convert(const char *from, const char *to, const char *weights, int64_t file_bytes)
{
    struct seen seen = {.most = SIZE_MAX};
    cot_error error = {0};
    if (convert(from, to, weights, file_bytes, &seen, &error) != COT_OK) fail_msg("%s", error.message);
    assert_true(seen.done == seen.total && seen.total > 0);
}

static int files_in(const char *path, const char *part)
{
    DIR *list = opendir(path);
    int n = 0;
    assert_non_null(list);
    for (const struct dirent *e; (e = readdir(list));) n += !!strstr(e->d_name, part);
    closedir(list);
    return n;
}

static const struct {
    const char *name;
    cot_format format;
} ways[] = {{"int4", COT_FORMAT_INT4}, {"int8", COT_FORMAT_INT8}, {"mxfp4", COT_FORMAT_MXFP4}};

static void every_kind(void **state)
{
    (void)state;
    static const cot_dtype types[] = {COT_BF16, COT_F16, COT_F32};
    uint64_t seed = test_seed();
    static const struct {
        const char *attention_name, *head_name;
        cot_format attention, head;
    } dense[] = {{NULL, "mxfp4", COT_FORMAT_INT8, COT_FORMAT_MXFP4},
                 {"int4", "as-stored", COT_FORMAT_INT4, COT_FORMATS},
                 {"mxfp4", NULL, COT_FORMAT_MXFP4, COT_FORMATS}};
    for (size_t i = 0; i < 3; i++) {
        char out[96], again[96];
        attention = dense[i].attention_name;
        head = dense[i].head_name;
        folder *f = make_qwen(seed + i, types[(seed + i) % 3], 64, 96);
        output_of(out, f, "out");
        must_convert(f->path, out, ways[i].name, i ? (int64_t)5e9 : 7000);
        expect_alike(f->path, out, (struct formats){ways[i].format, dense[i].attention, dense[i].head});
        assert_int_equal(files_in(out, ".safetensors.index.json"), !i);
        assert_true(i ? files_in(out, "model.safetensors") == 1 : files_in(out, "-of-") > 5);
        assert_int_equal(files_in(out, "tokenizer.json"), 1);
        assert_int_equal(files_in(out, "notes.bin") + files_in(out, "quant"), 0);
        // what is in few bits already is rounded anew from what its bits stand for
        output_of(again, f, "again");
        const size_t other = (i + 1) % 3;
        attention = dense[other].attention_name;
        head = dense[other].head_name;
        must_convert(out, again, ways[other].name, (int64_t)5e9);
        expect_alike(out, again,
                     (struct formats){ways[other].format, dense[other].attention, dense[other].head});
        folder_delete(f);
    }
    attention = head = NULL;
}

/* Widths that words of codes do not divide. */
static void odd_widths(void **state)
{
    (void)state;
    char out[96];
    cot_error error = {0};
    struct seen seen = {.most = SIZE_MAX};
    folder *f = make_qwen(test_seed(), COT_BF16, 72, 50);
    output_of(out, f, "out");
    must_convert(f->path, out, "int8", (int64_t)5e9);
    expect_alike(f->path, out, (struct formats){COT_FORMAT_INT8, COT_FORMAT_INT8, COT_FORMATS});
    output_of(out, f, "none");
    assert_int_equal(convert(f->path, out, "int4", 1, &seen, &error), COT_UNSUPPORTED);
    assert_non_null(strstr(error.message, "no whole groups of 32"));
    assert_int_equal(files_in(f->path, "none"), 0);
    folder_delete(f);
}

/* Matrices that the threads share: blocks of rows of each. */
static void rows_of_several_threads(void **state)
{
    (void)state;
    char out[96];
    folder *f = make_qwen(test_seed(), COT_BF16, 64, 6144);
    output_of(out, f, "out");
    must_convert(f->path, out, "int8", (int64_t)5e9);
    expect_alike(f->path, out, (struct formats){COT_FORMAT_INT8, COT_FORMAT_INT8, COT_FORMATS});
    folder_delete(f);
}

static void experts_in_one_tensor(void **state)
{
    (void)state;
    static const cot_dtype types[] = {COT_BF16, COT_F32};
    char out[96];
    cot_error error = {0};
    struct seen seen = {0};
    folder *f = make_oss(test_seed(), types[test_seed() % 2]);
    output_of(out, f, "none");
    const int files = files_in(f->path, "");
    cot_status status = COT_IO;
    for (size_t most = 0; status == COT_IO; most++) { // asked to end before each matrix
        seen = (struct seen){.most = most};
        status = convert(f->path, out, "mxfp4", (int64_t)5e9, &seen, &error);
        assert_int_equal(files_in(f->path, ""), files + (status == COT_OK));
    }
    assert_int_equal(status, COT_OK);
    assert_true(seen.step < E * 2 * 96 * (32 + 2)); // gate and up of all experts
    output_of(out, f, "out");
    must_convert(f->path, out, "mxfp4", (int64_t)5e9);
    expect_alike(f->path, out, (struct formats){COT_FORMAT_MXFP4, COT_FORMATS, COT_FORMATS});
    assert_int_equal(convert(f->path, "never", "int4", 1, &seen, &error), COT_UNSUPPORTED);
    assert_non_null(strstr(error.message, "mxfp4 is one"));
    assert_int_equal(convert(out, "never", "mxfp4", 1, &seen, &error), COT_UNSUPPORTED);
    assert_non_null(strstr(error.message, "is in mxfp4 already"));
    attention = "int8";
    assert_int_equal(convert(f->path, "never", "mxfp4", 1, &seen, &error), COT_UNSUPPORTED);
    assert_non_null(strstr(error.message, "no layout of attention or head"));
    attention = NULL;
    folder_delete(f);
}

/* kv_b stays as it is, so that it is absorbed as it was. */
static void latent_attention(void **state)
{
    (void)state;
    static const char *const golden[] = {COT_SHARED "/golden/deepseek-v3",
                                         COT_SHARED "/golden/deepseek-v3-fp8"};
    for (int i = 0; i < 2; i++) {
        char out[96];
        if (!folder_exists(golden[i])) skip();
        folder *f = folder_new(test_seed());
        output_of(out, f, "out");
        must_convert(golden[i], out, "int8", (int64_t)5e9);
        expect_alike(golden[i], out, (struct formats){COT_FORMAT_INT8, COT_FORMAT_INT8, COT_FORMATS});
        folder_delete(f);
    }
}

/* A head that is stored though config.json ties it to the embedding is the copy's, which says so. */
static void head_of_its_own(void **state)
{
    (void)state;
    char out[96], text[1024], path[128], *written;
    size_t bytes;
    folder *f = make_qwen(test_seed(), COT_BF16, 64, 96);
    snprintf(text, sizeof text, qwen, 64, 96, ", \"tie_word_embeddings\": true");
    write_text(f, "config.json", text);
    output_of(out, f, "out");
    must_convert(f->path, out, "int8", (int64_t)5e9);
    snprintf(path, sizeof path, "%s/config.json", out);
    assert_int_equal(cot_file_read(&written, &bytes, path, 1 << 20, NULL), COT_OK);
    assert_non_null(strstr(written, "\"tie_word_embeddings\": false"));
    free(written);
    expect_alike(f->path, out, (struct formats){COT_FORMAT_INT8, COT_FORMAT_INT8, COT_FORMATS});
    folder_delete(f);
}

/* Of a weight of layer 1. */
static void expect_type(const char *path, cot_weight weight, cot_dtype type)
{
    cot_checkpoint *checkpoint = opened(path);
    cot_stored stored;
    assert_int_equal(cot_stored_find(&stored, checkpoint, weight, 1, 0, NULL), COT_OK);
    assert_int_equal(stored.tensor->tensor->dtype, type);
    cot_checkpoint_close(checkpoint);
}

/* FP8 in blocks everywhere, in gates and embedding too: what is not rounded is widened to fp32. */
static void other_matrices_in_few_bits(void **state)
{
    (void)state;
    enum { H = 64 };
    char out[96], text[1024];
    folder *f = make_qwen(test_seed(), COT_BF16, H, 96);
    for (size_t t = 0, count = f->count; t < count; t++) {
        const cot_tensor old = f->tensors[t];
        if (old.dims != 2) continue; // a norm
        char name[128];
        snprintf(name, sizeof name, "%s_scale_inv", old.name);
        f->tensors[t] = *add(f, old.name, COT_F8_E4M3, old.shape[0], old.shape[1], 0, 0);
        f->count--;
        free((void *)(uintptr_t)old.name), free((void *)(uintptr_t)old.data);
        add(f, name, COT_F32, (old.shape[0] + 31) / 32, (old.shape[1] + 31) / 32, 0, 0);
    }
    write_all(f);
    snprintf(text, sizeof text, qwen, H, 96,
             ", \"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [32, 32]}");
    write_text(f, "config.json", text);
    output_of(out, f, "out");
    char *notes;
    told = &notes;
    must_convert(f->path, out, "int4", (int64_t)5e9);
    told = NULL;
    expect_type(out, COT_WEIGHT_SHARED_UP, COT_BF16);
    assert_non_null(strstr(notes, "dense layers and shared experts that are stored in few bits become bf16, "
                                  "others stay as stored: readers take one kind"));
    free(notes);
    expect_alike(f->path, out, (struct formats){COT_FORMAT_INT4, COT_FORMAT_INT8, COT_FORMATS});
    // attention and head that are not rounded become bf16
    attention = head = "as-stored";
    output_of(out, f, "kept");
    must_convert(f->path, out, "int4", (int64_t)5e9);
    attention = head = NULL;
    expect_type(out, COT_WEIGHT_Q, COT_BF16);
    expect_type(out, COT_WEIGHT_OUTPUT, COT_BF16);
    expect_type(out, COT_WEIGHT_GATE, COT_F32);
    folder_delete(f);
}

/* Whatever fails, and wherever: nothing is left, and nothing that was there is touched. */
static void nothing_is_left(void **state)
{
    (void)state;
    char out[96];
    cot_error error = {0};
    folder *f = make_qwen(test_seed(), COT_BF16, 64, 96);
    output_of(out, f, "out");
    const int files = files_in(f->path, "");
    struct seen all = {.most = SIZE_MAX};
    assert_int_equal(convert(f->path, out, "int8", 9000, &all, &error), COT_OK);
    assert_int_equal(convert(f->path, out, "int8", 9000, &(struct seen){.most = SIZE_MAX}, &error),
                     COT_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "exists"));
    remove_tree(out);
    const size_t at[] = {0, 1, 1 + test_seed() % all.calls, all.calls - 1};
    for (size_t i = 0; i < 4;
         i++) { // asked to end before each of these tensors; the last time all are written
        assert_int_equal(
            convert(f->path, out, "int8", 9000, &(struct seen){.most = at[i] % all.calls}, &error), COT_IO);
        assert_int_equal(files_in(f->path, ""), files);
    }
    struct rlimit before, little;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    little = before;
    little.rlim_cur = 8192;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
    const cot_status status =
        convert(f->path, out, "int8", (int64_t)5e9, &(struct seen){.most = SIZE_MAX}, &error);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(status, COT_IO);
    assert_non_null(strstr(error.message, "File too large"));
    assert_int_equal(files_in(f->path, ""), files);
    // a NaN among the last weights
    cot_tensor *t = tensor_of(f, "model.layers.1.mlp.shared_expert.up_proj.weight");
    memset((uint8_t *)(uintptr_t)t->data + t->bytes - 2, 0xff, 2);
    write_all(f);
    assert_int_equal(convert(f->path, out, "int8", 9000, &(struct seen){.most = SIZE_MAX}, &error),
                     COT_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "holds a NaN"));
    assert_int_equal(files_in(f->path, ""), files);
    static const char *const others[] = {"bf16", "fp8", "int3"};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(convert(f->path, out, others[i], 9000, &(struct seen){.most = SIZE_MAX}, &error),
                         COT_INVALID_ARGUMENT);
        assert_non_null(strstr(error.message, "(int4, int8 or mxfp4)"));
        *(i % 2 ? &attention : &head) = others[i];
        assert_int_equal(convert(f->path, out, "int4", 9000, &(struct seen){.most = SIZE_MAX}, &error),
                         COT_INVALID_ARGUMENT);
        assert_non_null(strstr(error.message, "(int4, int8 or mxfp4)"));
        attention = head = NULL;
    }
    assert_int_equal(files_in(f->path, ""), files);
    folder_delete(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_kind),
                                       cmocka_unit_test(odd_widths),
                                       cmocka_unit_test(rows_of_several_threads),
                                       cmocka_unit_test(experts_in_one_tensor),
                                       cmocka_unit_test(latent_attention),
                                       cmocka_unit_test(head_of_its_own),
                                       cmocka_unit_test(other_matrices_in_few_bits),
                                       cmocka_unit_test(nothing_is_left)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
