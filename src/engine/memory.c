#include "engine/memory.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* The first number in a file, or SIZE_MAX ("max", or no such file). */
static size_t number_in(const char *path)
{
    FILE *file = fopen(path, "r");
    uintmax_t value;
    size_t result = file && fscanf(file, "%" SCNuMAX, &value) == 1 ? (size_t)value : SIZE_MAX;
    if (file) fclose(file);
    return result;
}

static size_t meminfo_available(void)
{
    FILE *file = fopen("/proc/meminfo", "r");
    size_t bytes = SIZE_MAX;
    char line[256];
    uintmax_t kib;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %" SCNuMAX, &kib) == 1) bytes = (size_t)kib * 1024;
    if (file) fclose(file);
    return bytes;
}

/* What the control groups (version 2) that this process is in leave, from its own up to the root. */
static size_t cgroup_available(void)
{
    char line[1024] = "", path[2048];
    FILE *file = fopen("/proc/self/cgroup", "r");
    while (file && fgets(line, sizeof line, file) && strncmp(line, "0::", 3) != 0) line[0] = 0;
    if (file) fclose(file);
    line[strcspn(line, "\n")] = 0;
    size_t least = SIZE_MAX;
    for (char *group = line[0] ? line + 3 : NULL; group && *group;) {
        snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.max", group);
        size_t max = number_in(path);
        snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.current", group);
        size_t current = number_in(path);
        if (max != SIZE_MAX && current != SIZE_MAX) {
            size_t left = max > current ? max - current : 0;
            if (left < least) least = left;
        }
        char *slash = strrchr(group, '/');
        if (!slash || slash == group) break;
        *slash = 0;
    }
    return least;
}

size_t cot_memory_available(void)
{
    size_t system = meminfo_available(), group = cgroup_available();
    return system < group ? system : group;
}
