/* The conformance suite over threads of one process. */
#include "harness/fabric/conformance.h"

int main(void)
{
    struct subject subject = {.backend = cot_fabric_backend_find("threads")};
    return run_conformance(&subject);
}
