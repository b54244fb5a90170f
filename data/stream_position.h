// The position in a token stream: a few numbers for each slot of the order (shuffle_plan.h).
#pragma once

#include <cstdint>
#include <vector>

#include "base/json_fwd.h"

namespace hyperion::data {

// The next document of a slot. `part` and `block` count in the epoch's order, not in the corpus's, and so
// does `document` inside the block. One past the last document, block or part is valid.
struct SlotPosition {
  uint64_t part = 0;
  uint64_t block = 0;
  uint64_t document = 0;

  bool operator==(const SlotPosition&) const = default;
};

// A document as it was drawn: number `draws` - 1 of the epoch.
struct DrawnDocument {
  uint64_t epoch = 0;
  uint64_t draws = 0;
  uint64_t slot = 0;
  SlotPosition at;
};

// The position of the next token. It is meaningful only with the same seed, data and window.
struct StreamPosition {
  uint64_t epoch = 0;
  uint64_t draws = 0;  // documents drawn in this epoch
  uint64_t slot = 0;   // of the document drawn last, whose position is slots[slot]; 0 before the first
  uint64_t token = 0;  // in that document
  std::vector<SlotPosition> slots;  // empty before the first draw of the first epoch

  // Moves to the beginning of the document that was drawn next, in an order of `slots` slots. Nothing changes
  // if it is the document at this position.
  void move_to(const DrawnDocument& drawn, uint64_t slot_count);

  // {"epoch": .., "draws": .., "slot": .., "token_offset": .., "slots": [[part, block, document], ..]}
  nlohmann::ordered_json to_json() const;
  // Throws Error(kBadData) naming the field.
  static StreamPosition from_json(const JsonNode& node);
  // The position that version 1 stored, which read one file after another: {"epoch", "file", "document",
  // "token_offset"}.
  static StreamPosition from_json_version_1(const JsonNode& node);

  bool operator==(const StreamPosition&) const = default;
};

}  // namespace hyperion::data
