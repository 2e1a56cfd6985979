# They say what a client sent.
if(TARGET access_test_access)
  target_link_options(access_test_access PRIVATE -Wl,--wrap=cot_http_method,--wrap=cot_http_path,--wrap=cot_http_host,--wrap=cot_http_header)
  target_link_options(access_test_access_log PRIVATE -Wl,--wrap=cot_http_peer)
  target_link_options(access_test_reload PRIVATE -Wl,--wrap=cot_tls_reload)
  target_link_options(access_test_replies PRIVATE -Wl,--wrap=cot_http_method,--wrap=cot_http_header,--wrap=cot_http_reply)
endif()
