/* Shared objects of ours that the program opens when what they do is asked for, so that it need not be linked with what they need.
 */
#ifndef COT_BASE_MODULE_H
#define COT_BASE_MODULE_H
#include <stdbool.h>
#include <stddef.h>

typedef struct cot_module {
    char path[4200]; // where it was found, or its name alone
    const char *
        why; // where it was found and could not be loaded: the system's words, valid until the next look; else NULL
    const void *symbol; // NULL: there is no such object, it could not be loaded, or it lacks the symbol
} cot_module;

/* Looks for `file` beside the code that this is in (the program, or libcoterie.so), a folder above it (tests), in the
 * installed tree's folder of libraries, and where the system looks; loads it, for good, and finds `symbol` in it. `global`: its
 * libraries' symbols are there for what they load in turn. */
void cot_module_find(cot_module *module, const char *file, const char *symbol, bool global);

#endif
