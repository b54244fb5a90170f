# How every target of ours is compiled: warnings as errors, sanitizers, ccache, mold, precompiled headers.

add_library(hyperion_options INTERFACE)
target_compile_options(hyperion_options INTERFACE -Wall -Wextra -Wpedantic -Werror -Wno-unused-parameter -fno-math-errno
  # g++ 12 sees overlaps and impossible lengths in std::string that are not there (GCC bugs 105329 and 105651)
  -Wno-restrict -Wno-stringop-overflow -Wno-stringop-overread -Wno-array-bounds)
# The compiler collects its garbage from 512 MiB on instead of 128: a library of models/ is compiled in 0.93 of the time, with 7 % more memory.
target_compile_options(hyperion_options INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=524288>)
target_include_directories(hyperion_options INTERFACE ${CMAKE_SOURCE_DIR})
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  # what the x86-64 baseline does: the same code then has the same bits. The kernels that ask for fused products come later on the command line.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsigned-char> $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
endif()
if(HYPERION_SANITIZE)
  # little optimisation and lines only in the debug information: instrumented code takes long to compile;
  # g++ sees uninitialized members of libraries' classes in instrumented code that are not there (GCC's manual says so of -fsanitize)
  target_compile_options(hyperion_options INTERFACE -fsanitize=${HYPERION_SANITIZE} -fno-omit-frame-pointer -O1 -g1
    -Wno-maybe-uninitialized)
  target_link_options(hyperion_options INTERFACE -fsanitize=${HYPERION_SANITIZE})
endif()

find_program(HYPERION_CCACHE ccache)
if(HYPERION_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # pch_defines,time_macros: what ccache asks for before it caches files that use a precompiled header
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${HYPERION_CCACHE})
endif()
find_program(HYPERION_MOLD mold)
if(HYPERION_MOLD AND NOT CMAKE_CROSSCOMPILING)  # a cross-compiler looks for it by another name
  add_link_options(-fuse-ld=mold)
endif()

# Headers of the standard library and of others' libraries that most files include, compiled once for each of four uses and read by every
# target with the same flags. Narrow on purpose: reading one costs each file as much time as the header has bytes.
set(HYPERION_PCH_HEADERS <algorithm> <array> <atomic> <charconv> <chrono> <cmath> <condition_variable> <cstdint> <cstring> <exception>
  <filesystem> <functional> <map> <memory> <mutex> <optional> <set> <span> <stdexcept> <string> <string_view> <thread> <utility>
  <variant> <vector> <fmt/format.h> <fmt/ranges.h> <spdlog/spdlog.h>)

# hyperion_use_pch(NAME [TORCH] [TESTS]): TORCH: with a tensor of libtorch's. TESTS: with Catch2.
function(hyperion_use_pch name)
  cmake_parse_arguments(ARG "TORCH;TESTS" "" "" ${ARGN})
  set(pch hyperion_pch)
  set(headers ${HYPERION_PCH_HEADERS})
  set(libraries hyperion_options fmt::fmt hyperion_spdlog)
  if(ARG_TORCH)
    string(APPEND pch _torch)
    list(PREPEND headers <ATen/core/Tensor.h> <ATen/TensorOperators.h> <c10/util/Logging.h>)
    list(APPEND libraries hyperion_torch)
  endif()
  if(ARG_TESTS)
    string(APPEND pch _tests)
    list(APPEND headers <fstream> <catch2/catch.hpp>)
    list(APPEND libraries Catch2::Catch2)
  endif()
  target_link_libraries(${name} PUBLIC ${libraries})
  get_target_property(type ${name} TYPE)
  if(type STREQUAL "EXECUTABLE")  # the header is compiled with -fPIC, which CMake would turn into -fPIE for programs
    set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${name} PRIVATE -fPIC)
  endif()
  if(NOT HYPERION_PCH)
    return()
  endif()
  if(NOT TARGET ${pch})
    file(WRITE ${CMAKE_BINARY_DIR}/pch.cpp "")
    add_library(${pch} STATIC ${CMAKE_BINARY_DIR}/pch.cpp)
    target_link_libraries(${pch} PUBLIC ${libraries})
    target_compile_options(${pch} PRIVATE -fpch-preprocess)  # what ccache asks for
    target_precompile_headers(${pch} PRIVATE ${headers})
  endif()
  target_compile_options(${name} PRIVATE -fpch-preprocess)
  target_precompile_headers(${name} REUSE_FROM ${pch})
endfunction()

# hyperion_cold(NAME): for code that waits for files, people, a device or libtorch's operators: -Og, at which models/ compiles in two thirds
# of its time at -O2. Loops over elements belong elsewhere. At that level g++ sees uninitialized members in std::optional that are not
# there; files compiled at -O2 keep the warning.
function(hyperion_cold name)
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-Og> $<$<CONFIG:Release>:-Wno-maybe-uninitialized>)
endfunction()
hyperion_cold(hyperion_spdlog)

# hyperion_library(NAME [TORCH] [NO_PCH] [COLD] SOURCES file... [LINK lib...]): a static library of one folder.
# TORCH: it includes libtorch headers. NO_PCH: its flags are not those of the precompiled headers. COLD: hyperion_cold().
function(hyperion_library name)
  cmake_parse_arguments(ARG "TORCH;NO_PCH;COLD" "" "SOURCES;LINK" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC hyperion_options ${ARG_LINK})
  if(ARG_COLD)
    hyperion_cold(${name})
  endif()
  set(torch)
  if(ARG_TORCH)
    target_link_libraries(${name} PUBLIC hyperion_torch)
    set(torch TORCH)
  endif()
  if(NOT ARG_NO_PCH)
    hyperion_use_pch(${name} ${torch})
  endif()
endfunction()
