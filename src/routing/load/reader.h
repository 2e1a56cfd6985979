/* What the readers of loads share. */
#ifndef COT_ROUTING_LOAD_READER_H
#define COT_ROUTING_LOAD_READER_H
#include "coterie/load.h"
#include "base/file.h"

/* The files of one recording, and what the caller said of them. */
typedef struct cot_load_files {
    const char *const *paths; // [count] regular files
    size_t count;
    const cot_load_options *options; // never NULL
} cot_load_files;

/* Each reads its format into an empty `*load`, all but top_k's option, format and the check for any load at all;
 * on failure the caller frees what is there. */
typedef cot_status cot_load_reader(cot_load_counts *load, const cot_load_files *files, cot_error *error);
cot_load_reader cot_load_read_csv;

/* Tells the caller's `say`, if any. */
void cot_load_note(const cot_load_files *files, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Refuses several files where a format has one. */
cot_status cot_load_want_one_file(const cot_load_files *files, cot_error *error);

#endif
