// A Parquet file as a TextFile. A block is a row group, or, if the column has a row group of over 64 MiB, a
// number of rows with some 4 MiB of text on average: such a file is read from its beginning to its end.
#pragma once

#include <optional>
#include <vector>

#include "data/arrow/column_texts.h"

namespace hyperion::data {

class ParquetFile : public ColumnTexts {
 public:
  static constexpr uint64_t kRowGroupLimit = uint64_t{64} << 20;
  static constexpr uint64_t kBatchBytes = uint64_t{4} << 20;

  // Reads the footer alone. Throws Error(kBadData) if the file is not Parquet, is damaged, lacks the column,
  // or has no row.
  explicit ParquetFile(const std::filesystem::path& path, TextField field = {},
                       uint64_t row_group_limit = kRowGroupLimit, uint64_t batch_bytes = kBatchBytes);

  std::optional<uint64_t> blocks() const override;
  std::optional<uint64_t> open_block(uint64_t block) override;
  uint64_t bytes_after_block() const override;

 private:
  struct Group {
    uint64_t rows_before;    // in the file
    uint64_t blocks_before;  // in the file
    uint64_t rows;
    uint64_t rows_of_block;  // of each but the last one
    uint64_t bytes;          // of the column, before compression
  };
  ColumnRows rows_of_block() override;
  void add_group(uint64_t rows, uint64_t bytes) override;
  void check_marks() const;
  void cut_groups(uint64_t row_group_limit, uint64_t batch_bytes);

  std::vector<Group> groups_;
  bool sequential_ = false;
  uint64_t rows_ = 0, blocks_ = 0;
  uint64_t group_ = 0, first_ = 0, count_ = 0;  // the rows of the current block, from the row group's first
};

}  // namespace hyperion::data
