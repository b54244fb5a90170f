// Reads and writes a model's dimensions as Hugging Face's config.json, and writes the other files of an
// export.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/tokenizer.h"
#include "models/flavors/registry.h"
#include "trainer/config/job_config.h"
#include "trainer/hugging_face/imported_settings.h"

namespace hyperion::hugging_face {

// Returns the dimensions in a config.json of model_type llama, qwen2, qwen3, qwen3_moe, deepseek_v3,
// llama4_text, mistral or gpt_oss, written by transformers 4 (rope_theta, rope_scaling) or 5
// (rope_parameters). Missing fields have the defaults of transformers' configuration (and as many key-value
// heads as heads), but sizes are required. Messages name the file `name`. Throws Error(kUsage) with one
// sentence for anything that this program would compute differently: other model types, RoPE types,
// activations, biases, sliding windows of other families than mistral, qwen2, qwen3 and gpt_oss, routers.
// Throws Error(kBadData) for missing fields and wrong types. `warnings` gets a sentence for unknown keys
// (config_keys.def), and one for each key with two different values.
models::ModelArgs parse_hf_config(std::string_view text, const std::string& name,
                                  std::vector<std::string>* warnings = nullptr);
// Reads a config.json file in the same way. All errors are Error(kUsage), and warnings are logged.
models::ModelArgs read_hf_config(const std::filesystem::path& config_json);

// The values that an export writes in addition to the dimensions.
struct HfExport {
  std::string dtype = "float32";  // dtype of the weights, in torch's words
  std::optional<int64_t> bos_token_id{},
      eos_token_id{};  // the tokenizer's, for a model that was not imported
  ImportedSettings imported{};
};
// Returns the reason why transformers has no such model, so that it cannot be exported; nullopt if it can be.
// Only this function decides that.
std::optional<models::DimensionProblem> export_problem(const models::ModelArgs& args);
// Returns the text of a config.json that transformers 4 and 5 read alike: the model's dimensions, and all
// other fields as imported. Throws Error(kUsage) with export_problem().
std::string hf_config(const models::ModelArgs& args, const HfExport& options);
// Returns the text of a generation_config.json, which tells transformers' generate() how to begin and stop:
// the imported one, else one with the BOS and EOS ids; "" if neither is known.
std::string hf_generation_config(const HfExport& options);

// The files of an export that hold no weights.
struct HuggingFaceFiles {
  std::map<std::string, std::string> files;  // name -> content
  std::vector<std::string> remarks;          // one line each about unexpected contents
};

// Returns the files that make a folder of safetensors a model for transformers and Hyperion: config.json,
// generation_config.json and the tokenizer's files from `tokenizer_path`, with the imported settings. An
// imported max_position_embeddings stays unless [model.args] sets max_seq_len (a flavour's value need not be
// the weights') or training had longer sequences. Ids beyond the vocabulary are left out. Without a tokenizer
// its files, BOS and EOS are left out. `trained_seq_len` is training.seq_len of the job that made the
// weights; 0 if unknown.
HuggingFaceFiles hugging_face_files(const config::JobConfig::Model& model, checkpoint::Dtype dtype,
                                    const data::Tokenizer* tokenizer,
                                    const std::filesystem::path& tokenizer_path,
                                    const ImportedSettings& imported, int64_t trained_seq_len);

// Returns whether the model's config.json contains dimensions of `part`.
bool describes(const models::ModelArgs& args, models::ModelPart part);

// Returns one sentence for each dimension in which `ours` differs from config.json, so that no flavour loads
// another model's weights: "rope_factor is 8, but 32 in config.json". max_seq_len and weight initialisation
// do not count, nor does YaRN if sequences are too short for it by v0.2.2's rule.
std::vector<std::string> hf_differences(const models::ModelArgs& ours, const models::ModelArgs& config);

}  // namespace hyperion::hugging_face
