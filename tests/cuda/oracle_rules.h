/* The CPU's rules of a gate as the device's. To be included after harness/moe/oracle_gate.h. */
#ifndef COT_TESTS_CUDA_ORACLE_RULES_H
#define COT_TESTS_CUDA_ORACLE_RULES_H
#include "emulate/launch.h"

#include "cuda/gate.h"

/* With the gate's weights in memory of the session. */
inline cot::gate_rules rules_of(emulate::Session &session, const struct oracle_gate &oracle)
{
    const cot_gate &gate = oracle.gate;
    const size_t hidden = static_cast<size_t>(gate.hidden), experts = static_cast<size_t>(gate.experts);
    return {static_cast<int32_t>(gate.hidden),
            static_cast<int32_t>(gate.experts),
            static_cast<int32_t>(gate.top_k),
            static_cast<cot::gate_score>(gate.score),
            static_cast<int32_t>(gate.groups),
            static_cast<int32_t>(gate.group_limit),
            static_cast<cot::gate_group_score>(gate.group_score),
            gate.normalise,
            gate.epsilon,
            gate.scaling,
            session.copy(oracle.plain, hidden * experts, "gate"),
            oracle.bias ? session.copy(oracle.bias, experts, "gate's bias") : nullptr,
            oracle.correction ? session.copy(oracle.correction, experts, "correction") : nullptr};
}

#endif
