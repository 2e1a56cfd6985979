# Scores of all targets are made in vectors: no comparison traps.
set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/book.c PROPERTIES COMPILE_OPTIONS "-O3;-fno-trapping-math")
