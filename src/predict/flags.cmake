# -O3 makes vectors of training's loops, whose bits stay those of the source (no contraction, no reassociation).
set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/logistic.c PROPERTIES COMPILE_OPTIONS "-O3")
# What it sums over tokens, homes and experts is all that bench signature waits for.
set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/arrangement.c PROPERTIES COMPILE_OPTIONS "-O3")
