# It says what an engine is.
if(TARGET worker_test_fingerprint)
  target_link_options(worker_test_fingerprint PRIVATE -Wl,--wrap=cot_engine_describe)
endif()
# It is the owner of backends, on a loop of its own, and reads what they publish.
if(TARGET worker_test_contract)
  target_link_libraries(worker_test_contract PRIVATE PkgConfig::EVENT PkgConfig::MSGPACK)
endif()
