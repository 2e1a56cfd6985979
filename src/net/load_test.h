/* The parts of a load test: what is asked, and what is counted. */
#ifndef COT_NET_LOAD_TEST_H
#define COT_NET_LOAD_TEST_H
#include "coterie/load_test.h"
#include <stdbool.h>

/* One request as it is to be made. */
typedef struct cot_load_test_request {
    int64_t at_ns;                       // after the start; 0 in a closed loop
    int64_t input_tokens, output_tokens; // input: 0 where `prompt` says
    const char *prompt;                  // NULL: random ids
    /* Of a trace with hash ids: its blocks in the plan's, and how many of them no request before it had. */
    size_t first_block, blocks, novel;
} cot_load_test_request;

typedef struct cot_load_test_plan {
    cot_load_test_request *requests;
    size_t count;
    char *text;               // that prompts point into
    cot_load_test_ids blocks; // hash ids of a trace's requests; equal ones are equal beginnings
    int64_t block_tokens;     // of each, scaled
    uint8_t *seen;            // [seen_bytes] a bit for each hash id that came
    size_t seen_bytes;
} cot_load_test_plan;

/* Reads the files and draws the times. Errors as cot_load_test_run. */
cot_status cot_load_test_plan_make(cot_load_test_plan *plan, const cot_load_test_options *options,
                                   cot_error *error);
void cot_load_test_plan_free(cot_load_test_plan *plan);
/* Where requests are sent. */
const char *cot_load_test_path(const cot_load_test_options *options);
/* The request's body, malloc'd; NULL when out of memory. */
char *cot_load_test_body(const cot_load_test_plan *plan, size_t request, const cot_load_test_options *options,
                         const char *model);

/* Times that are collected. All zero is empty. */
typedef struct cot_load_test_list {
    double *ms;
    size_t count, room;
} cot_load_test_list;

/* false: out of memory */
bool cot_load_test_list_add(cot_load_test_list *list, double ms);
/* Sorts the list. */
cot_load_test_times cot_load_test_list_times(cot_load_test_list *list);
/* Workers by their names, and tokens that each computed. All zero is empty. */
typedef struct cot_load_test_workers {
    struct cot_load_test_worker {
        char name[128];
        int64_t tokens;
    } * worker;
    size_t count, room;
    bool untold; // for some tokens nobody is named
} cot_load_test_workers;

/* name: "" for nobody. false: out of memory */
bool cot_load_test_count_worker(cot_load_test_workers *workers, const char *name, int64_t tokens);
/* The tokens of the one that has most, over the mean; 0 where that is not known. */
double cot_load_test_busiest(const cot_load_test_workers *workers);
/* Counts a failure under its kind; `words` are kept of the first. */
void cot_load_test_count_failure(cot_load_test_report *report, const char *what, const char *words);
/* Counts an answer 429 of an open loop; `words` are kept of the first. */
void cot_load_test_count_rejection(cot_load_test_report *report, const char *words);

#endif
