#include "models/parts/block_parts.h"

#include "models/parts/attention/attention.h"
#include "models/parts/dense/feed_forward.h"
#include "models/parts/experts/moe.h"
#include "models/parts/latent_attention/latent_attention.h"

namespace hyperion::models {

std::unique_ptr<AttentionPart> make_attention(const ModelArgs& args, int64_t layer,
                                              const ParallelDims& dims) {
  if (args.kv_lora_rank > 0) return std::make_unique<LatentAttention>(args, layer, dims);
  return std::make_unique<Attention>(args, layer, dims);
}

std::unique_ptr<FeedForwardPart> make_feed_forward(const ModelArgs& args, int64_t layer,
                                                   const ParallelDims& dims) {
  if (has_experts(args, layer)) return std::make_unique<MoE>(args, layer, dims);
  return std::make_unique<FeedForward>(args, layer, "feed_forward", args.hidden_dim, dims);
}

}  // namespace hyperion::models
