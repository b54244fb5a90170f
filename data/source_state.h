// The state of a loader's sources: where each of them is, and what a list of sources that has changed
// continues. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_fwd.h"
#include "data/corpus_reader.h"

namespace hyperion::data {

struct SourceState {
  std::string name{};         // "" of the only one
  uint64_t fingerprint = 0;   // of the data, the text field and the tokenizer
  StreamPosition position{};  // of the next token
  int64_t share = 0;          // of SourceMix::kWhole; 0: max_epochs are read
  uint64_t drawn = 0;         // sequences since the sources have these shares
  uint64_t tokens = 0;        // consumed by all ranks, from the beginning

  bool operator==(const SourceState&) const = default;

  nlohmann::ordered_json to_json() const;
  // Throws Error(kBadData) naming the field.
  static SourceState from_json(const JsonNode& node);
};

// "0123456789abcdef" of a fingerprint, and back; `node` is the place in messages.
std::string fingerprint_text(uint64_t fingerprint);
uint64_t fingerprint_of(const JsonNode& node);

// Returns the differences between the sources of a state and those of a loader, each as one sentence without
// its full stop: sources that are new, missing, or of other data. Shares are not compared.
std::vector<std::string> source_differences(const std::vector<SourceState>& saved,
                                            const std::vector<SourceState>& now);

// Returns `now`, the sources at their beginnings, with the positions of those that `saved` has by the same
// name and with the same data. A saved source without a name is any one with the same data.
std::vector<SourceState> continued_sources(const std::vector<SourceState>& saved,
                                           std::vector<SourceState> now);

}  // namespace hyperion::data
