#include "data/source_state.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "base/error.h"
#include "base/json.h"
#include "data/source_mix.h"

namespace hyperion::data {
namespace {

constexpr uint64_t kLargestCount = uint64_t{1} << 62;

const SourceState* find_source(const std::vector<SourceState>& sources, const std::string& name) {
  const auto found = std::ranges::find(sources, name, &SourceState::name);
  return found == sources.end() ? nullptr : &*found;
}

// The saved source that `source` continues, or null.
const SourceState* continued_by(const SourceState& source, const std::vector<SourceState>& saved) {
  if (const SourceState* same = find_source(saved, source.name))
    return same->fingerprint == source.fingerprint ? same : nullptr;
  const SourceState* unnamed = find_source(saved, "");
  return unnamed != nullptr && unnamed->fingerprint == source.fingerprint ? unnamed : nullptr;
}

}  // namespace

std::string fingerprint_text(uint64_t fingerprint) {
  return fmt::format("{:016x}", fingerprint);
}

uint64_t fingerprint_of(const JsonNode& node) {
  const std::string& digits = node.text();
  uint64_t fingerprint = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), fingerprint, 16);
  if (error != std::errc() || end != digits.data() + digits.size())
    throw_data("{} '{}' is no hexadecimal number", node.where(), digits);
  return fingerprint;
}

nlohmann::ordered_json SourceState::to_json() const {
  return {{"name", name},
          {"fingerprint", fingerprint_text(fingerprint)},
          {"position", position.to_json()},
          {"share", share},
          {"drawn", drawn},
          {"tokens", tokens}};
}

SourceState SourceState::from_json(const JsonNode& node) {
  return {.name = node["name"].text(),
          .fingerprint = fingerprint_of(node["fingerprint"]),
          .position = StreamPosition::from_json(node["position"]),
          .share = static_cast<int64_t>(node["share"].count(0, SourceMix::kWhole)),
          .drawn = node["drawn"].count(0, kLargestCount),
          .tokens = node["tokens"].count(0, kLargestCount)};
}

std::vector<std::string> source_differences(const std::vector<SourceState>& saved,
                                            const std::vector<SourceState>& now) {
  std::vector<std::string> differences;
  bool unnamed_continues = false;
  for (const SourceState& source : now) {
    const SourceState* same = continued_by(source, saved);
    if (same != nullptr) unnamed_continues |= same->name.empty();
    if (same == nullptr)
      differences.push_back(find_source(saved, source.name) != nullptr
                                ? fmt::format("{} has other files, another text field or another tokenizer "
                                              "and starts again from its beginning",
                                              source.name)
                                : fmt::format("{} is new and begins", source.name));
  }
  for (const SourceState& source : saved) {
    if (source.name.empty() ? unnamed_continues : find_source(now, source.name) != nullptr) continue;
    differences.push_back(
        fmt::format("{} is left out", source.name.empty() ? "the data of before" : source.name));
  }
  return differences;
}

std::vector<SourceState> continued_sources(const std::vector<SourceState>& saved,
                                           std::vector<SourceState> now) {
  for (SourceState& source : now) {
    const SourceState* same = continued_by(source, saved);
    if (same == nullptr) continue;
    source.position = same->position;
    source.tokens = same->tokens;
  }
  return now;
}

}  // namespace hyperion::data
