# The thread sanitizer slows what no second thread takes part in.
if(COT_SANITIZE MATCHES thread)
  set_tests_properties(route/test_index route/test_feed route/test_feed_events PROPERTIES LABELS long)
endif()
