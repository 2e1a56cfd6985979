# The commands' frame is no part of the library: its test compiles it in.
foreach(file command help nearest options)
  target_sources(cli_test_options PRIVATE ${PROJECT_SOURCE_DIR}/src/cli/${file}.c)
endforeach()
