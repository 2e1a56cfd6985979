# They run a loop of their own and talk to it through sockets.
foreach(test IN ITEMS test_http_answers test_http_refusals test_http_streams test_http_limits test_http_client test_load_run test_publisher test_subscriber)
  if(TARGET net_${test})
    target_link_libraries(net_${test} PRIVATE PkgConfig::EVENT)
  endif()
endforeach()
if(TARGET net_test_publisher)
  target_link_libraries(net_test_publisher PRIVATE PkgConfig::ZMQ)
endif()
