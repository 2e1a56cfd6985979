/* Counts what the library allocates: a test program whose linker wraps the allocators (its tests.cmake) includes this. */
#ifndef COT_TESTS_COUNT_ALLOCATIONS_H
#define COT_TESTS_COUNT_ALLOCATIONS_H
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

static atomic_long allocations;

#define WRAP(type, name, parameters, arguments)                                                              \
    type __real_##name parameters;                                                                           \
    type __wrap_##name parameters;                                                                           \
    type __wrap_##name parameters                                                                            \
    {                                                                                                        \
        atomic_fetch_add(&allocations, 1);                                                                   \
        return __real_##name arguments;                                                                      \
    }
WRAP(void *, malloc, (size_t bytes), (bytes))
WRAP(void *, calloc, (size_t n, size_t bytes), (n, bytes))
WRAP(void *, realloc, (void *old, size_t bytes), (old, bytes))
WRAP(void *, aligned_alloc, (size_t align, size_t bytes), (align, bytes))
WRAP(int, posix_memalign, (void **out, size_t align, size_t bytes), (out, align, bytes))
WRAP(void *, mmap, (void *at, size_t bytes, int protection, int flags, int file, off_t offset),
     (at, bytes, protection, flags, file, offset))

#endif
