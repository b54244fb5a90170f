#include "app/report/run_record.h"

#include <algorithm>
#include <ranges>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "base/text.h"

namespace hyperion::report {
namespace fs = std::filesystem;
namespace {

constexpr size_t kMaxRecordBytes = 512 * 1024;

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r");
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

std::vector<std::string_view> trimmed_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  for (const auto line : std::views::split(text, '\n')) lines.push_back(trimmed({line.begin(), line.end()}));
  return lines;
}

// `line` up to a comment that stands outside of strings.
std::string_view without_comment(std::string_view line) {
  char quote = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    if (quote == '"' && line[i] == '\\') {
      ++i;
    } else if (quote != 0) {
      if (line[i] == quote) quote = 0;
    } else if (line[i] == '"' || line[i] == '\'') {
      quote = line[i];
    } else if (line[i] == '#') {
      return line.substr(0, i);
    }
  }
  return line;
}

}  // namespace

Settings parse_settings(std::string_view toml) {
  Settings settings;
  std::string section;
  for (const std::string_view full_line : trimmed_lines(toml)) {
    const std::string_view line = trimmed(without_comment(full_line));
    if (line.starts_with('[') && line.ends_with(']') && line.find('=') == line.npos) {
      section = line.substr(1, line.size() - 2);
      continue;
    }
    const size_t equals = line.find('=');
    if (equals == line.npos) continue;
    const std::string_view key = trimmed(line.substr(0, equals));
    const std::string_view value = trimmed(line.substr(equals + 1));
    if (key.empty() || value.empty()) continue;
    settings[section.empty() ? std::string(key) : section + "." + std::string(key)] = value;
  }
  return settings;
}

std::map<std::string, std::string> parse_run_text(std::string_view text) {
  std::map<std::string, std::string> fields;
  for (const std::string_view line : trimmed_lines(text)) {
    if (line.empty()) break;
    const size_t colon = line.find(':');
    if (colon != line.npos && colon > 0)
      fields.emplace(line.substr(0, colon), trimmed(line.substr(colon + 1)));
  }
  return fields;
}

std::optional<double> RunStart::number(const std::string& key) const {
  const auto found = settings.find(key);
  return found == settings.end() ? std::nullopt : parse_number<double>(found->second);
}

RunStarts read_run_starts(const fs::path& runs_folder) {
  RunStarts result;
  std::set<std::string> names;  // the newest: folders are named by their time
  std::error_code error;
  for (fs::directory_iterator entry(runs_folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (!entry->is_directory(error)) continue;
    ++result.count;
    names.insert(entry->path().filename().string());
    if (names.size() > kMaxRunStarts) names.erase(names.begin());
  }
  if (error && error != std::errc::no_such_file_or_directory)
    result.problems.push_back(fmt::format("{}: cannot be listed: {}", runs_folder.string(), error.message()));
  for (const std::string& name : names) {
    RunStart start{name, {}, {}};
    result.newest_record.clear();
    try {
      const std::string toml = read_file(runs_folder / name / "config.toml", kMaxRecordBytes);
      start.settings = parse_settings(toml);
      result.newest_record = read_file(runs_folder / name / "run.txt", kMaxRecordBytes);
      start.fields = parse_run_text(result.newest_record);
      result.newest_record += "\n" + toml;
    } catch (const Error& problem) {
      result.problems.emplace_back(problem.what());
    }
    result.starts.push_back(std::move(start));
  }
  return result;
}

std::map<std::string, std::vector<std::string>> differences(const std::vector<const Settings*>& columns) {
  std::map<std::string, std::vector<std::string>> rows;
  for (size_t i = 0; i < columns.size(); ++i)
    for (const auto& [key, value] : *columns[i])
      rows.try_emplace(key, columns.size()).first->second[i] = value;
  std::erase_if(rows, [](const auto& row) {
    return std::ranges::all_of(row.second, [&](const auto& value) { return value == row.second[0]; });
  });
  return rows;
}

}  // namespace hyperion::report
