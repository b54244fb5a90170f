// Reads the records of the starts in a dump folder: runs/*/config.toml and runs/*/run.txt
// (trainer/metrics/run_folder.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hyperion::report {

// Settings map a key ("training.steps") to its value as written in the file ("10", "\"llama3\"").
// parse_settings() reads the output of `hyperion config`, one key per line, and skips other lines. It uses no
// TOML parser, because the file is untrusted.
using Settings = std::map<std::string, std::string>;
Settings parse_settings(std::string_view toml);

// Returns the "name: value" lines before the first blank line of run.txt.
std::map<std::string, std::string> parse_run_text(std::string_view text);

struct RunStart {
  std::string name;  // name of its folder
  Settings settings;
  std::map<std::string, std::string> fields;                   // command, host, start, ranks, commit ...
  std::optional<double> number(const std::string& key) const;  // a setting's value
};

struct RunStarts {
  std::vector<RunStart> starts;  // the newest kMaxRunStarts, oldest first
  uint64_t count = 0;
  std::string newest_record;          // run.txt and config.toml of the newest start
  std::vector<std::string> problems;  // one sentence per unreadable record
};
inline constexpr size_t kMaxRunStarts = 100;

// Reads the starts. A missing folder gives an empty list.
RunStarts read_run_starts(const std::filesystem::path& runs_folder);

// Returns the settings that differ between columns: key to the value of each column, "" if unset.
std::map<std::string, std::vector<std::string>> differences(const std::vector<const Settings*>& columns);

}  // namespace hyperion::report
