/* What an engine says of experts that it rounded while it loaded them. */
#ifndef COT_ENGINE_ROUNDED_H
#define COT_ENGINE_ROUNDED_H
#include "engine/engine_state.h"

/* Adds a line to `*notes` (malloc'd lines or NULL) where every expert was rounded to four bits, which takes longer than reading it, and
 * `coterie convert` can write the same as a folder. On failure the notes are as they were. Errors: OUT_OF_MEMORY. */
cot_status cot_engine_note_rounded(char **notes, const cot_engine *engine, cot_error *error);

#endif
