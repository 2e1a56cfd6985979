#include "cuda/gate.h"

COT_KERNEL cot_cuda_gate_kernel(cot::gate_rules rules, cot::gate_tokens tokens)
{
    const int warp = static_cast<int>(threadIdx.x / 32), warps = static_cast<int>(blockDim.x / 32);
    float *const scratch =
        static_cast<float *>(cot::shared_memory()) + warp * cot::gate_scratch_floats(rules.experts);
    const int step = static_cast<int>(gridDim.x) * warps * cot::GATE_TOKENS_A_WARP;
    for (int first = (static_cast<int>(blockIdx.x) * warps + warp) * cot::GATE_TOKENS_A_WARP;
         first < tokens.tokens; first += step) {
        const int left = tokens.tokens - first;
        cot::gate_route(rules, tokens, first, left < cot::GATE_TOKENS_A_WARP ? left : cot::GATE_TOKENS_A_WARP,
                        scratch);
    }
}
