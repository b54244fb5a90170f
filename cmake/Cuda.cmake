# CUDA, where there is a compiler for it: the language, NCCL, and the target of our CUDA library.
set(HYPERION_WITH_CUDA OFF)
if(NOT HYPERION_CUDA STREQUAL "OFF")
  find_program(CMAKE_CUDA_COMPILER nvcc HINTS ENV CUDA_HOME /usr/local/cuda PATH_SUFFIXES bin)
  if(CMAKE_CUDA_COMPILER)
    set(HYPERION_WITH_CUDA ON)
  elseif(HYPERION_CUDA STREQUAL "ON")
    message(FATAL_ERROR "HYPERION_CUDA=ON, but no nvcc was found: install a CUDA 13.0 toolkit or set CUDA_HOME")
  endif()
endif()
message(STATUS "torch ${HYPERION_TORCH_VERSION} at ${HYPERION_TORCH}; CUDA code: ${HYPERION_WITH_CUDA}")
if(NOT HYPERION_WITH_CUDA)
  return()
endif()

get_filename_component(wheels ${HYPERION_TORCH}/../nvidia ABSOLUTE)
if(CMAKE_CROSSCOMPILING)  # headers are the same for all processors, and a toolkit has those of its own alone
  set(target_directory --target-directory=${CMAKE_HOST_SYSTEM_PROCESSOR}-linux)
  set(ENV{NVCC_APPEND_FLAGS} "${target_directory} -L${wheels}/cu13/lib")  # for what CMake tries here
  string(APPEND CMAKE_CUDA_FLAGS " ${target_directory}")
endif()
set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
set(CMAKE_CUDA_ARCHITECTURES 89-real 90)  # FP8 starts with SM89; later devices than SM90 take the PTX
set(CMAKE_CUDA_STANDARD 17)  # CMake 3.25 knows no C++20 of nvcc
set(CMAKE_CUDA_FLAGS_RELEASE "-O3")
set(CMAKE_CUDA_RUNTIME_LIBRARY None)  # hyperion_cuda names it: a wheel has no libcudart.so, only libcudart.so.13
enable_language(CUDA)
string(REGEX MATCH "^[0-9]+\\.[0-9]+" HYPERION_CUDA_VERSION ${CMAKE_CUDA_COMPILER_VERSION})

# NCCL and the CUDA runtime are in the toolkit or in the wheels installed with torch.
find_path(HYPERION_NCCL_INCLUDE nccl.h REQUIRED HINTS ${wheels}/nccl/include ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
find_library(HYPERION_NCCL NAMES nccl libnccl.so.2 NAMES_PER_DIR REQUIRED HINTS ${wheels}/nccl/lib ${CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES})
find_library(HYPERION_CUDART NAMES cudart libcudart.so.13 NAMES_PER_DIR REQUIRED HINTS ${CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES} ${wheels}/cu13/lib)
file(STRINGS ${HYPERION_NCCL_INCLUDE}/nccl.h nccl_lines REGEX "#define NCCL_(MAJOR|MINOR|PATCH) ")
string(REGEX REPLACE "[^0-9;]+" "" nccl_lines "${nccl_lines}")
string(REPLACE ";" "." HYPERION_NCCL_VERSION "${nccl_lines}")
if(NOT HYPERION_NCCL_VERSION MATCHES "^2\\.28\\.")  # libtorch's ProcessGroupNCCL options hold a structure of that header by value
  message(FATAL_ERROR "${HYPERION_NCCL_INCLUDE}/nccl.h is NCCL ${HYPERION_NCCL_VERSION}, but torch 2.11 is made with 2.28: "
                      "install nvidia-nccl-cu13==2.28.9 with torch")
endif()

add_library(hyperion_cuda_headers INTERFACE)
target_include_directories(hyperion_cuda_headers SYSTEM INTERFACE ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES} ${HYPERION_NCCL_INCLUDE})

# libhyperion_cuda.so: everything of ours that needs CUDA, loaded at run time by base/device/device_library.cpp. base/device/cuda,
# models/float8/cuda and models/kernels add their sources. The driver, libcuda.so.1, is needed only where it runs.
foreach(name torch_cuda c10_cuda)
  add_library(${name} SHARED IMPORTED)
  set_target_properties(${name} PROPERTIES IMPORTED_LOCATION ${HYPERION_TORCH}/lib/lib${name}.so)
endforeach()
add_library(hyperion_cuda SHARED)
# The linker would make an id of names that nvcc gives its files by process numbers, and that no packaged file keeps.
target_link_options(hyperion_cuda PRIVATE LINKER:--build-id=none)
set_target_properties(hyperion_cuda PROPERTIES LINKER_LANGUAGE CXX)
target_compile_definitions(hyperion_cuda PRIVATE USE_C10D_NCCL)
target_compile_options(hyperion_cuda PRIVATE -fvisibility=hidden)
target_link_options(hyperion_cuda PRIVATE -Wl,--no-as-needed)  # as-needed would drop libtorch_cuda where only its registrations are wanted
target_link_libraries(hyperion_cuda PRIVATE hyperion_options hyperion_torch hyperion_cuda_headers torch_cuda c10_cuda fmt::fmt
  ${HYPERION_CUDART} ${HYPERION_NCCL})
