#include "base/gpu_fault.h"

#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/resources.h"

namespace hyperion {
namespace {

constexpr std::pair<int, std::string_view> kFaults[] = {
    {46, "CUDA-capable device(s) is/are busy or unavailable"},
    {214, "uncorrectable ECC error encountered"},
    {220, "uncorrectable NVLink error detected during the execution"},
    {226, "Invalid access of peer GPU memory over nvlink or a hardware error"},
    {700, "an illegal memory access was encountered"},
    {714, "hardware stack error"},
    {719, "unspecified launch failure"},
    {802, "system not yet initialized"},
    {999, "unknown error"},
};

}  // namespace

std::optional<GpuFault> gpu_fault(const std::exception& error) {
  const std::string_view text = error.what();
  const auto contains = [&](std::string_view part) { return text.find(part) != std::string_view::npos; };
  for (const auto& [number, sentence] : kFaults)
    if (contains(fmt::format("CUDA error: {}", sentence)) ||
        contains(fmt::format("CUDA driver error: {}", sentence)) ||             // libtorch
        (contains("Cuda failure") && contains(fmt::format("'{}'", sentence))))  // NCCL
      return GpuFault{number, fmt::format("CUDA error {}: {}", number, sentence)};
  return std::nullopt;
}

std::string gpu_fault_message(const GpuFault& fault) {
  return fmt::format(
      "the GPU failed ({}); look at `nvidia-smi -q` and at the kernel's log for Xid on that host, and start "
      "again without it, as scripts/train.slurm does by itself{}",
      fault.what,
      fault.number == 700 ? "; when it comes on another host too, it is a bug of Hyperion: report it" : "");
}

Error error_from(const std::exception& error) {
  if (const auto* known = dynamic_cast<const Error*>(&error)) return *known;
  if (const auto resource = exhausted_resource(error)) return Error(ExitCode::kResources, resource->what);
  if (const auto fault = gpu_fault(error)) return Error(ExitCode::kHardware, gpu_fault_message(*fault));
  return Error(ExitCode::kBug, fmt::format("internal error: {}", error.what()));
}

}  // namespace hyperion
