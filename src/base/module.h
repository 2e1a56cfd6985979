/* Shared objects of ours that the program opens when what they do is asked for, so that it need not be linked with what they need.
 */
#ifndef COT_BASE_MODULE_H
#define COT_BASE_MODULE_H
#include "coterie/status.h"
#include <stdbool.h>
#include <stddef.h>

typedef struct cot_module {
    const char *file,
        *symbol; // the symbol is a structure whose first member is the version of the library that it was built with
    bool global;            // the symbols of its libraries are there for what they load in turn
    const char *unloadable; // what to say before the system's words where it is there and cannot be loaded
    const char *absent;     // what to say where it is not there
} cot_module;

/* Looks for a file beside the code that this is in (the program, or libcoterie.so), a folder above it (tests), and in the installed
 * tree's folder of libraries. False: it is in none, and `path` [bytes] is the name, for where the system looks. */
bool cot_module_find(char *path, size_t bytes, const char *name);

/* Looks for the file there, and where the system looks; loads it, for good. Errors: NOT_FOUND, in the module's words; UNSUPPORTED
 * (it is another version's). */
cot_status cot_module_open(const void **symbol, const cot_module *module, cot_error *error);

#endif
