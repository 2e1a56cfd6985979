#include "model/checkpoint.h"

#include "base/error.h"
#include "base/file.h"
#include "model/stored.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_MISSING = 1000 };

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

typedef struct survey {
    const cot_checkpoint *checkpoint;
    bool *used; // [tensor_count]
    int64_t missing;
    cot_error first; // missing
    cot_error *error;
} survey;

static cot_status check_weight(void *context, cot_weight weight, int64_t layer, int64_t expert)
{
    survey *s = context;
    cot_stored stored;
    cot_error error = {0};
    cot_status status = cot_stored_find(&stored, s->checkpoint, weight, layer, expert, &error);
    if (status == COT_NOT_FOUND) {
        if (!s->missing++) s->first = error;
        return s->missing < MAX_MISSING ? COT_OK : status;
    }
    const bool embedding = weight == COT_WEIGHT_OUTPUT && s->checkpoint->config.tied_embeddings;
    if (status == COT_OK)
        status = cot_stored_hold(&stored, embedding ? COT_WEIGHT_EMBEDDING : weight, &s->checkpoint->config,
                                 &error);
    if (status != COT_OK) return cot_fail(s->error, status, "%s", error.message);
    s->used[stored.tensor - s->checkpoint->shards.tensors] = true;
    const cot_shard_tensor *const with[] = {stored.scales, stored.whole.zeros, stored.whole.order,
                                            stored.whole.shape};
    for (size_t i = 0; i < sizeof with / sizeof *with; i++)
        if (with[i]) s->used[with[i] - s->checkpoint->shards.tensors] = true;
    return COT_OK;
}

/* Activations are not quantised, whatever files have for that. */
static bool is_of_activations(const char *name)
{
    static const char *const ends[] = {".input_scale",
                                       ".input_zero_point",
                                       ".input_global_scale",
                                       ".output_scale",
                                       ".output_zero_point",
                                       ".activation_scale",
                                       ".k_scale",
                                       ".v_scale"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (cot_path_ends(name, ends[i])) return true;
    return false;
}

/* Says in a line which tensors nobody uses, and why; NULL where all are used. */
static cot_status describe_unused(char **notes, const survey *s, cot_error *error)
{
    const cot_shards *shards = &s->checkpoint->shards;
    int64_t layers = s->checkpoint->config.layers;
    size_t unused = 0, predicting = 0, frequencies = 0, tied = 0, activations = 0, others = 0;
    const char *other = "";
    for (size_t i = 0; i < shards->tensor_count; i++) {
        const char *name = shards->tensors[i].tensor->name;
        long long layer;
        if (s->used[i]) continue;
        unused++;
        const char *at = strncmp(name, "model.", 6) ? name : name + 6;
        if (sscanf(at, "layers.%lld.", &layer) == 1 && layer >= layers)
            predicting++;
        else if (cot_path_ends(name, "rotary_emb.inv_freq"))
            frequencies++;
        else if (s->checkpoint->config.tied_embeddings && !strcmp(name, "lm_head.weight"))
            tied++;
        else if (is_of_activations(name))
            activations++;
        else if (!others++)
            other = name;
    }
    *notes = NULL;
    if (!unused) return COT_OK;
    size_t room = 400 + strlen(other);
    char *out = *notes = malloc(room);
    if (!out) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    size_t at = (size_t)snprintf(out, room, "%zu tensor%s not used:", unused, unused == 1 ? " is" : "s are");
    const char *comma = "";
    if (predicting) {
        at +=
            (size_t)snprintf(out + at, room - at, " %zu of layer %" PRId64 " and beyond", predicting, layers);
        comma = ",";
    }
    if (frequencies) {
        at += (size_t)snprintf(out + at, room - at, "%s %zu rotary_emb.inv_freq", comma, frequencies);
        comma = ",";
    }
    if (tied) {
        at +=
            (size_t)snprintf(out + at, room - at, "%s lm_head.weight, which is tied to the embedding", comma);
        comma = ",";
    }
    if (activations) {
        at += (size_t)snprintf(out + at, room - at, "%s %zu of activations' scales", comma, activations);
        comma = ",";
    }
    if (others)
        snprintf(out + at, room - at, "%s %zu unknown%s '%s'", comma, others,
                 others > 1 ? ", the first" : ",", other);
    for (char *c = out; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    return COT_OK;
}

static cot_status check_weights(const cot_checkpoint *checkpoint, const char *folder, char **notes,
                                cot_error *error)
{
    cot_error detail = {0};
    survey s = {
        .checkpoint = checkpoint, .error = &detail, .used = calloc(checkpoint->shards.tensor_count + 1, 1)};
    if (!s.used) return cot_fail(error, COT_OUT_OF_MEMORY, "'%s': out of memory", folder);
    cot_status status = cot_weight_each(&checkpoint->config, &s, check_weight);
    if (s.missing > 1)
        status = cot_fail(error, COT_MALFORMED, "'%s': %s, and %s%" PRId64 " more", folder, s.first.message,
                          s.missing == MAX_MISSING ? "at least " : "", s.missing - 1);
    else if (s.missing)
        status = cot_fail(error, COT_MALFORMED, "'%s': %s", folder, s.first.message);
    else if (status != COT_OK)
        cot_fail(error, status, "'%s': %s", folder, detail.message);
    else
        status = describe_unused(notes, &s, error);
    free(s.used);
    return status;
}

cot_status cot_checkpoint_open(cot_checkpoint **out, const char *folder, char **notes, cot_error *error)
{
    *out = NULL;
    *notes = NULL;
    cot_checkpoint *checkpoint = new_checkpoint();
    if (!checkpoint) return cot_fail(error, COT_OUT_OF_MEMORY, "'%s': out of memory", folder);
    cot_status status = cot_config_read(&checkpoint->config, folder, error);
    if (status == COT_OK) status = cot_shards_open(&checkpoint->shards, folder, error);
    if (status == COT_OK) status = check_weights(checkpoint, folder, notes, error);
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
