#include "data/tokenizer/tokenizer.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/log.h"
#include "data/tokenizer/byte_level.h"
#include "data/tokenizer/nfc.h"
#include "data/tokenizer/word_cache.h"

namespace hyperion::data {
namespace {

// Maximum bytes of text that no rule of the tokenizer splits, such as a run of letters. Merging takes about
// 50 times as much memory.
constexpr size_t kMaxWord = size_t{8} << 20;
constexpr size_t kMaxPooledIds = size_t{1} << 20;   // larger buffers are freed after use
constexpr size_t kMaxText = (size_t{1} << 31) - 1;  // bytes: positions in a word are 32-bit

// `path`, or the tokenizer file in that folder; "" if there is none.
std::filesystem::path look_for_file(const std::filesystem::path& path) {
  if (!is_folder(path)) return path;
  for (const char* name : {"tokenizer.json", "tokenizer.model", "original/tokenizer.model"})
    if (name_exists(path / name)) return path / name;
  for (const std::filesystem::path& entry : list_folder(path))
    if (entry.extension() == ".tiktoken") return entry;
  return {};
}

std::filesystem::path find_file(const std::filesystem::path& path) {
  std::filesystem::path file = look_for_file(path);
  if (file.empty())
    throw_data("tokenizer folder {}: holds neither tokenizer.json, nor tokenizer.model, nor a .tiktoken file",
               path.string());
  return file;
}

// Hashes each length before its text, so that no two lists of texts have the same hash.
uint64_t add_text(uint64_t hash, std::string_view text) {
  const uint64_t size = text.size();
  return hash_text(text, hash_bytes(&size, sizeof size, hash));
}

std::string hash_of(const std::filesystem::path& file, const TokenizerSpec& spec) {
  uint64_t hash = add_text(hash_text("hyperion tokenizer 1"), read_file(file, kMaxFileBytes));
  hash = add_text(add_text(hash, spec.bos), spec.eos);
  for (const AddedToken& token : spec.added)
    hash = add_text(hash, fmt::format("{} {:d}{:d}{:d} {}", token.id, token.lstrip, token.rstrip,
                                      token.normalized, token.content));
  return fmt::format("{:016x}", hash);
}

}  // namespace

// The buffers of one call of encode().
struct Tokenizer::Scratch {
  WordCache cache;
  WordMerger merger;
  std::vector<int32_t> symbols;
  std::vector<int32_t> ids;
};

std::unique_ptr<Tokenizer> Tokenizer::load(const std::filesystem::path& path) {
  const std::filesystem::path file = find_file(path);
  TokenizerSpec spec = file.extension() == ".json"
                           ? read_tokenizer_json(file)
                           : read_tiktoken_ranks(file, read_file(file, kMaxFileBytes));
  apply_tokenizer_config(file, spec);
  std::string hash = hash_of(file, spec);
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(spec), std::move(hash)));
}

Tokenizer::Tokenizer(TokenizerSpec spec, std::string hash) : spec_(std::move(spec)), hash_(std::move(hash)) {
  byte_ids_.fill(-1);
  for (const auto& [bytes, id] : spec_.words) {
    if (bytes.size() == 1) byte_ids_[static_cast<uint8_t>(bytes[0])] = id;
    max_word_bytes_ = std::max(max_word_bytes_, bytes.size());
  }
  for (AddedToken& token : spec_.added) {
    if (token.content == spec_.bos) bos_ = token.id;
    if (token.content == spec_.eos) eos_ = token.id;
    if (token.normalized && spec_.nfc) {
      token.content = to_nfc(token.content);
      spec_.bytes_by_id[static_cast<size_t>(token.id)] =
          bytes_of_token(token.content).value_or(token.content);
    }
    (token.normalized ? normalized_tokens_ : raw_tokens_).add(token);
  }
  const auto is_added = [&](std::optional<int32_t> id) {
    return id && std::ranges::count(spec_.prefix, *id) + std::ranges::count(spec_.suffix, *id) > 0;
  };
  adds_bos_ = is_added(bos_);
  adds_eos_ = is_added(eos_);
}

Tokenizer::~Tokenizer() = default;

std::vector<int32_t> Tokenizer::encode(std::string_view text, const TextEnds& added) const {
  if (text.size() > kMaxText)
    throw_data("tokenizer: a text of {} bytes, at most {} are accepted", text.size(), kMaxText);
  const bool valid = is_valid_utf8(text);
  const std::string repaired = valid ? std::string() : replace_ill_formed(text);
  std::unique_ptr<Scratch> scratch;
  {
    const std::lock_guard lock(mutex_);
    if (!pool_.empty()) {
      scratch = std::move(pool_.back());
      pool_.pop_back();
    }
  }
  if (!scratch) scratch = std::make_unique<Scratch>();
  std::vector<int32_t>& ids = scratch->ids;
  ids.clear();
  if (added.bos && bos_ && !adds_bos_) ids.push_back(*bos_);
  ids.insert(ids.end(), spec_.prefix.begin(), spec_.prefix.end());
  raw_tokens_.split(
      valid ? text : repaired, [&](std::string_view piece) { encode_piece(piece, *scratch); },
      [&](int32_t id) { ids.push_back(id); });
  ids.insert(ids.end(), spec_.suffix.begin(), spec_.suffix.end());
  if (added.eos && eos_ && !adds_eos_) ids.push_back(*eos_);
  std::vector<int32_t> result(ids.begin(), ids.end());
  if (std::max(ids.capacity(), scratch->symbols.capacity()) <= kMaxPooledIds) {
    const std::lock_guard lock(mutex_);
    pool_.push_back(std::move(scratch));
  }
  return result;
}

void Tokenizer::encode_piece(std::string_view text, Scratch& scratch) const {
  const bool changes = spec_.nfc && may_change_under_nfc(text);
  const std::string normal = changes ? to_nfc(text) : std::string();
  normalized_tokens_.split(
      changes ? normal : text,
      [&](std::string_view plain) {
        spec_.pretokenizer.split(plain, [&](std::string_view word) { encode_word(word, scratch); });
      },
      [&](int32_t id) { scratch.ids.push_back(id); });
}

void Tokenizer::encode_word(std::string_view word, Scratch& scratch) const {
  const auto add = [&](std::span<const int32_t> ids) {
    scratch.ids.insert(scratch.ids.end(), ids.begin(), ids.end());
  };
  if (word.size() > WordCache::kMaxBytes) {
    merge_word(word, scratch);
    return add(scratch.symbols);
  }
  const WordCache::Key key(word);
  WordCache::Slot& slot = scratch.cache.slot(key);
  if (WordCache::holds(slot, key)) return add(slot.tokens());
  merge_word(word, scratch);
  WordCache::store(slot, key, scratch.symbols);
  add(scratch.symbols);
}

// Writes the ids of a word to scratch.symbols. A byte without a token is left out, as in Hugging Face.
void Tokenizer::merge_word(std::string_view word, Scratch& scratch) const {
  if (word.size() > kMaxWord)
    throw_data(
        "tokenizer: {} bytes of text without a place to split them, such as white space; at most {} are "
        "accepted: split the document",
        word.size(), kMaxWord);
  scratch.symbols.clear();
  if (spec_.ignore_merges && word.size() <= max_word_bytes_)
    if (const auto known = spec_.words.find(std::string(word)); known != spec_.words.end()) {
      scratch.symbols.push_back(known->second);
      return;
    }
  for (const char byte : word)
    if (const int32_t id = byte_ids_[static_cast<uint8_t>(byte)]; id >= 0) scratch.symbols.push_back(id);
  scratch.merger.merge(spec_.merges, scratch.symbols);
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  const std::vector<std::string>& tokens = spec_.bytes_by_id;
  std::string bytes;
  for (const int32_t id : ids)
    if (id >= 0 && static_cast<size_t>(id) < tokens.size()) bytes += tokens[static_cast<size_t>(id)];
  return is_valid_utf8(bytes) ? bytes : replace_ill_formed(bytes);
}

std::map<std::string, std::string> tokenizer_files(const std::filesystem::path& path) {
  std::map<std::string, std::string> files;
  if (!path_exists(path)) return files;
  const std::filesystem::path main = look_for_file(path);
  if (main.empty()) return files;
  files[main.filename().string()] = read_file(main, kMaxFileBytes);
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
                           "vocab.json", "merges.txt", "chat_template.jinja"})
    if (const auto file = main.parent_path() / name; name_exists(file))
      files[name] = read_file(file, kMaxFileBytes);
  return files;
}

void warn_of_missing_tokens(const Tokenizer& tokenizer, const std::filesystem::path& path) {
  const std::filesystem::path config = find_file(path).parent_path() / "tokenizer_config.json";
  std::error_code ignored;
  const char* remedy = std::filesystem::exists(config, ignored) ? "add it to" : "add the file";
  if (!tokenizer.begins_texts() && !tokenizer.without_bos())
    log_warning(
        "the tokenizer at {} names no BOS, so documents begin without one: where the model has one, {} {} "
        "with \"bos_token\": \"its text\", or \"bos_token\": null where it has none",
        path.string(), remedy, config.string());
  if (!tokenizer.ends_texts())
    log_warning(
        "the tokenizer at {} names no EOS: documents are packed one behind the other with no token that says "
        "where one ends, and text that the model generates never ends by itself; {} {} with \"eos_token\": "
        "\"its text\"",
        path.string(), remedy, config.string());
}

}  // namespace hyperion::data
