#include "checkpoint/checkpoint.h"

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/gguf_config.h"
#include "checkpoint/stored.h"

#include <math.h>
#include <stdlib.h>

static cot_checkpoint *new_checkpoint(void)
{
    cot_checkpoint *checkpoint = calloc(1, sizeof *checkpoint);
    for (int i = 0; checkpoint && i < 256; i++) {
        checkpoint->e4m3[i] = cot_f8_e4m3_to_f32((uint8_t)i);
        checkpoint->e8m0[i] = i == 255 ? NAN : ldexpf(1, i - 127);
    }
    return checkpoint;
}

void cot_checkpoint_close(cot_checkpoint *checkpoint)
{
    if (!checkpoint) return;
    cot_shards_close(&checkpoint->shards);
    cot_config_clear(&checkpoint->config);
    free(checkpoint);
}

const cot_config *cot_checkpoint_config(const cot_checkpoint *checkpoint)
{
    return &checkpoint->config;
}

static bool has(const cot_shards *shards, const char *end)
{
    for (size_t i = 0; i < shards->tensor_count; i++)
        if (cot_path_ends(shards->tensors[i].tensor->name, end)) return true;
    return false;
}

static cot_status open_folder(cot_checkpoint *checkpoint, const char *folder, cot_error *error)
{
    cot_status status = cot_config_read(&checkpoint->config, folder, error);
    if (status == COT_OK) status = cot_shards_open(&checkpoint->shards, folder, error);
    if (status != COT_OK || checkpoint->config.quantisation.told) return status;
    if (has(&checkpoint->shards, ".qweight")) // as GPTQ and AWQ have them
        return cot_config_read_beside(&checkpoint->config, folder, error);
    if (has(&checkpoint->shards, ".weight_scale")) // as ModelOpt has them
        return cot_config_read_modelopt(&checkpoint->config, folder, error);
    return status;
}

static cot_status open_gguf(cot_checkpoint *checkpoint, const char *path, cot_error *error)
{
    const cot_status status = cot_shards_open_gguf(&checkpoint->shards, path, error);
    if (status != COT_OK) return status;
    return cot_config_of_gguf(&checkpoint->config, &checkpoint->shards, path, error);
}

cot_status cot_checkpoint_open(cot_checkpoint **out, const char *folder, char **notes, cot_error *error)
{
    *out = NULL;
    *notes = NULL;
    cot_checkpoint *checkpoint = new_checkpoint();
    if (!checkpoint) return cot_fail(error, COT_OUT_OF_MEMORY, "'%s': out of memory", folder);
    cot_status status = cot_gguf_is_file(folder) ? open_gguf(checkpoint, folder, error)
                                                 : open_folder(checkpoint, folder, error);
    if (status == COT_OK) status = cot_checkpoint_survey(checkpoint, notes, folder, error);
    if (status == COT_OK)
        *out = checkpoint;
    else
        cot_checkpoint_close(checkpoint);
    return status;
}

cot_status cot_checkpoint_random(cot_checkpoint **out, const char *config_json, size_t bytes, uint64_t seed,
                                 cot_error *error)
{
    *out = NULL;
    cot_checkpoint *checkpoint = new_checkpoint();
    if (!checkpoint) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    cot_status status =
        cot_config_parse(&checkpoint->config, config_json, bytes, NULL, 0, "random model", error);
    checkpoint->random = true;
    checkpoint->seed = seed;
    if (status == COT_OK)
        *out = checkpoint;
    else
        cot_checkpoint_close(checkpoint);
    return status;
}

cot_status cot_checkpoint_of_config(cot_checkpoint **out, const char *folder, cot_error *error)
{
    *out = NULL;
    cot_checkpoint *checkpoint = new_checkpoint();
    if (!checkpoint) return cot_fail(error, COT_OUT_OF_MEMORY, "'%s': out of memory", folder);
    checkpoint->random = true;
    const cot_status status = cot_config_read(&checkpoint->config, folder, error);
    if (status == COT_OK)
        *out = checkpoint;
    else
        cot_checkpoint_close(checkpoint);
    return status;
}

size_t cot_checkpoint_bytes(const cot_checkpoint *checkpoint)
{
    if (!checkpoint->random) return checkpoint->shards.bytes;
    int64_t parameters, active;
    cot_weight_count(&checkpoint->config, &parameters, &active);
    return (size_t)parameters * 2;
}

cot_status cot_checkpoint_shape(const cot_checkpoint *checkpoint, cot_weight weight, int64_t layer,
                                int64_t expert, int64_t *rows, int64_t *columns, cot_error *error)
{
    cot_stored stored;
    cot_status status = cot_stored_find(&stored, checkpoint, weight, layer, expert, error);
    *rows = stored.rows;
    *columns = stored.columns;
    return status;
}
