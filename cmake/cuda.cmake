# The device's operator: a module that the program opens when it is asked for, and the tests that run its kernels and its host's
# side on an emulator. The default build knows neither.
if(COT_SANITIZE OR COT_FUZZ)
  message(FATAL_ERROR "COT_CUDA does not go with sanitizers: the emulator takes their place")
endif()
enable_language(CXX)
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)

# What runs on the host: no exceptions, no library of C++, so that the module needs none.
file(GLOB cot_cuda_host CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cuda/module/*.cpp)
list(FILTER cot_cuda_host EXCLUDE REGEX "/(module|image).cpp$")
add_library(cuda_host OBJECT ${cot_cuda_host})
target_include_directories(cuda_host PUBLIC ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
target_compile_options(cuda_host PRIVATE -Werror -fno-exceptions -fno-rtti)
set_target_properties(cuda_host PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden)

# The module, with the kernels of every architecture in it; compiled to where `make cuda` compiles them.
set(images ${PROJECT_BINARY_DIR}/cuda)
set(image_files ${images}/fused.fatbin ${images}/bulk.fatbin ${images}/image.h)
file(GLOB kernel_texts CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cuda/*.h)
add_custom_command(OUTPUT ${image_files} VERBATIM
                   COMMAND ${PROJECT_SOURCE_DIR}/tools/compile_cuda --image ${images} ${PROJECT_BINARY_DIR}/cubins
                   DEPENDS ${kernel_texts} ${PROJECT_SOURCE_DIR}/cuda/fused.cu ${PROJECT_SOURCE_DIR}/cuda/bulk.cu
                           ${PROJECT_SOURCE_DIR}/src/moe/fused/layout.h ${PROJECT_SOURCE_DIR}/cuda/loops.txt
                           ${PROJECT_SOURCE_DIR}/cuda/registers.txt
                           ${PROJECT_SOURCE_DIR}/tools/compile_cuda ${PROJECT_SOURCE_DIR}/tools/check_sass
                           ${PROJECT_SOURCE_DIR}/tools/get-cuda)
add_library(coterie-cuda MODULE ${PROJECT_SOURCE_DIR}/cuda/module/module.cpp ${PROJECT_SOURCE_DIR}/cuda/module/image.cpp
            $<TARGET_OBJECTS:cuda_host>)
target_link_libraries(coterie-cuda PRIVATE coterie)
target_include_directories(coterie-cuda PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src)
target_link_options(coterie-cuda PRIVATE -Wl,--exclude-libs,ALL)
target_compile_options(coterie-cuda PRIVATE -Werror -fno-exceptions -fno-rtti -fvisibility=hidden -include ${images}/image.h)
set_source_files_properties(${PROJECT_SOURCE_DIR}/cuda/module/module.cpp ${PROJECT_SOURCE_DIR}/cuda/module/image.cpp
                            PROPERTIES OBJECT_DEPENDS "${image_files}")

add_custom_target(cuda-tests)
if(COT_TESTS)
  add_subdirectory(tests/cuda)
endif()
