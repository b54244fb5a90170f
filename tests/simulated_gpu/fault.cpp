#include "tests/simulated_gpu/fault.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace simulated_gpu {
namespace {

struct Fault {
  int error = 0;
  long kernels = -1;

  Fault() {
    const char* given = std::getenv("HYPERION_SIMULATED_FAULT");
    if (given == nullptr) return;
    char what[16] = "";
    int rank = 0;
    const char* own = std::getenv("RANK");
    if (std::sscanf(given, "%15[^@]@%d:%ld", what, &rank, &kernels) != 3) {
      std::fprintf(stderr, "HYPERION_SIMULATED_FAULT is '%s', expected ERROR@RANK:KERNELS\n", given);
      std::_Exit(2);
    }
    error = std::atoi(what);  // 0: abort
    if (rank != (own == nullptr ? 0 : std::atoi(own))) kernels = -1;
  }
};

}  // namespace

cudaError_t fault(bool kernel) {
  static const Fault given;
  static std::atomic<long> launched{0};
  if (given.kernels < 0 || (launched += kernel ? 1 : 0) < given.kernels) return cudaSuccess;
  if (given.error == 0) std::abort();
  return static_cast<cudaError_t>(given.error);
}

}  // namespace simulated_gpu

extern "C" {

const char* cudaGetErrorName(cudaError_t) {
  return "error of the simulated GPU";
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorDevicesUnavailable:
      return "CUDA-capable device(s) is/are busy or unavailable";
    case cudaErrorECCUncorrectable:
      return "uncorrectable ECC error encountered";
    case cudaErrorNvlinkUncorrectable:
      return "uncorrectable NVLink error detected during the execution";
    case cudaErrorContained:
      return "Invalid access of peer GPU memory over nvlink or a hardware error";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    case cudaErrorHardwareStackError:
      return "hardware stack error";
    case cudaErrorLaunchFailure:
      return "unspecified launch failure";
    case cudaErrorSystemNotReady:
      return "system not yet initialized";
    case cudaErrorUnknown:
      return "unknown error";
    default:
      return "error of the simulated GPU";
  }
}

}  // extern "C"
