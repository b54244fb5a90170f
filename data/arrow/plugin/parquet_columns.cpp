#include <array>

#include <parquet/api/reader.h>

#include "data/arrow/plugin/column_reader.h"

namespace hyperion::data {
namespace {

constexpr int64_t kBatch = 1024;                     // values at a time
constexpr int64_t kBufferedRead = int64_t{1} << 20;  // at a time from the file
// A footer in memory takes some ten times its bytes. Larger ones are read again for each row group, which
// takes less than 1 % of the time in which its texts are encoded.
constexpr uint32_t kKeptFooter = uint32_t{512} << 10;

bool holds_text(const parquet::ColumnDescriptor& column) {
  const auto& type = column.logical_type();
  return column.physical_type() == parquet::Type::BYTE_ARRAY && column.max_repetition_level() == 0 &&
         (type == nullptr || type->is_none() || type->is_string() || type->is_JSON() || type->is_enum());
}

std::string type_of(const parquet::ColumnDescriptor& column) {
  const auto& type = column.logical_type();
  const std::string name = type == nullptr || type->is_none() || !type->is_valid()
                               ? parquet::TypeToString(column.physical_type())
                               : type->ToString();
  return column.max_repetition_level() > 0 ? "a list of " + name : name;
}

class ParquetColumns : public ColumnReader {
 public:
  explicit ParquetColumns(const ArrowHost& host) : ColumnReader(host), properties_(&pool_) {
    properties_.enable_buffered_stream();
    properties_.set_buffer_size(kBufferedRead);
    properties_.set_page_checksum_verification(true);
  }

  void open(uint64_t size) override {
    file_ = host_file(size);
    read_footer();
    const parquet::SchemaDescriptor& schema = *footer_->schema();
    for (int i = 0; i < schema.num_columns(); ++i) {
      const parquet::ColumnDescriptor& column = *schema.Column(i);
      add_column(column.path()->ToDotString(), type_of(column), holds_text(column));
    }
  }

  void choose(uint32_t column) override {
    if (column >= static_cast<uint32_t>(footer_->num_columns()) ||
        !holds_text(*footer_->schema()->Column(static_cast<int>(column))))
      throw std::runtime_error("the column holds no text");
    column_ = static_cast<int>(column);
    max_level_ = footer_->schema()->Column(column_)->max_definition_level();
    for (int i = 0; i < footer_->num_row_groups(); ++i) {
      const auto group = footer_->RowGroup(i);
      const auto chunk = group->ColumnChunk(column_);
      if (group->num_rows() < 0 || chunk->num_values() != group->num_rows() ||
          chunk->total_uncompressed_size() < 0)
        throw std::runtime_error("the footer says that row group " + std::to_string(i) + " has " +
                                 std::to_string(group->num_rows()) + " rows and " +
                                 std::to_string(chunk->num_values()) + " values in " +
                                 std::to_string(chunk->total_uncompressed_size()) + " bytes");
      host_.group(host_.context, static_cast<uint64_t>(group->num_rows()),
                  static_cast<uint64_t>(chunk->total_uncompressed_size()));
    }
    if (footer_->size() > kKeptFooter) footer_.reset();
  }

  bool read(const ColumnRows& wanted) override {
    if (values_ == nullptr || wanted.group != group_ || wanted.first != row_)
      start(wanted.group, wanted.first);
    std::array<int16_t, kBatch> levels;
    std::array<parquet::ByteArray, kBatch> values;
    for (uint64_t left = wanted.rows; left > 0;) {
      int64_t present = 0;
      const int64_t batch = std::min(kBatch, static_cast<int64_t>(left));
      const int64_t count = values_->ReadBatch(batch, levels.data(), nullptr, values.data(), &present);
      if (count <= 0)
        throw std::runtime_error("its column ends after " + std::to_string(row_) +
                                 " rows, before those that the footer counts");
      int64_t next = 0;
      for (int64_t i = 0; i < count; ++i) {
        const bool null = max_level_ > 0 && levels[static_cast<size_t>(i)] < max_level_;
        if (!null && next == present) throw std::runtime_error("a page has fewer values than it says");
        const parquet::ByteArray value = null ? parquet::ByteArray() : values[static_cast<size_t>(next++)];
        if (!add_value(null, value.ptr, value.len)) return false;
      }
      row_ += static_cast<uint64_t>(count);
      left -= static_cast<uint64_t>(count);
    }
    if (row_ == group_rows_) drop();
    return true;
  }

  void drop() override {  // what the current row group takes
    values_.reset();
    reader_.reset();
  }

 private:
  void read_footer() {
    reader_ = parquet::ParquetFileReader::Open(file_, properties_, footer_);
    footer_ = reader_->metadata();
  }

  void start(uint64_t group, uint64_t first) {
    drop();
    const bool kept = footer_ != nullptr;
    read_footer();
    if (group >= static_cast<uint64_t>(footer_->num_row_groups()))
      throw std::runtime_error("the file has changed: it has " + std::to_string(footer_->num_row_groups()) +
                               " row groups now");
    const auto groups = reader_->RowGroup(static_cast<int>(group));
    group_rows_ = static_cast<uint64_t>(groups->metadata()->num_rows());
    values_ = std::dynamic_pointer_cast<parquet::ByteArrayReader>(groups->Column(column_));
    if (values_ == nullptr) throw std::runtime_error("the column holds no text");
    if (!kept) footer_.reset();
    group_ = group;
    row_ = first;
    if (first > 0 && values_->Skip(static_cast<int64_t>(first)) != static_cast<int64_t>(first))
      throw std::runtime_error("its column has fewer rows than the footer counts");
  }

  std::shared_ptr<HostFile> file_;
  parquet::ReaderProperties properties_;
  std::shared_ptr<parquet::FileMetaData> footer_;  // null if it is large
  std::unique_ptr<parquet::ParquetFileReader> reader_;
  std::shared_ptr<parquet::ByteArrayReader> values_;  // of the current row group; null if none
  int column_ = 0;
  int16_t max_level_ = 0;  // of a value that is not null
  uint64_t group_ = 0, group_rows_ = 0;
  uint64_t row_ = 0;  // the next one in the row group
};

}  // namespace

std::unique_ptr<ColumnReader> make_parquet_reader(const ArrowHost& host) {
  return std::make_unique<ParquetColumns>(host);
}

}  // namespace hyperion::data
