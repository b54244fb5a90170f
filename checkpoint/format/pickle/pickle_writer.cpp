#include "checkpoint/format/pickle/pickle_writer.h"

#include <bit>
#include <limits>

#include "base/error.h"
#include "base/utf8.h"

namespace hyperion::checkpoint {
void PickleWriter::integer(int64_t value) {
  if (value >= 0 && value <= 0xFF) {
    op(PickleOp::kInt1);
    raw(static_cast<uint8_t>(value));
  } else if (value >= 0 && value <= 0xFFFF) {
    op(PickleOp::kInt2);
    raw(static_cast<uint16_t>(value));
  } else if (value >= std::numeric_limits<int32_t>::min() && value <= std::numeric_limits<int32_t>::max()) {
    op(PickleOp::kInt4);
    raw(static_cast<int32_t>(value));
  } else {
    // The shortest two's complement form.
    const auto magnitude = static_cast<uint64_t>(value < 0 ? ~value : value);
    const auto bytes = static_cast<size_t>(std::bit_width(magnitude) / 8 + 1);
    op(PickleOp::kLong1);
    raw(static_cast<uint8_t>(bytes));
    out_.append(reinterpret_cast<const char*>(&value), bytes);
  }
}

void PickleWriter::number(double value) {
  op(PickleOp::kDouble);
  raw(__builtin_bswap64(std::bit_cast<uint64_t>(value)));
}

void PickleWriter::text(std::string_view value) {
  if (!is_valid_utf8(value) || value.size() > std::numeric_limits<uint32_t>::max())
    throw_bug("a text of {} bytes that is to be pickled is not UTF-8 or beyond 4 GiB", value.size());
  op(PickleOp::kText4);
  raw(static_cast<uint32_t>(value.size()));
  out_ += value;
}

void PickleWriter::bytes(std::string_view value) {
  if (value.empty()) {
    global("__builtin__", "bytes");
    op(PickleOp::kEmptyTuple);
  } else {
    std::string latin1;  // one code point per byte
    latin1.reserve(value.size() + value.size() / 2);
    for (const char c : value) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte >= 0x80) latin1 += static_cast<char>(0xC0 | byte >> 6);
      latin1 += static_cast<char>(byte >= 0x80 ? 0x80 | (byte & 0x3F) : byte);
    }
    global("_codecs", "encode");
    text(latin1);
    text("latin1");
    tuple(2);
  }
  op(PickleOp::kReduce);
}

void PickleWriter::global(std::string_view module, std::string_view name) {
  op(PickleOp::kGlobal);
  out_ += module;
  out_ += '\n';
  out_ += name;
  out_ += '\n';
}

void PickleWriter::tuple(size_t count) {
  constexpr PickleOp kShort[] = {PickleOp::kEmptyTuple, PickleOp::kTuple1, PickleOp::kTuple2,
                                 PickleOp::kTuple3};
  op(tuple_needs_mark(count) ? PickleOp::kTuple : kShort[count]);
}

uint32_t PickleWriter::put() {
  if (slots_ < 256) {
    op(PickleOp::kPut1);
    raw(static_cast<uint8_t>(slots_));
  } else {
    op(PickleOp::kPut4);
    raw(slots_);
  }
  return slots_++;
}

void PickleWriter::get(uint32_t slot) {
  if (slot < 256) {
    op(PickleOp::kGet1);
    raw(static_cast<uint8_t>(slot));
  } else {
    op(PickleOp::kGet4);
    raw(slot);
  }
}

}  // namespace hyperion::checkpoint
