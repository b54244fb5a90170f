// Writes pickles of protocol 2, which every reader of PyTorch's files accepts, including the restricted
// one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "checkpoint/format/pickle/pickle_opcodes.h"

namespace hyperion::checkpoint {

class PickleWriter {
 public:
  PickleWriter() : out_("\x80\x02", 2) {}

  void none() { op(PickleOp::kNone); }
  void boolean(bool value) { op(value ? PickleOp::kTrue : PickleOp::kFalse); }
  void integer(int64_t value);
  void number(double value);
  void text(std::string_view value);   // must be UTF-8
  void bytes(std::string_view value);  // as _codecs.encode(text, "latin1")
  void global(std::string_view module, std::string_view name);

  // Writes a container, an instance or a call: op() follows its parts, as pickle_opcodes.h lists them.
  void op(PickleOp code) { out_.push_back(static_cast<char>(code)); }
  // Combines the last `count` values into a tuple; more than three need an op(kMark) before the first.
  void tuple(size_t count);
  static bool tuple_needs_mark(size_t count) { return count > 3; }

  // put() memoizes the last value; get() writes it again.
  uint32_t put();
  void get(uint32_t slot);

  void reserve(size_t bytes) { out_.reserve(bytes); }
  // Bytes written since the last take(): a long pickle need not be held at once.
  size_t size() const { return out_.size(); }
  void take(const std::function<void(std::string_view bytes)>& take_bytes) {
    take_bytes(out_);
    out_.clear();
  }
  std::string finish() {
    op(PickleOp::kStop);
    return std::move(out_);
  }

 private:
  template <typename T>
  void raw(T value) {
    out_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  std::string out_;
  uint32_t slots_ = 0;
};

}  // namespace hyperion::checkpoint
