/* config.json and, after a NUL byte, generation_config.json. */
#include "checkpoint/config.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data, *end = size ? memchr(text, 0, size) : NULL;
    size_t bytes = end ? (size_t)(end - text) : size;
    cot_config config;
    cot_error error;
    if (cot_config_parse(&config, text, bytes, end ? end + 1 : NULL, end ? size - bytes - 1 : 0, "fuzz",
                         &error) == COT_OK)
        cot_config_clear(&config);
    return 0;
}
