// The .metadata of a save, encoded while the plan is walked: rank 0 never holds the pieces of all ranks,
// whose number grows with entries times shards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

#include "checkpoint/format/pickle/pickle_reader.h"
#include "checkpoint/save_plan.h"
#include "checkpoint/types/index.h"

namespace hyperion::checkpoint {

struct IndexLimits {
  size_t items_at_once = size_t{1} << 20;  // of the plan, in memory (32 MiB); more of them make it faster
  uint64_t most_bytes = kMostPickleBytes;  // that readers accept
};

// Calls `take` with the file's content, about a MiB at a time. `rest`: all but the tensors, which are the
// plan's. Memory: a few numbers for each entry and rank, and limits.items_at_once items of the plan. Throws
// Error(kSaveFailed) before it takes more than limits.most_bytes.
void encode_save_index(const SaveLayout& layout, const SavePlan& plan, const CheckpointIndex& rest,
                       const std::function<void(std::string_view piece)>& take,
                       const IndexLimits& limits = {});

// Bytes of that file without objects, which add some hundred bytes each. Throws as encode_save_index does.
uint64_t save_index_bytes(const SaveLayout& layout, const SavePlan& plan, const IndexLimits& limits = {});

}  // namespace hyperion::checkpoint
