cot_count_allocations(fabric_test_allocations)
target_link_options(fabric_test_launch PRIVATE -Wl,--wrap=fork,--wrap=cot_pool_open)
