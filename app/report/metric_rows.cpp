#include "app/report/metric_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include <simdjson.h>

#include "app/report/axis.h"

namespace hyperion::report {
namespace {

constexpr int64_t kMaxStep = int64_t{1} << 53;

// In the order of KnownTag.
constexpr std::string_view kKnown[kKnownTags] = {
    "time",      "n_tokens_seen", "loss_metrics/global_avg_loss",  "validation_metrics/loss",
    "grad_norm", "resume/step",   "grad_norm > training.max_norm",
};

std::optional<double> number(const simdjson::dom::element& element) {
  double value = 0;
  if (!element.get_double().get(value)) return value;
  std::string_view text;
  if (element.get_string().get(text)) return std::nullopt;
  if (text == "NaN") return std::numeric_limits<double>::quiet_NaN();
  if (text == "Infinity") return std::numeric_limits<double>::infinity();
  if (text == "-Infinity") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

// A field of an event as people write it: "completed", "exit code 0", "stall 0.12 s", "bytes 1,234".
std::string field_text(std::string_view key, const simdjson::dom::element& element) {
  std::string_view text;
  double value = 0;
  std::string written = !element.get_string().get(text)    ? std::string(text)
                        : !element.get_double().get(value) ? number_text(value)
                                                           : simdjson::minify(element);
  if (key == "reason" || key == "message" || key == "kind") return written;
  if (key.ends_with("_seconds")) {
    key.remove_suffix(std::strlen("_seconds"));
    written += " s";
  }
  std::string name(key);
  std::ranges::replace(name, '_', ' ');
  return name + " " + written;
}

}  // namespace

std::optional<double> MetricRow::value(int tag) const {
  for (const auto& [number, value] : values)
    if (number == tag) return value;
  return std::nullopt;
}

MetricParser::MetricParser() : parser_(std::make_unique<simdjson::dom::parser>()) {
  for (const std::string_view name : kKnown) intern(name);
}

MetricParser::MetricParser(MetricParser&&) noexcept = default;
MetricParser& MetricParser::operator=(MetricParser&&) noexcept = default;
MetricParser::~MetricParser() = default;

std::optional<int> MetricParser::tag(std::string_view name) const {
  const auto found = numbers_.find(std::string(name));
  if (found == numbers_.end()) return std::nullopt;
  return found->second;
}

std::optional<int> MetricParser::intern(std::string_view name) {
  if (const auto known = tag(name)) return known;
  if (tags_.size() == kMaxTags || name.size() > kMaxTagBytes) {
    ++tags_left_out_;
    return std::nullopt;
  }
  tags_.emplace_back(name);
  return numbers_[tags_.back()] = static_cast<int>(tags_.size()) - 1;
}

std::optional<MetricRow> MetricParser::parse(std::string_view line) {
  simdjson::dom::object object;
  if (parser_->parse(line.data(), line.size()).get_object().get(object)) return std::nullopt;
  MetricRow row;
  row.step = -1;
  std::string_view text;
  if (!object.at_key("event").get_string().get(text)) row.event = text.substr(0, kMaxNameBytes);
  for (const auto& [key, element] : object) {
    if (key == "event") continue;
    if (key == "step") {
      if (element.get_int64().get(row.step)) return std::nullopt;
      continue;
    }
    if (key == "run_id" && !element.get_string().get(text)) {
      row.run_id = text.substr(0, kMaxNameBytes);
      continue;
    }
    const bool of_event = !row.event.empty() && key != "time";
    if (of_event && row.details.size() < kMaxDetailBytes)
      row.details += (row.details.empty() ? "" : ", ") + field_text(key, element);
    const auto value = number(element);
    if (!value) continue;
    const auto tag = of_event ? intern(row.event + "." + std::string(key)) : intern(key);
    if (tag) row.values.emplace_back(*tag, *value);
  }
  if (row.details.size() > kMaxDetailBytes) row.details.resize(kMaxDetailBytes);
  const auto time = row.value(kTimeTag);
  if (row.step < 0 || row.step > kMaxStep || !time || !std::isfinite(*time)) return std::nullopt;
  if (!row.event.empty()) return row;
  if (row.value(kLossTag)) row.kind = RowKind::kTraining;
  if (row.value(kValidationLossTag)) row.kind = RowKind::kValidation;
  return row;
}

}  // namespace hyperion::report
