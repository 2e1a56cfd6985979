# libcoterie-shmem.so: what the program loads when its ranks are processes that oshrun has started. Nothing else is linked
# with MPI.
if(NOT COT_SHMEM OR (SKBUILD AND COT_SHMEM STREQUAL AUTO))
  return()
endif()
find_program(COT_OSHCC oshcc)
if(NOT COT_OSHCC)
  if(NOT COT_SHMEM STREQUAL AUTO)
    message(FATAL_ERROR "COT_SHMEM needs OpenSHMEM's oshcc: apt-get install openmpi-bin libopenmpi-dev")
  endif()
  return()
endif()
# What the wrapper would add to the compiler's command line.
execute_process(COMMAND ${COT_OSHCC} --showme:incdirs OUTPUT_VARIABLE folders OUTPUT_STRIP_TRAILING_WHITESPACE)
execute_process(COMMAND ${COT_OSHCC} --showme:link OUTPUT_VARIABLE link OUTPUT_STRIP_TRAILING_WHITESPACE)
separate_arguments(folders)
separate_arguments(link)

add_library(coterie-shmem MODULE src/fabric/shmem/module/module.c)
target_include_directories(coterie-shmem PRIVATE src)
target_include_directories(coterie-shmem SYSTEM PRIVATE ${folders})
target_link_libraries(coterie-shmem PRIVATE ${link})
# Open MPI shares all writable memory of the process that lies below `_end`, which is the program's where that was linked with
# it, and its own, far above, where it was not. Here it is to find nothing: the first `_end` that it sees is this one.
target_link_options(coterie-shmem PRIVATE -Wl,--defsym=_end=4096)
add_dependencies(coterie-cli coterie-shmem) # who builds the program alone, as `make` does, wants it too
