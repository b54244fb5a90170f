// A restricted pickle machine: it reads what PyTorch's checkpoints hold, and can run nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "checkpoint/format/pickle/pickle_value.h"

namespace hyperion::checkpoint {

constexpr uint64_t kMaxPickleBytes = uint64_t{1} << 30;

// The value that `input` (at most kMaxPickleBytes; it must outlive the tree) encodes. `name` is the file's,
// for messages. Memory stays below about four times the input, whose values are counted before they are made:
// at most 4 million, or one in two bytes where that is more. Throws Error(kBadData) naming file, position and
// instruction for everything that is not a well-formed pickle of protocol 2 to 5, is nested deeper than 64,
// has an integer outside 64 bits, or names a class or function other than those of PickleClass.
PickleTree read_pickle(std::span<const std::byte> input, const std::string& name);

}  // namespace hyperion::checkpoint
