/* How ranks tell rank 0 what came of something: a status and its message, by puts alone. */
#ifndef COT_FABRIC_REPORTS_H
#define COT_FABRIC_REPORTS_H
#include "fabric/fabric.h"

typedef struct cot_reports {
    cot_fabric *fabric;
    cot_sym at, signals; // [P] of each, used on rank 0
} cot_reports;

size_t cot_reports_heap_bytes(int ranks);
/* A collective allocation. Errors: OUT_OF_MEMORY. */
cot_status cot_reports_open(cot_reports *reports, cot_fabric *fabric, cot_error *error);

/* Report number `number` of this rank, larger than those before; what it put to rank 0 is there with it. The
 * message of `error` is sent where `status` is not COT_OK. */
void cot_reports_send(cot_reports *reports, uint64_t number, cot_status status, const cot_error *error);
/* On rank 0, whose own result is `status`: waits for report `number` of every other rank, as long as they live,
 * and returns the first failure, if there is one that says more than that another rank failed. Once the group
 * has failed it waits for a moment only: the reason is sent right after the failure is told. */
cot_status cot_reports_collect(cot_reports *reports, uint64_t number, cot_status status, cot_error *error);
/* On rank 0: waits for report `number` of every other rank as cot_wait does, and returns the first failure. */
cot_status cot_reports_await(cot_reports *reports, uint64_t number, cot_error *error);

#endif
