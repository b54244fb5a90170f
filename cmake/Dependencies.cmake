# Finds what Hyperion uses: Debian's libraries and the libtorch of a Python wheel. CUDA is in Cuda.cmake.

# --- Debian packages (scripts/setup.sh installs them) ---
find_package(Threads REQUIRED)
find_package(fmt 9 REQUIRED)
find_path(SPDLOG_INCLUDE spdlog/spdlog.h REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET libzstd)
find_package(ZLIB REQUIRED)
pkg_check_modules(DEFLATE REQUIRED IMPORTED_TARGET libdeflate)  # its CRC-32 is three times zlib's
pkg_check_modules(JEMALLOC REQUIRED IMPORTED_TARGET jemalloc)  # see app/main.cpp
find_package(simdjson REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(toml11 REQUIRED)
find_package(CLI11 REQUIRED)
find_path(XXHASH_INCLUDE xxhash.h REQUIRED)
add_library(hyperion_spdlog STATIC base/spdlog_library.cpp)
target_include_directories(hyperion_spdlog SYSTEM PUBLIC ${SPDLOG_INCLUDE})
target_compile_definitions(hyperion_spdlog PUBLIC SPDLOG_SHARED_LIB SPDLOG_COMPILED_LIB SPDLOG_FMT_EXTERNAL)
target_link_libraries(hyperion_spdlog PUBLIC fmt::fmt Threads::Threads)

# --- libtorch: the torch 2.11 wheel's folder ---
# At least 2.11: on a GPU, gradients of weights are added up in fp32 by addmm of bf16 factors into an fp32 sum
# (models/kernels/matmul/matmul.cpp), which 2.10 refuses. No newer one: its C++ interface has no promise of stability.
set(HYPERION_TORCH "$ENV{HYPERION_TORCH}" CACHE PATH "The torch folder of a torch 2.11 wheel")
if(NOT HYPERION_TORCH)
  file(GLOB found ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
  if(found)
    set(HYPERION_TORCH ${found} CACHE PATH "" FORCE)
  endif()
endif()
if(NOT EXISTS ${HYPERION_TORCH}/lib/libtorch_cpu.so)
  message(FATAL_ERROR "libtorch not found at '${HYPERION_TORCH}': run scripts/setup.sh, or set HYPERION_TORCH to the "
                      "torch folder of an installed torch 2.11 wheel")
endif()
file(STRINGS ${HYPERION_TORCH}/version.py torch_version_line REGEX "^__version__")
string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+[^']*" HYPERION_TORCH_VERSION "${torch_version_line}")
if(NOT HYPERION_TORCH_VERSION MATCHES "^2\\.11\\.")
  message(FATAL_ERROR "torch ${HYPERION_TORCH_VERSION} at ${HYPERION_TORCH}: Hyperion is written for torch 2.11 "
                      "(2.10 does not add products of bf16 to a sum in fp32)")
endif()

foreach(name torch_cpu c10)
  add_library(${name} SHARED IMPORTED)
  set_target_properties(${name} PROPERTIES IMPORTED_LOCATION ${HYPERION_TORCH}/lib/lib${name}.so)
endforeach()
# The OpenMP library that libtorch brings: two of them in one process would have two teams of threads.
file(GLOB torch_gomp_file ${HYPERION_TORCH}/lib/libgomp*.so*)
if(NOT torch_gomp_file)
  message(FATAL_ERROR "no libgomp in ${HYPERION_TORCH}/lib: Hyperion is written for the wheels of pytorch.org, which bring it")
endif()
list(GET torch_gomp_file 0 torch_gomp_file)
add_library(torch_gomp SHARED IMPORTED)
set_target_properties(torch_gomp PROPERTIES IMPORTED_LOCATION ${torch_gomp_file})
# torch's include folder is searched last: it carries another fmt, which Debian's spdlog does not compile with.
file(GLOB other_torch /usr/include/torch/types.h /usr/include/ATen/ATen.h /usr/local/include/torch/types.h /usr/local/include/ATen/ATen.h)
if(other_torch)
  message(FATAL_ERROR "${other_torch} would be taken for those of ${HYPERION_TORCH}: remove the package that holds them (Debian: libtorch-dev)")
endif()
add_library(hyperion_torch INTERFACE)
target_compile_options(hyperion_torch INTERFACE
  "SHELL:-idirafter ${HYPERION_TORCH}/include" "SHELL:-idirafter ${HYPERION_TORCH}/include/torch/csrc/api/include")
# NDEBUG: without it at::RecordFunction has a member that the library's does not have, and checks it.
# AT_PER_OPERATOR_HEADERS: without it every header of libtorch's that needs one operator includes the two thousand.
target_compile_definitions(hyperion_torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO NDEBUG AT_PER_OPERATOR_HEADERS)
target_link_libraries(hyperion_torch INTERFACE torch_cpu c10 Threads::Threads)

# libtorch_cpu needs libcudart and libcupti even on a CPU. It finds them in the wheels installed with torch by itself, in a toolkit by our
# programs' RPATH (which, unlike the newer RUNPATH, also serves the libraries that libtorch loads).
# Paths in the build folder are relative to a program: the room that they leave in a packaged file does not depend on where it was built.
set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)
foreach(folder $ENV{CUDA_HOME}/lib64 /usr/local/cuda/lib64)
  if(EXISTS ${folder})
    list(APPEND CMAKE_BUILD_RPATH ${folder})
  endif()
endforeach()
add_link_options(-Wl,--disable-new-dtags -Wl,--allow-shlib-undefined)

# --- Apache Arrow C++: the folder of a pyarrow 26.0.1 wheel, with which data/arrow/plugin/ is built; without it no Parquet is read ---
set(HYPERION_ARROW "$ENV{HYPERION_ARROW}" CACHE PATH "The pyarrow folder of a pyarrow 26.0.1 wheel")
if(NOT HYPERION_ARROW)
  file(GLOB found ${HYPERION_TORCH}/../pyarrow/libparquet.so.2600 ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/pyarrow/libparquet.so.2600)
  if(found)
    list(GET found 0 found)
    get_filename_component(found ${found} DIRECTORY)
    set(HYPERION_ARROW ${found} CACHE PATH "" FORCE)
  endif()
endif()
if(HYPERION_ARROW)
  foreach(name arrow parquet)
    if(NOT EXISTS ${HYPERION_ARROW}/lib${name}.so.2600)
      message(FATAL_ERROR "no lib${name}.so.2600 in HYPERION_ARROW=${HYPERION_ARROW}: it must be the pyarrow folder of pyarrow 26.0.1")
    endif()
    add_library(pyarrow_${name} SHARED IMPORTED)
    set_target_properties(pyarrow_${name} PROPERTIES IMPORTED_LOCATION ${HYPERION_ARROW}/lib${name}.so.2600)
    target_include_directories(pyarrow_${name} SYSTEM INTERFACE ${HYPERION_ARROW}/include)
  endforeach()
endif()
message(STATUS "Apache Arrow: ${HYPERION_ARROW}")
