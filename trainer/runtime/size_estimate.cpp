#include "trainer/runtime/size_estimate.h"

#include <algorithm>
#include <numeric>
#include <string_view>

#include <fmt/format.h>

#include "base/error.h"
#include "models/flavors/attention_heads.h"
#include "parallel/pipeline/lowering.h"
#include "trainer/config/memory_advice.h"
#include "trainer/config/schema.h"
#include "trainer/config/validate.h"
#include "trainer/config/writers_choice.h"

namespace hyperion::trainer {
namespace {

constexpr double kDescriptionOfLayer = 4096;  // its parameters' names, shapes and tensors without their bytes

double tables_of(const models::ModelArgs& model) {
  return (model.tied ? 1.0 : 2.0) * static_cast<double>(model.dim) * static_cast<double>(model.vocab_size);
}

// `tensor` ranks divide all but norms and what makes latents and an expert's scores.
double parameters_of_block(const models::ModelArgs& model, double tensor, bool with_experts) {
  const double dim = static_cast<double>(model.dim), head = static_cast<double>(model.head_dim);
  const double heads = static_cast<double>(model.n_heads + model.n_kv_heads);
  const double attention = model.kv_lora_rank > 0 ? static_cast<double>(models::attention_parameters(model))
                                                  : dim * 2 * heads * head;
  const int64_t latents =
      model.kv_lora_rank > 0 ? model.q_lora_rank + model.kv_lora_rank + model.qk_rope_head_dim : 0;
  const double undivided = dim * static_cast<double>(latents + (with_experts ? model.num_experts : 0));
  const double experts = static_cast<double>(model.num_experts) +
                         3 * static_cast<double>(model.moe_hidden_dim) *
                             static_cast<double>(model.num_experts + model.num_shared_experts);
  const double feed_forward = with_experts ? experts : 3 * static_cast<double>(model.hidden_dim);
  return (attention + dim * feed_forward - undivided) / tensor + undivided + 2 * dim;
}

// Parameters of experts in `blocks` that a rank gathers besides a part as of other matrices (less than none:
// it gathers fewer), because expert parallel ranks divide them; `sharded`: and others shard each part.
double more_of_experts(const models::ModelArgs& model, const config::JobConfig& config, double blocks,
                       bool sharded = true) {
  if (!config::divides_experts(config)) return 0;
  const auto& degrees = config.parallelism;
  const auto parts =
      static_cast<double>(degrees.expert_parallel_degree * degrees.expert_tensor_parallel_degree);
  return 3 * static_cast<double>(model.dim) * static_cast<double>(model.moe_hidden_dim) *
         static_cast<double>(model.num_experts) * blocks *
         ((sharded ? 1 / parts : 0) - 1 / static_cast<double>(degrees.tensor_parallel_degree));
}

// As count_parameters(), without its limit; of one of `tensor` ranks that divide the matrices.
double parameters_of(const models::ModelArgs& model, double tensor = 1) {
  const auto layers = static_cast<double>(model.n_layers),
             with_experts = static_cast<double>(models::blocks_with_experts(model));
  return (layers - with_experts) * parameters_of_block(model, tensor, false) +
         with_experts * parameters_of_block(model, tensor, true) + static_cast<double>(model.dim) +
         tables_of(model) / tensor;
}

double parameters_of(const models::ModelArgs& model, const PipelineShare& share, double tensor) {
  double parameters = 0;
  for (const PipelineShare::Stage& stage : share.stages) parameters += parameters_of(model, stage, tensor);
  return parameters;
}

// Of the stages whose weights are gathered at once.
double gathered_parameters(const models::ModelArgs& model, const config::JobConfig& config,
                           const PipelineShare& share, double tensor, bool shards_experts) {
  std::vector<double> of_stages;
  for (const PipelineShare::Stage& stage : share.stages)
    of_stages.push_back(
        parameters_of(model, stage, tensor) +
        more_of_experts(model, config, static_cast<double>(stage.with_experts), shards_experts));
  std::ranges::sort(of_stages, std::ranges::greater{});
  of_stages.resize(std::min(of_stages.size(), static_cast<size_t>(parallel::kMaxGatheredStages)));
  return std::accumulate(of_stages.begin(), of_stages.end(), 0.0);
}

// Of the blocks whose weights are gathered at once without a pipeline: one, or all that stay gathered.
double gathered_parameters(const models::ModelArgs& model, const config::JobConfig& config, double tensor,
                           bool shards_experts) {
  const int64_t with_experts = models::blocks_with_experts(model);
  const bool stay = config.parallelism.fsdp_reshard_after_forward == config::ReshardAfterForward::kNever;
  const auto of_experts = static_cast<double>(stay ? with_experts : std::min<int64_t>(with_experts, 1));
  const double all = stay ? static_cast<double>(model.n_layers) : 1;
  return (all - of_experts) * parameters_of_block(model, tensor, /*with_experts=*/false) +
         of_experts * parameters_of_block(model, tensor, /*with_experts=*/true) +
         more_of_experts(model, config, of_experts, shards_experts);
}

// Of one block in backward, where a GPU's kernels take no fewer heads of keys than of queries
// (models/kernels/attention/gpu.cpp): keys and values repeated for all heads, and their gradients.
// `keys`: of each sequence, at once.
double repeated_keys(const models::ModelArgs& model, double rows, double keys, double tensor,
                     double compute) {
  const bool repeats = compute == sizeof(float) || model.head_dim > kernels::gpu::kLargestFlashHead;
  if (!repeats || model.n_kv_heads == model.n_heads) return 0;
  return 4 * rows * keys * static_cast<double>(model.n_heads * model.head_dim) / tensor * compute;
}

std::string human(double bytes) {
  std::string_view unit = "B";
  for (const std::string_view larger : {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}) {
    if (bytes < 1024) break;
    bytes /= 1024;
    unit = larger;
  }
  return fmt::format("{:.{}f} {}", bytes, unit == "B" ? 0 : 1, unit);
}

struct Part {
  std::string_view name;
  double bytes;
};

// "3.3 PiB of memory (weights 1.1 PiB, gradients 2.2 PiB)"
std::string sum_of(std::vector<Part> parts) {
  double sum = 0;
  std::string list;
  std::ranges::sort(parts, std::ranges::greater{}, &Part::bytes);
  for (const Part& part : parts) {
    sum += part.bytes;
    if (part.bytes > 0)
      list += fmt::format("{}{} {}", list.empty() ? "" : ", ", part.name, human(part.bytes));
  }
  return fmt::format("{} of memory ({})", human(sum), list);
}

double total(const std::vector<Part>& parts) {
  double sum = 0;
  for (const Part& part : parts) sum += part.bytes;
  return sum;
}

std::string lack(const std::vector<Part>& needed, const MemoryLimit& limit) {
  return fmt::format("needs at least {}, but {} is {}", sum_of(needed), limit.what, human(limit.bytes));
}

// "set a key, or " where ranks keep more of the model than its shards need.
std::string sharding_remedy(const config::JobConfig& config, const JobSize& size) {
  const auto& degrees = config.parallelism;
  const bool stays = degrees.pipeline_parallel_degree > 1 ||
                     degrees.fsdp_reshard_after_forward == config::ReshardAfterForward::kNever;
  if (size.sums + size.gathered > 0 && stays)
    return "set parallelism.fsdp_reshard_after_forward = \"always\", or ";
  return size.sums > 0 ? "set parallelism.fsdp_reduce_gradients = \"every_microbatch\", or " : "";
}

std::string sequence_remedy(const config::JobConfig& config) {
  const std::string context = config::context_advice(config);
  return fmt::format("lower training.seq_len{}{}",
                     config.training.local_batch_size > 1 ? " or training.local_batch_size" : "",
                     context.empty() ? "" : ", or " + context);
}

// Elements of a token that weight gradients of a block read: inputs of its products and gradients of their
// results. `tensor` ranks divide all but what goes in at a column layer, which a block that is run again has
// gathered, and what comes back at a row layer. Of latent attention and experts those of row layers alone.
double read_by_weight_gradients(const models::ModelArgs& model, double tensor, bool runs_again) {
  const double dim = static_cast<double>(model.dim), hidden = static_cast<double>(model.hidden_dim);
  if (model.kv_lora_rank > 0 || model.num_experts > 0) return dim;
  const double heads = static_cast<double>(model.head_dim * model.n_heads),
               keys = static_cast<double>(model.head_dim * model.n_kv_heads);
  const double inputs = runs_again ? 2 * dim : 2 * dim / tensor;
  return inputs + (heads + heads + 2 * keys + 3 * hidden) / tensor + 2 * dim;
}

}  // namespace

double parameters_of(const models::ModelArgs& model, const PipelineShare::Stage& stage, double tensor) {
  const double dim = static_cast<double>(model.dim), table = dim * static_cast<double>(model.vocab_size);
  return static_cast<double>(stage.blocks - stage.with_experts) *
             parameters_of_block(model, tensor, /*with_experts=*/false) +
         static_cast<double>(stage.with_experts) * parameters_of_block(model, tensor, /*with_experts=*/true) +
         (stage.embedding ? table / tensor : 0) + (stage.head ? dim + table / tensor : 0);
}

JobSize largest_job_size(const config::JobConfig& config, const models::ModelArgs& model, int64_t shards,
                         int64_t microbatches, std::span<const PipelineShare> shares) {
  if (shares.empty()) return job_size(config, model, shards, microbatches);
  std::vector<JobSize> sizes;
  for (const PipelineShare& share : shares)
    sizes.push_back(job_size(config, model, shards, microbatches, &share));
  return std::ranges::max(sizes, {}, &JobSize::total);
}

JobSize job_size(const config::JobConfig& config, const models::ModelArgs& model, int64_t shards,
                 int64_t microbatches, const PipelineShare* share) {
  const auto& training = config.training;
  const double state = static_cast<double>(checkpoint::size_of(training.dtype)),
               compute = static_cast<double>(checkpoint::size_of(training.mixed_precision_param));
  const double copy = state == compute                                       ? 0
                      : config::kFloat8.on(config) && model.num_experts == 0 ? 1
                                                                             : compute;
  const auto tensor = static_cast<double>(config.parallelism.tensor_parallel_degree);
  const auto pipeline = static_cast<double>(config.parallelism.pipeline_parallel_degree);
  const auto context = static_cast<double>(config.parallelism.context_parallel_degree);
  const bool ring = config::passes_keys_in_ring(config);
  const double unsharded =
      share != nullptr ? parameters_of(model, *share, tensor) : parameters_of(model, tensor) / pipeline;
  const double parameters = unsharded / static_cast<double>(shards);
  double with_experts = static_cast<double>(models::blocks_with_experts(model)) / pipeline;  // blocks
  if (share != nullptr)
    with_experts = std::accumulate(
        share->stages.begin(), share->stages.end(), 0.0,
        [](double sum, const auto& stage) { return sum + static_cast<double>(stage.with_experts); });
  JobSize size;
  size.description = kDescriptionOfLayer * static_cast<double>(model.n_layers);
  size.mostly_tables = 2 * tables_of(model) > parameters_of(model);
  size.weights = parameters * (state + copy);
  size.optimizer = 2 * parameters * state;
  const int64_t experts = config::divides_experts(config) ? config.parallelism.expert_parallel_degree : 1;
  const bool shards_experts = shards * config.parallelism.tensor_parallel_degree >
                              experts * config.parallelism.expert_tensor_parallel_degree;
  if (!config::is_dry_run(config))  // a group of one rank has none
    size.communicators = (shards > 1) + (experts > 1) + (experts > 1 && shards_experts) + (tensor > 1) +
                         (context > 1) + (pipeline > 1 ? 2 : 0) +
                         (pipeline > 2 && model.tied) +  // of the first and the last stage
                         (config.parallelism.data_parallel_replicate_degree > 1);
  size.gradients = parameters * state;
  if (config.ema.enable) size.averages = parameters * state;
  const auto& saves = config.checkpoint;
  if (saves.enable && saves.create_seed_checkpoint) return size;  // makes no step
  // The last save is synchronous.
  const int64_t first_save = saves.enable_first_step_checkpoint ? 1 : saves.interval;
  if (saves.enable && !saves.load_only && !config::is_dry_run(config) &&
      saves.async_mode != checkpoint::AsyncMode::kDisabled && first_save < training.steps) {
    const auto& degrees = config.parallelism;
    const int64_t replicas = degrees.data_parallel_replicate_degree;
    const int64_t ranks =
        shards * degrees.tensor_parallel_degree * degrees.pipeline_parallel_degree * replicas;
    const auto writers = config::choose_writers(saves.writers, ranks, replicas).writers;
    // Of a rank that writes: its shard, or of that the share of one replica.
    size.save_pool = (parameters * state + size.optimizer + size.averages) /
                     (writers == checkpoint::Writers::kAll ? static_cast<double>(replicas) : 1);
  }
  const int64_t rows = config::microbatch_rows(config, training.local_batch_size);
  microbatches *= training.local_batch_size / rows;
  if (config::reduces_gradients_once(config) && microbatches > 1 && shards > 1)
    size.sums = (unsharded + more_of_experts(model, config, with_experts)) * sizeof(float);
  const bool gathers_float8 =
      config::kFloat8.on(config) && config.quantize.linear.float8.enable_fsdp_float8_all_gather;
  if (shards > 1 && (pipeline == 1 || (share != nullptr && share->gathers_stages)))
    size.gathered = (gathers_float8 ? 1 : compute) *
                    (pipeline == 1 ? gathered_parameters(model, config, tensor, shards_experts)
                                   : gathered_parameters(model, config, *share, tensor, shards_experts));
  const double length = static_cast<double>(training.seq_len);
  const double tokens = static_cast<double>(rows) * length / context;            // of this rank
  const bool gathered = tensor > 1 && config.parallelism.disable_loss_parallel;  // logits, to a second copy
  const double logits =
      static_cast<double>(model.vocab_size) * compute / (gathered ? 1 : tensor);  // of a token
  const double chunk =
      static_cast<double>(training.loss_chunk_bytes > 0 ? training.loss_chunk_bytes : 64 << 20);
  const double boundary = tokens / tensor * static_cast<double>(model.dim) * compute;
  // In a pipeline a tensor that is sent and one that is received besides.
  const double inputs = share != nullptr ? static_cast<double>(share->kept_inputs) + 2
                                         : static_cast<double>(model.n_layers) / pipeline + 1;
  const bool runs_again = config.activation_checkpoint.mode == config::RecomputeMode::kFull;
  const double deferred = share == nullptr
                              ? 0
                              : static_cast<double>(share->deferred_blocks) * tokens *
                                    read_by_weight_gradients(model, tensor, runs_again) *
                                    (config::kFloat8.on(config) || config::kMx.on(config) ? 1 : compute);
  // Where most of them wait the sums of stages whose backward comes later are not there yet.
  size.activations = std::max(boundary * inputs, deferred - size.all_gradients()) +
                     length * static_cast<double>(model.head_dim) * 4;
  if (with_experts > 0) {  // of one block, the rows of its experts
    const double dim = static_cast<double>(model.dim), hidden = static_cast<double>(model.moe_hidden_dim);
    // Where tensor parallel ranks divide each expert, each has the rows of all of them.
    const bool exchanged = config::divides_experts(config);
    const double parts =
        exchanged ? static_cast<double>(config.parallelism.expert_tensor_parallel_degree) : tensor;
    const double own = hidden / parts;
    size.activations += tokens / tensor * parts * static_cast<double>(model.top_k) * compute *
                        std::max(dim + 2 * own, 3 * own);
    // Two FP8 copies of each stack, for as long as it is gathered, which is always where no rank shards them.
    if (config::kGroupedFloat8.on(config) || config::kGroupedMx.on(config)) {
      const double divided = exchanged ? static_cast<double>(experts) * parts : tensor,
                   block = 3 * dim * hidden * static_cast<double>(model.num_experts) / divided;
      const bool stays = exchanged ? !shards_experts : shards == 1;
      size.activations += 2 * block * (stays ? with_experts : 1);
    }
  }
  if (context > 1) {
    const bool latent = model.kv_lora_rank > 0;
    const double of_heads = tokens / tensor * static_cast<double>(model.n_heads * model.head_dim) * compute;
    if (runs_again)  // every block keeps the result of its attention
      size.activations += (inputs - 1) * of_heads;
    // Of one block in backward: keys and values of complete sequences, their gradients, and the sums of
    // these; in a ring of two ranks, with the gradients of one.
    size.activations += 2 * tokens / tensor *
                        static_cast<double>((latent ? model.n_heads : model.n_kv_heads) * model.head_dim) *
                        (ring ? 3 * compute + 2 * sizeof(float) : context * (2 * compute + sizeof(float)));
  }
  size.repeated =
      repeated_keys(model, static_cast<double>(rows), ring ? length / context : length, tensor, compute);
  if (share == nullptr || share->has_head())
    size.activations += std::min(tokens * logits, (gathered ? 2 : 1) * std::max(logits, chunk));
  // Packed keys twice and values once, and their gradients in fp32 (models/kernels/attention/cpu_blocks.cpp);
  // fp32 keys serve both uses. libtorch's attention, where it is chosen, keeps less, as larger heads do.
  const bool flash = config.model.attention == config::AttentionChoice::kFlash &&
                     !config.training.document_mask && context == 1;
  constexpr int64_t kMultiple = kernels::cpu::kHeadMultiple;
  const int64_t padded_head = (model.head_dim + kMultiple - 1) / kMultiple * kMultiple;
  if (!flash && model.head_dim <= kernels::cpu::kLargestHead)
    size.attention = length / (ring ? context : 1) * static_cast<double>(padded_head) *
                     (compute == 2 ? 3 * 2 + 2 * 4 : 4 * 4);
  size.attention_threads =
      static_cast<double>(rows) * std::max(1.0, static_cast<double>(model.n_kv_heads) / tensor);
  size.tokens = static_cast<double>(rows) * length * static_cast<double>(microbatches) * 2 *
                sizeof(int64_t);  // and labels
  return size;
}

void require_memory(const config::ResolvedConfig& resolved, const JobSize& size, const RankMemory& memory) {
  const bool offload = resolved.config.training.enable_cpu_offload;
  std::vector<Part> host = {{"tokens of a step", size.tokens},
                            {"names and shapes", size.description},
                            {"copy for background saves", size.save_pool}};
  const bool pipeline = resolved.config.parallelism.pipeline_parallel_degree > 1;
  std::vector<Part> device = {
      {pipeline ? "activations of kept microbatches" : "activations of a microbatch", size.activations},
      {"gradients of several microbatches", size.sums},
      {pipeline ? "gathered weights of stages" : "gathered weights", size.gathered}};
  auto& states = offload ? host : device;
  // A GPU has room for shards' gradients only when a unit's sum becomes them, and is freed.
  const double gradients = size.sums > 0 && memory.device && !offload ? 0 : size.gradients;
  states.insert(states.end(),
                {{"weights", size.weights}, {"optimizer state", size.optimizer}, {"gradients", gradients}});
  auto& averages = resolved.config.ema.device == config::EmaDevice::kCpu ? host : states;
  averages.push_back({"averaged weights", size.averages});
  double attention = 0;
  if (!memory.device) {
    host.insert(host.end(), device.begin(), device.end());
    device.clear();
    attention = size.attention * std::min(static_cast<double>(memory.threads), size.attention_threads);
    host.push_back({"scratch of attention", attention});
  } else {
    device.push_back({"repeated keys and values", size.repeated});
  }
  config::Problems problems;
  const auto check = [&](const std::vector<Part>& needed, const MemoryLimit& limit) {
    if (total(needed) <= limit.bytes) return;
    if (&needed == &host && total(needed) - size.save_pool <= limit.bytes)
      return problems.add(
          resolved, "checkpoint.async_mode",
          fmt::format("each rank {}; set checkpoint.async_mode = \"disabled\", with which training "
                      "waits for each save",
                      lack(needed, limit)));
    const bool model = size.states() + size.sums + size.gathered + size.description >
                       size.activations + attention + size.tokens + (memory.device ? size.repeated : 0);
    const bool has_sums = !memory.device || &needed == &device;
    std::string key = "training.seq_len";
    if (model) key = size.mostly_tables ? "model.args.vocab_size" : "model.args.n_layers";
    if (model && !resolved.origins.contains(key)) key = "model.flavor";
    problems.add(
        resolved, key,
        fmt::format(
            "each rank {}; {}{}", lack(needed, limit), has_sums ? sharding_remedy(resolved.config, size) : "",
            model ? "train a smaller model, or shard it over more ranks" : sequence_remedy(resolved.config)));
  };
  check(host, memory.host);
  if (memory.device) check(device, *memory.device);
  problems.throw_if_any("The configuration cannot be run");
}

void require_memory(const models::ModelArgs& model, double bytes_per_parameter, const RankMemory& memory) {
  const double weights = parameters_of(model) * bytes_per_parameter;
  constexpr double kDescriptionOfExpert = 3 * 200;  // its matrices in Hugging Face's layout
  std::vector<Part> host = {
      {"names and shapes", kDescriptionOfLayer * static_cast<double>(model.n_layers) +
                               kDescriptionOfExpert * static_cast<double>(model.num_experts) *
                                   static_cast<double>(models::blocks_with_experts(model))}};
  if (!memory.device) host.push_back({"weights", weights});
  if (total(host) > memory.host.bytes) throw_config("the model {}", lack(host, memory.host));
  if (memory.device && weights > memory.device->bytes)
    throw_config("the model {}", lack({{"weights", weights}}, *memory.device));
}

}  // namespace hyperion::trainer
