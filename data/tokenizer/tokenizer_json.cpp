// Reads Hugging Face's tokenizer.json and tokenizer_config.json. Everything in them is checked; an unknown
// component is refused by its name, because ignoring it would give other ids.
#include <algorithm>
#include <ranges>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "data/tokenizer/byte_level.h"
#include "data/tokenizer/vocabulary.h"

namespace hyperion::data {
namespace {

using nlohmann::json;

constexpr size_t kMaxDepth = 64;

json parse_file(const std::filesystem::path& path) {
  return parse_json(read_file(path, kMaxFileBytes), path.string(), kMaxDepth);
}

[[noreturn]] void refuse(const JsonNode& node, std::string_view what, std::string_view supported) {
  throw_data("{}: {} is not supported; supported: {}", node.where(), what, supported);
}

void read_vocabulary(const JsonNode& vocabulary, TokenizerSpec& spec) {
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
std::pair<std::string, std::string> merge_parts(const JsonNode& merge) {
  if (merge.is_string()) {
    const std::string& text = merge.text();
    const size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
      throw_data("{}: is {:?}, expected two tokens with a space between them", merge.where(), text);
    return {text.substr(0, space), text.substr(space + 1)};
  }
  if (merge.array().size() != 2)
    throw_data("{}: has {} parts, expected 2", merge.where(), merge.array().size());
  return {JsonNode(merge.array()[0], merge.where()).text(), JsonNode(merge.array()[1], merge.where()).text()};
}

void read_merges(const JsonNode& merges, TokenizerSpec& spec) {
  spec.merges = MergeTable(merges.array().size());
  uint32_t rank = 0;
  merges.each([&](const JsonNode& merge) {
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

void read_model(const JsonNode& model, TokenizerSpec& spec) {
  // files from before 2020 name no type
  if (!model["type"].is_null() && model["type"].text() != "BPE")
    refuse(model, "model type " + model["type"].text(), "BPE");
  if (!model["dropout"].is_null()) refuse(model["dropout"], "dropout", "null");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (!model[key].is_null() && !model[key].text().empty()) refuse(model[key], "a word-part mark", "null");
  if (model["byte_fallback"].flag(false))
    refuse(model["byte_fallback"], "byte_fallback", "false (byte-level BPE)");
  spec.ignore_merges = model["ignore_merges"].flag(false);
  read_vocabulary(model["vocab"], spec);
  read_merges(model["merges"], spec);
  const bool every_byte = std::ranges::all_of(std::views::iota(0, 256), [&](int byte) {
    return spec.words.contains(std::string(1, static_cast<char>(byte)));
  });
  if (!model["unk_token"].is_null() && !every_byte)
    refuse(model["unk_token"], "an unknown token with a vocabulary that lacks bytes",
           "a vocabulary of all 256 bytes");
}

void read_normalizer(const JsonNode& normalizer, TokenizerSpec& spec) {
  if (normalizer.is_null()) return;
  const std::string& type = normalizer["type"].text();
  if (type == "Sequence")
    normalizer["normalizers"].each([&](const JsonNode& part) { read_normalizer(part, spec); });
  else if (type == "NFC")
    spec.nfc = true;
  else
    refuse(normalizer, "normalizer type " + type, "NFC, Sequence");
}

void read_split(const JsonNode& split, TokenizerSpec& spec) {
  const JsonNode regex = split["pattern"]["Regex"];
  const std::string pattern =
      regex.is_null() ? quoted_pattern(split["pattern"]["String"].text()) : regex.text();
  const std::string& behavior = split["behavior"].text();
  const bool invert = split["invert"].flag(false);
  if (behavior == "Isolated")
    spec.pretokenizer.add_split(pattern, {.matches = true, .gaps = true}, split.where());
  else if (behavior == "Removed")
    spec.pretokenizer.add_split(pattern, {.matches = invert, .gaps = !invert}, split.where());
  else
    refuse(split, "behavior " + behavior, "Isolated, Removed");
}

// `done` says that the ByteLevel step, after which text is no longer text, was read.
void read_pretokenizer(const JsonNode& step, TokenizerSpec& spec, bool& done) {
  if (done) refuse(step, "a pre-tokenizer behind ByteLevel", "ByteLevel as the last one");
  const std::string& type = step["type"].text();
  if (type == "Sequence") {
    step["pretokenizers"].each([&](const JsonNode& part) { read_pretokenizer(part, spec, done); });
  } else if (type == "Split") {
    read_split(step, spec);
  } else if (type == "ByteLevel") {
    if (step["add_prefix_space"].flag(true)) spec.pretokenizer.add_prefix_space();
    if (step["use_regex"].flag(true))
      spec.pretokenizer.add_split(kGpt2Pattern, {.matches = true, .gaps = true}, step.where());
    done = true;
  } else {
    refuse(step, "pre-tokenizer type " + type, "ByteLevel, Split, Sequence");
  }
}

void read_template(const JsonNode& processor, TokenizerSpec& spec) {
  std::vector<int32_t> prefix, suffix;
  int sequences = 0;
  processor["single"].each([&](const JsonNode& piece) {
    if (!piece["Sequence"].is_null()) {
      ++sequences;
      return;
    }
    const std::string& name = piece["SpecialToken"]["id"].text();
    const JsonNode token = processor["special_tokens"][name];
    token["ids"].each([&](const JsonNode& id) {
      const uint64_t value = id.count();
      if (value >= spec.bytes_by_id.size())
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

void read_post_processor(const JsonNode& processor, TokenizerSpec& spec) {
  if (processor.is_null()) return;
  const std::string& type = processor["type"].text();
  if (type == "Sequence")
    processor["processors"].each([&](const JsonNode& part) { read_post_processor(part, spec); });
  else if (type == "TemplateProcessing")
    read_template(processor, spec);
  else if (type != "ByteLevel")  // ByteLevel changes offsets, not ids
    refuse(processor, "post-processor type " + type, "TemplateProcessing, ByteLevel, Sequence");
}

AddedToken added_token(const JsonNode& token, const std::string& content) {
  if (token["single_word"].flag(false)) refuse(token["single_word"], "single_word", "false");
  return {content, -1, token["lstrip"].flag(false), token["rstrip"].flag(false),
          token["normalized"].flag(true)};
}

}  // namespace

TokenizerSpec read_tokenizer_json(const std::filesystem::path& file) {
  const json document = parse_file(file);
  const JsonNode root(document, file.string());
  for (const char* key : {"truncation", "padding"})
    if (!root[key].is_null()) refuse(root[key], key, "null");
  TokenizerSpec spec;
  read_model(root["model"], spec);
  if (!root["added_tokens"].is_null())
    root["added_tokens"].each([&](const JsonNode& token) {
      const auto id = static_cast<int64_t>(token["id"].count(0, INT64_MAX));
      spec.add_added_token(added_token(token, token["content"].text()), id, token.where());
    });
  read_normalizer(root["normalizer"], spec);
  bool byte_level = false;
  if (!root["pre_tokenizer"].is_null()) read_pretokenizer(root["pre_tokenizer"], spec, byte_level);
  if (!byte_level)
    refuse(root["pre_tokenizer"], "a tokenizer without the ByteLevel pre-tokenizer", "byte-level BPE");
  read_post_processor(root["post_processor"], spec);
  if (const JsonNode decoder = root["decoder"]; !decoder.is_null() && decoder["type"].text() != "ByteLevel")
    refuse(decoder, "decoder type " + decoder["type"].text(), "ByteLevel");
  return spec;
}

void apply_tokenizer_config(const std::filesystem::path& file, TokenizerSpec& spec) {
  const std::filesystem::path path = file.parent_path() / "tokenizer_config.json";
  if (!name_exists(path)) return;
  const json document = parse_file(path);
  const JsonNode root(document, path.string());
  if (document.is_object() && document.contains("bos_token") && root["bos_token"].is_null())
    spec.without_bos = spec.bos.empty();
  // a special token is a string, or an object with the string in `content`
  for (const char* key :
       {"bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token"}) {
    const JsonNode token = root[key];
    if (token.is_null()) continue;
    const std::string& content = token.is_object() ? token["content"].text() : token.text();
    spec.add_added_token(token.is_object() ? added_token(token, content) : AddedToken{content, -1}, -1,
                         token.where());
    if (root["bos_token"].where() == token.where()) spec.bos = content;
    if (root["eos_token"].where() == token.where()) spec.eos = content;
  }
  if (root["added_tokens_decoder"].is_null()) return;
  // objects are sorted as text; new tokens get their ids in numeric order
  std::vector<std::pair<int64_t, JsonNode>> tokens;
  for (const auto& [id, value] : root["added_tokens_decoder"].object().items()) {
    const bool is_id =
        !id.empty() && id.size() < 9 && id.find_first_not_of("0123456789") == std::string::npos;
    if (!is_id)
      throw_data("{}: added_tokens_decoder has the key {:?}, expected a token id", path.string(), id);
    tokens.emplace_back(std::stoll(id), JsonNode(value, path.string() + ".added_tokens_decoder." + id));
  }
  std::ranges::sort(tokens, {}, [](const auto& entry) { return entry.first; });
  for (const auto& [id, token] : tokens)
    spec.add_added_token(added_token(token, token["content"].text()), id, token.where());
}

}  // namespace hyperion::data
