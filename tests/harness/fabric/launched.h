/* A group of ranks that a test launches. */
#ifndef COT_TESTS_HARNESS_FABRIC_LAUNCHED_H
#define COT_TESTS_HARNESS_FABRIC_LAUNCHED_H
#include "fabric/launch.h"

static const int64_t launch_timeout_ns = 100000000000; // longer than any test waits

/* So many ranks with a thread each, a heap of 64 KiB and that time-out. */
cot_launch_options launch_options_of(int ranks, cot_rank_main *main);

/* Rank 0 of a group that was launched, or the test fails. */
const cot_rank *must_launch(cot_launch **launch, const cot_fabric_backend *backend,
                            const cot_launch_options *options);

#endif
