#include "base/error.h"
#include "base/module.h"
#include "fabric/shmem/shmem.h"

#include <string.h>

#define MODULE "libcoterie-shmem.so"

cot_status cot_shmem_find(const cot_shmem_calls **calls, cot_error *error)
{
    cot_module module;
    cot_module_find(&module, MODULE, "cot_shmem_module",
                    true); // Open MPI's own modules look for its symbols there
    *calls = module.symbol;
    if (module.why)
        return cot_fail(error, COT_NOT_FOUND,
                        "cannot load OpenSHMEM (apt-get install openmpi-bin libopenmpi3): %s", module.why);
    if (!*calls)
        return cot_fail(error, COT_NOT_FOUND,
                        "ranks over OpenSHMEM need " MODULE
                        ", which is not here: apt-get install openmpi-bin "
                        "libopenmpi-dev, then build with -DCOT_SHMEM=ON");
    if (strcmp((*calls)->version, COT_VERSION) != 0)
        return cot_fail(error, COT_UNSUPPORTED, "'%s' is of another version of coterie than " COT_VERSION,
                        module.path);
    return COT_OK;
}
