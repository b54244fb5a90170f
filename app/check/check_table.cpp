#include "app/check/check_table.h"

#include <memory>
#include <mutex>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include "base/log.h"
#include "base/standard_streams.h"

namespace hyperion::app {

std::string readable_bytes(double bytes) {
  if (bytes < (1 << 20) / 100.0) return fmt::format("{:.2f} KiB", bytes / 1024);  // 0.00 MiB
  return bytes < 1 << 30 ? fmt::format("{:.2f} MiB", bytes / (1 << 20))
                         : fmt::format("{:.2f} GiB", bytes / (1 << 30));
}

class DeferredWarnings::Sink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit Sink(DeferredWarnings& owner) : owner_(owner) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    if (message.level >= spdlog::level::warn)
      owner_.held_.emplace_back(message.level, std::string(message.payload.data(), message.payload.size()));
    else
      for (const spdlog::sink_ptr& sink : owner_.sinks_) sink->log(message);
  }
  void flush_() override {}
  DeferredWarnings& owner_;
};

DeferredWarnings::DeferredWarnings() : sinks_(spdlog::default_logger()->sinks()) {
  spdlog::default_logger()->sinks() = {std::make_shared<Sink>(*this)};
}

DeferredWarnings::~DeferredWarnings() {
  spdlog::default_logger()->sinks() = std::move(sinks_);
  std::set<std::string> seen;
  for (const auto& [level, text] : held_)
    if (seen.insert(text).second) write_log(level, text);
}

void CheckTable::check(const std::string& row, const std::vector<std::string>& needs,
                       const std::function<std::string()>& check_row, const char* passed) {
  check_with_verdict(row, needs, [&] { return Verdict{passed, check_row()}; });
}

void CheckTable::check_with_verdict(const std::string& row, const std::vector<std::string>& needs,
                                    const std::function<Verdict()>& check_row) {
  try {
    for (const std::string& need : needs)
      if (failed_rows_.contains(need)) throw SkippedCheck{need};
    const Verdict verdict = check_row();
    print_row(row, verdict.passed, verdict.text);
  } catch (const SkippedCheck& reason) {
    failed_rows_[row] = failed_rows_.at(reason.failed_row);
    skipped_rows_[failed_rows_[row]].push_back(row);
  } catch (const Error& error) {
    failed_rows_[row] = row;
    print_row(row, "FAIL", "see below");
    if (messages_.empty()) code_ = error.code();
    messages_.emplace_back(error.what());
    failed_names_.push_back(fmt::format("\"{}\"", row));
  }
}

void CheckTable::print_row(const std::string& row, const char* verdict, const std::string& text) {
  if (json_)
    rows_.push_back({row, verdict, text});
  else
    print_text(fmt::format("{:<16} {:<6} {}\n", row, verdict, text));
}

void CheckTable::finish() {
  for (const auto& [failed_row, rows] : skipped_rows_)
    print_row("not checked", "-",
              fmt::format("because \"{}\" failed: {}", failed_row, fmt::join(rows, ", ")));
  if (json_) return print_json();
  print_text(messages_.empty() ? std::string("All checks passed.\n")
                               : fmt::format("A job would end with exit code {}: {} failed.\n",
                                             static_cast<int>(code_), fmt::join(failed_names_, " and ")));
}

void CheckTable::print_json() const {
  nlohmann::ordered_json json;
  json["exit_code"] = static_cast<int>(code_);
  json["rows"] = nlohmann::ordered_json::array();
  for (const Row& row : rows_)
    json["rows"].push_back({{"name", row.name}, {"verdict", row.verdict}, {"text", row.text}});
  for (const auto& [row, facts] : facts_)
    for (const auto& [name, value] : facts) json[row][name] = value;
  print_text(json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

void CheckTable::throw_if_any_failed() const {
  if (!messages_.empty()) throw Error(code_, fmt::format("{}", fmt::join(messages_, "\nhyperion: ")));
}

}  // namespace hyperion::app
