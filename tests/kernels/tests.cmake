# A roof's buffer is as long as a cache's size and the memory's say, which the test tells.
target_link_options(kernels_test_roof PRIVATE -Wl,--wrap=cot_last_level_cache_bytes -Wl,--wrap=sysconf)

# The AVX-512 tables on any CPU with AVX2: the same files and the same tests, their intrinsics emulated by SIMDe.
find_path(SIMDE_INCLUDE simde/x86/avx512.h)
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  return()
elseif(COT_SANITIZE)
  return() # thousands of emulated calls a file: the sanitizers' passes take many minutes over them
elseif(NOT SIMDE_INCLUDE)
  message(WARNING "SKIPPED: the AVX-512 kernels are not tested by emulation (no SIMDe; Debian: libsimde-dev)")
  return()
endif()

add_library(kernels_emulated OBJECT ${PROJECT_SOURCE_DIR}/src/kernels/x86/avx512.c
                                    ${PROJECT_SOURCE_DIR}/src/kernels/x86/avx512_vnni.c
                                    ${PROJECT_SOURCE_DIR}/src/kernels/x86/avx512_bf16.c)
target_include_directories(kernels_emulated PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
target_include_directories(kernels_emulated SYSTEM BEFORE PRIVATE ${CMAKE_CURRENT_LIST_DIR}/emulated)
target_compile_options(kernels_emulated PRIVATE -mavx2 -mfma -mf16c -O1 -Wno-psabi)
add_library(kernels_check_emulated STATIC ${CMAKE_CURRENT_LIST_DIR}/../harness/kernels/check.c)
target_include_directories(kernels_check_emulated PUBLIC ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
target_compile_definitions(kernels_check_emulated PUBLIC COT_TEST_EMULATED)
target_link_libraries(kernels_check_emulated PUBLIC coterie m Threads::Threads)
foreach(name delta gemm grouped matmul rows softmax strips tables)
  add_executable(kernels_emulated_${name} ${CMAKE_CURRENT_LIST_DIR}/test_${name}.c $<TARGET_OBJECTS:kernels_emulated>)
  target_link_libraries(kernels_emulated_${name} PRIVATE kernels_check_emulated)
  add_test(NAME kernels/emulated_${name} COMMAND kernels_emulated_${name})
  set_tests_properties(kernels/emulated_${name} PROPERTIES LABELS kernels TIMEOUT 600 SKIP_RETURN_CODE 77)
endforeach()
