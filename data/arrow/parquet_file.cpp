#include "data/arrow/parquet_file.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"

namespace hyperion::data {
namespace {

constexpr std::string_view kMark = "PAR1";  // the first and the last bytes
constexpr std::string_view kEncryptedMark = "PARE";
constexpr uint64_t kSmallest = 12;  // both marks and the size of the footer

}  // namespace

ParquetFile::ParquetFile(const std::filesystem::path& path, TextField field, uint64_t row_group_limit,
                         uint64_t batch_bytes)
    : ColumnTexts(path, std::move(field), ColumnFormat::kParquet) {
  check_marks();
  open_columns("its footer", file().size());
  check_rows(rows_);
  cut_groups(row_group_limit, batch_bytes);
}

void ParquetFile::check_marks() const {
  char mark[4] = {};
  const auto mark_at = [&](uint64_t offset) {
    file().read(offset, mark, sizeof mark);
    return std::string_view(mark, sizeof mark);
  };
  const bool small = file().size() < kSmallest;
  if (!small && mark_at(0) == kEncryptedMark)
    throw_data("{}: is encrypted: write it without encryption", name());
  if (small || mark_at(0) != kMark)
    throw_data("{}: is no Parquet file (it does not begin with PAR1): fetch or write it again", name());
  if (mark_at(file().size() - kMark.size()) != kMark)
    throw_data(
        "{}: is not a whole Parquet file (it does not end with PAR1, so it was cut off): fetch or write it "
        "again",
        name());
}

void ParquetFile::add_group(uint64_t rows, uint64_t bytes) {
  groups_.push_back(
      {.rows_before = rows_, .blocks_before = 0, .rows = rows, .rows_of_block = rows, .bytes = bytes});
  rows_ += std::min(rows, std::numeric_limits<uint64_t>::max() - rows_);
}

void ParquetFile::cut_groups(uint64_t row_group_limit, uint64_t batch_bytes) {
  sequential_ =
      std::ranges::any_of(groups_, [&](const Group& group) { return group.bytes > row_group_limit; });
  for (Group& group : groups_) {
    group.blocks_before = blocks_;
    if (sequential_ && group.rows > 0) {
      const uint64_t parts = std::clamp<uint64_t>(group.bytes / batch_bytes, 1, group.rows);
      group.rows_of_block = (group.rows + parts - 1) / parts;
      blocks_ += (group.rows + group.rows_of_block - 1) / group.rows_of_block;
    } else {
      ++blocks_;
    }
  }
}

std::optional<uint64_t> ParquetFile::blocks() const {
  if (sequential_) return std::nullopt;
  return blocks_;
}

std::optional<uint64_t> ParquetFile::open_block(uint64_t block) {
  if (block >= blocks_) return std::nullopt;
  const auto after = std::ranges::upper_bound(groups_, block, {}, &Group::blocks_before);
  group_ = static_cast<uint64_t>(after - groups_.begin()) - 1;
  const Group& group = groups_[group_];
  first_ = (block - group.blocks_before) * group.rows_of_block;
  count_ = std::min(group.rows_of_block, group.rows - first_);
  start_block(fmt::format("row group {}", group_), group.rows_before + first_, count_,
              group.bytes / std::max<uint64_t>(group.rows, 1) * count_);
  return count_;
}

uint64_t ParquetFile::bytes_after_block() const {
  const uint64_t read = groups_.empty() ? 0 : groups_[group_].rows_before + first_ + count_;
  return static_cast<uint64_t>(static_cast<double>(file().size()) * static_cast<double>(rows_ - read) /
                               static_cast<double>(rows_));
}

ColumnRows ParquetFile::rows_of_block() {
  return {.group = group_, .first = first_, .rows = count_, .bytes = 0};
}

}  // namespace hyperion::data
