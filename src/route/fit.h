/* What a step, a token of a prompt, a request that decodes and a distinct expert cost a target: ns = steps x step + prompt tokens x token +
 * requests x request + experts x expert, none below 0, of least squares over what was seen; each new observation makes the older ones count a little less. */
#ifndef COT_ROUTE_FIT_H
#define COT_ROUTE_FIT_H
#include "coterie/route.h"

enum { COT_ROUTE_STEP, COT_ROUTE_TOKEN, COT_ROUTE_REQUEST, COT_ROUTE_EXPERT, COT_ROUTE_PARTS };

/* Sums over what was seen; all zero: nothing was. */
typedef struct cot_route_fit {
    double xx[COT_ROUTE_PARTS][COT_ROUTE_PARTS], xy[COT_ROUTE_PARTS], yy;
} cot_route_fit;

void cot_route_fit_add(cot_route_fit *fit, const cot_route_work *work);
/* Of parts that cannot be told apart an expert has none, then a step. Where `by_experts` is false experts cost nothing by themselves: what
 * they cost is a part of what requests do. False: nothing was seen. */
bool cot_route_fit_solve(const cot_route_fit *fit, bool by_experts, double ns[COT_ROUTE_PARTS]);

#endif
