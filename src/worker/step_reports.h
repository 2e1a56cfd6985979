/* Reports of steps on their way from who computes to those who follow them, on a PUB socket of their own:
 *
 *     computing thread:  step --ring--> loop's thread:  [topic "steps", number, payload] --publisher--> subscribers
 *
 * A payload is a step, a map of msgpack. It is sent a tenth of a second later at most, together with those that come until then. Nobody is waited for: where the ring is full reports are lost, and the numbers of their
 * steps are missing. */
#ifndef COT_WORKER_STEP_REPORTS_H
#define COT_WORKER_STEP_REPORTS_H
#include "worker/backend.h"

struct event_base;
typedef struct cot_step_reports cot_step_reports;

enum { COT_REPORT_PHASES = 8 }; // at most

/* What a step was. Counters are those since the step before that was told. */
typedef struct cot_backend_report {
    int64_t step;                  // its number, from 1
    int64_t sequences;             // that had a part in it
    int64_t tokens, prompt_tokens; // that were fed; those of prompts among them
    int64_t positions, pairs;      // whose keys and values were read; tokens and the positions that each saw
    uint64_t epoch;                // of the placement that it ran with
    double predicted_ns, observed_ns; // what it was expected to take, and took
    int phases;
    const char *const *phase;          // [phases] names, constant
    uint64_t bytes[COT_REPORT_PHASES]; // [phases] sent from rank to rank
    int ranks;
    const cot_backend_rank *rank; // [ranks]
    int homes;
    const cot_home_load *home; // [homes] as the step was over
} cot_backend_report;

/* Publishes steps of so many ranks, 1 to 64, and no more homes. `*reports` is NULL on failure. Errors: IO (the port is taken), INVALID_ARGUMENT (an
 * address that is not here), OUT_OF_MEMORY. */
cot_status cot_step_reports_open(cot_step_reports **reports, const cot_endpoint *endpoint, int ranks,
                                 struct event_base *base, cot_error *error);
/* The computing thread, which may be the loop's: a step is over. What is pointed to is copied, `phase` aside. */
void cot_step_reports_put(cot_step_reports *reports, const cot_backend_report *report);
/* When nobody puts any more. NULL is fine. */
void cot_step_reports_close(cot_step_reports *reports);

#endif
