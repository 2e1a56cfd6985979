# The router as clients see it, before workers that compute nothing and some that do.
find_package(Python3 COMPONENTS Interpreter)
if(Python3_EXECUTABLE)
  add_library(fake_dns MODULE gateway/fake_dns.c)
  target_link_libraries(fake_dns PRIVATE ${CMAKE_DL_LIBS})
  foreach(name router kills openai page worker_tls dns experts peers peer_lies worker_lies)
    add_test(NAME gateway/test_${name} COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/gateway/test_${name}.py)
    set_tests_properties(gateway/test_${name} PROPERTIES LABELS gateway TIMEOUT 600 SKIP_RETURN_CODE 77 ENVIRONMENT
      "COT_PROGRAM=$<TARGET_FILE:coterie-cli>;COT_SOURCE=${PROJECT_SOURCE_DIR};COT_SHARED=${cot_shared};COT_BUILD=${PROJECT_BINARY_DIR};COT_FAKE_DNS_LIBRARY=$<TARGET_FILE:fake_dns>")
  endforeach()
  get_property(environment TEST gateway/test_kills PROPERTY ENVIRONMENT)
  add_test(NAME gateway/test_kills_long COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/gateway/test_kills.py)
  set_tests_properties(gateway/test_kills_long PROPERTIES LABELS "gateway;long" TIMEOUT 1800 SKIP_RETURN_CODE 77 ENVIRONMENT
    "${environment};COT_KILLS=500")
endif()
