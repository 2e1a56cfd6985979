#include "harness/checkpoint/folder.h"

#include "harness/cmocka.h"
#include "harness/refused.h"

#include "base/rng.h"
#include "checkpoint/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint64_t draw_bits(folder *f)
{
    return cot_random_bits(f->seed, 0, f->draws++);
}

folder *folder_new(uint64_t seed)
{
    folder *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->seed = seed;
    strcpy(f->path, "/tmp/coterie-model-XXXXXX");
    assert_non_null(mkdtemp(f->path));
    return f;
}

void folder_delete(folder *f)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", f->path);
    assert_int_equal(system(command), 0);
    for (size_t t = 0; t < f->count; t++) {
        free((void *)(uintptr_t)f->tensors[t].name);
        free((void *)(uintptr_t)f->tensors[t].data);
    }
    free(f);
}

void write_text(const folder *f, const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", f->path, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

/* One random element: small numbers, never NaN; scales of MXFP4 near 1. */
static void put_random(folder *f, uint8_t *out, cot_dtype type)
{
    uint64_t bits = draw_bits(f);
    float value = (float)((double)(int64_t)bits * 0x1p-63);
    uint16_t half = type == COT_BF16 ? cot_f32_to_bf16(value) : cot_f32_to_f16(value);
    if (type == COT_F32)
        memcpy(out, &value, 4);
    else if (cot_dtype_bytes(type) == 2)
        memcpy(out, &half, 2);
    else if (type == COT_F8_E4M3)
        *out = (uint8_t)((bits & 0x7f) == 0x7f ? bits ^ 1 : bits);
    else if (type == COT_F8_E8M0)
        *out = (uint8_t)(120 + bits % 16);
    else
        *out = (uint8_t)bits;
}

cot_tensor *add(folder *f, const char *name, cot_dtype type, int64_t a, int64_t b, int64_t c, int64_t d)
{
    assert_true(f->count < MAX_TENSORS);
    cot_tensor *t = &f->tensors[f->count++];
    int64_t shape[4] = {a, b, c, d};
    *t = (cot_tensor){.name = strdup(name), .dtype = type};
    while (t->dims < 4 && shape[t->dims]) {
        t->shape[t->dims] = shape[t->dims];
        t->dims++;
    }
    t->bytes = (size_t)cot_tensor_elements(t) * cot_dtype_bytes(type);
    uint8_t *data = malloc(t->bytes + 1);
    assert_non_null(data);
    for (size_t i = 0; i < t->bytes; i += cot_dtype_bytes(type)) put_random(f, data + i, type);
    t->data = data;
    return t;
}

cot_tensor *tensor_of(folder *f, const char *name)
{
    for (size_t t = 0; t < f->count; t++)
        if (!strcmp(f->tensors[t].name, name)) return &f->tensors[t];
    fail_msg("the test has no tensor %s", name);
    return NULL;
}

void write_shard(const folder *f, const char *name, size_t first, size_t count)
{
    char path[128];
    cot_error error = {0};
    snprintf(path, sizeof path, "%s/%s", f->path, name);
    if (cot_safetensors_write(path, f->tensors + first, count, NULL, 0, &error) != COT_OK)
        fail_msg("%s", error.message);
}

void write_all(const folder *f)
{
    write_shard(f, "model.safetensors", 0, f->count);
}

void folder_refused(const folder *f, const char *words)
{
    cot_checkpoint *checkpoint;
    char *notes;
    cot_error error = {0};
    write_all(f);
    assert_refused(cot_checkpoint_open(&checkpoint, f->path, &notes, &error), &error, words);
}

void add_attention(folder *f, int layer, cot_dtype type, int64_t h, int64_t q, int64_t kv)
{
    char name[96];
    const struct {
        const char *name;
        int64_t rows, columns;
    } list[] = {{"input_layernorm", h, 0},   {"post_attention_layernorm", h, 0}, {"self_attn.q_proj", q, h},
                {"self_attn.k_proj", kv, h}, {"self_attn.v_proj", kv, h},        {"self_attn.o_proj", h, q}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        snprintf(name, sizeof name, "model.layers.%d.%s.weight", layer, list[i].name);
        add(f, name, type, list[i].rows, list[i].columns, 0, 0);
    }
}

void add_ends(folder *f, cot_dtype type, int64_t v, int64_t h)
{
    add(f, "model.embed_tokens.weight", type, v, h, 0, 0);
    add(f, "model.norm.weight", type, h, 0, 0, 0);
    add(f, "lm_head.weight", type, v, h, 0, 0);
}

folder *tiny_mixtral(uint64_t seed, cot_dtype type)
{
    folder *f = folder_new(seed);
    char name[96];
    add_ends(f, type, 19, 24);
    for (int l = 0; l < 2; l++) {
        add_attention(f, l, type, 24, 24, 8);
        snprintf(name, sizeof name, "model.layers.%d.block_sparse_moe.gate.weight", l);
        add(f, name, type, 3, 24, 0, 0);
        for (int e = 0; e < 3; e++) {
            for (int w = 1; w <= 3; w++) {
                snprintf(name, sizeof name, "model.layers.%d.block_sparse_moe.experts.%d.w%d.weight", l, e,
                         w);
                add(f, name, type, w == 2 ? 24 : 10, w == 2 ? 10 : 24, 0, 0);
            }
        }
    }
    write_text(f, "config.json", TINY_MIXTRAL);
    return f;
}
