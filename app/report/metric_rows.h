// Parses lines of metrics.jsonl into rows of numbers. The file is untrusted. No I/O.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace simdjson::dom {
class parser;
}

namespace hyperion::report {

enum class RowKind { kTraining, kValidation, kEvent };  // kEvent: an event, or a row without a loss
inline constexpr int kRowKinds = 3;

// Known tags have fixed numbers. Other tags get the next numbers in the order in which they appear.
enum KnownTag : int {
  kTimeTag,  // seconds since 1970
  kTokensTag,
  kLossTag,
  kValidationLossTag,
  kGradNormTag,
  kResumeStepTag,
  kClippedTag,  // computed: 1 if the gradient norm exceeds the run's training.max_norm, else 0
  kKnownTags
};

struct MetricRow {
  int64_t step = 0;
  RowKind kind = RowKind::kEvent;
  std::string run_id;                          // "" if the file has none
  std::string event;                           // name of the event; "" for metrics
  std::string details;                         // an event's other fields in words, shortened
  std::vector<std::pair<int, double>> values;  // tag number and value, kTimeTag among them
  std::optional<double> value(int tag) const;
};

class MetricParser {
 public:
  // Tags beyond these limits are left out and counted.
  static constexpr size_t kMaxTags = 128;
  static constexpr size_t kMaxTagBytes = 100;
  static constexpr size_t kMaxNameBytes = 100;     // of a run id or an event's name
  static constexpr size_t kMaxDetailBytes = 1000;  // of an event

  MetricParser();
  MetricParser(MetricParser&&) noexcept;
  MetricParser& operator=(MetricParser&&) noexcept;
  ~MetricParser();

  // Parses a line. Returns nullopt unless it is a JSON object with a step from 0 to 2^53 and a finite time. A
  // number of an event has the tag "EVENT.FIELD". Fields that are not numbers, "NaN", "Infinity" or
  // "-Infinity" are left out.
  std::optional<MetricRow> parse(std::string_view line);

  const std::vector<std::string>& tags() const { return tags_; }
  std::optional<int> tag(std::string_view name) const;  // nullopt: unknown tag
  uint64_t tags_left_out() const { return tags_left_out_; }

 private:
  std::optional<int> intern(std::string_view name);

  std::unique_ptr<simdjson::dom::parser> parser_;
  std::vector<std::string> tags_;
  std::unordered_map<std::string, int> numbers_;
  uint64_t tags_left_out_ = 0;
};

}  // namespace hyperion::report
