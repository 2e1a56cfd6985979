/* Workers that a name of DNS stands for: one at each of its addresses. The name is looked up every 30 s, on a thread, as that may take
 * long. */
#ifndef COT_GATEWAY_DISCOVER_H
#define COT_GATEWAY_DISCOVER_H
#include "coterie/status.h"

#include <stdbool.h>

struct cot_gateway;
typedef struct cot_discovery cot_discovery;

/* Whether a text is to be read as "dns:NAME:PORT". */
bool cot_discovery_is(const char *text);
/* Begins to look up; workers come and go with the answers, on the gateway's loop. Errors: INVALID_ARGUMENT (not dns:NAME:PORT), IO,
 * OUT_OF_MEMORY. */
cot_status cot_discovery_open(cot_discovery **discovery, struct cot_gateway *gateway, const char *text,
                              cot_error *error);
/* Looks up now. */
void cot_discovery_ask(cot_discovery *discovery);
/* Its workers stay. Does not wait for a look-up. NULL is fine. */
void cot_discovery_close(cot_discovery *discovery);

#endif
