#include "data/token_file.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <type_traits>

#include <fmt/format.h>

#include "base/error.h"
#include "base/processor.h"
#include "base/substitute.h"

namespace hyperion::data {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are read in place");

constexpr uint64_t kStretchBytes = uint64_t{128} << 10;
constexpr uint64_t kReadAhead = uint64_t{4} << 10;       // tokens
constexpr uint64_t kSampledTokens = uint64_t{64} << 10;  // of a stretch
constexpr uint64_t kSampledDocuments = 64;
constexpr uint64_t kMaxId = std::numeric_limits<int32_t>::max();
constexpr size_t kGroup = 128;  // tokens of a loop of known length, which the compiler vectorizes

// Calls f with a value of the C++ type.
template <typename F>
decltype(auto) with_type(TokenType type, const F& f) {
  switch (type) {
    case TokenType::kU8:
      return f(uint8_t{});
    case TokenType::kI8:
      return f(int8_t{});
    case TokenType::kU16:
      return f(uint16_t{});
    case TokenType::kI16:
      return f(int16_t{});
    case TokenType::kU32:
      return f(uint32_t{});
    case TokenType::kI32:
      return f(int32_t{});
    case TokenType::kI64:
      return f(int64_t{});
  }
  throw_bug("token type {}", static_cast<int>(type));
}

// Copies the tokens and returns the largest one; a negative one has the value of its 64 bits.
template <typename Token>
[[gnu::always_inline]] inline uint64_t widen(std::span<const Token> tokens, int64_t* out) {
  using Unsigned = std::make_unsigned_t<Token>;
  Unsigned largest = 0;
  const auto widen_some = [&](const Token* from, int64_t* to, size_t n) {
    for (size_t i = 0; i < n; ++i) to[i] = static_cast<int64_t>(from[i]);
    for (size_t i = 0; i < n; ++i) largest = std::max(largest, static_cast<Unsigned>(from[i]));
  };
  size_t i = 0;
  for (; i + kGroup <= tokens.size(); i += kGroup) widen_some(tokens.data() + i, out + i, kGroup);
  widen_some(tokens.data() + i, out + i, tokens.size() - i);
  return static_cast<uint64_t>(static_cast<int64_t>(static_cast<Token>(largest)));
}

HYPERION_VECTORISED uint64_t widen_tokens(std::span<const uint16_t> tokens, int64_t* out) {
  return widen(tokens, out);
}
HYPERION_VECTORISED uint64_t widen_tokens(std::span<const uint32_t> tokens, int64_t* out) {
  return widen(tokens, out);
}
template <typename Token>  // the rarer types
uint64_t widen_tokens(std::span<const Token> tokens, int64_t* out) {
  return widen(tokens, out);
}

// Appends offset + i for each tokens[i] == token. Most groups hold none.
template <typename Token>
void find_token(std::span<const Token> tokens, Token token, uint64_t offset, std::vector<uint32_t>& found) {
  for (size_t begin = 0; begin < tokens.size(); begin += kGroup) {
    const auto group = tokens.subspan(begin, std::min(kGroup, tokens.size() - begin));
    Token any = 1;
    if (group.size() == kGroup) {
      any = 0;
      for (size_t i = 0; i < kGroup; ++i) any |= static_cast<Token>(group[i] == token);
    }
    if (any == 0) continue;
    for (size_t i = 0; i < group.size(); ++i)
      if (group[i] == token) found.push_back(static_cast<uint32_t>(offset + begin + i));
  }
}

}  // namespace

size_t width_of(TokenType type) {
  return with_type(type, [](auto token) { return sizeof token; });
}

const char* name_of(TokenType type) {
  static constexpr const char* kNames[] = {"uint8", "int8", "uint16", "int16", "uint32", "int32", "int64"};
  return kNames[static_cast<size_t>(type)];
}

void TokenArray::Piece::reserve(uint64_t size) {
  begin = end = 0;
  if (size <= capacity) return;
  bytes = std::make_unique_for_overwrite<std::byte[]>(size);
  capacity = size;
}

void TokenArray::read(uint64_t first, uint64_t n, Piece& piece) const {
  const uint64_t width = width_of(type);
  piece.reserve(n * width);
  file.read(begin + first * width, piece.bytes.get(), n * width);
  piece.begin = first;
  piece.end = first + n;
}

uint64_t TokenArray::copy(uint64_t first, std::span<int64_t> out, uint64_t ahead) const {
  return with_type(type, [&]<typename Token>(Token) {
    constexpr uint64_t kStretch = kStretchBytes / sizeof(Token);
    const auto widen = [&](const Piece& piece, uint64_t offset, uint64_t n) {
      const auto* tokens = reinterpret_cast<const Token*>(piece.bytes.get());
      return widen_tokens(std::span<const Token>(tokens + (first + offset - piece.begin), n),
                          out.data() + offset);
    };
    const uint64_t n = out.size();
    for (const Piece& piece : {std::cref(kept_), std::cref(stretch_)})
      if (first >= piece.begin && first + n <= piece.end) return widen(piece, 0, n);
    uint64_t largest = 0;
    for (uint64_t offset = 0; offset < n; offset += kStretch) {
      const uint64_t part = std::min(kStretch, n - offset), more = offset + part == n ? ahead : 0;
      read(first + offset, part + more, stretch_);
      largest = std::max(largest, widen(stretch_, offset, part));
    }
    return largest;
  });
}

std::vector<uint32_t> TokenArray::keep_and_find(int64_t token, uint64_t first, uint64_t last) {
  std::vector<uint32_t> found;
  with_type(type, [&]<typename Token>(Token) {
    constexpr uint64_t kStretch = kStretchBytes / sizeof(Token);
    kept_.reserve((last - first) * sizeof(Token));
    auto* tokens = reinterpret_cast<Token*>(kept_.bytes.get());
    for (uint64_t offset = 0; offset < last - first; offset += kStretch) {
      const uint64_t part = std::min(kStretch, last - first - offset);
      file.read(begin + (first + offset) * sizeof(Token), tokens + offset, part * sizeof(Token));
      if (std::in_range<Token>(token))
        find_token(std::span<const Token>(tokens + offset, part), static_cast<Token>(token), offset, found);
    }
    kept_.begin = first;
    kept_.end = last;
  });
  return found;
}

bool begins_with(const InputFile& file, std::string_view bytes) {
  std::string head(std::min<uint64_t>(bytes.size(), file.size()), '\0');
  file.read(0, head.data(), head.size());
  return head == bytes;
}

void refuse_substitute(const InputFile& file) {
  if (const std::string what = substitute_of(file, /*text=*/false); !what.empty())
    throw_data("{}: {}", file.path().string(), what);
}

std::string TokenFileSource::describe(uint64_t document) const {
  return fmt::format("document {}", location(document));
}

uint64_t TokenFileSource::open(uint64_t document) try {
  range_ = range(document);
  document_ = document;
  return range_.end - range_.begin;
} catch (const Error& error) {
  throw_data("{}: {} cannot be read: {}", name_, describe(document), error.what());
}

void TokenFileSource::copy(uint64_t offset, std::span<int64_t> out) const {
  uint64_t largest = 0;
  try {
    // The rest of a document is read with its beginning, for the next sequence; of a long one the next label.
    const uint64_t begin = range_.begin + offset, rest = range_.end - begin - out.size();
    largest = tokens_.copy(begin, out, rest <= kReadAhead ? rest : 1);
  } catch (const Error& error) {
    throw_data("{}: {} cannot be read: {}", name_, describe(document_), error.what());
  }
  if (!in_vocabulary(largest)) refuse_token(largest, fmt::format("{}: {}", name_, describe(document_)));
}

bool TokenFileSource::in_vocabulary(uint64_t token) const {
  return token < (vocab_size_ > 0 ? vocab_size_ : kMaxId + 1);
}

void TokenFileSource::refuse_token(uint64_t token, const std::string& where) const {
  if (vocab_size_ == 0 || token > uint64_t{std::numeric_limits<uint32_t>::max()})
    throw_data("{} holds token {}, expected 0 to {}: the file is damaged", where, static_cast<int64_t>(token),
               vocab_size_ > 0 ? vocab_size_ - 1 : kMaxId);
  throw_data("{} holds token {}, but {} has {} entries: {}", where, token, vocabulary_, vocab_size_, remedy_);
}

TokenSample TokenFileSource::sample(std::optional<int32_t> eos) {
  TokenSample sample;
  std::vector<int64_t> tokens(std::min(kSampledTokens, tokens_.count));
  const uint64_t last = tokens_.count - tokens.size();  // the first token of the last stretch
  for (const uint64_t first : {uint64_t{0}, last / 2, last}) {
    if (first == 0 && sample.tokens > 0) continue;  // the file is short
    sample.largest = std::max(sample.largest, tokens_.copy(first, tokens));
    sample.tokens += tokens.size();
  }
  if (!in_vocabulary(sample.largest)) refuse_token(sample.largest, name_ + ":");
  const uint64_t documents = open_block(0).value();
  const uint64_t n = std::min(documents, kSampledDocuments);
  for (uint64_t i = 0; i < n; ++i) {
    const uint64_t length = open(documents / n * i);
    if (length == 0) continue;
    int64_t token = 0;
    tokens_.copy(range_.begin + length - 1, std::span(&token, 1));
    ++sample.documents;
    if (eos && token == *eos) ++sample.with_eos;
  }
  return sample;
}

TokenFileSource::Range TokenFileSource::range_by(const InputFile& ends, uint64_t document) const {
  uint64_t values[2] = {0, 0};
  if (document == 0)
    ends.read(0, &values[1], sizeof values[1]);
  else
    ends.read((document - 1) * sizeof values[0], values, sizeof values);
  if (values[0] > values[1] || values[1] > tokens_.count)
    throw_data("{} says tokens {} to {} of {}", ends.path().filename().string(), values[0], values[1],
               tokens_.count);
  return {values[0], values[1]};
}

}  // namespace hyperion::data
