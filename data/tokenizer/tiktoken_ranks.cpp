// Reads tiktoken rank files: lines of "base64-of-the-bytes rank". The files hold neither the pattern nor the
// special tokens; for the three vocabularies in use, distinguished by their size, both are known here.
#include <algorithm>
#include <array>
#include <charconv>

#include <fmt/format.h>

#include "base/error.h"
#include "data/tokenizer/vocabulary.h"
#include "data/tokenizer/word_scanner.h"

namespace hyperion::data {
namespace {

struct Family {
  std::string_view name;
  size_t ranks;
  std::string_view pattern;
  std::vector<std::string> special;  // ids follow the ranks
  std::string bos, eos;
};

// Llama 3's 256 special tokens, with the names of the Hugging Face files of Llama 3.1 to 3.3.
std::vector<std::string> llama3_special() {
  std::vector<std::string> tokens = {"<|begin_of_text|>",
                                     "<|end_of_text|>",
                                     "<|reserved_special_token_0|>",
                                     "<|reserved_special_token_1|>",
                                     "<|finetune_right_pad_id|>",
                                     "<|reserved_special_token_2|>",
                                     "<|start_header_id|>",
                                     "<|end_header_id|>",
                                     "<|eom_id|>",
                                     "<|eot_id|>",
                                     "<|python_tag|>"};
  for (int i = 3; tokens.size() < 256; ++i) tokens.push_back(fmt::format("<|reserved_special_token_{}|>", i));
  return tokens;
}

const std::vector<Family>& families() {
  static const std::vector<Family> list = {
      {"GPT-2", 50256, kGpt2Pattern, {"<|endoftext|>"}, "<|endoftext|>", "<|endoftext|>"},
      {"Llama 3", 128000, kLlama3Pattern, llama3_special(), "<|begin_of_text|>", "<|end_of_text|>"},
      {"Qwen", 151643, kQwenPattern, {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}, "", "<|endoftext|>"},
  };
  return list;
}

// Decodes base64 with padding; false for anything else.
bool decode_base64(std::string_view text, std::string& bytes) {
  static constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  static const std::array<int, 256> values = [] {
    std::array<int, 256> table;
    table.fill(-1);
    for (size_t i = 0; i < kDigits.size(); ++i) table[static_cast<uint8_t>(kDigits[i])] = static_cast<int>(i);
    return table;
  }();
  bytes.clear();
  if (text.empty() || text.size() % 4 != 0) return false;
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  uint32_t bits = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const int value = i < text.size() - padding ? values[static_cast<uint8_t>(text[i])] : 0;
    if (value < 0) return false;
    bits = bits << 6 | static_cast<uint32_t>(value);
    if (i % 4 == 3)
      for (const unsigned shift : {16u, 8u, 0u})
        bytes += static_cast<char>(static_cast<uint8_t>(bits >> shift));
  }
  bytes.resize(bytes.size() - padding);
  return true;
}

// The pair (left, right) merges to left+right if that is a token, and the token's id is its rank.
MergeTable merges_of(const TokenizerSpec& spec) {
  MergeTable merges(2 * spec.words.size());
  std::string part;
  const auto id_of = [&](std::string_view bytes) {
    const auto known = spec.words.find(part.assign(bytes));
    return known == spec.words.end() ? -1 : known->second;
  };
  for (const auto& [bytes, id] : spec.words)
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      const int32_t left = id_of(std::string_view(bytes).substr(0, cut));
      const int32_t right = left < 0 ? -1 : id_of(std::string_view(bytes).substr(cut));
      if (right >= 0) merges.insert(left, right, {static_cast<uint32_t>(id), id});
    }
  return merges;
}

}  // namespace

TokenizerSpec read_tiktoken_ranks(const std::filesystem::path& file, std::string_view content) {
  TokenizerSpec spec;
  std::string bytes;
  size_t number = 0;
  for (size_t begin = 0; begin < content.size();) {
    const size_t end = std::min(content.find('\n', begin), content.size());
    std::string_view line = content.substr(begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    begin = end + 1;
    const std::string where = fmt::format("{}:{}", file.string(), ++number);
    if (line.empty()) continue;
    const size_t space = std::min(line.find(' '), line.size());
    int64_t rank = -1;
    const char* last = line.data() + line.size();
    const auto [stop, error] = std::from_chars(line.data() + std::min(space + 1, line.size()), last, rank);
    if (!decode_base64(line.substr(0, space), bytes) || error != std::errc() || stop != last)
      throw_data(
          "{}: is not a line of a tiktoken rank file (base64, space, rank); SentencePiece models are not "
          "supported",
          where);
    if (bytes.size() > 4096)
      throw_data("{}: a token of {} bytes, at most 4096 are accepted", where, bytes.size());
    spec.add_model_token(bytes, bytes, /*is_word=*/true, rank, where);
  }
  const auto family = std::ranges::find(families(), spec.words.size(), &Family::ranks);
  if (family == families().end())
    throw_data(
        "{}: holds {} ranks; the pattern and the special tokens are known for GPT-2 (50256), Llama 3 "
        "(128000) and Qwen (151643) alone: convert the file to a tokenizer.json",
        file.string(), spec.words.size());
  for (const std::string& token : family->special) spec.add_added_token({token, -1}, -1, file.string());
  spec.merges = merges_of(spec);
  spec.ignore_merges = true;
  spec.nfc = family->name == "Qwen";
  spec.pretokenizer.add_split(family->pattern, {.matches = true, .gaps = true}, file.string());
  spec.bos = family->bos;
  spec.eos = family->eos;
  spec.without_bos = spec.bos.empty();
  return spec;
}

}  // namespace hyperion::data
