# -O3 makes vectors of the loops over tokens.
set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/token_step.c ${CMAKE_CURRENT_LIST_DIR}/anneal.c
                            PROPERTIES COMPILE_OPTIONS "-O3")
