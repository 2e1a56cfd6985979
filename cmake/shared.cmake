# libcoterie.so, for programs that load it (python/): the same objects as the static library, of which others see what
# the public headers declare and nothing more.
file(GLOB cot_public CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/coterie/*.h)
set(cot_names)
foreach(header IN LISTS cot_public)
  file(READ ${header} text)
  string(REGEX MATCHALL "cot_[a-z0-9_]+[(]|cot_[a-z0-9_]+\\[[A-Z_]*\\];" found "${text}")
  list(APPEND cot_names ${found})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${header})
endforeach()
string(REGEX MATCHALL "cot_[a-z0-9_]+" cot_names "${cot_names}")
list(REMOVE_DUPLICATES cot_names)
list(SORT cot_names)
list(JOIN cot_names ";\n    " cot_names)
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/public.map CONTENT "{\n  global:\n    @cot_names@;\n  local: *;\n};\n" @ONLY)

add_library(coterie-shared SHARED)
set_target_properties(coterie-shared PROPERTIES OUTPUT_NAME coterie LINK_DEPENDS ${PROJECT_BINARY_DIR}/public.map)
target_link_options(coterie-shared PRIVATE -Wl,--version-script=${PROJECT_BINARY_DIR}/public.map)
