// Whether the chunks of a tensor fill it: each inside, none overlapping, nothing left out.
#pragma once

#include <optional>
#include <string>

#include "checkpoint/types/index.h"

namespace hyperion::checkpoint {

// Elements of a box, or nothing when they do not fit in 63 bits or an extent is negative.
std::optional<int64_t> element_count(const Dims& shape);

// Of a row-major tensor, in elements. Throws Error(kBug) for those that do not fit in 63 bits.
Dims row_major_strides(const Dims& shape);

// Throws Error(kBadData) naming `who` (file and key) and the chunk at fault. Empty chunks are allowed. Time
// is n log n for everything that shards along dimensions produce; a layout so irregular that it would take
// longer is refused.
void check_tiling(const std::string& who, const TensorRecord& tensor);

}  // namespace hyperion::checkpoint
