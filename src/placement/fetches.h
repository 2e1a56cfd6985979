/* What a rank has to fetch from one set of slots to another: the one definition of a move. */
#ifndef COT_PLACEMENT_FETCHES_H
#define COT_PLACEMENT_FETCHES_H
#include <stdbool.h>
#include <stdint.h>

/* Writes the experts in the slots now[0..n_now) that none of was[0..n_was) holds to `fetched` [n_now] (NULL: counts
 * alone), each once however many copies of it there are, in their order in `now`; returns how many. -1 is an empty
 * slot. `marked` [E] is false throughout before and after. */
int32_t cot_fetches(int32_t *fetched, const int32_t *was, int32_t n_was, const int32_t *now, int32_t n_now,
                    bool *marked);

#endif
