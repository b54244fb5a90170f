// Converts plain values (checkpoint/types/object.h) from and to pickles.
#pragma once

#include <string>

#include "checkpoint/format/pickle/pickle_value.h"
#include "checkpoint/format/pickle/pickle_writer.h"
#include "checkpoint/types/object.h"

namespace hyperion::checkpoint {

// The plain value that `value` encodes. Bytes are not decoded further. `what` is for messages ("the object
// 'train_state.step' of ..."); `input_bytes` is the pickle's length: a small pickle that expands to a huge
// value is refused. Throws Error(kBadData) for classes, tensors, texts over 64 KiB and depths over 64.
Object object_from_pickle(PickleValue value, const std::string& what, size_t input_bytes);

// Writes one value. Throws Error(kBug) if a text in it is not UTF-8.
void write_object(PickleWriter& writer, const Object& object);

}  // namespace hyperion::checkpoint
