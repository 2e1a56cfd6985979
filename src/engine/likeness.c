#include "engine/likeness.h"

#include "base/file.h"
#include "coterie/predict.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

uint64_t cot_likeness_of_text(const char *text, size_t bytes, uint64_t seed)
{
    return XXH3_64bits_withSeed(text, bytes, seed);
}

static uint64_t of_file(const char *path)
{
    char part[4096];
    uint64_t hash = 0;
    FILE *file = fopen(path, "rb");
    for (size_t bytes; file && (bytes = fread(part, 1, sizeof part, file)) > 0;)
        hash = XXH3_64bits_withSeed(part, bytes, hash);
    if (file) fclose(file);
    return hash;
}

uint64_t cot_likeness_of_folder(const char *folder)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/config.json", folder);
    uint64_t hash = of_file(path);
    DIR *files = opendir(folder);
    for (const struct dirent *file; files && (file = readdir(files));) {
        struct stat about;
        snprintf(path, sizeof path, "%s/%s", folder, file->d_name);
        if (cot_path_ends(file->d_name, ".safetensors") &&
            stat(path, &about) == 0) // in whatever order they come
            hash += XXH3_64bits_withSeed(file->d_name, strlen(file->d_name), (uint64_t)about.st_size);
    }
    if (files) closedir(files);
    return hash;
}

uint64_t cot_likeness_of_options(const cot_engine_options *o)
{
    const char *const words[] = {
        o->precision, o->weights, o->weights_attention, o->weights_head, o->attention,  o->op,  o->combine,
        o->payload,   o->isa,     o->pipeline,          o->predict,      o->collective, o->a2a, o->dedup};
    const int64_t numbers[] = {
        o->ranks,     o->threads,           o->expert_slots,  o->capture_routing, o->step_tokens,
        o->kv_tokens, (int64_t)o->kv_bytes, o->block_tokens,  o->sequences,       o->timeout_ns,
        o->tbt_ns,    o->max_wait_steps,    o->expert_layers, o->count_exchanges, o->sms_reserve};
    uint64_t hash = XXH3_64bits(numbers, sizeof numbers);
    if (o->routing) {
        const cot_engine_routing *r = o->routing;
        const double drawn[] = {r->trace ? 0 : 1 + r->lar, r->first_layer, r->cut};
        hash += XXH3_64bits(drawn, sizeof drawn) + (r->trace ? cot_trace_hash(r->trace) : 0);
    }
    if (o->tables) hash += of_file(o->tables); // what they say, wherever they are
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const char *word = words[i] ? words[i] : "";
        hash = XXH3_64bits_withSeed(word, strlen(word) + 1, hash);
    }
    return hash;
}

uint64_t cot_likeness_of_layout(const cot_expert_layout *layout)
{
    const size_t places = (size_t)layout->first[layout->n_layers];
    return XXH3_64bits_withSeed(layout->rank, places * sizeof *layout->rank,
                                XXH3_64bits(layout->slot, places * sizeof *layout->slot));
}
