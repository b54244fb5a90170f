#include "trainer/plan/job_size.h"

#include <algorithm>
#include <string>

#include "models/args/attention_heads.h"
#include "trainer/config/schema.h"
#include "trainer/config/validate.h"
#include "trainer/config/writers_choice.h"
#include "trainer/optim/optimizer_states.h"
#include "trainer/plan/muon_work.h"

namespace hyperion::trainer {
namespace {

using parallel::MeshDim;

// Sums numel(shape) over the parameters of a stage.
template <typename F>
double sum_over_stage(const models::ModelDescription& model, const ModelStage& stage, F&& numel) {
  double sum = model.sum_over_blocks(stage.first_block, stage.end_block,
                                     [&](const models::BlockDescription& block) { return block.sum(numel); });
  if (stage.embedding) sum += numel(model.table);
  if (stage.head) sum += numel(model.final_norm) + numel(model.output);
  return sum;
}

class SizeOfRank {
 public:
  SizeOfRank(const config::JobConfig& config, const models::ModelDescription& model,
             const parallel::Mesh& mesh, std::span<const ModelStage> stages)
      : config_(config), model_(model), mesh_(mesh), stages_(stages) {}

  JobSize count() {
    add_states();
    if (!config::is_dry_run(config_)) size_.communicators = communicators();
    const auto& saves = config_.checkpoint;
    if (saves.enable && saves.create_seed_checkpoint) return size_;  // runs no step
    if (has_background_saves()) size_.save_pool = save_pool();
    if (const auto work = muon_work(config_, model_, mesh_, stages_)) {
      size_.exchanges = work->buffers;
      size_.update = work->results;
    }
    add_attention();
    size_.expert_rows = expert_rows();
    const int64_t batches = config::microbatches_of(config_.training, mesh_.degree(MeshDim::kBatch));
    size_.tokens = static_cast<double>(config_.training.local_batch_size) * length_ *
                   static_cast<double>(batches) * 2 * sizeof(int64_t);  // tokens and labels
    return size_;
  }

 private:
  double degree(MeshDim dim) const { return mesh_.degree(dim); }

  // Sums numel(shape) over this rank's stages. A table that its embedding and its head share counts once.
  template <typename F>
  double sum(F&& numel) const {
    double all = 0;
    for (const ModelStage& stage : stages_) all += sum_over_stage(model_, stage, numel);
    const bool table_twice = model_.tied && std::ranges::any_of(stages_, &ModelStage::embedding) &&
                             std::ranges::any_of(stages_, &ModelStage::head);
    return table_twice ? all - numel(model_.output) : all;
  }

  void add_states() {
    // Elements of a parameter on this rank.
    const auto numel = [&](const models::ParameterShape& shape) {
      return shape.numel() / (shape.split ? tensor_ : 1) / degree(MeshDim::kFsdp);
    };
    const double parameters = sum(numel);
    const double copy = state_ == compute_                                          ? 0
                        : config::kFloat8.on(config_) && model_experts() == nullptr ? 1
                                                                                    : compute_;
    size_.description = kDescriptionOfLayer * static_cast<double>(model_.blocks());
    const double tables = model_.table.numel() + (model_.tied ? 0 : model_.output.numel());
    size_.mostly_tables = 2 * tables > models::parameter_count(model_);
    size_.weights = parameters * (state_ + copy);
    size_.optimizer = sum([&](const models::ParameterShape& shape) {
      const bool in_block = shape.name != model_.table.name && shape.name != model_.output.name &&
                            shape.name != model_.final_norm.name;
      const std::string fqn = in_block ? "layers.0." + shape.name : shape.name;  // of any layer
      const auto kinds = optim::state_kinds(config_.optimizer, fqn, shape.dims.size());
      return shape.trainable ? numel(shape) * optim::bytes_per_element(kinds, state_) : 0;
    });
    size_.gradients =
        sum([&](const models::ParameterShape& shape) { return shape.trainable ? numel(shape) * state_ : 0; });
    if (config_.ema.enable) size_.averages = parameters * state_;
  }

  // A group of one rank has no communicator.
  Communicators communicators() const {
    const bool chunks = config_.parallelism.enable_async_tensor_parallel, experts = degree(MeshDim::kEp) > 1;
    return {.collectives = (degree(MeshDim::kFsdp) > 1) + (experts && degree(MeshDim::kEfsdp) > 1) +
                           (tensor_ > 1 && !chunks) + (degree(MeshDim::kDpReplicate) > 1),
            .exchanges = experts + (experts && config_.parallelism.expert_parallel_once_per_node ? 2 : 0) +
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
    const int64_t replicas = mesh_.degree(MeshDim::kDpReplicate);
    const auto writers =
        config::choose_writers(config_.checkpoint.writers, mesh_.world_size(), replicas).writers;
    return (size_.gradients + size_.optimizer + size_.averages) /
           (writers == checkpoint::Writers::kAll ? static_cast<double>(replicas) : 1);
  }

  // One block's rows that expert parallel ranks exchange. Each of the ranks that share an expert has the rows
  // of all of them.
  double expert_rows() const {
    const models::ExpertWidths* const experts = model_experts();
    if (experts == nullptr || !config::divides_experts(config_)) return 0;
    const double parts = degree(MeshDim::kEtp),
                 tokens = rows_ * length_ / context_ / tensor_ * parts * static_cast<double>(experts->top_k);
    return tokens * compute_ * experts->elements_per_row(parts);
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
    size_.attention_threads = rows_ * std::max(1.0, static_cast<double>(heads().kv_heads) / tensor_);
  }

  double keys_at_once() const {
    const bool ring = config::passes_keys_in_ring(config_) && model_.windows() == 0;  // windows have none
    return ring ? length_ / context_ : length_;
  }
  // Attention has the same widths in all blocks, but for windows.
  const models::AttentionWidths& heads() const { return *model_.kinds.front().attention.attention; }
  const models::ExpertWidths* model_experts() const {  // null for a dense model
    for (const models::BlockDescription& kind : model_.kinds)
      if (kind.feed_forward.experts) return &*kind.feed_forward.experts;
    return nullptr;
  }

  const config::JobConfig& config_;
  const models::ModelDescription& model_;
  const parallel::Mesh& mesh_;
  std::span<const ModelStage> stages_;
  // Bytes per element.
  const double state_ = static_cast<double>(checkpoint::size_of(config_.training.dtype)),
               compute_ = static_cast<double>(checkpoint::size_of(config_.training.mixed_precision_param));
  const double tensor_ = degree(MeshDim::kTp), pipeline_ = degree(MeshDim::kPp),
               context_ = degree(MeshDim::kCp);
  const double length_ = static_cast<double>(config_.training.seq_len),
               rows_ = static_cast<double>(
                   config::microbatch_rows(config_, config_.training.local_batch_size));  // per microbatch
  JobSize size_;
};

}  // namespace

double parameters_of(const models::ModelDescription& model, const ModelStage& stage) {
  return sum_over_stage(model, stage, [](const models::ParameterShape& shape) { return shape.numel(); });
}

JobSize job_size(const config::JobConfig& config, const models::ModelDescription& model,
                 const parallel::Mesh& mesh, std::span<const ModelStage> stages) {
  return SizeOfRank(config, model, mesh, stages).count();
}

double states_on_gpu(const config::JobConfig& config, const JobSize& size) {
  double bytes = size.exchanges;
  if (config.training.enable_cpu_offload) return bytes;
  bytes += size.weights + size.optimizer;
  return config.ema.device == config::EmaDevice::kCpu ? bytes : bytes + size.averages;
}

}  // namespace hyperion::trainer
