#include "data/arrow/ipc_messages.h"

#include <cstring>
#include <string>
#include <string_view>

#include "base/error.h"

namespace hyperion::data {
namespace {

constexpr std::string_view kFileMark = "ARROW1";  // the first bytes of a file with a footer, and its last
constexpr uint64_t kStreamInFile = 8;             // where its stream begins
constexpr uint64_t kFooterSize = 4;
constexpr uint32_t kContinued = 0xFFFFFFFF;  // before the size of a message's metadata
constexpr uint64_t kMetadataLimit = uint64_t{64} << 20;
constexpr uint64_t kPiece = 512;  // most metadata are shorter

// The fields of a table of FlatBuffers, every access checked.
class FlatTable {
 public:
  FlatTable(std::string_view buffer, uint64_t at) : buffer_(buffer), at_(at) {
    const int64_t table = static_cast<int64_t>(at) - read<int32_t>(at);
    if (table < 0) throw Damaged{};
    fields_ = static_cast<uint64_t>(table);
    fields_size_ = read<uint16_t>(fields_);
  }

  struct Damaged {};

  static FlatTable root(std::string_view buffer) {
    uint32_t at = 0;
    if (buffer.size() < sizeof at) throw Damaged{};
    std::memcpy(&at, buffer.data(), sizeof at);
    return {buffer, at};
  }

  template <typename Value>
  Value field(uint64_t index, Value missing) const {
    const uint64_t at = offset(index);
    return at == 0 ? missing : read<Value>(at_ + at);
  }
  FlatTable table(uint64_t index) const {
    const uint64_t at = offset(index);
    if (at == 0) throw Damaged{};
    return {buffer_, at_ + at + read<uint32_t>(at_ + at)};
  }

 private:
  uint64_t offset(uint64_t index) const {
    const uint64_t entry = 4 + 2 * index;
    return entry + 2 <= fields_size_ ? read<uint16_t>(fields_ + entry) : 0;
  }
  template <typename Value>
  Value read(uint64_t at) const {
    if (at > buffer_.size() || buffer_.size() - at < sizeof(Value)) throw Damaged{};
    Value value;
    std::memcpy(&value, buffer_.data() + at, sizeof value);
    return value;
  }

  std::string_view buffer_;
  uint64_t at_, fields_ = 0, fields_size_ = 0;
};

class MessageReader {
 public:
  explicit MessageReader(const InputFile& file) : file_(file), end_(file.size()) {
    char mark[8] = {};
    if (end_ >= sizeof mark) file.read(0, mark, sizeof mark);
    if (std::string_view(mark, kFileMark.size()) == kFileMark) skip_file_frame();
  }

  std::vector<IpcMessage> read() {
    std::vector<IpcMessage> messages;
    while (next(messages)) {
      if ((messages.size() == 1) != (messages.back().type == IpcMessage::Type::kSchema))
        damaged(messages.size() - 1, "it is not a schema and then dictionaries and record batches");
    }
    if (messages.empty()) throw_data("{}: is no Arrow file: fetch or write it again", name());
    return messages;
  }

 private:
  std::string name() const { return file_.path().string(); }
  [[noreturn]] void damaged(size_t message, std::string_view why) const {
    if (message == 0) throw_data("{}: is no Arrow file ({}): fetch or write it again", name(), why);
    throw_data("{}: message {} cannot be read ({}): the file is damaged or cut off, fetch or write it again",
               name(), message, why);
  }

  void skip_file_frame() {
    begin_ = kStreamInFile;
    std::string tail(kFooterSize + kFileMark.size(), '\0');
    int32_t footer = 0;
    if (end_ >= begin_ + tail.size()) file_.read(end_ - tail.size(), tail.data(), tail.size());
    std::memcpy(&footer, tail.data(), sizeof footer);
    if (!tail.ends_with(kFileMark) || footer < 0 ||
        static_cast<uint64_t>(footer) > end_ - begin_ - tail.size())
      throw_data(
          "{}: is not a whole Arrow file (it does not end with ARROW1, so it was cut off): fetch or write it "
          "again",
          name());
    end_ -= tail.size() + static_cast<uint64_t>(footer);
  }

  // Adds the next message; false at the end.
  bool next(std::vector<IpcMessage>& messages) {
    const size_t number = messages.size();
    const uint64_t left = end_ - begin_;
    if (left < sizeof(uint32_t)) return false;
    piece_.resize(std::min(left, kPiece));
    file_.read(begin_, piece_.data(), piece_.size());
    uint32_t words[2] = {};
    std::memcpy(words, piece_.data(), std::min(sizeof words, piece_.size()));
    // Before Arrow 0.15 the size came first.
    const uint64_t prefix = words[0] == kContinued ? 8 : 4;
    const uint64_t metadata = words[0] == kContinued ? words[1] : words[0];
    if (metadata == 0) return false;
    if (left < prefix || metadata > left - prefix) damaged(number, "it is longer than the file");
    if (metadata > kMetadataLimit) damaged(number, "its metadata are too long");
    if (prefix + metadata > piece_.size()) {
      piece_.resize(prefix + metadata);
      file_.read(begin_, piece_.data(), piece_.size());
    }
    try {
      const FlatTable message = FlatTable::root(std::string_view(piece_).substr(prefix, metadata));
      const auto type = message.field<uint8_t>(1, 0);
      const auto body = message.field<int64_t>(3, 0);
      if (body < 0 || static_cast<uint64_t>(body) > left - prefix - metadata)
        damaged(number, "it is longer than the file");
      if (type < 1 || type > 3) damaged(number, "it is of an unknown kind");
      IpcMessage& added = messages.emplace_back();
      added.type = static_cast<IpcMessage::Type>(type - 1);
      added.begin = begin_;
      added.bytes = prefix + metadata + static_cast<uint64_t>(body);
      const int64_t rows = added.type == IpcMessage::Type::kBatch ? message.table(2).field<int64_t>(0, 0) : 0;
      if (rows < 0) damaged(number, "it has a negative number of rows");
      added.rows = static_cast<uint64_t>(rows);
      begin_ += added.bytes;
    } catch (const FlatTable::Damaged&) {
      damaged(number, "its metadata are damaged");
    }
    return true;
  }

  const InputFile& file_;
  uint64_t begin_ = 0, end_;
  std::string piece_;
};

}  // namespace

std::vector<IpcMessage> read_ipc_messages(const InputFile& file) {
  return MessageReader(file).read();
}

}  // namespace hyperion::data
