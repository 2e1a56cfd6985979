set(allocator malloc calloc realloc aligned_alloc posix_memalign)
list(TRANSFORM allocator PREPEND -Wl,--wrap=)
target_link_options(moe_test_operator_allocations PRIVATE ${allocator})
