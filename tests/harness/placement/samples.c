#include "harness/placement/samples.h"

double sample_tokens(int layer, int expert)
{
    return layer < SAMPLE_FIRST ? 0 : 10 * layer + 7 * expert % 11;
}

int sample_slot(int layer, int slot)
{
    return layer < SAMPLE_FIRST ? slot % SAMPLE_EXPERTS : (slot * 5 + layer) % SAMPLE_EXPERTS;
}
