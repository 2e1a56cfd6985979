/* How much memory there is, before asking for it. */
#ifndef COT_ENGINE_MEMORY_H
#define COT_ENGINE_MEMORY_H
#include <stddef.h>

/* Bytes that this process may still take: the system's available memory, or what its control group, or one that
 * this is in, leaves where that is less; SIZE_MAX where the system does not tell. */
size_t cot_memory_available(void);

/* cot_memory_available of a system whose /proc and /sys lie below `root`, as a test makes them. */
size_t cot_memory_available_below(const char *root);

#endif
