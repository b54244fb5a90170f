#include "data/megatron.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>

#include <fmt/format.h>
#include <unistd.h>

#include "base/error.h"
#include "base/substitute.h"

namespace hyperion::data {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kIndexMagic("MMIDIDX\0\0", 9);
constexpr size_t kIndexHeader = 34;
constexpr uint64_t kMaxIndexEntries = uint64_t{1} << 40;
// By code - 1; floating-point types have no value.
constexpr std::array<std::optional<TokenType>, 8> kIndexTypes = {
    TokenType::kU8,  TokenType::kI8, TokenType::kI16, TokenType::kI32,
    TokenType::kI64, std::nullopt,   std::nullopt,    TokenType::kU16};

template <typename T>
T value_at(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

template <typename T, size_t n>
std::array<T, n> read_values(const InputFile& file, uint64_t offset) {
  std::array<T, n> values;
  file.read(offset, values.data(), sizeof values);
  return values;
}

}  // namespace

fs::path megatron_index(fs::path tokens) {
  return tokens.replace_extension(".idx");
}

MegatronSource::MegatronSource(InputFile tokens, InputFile index, const TokenFacts& facts)
    : TokenFileSource(tokens.path().string(), facts), index_(std::move(index)) {
  const std::string name = index_.path().string();
  char header[kIndexHeader] = {};
  index_.read(0, header, std::min<uint64_t>(sizeof header, index_.size()));
  if (!std::string_view(header, sizeof header).starts_with(kIndexMagic) || index_.size() < sizeof header) {
    const std::string what = substitute_of(index_, /*text=*/false);
    throw_data(
        "{}: {}", name,
        what.empty() ? "is no index of Megatron-LM (it does not begin with MMIDIDX): write it again" : what);
  }
  const auto version = value_at<uint64_t>(header + 9);
  const auto code = static_cast<unsigned char>(header[17]);
  sequences_ = value_at<uint64_t>(header + 18);
  const auto boundaries = value_at<uint64_t>(header + 26);
  if (version != 1) throw_data("{}: has version {}, expected 1", name, version);
  if (code == 0 || code > kIndexTypes.size() || !kIndexTypes[code - 1])
    throw_data("{}: has dtype {}, expected an integer (1 to 5, or 8): the file does not hold tokens", name,
               code);
  if (sequences_ == 0 || boundaries < 2)
    throw_data("{}: has {} sequences in {} documents, expected at least one: remove the file", name,
               sequences_, boundaries == 0 ? 0 : boundaries - 1);
  if (sequences_ > kMaxIndexEntries || boundaries > kMaxIndexEntries)
    throw_data("{}: has {} sequences and {} document boundaries, more than any file", name, sequences_,
               boundaries);
  pointers_ = kIndexHeader + 4 * sequences_;
  boundaries_ = pointers_ + 8 * sequences_;
  const uint64_t size = boundaries_ + 8 * boundaries;
  if (index_.size() == size + sequences_)
    throw_data("{}: has a mode for each sequence (multimodal data), which is not read", name);
  if (index_.size() != size)
    throw_data(
        "{}: is {} bytes, but its header promises {} ({} sequences, {} document boundaries): copy it again",
        name, index_.size(), size, sequences_, boundaries);
  documents_ = boundaries - 1;

  tokens_.type = *kIndexTypes[code - 1];
  const size_t width = width_of(tokens_.type);
  tokens_.count = tokens.size() / width;
  tokens_.file = std::move(tokens);
  const auto first = read_values<int64_t, 1>(index_, boundaries_)[0];
  const auto last = read_values<int64_t, 1>(index_, boundaries_ + 8 * documents_)[0];
  if (first != 0 || last != static_cast<int64_t>(sequences_))
    throw_data("{}: its documents are sequences {} to {}, expected 0 to {}: write it again", name, first,
               last, sequences_);
  const auto pointer = read_values<int64_t, 1>(index_, pointers_ + 8 * (sequences_ - 1))[0];
  const auto length = read_values<int32_t, 1>(index_, pointers_ - 4)[0];
  const uint64_t end = static_cast<uint64_t>(pointer) + static_cast<uint64_t>(length) * width;
  if (pointer < 0 || length < 0 || end != tokens_.file.size())
    throw_data(
        "{}: is {} bytes, but in {} the last sequence ({} tokens of {}) begins at byte {}: copy both again",
        name_, tokens_.file.size(), index_.path().filename().string(), length, name_of(tokens_.type),
        pointer);
}

TokenFileSource::Range MegatronSource::range(uint64_t document) const {
  const auto [first, last] = read_values<int64_t, 2>(index_, boundaries_ + 8 * document);
  const std::string name = index_.path().filename().string();
  if (first < 0 || first > last || last > static_cast<int64_t>(sequences_))
    throw_data("{} says sequences {} to {} of {}", name, first, last, sequences_);
  if (first == last) return {};
  const auto width = static_cast<int64_t>(width_of(tokens_.type));
  const auto bytes = static_cast<int64_t>(tokens_.file.size());
  Range range;
  int64_t end = -1;  // byte behind the sequence before this one
  constexpr int64_t kPiece = 512;
  for (int64_t piece = first; piece < last; piece += kPiece) {  // most documents are one sequence
    std::array<int32_t, kPiece> lengths;
    std::array<int64_t, kPiece> pointers;
    const int64_t n = std::min(kPiece, last - piece);
    index_.read(kIndexHeader + 4 * static_cast<uint64_t>(piece), lengths.data(), static_cast<size_t>(n) * 4);
    index_.read(pointers_ + 8 * static_cast<uint64_t>(piece), pointers.data(), static_cast<size_t>(n) * 8);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t pointer = pointers[static_cast<size_t>(i)], length = lengths[static_cast<size_t>(i)];
      if (pointer < 0 || pointer % width != 0 || length < 0 || pointer > bytes ||
          length > (bytes - pointer) / width)
        throw_data("{} says that sequence {} is {} tokens from byte {} of {}", name, piece + i, length,
                   pointer, bytes);
      if (end >= 0 && pointer != end)
        throw_data("{} says that sequence {} begins at byte {}, expected {}, where the one before it ends",
                   name, piece + i, pointer, end);
      if (end < 0) range.begin = static_cast<uint64_t>(pointer / width);
      end = pointer + length * width;
    }
  }
  range.end = static_cast<uint64_t>(end / width);
  return range;
}

void write_megatron_index(const InputFile& ends, TokenType type, const fs::path& index) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(index.c_str(), "wbe"), std::fclose);
  const auto write = [&](const auto* values, size_t count) {
    if (!file || std::fwrite(values, sizeof *values, count, file.get()) != count)
      throw_save_failed("{}: cannot be written: {}", index.string(), std::strerror(errno));
  };
  const uint64_t documents = ends.size() / sizeof(uint64_t), boundaries = documents + 1, version = 1;
  const auto code = static_cast<uint8_t>(std::ranges::find(kIndexTypes, type) - kIndexTypes.begin() + 1);
  write(kIndexMagic.data(), kIndexMagic.size());
  write(&version, 1);
  write(&code, 1);
  write(&documents, 1);
  write(&boundaries, 1);
  // Calls take(begin, end) for every document.
  const auto each_document = [&](const auto& take) {
    std::vector<uint64_t> block;
    uint64_t begin = 0;
    for (uint64_t document = 0; document < documents; document += block.size()) {
      block.resize(std::min<uint64_t>(documents - document, 1 << 16));
      ends.read(document * sizeof(uint64_t), block.data(), block.size() * sizeof(uint64_t));
      for (const uint64_t end : block) {
        take(begin, end);
        begin = end;
      }
    }
  };
  each_document([&](uint64_t begin, uint64_t end) {
    if (end - begin > std::numeric_limits<int32_t>::max())
      throw_data("{}: a document has {} tokens, and Megatron-LM counts at most {} of a sequence",
                 index.string(), end - begin, std::numeric_limits<int32_t>::max());
    const auto length = static_cast<int32_t>(end - begin);
    write(&length, 1);
  });
  each_document([&](uint64_t begin, uint64_t) {
    const uint64_t pointer = begin * width_of(type);
    write(&pointer, 1);
  });
  for (uint64_t boundary = 0; boundary <= documents; ++boundary) write(&boundary, 1);
  if (std::fflush(file.get()) != 0 || ::fsync(::fileno(file.get())) != 0)
    throw_save_failed("{}: cannot be written: {}", index.string(), std::strerror(errno));
}

}  // namespace hyperion::data
