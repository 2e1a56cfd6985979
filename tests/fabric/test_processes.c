/* The conformance suite over processes forked by rank 0. */
#include "fabric/conformance.h"

int main(void)
{
    return run_conformance("processes");
}
