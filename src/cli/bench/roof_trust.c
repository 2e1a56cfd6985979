#include "cli/bench/roof_trust.h"

#include "coterie/roof.h"

#include <stdio.h>

static const double most_share = 1.05, most_drift = 1.5;

const char *cli_roof_doubt(char text[96], double share, double drift)
{
    *text = 0;
    if (!(drift <= most_drift))
        snprintf(text, 96, "roofs before and after a run differ %.1f times", drift);
    else if (!(share <= most_share))
        snprintf(text, 96, "a run came to %.2f times its roof", share);
    return text;
}

int cli_roof_threads(int64_t asked)
{
    enum { MOST = 256 };
    const int64_t threads = asked ? asked : cot_cores();
    return (int)(threads < MOST ? threads : MOST);
}
