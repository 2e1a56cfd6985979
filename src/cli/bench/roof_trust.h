/* Whether a share of a measured roof can be believed. Other programs on the machine slow both what is measured and the
 * roofs beside it; a roof that was slowed makes shares that no program can reach. */
#ifndef COT_CLI_BENCH_ROOF_TRUST_H
#define COT_CLI_BENCH_ROOF_TRUST_H
#include <stdint.h>

/* Says in a few words why the share is not to be believed; "" where it may be. `share`: of the roof, the greatest of
 * all runs; above 1.05 it is impossible. `drift`: how many times the roof before a run is that after it, or the other
 * way round; above 1.5 neither tells what the roof was during the run. */
const char *cli_roof_doubt(char text[96], double share, double drift);

/* As many threads as a roof is measured with: those that are asked for, or, of 0, as many as there are cores, at most 256. */
int cli_roof_threads(int64_t asked);

#endif
