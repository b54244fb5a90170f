#include "trainer/config/features.h"

#include <algorithm>
#include <string_view>

namespace hyperion {
namespace {

using Config = const JobConfig&;

bool lists(Config config, std::string_view converter) {
  const auto& names = config.model.converters;
  return std::find(names.begin(), names.end(), converter) != names.end();
}

// v0.2.2's flavours of qwen3.
bool has_experts(const std::string& flavor) {
  return flavor == "debugmodel_moe" || flavor == "30B-A3B" || flavor == "235B-A22B";
}

}  // namespace

const Feature kCustomConfigModule = {"job.custom_config_module", "a module is named",
                                     [](Config c) { return !c.job.custom_config_module.empty(); },
                                     "Hyperion runs no Python and cannot import a module; remove the key"};
const Feature kProfiling = {"profiling.enable_profiling", "enable_profiling = true",
                            [](Config c) { return c.profiling.enable_profiling; }, ""};
const Feature kMemorySnapshot = {"profiling.enable_memory_snapshot", "enable_memory_snapshot = true",
                                 [](Config c) { return c.profiling.enable_memory_snapshot; }, ""};
const Feature kTensorBoard = {"metrics.enable_tensorboard", "enable_tensorboard = true",
                              [](Config c) { return c.metrics.enable_tensorboard; }, ""};
const Feature kWandb = {
    "metrics.enable_wandb", "enable_wandb = true", [](Config c) { return c.metrics.enable_wandb; },
    "Weights & Biases has no C++ client; use metrics.enable_tensorboard or metrics.enable_jsonl"};
const Feature kConverters = {"model.converters", "a converter is listed",
                             [](Config c) { return !c.model.converters.empty(); }, ""};
const Feature kFloat8 = {"model.converters", "quantize.linear.float8 is listed",
                         [](Config c) { return lists(c, "quantize.linear.float8"); }, ""};
const Feature kMx = {"model.converters", "quantize.linear.mx is listed",
                     [](Config c) { return lists(c, "quantize.linear.mx"); },
                     "MXFP8 linears are not available yet; remove quantize.linear.mx from the list"};
const Feature kGroupedFloat8 = {
    "model.converters", "quantize.grouped_mm.float8 is listed",
    [](Config c) { return lists(c, "quantize.grouped_mm.float8"); },
    "float8 experts are not available yet; remove quantize.grouped_mm.float8 from the list"};
const Feature kGroupedMx = {
    "model.converters", "quantize.grouped_mm.mx is listed",
    [](Config c) { return lists(c, "quantize.grouped_mm.mx"); },
    "MXFP8 experts are not available yet; remove quantize.grouped_mm.mx from the list"};
const Feature kEarlyStep = {"optimizer.early_step_in_backward", "early_step_in_backward = true",
                            [](Config c) { return c.optimizer.early_step_in_backward; },
                            "an optimizer step inside the backward is not available yet; set false"};
const Feature kBfloat16Masters = {"training.dtype", "dtype = \"bfloat16\"",
                                  [](Config c) { return c.training.dtype == "bfloat16"; },
                                  "bfloat16 parameters and optimizer state are not available yet; keep "
                                  "\"float32\" (mixed_precision_param = \"bfloat16\" computes in bfloat16)"};
const Feature kTensorParallel = {"parallelism.tensor_parallel_degree", "tensor_parallel_degree > 1",
                                 [](Config c) { return c.parallelism.tensor_parallel_degree > 1; },
                                 "tensor parallelism is not available yet; set 1"};
const Feature kPipelineParallel = {"parallelism.pipeline_parallel_degree", "pipeline_parallel_degree > 1",
                                   [](Config c) { return c.parallelism.pipeline_parallel_degree > 1; },
                                   "pipeline parallelism is not available yet; set 1"};
const Feature kContextParallel = {"parallelism.context_parallel_degree", "context_parallel_degree > 1",
                                  [](Config c) { return c.parallelism.context_parallel_degree > 1; },
                                  "context parallelism is not available yet; set 1"};
const Feature kExpertParallel = {"parallelism.expert_parallel_degree", "expert_parallel_degree > 1",
                                 [](Config c) { return c.parallelism.expert_parallel_degree > 1; },
                                 "expert parallelism is not available yet; set 1"};
const Feature kCheckpoint = {"checkpoint.enable", "enable = true",
                             [](Config c) { return c.checkpoint.enable; }, ""};
const Feature kHfQuantized = {
    "checkpoint.initial_load_in_hf_quantized", "initial_load_in_hf_quantized = true",
    [](Config c) { return c.checkpoint.enable && c.checkpoint.initial_load_in_hf_quantized; },
    "fp8 weights with block scales (DeepSeek's) are not available yet; convert them to bfloat16 first"};
const Feature kEma = {"ema.enable", "enable = true", [](Config c) { return c.ema.enable; }, ""};
const Feature kSelective = {"activation_checkpoint.mode", "mode = \"selective\"",
                            [](Config c) { return c.activation_checkpoint.mode == "selective"; }, ""};
const Feature kMemoryBudget = {
    "activation_checkpoint.mode", "mode = \"memory_budget\"",
    [](Config c) { return c.activation_checkpoint.mode == "memory_budget"; },
    "the memory budget is a feature of torch.compile; use \"selective\", \"full\" or \"none\""};
const Feature kCompile = {"compile.enable", "enable = true", [](Config c) { return c.compile.enable; }, ""};
const Feature kLocalTensor = {
    "comm.mode", "mode = \"local_tensor\"", [](Config c) { return c.comm.mode == "local_tensor"; },
    "simulating all ranks in one process is not available; use \"fake_backend\" for a dry run"};
const Feature kMemoryEstimation = {"memory_estimation.enable", "enable = true",
                                   [](Config c) { return c.memory_estimation.enable; },
                                   "memory estimation is not available yet; set false"};
const Feature kFaultTolerance = {"fault_tolerance.enable", "enable = true",
                                 [](Config c) { return c.fault_tolerance.enable; },
                                 "torchft's fault tolerance is not available; set false"};
const Feature kCustomImport = {"experimental.custom_import", "a module is named",
                               [](Config c) { return !c.experimental.custom_import.empty(); },
                               "Hyperion runs no Python and cannot import a module; remove the key"};
const Feature kCustomArgsModule = {"experimental.custom_args_module", "a module is named",
                                   [](Config c) { return !c.experimental.custom_args_module.empty(); },
                                   "Hyperion runs no Python and cannot import a module; remove the key"};
const Feature kValidation = {"validation.enable", "enable = true",
                             [](Config c) { return c.validation.enable; }, ""};
const Feature kDeterministic = {"debug.deterministic", "deterministic = true",
                                [](Config c) { return c.debug.deterministic; }, ""};
const Feature kExperts = {"model.flavor", "the model has experts",
                          [](Config c) { return has_experts(c.model.flavor); },
                          "models with experts are not available yet"};

const std::vector<const Feature*>& features() {
  static const std::vector<const Feature*> all = {&kCustomConfigModule,
                                                  &kProfiling,
                                                  &kMemorySnapshot,
                                                  &kTensorBoard,
                                                  &kWandb,
                                                  &kConverters,
                                                  &kFloat8,
                                                  &kMx,
                                                  &kGroupedFloat8,
                                                  &kGroupedMx,
                                                  &kEarlyStep,
                                                  &kBfloat16Masters,
                                                  &kTensorParallel,
                                                  &kPipelineParallel,
                                                  &kContextParallel,
                                                  &kExpertParallel,
                                                  &kCheckpoint,
                                                  &kHfQuantized,
                                                  &kEma,
                                                  &kSelective,
                                                  &kMemoryBudget,
                                                  &kCompile,
                                                  &kLocalTensor,
                                                  &kMemoryEstimation,
                                                  &kFaultTolerance,
                                                  &kCustomImport,
                                                  &kCustomArgsModule,
                                                  &kValidation,
                                                  &kDeterministic,
                                                  &kExperts};
  return all;
}

}  // namespace hyperion
