/* What tests/placement/make_samples.py wrote, by the same formulas. */
#ifndef COT_TESTS_HARNESS_PLACEMENT_SAMPLES_H
#define COT_TESTS_HARNESS_PLACEMENT_SAMPLES_H

#define SAMPLES COT_SOURCE "/tests/placement/samples/"

enum { SAMPLE_LAYERS = 5, SAMPLE_FIRST = 2, SAMPLE_EXPERTS = 6, SAMPLE_RANKS = 2, SAMPLE_SLOTS = 8 };

/* Tokens of an expert; layers before SAMPLE_FIRST are dense. */
double sample_tokens(int layer, int expert);

/* The expert in a slot. */
int sample_slot(int layer, int slot);

#endif
