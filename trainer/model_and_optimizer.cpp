#include "trainer/model_and_optimizer.h"

#include <algorithm>

#include "base/progress.h"
#include "models/init.h"
#include "parallel/phase.h"
#include "trainer/setup/attention_setup.h"
#include "trainer/setup/options.h"

namespace hyperion::trainer {

ModelAndOptimizer make_model_and_optimizer(const models::ModelArgs& args, const JobConfig& config,
                                           const ModelPlace& place) {
  if (!place.without_memory) choose_attention(args, config, place.device, place.groups.host());
  ModelAndOptimizer made;
  parallel::Communicator& tensor_ranks = place.groups.get(parallel::MeshDim::kTp);
  parallel::Communicator* tensor = tensor_ranks.size() > 1 ? &tensor_ranks : nullptr;
  made.transformer = std::make_unique<models::Transformer>(
      args, config.training.loss_chunk_bytes,
      models::Regions{.tensor = tensor, .loss_parallel = !config.parallelism.disable_loss_parallel});
  made.float8 = convert_to_float8(*made.transformer, config, place.float8);
  parallel::ShardingOptions sharding = sharding_options(config.training, place.device, made.float8.codec);
  if (place.without_memory) sharding.state_device = at::kMeta;
  made.fsdp = std::make_unique<parallel::FsdpContext>(place.groups.get(parallel::MeshDim::kFsdp),
                                                      place.groups.get(parallel::MeshDim::kDpReplicate),
                                                      sharding, tensor);
  const FsdpModelOptions options = {
      .reshard_after_forward = config.parallelism.fsdp_reshard_after_forward != ReshardAfterForward::kNever,
      .checkpointing = activation_checkpointing(config, *made.transformer)};
  made.float8_products = float8_products(*made.transformer, made.float8, options.checkpointing);
  made.fsdp_model = std::make_unique<FsdpModel>(*made.transformer, *made.fsdp, options);
  made.parameters = made.fsdp_model->parameters();
  made.optimizer = std::make_unique<Adam>(made.parameters, config.optimizer);
  return made;
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
  model.fsdp_model->weights_changed();
}

}  // namespace hyperion::trainer
