// A model's dimensions as Hugging Face's config.json, in and out, and the other files of an export.
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

// The dimensions a config.json of model_type llama, qwen3, qwen3_moe, deepseek_v3 or llama4_text describes,
// written by transformers 4 (rope_theta, rope_scaling) or 5 (rope_parameters). What it leaves out has the
// default of transformers' configuration (and as many key-value heads as heads), except sizes, which must be
// there. `name` stands for the file in messages. Throws Error(kUsage) with one sentence for anything that
// this program would compute differently: other model types, RoPE types, activations, biases, sliding
// windows, routers; and Error(kBadData) for fields that are missing or of another type.
// `warnings` becomes a sentence for the keys of which nothing is known (config_keys.def), and for each that
// two places give different values.
models::ModelArgs parse_hf_config(std::string_view text, const std::string& name,
                                  std::vector<std::string>* warnings = nullptr);
// The same, always with Error(kUsage), and with the warnings logged.
models::ModelArgs read_hf_config(const std::filesystem::path& config_json);

// What export writes in addition to the dimensions.
struct HfExport {
  std::string dtype = "float32";  // of the weights, as torch names it
  std::optional<int64_t> bos_token_id{},
      eos_token_id{};  // the tokenizer's, for a model that was not imported
  ImportedSettings imported{};
};
// Why transformers has no such model, so that it cannot be exported: the one place that decides it. nullopt:
// it can be.
std::optional<models::DimensionProblem> export_problem(const models::ModelArgs& args);
// The text of a config.json that transformers 4 and 5 read alike: what the model is, and all else as
// imported. Throws Error(kUsage) with export_problem().
std::string hf_config(const models::ModelArgs& args, const HfExport& options);
// The text of a generation_config.json, by which transformers' generate() begins and stops: the imported one,
// else of the two tokens; "" when neither is known.
std::string hf_generation_config(const HfExport& options);

// The files of a model for Hugging Face that hold no weights.
struct HuggingFaceFiles {
  std::map<std::string, std::string> files;  // name -> content
  std::vector<std::string> remarks;          // a line each: what a reader may not expect in them
};

// The files next to safetensors that make their folder a model which transformers and Hyperion open by its
// name: config.json, generation_config.json and the tokenizer's files from `tokenizer_path`, with what was
// imported. An imported max_position_embeddings stays unless [model.args] sets max_seq_len, because a
// flavour's is not that of the weights, or training had longer sequences. Ids beyond the vocabulary are left
// out. Without a tokenizer: not its files nor its BOS and EOS. `trained_seq_len`: training.seq_len of the job
// that made the weights; 0: not known.
HuggingFaceFiles hugging_face_files(const config::JobConfig::Model& model, checkpoint::Dtype dtype,
                                    const data::Tokenizer* tokenizer,
                                    const std::filesystem::path& tokenizer_path,
                                    const ImportedSettings& imported, int64_t trained_seq_len);

// Whether config.json of such a model says a dimension of that part.
bool describes(const models::ModelArgs& args, models::ModelPart part);

// One sentence for each dimension in which `ours` differs from what config.json describes, so that a flavour
// is not filled with another model's weights: "rope_factor is 8, but 32 in config.json". max_seq_len and how
// weights are initialised do not count, nor YaRN where sequences are too short for it by v0.2.2's rule.
std::vector<std::string> hf_differences(const models::ModelArgs& ours, const models::ModelArgs& config);

}  // namespace hyperion::hugging_face
