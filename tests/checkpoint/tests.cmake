# Of these tests this one has threads of its own, which the thread sanitizer looks at (.ci/run tsan).
set_tests_properties(checkpoint/test_convert PROPERTIES LABELS "checkpoint;threads")
add_custom_target(tests_of_threads DEPENDS checkpoint_test_convert)
