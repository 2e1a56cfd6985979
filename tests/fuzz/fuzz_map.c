/* Any bytes are a map of experts or a refusal, in whatever format they look like or the first byte names; what is taken
 * can be written in every format, or is refused by name. */
#include "placement/formats/formats.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void hear(void *context, const char *line)
{
    (void)context;
    if (!line[0]) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    cot_expert_map_options options = {.size = sizeof options, .say = hear};
    cot_expert_map map;
    cot_error error = {0};
    if (!bytes) return 0;
    size_t which = *data++ % 8;
    bytes--;
    if (which < 6) options.format = cot_expert_map_formats[which].name;
    char *text = malloc(bytes + 1);
    if (!text) return 0;
    memcpy(text, data, bytes);
    text[bytes] = 0;
    cot_status status = cot_expert_map_parse(&map, text, bytes, "f", &options, &error);
    free(text);
    if (status != COT_OK) {
        if (!error.message[0] || map.expert) abort();
        return 0;
    }
    if (cot_expert_map_check(&map, "f", &error) != COT_OK) abort();
    for (const cot_expert_map_format *f = cot_expert_map_formats; f->name; f++) {
        options.format = f->name;
        error.message[0] = 0;
        if (cot_expert_map_write(&map, "/dev/null", &options, &error) != COT_OK && !error.message[0]) abort();
    }
    cot_expert_map_free(&map);
    return 0;
}
