#include "trainer/plan/sharding_advice.h"

#include <algorithm>
#include <map>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/box.h"
#include "base/counted.h"
#include "models/description.h"
#include "parallel/placement.h"
#include "trainer/config/validate.h"
#include "trainer/plan/job_size.h"

namespace hyperion::trainer {
namespace {

constexpr int64_t kManyShards = 512;      // more shards than this without replicas cause a warning
constexpr int64_t kLongSequence = 32768;  // tokens; gathered keys of longer sequences cause a warning
constexpr int64_t kProposedShards = 64;   // fewest shards that HSDP advice proposes
constexpr double kProposedBytes = 32e9;   // most bytes of states per rank in HSDP advice
constexpr double kMuchPadding = 1.1;      // a larger ratio of padded to true bytes causes a warning
constexpr size_t kNamedParameters = 3;
constexpr double kMuchOfExperts = 16e9;     // more weight and gradient bytes of a block's experts warn
constexpr double kProposedOfExperts = 4e9;  // most bytes of them in EP advice

// Returns the fewest shards that divide `shards` and leave room for activations, at most kManyShards.
// `states`: bytes of one shard of `shards`.
std::optional<int64_t> proposed_shards(double states, int64_t shards) {
  const double all = states * static_cast<double>(shards);
  for (int64_t fewer = kProposedShards; fewer <= kManyShards; ++fewer)
    if (shards % fewer == 0 && all / static_cast<double>(fewer) <= kProposedBytes) return fewer;
  return std::nullopt;
}

std::string advice_on_replicas(const config::JobConfig& config, const models::ModelArgs& model,
                               const parallel::Mesh& mesh) {
  const int64_t shards = mesh.degree(parallel::MeshDim::kFsdp);
  const std::string cost = fmt::format(
      "parallelism.data_parallel_shard_degree: the parameters are sharded over {} ranks without replicas, so "
      "every all-gather and reduce-scatter waits for all of them, and takes more steps the more there are",
      format_count(static_cast<uint64_t>(shards)));
  const models::ModelDescription description = models::describe_model(model);
  const std::vector<ModelStage> stages = {all_units(description)};
  const JobSize size = job_size(config, description, mesh, stages);
  const double states = size.states() / mesh.degree(parallel::MeshDim::kPp);
  const std::optional<int64_t> fewer = proposed_shards(states, shards);
  if (!fewer) return cost;
  return fmt::format(
      "{}; data_parallel_shard_degree = {} with data_parallel_replicate_degree = {} (HSDP) shards over {} "
      "ranks, for {:.1f} GiB instead of {:.1f} GiB per rank for weights, gradients and optimizer{}",
      cost, *fewer, shards / *fewer, *fewer,
      states / (1 << 30) * static_cast<double>(shards) / static_cast<double>(*fewer), states / (1 << 30),
      config.ema.enable ? " and averages" : "");
}

struct Padding {
  std::string name;  // without the layer's number
  int64_t rows = 0;
  double times = 1;  // padded to true bytes
};

std::optional<std::string> advice_on_padding(const models::ModelArgs& model, const parallel::Mesh& mesh) {
  const int64_t shards = mesh.degree(parallel::MeshDim::kFsdp);
  double padded = 0, numel = 0;
  std::map<std::string, Padding> by_name;
  const auto add = [&](const models::ParameterShape& shape, double times) {
    const ShardedRows sharded = sharded_rows(shape, mesh);
    padded += times * sharded.padded;
    numel += times * sharded.numel;
    by_name[shape.name] = {shape.name, sharded.rows, sharded.padded / sharded.numel};
  };
  const models::ModelDescription description = models::describe_model(model);
  add(description.table, 1);
  for (size_t kind = 0; kind < description.kinds.size(); ++kind) {
    const auto blocks =
        static_cast<double>(std::ranges::count(description.kind_of_layer, static_cast<int>(kind)));
    description.kinds[kind].for_each_parameter(
        [&](const models::ParameterShape& shape) { add(shape, blocks); });
  }
  add(description.final_norm, 1);
  if (!description.tied) add(description.output, 1);
  if (padded <= kMuchPadding * numel) return std::nullopt;
  std::vector<Padding> worst;
  for (const auto& [name, padding] : by_name) worst.push_back(padding);
  std::ranges::stable_sort(worst, std::ranges::greater{}, &Padding::times);
  worst.resize(std::min(worst.size(), kNamedParameters));
  std::vector<std::string> named;
  for (const Padding& one : worst)
    named.push_back(fmt::format("{} with {} rows {:.1f}", one.name,
                                format_count(static_cast<uint64_t>(one.rows)), one.times));
  return fmt::format(
      "parallelism.data_parallel_shard_degree: {} shards of a parameter hold whole rows, each as many as the "
      "largest: all-gathers move {:.2f} times the model's bytes, {:.0f} % of them padding (times its size: "
      "{}); shard over fewer ranks, with replicas",
      format_count(static_cast<uint64_t>(shards)), padded / numel, 100 * (1 - numel / padded),
      fmt::join(named, ", "));
}

// Expert parameters of the block that has the most.
double parameters_of_experts(const models::ModelArgs& args) {
  double most = 0;
  for (const models::BlockDescription& kind : models::describe_model(args).kinds)
    most = std::max(most, kind.sum([](const models::ParameterShape& shape) {
      return shape.domain == Domain::kExpert ? shape.numel() : 0;
    }));
  return most;
}

// Without expert parallelism each rank gathers all experts of a block and holds their unsharded gradients.
std::optional<std::string> advice_on_experts(const config::JobConfig& config, const models::ModelArgs& model,
                                             const parallel::Mesh& mesh) {
  const int64_t tensor = mesh.degree(parallel::MeshDim::kTp);
  if (model.experts.blocks(model.n_layers) == 0 || mesh.degree(parallel::MeshDim::kEp) > 1)
    return std::nullopt;
  const double bytes_of_weight =
      config.training.mixed_precision_param == checkpoint::Dtype::kBFloat16 ? 2 : 4;
  // `numbers` counts a block's. Without expert parallelism TP shards each expert; with it `of_each` (ETP)
  // ranks do.
  const double numbers = parameters_of_experts(model);
  const auto bytes_in = [&](double bytes, int64_t parts) {
    return numbers * bytes / static_cast<double>(parts);
  };
  const auto gib = [&](double bytes, int64_t parts) { return bytes_in(bytes, parts) / (1 << 30); };
  if (bytes_in(bytes_of_weight + 4, tensor) <= kMuchOfExperts) return std::nullopt;
  const int64_t ranks = mesh.degree(parallel::MeshDim::kFsdp) * tensor,
                of_each = config.parallelism.expert_tensor_parallel_degree;
  int64_t degree = 2;
  while (degree <= model.experts.num_experts &&
         (model.experts.num_experts % degree != 0 || ranks % (degree * of_each) != 0 ||
          bytes_in(bytes_of_weight + 4, degree * of_each) > kProposedOfExperts))
    ++degree;
  const std::string cost = fmt::format(
      "parallelism.expert_parallel_degree = 1: each rank gathers all {} experts of a block, {:.1f} GiB, and "
      "has {:.1f} GiB of their gradients before it shares them",
      model.experts.num_experts, gib(bytes_of_weight, tensor), gib(4, tensor));
  if (degree > model.experts.num_experts) return cost;
  return fmt::format("{}; {} would leave {} on a rank, {:.1f} and {:.1f} GiB", cost, degree,
                     counted(model.experts.num_experts / degree, "expert"),
                     gib(bytes_of_weight, degree * of_each), gib(4, degree * of_each));
}

// Neighbouring context parallel ranks are one tensor parallel group apart.
std::optional<std::string> advice_on_context(const config::JobConfig& config, const parallel::Mesh& mesh,
                                             int ranks_per_node) {
  const int context = mesh.degree(parallel::MeshDim::kCp), tensor = mesh.degree(parallel::MeshDim::kTp);
  if (context == 1 || ranks_per_node % (context * tensor) == 0) return std::nullopt;
  const bool ring = config::passes_keys_in_ring(config);
  return fmt::format(
      "parallelism.context_parallel_degree: {} ranks share each sequence and exchange keys and values in "
      "every block; with tensor_parallel_degree = {} they are {} neighbours, and a node has {}: some of "
      "these groups lie on several nodes and exchange over the network{}",
      context, tensor, context * tensor, counted(ranks_per_node, "rank"),
      ring ? ", under attention as far as that takes longer"
      : config.training.document_mask
          ? "; lower one of both"
          : "; lower one of both, or set context_parallel_rotate_method = \"alltoall\", which exchanges "
            "under attention");
}

// Documents have no ring.
std::optional<std::string> advice_on_gathered_keys(const config::JobConfig& config) {
  const int64_t length = config.training.seq_len;
  if (config.parallelism.context_parallel_degree == 1 || config.training.document_mask ||
      config::passes_keys_in_ring(config) || length <= kLongSequence)
    return std::nullopt;
  return fmt::format(
      "parallelism.context_parallel_rotate_method = \"allgather\": with training.seq_len = {} each rank "
      "waits for the keys and values of complete sequences in every block and holds them, and their "
      "gradients in fp32; set parallelism.context_parallel_rotate_method = \"alltoall\", which passes them "
      "on under attention and holds those of two ranks",
      length);
}

}  // namespace

std::vector<std::string> sharding_advice(const config::JobConfig& config, const models::ModelArgs& model,
                                         const parallel::Mesh& mesh, int ranks_per_node) {
  const int64_t shards = mesh.degree(parallel::MeshDim::kFsdp), tensor = mesh.degree(parallel::MeshDim::kTp);
  std::vector<std::string> advice;
  if (shards > kManyShards && mesh.degree(parallel::MeshDim::kDpReplicate) == 1)
    advice.push_back(advice_on_replicas(config, model, mesh));
  if (auto experts = advice_on_experts(config, model, mesh)) advice.push_back(*std::move(experts));
  if (auto padding = advice_on_padding(model, mesh)) advice.push_back(*std::move(padding));
  if (ranks_per_node % tensor != 0)
    advice.push_back(
        fmt::format("parallelism.tensor_parallel_degree: {} ranks divide each layer and exchange its "
                    "activations several times, and a node has {}: some of these groups lie on several nodes "
                    "and exchange over the network; choose a divisor of {}",
                    tensor, counted(ranks_per_node, "rank"), ranks_per_node));
  else if (auto context = advice_on_context(config, mesh, ranks_per_node))
    advice.push_back(*std::move(context));
  if (auto gathered = advice_on_gathered_keys(config)) advice.push_back(*std::move(gathered));
  return advice;
}

ShardedRows sharded_rows(const models::ParameterShape& shape, const parallel::Mesh& mesh) {
  using parallel::MeshDim;
  const bool experts = shape.domain == Domain::kExpert && mesh.degree(MeshDim::kEp) > 1;
  // The largest parts are those of the first ranks.
  std::vector<int64_t> local = shape.dims;
  if (experts) local[0] = chunk_of(local[0], mesh.degree(MeshDim::kEp), 0).count;
  if (shape.split) {
    int64_t& extent = local[static_cast<size_t>(*shape.split)];
    extent = chunk_of(extent, mesh.degree(experts ? MeshDim::kEtp : MeshDim::kTp), 0).count;
  }
  const int64_t ranks = mesh.degree(experts ? MeshDim::kEfsdp : MeshDim::kFsdp),
                blocks = local[0] * (experts ? parallel::parts_per_expert(local[0], local[1], ranks) : 1);
  ShardedRows sharded{.rows = local[0], .numel = 1};
  for (const int64_t extent : local) sharded.numel *= static_cast<double>(extent);
  sharded.padded = sharded.numel / static_cast<double>(blocks) *
                   static_cast<double>(chunk_of(blocks, ranks, 0).count * ranks);
  return sharded;
}

ContextTraffic context_traffic(const config::JobConfig& config, const models::ModelArgs& model,
                               const parallel::Mesh& mesh) {
  const auto& training = config.training;
  const double ranks = mesh.degree(parallel::MeshDim::kCp), tensor = mesh.degree(parallel::MeshDim::kTp),
               stages = mesh.degree(parallel::MeshDim::kPp);
  const int64_t rows = config::microbatch_rows(config, training.local_batch_size);
  const double key = static_cast<double>(checkpoint::size_of(training.mixed_precision_param)),
               sum = std::max(key, 4.0);  // gradients are summed in fp32, or in fp64 for fp64 keys
  // Latent attention pads values to the width of keys.
  const models::ModelDescription description = models::describe_model(model);
  const auto keys_of = [](const models::BlockDescription& block) {
    const models::AttentionWidths& widths = *block.attention.attention;
    return 2 * static_cast<double>(widths.kv_heads * widths.head_dim);
  };
  const double of_token =
      static_cast<double>(rows) * static_cast<double>(training.seq_len) / tensor * (ranks - 1) / ranks;
  const double elements = keys_of(description.kinds.front()) * of_token;
  const int64_t microbatches = config::microbatches_of(training, mesh.degree(parallel::MeshDim::kBatch)) *
                               (training.local_batch_size / rows);
  ContextTraffic traffic = {.forward = elements * key, .backward = elements * (key + sum)};
  traffic.step = description.sum_over_blocks(0, description.blocks(), keys_of) * of_token * (2 * key + sum) /
                 stages * static_cast<double>(microbatches);
  return traffic;
}

}  // namespace hyperion::trainer
