/* What every backend must do. */
#ifndef COT_TESTS_HARNESS_FABRIC_CONFORMANCE_H
#define COT_TESTS_HARNESS_FABRIC_CONFORMANCE_H
#include "harness/fabric/job.h"

#include <stdbool.h>
#include <stdint.h>

#define PATIENT_NS INT64_C(100000000000) // of tests where nobody fails

/* What the tests are of: a backend, and the shape of its links. */
struct subject {
    const cot_fabric_backend *backend;
    double link_bytes_per_s; // both 0: no shape
    int64_t link_latency_ns;
    bool brief; // fewer kinds of groups, for what the suite has been through without a link
};

/* A job of the subject with a small heap and nothing to call; it is `job`. */
const group_job *small_job(group_job *job, const struct subject *subject, int ranks, int running,
                           bool (*body)(cot_fabric *, const struct group_job *));

/* The suite over one backend: how many tests failed. */
int run_conformance(struct subject *subject);

#endif
