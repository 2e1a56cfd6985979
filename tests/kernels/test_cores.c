/* How many cores there are: what control groups say, read from files made here; and what this process is bound to. */
#include "harness/kernels/check.h"
#include "coterie/roof.h"
#include "kernels/cores.h"

#include <sched.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64];

static void enter_folder(void)
{
    strcpy(folder, "/tmp/cores-XXXXXX");
    CHECK(mkdtemp(folder) && !chdir(folder) && !mkdir("root", 0700) && !mkdir("root/pod", 0700) &&
              !mkdir("root/pod/box", 0700),
          "%s", folder);
}

static void leave_folder(void)
{
    char line[128];
    snprintf(line, sizeof line, "rm -rf '%s'", folder);
    CHECK(!chdir("/") && !system(line), "%s", folder);
}

static void put(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    CHECK(file && fputs(text, file) >= 0 && !fclose(file), "%s", path);
}

static void expect_quota(const char *groups, long expected)
{
    const long quota = cot_cores_quota(groups, "root");
    CHECK(quota == expected, "%ld of %ld", quota, expected);
}

/* The least of all groups above counts, a part of a core is a whole one, and what says nothing limits nothing. */
static void test_quota(void)
{
    expect_quota("nowhere", 0);
    put("groups", "9:cpu:/pod/box\n0::/pod/box\n");
    expect_quota("groups", 0);
    put("root/pod/box/cpu.max", "max 100000\n");
    expect_quota("groups", 0);
    put("root/pod/box/cpu.max", "250000 100000\n");
    expect_quota("groups", 3);
    put("root/pod/cpu.max", "200000 100000\n");
    expect_quota("groups", 2);
    put("root/cpu.max", "1000 100000\n");
    expect_quota("groups", 1);
    put("root/cpu.max", "max 100000\n");
    put("root/pod/cpu.max", "400000 100000\n");
    expect_quota("groups", 3);
    put("root/pod/box/cpu.max", "nonsense\n");
    expect_quota("groups", 4);
    put("groups", "0::/\n"); // a container's own root
    expect_quota("groups", 0);
    put("root/cpu.max", "700000 100000\n");
    expect_quota("groups", 7);
    put("groups", "9:cpu:/pod/box\n"); // version 1 alone
    expect_quota("groups", 0);
}

static void test_bound(void)
{
    cpu_set_t all, one;
    CHECK(!sched_getaffinity(0, sizeof all, &all), "sched_getaffinity");
    const int cores = cot_cores();
    CHECK(cores >= 1 && cores <= CPU_COUNT(&all), "%d of %d", cores, CPU_COUNT(&all));
    size_t first = 0;
    while (!CPU_ISSET(first, &all)) first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    CHECK(!sched_setaffinity(0, sizeof one, &one) && cot_cores() == 1, "%d, bound to one", cot_cores());
    CHECK(!sched_setaffinity(0, sizeof all, &all) && cot_cores() == cores, "%d, not %d", cot_cores(), cores);
}

int main(void)
{
    enter_folder();
    test_quota();
    leave_folder();
    test_bound();
    return 0;
}
