/* The conformance suite over processes forked by rank 0. */
#include "harness/fabric/conformance.h"

int main(void)
{
    struct subject subject = {.backend = cot_fabric_backend_find("processes")};
    return run_conformance(&subject);
}
