#include "base/device/device.h"

#include <array>
#include <cstdio>
#include <filesystem>

#include <catch2/catch.hpp>
#include <dlfcn.h>

#include "base/device/device_library.h"
#include "base/error.h"

namespace hyperion {
namespace {

const DriverProbe kNone = {0, "libcuda.so.1 was not found"};
const DriverProbe kTwo = {2, ""};

std::string usable() {
  return "";
}
std::string broken() {
  return "libhyperion_cuda.so does not exist";
}

std::string error_of(const std::optional<std::string>& wanted, const DriverProbe& driver,
                     std::string (*library)()) {
  try {
    choose_device(wanted, driver, library);
  } catch (const Error& error) {
    REQUIRE(error.code() == ExitCode::kUsage);
    return error.what();
  }
  return "";
}

const std::filesystem::path kLibrary = std::filesystem::path(HYPERION_BINARY_DIR) / "libhyperion_cuda.so";

}  // namespace

TEST_CASE("the device is the GPU when there is one and the CPU when there is none") {
  CHECK(choose_device(std::nullopt, kNone, usable) == DeviceKind::kCpu);
  CHECK(choose_device("auto", kTwo, usable) == DeviceKind::kCuda);
  CHECK(choose_device("", kTwo, usable) == DeviceKind::kCuda);
  CHECK(choose_device("cuda", kTwo, usable) == DeviceKind::kCuda);
  CHECK(choose_device("cpu", kTwo, broken) == DeviceKind::kCpu);
}

TEST_CASE("there is no silent fall to the CPU") {
  CHECK(error_of("auto", kTwo, broken)
            .find("2 GPUs, but Hyperion's CUDA library cannot be used: libhyperion_cuda.so") !=
        std::string::npos);
  CHECK(error_of("cuda", kTwo, broken).find("HYPERION_DEVICE=cpu") != std::string::npos);
  CHECK(error_of("cuda", kNone, usable).find("libcuda.so.1 was not found") != std::string::npos);
  CHECK(error_of("gpu", kTwo, usable).find("HYPERION_DEVICE is 'gpu'") != std::string::npos);
}

TEST_CASE("a driver of before CUDA 13 is refused with its version and the driver that is needed") {
  DriverProbe driver = kTwo;
  driver.cuda = 12040;
  CHECK(error_of("auto", driver, broken).find("serves CUDA up to 12.4, and CUDA 13.0 needs driver 580") !=
        std::string::npos);
  CHECK(choose_device("cpu", driver, usable) == DeviceKind::kCpu);
  driver.cuda = 13010;
  CHECK(choose_device("auto", driver, usable) == DeviceKind::kCuda);
}

TEST_CASE("the CUDA library is not asked for without a device") {
  const auto asked = []() -> std::string { throw std::logic_error("asked"); };
  CHECK(choose_device("auto", kNone, asked) == DeviceKind::kCpu);
  CHECK(choose_device("cpu", kTwo, asked) == DeviceKind::kCpu);
}

TEST_CASE("probing the driver says why there is no device") {
  const DriverProbe probe = probe_driver();
  CHECK((probe.devices > 0) == probe.reason.empty());
}

TEST_CASE("the CUDA library exports its entry and needs no symbol that its libraries lack") {
  if (!std::filesystem::exists(kLibrary)) {
    WARN("skipped: this build has no CUDA code");
    return;
  }
  // Each line of ldd -r names a library or a symbol that cannot be found. The driver is not part of a
  // toolkit.
  std::FILE* pipe = popen(("ldd -r " + kLibrary.string() + " 2>&1").c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string missing;
  std::array<char, 4096> line;
  while (std::fgets(line.data(), line.size(), pipe) != nullptr) {
    const std::string text = line.data();
    const bool absent =
        text.find("not found") != std::string::npos || text.find("undefined symbol") != std::string::npos;
    if (absent && text.find("libcuda.so.1") == std::string::npos) missing += text;
  }
  CHECK(pclose(pipe) == 0);
  CHECK(missing.empty());
  CAPTURE(missing);
}

TEST_CASE("the loaded CUDA library fits this binary") {
  if (!std::filesystem::exists(kLibrary)) {
    WARN("skipped: this build has no CUDA code");
    return;
  }
  const std::string problem = load_device_library();
  if (!problem.empty() && probe_driver().devices == 0) {
    WARN("skipped: without a GPU driver the library may not load: " << problem);
    return;
  }
  REQUIRE(problem.empty());
  CHECK(device_library().version == DeviceLibrary::kVersion);
  CHECK(device_library().device_count() == probe_driver().devices);
}

}  // namespace hyperion
