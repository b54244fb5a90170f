#include "trainer/config/input_path.h"

#include <algorithm>
#include <cctype>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <glob.h>

#include "base/error.h"
#include "base/nearest.h"
#include "base/printable.h"
#include "base/process.h"

namespace hyperion::config {
namespace fs = std::filesystem;

fs::path install_root() {
  std::error_code error;
  const fs::path binary = fs::read_symlink("/proc/self/exe", error);
  return error ? fs::current_path() : binary.parent_path().parent_path();
}

std::string path_problem(std::string_view path) {
  if (path.starts_with('~') && path.size() > 1 && path[1] != '/')
    return "begins with the home folder of another user: write that folder out (./~ begins a name with ~)";
  if (path.starts_with('~') && environment_variable("HOME").value_or("").empty())
    return "begins with ~, and the environment variable HOME is not set: write the folder out";
  const std::string_view scheme = path.substr(0, std::min(path.find("://"), path.size()));
  const bool is_url = scheme.size() < path.size() && !scheme.empty() &&
                      std::isalpha(static_cast<unsigned char>(scheme[0])) != 0 &&
                      std::ranges::all_of(scheme, [](unsigned char c) {
                        return std::isalnum(c) != 0 || c == '+' || c == '-' || c == '.';
                      });
  if (!is_url) return "";
  if (scheme == "hf")
    return "is a data set of the Hugging Face Hub, and nothing is downloaded: get it with `hf download "
           "--repo-type dataset OWNER/NAME --local-dir FOLDER`, and give that folder";
  if (scheme == "file") return "is a URL, expected a path: leave out file://";
  return fmt::format(
      "is a URL, and only the file systems of this machine are read and written: mount what {}:// names "
      "(mountpoint-s3 and gcsfuse do that) or copy it, and give that path",
      scheme);
}

std::string expand_home(const std::string& path) {
  const bool expands = path == "~" || path.starts_with("~/");
  return expands ? environment_variable("HOME").value_or("~") + path.substr(1) : path;
}

bool matches_a_file(const fs::path& path) {
  std::error_code error;
  if (fs::exists(path, error)) return true;
  glob_t matches{};
  const bool found = ::glob(path.c_str(), GLOB_NOSORT | GLOB_BRACE, nullptr, &matches) == 0;
  ::globfree(&matches);
  return found;
}

bool matches_an_input(const fs::path& path) {
  return matches_a_file(path) || matches_a_file(path.native() + ".idx");
}

fs::path resolve_input(const std::string& path, const fs::path& base) {
  if (path.empty() || matches_an_input(path) || fs::path(path).is_absolute()) return path;
  const fs::path below = (base / path).lexically_normal();
  return matches_an_input(below) ? below : fs::path(path);
}

fs::path config_file(const fs::path& named, const fs::path& base) {
  std::error_code error;
  const bool is_folder = fs::is_directory(named, error);
  // The link's own status counts, not its target's: a link to itself or to nothing is refused as a file.
  const bool is_file = fs::exists(fs::symlink_status(named, error)) && !is_folder;
  if (named.empty() || named != named.filename() || is_file) return named;
  std::vector<std::string> presets;
  for (const fs::directory_entry& entry : fs::directory_iterator(base / "configs", error))
    if (entry.path().extension() == ".toml") presets.push_back(entry.path().stem());
  std::ranges::sort(presets);
  const std::string name = named.extension() == ".toml" ? named.stem() : named;
  if (std::ranges::count(presets, name) > 0) return base / "configs" / (name + ".toml");
  if (is_folder) return named;
  // A name that is a prefix of at most kFew presets probably means one of them, whatever their length.
  constexpr size_t kFew = 3;
  std::vector<std::string> longer;
  std::ranges::copy_if(presets, std::back_inserter(longer),
                       [&](const std::string& preset) { return !name.empty() && preset.starts_with(name); });
  const bool few = !longer.empty() && longer.size() <= kFew;
  throw_config(
      "The configuration cannot be read: {}: there is no such file, and no preset of that name{}; "
      "presets: {}",
      printable(named),
      did_you_mean(few ? fmt::format("{}", fmt::join(longer, " or ")) : nearest_name(name, presets)),
      fmt::join(presets, ", "));
}

}  // namespace hyperion::config
