#include "trainer/build/model_and_optimizer.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <span>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <ATen/ops/zeros.h>

#include "base/durable.h"
#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "models/init.h"
#include "parallel/job/phase.h"
#include "parallel/placement.h"
#include "trainer/build/model_options.h"
#include "trainer/build/pipeline_setup.h"
#include "trainer/config/validate.h"

namespace hyperion::trainer {
namespace {

// NCCL connects two ranks when one first sends the other something, and takes memory for it: before the
// model does. `to`, `from`: how many numbers go to each rank and come from it, 0 or 1.
void connect_pairs(Exchange& ranks, at::Device device, const std::vector<int64_t>& to,
                   const std::vector<int64_t>& from) {
  const auto numbers = [&](const std::vector<int64_t>& peers) {
    return at::zeros({std::ranges::count(peers, 1)}, at::TensorOptions(at::kFloat).device(device));
  };
  ranks.start_all_to_all(numbers(from), numbers(to), from, to).wait();
}

// Does the same for what this rank's stages exchange with those before and after them.
void connect_stages(const Pipeline& pipeline, const StageGroups& groups, at::Device device) {
  const int own = groups.up.rank();
  std::vector<int64_t> higher(static_cast<size_t>(groups.up.size()), 0), lower = higher;
  for (size_t stage = 1; stage < pipeline.rank_of_stage.size(); ++stage) {
    const int before = pipeline.rank_of_stage[stage - 1], after = pipeline.rank_of_stage[stage];
    if (before == after || (before != own && after != own)) continue;
    const int peer = before == own ? after : before;
    (peer > own ? higher : lower)[static_cast<size_t>(peer)] = 1;
  }
  connect_pairs(groups.up, device, higher, lower);
  connect_pairs(groups.down, device, lower, higher);
}

// Returns the groups in which the optimizer exchanges matrices, with their ranks connected.
optim::OptimizerGroups optimizer_groups(const config::JobConfig& config, const ModelContext& context) {
  const auto group = [&](parallel::MeshDim dim) -> parallel::Communicator* {
    if (!updates_matrices(config.optimizer.name) || context.mesh.degree(dim) == 1) return nullptr;
    parallel::Communicator& ranks = context.groups.get(dim);
    const std::vector<int64_t> all(static_cast<size_t>(ranks.size()), 1);
    if (context.device.is_cuda()) connect_pairs(ranks, context.device, all, all);
    return &ranks;
  };
  optim::OptimizerGroups groups{.dense = {group(parallel::MeshDim::kFsdp), group(parallel::MeshDim::kTp)}};
  if (context.mesh.degree(parallel::MeshDim::kEp) > 1)
    groups.experts = {group(parallel::MeshDim::kEfsdp), group(parallel::MeshDim::kEtp)};
  return groups;
}

constexpr const char* kGradientDump = "HYPERION_DUMP_GRADIENTS";

// Every parameter of the model, with what this rank holds of it.
std::vector<checkpointing::ModelParameter> described_parameters(const ModelAndOptimizer& made,
                                                                const ModelContext& context,
                                                                at::ScalarType dtype) {
  std::map<const Parameter*, size_t> held;
  for (size_t i = 0; i < made.parameters.size(); ++i) held.emplace(&made.parameters[i]->parameter(), i);
  std::vector<checkpointing::ModelParameter> described;
  std::set<const Parameter*> known;  // a tied table is its first unit's
  const std::vector<models::UnitParameters>& units = made.transformer->units();
  for (size_t unit = 0; unit < units.size(); ++unit) {
    const int pp_rank = context.pipeline != nullptr ? rank_of_unit(*context.pipeline, unit) : 0;
    for (const ParameterPtr& parameter : units[unit].parameters) {
      if (!known.insert(parameter.get()).second) continue;
      const Placement placement = parallel::placement_of(*parameter, pp_rank, context.mesh, context.rank);
      checkpointing::ModelParameter& added =
          described.emplace_back(checkpointing::ModelParameter{parameter, placement, dtype});
      if (!placement.is_local) continue;
      added.index = held.at(parameter.get());
      added.sharded = made.parameters[added.index];
    }
  }
  return described;
}

// Returns the expert bias of every MoE block of the model.
std::vector<checkpointing::ExpertBias> described_biases(const models::Transformer& model,
                                                        const ModelContext& context) {
  std::vector<checkpointing::ExpertBias> described;
  for (size_t block = 0; block < model.blocks().size(); ++block) {
    const int pp_rank = context.pipeline != nullptr ? rank_of_unit(*context.pipeline, block + 1) : 0;
    if (models::ExpertBalancePtr balance = model.blocks()[block].balance())
      described.push_back(
          {std::move(balance), parallel::replicated_in_pp_rank(pp_rank, context.mesh, context.rank)});
  }
  return described;
}

// `head`, then the numbers of the gradients that this rank holds.
void write_gradients(const std::filesystem::path& path, const std::string& head,
                     std::span<const parallel::ShardedParameterPtr> parameters) {
  std::ofstream file(path, std::ios::binary);
  file << head;
  for (const parallel::ShardedParameterPtr& parameter : parameters) {
    const at::Tensor values = parameter->grad().to(at::kCPU, at::kFloat).contiguous();
    file.write(static_cast<const char*>(values.data_ptr()), static_cast<std::streamsize>(values.nbytes()));
  }
  file.close();
  if (!file) throw_save_failed("{}: cannot write {}", kGradientDump, path.string());
}

void connect_all_pairs(Exchange& ranks, at::Device device) {
  const std::vector<int64_t> all(static_cast<size_t>(ranks.size()), 1);
  connect_pairs(ranks, device, all, all);
}

void add_tensor_ranks(models::ParallelDims& dims, ModelAndOptimizer& made, const config::JobConfig& config,
                      const ModelContext& context) {
  parallel::Communicator& ranks = context.groups.get(parallel::MeshDim::kTp);
  dims.loss_parallel = !config.parallelism.disable_loss_parallel;
  if (ranks.size() == 1) return;
  dims.tp_group = &ranks;
  if (!context.device.is_cuda()) return;
  made.tensor_exchange = std::make_unique<parallel::StreamedExchange>(ranks, context.device);
  dims.tp_group = made.tensor_exchange.get();
  dims.chunked = config.parallelism.enable_async_tensor_parallel;
  if (dims.chunked) connect_all_pairs(*dims.tp_group, context.device);
}

void add_context_ranks(models::ParallelDims& dims, ModelAndOptimizer& made, const config::JobConfig& config,
                       const ModelContext& context) {
  parallel::Communicator& group = context.groups.get(parallel::MeshDim::kCp);
  dims.cp_group = &group;
  dims.ring = config::passes_keys_in_ring(config);
  if (group.size() == 1) return;
  if (config.parallelism.context_parallel_rotate_method == "alltoall" && !dims.ring)
    log_info(
        "parallelism.context_parallel_rotate_method = \"alltoall\": with training.document_mask keys and "
        "values are gathered, as by \"allgather\"");
  if (!context.device.is_cuda()) return;
  made.context_exchange = std::make_unique<parallel::StreamedExchange>(group, context.device);
  dims.cp_group = made.context_exchange.get();
  if (!dims.ring) return;
  const int ranks = group.size(), rank = group.rank();  // to the next rank, from the one before
  std::vector<int64_t> to(static_cast<size_t>(ranks), 0), from = to;
  to[static_cast<size_t>((rank + 1) % ranks)] = from[static_cast<size_t>((rank + ranks - 1) % ranks)] = 1;
  connect_pairs(*dims.cp_group, context.device, to, from);
}

void add_expert_ranks(models::ParallelDims& dims, const config::JobConfig& config,
                      const ModelContext& context) {
  if (context.mesh.degree(parallel::MeshDim::kEp) == 1) return;
  dims.ep_group = &context.groups.get(parallel::MeshDim::kEp);
  dims.expert_slices = config.parallelism.expert_parallel_slices;
  dims.shards_experts = context.mesh.degree(parallel::MeshDim::kEtp) > 1;
  std::vector<Exchange*> exchanging = {dims.ep_group};
  if (context.mesh.degree(parallel::MeshDim::kEpNodes) > 1) {
    dims.ep_nodes = {&context.groups.get(parallel::MeshDim::kEpNodes),
                     &context.groups.get(parallel::MeshDim::kEpInNode)};
    exchanging = {dims.ep_nodes.nodes, dims.ep_nodes.in_node};
  }
  for (Exchange* ranks : exchanging)
    if (context.device.is_cuda() && ranks->size() > 1) connect_all_pairs(*ranks, context.device);
}

// Returns the groups that layers exchange with, and connects their pairs on GPUs. `made` owns the exchanges.
models::ParallelDims make_parallel_dims(ModelAndOptimizer& made, const models::ModelArgs& args,
                                        const config::JobConfig& config, const ModelContext& context) {
  models::ParallelDims dims;
  add_tensor_ranks(dims, made, config, context);
  add_context_ranks(dims, made, config, context);
  add_expert_ranks(dims, config, context);
  if (args.experts.losses.global > 0)
    dims.batch_groups = {&context.groups.get(parallel::MeshDim::kFsdp),
                         &context.groups.get(parallel::MeshDim::kDpReplicate)};
  return dims;
}

// Makes the stage of this rank and the schedule that runs it.
void make_stage(ModelAndOptimizer& made, const config::JobConfig& config, const ModelContext& context) {
  const models::ActivationCheckpointing checkpointing = activation_checkpointing(config, *made.transformer);
  if (context.pipeline == nullptr) {
    made.stage = std::make_unique<Stage>(*made.transformer, *made.fsdp, checkpointing, made.experts.get());
    const auto& options = config.parallelism;
    made.schedule = std::make_unique<ScheduleRunner>(
        *made.stage, ScheduleOptions{.reshard_after_forward = options.fsdp_reshard_after_forward !=
                                                              config::ReshardAfterForward::kNever,
                                     .reduce_once = options.fsdp_reduce_gradients ==
                                                    config::ReduceGradients::kOncePerStep});
    return;
  }
  const Pipeline& pipeline = *context.pipeline;
  parallel::Communicator& ranks = context.groups.get(parallel::MeshDim::kPp);
  const StageGroups transfers = {ranks, context.groups.pp_down()};
  if (context.device.is_cuda()) connect_stages(pipeline, transfers, context.device);
  made.stage = std::make_unique<Stage>(*made.transformer, units_of_rank(pipeline, ranks.rank()), *made.fsdp,
                                       checkpointing, made.experts.get());
  made.schedule = std::make_unique<ScheduleRunner>(*made.stage, pipeline, transfers, context.device);
}

}  // namespace

ModelAndOptimizer make_model_and_optimizer(const models::ModelArgs& args, const config::JobConfig& config,
                                           const ModelContext& context) {
  ModelAndOptimizer made;
  const models::ParallelDims dims = make_parallel_dims(made, args, config, context);
  made.transformer = std::make_unique<models::Transformer>(args, config.training.loss_chunk_bytes, dims,
                                                           config.training.z_loss);
  if (const int64_t first = context.variation.frozen_from; first >= 0) {
    const std::vector<ParameterPtr> parameters = made.transformer->parameters();
    for (auto i = static_cast<size_t>(first); i < parameters.size(); i += 2) parameters[i]->trainable = false;
  }
  made.float8 = convert_to_float8(*made.transformer, config, context.float8);
  parallel::ShardingOptions sharding = sharding_options(config.training, context.device, made.float8.codec);
  if (context.without_memory) sharding.state_device = at::kMeta;
  sharding.pack_weights = context.variation.pack_weights;
  sharding.shard_alignment = context.variation.shard_alignment.value_or(sharding.shard_alignment);
  parallel::Communicator& tensor_ranks = context.groups.get(parallel::MeshDim::kTp);
  made.fsdp = std::make_unique<parallel::FsdpContext>(
      context.mesh, context.rank, context.groups.get(parallel::MeshDim::kFsdp),
      context.groups.get(parallel::MeshDim::kDpReplicate), sharding,
      context.variation.replicated_sum != nullptr ? context.variation.replicated_sum
      : tensor_ranks.size() > 1                   ? &tensor_ranks
                                                  : nullptr);
  if (context.mesh.degree(parallel::MeshDim::kEp) > 1)
    made.experts =
        std::make_unique<parallel::FsdpContext>(*made.fsdp, context.groups.get(parallel::MeshDim::kEfsdp));
  make_stage(made, config, context);
  made.transformer->allocate_balances(context.without_memory ? at::Device(at::kMeta) : context.device);
  made.parameters = made.stage->parameters();
  if (parallel::Communicator* ranks = context.groups.tied_group()) {
    if (context.device.is_cuda()) connect_pairs(*ranks, context.device, {1, 1}, {1, 1});
    made.tied = std::make_unique<TiedTable>(*ranks, *made.stage);
  }
  made.described = described_parameters(made, context, sharding.state_dtype);
  made.biases = described_biases(*made.transformer, context);
  made.optimizer = optim::make_optimizer(made.parameters, config.optimizer, optimizer_groups(config, context),
                                         context.seed);
  return made;
}

std::vector<parallel::ReplicatedTensor> replicated_state(
    const std::vector<parallel::ShardedParameterPtr>& parameters, const optim::Optimizer& optimizer,
    const std::vector<models::ExpertBalancePtr>& balances, parallel::Communicator& shard,
    parallel::Communicator& replicate, parallel::Communicator* tensor, const TiedTable* tied) {
  std::vector<parallel::ReplicatedTensor> state;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = parameters[i]->parameter();
    std::vector<parallel::Communicator*> groups;
    if (replicate.size() > 1) groups.push_back(&replicate);
    if (tensor != nullptr && parameter.cuts.empty()) groups.push_back(tensor);
    if (tied != nullptr && &tied->table() == parameters[i].get()) groups.push_back(&tied->ranks());
    if (groups.empty()) continue;
    state.push_back({parameter.fqn, parameters[i]->master(), groups});
    const std::vector<optim::StateKind> kinds = optimizer.kinds_of(parameter);
    for (size_t kind = 0; kind < kinds.size(); ++kind)
      state.push_back(
          {fmt::format("{} ({})", parameter.fqn, kinds[kind].name), optimizer.states(i)[kind], groups});
  }
  std::vector<parallel::Communicator*> all;
  for (parallel::Communicator* group : {&shard, &replicate, tensor})
    if (group != nullptr && group->size() > 1) all.push_back(group);
  if (!all.empty())
    for (const models::ExpertBalancePtr& balance : balances)
      state.push_back({balance->bias->fqn, balance->bias->weight, all});
  return state;
}

void copy_tied_table(const ModelAndOptimizer& model) {
  if (!model.tied) return;
  const auto is_table = [&](const auto& parameter) { return parameter.get() == &model.tied->table(); };
  const auto index =
      static_cast<size_t>(std::ranges::find_if(model.parameters, is_table) - model.parameters.begin());
  std::vector<at::Tensor> states = model.optimizer->states(index);
  if (model.ema) states.push_back(model.ema->tensors()[index]);
  model.tied->copy_from_first(states);
}

void initialise_weights(const ModelAndOptimizer& model, uint64_t seed) {
  parallel::set_phase("initial weights");
  uint64_t total = 0, done = 0;
  for (const parallel::ShardedParameterPtr& parameter : model.parameters)
    total += static_cast<uint64_t>(parameter->master().numel());
  Progress progress("initial weights", total, "numbers");
  for (const parallel::ShardedParameterPtr& parameter : model.parameters) {
    at::Tensor master = parameter->master();
    const Box box = parameter->box();
    // In pieces for the progress line.
    const int64_t rows = master.size(0);
    const int64_t step = std::max<int64_t>(1, (int64_t{1} << 24) / parameter->parameter().row_numel());
    for (int64_t row = 0; row < rows; row += step) {
      at::Tensor piece = master.narrow(0, row, std::min(step, rows - row));
      Box part = box;
      part.offset[0] += row;
      part.shape[0] = piece.size(0);
      models::initialize(parameter->parameter(), seed, part, piece);
      progress.update(done += static_cast<uint64_t>(piece.numel()));
    }
    if (parameter->has_separate_compute_shard()) parameter->compute_shard().copy_(master);
  }
  model.stage->weights_changed();
}

std::optional<std::filesystem::path> gradient_dump_folder() {
  const char* folder = std::getenv(kGradientDump);
  return folder != nullptr ? std::optional(std::filesystem::path(folder)) : std::nullopt;
}

void dump_gradients(const std::filesystem::path& folder, int rank, int ranks,
                    std::vector<parallel::ShardedParameterPtr> parameters) {
  std::erase_if(parameters, [](const auto& parameter) { return !parameter->parameter().trainable; });
  make_folders(folder);
  if (ranks == 1) {
    for (const parallel::ShardedParameterPtr& parameter : parameters)
      write_gradients(folder / (parameter->parameter().fqn + ".f32"), "", {&parameter, 1});
    return;
  }
  nlohmann::json boxes = nlohmann::json::array();
  for (const parallel::ShardedParameterPtr& parameter : parameters) {
    const Box box = parameter->box();
    boxes.push_back({{"name", parameter->parameter().fqn},
                     {"shape", parameter->parameter().shape},
                     {"offset", box.offset},
                     {"extent", box.shape}});
  }
  const nlohmann::json head = {{"rank", rank}, {"ranks", ranks}, {"parameters", std::move(boxes)}};
  write_gradients(folder / fmt::format("rank_{}.gradients", rank), head.dump() + "\n", parameters);
}

}  // namespace hyperion::trainer
