// CheckTable prints the table of `hyperion check`.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <spdlog/common.h>

#include "base/error.h"

namespace hyperion::app {

std::string readable_bytes(double bytes);

// Defers warnings and errors of the log, so that none appears between the rows of the table. The destructor
// logs them, each text once.
class DeferredWarnings {
 public:
  DeferredWarnings();
  ~DeferredWarnings();
  DeferredWarnings(const DeferredWarnings&) = delete;
  DeferredWarnings& operator=(const DeferredWarnings&) = delete;

 private:
  class Sink;
  std::vector<spdlog::sink_ptr> sinks_;
  std::vector<std::pair<spdlog::level::level_enum, std::string>> held_;
};

// A check throws it if it cannot proceed because the named row failed.
struct SkippedCheck {
  std::string failed_row;
};

// Prints one row per group of checks, when the group is done, or all as one JSON object at the end.
class CheckTable {
 public:
  explicit CheckTable(bool json = false) : json_(json) {}

  // Calls `check_row`, which returns the row's text, unless a row of `needs` has failed. finish() names the
  // skipped rows, throw_if_any_failed() reports the failures.
  void check(const std::string& row, const std::vector<std::string>& needs,
             const std::function<std::string()>& check_row, const char* passed = "ok");
  // Does the same for a check that chooses its verdict.
  struct Verdict {
    const char* passed;  // "ok", or "-": checked nothing, or not all
    std::string text;
  };
  void check_with_verdict(const std::string& row, const std::vector<std::string>& needs,
                          const std::function<Verdict()>& check_row);
  void print_row(const std::string& row, const char* verdict, const std::string& text);
  // Adds numbers by name, which JSON has under `row`.
  using Facts = std::vector<std::pair<std::string, double>>;
  void add_facts(const std::string& row, Facts facts) { facts_.emplace_back(row, std::move(facts)); }
  // Prints the last rows and the verdict in one sentence.
  void finish();
  bool failed_or_skipped(const std::string& row) const { return failed_rows_.contains(row); }
  // Throws the first failure with the texts of all failures.
  void throw_if_any_failed() const;

 private:
  void print_json() const;

  struct Row {
    std::string name, verdict, text;
  };
  bool json_;
  std::vector<Row> rows_;  // of JSON
  std::vector<std::pair<std::string, Facts>> facts_;
  ExitCode code_ = ExitCode::kOk;
  std::vector<std::string> messages_, failed_names_;
  // Maps each failed or skipped row to the failed row.
  std::map<std::string, std::string> failed_rows_;
  std::map<std::string, std::vector<std::string>> skipped_rows_;  // by failed row
};

}  // namespace hyperion::app
