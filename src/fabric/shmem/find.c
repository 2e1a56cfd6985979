#include "base/error.h"
#include "fabric/shmem/shmem.h"

#include <dlfcn.h>
#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#ifndef COT_LIBRARY_FOLDER
#define COT_LIBRARY_FOLDER "lib"
#endif

#define MODULE "libcoterie-shmem.so"

/* The folder of the file that this code is in: the program, or libcoterie.so. */
static bool own_folder(char *folder, size_t bytes)
{
    Dl_info info;
    char file[4096];
    const void *here = (const void *)(uintptr_t)&cot_shmem_find;
    if (!dladdr(here, &info) || !info.dli_fname) return false;
    ssize_t length = strchr(info.dli_fname, '/') && access(info.dli_fname, R_OK) == 0
                         ? snprintf(file, sizeof file, "%s", info.dli_fname)
                         : readlink("/proc/self/exe", file, sizeof file - 1);
    if (length <= 0 || length >= (ssize_t)sizeof file) return false;
    file[length] = 0;
    return (size_t)snprintf(folder, bytes, "%s", dirname(file)) < bytes;
}

/* Beside this code, a folder above it (tests), in the installed tree's folder of libraries, or where the system looks. */
static bool find_file(char *path, size_t bytes)
{
    static const char *const places[] = {"", "../", "../" COT_LIBRARY_FOLDER "/"};
    char folder[4096];
    for (size_t i = 0; own_folder(folder, sizeof folder) && i < sizeof places / sizeof *places; i++)
        if ((size_t)snprintf(path, bytes, "%s/%s" MODULE, folder, places[i]) < bytes &&
            access(path, R_OK) == 0)
            return true;
    snprintf(path, bytes, MODULE);
    return false;
}

cot_status cot_shmem_find(const cot_shmem_calls **calls, cot_error *error)
{
    char path[4200];
    const bool found = find_file(path, sizeof path);
    void *module = dlopen(path, RTLD_NOW | RTLD_GLOBAL); // Open MPI's own modules look for its symbols there
    const char *why = module ? NULL : dlerror();
    if (!module && !found)
        return cot_fail(error, COT_NOT_FOUND,
                        "ranks over OpenSHMEM need " MODULE
                        ", which is not here: apt-get install openmpi-bin "
                        "libopenmpi-dev, then build with -DCOT_SHMEM=ON");
    if (!module)
        return cot_fail(error, COT_NOT_FOUND,
                        "cannot load OpenSHMEM (apt-get install openmpi-bin libopenmpi3): %s", why);
    *calls = dlsym(module, "cot_shmem_module");
    if (!*calls || strcmp((*calls)->version, COT_VERSION) != 0)
        return cot_fail(error, COT_UNSUPPORTED, "'%s' is of another version of coterie than " COT_VERSION,
                        path);
    return COT_OK;
}
