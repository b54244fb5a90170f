#include "models/parts/attention/attention.h"

#include "models/parts/attention/gathered_attention.h"

namespace hyperion::models {

Attention::Attention(const PartParameters& parameters, const ModelArgs& args, int64_t layer,
                     const ParallelDims& dims)
    : AttentionPart(parameters),
      head_dim_(args.attention.head_dim),
      context_group_(dims.active_cp_group()),
      rope_style_(args.rope.style),
      qkv_(parameters.prefix() + "attention.wq, wk and wv",
           {parameters.linear("attention.wq"), parameters.linear("attention.wk"),
            parameters.linear("attention.wv")}),
      wo_(parameters.linear("attention.wo")),
      window_(args.attention.window_of(layer)),
      sinks_(args.attention.sinks ? parameters.at("attention.sinks") : nullptr) {
  if (!args.attention.qk_norm) return;
  q_norm_ = parameters.norm("attention.q_norm");
  k_norm_ = parameters.norm("attention.k_norm");
}

std::vector<Linear*> Attention::linears() {
  std::vector<Linear>& qkv = qkv_.layers();
  return {&qkv[0], &qkv[1], &qkv[2], &wo_};
}

at::Tensor Attention::forward(at::TensorList x, const SequenceContext& context, const BlockRun& run) const {
  const auto [q, k, v] = rotated_heads(x, context, run);
  const at::Tensor attended =
      attention_over_ranks(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), context, context_group_,
                           run, {window_, sinks_ ? sinks_->weight : at::Tensor()})
          .transpose(1, 2);  // [batch, seq, heads, head_dim]
  return row_linear(attended.flatten(-2), wo_, OutputUse::kRecomputed, run);
}

// A function of its own, so that the outputs of wq, wk and wv are freed before attention runs.
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
