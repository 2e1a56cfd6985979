/* Any list of workers is read, or refused with a line; what is read has all that the router takes for granted. */
#include "gateway/fleet.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (memmem(data, bytes, "key_file", 8)) return 0; // files of this machine are nobody's input
    cot_fleet f;
    cot_error error = {0};
    const cot_status status = cot_fleet_read(&f, (const char *)data, bytes, "workers", &error);
    if (status != COT_OK && (!*error.message || f.count || f.entry)) abort();
    for (size_t i = 0; i < f.count; i++) {
        const cot_fleet_entry *e = &f.entry[i];
        if (!e->name || !*e->name || !e->url ||
            (strncasecmp(e->url, "http://", 7) && strncasecmp(e->url, "https://", 8)))
            abort();
        if (e->ranks < 0 || e->ranks > COT_FLEET_MOST_RANKS || (e->kv_replay && !e->kv_events)) abort();
        for (size_t j = 0; j < i; j++)
            if (!strcmp(f.entry[j].name, e->name)) abort();
    }
    cot_fleet_free(&f);
    return 0;
}
