/* Tables of a model, drawn, as a file. */
#ifndef COT_TESTS_HARNESS_ENGINE_TABLES_H
#define COT_TESTS_HARNESS_ENGINE_TABLES_H
#include <stdbool.h>
#include <stdint.h>

enum { TABLES_PATH = 64 };

/* Writes tables for the folder's model on so many ranks to a new file, whose name is `path`: groups of any size, learnt from
 * a drawn text in which an id's experts recur; some ids are unknown to it. `one_rank`: all experts are on the last rank, so
 * that all is foretold to be there. The caller removes the file. What fails, fails the test. False, and no file, where
 * there are more ranks than experts, which no tables are for. */
bool drawn_tables(char path[TABLES_PATH], const char *folder, int ranks, bool one_rank, uint64_t *state);

#endif
