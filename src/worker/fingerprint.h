/* A name for all that an answer's bits depend on besides the request. */
#ifndef COT_WORKER_FINGERPRINT_H
#define COT_WORKER_FINGERPRINT_H
#include "coterie/engine.h"

/* Writes "fp_" and 16 hexadecimal digits: a hash of the model's config.json and weights (their sizes, heads and samples of
 * their bytes), of how the engine computes, and of this build; of the number of ranks too where heads are split over them.
 * Errors: IO, OUT_OF_MEMORY. */
cot_status cot_fingerprint(char text[24], const char *folder, const cot_engine *engine, cot_error *error);

#endif
