// The file of the program as Arrow's classes see it, and the memory that they may take.
#pragma once

#include <algorithm>
#include <memory>

#include <arrow/buffer.h>
#include <arrow/io/interfaces.h>
#include <arrow/memory_pool.h>
#include <arrow/result.h>
#include <arrow/status.h>

#include "data/arrow/arrow_plugin.h"

namespace hyperion::data {

// Memory of the system, up to a limit.
class LimitedPool : public arrow::ProxyMemoryPool {
 public:
  explicit LimitedPool(uint64_t limit)
      : ProxyMemoryPool(arrow::system_memory_pool()), limit_(static_cast<int64_t>(limit)) {}

  using ProxyMemoryPool::Allocate;
  using ProxyMemoryPool::Reallocate;
  arrow::Status Allocate(int64_t size, int64_t alignment, uint8_t** out) override {
    ARROW_RETURN_NOT_OK(check(size));
    return ProxyMemoryPool::Allocate(size, alignment, out);
  }
  arrow::Status Reallocate(int64_t old_size, int64_t size, int64_t alignment, uint8_t** out) override {
    ARROW_RETURN_NOT_OK(check(size - old_size));
    return ProxyMemoryPool::Reallocate(old_size, size, alignment, out);
  }
  bool exceeded() const { return exceeded_; }

 private:
  arrow::Status check(int64_t more) {
    if (more <= limit_ - bytes_allocated()) return arrow::Status::OK();
    exceeded_ = true;
    return arrow::Status::OutOfMemory("more than ", limit_ >> 20, " MiB of memory are needed");
  }

  int64_t limit_;
  bool exceeded_ = false;
};

// Reads through ArrowHost::read.
class HostFile : public arrow::io::RandomAccessFile {
 public:
  HostFile(const ArrowHost& host, uint64_t size, arrow::MemoryPool* pool)
      : host_(host), size_(static_cast<int64_t>(size)), pool_(pool) {
    set_mode(arrow::io::FileMode::READ);
  }

  arrow::Result<int64_t> GetSize() override { return size_; }
  arrow::Result<int64_t> Tell() const override { return position_; }
  arrow::Status Seek(int64_t position) override {
    ARROW_RETURN_NOT_OK(readable(position, 0));
    position_ = position;
    return arrow::Status::OK();
  }
  arrow::Status Close() override { return arrow::Status::OK(); }
  bool closed() const override { return false; }

  using RandomAccessFile::ReadAt;
  arrow::Result<int64_t> ReadAt(int64_t position, int64_t bytes, void* out) override {
    ARROW_ASSIGN_OR_RAISE(bytes, readable(position, bytes));
    if (bytes > 0 &&
        !host_.read(host_.context, static_cast<uint64_t>(position), out, static_cast<uint64_t>(bytes)))
      return arrow::Status::IOError("the file cannot be read");
    return bytes;
  }
  arrow::Result<std::shared_ptr<arrow::Buffer>> ReadAt(int64_t position, int64_t bytes) override {
    ARROW_ASSIGN_OR_RAISE(bytes, readable(position, bytes));
    ARROW_ASSIGN_OR_RAISE(std::unique_ptr<arrow::Buffer> buffer, arrow::AllocateBuffer(bytes, pool_));
    ARROW_RETURN_NOT_OK(ReadAt(position, bytes, buffer->mutable_data()));
    return std::shared_ptr<arrow::Buffer>(std::move(buffer));
  }
  arrow::Result<int64_t> Read(int64_t bytes, void* out) override {
    ARROW_ASSIGN_OR_RAISE(const int64_t count, ReadAt(position_, bytes, out));
    position_ += count;
    return count;
  }
  arrow::Result<std::shared_ptr<arrow::Buffer>> Read(int64_t bytes) override {
    ARROW_ASSIGN_OR_RAISE(std::shared_ptr<arrow::Buffer> buffer, ReadAt(position_, bytes));
    position_ += buffer->size();
    return buffer;
  }

 private:
  // The bytes from `position` on that the file has, at most `bytes`.
  arrow::Result<int64_t> readable(int64_t position, int64_t bytes) const {
    if (position < 0 || position > size_ || bytes < 0)
      return arrow::Status::IOError("a position outside the file");
    return std::min(bytes, size_ - position);
  }

  const ArrowHost& host_;
  int64_t size_;
  arrow::MemoryPool* pool_;
  int64_t position_ = 0;
};

}  // namespace hyperion::data
