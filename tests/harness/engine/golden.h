/* The shipped model, and the folders of golden answers. */
#ifndef COT_TESTS_HARNESS_ENGINE_GOLDEN_H
#define COT_TESTS_HARNESS_ENGINE_GOLDEN_H
#include <stdbool.h>

#define TINY COT_SOURCE "/models/tiny"

enum { SKIPPED = 77 };

bool folder_exists(const char *path);

/* For a main without the golden folders. */
bool golden_absent(const char *test);

void golden_path(char path[1024], const char *name, const char *file);

#endif
