/* What rebalancing goes by of what is called. */
#ifndef COT_ENGINE_REBALANCING_H
#define COT_ENGINE_REBALANCING_H
#include "placement/rebalance.h"
#include "routing/popularity.h"

/* Before a cycle: what was called before the last one is left out where other experts are called now. Whether it is. Few calls are not looked at: they
 * count in a later cycle. */
bool cot_rebalancing_look(cot_rebalance *controller, cot_popularity *popularity);

#endif
