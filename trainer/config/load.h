// Reads a TOML file and the command line into a JobConfig, and records the origin of each value.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/config/job_config.h"
#include "trainer/config/overrides.h"

namespace hyperion::config {

struct ResolvedConfig {
  JobConfig config;
  // Maps a key to "FILE:LINE:COLUMN" or "command line". A missing key has its default.
  std::map<std::string, std::string> origins;
  // Sentences about deprecated spellings, to be logged once.
  std::vector<std::string> warnings;

  // Returns the origin of the value of `key`, or "default".
  std::string origin(const std::string& key) const;
};

// Collects the problems of a configuration and reports all of them in one error.
class Problems {
 public:
  void add(std::string line) { lines_.push_back(std::move(line)); }
  // Adds a problem of one key: "ORIGIN: key = value: TEXT".
  void add(const ResolvedConfig& resolved, const std::string& key, const std::string& text);
  const std::vector<std::string>& lines() const { return lines_; }
  // Throws Error(kUsage) with one line per problem if there are any.
  void throw_if_any(std::string_view what) const;

 private:
  std::vector<std::string> lines_;
};

// Reads the file `named` (config_file(), input_path.h), then applies `overrides` in order: the command line
// wins over the file, the file over defaults. Throws Error(kUsage) with every unknown key, wrong type and
// value out of range, each as "FILE:LINE:COLUMN: key = value: expected ...". The file may be a pipe or
// /dev/stdin only if `ranks` is 1, because each rank reads it.
ResolvedConfig load_config(const std::filesystem::path& named, const std::vector<Override>& overrides,
                           int ranks = 1);

// Does the same for TOML text; messages name the text `name`.
ResolvedConfig parse_config(const std::string& toml, const std::string& name,
                            const std::vector<Override>& overrides);

constexpr size_t kMaxTomlBytes = 256 * 1024;
// Checks limits before toml11 3.7.1 parses a text: that parser recurses for each bracket and each part of a
// dotted key (20,000 of either overflow an 8 MiB stack), and its lists take quadratic time. Returns
// "LINE:COLUMN: problem", or nullopt if the text is safe to parse. Counts brackets, dots and commas also in
// strings and comments, so that no quoting can bypass the limits.
std::optional<std::string> toml_guard_problem(std::string_view text);

// Replaces every ${NAME} by that environment variable and every %j by the SLURM job's number. Any other % or
// $ stays. Throws Error(kUsage) if a variable is unset or empty, ${ is not closed, or %j is used outside
// SLURM.
std::string expand_variables(const std::string& text);
// Expands the variables of job.dump_folder, so that one TOML file serves many jobs, users and file systems.
// An error names the key's origin.
void expand_dump_folder(ResolvedConfig& resolved);

}  // namespace hyperion::config
