/* Nothing allocates once the collectives are open: the linker sends all allocators of the library through
 * these. */
#include "harness/allocations.h"
#include "harness/cmocka.h"
#include "harness/fabric/calls.h"
#include "harness/fabric/job.h"
#include "harness/seed.h"

#include <stdlib.h>

static bool body(cot_fabric *fabric, const group_job *job)
{
    cot_collectives_options options;
    calls_heap_bytes(job, &options);
    cot_collectives *collectives;
    const long before = allocations_so_far();
    CHECK(!cot_collectives_open(&collectives, fabric, &options, NULL), "memory");
    CHECK(allocations_so_far() > before, "the counters do not count");
    float *x = calloc(MAX_ELEMENTS, sizeof *x);
    moment *moments = calloc((size_t)job->ranks * (size_t)job->calls, sizeof *moments);
    CHECK(x && moments, "memory");
    CHECK(!cot_barrier(collectives, COT_PHASE_CONTROL, NULL), "barrier"); // all have opened
    const long opened = allocations_so_far();
    cot_turns_enter(fabric);
    const bool ok = calls_sequence(fabric, job, collectives, x, moments);
    cot_turns_leave(fabric);
    CHECK(!cot_barrier(collectives, COT_PHASE_CONTROL, NULL), "barrier"); // nobody is at work any more
    CHECK(allocations_so_far() == opened, "%ld allocations", allocations_so_far() - opened);
    CHECK(!cot_barrier(collectives, COT_PHASE_CONTROL, NULL), "barrier"); // all have looked
    cot_collectives_close(collectives);
    free(x);
    free(moments);
    return ok;
}

static void test_allocations(void **state)
{
    (void)state;
    group_job job = {.backend = cot_fabric_backend_find("threads"), // which the counters are shared by
                     .ranks = 4,
                     .running = 2,
                     .timeout_ns = 100000000000,
                     .seed = test_seed(),
                     .calls = 60};
    cot_collectives_options options;
    job.heap_bytes = calls_heap_bytes(&job, &options);
    job.body = body;
    cot_traffic totals[COT_PHASES];
    run_job(&job, totals);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_allocations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
