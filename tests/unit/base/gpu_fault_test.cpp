#include "base/gpu_fault.h"

#include <new>
#include <stdexcept>

#include <catch2/catch.hpp>

namespace hyperion {

TEST_CASE(
    "a failed GPU is recognised by the text of libtorch and of NCCL and a mistake of a program is not") {
  const auto number = [](const char* text) {
    const auto fault = gpu_fault(std::runtime_error(text));
    return fault ? fault->number : 0;
  };
  CHECK(number("CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be ...") == 214);
  CHECK(number("NCCL error ...: Last error:\nCuda failure 719 'unspecified launch failure'") == 719);
  CHECK(number("CUDA error: an illegal memory access was encountered") == 700);
  CHECK(number("CUDA error: misaligned address") == 0);
  CHECK(number("CUDA error: out of memory") == 0);
  CHECK(number("the file says 'unknown error'") == 0);
}

TEST_CASE("an exception ends a job with the code of what it means") {
  CHECK(error_from(Error(ExitCode::kBadData, "a line")).code() == ExitCode::kBadData);
  CHECK(error_from(std::bad_alloc()).code() == ExitCode::kResources);
  CHECK(error_from(std::runtime_error("CUDA error: hardware stack error")).code() == ExitCode::kHardware);
  CHECK(error_from(std::runtime_error("CUDA error: invalid argument")).code() == ExitCode::kBug);
}

}  // namespace hyperion
