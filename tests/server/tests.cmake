# What follows random histories of caches.
add_executable(server_kv_histories ${CMAKE_CURRENT_SOURCE_DIR}/server/kv_histories.c)
target_link_libraries(server_kv_histories PRIVATE test_harness PkgConfig::EVENT)
add_dependencies(tests_of_server server_kv_histories)
target_link_options(server_kv_histories PRIVATE -Wl,--wrap=cot_publisher_send,--wrap=cot_engine_list_cache)

# The server as clients see it: with Python's own library, and with the openai client.
find_package(Python3 COMPONENTS Interpreter)
if(Python3_EXECUTABLE)
  foreach(name api refusals life scanners openai chat bench overflow page page_calls view moves rebalance structured tools strict fields kv_events step_reports popularity mock tls metrics abuse endurance vllm_requests guidellm lm_eval families)
    add_test(NAME server/test_${name} COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/server/test_${name}.py)
    set_tests_properties(server/test_${name} PROPERTIES LABELS server TIMEOUT 1200 SKIP_RETURN_CODE 77 ENVIRONMENT
      "COT_PROGRAM=$<TARGET_FILE:coterie-cli>;COT_SOURCE=${PROJECT_SOURCE_DIR};COT_SHARED=${cot_shared};COT_BUILD=${PROJECT_BINARY_DIR}")
  endforeach()
  # What only a server shows of its links and its publisher.
  set_property(TEST server/test_tls server/test_kv_events APPEND PROPERTY LABELS net)
  set(kv_program "COT_KV_PROGRAM=$<TARGET_FILE:server_kv_histories>")
  set_property(TEST server/test_kv_events APPEND PROPERTY ENVIRONMENT ${kv_program})
  get_property(environment TEST server/test_kv_events PROPERTY ENVIRONMENT)
  add_test(NAME server/test_kv_events_long COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/server/test_kv_events.py Histories)
  set_tests_properties(server/test_kv_events_long PROPERTIES LABELS "server;long" TIMEOUT 1800 SKIP_RETURN_CODE 77 ENVIRONMENT
    "${environment};COT_KV_HISTORIES=10000")
  get_property(environment TEST server/test_metrics PROPERTY ENVIRONMENT)
  add_test(NAME server/test_metrics_long COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/server/test_metrics.py)
  set_tests_properties(server/test_metrics_long PROPERTIES LABELS "server;long" TIMEOUT 600 ENVIRONMENT "${environment};COT_WITH_PROMETHEUS=1")
  get_property(environment TEST server/test_abuse PROPERTY ENVIRONMENT)
  add_test(NAME server/test_abuse_long COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/server/test_abuse.py)
  set_tests_properties(server/test_abuse_long PROPERTIES LABELS "server;long" TIMEOUT 600 ENVIRONMENT "${environment};COT_ABUSE_SECONDS=60")
  add_test(NAME server/soak COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/server/soak.py)
  set_tests_properties(server/soak PROPERTIES LABELS "server;long" TIMEOUT 1800 ENVIRONMENT "${environment};COT_SOAK_SECONDS=300")
  # A loop of each package that agents are built with.
  foreach(client openai langchain instructor pydantic-ai litellm smolagents llama-index openai-agents outlines dspy)
    add_test(NAME server/test_agents_${client} COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/server/test_agents.py ${client})
    set_tests_properties(server/test_agents_${client} PROPERTIES LABELS "server;long" TIMEOUT 1800 SKIP_RETURN_CODE 77 ENVIRONMENT "${environment}")
  endforeach()
  # Thousands of clients; other people's scanners and load generators, the requests of one, an evaluation harness, and a server for each family.
  set_tests_properties(server/test_endurance server/test_scanners server/test_vllm_requests server/test_guidellm server/test_lm_eval server/test_families PROPERTIES LABELS "server;long" TIMEOUT 1800)
endif()
# A server that is looked after while a request is read.
if(TARGET server_test_faithless)
  target_link_options(server_test_faithless PRIVATE -Wl,--wrap=cot_preparer_start)
endif()
# The test is the server's backend, on its loop.
if(TARGET server_test_answers)
  target_link_libraries(server_test_answers PRIVATE PkgConfig::EVENT)
endif()
