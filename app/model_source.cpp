#include "app/model_source.h"

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "checkpoint/tools/folders.h"
#include "models/args/model_args.h"
#include "trainer/checkpointing/resume_policy.h"
#include "trainer/checkpointing/stored_weights.h"
#include "trainer/config/input_path.h"
#include "trainer/config/load.h"
#include "trainer/config/schema.h"
#include "trainer/config/validate.h"
#include "trainer/data/job_data.h"
#include "trainer/hugging_face/config.h"
#include "trainer/hugging_face/hf_model.h"
#include "trainer/runtime/runtime.h"

namespace hyperion::app {
namespace fs = std::filesystem;
namespace {

config::JobConfig::Model hugging_face_model(const fs::path& folder) {
  config::ResolvedConfig resolved;
  config::JobConfig::Model& model = resolved.config.model;
  model.name = hugging_face::read_hf_config(folder / "config.json").family;
  model.flavor = models::kFlavorFromHf;
  model.hf_assets_path = fs::absolute(folder).lexically_normal().string();
  hugging_face::resolve_hf_model(resolved, config::install_root());
  return model;
}

// --config decides which model it is; what the checkpoint says otherwise, and shapes do not show, is named.
void warn_of_other_model(const fs::path& checkpoint, const checkpoint::OpenCheckpoint& open,
                         const config::JobConfig::Model& configured, int64_t seq_len,
                         const std::string& config) {
  const auto settings = [&](const config::JobConfig::Model& model) {
    models::ModelArgs args = config::model_args(model);
    return checkpointing::model_settings(seq_len > 0 ? models::with_yarn_decided(args, seq_len) : args);
  };
  std::optional<config::JobConfig::Model> saved;
  const fs::path folder = is_folder(checkpoint) ? checkpoint : checkpoint.parent_path();
  if (open.index.layout != checkpoint::CheckpointIndex::Layout::kBareBytes)
    saved = checkpointing::saved_model(open);
  else if (name_exists(folder / "config.json"))
    try {
      saved = hugging_face_model(folder);
    } catch (const Error& error) {
      log_warning("{} decides which model it is; the config.json beside the weights is not compared: {}",
                  config, error.what());
    }
  if (!saved) return;
  const checkpointing::CurveSettings there = settings(*saved);
  for (const auto& [key, value] : settings(configured)) {
    const std::string* other = checkpointing::find_setting(there, key);
    if (other != nullptr && *other != value && !key.ends_with("load_balance_coeff") &&
        !key.ends_with("loss_coeff"))
      log_warning("{}: the checkpoint says that {} is {}, {} that it is {}, which is used",
                  checkpoint.string(), key, *other, config, value);
  }
}

ModelOrigin find_origin(const fs::path& checkpoint, const std::string& config) {
  const checkpoint::OpenCheckpoint open = checkpoint::open_checkpoint(checkpoint);
  const fs::path folder = is_folder(checkpoint) ? checkpoint : checkpoint.parent_path();
  const bool described = config.empty() && name_exists(folder / "config.json");
  ModelOrigin origin;
  if (described) origin.model = hugging_face_model(folder);
  origin.record = checkpointing::read_record(open);
  origin.seq_len = origin.record.seq_len;
  if (!config.empty()) {
    config::ResolvedConfig resolved = config::load_config(config, {});
    hugging_face::resolve_hf_model(resolved, config::install_root());
    if (origin.record.imported == hugging_face::ImportedSettings{})
      origin.record.imported = hugging_face::imported_settings(resolved.config, config::install_root());
    if (config::kTensorParallel.on(resolved.config))
      log_info("{} = {} of {} has no effect here: this command runs on one rank", config::kTensorParallel.key,
               resolved.config.parallelism.tensor_parallel_degree, config);
    if (config::kContextParallel.on(resolved.config))
      log_info("{} = {} of {} has no effect here: this command runs on one rank",
               config::kContextParallel.key, resolved.config.parallelism.context_parallel_degree, config);
    if (config::divides_experts(resolved.config))
      log_info("{} = {} of {} has no effect here: this command runs on one rank", config::kExpertParallel.key,
               resolved.config.parallelism.expert_parallel_degree, config);
    origin.model = resolved.config.model;
    if (origin.seq_len == 0) origin.seq_len = resolved.config.training.seq_len;
    warn_of_other_model(checkpoint, open, origin.model, origin.seq_len, config);
    origin.tokenizer = origin.model.hf_assets_path;
    origin.tokenizer_by = "model.hf_assets_path of " + config;
    return origin;
  }
  if (described) {
    origin.tokenizer = folder.string();
    origin.tokenizer_by = "the folder of the weights";
    return origin;
  }
  const auto model = checkpointing::saved_model(open);
  if (!model)
    throw_config(
        "{}: the checkpoint does not say which model it is of: name the TOML file it was trained with "
        "(--config)",
        checkpoint.string());
  origin.model = *model;
  const std::string& stored = origin.record.tokenizer.path;
  // The job's own path may lead to it where the absolute one does not any more.
  const bool moved =
      !path_exists(stored) &&
      (stored.empty() || path_exists(config::resolve_input(model->hf_assets_path, config::install_root())));
  origin.tokenizer = moved ? model->hf_assets_path : stored;
  origin.tokenizer_by = "the checkpoint";
  return origin;
}

}  // namespace

ModelOrigin model_origin(const fs::path& checkpoint, const std::string& config) {
  checkpoint::require_checkpoint(checkpoint);
  ModelOrigin origin = find_origin(checkpoint, config);
  trainer::require_memory(config::model_args(origin.model), /*bytes_per_parameter=*/0,
                          trainer::rank_memory(at::kCPU, 1));
  return origin;
}

ModelSource model_source(const CommandLine::Inference& options) {
  ModelSource source;
  source.origin = model_origin(options.checkpoint, options.config);
  source.args = config::model_args(source.origin.model);
  if (const int64_t seq_len = source.origin.seq_len; seq_len > 0)
    source.args = models::with_yarn_decided(source.args, seq_len);
  const auto weights =
      std::make_shared<checkpointing::StoredWeights>(options.checkpoint, source.args, options.ema);
  source.load = [weights](const Parameter& parameter, const at::Tensor& weight) {
    weights->load(parameter, weight);
  };
  return source;
}

}  // namespace hyperion::app
