#include "fabric/reports.h"

#include "base/error.h"

#include <sched.h>
#include <string.h>

struct report {
    int32_t status;
    char message[sizeof((cot_error *)0)->message];
};

size_t cot_reports_heap_bytes(int ranks)
{
    return cot_alloc_bytes((size_t)ranks * sizeof(struct report)) +
           cot_alloc_bytes((size_t)ranks * sizeof(uint64_t));
}

cot_status cot_reports_open(cot_reports *r, cot_fabric *fabric, cot_error *error)
{
    r->fabric = fabric;
    cot_status status = cot_alloc(fabric, &r->at, (size_t)fabric->ranks * sizeof(struct report), error);
    if (status != COT_OK) return status;
    return cot_alloc(fabric, &r->signals, (size_t)fabric->ranks * sizeof(uint64_t), error);
}

static cot_sym signal_of(const cot_reports *r, int rank)
{
    return r->signals + (cot_sym)rank * sizeof(uint64_t);
}

void cot_reports_send(cot_reports *r, uint64_t number, cot_status status, const cot_error *error)
{
    struct report report = {.status = (int32_t)status};
    if (status != COT_OK) memcpy(report.message, error->message, sizeof report.message);
    const int rank = r->fabric->rank;
    cot_put_signal(r->fabric, 0, r->at + (cot_sym)rank * sizeof report, &report, sizeof report,
                   signal_of(r, rank), number, COT_PHASE_CONTROL);
    cot_rouse(r->fabric, 0);
}

/* Whether all reports are there, or one that tells the reason: that one becomes the status. */
static bool look(const cot_reports *r, uint64_t number, cot_status *status, cot_error *error)
{
    const struct report *reports = cot_local(r->fabric, r->at);
    int missing = 0;
    for (int rank = 1; rank < r->fabric->ranks; rank++) {
        if (cot_signal_load(r->fabric, signal_of(r, rank)) < number) {
            missing += !r->fabric->ops->death(r->fabric, rank); // the dead report no more
            continue;
        }
        const cot_status theirs = (cot_status)reports[rank].status;
        if (theirs == COT_OK || (theirs == COT_PEER_FAILED && *status != COT_OK)) continue;
        *status = cot_fail(error, theirs, "%s", reports[rank].message);
        if (theirs != COT_PEER_FAILED) return true;
    }
    return !missing;
}

static const int64_t most_patience_ns = 1000000000;

cot_status cot_reports_collect(cot_reports *r, uint64_t number, cot_status status, cot_error *error)
{
    const int64_t timeout_ns = r->fabric->timeout_ns,
                  patience_ns = timeout_ns / 4 < most_patience_ns ? timeout_ns / 4 : most_patience_ns;
    for (int rank = 1; rank < r->fabric->ranks && status == COT_OK; rank++)
        status = cot_wait_patiently(r->fabric, signal_of(r, rank), number, rank, COT_PHASE_CONTROL, error);
    if (status != COT_OK && status != COT_PEER_FAILED) return status;
    const int64_t since_ns = r->fabric->ops->now_ns(r->fabric);
    while (!look(r, number, &status, error) && r->fabric->ops->now_ns(r->fabric) - since_ns < patience_ns)
        sched_yield();
    return status;
}

cot_status cot_reports_await(cot_reports *r, uint64_t number, cot_error *error)
{
    cot_status status = COT_OK;
    for (int rank = 1; rank < r->fabric->ranks && status == COT_OK; rank++)
        status = cot_wait(r->fabric, signal_of(r, rank), number, rank, COT_PHASE_CONTROL, error);
    return status == COT_OK ? cot_reports_collect(r, number, COT_OK, error) : status;
}
