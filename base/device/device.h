// Decides between CPU and CUDA before anything CUDA is loaded, by asking the driver alone.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>

namespace hyperion {

enum class DeviceKind { kCpu, kCuda };

// The number of devices that the NVIDIA driver offers to this process (CUDA_VISIBLE_DEVICES is respected),
// and if there are none, why ("libcuda.so.1 was not found").
struct DriverProbe {
  int devices = 0;
  std::string reason;
  size_t memory = 0;  // bytes of the first device; 0 if unknown
  int cuda = 0;       // newest CUDA version that the driver supports, 13000 for 13.0; 0 if unknown
};
// Loads libcuda.so.1, initializes it, and asks for the number of devices and the memory. Creates no CUDA
// context.
DriverProbe probe_driver();

// The PCI address of a visible device as sysfs spells it ("0000:1b:00.0"), from the driver alone; "" if
// unknown.
std::string pci_address(int device);

// Chooses the device. `wanted` is HYPERION_DEVICE ("auto", "cpu" or "cuda"; absent or empty = auto).
// `library_problem` says why our CUDA library cannot be used, and the remedy (empty if it can); it is
// called only if a device exists and is wanted. Never falls back to CPU silently: a device without a usable
// library, a driver older than CUDA 13, or cuda without a device throws Error(kUsage) with the remedy.
DeviceKind choose_device(const std::optional<std::string>& wanted, const DriverProbe& driver,
                         const std::function<std::string()>& library_problem);

}  // namespace hyperion
