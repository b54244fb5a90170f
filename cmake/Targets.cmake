# How every target of ours is compiled: warnings as errors, sanitizers, ccache, mold, precompiled headers.

add_library(hyperion_options INTERFACE)
target_compile_options(hyperion_options INTERFACE -Wall -Wextra -Wpedantic -Werror -Wno-unused-parameter -fno-math-errno
  -Wno-restrict)  # g++ 12 sees overlaps in std::string::insert that are not there (GCC bug 105329)
target_include_directories(hyperion_options INTERFACE ${CMAKE_SOURCE_DIR})
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
if(HYPERION_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

# hyperion_library(NAME [TORCH] SOURCES file... [LINK lib...]): a static library of one folder.
# TORCH: it includes libtorch headers, and gets the shared precompiled header of torch/types.h.
function(hyperion_library name)
  cmake_parse_arguments(ARG "TORCH" "" "SOURCES;LINK" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC hyperion_options ${ARG_LINK})
  if(ARG_TORCH)
    target_link_libraries(${name} PUBLIC hyperion_torch)
    hyperion_use_pch(${name})
  endif()
endfunction()

# One precompiled torch/types.h is made (in hyperion_pch) and reused by every target with the same flags.
function(hyperion_use_pch name)
  if(NOT HYPERION_PCH)
    return()
  endif()
  if(NOT TARGET hyperion_pch)
    file(WRITE ${CMAKE_BINARY_DIR}/pch.cpp "")
    add_library(hyperion_pch STATIC ${CMAKE_BINARY_DIR}/pch.cpp)
    target_link_libraries(hyperion_pch PUBLIC hyperion_options hyperion_torch fmt::fmt spdlog::spdlog)
    target_compile_options(hyperion_pch PRIVATE -fpch-preprocess)
    target_precompile_headers(hyperion_pch PRIVATE <torch/types.h>)
  endif()
  target_link_libraries(${name} PUBLIC fmt::fmt spdlog::spdlog)
  target_compile_options(${name} PRIVATE -fpch-preprocess)
  get_target_property(type ${name} TYPE)
  if(type STREQUAL "EXECUTABLE")  # the header was compiled with -fPIC, which CMake turns into -fPIE for programs
    set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${name} PRIVATE -fPIC)
  endif()
  target_precompile_headers(${name} REUSE_FROM hyperion_pch)
endfunction()
