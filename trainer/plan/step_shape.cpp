#include "trainer/plan/step_shape.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <optional>

#include "models/args/attention_heads.h"
#include "models/args/packed_row.h"
#include "trainer/config/schema.h"
#include "trainer/config/validate.h"

namespace hyperion::trainer {

using config::RecomputeMode;
using parallel::MeshDim;

constexpr double kBf16 = 2;  // bytes

StepShape::StepShape(const config::JobConfig& config, const parallel::Mesh& mesh)
    : tensor(mesh.degree(MeshDim::kTp)),
      element(static_cast<double>(checkpoint::size_of(config.training.mixed_precision_param))) {
  const int64_t rows = config::microbatch_rows(config, config.training.local_batch_size),
                batches = config::microbatches_of(config.training, mesh.degree(MeshDim::kBatch)),
                all_microbatches = batches * config.training.local_batch_size / rows;
  sequences = static_cast<double>(rows);
  microbatches = static_cast<double>(all_microbatches);
  tokens = static_cast<double>(rows * config.training.seq_len) / mesh.degree(MeshDim::kCp);
  own = tokens / tensor;
}

BlockShape::BlockShape(const models::BlockDescription& block, const models::ModelArgs& args,
                       const config::JobConfig& config, const parallel::Mesh& mesh)
    : StepShape(config, mesh),
      block(block),
      args(args),
      config(config),
      shards_experts(config::divides_experts(config)),
      context(mesh.degree(MeshDim::kCp)),
      expert_ranks(shards_experts ? mesh.degree(MeshDim::kEp) : 1),
      expert_nodes(mesh.degree(MeshDim::kEpNodes)),
      expert_tensor(shards_experts ? mesh.degree(MeshDim::kEtp) : tensor),
      weighs_results(!args.experts.score_before_experts),
      dim(static_cast<double>(args.dim)) {
  const models::AttentionWidths& widths = *block.attention.attention;
  ring = config::passes_keys_in_ring(config) && widths.window == 0;
  const double kv_heads = static_cast<double>(widths.kv_heads) / tensor;
  heads = static_cast<double>(widths.heads) / tensor;
  queries = heads * static_cast<double>(widths.head_dim);
  keys = kv_heads * static_cast<double>(widths.head_dim);
  values = kv_heads * static_cast<double>(widths.v_head_dim);
  attended = heads * static_cast<double>(widths.v_head_dim);

  const auto add = [&](const models::ParameterShape& shape, Part part, std::vector<Product>& products) {
    const double parts = shape.domain == Domain::kExpert && shards_experts ? expert_ranks * expert_tensor
                         : shape.split                                     ? tensor
                                                                           : 1;
    elements[part] += shape.numel() / parts;
    if (shape.dims.size() != 2 || shape.domain == Domain::kExpert) return;
    Product product{.shape = &shape,
                    .in = static_cast<double>(shape.dims[1]),
                    .out = static_cast<double>(shape.dims[0]),
                    .float8 = multiplies_in_float8(shape, config, shape.name)};
    if (shape.split) (*shape.split == models::kSplitByRows ? product.out : product.in) /= tensor;
    products.push_back(product);
  };
  for (const models::ParameterShape& shape : block.attention.parameters)
    add(shape, shape.name.ends_with("wo.weight") ? kAttentionOut : kAttentionIn, attention);
  std::vector<Product> others;  // the router
  for (const models::ParameterShape& shape : block.feed_forward.parameters) {
    const bool down = shape.name.find("w2") != shape.name.npos;
    if (shape.domain == Domain::kExpert)
      add(shape, down ? kExpertsDown : kExpertsUp, others);
    else
      add(shape, down ? kDown : kUp, !shape.split ? others : down ? rows : columns);
  }

  const auto of_tokens = [&](double width) { return tokens * width * element; };
  for (const Tensor name : {kInput, kNormed, kWoOutput, kResidual, kNormedResidual, kRecomputedOutput})
    bytes[name] = own * dim * element;
  bytes[kGatheredNormed] = tensor > 1 ? of_tokens(dim) : 0;
  bytes[kProjected] = of_tokens(latent() ? queries : queries + keys + values);
  if (latent()) {
    bytes[kLatents] = bytes[kNormedLatents] =
        of_tokens(static_cast<double>(args.latent.kv_lora_rank + args.latent.q_lora_rank));
    bytes[kExpanded] =
        of_tokens(heads * static_cast<double>(widths.head_dim - widths.rotated + widths.v_head_dim));
  }
  bytes[kQueries] = of_tokens(queries);
  bytes[kKeys] = of_tokens(keys);
  bytes[kValues] = of_tokens(values);
  bytes[kAttended] = of_tokens(attended);
  bytes[kStatistics] = tokens * heads * sizeof(float);
  if (!columns.empty()) {
    bytes[kGatheredResidual] = bytes[kGatheredNormed];
    bytes[kActivated] = of_tokens(columns[0].out);
    up = static_cast<double>(columns.size()) * bytes[kActivated];
  }
  if (const bool repeats = element == sizeof(float) || widths.head_dim > kernels::gpu::kLargestFlashHead;
      repeats && widths.kv_heads != widths.heads)
    repeated = 4 * bytes[kQueries] * (ring ? 1 : context);
  const auto& experts = block.feed_forward.experts;
  if (!experts) return;
  chosen = static_cast<double>(experts->top_k);
  expert_hidden = static_cast<double>(experts->hidden) / expert_tensor;
  bytes[kExpertRows] = own * chosen * expert_tensor * dim * element;
  // Ranks that share an expert send the tokens of all of them, each. Without an exchange the gradient of the
  // weights reads results in FP8 only (models/parts/experts/experts.cpp).
  if (shards_experts || (weighs_results && casts_expert_rows())) bytes[kReturnedRows] = bytes[kExpertRows];
  if (expert_nodes > 1) {
    const double rows = own * expert_tensor * nodes_of_token(args, expert_nodes);
    bytes[kReceivedTokens] = rows * dim * element;
    bytes[kPackedSums] = rows * (element == kBf16 ? static_cast<double>(models::bytes_of_packed_row(args.dim))
                                                  : dim * element);
  }
  bytes[kExpertActivated] = own * chosen * expert_tensor * expert_hidden * element;
  bytes[kExpertUp] = 2 * bytes[kExpertActivated];
  bytes[kRouterScores] = own * static_cast<double>(experts->experts) * (element + sizeof(float));
  bytes[kRowOrder] = own * chosen * 4 * sizeof(int32_t);
}

bool BlockShape::casts_expert_rows() const {
  return config::kGroupedFloat8.on(config) || config::kGroupedMx.on(config);
}

bool BlockShape::keeps(RecomputeMode mode, Tensor name) const {
  if (name == kExpertRows && !shards_experts) return false;  // backward gathers them again
  if (name == kReturnedRows && !(weighs_results && (shards_experts || mode == RecomputeMode::kNone)))
    return false;
  const auto any_of = [&](std::initializer_list<Tensor> names) {
    return std::ranges::find(names, name) != names.end();
  };
  switch (mode) {
    case RecomputeMode::kNone:
      return name != kProjected || normed_heads() || latent();
    case RecomputeMode::kElementwise:
      return any_of({kAttended, kStatistics, kWoOutput, kW1Output, kExpertRows, kExpertUp, kReturnedRows,
                     kReceivedTokens, kLatents, kProjected, kExpanded});
    case RecomputeMode::kFull:
      return context > 1 && any_of({kAttended, kStatistics});
    default: {  // every second product; latent queries are one more before the others
      const bool latent_queries = args.latent.q_lora_rank > 0;
      return any_of({kAttended, kStatistics, kW1Output, kProjected}) ||
             (name == kWoOutput && (tensor > 1 || latent_queries)) ||
             any_of({kReceivedTokens, kExpertRows, kReturnedRows}) ||
             name == (latent_queries ? kLatents : kExpanded);
    }
  }
}

bool multiplies_in_float8(const models::ParameterShape& shape, const config::JobConfig& config,
                          std::string_view module) {
  if (!config::kFloat8.on(config) && !config::kMx.on(config)) return false;
  const auto& filters = config::kFloat8.on(config) ? config.quantize.linear.float8.filter_fqns
                                                   : config.quantize.linear.mx.filter_fqns;
  const auto named = [&](const std::string& filter) { return module.find(filter) != module.npos; };
  constexpr int64_t kTile = 16;
  return std::ranges::none_of(filters, named) &&
         std::ranges::all_of(shape.dims, [](int64_t extent) { return extent % kTile == 0; });
}

double nodes_of_token(const models::ModelArgs& args, double nodes) {
  const auto chosen = static_cast<double>(args.experts.top_k),
             groups = static_cast<double>(args.experts.limited_groups);
  // A router with groups chooses from each group that it allows, and groups are on nodes in order.
  return groups > 0
             ? std::clamp(nodes * groups / static_cast<double>(args.experts.expert_groups), 1.0, chosen)
             : nodes * (1 - std::pow(1 - 1 / nodes, chosen));
}

double loss_chunk_rows(const config::JobConfig& config, double tokens, double row_bytes, double tensor,
                       bool on_gpu) {
  constexpr double kTileRows = 256;
  const int64_t configured = config.training.loss_chunk_bytes, chosen = on_gpu ? 1 << 30 : 64 << 20;
  const auto limit = static_cast<double>(configured > 0 ? configured : chosen);
  const double fit = std::max(1.0, std::floor(limit / (tensor > 1 ? 2 : 1) / row_bytes));
  return std::min(tokens, fit < kTileRows || !on_gpu ? fit : std::floor(fit / kTileRows) * kTileRows);
}

config::RecomputeMode recompute_mode_of(const config::JobConfig& config, int64_t layer) {
  const auto& options = config.activation_checkpoint;
  if (options.mode != RecomputeMode::kSelective) return options.mode;
  const std::optional<int64_t> every = config::checkpointed_blocks(options);
  if (!every) return RecomputeMode::kSelective;
  return layer % *every == 0 ? RecomputeMode::kFull : RecomputeMode::kNone;
}

}  // namespace hyperion::trainer
