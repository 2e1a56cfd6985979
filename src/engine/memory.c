#include "engine/memory.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { PATH_BYTES = 4096 };

/* The first number in a file of a folder, or SIZE_MAX ("max", or no such file). */
static size_t number_in(const char *folder, const char *name)
{
    char path[PATH_BYTES + 64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "r");
    uintmax_t value;
    size_t result = file && fscanf(file, "%" SCNuMAX, &value) == 1 ? (size_t)value : SIZE_MAX;
    if (file) fclose(file);
    return result;
}

static size_t meminfo_available(const char *root)
{
    size_t bytes = SIZE_MAX;
    char path[PATH_BYTES], line[256];
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    FILE *file = fopen(path, "r");
    uintmax_t kib;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %" SCNuMAX, &kib) == 1) bytes = (size_t)kib * 1024;
    if (file) fclose(file);
    return bytes;
}

/* How a version of control groups spells what it knows about memory. */
struct spelling {
    const char *controllers; // of the line in /proc/self/cgroup that names this process's group
    const char *groups;      // the folder of the first group
    const char *limit, *used, *reclaimable[2];
};

/* Bytes of a group's memory that the kernel would give back: its cache of files read. */
static size_t reclaimable(const struct spelling *how, const char *group)
{
    char path[PATH_BYTES + 64], key[64];
    uintmax_t value;
    size_t sum = 0;
    snprintf(path, sizeof path, "%s/memory.stat", group);
    FILE *file = fopen(path, "r");
    while (file && fscanf(file, "%63s %" SCNuMAX, key, &value) == 2)
        for (int i = 0; i < 2; i++)
            if (how->reclaimable[i] && !strcmp(key, how->reclaimable[i])) sum += (size_t)value;
    if (file) fclose(file);
    return sum;
}

/* What the group of that folder leaves; SIZE_MAX where it has no limit. */
static size_t group_available(const struct spelling *how, const char *group)
{
    const size_t max = number_in(group, how->limit), used = number_in(group, how->used),
                 back = reclaimable(how, group);
    if (max == SIZE_MAX || used == SIZE_MAX) return SIZE_MAX;
    const size_t kept = used > back ? used - back : 0;
    return max > kept ? max - kept : 0;
}

/* Whether `controller` is among the comma list that begins at `list` and ends before `end`. */
static bool lists(const char *list, const char *end, const char *controller)
{
    size_t length = strlen(controller);
    for (const char *at = list; at <= end; at++) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        const char *stop = comma ? comma : end;
        if ((size_t)(stop - at) == length && !memcmp(at, controller, length)) return true;
        at = stop;
    }
    return false;
}

/* What the control groups that this process is in leave, from its own up to the first. A container may see its own group as
 * the first, and be told the name that it has outside. */
static size_t cgroup_available(const char *root, const struct spelling *how)
{
    char line[1024], path[PATH_BYTES], *group = NULL;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "r");
    while (file && !group && fgets(line, sizeof line, file)) { // "number:controllers:/group"
        char *first = strchr(line, ':'), *second = first ? strchr(first + 1, ':') : NULL;
        if (second && lists(first + 1, second, how->controllers)) group = second + 1;
    }
    if (file) fclose(file);
    if (group) group[strcspn(group, "\n")] = 0;
    size_t least = SIZE_MAX;
    while (group) {
        snprintf(path, sizeof path, "%s%s%s", root, how->groups, group);
        const size_t left = group_available(how, path);
        if (left < least) least = left;
        char *slash = strrchr(group, '/');
        if (slash)
            *slash = 0;
        else
            group = NULL;
    }
    return least;
}

size_t cot_memory_available_below(const char *root)
{
    static const struct spelling spellings[] = {
        {"", "/sys/fs/cgroup", "memory.max", "memory.current", {"inactive_file", "slab_reclaimable"}},
        {"memory",
         "/sys/fs/cgroup/memory",
         "memory.limit_in_bytes",
         "memory.usage_in_bytes",
         {"total_inactive_file"}}};
    size_t least = meminfo_available(root);
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        size_t left = cgroup_available(root, &spellings[i]);
        if (left < least) least = left;
    }
    return least;
}

size_t cot_memory_available(void)
{
    return cot_memory_available_below("");
}
