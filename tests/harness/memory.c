#include "harness/memory.h"

#include "harness/cmocka.h"

#include <stdlib.h>

void *must_allocate(size_t n, size_t bytes)
{
    void *memory = calloc(n ? n : 1, bytes);
    assert_non_null(memory);
    return memory;
}
