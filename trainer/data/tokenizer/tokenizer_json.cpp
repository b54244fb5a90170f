// Reads Hugging Face's tokenizer.json and tokenizer_config.json. Everything in them is checked; a component
// that is not understood is refused by its name, because ignoring it would give other ids.
#include <algorithm>
#include <array>
#include <ranges>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "trainer/data/tokenizer/byte_level.h"
#include "trainer/data/tokenizer/vocabulary.h"

namespace hyperion::trainer {
namespace {

using nlohmann::json;

constexpr size_t kMaxFileBytes = size_t{64} << 20;  // the largest known is 35 MB
constexpr size_t kMaxDepth = 64;

json parse_file(const std::filesystem::path& path) {
  return parse_json(read_file(path, kMaxFileBytes), path.string(), kMaxDepth);
}

// A value with its place in the file, for messages. Reads with the type checked.
class Node {
 public:
  Node(const json* value, std::string where) : value_(value), where_(std::move(where)) {}

  const std::string& where() const { return where_; }
  bool is_null() const { return value_ == nullptr || value_->is_null(); }
  bool is_string() const { return !is_null() && value_->is_string(); }
  bool is_object() const { return !is_null() && value_->is_object(); }

  // A field of this object; null when it is not there.
  Node operator[](const char* key) const {
    expect(is_object(), "an object");
    const auto field = value_->find(key);
    return {field == value_->end() ? nullptr : &*field, where_ + "." + key};
  }
  const json& array() const { return expect(!is_null() && value_->is_array(), "a list"), *value_; }
  const json& object() const { return expect(is_object(), "an object"), *value_; }
  const std::string& text() const {
    expect(is_string(), "a string");
    return value_->get_ref<const std::string&>();
  }
  bool flag(bool otherwise) const {
    if (is_null()) return otherwise;
    expect(value_->is_boolean(), "true or false");
    return value_->get<bool>();
  }
  int64_t integer() const {
    expect(!is_null() && value_->is_number_integer() &&
               (!value_->is_number_unsigned() || value_->get<uint64_t>() <= INT64_MAX),
           "an integer");
    return value_->get<int64_t>();
  }
  // Calls use(element) for each element of this list.
  template <typename Use>
  void each(const Use& use) const {
    size_t i = 0;
    for (const json& element : array()) use(Node(&element, where_ + "[" + std::to_string(i++) + "]"));
  }
  void expect(bool good, std::string_view expected) const {
    if (good) return;
    throw_data("{}: is {}, expected {}", where_, value_ == nullptr ? "missing" : value_->type_name(),
               expected);
  }
  [[noreturn]] void refuse(std::string_view what, std::string_view supported) const {
    throw_data("{}: {} is not supported; supported: {}", where_, what, supported);
  }

 private:
  const json* value_;
  std::string where_;
};

void read_vocabulary(const Node& vocabulary, TokenizerSpec& spec) {
  spec.vocabulary.reserve(vocabulary.object().size());
  for (const auto& [token, id] : vocabulary.object().items()) {
    if (!id.is_number_unsigned())
      throw_data("{}: the id of token {:?} is not an integer >= 0", vocabulary.where(), token);
    const std::optional<std::string> bytes = bytes_of_token(token);
    const uint64_t value = std::min<uint64_t>(id.get<uint64_t>(), INT64_MAX);
    spec.add_model_token(token, bytes.value_or(token), bytes.has_value(), static_cast<int64_t>(value),
                         vocabulary.where());
  }
}

// A merge is "left right", or ["left", "right"] in newer files.
std::pair<std::string, std::string> merge_parts(const Node& merge) {
  if (merge.is_string()) {
    const std::string& text = merge.text();
    const size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
      throw_data("{}: is {:?}, expected two tokens with a space between them", merge.where(), text);
    return {text.substr(0, space), text.substr(space + 1)};
  }
  if (merge.array().size() != 2)
    throw_data("{}: has {} parts, expected 2", merge.where(), merge.array().size());
  return {Node(&merge.array()[0], merge.where()).text(), Node(&merge.array()[1], merge.where()).text()};
}

void read_merges(const Node& merges, TokenizerSpec& spec) {
  spec.merges = MergeTable(merges.array().size());
  uint32_t rank = 0;
  merges.each([&](const Node& merge) {
    const auto [left, right] = merge_parts(merge);
    const auto id = [&](const std::string& token) {
      const auto known = spec.vocabulary.find(token);
      if (known == spec.vocabulary.end())
        throw_data("{}: token {:?} is not in the vocabulary", merge.where(), token);
      return known->second;
    };
    spec.merges.insert(id(left), id(right), {rank++, id(left + right)});
  });
}

void read_model(const Node& model, TokenizerSpec& spec) {
  // files of before 2020 name no type
  if (!model["type"].is_null() && model["type"].text() != "BPE")
    model.refuse("model type " + model["type"].text(), "BPE");
  if (!model["dropout"].is_null()) model["dropout"].refuse("dropout", "null");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (!model[key].is_null() && !model[key].text().empty()) model[key].refuse("a word-part mark", "null");
  if (model["byte_fallback"].flag(false))
    model["byte_fallback"].refuse("byte_fallback", "false (byte-level BPE)");
  spec.ignore_merges = model["ignore_merges"].flag(false);
  read_vocabulary(model["vocab"], spec);
  read_merges(model["merges"], spec);
  const bool every_byte = std::ranges::all_of(std::views::iota(0, 256), [&](int byte) {
    return spec.words.contains(std::string(1, static_cast<char>(byte)));
  });
  if (!model["unk_token"].is_null() && !every_byte)
    model["unk_token"].refuse("an unknown token with a vocabulary that lacks bytes",
                              "a vocabulary of all 256 bytes");
}

void read_normalizer(const Node& normalizer, TokenizerSpec& spec) {
  if (normalizer.is_null()) return;
  const std::string& type = normalizer["type"].text();
  if (type == "Sequence")
    normalizer["normalizers"].each([&](const Node& part) { read_normalizer(part, spec); });
  else if (type == "NFC")
    spec.nfc = true;
  else
    normalizer.refuse("normalizer type " + type, "NFC, Sequence");
}

void read_split(const Node& split, TokenizerSpec& spec) {
  const Node regex = split["pattern"]["Regex"];
  const std::string pattern =
      regex.is_null() ? quoted_pattern(split["pattern"]["String"].text()) : regex.text();
  const std::string& behavior = split["behavior"].text();
  const bool invert = split["invert"].flag(false);
  if (behavior == "Isolated")
    spec.pretokenizer.add_split(pattern, true, true, split.where());
  else if (behavior == "Removed")
    spec.pretokenizer.add_split(pattern, invert, !invert, split.where());
  else
    split.refuse("behavior " + behavior, "Isolated, Removed");
}

// `done`: the ByteLevel step, after which text is no longer text, was read.
void read_pretokenizer(const Node& step, TokenizerSpec& spec, bool& done) {
  if (done) step.refuse("a pre-tokenizer behind ByteLevel", "ByteLevel as the last one");
  const std::string& type = step["type"].text();
  if (type == "Sequence") {
    step["pretokenizers"].each([&](const Node& part) { read_pretokenizer(part, spec, done); });
  } else if (type == "Split") {
    read_split(step, spec);
  } else if (type == "ByteLevel") {
    if (step["add_prefix_space"].flag(true)) spec.pretokenizer.add_prefix_space();
    if (step["use_regex"].flag(true)) spec.pretokenizer.add_split(kGpt2Pattern, true, true, step.where());
    done = true;
  } else {
    step.refuse("pre-tokenizer type " + type, "ByteLevel, Split, Sequence");
  }
}

void read_template(const Node& processor, TokenizerSpec& spec) {
  std::vector<int32_t> prefix, suffix;
  int sequences = 0;
  processor["single"].each([&](const Node& piece) {
    if (!piece["Sequence"].is_null()) {
      ++sequences;
      return;
    }
    const std::string& name = piece["SpecialToken"]["id"].text();
    const Node token = processor["special_tokens"][name.c_str()];
    token["ids"].each([&](const Node& id) {
      const int64_t value = id.integer();
      if (value < 0 || value >= static_cast<int64_t>(spec.bytes_by_id.size()))
        throw_data("{}: is {}, expected an id of the vocabulary (below {})", id.where(), value,
                   spec.bytes_by_id.size());
      (sequences == 0 ? prefix : suffix).push_back(static_cast<int32_t>(value));
    });
  });
  if (sequences != 1)
    throw_data("{}: holds the text {} times, expected once", processor["single"].where(), sequences);
  spec.prefix.insert(spec.prefix.begin(), prefix.begin(), prefix.end());
  spec.suffix.insert(spec.suffix.end(), suffix.begin(), suffix.end());
}

void read_post_processor(const Node& processor, TokenizerSpec& spec) {
  if (processor.is_null()) return;
  const std::string& type = processor["type"].text();
  if (type == "Sequence")
    processor["processors"].each([&](const Node& part) { read_post_processor(part, spec); });
  else if (type == "TemplateProcessing")
    read_template(processor, spec);
  else if (type != "ByteLevel")  // ByteLevel changes offsets, not ids
    processor.refuse("post-processor type " + type, "TemplateProcessing, ByteLevel, Sequence");
}

AddedToken added_token(const Node& token, const std::string& content) {
  if (token["single_word"].flag(false)) token["single_word"].refuse("single_word", "false");
  return {content, -1, token["lstrip"].flag(false), token["rstrip"].flag(false),
          token["normalized"].flag(true)};
}

}  // namespace

TokenizerSpec read_tokenizer_json(const std::filesystem::path& file) {
  const json document = parse_file(file);
  const Node root(&document, file.string());
  for (const char* key : {"truncation", "padding"})
    if (!root[key].is_null()) root[key].refuse(key, "null");
  TokenizerSpec spec;
  read_model(root["model"], spec);
  if (!root["added_tokens"].is_null())
    root["added_tokens"].each([&](const Node& token) {
      spec.add_added_token(added_token(token, token["content"].text()), token["id"].integer(), token.where());
    });
  read_normalizer(root["normalizer"], spec);
  bool byte_level = false;
  if (!root["pre_tokenizer"].is_null()) read_pretokenizer(root["pre_tokenizer"], spec, byte_level);
  if (!byte_level)
    root["pre_tokenizer"].refuse("a tokenizer without the ByteLevel pre-tokenizer", "byte-level BPE");
  read_post_processor(root["post_processor"], spec);
  if (const Node decoder = root["decoder"]; !decoder.is_null() && decoder["type"].text() != "ByteLevel")
    decoder.refuse("decoder type " + decoder["type"].text(), "ByteLevel");
  return spec;
}

void apply_tokenizer_config(const std::filesystem::path& file, TokenizerSpec& spec) {
  const std::filesystem::path path = file.parent_path() / "tokenizer_config.json";
  if (!name_exists(path)) return;
  const json document = parse_file(path);
  const Node root(&document, path.string());
  if (document.is_object() && document.contains("bos_token") && root["bos_token"].is_null())
    spec.without_bos = spec.bos.empty();
  // a special token is a string, or an object with the string in `content`
  for (const char* key :
       {"bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token"}) {
    const Node token = root[key];
    if (token.is_null()) continue;
    const std::string& content = token.is_object() ? token["content"].text() : token.text();
    spec.add_added_token(token.is_object() ? added_token(token, content) : AddedToken{content, -1}, -1,
                         token.where());
    if (root["bos_token"].where() == token.where()) spec.bos = content;
    if (root["eos_token"].where() == token.where()) spec.eos = content;
  }
  if (root["added_tokens_decoder"].is_null()) return;
  // objects come sorted as text; new tokens get their ids in the order of the numbers
  std::vector<std::pair<int64_t, Node>> tokens;
  for (const auto& [id, value] : root["added_tokens_decoder"].object().items()) {
    const bool is_id =
        !id.empty() && id.size() < 9 && id.find_first_not_of("0123456789") == std::string::npos;
    if (!is_id)
      throw_data("{}: added_tokens_decoder has the key {:?}, expected a token id", path.string(), id);
    tokens.emplace_back(std::stoll(id), Node(&value, path.string() + ".added_tokens_decoder." + id));
  }
  std::ranges::sort(tokens, {}, [](const auto& entry) { return entry.first; });
  for (const auto& [id, token] : tokens)
    spec.add_added_token(added_token(token, token["content"].text()), id, token.where());
}

}  // namespace hyperion::trainer
