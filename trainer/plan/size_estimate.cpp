#include "trainer/plan/size_estimate.h"

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

constexpr std::string_view kTokens = "tokens of a step", kDescription = "names and shapes";

// "3.3 PiB of memory (weights 1.1 PiB, gradients 2.2 PiB)"
std::string sum_of(std::vector<MemoryPart> parts) {
  double sum = 0;
  std::string list;
  std::ranges::sort(parts, std::ranges::greater{}, &MemoryPart::bytes);
  for (const MemoryPart& part : parts) {
    sum += part.bytes;
    if (part.bytes > 0)
      list += fmt::format("{}{} {}", list.empty() ? "" : ", ", part.name, human(part.bytes));
  }
  return fmt::format("{} of memory ({})", human(sum), list);
}

std::string lack(const std::vector<MemoryPart>& needed, const MemoryLimit& limit) {
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

// "set a key, or " where a GPU has room for the rest.
std::string offloading_remedy(config::JobConfig config, const JobSize& size, const RankMemory& memory) {
  if (!memory.device || config.training.enable_cpu_offload) return "";
  const double host_now = total(memory_needs(config, size, /*on_gpu=*/true).host);
  config.training.enable_cpu_offload = true;
  const MemoryNeeds needs = memory_needs(config, size, /*on_gpu=*/true);
  if (total(needs.device) > memory.device->bytes || total(needs.host) > memory.host.bytes) return "";
  return fmt::format(
      "set training.enable_cpu_offload = true ({} of it are in the host's memory then, and steps take "
      "longer), "
      "or ",
      human(total(needs.host) - host_now));
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

// The terms of job_size(), each from what the configuration says and those before it.
class SizeOfJob {
 public:
  SizeOfJob(const config::JobConfig& config, const models::ModelArgs& model, int64_t shards,
            int64_t microbatches, const PipelineShare* share)
      : config_(config), model_(model), share_(share), shards_(shards) {
    rows_ = config::microbatch_rows(config, config.training.local_batch_size);
    microbatches_ = microbatches * config.training.local_batch_size / rows_;
    tokens_ = static_cast<double>(rows_) * length_ / context_;
    unsharded_ =
        share != nullptr ? parameters_of(model, *share, tensor_) : parameters_of(model, tensor_) / pipeline_;
    with_experts_ = static_cast<double>(models::blocks_with_experts(model)) / pipeline_;
    if (share != nullptr)
      with_experts_ = std::accumulate(
          share->stages.begin(), share->stages.end(), 0.0,
          [](double sum, const auto& stage) { return sum + static_cast<double>(stage.with_experts); });
    shards_experts_ = shards * config.parallelism.tensor_parallel_degree >
                      experts_ * config.parallelism.expert_tensor_parallel_degree;
  }

  JobSize estimate() {
    add_states();
    if (!config::is_dry_run(config_)) size_.communicators = communicators();
    const auto& saves = config_.checkpoint;
    if (saves.enable && saves.create_seed_checkpoint) return size_;  // makes no step
    if (has_background_saves()) size_.save_pool = save_pool();
    add_gathered();
    size_.activations = kept_activations();
    if (with_experts_ > 0) size_.activations += activations_of_experts();
    if (context_ > 1) size_.activations += activations_of_shared_sequences();
    if (share_ == nullptr || share_->has_head()) size_.activations += logits();
    size_.repeated = repeated_keys(model_, static_cast<double>(rows_), keys_at_once(), tensor_, compute_);
    add_attention();
    size_.tokens = static_cast<double>(rows_) * length_ * static_cast<double>(microbatches_) * 2 *
                   sizeof(int64_t);  // and labels
    return size_;
  }

 private:
  void add_states() {
    const double parameters = unsharded_ / static_cast<double>(shards_);
    const double copy = state_ == compute_                                       ? 0
                        : config::kFloat8.on(config_) && model_.num_experts == 0 ? 1
                                                                                 : compute_;
    size_.description = kDescriptionOfLayer * static_cast<double>(model_.n_layers);
    size_.mostly_tables = 2 * tables_of(model_) > parameters_of(model_);
    size_.weights = parameters * (state_ + copy);
    size_.optimizer = 2 * parameters * state_;
    size_.gradients = parameters * state_;
    if (config_.ema.enable) size_.averages = parameters * state_;
  }

  // A group of one rank has none.
  int communicators() const {
    return (shards_ > 1) + (experts_ > 1) + (experts_ > 1 && shards_experts_) + (tensor_ > 1) +
           (context_ > 1) + (pipeline_ > 1 ? 2 : 0) +
           (pipeline_ > 2 && model_.tied) +  // of the first and the last stage
           (config_.parallelism.data_parallel_replicate_degree > 1);
  }

  // The last save is synchronous.
  bool has_background_saves() const {
    const auto& saves = config_.checkpoint;
    const int64_t first_save = saves.enable_first_step_checkpoint ? 1 : saves.interval;
    return saves.enable && !saves.load_only && !config::is_dry_run(config_) &&
           saves.async_mode != checkpoint::AsyncMode::kDisabled && first_save < config_.training.steps;
  }

  // Of a rank that writes: its shard, or of that the share of one replica.
  double save_pool() const {
    const auto& degrees = config_.parallelism;
    const int64_t replicas = degrees.data_parallel_replicate_degree;
    const int64_t ranks =
        shards_ * degrees.tensor_parallel_degree * degrees.pipeline_parallel_degree * replicas;
    const auto writers = config::choose_writers(config_.checkpoint.writers, ranks, replicas).writers;
    return (size_.gradients + size_.optimizer + size_.averages) /
           (writers == checkpoint::Writers::kAll ? static_cast<double>(replicas) : 1);
  }

  void add_gathered() {
    if (shards_ == 1) return;
    if (config::reduces_gradients_once(config_) && microbatches_ > 1)
      size_.sums = (unsharded_ + more_of_experts(model_, config_, with_experts_)) * sizeof(float);
    if (pipeline_ > 1 && (share_ == nullptr || !share_->gathers_stages)) return;
    const bool in_float8 =
        config::kFloat8.on(config_) && config_.quantize.linear.float8.enable_fsdp_float8_all_gather;
    size_.gathered =
        (in_float8 ? 1 : compute_) *
        (pipeline_ == 1 ? gathered_parameters(model_, config_, tensor_, shards_experts_)
                        : gathered_parameters(model_, config_, *share_, tensor_, shards_experts_));
  }

  // Blocks' inputs, or what weight gradients that wait in a pipeline read, and RoPE's angles.
  double kept_activations() const {
    const double deferred = share_ == nullptr
                                ? 0
                                : static_cast<double>(share_->deferred_blocks) * tokens_ *
                                      read_by_weight_gradients(model_, tensor_, runs_again()) *
                                      (config::kFloat8.on(config_) || config::kMx.on(config_) ? 1 : compute_);
    const double boundary = tokens_ / tensor_ * static_cast<double>(model_.dim) * compute_;
    // Where most of them wait the sums of stages whose backward comes later are not there yet.
    return std::max(boundary * kept_inputs(), deferred - size_.all_gradients()) +
           length_ * static_cast<double>(model_.head_dim) * 4;
  }

  // In a pipeline a tensor that is sent and one that is received besides.
  double kept_inputs() const {
    return share_ != nullptr ? static_cast<double>(share_->kept_inputs) + 2
                             : static_cast<double>(model_.n_layers) / pipeline_ + 1;
  }

  // Of one block: the rows of its experts, and FP8 copies of their stacks.
  double activations_of_experts() const {
    const double dim = static_cast<double>(model_.dim), hidden = static_cast<double>(model_.moe_hidden_dim);
    // Where tensor parallel ranks divide each expert, each has the rows of all of them.
    const bool exchanged = config::divides_experts(config_);
    const double parts =
        exchanged ? static_cast<double>(config_.parallelism.expert_tensor_parallel_degree) : tensor_;
    const double own = hidden / parts;
    const double rows = tokens_ / tensor_ * parts * static_cast<double>(model_.top_k) * compute_ *
                        std::max(dim + 2 * own, 3 * own);
    if (!config::kGroupedFloat8.on(config_) && !config::kGroupedMx.on(config_)) return rows;
    // Two copies of each stack, for as long as it is gathered, which is always where no rank shards them.
    const double divided = exchanged ? static_cast<double>(experts_) * parts : tensor_,
                 block = 3 * dim * hidden * static_cast<double>(model_.num_experts) / divided;
    const bool stays = exchanged ? !shards_experts_ : shards_ == 1;
    return rows + 2 * block * (stays ? with_experts_ : 1);
  }

  double activations_of_shared_sequences() const {
    double bytes = 0;
    if (runs_again())  // every block keeps the result of its attention
      bytes = (kept_inputs() - 1) * tokens_ / tensor_ *
              static_cast<double>(model_.n_heads * model_.head_dim) * compute_;
    // Of one block in backward: keys and values of complete sequences, their gradients, and the sums of
    // these; in a ring of two ranks, with the gradients of one.
    return bytes + 2 * tokens_ / tensor_ * static_cast<double>(model_.n_kv_heads * model_.head_dim) *
                       (ring_ ? 3 * compute_ + 2 * sizeof(float) : context_ * (2 * compute_ + sizeof(float)));
  }

  double logits() const {
    const bool gathered = tensor_ > 1 && config_.parallelism.disable_loss_parallel;  // to a second copy
    const int64_t configured = config_.training.loss_chunk_bytes;
    const double of_token = static_cast<double>(model_.vocab_size) * compute_ / (gathered ? 1 : tensor_),
                 chunk = static_cast<double>(configured > 0 ? configured : 64 << 20);
    return std::min(tokens_ * of_token, (gathered ? 2 : 1) * std::max(of_token, chunk));
  }

  // Packed keys twice and values once, and their gradients in fp32 (models/kernels/attention/cpu_blocks.cpp);
  // fp32 keys serve both uses. libtorch's attention, where it is chosen, keeps less, as larger heads do.
  void add_attention() {
    const bool flash = config_.model.attention == config::AttentionChoice::kFlash &&
                       !config_.training.document_mask && context_ == 1;
    constexpr int64_t kMultiple = kernels::cpu::kHeadMultiple;
    const int64_t padded_head = (model_.head_dim + kMultiple - 1) / kMultiple * kMultiple;
    if (!flash && model_.head_dim <= kernels::cpu::kLargestHead)
      size_.attention =
          keys_at_once() * static_cast<double>(padded_head) * (compute_ == 2 ? 3 * 2 + 2 * 4 : 4 * 4);
    size_.attention_threads =
        static_cast<double>(rows_) * std::max(1.0, static_cast<double>(model_.n_kv_heads) / tensor_);
  }

  double keys_at_once() const { return ring_ ? length_ / context_ : length_; }
  bool runs_again() const { return config_.activation_checkpoint.mode == config::RecomputeMode::kFull; }

  const config::JobConfig& config_;
  const models::ModelArgs& model_;
  const PipelineShare* share_;
  int64_t shards_;
  // Bytes of a number.
  const double state_ = static_cast<double>(checkpoint::size_of(config_.training.dtype)),
               compute_ = static_cast<double>(checkpoint::size_of(config_.training.mixed_precision_param));
  // Degrees.
  const double tensor_ = static_cast<double>(config_.parallelism.tensor_parallel_degree),
               pipeline_ = static_cast<double>(config_.parallelism.pipeline_parallel_degree),
               context_ = static_cast<double>(config_.parallelism.context_parallel_degree);
  const int64_t experts_ = config::divides_experts(config_) ? config_.parallelism.expert_parallel_degree : 1;
  const bool ring_ = config::passes_keys_in_ring(config_);
  const double length_ = static_cast<double>(config_.training.seq_len);
  int64_t rows_ = 0, microbatches_ = 0;      // of a microbatch; of a step
  double tokens_ = 0;                        // of this rank in a microbatch
  double unsharded_ = 0, with_experts_ = 0;  // parameters of this rank's stages; their blocks with experts
  bool shards_experts_ = false;              // several ranks share the parameters of an expert's part
  JobSize size_;
};

// The key of the largest size that the user has set of a model; else the flavour's.
std::string key_of_size(const config::ResolvedConfig& resolved, bool mostly_tables) {
  const auto is_set = [&](const char* key) { return resolved.origins.contains(key); };
  if (mostly_tables) return is_set("model.args.vocab_size") ? "model.args.vocab_size" : "model.flavor";
  const auto& args = resolved.config.model.args;
  const std::pair<const char*, std::optional<int64_t>> sizes[] = {
      {"model.args.dim", args.dim},
      {"model.args.hidden_dim", args.hidden_dim},
      {"model.args.moe_hidden_dim", args.moe_hidden_dim},
      {"model.args.num_experts", args.num_experts},
      {"model.args.n_layers", args.n_layers}};
  std::string key = "model.flavor";
  int64_t largest = 0;
  for (const auto& [name, size] : sizes)
    if (size && *size > largest && is_set(name)) {
      key = name;
      largest = *size;
    }
  return key;
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
  return SizeOfJob(config, model, shards, microbatches, share).estimate();
}

bool MemoryNeeds::keeps_state_in_host() const {
  return std::ranges::any_of(host, [](const MemoryPart& part) {
    return part.bytes > 0 && part.name != kTokens && part.name != kDescription;
  });
}

double total(const std::vector<MemoryPart>& parts) {
  return std::accumulate(parts.begin(), parts.end(), 0.0,
                         [](double sum, const MemoryPart& part) { return sum + part.bytes; });
}

MemoryNeeds memory_needs(const config::JobConfig& config, const JobSize& size, bool on_gpu, int threads) {
  const bool offload = config.training.enable_cpu_offload;
  const bool pipeline = config.parallelism.pipeline_parallel_degree > 1;
  MemoryNeeds needs;
  needs.host = {{kTokens, size.tokens},
                {kDescription, size.description},
                {"copy for background saves", size.save_pool}};
  auto& device = on_gpu ? needs.device : needs.host;
  device.insert(
      device.end(),
      {{pipeline ? "activations of kept microbatches" : "activations of a microbatch", size.activations},
       {"gradients of several microbatches", size.sums},
       {pipeline ? "gathered weights of stages" : "gathered weights", size.gathered}});
  auto& states = offload ? needs.host : device;
  // A GPU has room for shards' gradients only when a unit's sum becomes them, and is freed.
  const double gradients = size.sums > 0 && on_gpu && !offload ? 0 : size.gradients;
  states.insert(states.end(),
                {{"weights", size.weights}, {"optimizer state", size.optimizer}, {"gradients", gradients}});
  auto& averages = config.ema.device == config::EmaDevice::kCpu ? needs.host : states;
  averages.push_back({"averaged weights", size.averages});
  if (on_gpu)
    device.push_back({"repeated keys and values", size.repeated});
  else
    needs.host.push_back({"scratch of attention",
                          size.attention * std::min(static_cast<double>(threads), size.attention_threads)});
  return needs;
}

void require_memory(const config::ResolvedConfig& resolved, const JobSize& size, const RankMemory& memory) {
  const MemoryNeeds needs = memory_needs(resolved.config, size, memory.device.has_value(), memory.threads);
  const std::vector<MemoryPart>&host = needs.host, &device = needs.device;
  config::Problems problems;
  const auto check = [&](const std::vector<MemoryPart>& needed, const MemoryLimit& limit) {
    if (total(needed) <= limit.bytes) return;
    if (&needed == &host && total(needed) - size.save_pool <= limit.bytes)
      return problems.add(
          resolved, "checkpoint.async_mode",
          fmt::format("each rank {}; set checkpoint.async_mode = \"disabled\", with which training "
                      "waits for each save",
                      lack(needed, limit)));
    const double states = size.states() + size.sums + size.gathered + size.description;
    const double attention = memory.device ? size.repeated
                                           : size.attention * std::min(static_cast<double>(memory.threads),
                                                                       size.attention_threads);
    const bool model = states > size.activations + attention + size.tokens;
    const bool has_sums = !memory.device || &needed == &device;
    const std::string key = model ? key_of_size(resolved, size.mostly_tables) : "training.seq_len";
    problems.add(resolved, key,
                 fmt::format("each rank {}; {}{}{}", lack(needed, limit),
                             has_sums ? sharding_remedy(resolved.config, size) : "",
                             offloading_remedy(resolved.config, size, memory),
                             model ? "train a smaller model, or shard it over more ranks"
                                   : sequence_remedy(resolved.config)));
  };
  check(host, memory.host);
  if (memory.device) check(device, *memory.device);
  problems.throw_if_any("The configuration cannot be run");
}

void require_memory(const models::ModelArgs& model, double bytes_per_parameter, const RankMemory& memory) {
  const double weights = parameters_of(model) * bytes_per_parameter;
  constexpr double kDescriptionOfExpert = 3 * 200;  // its matrices in Hugging Face's layout
  std::vector<MemoryPart> host = {
      {"names and shapes", kDescriptionOfLayer * static_cast<double>(model.n_layers) +
                               kDescriptionOfExpert * static_cast<double>(model.num_experts) *
                                   static_cast<double>(models::blocks_with_experts(model))}};
  if (!memory.device) host.push_back({"weights", weights});
  if (total(host) > memory.host.bytes) throw_config("the model {}", lack(host, memory.host));
  if (memory.device && weights > memory.device->bytes)
    throw_config("the model {}", lack({{"weights", weights}}, *memory.device));
}

}  // namespace hyperion::trainer
