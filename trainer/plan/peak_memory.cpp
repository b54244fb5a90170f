#include "trainer/plan/peak_memory.h"

#include <algorithm>
#include <cmath>

#include "trainer/config/schema.h"
#include "trainer/config/validate.h"

namespace hyperion::trainer {
namespace {

using config::RecomputeMode;
using parallel::MeshDim;

// The share that the caching allocator and the alignment of blocks add to what is allocated.
constexpr double kReservedShare = 0.02;

class PeakOfRank {
 public:
  PeakOfRank(const config::JobConfig& config, const models::ModelArgs& args,
             const models::ModelDescription& model, const parallel::Mesh& mesh, int64_t microbatches,
             const JobSize& size, const PipelineShare* share, double in_flight)
      : config_(config),
        args_(args),
        model_(model),
        mesh_(mesh),
        size_(size),
        microbatches_(microbatches),
        in_flight_(in_flight) {
    const double rows =
        static_cast<double>(config::microbatch_rows(config, config.training.local_batch_size));
    tokens_ = rows * static_cast<double>(config.training.seq_len) / mesh.degree(MeshDim::kCp);
    if (share == nullptr)
      stages_ = {{.first_block = 0, .end_block = model.blocks(), .embedding = true, .head = true}};
    else
      stages_ = share->stages;
    if (share != nullptr)
      for (const PipelineShare::Moment& moment : share->moments)
        deferred_blocks_ = std::max(deferred_blocks_, static_cast<double>(moment.deferred_blocks));
  }

  PeakMemory largest() const {
    PeakMemory most;
    for (const PeakMemory& moment : {at_head(), at_last_block(), at_end(), at_update()})
      if (moment.total() > most.total()) most = moment;
    most.reserved = kReservedShare * most.total();
    return most;
  }

 private:
  double tensor() const { return mesh_.degree(MeshDim::kTp); }
  double shards() const { return mesh_.degree(MeshDim::kFsdp); }
  double element() const {
    return static_cast<double>(checkpoint::size_of(config_.training.mixed_precision_param));
  }
  double dim() const { return static_cast<double>(args_.dim); }
  bool pipelined() const { return mesh_.degree(MeshDim::kPp) > 1; }
  bool sums_locally() const { return size_.sums > 0; }
  double states() const {
    const bool off = config_.training.enable_cpu_offload;
    return off ? 0
               : size_.weights + size_.optimizer + size_.exchanges +
                     (config_.ema.device == config::EmaDevice::kCpu ? 0 : size_.averages);
  }

  double kept() const {
    double bytes = 0;
    for (const PipelineShare::Stage& stage : stages_)
      for (int64_t layer = stage.first_block; layer < stage.end_block; ++layer)
        bytes += kept_bytes_per_token(model_.block(layer), args_, config_, mesh_,
                                      recompute_mode_of(config_, layer));
    // With a pipeline the microbatches in flight are those of all stages together.
    const double share = in_flight_ / static_cast<double>(stages_.size());
    return bytes * tokens_ * share + deferred_blocks_ * tokens_ * added_by_deferred_block();
  }

  // Bytes per token that the deferred wgrad of the largest block reads beyond what the block keeps. Inputs
  // that the dgrad has gathered, or the forward has kept so, stay gathered.
  double added_by_deferred_block() const {
    const double bytes = config::kFloat8.on(config_) || config::kMx.on(config_) ? 1 : element();
    return std::max(
        0.0, bytes * deferred_elements(largest_block(), tensor(), /*runs_again=*/true) -
                 kept_bytes_per_token(largest_block(), args_, config_, mesh_, recompute_mode_of(config_, 0)));
  }

  // Bytes of gathered weights of a pipeline's stages, or of `elements` where each microbatch gathers them.
  double gathered_of_stages(double elements) const {
    return size_.gathered > 0 ? size_.gathered : gathered_of(elements);
  }

  const models::BlockDescription& largest_block() const {
    const auto size = [](const models::BlockDescription& block) {
      return block.sum([](const models::ParameterShape& shape) { return shape.numel(); });
    };
    const models::BlockDescription* most = &model_.kinds.front();
    for (const models::BlockDescription& kind : model_.kinds)
      if (size(kind) > size(*most)) most = &kind;
    return *most;
  }
  // Elements of the block's parameters as a rank uses them.
  double block_elements() const {
    const bool apart = config::divides_experts(config_);
    return largest_block().sum([&](const models::ParameterShape& shape) {
      if (shape.domain == Domain::kExpert && apart)
        return shape.numel() / mesh_.degree(MeshDim::kEp) / mesh_.degree(MeshDim::kEtp);
      return shape.numel() / (shape.split ? tensor() : 1);
    });
  }
  double head_elements() const { return model_.output.numel() / tensor(); }
  bool has_head() const { return std::ranges::any_of(stages_, &PipelineShare::Stage::head); }
  bool has_embedding() const { return std::ranges::any_of(stages_, &PipelineShare::Stage::embedding); }
  double gathered_of(double elements) const { return shards() > 1 ? elements * element() : 0; }

  double logits() const {
    constexpr double kDefaultChunk = 1 << 30;
    const int64_t configured = config_.training.loss_chunk_bytes;
    const double chunk = configured > 0 ? static_cast<double>(configured) : kDefaultChunk;
    return std::min(chunk, tokens_ * head_elements() / dim() * element());
  }

  PeakMemory at_head() const {
    PeakMemory peak{.states = states(), .activations = kept()};
    if (pipelined()) {
      peak.gathered = gathered_of_stages(has_head() ? head_elements() : block_elements());
      peak.gradients = size_.sums + size_.reduced;
    } else {
      peak.gathered = std::max(size_.gathered, gathered_of(head_elements()));
      peak.gradients = sums_locally() ? size_.sums : microbatches_ > 1 ? size_.gradients : 0;
    }
    if (!has_head()) return peak;
    if (!sums_locally()) peak.gradients += head_elements() * sizeof(float);
    // The normed input, its gradient and the stream's.
    peak.working = logits() + 3 * tokens_ * dim() * element();
    return peak;
  }

  PeakMemory at_last_block() const {
    PeakMemory peak{.states = states(), .activations = kept()};
    const double block = block_elements();
    if (pipelined()) {
      peak.gathered = gathered_of_stages(2 * block);
      peak.gradients = size_.sums + size_.reduced;
    } else {
      peak.gathered = std::max(size_.gathered, 2 * gathered_of(block));
      const double head = has_head() ? head_elements() / shards() * sizeof(float) : 0;
      peak.gradients = sums_locally() ? size_.sums : microbatches_ > 1 ? size_.gradients : head;
    }
    if (!sums_locally() && shards() > 1) peak.gradients += block * sizeof(float) * (1 + 1 / shards());
    // The block's recomputed activations beside what is kept, and gradients of its widest part.
    const RecomputeMode mode = recompute_mode_of(config_, 0);
    const double all = kept_bytes_per_token(largest_block(), args_, config_, mesh_, RecomputeMode::kNone),
                 own = kept_bytes_per_token(largest_block(), args_, config_, mesh_, mode);
    peak.working = tokens_ * (all - own + 0.5 * (all - dim() / tensor() * element()));
    if (mesh_.degree(MeshDim::kCp) > 1)  // outputs of several calls in fp32, and keys on their way
      peak.working += size_.repeated + tokens_ * 2 * sizeof(float) * dim() / tensor();
    return peak;
  }

  PeakMemory at_end() const {
    PeakMemory peak{.states = states()};
    if (pipelined()) {
      peak.gathered = gathered_of_stages(block_elements());
      peak.gradients = std::max(size_.sums + size_.reduced, size_.gradients);
    } else {
      peak.gradients = std::max(size_.sums, size_.gradients);
      peak.gathered = gathered_of(block_elements());
      // Sharded gradients find no room in the freed inputs of blocks, which are smaller.
      if (recompute_mode_of(config_, 0) == RecomputeMode::kFull) peak.activations = kept();
    }
    if (has_embedding()) {
      const double table = model_.table.numel() / tensor();
      peak.working = table * (element() + sizeof(float)) * (shards() > 1 ? 1 : 0.5) +
                     table * sizeof(float) / shards() + 2 * tokens_ / tensor() * dim() * element();
    }
    return peak;
  }

  // Muon's, whose iterations run when all gradients are reduced.
  PeakMemory at_update() const {
    return {.states = states(), .gradients = size_.gradients, .working = size_.update};
  }

  const config::JobConfig& config_;
  const models::ModelArgs& args_;
  const models::ModelDescription& model_;
  const parallel::Mesh& mesh_;
  const JobSize& size_;
  const int64_t microbatches_;
  const double in_flight_;
  double tokens_ = 0, deferred_blocks_ = 0;
  std::vector<PipelineShare::Stage> stages_;
};

double kept_of_attention(const models::BlockDescription& block, const models::ModelArgs& args,
                         const config::JobConfig& config, const parallel::Mesh& mesh, RecomputeMode mode,
                         double element) {
  const models::AttentionWidths& widths = *block.attention.attention;
  const double tensor = mesh.degree(MeshDim::kTp), dim = static_cast<double>(args.dim);
  const auto of = [&](int64_t heads, int64_t width) {
    return static_cast<double>(heads * width) / tensor * element;
  };
  const double queries = of(widths.heads, widths.head_dim), keys = of(widths.kv_heads, widths.head_dim),
               values = of(widths.kv_heads, widths.v_head_dim),
               output = of(widths.heads, widths.v_head_dim) +
                        static_cast<double>(widths.heads) / tensor * sizeof(float);
  const double stream = dim / tensor * element, gathered = dim * element;
  const bool latent = args.latent.is_present();
  // FP8 keeps the inputs of its products in one byte.
  const bool float8 = config::kFloat8.on(config) || config::kMx.on(config);
  const double input = float8 ? dim : gathered;
  const double latents =
      latent ? static_cast<double>(args.latent.kv_lora_rank + args.latent.q_lora_rank) * element * 2 : 0;
  const double normed = args.attention.qk_norm && !latent ? queries + keys : 0;
  switch (mode) {
    case RecomputeMode::kNone:
      return input + queries + keys + values + output + normed + latents + (float8 ? dim / tensor : 0);
    case RecomputeMode::kElementwise:
      return queries + keys + values + output + stream + normed + latents / 2;
    case RecomputeMode::kFull:
      return mesh.degree(MeshDim::kCp) > 1 ? output : 0;
    default:
      return queries + keys + values + output + (tensor > 1 ? stream : 0);
  }
}

double kept_of_feed_forward(const models::BlockDescription& block, const models::ModelArgs& args,
                            const config::JobConfig& config, const parallel::Mesh& mesh, RecomputeMode mode,
                            double element) {
  const double tensor = mesh.degree(MeshDim::kTp), dim = static_cast<double>(args.dim);
  const double stream = dim / tensor * element, gathered = dim * element;
  const double inputs = config::kFloat8.on(config) || config::kMx.on(config) ? 1 / element : 1;  // in FP8
  double hidden = 0;  // of the dense or shared feed-forward
  for (const models::ParameterShape& shape : block.feed_forward.parameters)
    if (shape.name.ends_with("w1.weight")) hidden = static_cast<double>(shape.dims[0]) / tensor * element;
  double bytes = 0;
  switch (mode) {
    case RecomputeMode::kNone:
      bytes = stream + (hidden > 0 ? gathered * inputs : stream) + (2 + inputs) * hidden;
      break;
    case RecomputeMode::kElementwise:
      bytes = 2 * hidden;
      break;
    case RecomputeMode::kFull:
      break;
    default:
      bytes = hidden;
  }
  if (!block.feed_forward.experts) return bytes;
  const models::ExpertWidths& widths = *block.feed_forward.experts;
  const bool apart = config::divides_experts(config);
  const double parts = apart ? mesh.degree(MeshDim::kEtp) : tensor;
  // Rows of this rank's experts, and those that its tokens sent and got back, per token of the microbatch.
  const double sent = static_cast<double>(widths.top_k) / tensor, rows = sent * parts;
  const double row = dim * element, hidden_row = static_cast<double>(widths.hidden) / parts * element;
  const double order = sent * 4 * sizeof(int32_t);
  const double scores = static_cast<double>(widths.experts) / tensor * 2 * sizeof(float);
  switch (mode) {
    case RecomputeMode::kNone:
      return bytes + rows * (row + 3 * hidden_row) + sent * row + order + scores;
    case RecomputeMode::kElementwise:
      return bytes + rows * (row + 2 * hidden_row) + sent * row + order;
    case RecomputeMode::kFull:
      return bytes + order;
    default:
      return bytes + (apart ? rows * row + sent * row : 0) + order;
  }
}

}  // namespace

config::RecomputeMode recompute_mode_of(const config::JobConfig& config, int64_t layer) {
  const auto& options = config.activation_checkpoint;
  if (options.mode != RecomputeMode::kSelective) return options.mode;
  const std::optional<int64_t> every = config::checkpointed_blocks(options);
  if (!every) return RecomputeMode::kSelective;
  return layer % *every == 0 ? RecomputeMode::kFull : RecomputeMode::kNone;
}

double kept_bytes_per_token(const models::BlockDescription& block, const models::ModelArgs& args,
                            const config::JobConfig& config, const parallel::Mesh& mesh, RecomputeMode mode) {
  const auto element = static_cast<double>(checkpoint::size_of(config.training.mixed_precision_param));
  const double input = static_cast<double>(args.dim) / mesh.degree(MeshDim::kTp) * element;
  return input + kept_of_attention(block, args, config, mesh, mode, element) +
         kept_of_feed_forward(block, args, config, mesh, mode, element);
}

PeakMemory peak_memory(const config::JobConfig& config, const models::ModelArgs& args,
                       const models::ModelDescription& model, const parallel::Mesh& mesh,
                       int64_t microbatches, const JobSize& size, const PipelineShare* share,
                       double in_flight) {
  return PeakOfRank(config, args, model, mesh, microbatches, size, share, in_flight).largest();
}

}  // namespace hyperion::trainer
