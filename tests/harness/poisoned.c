#include "harness/poisoned.h"

#include "harness/cmocka.h"

#include <stdlib.h>
#include <string.h>

void *poisoned(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    assert_non_null(memory);
    memset(memory, 0xff, (bytes + 63) / 64 * 64 + 64); // NaN as any float type
    return memory;
}
