# It says what an engine is.
if(TARGET worker_test_fingerprint)
  target_link_options(worker_test_fingerprint PRIVATE -Wl,--wrap=cot_engine_describe)
endif()
# It is the owner of backends, on a loop of its own, and reads what they publish.
if(TARGET worker_test_contract)
  target_link_libraries(worker_test_contract PRIVATE PkgConfig::EVENT PkgConfig::MSGPACK)
endif()
# It is the owner of a mock, finds no memory when it likes, and hears reports of steps in their publisher's place.
if(TARGET worker_test_mock)
  target_link_libraries(worker_test_mock PRIVATE PkgConfig::EVENT)
  target_link_options(worker_test_mock PRIVATE -Wl,--wrap=calloc,--wrap=cot_step_reports_open,--wrap=cot_step_reports_put,--wrap=cot_step_reports_close)
endif()
# Batches go to routers in place of sockets.
if(TARGET worker_test_states)
  target_link_libraries(worker_test_states PRIVATE PkgConfig::EVENT PkgConfig::MSGPACK)
  target_link_options(worker_test_states PRIVATE -Wl,--wrap=cot_publisher_open,--wrap=cot_publisher_send,--wrap=cot_publisher_last,--wrap=cot_publisher_close)
endif()
