// What a dump folder says about its starts: runs/*/config.toml and runs/*/run.txt
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

// Key ("training.steps") to value as the file writes it ("10", "\"llama3\""). Reads what `hyperion config`
// prints, a key per line, and passes over lines of any other form: no TOML parser is given a file from
// outside.
using Settings = std::map<std::string, std::string>;
Settings parse_settings(std::string_view toml);

// The "name: value" lines before the first blank line of run.txt.
std::map<std::string, std::string> parse_run_text(std::string_view text);

struct RunStart {
  std::string name;  // of its folder
  Settings settings;
  std::map<std::string, std::string> fields;                   // command, host, start, ranks, commit ...
  std::optional<double> number(const std::string& key) const;  // of a setting
};

struct RunStarts {
  std::vector<RunStart> starts;  // oldest first; the newest kMaxRunStarts of them
  uint64_t count = 0;
  std::string newest_record;          // run.txt and config.toml of the newest start
  std::vector<std::string> problems;  // records that could not be read, a sentence each
};
inline constexpr size_t kMaxRunStarts = 100;

// An absent folder is an empty list.
RunStarts read_run_starts(const std::filesystem::path& runs_folder);

// The settings that are not the same everywhere: key to the value of each column, "" where it is not set.
std::map<std::string, std::vector<std::string>> differences(const std::vector<const Settings*>& columns);

}  // namespace hyperion::report
