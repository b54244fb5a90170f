// A model's dimensions as Hugging Face's config.json, in and out. Pure but for reading the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/flavors/model_args.h"
#include "models/flavors/registry.h"
#include "trainer/hugging_face/imported_settings.h"

namespace hyperion::hugging_face {

// The dimensions a config.json of model_type llama or qwen3 describes, written by transformers 4 (rope_theta,
// rope_scaling) or 5 (rope_parameters). What it leaves out has the default of transformers' LlamaConfig or
// Qwen3Config (and as many key-value heads as heads), except sizes, which must be there. `name` stands for
// the file in messages. Throws Error(kUsage) with one sentence for anything that this program would compute
// differently: other model types, RoPE types, activations, biases and sliding windows; and Error(kBadData)
// for fields that are missing or of another type.
models::ModelArgs parse_hf_config(std::string_view text, const std::string& name);
// The same, always with Error(kUsage).
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

// One sentence for each dimension in which `ours` differs from what config.json describes, so that a flavour
// is not filled with another model's weights: "rope_factor is 8, but 32 in config.json". max_seq_len and how
// weights are initialised do not count.
std::vector<std::string> hf_differences(const models::ModelArgs& ours, const models::ModelArgs& config);

}  // namespace hyperion::hugging_face
