/* Counts what the library allocates, and lets one allocation fail: of a test program whose linker wraps the allocators
 * (cot_count_allocations of CMakeLists.txt). */
#ifndef COT_TESTS_HARNESS_ALLOCATIONS_H
#define COT_TESTS_HARNESS_ALLOCATIONS_H

/* How many allocations all threads have made. */
long allocations_so_far(void);

/* The allocation of this number fails, counted from 1; 0: none does. */
void fail_allocation(long number);

#endif
