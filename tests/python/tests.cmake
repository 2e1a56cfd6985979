# The Python package over the shared library, with the first Python that has NumPy, or that COT_PYTHON names (one with
# PyTorch checks more; with transformers 5 and compressed-tensors too, what convert writes). A sanitized library cannot be loaded into an ordinary Python.
set(COT_PYTHON "" CACHE FILEPATH "Python for the tests of the Python package")
find_package(Python3 COMPONENTS Interpreter)
set(python ${Python3_EXECUTABLE})
foreach(candidate IN ITEMS /usr/bin/python3 ${Python3_EXECUTABLE} ${COT_PYTHON})
  execute_process(COMMAND ${candidate} -c "import numpy" RESULT_VARIABLE without OUTPUT_QUIET ERROR_QUIET)
  if(without EQUAL 0)
    set(python ${candidate})
  endif()
endforeach()
if(python AND NOT COT_SANITIZE)
  foreach(name package place engine formats readings routing converted wheel)
    add_test(NAME python/test_${name} COMMAND ${python} -B ${CMAKE_CURRENT_SOURCE_DIR}/python/test_${name}.py)
    set_tests_properties(python/test_${name} PROPERTIES LABELS python TIMEOUT 600 SKIP_RETURN_CODE 77 ENVIRONMENT
      "COTERIE_LIBRARY=$<TARGET_FILE:coterie-shared>;COT_PROGRAM=$<TARGET_FILE:coterie-cli>;COT_SHARED=${cot_shared};COT_SOURCE=${PROJECT_SOURCE_DIR}")
  endforeach()
  # It compiles the library once more, and fetches packages.
  set_tests_properties(python/test_wheel PROPERTIES LABELS long TIMEOUT 1800)
endif()
