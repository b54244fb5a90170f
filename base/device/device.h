// CPU or CUDA: decided before anything CUDA is loaded, by asking the driver alone.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>

namespace hyperion {

enum class DeviceKind { kCpu, kCuda };

// How many devices the NVIDIA driver offers to this process (CUDA_VISIBLE_DEVICES is respected), and when
// there are none, why ("libcuda.so.1 was not found").
struct DriverProbe {
  int devices = 0;
  std::string reason;
  size_t memory = 0;  // bytes of the first device; 0 where the driver does not say
  int cuda = 0;       // the newest CUDA that it serves, 13000 for 13.0; 0 where the driver does not say
};
// Loads libcuda.so.1, initialises it, counts and asks for the memory. Creates no CUDA context.
DriverProbe probe_driver();

// The PCI address of a visible device as sysfs spells it ("0000:1b:00.0"), from the driver alone; "" where
// it does not say.
std::string pci_address(int device);

// `wanted`: HYPERION_DEVICE ("auto", "cpu" or "cuda"; absent or empty = auto). `library_problem` says why our
// CUDA library cannot be used, and the remedy (empty when it can); it is asked only when a device is there
// and wanted. Never falls to CPU silently: a device without a usable library, a driver of before CUDA 13, or
// cuda without a device, throws Error(kUsage) with the remedy.
DeviceKind choose_device(const std::optional<std::string>& wanted, const DriverProbe& driver,
                         const std::function<std::string()>& library_problem);

}  // namespace hyperion
