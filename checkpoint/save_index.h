// Encodes the .metadata of a save while the plan is walked, so that rank 0 never holds the pieces of all
// ranks, whose number grows with entries times shards.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "checkpoint/format/pickle/pickle_reader.h"
#include "checkpoint/save_plan.h"
#include "checkpoint/types/index.h"

namespace hyperion::checkpoint {

// Calls `take` with the file's content, about a MiB at a time. `rest` is everything but the tensors, which
// come from the plan in its order. Memory: a few numbers per entry and rank. Throws Error(kSaveFailed)
// before it exceeds `max_bytes`, the limit of readers.
void encode_save_index(const SaveLayout& layout, const SavePlan& plan, const CheckpointIndex& rest,
                       const std::function<void(std::string_view piece)>& take,
                       uint64_t max_bytes = kMaxPickleBytes);

// The size of that file without objects, which add some hundred bytes each. Throws like
// encode_save_index().
uint64_t save_index_bytes(const SaveLayout& layout, const SavePlan& plan,
                          uint64_t max_bytes = kMaxPickleBytes);

}  // namespace hyperion::checkpoint
