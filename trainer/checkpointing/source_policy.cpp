#include "trainer/checkpointing/source_policy.h"

#include <algorithm>
#include <charconv>
#include <map>

#include <fmt/format.h>

#include "data/source_mix.h"

namespace hyperion::checkpointing {

std::string shares_text(const std::vector<data::SourceState>& sources) {
  std::string text;
  for (const data::SourceState& source : sources)
    text += fmt::format("{}{}={}", text.empty() ? "" : ",", source.name,
                        static_cast<double>(source.share) / static_cast<double>(data::SourceMix::kWhole));
  return text.empty() ? kOneDataSet : text;
}

// Gives the sources the saved weights. Returns false if they are other sources.
bool take_shares(const std::string& text, config::DataSources& sources) {
  std::map<std::string, double> weights;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size()), equals = text.find('=', at);
    if (equals >= end) return false;
    double weight = 0;
    const char *const first = text.data() + equals + 1, *const last = text.data() + end;
    if (const auto [read, error] = std::from_chars(first, last, weight);
        error != std::errc() || read != last || !(weight > 0))
      return false;
    weights[text.substr(at, equals - at)] = weight;
    at = end + 1;
  }
  if (weights.size() != sources.size()) return false;
  for (config::DataSource& source : sources) {
    const auto found = weights.find(config::name_of(source));
    if (found == weights.end()) return false;
    source.weight = found->second;
  }
  return true;
}

std::vector<std::pair<std::string, std::string>> sources_of_other_data(
    const std::vector<data::SourceState>& saved, const std::vector<data::SourceState>& now) {
  std::vector<std::pair<std::string, std::string>> changed;
  for (const data::SourceState& source : now) {
    const auto same = std::ranges::find(saved, source.name, &data::SourceState::name);
    if (same == saved.end() || same->fingerprint == source.fingerprint) continue;
    const auto describe = [&](uint64_t fingerprint) {
      return fmt::format("{} with the data {:08x}", source.name, fingerprint >> 32);
    };
    changed.emplace_back(describe(same->fingerprint), describe(source.fingerprint));
  }
  return changed;
}

}  // namespace hyperion::checkpointing
