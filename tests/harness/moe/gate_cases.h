/* The gates that a router is tested with: those of the models that src/model knows, and what lies at their edges. */
#ifndef COT_TESTS_HARNESS_MOE_GATE_CASES_H
#define COT_TESTS_HARNESS_MOE_GATE_CASES_H
#include "harness/moe/oracle_gate.h"

struct gate_case {
    const char *name;
    int64_t hidden, experts, top_k, groups, group_limit;
    cot_gate_score score;
    cot_gate_group_score group_score;
    bool normalise, bias, correction;
    float epsilon, scaling;
};

enum { GATE_CASES = 11 };
extern const struct gate_case gate_cases[GATE_CASES];

/* Such a gate with drawn weights. */
struct oracle_gate gate_of_case(const struct gate_case *c, struct draw *draw);

#endif
