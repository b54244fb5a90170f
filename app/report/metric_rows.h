// Lines of metrics.jsonl as rows of numbers. The file may come from anywhere: nothing in it is trusted. No
// I/O.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <simdjson.h>

namespace hyperion::report {

enum class RowKind { kTraining, kValidation, kEvent };  // an event, or a row without a loss
inline constexpr int kRowKinds = 3;

// Tags with a meaning of their own; their numbers are fixed, others get the next ones as they are met.
enum KnownTag : int {
  kTimeTag,  // seconds since 1970
  kTokensTag,
  kLossTag,
  kValidationLossTag,
  kGradNormTag,
  kResumeStepTag,
  kClippedTag,  // of no file: 1 where the gradient norm is over the run's training.max_norm, else 0
  kKnownTags
};

struct MetricRow {
  int64_t step = 0;
  RowKind kind = RowKind::kEvent;
  std::string run_id;                          // "" in files without
  std::string event;                           // its name, "" for metrics
  std::string details;                         // of an event: its other fields in words, shortened
  std::vector<std::pair<int, double>> values;  // tag number and value, kTimeTag among them
  std::optional<double> value(int tag) const;
};

class MetricParser {
 public:
  // More different tags than this, or longer ones, are left out and counted.
  static constexpr size_t kMaxTags = 128;
  static constexpr size_t kMaxTagBytes = 100;
  static constexpr size_t kMaxNameBytes = 100;     // of a run id or an event
  static constexpr size_t kMaxDetailBytes = 1000;  // of an event

  MetricParser();

  // A number of an event has the tag "EVENT.FIELD". nullopt unless the line is a JSON object with a step from
  // 0 to 2^53 and a finite time. Fields that are no numbers (nor "NaN", "Infinity", "-Infinity") are left
  // out.
  std::optional<MetricRow> parse(std::string_view line);

  const std::vector<std::string>& tags() const { return tags_; }
  std::optional<int> tag(std::string_view name) const;  // nullopt for one that was not met
  uint64_t tags_left_out() const { return tags_left_out_; }

 private:
  std::optional<int> intern(std::string_view name);

  simdjson::dom::parser parser_;
  std::vector<std::string> tags_;
  std::unordered_map<std::string, int> numbers_;
  uint64_t tags_left_out_ = 0;
};

}  // namespace hyperion::report
