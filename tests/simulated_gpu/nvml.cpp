// libnvidia-ml.so.1 of simulated GPUs: what NVML says of them is in the file HYPERION_SIMULATED_NVML, read by
// each call, so that a test can change it while a job runs. Lines "0000:1c:00.0 reasons 0x40" (the address of
// a GPU, a field, a value; "fails": the call does), and "hang": no call returns.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include <unistd.h>

namespace {

constexpr int kSuccess = 0, kNotSupported = 3, kNotFound = 6, kUnknown = 999;
constexpr unsigned long long kFails = ~0ULL;

std::atomic<bool> hangs = false;

using Device = std::string;  // its address

unsigned long long field(void* device, const char* name, unsigned long long usual) {
  const char* path = std::getenv("HYPERION_SIMULATED_NVML");
  std::ifstream file(path != nullptr ? path : "");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string address, field, value;
    words >> address >> field >> value;
    hangs = address == "hang";
    while (hangs) pause();
    if (address == *static_cast<Device*>(device) && field == name)
      return value == "fails" ? kFails : std::strtoull(value.c_str(), nullptr, 0);
  }
  return usual;
}

template <typename Value>
int answer(Value* value, unsigned long long found) {
  *value = static_cast<Value>(found);
  return found == kFails ? kUnknown : kSuccess;
}

// The driver's own state goes as this library's does.
__attribute__((destructor)) void end() {
  if (hangs) std::fputs("NVML: destructors ran under a call\n", stderr);
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
  return kSuccess;
}
int nvmlShutdown() {
  return kSuccess;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* address, void** device) {
  if (std::strncmp(address, "0000:", 5) != 0) return kNotFound;
  static Device own;
  own = address;
  *device = &own;
  return kSuccess;
}
int nvmlDeviceGetTotalEccErrors(void* device, int type, int, unsigned long long* errors) {
  return answer(errors, field(device, type == 0 ? "ecc_corrected" : "ecc_uncorrected", 0));
}
int nvmlDeviceGetRemappedRows(void* device, unsigned* corrected, unsigned* uncorrected, unsigned* pending,
                              unsigned* failed) {
  *uncorrected = *pending = *failed = 0;
  return answer(corrected, field(device, "remapped_rows", 0));
}
int nvmlDeviceGetCurrentClocksEventReasons(void* device, unsigned long long* reasons) {
  return answer(reasons, field(device, "reasons", 0x04));  // at its power limit
}
int nvmlDeviceGetClockInfo(void* device, int, unsigned* mhz) {
  return answer(mhz, field(device, "sm_clock", 1400));
}
int nvmlDeviceGetTemperature(void* device, int, unsigned* celsius) {
  return answer(celsius, field(device, "temperature", 60));
}
int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
  return answer(milliwatts, field(device, "power", 700000));
}

// --- what libtorch must find, and does not call in training ---

int nvmlDeviceGetNvLinkRemoteDeviceType(void*, unsigned, void*) {
  return kNotSupported;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void*, unsigned, void*) {
  return kNotSupported;
}
int nvmlDeviceGetComputeRunningProcesses(void*, unsigned*, void*) {
  return kNotSupported;
}
int nvmlSystemGetCudaDriverVersion_v2(int*) {
  return kNotSupported;
}

}  // extern "C"
