#include "data/token_shards.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/substitute.h"

namespace hyperion::data {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kFormat = "hyperion-token-shard";
constexpr uint64_t kNarrowVocabulary = 65536;

constexpr uint64_t kHashBlock = uint64_t{1} << 20;
constexpr size_t kMaxHeader = size_t{1} << 20;

// Calls take(bytes) for the entire file, block by block.
template <typename Take>
void each_block(const InputFile& file, const Take& take) {
  std::vector<std::byte> block;
  for (uint64_t at = 0; at < file.size(); at += block.size()) {
    block.resize(std::min(kHashBlock, file.size() - at));
    file.read(at, block.data(), block.size());
    take(std::span<const std::byte>(block));
  }
}

// XXH3-64 as 16 hex digits.
std::string hash_hex(const InputFile& file) {
  RunningHash hash;
  each_block(file, [&](std::span<const std::byte> block) { hash.add(block.data(), block.size()); });
  return fmt::format("{:016x}", hash.value());
}

}  // namespace

bool is_token_shard(const fs::path& folder) {
  std::error_code error;
  const fs::path header = folder / "index.json";
  return fs::is_regular_file(header, error) && fs::file_size(header, error) < kMaxHeader &&
         read_file(header, kMaxHeader).find(kFormat) != std::string::npos;
}

std::string tokenizer_fingerprint(const fs::path& path) {
  fs::path file = path;
  if (is_folder(path))
    file = name_exists(path / "tokenizer.json") ? path / "tokenizer.json" : path / "tokenizer.model";
  return hash_hex(InputFile(file));
}

ShardHeader parse_shard_header(const std::string& text, const fs::path& path) try {
  const auto json = parse_json(text, path.string());
  const JsonNode fields(json, path.string());
  const auto optional = [&](const char* key) { return fields[key].is_null() ? "" : fields[key].text(); };
  if (fields["format"].text() != kFormat) fields["format"].refuse(kFormat);
  fields["version"].count(1, 1);
  ShardHeader header;
  const std::string& dtype = fields["dtype"].text();
  if (dtype != "uint16" && dtype != "uint32") fields["dtype"].refuse("uint16 or uint32");
  header.wide = dtype == "uint32";
  constexpr uint64_t kMaxCount = uint64_t{1} << 48;
  header.tokens = fields["tokens"].count(1, kMaxCount);
  header.documents = fields["documents"].count(1, kMaxCount);
  header.vocab_size = fields["vocab_size"].count(1, header.wide ? uint64_t{1} << 31 : kNarrowVocabulary);
  header.tokenizer = fields["tokenizer"].text();
  header.tokenizer_path = optional("tokenizer_path");
  header.tokens_xxh3 = optional("tokens_xxh3");
  header.documents_xxh3 = optional("documents_xxh3");
  return header;
} catch (const Error& error) {
  throw_data("token shard header {}: write the shard again with hyperion tokenize", error.what());
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
    : ShardSource(folder,
                  parse_shard_header(read_file(folder / "index.json", kMaxHeader), folder / "index.json")) {}

ShardSource::ShardSource(const fs::path& folder, ShardHeader header)
    : TokenFileSource("token shard " + folder.string(), header.vocab_size, "its vocabulary",
                      "the file is damaged"),
      folder_(folder),
      header_(std::move(header)),
      ends_(folder / "documents.bin") {
  tokens_.file = InputFile(folder / "tokens.bin");
  tokens_.type = header_.wide ? TokenType::kU32 : TokenType::kU16;
  tokens_.count = header_.tokens;
  documents_ = header_.documents;
  const auto check_size = [&](const InputFile& input, uint64_t count, size_t width) {
    const std::string file = input.path().filename().string();
    if (input.size() != count * width) {
      if (const std::string what = substitute_of(input, /*text=*/false); !what.empty())
        throw_data("token shard {}: {} {}", folder.string(), file, what);
      throw_data(
          "token shard {}: {} is {} bytes, but index.json promises {} entries of {} bytes: copy or write it "
          "again",
          folder.string(), file, input.size(), count, width);
    }
  };
  check_size(tokens_.file, header_.tokens, header_.wide ? 4 : 2);
  check_size(ends_, header_.documents, 8);
  check_documents();
}

// One pass over documents.bin: checksum, order, and the last end.
void ShardSource::check_documents() const {
  RunningHash hash;
  uint64_t document = 0, last = 0, disorder = 0, before = 0, after = 0;
  each_block(ends_, [&](std::span<const std::byte> block) {
    hash.add(block.data(), block.size());
    for (size_t at = 0; at < block.size(); at += sizeof(uint64_t)) {
      uint64_t end;
      std::memcpy(&end, block.data() + at, sizeof end);
      ++document;
      if (end < last && disorder == 0) {
        disorder = document;
        before = last;
        after = end;
      }
      last = end;
    }
  });
  if (!header_.documents_xxh3.empty() && fmt::format("{:016x}", hash.value()) != header_.documents_xxh3)
    throw_data("token shard {}: documents.bin does not have the checksum in index.json: copy it again",
               folder_.string());
  if (disorder != 0)
    throw_data(
        "token shard {}: documents.bin: document {} ends at token {}, before the one in front of it ({})",
        folder_.string(), disorder, after, before);
  if (last != header_.tokens)
    throw_data(
        "token shard {}: documents.bin: the last document ends at token {}, but index.json says {} tokens",
        folder_.string(), last, header_.tokens);
}

TokenFileSource::Range ShardSource::range(uint64_t document) const {
  const auto [begin, end] = read_ends(ends_, document, header_.tokens);
  return {begin, end};
}

void ShardSource::verify() const {
  if (!header_.tokens_xxh3.empty() && hash_hex(tokens_.file) != header_.tokens_xxh3)
    throw_data("token shard {}: tokens.bin does not have the checksum in index.json: copy it again",
               folder_.string());
}

TokenShardWriter::TokenShardWriter(const fs::path& folder, uint64_t vocab_size, std::string tokenizer,
                                   std::string tokenizer_path)
    : folder_(folder) {
  if (!folder_.has_filename()) folder_ = folder_.parent_path();
  std::error_code error;
  if (fs::exists(fs::symlink_status(folder_, error)) && !fs::is_empty(folder_, error))
    throw_config("output folder {}: exists and is not empty: give another one or remove it",
                 folder_.string());
  header_.wide = vocab_size > kNarrowVocabulary;
  header_.vocab_size = vocab_size;
  header_.tokenizer = std::move(tokenizer);
  header_.tokenizer_path = std::move(tokenizer_path);
  temporary_ = folder_;
  temporary_ += fmt::format(".tmp.{}", ::getpid());
  fs::remove_all(temporary_, error);  // left by a killed process with the same pid
  if (temporary_.has_parent_path()) fs::create_directories(temporary_.parent_path(), error);
  const bool created = ::mkdir(temporary_.c_str(), 0777) == 0;
  if (created) tokens_.reset(std::fopen((temporary_ / "tokens.bin").c_str(), "wbxe"));
  if (tokens_) ends_.reset(std::fopen((temporary_ / "documents.bin").c_str(), "wbxe"));
  if (!ends_) {
    const int reason = errno;
    if (created) fs::remove_all(temporary_, error);
    throw_save_failed("token shard {}: cannot be created: {}", temporary_.string(), std::strerror(reason));
  }
}

TokenShardWriter::~TokenShardWriter() {
  std::error_code ignored;
  if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
}

void TokenShardWriter::write(File& file, const void* data, size_t size) {
  if (std::fwrite(data, 1, size, file.get()) != size)
    throw_save_failed("token shard {}: write failed: {}", temporary_.string(), std::strerror(errno));
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
      throw_save_failed("token shard {}: write failed: {}", temporary_.string(), std::strerror(errno));
    file->reset();
  }
  header_.tokens_xxh3 = hash_hex(InputFile(temporary_ / "tokens.bin"));
  header_.documents_xxh3 = hash_hex(InputFile(temporary_ / "documents.bin"));
  write_file_atomic(temporary_ / "index.json", shard_header_json(header_));
  // rename(2) replaces an empty folder, and refuses one that was filled in the meantime.
  if (std::rename(temporary_.c_str(), folder_.c_str()) != 0)
    throw_save_failed("token shard {}: cannot be renamed to {}: {}", temporary_.string(), folder_.string(),
                      std::strerror(errno));
  temporary_.clear();
  return header_;
}

}  // namespace hyperion::data
