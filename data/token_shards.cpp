#include "data/token_shards.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/substitute.h"

namespace hyperion::data {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kFormat = "hyperion-token-shard";
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

}  // namespace

std::string hash_hex(const InputFile& file) {
  RunningHash hash;
  each_block(file, [&](std::span<const std::byte> block) { hash.add(block.data(), block.size()); });
  return fmt::format("{:016x}", hash.value());
}

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

void ShardSource::verify() const {
  if (!header_.tokens_xxh3.empty() && hash_hex(tokens_.file) != header_.tokens_xxh3)
    throw_data("token shard {}: tokens.bin does not have the checksum in index.json: copy it again",
               folder_.string());
}

}  // namespace hyperion::data
