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
    struct stat whole;
    if (stat(folder, &whole) == 0 && S_ISREG(whole.st_mode)) // GGUF
        return XXH3_64bits_withSeed(folder, strlen(folder), (uint64_t)whole.st_size);
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

static uint64_t of_word(uint64_t seed, const char *word)
{
    return word ? XXH3_64bits_withSeed(word, strlen(word) + 1, seed) : seed + 1;
}

static uint64_t of_number(uint64_t seed, int64_t number)
{
    return XXH3_64bits_withSeed(&number, sizeof number, seed);
}

static uint64_t of_routing(const cot_engine_routing *r)
{
    const double drawn[] = {r->trace ? 0 : 1 + r->lar, r->first_layer, r->cut};
    return XXH3_64bits(drawn, sizeof drawn) + (r->trace ? cot_trace_hash(r->trace) : 0);
}

uint64_t cot_likeness_of_options(const cot_engine_options *o)
{
    uint64_t hash = 0;
#define TEXT_VALUE(text) hash = of_word(hash, text);
#define TEXT_CONTENT(text)                                                                                   \
    hash = of_number(hash, text ? (int64_t)of_file(text) : 0); // what it says, wherever it is
#define TEXT_NOTHING(text)
#define NUMBER_VALUE(number)                                                                                 \
    hash = XXH3_64bits_withSeed(&(number), sizeof(number), hash); // its bits: fractions differ too
#define NUMBER_NOTHING(number)
#define POINTER_CONTENT(routing) hash = of_number(hash, routing ? (int64_t)of_routing(routing) : 0);
#define POINTER_NOTHING(pointer)
#define COT_TEXT(group, field, agree, ...) TEXT_##agree(o->group.field)
#define COT_CHOICE(group, field, said, words, agree, ...) TEXT_##agree(o->group.field)
#define COT_NUMBER(group, field, type, initial, said, least, most, agree, ...) NUMBER_##agree(o->group.field)
#define COT_DURATION(group, field, initial, said, least, most, agree, ...) NUMBER_##agree(o->group.field)
#define COT_REAL(group, field, initial, said, least, most, agree, ...) NUMBER_##agree(o->group.field)
#define COT_SWITCH(group, field, agree, ...) NUMBER_##agree(o->group.field)
#define COT_POINTER(group, field, type, agree) POINTER_##agree(o->group.field)
#include "coterie/engine_options.def"
    return hash;
}

uint64_t cot_likeness_of_layout(const cot_expert_layout *layout)
{
    const size_t places = (size_t)layout->first[layout->n_layers];
    return XXH3_64bits_withSeed(layout->rank, places * sizeof *layout->rank,
                                XXH3_64bits(layout->slot, places * sizeof *layout->slot));
}
