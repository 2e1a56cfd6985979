#include "coterie/request.h"

void cot_sampling_init(cot_sampling *sampling)
{
    *sampling =
        (cot_sampling){.size = sizeof *sampling, .top_p = 1, .repetition_penalty = 1, .max_tokens = 256};
}

void cot_request_init(cot_request *request)
{
    *request = (cot_request){.logprobs = -1};
    cot_sampling_init(&request->sampling);
}
