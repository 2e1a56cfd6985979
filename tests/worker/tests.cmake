# It says what an engine is.
if(TARGET worker_test_fingerprint)
  target_link_options(worker_test_fingerprint PRIVATE -Wl,--wrap=cot_engine_describe)
endif()
