# They run a loop of their own and talk to it through sockets.
foreach(test IN ITEMS test_http_server test_http_client)
  if(TARGET net_${test})
    target_link_libraries(net_${test} PRIVATE PkgConfig::EVENT)
  endif()
endforeach()
