#include "data/tokenizer/tokenizer.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/log.h"
#include "data/tokenizer/byte_level.h"
#include "data/tokenizer/nfc.h"
#include "data/tokenizer/vocabulary.h"
#include "data/tokenizer/word_cache.h"

namespace hyperion::data {
namespace {

// Bytes of text that no rule of the tokenizer splits, such as a run of letters. Merging takes about 50 times
// as much memory.
constexpr size_t kMaxWord = size_t{8} << 20;
constexpr size_t kKeptIds = size_t{1}
                            << 20;  // buffers larger than this are freed after the text that needed it
constexpr size_t kMaxText = (size_t{1} << 31) - 1;  // bytes: positions in a word are 32-bit

// `path`, or the tokenizer file in that folder; "" when it holds none.
std::filesystem::path look_for_file(const std::filesystem::path& path) {
  if (!is_folder(path)) return path;
  for (const char* name : {"tokenizer.json", "tokenizer.model", "original/tokenizer.model"})
    if (name_exists(path / name)) return path / name;
  for (const std::filesystem::path& entry : entries_of(path))
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

// Length before text, so that no two lists of texts give the same hash.
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

TokenizerSpec read_spec(const std::filesystem::path& file) {
  TokenizerSpec spec;
  if (file.extension() == ".json")
    spec = read_tokenizer_json(file);
  else
    spec = read_tiktoken_ranks(file, read_file(file, kMaxFileBytes));
  apply_tokenizer_config(file, spec);
  return spec;
}

}  // namespace

struct Tokenizer::Impl {
  struct Scratch {
    WordCache cache;
    WordMerger merger;
    std::vector<int32_t> symbols;
    std::vector<int32_t> ids;
  };

  Impl(TokenizerSpec s, std::string h) : spec(std::move(s)), hash(std::move(h)) {
    byte_ids.fill(-1);
    for (const auto& [bytes, id] : spec.words) {
      if (bytes.size() == 1) byte_ids[static_cast<uint8_t>(bytes[0])] = id;
      longest_word = std::max(longest_word, bytes.size());
    }
    for (AddedToken& token : spec.added) {
      if (token.content == spec.bos) bos = token.id;
      if (token.content == spec.eos) eos = token.id;
      if (token.normalized && spec.nfc) {
        token.content = to_nfc(token.content);
        spec.bytes_by_id[static_cast<size_t>(token.id)] =
            bytes_of_token(token.content).value_or(token.content);
      }
      (token.normalized ? normalized_tokens : raw_tokens).add(token);
    }
    const auto is_added = [&](std::optional<int32_t> id) {
      const auto has = [&](const std::vector<int32_t>& ids) {
        return std::find(ids.begin(), ids.end(), *id) != ids.end();
      };
      return id && (has(spec.prefix) || has(spec.suffix));
    };
    adds_bos = is_added(bos);
    adds_eos = is_added(eos);
  }

  void encode_word(std::string_view word, Scratch& scratch) const {
    if (word.size() > WordCache::kMaxBytes) {
      merge_word(word, scratch);
      scratch.ids.insert(scratch.ids.end(), scratch.symbols.begin(), scratch.symbols.end());
      return;
    }
    const WordCache::Key key(word);
    WordCache::Slot& slot = scratch.cache.slot(key);
    if (WordCache::holds(slot, key)) {
      const auto tokens = slot.tokens();
      scratch.ids.insert(scratch.ids.end(), tokens.begin(), tokens.end());
      return;
    }
    merge_word(word, scratch);
    WordCache::store(slot, key, scratch.symbols);
    scratch.ids.insert(scratch.ids.end(), scratch.symbols.begin(), scratch.symbols.end());
  }

  // The ids of a word, into scratch.symbols. A byte without a token is left out, as Hugging Face does.
  void merge_word(std::string_view word, Scratch& scratch) const {
    if (word.size() > kMaxWord)
      throw_data(
          "tokenizer: {} bytes of text without a place to split them, such as white space; at most {} are "
          "accepted: split the document",
          word.size(), kMaxWord);
    scratch.symbols.clear();
    if (spec.ignore_merges && word.size() <= longest_word)
      if (const auto known = spec.words.find(std::string(word)); known != spec.words.end()) {
        scratch.symbols.push_back(known->second);
        return;
      }
    for (const char byte : word)
      if (const int32_t id = byte_ids[static_cast<uint8_t>(byte)]; id >= 0) scratch.symbols.push_back(id);
    scratch.merger.merge(spec.merges, scratch.symbols);
  }

  void encode_plain(std::string_view text, Scratch& scratch) const {
    spec.pretokenizer.split(text, [&](std::string_view word) { encode_word(word, scratch); });
  }

  void encode_piece(std::string_view text, Scratch& scratch) const {
    const bool changes = spec.nfc && may_change_under_nfc(text);
    const std::string normal = changes ? to_nfc(text) : std::string();
    normalized_tokens.split(
        changes ? normal : text, [&](std::string_view plain) { encode_plain(plain, scratch); },
        [&](int32_t id) { scratch.ids.push_back(id); });
  }

  std::unique_ptr<Scratch> borrow() const {
    const std::lock_guard lock(mutex);
    if (pool.empty()) return std::make_unique<Scratch>();
    std::unique_ptr<Scratch> scratch = std::move(pool.back());
    pool.pop_back();
    return scratch;
  }

  void give_back(std::unique_ptr<Scratch> scratch) const {
    if (std::max(scratch->ids.capacity(), scratch->symbols.capacity()) > kKeptIds) return;
    const std::lock_guard lock(mutex);
    pool.push_back(std::move(scratch));
  }

  TokenizerSpec spec;
  std::array<int32_t, 256> byte_ids;
  size_t longest_word = 0;
  AddedTokenFinder raw_tokens, normalized_tokens;
  std::optional<int32_t> bos, eos;
  bool adds_bos = false, adds_eos = false;  // the file's post-processor does
  std::string hash;
  mutable std::mutex mutex;
  mutable std::vector<std::unique_ptr<Scratch>> pool;
};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

std::unique_ptr<Tokenizer> Tokenizer::load(const std::filesystem::path& path) {
  const std::filesystem::path file = find_file(path);
  TokenizerSpec spec = read_spec(file);
  std::string hash = hash_of(file, spec);
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::make_unique<Impl>(std::move(spec), std::move(hash))));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_bos, bool add_eos) const {
  if (text.size() > kMaxText)
    throw_data("tokenizer: a text of {} bytes, at most {} are accepted", text.size(), kMaxText);
  const bool valid = is_valid_utf8(text);
  const std::string repaired = valid ? std::string() : replace_ill_formed(text);
  std::unique_ptr<Impl::Scratch> scratch = impl_->borrow();
  std::vector<int32_t>& ids = scratch->ids;
  ids.clear();
  if (add_bos && impl_->bos && !impl_->adds_bos) ids.push_back(*impl_->bos);
  ids.insert(ids.end(), impl_->spec.prefix.begin(), impl_->spec.prefix.end());
  impl_->raw_tokens.split(
      valid ? text : repaired, [&](std::string_view piece) { impl_->encode_piece(piece, *scratch); },
      [&](int32_t id) { ids.push_back(id); });
  ids.insert(ids.end(), impl_->spec.suffix.begin(), impl_->spec.suffix.end());
  if (add_eos && impl_->eos && !impl_->adds_eos) ids.push_back(*impl_->eos);
  std::vector<int32_t> result(ids.begin(), ids.end());
  impl_->give_back(std::move(scratch));
  return result;
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  const std::vector<std::string>& tokens = impl_->spec.bytes_by_id;
  std::string bytes;
  for (const int32_t id : ids)
    if (id >= 0 && static_cast<size_t>(id) < tokens.size()) bytes += tokens[static_cast<size_t>(id)];
  return is_valid_utf8(bytes) ? bytes : replace_ill_formed(bytes);
}

int64_t Tokenizer::vocab_size() const {
  return static_cast<int64_t>(impl_->spec.bytes_by_id.size());
}
std::optional<int32_t> Tokenizer::bos_id() const {
  return impl_->bos;
}
std::optional<int32_t> Tokenizer::eos_id() const {
  return impl_->eos;
}
bool Tokenizer::begins_texts() const {
  return impl_->bos || !impl_->spec.prefix.empty();
}
bool Tokenizer::ends_texts() const {
  return impl_->eos || !impl_->spec.suffix.empty();
}
bool Tokenizer::without_bos() const {
  return impl_->spec.without_bos;
}
const std::string& Tokenizer::hash() const {
  return impl_->hash;
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
