/* The conformance suite over threads of one process. */
#include "fabric/conformance.h"

int main(void)
{
    return run_conformance("threads");
}
