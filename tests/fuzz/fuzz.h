// What every fuzz target shares. A target is one function that takes bytes from outside; it may end in an
// Error of the kind for bad input and in nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace hyperion::fuzz {

// Runs f(); any exception but Error(kBadData) ends the program, which is a finding.
template <typename F>
void expect_bad_data_at_most(F f) {
  try {
    f();
  } catch (const Error& error) {
    if (error.code() != ExitCode::kBadData) std::abort();
  }
}

inline std::span<const std::byte> as_bytes(const uint8_t* data, size_t size) {
  return std::as_bytes(std::span(data, size));
}

}  // namespace hyperion::fuzz
