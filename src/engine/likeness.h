/* Hashes by which ranks that were started from outside tell whether they are at the same thing. */
#ifndef COT_ENGINE_LIKENESS_H
#define COT_ENGINE_LIKENESS_H
#include "coterie/engine.h"
#include "coterie/layout.h"

/* Of config.json, and of the names and sizes of the files of weights. */
uint64_t cot_likeness_of_folder(const char *folder);
uint64_t cot_likeness_of_text(const char *text, size_t bytes, uint64_t seed);
/* Of all that ranks must be told alike. */
uint64_t cot_likeness_of_options(const cot_engine_options *options);
uint64_t cot_likeness_of_layout(const cot_expert_layout *layout);

#endif
