/* What a model's files hold, by the tables of their tensors. */
#include "coterie/model.h"

#include "base/error.h"
#include "kernels/blocks.h"
#include "checkpoint/shards.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void add(cot_model_files *files, const cot_tensor *tensor)
{
    const char *name = cot_tensor_type_name(tensor);
    size_t t = 0;
    while (t < files->type_count && strcmp(files->types[t].name, name) != 0) t++;
    if (t == COT_MODEL_TYPES) return;
    if (t == files->type_count) {
        const cot_format format = tensor->blocks ? cot_blocks_format(tensor->blocks) : COT_FORMATS;
        files->types[files->type_count++] = (cot_model_type){
            .name = name, .memory = format == COT_FORMATS ? NULL : cot_format_row_of(format)->name};
    }
    files->types[t].bytes += tensor->bytes;
}

static int by_bytes(const void *a, const void *b)
{
    const size_t x = ((const cot_model_type *)a)->bytes, y = ((const cot_model_type *)b)->bytes;
    return x > y ? -1 : x < y;
}

static void read_name(char *out, size_t room, const cot_gguf *file)
{
    const cot_gguf_pair *pair = cot_gguf_find(file, "general.name");
    json_t *name = pair && !pair->array && pair->type == COT_GGUF_STRING ? cot_gguf_json(pair) : NULL;
    if (name) snprintf(out, room, "%s", json_string_value(name));
    for (char *c = out; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    json_decref(name);
}

cot_status cot_model_describe_files(cot_model_files *files, const char *folder, cot_error *error)
{
    cot_shards shards;
    *files = (cot_model_files){.gguf = cot_gguf_is_file(folder)};
    const cot_status status =
        files->gguf ? cot_shards_open_gguf(&shards, folder, error) : cot_shards_open(&shards, folder, error);
    if (status != COT_OK) return status;
    files->files = shards.file_count;
    files->bytes = shards.bytes;
    for (size_t i = 0; i < shards.tensor_count; i++) add(files, shards.tensors[i].tensor);
    qsort(files->types, files->type_count, sizeof *files->types, by_bytes);
    if (files->gguf) read_name(files->name, sizeof files->name, &shards.parts[0]);
    cot_shards_close(&shards);
    return COT_OK;
}
