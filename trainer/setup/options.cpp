#include "trainer/setup/options.h"

#include "base/error.h"
#include "models/flavors/registry.h"
#include "trainer/hugging_face/config.h"

namespace hyperion {
namespace {

at::ScalarType dtype_of(const std::string& name) {
  if (name == "float32") return at::kFloat;
  if (name == "bfloat16") return at::kBFloat16;
  throw_config("dtype \"{}\": expected \"float32\" or \"bfloat16\"", name);
}

ActivationCheckpoint activation_checkpoint_of(const JobConfig::ActivationCheckpoint& options, int64_t layer) {
  if (options.mode == "none") return ActivationCheckpoint::kNone;
  if (options.mode == "full") return ActivationCheckpoint::kFull;
  if (options.selective_ac_option == "op") return ActivationCheckpoint::kSelectiveOp;
  const int64_t every =
      std::stoll(options.selective_ac_option);  // checked by the schema: a positive whole number
  return (layer + 1) % every == 0 ? ActivationCheckpoint::kFull : ActivationCheckpoint::kNone;
}

}  // namespace

ShardingOptions sharding_options(const JobConfig::Training& training, at::Device device,
                                 std::shared_ptr<const GatherCodec> codec) {
  return {.device = device,
          .state_device = training.enable_cpu_offload ? at::Device(at::kCPU) : device,
          .state_dtype = dtype_of(training.dtype),
          .compute_dtype = dtype_of(training.mixed_precision_param),
          .reduce_dtype = dtype_of(training.mixed_precision_reduce),
          .codec = std::move(codec)};
}

FsdpModelOptions fsdp_model_options(const JobConfig& config, const Transformer& model) {
  FsdpModelOptions options;
  options.reshard_after_forward = config.parallelism.fsdp_reshard_after_forward != "never";  // or "default"
  for (int64_t layer = 0; layer < model.args().n_layers; ++layer)
    options.checkpoint.push_back(activation_checkpoint_of(config.activation_checkpoint, layer));
  for (const std::string& part : config.activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns)
    for (const ParameterPtr& parameter : model.parameters())
      if (parameter->fqn.find(part) != std::string::npos)
        options.always_recompute.push_back(parameter->shape);
  return options;
}

AdamOptions adam_options(const JobConfig::Optimizer& optimizer) {
  return {.decoupled_decay = optimizer.name == "AdamW",
          .beta1 = optimizer.beta1,
          .beta2 = optimizer.beta2,
          .eps = optimizer.eps,
          .weight_decay = optimizer.weight_decay,
          .implementation = optimizer.implementation == "fused"     ? AdamOptions::Implementation::kFused
                            : optimizer.implementation == "foreach" ? AdamOptions::Implementation::kForeach
                                                                    : AdamOptions::Implementation::kForLoop};
}

EmaOptions ema_options(const JobConfig::Ema& ema) {
  return {.decay = ema.decay, .every = ema.every, .on_cpu = ema.device == "cpu"};
}

}  // namespace hyperion
