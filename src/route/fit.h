/* What a step, a token of a prompt and a request that decodes cost a target: ns = steps x step + prompt tokens x token + requests x
 * request, none below 0, of least squares over what was seen; each new observation makes the older ones count a little less. */
#ifndef COT_ROUTE_FIT_H
#define COT_ROUTE_FIT_H
#include "coterie/route.h"

enum { COT_ROUTE_STEP, COT_ROUTE_TOKEN, COT_ROUTE_REQUEST, COT_ROUTE_PARTS };

/* Sums over what was seen; all zero: nothing was. */
typedef struct cot_route_fit {
    double xx[COT_ROUTE_PARTS][COT_ROUTE_PARTS], xy[COT_ROUTE_PARTS], yy;
} cot_route_fit;

void cot_route_fit_add(cot_route_fit *fit, const cot_route_work *work);
/* Of parts that cannot be told apart a step has none. False: nothing was seen. */
bool cot_route_fit_solve(const cot_route_fit *fit, double ns[COT_ROUTE_PARTS]);

#endif
