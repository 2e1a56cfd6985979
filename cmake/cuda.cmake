# The device kernels, and the tests that run them on an emulator. The default build knows neither.
if(COT_SANITIZE OR COT_FUZZ)
  message(FATAL_ERROR "COT_CUDA does not go with sanitizers: the emulator takes their place")
endif()
enable_language(CXX)
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)

add_custom_target(cuda-tests)
if(COT_TESTS)
  add_subdirectory(tests/cuda)
endif()
