# A room is one object library that sees exactly the rooms it names: its include path is a folder of links, one for each
# of those rooms, so that "fabric/fabric.h" does not even resolve in a room that may not include it.

# cot_room(NAME [SOURCES file...] [ROOMS room...] [LINK target...]): all .c files of src/NAME but modules', or those given
function(cot_room name)
  cmake_parse_arguments(R "" "" "SOURCES;ROOMS;LINK" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.c)
  list(FILTER sources EXCLUDE REGEX "/module/[^/]+$")   # shared objects of their own
  if(R_SOURCES)
    list(TRANSFORM R_SOURCES PREPEND ${PROJECT_SOURCE_DIR}/src/${name}/ OUTPUT_VARIABLE sources)
  endif()
  set(view ${PROJECT_BINARY_DIR}/rooms/${name})
  file(MAKE_DIRECTORY ${view})
  foreach(room IN LISTS R_ROOMS ITEMS ${name})
    set(folder ${PROJECT_SOURCE_DIR}/src/${room})
    if(room STREQUAL cuda)   # not in src/
      set(folder ${PROJECT_SOURCE_DIR}/cuda)
    endif()
    file(CREATE_LINK ${folder} ${view}/${room} SYMBOLIC)
  endforeach()
  if(NOT sources)
    return()   # contracts only, so far
  endif()
  add_library(cot_${name} OBJECT ${sources})
  target_include_directories(cot_${name} PUBLIC ${view} PRIVATE ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(cot_${name} PUBLIC ${R_LINK})
  set_property(GLOBAL PROPERTY cot_links_${name} "${R_LINK}")
  if(EXISTS ${PROJECT_SOURCE_DIR}/src/${name}/flags.cmake)
    include(${PROJECT_SOURCE_DIR}/src/${name}/flags.cmake)   # ISA flags per file
  endif()
endfunction()

# cot_assemble(LIBRARY room...): one library of all rooms, public headers only
function(cot_assemble library)
  foreach(room IN LISTS ARGN)
    if(NOT TARGET cot_${room})
      continue()
    endif()
    target_sources(${library} PRIVATE $<TARGET_OBJECTS:cot_${room}>)
    get_property(links GLOBAL PROPERTY cot_links_${room})
    target_link_libraries(${library} PRIVATE ${links})
  endforeach()
  target_include_directories(${library} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                               $<INSTALL_INTERFACE:include>)
endfunction()
