// The table that `hyperion check` prints.
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

// Thrown by a check that cannot proceed because the named row failed.
struct SkippedCheck {
  std::string failed_row;
};

// A row for each group of checks that was made, printed when it is done.
class CheckTable {
 public:
  // Calls `check_row`, which returns what it found, unless a row of `needs` has failed. finish() names the
  // rows that were not checked for that reason, throw_if_any_failed() reports the failures.
  void check(const std::string& row, const std::vector<std::string>& needs,
             const std::function<std::string()>& check_row, const char* passed = "right");
  // The same where the check itself says what it has looked at.
  struct Verdict {
    const char* passed;  // "right", "-": nothing, or not all
    std::string text;
  };
  void check_with_verdict(const std::string& row, const std::vector<std::string>& needs,
                          const std::function<Verdict()>& check_row);
  void print_row(const std::string& row, const char* verdict, const std::string& text);
  // The last rows, and the verdict in one sentence.
  void finish();
  bool failed_or_skipped(const std::string& row) const { return failed_rows_.contains(row); }
  // Throws the first failure, with the texts of all.
  void throw_if_any_failed() const;

 private:
  ExitCode code_ = ExitCode::kOk;
  std::vector<std::string> messages_, wrong_rows_;
  // Of each row that is wrong or was not checked: the row that is wrong.
  std::map<std::string, std::string> failed_rows_;
  std::map<std::string, std::vector<std::string>> skipped_rows_;  // by the row that is wrong
};

}  // namespace hyperion::app
