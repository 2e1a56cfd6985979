# It sees what the system is advised.
if(TARGET model_test_memory)
  target_link_options(model_test_memory PRIVATE -Wl,--wrap=madvise)
endif()
