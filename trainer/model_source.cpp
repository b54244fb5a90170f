#include "trainer/model_source.h"

#include <fmt/format.h>

#include "base/error.h"
#include "checkpoint/loader.h"
#include "checkpoint/tools/folders.h"
#include "models/hugging_face_config.h"
#include "trainer/config/load.h"
#include "trainer/data_setup.h"
#include "trainer/hf_model.h"
#include "trainer/options.h"
#include "trainer/resume_policy.h"
#include "trainer/runtime.h"
#include "trainer/stored_weights.h"

namespace hyperion {
namespace fs = std::filesystem;
namespace {

constexpr const char* kConfigKey = "train_state.config";

fs::path folder_of(const fs::path& checkpoint) {
  return fs::is_directory(checkpoint) ? checkpoint : checkpoint.parent_path();
}

JobConfig::Model configured_model(const std::string& file) {
  ResolvedConfig resolved = load_config(file, {});
  resolve_hf_model(resolved, install_root());
  return resolved.config.model;
}

}  // namespace

std::optional<JobConfig::Model> saved_model(const fs::path& checkpoint) {
  if (!fs::exists(checkpoint / ".metadata")) return std::nullopt;
  const auto objects =
      load_objects(open_checkpoint(checkpoint), [](const std::string& key) { return key == kConfigKey; });
  if (objects.empty()) return std::nullopt;
  std::string toml;  // the values are stored as TOML writes them
  for (const auto& [key, text] : text_table(objects.begin()->second, checkpoint.string()))
    if (key.starts_with("model.") && text != "null") toml += fmt::format("{} = {}\n", key, text);
  return parse_config(toml, checkpoint.string(), {}).config.model;
}

namespace {

ModelArgs described_model(const fs::path& checkpoint, const std::string& config) {
  if (!config.empty()) return model_args(configured_model(config));
  const fs::path hugging_face = folder_of(checkpoint) / "config.json";
  if (fs::exists(hugging_face)) return read_hf_config(hugging_face);
  if (const auto model = saved_model(checkpoint)) return model_args(*model);
  throw_config(
      "{}: the checkpoint does not say which model it is of: name the TOML file it was trained with "
      "(--config)",
      checkpoint.string());
}

}  // namespace

ModelArgs model_of(const fs::path& checkpoint, const std::string& config) {
  require_checkpoint(checkpoint);
  const ModelArgs args = described_model(checkpoint, config);
  require_memory(args, /*bytes_per_parameter=*/0, rank_memory(at::kCPU, 1));
  return args;
}

std::string tokenizer_of(const fs::path& checkpoint, const std::string& config) {
  if (!config.empty()) return configured_model(config).hf_assets_path;
  if (const auto model = saved_model(checkpoint)) return model->hf_assets_path;
  return folder_of(checkpoint).string();
}

ModelSource model_source(const CommandLine::Look& look) {
  ModelSource source;
  source.args = model_of(look.checkpoint, look.config);
  source.tokenizer = tokenizer_of(look.checkpoint, look.config);
  const auto weights = std::make_shared<StoredWeights>(look.checkpoint, source.args, look.ema);
  source.load = [weights](const Parameter& parameter, const at::Tensor& weight) {
    weights->load(parameter, weight);
  };
  return source;
}

}  // namespace hyperion
