#include "base/arena.h"

#include "base/error.h"

#include <assert.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

uint64_t cot_arena_mappable_bytes(void)
{
    struct rlimit most;
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    const bool known = file && fscanf(file, "%llu", &pages) == 1;
    if (file) fclose(file);
    if (!known || getrlimit(RLIMIT_AS, &most) != 0 || most.rlim_cur == RLIM_INFINITY) return UINT64_MAX;
    const uint64_t used = (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
    return most.rlim_cur > used ? most.rlim_cur - used : 0;
}

static cot_status fail_to_map(size_t bytes, cot_error *error)
{
    const uint64_t most = cot_arena_mappable_bytes();
    if (most == UINT64_MAX) return cot_fail(error, COT_OUT_OF_MEMORY, "cannot map %zu bytes", bytes);
    return cot_fail(error, COT_OUT_OF_MEMORY,
                    "cannot map %zu bytes of memory: this process may map %.3f GB more (ulimit -v)", bytes,
                    (double)most / 1e9);
}

cot_status cot_arena_open(cot_arena *arena, size_t bytes, cot_error *error)
{
    *arena = (cot_arena){.bytes = bytes};
    void *memory = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return fail_to_map(bytes, error);
    madvise(memory, bytes, MADV_HUGEPAGE);
    arena->memory = memory;
    return COT_OK;
}

void cot_arena_close(cot_arena *arena)
{
    if (arena->memory) munmap(arena->memory, arena->bytes ? arena->bytes : 1);
    *arena = (cot_arena){0};
}

void *cot_arena_take(cot_arena *arena, size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > SIZE_MAX / 4) bytes = SIZE_MAX / 4;
    bytes = (bytes + 63) / 64 * 64;
    size_t begin = arena->used;
    if (__builtin_add_overflow(begin, bytes, &arena->used)) arena->used = SIZE_MAX / 4 * 3;
    if (cot_arena_measures(arena)) return NULL;
    assert(arena->used <= arena->bytes);
    return arena->memory + begin;
}
