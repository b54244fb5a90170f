#include "trainer/checkpointing/stored_weights.h"

#include <algorithm>
#include <set>

#include <fmt/ranges.h>

#include "base/collective.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "checkpoint/content_reader.h"
#include "checkpoint/names.h"
#include "models/description.h"
#include "models/transformer.h"
#include "trainer/checkpointing/hugging_face_weights.h"
#include "trainer/checkpointing/job_state.h"
#include "trainer/config/overrides.h"
#include "trainer/hugging_face/config.h"

namespace hyperion::checkpointing {
namespace {

// Returns "10 layers there, 8 here; dim 64 there, 32 here"; "" if no difference is known. `keys` maps a
// parameter's name to its key.
std::string dimension_differences(const models::ModelArgs& args, const checkpoint::CheckpointIndex& index,
                                  const std::map<std::string, std::string>& keys) {
  std::vector<std::string> differences;
  const auto compare = [&](const char* text, int64_t there, int64_t here) {
    if (there != here) differences.push_back(fmt::format(fmt::runtime(text), there, here));
  };
  std::set<std::string> layers;
  for (const auto& [name, key] : keys)
    if (name.starts_with("layers.")) layers.insert(name.substr(0, name.find('.', 7)));
  if (!layers.empty())
    compare("{} layers there, {} here", static_cast<int64_t>(layers.size()), args.n_layers);
  const auto compare_extent = [&](const char* name, size_t axis, const char* text) {
    const auto key = keys.find(name);
    const std::optional<models::NamedShape> here = models::find_shape(args, name);
    if (key == keys.end() || !here) return;
    const auto record = index.tensors.find(key->second);
    if (record != index.tensors.end() && record->second.shape.size() == 2)
      compare(text, record->second.shape[axis], here->shape.dims[axis]);
  };
  compare_extent("tok_embeddings.weight", 1, "dim {} there, {} here");
  compare_extent("tok_embeddings.weight", 0, "a vocabulary of {} there, {} here");
  compare_extent("layers.0.attention.wq.weight", 0, "n_heads x head_dim = {} there, {} here");
  compare_extent("layers.0.attention.wk.weight", 0, "n_kv_heads x head_dim = {} there, {} here");
  compare_extent("layers.0.feed_forward.w1.weight", 0, "hidden_dim {} there, {} here");
  return fmt::format("{}", fmt::join(differences, "; "));
}

}  // namespace

checkpoint::StoredNames own_names(const checkpoint::OpenCheckpoint& checkpoint,
                                  const std::map<std::string, std::string>& all, bool ema) {
  checkpoint::StoredNames names;
  for (const auto& [name, key] : all) {
    const std::string component = checkpoint::component_of(name);
    if (ema && component == checkpoint::kEmaComponent)
      names.keys.emplace(name.substr(checkpoint::kEmaPrefix.size()), key);
    if (!ema && component == checkpoint::kModelComponent) names.keys.emplace(name, key);
  }
  if (!ema) return names;
  if (names.keys.empty())
    throw_data("{}: the checkpoint holds no averaged weights (ema)", checkpoint.folder.string());
  for (const auto& [name, key] : all)
    if (checkpoint::component_of(name) == checkpoint::kModelComponent && !checkpoint::is_averaged(name))
      names.keys.emplace(name, key);
  return names;
}

void require_same_model(const models::ModelArgs& args, const std::filesystem::path& folder, bool overrides) {
  const std::filesystem::path file = folder / "config.json";
  if (!name_exists(file))
    return log_info(
        "{} has no config.json, which would say which model its weights are of: names and shapes are "
        "compared, and what they do not show, such as rope_theta, is this job's",
        folder.string());
  const std::vector<std::string> differences =
      hugging_face::hf_differences(args, hugging_face::read_hf_config(file));
  if (differences.empty()) return;
  const std::string text = fmt::format("{} describes another model than this job's: {}", file.string(),
                                       fmt::join(differences, "; "));
  const std::string override_values = config::override_text("checkpoint.on_config_change", "override");
  if (overrides) return log_warning("{}; the job's values are used ({})", text, override_values);
  throw_config(
      "{}; choose the model's flavour, start with {}, or, to use the weights with this job's values, with {}",
      text, config::override_text("model.flavor", "from_hf"), override_values);
}

void require_same_dimensions(const models::ModelArgs& args, const checkpoint::OpenCheckpoint& checkpoint,
                             const checkpoint::StoredNames& names, const std::string& remedy) {
  const std::string differences = dimension_differences(args, checkpoint.index, names.keys);
  if (differences.empty()) return;
  throw_incompatible("the checkpoint is of another model: {} ({}); {}", differences,
                     checkpoint.folder.string(), remedy);
}

std::string explain_head(const checkpoint::NameDifferences& differences, bool hugging_face) {
  const auto has_head = [](const std::vector<std::string>& names) {
    return std::ranges::count(names, "output.weight") > 0;
  };
  const char* setting = hugging_face ? "tie_word_embeddings (config.json)" : "model.args.tied";
  if (has_head(differences.missing))
    return fmt::format(
        "output.weight is the head{}: a model that uses the embedding's table for it says so by {} = true.",
        hugging_face ? ", lm_head.weight of Hugging Face" : "", setting);
  if (has_head(differences.unexpected))
    return fmt::format("The model uses the embedding's table as its head, by {} = true.", setting);
  return "";
}

std::string untie_remedy(const std::filesystem::path& folder, bool hugging_face, const std::string& options) {
  const std::filesystem::path file = folder / "config.json";
  if (hugging_face && name_exists(file))
    return fmt::format("to keep both, set tie_word_embeddings to false in {}", file.string());
  return "to keep both, " + options;
}

namespace {

// Returns the model's saved parameters, unsharded.
std::vector<checkpoint::TensorState> whole_parameters(const models::ModelArgs& args) {
  std::vector<checkpoint::TensorState> states;
  for (const ParameterPtr& parameter : saved_parameters(models::Transformer(args))) {
    checkpoint::TensorState& state = states.emplace_back();
    state.key = parameter->fqn;
    state.shape = parameter->shape;
    state.aliases = parameter->aliases;
  }
  return states;
}

checkpoint::LoadOptions whole_load_options(const checkpoint::OpenCheckpoint& checkpoint) {
  const bool hugging_face = checkpoint.index.layout == checkpoint::CheckpointIndex::Layout::kBareBytes;
  checkpoint::LoadOptions options;
  options.subject = "its model";
  options.allow_dtype_cast = true;
  options.untie = untie_remedy(checkpoint.folder, hugging_face,
                               "name a configuration with model.args.tied = false (--config)");
  options.advice = [hugging_face](const checkpoint::NameDifferences& differences) {
    const std::string head = explain_head(differences, hugging_face);
    return fmt::format("{}{}The model is the one that {} describes{}.", head, head.empty() ? "" : " ",
                       hugging_face ? "config.json beside the weights" : "the checkpoint",
                       hugging_face ? "" : ", unless --config names its TOML file");
  };
  return options;
}

}  // namespace

void require_complete_model(const models::ModelArgs& args, const checkpoint::OpenCheckpoint& checkpoint,
                            const checkpoint::StoredNames& names) {
  const checkpoint::LoadOptions options = whole_load_options(checkpoint);
  for (const checkpoint::LoadItem& item :
       checkpoint::plan_load(checkpoint, whole_parameters(args), names, options))
    checkpoint::require_equal_aliases(checkpoint, item, item.tensor.box(), options);
}

StoredWeights::StoredWeights(const std::filesystem::path& folder, const models::ModelArgs& args, bool ema)
    : checkpoint_(checkpoint::open_checkpoint(folder)) {
  const bool hugging_face = checkpoint_.index.layout == checkpoint::CheckpointIndex::Layout::kBareBytes;
  if (hugging_face && ema)
    throw_data("{}: safetensors hold one set of weights and no averages", folder.string());
  std::vector<std::string> keys;
  for (const auto& [key, record] : checkpoint_.index.tensors) keys.push_back(key);
  const std::map<std::string, std::string> all = checkpoint::NameMap().apply(keys);
  const checkpoint::StoredNames names =
      hugging_face ? hugging_face_names(args, all, checkpoint_) : own_names(checkpoint_, all, ema);
  require_same_dimensions(args, checkpoint_, names,
                          "name the configuration that it was trained with (--config)");
  log_left_out(names, checkpoint_.folder);
  for (const checkpoint::LoadItem& item :
       checkpoint::plan_load(checkpoint_, whole_parameters(args), names, whole_load_options(checkpoint_)))
    items_.emplace(item.tensor.key, item);
}

void StoredWeights::load(const Parameter& parameter, const at::Tensor& weight) const {
  checkpoint::LoadItem item = items_.at(parameter.fqn);
  item.tensor.dtype = dtype_of(weight.scalar_type());
  item.tensor.data = weight.data_ptr();
  item.tensor.on_device = !weight.is_cpu();
  DeviceMover mover(weight.device());
  checkpoint::LoadOptions options = whole_load_options(checkpoint_);
  options.verify_finite = true;
  checkpoint::load_tensors(checkpoint_, {item}, mover, options);
}

}  // namespace hyperion::checkpointing
