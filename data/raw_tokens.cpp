#include "data/raw_tokens.h"

#include <algorithm>
#include <array>
#include <charconv>

#include <fmt/format.h>

#include "base/error.h"

namespace hyperion::data {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t kUint16Vocabulary = 65536;
constexpr std::string_view kNumpyMagic = "\x93NUMPY";
constexpr uint64_t kMaxNumpyHeader = 65536;
constexpr uint64_t kFirstStretch = uint64_t{4} << 10, kLastStretch = uint64_t{64} << 10;  // tokens

struct LlmCVersion {
  int32_t magic, version;
  TokenType type;
  int32_t first_token;  // of each document
};
constexpr LlmCVersion kLlmC[] = {{20240520, 1, TokenType::kU16, 50256},
                                 {20240801, 7, TokenType::kU32, 128000}};
constexpr uint64_t kLlmCHeader = 256 * sizeof(int32_t);

std::string beginning(const InputFile& file, uint64_t bytes) {
  std::string text(std::min(bytes, file.size()), '\0');
  file.read(0, text.data(), text.size());
  return text;
}

const LlmCVersion* llm_c_version(const InputFile& file) {
  int32_t magic = 0;
  if (file.size() >= sizeof magic) file.read(0, &magic, sizeof magic);
  const auto found = std::ranges::find(kLlmC, magic, &LlmCVersion::magic);
  return found == std::end(kLlmC) ? nullptr : found;
}

// The value of a key of numpy's header, {'descr': '<u2', 'fortran_order': False, 'shape': (3,), }, up to
// `end`.
std::string_view numpy_value(std::string_view header, std::string_view key, char end) {
  const size_t name = header.find(key);
  if (name == header.npos) return {};
  const size_t begin = header.find_first_not_of(" :", name + key.size());
  if (begin == header.npos) return {};
  const size_t last = header.find(end, begin + 1);  // a quoted value begins with what ends it
  return last == header.npos ? std::string_view() : header.substr(begin, last + 1 - begin);
}

// Sets type, begin and count from the header of numpy.
void read_numpy_header(TokenArray& tokens) {
  const std::string name = tokens.file.path().string();
  const std::string head = beginning(tokens.file, 12);
  const auto byte = [&](size_t i) { return i < head.size() ? uint64_t{static_cast<uint8_t>(head[i])} : 0; };
  const bool is_short = byte(6) == 1;  // version 1: a length of two bytes
  if (byte(6) < 1 || byte(6) > 3)
    throw_data("{}: is numpy's format of version {}.{}, expected 1.0 to 3.0", name, byte(6), byte(7));
  const uint64_t length = byte(8) | byte(9) << 8 | (is_short ? 0 : byte(10) << 16 | byte(11) << 24);
  tokens.begin = (is_short ? 10 : 12) + length;
  if (length > kMaxNumpyHeader || tokens.begin > tokens.file.size())
    throw_data("{}: its numpy header of {} bytes does not fit the file: write it again", name, length);
  const std::string text = beginning(tokens.file, tokens.begin);
  const std::string_view type = numpy_value(text, "'descr'", '\''), shape = numpy_value(text, "'shape'", ')'),
                         fortran = numpy_value(text, "'fortran_order'", ',');
  if (type == "'<u2'")
    tokens.type = TokenType::kU16;
  else if (type == "'<u4'")
    tokens.type = TokenType::kU32;
  else if (type == "'<i4'")
    tokens.type = TokenType::kI32;
  else
    throw_data(
        "{}: is a numpy array of type {}, expected '<u2', '<u4' or '<i4' (uint16, uint32, int32): convert it",
        name, type.empty() ? "unknown" : type.substr(0, 100));
  const char* end = shape.data() + shape.size();
  const auto number = shape.empty() ? std::from_chars_result{end, std::errc::invalid_argument}
                                    : std::from_chars(shape.data() + 1, end, tokens.count);
  if (number.ec != std::errc() || std::string_view(number.ptr, end) != ",)" || fortran != "False,")
    throw_data("{}: is a numpy array of shape {}, expected one dimension: write it with ravel()", name,
               shape.empty() ? "unknown" : shape.substr(0, 100));
  const uint64_t bytes = tokens.file.size() - tokens.begin;
  if (tokens.count == 0) throw_data("{}: holds no tokens: remove it", name);
  if (bytes % width_of(tokens.type) != 0 || bytes / width_of(tokens.type) != tokens.count)
    throw_data("{}: holds {} bytes behind its header, which promises {} tokens of {}: copy it again", name,
               bytes, tokens.count, name_of(tokens.type));
}

// Returns whether the tokens of uint16 look like the halves of uint32: every high half in a sample is 0.
bool has_empty_high_halves(const InputFile& file) {
  if (file.size() % 4 != 0) return false;
  bool any = false;
  std::vector<uint16_t> halves(std::min<uint64_t>(file.size(), uint64_t{64} << 10) / 2);
  const uint64_t last = (file.size() / 2 - halves.size()) / 2;  // in uint32
  for (const uint64_t first : {uint64_t{0}, last / 2, last}) {
    file.read(first * 4, halves.data(), halves.size() * 2);
    for (size_t i = 0; i < halves.size(); i += 2) {
      any = any || halves[i] != 0;
      if (halves[i + 1] != 0) return false;
    }
  }
  return any;
}

}  // namespace

bool begins_as_llm_c(const InputFile& file) {
  return llm_c_version(file) != nullptr;
}

bool begins_as_numpy(const InputFile& file) {
  return begins_with(file, kNumpyMagic);
}

std::optional<uint64_t> DelimitedSource::open_block(uint64_t block) {
  if (block >= *blocks()) return std::nullopt;
  const uint64_t part = equal_part(tokens_.count, block_tokens_);
  block_begin_ = block * part;
  end_ = std::min(block_begin_ + part, tokens_.count);  // of the block, until its last document is known
  const uint64_t behind = begins_ ? 0 : 1;  // tokens from the delimiter to the first one of a document
  const uint64_t first = std::max(block_begin_, behind);
  begins_in_block_ = tokens_.keep_and_find(delimiter_, first - behind, end_ - behind);
  for (uint32_t& begin : begins_in_block_) begin += static_cast<uint32_t>(first - block_begin_);
  if (block == 0 && (begins_in_block_.empty() || begins_in_block_[0] != 0))
    begins_in_block_.insert(begins_in_block_.begin(), 0);
  documents_ = begins_in_block_.size();
  std::vector<int64_t> tokens;
  for (uint64_t stretch = kFirstStretch; documents_ > 0 && end_ < tokens_.count;
       stretch = std::min(stretch * 2, kLastStretch)) {  // to the end of the last document
    tokens.resize(std::min(stretch, tokens_.count - end_));
    tokens_.copy(end_ - behind, tokens);
    const auto found = static_cast<size_t>(std::ranges::find(tokens, delimiter_) - tokens.begin());
    end_ += found;
    if (found < tokens.size()) break;
  }
  return documents_;
}

TokenFileSource::Range DelimitedSource::range(uint64_t document) const {
  return {begin_of(document), document + 1 < documents_ ? begin_of(document + 1) : end_};
}

std::string DelimitedSource::describe(uint64_t document) const {
  return fmt::format("the document from token {} on", location(document));
}

NumpySource::NumpySource(InputFile file, const TokenFacts& facts, uint64_t block_tokens)
    : DelimitedSource(file.path().string(), facts, block_tokens) {
  if (!facts.eos)
    throw_data(
        "{}: the ends of its documents are found by the tokenizer's EOS, but the tokenizer has none: name it "
        "in tokenizer_config.json",
        name_);
  delimiter_ = *facts.eos;
  tokens_.file = std::move(file);
  if (begins_as_numpy(tokens_.file)) {
    read_numpy_header(tokens_);
    return;
  }
  refuse_substitute(tokens_.file);
  const uint64_t entries = facts.tokenizer_vocab_size > 0 ? facts.tokenizer_vocab_size : facts.vocab_size;
  tokens_.type =
      entries > kUint16Vocabulary || has_empty_high_halves(tokens_.file) ? TokenType::kU32 : TokenType::kU16;
  const uint64_t width = width_of(tokens_.type);
  tokens_.count = tokens_.file.size() / width;
  if (tokens_.count == 0 || tokens_.file.size() % width != 0)
    throw_data("{}: is {} bytes, expected tokens of {} bytes ({}, for a vocabulary of {}): copy it again",
               name_, tokens_.file.size(), width, name_of(tokens_.type), entries);
}

LlmCSource::LlmCSource(InputFile file, const TokenFacts& facts, uint64_t block_tokens)
    : DelimitedSource(file.path().string(), facts, block_tokens) {
  const LlmCVersion* known = llm_c_version(file);
  std::array<int32_t, 3> header{};  // magic, version, count
  if (known == nullptr || file.size() < kLlmCHeader)
    throw_data("{}: does not begin with the header of llm.c (256 int32, the first {} or {}): write it again",
               name_, kLlmC[0].magic, kLlmC[1].magic);
  file.read(0, header.data(), sizeof header);
  if (header[1] != known->version)
    throw_data("{}: is llm.c's format {} of version {}, expected {}", name_, header[0], header[1],
               known->version);
  tokens_.type = known->type;
  tokens_.begin = kLlmCHeader;
  tokens_.count = static_cast<uint32_t>(header[2]);
  if (tokens_.count == 0) throw_data("{}: holds no tokens: remove it", name_);
  if (file.size() - kLlmCHeader != tokens_.count * width_of(tokens_.type))
    throw_data("{}: holds {} bytes behind its header, which promises {} tokens of {}: copy it again", name_,
               file.size() - kLlmCHeader, tokens_.count, name_of(tokens_.type));
  tokens_.file = std::move(file);
  delimiter_ = known->first_token;
  begins_ = true;
}

fs::path datatrove_index(fs::path tokens) {
  return tokens += ".index";
}

DatatroveSource::DatatroveSource(InputFile tokens, InputFile ends, const TokenFacts& facts)
    : TokenFileSource(tokens.path().string(), facts), ends_(std::move(ends)) {
  const std::string index = ends_.path().filename().string();
  documents_ = ends_.size() / sizeof(uint64_t);
  if (documents_ == 0 || ends_.size() % sizeof(uint64_t) != 0)
    throw_data("{}: {} is {} bytes, expected a uint64 for each document: copy it again", name_, index,
               ends_.size());
  ends_.read(ends_.size() - sizeof tokens_.count, &tokens_.count, sizeof tokens_.count);
  const uint64_t width = tokens_.count > 0 ? tokens.size() / tokens_.count : 0;
  if ((width != 2 && width != 4) || tokens.size() % tokens_.count != 0)
    throw_data(
        "{}: is {} bytes, but {} says that the last document ends at token {} (of 2 or 4 bytes): copy both "
        "again",
        name_, tokens.size(), index, tokens_.count);
  tokens_.type = width == 2 ? TokenType::kU16 : TokenType::kU32;
  tokens_.file = std::move(tokens);
}

}  // namespace hyperion::data
