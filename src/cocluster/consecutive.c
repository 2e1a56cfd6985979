/* No groups at all, as a baseline: experts in consecutive blocks, as an engine has them that knows of no groups, and the tokens
 * on the ranks that they call most of. */
#include "cocluster/solver.h"

#include "base/error.h"

#include <stdlib.h>

static cot_status begin(cot_cocluster *p, cot_error *error)
{
    int32_t *expert_rank = p->state = malloc((size_t)p->E * sizeof *expert_rank);
    if (!expert_rank)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for groups of %d experts", (int)p->E);
    for (int32_t d = 0, e = 0; d < p->D; d++)
        for (int32_t i = 0; i < p->size[d]; i++) expert_rank[e++] = d;
    return COT_OK;
}

static void end(cot_cocluster *p)
{
    free(p->state);
    p->state = NULL;
}

static cot_status iterate(cot_cocluster *p, int64_t iteration, cot_error *error)
{
    (void)iteration;
    (void)error;
    cot_cocluster_offer(p, p->state, NULL);
    p->done = true;
    return COT_OK;
}

const cot_cocluster_method cot_cocluster_consecutive = {
    {"consecutive", "no groups: experts in consecutive blocks; tokens alone are grouped"},
    begin,
    iterate,
    end};
