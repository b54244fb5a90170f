// Checks that the chunks of a tensor tile it: each inside, none overlapping, no gap.
#pragma once

#include <optional>
#include <string>

#include "checkpoint/types/index.h"

namespace hyperion::checkpoint {

// The number of elements of a box; nullopt if it exceeds 63 bits or an extent is negative.
std::optional<int64_t> element_count(const Dims& shape);

// Strides of a row-major tensor, in elements. Throws Error(kBug) if they exceed 63 bits.
Dims row_major_strides(const Dims& shape);

// Throws Error(kBadData) naming `who` (file and key) and the faulty chunk. Empty chunks are allowed. Time
// is n log n for every layout that sharding along dimensions produces; a layout so irregular that it would
// take longer is refused.
void check_tiling(const std::string& who, const TensorRecord& tensor);

}  // namespace hyperion::checkpoint
