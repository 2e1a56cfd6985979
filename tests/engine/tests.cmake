# Every held-out loss of the shipped model at every number of ranks: minutes.
add_test(NAME engine/test_tiny_everywhere COMMAND engine_test_tiny)
set_tests_properties(engine/test_tiny_everywhere PROPERTIES LABELS long TIMEOUT 3000 ENVIRONMENT COT_LONG=1)
add_test(NAME engine/test_formats_everywhere COMMAND engine_test_formats)
set_tests_properties(engine/test_formats_everywhere PROPERTIES LABELS long TIMEOUT 3000 ENVIRONMENT COT_LONG=1)
# A million steps of the loop.
add_test(NAME engine/test_loop_everywhere COMMAND engine_test_loop)
set_tests_properties(engine/test_loop_everywhere PROPERTIES LABELS long TIMEOUT 3000 ENVIRONMENT COT_LONG=1)
# Families at every number of ranks, as threads and as processes.
add_test(NAME engine/test_golden_families_everywhere COMMAND engine_test_golden_families)
set_tests_properties(engine/test_golden_families_everywhere PROPERTIES LABELS long TIMEOUT 3000 SKIP_RETURN_CODE 77 ENVIRONMENT COT_LONG=1)
cot_count_allocations(engine_test_allocations)
target_link_options(engine_test_bench PRIVATE -Wl,--wrap=cot_bench_draw_expert)
# What is said of memory against what is touched, over a grid of settings: minutes.
add_test(NAME engine/test_memory_everywhere COMMAND engine_test_memory)
set_tests_properties(engine/test_memory_everywhere PROPERTIES LABELS long TIMEOUT 3000 ENVIRONMENT COT_LONG=1)
if(COT_SANITIZE) # sanitizers take memory of their own
  set_tests_properties(engine/test_memory engine/test_memory_everywhere PROPERTIES DISABLED TRUE)
endif()
# Weakened protocols of moves are caught by the drawn schedules.
if(NOT COT_SANITIZE)
  add_test(NAME engine/mutate COMMAND ${CMAKE_CURRENT_LIST_DIR}/mutate.sh ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR})
  set_tests_properties(engine/mutate PROPERTIES LABELS long TIMEOUT 3000)
endif()
target_link_options(engine_test_measure PRIVATE -Wl,--wrap=cot_checkpoint_open)
target_link_options(engine_test_epochs PRIVATE -Wl,--wrap=cot_runner_copy)
target_link_options(engine_test_move_failures PRIVATE -Wl,--wrap=cot_runner_copy -Wl,--wrap=cot_engine_group_place)
target_link_options(engine_test_failure PRIVATE -Wl,--wrap=cot_runner_stats)
target_link_options(engine_test_pipeline PRIVATE -Wl,--wrap=cot_runner_stats)
# A thousand moves of each kind, and the requests beside them: minutes.
add_test(NAME engine/test_moves_at_length COMMAND engine_test_moves)
set_tests_properties(engine/test_moves_at_length PROPERTIES LABELS long TIMEOUT 3000 ENVIRONMENT COT_LONG=1)
# Pipelines in many more of their ways: minutes.
add_test(NAME engine/test_pipeline_everywhere COMMAND engine_test_pipeline)
set_tests_properties(engine/test_pipeline_everywhere PROPERTIES LABELS long TIMEOUT 3000 ENVIRONMENT COT_LONG=1)
# The thread sanitizer slows arithmetic some ten times: the others there run the same code on less of it.
if(COT_SANITIZE MATCHES thread)
  set_tests_properties(engine/test_allocations engine/test_bits engine/test_bytes engine/test_formats engine/test_measure engine/test_overflow
                       engine/test_pipeline engine/test_tiny PROPERTIES LABELS long)
endif()
if(TARGET coterie-shmem)
  add_dependencies(engine_test_epochs coterie-shmem)
  add_dependencies(engine_test_moves coterie-shmem)
endif()
target_link_options(engine_test_budget PRIVATE -Wl,--wrap=cot_budget_look -Wl,--wrap=cot_runner_step -Wl,--wrap=cot_rebalance_learn)
# Seven splits that stay beside the one that moves, and many cycles of it: a minute.
add_test(NAME engine/test_budget_replay_at_length COMMAND engine_test_budget_replay)
set_tests_properties(engine/test_budget_replay_at_length PROPERTIES LABELS long TIMEOUT 3000 ENVIRONMENT COT_LONG=1)
