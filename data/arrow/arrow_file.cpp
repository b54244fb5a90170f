#include "data/arrow/arrow_file.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"

namespace hyperion::data {

ArrowFile::ArrowFile(const std::filesystem::path& path, TextField field)
    : ColumnTexts(path, std::move(field), ColumnFormat::kArrow) {
  uint64_t rows = 0;
  for (const IpcMessage& message : read_ipc_messages(file())) {
    const Part part = {message.begin, message.bytes};
    switch (message.type) {
      case IpcMessage::Type::kSchema:
        schema_ = part;
        break;
      case IpcMessage::Type::kDictionary:
        dictionaries_.push_back(part);
        break;
      case IpcMessage::Type::kBatch:
        batches_.push_back({part, rows, message.rows, dictionaries_.size()});
        rows += std::min(message.rows, std::numeric_limits<uint64_t>::max() - rows);
    }
  }
  open_columns("its schema", set_stream(0, nullptr));
  check_rows(rows);
}

std::optional<uint64_t> ArrowFile::open_block(uint64_t block) {
  if (block >= batches_.size()) return std::nullopt;
  block_ = block;
  const Batch& batch = batches_[block];
  start_block(fmt::format("record batch {}", block), batch.rows_before, batch.rows, batch.part.bytes);
  return batch.rows;
}

ColumnRows ArrowFile::rows_of_block() {
  const Batch& batch = batches_[block_];
  return {.group = 0, .first = 0, .rows = batch.rows, .bytes = set_stream(batch.dictionaries, &batch.part)};
}

uint64_t ArrowFile::set_stream(uint64_t dictionaries, const Part* batch) {
  stream_ = {schema_};
  stream_.insert(stream_.end(), dictionaries_.begin(),
                 dictionaries_.begin() + static_cast<ptrdiff_t>(dictionaries));
  if (batch != nullptr) stream_.push_back(*batch);
  uint64_t size = 0;
  for (const Part& part : stream_) size += part.bytes;
  return size;
}

void ArrowFile::read(uint64_t offset, void* out, uint64_t bytes) const {
  char* to = static_cast<char*>(out);
  for (const Part& part : stream_) {
    if (offset >= part.bytes) {
      offset -= part.bytes;
      continue;
    }
    const uint64_t count = std::min(bytes, part.bytes - offset);
    file().read(part.begin + offset, to, count);
    to += count;
    bytes -= count;
    offset = 0;
    if (bytes == 0) return;
  }
}

}  // namespace hyperion::data
