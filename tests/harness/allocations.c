#include "harness/allocations.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

/* An allocator is told nothing but sizes, so that what it counts has no other place. */
static atomic_long allocations;
static atomic_long failing; // the number of the one that fails; 0: none

long allocations_so_far(void)
{
    return atomic_load(&allocations);
}

void fail_allocation(long number)
{
    atomic_store(&failing, number);
}

#define WRAP(type, name, parameters, arguments, failure)                                                     \
    type __real_##name parameters;                                                                           \
    type __wrap_##name parameters;                                                                           \
    type __wrap_##name parameters                                                                            \
    {                                                                                                        \
        if (atomic_fetch_add(&allocations, 1) + 1 == atomic_load(&failing)) return failure;                  \
        return __real_##name arguments;                                                                      \
    }
WRAP(void *, malloc, (size_t bytes), (bytes), NULL)
WRAP(void *, calloc, (size_t n, size_t bytes), (n, bytes), NULL)
WRAP(void *, realloc, (void *old, size_t bytes), (old, bytes), NULL)
WRAP(void *, aligned_alloc, (size_t align, size_t bytes), (align, bytes), NULL)
WRAP(int, posix_memalign, (void **out, size_t align, size_t bytes), (out, align, bytes), ENOMEM)
WRAP(void *, mmap, (void *at, size_t bytes, int protection, int flags, int file, off_t offset),
     (at, bytes, protection, flags, file, offset), MAP_FAILED)
