#include <vector>

#include <arrow/array.h>
#include <arrow/extension_type.h>
#include <arrow/ipc/reader.h>
#include <arrow/record_batch.h>
#include <arrow/type.h>

#include "data/arrow/plugin/column_reader.h"

namespace hyperion::data {
namespace {

void check(const arrow::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

template <typename Value>
Value checked(arrow::Result<Value> result) {
  check(result.status());
  return std::move(result).ValueUnsafe();
}

// Returns the same type with bytes for strings, which are not checked for being UTF-8; null if it holds no
// text.
std::shared_ptr<arrow::DataType> as_bytes(const arrow::DataType& type) {
  switch (type.id()) {
    case arrow::Type::STRING:
    case arrow::Type::BINARY:
      return arrow::binary();
    case arrow::Type::LARGE_STRING:
    case arrow::Type::LARGE_BINARY:
      return arrow::large_binary();
    case arrow::Type::STRING_VIEW:
    case arrow::Type::BINARY_VIEW:
      return arrow::binary_view();
    case arrow::Type::DICTIONARY: {
      const auto& dictionary = static_cast<const arrow::DictionaryType&>(type);
      const auto values = as_bytes(*dictionary.value_type());
      if (values == nullptr || values->id() == arrow::Type::DICTIONARY) return nullptr;
      return arrow::dictionary(dictionary.index_type(), values, dictionary.ordered());
    }
    case arrow::Type::EXTENSION:
      return as_bytes(*static_cast<const arrow::ExtensionType&>(type).storage_type());
    default:
      return nullptr;
  }
}

std::shared_ptr<arrow::ArrayData> as_bytes(const arrow::ArrayData& data) {
  std::shared_ptr<arrow::ArrayData> copy = data.Copy();
  copy->type = as_bytes(*data.type);
  if (copy->type == nullptr) throw std::runtime_error("the column holds no text");
  if (copy->dictionary != nullptr) copy->dictionary = as_bytes(*copy->dictionary);
  return copy;
}

std::string_view bytes_at(const arrow::Array& array, int64_t row) {
  switch (array.type_id()) {
    case arrow::Type::BINARY:
      return static_cast<const arrow::BinaryArray&>(array).GetView(row);
    case arrow::Type::LARGE_BINARY:
      return static_cast<const arrow::LargeBinaryArray&>(array).GetView(row);
    default:
      return static_cast<const arrow::BinaryViewArray&>(array).GetView(row);
  }
}

class StreamBatches : public ColumnReader {
 public:
  explicit StreamBatches(const ArrowHost& host) : ColumnReader(host) {
    options_.memory_pool = &pool_;
    options_.use_threads = false;
    // A body that is read as a whole is not aligned if its offset is not.
    options_.ensure_alignment = arrow::ipc::Alignment::kDataTypeSpecificAlignment;
  }

  void open(uint64_t size) override {
    const auto reader = open_reader(size, options_);
    const arrow::FieldVector& fields = reader->schema()->fields();
    for (size_t i = 0; i < fields.size(); ++i)
      add_leaves(*fields[i], fields[i]->name(), {static_cast<int>(i)});
  }

  void choose(uint32_t column) override { path_ = leaves_.at(column); }

  bool read(const ColumnRows& rows) override {
    arrow::ipc::IpcReadOptions options = options_;
    options.included_fields = {path_.front()};
    const auto reader = open_reader(rows.bytes, options);
    std::shared_ptr<arrow::RecordBatch> batch;
    check(reader->ReadNext(&batch));
    if (batch == nullptr || batch->num_columns() != 1)
      throw std::runtime_error("there is no record batch with the column");
    check(batch->Validate());

    std::vector<std::shared_ptr<arrow::Array>> parents;
    std::shared_ptr<arrow::Array> array = batch->column(0);
    for (size_t depth = 1; depth < path_.size(); ++depth) {
      parents.push_back(array);
      array = checked_struct(*array).field(path_[depth]);
    }
    array = arrow::MakeArray(as_bytes(*array->data()));
    check(array->ValidateFull());
    const auto* dictionary = array->type_id() == arrow::Type::DICTIONARY
                                 ? static_cast<const arrow::DictionaryArray*>(array.get())
                                 : nullptr;
    const arrow::Array& values = dictionary != nullptr ? *dictionary->dictionary() : *array;
    for (int64_t row = 0; row < batch->num_rows(); ++row) {
      bool null = array->IsNull(row);
      for (const auto& parent : parents) null = null || parent->IsNull(row);
      const int64_t at = null || dictionary == nullptr ? row : dictionary->GetValueIndex(row);
      null = null || (dictionary != nullptr && values.IsNull(at));
      const std::string_view value = null ? std::string_view() : bytes_at(values, at);
      if (!add_value(null, value.data(), value.size())) return false;
    }
    return true;
  }

 private:
  static const arrow::StructArray& checked_struct(const arrow::Array& array) {
    if (array.type_id() != arrow::Type::STRUCT) throw std::runtime_error("the column is no struct");
    return static_cast<const arrow::StructArray&>(array);
  }

  std::shared_ptr<arrow::ipc::RecordBatchStreamReader> open_reader(
      uint64_t size, const arrow::ipc::IpcReadOptions& options) {
    const std::shared_ptr<arrow::io::InputStream> file = host_file(size);
    return checked(arrow::ipc::RecordBatchStreamReader::Open(file, options));
  }

  void add_leaves(const arrow::Field& field, const std::string& name, const std::vector<int>& path) {
    if (field.type()->id() == arrow::Type::STRUCT) {
      for (int i = 0; i < field.type()->num_fields(); ++i) {
        std::vector<int> child = path;
        child.push_back(i);
        add_leaves(*field.type()->field(i), name + "." + field.type()->field(i)->name(), child);
      }
      return;
    }
    leaves_.push_back(path);
    add_column(name, field.type()->ToString(), as_bytes(*field.type()) != nullptr);
  }

  arrow::ipc::IpcReadOptions options_;
  std::vector<std::vector<int>> leaves_;  // of each column: its field, the field in that one, and so on
  std::vector<int> path_;                 // of the chosen column
};

}  // namespace

std::unique_ptr<ColumnReader> make_stream_reader(const ArrowHost& host) {
  return std::make_unique<StreamBatches>(host);
}

}  // namespace hyperion::data
