// ColumnTexts is what Parquet and Arrow files have in common: a column of text is found by its name, and the
// texts of one block are decoded by the plug-in when the first of them is asked for.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "data/arrow/arrow_plugin.h"
#include "data/document_source.h"
#include "data/text_field.h"

namespace hyperion::data {

class ColumnTexts : public TextFile {
 public:
  // The most memory that the texts of a block, or the buffers that they are decoded with, may take.
  static constexpr uint64_t kMemoryLimit = uint64_t{512} << 20;
  static constexpr uint64_t kTextLimit = uint64_t{64} << 20;  // of one document, as in JSON lines

  uint64_t location(uint64_t document) const override { return first_row_ + document + 1; }
  std::string_view text(uint64_t document) override;

 protected:
  // Throws Error(kBadData) if the file is a Git LFS pointer or a web page.
  ColumnTexts(const std::filesystem::path& path, TextField field, ColumnFormat format);

  const std::string& name() const { return name_; }
  const InputFile& file() const { return file_; }

  // Opens the footer or the schema, whose name is `what`, in the first `size` bytes that read() gives, and
  // chooses the column. Throws Error(kBadData).
  void open_columns(const std::string& what, uint64_t size);

  // Makes a block of `rows` rows the current one; `what` names it in messages, as "row group 3", and `bytes`
  // is about the size of its texts, as the file says.
  void start_block(std::string what, uint64_t first_row, uint64_t rows, uint64_t bytes);
  // Returns the rows of the current block, for the plug-in.
  virtual ColumnRows rows_of_block() = 0;
  // Copies bytes of what the plug-in reads; of the file unless overridden.
  virtual void read(uint64_t offset, void* out, uint64_t bytes) const { file_.read(offset, out, bytes); }
  // Receives the size of a row group.
  virtual void add_group(uint64_t rows, uint64_t bytes);

  // Throws Error(kBadData) if a file with this number of rows is not read: none, or more than a disk holds.
  void check_rows(uint64_t rows) const;

 private:
  struct Column {
    std::string name, type;
    bool text;
  };
  // The column that the field names. Throws Error(kBadData) with the names that are there.
  uint32_t find_column() const;
  // Throws why the plug-in's function failed; `what` is a part of the file, as "its footer".
  [[noreturn]] void fail(const std::string& what);
  static ColumnTexts& self(void* context) { return *static_cast<ColumnTexts*>(context); }
  static bool read_bytes(void* context, uint64_t offset, void* out, uint64_t bytes);
  bool add_value(const char* data, uint64_t size);

  std::string name_;
  TextField field_;
  ColumnFormat format_;
  InputFile file_;
  const ArrowPlugin& plugin_;
  ArrowHost host_{};
  std::unique_ptr<void, void (*)(void*)> opened_;
  std::vector<Column> columns_;

  // the current block
  std::string block_;
  uint64_t first_row_ = 0, rows_ = 0, bytes_ = 0;
  bool decoded_ = false;
  std::vector<char> texts_;
  std::vector<uint64_t> ends_;  // of each text in texts_

  // why the plug-in's function failed
  std::exception_ptr read_error_;
  std::string problem_;
  bool too_large_ = false;
};

}  // namespace hyperion::data
