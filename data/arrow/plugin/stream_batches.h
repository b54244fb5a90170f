// Streams of Arrow's IPC format, of which one column of text is read.
#pragma once

#include "data/arrow/arrow_plugin.h"

namespace hyperion::data {

void* open_stream(const ArrowHost* host, uint64_t size);
bool read_stream_batch(void* stream, uint32_t column, uint64_t size);
void close_stream(void* stream);

}  // namespace hyperion::data
