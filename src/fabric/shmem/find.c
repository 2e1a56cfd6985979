#include "base/module.h"
#include "fabric/shmem/shmem.h"

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
    const cot_status status = cot_module_open(&symbol, &module, error);
    *calls = symbol;
    return status;
}
