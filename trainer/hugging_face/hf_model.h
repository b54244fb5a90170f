// model.flavor = "from_hf": the architecture is the one of a config.json of Hugging Face.
#pragma once

#include <filesystem>

#include "trainer/config/load.h"
#include "trainer/hugging_face/imported_settings.h"

namespace hyperion::hugging_face {

// With that flavour, fills every key of [model.args] that the job leaves unset from config.json in
// checkpoint.initial_load_path or, when that is not set or holds none, in model.hf_assets_path; each then has
// the file as its origin, so that `hyperion config` shows it and ranks that read different files disagree.
// Other flavours are left alone, but have to be the model's. `base` as for resolve_input. Throws
// Error(kUsage), also for dimensions that do not fit together, each with the place of its key.
void resolve_hf_model(config::ResolvedConfig& resolved, const std::filesystem::path& base);
// Each dimension of the job's model, by the key of [model.args] that sets it; none for keys that change
// nothing in such a model, nor for rules of which hidden_dim is the result.
models::ModelOverrides dimensions_of(const config::JobConfig::Model& model);
// What the folder of that config.json says beyond the dimensions; nothing for other flavours. Throws
// Error(kBadData).
ImportedSettings imported_settings(const config::JobConfig& config, const std::filesystem::path& base);

}  // namespace hyperion::hugging_face
