#include "base/module.h"

#include "base/error.h"

#include <dlfcn.h>
#include <libgen.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#ifndef COT_LIBRARY_FOLDER
#define COT_LIBRARY_FOLDER "lib"
#endif

/* The folder of the file that this code is in. */
static bool own_folder(char *folder, size_t bytes)
{
    Dl_info info;
    char file[4096];
    const void *here = (const void *)(uintptr_t)&cot_module_open;
    if (!dladdr(here, &info) || !info.dli_fname) return false;
    ssize_t length = strchr(info.dli_fname, '/') && access(info.dli_fname, R_OK) == 0
                         ? snprintf(file, sizeof file, "%s", info.dli_fname)
                         : readlink("/proc/self/exe", file, sizeof file - 1);
    if (length <= 0 || length >= (ssize_t)sizeof file) return false;
    file[length] = 0;
    return (size_t)snprintf(folder, bytes, "%s", dirname(file)) < bytes;
}

bool cot_module_find(char *path, size_t bytes, const char *name)
{
    static const char *const places[] = {"", "../", "../" COT_LIBRARY_FOLDER "/"};
    char folder[4096];
    for (size_t i = 0; own_folder(folder, sizeof folder) && i < sizeof places / sizeof *places; i++)
        if ((size_t)snprintf(path, bytes, "%s/%s%s", folder, places[i], name) < bytes &&
            access(path, R_OK) == 0)
            return true;
    snprintf(path, bytes, "%s", name);
    return false;
}

cot_status cot_module_open(const void **symbol, const cot_module *m, cot_error *error)
{
    char path[4200];
    const bool found = cot_module_find(path, sizeof path, m->file);
    void *loaded = dlopen(path, RTLD_NOW | (m->global ? RTLD_GLOBAL : RTLD_LOCAL));
    const char *why = loaded || !found ? NULL : dlerror();
    *symbol = loaded ? dlsym(loaded, m->symbol) : NULL;
    if (why) return cot_fail(error, COT_NOT_FOUND, "%s: %s", m->unloadable, why);
    if (!*symbol) return cot_fail(error, COT_NOT_FOUND, "%s", m->absent);
    if (strcmp(*(const char *const *)*symbol, COT_VERSION) != 0)
        return cot_fail(error, COT_UNSUPPORTED, "'%s' is of another version of coterie than " COT_VERSION,
                        path);
    return COT_OK;
}
