// The interface between the program and libhyperion_arrow.so, which is linked with Apache Arrow C++ of the
// pyarrow wheel and loaded when a Parquet or Arrow file is opened. It is plain C: no class of either side, no
// exception and no allocated memory crosses it.
#pragma once

#include <cstdint>

namespace hyperion::data {

// The functions of the program that the plug-in calls, with `context` as the first argument. None throws.
struct ArrowHost {
  void* context;
  // Copies bytes of the file; false if that fails, and then the plug-in's function fails.
  bool (*read)(void* context, uint64_t offset, void* out, uint64_t bytes);
  // Says why the plug-in's function fails. too_large: it needs more memory than `memory_limit`.
  void (*fail)(void* context, const char* message, uint64_t size, bool too_large);
  // One column without children. text: it holds strings or bytes, one or none for each row.
  void (*column)(void* context, const char* name, uint64_t name_size, const char* type, uint64_t type_size,
                 bool text);
  // One row group of Parquet: its rows and the bytes of the chosen column before compression.
  void (*group)(void* context, uint64_t rows, uint64_t bytes);
  // The value of the next row; `data` is null for a null. false: too many bytes, and reading ends.
  bool (*value)(void* context, const char* data, uint64_t size);
  uint64_t memory_limit;  // of all buffers of one opened file
};

enum class ColumnFormat : uint32_t { kParquet, kArrow };

// ColumnRows says what to read: rows [first, first + rows) of a row group of Parquet, or all rows of an Arrow
// stream of `bytes` bytes, with the schema of the one that was opened, dictionaries and one record batch.
struct ColumnRows {
  uint64_t group, first, rows;
  uint64_t bytes;
};

// Functions that return a pointer or bool report a failure by null or false, after fail() or a read() that
// returned false.
struct ArrowPlugin {
  static constexpr uint32_t kVersion = 2;
  uint32_t version;
  uint32_t struct_size;

  // Reads the footer of a Parquet file of `size` bytes, or the schema of an Arrow stream of `size` bytes
  // without record batches, and calls column() for each column, in order. `host` lives as long as what is
  // opened.
  void* (*open)(const ArrowHost* host, ColumnFormat format, uint64_t size);
  // Calls group() for each row group of Parquet.
  bool (*choose)(void* file, uint32_t column);
  // Calls value() for each row.
  bool (*read)(void* file, const ColumnRows* rows);
  void (*close)(void* file);
};

inline constexpr const char* kArrowPluginEntry = "hyperion_arrow_plugin";

}  // namespace hyperion::data
