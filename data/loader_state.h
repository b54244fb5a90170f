// The loader's position in the data, as a checkpoint holds it. It counts what was consumed, not what was
// prefetched, and holds no rank or mesh, so it is valid at any data-parallel degree, batch size and sequence
// length.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "data/token_stream.h"

namespace hyperion::data {

struct LoaderState {
  StreamPosition position;  // of the next token
  uint64_t sequence = 0;    // sequences consumed so far
  uint64_t seed = 0;        // of the order of documents
  bool shuffle = true;
  uint64_t fingerprint = 0;  // of the data and its tokenizer

  bool operator==(const LoaderState&) const = default;

  // {"version": 1, "epoch": .., "file": .., "document": .., "token_offset": .., "sequence": .., "seed": ..,
  //  "shuffle": .., "fingerprint": ".."}
  std::string to_json() const;
  // Throws Error(kBadData) naming the field.
  static LoaderState from_json(std::string_view text);
};

}  // namespace hyperion::data
