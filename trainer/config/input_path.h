// Where the files are that a configuration names by relative paths.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace hyperion::config {

// The folder that holds configs/, data/ and tests/: the parent of the one the binary is in (a checkout or a
// bundle).
std::filesystem::path install_root();

// `path` as it stands when it exists (or is absolute), else below `base` (install_root(), but for tests) when
// it exists there, else `path` unchanged. A glob exists when a file matches it.
std::filesystem::path resolve_input(const std::string& path, const std::filesystem::path& base);

// The TOML file that a command line names: a path, or a preset, the name of a file of configs/ below `base`
// without .toml ("debug_model"), where nothing in the working folder but a folder has that name. Throws
// Error(kUsage) with the nearest preset and all of them for a name that is neither.
std::filesystem::path config_file(const std::filesystem::path& named, const std::filesystem::path& base);

// Why a path is refused that is a URL ("s3://bucket/run") or begins with a "~" that expand_home() does not
// take, and what to do; "" for every other path.
std::string path_problem(std::string_view path);

// A path of the configuration or the command line with HOME in place of the "~" of "~" and "~/...", as a
// shell expands it; every other path as it stands.
std::string expand_home(const std::string& path);

// Whether `path` exists, or is a glob that a file matches.
bool matches_a_file(const std::filesystem::path& path);

}  // namespace hyperion::config
