#include "trainer/plan/step_work.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "trainer/config/schema.h"
#include "trainer/plan/block_work.h"
#include "trainer/plan/sharding_advice.h"
#include "trainer/plan/step_shape.h"

namespace hyperion::trainer {
namespace {

using parallel::MeshDim;

constexpr double kFp32Bytes = 4;

class StepCounter {
 public:
  StepCounter(const config::JobConfig& config, const models::ModelArgs& args,
              const models::ModelDescription& model, const parallel::Mesh& mesh, const RankStages& rank)
      : config_(config), args_(args), model_(model), mesh_(mesh), rank_(rank), shape_(config, mesh) {}

  StepWork count() {
    work_.tokens = microbatches_ * shape_.own / degree(MeshDim::kPp);
    if (degree(MeshDim::kPp) > 1) work_.transfer = shape_.own * dim_ * element_;
    for (size_t i = 0; i < rank_.stages.size(); ++i) {
      const ModelStage& stage = rank_.stages[i];
      const double gathers = rank_.gathers.empty() ? 0 : rank_.gathers[i];
      std::map<std::pair<int, config::RecomputeMode>, double> blocks;  // equal ones are counted together
      for (int64_t layer = stage.first_block; layer < stage.end_block; ++layer)
        ++blocks[{model_.kind_of_layer[static_cast<size_t>(layer)], recompute_mode_of(config_, layer)}];
      for (const auto& [block, number] : blocks)
        add_blocks(model_.kinds[static_cast<size_t>(block.first)], block.second, number, gathers);
      if (stage.embedding) add_embedding(gathers);
      if (stage.head) add_head(gathers);
    }
    add_optimizer();
    add_muon();
    return std::move(work_);
  }

 private:
  double degree(MeshDim dim) const { return mesh_.degree(dim); }
  // Mean passes over a gradient that `products` products of a step, or of a microbatch, add to.
  double gradient_passes(double products) const {
    return 2 - 1 / (rank_.reduces_once ? products : products / microbatches_);
  }

  void add_blocks(const models::BlockDescription& block, config::RecomputeMode mode, double number,
                  double gathers) {
    const BlockShape block_shape(block, args_, config_, mesh_);
    add_block_work(block_shape, mode, gradient_passes(microbatches_), number * microbatches_, work_);
    double dense = 0, gathered_bytes = 0, experts = 0;
    const bool gathers_float8 = config_.quantize.linear.float8.enable_fsdp_float8_all_gather;
    block.for_each_parameter([&](const models::ParameterShape& shape) {
      const double elements = sharded_rows(shape, mesh_).padded;
      if (shape.domain == Domain::kExpert && block_shape.shards_experts) {
        experts += elements;
        return;
      }
      dense += elements;
      const bool float8 = gathers_float8 && shape.dims.size() == 2 && shape.domain == Domain::kDense &&
                          multiplies_in_float8(shape, config_, shape.name);
      // Finds the scales of the next step's gathered weights.
      if (float8 && config_.quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp)
        work_.add(Family::kOptimizer, number, 1, elements / degree(MeshDim::kFsdp) * kFp32Bytes);
      gathered_bytes += elements * (float8 ? 1 : element_);
    });
    const bool stays = config_.parallelism.fsdp_reshard_after_forward == config::ReshardAfterForward::kNever;
    const double times = gathers > 0 ? gathers : (stays ? 1 : 2) * microbatches_;
    add_units(number, dense, gathered_bytes, times, MeshDim::kFsdp);
    if (experts > 0) add_units(number, experts, experts * element_, times, MeshDim::kEfsdp);
  }

  // Gathers the weights of equal units and reduces their gradients; `elements`, with padding, and `gathers`
  // are those of one.
  void add_units(double number, double elements, double gathered_bytes, double gathers, MeshDim group) {
    const double ranks = degree(group), share = (ranks - 1) / ranks;
    const double reductions = rank_.reduces_once ? 1 : microbatches_;
    if (ranks > 1) {
      work_.collectives.push_back({group, number * gathers, share * gathered_bytes});
      work_.collectives.push_back({group, number * reductions, share * elements * kFp32Bytes});
    }
    const double replicas = degree(MeshDim::kDpReplicate), local = elements / ranks;
    if (replicas > 1)
      work_.collectives.push_back(
          {MeshDim::kDpReplicate, number, 2 * (replicas - 1) / replicas * local * kFp32Bytes});
    parameters_ += number * local;
    // Adds the shards of later microbatches. Unsharded sums are what products of gradients accumulate into.
    if (microbatches_ > 1 && !rank_.reduces_once)
      work_.add(Family::kPacking, number * (microbatches_ - 1), 1, 3 * kFp32Bytes * local);
  }

  void add_embedding(double gathers) {
    const double table = model_.table.numel() / tensor_, sharded = sharded_rows(model_.table, mesh_).padded;
    add_units(1, sharded, sharded * element_, gathers > 0 ? gathers : microbatches_, MeshDim::kFsdp);
    const double passes = tensor_ > 1 ? 2 : 1;  // ranks zero the rows of tokens that others have
    work_.add(Family::kEmbedding, microbatches_, passes, passes * 2 * tokens_ * dim_ * element_);
    work_.add(Family::kEmbedding, microbatches_, 31, (tokens_ * dim_ + table) * element_);
    work_.add(Family::kPacking, microbatches_, 1, table * (element_ + kFp32Bytes));
    if (rank_.reduces_once)  // casts the first microbatch's gradient, and adds the others'
      work_.add(Family::kEmbedding, 1, microbatches_,
                table * (element_ + kFp32Bytes + (microbatches_ - 1) * (element_ + 2 * kFp32Bytes)));
    if (tensor_ > 1) add_tensor_exchange(2);
  }
  void add_tensor_exchange(double times) {
    work_.collectives.push_back({MeshDim::kTp, times * microbatches_,
                                 (tensor_ - 1) / tensor_ * tokens_ * dim_ * element_,
                                 config_.parallelism.enable_async_tensor_parallel});
  }

  void add_head(double gathers) {
    const double width = static_cast<double>(model_.output.dims[0]), columns = width / tensor_,
                 weight = columns * dim_;
    const bool float8 = multiplies_in_float8(model_.output, config_, "output");
    const bool tied = model_.tied && std::ranges::any_of(rank_.stages, &ModelStage::embedding);
    const double sharded =
        sharded_rows(model_.output, mesh_).padded + sharded_rows(model_.final_norm, mesh_).padded;
    if (!tied)
      add_units(1, sharded, sharded * element_, gathers > 0 ? gathers : microbatches_, MeshDim::kFsdp);
    const double rows = loss_chunk_rows(config_, tokens_, columns * element_, tensor_);
    const double chunks = std::ceil(tokens_ / rows), of_chunk = tokens_ / chunks;
    const Rate rate = element_ == kFp32Bytes ? Rate::kFp32 : Rate::kBf16;
    const double flops = 2 * of_chunk * weight, times = microbatches_ * chunks;
    const double logits = of_chunk * columns, input = of_chunk * dim_;
    const double operand = float8 ? 1 : element_;
    work_.add(Family::kLoss, microbatches_, 1, 2 * tokens_ / tensor_ * dim_ * element_);
    work_.add(Family::kHeadProducts, times, 1, (input + weight) * operand + logits * element_, flops,
              float8 ? Rate::kFp8 : rate);
    work_.add(Family::kHeadProducts, times, 1, (logits + weight) * operand + input * element_, flops,
              float8 ? Rate::kFp8Slow : rate);
    work_.add(Family::kHeadProducts, times, 1,
              (logits + input) * operand + weight * kFp32Bytes * gradient_passes(times), flops,
              float8 ? Rate::kFp8Slow : rate);
    if (float8)
      work_.add(Family::kFloat8Casts, times, 6, (input + logits) * (2 * element_ + 2) + 2 * weight, 0,
                Rate::kBf16, /*casts=*/true);
    const bool statistics = tensor_ > 1 && !config_.parallelism.disable_loss_parallel;
    work_.add(Family::kLoss, times, statistics ? 45 : 4, (statistics ? 3 : 2) * logits * element_);
    if (statistics) work_.add(Family::kLoss, times, 1, of_chunk * tensor_ * 40 * kFp32Bytes);
    work_.add(Family::kLoss, times, 1, 2 * input * element_);
    work_.add(Family::kNorms, microbatches_, 2, 3 * tokens_ / tensor_ * dim_ * element_);
    if (tensor_ > 1) add_tensor_exchange(2);
  }

  // Reads and writes masters and states, and the compute copy; and the gradients once more for their norm.
  void add_optimizer() {
    const double copy = config_.training.dtype == config_.training.mixed_precision_param ? 0 : 1;
    constexpr double kStates = 2;  // Adam's moments; of Muon one more pass over a matrix
    const double state = config_.optimizer.state_dtype == checkpoint::Dtype::kBFloat16 ? 2 : kFp32Bytes;
    work_.add(Family::kOptimizer, 1, 24, parameters_ * 2 * (2 * kFp32Bytes + kStates * state));
    work_.add(Family::kOptimizer, 1, 24, parameters_ * copy * (kFp32Bytes + element_));
    work_.add(Family::kOptimizer, 1, static_cast<double>(args_.n_layers) + 2, parameters_ * kFp32Bytes);
  }

  // Owners wait for each other in the exchanges, so the fullest counts.
  void add_muon() {
    work_.muon = muon_work(config_, model_, mesh_, rank_.stages);
    if (!work_.muon) return;
    constexpr double kLaunches = 42;  // of a matrix: iterations and copies (docs/optimizers.md)
    const bool fp32 = config_.optimizer.muon.ns_dtype == checkpoint::Dtype::kFloat32;
    work_.add(Family::kMuonProducts, 1, kLaunches * work_.muon->matrices, work_.muon->moved,
              work_.muon->flops, fp32 ? Rate::kFp32 : Rate::kBf16);
  }

  const config::JobConfig& config_;
  const models::ModelArgs& args_;
  const models::ModelDescription& model_;
  const parallel::Mesh& mesh_;
  const RankStages& rank_;
  const StepShape shape_;
  const double microbatches_ = shape_.microbatches, tokens_ = shape_.tokens, tensor_ = shape_.tensor,
               element_ = shape_.element, dim_ = static_cast<double>(args_.dim);
  double parameters_ = 0;  // of this rank's shard
  StepWork work_;
};

}  // namespace

std::string_view name_of(Family family) {
  static constexpr std::array<std::string_view, static_cast<size_t>(Family::kCount)> kNames = {
      "products",
      "products of the head",
      "products of experts",
      "attention",
      "norms",
      "RoPE",
      "SwiGLU",
      "routing and order",
      "residual adds",
      "casts and copies",
      "FP8 casts",
      "loss",
      "gather, pack, reduce",
      "optimizer",
      "Muon's iterations",
      "embedding",
      "exposed FSDP exchange",
      "exposed TP exchange",
      "exposed EP dispatch",
      "exposed CP exchange",
      "pipeline bubble",
      "exposed PP transfers",
      "exposed Muon exchange",
      "not modelled"};
  return kNames.at(static_cast<size_t>(family));
}

std::map<MeshDim, double> StepWork::sent() const {
  std::map<MeshDim, double> bytes;
  for (const Collectives& collective : collectives)
    bytes[collective.group] += collective.times * collective.sent;
  for (const auto& [group, rows] : dispatch.sent) bytes[group] += rows;
  if (muon)
    for (const MuonExchange& exchange : muon->exchanges) bytes[exchange.group] += exchange.step();
  if (const auto& exchange = sequence_exchange)
    bytes[MeshDim::kCp] += exchange->runs * exchange->exchanges * (2 * exchange->keys + exchange->gradients);
  return bytes;
}

void StepWork::add(Family family, double times, double launches, double bytes, double flops, Rate rate,
                   bool casts) {
  if (times <= 0) return;
  kernels.push_back({.family = family,
                     .times = times,
                     .launches = launches,
                     .bytes = bytes,
                     .flops = flops,
                     .rate = rate,
                     .casts_to_float8 = casts});
}

double StepWork::launches() const {
  double sum = 0;
  for (const Kernels& one : kernels) sum += one.times * one.launches;
  return sum;
}

StepWork step_work(const config::JobConfig& config, const models::ModelArgs& args,
                   const models::ModelDescription& model, const parallel::Mesh& mesh,
                   const RankStages& rank) {
  return StepCounter(config, args, model, mesh, rank).count();
}

}  // namespace hyperion::trainer
