# Everything that could allocate goes through the test's counters.
target_link_options(fabric_test_allocations PRIVATE -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc
                    -Wl,--wrap=aligned_alloc,--wrap=posix_memalign,--wrap=mmap)
target_link_options(fabric_test_launch PRIVATE -Wl,--wrap=fork,--wrap=cot_pool_open)
