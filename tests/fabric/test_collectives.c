/* What collectives may touch, and whom a barrier waits for. What they compute is part of the conformance suite. */
#include "harness/cmocka.h"
#include "harness/fabric/job.h"

#include "fabric/collectives.h"
#include "base/rng.h"

#include <stdio.h>
#include <string.h>

enum { GUARD_BYTES = 1 << 20, ELEMENTS = 3000, BYTES = 20000 };

static const cot_collectives_options limits = {
    .reduce_elements = ELEMENTS, .gather_bytes = BYTES, .exchange_bytes = BYTES};

static uint8_t guard_byte(size_t at, int which)
{
    return (uint8_t)(cot_mix64(at) + (uint64_t)which);
}

static bool guard_is_whole(const uint8_t *guard, int which)
{
    for (size_t i = 0; i < GUARD_BYTES; i++)
        if (guard[i] != guard_byte(i, which)) return false;
    return true;
}

/* As much as the options allow, often enough that each half of the scratch is used: all is right, and what lies before
 * and after the collectives' memory is as it was. */
static bool guarded_body(cot_fabric *fabric, const group_job *job)
{
    const size_t ranks = (size_t)fabric->ranks;
    cot_sym guards[2];
    cot_collectives *c;
    CHECK(!cot_alloc(fabric, &guards[0], GUARD_BYTES, NULL), "memory");
    CHECK(!cot_collectives_open(&c, fabric, &limits, NULL), "memory");
    CHECK(!cot_alloc(fabric, &guards[1], GUARD_BYTES, NULL), "memory");
    for (int g = 0; g < 2; g++)
        for (size_t i = 0; i < GUARD_BYTES; i++)
            ((uint8_t *)cot_local(fabric, guards[g]))[i] = guard_byte(i, g);
    cot_turns_enter(fabric);
    CHECK(!cot_barrier(c, COT_PHASE_CONTROL, NULL), "barrier");
    static _Thread_local float x[ELEMENTS];
    static _Thread_local uint8_t all[BYTES];
    size_t begin[COT_MAX_RANKS + 1], place[COT_MAX_RANKS];
    for (size_t r = 0; r <= ranks; r++) begin[r] = BYTES * r / ranks;
    for (int call = 0; call < 4; call++) {
        for (int i = 0; i < ELEMENTS; i++) x[i] = (float)((i + call) * (fabric->rank + 1));
        CHECK(!cot_allreduce(c, x, ELEMENTS, COT_F32, COT_PHASE_CONTROL, NULL), "allreduce");
        for (int i = 0; i < ELEMENTS; i++)
            CHECK(x[i] == (float)((i + call) * fabric->ranks * (fabric->ranks + 1) / 2), "element %d", i);
        memset(all, 0, sizeof all);
        memset(all + begin[fabric->rank], fabric->rank + call + 1,
               begin[fabric->rank + 1] - begin[fabric->rank]);
        CHECK(!cot_allgather(c, all, begin, COT_PHASE_CONTROL, NULL), "allgather");
        for (size_t r = 0; r < ranks; r++)
            for (size_t i = begin[r]; i < begin[r + 1]; i++)
                CHECK(all[i] == r + (size_t)call + 1, "byte %zu", i);
        /* Everybody sends its r-th block to rank r, where blocks as large as the largest lie side by side. */
        const void *received;
        for (size_t r = 0; r < ranks; r++) place[r] = (size_t)fabric->rank * (BYTES / ranks);
        for (size_t r = 0; r <= ranks; r++) begin[r] = BYTES / ranks * r;
        CHECK(!cot_alltoallv(c, &received, all, begin, place, COT_PHASE_CONTROL, NULL), "alltoallv");
        for (size_t i = 0; i < begin[ranks]; i++)
            CHECK(((const uint8_t *)received)[i] == all[begin[fabric->rank] + i % (BYTES / ranks)],
                  "byte %zu", i);
        for (size_t r = 0; r <= ranks; r++) begin[r] = BYTES * r / ranks;
    }
    CHECK(!cot_barrier(c, COT_PHASE_CONTROL, NULL), "barrier");
    for (int g = 0; g < 2; g++)
        CHECK(guard_is_whole(cot_local(fabric, guards[g]), g), "what lies %s the collectives was overwritten",
              g ? "after" : "before");
    cot_turns_leave(fabric);
    cot_collectives_close(c);
    return true;
}

static void test_memory(void **state)
{
    (void)state;
    static const char *const names[] = {"threads", "processes"};
    for (int b = 0; b < 2; b++)
        for (int ranks = 1; ranks <= 5; ranks += 2) {
            const group_job job = {.backend = cot_fabric_backend_find(names[b]),
                                   .ranks = ranks,
                                   .running = 2,
                                   .heap_bytes = 2 * cot_alloc_bytes(GUARD_BYTES) +
                                                 cot_collectives_heap_bytes(&limits, ranks),
                                   .timeout_ns = 100000000000,
                                   .body = guarded_body};
            cot_traffic totals[COT_PHASES];
            run_job(&job, totals);
        }
}

/* The last rank does not come: who waits for it directly says so. */
static bool absent_body(cot_fabric *fabric, const group_job *job)
{
    cot_collectives *c;
    cot_error error = {0};
    CHECK(!cot_collectives_open(&c, fabric, &limits, NULL), "memory");
    const int absent = fabric->ranks - 1;
    cot_turns_enter(fabric);
    if (fabric->rank != absent) {
        char want[64];
        snprintf(want, sizeof want, "rank %d did not answer", absent);
        const cot_status status = cot_barrier(c, COT_PHASE_CONTROL, &error);
        CHECK(status == COT_TIMED_OUT && !strncmp(error.message, want, strlen(want)), "'%s'", error.message);
    }
    cot_turns_leave(fabric);
    cot_collectives_close(c);
    return true;
}

static void test_absence(void **state)
{
    (void)state;
    const group_job job = {.backend = cot_fabric_backend_find("threads"),
                           .ranks = 2,
                           .running = 2,
                           .heap_bytes = cot_collectives_heap_bytes(&limits, 2),
                           .timeout_ns = 300000000,
                           .body = absent_body};
    cot_traffic totals[COT_PHASES];
    run_job(&job, totals);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_memory), cmocka_unit_test(test_absence)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
