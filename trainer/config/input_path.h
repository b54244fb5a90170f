// Resolves the relative paths of a configuration.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace hyperion::config {

// Returns the folder that holds configs/, data/ and tests/: the parent of the binary's folder, in a checkout
// or a bundle.
std::filesystem::path install_root();

// Returns `path` if it exists or is absolute, else the path below `base` if that exists, else `path`. A glob
// exists if a file matches it. `base` is install_root() except in tests.
std::filesystem::path resolve_input(const std::string& path, const std::filesystem::path& base);

// Returns the TOML file that a command line names: a path or a preset. A preset is a file of configs/ below
// `base`, named without .toml ("debug_model"); a file of that name in the working folder comes first, a
// folder does not. Throws Error(kUsage), with the nearest preset and the list of presets, for any other name.
std::filesystem::path config_file(const std::filesystem::path& named, const std::filesystem::path& base);

// Returns the reason and the remedy for a refused path: a URL ("s3://bucket/run"), or a "~" that
// expand_home() does not expand. Returns "" for every other path.
std::string path_problem(std::string_view path);

// Expands the "~" of "~" and "~/..." to HOME, as a shell does. Returns every other path unchanged.
std::string expand_home(const std::string& path);

// Returns whether `path` exists or is a glob that matches a file.
bool matches_a_file(const std::filesystem::path& path);
// The same, or `path` is X of Megatron-LM's X.bin and X.idx.
bool matches_an_input(const std::filesystem::path& path);

}  // namespace hyperion::config
