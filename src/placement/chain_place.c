#include "placement/chain.h"

#include "base/error.h"

#include <stdlib.h>

/* A group's price is how much its potential is below the sink's; a class's, that of the cheapest place in it. What a
 * full group of the class is cheaper by is the price of its layer's capacity. */
static void set_prices(cot_assignment *a, const cot_chain *c, const cot_double_double *potential)
{
    const cot_double_double zero = {0, 0}, sink = potential[c->G + c->C];
    for (int32_t g = 0; g < c->G; g++) {
        cot_double_double price = cot_double_double_subtract(sink, potential[g]);
        if (cot_double_double_less(price, zero)) price = zero;
        for (int32_t i = c->first[g]; i < c->first[g + 1]; i++) a->price[c->member[i]] = price;
        for (int32_t l = 0; l < c->L; l++) {
            cot_double_double at = potential[c->G + c->class_of[(size_t)g * (size_t)c->L + (size_t)l]];
            cot_double_double more = cot_double_double_subtract(cot_double_double_subtract(sink, at), price);
            if (cot_double_double_less(more, zero)) more = zero;
            for (int32_t i = c->first[g]; i < c->first[g + 1]; i++)
                a->layer_price[(size_t)l * (size_t)c->S + (size_t)c->member[i]] = more;
        }
    }
    a->priced = true;
}

cot_status cot_place_chain(cot_assignment *assignment, const cot_problem *problem, cot_error *error)
{
    cot_chain chain;
    cot_status status = cot_problem_feasible(problem, error);
    if (status != COT_OK) return status;
    status = cot_chain_open(&chain, problem, error);
    cot_double_double *potential = NULL;
    if (status == COT_OK) {
        potential = malloc(((size_t)chain.G + (size_t)chain.C + 1) * sizeof *potential);
        if (!potential)
            status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the proof of a placement");
    }
    if (status == COT_OK) status = cot_chain_solve(&chain, error);
    if (status == COT_OK) status = cot_chain_polish(&chain, potential, error);
    if (status == COT_OK) status = cot_chain_deal(assignment, &chain, error);
    if (status == COT_OK) set_prices(assignment, &chain, potential);
    free(potential);
    cot_chain_close(&chain);
    return status;
}
