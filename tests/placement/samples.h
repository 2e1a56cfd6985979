/* What make_samples.py wrote, by the same formulas, and a folder to write in. */
#ifndef COT_TESTS_PLACEMENT_SAMPLES_H
#define COT_TESTS_PLACEMENT_SAMPLES_H
#include "routing/scratch.h"

#include "coterie/load.h"
#include "coterie/placement.h"

#define SAMPLES COT_SOURCE "/tests/placement/samples/"

enum { SAMPLE_LAYERS = 5, SAMPLE_FIRST = 2, SAMPLE_EXPERTS = 6, SAMPLE_RANKS = 2, SAMPLE_SLOTS = 8 };

static inline double sample_tokens(int layer, int expert)
{
    return layer < SAMPLE_FIRST ? 0 : 10 * layer + 7 * expert % 11;
}

static inline int sample_slot(int layer, int i)
{
    return layer < SAMPLE_FIRST ? i % SAMPLE_EXPERTS : (i * 5 + layer) % SAMPLE_EXPERTS;
}

static char notes[4096];
static inline void hear(void *context, const char *line)
{
    (void)context;
    if (strlen(notes) + strlen(line) + 2 < sizeof notes) strcat(strcat(notes, line), "\n");
}

#endif
