#include "trainer/training_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "parallel/placement.h"
#include "trainer/checkpointing/stored_weights.h"
#include "trainer/config/print.h"
#include "trainer/config/validate.h"
#include "trainer/hugging_face/config.h"
#include "trainer/runtime/version.h"

namespace hyperion::trainer {

StateComponents state_components(const StateSources& sources) {
  const auto& [model, mesh, rank, device, state, loader, plan, configured] = sources;
  StateComponents components;
  const auto add = [&](auto component) { components.push_back(std::move(component)); };
  add(std::make_unique<checkpointing::ModelState>(model.described, model.biases));
  add(std::make_unique<checkpointing::OptimizerState>(
      *model.optimizer, model.described, parallel::replicated_placement(mesh, rank), plan, state));
  if (model.ema) add(std::make_unique<checkpointing::EmaState>(*model.ema, model.described));
  add(std::make_unique<checkpointing::TrainStateComponent>(
      state, mesh.degree(parallel::MeshDim::kBatch),
      checkpointing::to_object(config::config_entries(configured))));
  add(std::make_unique<checkpointing::SchedulerState>(plan, state));
  add(std::make_unique<checkpointing::LoaderComponent>(loader));
  add(std::make_unique<checkpointing::RngState>(device, rank, mesh.world_size(), plan.seed, state));
  return components;
}

checkpointing::CheckpointedState checkpointed_state(const Job& job, const checkpointing::ResumePlan& plan,
                                                    const checkpointing::ChosenCheckpoint* chosen,
                                                    const StateComponents& components,
                                                    checkpoint::MemoryMover& mover) {
  std::map<std::string, std::string> facts = {
      {"config_hash",
       fmt::format("{:016x}", config::config_hash(config::config_entries(job.configured.config)))},
      {"version", version_text()},
      {"model", plan.config.model.name + " " + plan.config.model.flavor},
      {"mesh", job.runtime.mesh->describe()}};
  checkpointing::JobRecord record = job.record;
  record.seq_len = plan.config.training.seq_len;
  record.data_parallel_ranks = job.runtime.mesh->degree(parallel::MeshDim::kBatch);
  const int64_t sequences = config::global_batch_of(plan.config.training, record.data_parallel_ranks);
  record.global_batch_tokens = record.seq_len * sequences;
  // A batch that these ranks kept is that of the ranks that began with it, also for the next resume.
  if (const auto& batch = job.configured.config.training;
      batch.global_batch_size == -1 && batch.global_batch_ramp.empty())
    record.data_parallel_ranks = sequences / plan.config.training.local_batch_size;
  if (chosen != nullptr && chosen->components.contains(checkpoint::kModelComponent))
    if (checkpointing::JobRecord stored = checkpointing::read_record(chosen->checkpoint);
        stored.imported != hugging_face::ImportedSettings{}) {
      record.imported = std::move(stored.imported);
      checkpointing::keep_ids_of_one_tokenizer(record, stored.tokenizer.hash);
    }
  facts.merge(checkpointing::record_facts(record));
  checkpointing::CheckpointedState state = {
      .config = plan.config, .model = job.model, .components = {}, .mover = mover, .facts = std::move(facts)};
  for (const auto& component : components) state.components.push_back(component.get());
  if (plan.config.checkpoint.last_save_in_hf) {
    state.exported = hugging_face::hugging_face_files(*record.model, plan.config.checkpoint.export_dtype,
                                                      job.data.tokenizer.get(), job.data.tokenizer_path,
                                                      record.imported, record.seq_len);
    state.export_notes = checkpointing::tokenizer_note(job.data.tokenizer->hash());
  }
  return state;
}

std::string state_table(const StateComponents& components) {
  std::string table;
  for (const auto& component : components) {
    for (const checkpoint::TensorState& tensor : component->tensors()) {
      int64_t shards = 1;
      std::string cuts;
      for (const Cut& cut : tensor.placement.cuts) {
        shards *= cut.parts;
        if (cut.parts > 1) cuts += fmt::format(", dim {} in {}", cut.dim, cut.parts);
      }
      table += fmt::format(
          "{:<72} {:<9} [{}]  {} shards x {} replicas{}{}\n", tensor.key,
          checkpoint::torch_name(tensor.dtype), fmt::join(tensor.shape, ", "), shards,
          tensor.placement.replicas, cuts,
          tensor.placement.is_local ? "" : fmt::format(", on pp rank {}", tensor.placement.pp_rank));
    }
    for (const checkpoint::ObjectState& object : component->objects())
      table += fmt::format("{:<72} {}\n", object.key, checkpoint::repr(object.value, 60));
  }
  return table;
}

}  // namespace hyperion::trainer
