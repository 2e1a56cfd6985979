/* Any text is a configuration of KV events or refused with a reason; one that is taken can be listened on as it says. */
#include "worker/kv_config.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void look(const cot_endpoint *endpoint)
{
    char text[96];
    if (!memchr(endpoint->address, 0, sizeof endpoint->address)) abort();
    if (!*endpoint->address) return;
    if (endpoint->port < 1 || endpoint->port > 65535) abort();
    cot_endpoint_write(text, endpoint, 63);
    if (strncmp(text, "tcp://", 6) != 0) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *const text = malloc(bytes + 1); // so that a read beyond is seen
    cot_kv_config config;
    cot_error error = {0};
    if (!text) return 0;
    if (bytes) memcpy(text, data, bytes);
    text[bytes] = 0;
    if (cot_kv_config_read(&config, text, &error) != COT_OK) {
        if (error.status != COT_INVALID_ARGUMENT || !*error.message) abort();
    } else {
        look(&config.endpoint);
        look(&config.replay_endpoint);
        if (config.buffer_steps < 1 || config.hwm < 1 || config.max_queue_size < 1) abort();
        for (int ranks = 1; ranks <= 64; ranks *= 8)
            if (cot_kv_config_check(&config, ranks, 8000, bytes & 1, &error) != COT_OK && !*error.message)
                abort();
    }
    free(text);
    return 0;
}
