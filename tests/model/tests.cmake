# Of the model's tests this one has threads of its own, which the thread sanitizer looks at (.ci/run tsan).
set_tests_properties(model/test_convert PROPERTIES LABELS "model;threads")
