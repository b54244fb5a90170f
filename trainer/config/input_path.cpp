#include "trainer/config/input_path.h"

#include <glob.h>

namespace hyperion::trainer {
namespace fs = std::filesystem;

fs::path install_root() {
  std::error_code error;
  const fs::path binary = fs::read_symlink("/proc/self/exe", error);
  return error ? fs::current_path() : binary.parent_path().parent_path();
}

bool matches_a_file(const fs::path& path) {
  std::error_code error;
  if (fs::exists(path, error)) return true;
  glob_t matches{};
  const bool found = ::glob(path.c_str(), GLOB_NOSORT, nullptr, &matches) == 0;
  ::globfree(&matches);
  return found;
}

fs::path resolve_input(const std::string& path, const fs::path& base) {
  if (path.empty() || matches_a_file(path) || fs::path(path).is_absolute()) return path;
  const fs::path below = (base / path).lexically_normal();
  return matches_a_file(below) ? below : fs::path(path);
}

}  // namespace hyperion::trainer
