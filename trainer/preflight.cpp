#include "trainer/preflight.h"

#include <fmt/format.h>

#include "base/log.h"
#include "checkpoint/names.h"
#include "models/args/model_args.h"
#include "models/flavors/registry.h"
#include "parallel/job/phase.h"
#include "trainer/checkpointing/hugging_face_weights.h"
#include "trainer/checkpointing/job_state.h"
#include "trainer/checkpointing/stored_weights.h"
#include "trainer/config/input_path.h"
#include "trainer/config/print.h"
#include "trainer/config/validate.h"
#include "trainer/hugging_face/config.h"
#include "trainer/hugging_face/hf_model.h"
#include "trainer/runtime/batch_job.h"

namespace hyperion::trainer {
namespace {

// Returns the remedy that gives this job the checkpoint's model.
std::string model_remedy(const config::JobConfig& config, const checkpointing::ChosenCheckpoint& chosen) {
  const auto saved = checkpointing::saved_model(chosen.checkpoint);
  const std::string options = saved ? config::model_options(*saved, config.model) : "";
  const std::string same = options.empty() ? "give this job that model ([model], [model.args])"
                                           : "to use it, start with " + options;
  return chosen.source == checkpointing::LoadSource::kOwn
             ? same + "; for a new run, name another checkpoint.folder"
             : same + ", or name another checkpoint.initial_load_path";
}

// Compares the checkpoint's model with the job's. Runs before anything is allocated for the model.
void require_model_of_job(const config::JobConfig& config, const models::ModelArgs& model,
                          const checkpointing::ChosenCheckpoint& chosen) {
  if (!chosen.components.contains(checkpoint::kModelComponent)) return;
  if (chosen.hugging_face)
    checkpointing::require_same_model(
        model, chosen.path, config.checkpoint.on_config_change == config::OnConfigChange::kOverride);
  std::map<std::string, std::string> names;
  for (const auto& [name, key] : chosen.names)
    if (chosen.checkpoint.index.tensors.contains(key)) names.emplace(name, key);
  const checkpoint::StoredNames stored =
      chosen.hugging_face ? checkpointing::hugging_face_names(model, names, chosen.checkpoint)
                          : checkpointing::own_names(chosen.checkpoint, names, /*ema=*/false);
  checkpointing::require_same_dimensions(model, chosen.checkpoint, stored, model_remedy(config, chosen));
  if (checkpointing::has_block_scales(stored) && !config.checkpoint.initial_load_in_hf_quantized)
    throw_config("{}: holds quantized weights with block scales; to read them start with {}",
                 chosen.path.string(),
                 config::override_text("checkpoint.initial_load_in_hf_quantized", "true"));
}

// Returns the model settings, beyond shapes, of a checkpoint without a trajectory. Hugging Face's config.json
// is already compared elsewhere.
checkpointing::CurveSettings settings_of_source(const checkpointing::ChosenCheckpoint& chosen,
                                                int64_t seq_len_of_job) {
  if (!chosen.components.contains(checkpoint::kModelComponent) || chosen.hugging_face) return {};
  const auto saved = checkpointing::saved_model(chosen.checkpoint);
  if (!saved) {
    log_info(
        "{} does not say which model its weights are of (it has no hyperion.json that names one): names and "
        "shapes are compared, and what they do not show, such as rope_theta, is this job's",
        chosen.path.string());
    return {};
  }
  const int64_t seq_len = checkpointing::read_record(chosen.checkpoint).seq_len;  // 0: not recorded
  return checkpointing::model_settings(
      models::with_yarn_decided(config::model_args(*saved), seq_len > 0 ? seq_len : seq_len_of_job));
}

}  // namespace

config::RunContext run_facts(const models::ModelArgs& model, int64_t world_size,
                             std::optional<int64_t> ranks_per_node) {
  config::RunContext facts;
  facts.world_size = world_size;
  facts.ranks_per_node = ranks_per_node;
  facts.model = model;
  facts.export_problem = hugging_face::export_problem(model);
  return facts;
}

void check_keys(const config::ResolvedConfig& resolved, const config::RunContext& facts) {
  config::require_valid_config(resolved, facts);
  if (const auto& checkpoint = resolved.config.checkpoint; checkpoint.enable)
    checkpoint::NameMap({checkpoint.rename.begin(), checkpoint.rename.end()});  // refuses what is no pattern
  signal_lead();                                                                // refuses what is no number
}

DataSetup checked_tokenizer(const config::ResolvedConfig& resolved, config::RunContext facts) {
  const parallel::PhaseGuard phase("load of the tokenizer");
  DataSetup data = load_tokenizer(resolved.config);
  if (resolved.config.checkpoint.enable && resolved.config.checkpoint.last_save_in_hf)
    data::tokenizer_files(data.tokenizer_path);  // refuses what cannot be read
  if (!facts.model) return data;
  const int64_t entries = data.tokenizer->vocab_size(), rows = facts.model->vocab_size;
  facts.tokenizer_vocab_size = entries;
  config::require_valid_config(resolved, facts);
  if (entries < rows / 2)
    log_warning(
        "model.hf_assets_path: the tokenizer {} has {} entries, fewer than half of the model's vocabulary of "
        "{}: the other rows of the embedding and the head are not trained; name the model's own tokenizer, "
        "or set model.args.vocab_size = {}",
        data.tokenizer_path, entries, rows, entries);
  return data;
}

DataSetup checked_data(const config::ResolvedConfig& resolved, const models::ModelArgs& model,
                       const parallel::Environment& environment) {
  parallel::set_phase("checks of the configuration");
  const config::RunContext facts = run_facts(model, environment.world_size, environment.local_world_size);
  config::require_valid_config(resolved, facts, config::install_root());
  check_keys(resolved, facts);
  DataSetup data = checked_tokenizer(resolved, facts);
  parallel::set_phase("checks of the data");
  check_training_documents(resolved.config);
  check_validation_documents(resolved.config);
  return data;
}

std::vector<std::string> start_warnings(const config::JobConfig& config, const models::ModelArgs& model,
                                        bool loads_weights) {
  std::vector<std::string> warnings;
  if (model.masks_documents && !config.training.document_mask)
    warnings.emplace_back(
        "torchtitan masks documents in this flavour: training.document_mask = true is the same here");
  if (model.experts.are_present() && model.experts.blocks(model.n_layers) == 0)
    warnings.push_back(fmt::format(
        "model.args.num_experts = {}, but no block has experts: n_layers = {}, n_dense_layers = {} and "
        "moe_every = {} leave none",
        model.experts.num_experts, model.n_layers, model.experts.n_dense_layers, model.experts.moe_every));
  if (config.model.flavor == models::kFlavorFromHf && !loads_weights && !config::is_dry_run(config))
    warnings.emplace_back(
        "model.flavor = \"from_hf\" takes the model's shape alone: to start from its weights set "
        "checkpoint.enable = true and checkpoint.initial_load_in_hf = true");
  return warnings;
}

checkpointing::JobRecord job_record(const config::ResolvedConfig& resolved, const DataSetup& data) {
  return {
      resolved.config.model,
      {std::filesystem::absolute(data.tokenizer_path).lexically_normal().string(), data.tokenizer->hash()},
      describe_training_data(resolved.config),
      hugging_face::imported_settings(resolved.config, config::install_root())};
}

models::ModelArgs job_model(const config::JobConfig& config) {
  models::ModelArgs model =
      models::with_yarn_decided(config::model_args(config.model), config.training.seq_len);
  model.experts.force_load_balance = config.debug.moe_force_load_balance;
  return model;
}

std::optional<PipelinePlan> job_pipeline(const config::JobConfig& config, const models::ModelArgs& model,
                                         const parallel::Mesh& mesh) {
  const int ranks = mesh.degree(parallel::MeshDim::kBatch);
  for (const auto& [begin, sequences] : config.training.global_batch_ramp)  // each can be run
    plan_pipeline(config, model, sequences / (config.training.local_batch_size * ranks));
  return plan_pipeline(config, model, config::microbatches_of(config.training, ranks));
}

LoaderContext loader_context(const parallel::Mesh& mesh, int rank, uint64_t seed,
                             const models::ModelArgs& model) {
  return {mesh.coordinate(rank, parallel::MeshDim::kBatch), mesh.degree(parallel::MeshDim::kBatch), seed,
          model.vocab_size};
}

void require_checkpoint_of_job(const config::ResolvedConfig& resolved, const models::ModelArgs& model,
                               const checkpointing::JobRecord& record,
                               const checkpointing::ChosenCheckpoint& chosen) {
  require_model_of_job(resolved.config, model, chosen);
  checkpointing::require_same_tokenizer(resolved, chosen, record.tokenizer);
}

namespace {

std::vector<data::SourceState> listed_sources(const data::LoaderState& state) {
  const auto named = state.named_sources();
  return {named.begin(), named.end()};
}

}  // namespace

checkpointing::ResumePlan plan_run(const config::ResolvedConfig& resolved, const models::ModelArgs& model,
                                   const parallel::Mesh& mesh, uint64_t seed, const data::LoaderState& data,
                                   const checkpointing::JobRecord& record,
                                   const checkpointing::ChosenCheckpoint* chosen) {
  const auto& training = resolved.config.training;
  const int degree = mesh.degree(parallel::MeshDim::kBatch);
  const checkpointing::JobContext facts{.data_parallel_degree = degree,
                                        .global_batch_size = config::global_batch_of(training, degree),
                                        .seed = seed,
                                        .data = data.fingerprint,
                                        .sources = listed_sources(data),
                                        .data_path = record.data,
                                        .model = model,
                                        .require_runnable = [&](const config::ResolvedConfig& followed) {
                                          config::require_valid_config(followed,
                                                                       run_facts(model, mesh.world_size()));
                                          job_pipeline(followed.config, model, mesh);
                                        }};
  if (chosen == nullptr) return checkpointing::fresh_plan(resolved, facts);
  require_checkpoint_of_job(resolved, model, record, *chosen);
  checkpointing::ResumeRequest request{
      .source = chosen->source, .components = chosen->components, .left_out = chosen->left_out};
  if (const checkpoint::Object* stored = chosen->find_object(checkpoint::kTrajectoryKey))
    request.stored = checkpointing::text_table(*stored, chosen->path.string());
  else
    request.stored_model = settings_of_source(*chosen, training.seq_len);
  const auto* step = chosen->find_value<int64_t>(checkpoint::kStepKey);
  request.step = step ? *step : checkpoint::step_of_name(chosen->path.filename().string()).value_or(0);
  if (const auto* position = chosen->find_value<std::string>(checkpoint::kLoaderPositionKey)) {
    const data::LoaderState saved = data::LoaderState::from_json(*position);
    request.data = saved.fingerprint;
    request.sources = listed_sources(saved);
  }
  const checkpointing::JobRecord saved_record = checkpointing::read_record(chosen->checkpoint);
  request.data_path = saved_record.data;
  request.data_parallel_degree = saved_record.data_parallel_ranks;
  return checkpointing::resume_plan(resolved, facts, request);
}

bool keeps_saved_values(const config::JobConfig& configured, const checkpointing::ResumePlan& plan) {
  return configured.checkpoint.on_config_change == config::OnConfigChange::kKeep ||
         plan.config.training.global_batch_size != configured.training.global_batch_size;
}

}  // namespace hyperion::trainer
