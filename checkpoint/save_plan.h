// Which rank writes which part of the state, and where in its file. No I/O, no collectives: every rank
// computes the same plan from the layout of the state and the ranks' placements, so that no rank sends
// another a list of its local shards.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/state.h"
#include "checkpoint/types/choices.h"
#include "checkpoint/types/index.h"

namespace hyperion::checkpoint {

// What does not change from save to save: the tensors and their sharding. Equal on all ranks.
struct SaveLayout {
  struct Entry {
    std::string key;
    KeyPath path;
    Dtype dtype = Dtype::kFloat32;
    Dims shape;
    uint32_t kind = 0;    // index into kinds
    uint32_t tensor = 0;  // index in the list that the layout was made of (aliases share one)
  };
  // How tensors are placed, whichever rank looks at them.
  struct Kind {
    std::vector<Cut> cuts;  // as in Placement, each of index 0
    int replicas = 1;
    int pp_rank = 0;
    Domain domain = Domain::kDense;
    bool operator==(const Kind&) const = default;

    int parts() const;  // the product of those of the cuts
  };
  // Every tensor under its key and then under each alias. Those of one element (an optimizer has one for each
  // parameter) come first, and their first replica writes them: every rank reads them all when it loads, and
  // what it verifies for them is then few blocks of one file, not one for each of them.
  std::vector<Entry> entries;
  std::vector<Kind> kinds;  // distinct placements

  // Of names, types, shapes and kinds: equal layouts give equal plans.
  uint64_t fingerprint() const;
};

// Throws Error(kBug) for a tensor with a cut that it cannot have.
SaveLayout save_layout(const std::vector<TensorState>& tensors);

// Which part of the tensors of a kind a rank holds, and the number of its replica. Parts are numbered as the
// cuts count: the index of the last cut changes first.
struct HeldPart {
  int part = 0, replica = 0;
  bool operator==(const HeldPart&) const = default;
};

// None where the rank is not of the tensor's home.
std::optional<HeldPart> held_part(const Placement& placement);

// What one rank holds of each kind of the layout; nothing of kinds whose home is another stage.
using HeldParts = std::vector<std::optional<HeldPart>>;
std::string describe(const HeldParts& held);  // "0:1 - 0:0"

// Those of this rank, from the placements of its tensors. Throws Error(kBug) when it holds different parts of
// the tensors of one kind.
HeldParts held_parts(const SaveLayout& layout, const std::vector<TensorState>& tensors);

// A part of one entry in one file.
struct SaveItem {
  uint32_t entry = 0;
  uint32_t writer = 0;              // rank
  uint32_t part = 0;                // its number, see HeldPart
  uint64_t offset = 0, length = 0;  // of its archive in the writer's file
  bool operator==(const SaveItem&) const = default;
};

// Parts of an entry with consecutive numbers and archives of equal length. Few describe an entry, however
// many parts it has: a cut makes equal parts, then one of what is left, then empty ones.
struct PartRun {
  static constexpr uint32_t kNotShared = std::numeric_limits<uint32_t>::max();
  uint32_t entry = 0;
  int first_part = 0, parts = 0;
  uint32_t first_writer = kNotShared;  // of the parts' writers in shared_writers, where replicas share them
  uint64_t length = 0;                 // of each part's archive
};

// As seen by one rank. Of the items of the others it holds only what it takes to list them: its size does not
// grow with entries times ranks, except for the writers of pieces that replicas share.
struct SavePlan {
  std::vector<SaveItem> own;         // by offset
  std::vector<uint64_t> file_bytes;  // by rank: all archives of tensors; objects follow them
  uint64_t data_bytes = 0;           // of all items, elements only

  std::vector<std::vector<uint32_t>> holders;  // by kind: the ranks of each part, replica by replica
  std::vector<PartRun> runs;                   // every part with elements, in order
  std::vector<uint32_t> shared_writers;  // of the parts that replicas share; of others the first one writes
};

// Of rank `own`; Throws Error(kBug) when the ranks do not cover every part of every kind exactly `replicas`
// times.
SavePlan make_save_plan(const SaveLayout& layout, const std::vector<HeldParts>& by_rank, Writers writers,
                        int own);

// Calls `visit` for the items of all ranks: by entry, then by part; parts without elements are left out.
void for_each_item(const SaveLayout& layout, const SavePlan& plan,
                   const std::function<void(const SaveItem& item)>& visit);

// The same for the items of one run of the plan. `file_bytes`: by rank, of the items before it; then of those
// after it.
void for_each_item(const SaveLayout& layout, const SavePlan& plan, const PartRun& run,
                   std::vector<uint64_t>& file_bytes, const std::function<void(const SaveItem& item)>& visit);

// The file of a rank.
std::string shard_file_name(int rank);  // "__3_0.distcp"

// The part of its tensor that an item is.
Box item_box(const SaveLayout& layout, const SaveItem& item);

}  // namespace hyperion::checkpoint
