#include "constrain/llguidance.h"

#include "base/error.h"
#include "base/module.h"

#include <dlfcn.h>
#include <glob.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILE_NAME "llguidance/_lib.abi3.so"
#define BRING "'tools/get-llguidance' or 'pip install llguidance==" COT_LLGUIDANCE_VERSION "' brings it"

static const struct function {
    const char *name;
    size_t offset;
} functions[] = {
    {"llg_get_version", offsetof(cot_llguidance, version)},
    {"llg_new_tokenizer_v2", offsetof(cot_llguidance, new_tokenizer)},
    {"llg_free_tokenizer", offsetof(cot_llguidance, free_tokenizer)},
    {"llg_constraint_init_set_defaults", offsetof(cot_llguidance, set_defaults)},
    {"llg_new_matcher", offsetof(cot_llguidance, new_matcher)},
    {"llg_clone_matcher", offsetof(cot_llguidance, copy)},
    {"llg_matcher_get_error", offsetof(cot_llguidance, error)},
    {"llg_matcher_compute_mask_into", offsetof(cot_llguidance, mask)},
    {"llg_matcher_consume_token", offsetof(cot_llguidance, commit)},
    {"llg_matcher_rollback", offsetof(cot_llguidance, rollback)},
    {"llg_matcher_is_accepting", offsetof(cot_llguidance, accepts)},
    {"llg_free_matcher", offsetof(cot_llguidance, free_matcher)},
};

/* ---- where it is ---- */

/* The last match of a pattern of folders in `folder`: of several versions of Python the newest, as names sort. */
static bool find_in(char *path, size_t bytes, const char *folder, const char *pattern)
{
    glob_t found;
    bool good = folder && *folder &&
                (size_t)snprintf(path, bytes, "%s/%s/" FILE_NAME, folder, pattern) < bytes &&
                glob(path, 0, NULL, &found) == 0;
    if (!good) return false;
    good = (size_t)snprintf(path, bytes, "%s", found.gl_pathv[found.gl_pathc - 1]) < bytes;
    globfree(&found);
    return good;
}

static bool find_library(char *path, size_t bytes)
{
    return cot_module_find(path, bytes, FILE_NAME) ||
           find_in(path, bytes, getenv("VIRTUAL_ENV"), "lib/python3*/site-packages") ||
           find_in(path, bytes, getenv("HOME"), ".local/lib/python3*/site-packages") ||
           find_in(path, bytes, "/usr/local/lib", "python3*/*-packages") ||
           find_in(path, bytes, "/usr/lib", "python3*/*-packages");
}

/* ---- opening ---- */

/* The wheel's object names symbols of Python that its C functions never use: in a process without Python a module of ours has
 * them. */
static cot_status open_python_names(cot_error *error)
{
    static const cot_module names = {.file = "libcoterie-python-names.so",
                                     .symbol = "cot_python_names",
                                     .global = true,
                                     .unloadable = "structured output cannot begin",
                                     .absent = "structured output needs 'libcoterie-python-names.so', "
                                               "which is built and installed beside coterie"};
    const void *unused;
    return dlsym(RTLD_DEFAULT, "Py_IncRef") ? COT_OK : cot_module_open(&unused, &names, error);
}

/* The library's version is "llguidance@1.9.1 ...". */
static bool is_pinned(const char *version)
{
    const char *at = strchr(version, '@');
    const size_t length = strlen(COT_LLGUIDANCE_VERSION);
    return at && strncmp(at + 1, COT_LLGUIDANCE_VERSION, length) == 0 &&
           (!at[1 + length] || at[1 + length] == ' ');
}

static cot_status look_up(cot_llguidance *l, void *loaded, const char *path, cot_error *error)
{
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *function = dlsym(loaded, functions[i].name);
        if (!function)
            return cot_fail(error, COT_UNSUPPORTED, "'%s' has no '%s', it is not llguidance %s: " BRING, path,
                            functions[i].name, COT_LLGUIDANCE_VERSION);
        memcpy((char *)l + functions[i].offset, &function, sizeof function);
    }
    if (is_pinned(l->version())) return COT_OK;
    return cot_fail(error, COT_UNSUPPORTED, "'%s' is %s, llguidance %s is needed: " BRING, path, l->version(),
                    COT_LLGUIDANCE_VERSION);
}

/* `error` is not NULL. */
static cot_status load(cot_llguidance *l, cot_error *error)
{
    char path[4096];
    const char *named = getenv("COTERIE_LLGUIDANCE");
    if (named && *named) {
        if ((size_t)snprintf(path, sizeof path, "%s", named) >= sizeof path || access(path, R_OK) != 0)
            return cot_fail(error, COT_UNSUPPORTED,
                            "COTERIE_LLGUIDANCE names '%s', which cannot be read: " BRING, named);
    } else if (!find_library(path, sizeof path))
        return cot_fail(error, COT_UNSUPPORTED,
                        "structured output needs the library llguidance, which is not there: " BRING);
    if (open_python_names(error) != COT_OK) return error->status = COT_UNSUPPORTED;
    void *loaded = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!loaded)
        return cot_fail(error, COT_UNSUPPORTED, "llguidance cannot be loaded: %s: " BRING, dlerror());
    return look_up(l, loaded, path, error);
}

cot_status cot_llguidance_open(const cot_llguidance **out, cot_error *error)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static cot_llguidance library;
    static bool loaded;
    cot_error unseen;
    pthread_mutex_lock(&lock);
    const cot_status status = loaded ? COT_OK : load(&library, error ? error : &unseen);
    loaded = status == COT_OK;
    pthread_mutex_unlock(&lock);
    *out = loaded ? &library : NULL;
    return status;
}
