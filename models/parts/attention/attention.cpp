#include "models/parts/attention/attention.h"

#include <fmt/format.h>

#include "models/layers/block_linear.h"
#include "models/parts/attention/gathered_attention.h"

namespace hyperion::models {

Attention::Attention(const ModelArgs& args, int64_t layer, const ParallelDims& dims)
    : head_dim_(args.head_dim),
      context_group_(dims.context_group()),
      rope_style_(args.rope_style),
      qkv_(fmt::format("layers.{}.attention.wq, wk and wv", layer),
           {block_linear(dims, layer, "attention.wq", args.n_heads * args.head_dim, args.dim),
            block_linear(dims, layer, "attention.wk", args.n_kv_heads * args.head_dim, args.dim),
            block_linear(dims, layer, "attention.wv", args.n_kv_heads * args.head_dim, args.dim)}),
      wo_(block_linear(dims, layer, "attention.wo", args.dim, args.n_heads * args.head_dim,
                       residual_std(args, layer), kSplitByColumns)) {
  if (!args.qk_norm) return;
  q_norm_.emplace(fmt::format("layers.{}.attention.q_norm.weight", layer), args.head_dim, args.norm_eps);
  k_norm_.emplace(fmt::format("layers.{}.attention.k_norm.weight", layer), args.head_dim, args.norm_eps);
}

std::vector<ParameterPtr> Attention::parameters() const {
  std::vector<ParameterPtr> all = {qkv_.weight(0), qkv_.weight(1), qkv_.weight(2), wo_.weight()};
  if (q_norm_) all.insert(all.end(), {q_norm_->weight(), k_norm_->weight()});
  return all;
}

std::vector<Linear*> Attention::linears() {
  std::vector<Linear>& qkv = qkv_.layers();
  return {&qkv[0], &qkv[1], &qkv[2], &wo_};
}

at::Tensor Attention::forward(at::TensorList x, const SequenceContext& context, const BlockRun& run) const {
  const auto [q, k, v] = rotated_heads(x, context, run);
  const at::Tensor attended = attention_over_ranks(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                                                   context, context_group_, run)
                                  .transpose(1, 2);  // [batch, seq, heads, head_dim]
  return row_linear(attended.flatten(-2), wo_, RowResult::kNeededAgain, run);
}

// The products of wq, wk and wv are gone before attention runs.
ops::RotatedHeads Attention::rotated_heads(at::TensorList x, const SequenceContext& context,
                                           const BlockRun& run) const {
  std::vector<at::Tensor> heads = qkv_.forward(x, run);
  for (at::Tensor& projected : heads) projected = projected.unflatten(-1, {-1, head_dim_});
  if (q_norm_) {
    heads[0] = q_norm_->forward(heads[0]);
    heads[1] = k_norm_->forward(heads[1]);
  }
  return ops::rope_qkv(heads[0], heads[1], heads[2], context.cos, context.sin, rope_style_);
}

}  // namespace hyperion::models
