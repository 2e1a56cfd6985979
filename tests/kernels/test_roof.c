/* The roofs: plausible, of the asked instruction set, and refused where they cannot be. */
#include "harness/kernels/check.h"

#include "coterie/roof.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The context counts the looks, of which the third finds a reason to end. */
static cot_status end_at_third_look(void *context, cot_error *error)
{
    int *looks = context;
    if (++*looks < 3) return COT_OK;
    snprintf(error->message, sizeof error->message, "enough");
    return error->status = COT_PEER_FAILED;
}

static size_t told_cache = (size_t)136 << 20;
static long told_gigabytes; // of memory; 0: as the system says

/* Whatever this machine's are (tests.cmake). */
size_t __wrap_cot_last_level_cache_bytes(void);
size_t __wrap_cot_last_level_cache_bytes(void)
{
    return told_cache;
}

long __real_sysconf(int name);
long __wrap_sysconf(int name);
long __wrap_sysconf(int name)
{
    return name == _SC_PHYS_PAGES && told_gigabytes ? (told_gigabytes << 30) / __real_sysconf(_SC_PAGESIZE)
                                                    : __real_sysconf(name);
}

/* A cache that the system does not tell, or tells wrongly, leaves a buffer that fits in memory. */
static void wrong_caches(void)
{
    const size_t megabyte = 1 << 20;
    const struct {
        size_t cache;
        long gigabytes;
        size_t bytes;
    } of[] = {{0, 24, 512 * megabyte},
              {32 * megabyte, 24, 512 * megabyte},
              {1024 * megabyte, 24, 4096 * megabyte},
              {1024 * megabyte, 4, 1024 * megabyte},
              {1024 * megabyte, 1, 512 * megabyte},
              {SIZE_MAX / 2, 24, 6144 * megabyte}};
    const size_t cache = told_cache;
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        told_cache = of[i].cache;
        told_gigabytes = of[i].gigabytes;
        CHECK(cot_roof_buffer_bytes() == of[i].bytes, "a cache of %zu bytes, %ld GiB of memory: %zu bytes",
              told_cache, told_gigabytes, cot_roof_buffer_bytes());
    }
    told_cache = cache;
    told_gigabytes = 0;
}

/* As the system spells it for its first processor, where it does. */
static void names_the_processor(void)
{
    char line[512], name[128] = "unknown";
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "model name : %127[^\n]", name) == 1) break;
    if (file) fclose(file);
    CHECK(strcmp(cot_cpu_name(), name) == 0, "'%s', not '%s'", cot_cpu_name(), name);
}

int main(void)
{
    cot_roof roof = {0};
    cot_error error = {0};
    enum { BYTES = 8 << 20 };
    printf("cpu %s, last-level cache %zu bytes\n", cot_cpu_name(), cot_last_level_cache_bytes());
    wrong_caches();
    names_the_processor();
    CHECK(*cot_cpu_name() && cot_cpu_name() == cot_cpu_name(), "a constant name");
    CHECK(cot_roof_measure(&roof, 2, NULL, BYTES, NULL, NULL, &error) == COT_OK, "%s", error.message);
    printf("2 threads: f32 %.3g flop/s, bf16 %.3g flop/s, read %.3g byte/s\n", roof.f32_flops,
           roof.bf16_flops, roof.read_bytes_per_second);
    CHECK(roof.buffer_bytes == BYTES, "%zu bytes", roof.buffer_bytes);
    CHECK(roof.f32_flops > 1e7 && roof.f32_flops < 1e14, "%g", roof.f32_flops);
    CHECK(roof.bf16_flops > 1e7 && roof.bf16_flops < 1e15, "%g", roof.bf16_flops);
    CHECK(roof.int8_ops > 1e7 && roof.int8_ops < 1e15, "%g", roof.int8_ops);
    CHECK(roof.read_bytes_per_second > 1e7 && roof.read_bytes_per_second < 1e14, "%g",
          roof.read_bytes_per_second);
    CHECK(cot_roof_measure(&roof, 2, NULL, 0, NULL, NULL, &error) == COT_OK, "%s", error.message);
    CHECK(roof.buffer_bytes == (size_t)4 * 136 << 20, "%zu bytes where four caches are more than 512 MiB",
          roof.buffer_bytes);
    const cot_roof before = roof;
    CHECK(cot_roof_measure(&roof, 1, "mmx", BYTES, NULL, NULL, &error) == COT_UNSUPPORTED &&
              strstr(error.message, "'mmx'"),
          "%s", error.message);
    CHECK(cot_roof_measure(&roof, 0, NULL, BYTES, NULL, NULL, NULL) == COT_INVALID_ARGUMENT, "no threads");
    CHECK(cot_roof_measure(&roof, 257, NULL, BYTES, NULL, NULL, NULL) == COT_INVALID_ARGUMENT,
          "too many threads");
    CHECK(cot_roof_measure(&roof, 1, NULL, SIZE_MAX / 2, NULL, NULL, &error) == COT_OUT_OF_MEMORY, "%s",
          error.message);
    int looks = 0;
    CHECK(cot_roof_measure(&roof, 2, NULL, BYTES, end_at_third_look, &looks, &error) == COT_PEER_FAILED &&
              looks == 3 && !strcmp(error.message, "enough"),
          "%d looks, %s", looks, error.message);
    CHECK(memcmp(&roof, &before, sizeof roof) == 0, "untouched on failure");
    return 0;
}
