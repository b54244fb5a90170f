#include "base/device/device.h"

#include <algorithm>
#include <array>
#include <cctype>

#include <dlfcn.h>

#include "base/counted.h"
#include "base/error.h"

namespace hyperion {

DriverProbe probe_driver() {
  // The driver stays loaded: CUDA libraries loaded later use it, and unloading it is not safe.
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return {0, "the NVIDIA driver's libcuda.so.1 was not found"};
  const auto initialise = reinterpret_cast<int (*)(unsigned)>(dlsym(library, "cuInit"));
  const auto count = reinterpret_cast<int (*)(int*)>(dlsym(library, "cuDeviceGetCount"));
  if (initialise == nullptr || count == nullptr) return {0, "libcuda.so.1 lacks cuInit or cuDeviceGetCount"};
  constexpr int kNoDevice = 100;  // CUDA_ERROR_NO_DEVICE
  int result = initialise(0);
  int devices = 0;
  if (result == 0) result = count(&devices);
  if (result == kNoDevice) return {0, "the NVIDIA driver sees no device"};
  if (result != 0) return {0, fmt::format("the NVIDIA driver did not initialise (CUresult {})", result)};
  if (devices == 0) return {0, "the NVIDIA driver sees no device"};
  DriverProbe probe{devices, ""};
  const auto version = reinterpret_cast<int (*)(int*)>(dlsym(library, "cuDriverGetVersion"));
  if (version != nullptr) version(&probe.cuda);
  const auto device_of = reinterpret_cast<int (*)(int*, int)>(dlsym(library, "cuDeviceGet"));
  const auto memory_of = reinterpret_cast<int (*)(size_t*, int)>(dlsym(library, "cuDeviceTotalMem_v2"));
  int device = 0;
  if (device_of != nullptr && memory_of != nullptr && device_of(&device, 0) == 0)
    memory_of(&probe.memory, device);
  return probe;
}

std::string pci_address(int device) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return "";
  const auto address_of = reinterpret_cast<int (*)(char*, int, int)>(dlsym(library, "cuDeviceGetPCIBusId"));
  std::array<char, 32> text{};
  if (address_of == nullptr || address_of(text.data(), static_cast<int>(text.size()), device) != 0) return "";
  std::string address = text.data();
  std::ranges::transform(address, address.begin(), [](unsigned char c) { return std::tolower(c); });
  return address;
}

DeviceKind choose_device(const std::optional<std::string>& wanted, const DriverProbe& driver,
                         const std::function<std::string()>& library_problem) {
  const std::string choice = wanted && !wanted->empty() ? *wanted : "auto";
  if (choice != "auto" && choice != "cpu" && choice != "cuda") {
    throw_config("HYPERION_DEVICE is '{}', expected auto, cpu or cuda", choice);
  }
  if (choice == "cpu" || (choice == "auto" && driver.devices == 0)) return DeviceKind::kCpu;
  if (driver.devices == 0) {
    throw_config(
        "HYPERION_DEVICE is cuda, but there is no GPU: {}; use HYPERION_DEVICE=cpu to train on the CPU",
        driver.reason);
  }
  constexpr int kCuda = 13000;  // CUDA version of torch 2.11 and of our library
  if (driver.cuda > 0 && driver.cuda < kCuda) {
    throw_config(
        "this machine has {}, but its NVIDIA driver serves CUDA up to {}.{}, and CUDA 13.0 needs driver 580 "
        "or newer: update it (for data-center GPUs NVIDIA's cuda-compat-13-0 on LD_LIBRARY_PATH may serve), "
        "or set HYPERION_DEVICE=cpu to train on the CPU",
        counted(driver.devices, "GPU"), driver.cuda / 1000, driver.cuda % 1000 / 10);
  }
  if (const std::string problem = library_problem(); !problem.empty()) {
    throw_config(
        "this machine has {}, but Hyperion's CUDA library cannot be used: {}, or set HYPERION_DEVICE=cpu to "
        "train on the CPU",
        counted(driver.devices, "GPU"), problem);
  }
  return DeviceKind::kCuda;
}

}  // namespace hyperion
