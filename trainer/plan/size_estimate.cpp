#include "trainer/plan/size_estimate.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "models/args/attention_heads.h"
#include "parallel/pipeline/lowering.h"
#include "trainer/config/schema.h"
#include "trainer/config/validate.h"
#include "trainer/config/writers_choice.h"
#include "trainer/optim/optimizer_states.h"
#include "trainer/plan/muon_work.h"

namespace hyperion::trainer {
namespace {

// Elements of a parameter on one of `tensor` tensor parallel ranks, before FSDP.
double unsharded_numel(const models::ParameterShape& shape, double tensor) {
  return shape.numel() / (shape.split ? tensor : 1);
}

// Elements of a parameter that a rank all-gathers. With expert parallelism each rank holds only its own
// experts; it gathers them if efsdp shards them (`sharded`), else nothing.
double gathered_numel(const models::ParameterShape& shape, const config::JobConfig& config,
                      bool sharded = true) {
  const auto& degrees = config.parallelism;
  if (shape.domain == Domain::kExpert && config::divides_experts(config))
    return sharded ? shape.numel() / static_cast<double>(degrees.expert_parallel_degree *
                                                         degrees.expert_tensor_parallel_degree)
                   : 0;
  return unsharded_numel(shape, static_cast<double>(degrees.tensor_parallel_degree));
}

// Sums numel(shape) over the parameters of a stage.
template <typename F>
double sum_over_stage(const models::ModelDescription& model, const PipelineShare::Stage& stage, F&& numel) {
  double sum = model.sum_over_blocks(stage.first_block, stage.end_block,
                                     [&](const models::BlockDescription& block) { return block.sum(numel); });
  if (stage.embedding) sum += numel(model.table);
  if (stage.head) sum += numel(model.final_norm) + numel(model.output);
  return sum;
}

// Sums numel(shape) over the model. A tied table counts once.
template <typename F>
double sum_over_model(const models::ModelDescription& model, F&& numel) {
  return sum_over_stage(model, {0, model.blocks(), true, true}, numel) -
         (model.tied ? numel(model.output) : 0);
}

// Elements of the blocks that are gathered at the same time without a pipeline: the largest block, or all
// blocks if they stay gathered.
double gathered_numel_of_blocks(const models::ModelDescription& model, const config::JobConfig& config,
                                bool shards_experts) {
  const auto of_block = [&](const models::BlockDescription& block) {
    return block.sum(
        [&](const models::ParameterShape& shape) { return gathered_numel(shape, config, shards_experts); });
  };
  if (config.parallelism.fsdp_reshard_after_forward == config::ReshardAfterForward::kNever)
    return model.sum_over_blocks(0, model.blocks(), of_block);
  double largest = 0;
  for (const models::BlockDescription& kind : model.kinds) largest = std::max(largest, of_block(kind));
  return largest;
}

// Bytes of keys and values repeated for all heads, and of their gradients, in one block's backward. GPU
// kernels without GQA need them (models/kernels/attention/gpu.cpp). `keys` is the number of keys per sequence
// held at once.
double repeated_keys(const models::AttentionWidths& heads, double rows, double keys, double tensor,
                     double compute) {
  const bool repeats = compute == sizeof(float) || heads.head_dim > kernels::gpu::kLargestFlashHead;
  if (!repeats || heads.kv_heads == heads.heads) return 0;
  return 4 * rows * keys * static_cast<double>(heads.heads * heads.head_dim) / tensor * compute;
}

// Computes the terms of job_size() in order; later terms use earlier ones.
class SizeOfJob {
 public:
  SizeOfJob(const config::JobConfig& config, const models::ModelDescription& model, int64_t shards,
            int64_t microbatches, const PipelineShare* share)
      : config_(config), model_(model), share_(share), shards_(shards) {
    rows_ = config::microbatch_rows(config, config.training.local_batch_size);
    microbatches_ = microbatches * config.training.local_batch_size / rows_;
    tokens_ = static_cast<double>(rows_) * length_ / context_;
    unsharded_ =
        sum_over_share([&](const models::ParameterShape& shape) { return unsharded_numel(shape, tensor_); });
    blocks_with_experts_ = blocks_of_share(
        [](const models::BlockDescription& block) { return block.feed_forward.experts ? 1.0 : 0.0; });
    shards_experts_ = shards * config.parallelism.tensor_parallel_degree >
                      experts_ * config.parallelism.expert_tensor_parallel_degree;
  }

  JobSize estimate() {
    add_states();
    if (!config::is_dry_run(config_)) size_.communicators = communicators();
    const auto& saves = config_.checkpoint;
    if (saves.enable && saves.create_seed_checkpoint) return size_;  // runs no step
    if (has_background_saves()) size_.save_pool = save_pool();
    add_exchanges();
    if (share_ == nullptr)
      add_step();
    else
      add_largest_moment();
    if (pipeline_ > 1)  // on a CPU one at a time, which kept_inputs() counts
      size_.sends = (std::min<double>(parallel::kMaxSends, static_cast<double>(microbatches_)) - 1) *
                    tokens_ / tensor_ * dim() * compute_;
    size_.repeated = repeated_keys(heads(), static_cast<double>(rows_), keys_at_once(), tensor_, compute_);
    add_attention();
    if (experts_ > 1 && blocks_with_experts_ > 0) size_.expert_rows = expert_rows();
    size_.tokens = static_cast<double>(rows_) * length_ * static_cast<double>(microbatches_) * 2 *
                   sizeof(int64_t);  // tokens and labels
    return size_;
  }

 private:
  void add_states() {
    const double parameters = unsharded_ / static_cast<double>(shards_);
    const double copy = state_ == compute_                                    ? 0
                        : config::kFloat8.on(config_) && experts() == nullptr ? 1
                                                                              : compute_;
    size_.description = kDescriptionOfLayer * static_cast<double>(model_.blocks());
    const double tables = model_.table.numel() + (model_.tied ? 0 : model_.output.numel());
    size_.mostly_tables = 2 * tables > models::parameter_count(model_);
    size_.weights = parameters * (state_ + copy);
    const auto state_bytes = [&](const models::ParameterShape& shape) {
      const bool in_block = shape.name != model_.table.name && shape.name != model_.output.name &&
                            shape.name != model_.final_norm.name;
      const std::string fqn = in_block ? "layers.0." + shape.name : shape.name;  // of any layer
      const auto kinds = optim::state_kinds(config_.optimizer, fqn, shape.dims.size());
      return shape.trainable ? unsharded_numel(shape, tensor_) * optim::bytes_per_element(kinds, state_) : 0;
    };
    const double trained = sum_over_share([&](const models::ParameterShape& shape) {
                             return shape.trainable ? unsharded_numel(shape, tensor_) : 0;
                           }) /
                           static_cast<double>(shards_);
    size_.optimizer = sum_over_share(state_bytes) / static_cast<double>(shards_);
    size_.gradients = size_.reduced = trained * state_;
    if (config_.ema.enable) size_.averages = parameters * state_;
  }

  // Adds the exchange buffers and the working memory of Muon's fullest owner. Without a share every pipeline
  // rank has an equal part of the blocks.
  void add_exchanges() {
    if (config_.optimizer.name != config::OptimizerName::kMuon) return;
    const auto& degrees = config_.parallelism;
    const auto degree = [](int64_t value) { return static_cast<int>(value); };
    const int context = degree(degrees.context_parallel_degree),
              tensor = degree(degrees.tensor_parallel_degree);
    const parallel::Mesh mesh({.dp_shard = degree(shards_) / context,
                               .cp = context,
                               .tp = tensor,
                               .ep = degree(experts_),
                               .etp = experts_ > 1 ? degree(degrees.expert_tensor_parallel_degree) : 1},
                              degree(shards_) * tensor);
    const std::vector<PipelineShare::Stage> stages =
        share_ != nullptr
            ? share_->stages
            : std::vector<PipelineShare::Stage>{
                  {.end_block = std::max<int64_t>(1, model_.blocks() / static_cast<int64_t>(pipeline_))}};
    const std::optional<MuonWork> work = muon_work(config_, model_, mesh, stages);
    if (!work) return;
    size_.exchanges = work->buffers;
    size_.update = work->results;
  }

  // A group of one rank has no communicator.
  Communicators communicators() const {
    const bool chunks = config_.parallelism.enable_async_tensor_parallel;
    return {.collectives = (shards_ > 1) + (experts_ > 1 && shards_experts_) + (tensor_ > 1 && !chunks) +
                           (config_.parallelism.data_parallel_replicate_degree > 1),
            .exchanges = (experts_ > 1) +
                         (experts_ > 1 && config_.parallelism.expert_parallel_once_per_node ? 2 : 0) +
                         (tensor_ > 1 && chunks) + (context_ > 1),
            .stages = (pipeline_ > 1 ? 2 : 0) +
                      (pipeline_ > 2 && model_.tied)};  // the tied table's, between first and last stage
  }

  // The last save is synchronous, so a job that saves only at its end has no background save.
  bool has_background_saves() const {
    const auto& saves = config_.checkpoint;
    const int64_t first_save = saves.enable_first_step_checkpoint ? 1 : saves.interval;
    return saves.enable && !saves.load_only && !config::is_dry_run(config_) &&
           saves.async_mode != checkpoint::AsyncMode::kDisabled && first_save < config_.training.steps;
  }

  // A writing rank copies its shard, or 1/replicas of it if all replicas write.
  double save_pool() const {
    const auto& degrees = config_.parallelism;
    const int64_t replicas = degrees.data_parallel_replicate_degree;
    const int64_t ranks =
        shards_ * degrees.tensor_parallel_degree * degrees.pipeline_parallel_degree * replicas;
    const auto writers = config::choose_writers(config_.checkpoint.writers, ranks, replicas).writers;
    return (size_.gradients + size_.optimizer + size_.averages) /
           (writers == checkpoint::Writers::kAll ? static_cast<double>(replicas) : 1);
  }

  // Bytes of the gradients of some parameters.
  struct GradientBytes {
    double sums = 0;      // unsharded sums while some microbatches have added their gradients
    double partial = 0;   // sharded gradients in addition to these sums
    double complete = 0;  // sharded gradients when all microbatches have added theirs
  };

  // If efsdp has one rank, each microbatch reduces the gradients of experts.
  GradientBytes gradient_bytes(const models::ParameterShape& shape) const {
    if (!shape.trainable) return {};
    const double sharded = unsharded_numel(shape, tensor_) / static_cast<double>(shards_) * state_;
    const bool sums = shards_ > 1 && microbatches_ > 1 && config::reduces_gradients_once(config_);
    const double sum = sums ? gathered_numel(shape, config_, shards_experts_) * sizeof(float) : 0;
    return {.sums = sum, .partial = sum > 0 ? 0 : sharded, .complete = sharded};
  }

  double gathered_element_bytes() const {
    if (shards_ == 1) return 0;
    return config::kFloat8.on(config_) && config_.quantize.linear.float8.enable_fsdp_float8_all_gather
               ? 1
               : compute_;
  }

  // Adds the memory of a step without a pipeline: all units have partial sums at once. Of a pipeline whose
  // moments are unknown it counts the kept inputs alone. The only microbatch of a step frees its inputs, from
  // the head's to that of the second block, while gradients come.
  void add_step() {
    const double inputs = static_cast<double>(model_.blocks()) / pipeline_ + 1;
    size_.activations = activations(inputs, /*deferred_blocks=*/0);
    if (pipeline_ > 1) return;
    if (microbatches_ == 1) size_.freed = size_.activations - activations(1, 0, /*at_head=*/false);
    const auto sum_of = [&](double GradientBytes::*bytes) {
      return sum_over_model(
          model_, [&](const models::ParameterShape& shape) { return gradient_bytes(shape).*bytes; });
    };
    size_.sums = sum_of(&GradientBytes::sums);
    size_.reduced = sum_of(&GradientBytes::partial);
    size_.gathered = gathered_element_bytes() * gathered_numel_of_blocks(model_, config_, shards_experts_);
  }

  // The bytes of one stage in each state of its weights and gradients.
  struct StageBytes {
    double gathered = 0;
    GradientBytes units{}, head{};
  };

  StageBytes stage_bytes(PipelineShare::Stage stage) const {
    const auto gathered = [&](const models::ParameterShape& shape) {
      return gathered_element_bytes() * gathered_numel(shape, config_, shards_experts_);
    };
    StageBytes bytes{.gathered = sum_over_stage(model_, stage, gathered)};
    const auto gradients = [&](const PipelineShare::Stage& part) {
      const auto sum_of = [&](double GradientBytes::*bytes) {
        return sum_over_stage(
            model_, part, [&](const models::ParameterShape& shape) { return gradient_bytes(shape).*bytes; });
      };
      return GradientBytes{.sums = sum_of(&GradientBytes::sums),
                           .partial = sum_of(&GradientBytes::partial),
                           .complete = sum_of(&GradientBytes::complete)};
    };
    if (stage.head) {
      bytes.head = gradients({.first_block = stage.end_block, .end_block = stage.end_block, .head = true});
      if (holds_table_twice()) bytes.head.complete -= gradient_bytes(model_.output).complete;
    }
    stage.head = false;
    bytes.units = gradients(stage);
    return bytes;
  }

  // Adds the memory of the moment of a pipeline step that takes the most.
  void add_largest_moment() {
    std::vector<StageBytes> stages;
    for (const PipelineShare::Stage& stage : share_->stages) stages.push_back(stage_bytes(stage));
    const auto beside_states = [](const JobSize& size) {
      return size.sums + size.reduced + size.gathered + size.activations;
    };
    const JobSize states = size_;
    for (const PipelineShare::Moment& moment : share_->moments) {
      JobSize size = states;
      add_moment(moment, stages, size);
      if (&moment == &share_->moments.front() || beside_states(size) > beside_states(size_)) size_ = size;
    }
  }

  void add_moment(const PipelineShare::Moment& moment, const std::vector<StageBytes>& stages,
                  JobSize& size) const {
    size.reduced = 0;
    const auto add = [&](parallel::GradientProgress progress, const GradientBytes& bytes) {
      if (progress == parallel::GradientProgress::kPartial) {
        size.sums += bytes.sums;
        size.reduced += bytes.partial;
      } else if (progress == parallel::GradientProgress::kComplete) {
        size.reduced += bytes.complete;
      }
    };
    int gathered_tables = 0;
    for (size_t i = 0; i < stages.size(); ++i) {
      const parallel::StageWeights& weights = moment.weights.at(i);
      add(weights.gradients, stages[i].units);
      add(weights.head_gradients, stages[i].head);
      if (!weights.gathered) continue;
      size.gathered += stages[i].gathered;
      gathered_tables += share_->stages[i].embedding + share_->stages[i].head;
    }
    if (holds_table_twice() && gathered_tables == 2)
      size.gathered -= gathered_element_bytes() * gathered_numel(model_.output, config_);
    if (moment.runs())  // a pipeline also holds one tensor that it sends and one that it receives
      size.activations = activations(static_cast<double>(moment.kept_inputs) + 2,
                                     static_cast<double>(moment.deferred_blocks));
  }

  // Counts what one rank holds of microbatches: RoPE's angles, the larger of the saved block inputs and the
  // inputs of deferred wgrad, and the intermediates of a block or of the head.
  double activations(double kept_inputs, double deferred_blocks, bool at_head = true) const {
    const bool float8 = config::kFloat8.on(config_) || config::kMx.on(config_);
    const double deferred =
        deferred_blocks > 0 ? deferred_blocks * tokens_ * least_deferred_elements() * (float8 ? 1 : compute_)
                            : 0;
    const double boundary = tokens_ / tensor_ * dim() * compute_;
    double bytes = std::max(boundary * kept_inputs, deferred) +
                   length_ * static_cast<double>(heads().rotated) * sizeof(float);
    double block = 0;
    if (blocks_with_experts_ > 0) {  // a pipeline's inputs from and for other stages have no order of rows
      bytes += order_of_rows() * (kept_inputs - (share_ == nullptr ? 0 : 2));
      block = activations_of_experts();
    }
    if (context_ > 1) {
      if (runs_again())  // every block keeps its attention output; a lower bound: Flash pads values to the
                         // width of keys
        bytes += (kept_inputs - 1) * tokens_ / tensor_ *
                 static_cast<double>(heads().heads * heads().v_head_dim) * compute_;
      block += shared_keys();
    }
    return bytes + std::max(block, at_head && (share_ == nullptr || share_->has_head()) ? logits() : 0);
  }

  // The kind of block with the fewest elements gives a lower bound.
  double least_deferred_elements() const {
    double least = std::numeric_limits<double>::infinity();
    for (const models::BlockDescription& kind : model_.kinds)
      least = std::min(least, deferred_elements(kind, tensor_, runs_again()));
    return least;
  }

  // Counts one block's expert rows, as many as the mean of the ranks.
  double expert_rows() const {
    const models::ExpertWidths& widths = *experts();
    return assignments() * compute_ * widths.elements_per_row(parts_of_expert());
  }

  // Counts one block's expert rows, and the FP8 copies of its expert weights.
  double activations_of_experts() const {
    const bool exchanged = config::divides_experts(config_);
    const double rows = expert_rows();
    if (!config::kGroupedFloat8.on(config_) && !config::kGroupedMx.on(config_)) return rows;
    // FP8 keeps two copies of each expert weight while it is gathered; an unsharded weight always is.
    const double block = block_with_experts()->sum([&](const models::ParameterShape& shape) {
      return shape.domain == Domain::kExpert ? gathered_numel(shape, config_) : 0;
    });
    const bool stays = exchanged ? !shards_experts_ : shards_ == 1;
    return rows + 2 * block * (stays ? blocks_with_experts_ : 1);
  }

  // Returns between how many ranks TP or ETP shards each expert.
  double parts_of_expert() const {
    return config::divides_experts(config_)
               ? static_cast<double>(config_.parallelism.expert_tensor_parallel_degree)
               : tensor_;
  }
  // Returns a block's assignments of tokens to experts. Each of the ranks that share an expert has those of
  // all of them.
  double assignments() const {
    return tokens_ / tensor_ * parts_of_expert() * static_cast<double>(experts()->top_k);
  }
  // Bytes that a kept input adds for the order of its block's rows (models/parts/experts/dispatch.h): the
  // choice, the assignment, the token and the row of each assignment. All inputs count as if they were of the
  // stage with the fewest blocks with experts; the head has none.
  double order_of_rows() const {
    double least = 1;
    const auto add = [&](const PipelineShare::Stage& stage) {
      const auto inputs = static_cast<double>(stage.end_block - stage.first_block + stage.head);
      const double with_experts = model_.sum_over_blocks(
          stage.first_block, stage.end_block,
          [](const models::BlockDescription& block) { return block.feed_forward.experts ? 1.0 : 0.0; });
      if (inputs > 0) least = std::min(least, with_experts / inputs);
    };
    if (share_ == nullptr) add({.end_block = model_.blocks(), .head = true});
    if (share_ != nullptr) std::ranges::for_each(share_->stages, add);
    return least * assignments() * 4 * sizeof(int32_t);
  }

  // One block's backward holds keys and values of complete sequences, their gradients and gradient sums. In a
  // ring it holds keys and values of two ranks and the gradients of one. Ranks exchange values padded to the
  // width of keys.
  double shared_keys() const {
    return 2 * tokens_ / tensor_ * static_cast<double>(heads().kv_heads * heads().head_dim) *
           (ring_ ? 3 * compute_ + 2 * sizeof(float) : context_ * (2 * compute_ + sizeof(float)));
  }

  double logits() const {
    const bool gathered = tensor_ > 1 && config_.parallelism.disable_loss_parallel;  // as a second copy
    const int64_t configured = config_.training.loss_chunk_bytes;
    const double of_token = static_cast<double>(model_.output.dims[0]) * compute_ / (gathered ? 1 : tensor_),
                 chunk = static_cast<double>(configured > 0 ? configured : 64 << 20);
    return std::min(tokens_ * of_token, (gathered ? 2 : 1) * std::max(of_token, chunk));
  }

  // The kernel packs keys twice (fp32 keys once) and values once, and keeps their gradients in fp32
  // (models/kernels/attention/cpu_blocks.cpp). libtorch's attention and larger heads need less and are not
  // counted.
  void add_attention() {
    const bool flash = config_.model.attention == config::AttentionChoice::kFlash &&
                       !config_.training.document_mask && context_ == 1;
    constexpr int64_t kMultiple = kernels::cpu::kHeadMultiple;
    const int64_t padded_head = (heads().head_dim + kMultiple - 1) / kMultiple * kMultiple;
    if (!flash && heads().head_dim <= kernels::cpu::kLargestHead)
      size_.attention =
          keys_at_once() * static_cast<double>(padded_head) * (compute_ == 2 ? 3 * 2 + 2 * 4 : 4 * 4);
    size_.attention_threads =
        static_cast<double>(rows_) * std::max(1.0, static_cast<double>(heads().kv_heads) / tensor_);
  }

  double keys_at_once() const { return ring_ ? length_ / context_ : length_; }
  double dim() const { return static_cast<double>(model_.table.dims[1]); }
  // Attention has the same widths in all blocks, but for windows.
  const models::AttentionWidths& heads() const { return *model_.kinds.front().attention.attention; }
  const models::BlockDescription* block_with_experts() const {
    const auto found = std::ranges::find_if(model_.kinds, [](const models::BlockDescription& kind) {
      return kind.feed_forward.experts.has_value();
    });
    return found == model_.kinds.end() ? nullptr : &*found;
  }
  const models::ExpertWidths* experts() const {  // null for a dense model
    const models::BlockDescription* block = block_with_experts();
    return block == nullptr ? nullptr : &*block->feed_forward.experts;
  }
  // Both functions sum over this rank's stages; without a share they return an equal part of the model's sum.
  template <typename F>
  double sum_over_share(F&& numel) const {
    if (share_ == nullptr) return sum_over_model(model_, numel) / pipeline_;
    double sum = 0;
    for (const PipelineShare::Stage& stage : share_->stages) sum += sum_over_stage(model_, stage, numel);
    return holds_table_twice() ? sum - numel(model_.output) : sum;
  }
  // Returns whether embedding and head of this rank share one table.
  bool holds_table_twice() const {
    return model_.tied && share_ != nullptr && share_->has_head() &&
           std::ranges::any_of(share_->stages, &PipelineShare::Stage::embedding);
  }
  template <typename F>
  double blocks_of_share(F&& f) const {
    if (share_ == nullptr) return model_.sum_over_blocks(0, model_.blocks(), f) / pipeline_;
    double sum = 0;
    for (const PipelineShare::Stage& stage : share_->stages)
      sum += model_.sum_over_blocks(stage.first_block, stage.end_block, f);
    return sum;
  }
  bool runs_again() const { return config_.activation_checkpoint.mode == config::RecomputeMode::kFull; }

  const config::JobConfig& config_;
  const models::ModelDescription& model_;
  const PipelineShare* share_;
  int64_t shards_;
  // Bytes per element.
  const double state_ = static_cast<double>(checkpoint::size_of(config_.training.dtype)),
               compute_ = static_cast<double>(checkpoint::size_of(config_.training.mixed_precision_param));
  // Parallelism degrees.
  const double tensor_ = static_cast<double>(config_.parallelism.tensor_parallel_degree),
               pipeline_ = static_cast<double>(config_.parallelism.pipeline_parallel_degree),
               context_ = static_cast<double>(config_.parallelism.context_parallel_degree);
  const int64_t experts_ = config::divides_experts(config_) ? config_.parallelism.expert_parallel_degree : 1;
  const bool ring_ = config::passes_keys_in_ring(config_) && model_.windows() == 0;  // windows have none
  const double length_ = static_cast<double>(config_.training.seq_len);
  int64_t rows_ = 0, microbatches_ = 0;             // rows per microbatch; microbatches per step
  double tokens_ = 0;                               // per rank and microbatch
  double unsharded_ = 0, blocks_with_experts_ = 0;  // parameters and MoE blocks of this rank's stages
  bool shards_experts_ = false;                     // efsdp has more than one rank
  JobSize size_;
};

}  // namespace

double deferred_elements(const models::BlockDescription& block, double tensor, bool runs_again) {
  double sum = 0;
  for (const models::PartDescription* part : {&block.attention, &block.feed_forward}) {
    const models::WeightGradientInputs& reads = part->weight_gradient_inputs;
    sum += static_cast<double>(reads.gathered) / (runs_again ? 1 : tensor) +
           static_cast<double>(reads.sharded) / tensor + static_cast<double>(reads.scattered);
  }
  return sum;
}

double parameters_of(const models::ModelArgs& model, const PipelineShare::Stage& stage, double tensor) {
  return sum_over_stage(models::describe_model(model), stage,
                        [=](const models::ParameterShape& shape) { return unsharded_numel(shape, tensor); });
}

JobSize largest_job_size(const config::JobConfig& config, const models::ModelArgs& model, int64_t shards,
                         int64_t microbatches, std::span<const PipelineShare> shares) {
  const models::ModelDescription description = models::describe_model(model);
  if (shares.empty()) return job_size(config, description, shards, microbatches);
  std::vector<JobSize> sizes;
  for (const PipelineShare& share : shares)
    sizes.push_back(job_size(config, description, shards, microbatches, &share));
  return std::ranges::max(sizes, {}, &JobSize::total);
}

JobSize job_size(const config::JobConfig& config, const models::ModelDescription& model, int64_t shards,
                 int64_t microbatches, const PipelineShare* share) {
  return SizeOfJob(config, model, shards, microbatches, share).estimate();
}

}  // namespace hyperion::trainer
