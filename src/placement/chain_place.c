#include "placement/chain.h"

/* A group's price is how much its potential is below 0, where groups with room are; a class's, that of the cheapest place in
 * it. What a full group of the class is cheaper by is the price of its layer's capacity. */
static void set_prices(cot_assignment *a, const cot_chain *c)
{
    for (int32_t g = 0; g < c->G; g++) {
        cot_units price = c->potential[g] < 0 ? -c->potential[g] : 0;
        cot_double_double value = cot_units_value(price, c->unit);
        for (int32_t i = c->first[g]; i < c->first[g + 1]; i++) a->price[c->member[i]] = value;
        for (int32_t l = 0; l < c->L; l++) {
            cot_units at = c->potential[c->G + c->class_of[(size_t)g * (size_t)c->L + (size_t)l]];
            cot_units more = -at - price;
            value = cot_units_value(more > 0 ? more : 0, c->unit);
            for (int32_t i = c->first[g]; i < c->first[g + 1]; i++)
                a->layer_price[(size_t)l * (size_t)c->S + (size_t)c->member[i]] = value;
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
    if (status == COT_OK) status = cot_chain_solve(&chain, error);
    if (status == COT_OK) status = cot_chain_deal(assignment, &chain, error);
    if (status == COT_OK) set_prices(assignment, &chain);
    cot_chain_close(&chain);
    return status;
}
