#include "trainer/hugging_face/export_files.h"

#include <algorithm>
#include <utility>

#include <fmt/ranges.h>

#include "trainer/config/model_args.h"
#include "trainer/hugging_face/config.h"

namespace hyperion::hugging_face {
namespace fs = std::filesystem;
namespace {

// "" where what was imported is what the tokenizer says.
std::string compare_id(const ImportedSettings& imported, const std::string& key,
                       const std::optional<int64_t>& of_tokenizer) {
  const std::vector<int64_t> ids = imported_ids(imported, key);
  if (ids.empty() || (of_tokenizer && ids == std::vector{*of_tokenizer})) return "";
  const bool stops = !of_tokenizer || key != "eos_token_id" || std::ranges::count(ids, *of_tokenizer) > 0;
  return fmt::format("{} is {}, as imported; the tokenizer's is {}{}", key, fmt::join(ids, ", "),
                     of_tokenizer ? std::to_string(*of_tokenizer) : "none",
                     stops ? ""
                           : ", by which documents end in training: add it in generation_config.json where "
                             "generated texts are to end by it too");
}

}  // namespace

HuggingFaceFiles hugging_face_files(const config::JobConfig::Model& model, checkpoint::Dtype dtype,
                                    const data::Tokenizer* tokenizer, const fs::path& tokenizer_path,
                                    const ImportedSettings& imported, int64_t trained_seq_len) {
  models::ModelArgs args = config::model_args(model);
  std::vector<std::string> left_out;
  HfExport texts{.dtype = std::string(checkpoint::torch_name(dtype)),
                 .imported = within_vocabulary(imported, args.vocab_size, left_out)};
  const std::optional<int64_t> positions = imported_positions(imported);
  if (positions && !model.args.max_seq_len) args.max_seq_len = std::max(*positions, trained_seq_len);
  HuggingFaceFiles out;
  if (tokenizer != nullptr) {
    out.files = data::tokenizer_files(tokenizer_path);
    texts.bos_token_id = tokenizer->bos_id();
    texts.eos_token_id = tokenizer->eos_id();
    out.remarks = {compare_id(texts.imported, "bos_token_id", texts.bos_token_id),
                   compare_id(texts.imported, "eos_token_id", texts.eos_token_id)};
    std::erase(out.remarks, "");
  }
  if (!left_out.empty())
    out.remarks.push_back(fmt::format("{} is left out: imported, and beyond the model's vocabulary of {}",
                                      fmt::join(left_out, ", "), args.vocab_size));
  if (positions && args.max_seq_len > *positions && !model.args.max_seq_len)
    out.remarks.push_back(
        fmt::format("max_position_embeddings is {}, the length of the sequences in training "
                    "(training.seq_len); {} was imported",
                    args.max_seq_len, *positions));
  if (trained_seq_len > 0 && trained_seq_len < args.max_seq_len)
    out.remarks.push_back(
        fmt::format("max_position_embeddings is {}, {}; the weights were last trained with sequences of {} "
                    "tokens (training.seq_len)",
                    args.max_seq_len,
                    args.max_seq_len == positions ? "as imported" : "the model's (model.args.max_seq_len)",
                    trained_seq_len));
  out.files["config.json"] = hf_config(args, texts);
  if (std::string generation = hf_generation_config(texts); !generation.empty())
    out.files["generation_config.json"] = std::move(generation);
  return out;
}

}  // namespace hyperion::hugging_face
