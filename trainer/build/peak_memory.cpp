#include "trainer/build/peak_memory.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "trainer/config/schema.h"
#include "trainer/config/validate.h"
#include "trainer/plan/block_memory.h"

namespace hyperion::trainer {
namespace {

using config::RecomputeMode;
using parallel::MeshDim;
using Block = CachingAllocator::Block;

// UnitMemory is what a rank holds of one of its units.
struct UnitMemory {
  std::vector<Block> gathered{};
  UnitGradients gradients{};
  Block flat{};                    // unsharded fp32 gradients of experts, or of the table, packed
  Block shard{}, experts_shard{};  // reduced gradients
};

struct MicrobatchMemory {
  Block activation{}, gradient{};
  std::vector<Block> received{};  // from other ranks; the activation and gradient are then empty
  std::map<size_t, BlockTensors> units{};
};

// The actions of a step without a pipeline. From the second microbatch on each is as the one before.
Schedule schedule_of(const config::JobConfig& config, const models::ModelDescription& model,
                     const parallel::Mesh& mesh) {
  const int64_t microbatches = config::microbatches_of(config.training, mesh.degree(MeshDim::kBatch));
  return training_schedule(static_cast<size_t>(model.blocks()) + 2,
                           static_cast<size_t>(std::min<int64_t>(2, microbatches)),
                           {.reshard_after_forward = config.parallelism.fsdp_reshard_after_forward !=
                                                     config::ReshardAfterForward::kNever,
                            .reduce_once = config::reduces_gradients_once(config)});
}

class StepReplay {
 public:
  StepReplay(const ReplayedJob& job, const JobSize& size, bool on_gpu)
      : config_(job.config),
        model_(job.model),
        size_(size),
        on_gpu_(on_gpu),
        keeps_shards_(on_gpu && !job.config.training.enable_cpu_offload),
        shards_(job.mesh.degree(MeshDim::kFsdp)),
        expert_shards_(config::divides_experts(config_) ? job.mesh.degree(MeshDim::kEfsdp) : shards_),
        shape_(config_, job.mesh),
        dim_(static_cast<double>(job.args.dim)),
        memory_(on_gpu ? CachingAllocator() : CachingAllocator(/*alignment=*/1)) {
    for (const models::BlockDescription& kind : model_.kinds) {
      blocks_.emplace_back(kind, job.args, config_, job.mesh);
      if (!on_gpu) blocks_.back().repeated = 0;
    }
    if (on_gpu) memory_.allocate(states_on_gpu(config_, size), Content::kStates);
  }

  // Runs at least two microbatches, of one or of two steps, because blocks that the first one has freed do
  // not fit all tensors of the second. Returns nullopt as soon as more than `limit` bytes are reserved.
  std::optional<PeakMemory> replay(const Schedule& schedule, double limit) {
    size_t microbatches = 0;
    std::set<size_t> units;
    for (const Action& action : schedule) {
      stages_.insert(action.stage);
      units.insert(action.unit);
      microbatches = std::max(microbatches, action.microbatch + 1);
    }
    shares_table_ = model_.tied && units.contains(0) && units.contains(head());
    for (size_t step = 0; step < (microbatches > 1 ? 1 : 2); ++step) {
      for (const Action& action : schedule) {
        act(action);
        if (static_cast<double>(memory_.reserved()) > limit) return std::nullopt;
      }
      Block update = memory_.allocate(size_.update, Content::kWorking);
      memory_.free(update);
      for (auto& [index, unit] : units_) {
        memory_.free(unit.shard);
        memory_.free(unit.experts_shard);
        free_gradients(unit);
      }
    }
    const PeakMemory peak = result();
    return peak.total() > limit ? std::nullopt : std::optional(peak);
  }

 private:
  PeakMemory result() const {
    const auto bytes = [&](Content content) {
      return static_cast<double>(memory_.peak()[static_cast<size_t>(content)]);
    };
    PeakMemory most{.states = bytes(Content::kStates),
                    .gradients = bytes(Content::kGradients),
                    .unsharded = bytes(Content::kUnsharded),
                    .gathered = bytes(Content::kGathered),
                    .activations = bytes(Content::kActivations),
                    .working = bytes(Content::kWorking)};
    most.reserved = static_cast<double>(memory_.reserved()) - most.total();
    most.working += static_cast<double>(received_.reserved());
    if (!on_gpu_) most.working = most.reserved = 0;  // a CPU's kernels have others
    return most;
  }

  size_t head() const { return static_cast<size_t>(model_.blocks()) + 1; }
  const BlockShape& block_of(size_t unit) const {
    return blocks_[static_cast<size_t>(model_.kind_of_layer[unit - 1])];
  }
  RecomputeMode mode_of(size_t unit) const {
    return recompute_mode_of(config_, static_cast<int64_t>(unit) - 1);
  }
  double table() const { return model_.output.numel() / tensor_; }
  bool divides_experts() const { return config::divides_experts(config_); }

  void act(const Action& action) {
    const size_t index = action.unit;
    MicrobatchMemory& microbatch = microbatches_[{action.stage, action.microbatch}];
    switch (action.kind) {
      case ActionKind::kForward:
        gather(index);
        if (action.prefetch) gather(*action.prefetch);
        return forward(index, microbatch);
      case ActionKind::kLoss:
        gather(index);
        if (action.prefetch) gather(*action.prefetch);
        return loss(microbatch, shares_table_ ? units_[0].flat : units_[index].gradients[0]);
      case ActionKind::kBackward:
      case ActionKind::kInputGradient:
        if (index > 0) gather(index);
        if (action.prefetch) gather(*action.prefetch);
        return backward(index, microbatch, action.kind == ActionKind::kInputGradient);
      case ActionKind::kWeightGradients:
        if (index > 0)
          return replay_weight_gradients(block_of(index), memory_, microbatch.units[index],
                                         units_[index].gradients);
        return embedding_backward(microbatch);
      case ActionKind::kGather:
        return gather(index);
      case ActionKind::kReshard:
        for (Block& block : units_[index].gathered) memory_.free(block);
        return units_[index].gathered.clear();
      case ActionKind::kAccumulate:
        return pack(index);
      case ActionKind::kReduce:
        return reduce(index);
      case ActionKind::kFinishReduction:
        return finish_reduction();
      case ActionKind::kRetireMicrobatch:
        memory_.free(microbatch.activation);
        memory_.free(microbatch.gradient);
        for (Block& block : microbatch.received) received_.free(block);
        microbatches_.erase({action.stage, action.microbatch});
        return;
      case ActionKind::kSendActivation:
        return send(microbatch.activation, {action.stage + 1, action.microbatch},
                    &MicrobatchMemory::activation);
      case ActionKind::kSendGradient:
        return send(microbatch.gradient, {action.stage - 1, action.microbatch}, &MicrobatchMemory::gradient);
      case ActionKind::kReceiveActivation:
      case ActionKind::kReceiveGradient:
        microbatch.received.push_back(received_.allocate(stream_, Content::kWorking));
        return;
      case ActionKind::kSumReplicated:
        return;
    }
  }

  // To a stage of this rank the tensor itself goes.
  void send(Block& block, std::pair<size_t, size_t> to, Block MicrobatchMemory::*member) {
    if (stages_.contains(to.first))
      microbatches_[to].*member = std::exchange(block, {});
    else
      memory_.free(block);
  }

  void gather(size_t index) {
    UnitMemory& unit = units_[index];
    if (!unit.gathered.empty()) return;
    const bool float8 =
        config::kFloat8.on(config_) && config_.quantize.linear.float8.enable_fsdp_float8_all_gather;
    const auto add = [&](double bytes) {
      unit.gathered.push_back(memory_.allocate(bytes, Content::kGathered));
    };
    if (index == 0 || index == head()) {
      if (shards_ > 1) add(table() * element_);
      return;
    }
    // Products of experts in FP8 read two copies of each weight.
    const double copies = config::kGroupedFloat8.on(config_) || config::kGroupedMx.on(config_) ? 2 : 0;
    const auto& elements = block_of(index).elements;
    for (size_t part = 0; part < elements.size(); ++part) {
      const bool expert = part >= BlockShape::kExpertsUp;
      if ((expert ? expert_shards_ : shards_) > 1) add(elements[part] * (float8 ? 1 : element_));
      if (expert) add(elements[part] * copies);
    }
  }

  void forward(size_t index, MicrobatchMemory& microbatch) {
    if (index == 0) {
      microbatch.activation = memory_.allocate(stream_, Content::kActivations);
      return;
    }
    BlockTensors& tensors = microbatch.units[index];
    tensors[BlockShape::kInput] = std::exchange(microbatch.activation, {});
    microbatch.activation = replay_forward(block_of(index), mode_of(index), memory_, tensors);
  }

  // The head's forward and backward, chunk by chunk; tensor parallel ranks have two chunks at once. `sum` is
  // the gradient of the table.
  void loss(MicrobatchMemory& microbatch, Block& sum) {
    const auto working = [&](double bytes) { return memory_.allocate(bytes, Content::kWorking); };
    const bool by_part = tensor_ > 1 && !config_.parallelism.disable_loss_parallel,
               gathers = tensor_ > 1 && !by_part;  // complete logits, in two copies
    const double at_once = by_part ? 2 : 1,
                 of_token = model_.output.numel() / dim_ / (by_part ? tensor_ : 1) * element_,
                 rows = loss_chunk_rows(config_, tokens_, of_token, by_part ? tensor_ : 1, on_gpu_);
    // Later chunks take the memory of those before.
    const double chunks = std::min(at_once + 2, std::ceil(tokens_ / rows));
    Block normed = working(stream_), gradient = working(tensor_ > 1 ? gathered_stream_ : stream_),
          gathered = tensor_ > 1 ? working(gathered_stream_) : Block();
    std::vector<Block> logits;
    for (double chunk = 0; chunk < chunks; ++chunk) {
      logits.push_back(working(rows * of_token * (gathers ? 2 : 1)));
      if (static_cast<double>(logits.size()) < at_once && chunk + 1 < chunks) continue;
      finish_chunk(sum, logits.front(), rows);
      logits.erase(logits.begin());
    }
    for (Block& last : logits) finish_chunk(sum, last, rows);
    Block sharded = tensor_ > 1 ? working(stream_) : Block();
    microbatch.gradient = working(stream_);
    for (Block* block : {&sharded, &gradient, &gathered, &normed, &microbatch.activation})
      memory_.free(*block);
  }
  void finish_chunk(Block& sum, Block& logits, double rows) {
    Block result = memory_.allocate(rows * dim_ * element_, Content::kWorking);
    memory_.free(result);
    if (!sum) sum = memory_.allocate(table() * sizeof(float), Content::kUnsharded);
    memory_.free(logits);
  }

  void backward(size_t index, MicrobatchMemory& microbatch, bool divided) {
    if (index > 0)
      return replay_backward(block_of(index), mode_of(index), memory_, microbatch.units[index],
                             microbatch.gradient, divided ? nullptr : &units_[index].gradients);
    if (!divided) embedding_backward(microbatch);
  }

  void embedding_backward(MicrobatchMemory& microbatch) {
    Block gathered = tensor_ > 1 ? memory_.allocate(gathered_stream_, Content::kWorking) : Block();
    units_[0].gradients[0] = memory_.allocate(table() * element_, Content::kUnsharded);
    memory_.free(gathered);
    memory_.free(microbatch.gradient);
  }

  // Adds gradients in the compute dtype to packed fp32 ones: the table's and experts'.
  void pack(size_t index) {
    UnitMemory& unit = units_[index];
    UnitGradients& parts = unit.gradients;
    double elements = 0;
    if (index == 0) elements = table();
    if (index > 0 && index < head())
      elements = block_of(index).elements[BlockShape::kExpertsUp] +
                 block_of(index).elements[BlockShape::kExpertsDown];
    if (elements == 0) return;
    if (!unit.flat) unit.flat = memory_.allocate(elements * sizeof(float), Content::kUnsharded);
    for (const auto part : {BlockShape::kExpertsUp, BlockShape::kExpertsDown}) memory_.free(parts[part]);
    if (index == 0) memory_.free(parts[0]);
  }

  // Starts the unit's reduction when the one before has ended.
  void reduce(size_t index) {
    finish_reduction();
    pack(index);
    UnitMemory& unit = units_[index];
    double dense = index == head() && shares_table_ ? 0 : table(), experts = 0;
    if (index > 0 && index < head()) {
      const auto& elements = block_of(index).elements;
      dense = 0;
      for (size_t part = 0; part < elements.size(); ++part)
        (part >= BlockShape::kExpertsUp ? experts : dense) += elements[part];
    }
    add_shard(unit.shard, dense, shards_);
    add_shard(unit.experts_shard, experts, expert_shards_);
    reducing_ = index;
  }
  // A reduction makes a shard of its own, which is added to that of earlier microbatches, or to that in the
  // host's memory.
  void add_shard(Block& shard, double elements, double shards) {
    if (shards <= 1) return;
    Block reduced = memory_.allocate(elements / shards * sizeof(float), Content::kGradients);
    if (shard || !keeps_shards_)
      memory_.free(reduced);
    else
      shard = reduced;
  }
  void finish_reduction() {
    if (const auto reducing = std::exchange(reducing_, std::nullopt)) free_reduced(units_[*reducing]);
  }
  // Frees a unit's reduced gradients; those of parameters that no ranks shard stay.
  void free_reduced(UnitMemory& unit) {
    if (!keeps_shards_) return free_gradients(unit);
    UnitGradients& parts = unit.gradients;
    if (shards_ > 1)
      for (size_t part = 0; part < BlockShape::kExpertsUp; ++part) memory_.free(parts[part]);
    if (expert_shards_ > 1 || (!divides_experts() && shards_ > 1)) memory_.free(unit.flat);
  }
  void free_gradients(UnitMemory& unit) {
    for (Block& part : unit.gradients) memory_.free(part);
    memory_.free(unit.flat);
  }

  const config::JobConfig& config_;
  const models::ModelDescription& model_;
  const JobSize& size_;
  const bool on_gpu_, keeps_shards_;  // keeps_shards_: a GPU has the sharded gradients
  const double shards_, expert_shards_;
  const StepShape shape_;
  const double dim_, tensor_ = shape_.tensor, tokens_ = shape_.tokens, element_ = shape_.element,
                     stream_ = shape_.own * dim_ * element_, gathered_stream_ = tokens_ * dim_ * element_;
  std::vector<BlockShape> blocks_;      // by kind
  CachingAllocator memory_, received_;  // the allocator keeps the blocks of each stream apart
  std::map<size_t, UnitMemory> units_;
  std::map<std::pair<size_t, size_t>, MicrobatchMemory> microbatches_;  // by stage and microbatch
  std::optional<size_t> reducing_;
  std::set<size_t> stages_;    // of this rank
  bool shares_table_ = false;  // embedding and head of this rank, whose table is the first unit's
};

}  // namespace

std::optional<JobSize> replayed_size(const ReplayedJob& job, size_t pipeline_rank, bool on_gpu,
                                     double limit) {
  const ModelStage all = all_units(job.model);
  const std::span<const ModelStage> stages =
      job.pipeline == nullptr ? std::span(&all, 1) : std::span(job.pipeline->shares[pipeline_rank]);
  JobSize size = job_size(job.config, job.model, job.mesh, stages);
  const auto& saves = job.config.checkpoint;
  if (saves.enable && saves.create_seed_checkpoint) return size;  // runs no step
  if (on_gpu && states_on_gpu(job.config, size) > limit) return std::nullopt;
  const Schedule schedule =
      job.pipeline == nullptr
          ? schedule_of(job.config, job.model, job.mesh)
          : pipeline_schedule(job.pipeline->pipeline, static_cast<int>(pipeline_rank), job.pipeline->lists);
  const std::optional<PeakMemory> peak = StepReplay(job, size, on_gpu).replay(schedule, limit);
  if (!peak) return std::nullopt;
  size.peak = *peak;
  return size;
}

JobSize largest_replayed_size(const config::JobConfig& config, const models::ModelArgs& args,
                              const parallel::Mesh& mesh, const std::optional<PipelinePlan>& pipeline,
                              bool on_gpu) {
  const models::ModelDescription model = models::describe_model(args);
  const ReplayedJob job{config, args, model, mesh, pipeline ? &*pipeline : nullptr};
  const auto needed = [](const JobSize& size) { return size.states() + size.peak.step(); };
  JobSize largest;
  for (size_t rank = 0; rank < job.pipeline_ranks(); ++rank)
    if (const JobSize size = *replayed_size(job, rank, on_gpu); rank == 0 || needed(size) > needed(largest))
      largest = size;
  return largest;
}

}  // namespace hyperion::trainer
