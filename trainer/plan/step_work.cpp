#include "trainer/plan/step_work.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "trainer/config/schema.h"
#include "trainer/config/validate.h"
#include "trainer/plan/block_memory.h"
#include "trainer/plan/block_work.h"
#include "trainer/plan/muon_work.h"
#include "trainer/plan/sharding_advice.h"

namespace hyperion::trainer {
namespace {

using parallel::MeshDim;

constexpr double kFp32Bytes = 4;

class StepCounter {
 public:
  StepCounter(const config::JobConfig& config, const models::ModelArgs& args,
              const models::ModelDescription& model, const parallel::Mesh& mesh, int64_t batches,
              const RankStages& rank)
      : config_(config), args_(args), model_(model), mesh_(mesh), rank_(rank) {
    const int64_t rows = config::microbatch_rows(config, config.training.local_batch_size);
    const int64_t microbatches = batches * config.training.local_batch_size / rows;
    microbatches_ = static_cast<double>(microbatches);
    tokens_ = static_cast<double>(rows * config.training.seq_len) / degree(MeshDim::kCp);
  }

  StepWork count() {
    work_.tokens = microbatches_ * tokens_ / tensor() / degree(MeshDim::kPp);
    if (degree(MeshDim::kPp) > 1)
      work_.transfer = tokens_ / tensor() * static_cast<double>(args_.dim) * element();
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
  double tensor() const { return degree(MeshDim::kTp); }
  double element() const {
    return static_cast<double>(checkpoint::size_of(config_.training.mixed_precision_param));
  }
  // Mean passes over a gradient that `products` products of a step, or of a microbatch, add to.
  double gradient_passes(double products) const {
    return 2 - 1 / (rank_.reduces_once ? products : products / microbatches_);
  }
  bool shards_experts() const { return config::divides_experts(config_); }

  void add(Family family, double times, double launches, double bytes, double flops = 0,
           Rate rate = Rate::kBf16) {
    work_.kernels.push_back({.family = family,
                             .times = times,
                             .launches = launches,
                             .bytes = bytes,
                             .flops = flops,
                             .rate = rate});
  }

  void add_blocks(const models::BlockDescription& block, config::RecomputeMode mode, double number,
                  double gathers) {
    const BlockSetting setting{.config = config_,
                               .args = args_,
                               .tokens = tokens_,
                               .tensor = tensor(),
                               .context = degree(MeshDim::kCp),
                               .experts = shards_experts() ? degree(MeshDim::kEp) : 1,
                               .expert_nodes = degree(MeshDim::kEpNodes),
                               .expert_tensor = shards_experts() ? degree(MeshDim::kEtp) : tensor(),
                               .gradient_passes = gradient_passes(microbatches_),
                               .element = element(),
                               .mode = mode};
    add_block_work(block, setting, number * microbatches_, work_);
    double dense = 0, gathered_bytes = 0, experts = 0;
    const bool gathers_float8 = config_.quantize.linear.float8.enable_fsdp_float8_all_gather;
    block.for_each_parameter([&](const models::ParameterShape& shape) {
      const double elements = sharded_rows(shape, mesh_).padded;
      if (shape.domain == Domain::kExpert && shards_experts()) {
        experts += elements;
        return;
      }
      dense += elements;
      const bool float8 = gathers_float8 && shape.dims.size() == 2 && shape.domain == Domain::kDense &&
                          multiplies_in_float8(shape, config_, shape.name);
      // Finds the scales of the next step's gathered weights.
      if (float8 && config_.quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp)
        add(Family::kOptimizer, number, 1, elements / degree(MeshDim::kFsdp) * kFp32Bytes);
      gathered_bytes += elements * (float8 ? 1 : element());
    });
    const bool stays = config_.parallelism.fsdp_reshard_after_forward == config::ReshardAfterForward::kNever;
    const double times = gathers > 0 ? gathers : (stays ? 1 : 2) * microbatches_;
    add_units(number, dense, gathered_bytes, times, MeshDim::kFsdp);
    if (experts > 0) add_units(number, experts, experts * element(), times, MeshDim::kEfsdp);
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
      add(Family::kPacking, number * (microbatches_ - 1), 1, 3 * kFp32Bytes * local);
  }

  void add_embedding(double gathers) {
    const double dim = static_cast<double>(args_.dim), table = model_.table.numel() / tensor(),
                 sharded = sharded_rows(model_.table, mesh_).padded;
    add_units(1, sharded, sharded * element(), gathers > 0 ? gathers : microbatches_, MeshDim::kFsdp);
    const double passes = tensor() > 1 ? 2 : 1;  // ranks zero the rows of tokens that others have
    add(Family::kEmbedding, microbatches_, passes, passes * 2 * tokens_ * dim * element());
    add(Family::kEmbedding, microbatches_, 31, (tokens_ * dim + table) * element());
    add(Family::kPacking, microbatches_, 1, table * (element() + kFp32Bytes));
    if (rank_.reduces_once)  // casts the first microbatch's gradient, and adds the others'
      add(Family::kEmbedding, 1, microbatches_,
          table * (element() + kFp32Bytes + (microbatches_ - 1) * (element() + 2 * kFp32Bytes)));
    if (tensor() > 1) add_tensor_exchange(2);
  }
  void add_tensor_exchange(double times) {
    work_.collectives.push_back(
        {MeshDim::kTp, times * microbatches_,
         (tensor() - 1) / tensor() * tokens_ * static_cast<double>(args_.dim) * element(),
         config_.parallelism.enable_async_tensor_parallel});
  }

  void add_head(double gathers) {
    const double dim = static_cast<double>(args_.dim), width = static_cast<double>(model_.output.dims[0]),
                 columns = width / tensor(), weight = columns * dim;
    const bool float8 = multiplies_in_float8(model_.output, config_, "output");
    const bool tied = model_.tied && std::ranges::any_of(rank_.stages, &ModelStage::embedding);
    const double sharded =
        sharded_rows(model_.output, mesh_).padded + sharded_rows(model_.final_norm, mesh_).padded;
    if (!tied)
      add_units(1, sharded, sharded * element(), gathers > 0 ? gathers : microbatches_, MeshDim::kFsdp);
    const double rows = loss_chunk_rows(config_, tokens_, columns * element(), tensor());
    const double chunks = std::ceil(tokens_ / rows), of_chunk = tokens_ / chunks;
    const Rate rate = element() == kFp32Bytes ? Rate::kFp32 : Rate::kBf16;
    const double flops = 2 * of_chunk * weight, times = microbatches_ * chunks;
    const double logits = of_chunk * columns, input = of_chunk * dim;
    const double operand = float8 ? 1 : element();
    add(Family::kLoss, microbatches_, 1, 2 * tokens_ / tensor() * dim * element());
    add(Family::kHeadProducts, times, 1, (input + weight) * operand + logits * element(), flops,
        float8 ? Rate::kFp8 : rate);
    add(Family::kHeadProducts, times, 1, (logits + weight) * operand + input * element(), flops,
        float8 ? Rate::kFp8Slow : rate);
    add(Family::kHeadProducts, times, 1,
        (logits + input) * operand + weight * kFp32Bytes * gradient_passes(times), flops,
        float8 ? Rate::kFp8Slow : rate);
    if (float8)
      work_.kernels.push_back({.family = Family::kFloat8Casts,
                               .times = times,
                               .launches = 6,
                               .bytes = (input + logits) * (2 * element() + 2) + 2 * weight,
                               .casts_to_float8 = true});
    const bool statistics = tensor() > 1 && !config_.parallelism.disable_loss_parallel;
    add(Family::kLoss, times, statistics ? 45 : 4, (statistics ? 3 : 2) * logits * element());
    if (statistics) add(Family::kLoss, times, 1, of_chunk * tensor() * 40 * kFp32Bytes);
    add(Family::kLoss, times, 1, 2 * input * element());
    add(Family::kNorms, microbatches_, 2, 3 * tokens_ / tensor() * dim * element());
    if (tensor() > 1) add_tensor_exchange(2);
  }

  // Reads and writes masters and states, and the compute copy; and the gradients once more for their norm.
  void add_optimizer() {
    const double copy = config_.training.dtype == config_.training.mixed_precision_param ? 0 : 1;
    constexpr double kStates = 2;  // Adam's moments; of Muon one more pass over a matrix
    const double state = config_.optimizer.state_dtype == checkpoint::Dtype::kBFloat16 ? 2 : kFp32Bytes;
    add(Family::kOptimizer, 1, 24, parameters_ * 2 * (2 * kFp32Bytes + kStates * state));
    add(Family::kOptimizer, 1, 24, parameters_ * copy * (kFp32Bytes + element()));
    add(Family::kOptimizer, 1, static_cast<double>(args_.n_layers) + 2, parameters_ * kFp32Bytes);
  }

  // Owners wait for each other in the exchanges, so the fullest counts.
  void add_muon() {
    const std::optional<MuonWork> muon = muon_work(config_, model_, mesh_, rank_.stages);
    if (!muon) return;
    constexpr double kLaunches = 42;  // of a matrix: iterations and copies (docs/optimizers.md)
    const bool fp32 = config_.optimizer.muon.ns_dtype == checkpoint::Dtype::kFloat32;
    add(Family::kMuonProducts, 1, kLaunches * muon->matrices, muon->moved, muon->flops,
        fp32 ? Rate::kFp32 : Rate::kBf16);
    for (const MuonExchange& exchange : muon->exchanges)
      work_.matrices.push_back(
          {.group = exchange.group,
           .bytes = exchange.sent,
           .back = exchange.received,
           .rounds = muon->rounds,
           .overlaps = exchange.group == MeshDim::kFsdp || exchange.group == MeshDim::kEfsdp});
  }

  const config::JobConfig& config_;
  const models::ModelArgs& args_;
  const models::ModelDescription& model_;
  const parallel::Mesh& mesh_;
  const RankStages& rank_;
  double microbatches_ = 1, tokens_ = 0;  // of a microbatch on this rank, before TP ranks share them
  double parameters_ = 0;                 // of this rank's shard
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
  for (const MatrixExchanges& exchange : matrices) bytes[exchange.group] += exchange.bytes + exchange.back;
  if (const auto& exchange = sequence_exchange)
    bytes[MeshDim::kCp] += exchange->runs * exchange->exchanges * (2 * exchange->keys + exchange->gradients);
  return bytes;
}

double StepWork::launches() const {
  double sum = 0;
  for (const Kernels& one : kernels) sum += one.times * one.launches;
  return sum;
}

StepWork step_work(const config::JobConfig& config, const models::ModelArgs& args,
                   const models::ModelDescription& model, const parallel::Mesh& mesh, int64_t batches,
                   const RankStages& rank) {
  return StepCounter(config, args, model, mesh, batches, rank).count();
}

}  // namespace hyperion::trainer
