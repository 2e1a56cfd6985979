#include "base/module.h"
#include "fabric/shmem/shmem.h"

#include <stdlib.h>

#define FILE_NAME "libcoterie-shmem.so"

cot_status cot_shmem_find(const cot_shmem_calls **calls, cot_error *error)
{
    static const cot_module module = {
        .file = FILE_NAME,
        .symbol = "cot_shmem_module",
        .global = true, // Open MPI's own modules look for its symbols there
        .unloadable = "cannot load OpenSHMEM (apt-get install openmpi-bin libopenmpi3)",
        .absent = "ranks over OpenSHMEM need " FILE_NAME
                  ", which is not here: apt-get install openmpi-bin libopenmpi-dev, then "
                  "build with -DCOT_SHMEM=ON"};
    const void *symbol;
    setenv("UCX_LOG_FILE", "stderr", 0); // read as UCX is loaded; its own default is standard output
    const cot_status status = cot_module_open(&symbol, &module, error);
    *calls = symbol;
    return status;
}
