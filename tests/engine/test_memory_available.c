/* How much memory a process is said to have, by the files of systems that are made up. */
#include "harness/cmocka.h"
#include "harness/scratch.h"

#include "engine/memory.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { LEVELS = 4 };

/* One level of control groups. */
struct group {
    uint64_t limit, used, files, slab; // limit UINT64_MAX: none
    bool exists;
};

/* A file of the system, with the folders above it. */
static void put(scratch_pad *pad, const char *name, const char *text)
{
    for (const char *at = name; (at = strchr(at, '/')); at++) {
        char folder[512];
        snprintf(folder, sizeof folder, "%s/%.*s", pad->path, (int)(at - name), name);
        mkdir(folder, 0700);
    }
    put_text(pad, name, text);
}

static void begin_anew(scratch_pad *pad)
{
    remove_tree(in_scratch(pad, "proc"));
    remove_tree(in_scratch(pad, "sys"));
}

static void put_number(scratch_pad *pad, const char *folder, const char *file, uint64_t number)
{
    char name[256], text[64];
    snprintf(name, sizeof name, "%s/%s", folder, file);
    snprintf(text, sizeof text, number == UINT64_MAX ? "max\n" : "%llu\n", (unsigned long long)number);
    put(pad, name, text);
}

static void put_group(scratch_pad *pad, const char *folder, const struct group *g, bool second)
{
    char name[256], text[256];
    if (!g->exists) return;
    put_number(pad, folder, second ? "memory.max" : "memory.limit_in_bytes", g->limit);
    put_number(pad, folder, second ? "memory.current" : "memory.usage_in_bytes", g->used);
    snprintf(name, sizeof name, "%s/memory.stat", folder);
    snprintf(text, sizeof text,
             second ? "anon 77\ninactive_file %llu\nactive_file 99\nslab_reclaimable %llu\nslab 5\n"
                    : "cache 77\ninactive_file 1\ntotal_inactive_file %llu\ntotal_active_file 88\n",
             (unsigned long long)g->files, (unsigned long long)g->slab);
    put(pad, name, text);
}

static void put_available(scratch_pad *pad, uint64_t kib)
{
    char text[256];
    snprintf(text, sizeof text,
             "MemTotal: 99999999 kB\nMemFree: 1 kB\nMemAvailable: %llu kB\nBuffers: 2 kB\n",
             (unsigned long long)kib);
    put(pad, "proc/meminfo", text);
}

static void expect(scratch_pad *pad, uint64_t bytes)
{
    const size_t found = cot_memory_available_below(pad->path);
    if (found != bytes) fail_msg("%zu bytes, expected %llu", found, (unsigned long long)bytes);
}

static void nothing_is_told(void **state)
{
    scratch_pad *pad = *state;
    begin_anew(pad);
    expect(pad, SIZE_MAX);
    put(pad, "proc/meminfo", "MemTotal: 5 kB\n");
    put(pad, "proc/self/cgroup", "");
    expect(pad, SIZE_MAX);
    put(pad, "proc/self/cgroup", "0::/a\n");
    expect(pad, SIZE_MAX);
    put_number(pad, "sys/fs/cgroup/a", "memory.max", 1000); // it is not told what is used
    expect(pad, SIZE_MAX);
    put_available(pad, 12345);
    expect(pad, 12345 * 1024);
}

/* What is left at one level, by words. */
static uint64_t left_of(const struct group *g, bool second)
{
    const uint64_t back = g->files + (second ? g->slab : 0), kept = g->used > back ? g->used - back : 0;
    if (!g->exists || g->limit == UINT64_MAX) return UINT64_MAX;
    return g->limit > kept ? g->limit - kept : 0;
}

/* Chains of groups, of both versions, of which any may be the tightest, be without a limit, or not be there. */
static void the_tightest_group_counts(void **state)
{
    static const char *const folders[LEVELS] = {"", "/a", "/a/b.slice", "/a/b.slice/c d"};
    scratch_pad *pad = *state;
    int tightest[2][LEVELS + 1] = {0};
    for (int round = 0; round < 240; round++) {
        const bool second = round % 2;
        const int levels = pad_draw(pad, 2) ? LEVELS : 1 + (int)pad_draw(pad, (uint32_t)LEVELS);
        const char *const root = second ? "sys/fs/cgroup" : "sys/fs/cgroup/memory";
        char text[256];
        begin_anew(pad);
        uint64_t least = 1024 * (uint64_t)(600000 + pad_draw(pad, 1000));
        int where = LEVELS;
        put_available(pad, least / 1024);
        for (int l = 0; l < LEVELS; l++) { // groups that it is not in count nothing
            char folder[256];
            struct group g = {.limit = pad_draw(pad, 4) ? 100000000 + pad_draw(pad, 900000000) : UINT64_MAX,
                              .used = pad_draw(pad, 90000000),
                              .files = pad_draw(pad, 3) ? pad_draw(pad, 40000000) : 0,
                              .slab = pad_draw(pad, 3) ? pad_draw(pad, 20000000) : 0,
                              .exists = pad_draw(pad, 8)};
            if (pad_draw(pad, 16) == 0) g.used = g.limit; // full but for what is given back
            snprintf(folder, sizeof folder, "%s%s", root, folders[l]);
            put_group(pad, folder, &g, second);
            if (l >= levels || left_of(&g, second) >= least) continue;
            least = left_of(&g, second);
            where = l;
        }
        tightest[second][where]++;
        const char *own = levels == 1 ? "/" : folders[levels - 1];
        snprintf(text, sizeof text,
                 second ? "0::%s\n"
                        : "9:name=systemd:/elsewhere\n8:memoryx:/a/x\n5:cpu,memory,pids:%s\n4:xmemory:/\n",
                 own);
        put(pad, "proc/self/cgroup", text);
        expect(pad, least);
    }
    for (int v = 0; v < 2; v++)
        for (int l = 0; l <= LEVELS; l++) assert_true(tightest[v][l] > 0);
}

/* One that sees its own group as the first is told a name that it does not see. */
static void a_container_has_the_limit_that_it_sees(void **state)
{
    scratch_pad *pad = *state;
    for (int second = 0; second < 2; second++) {
        const struct group g = {.limit = 5000000, .used = 1000000, .files = 3, .exists = true};
        begin_anew(pad);
        put(pad, "proc/self/cgroup", second ? "0::/docker/0123\n" : "7:memory:/docker/0123\n");
        put_group(pad, second ? "sys/fs/cgroup" : "sys/fs/cgroup/memory", &g, second);
        expect(pad, 4000003);
    }
}

/* Where both versions are in use, each limits. */
static void both_versions_count(void **state)
{
    scratch_pad *pad = *state;
    begin_anew(pad);
    put(pad, "proc/self/cgroup", "3:memory:/m\n0::/n\n");
    struct group g = {.limit = 500, .used = 100, .exists = true};
    put_group(pad, "sys/fs/cgroup/memory/m", &g, false);
    expect(pad, 400);
    g.limit = 300;
    put_group(pad, "sys/fs/cgroup/n", &g, true);
    expect(pad, 200);
    g.limit = 50; // less than it holds
    put_group(pad, "sys/fs/cgroup/memory/m", &g, false);
    expect(pad, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_told),
        cmocka_unit_test(the_tightest_group_counts),
        cmocka_unit_test(a_container_has_the_limit_that_it_sees),
        cmocka_unit_test(both_versions_count),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
