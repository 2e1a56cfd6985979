#include "harness/moe/gate_cases.h"

const struct gate_case gate_cases[GATE_CASES] = {
    {"mixtral", 64, 8, 2, 1, 1, COT_GATE_SOFTMAX, COT_GROUP_MAX, true, false, false, 0, 1},
    {"olmoe", 48, 64, 8, 1, 1, COT_GATE_SOFTMAX, COT_GROUP_MAX, false, false, false, 0, 1},
    {"deepseek-v2", 33, 40, 6, 8, 3, COT_GATE_SOFTMAX, COT_GROUP_MAX, false, false, false, 0, 16},
    {"deepseek-v2, few left", 33, 16, 6, 8, 2, COT_GATE_SOFTMAX, COT_GROUP_MAX, false, false, false, 0, 1},
    {"deepseek-v3", 56, 64, 8, 8, 4, COT_GATE_SIGMOID, COT_GROUP_TOP2_SUM, true, false, true, 1e-20f, 2.5f},
    {"deepseek-v3, no groups", 56, 24, 3, 1, 1, COT_GATE_SIGMOID, COT_GROUP_TOP2_SUM, true, false, true,
     1e-20f, 2.5f},
    {"deepseek-v3, as many as left", 20, 32, 8, 8, 2, COT_GATE_SIGMOID, COT_GROUP_TOP2_SUM, false, false,
     true, 0, 1},
    {"gpt-oss", 47, 32, 4, 1, 1, COT_GATE_CHOSEN_SOFTMAX, COT_GROUP_MAX, false, true, false, 0, 1},
    {"one of one", 5, 1, 1, 1, 1, COT_GATE_SOFTMAX, COT_GROUP_MAX, true, false, false, 0, 1},
    {"all", 31, 37, 37, 1, 1, COT_GATE_SOFTMAX, COT_GROUP_MAX, true, true, false, 0, 1},
    {"sixty-four of many", 16, 300, 64, 3, 2, COT_GATE_SIGMOID, COT_GROUP_MAX, true, true, true, 1e-20f, 1},
};

struct oracle_gate gate_of_case(const struct gate_case *c, struct draw *draw)
{
    return oracle_gate_new(&(cot_gate){.hidden = c->hidden,
                                       .experts = c->experts,
                                       .top_k = c->top_k,
                                       .score = c->score,
                                       .groups = c->groups,
                                       .group_limit = c->group_limit,
                                       .group_score = c->group_score,
                                       .normalise = c->normalise,
                                       .epsilon = c->epsilon,
                                       .scaling = c->scaling},
                           c->bias, c->correction, draw);
}
