cot_count_allocations(base_test_json_load)
if(COT_SANITIZE) # sanitizers map terabytes, whatever the limit
  set_tests_properties(base/test_arena PROPERTIES DISABLED TRUE)
endif()
