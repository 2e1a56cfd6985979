# What bench/device measures with: a program of the operators' host side and kernels, for one architecture (COT_CUDA_MAJOR), and one of
# the device's roofs. Needs nvcc, and no library of Coterie's.
enable_language(CXX)
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(COT_CUDA_MAJOR "" CACHE STRING "The device's compute capability, its first number")

set(images ${PROJECT_BINARY_DIR}/images)
set(image_files ${images}/fused.fatbin ${images}/bulk.fatbin ${images}/timeline.fatbin ${images}/image.h)
file(GLOB kernel_texts CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cuda/*.h)
add_custom_command(OUTPUT ${image_files} VERBATIM
                   COMMAND ${PROJECT_SOURCE_DIR}/tools/compile_cuda --here ${images} ${COT_CUDA_MAJOR}
                   DEPENDS ${kernel_texts} ${PROJECT_SOURCE_DIR}/cuda/fused.cu ${PROJECT_SOURCE_DIR}/cuda/bulk.cu
                           ${PROJECT_SOURCE_DIR}/src/moe/fused/layout.h ${PROJECT_SOURCE_DIR}/cuda/loops.txt
                           ${PROJECT_SOURCE_DIR}/tools/compile_cuda
                           ${PROJECT_SOURCE_DIR}/tools/check_sass)
set(host ${PROJECT_SOURCE_DIR}/cuda/module)
add_executable(device_points bench/device_main.cpp bench/device_points.cpp ${host}/call.cpp ${host}/device.cpp
               ${host}/driver.cpp ${host}/group.cpp ${host}/image.cpp ${host}/kept.cpp ${host}/probe.cpp ${host}/weights.cpp)
target_include_directories(device_points PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src)
target_compile_options(device_points PRIVATE -include ${images}/image.h)
target_link_libraries(device_points PRIVATE coterie)
set_source_files_properties(${host}/image.cpp PROPERTIES OBJECT_DEPENDS "${image_files}")
add_custom_target(device_images DEPENDS ${image_files})
add_dependencies(device_points device_images)
