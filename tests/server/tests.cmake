# The server as clients see it: with Python's own library, and with the openai client.
find_package(Python3 COMPONENTS Interpreter)
if(Python3_EXECUTABLE)
  foreach(name api openai chat bench overflow endurance vllm_requests guidellm lm_eval)
    add_test(NAME server/test_${name} COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/server/test_${name}.py)
    set_tests_properties(server/test_${name} PROPERTIES LABELS server TIMEOUT 600 SKIP_RETURN_CODE 77 ENVIRONMENT
      "COT_PROGRAM=$<TARGET_FILE:coterie-cli>;COT_SOURCE=${PROJECT_SOURCE_DIR};COT_SHARED=${cot_shared};COT_BUILD=${PROJECT_BINARY_DIR}")
  endforeach()
  # Thousands of clients; other people's load generators, the requests of one, and an evaluation harness.
  set_tests_properties(server/test_endurance server/test_vllm_requests server/test_guidellm server/test_lm_eval PROPERTIES LABELS "server;long" TIMEOUT 1800)
endif()
