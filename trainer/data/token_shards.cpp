#include "trainer/data/token_shards.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "base/error.h"
#include "base/hash.h"

namespace hyperion {
namespace fs = std::filesystem;
namespace {

static_assert(std::endian::native == std::endian::little, "token shards are read in place");

constexpr std::string_view kFormat = "hyperion-token-shard";
constexpr uint64_t kNarrowVocabulary = 65536;

std::string hash_hex(std::span<const std::byte> bytes) {
  return fmt::format("{:016x}", hash_bytes(bytes.data(), bytes.size()));
}

// The fields of index.json, each error naming the file and the field.
class Fields {
 public:
  Fields(const std::string& text, const fs::path& path) : path_(path) {
    json_ = nlohmann::json::parse(text, nullptr, false);
    if (!json_.is_object()) throw_data("token shard header {}: is not a JSON object", path_.string());
  }
  uint64_t count(const char* key, uint64_t low, uint64_t high) const {
    const auto found = json_.find(key);
    if (found == json_.end() || !found->is_number_unsigned() || *found < low || *found > high)
      fail(key, fmt::format("a whole number from {} to {}", low, high));
    return found->get<uint64_t>();
  }
  std::string text(const char* key, bool required) const {
    const auto found = json_.find(key);
    if (found == json_.end() && !required) return "";
    if (found == json_.end() || !found->is_string()) fail(key, "a string");
    return found->get<std::string>();
  }
  [[noreturn]] void fail(const char* key, const std::string& expected) const {
    const auto found = json_.find(key);
    throw_data("token shard header {}: {} is {}, expected {}: write the shard again with hyperion tokenize",
               path_.string(), key, found == json_.end() ? "missing" : found->dump(-1, ' ', true, Ignore),
               expected);
  }

 private:
  static constexpr auto Ignore = nlohmann::json::error_handler_t::replace;
  const fs::path& path_;
  nlohmann::json json_;
};

}  // namespace

bool is_token_shard(const fs::path& folder) {
  std::error_code error;
  const fs::path header = folder / "index.json";
  return fs::is_regular_file(header, error) && fs::file_size(header, error) < (1u << 20) &&
         read_file(header).find(kFormat) != std::string::npos;
}

std::string tokenizer_fingerprint(const fs::path& path) {
  fs::path file = path;
  if (fs::is_directory(path))
    file = fs::exists(path / "tokenizer.json") ? path / "tokenizer.json" : path / "tokenizer.model";
  return hash_hex(MappedFile(file).bytes());
}

ShardHeader parse_shard_header(const std::string& text, const fs::path& path) {
  const Fields fields(text, path);
  if (fields.text("format", true) != kFormat) fields.fail("format", std::string(kFormat));
  fields.count("version", 1, 1);
  ShardHeader header;
  const std::string dtype = fields.text("dtype", true);
  if (dtype != "uint16" && dtype != "uint32") fields.fail("dtype", "uint16 or uint32");
  header.wide = dtype == "uint32";
  constexpr uint64_t kMost = uint64_t{1} << 48;
  header.tokens = fields.count("tokens", 1, kMost);
  header.documents = fields.count("documents", 1, kMost);
  header.vocab_size = fields.count("vocab_size", 1, header.wide ? uint64_t{1} << 31 : kNarrowVocabulary);
  header.tokenizer = fields.text("tokenizer", true);
  header.tokenizer_path = fields.text("tokenizer_path", false);
  header.tokens_xxh3 = fields.text("tokens_xxh3", false);
  header.documents_xxh3 = fields.text("documents_xxh3", false);
  return header;
}

std::string shard_header_json(const ShardHeader& header) {
  const nlohmann::ordered_json json = {{"format", kFormat},
                                       {"version", 1},
                                       {"dtype", header.wide ? "uint32" : "uint16"},
                                       {"tokens", header.tokens},
                                       {"documents", header.documents},
                                       {"vocab_size", header.vocab_size},
                                       {"tokenizer", header.tokenizer},
                                       {"tokenizer_path", header.tokenizer_path},
                                       {"tokens_xxh3", header.tokens_xxh3},
                                       {"documents_xxh3", header.documents_xxh3}};
  return json.dump(2, ' ', true, nlohmann::json::error_handler_t::replace) + "\n";
}

ShardSource::ShardSource(const fs::path& folder)
    : folder_(folder),
      header_(parse_shard_header(read_file(folder / "index.json"), folder / "index.json")),
      tokens_(folder / "tokens.bin"),
      ends_(folder / "documents.bin") {
  const auto check_size = [&](const char* file, size_t size, uint64_t count, size_t width) {
    if (size != count * width) {
      throw_data(
          "token shard {}: {} is {} bytes, but index.json promises {} entries of {} bytes: copy or write it "
          "again",
          folder.string(), file, size, count, width);
    }
  };
  check_size("tokens.bin", tokens_.bytes().size(), header_.tokens, header_.wide ? 4 : 2);
  check_size("documents.bin", ends_.bytes().size(), header_.documents, 8);
  if (!header_.documents_xxh3.empty() && hash_hex(ends_.bytes()) != header_.documents_xxh3)
    throw_data("token shard {}: documents.bin does not have the checksum in index.json: copy it again",
               folder.string());
  uint64_t last = 0;
  for (uint64_t document = 0; document < header_.documents; ++document) {
    if (end(document) < last) {
      throw_data(
          "token shard {}: documents.bin: document {} ends at token {}, before the one in front of it ({})",
          folder.string(), document + 1, end(document), last);
    }
    last = end(document);
  }
  if (last != header_.tokens) {
    throw_data(
        "token shard {}: documents.bin: the last document ends at token {}, but index.json says {} tokens",
        folder.string(), last, header_.tokens);
  }
}

uint64_t ShardSource::end(uint64_t document) const {
  uint64_t value;
  std::memcpy(&value, ends_.bytes().data() + document * sizeof(value), sizeof(value));
  return value;
}

uint64_t ShardSource::open(uint64_t document) {
  document_ = document;
  begin_ = document == 0 ? 0 : end(document - 1);
  return end(document) - begin_;
}

void ShardSource::copy(uint64_t offset, std::span<int64_t> out) const {
  const auto widen = [&]<typename Token>(const Token* tokens) {
    Token largest = 0;
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = tokens[i];
      largest = std::max(largest, tokens[i]);
    }
    return uint64_t{largest};
  };
  const std::byte* data = tokens_.bytes().data() + (begin_ + offset) * (header_.wide ? 4 : 2);
  const uint64_t largest = header_.wide ? widen(reinterpret_cast<const uint32_t*>(data))
                                        : widen(reinterpret_cast<const uint16_t*>(data));
  if (largest >= header_.vocab_size) {
    throw_data(
        "token shard {}: document {} holds token {}, but its vocabulary has {} entries: the file is damaged",
        folder_.string(), document_ + 1, largest, header_.vocab_size);
  }
}

void ShardSource::verify() const {
  if (!header_.tokens_xxh3.empty() && hash_hex(tokens_.bytes()) != header_.tokens_xxh3)
    throw_data("token shard {}: tokens.bin does not have the checksum in index.json: copy it again",
               folder_.string());
}

TokenShardWriter::TokenShardWriter(const fs::path& folder, uint64_t vocab_size, std::string tokenizer,
                                   std::string tokenizer_path)
    : folder_(folder) {
  if (!folder_.has_filename()) folder_ = folder_.parent_path();
  std::error_code error;
  if (fs::exists(folder_) && !fs::is_empty(folder_, error))
    throw_config("output folder {}: exists and is not empty: give another one or remove it",
                 folder_.string());
  header_.wide = vocab_size > kNarrowVocabulary;
  header_.vocab_size = vocab_size;
  header_.tokenizer = std::move(tokenizer);
  header_.tokenizer_path = std::move(tokenizer_path);
  temporary_ = folder_;
  temporary_ += fmt::format(".tmp.{}", ::getpid());
  fs::create_directories(temporary_, error);
  tokens_.reset(std::fopen((temporary_ / "tokens.bin").c_str(), "wb"));
  ends_.reset(std::fopen((temporary_ / "documents.bin").c_str(), "wb"));
  if (!tokens_ || !ends_) {
    const int reason = errno;
    fs::remove_all(temporary_, error);
    throw Error(ExitCode::kSaveFailed, fmt::format("token shard {}: cannot be created: {}",
                                                   temporary_.string(), std::strerror(reason)));
  }
}

TokenShardWriter::~TokenShardWriter() {
  std::error_code ignored;
  if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
}

void TokenShardWriter::write(File& file, const void* data, size_t size) {
  if (std::fwrite(data, 1, size, file.get()) != size)
    throw Error(ExitCode::kSaveFailed,
                fmt::format("token shard {}: write failed: {}", temporary_.string(), std::strerror(errno)));
}

void TokenShardWriter::add(std::span<const int64_t> tokens) {
  for (const int64_t token : tokens) {
    if (token < 0 || static_cast<uint64_t>(token) >= header_.vocab_size)
      throw_bug("token {} does not fit a vocabulary of {} entries", token, header_.vocab_size);
  }
  const auto write_as = [&]<typename Token>(Token) {
    const std::vector<Token> narrow(tokens.begin(), tokens.end());
    write(tokens_, narrow.data(), narrow.size() * sizeof(Token));
  };
  header_.wide ? write_as(uint32_t{}) : write_as(uint16_t{});
  header_.tokens += tokens.size();
  header_.documents += 1;
  write(ends_, &header_.tokens, sizeof(header_.tokens));
}

ShardHeader TokenShardWriter::finish() {
  if (header_.tokens == 0) throw_data("token shard {}: the input holds no tokens", folder_.string());
  for (File* file : {&tokens_, &ends_}) {
    if (std::fflush(file->get()) != 0 || ::fsync(::fileno(file->get())) != 0)
      throw Error(ExitCode::kSaveFailed,
                  fmt::format("token shard {}: write failed: {}", temporary_.string(), std::strerror(errno)));
    file->reset();
  }
  header_.tokens_xxh3 = hash_hex(MappedFile(temporary_ / "tokens.bin").bytes());
  header_.documents_xxh3 = hash_hex(MappedFile(temporary_ / "documents.bin").bytes());
  write_file_atomic(temporary_ / "index.json", shard_header_json(header_));
  // rename(2) replaces an empty folder, and refuses one that somebody filled meanwhile
  if (std::rename(temporary_.c_str(), folder_.c_str()) != 0)
    throw Error(ExitCode::kSaveFailed,
                fmt::format("token shard {}: cannot be renamed to {}: {}", temporary_.string(),
                            folder_.string(), std::strerror(errno)));
  temporary_.clear();
  return header_;
}

}  // namespace hyperion
