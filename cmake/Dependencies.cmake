# Finds what Hyperion uses: Debian's libraries, the libtorch of a Python wheel, and (optionally) a CUDA toolkit.

# --- Debian packages (scripts/setup.sh installs them) ---
find_package(Threads REQUIRED)
find_package(fmt 9 REQUIRED)
find_package(spdlog REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET libzstd)
find_package(ZLIB REQUIRED)
pkg_check_modules(DEFLATE REQUIRED IMPORTED_TARGET libdeflate)  # its CRC-32 is three times zlib's
pkg_check_modules(JEMALLOC REQUIRED IMPORTED_TARGET jemalloc)  # see trainer/main.cpp
find_package(simdjson REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(toml11 REQUIRED)
find_package(CLI11 REQUIRED)
find_path(XXHASH_INCLUDE xxhash.h REQUIRED)

# torch's own include folder carries another fmt, which spdlog does not compile with: a folder that holds
# only a link to the system's fmt is searched first.
get_target_property(FMT_INCLUDE fmt::fmt INTERFACE_INCLUDE_DIRECTORIES)
list(GET FMT_INCLUDE 0 FMT_INCLUDE)
set(HYPERION_FMT_SHIM ${CMAKE_BINARY_DIR}/fmt_shim)
file(MAKE_DIRECTORY ${HYPERION_FMT_SHIM})
if(NOT EXISTS ${HYPERION_FMT_SHIM}/fmt)
  file(CREATE_LINK ${FMT_INCLUDE}/fmt ${HYPERION_FMT_SHIM}/fmt SYMBOLIC)
endif()

# --- libtorch: the torch 2.11 wheel's folder ---
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
  message(FATAL_ERROR "torch ${HYPERION_TORCH_VERSION} at ${HYPERION_TORCH}: Hyperion is written for torch 2.11")
endif()

foreach(name torch_cpu c10)
  add_library(${name} SHARED IMPORTED)
  set_target_properties(${name} PROPERTIES IMPORTED_LOCATION ${HYPERION_TORCH}/lib/lib${name}.so)
endforeach()
add_library(hyperion_torch INTERFACE)
target_include_directories(hyperion_torch SYSTEM INTERFACE
  ${HYPERION_FMT_SHIM} ${HYPERION_TORCH}/include ${HYPERION_TORCH}/include/torch/csrc/api/include)
target_compile_definitions(hyperion_torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
target_link_libraries(hyperion_torch INTERFACE torch_cpu c10 Threads::Threads)

# libtorch_cpu needs libcudart and libcupti even on a CPU. They are in the wheels beside torch or in a toolkit. An
# old-style RPATH is used because it, unlike RUNPATH, also serves the libraries that libtorch itself loads.
get_filename_component(site_packages ${HYPERION_TORCH} DIRECTORY)
set(HYPERION_RUNTIME_PATHS ${HYPERION_TORCH}/lib)
foreach(folder ${site_packages}/nvidia/cu13/lib ${site_packages}/nvidia/cusparselt/lib ${site_packages}/nvidia/nvshmem/lib
               ${site_packages}/nvidia/nccl/lib ${site_packages}/nvidia/cudnn/lib $ENV{CUDA_HOME}/lib64
               /usr/local/cuda/lib64)
  if(EXISTS ${folder})
    list(APPEND HYPERION_RUNTIME_PATHS ${folder})
  endif()
endforeach()
set(CMAKE_BUILD_RPATH ${HYPERION_RUNTIME_PATHS})
set(CMAKE_BUILD_RPATH_USE_ORIGIN OFF)
add_link_options(-Wl,--disable-new-dtags)
foreach(folder ${HYPERION_RUNTIME_PATHS})
  add_link_options(-Wl,-rpath-link,${folder})
endforeach()
add_link_options(-Wl,--allow-shlib-undefined)

# --- CUDA ---
set(HYPERION_WITH_CUDA OFF)
if(NOT HYPERION_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  find_program(HYPERION_NVCC nvcc HINTS ENV CUDA_HOME /usr/local/cuda PATH_SUFFIXES bin)
  if(HYPERION_NVCC)
    set(HYPERION_WITH_CUDA ON)
    execute_process(COMMAND ${HYPERION_NVCC} --version OUTPUT_VARIABLE nvcc_text)
    string(REGEX MATCH "release ([0-9.]+)" ignored "${nvcc_text}")
    set(HYPERION_CUDA_VERSION ${CMAKE_MATCH_1})
    get_filename_component(toolkit ${HYPERION_NVCC}/../.. REALPATH)
    find_path(HYPERION_NCCL_INCLUDE nccl.h HINTS ${site_packages}/nvidia/nccl/include ${toolkit}/include)
    if(HYPERION_NCCL_INCLUDE)
      file(STRINGS ${HYPERION_NCCL_INCLUDE}/nccl.h nccl_lines REGEX "#define NCCL_(MAJOR|MINOR|PATCH) ")
      string(REGEX REPLACE "[^0-9;]+" "" nccl_lines "${nccl_lines}")
      string(REPLACE ";" "." HYPERION_NCCL_VERSION "${nccl_lines}")
      # libtorch's ProcessGroupNCCL options hold a structure of that header by value.
      if(NOT HYPERION_NCCL_VERSION MATCHES "^2\\.28\\.")
        message(FATAL_ERROR "${HYPERION_NCCL_INCLUDE}/nccl.h is NCCL ${HYPERION_NCCL_VERSION}, but torch 2.11 is made with 2.28: "
                            "install nvidia-nccl-cu13==2.28.9 beside torch")
      endif()
    endif()
  elseif(HYPERION_CUDA STREQUAL "ON")
    message(FATAL_ERROR "HYPERION_CUDA=ON, but no nvcc was found: install a CUDA 13.0 toolkit or set CUDA_HOME")
  endif()
endif()
message(STATUS "torch ${HYPERION_TORCH_VERSION} at ${HYPERION_TORCH}; CUDA code: ${HYPERION_WITH_CUDA}")
