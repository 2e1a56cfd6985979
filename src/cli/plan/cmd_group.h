/* The parts of `coterie group`. */
#ifndef COT_CLI_PLAN_CMD_GROUP_H
#define COT_CLI_PLAN_CMD_GROUP_H
#include "cli/plan/cmd_predict.h"
#include "coterie/group_solve.h"
#include "coterie/topology.h"

typedef struct cli_group_settings {
    const char *trace, *method, *topology, *hosts, *nvlink, *link_cost, *tables, *placement, *tokenizer,
        *embeddings;
    int64_t ranks, nodes, iterations, seed, order, threads;
    double seconds, token_balance, expert_load, split, stay_weight, shrink;
    bool joint, json, processor;
} cli_group_settings;

/* What all methods group. */
typedef struct cli_group_inputs {
    cot_trace trace;
    int32_t *ids;      // the trace's, where a tokenizer gave them
    uint8_t *training; // [S]; NULL: all of the trace
    cot_affinities affinities;
    double cost_in, cost_out;
    float *embedding;
    cot_predict_embedding embeddings;
    double *distance; // [D][D] of the topology, or NULL
} cli_group_inputs;

/* The groups of one method, and their worth. */
typedef struct cli_grouped {
    const char *method;
    cot_group_solution found;
    double seconds;
    cli_prediction_row row; // on training and test sequences; empty where tokens have no ids
} cli_grouped;

void cli_grouped_print(const cli_grouped *grouped, size_t n, const cli_group_settings *s,
                       const cli_group_inputs *in);
json_t *cli_grouped_json(const cli_grouped *grouped, const cli_group_settings *s, const cli_group_inputs *in);

#endif
