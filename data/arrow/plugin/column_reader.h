// A file of which one column of text is read. Every function may throw.
#pragma once

#include <memory>
#include <stdexcept>

#include "data/arrow/plugin/host_file.h"

namespace hyperion::data {

class ColumnReader {
 public:
  explicit ColumnReader(const ArrowHost& host) : host_(host), pool_(host.memory_limit) {}
  virtual ~ColumnReader() = default;
  ColumnReader(const ColumnReader&) = delete;
  ColumnReader& operator=(const ColumnReader&) = delete;

  // See ArrowPlugin. read() returns false if value() has.
  virtual void open(uint64_t size) = 0;
  virtual void choose(uint32_t column) = 0;
  virtual bool read(const ColumnRows& rows) = 0;
  // Frees what is kept from one read() to the next. Called after a failure too.
  virtual void drop() {}

  const ArrowHost& host() const { return host_; }
  bool needs_too_much() const { return pool_.exceeded(); }

 protected:
  std::shared_ptr<HostFile> host_file(uint64_t size) {
    return std::make_shared<HostFile>(host_, size, &pool_);
  }
  void add_column(const std::string& name, const std::string& type, bool text) const {
    host_.column(host_.context, name.data(), name.size(), type.data(), type.size(), text);
  }
  // Passes a row's value on; null without one.
  bool add_value(bool null, const void* data, uint64_t size) const {
    const char* bytes = data == nullptr ? "" : static_cast<const char*>(data);
    return host_.value(host_.context, null ? nullptr : bytes, size);
  }

  const ArrowHost& host_;
  LimitedPool pool_;
};

std::unique_ptr<ColumnReader> make_parquet_reader(const ArrowHost& host);
std::unique_ptr<ColumnReader> make_stream_reader(const ArrowHost& host);

}  // namespace hyperion::data
