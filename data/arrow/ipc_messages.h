// The messages of a file in Arrow's IPC format, a stream (as the datasets library saves) or a file with a
// footer around one (Feather): what each is and where, read without Apache Arrow and without their bodies.
#pragma once

#include <cstdint>
#include <vector>

#include "base/files.h"

namespace hyperion::data {

struct IpcMessage {
  enum class Type { kSchema, kDictionary, kBatch };
  Type type;
  uint64_t begin, bytes;  // in the file
  uint64_t rows;          // of a record batch
};

// Throws Error(kBadData) naming the file if it is not of this format or is cut off.
std::vector<IpcMessage> read_ipc_messages(const InputFile& file);

}  // namespace hyperion::data
