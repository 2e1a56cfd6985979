# The house's own rules.
add_test(NAME house/layers COMMAND ${PROJECT_SOURCE_DIR}/tools/check_layers ${PROJECT_SOURCE_DIR})
add_test(NAME house/check_layers COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/house/test_check_layers ${PROJECT_SOURCE_DIR})
add_test(NAME house/names COMMAND ${PROJECT_SOURCE_DIR}/tools/check_names ${PROJECT_SOURCE_DIR})
add_test(NAME house/check_names COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/house/test_check_names ${PROJECT_SOURCE_DIR})
add_test(NAME house/headers COMMAND ${PROJECT_SOURCE_DIR}/tools/check_headers ${PROJECT_BINARY_DIR})
add_test(NAME house/options COMMAND ${PROJECT_SOURCE_DIR}/tools/make_options --check)
add_test(NAME house/symbols COMMAND ${PROJECT_SOURCE_DIR}/tools/check_symbols $<TARGET_FILE:coterie>
         $<TARGET_FILE:coterie-shared>)
add_test(NAME house/mutate COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/house/test_mutate ${PROJECT_SOURCE_DIR})
set_tests_properties(house/options house/layers house/check_layers house/names house/check_names house/headers house/symbols house/mutate PROPERTIES LABELS house TIMEOUT 600)
set_tests_properties(house/mutate PROPERTIES COST 60) # seconds: so long a one does not begin last
if(NOT COT_SANITIZE) # what links a sanitized library must be sanitized
  add_test(NAME house/install
           COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/house/test_install ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR})
  set_tests_properties(house/install PROPERTIES LABELS house TIMEOUT 600)
endif()
if(TARGET coterie-shmem)
  add_test(NAME house/make_modules COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/house/test_make_modules ${PROJECT_BINARY_DIR})
  set_tests_properties(house/make_modules PROPERTIES LABELS house TIMEOUT 60)
endif()
