#include "data/arrow/arrow_library.h"

#include <cstdlib>
#include <filesystem>

#include <dlfcn.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/printable.h"

namespace hyperion::data {
namespace fs = std::filesystem;
namespace {

struct LoadedPlugin {
  const ArrowPlugin* plugin = nullptr;
  std::string problem;
};

// The libarrow.so of another release in the folder, " (it has NAME)", or "".
std::string other_release(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (const std::string name = it->path().filename(); name.starts_with("libarrow.so."))
      return fmt::format(" (it has {})", printable(name));
  return "";
}

LoadedPlugin load_plugin() {
  if (const char* named = std::getenv("HYPERION_ARROW"); named != nullptr && *named != '\0') {
    const fs::path folder = named;
    for (const char* library : {"libarrow.so.", "libparquet.so."}) {
      const fs::path path = folder / (std::string(library) + kArrowNumber);
      std::error_code ignored;
      if (!fs::exists(path, ignored))
        return {nullptr, fmt::format("HYPERION_ARROW={} has no {}{}", printable(folder),
                                     path.filename().string(), other_release(folder))};
      // The plug-in then takes the libraries of these names that are loaded.
      if (dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) return {nullptr, dlerror()};
    }
  }
  std::error_code ignored;
  const fs::path path = fs::read_symlink("/proc/self/exe", ignored).parent_path() / "libhyperion_arrow.so";
  if (!fs::exists(path, ignored))
    return {nullptr, fmt::format("{} does not exist: Hyperion was built without pyarrow; install it and "
                                 "build again (docs/install.md)",
                                 printable(path))};
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return {nullptr, dlerror()};
  const auto entry = reinterpret_cast<const ArrowPlugin* (*)()>(dlsym(handle, kArrowPluginEntry));
  const ArrowPlugin* plugin = entry == nullptr ? nullptr : entry();
  if (plugin == nullptr || plugin->version != ArrowPlugin::kVersion ||
      plugin->struct_size != sizeof(ArrowPlugin))
    return {nullptr, fmt::format("{} is of another build of Hyperion: build both together", printable(path))};
  return {plugin, ""};
}

}  // namespace

const ArrowPlugin& arrow_plugin(const std::string& file) {
  static const LoadedPlugin loaded = load_plugin();
  if (loaded.plugin == nullptr)
    throw_config(
        "{}: is read with Apache Arrow of pyarrow {}, which cannot be loaded: {}; `python3 -m pip install "
        "pyarrow=={}` installs it, and HYPERION_ARROW names its folder to a program that does not find it",
        file, kPyarrow, loaded.problem, kPyarrow);
  return *loaded.plugin;
}

}  // namespace hyperion::data
