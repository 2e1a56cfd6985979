set(allocator malloc calloc realloc aligned_alloc posix_memalign)
list(TRANSFORM allocator PREPEND -Wl,--wrap=)
target_link_options(moe_test_operator_allocations PRIVATE ${allocator})
# Ten thousand drawn schedules at every number of ranks: minutes.
add_test(NAME moe/test_fused_schedules_at_length COMMAND moe_test_fused_schedules)
set_tests_properties(moe/test_fused_schedules_at_length PROPERTIES LABELS long TIMEOUT 3000 ENVIRONMENT COT_LONG=1)
# Weakened protocols are caught by the drawn schedules.
if(NOT COT_SANITIZE)
  add_test(NAME moe/mutate COMMAND ${CMAKE_CURRENT_LIST_DIR}/mutate.sh ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR})
  set_tests_properties(moe/mutate PROPERTIES LABELS long TIMEOUT 3000)
endif()
# The thread sanitizer slows one thread's schedules for nothing.
if(COT_SANITIZE MATCHES thread)
  set_tests_properties(moe/test_fused_schedules PROPERTIES LABELS long)
endif()
