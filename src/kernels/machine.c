#include "coterie/roof.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char cpu_name[128] = "unknown";

static void read_cpu_name(void)
{
    FILE *f = fopen("/proc/cpuinfo", "re");
    if (!f) return;
    char line[512];
    while (fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        colon += 1 + strspn(colon + 1, " \t");
        colon[strcspn(colon, "\n")] = 0;
        if (*colon) snprintf(cpu_name, sizeof cpu_name, "%.127s", colon);
        break;
    }
    fclose(f);
}

const char *cot_cpu_name(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_cpu_name);
    return cpu_name;
}

static bool read_line(char *line, int bytes, int cpu, int index, const char *what)
{
    char path[128];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cache/index%d/%s", cpu, index, what);
    FILE *f = fopen(path, "re");
    if (!f) return false;
    bool ok = fgets(line, bytes, f);
    fclose(f);
    if (ok) line[strcspn(line, "\n")] = 0;
    return ok;
}

static size_t parse_size(const char *text)
{
    char *unit;
    unsigned long long value = strtoull(text, &unit, 10);
    return (size_t)value << (*unit == 'K' ? 10 : *unit == 'M' ? 20 : *unit == 'G' ? 30 : 0);
}

/* An instance of a cache is counted once, at the first CPU in its list of sharers. */
size_t cot_last_level_cache_bytes(void)
{
    enum { LEVELS = 8 };
    size_t bytes[LEVELS] = {0};
    char line[4096];
    long cpus = sysconf(_SC_NPROCESSORS_CONF);
    for (int cpu = 0; cpu < cpus; cpu++)
        for (int index = 0; read_line(line, sizeof line, cpu, index, "level"); index++) {
            int level = atoi(line);
            if (level <= 0 || level >= LEVELS) continue;
            if (!read_line(line, sizeof line, cpu, index, "type") || strcmp(line, "Instruction") == 0)
                continue;
            if (!read_line(line, sizeof line, cpu, index, "shared_cpu_list") || atoi(line) != cpu) continue;
            if (read_line(line, sizeof line, cpu, index, "size")) bytes[level] += parse_size(line);
        }
    for (int level = LEVELS - 1; level > 0; level--)
        if (bytes[level]) return bytes[level];
    long told = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return told > 0 ? (size_t)told : 0;
}
