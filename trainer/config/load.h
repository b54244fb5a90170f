// Reads a TOML file and the command line into a JobConfig, and records where each of its values came from.
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
  // Key -> "FILE:LINE:COLUMN" or "command line". A key that is not here has its default.
  std::map<std::string, std::string> origins;
  // Sentences about deprecated spellings, to be logged once.
  std::vector<std::string> warnings;

  // Where the value of `key` came from: its origin or "default".
  std::string origin(const std::string& key) const;
};

// Collects what is wrong with a configuration and reports all of it in one error.
class Problems {
 public:
  void add(std::string line) { lines_.push_back(std::move(line)); }
  // A problem of one key: "ORIGIN: key = value: TEXT".
  void add(const ResolvedConfig& resolved, const std::string& key, const std::string& text);
  const std::vector<std::string>& lines() const { return lines_; }
  // Throws Error(kUsage) with one line per problem when there are any.
  void throw_if_any(std::string_view what) const;

 private:
  std::vector<std::string> lines_;
};

// Reads the file that `named` names (config_file(), input_path.h), then applies `overrides` in their order.
// Precedence: command line, file, default. Throws Error(kUsage) with every unknown key, wrong type and value
// out of range, each as "FILE:LINE:COLUMN: key = value: expected ...". The file may be a pipe or /dev/stdin,
// unless it is read by each of several `ranks`.
ResolvedConfig load_config(const std::filesystem::path& named, const std::vector<Override>& overrides,
                           int ranks = 1);

// The same for TOML text; `name` stands for the file in messages.
ResolvedConfig parse_config(const std::string& toml, const std::string& name,
                            const std::vector<Override>& overrides);

constexpr size_t kMaxTomlBytes = 256 * 1024;
// Limits that are checked before toml11 3.7.1 parses a text: that parser recurses for each bracket and each
// part of a dotted key (20,000 of either overflow an 8 MiB stack), and its lists take quadratic time.
// "LINE:COLUMN: what is wrong", or nullopt for a text that is safe to parse. Counts brackets, dots and commas
// wherever they stand, strings and comments included, so that no quoting can bypass the limits.
std::optional<std::string> toml_guard_problem(std::string_view text);

// `text` with every ${NAME} replaced by the environment variable of that name and every %j by the number of
// the SLURM job. Everything else stays as it is, another % or $ too. Throws Error(kUsage) when a variable is
// not set or empty, ${ has no end, or %j is used outside SLURM.
std::string expand_variables(const std::string& text);
// Expands job.dump_folder: one TOML file for many jobs, users and file systems. A failure names the place of
// the key in the file or on the command line.
void expand_dump_folder(ResolvedConfig& resolved);

}  // namespace hyperion::config
