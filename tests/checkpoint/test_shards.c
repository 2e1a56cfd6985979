/* Folders that are no models, or broken ones: each gets one clear line. */
#include "harness/cmocka.h"
#include "harness/checkpoint/folder.h"
#include "harness/seed.h"

#include "checkpoint/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void refused(const folder *f, cot_status expected, const char *words)
{
    cot_checkpoint *checkpoint = (void *)1;
    char *notes = (void *)1;
    cot_error error = {0};
    cot_status status = cot_checkpoint_open(&checkpoint, f->path, &notes, &error);
    if (status != expected || !strstr(error.message, words))
        fail_msg("status %d, '%s', expected %d, '%s'", (int)status, error.message, (int)expected, words);
    assert_null(checkpoint);
    assert_null(notes);
    assert_int_equal(cot_checkpoint_open(&checkpoint, f->path, &notes, NULL), expected);
}

/* Words that are the end of the message. */
static void refused_with(const folder *f, const char *end)
{
    cot_checkpoint *checkpoint;
    char *notes;
    cot_error error = {0};
    assert_int_equal(cot_checkpoint_open(&checkpoint, f->path, &notes, &error), COT_MALFORMED);
    const size_t length = strlen(error.message), expected = strlen(end);
    if (length < expected || strcmp(error.message + length - expected, end) != 0)
        fail_msg("'%s' does not end in '%s'", error.message, end);
}

static char *accepted(const folder *f)
{
    cot_checkpoint *checkpoint;
    char *notes;
    cot_error error = {0};
    if (cot_checkpoint_open(&checkpoint, f->path, &notes, &error) != COT_OK) fail_msg("%s", error.message);
    cot_checkpoint_close(checkpoint);
    return notes;
}

static void not_a_model(void **state)
{
    (void)state;
    folder *f = folder_new(test_seed());
    refused(f, COT_NOT_FOUND, "is no model: there is no config.json in it");
    write_text(f, "config.json", TINY_MIXTRAL);
    refused(f, COT_NOT_FOUND, "holds neither model.safetensors nor model.safetensors.index.json");
    write_text(f, "model.safetensors", "");
    refused(f, COT_MALFORMED, "model.safetensors");
    write_text(f, "config.json", "{");
    refused(f, COT_MALFORMED, "config.json': not valid JSON");
    folder_delete(f);
    folder gone = {.path = "/nowhere/at/all"};
    f = folder_new(test_seed()); // what lies there instead
    write_text(f, "pytorch_model.bin", "");
    refused(f, COT_NOT_FOUND,
            "is no model: there is no config.json in it, but 'pytorch_model.bin', which is not read");
    write_text(f, "config.json", TINY_MIXTRAL);
    refused(f, COT_NOT_FOUND, "model.safetensors.index.json, but 'pytorch_model.bin', which is not read");
    write_text(f, "q4.gguf", "GGUF");
    refused(f, COT_NOT_FOUND,
            "model.safetensors.index.json, but 'q4.gguf': give that file in place of the folder");
    folder file = {.path = ""};
    snprintf(file.path, sizeof file.path, "%.40s/q4.gguf", f->path);
    refused(&file, COT_MALFORMED, "q4.gguf' ends inside its version");
    static const char *const calls[] = {"X.GGUF", "x", "short", "y.gguf"}; // by its first bytes, or its name
    for (int i = 0; i < 4; i++) {
        write_text(f, calls[i], i == 2 ? "GGU" : i == 3 ? "text" : "GGUF\3");
        snprintf(file.path, sizeof file.path, "%.40s/%s", f->path, calls[i]);
        refused(&file, COT_MALFORMED,
                i == 2   ? "short' is a file, expected a model folder or a GGUF file"
                : i == 3 ? "y.gguf' is no GGUF file"
                         : "' ends inside its version");
    }
    snprintf(file.path, sizeof file.path, "%.40s/config.json", f->path);
    refused(&file, COT_MALFORMED, "config.json' is a file, expected a model folder or a GGUF file");
    folder_delete(f);
    refused(&gone, COT_NOT_FOUND, "'/nowhere/at/all'");
    f = folder_new(test_seed());
    write_text(f, "Q4.GGUF", "GGUF");
    refused(f, COT_NOT_FOUND, "no config.json in it, but 'Q4.GGUF': give that file in place of the folder");
    folder_delete(f);
}

/* A lone file of another name is read; of several, or one of several, the first is named. */
static void other_names(void **state)
{
    (void)state;
    folder *f = tiny_mixtral(test_seed(), COT_BF16);
    static const char neither[] = "holds neither model.safetensors nor model.safetensors.index.json, but ";
    char words[256];
    write_text(f, "a.bin", "");
    write_shard(f, "gptq_model-4bit.safetensors", 0, f->count);
    char *notes = accepted(f);
    assert_string_equal(notes, "'gptq_model-4bit.safetensors' is read for model.safetensors");
    free(notes);
    add(f, "other", COT_F32, 3, 0, 0, 0);
    write_shard(f, "gptq_model-4bit.safetensors", 0, f->count);
    notes = accepted(f);
    assert_string_equal(notes, "1 tensor is not used: 1 unknown, 'other'\n"
                               "'gptq_model-4bit.safetensors' is read for model.safetensors");
    free(notes);
    write_shard(f, "aa.safetensors", 0, 1);
    snprintf(words, sizeof words, "%s'aa.safetensors' and 1 more: files of several are read by the index",
             neither);
    refused(f, COT_NOT_FOUND, words);
    folder_delete(f);
    f = tiny_mixtral(test_seed(), COT_BF16);
    write_shard(f, "model-00001-of-00002.safetensors", 0, f->count);
    snprintf(words, sizeof words, "%s'model-00001-of-00002.safetensors': files of several", neither);
    refused(f, COT_NOT_FOUND, words);
    write_all(f); // which goes before
    assert_null(accepted(f));
    folder_delete(f);
}

static void drop_last(folder *f)
{
    const cot_tensor *last = &f->tensors[--f->count];
    free((void *)(uintptr_t)last->name);
    free((void *)(uintptr_t)last->data);
}

static void missing_and_wrong(void **state)
{
    (void)state;
    static const char of_fp8[] =
        "{\"quantization_config\": {\"quant_method\": \"fp8\"}, "; // before the rest of TINY_MIXTRAL
    char told[512];
    folder *f = tiny_mixtral(test_seed(), COT_BF16);
    write_all(f);
    assert_null(accepted(f));
    cot_tensor *t = tensor_of(f, "model.layers.1.block_sparse_moe.experts.2.w3.weight"), kept = *t;
    t->name = "model.layers.1.block_sparse_moe.experts.3.w3.weight";
    write_all(f);
    refused(f, COT_MALFORMED,
            "tensor 'model.layers.1.block_sparse_moe.experts.2.w3.weight' is missing; there is "
            "'model.layers.1.block_sparse_moe.experts.3.w3.weight' BF16 [10][24] instead");
    t->name = "model.layers.1.block_sparse_moe.experts.2.w3.qweight"; // nearer than what follows
    add(f, "model.layers.1.block_sparse_moe.experts.2.w1.weight_scale", COT_F32, 3, 0, 0, 0);
    add(f, "aa", COT_F32, 3, 0, 0, 0);
    write_all(f);
    refused(f, COT_MALFORMED,
            "w3.weight' is missing; there is 'model.layers.1.block_sparse_moe.experts.2.w3.qweight' BF16 "
            "[10][24] "
            "instead, and 2 more unknown: config.json has no quantization_config");
    drop_last(f);
    drop_last(f);
    t = tensor_of(f, "model.layers.1.block_sparse_moe.experts.2.w3.qweight");
    *t = kept;
    t->shape[0] = 24;
    t->shape[1] = 10;
    write_all(f);
    refused(
        f, COT_MALFORMED,
        "tensor 'model.layers.1.block_sparse_moe.experts.2.w3.weight' has shape [24][10], expected [10][24]");
    *t = kept;
    t->dtype = COT_I16;
    write_all(f);
    refused(f, COT_UNSUPPORTED, "is stored as I16, expected F32, BF16, F16 or F8_E4M3");
    *t = kept;
    t->dtype = COT_F8_E4M3; // without scales
    t->bytes /= 2;
    write_all(f);
    refused(f, COT_MALFORMED,
            "tensor 'model.layers.1.block_sparse_moe.experts.2.w3.weight_scale_inv' is missing; nothing lies "
            "there instead");
    *t = kept;
    t->name = "model.layers.1.block_sparse_moe.experts.2.w3.weight_scale_inv"; // scales alone
    write_all(f);
    refused_with(f, "w3.weight_scale_inv' BF16 [10][24] instead");
    t->name = "model.layers.1.block_sparse_moe.experts.2.w3.qweight"; // though config.json tells
    snprintf(told, sizeof told, "%s%s", of_fp8, TINY_MIXTRAL + 1);
    write_text(f, "config.json", told);
    write_all(f);
    refused_with(f, "w3.qweight' BF16 [10][24] instead");
    write_text(f, "config.json", TINY_MIXTRAL);
    for (int i = 0; i < 2; i++) { // of several the largest, in whichever order they lie
        add(f,
            i ? "model.layers.1.block_sparse_moe.experts.2.w3.scales"
              : "model.layers.1.block_sparse_moe.experts.2.w3.g_idx",
            COT_I32, 7, 0, 0, 0);
        write_all(f);
        refused_with(f, "w3.qweight' BF16 [10][24] instead, and 1 more unknown: config.json has no "
                        "quantization_config");
        drop_last(f);
    }
    *t = kept;
    t = tensor_of(f, "model.norm.weight"), kept = *t;
    t->dtype = COT_F8_E4M3; // a vector cannot be
    t->bytes /= 2;
    write_all(f);
    refused(f, COT_UNSUPPORTED, "is stored as F8_E4M3, expected F32, BF16 or F16");
    *t = kept;
    size_t count = f->count;
    f->count = 1;
    write_all(f);
    refused(f, COT_MALFORMED,
            "tensor 'model.norm.weight' is missing, and 33 more; nothing lies there instead");
    f->count = count;
    folder_delete(f);
}

static void unused_tensors(void **state)
{
    (void)state;
    folder *f = tiny_mixtral(test_seed(), COT_F32);
    add(f, "model.layers.2.self_attn.q_proj.weight", COT_F32, 3, 3, 0, 0);
    add(f, "model.layers.11.enorm.weight", COT_F32, 3, 0, 0, 0);
    add(f, "model.layers.0.self_attn.rotary_emb.inv_freq", COT_F32, 4, 0, 0, 0);
    add(f, "model.layers.0.self_attn.q_proj.bias", COT_I64, 4, 0, 0, 0);
    add(f, "model.layers.0.self_attn.q_proj.input_scale", COT_F32, 1, 0, 0, 0);
    add(f, "model.layers.0.self_attn.k_scale", COT_F32, 1, 0, 0, 0);
    add(f, "vision\ttower", COT_F32, 4, 0, 0, 0);
    write_all(f);
    char *notes = accepted(f);
    assert_string_equal(
        notes, "warning: 7 tensors are not used: 2 of layer 2 and beyond, 1 rotary_emb.inv_freq, 2 of "
               "activations' scales, 2 unknown, the first "
               "'model.layers.0.self_attn.q_proj.bias'");
    free(notes);
    folder_delete(f);
}

/* Two shards of a folder with an index whose map is `text`. */
static void write_index(const folder *f, size_t cut, const char *second)
{
    json_t *map = json_object(),
           *index = json_pack("{s:{s:i}, s:o}", "metadata", "total_size", 1, "weight_map", map);
    char path[128];
    for (size_t t = 0; t < f->count; t++)
        json_object_set_new(map, f->tensors[t].name, json_string(t < cut ? "first.safetensors" : second));
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", f->path);
    assert_int_equal(json_dump_file(index, path, 0), 0);
    json_decref(index);
}

static void shards(void **state)
{
    (void)state;
    folder *f = tiny_mixtral(test_seed(), COT_BF16);
    size_t cut = f->count / 2;
    char command[256];
    write_shard(f, "first.safetensors", 0, cut);
    write_shard(f, "second.safetensors", cut, f->count - cut);
    write_index(f, cut, "second.safetensors");
    assert_null(accepted(f));
    /* The hub's cache: the folder holds links into another one. */
    snprintf(command, sizeof command,
             "cd %s && mkdir blobs && mv second.safetensors blobs/x && ln -s blobs/x second.safetensors",
             f->path);
    assert_int_equal(system(command), 0);
    assert_null(accepted(f));

    static const char *const outside[] = {"../second.safetensors", "/etc/passwd", "", "..", "blobs/x", "."};
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) {
        write_index(f, cut, outside[i]);
        refused(f, COT_MALFORMED, "leaves the model's folder");
    }
    write_index(f, cut, "third.safetensors");
    refused(f, COT_NOT_FOUND, "third.safetensors");
    write_index(f, cut + 1, "second.safetensors");
    refused(f, COT_MALFORMED, "is not in 'first.safetensors'");
    write_index(f, cut, "second.safetensors");
    write_shard(f, "first.safetensors", 0, cut + 1);
    refused(f, COT_MALFORMED, "two shards hold tensor");
    snprintf(command, sizeof command, "cd %s && truncate -s -1 blobs/x", f->path);
    write_shard(f, "first.safetensors", 0, cut);
    assert_int_equal(system(command), 0);
    refused(f, COT_MALFORMED, "second.safetensors");

    write_text(f, "model.safetensors.index.json", "{}");
    refused(f, COT_MALFORMED, "no object 'weight_map'");
    write_text(f, "model.safetensors.index.json", "{\"weight_map\": {\"a\": 7}}");
    refused(f, COT_MALFORMED, "the file of tensor 'a' is no string");
    write_text(f, "model.safetensors.index.json", "{\"weight_map\": {}}");
    refused(f, COT_MALFORMED, "is missing");
    write_text(f, "model.safetensors.index.json", "[");
    refused(f, COT_MALFORMED, "not valid JSON");
    folder_delete(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(not_a_model),    cmocka_unit_test(other_names), cmocka_unit_test(missing_and_wrong),
        cmocka_unit_test(unused_tensors), cmocka_unit_test(shards),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
