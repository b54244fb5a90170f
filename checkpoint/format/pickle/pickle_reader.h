// A restricted pickle machine. It reads the pickles of PyTorch's checkpoints and can execute nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "checkpoint/format/pickle/pickle_value.h"

namespace hyperion::checkpoint {

constexpr uint64_t kMaxPickleBytes = uint64_t{1} << 30;

// Decodes `input` (at most kMaxPickleBytes; it must outlive the tree). `name` is the file's, for messages.
// Memory stays below about four times the input. Values are counted before they are created: at most 4
// million, or one per two bytes if that is more. Throws Error(kBadData) naming file, position and
// instruction unless it is a well-formed pickle of protocol 2 to 5, nested at most 64 deep, with integers
// of at most 64 bits, that names only the classes and functions of PickleClass.
PickleTree read_pickle(std::span<const std::byte> input, const std::string& name);

}  // namespace hyperion::checkpoint
