#include "data/arrow/plugin/parquet_columns.h"

#include <array>
#include <stdexcept>

#include <parquet/api/reader.h>

#include "data/arrow/plugin/host_file.h"

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

class ParquetColumns {
 public:
  ParquetColumns(const ArrowHost& host, uint64_t size)
      : host_(host),
        pool_(host.memory_limit),
        file_(std::make_shared<HostFile>(host_, size, &pool_)),
        properties_(&pool_) {
    properties_.enable_buffered_stream();
    properties_.set_buffer_size(kBufferedRead);
    properties_.set_page_checksum_verification(true);
  }

  const ArrowHost& host() const { return host_; }
  const LimitedPool& pool() const { return pool_; }

  void open() {
    read_footer();
    const parquet::SchemaDescriptor& schema = *footer_->schema();
    for (int i = 0; i < schema.num_columns(); ++i) {
      const parquet::ColumnDescriptor& column = *schema.Column(i);
      const std::string name = column.path()->ToDotString(), type = type_of(column);
      host_.column(host_.context, name.data(), name.size(), type.data(), type.size(), holds_text(column));
    }
  }

  void choose(uint32_t column) {
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

  bool read(uint64_t group, uint64_t first, uint64_t rows) {
    if (values_ == nullptr || group != group_ || first != row_) start(group, first);
    std::array<int16_t, kBatch> levels;
    std::array<parquet::ByteArray, kBatch> values;
    while (rows > 0) {
      int64_t present = 0;
      const int64_t wanted = std::min(kBatch, static_cast<int64_t>(rows));
      const int64_t count = values_->ReadBatch(wanted, levels.data(), nullptr, values.data(), &present);
      if (count <= 0)
        throw std::runtime_error("its column ends after " + std::to_string(row_) +
                                 " rows, before those that "
                                 "the footer counts");
      int64_t next = 0;
      for (int64_t i = 0; i < count; ++i) {
        const bool null = max_level_ > 0 && levels[static_cast<size_t>(i)] < max_level_;
        if (!null && next == present) throw std::runtime_error("a page has fewer values than it says");
        const parquet::ByteArray value = null ? parquet::ByteArray() : values[static_cast<size_t>(next++)];
        const char* data = value.ptr == nullptr ? "" : reinterpret_cast<const char*>(value.ptr);
        if (!host_.value(host_.context, null ? nullptr : data, value.len)) return stop();
      }
      row_ += static_cast<uint64_t>(count);
      rows -= static_cast<uint64_t>(count);
    }
    if (row_ == group_rows_) stop();
    return true;
  }

  // Frees what the current row group takes.
  bool stop() {
    values_.reset();
    reader_.reset();
    return false;
  }

 private:
  void read_footer() {
    reader_ = parquet::ParquetFileReader::Open(file_, properties_, footer_);
    footer_ = reader_->metadata();
  }

  void start(uint64_t group, uint64_t first) {
    stop();
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

  const ArrowHost& host_;
  LimitedPool pool_;
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

// Calls a method of the file; what was read of a row group is dropped if it fails.
template <typename Body>
bool call(void* file, const Body& body) noexcept {
  auto& columns = *static_cast<ParquetColumns*>(file);
  const bool done = guarded(columns.host(), columns.pool(), false, [&] { return body(columns); });
  if (!done) columns.stop();
  return done;
}

}  // namespace

void* open_parquet(const ArrowHost* host, uint64_t size) {
  ParquetColumns* columns = nullptr;
  try {
    columns = new ParquetColumns(*host, size);
  } catch (const std::exception& error) {
    report(*host, error.what(), true);
    return nullptr;
  }
  const bool opened = call(columns, [](ParquetColumns& file) {
    file.open();
    return true;
  });
  if (opened) return columns;
  delete columns;
  return nullptr;
}

bool choose_parquet_column(void* file, uint32_t column) {
  return call(file, [&](ParquetColumns& columns) {
    columns.choose(column);
    columns.stop();
    return true;
  });
}

bool read_parquet_rows(void* file, uint64_t group, uint64_t first, uint64_t rows) {
  return call(file, [&](ParquetColumns& columns) { return columns.read(group, first, rows); });
}

void close_parquet(void* file) {
  delete static_cast<ParquetColumns*>(file);
}

}  // namespace hyperion::data
