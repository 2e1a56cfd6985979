# Files of other processors are left out; those of this one get the instructions that their name promises. -O3 unrolls
# the tiles' loops, whose counts are constants, so that the sums live in registers.
file(GLOB x86 ${CMAKE_CURRENT_LIST_DIR}/x86/*.c)
file(GLOB arm ${CMAKE_CURRENT_LIST_DIR}/arm/*.c)
string(TOLOWER "${CMAKE_SYSTEM_PROCESSOR}" processor)
if(NOT processor MATCHES "x86_64|amd64")
  set_source_files_properties(${x86} PROPERTIES HEADER_FILE_ONLY ON)
endif()
if(NOT processor MATCHES "aarch64|arm64")
  set_source_files_properties(${arm} PROPERTIES HEADER_FILE_ONLY ON)
endif()
set(tiles -O3)
# Tiles whose loads and stores are instrumented take minutes to compile and run ten times as long: of memory, products look at their
# extents (extents.h), and the tests have guard pages.
if(COT_SANITIZE MATCHES address)
  list(APPEND tiles -fno-sanitize=address,alignment,null,object-size,pointer-overflow)
  target_compile_definitions(cot_kernels PRIVATE COT_LOOKS_AT_EXTENTS)
endif()
set(avx2 -mavx2 -mfma -mf16c)
set(avx512 ${avx2} -mavx512f -mavx512vl -mavx512bw -mavx512dq -mprefer-vector-width=512)
set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/x86/avx2.c PROPERTIES COMPILE_OPTIONS "${tiles};${avx2}")
set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/x86/avx512.c PROPERTIES COMPILE_OPTIONS "${tiles};${avx512}")
set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/x86/avx512_vnni.c PROPERTIES COMPILE_OPTIONS
                            "${tiles};${avx512};-mavx512vnni")
set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/x86/avx512_bf16.c PROPERTIES COMPILE_OPTIONS
                            "${tiles};${avx512};-mavx512vnni;-mavx512bf16")
# gcc's first scheduler moves loads so far up that sums fall out of registers where there are 32 of them.
set_source_files_properties(${arm} PROPERTIES COMPILE_OPTIONS "-O3;$<$<C_COMPILER_ID:GNU>:-fno-schedule-insns>")
set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/pack.c PROPERTIES COMPILE_OPTIONS "-O3")
