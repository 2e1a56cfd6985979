# What `cmake --install` lays down: the program, the library, the public headers, and how others find them.
include(CMakePackageConfigHelpers)
set(cot_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/coterie)

install(TARGETS coterie-cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS coterie EXPORT coterieTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS coterie-shared LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS coterie-python-names LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET coterie-shmem)
  install(TARGETS coterie-shmem LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
if(TARGET coterie-cuda)
  install(TARGETS coterie-cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
if(SKBUILD) # `pip install .`: the library beside the package
  install(TARGETS coterie-shared LIBRARY DESTINATION coterie COMPONENT python)
endif()
install(DIRECTORY include/coterie DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES ${cot_manual_pages} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${cot_manual_dir}/coterie.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
        RENAME coterie)
install(FILES ${cot_manual_dir}/_coterie DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)

install(EXPORT coterieTargets NAMESPACE coterie:: DESTINATION ${cot_package_dir})
configure_package_config_file(cmake/coterieConfig.cmake.in ${PROJECT_BINARY_DIR}/coterieConfig.cmake
                              INSTALL_DESTINATION ${cot_package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/coterieConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/coterieConfig.cmake ${PROJECT_BINARY_DIR}/coterieConfigVersion.cmake
        DESTINATION ${cot_package_dir})

# The prefix is told relative to the file, so that an installed tree may be moved.
file(RELATIVE_PATH cot_pc_to_prefix /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
string(REGEX REPLACE "/$" "" cot_pc_to_prefix ${cot_pc_to_prefix})
configure_file(cmake/coterie.pc.in ${PROJECT_BINARY_DIR}/coterie.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/coterie.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
