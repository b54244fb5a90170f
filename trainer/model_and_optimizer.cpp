#include "trainer/model_and_optimizer.h"

#include <algorithm>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include "base/progress.h"
#include "models/init.h"
#include "parallel/job/phase.h"
#include "trainer/attention_choice.h"
#include "trainer/kernel_choice.h"
#include "trainer/model_options.h"

namespace hyperion::trainer {
namespace {

// NCCL connects two ranks when they first send each other something, and takes memory for it: before the
// model does.
void connect_pairs(Exchange& ranks, at::Device device) {
  const at::Tensor sent = at::zeros({ranks.size()}, at::TensorOptions(at::kFloat).device(device));
  const std::vector<int64_t> one_each(static_cast<size_t>(ranks.size()), 1);
  ranks.start_all_to_all(at::empty_like(sent), sent, one_each, one_each).wait();
}

}  // namespace

ModelAndOptimizer make_model_and_optimizer(const models::ModelArgs& args, const config::JobConfig& config,
                                           const ModelPlace& place) {
  if (!place.without_memory) {
    choose_kernels(place.float8);
    choose_attention(args, config, place.device, place.groups.host());
  }
  ModelAndOptimizer made;
  parallel::Communicator& tensor_ranks = place.groups.get(parallel::MeshDim::kTp);
  parallel::Communicator* tensor = tensor_ranks.size() > 1 ? &tensor_ranks : nullptr;
  models::ParallelDims dims{.tensor = tensor, .loss_parallel = !config.parallelism.disable_loss_parallel};
  if (tensor != nullptr && place.device.is_cuda()) {
    made.tensor_exchange = std::make_unique<parallel::StreamedExchange>(*tensor, place.device);
    dims.tensor = made.tensor_exchange.get();
    dims.chunked = config.parallelism.enable_async_tensor_parallel;
    if (dims.chunked) connect_pairs(*dims.tensor, place.device);
  }
  made.transformer = std::make_unique<models::Transformer>(args, config.training.loss_chunk_bytes, dims);
  made.float8 = convert_to_float8(*made.transformer, config, place.float8);
  parallel::ShardingOptions sharding = sharding_options(config.training, place.device, made.float8.codec);
  if (place.without_memory) sharding.state_device = at::kMeta;
  made.fsdp = std::make_unique<parallel::FsdpContext>(
      place.mesh, place.rank, place.groups.get(parallel::MeshDim::kFsdp),
      place.groups.get(parallel::MeshDim::kDpReplicate), sharding, tensor);
  const models::ActivationCheckpointing checkpointing = activation_checkpointing(config, *made.transformer);
  made.stage = std::make_unique<Stage>(*made.transformer, 0, made.transformer->units().size(), *made.fsdp,
                                       checkpointing);
  made.schedule = std::make_unique<ScheduleRunner>(
      *made.stage, config.parallelism.fsdp_reshard_after_forward != config::ReshardAfterForward::kNever);
  made.parameters = made.stage->parameters();
  made.optimizer = std::make_unique<optim::Adam>(made.parameters, config.optimizer);
  return made;
}

std::vector<parallel::ReplicatedTensor> replicated_state(
    const std::vector<parallel::ShardedParameterPtr>& parameters, const optim::Adam& optimizer,
    parallel::Communicator& replicate, parallel::Communicator* tensor) {
  std::vector<parallel::ReplicatedTensor> state;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = parameters[i]->parameter();
    std::vector<parallel::Communicator*> groups;
    if (replicate.size() > 1) groups.push_back(&replicate);
    if (tensor != nullptr && parameter.cuts.empty()) groups.push_back(tensor);
    if (groups.empty()) continue;
    state.push_back({parameter.fqn, parameters[i]->master(), groups});
    state.push_back({parameter.fqn + " (exp_avg)", optimizer.exp_avg()[i], groups});
    state.push_back({parameter.fqn + " (exp_avg_sq)", optimizer.exp_avg_sq()[i], groups});
  }
  return state;
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

}  // namespace hyperion::trainer
