#include "roof_trust.h"

#include <stdio.h>

static const double most_share = 1.05, most_drift = 1.5;

const char *cot_roof_doubt(char text[96], double share, double drift)
{
    *text = 0;
    if (!(drift <= most_drift))
        snprintf(text, 96, "roofs before and after a run differ %.1f times", drift);
    else if (!(share <= most_share))
        snprintf(text, 96, "a run came to %.2f times its roof", share);
    return text;
}
