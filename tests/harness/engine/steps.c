#include "harness/engine/steps.h"

#include "harness/cmocka.h"

#include <stdio.h>
#include <string.h>

cot_engine *must_open_random(const char *config, uint64_t weights_seed, const cot_engine_options *options)
{
    cot_engine *engine;
    cot_error error = {0};
    fflush(stdout); // a forked rank may flush its copy, too
    if (cot_engine_open_random(&engine, config, strlen(config), weights_seed, options, &error) != COT_OK)
        fail_msg("%s", error.message);
    return engine;
}

uint64_t must_submit(cot_engine *engine, const cot_request *request, int home, const cot_events *events)
{
    cot_error error = {0};
    uint64_t id;
    if (cot_engine_submit(engine, &id, request, home, events, &error) != COT_OK)
        fail_msg("%s", error.message);
    return id;
}

size_t must_step(cot_engine *engine)
{
    size_t left;
    cot_error error = {0};
    if (cot_engine_step(engine, &left, &error) != COT_OK) fail_msg("%s", error.message);
    return left;
}

void must_finish(cot_engine *engine)
{
    while (must_step(engine)) continue;
}
