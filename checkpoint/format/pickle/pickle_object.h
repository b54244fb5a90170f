// Plain values (checkpoint/types/object.h) in pickles.
#pragma once

#include <string>

#include "checkpoint/format/pickle/pickle_value.h"
#include "checkpoint/format/pickle/pickle_writer.h"
#include "checkpoint/types/object.h"

namespace hyperion::checkpoint {

// The plain value that `value` encodes. Bytes stay bytes, whatever they hold. `what` is for messages ("the
// object 'train_state.step' of ..."), `input_bytes` the pickle's length: a small pickle that unfolds to a
// huge value is refused. Throws Error(kBadData) for classes, tensors, texts over 64 KiB and depths over 64.
Object object_from_pickle(PickleValue value, const std::string& what, size_t input_bytes);

// Writes one value. Throws Error(kBug) when a text in it is not UTF-8.
void write_object(PickleWriter& writer, const Object& object);

}  // namespace hyperion::checkpoint
