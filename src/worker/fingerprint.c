#include "worker/fingerprint.h"

#include "base/error.h"
#include "base/file.h"
#include "coterie/version.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

/* Samples of a file: its size, its first megabyte, and 64 KiB in each of 16 places. */
static cot_status add_file(XXH3_state_t *state, const char *path, cot_error *error)
{
    enum { HEAD = 1 << 20, SAMPLE = 64 << 10, SAMPLES = 16 };
    cot_file_map map;
    uint8_t *bytes = malloc(HEAD);
    if (!bytes) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a fingerprint");
    cot_status status = cot_file_map_open(&map, path, error);
    if (status == COT_OK) {
        XXH3_64bits_update(state, &map.bytes, sizeof map.bytes);
        for (size_t i = 0; i <= SAMPLES && status == COT_OK; i++) {
            const size_t from = i ? map.bytes / SAMPLES * (i - 1) : 0, most = i ? SAMPLE : HEAD;
            const size_t count = map.bytes - from < most ? map.bytes - from : most;
            if (!cot_file_map_read(&map, bytes, from, count))
                status = cot_fail(error, COT_IO, "'%s' cannot be read", path);
            else
                XXH3_64bits_update(state, bytes, count);
        }
        cot_file_map_close(&map);
    }
    free(bytes);
    return status;
}

static int is_of_model(const struct dirent *entry)
{
    const char *dot = strrchr(entry->d_name, '.');
    return strcmp(entry->d_name, "config.json") == 0 || (dot && strcmp(dot, ".safetensors") == 0);
}

static cot_status add_model(XXH3_state_t *state, const char *folder, cot_error *error)
{
    struct stat info;
    struct dirent **entries;
    if (stat(folder, &info) == 0 && S_ISREG(info.st_mode)) return add_file(state, folder, error); // GGUF
    const int count = scandir(folder, &entries, is_of_model, alphasort);
    cot_status status = count < 0 ? cot_fail(error, COT_IO, "'%s' cannot be read", folder) : COT_OK;
    for (int i = 0; i < count; i++) {
        char *path = status == COT_OK ? cot_path_join(folder, entries[i]->d_name) : NULL;
        if (status == COT_OK && !path)
            status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a fingerprint");
        if (status == COT_OK) status = add_file(state, path, error);
        free(path);
        free(entries[i]);
    }
    if (count >= 0) free(entries);
    return status;
}

cot_status cot_fingerprint(char text[24], const char *folder, const cot_engine *engine, cot_error *error)
{
    const cot_engine_info *info = cot_engine_describe(engine);
    const bool split = info->pipeline != NULL;
    const char *const parts[] = {info->architecture,
                                 info->isa,
                                 info->precision,
                                 info->payload,
                                 info->op,
                                 info->combine,
                                 info->attention,
                                 info->weights,
                                 info->weights_attention,
                                 info->weights_head,
                                 split ? info->pipeline : "",
                                 split ? info->predict : "",
                                 split ? info->collective : "",
                                 cot_version()};
    const int ranks = strcmp(info->attention, "tp") == 0 ? info->ranks : 0;
    XXH3_state_t *state = XXH3_createState();
    if (!state || XXH3_64bits_reset(state) != XXH_OK) {
        XXH3_freeState(state);
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a fingerprint");
    }
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        XXH3_64bits_update(state, parts[i], strlen(parts[i]) + 1);
    XXH3_64bits_update(state, &ranks, sizeof ranks);
    const cot_status status = add_model(state, folder, error);
    snprintf(text, 24, "fp_%016" PRIx64, (uint64_t)XXH3_64bits_digest(state));
    XXH3_freeState(state);
    return status;
}
