/* Memory of a heap that the system gets back: it is zero then, what lies beside it is not, and it can be written again; of processes all see it. */
#include "harness/cmocka.h"
#include "harness/engine/requests.h"
#include "harness/engine/settings.h"
#include "harness/seed.h"

#include "fabric/threads/threads.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 300000, TIMES = 200 };

static size_t resident(const uint8_t *begin, size_t small)
{
    const uintptr_t first = (uintptr_t)begin / small * small;
    unsigned char in[BYTES / 4096 + 2];
    const size_t pages = ((uintptr_t)begin + BYTES - first + small - 1) / small;
    size_t count = 0;
    assert_true(pages <= sizeof in);
    assert_int_equal(mincore((void *)first, pages * small, in), 0);
    for (size_t i = 0; i < pages; i++) count += in[i] & 1;
    return count;
}

/* In this process, or in a child of it. */
static void give_back(cot_fabric *fabric, cot_sym where, size_t bytes, bool forked)
{
    const pid_t child = forked ? fork() : -1;
    if (child > 0) {
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
        return;
    }
    fabric->ops->give_back(fabric, where, bytes);
    if (!child) _exit(0);
}

static void what_is_given_back_is_zero(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    const size_t small = (size_t)sysconf(_SC_PAGESIZE);
    static uint8_t wanted[BYTES];
    for (int forked = 0; forked <= (CAN_FORK ? 1 : 0); forked++) {
        const cot_fabric_group_options options = {
            .ranks = 2, .running = 2, .timeout_ns = 1000000000, .heap_bytes = 2 * BYTES, .forked = forked};
        cot_fabric_group *group;
        cot_sym first, at;
        size_t least = SIZE_MAX;
        assert_int_equal(cot_fabric_group_open(&group, &options, NULL), COT_OK);
        cot_fabric *fabric = cot_fabric_group_rank(group, 1);
        assert_int_equal(cot_alloc(fabric, &first, 64 * (1 + draw(&seed) % 60), NULL), COT_OK);
        assert_int_equal(cot_alloc(fabric, &at, BYTES, NULL), COT_OK);
        uint8_t *memory = cot_local(fabric, at);
        for (int i = 0; i < TIMES; i++) {
            for (size_t b = 0; b < BYTES; b++)
                memory[b] = wanted[b] = (uint8_t)(1 + (b * 7 + (size_t)i) % 255);
            const bool all = i == TIMES - 1; // but for what lies in pages of the kernel with others
            const size_t begin = all ? 0 : draw(&seed) % BYTES,
                         bytes = all ? BYTES : draw(&seed) % (BYTES - begin + 1);
            const uintptr_t from = ((uintptr_t)memory + begin + small - 1) / small * small,
                            to = ((uintptr_t)memory + begin + bytes) / small * small;
            if (from < to) memset(wanted + (from - (uintptr_t)memory), 0, to - from);
            give_back(fabric, at + begin, bytes, forked && i % 8 == 0);
            const size_t now = resident(memory, small);
            if (now < least) least = now;
            assert_memory_equal(memory, wanted, BYTES);
        }
        assert_in_range(least, 0, 2);
        cot_fabric_group_close(group);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_given_back_is_zero)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
