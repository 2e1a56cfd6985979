/* Beginnings of texts that requests share on a target: how many of those that are there have it. */
#ifndef COT_ROUTE_BEGINNINGS_H
#define COT_ROUTE_BEGINNINGS_H
#include "route/table.h"

/* All zero is empty. */
typedef struct cot_route_beginnings {
    cot_route_table counts;
    bool is_open;
} cot_route_beginnings;

/* The beginning that ends with block `key`, on a target; never 0. */
uint64_t cot_route_beginning(uint64_t key, size_t target);
bool cot_route_beginnings_has(const cot_route_beginnings *beginnings, uint64_t beginning);
/* One more request has it; *first: no other has. False: out of memory. */
bool cot_route_beginnings_add(cot_route_beginnings *beginnings, uint64_t beginning, bool *first);
/* One less. True: none is left. */
bool cot_route_beginnings_drop(cot_route_beginnings *beginnings, uint64_t beginning);
void cot_route_beginnings_free(cot_route_beginnings *beginnings);

#endif
