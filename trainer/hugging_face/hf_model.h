// With model.flavor = "from_hf" the architecture comes from Hugging Face's config.json.
#pragma once

#include <filesystem>

#include "trainer/config/load.h"
#include "trainer/hugging_face/imported_settings.h"

namespace hyperion::hugging_face {

// With flavour "from_hf", fills every key of [model.args] that the job leaves unset from config.json in
// checkpoint.initial_load_path or, if that is unset or has none, in model.hf_assets_path. The file becomes
// the origin of each such key, so that `hyperion config` shows it and ranks that read different files
// disagree. Other flavours stay unchanged, but must exist for the model. `base` is as for resolve_input().
// Throws Error(kUsage), also for dimensions that contradict each other, each with the origin of its key.
void resolve_hf_model(config::ResolvedConfig& resolved, const std::filesystem::path& base);
// Returns each dimension of the job's model under the key of [model.args] that sets it. Keys without effect
// in the model, and the rules that compute hidden_dim, are left out.
models::ModelOverrides dimensions_of(const config::JobConfig::Model& model);
// Returns the settings in the folder of that config.json beyond the dimensions; empty for other flavours.
// Throws Error(kBadData).
ImportedSettings imported_settings(const config::JobConfig& config, const std::filesystem::path& base);

}  // namespace hyperion::hugging_face
