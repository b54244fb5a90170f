#include "models/parts/block_parts.h"

#include "models/description.h"
#include "models/parts/attention/attention.h"
#include "models/parts/dense/feed_forward.h"
#include "models/parts/experts/moe.h"
#include "models/parts/latent_attention/latent_attention.h"

namespace hyperion::models {

std::unique_ptr<AttentionPart> make_attention(const ModelArgs& args, int64_t layer,
                                              const ParallelDims& dims) {
  const PartParameters parameters(describe_attention_of(args, layer), args, layer, dims);
  switch (attention_kind(args)) {
    case AttentionKind::kLatent:
      return std::make_unique<LatentAttention>(parameters, args, dims);
    case AttentionKind::kPlain:
      break;
  }
  return std::make_unique<Attention>(parameters, args, layer, dims);
}

std::unique_ptr<FeedForwardPart> make_feed_forward(const ModelArgs& args, int64_t layer,
                                                   const ParallelDims& dims) {
  const PartParameters parameters(describe_feed_forward_of(args, layer), args, layer, dims);
  switch (feed_forward_kind(args, layer)) {
    case FeedForwardKind::kExperts:
      return std::make_unique<MoE>(parameters, args, dims);
    case FeedForwardKind::kDense:
      break;
  }
  return std::make_unique<FeedForward>(parameters, args, dims);
}

}  // namespace hyperion::models
