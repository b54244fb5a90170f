#include "base/device/device_library.h"

#include <cstdlib>
#include <filesystem>

#include <dlfcn.h>

#include "base/error.h"

namespace hyperion {
namespace {

const DeviceLibrary* g_library = nullptr;

// Enables expandable segments unless the user has other settings: without them memory stays reserved in
// gaps that no tensor fits (llama3 8B's head on two ranks reserved 21.0 instead of 17.8 GiB). libtorch
// reads this when the library is loaded.
void choose_allocator() {
  if (std::getenv("PYTORCH_CUDA_ALLOC_CONF") == nullptr)
    setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True", /*overwrite=*/0);
}

std::string try_load() {
  choose_allocator();
  std::error_code ignored;
  const auto binary = std::filesystem::read_symlink("/proc/self/exe", ignored);
  const auto path = binary.parent_path() / "libhyperion_cuda.so";
  if (!std::filesystem::exists(path, ignored))
    return fmt::format("{} does not exist; build with a CUDA toolkit (HYPERION_CUDA=ON)", path.string());
  // RTLD_GLOBAL: libtorch_cuda registers operators and hooks that libtorch_cpu finds by their symbols.
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr)
    return fmt::format("{}; install torch 2.11 with CUDA 13 (pip install --force-reinstall torch==2.11.0)",
                       dlerror());
  const auto entry = reinterpret_cast<const DeviceLibrary* (*)()>(dlsym(handle, kDeviceLibraryEntry));
  if (entry == nullptr) return fmt::format("{} has no symbol {}", path.string(), kDeviceLibraryEntry);
  const DeviceLibrary* table = entry();
  if (table->version != DeviceLibrary::kVersion || table->struct_size != sizeof(DeviceLibrary)) {
    return fmt::format("{} has interface version {}, this binary needs {}; build both together",
                       path.string(), table->version, DeviceLibrary::kVersion);
  }
  g_library = table;
  return "";
}

}  // namespace

std::string load_device_library() {
  static const std::string problem = try_load();
  return problem;
}

const DeviceLibrary& device_library() {
  if (g_library == nullptr) throw_bug("the CUDA library is used before load_device_library() succeeded");
  return *g_library;
}

}  // namespace hyperion
