/* An engine driven step by step: what fails fails the test. */
#ifndef COT_TESTS_HARNESS_ENGINE_STEPS_H
#define COT_TESTS_HARNESS_ENGINE_STEPS_H
#include "coterie/engine.h"

#include <stddef.h>
#include <stdint.h>

/* An engine with random weights of a config.json's text. */
cot_engine *must_open_random(const char *config, uint64_t weights_seed, const cot_engine_options *options);

/* The request's number. */
uint64_t must_submit(cot_engine *engine, const cot_request *request, int home, const cot_events *events);

/* One step; how many requests are left. */
size_t must_step(cot_engine *engine);

/* Steps until no request is left. */
void must_finish(cot_engine *engine);

#endif
