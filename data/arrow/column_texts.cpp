#include "data/arrow/column_texts.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/nearest.h"
#include "base/printable.h"
#include "base/substitute.h"
#include "data/arrow/arrow_library.h"

namespace hyperion::data {
namespace {

constexpr size_t kShownColumns = 20;
constexpr uint64_t kMaxRows = uint64_t{1} << 40;
constexpr size_t kKeptTexts = size_t{4} << 20;
constexpr uint64_t kMaxReserved = uint64_t{64} << 20;     // the file says it, and may lie
constexpr std::string_view kOtherTextColumn = "content";  // in code corpora

InputFile open_real_file(const std::filesystem::path& path) {
  InputFile file(path);
  if (const std::string what = substitute_of(file, /*text=*/false); !what.empty())
    throw_data("{}: {}", path.string(), what);
  return file;
}

}  // namespace

ColumnTexts::ColumnTexts(const std::filesystem::path& path, TextField field, ColumnFormat format)
    : name_(path.string()),
      field_(std::move(field)),
      format_(format),
      file_(open_real_file(path)),
      plugin_(arrow_plugin(name_)),
      opened_(nullptr, plugin_.close) {
  host_.context = this;
  host_.memory_limit = kMemoryLimit;
  host_.read = read_bytes;
  host_.fail = [](void* context, const char* message, uint64_t size, bool too_large) {
    self(context).problem_ = printable(std::string_view(message, size));
    self(context).too_large_ |= too_large;
  };
  host_.column = [](void* context, const char* name, uint64_t name_size, const char* type, uint64_t type_size,
                    bool text) {
    self(context).columns_.push_back({std::string(name, name_size), std::string(type, type_size), text});
  };
  host_.group = [](void* context, uint64_t rows, uint64_t bytes) { self(context).add_group(rows, bytes); };
  host_.value = [](void* context, const char* data, uint64_t size) {
    return self(context).add_value(data, size);
  };
}

bool ColumnTexts::read_bytes(void* context, uint64_t offset, void* out, uint64_t bytes) {
  try {
    self(context).read(offset, out, bytes);
    return true;
  } catch (...) {
    self(context).read_error_ = std::current_exception();
    return false;
  }
}

bool ColumnTexts::add_value(const char* data, uint64_t size) {
  if (ends_.size() == rows_ || size > kMemoryLimit - texts_.size()) {
    too_large_ = ends_.size() < rows_;
    problem_ = too_large_ ? fmt::format("its texts take more than {} MiB", kMemoryLimit >> 20)
                          : fmt::format("it has more than its {} rows", rows_);
    return false;
  }
  if (data != nullptr) texts_.insert(texts_.end(), data, data + size);
  ends_.push_back(texts_.size());
  return true;
}

void ColumnTexts::add_group(uint64_t, uint64_t) {
  throw_bug("{}: row groups in a file that has none", name_);
}

void ColumnTexts::fail(const std::string& what) {
  texts_ = {};
  ends_.clear();
  if (const std::exception_ptr error = std::exchange(read_error_, nullptr)) std::rethrow_exception(error);
  if (std::exchange(too_large_, false))
    throw_data("{}: {} is too large ({}): write the file again with fewer rows in a {}", name_, what,
               problem_,
               format_ == ColumnFormat::kParquet
                   ? "row group, for example with pyarrow: parquet.write_table(table, path, "
                     "row_group_size=1000, use_dictionary=False)"
                   : "record batch, for example with pyarrow: writer.write_table(table, max_chunksize=1000)");
  throw_data("{}: {} cannot be read ({}): the file is damaged, fetch or write it again", name_, what,
             problem_);
}

void ColumnTexts::open_columns(const std::string& what, uint64_t size) {
  opened_.reset(plugin_.open(&host_, format_, size));
  if (!opened_ || !plugin_.choose(opened_.get(), find_column())) fail(what);
}

uint32_t ColumnTexts::find_column() const {
  const auto found = std::ranges::find(columns_, field_.name, &Column::name);
  if (found == columns_.end()) {
    std::vector<std::string> names;
    for (const Column& column : columns_)
      if (column.text) names.push_back(column.name);
    std::string nearest = nearest_name(field_.name, names);
    if (nearest.empty() && std::ranges::count(names, kOtherTextColumn) > 0) nearest = kOtherTextColumn;
    std::string there;
    for (size_t i = 0; i < std::min(columns_.size(), kShownColumns); ++i)
      there += fmt::format("{}{:?} ({})", i == 0 ? "" : ", ", columns_[i].name.substr(0, 60),
                           printable(columns_[i].type.substr(0, 60)));
    if (columns_.size() > kShownColumns)
      there += fmt::format(" and {} more", columns_.size() - kShownColumns);
    throw_data("{}: has no column \"{}\" ({}); its columns are: {}{}: set {} to the one with the text", name_,
               field_.name, field_.chosen_by(), there.empty() ? "none" : there, did_you_mean(nearest),
               field_.key);
  }
  if (!found->text)
    throw_data("{}: its column \"{}\" ({}) is {}, not text: set {} to a column of strings or bytes", name_,
               field_.name, field_.chosen_by(), printable(found->type), field_.key);
  return static_cast<uint32_t>(found - columns_.begin());
}

void ColumnTexts::check_rows(uint64_t rows) const {
  if (rows == 0) throw_data("{}: holds no document: remove the file", name_);
  if (rows > kMaxRows)
    throw_data("{}: says that it has {} rows: the file is damaged, fetch or write it again", name_, rows);
}

void ColumnTexts::start_block(std::string what, uint64_t first_row, uint64_t rows, uint64_t bytes) {
  block_ = std::move(what);
  first_row_ = first_row;
  rows_ = rows;
  bytes_ = std::min(bytes, kMaxReserved);
  decoded_ = false;
  texts_.clear();
  // Blocks of one size use the same memory: new pages from the system cost as much as decompressing into
  // them.
  if (texts_.capacity() > std::max<uint64_t>(kKeptTexts, 2 * bytes_)) texts_ = {};
  ends_.clear();
}

std::string_view ColumnTexts::text(uint64_t document) {
  if (!decoded_) {
    texts_.clear();
    texts_.reserve(bytes_);
    ends_.clear();
    const ColumnRows rows = rows_of_block();
    if (!plugin_.read(opened_.get(), &rows)) fail(block_);
    if (ends_.size() != rows_) {
      problem_ = fmt::format("it has {} of its {} rows", ends_.size(), rows_);
      fail(block_);
    }
    decoded_ = true;
  }
  const uint64_t begin = document == 0 ? 0 : ends_[document - 1];
  const uint64_t size = ends_[document] - begin;
  if (size > kTextLimit)
    throw BadDocument(
        fmt::format("{}:{}: the text is too long, at most {} bytes are accepted: split the document", name_,
                    location(document), kTextLimit));
  return {texts_.data() + begin, size};
}

}  // namespace hyperion::data
