#include "kernels/cores.h"

#include "coterie/roof.h"

#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Cores that this thread may run on; 0 where the system does not tell. */
static int bound_to(void)
{
    enum { MOST = 1 << 16 };
    for (int cpus = 1024; cpus <= MOST; cpus *= 2) {
        cpu_set_t *set = CPU_ALLOC((size_t)cpus);
        if (!set) return 0;
        const int error = sched_getaffinity(0, CPU_ALLOC_SIZE((size_t)cpus), set);
        const int count = error ? 0 : CPU_COUNT_S(CPU_ALLOC_SIZE((size_t)cpus), set);
        CPU_FREE(set);
        if (!error) return count;
    }
    return 0;
}

/* What the control group at `folder` may use of processors' time, in cores and rounded up; 0: as much as there is. */
static long quota_of(const char *folder)
{
    char path[8192 + 16], text[64];
    long long quota, period;
    snprintf(path, sizeof path, "%s/cpu.max", folder);
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    const bool read = fgets(text, sizeof text, f) && sscanf(text, "%lld %lld", &quota, &period) == 2;
    fclose(f);
    return read && quota > 0 && period > 0 ? (long)((quota + period - 1) / period) : 0;
}

long cot_cores_quota(const char *groups, const char *root)
{
    char line[4096], folder[8192] = "";
    FILE *f = fopen(groups, "re");
    if (!f) return 0;
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        if (strncmp(line, "0::/", 4) == 0) snprintf(folder, sizeof folder, "%s%s", root, line + 3);
    }
    fclose(f);
    long least = 0;
    while (strlen(folder) >= strlen(root)) {
        const long quota = quota_of(folder);
        if (quota && (!least || quota < least)) least = quota;
        char *last = strrchr(folder, '/');
        if (!last) break;
        *last = 0;
    }
    return least;
}

int cot_cores(void)
{
    const long online = sysconf(_SC_NPROCESSORS_ONLN), bound = bound_to();
    const long quota = cot_cores_quota("/proc/self/cgroup", "/sys/fs/cgroup");
    long cores = bound ? bound : online;
    if (quota && quota < cores) cores = quota;
    return cores < 1 ? 1 : cores > COT_CORES_MOST ? COT_CORES_MOST : (int)cores;
}
