// Plans which rank writes which part of the state, and where in its file. No I/O, no collectives: every
// rank computes the same plan from the layout of the state and the ranks' placements, so ranks exchange no
// lists of local shards.
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

// The tensors and their sharding, which are the same in every save and on all ranks.
struct SaveLayout {
  struct Entry {
    std::string key;
    KeyPath path;
    Dtype dtype = Dtype::kFloat32;
    Dims shape;
    uint32_t kind = 0;    // index into kinds
    uint32_t tensor = 0;  // index in save_layout()'s list (aliases share one)
  };
  // A placement without a rank's coordinates.
  struct Kind {
    std::vector<Cut> cuts;  // as in Placement, each with index 0
    int replicas = 1;
    int pp_rank = 0;
    Domain domain = Domain::kDense;
    bool operator==(const Kind&) const = default;

    int parts() const;  // product of the cuts' parts
  };
  // Every tensor under its key, then under each alias. Tensors of one element (an optimizer has one per
  // parameter) come first, and their first replica writes them: every rank reads all of them on load, and
  // then verifies a few blocks of one file instead of one per tensor.
  std::vector<Entry> entries;
  std::vector<Kind> kinds;  // distinct placements

  // A hash of names, types, shapes and kinds. Equal layouts give equal plans.
  uint64_t fingerprint() const;
};

// Throws Error(kBug) if a tensor cannot have its cuts.
SaveLayout save_layout(const std::vector<TensorState>& tensors);

// The part of a kind's tensors that a rank holds, and its replica index. Parts are numbered in the order of
// the cuts: the index of the last cut changes first.
struct HeldPart {
  int part = 0, replica = 0;
  bool operator==(const HeldPart&) const = default;
};

// nullopt if the rank does not hold the tensor.
std::optional<HeldPart> held_part(const Placement& placement);

// The part that one rank holds of each kind of the layout; nullopt for kinds of other pp ranks.
using HeldParts = std::vector<std::optional<HeldPart>>;
std::string describe(const HeldParts& held);  // "0:1 - 0:0"

// The parts of this rank, from the placements of its tensors. Throws Error(kBug) if it holds different
// parts of tensors of one kind.
HeldParts held_parts(const SaveLayout& layout, const std::vector<TensorState>& tensors);

// A part of one entry in one file.
struct SaveItem {
  uint32_t entry = 0;
  uint32_t writer = 0;              // the writing rank
  uint32_t part = 0;                // part number, see HeldPart
  uint64_t offset = 0, length = 0;  // its archive's range in the writer's file
  bool operator==(const SaveItem&) const = default;
};

// Parts of an entry with consecutive numbers and archives of equal length. A few runs describe an entry
// with any number of parts: a cut makes equal parts, then one remainder, then empty ones.
struct PartRun {
  static constexpr uint32_t kNotShared = std::numeric_limits<uint32_t>::max();
  uint32_t entry = 0;
  int first_part = 0, parts = 0;
  uint32_t first_writer = kNotShared;  // index in shared_writers, if replicas share the parts
  uint64_t length = 0;                 // length of each part's archive
};

// The plan as seen by one rank. It holds the other ranks' items only as runs: its size does not grow with
// entries times ranks, except for the writers of parts that replicas share.
struct SavePlan {
  std::vector<SaveItem> local_items;  // this rank's items, by offset
  std::vector<uint64_t> file_bytes;   // bytes of tensor archives, by rank; objects follow them
  uint64_t data_bytes = 0;            // bytes of all items' elements

  std::vector<std::vector<uint32_t>> holders;  // ranks of each part, replica by replica, by kind
  std::vector<PartRun> runs;                   // every part with elements, in order
  std::vector<uint32_t>
      shared_writers;  // writers of parts that replicas share; else the first replica writes
};

// Returns the plan of rank `rank`. Throws Error(kBug) unless the ranks hold every part of every kind
// exactly `replicas` times.
SavePlan make_save_plan(const SaveLayout& layout, const std::vector<HeldParts>& by_rank, Writers writers,
                        int rank);

// Calls `visit` for the items of all ranks, by entry, then by part; empty parts are left out.
void for_each_item(const SaveLayout& layout, const SavePlan& plan,
                   const std::function<void(const SaveItem& item)>& visit);

// Calls `visit` for the items of one run. `file_bytes` (by rank) covers the items before it on entry, and
// those up to its end on return.
void for_each_item(const SaveLayout& layout, const SavePlan& plan, const PartRun& run,
                   std::vector<uint64_t>& file_bytes, const std::function<void(const SaveItem& item)>& visit);

// The file name of a rank.
std::string shard_file_name(int rank);  // "__3_0.distcp"

// The box of its tensor that an item covers.
Box item_box(const SaveLayout& layout, const SaveItem& item);

}  // namespace hyperion::checkpoint
