# The thread sanitizer slows what no second thread takes part in.
if(COT_SANITIZE MATCHES thread)
  set_tests_properties(schedule/test_prefix PROPERTIES LABELS long)
endif()
