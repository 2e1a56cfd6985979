# Against an integer programming solver, where Python has one.
find_package(Python3 COMPONENTS Interpreter QUIET)
set(COT_PYTHON "${Python3_EXECUTABLE}" CACHE FILEPATH "Python with highspy and numpy, for tests that compare with HiGHS")
if(COT_PYTHON)
  add_test(NAME placement/highs
           COMMAND ${COT_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/placement/check_highs.py $<TARGET_FILE:coterie-cli> 1000)
  set_tests_properties(placement/highs PROPERTIES LABELS "placement;long" TIMEOUT 600 SKIP_RETURN_CODE 77)
endif()
