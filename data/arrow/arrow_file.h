// A file in Arrow's IPC format as a TextFile: a block is a record batch.
#pragma once

#include <optional>
#include <vector>

#include "data/arrow/column_texts.h"
#include "data/arrow/ipc_messages.h"

namespace hyperion::data {

class ArrowFile : public ColumnTexts {
 public:
  // Reads the metadata of every message. Throws Error(kBadData) if the file is not Arrow's, is damaged, lacks
  // the column, or has no row.
  explicit ArrowFile(const std::filesystem::path& path, TextField field = {});

  std::optional<uint64_t> blocks() const override { return batches_.size(); }
  std::optional<uint64_t> open_block(uint64_t block) override;

 private:
  struct Part {
    uint64_t begin, bytes;  // in the file
  };
  struct Batch {
    Part part;
    uint64_t rows_before, rows;
    uint64_t dictionaries;  // number of those before it in the file
  };
  ColumnRows rows_of_block() override;
  // Reads from the messages in `stream_`, one after the other.
  void read(uint64_t offset, void* out, uint64_t bytes) const override;
  uint64_t set_stream(uint64_t dictionaries, const Part* batch);  // returns its size

  Part schema_{};
  std::vector<Part> dictionaries_;
  std::vector<Batch> batches_;
  uint64_t block_ = 0;
  std::vector<Part> stream_;  // what the plug-in reads as a stream
};

}  // namespace hyperion::data
